"""Encodings of vision encoders and groups: against their formulas, transformers and timm, and by their properties."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from timm.layers.pos_embed_sincos import (
    RotaryEmbeddingCat,
    RotaryEmbeddingDinoV3,
    RotaryEmbeddingMixed,
    RotaryEmbeddingMRope,
    apply_rot_embed_cat,
    make_coords_dinov3,
)
from torch import Tensor, nn
from transformers.models.dinov3_vit.modeling_dinov3_vit import (
    DINOv3ViTRopePositionEmbedding,
    augment_patches_center_coordinates,
    get_patches_center_coordinates,
)
from transformers.models.dinov3_vit.modeling_dinov3_vit import apply_rotary_pos_emb as apply_dinov3
from transformers.models.kimi_k25.modeling_kimi_k25 import Kimi_K25VisionRotaryEmbedding
from transformers.models.llama4.modeling_llama4 import Llama4VisionRotaryEmbedding, vision_apply_rotary_emb
from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import MiniMaxM3VLVisionRotaryEmbedding
from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import apply_rotary_pos_emb_vision as apply_minimax
from transformers.models.pixtral.modeling_pixtral import PixtralVisionRotaryEmbedding
from transformers.models.pixtral.modeling_pixtral import apply_rotary_pos_emb as apply_pixtral
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLVisionRotaryEmbedding, apply_rotary_pos_emb_vision
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionRotaryEmbedding
from transformers.models.vjepa2.modeling_vjepa2 import rotate_queries_or_keys

from mrope.encoding import Encoding, Where, read_ids
from mrope.encodings.coordinates import Rule, augment, patch_coordinates
from mrope.encodings.directional import GoldenGateRope, MixedRope, SpiralRope, WaveRope
from mrope.encodings.groups import CirculantRope, ComRope, GrapeRope, LieRope, StringRope
from mrope.encodings.planar import (
    AxialRope,
    Dinov3Rope,
    Eva02Rope,
    LinearRope,
    MoonVitRope,
    PixtralRope,
    QwenVisionRope,
)
from mrope.probes.audits.encoding import audit_encoding

GRID = (3, 5)  # rows and cols differ
GOLDEN = (1 + 5**0.5) / 2


def ids_of(*grid: int) -> Tensor:
    return patch_coordinates(grid)


# ------------------------------------------------------------------------------------------------------- coordinates

RULES: dict[str, Callable[[int, int, tuple[int, ...], int], float]] = {
    "integers": lambda i, n, grid, m: i,
    "centres": lambda i, n, grid, m: (2 * i + 1) / n - 1,
    "centres-longer": lambda i, n, grid, m: (2 * i + 1) / max(grid) - 1,
    "centres-shorter": lambda i, n, grid, m: (2 * i + 1) / min(grid) - 1,
    "ends": lambda i, n, grid, m: -1 if n == 1 else 2 * i / (n - 1) - 1,
    "unit": lambda i, n, grid, m: (2 * i + 1) / (2 * n),
    "reference": lambda i, n, grid, m: i * m / n,
    "span": lambda i, n, grid, m: 0 if n == 1 else i * n / (m * (n - 1)),
}


@pytest.mark.parametrize("grid", [GRID, (4, 1), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_patches_lie_where_the_rule_says_in_raster_order(rule: Any, grid: tuple[int, ...]) -> None:
    trained = {2: (7, 4), 3: (2, 7, 4)}[len(grid)] if rule in ("reference", "span") else None
    if "-" in rule and len(grid) == 3:
        with pytest.raises(ValueError, match=r"has 3 axes; rule .* compares the two sides"):
            patch_coordinates(grid, rule=rule)
        return
    coordinates = patch_coordinates(grid, rule=rule, trained=trained)
    wanted = [
        [RULES[rule](i, n, grid, m) for i, n, m in zip(cell, grid, trained or grid, strict=True)]
        for cell in np.ndindex(*grid)
    ]
    assert coordinates.dtype == torch.float32
    np.testing.assert_allclose(coordinates.T.numpy(), wanted, atol=1e-6)


SIDES: dict[Rule, str] = {"centres": "separate", "centres-longer": "max", "centres-shorter": "min"}


def test_centres_are_those_of_timm_and_transformers_to_the_bit() -> None:
    for rule, name in SIDES.items():
        assert torch.equal(patch_coordinates(GRID, rule=rule).T, make_coords_dinov3(*GRID, normalize_coords=name))
    theirs = get_patches_center_coordinates(*GRID, dtype=torch.float32, device=torch.device("cpu"))
    assert torch.equal(patch_coordinates(GRID, rule="centres").T, theirs)


@pytest.mark.parametrize("kinds", [("shift",), ("jitter",), ("rescale",), ("shift", "jitter", "rescale")], ids=str)
def test_augmented_coordinates_are_those_of_transformers_to_the_bit(kinds: tuple[str, ...]) -> None:
    options = {"shift": 0.3, "jitter": 1.4, "rescale": 2.0}
    coordinates = patch_coordinates(GRID, rule="centres")
    before = coordinates.clone()
    torch.manual_seed(3)
    theirs = augment_patches_center_coordinates(coordinates.T, **{kind: options[kind] for kind in kinds})
    ours = augment(coordinates, **{kind: options[kind] for kind in kinds}, generator=torch.Generator().manual_seed(3))
    assert torch.equal(ours.T, theirs)
    assert torch.equal(coordinates, before)
    assert not torch.equal(ours, before)


def test_augmentation_draws_within_its_bounds_per_axis_or_for_all() -> None:
    ones = torch.ones(2, 4, 3)
    draws = torch.stack([augment(ones, jitter=2.0) for _ in range(300)])
    assert draws[:, :, :1, :1].expand_as(draws).equal(draws)  # one factor an axis
    assert 0.5 <= draws.min() < 0.52
    assert 1.95 < draws.max() <= 2
    assert abs(draws.log().mean()) < 0.1  # log-uniform
    assert (draws[:, 0] != draws[:, 1]).all()
    rescaled = augment(ones, rescale=2.0)
    assert rescaled.unique().numel() == 1
    assert augment(ones) is ones
    shifts = torch.stack([augment(0 * ones, shift=0.5) for _ in range(300)])
    assert -0.5 <= shifts.min() < -0.48
    assert 0.48 < shifts.max() <= 0.5


def test_coordinates_that_make_no_sense_are_refused() -> None:
    for call, why in (
        (lambda: patch_coordinates((3, 5), rule="reference"), "trained is None; rule 'reference' needs `trained`"),
        (lambda: patch_coordinates((3, 5), trained=(3, 5)), r"trained is \(3, 5\); rule 'integers' takes no `trained`"),
        (lambda: patch_coordinates((3, 5), rule="span", trained=(3,)), r"trained \(3,\) has 1 axes; grid .* has 2"),
        (lambda: patch_coordinates((3, 0)), "grid entry is 0; expected at least 1"),
        (lambda: patch_coordinates(()), "grid is empty"),
        (lambda: augment(torch.zeros(2, 3), jitter=0.5), "jitter is 0.5; expected a factor of at least 1"),
        (lambda: augment(torch.zeros(2, 3), rescale=0.9), "rescale is 0.9; expected a factor of at least 1"),
        (lambda: augment(torch.zeros(2, 3), shift=-1), "shift is -1; expected a finite number above 0"),
    ):
        with pytest.raises(ValueError, match=why):
            call()


# ------------------------------------------------------------------------------------------ linear: against formulas

R, F = 16, 8
Angle = Callable[[int, int, Any], float]

# The angle of pair i of head h at coordinates p, from the papers' formulas.
LINEAR: dict[str, tuple[LinearRope, Angle]] = {
    "AxialRope": (AxialRope(R), lambda h, i, p: 100 ** (-4 * (i % 4) / R) * p[1 if i < 4 else 0]),
    "AxialRope-3": (AxialRope(12, axes=3), lambda h, i, p: 100 ** (-6 * (i % 2) / 12) * p[2 - i // 2]),
    "QwenVisionRope": (QwenVisionRope(R), lambda h, i, p: 1e4 ** (-4 * (i % 4) / R) * p[i // 4]),
    "QwenVisionRope-3": (QwenVisionRope(12, axes=3), lambda h, i, p: 1e4 ** (-6 * (i % 2) / 12) * p[i // 2]),
    "Eva02Rope": (Eva02Rope(R), lambda h, i, p: 1e4 ** (-4 * (i % 4) / R) * p[i // 4]),
    "Dinov3Rope": (Dinov3Rope(R), lambda h, i, p: 2 * math.pi * p[i // 4] / 100 ** (2 * (i % 4) / (R / 2))),
    "PixtralRope": (PixtralRope(R), lambda h, i, p: 1e4 ** (-2 * (2 * (i % 4) + i // 4) / R) * p[i // 4]),
    "MoonVitRope": (MoonVitRope(R), lambda h, i, p: 1e4 ** (-4 * (i // 2) / R) * p[1 - i % 2]),
    "WaveRope": (
        WaveRope((tuple(0.1 * i for i in range(F)), tuple(0.3 - 0.2 * i for i in range(F)))),
        lambda h, i, p: 0.1 * i * p[0] + (0.3 - 0.2 * i) * p[1],
    ),
    "SpiralRope": (
        SpiralRope(R, directions=4),
        lambda h, i, p: (
            100 ** (-8 * (i % 2) / R) * (p[1] * math.cos(i // 2 * math.pi / 4) + p[0] * math.sin(i // 2 * math.pi / 4))
        ),
    ),
    "GoldenGateRope": (
        GoldenGateRope(R, heads=2, still=0.25),
        lambda h, i, p: (
            0
            if i < 2
            else (
                0.2
                * 100 ** ((i - 2) / 5)
                * (p[1] * math.cos((h * F + i) * math.pi / GOLDEN) + p[0] * math.sin((h * F + i) * math.pi / GOLDEN))
            )
        ),
    ),
}
LINEAR_NAMES = tuple(dict.fromkeys(name.split("-")[0] for name in LINEAR))


def by_complex_numbers(x: Tensor, ids: Tensor, angle: Angle, pairs: int, pairing: str, share: int = 1) -> np.ndarray:
    """One token, head and pair at a time: x (B, H, N, D), ids (A, N); `share` heads in a row turn alike."""
    out = x.double().numpy().copy()
    for b, h, n in np.ndindex(*x.shape[:3]):
        for i in range(pairs):
            one, other = (i, i + pairs) if pairing == "half" else (2 * i, 2 * i + 1)
            turned = complex(*out[b, h, n, [one, other]]) * np.exp(1j * angle(h // share, i, ids[:, n].tolist()))
            out[b, h, n, [one, other]] = turned.real, turned.imag
    return out


@pytest.mark.evidence("definition", *LINEAR_NAMES)
@pytest.mark.parametrize("name", LINEAR)
def test_each_pair_turns_by_its_formula(name: str) -> None:
    encoding, angle = LINEAR[name]
    pairs = encoding.frequencies.shape[-1]
    grid = (2, 3, 4) if name.endswith("-3") else GRID
    ids = ids_of(*grid)
    q, k = torch.randn(2, 4, ids.shape[1], 2 * pairs + 3), torch.randn(2, 2, ids.shape[1], 2 * pairs + 3)
    before = q.clone(), k.clone(), ids.clone()
    for x, turned, share in zip((q, k), encoding.rotate(q, k, ids), (2, 1), strict=True):
        wanted = by_complex_numbers(x, ids, angle, pairs, encoding.pairing, share)
        np.testing.assert_allclose(turned.numpy(), wanted, atol=2e-5, rtol=0)
        assert torch.equal(turned[..., 2 * pairs :], x[..., 2 * pairs :])
    assert all(torch.equal(x, y) for x, y in zip((q, k, ids), before, strict=True))


@pytest.mark.evidence("definition", "MixedRope")
def test_mixed_turns_by_two_learned_frequencies() -> None:
    encoding, ids = MixedRope(R, heads=3), ids_of(*GRID)
    nn.init.normal_(encoding.waves)
    waves = encoding.waves.tolist()
    q, k = torch.randn(2, 6, ids.shape[1], R), torch.randn(2, 3, ids.shape[1], R)
    for x, turned, share in zip((q, k), encoding.rotate(q, k, ids), (2, 1), strict=True):
        wanted = by_complex_numbers(
            x, ids, lambda h, i, p: waves[h][0][i] * p[0] + waves[h][1][i] * p[1], F, "adjacent", share
        )
        np.testing.assert_allclose(turned.detach().numpy(), wanted, atol=2e-5, rtol=0)


def test_mixed_starts_along_and_across_one_random_direction_a_head() -> None:
    row, col = MixedRope(R, heads=5).waves.detach().unbind(1)
    magnitude = torch.tensor([10 ** (-4 * k / R) for k in range(4)] * 2)
    torch.testing.assert_close(row.hypot(col), magnitude.expand(5, -1))
    torch.testing.assert_close(row[:, :4] * row[:, 4:] + col[:, :4] * col[:, 4:], torch.zeros(5, 4))
    direction = torch.atan2(row, col)
    torch.testing.assert_close(direction[:, :4], direction[:, :1].expand(-1, 4))
    assert direction[:, 0].unique().numel() == 5


# ------------------------------------------------------------------------------------------- linear: against libraries


def queries(ids: Tensor, dim: int, heads: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(2, heads, ids.shape[-1], dim), torch.randn(2, heads, ids.shape[-1], dim)


def axial_config(theta: float, dim: int) -> Any:
    return SimpleNamespace(rope_parameters={"rope_type": "axial", "rope_theta": theta}, head_dim=dim)


def assert_same(encoding: Encoding, ids: Tensor, dim: int, apply: Callable[[Tensor], Tensor], heads: int = 3) -> None:
    """Ours against theirs on whole tensors, and other than with rows and cols swapped."""
    q, k = queries(ids, dim, heads)
    swapped = torch.cat((ids[:-2], ids[-2:].flip(0)))
    for x, ours, other in zip((q, k), encoding.rotate(q, k, ids), encoding.rotate(q, k, swapped), strict=True):
        torch.testing.assert_close(ours, apply(x), atol=1e-5, rtol=0)
        assert (other - ours).abs().max() > 0.1


@pytest.mark.evidence("library", "AxialRope", "SpiralRope")
def test_axial_is_that_of_timm() -> None:
    emb = RotaryEmbeddingCat(R, temperature=100, in_pixels=False, grid_indexing="xy").get_embed(list(GRID))
    for encoding in (AxialRope(R), SpiralRope(R, directions=2)):
        assert_same(encoding, ids_of(*GRID), R, lambda x: apply_rot_embed_cat(x, emb))


@pytest.mark.evidence("library", "AxialRope")
def test_llama4_vision_is_axial_one_patch_on() -> None:
    config = SimpleNamespace(
        image_size=20, patch_size=4, hidden_size=2 * R, num_attention_heads=2, rope_parameters={"rope_theta": 1e4}
    )
    table = Llama4VisionRotaryEmbedding(config)(torch.zeros(1))  # pyright: ignore[reportArgumentType]
    ids = torch.cat((ids_of(5, 5) + 1, torch.zeros(2, 1)), dim=1)  # the class token comes last

    def apply(x: Tensor) -> Tensor:
        return vision_apply_rotary_emb(x.transpose(1, 2), x.transpose(1, 2), table)[0].transpose(1, 2)

    assert_same(AxialRope(R, base=1e4), ids, R, apply)


@pytest.mark.evidence("library", "Eva02Rope")
def test_eva02_is_that_of_timm() -> None:
    emb = RotaryEmbeddingCat(R, in_pixels=False, ref_feat_shape=[4, 6]).get_embed(list(GRID))
    ids = patch_coordinates(GRID, rule="reference", trained=(4, 6))
    assert_same(Eva02Rope(R), ids, R, lambda x: apply_rot_embed_cat(x, emb))


@pytest.mark.evidence("library", "Dinov3Rope")
@pytest.mark.parametrize("rule", SIDES)
def test_dinov3_is_that_of_timm(rule: Rule) -> None:
    emb = RotaryEmbeddingDinoV3(R, normalize_coords=SIDES[rule]).get_embed(list(GRID))
    assert_same(Dinov3Rope(R), patch_coordinates(GRID, rule=rule), R, lambda x: apply_rot_embed_cat(x, emb, half=True))


@pytest.mark.evidence("library", "Dinov3Rope")
def test_dinov3_is_that_of_transformers() -> None:
    config: Any = SimpleNamespace(
        rope_theta=100.0, hidden_size=2 * R, num_attention_heads=2, image_size=32, patch_size=4
    )
    module = DINOv3ViTRopePositionEmbedding(config).eval()
    config.pos_embed_shift = config.pos_embed_jitter = config.pos_embed_rescale = None
    table = module(torch.zeros(1, 3, 4 * GRID[0], 4 * GRID[1]))
    ids = patch_coordinates(GRID, rule="centres")
    assert_same(Dinov3Rope(R), ids, R, lambda x: apply_dinov3(x, x, *table)[0])


@pytest.mark.evidence("library", "MixedRope")
def test_mixed_is_that_of_timm_layer_by_layer() -> None:
    theirs = RotaryEmbeddingMixed(3 * R, depth=2, num_heads=3)
    embs = theirs.get_embed(list(GRID)).detach()
    for layer, emb in enumerate(embs):
        encoding = MixedRope(R, heads=3).requires_grad_(False)
        encoding.load_state_dict({"waves": theirs.freqs.detach().flip(0)[:, layer].transpose(0, 1)})
        assert_same(encoding, ids_of(*GRID), R, lambda x, emb=emb: apply_rot_embed_cat(x, emb))


@pytest.mark.evidence("library", "QwenVisionRope")
@pytest.mark.parametrize("module", [Qwen2VLVisionRotaryEmbedding, Qwen3VLVisionRotaryEmbedding])
def test_qwen_towers_are_those_of_transformers_to_the_bit(module: Any) -> None:
    ids = ids_of(*GRID).long()
    cos, sin = module(axial_config(1e4, R))(torch.zeros(1), ids.T)
    ours = QwenVisionRope(R).cos_sin(ids)
    assert torch.equal(torch.cat((ours[0], ours[0]), -1), cos)
    assert torch.equal(torch.cat((ours[1], ours[1]), -1), sin)

    q, k = queries(ids, R)
    by_token = [apply_rotary_pos_emb_vision(row.transpose(0, 1), row.transpose(0, 1), cos, sin)[0] for row in q]
    assert torch.equal(QwenVisionRope(R).rotate(q, k, ids)[0], torch.stack(by_token).transpose(1, 2))


@pytest.mark.evidence("library", "QwenVisionRope")
def test_minimax_m3_tower_is_axial_in_three_axes_with_a_rest() -> None:
    ids, dim = ids_of(2, 3, 4), 20
    cos, sin = MiniMaxM3VLVisionRotaryEmbedding(axial_config(1e4, dim))(torch.zeros(1), ids.T)

    def apply(x: Tensor) -> Tensor:
        rows = [apply_minimax(row.transpose(0, 1), row.transpose(0, 1), cos, sin)[0] for row in x]
        return torch.stack(rows).transpose(1, 2)

    assert_same(QwenVisionRope(18, axes=3), ids, dim, apply)


@pytest.mark.evidence("library", "PixtralRope")
def test_pixtral_is_that_of_transformers() -> None:
    ids = ids_of(*GRID)
    table = PixtralVisionRotaryEmbedding(axial_config(1e4, R))(torch.zeros(1), ids.T)
    assert_same(PixtralRope(R), ids, R, lambda x: apply_pixtral(x, x, *table, unsqueeze_dim=0)[0])


@pytest.mark.evidence("library", "MoonVitRope")
def test_moonvit_is_that_of_transformers() -> None:
    ids = ids_of(*GRID)
    cos, sin = Kimi_K25VisionRotaryEmbedding(axial_config(1e4, R))(torch.zeros(1), ids.T)

    def apply(x: Tensor) -> Tensor:
        return x * cos + torch.cat((-x[..., F:], x[..., :F]), dim=-1) * sin

    assert_same(MoonVitRope(R, pairing="half"), ids, R, apply)


@pytest.mark.evidence("library", "WaveRope")
def test_waves_by_hand_give_the_interleaved_mrope_of_timm() -> None:
    emb = RotaryEmbeddingMRope(R, mrope_section=(2, 3, 3)).get_embed(list(GRID))
    speed = [1e4 ** (-2 * i / R) for i in range(F)]
    rows, cols = (tuple(s if i % 3 == axis else 0.0 for i, s in enumerate(speed)) for axis in (1, 2))
    assert_same(WaveRope((rows, cols)), ids_of(*GRID), R, lambda x: apply_rot_embed_cat(x, emb, half=True))


class VJepa2(Encoding):
    """What transformers' V-JEPA2 does to queries and keys of one axis."""

    def rotate(self, q: Tensor, k: Tensor, positions: Where) -> tuple[Tensor, Tensor]:
        ids = read_ids(positions, 1)[0]
        return rotate_queries_or_keys(q[None], ids)[0], rotate_queries_or_keys(k[None], ids)[0]


def test_what_vjepa2_does_in_transformers_is_no_rotation() -> None:
    measured = audit_encoding(VJepa2(), axes=1, head_dim=R)
    assert (measured.norm, measured.shift, measured.commutes) == (False, False, False)
    meant = QwenVisionRope(R, axes=1, pairing="adjacent")
    assert audit_encoding(meant, axes=1, head_dim=R) == meant.properties


# ------------------------------------------------------------------------------------------ groups: against formulas

D, HEADS = 8, 2


def skew_of(entries: Tensor, size: int) -> np.ndarray:
    out = np.zeros((size, size))
    values = iter(entries.tolist())
    for i in range(size):
        for j in range(i + 1, size):
            out[i, j] = next(values)
            out[j, i] = -out[i, j]
    return out


def expm(m: np.ndarray) -> np.ndarray:
    """By Taylor's series of m / 2^k, squared k times."""
    k = max(0, int(np.ceil(np.log2(np.abs(m).sum() + 1e-9))) + 1)
    out = term = np.eye(len(m))
    for n in range(1, 25):
        term = term @ m / 2**k / n
        out = out + term
    return np.linalg.matrix_power(out, 2**k)


def lie_matrix(rope: LieRope, h: int, p: list[float]) -> np.ndarray:
    out, b = np.zeros((D, D)), rope.block_size
    for j in range(D // b):
        angle = sum(p[a] * skew_of(rope.entries[h, a, j], b) for a in range(rope.axes))
        out[j * b : j * b + b, j * b : j * b + b] = expm(np.asarray(angle))
    return out


def com_matrix(rope: ComRope, h: int, p: list[float]) -> np.ndarray:
    out, b = np.zeros((D, D)), rope.block_size
    for j in range(D // b):
        skew = skew_of(rope.entries[h, j], b)
        if rope.kind == "AP":
            angle = p[j % rope.axes] * skew
        else:
            angle = sum(rope.rates[h, a, j].item() * p[a] for a in range(rope.axes)) * skew
        out[j * b : j * b + b, j * b : j * b + b] = expm(np.asarray(angle))
    return out


def cayley(rope: StringRope | GrapeRope, h: int) -> np.ndarray:
    skew = skew_of(rope.entries[h], D)
    return (np.eye(D) - skew) @ np.linalg.inv(np.eye(D) + skew)


def string_matrix(rope: StringRope, h: int, p: list[float]) -> np.ndarray:
    inner, waves = np.zeros((D, D)), rope.waves.tolist()[h]
    for i in range(D // 2):
        angle = sum(waves[a][i] * p[a] for a in range(rope.axes))
        c, s = math.cos(angle), math.sin(angle)
        inner[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[c, -s], [s, c]]
    basis = cayley(rope, h)
    return basis.T @ inner @ basis


def grape_matrix(rope: GrapeRope, h: int, p: list[float]) -> np.ndarray:
    planes, generator = cayley(rope, h), np.zeros((D, D))
    for i in range(D // 2):
        a, b = planes[2 * i], planes[2 * i + 1]
        if rope.mode == "axis":
            read = p[i % rope.axes]
        else:
            direction = rope.directions[h, :, i].detach().double().numpy()
            read = direction @ p / np.linalg.norm(direction)
        generator += 1e4 ** (-2 * i / D) * read * (np.outer(b, a) - np.outer(a, b))  # of columns; a turns to b
    return expm(generator)


def circulant_matrix(rope: CirculantRope, h: int, p: list[float]) -> np.ndarray:
    generator = np.zeros((D, D))
    for a in range(rope.axes):
        c = rope.columns[h, a].tolist()
        full = np.array([[c[(i - j) % D] for j in range(D)] for i in range(D)])
        generator += p[a] * (full - full.T)
    return expm(generator)


GROUPS: dict[str, tuple[Callable[[], Any], Callable[[Any, int, list[float]], np.ndarray]]] = {
    "LieRope-dense": (lambda: LieRope(D, heads=HEADS), lie_matrix),
    "LieRope-blocks": (lambda: LieRope(D, heads=HEADS, block_size=4), lie_matrix),
    "LieRope-twos": (lambda: LieRope(D, heads=HEADS, block_size=2), lie_matrix),
    "LieRope-line": (lambda: LieRope(D, heads=HEADS, axes=1), lie_matrix),
    "LieRope-clip": (lambda: LieRope(D, heads=HEADS, axes=3, block_size=4), lie_matrix),
    "ComRope-AP": (lambda: ComRope(D, kind="AP", heads=HEADS, block_size=4), com_matrix),
    "ComRope-LD": (lambda: ComRope(D, kind="LD", heads=HEADS, block_size=4), com_matrix),
    "ComRope-clip": (lambda: ComRope(D, kind="AP", axes=3, heads=HEADS, block_size=2), com_matrix),
    "StringRope": (lambda: StringRope(D, heads=HEADS), string_matrix),
    "GrapeRope-axis": (lambda: GrapeRope(D, mode="axis", axes=2, heads=HEADS), grape_matrix),
    "GrapeRope-mixed": (lambda: GrapeRope(D, mode="mixed", axes=2, heads=HEADS), grape_matrix),
    "GrapeRope-clip": (lambda: GrapeRope(D, mode="mixed", heads=HEADS), grape_matrix),
    "CirculantRope": (lambda: CirculantRope(D, heads=HEADS), circulant_matrix),
}
GROUP_NAMES = tuple(dict.fromkeys(name.split("-")[0] for name in GROUPS))


def learned(make: Callable[[], Any], by: float = 0.05) -> Any:
    """An encoding after a step of learning."""
    encoding = make()
    for parameter in encoding.parameters():
        parameter.data += by * torch.randn_like(parameter)
    return encoding


@pytest.mark.evidence("definition", *GROUP_NAMES)
@pytest.mark.parametrize("name", GROUPS)
def test_each_token_turns_by_the_exponential_of_its_generator(name: str) -> None:
    make, matrix = GROUPS[name]
    encoding = learned(make, by=0.3)
    ids = patch_coordinates({1: (7,), 2: GRID, 3: (2, 3, 4)}[encoding.axes], rule="centres")
    q, k = torch.randn(2, 2 * HEADS, ids.shape[1], D), torch.randn(2, HEADS, ids.shape[1], D)
    before = q.clone(), k.clone(), ids.clone()
    for x, turned, share in zip((q, k), encoding.rotate(q, k, ids), (2, 1), strict=True):
        for h, n in np.ndindex(*x.shape[1:3]):
            wanted = x[:, h, n].double().numpy() @ matrix(encoding, h // share, ids[:, n].tolist()).T
            np.testing.assert_allclose(turned[:, h, n].detach().numpy(), wanted, atol=1e-4, rtol=0)
    assert all(torch.equal(x, y) for x, y in zip((q, k, ids), before, strict=True))


def test_generators_start_as_published() -> None:
    entries = LieRope(64, heads=4).entries.detach()
    assert 0 <= entries.min() < 0.01
    assert 2 * math.pi - 0.01 < entries.max() <= 2 * math.pi
    assert abs(ComRope(64, kind="LD", heads=8).entries.std().item() - 2**0.5) < 0.1
    ids = ids_of(*GRID)
    q, k = queries(ids, D, HEADS)
    for encoding, start in (
        (StringRope(D, heads=HEADS), QwenVisionRope(D, base=100.0, pairing="adjacent")),
        (GrapeRope(D, mode="mixed", axes=2), GrapeRope(D, mode="axis", axes=2)),
    ):
        torch.testing.assert_close(encoding.rotate(q, k, ids), start.rotate(q, k, ids), atol=1e-5, rtol=0)
    text = torch.arange(7.0).expand(3, -1)
    q, k = queries(text, D, HEADS)
    plain = WaveRope((tuple(1e4 ** (-2 * i / D) for i in range(D // 2)),), pairing="adjacent")
    turned = GrapeRope(D, mode="axis").rotate(q, k, text)
    torch.testing.assert_close(turned, plain.rotate(q, k, text[:1]), atol=1e-5, rtol=0)


# ---------------------------------------------------------------------------------------------------------- properties

LEARNED = {name: make for name, (make, _) in GROUPS.items()} | {"MixedRope": lambda: MixedRope(D, heads=HEADS)}
FIXED = {name: encoding for name, (encoding, _) in LINEAR.items()}


@pytest.mark.evidence("properties", *LINEAR_NAMES)
@pytest.mark.parametrize("name", FIXED)
def test_fixed_encodings_have_the_properties_that_they_declare(name: str) -> None:
    encoding = FIXED[name]
    axes, dim = encoding.frequencies.shape[-2], 2 * encoding.frequencies.shape[-1]
    assert encoding.axes == axes
    assert audit_encoding(encoding, axes=axes, head_dim=dim, extent=8) == encoding.properties


@pytest.mark.evidence("properties", "MixedRope", *GROUP_NAMES)
@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("name", LEARNED)
def test_learned_encodings_have_the_properties_that_they_declare_while_they_learn(name: str, steps: int) -> None:
    encoding = learned(LEARNED[name], by=0.05 * steps)
    measured = audit_encoding(encoding, axes=encoding.axes, head_dim=D, heads=HEADS, extent=4)
    assert measured == encoding.properties
    assert measured.norm
    assert measured.shift == (name not in ("LieRope-dense", "LieRope-blocks", "LieRope-clip"))


def test_scores_of_lie_rope_depend_on_where_the_pair_is_with_two_axes_but_not_with_one() -> None:
    q, k = queries(ids_of(*GRID), D, HEADS)

    def moved(encoding: LieRope, ids: Tensor) -> float:
        def scores(positions: Tensor) -> Tensor:
            rotated_q, rotated_k = encoding.rotate(q, k, positions)
            return rotated_q @ rotated_k.mT

        return (scores(ids + 0.5) - scores(ids)).abs().max().item()

    ids = patch_coordinates(GRID, rule="unit")
    assert moved(LieRope(D, heads=HEADS), ids) > 1
    assert moved(LieRope(D, heads=HEADS, axes=1), ids[:1]) < 1e-3
    assert moved(LieRope(D, heads=HEADS, block_size=2), ids) < 1e-3


ALL = [pytest.param(lambda encoding=encoding: encoding, id=name) for name, encoding in FIXED.items()] + [
    pytest.param(lambda make=make: learned(make).requires_grad_(False), id=name) for name, make in LEARNED.items()
]


def sizes(encoding: Any) -> tuple[int, int]:
    """Axes and head dim."""
    dim = 2 * encoding.frequencies.shape[-1] if isinstance(encoding, LinearRope) else encoding.head_dim
    return encoding.axes, dim


@pytest.mark.parametrize("make", ALL)
def test_every_row_of_a_batch_has_its_own_coordinates_and_may_stand_alone(make: Callable[[], Any]) -> None:
    encoding = make()
    axes, dim = sizes(encoding)
    ids = torch.rand(axes, 3, 5)
    q, k = torch.randn(3, 4, 5, dim), torch.randn(3, 2, 5, dim)
    turned = encoding.rotate(q, k, ids)
    assert turned[0].shape == q.shape
    assert turned[1].shape == k.shape
    for row in range(3):
        alone = encoding.rotate(q[row], k[row], ids[:, row])
        for whole, one in zip(turned, alone, strict=True):
            torch.testing.assert_close(whole[row], one, atol=1e-5, rtol=0)


@pytest.mark.parametrize("make", [case for case in ALL if case.id != "LieRope-line"])
def test_rows_and_cols_are_not_the_same(make: Callable[[], Any]) -> None:
    encoding = make()
    axes, dim = sizes(encoding)
    ids = patch_coordinates(GRID if axes == 2 else (2, *GRID), rule="unit")
    q, k = queries(ids, dim, HEADS)
    swapped = torch.cat((ids[:-2], ids[-2:].flip(0)))
    assert (encoding.rotate(q, k, ids)[0] - encoding.rotate(q, k, swapped)[0]).abs().max() > 0.1


@pytest.mark.parametrize("make", ALL)
def test_half_precision_is_rounded_once_also_under_autocast(make: Callable[[], Any]) -> None:
    encoding = make()
    axes, dim = sizes(encoding)
    ids = torch.rand(axes, 6)
    q, k = (x.bfloat16() for x in (torch.randn(2, 4, 6, dim), torch.randn(2, 2, 6, dim)))
    exact = encoding.rotate(q.float(), k.float(), ids)
    with torch.autocast("cpu", torch.bfloat16):
        cast = encoding.rotate(q, k, ids)
    for result in (cast, encoding.rotate(q, k, ids)):
        for half, full in zip(result, exact, strict=True):
            assert half.dtype == torch.bfloat16
            assert torch.equal(half, full.bfloat16())


def test_learned_parameters_in_half_precision_still_make_float32_angles() -> None:
    q, k = queries(ids_of(*GRID), D, HEADS)
    for make in LEARNED.values():
        encoding = make().bfloat16()
        ids = torch.rand(encoding.axes, q.shape[-2])
        rounded = {name: value.float() for name, value in encoding.state_dict().items()}
        for half in encoding.rotate(q, k, ids), encoding.rotate(q.bfloat16(), k.bfloat16(), ids):
            assert half[0].isfinite().all()
        turned = encoding.rotate(q, k, ids)[0]
        encoding.float().load_state_dict(rounded)
        assert torch.equal(turned, encoding.rotate(q, k, ids)[0])


# ------------------------------------------------------------------------------------------------------------ gradients


@pytest.mark.evidence("gradient", "MixedRope", *GROUP_NAMES)
@pytest.mark.parametrize("name", LEARNED)
def test_gradients_of_what_learns(name: str) -> None:
    encoding = learned(LEARNED[name]).double()
    ids = torch.rand(encoding.axes, 3, dtype=torch.float64)
    q = torch.randn(1, 2 * HEADS, 3, D, dtype=torch.float64, requires_grad=True)
    k = torch.randn(1, HEADS, 3, D, dtype=torch.float64, requires_grad=True)
    parameters = tuple(encoding.parameters())
    assert parameters
    assert torch.autograd.gradcheck(lambda q, k, *_: encoding.rotate(q, k, ids), (q, k, *parameters), fast_mode=True)
    rotated = encoding.rotate(q, k, ids)
    sum((x**3).sum() for x in rotated).backward()  # pyright: ignore[reportAttributeAccessIssue]
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in parameters)


@pytest.mark.evidence("gradient", *LINEAR_NAMES)
@pytest.mark.parametrize("name", FIXED)
def test_gradients_flow_through_queries_and_keys(name: str) -> None:
    encoding = FIXED[name]
    axes, dim = sizes(encoding)
    ids = torch.rand(axes, 3)
    q = torch.randn(1, 4, 3, dim, dtype=torch.float64, requires_grad=True)
    k = torch.randn(1, 2, 3, dim, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda q, k: encoding.rotate(q, k, ids), (q, k), fast_mode=True)


def test_a_group_may_serve_one_kv_head_and_heads_may_share_one_group() -> None:
    ids = ids_of(*GRID)
    q, k = torch.randn(2, 6, ids.shape[1], D), torch.randn(2, 1, ids.shape[1], D)
    for encoding in (LieRope(D), StringRope(D), CirculantRope(D), GoldenGateRope(D), MixedRope(D, heads=1)):
        turned_q, turned_k = encoding.rotate(q, k.expand(2, 6, -1, -1), ids)
        torch.testing.assert_close(encoding.rotate(q, k, ids)[1].expand_as(turned_k), turned_k, atol=1e-5, rtol=0)
        same = encoding.rotate(q[:, :1].expand_as(q), k, ids)[0]
        torch.testing.assert_close(same, turned_q[:, :1].expand_as(q), atol=1e-5, rtol=0)


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize(("rows", "tokens"), [(2, 0), (0, 5)])
def test_no_tokens_or_no_rows_turn_into_nothing(make: Callable[[], Any], rows: int, tokens: int) -> None:
    encoding = make()
    axes, dim = sizes(encoding)
    q, k = torch.ones(rows, 4, tokens, dim), torch.ones(rows, 2, tokens, dim)
    turned = encoding.rotate(q, k, torch.zeros(axes, tokens))
    assert [x.shape for x in turned] == [q.shape, k.shape]


@pytest.mark.parametrize("make", ALL)
def test_strided_ids_are_the_same_ids(make: Callable[[], Any]) -> None:
    encoding = make()
    axes, dim = sizes(encoding)
    x, ids = torch.randn(3, 2, 5, dim), torch.randn(3, 5, axes)
    strided = (ids.movedim(-1, 0), ids.permute(2, 0, 1)[..., ::1], ids[:, :, :1].movedim(-1, 0).expand(axes, -1, -1))
    for each in strided:
        assert torch.equal(encoding.rotate(x, x, each)[0], encoding.rotate(x, x, each.clone().contiguous())[0])


@pytest.mark.parametrize("make", ALL)
def test_turning_needs_no_device_with_autocast(make: Callable[[], Any]) -> None:
    encoding = make()
    axes, dim = sizes(encoding)
    if hasattr(encoding, "to"):
        encoding = encoding.to("meta")
    x, ids = torch.empty(3, 2, 5, dim, device="meta"), torch.empty(axes, 3, 5, device="meta")
    assert encoding.rotate(x, x, ids)[0].device.type == "meta"


def test_exponentials_keep_norms_far_out_in_float64_and_as_documented_in_float32() -> None:
    ids = 1000 * torch.rand(2, 9)
    ids[:, 0] = 1000
    for encoding, far in ((LieRope(64), 3e-2), (ComRope(64, kind="AP"), 1e-3), (ComRope(64, kind="LD"), 1e-3)):
        for dtype, close in ((torch.float32, far), (torch.float64, 1e-9)):
            q = torch.randn(2, 9, 64, dtype=dtype)
            turned = encoding.rotate(q, q, ids)[0]
            torch.testing.assert_close(turned.norm(dim=-1), q.norm(dim=-1), rtol=close, atol=0)


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: AxialRope(10), "rotary_dim 10 is no multiple of 4; 2 axes take as many pairs each"),
        (lambda: QwenVisionRope(16, axes=3), "rotary_dim 16 is no multiple of 6; 3 axes take as many pairs each"),
        (lambda: PixtralRope(6), "rotary_dim 6 is no multiple of 4"),
        (lambda: MoonVitRope(8, base=0), "base is 0; expected a finite number above 0"),
        (lambda: AxialRope(8, axes=0), "axes is 0; expected at least 1"),
        (lambda: SpiralRope(16, directions=3), "rotary_dim 16 is no multiple of 6; 3 directions"),
        (lambda: MixedRope(6, heads=1), "rotary_dim 6 is no multiple of 4"),
        (lambda: MixedRope(8, heads=0), "heads is 0; expected at least 1"),
        (lambda: GoldenGateRope(7), "rotary_dim 7 is no multiple of 2"),
        (lambda: GoldenGateRope(8, slowest=3, fastest=2), "slowest is 3, fastest 2; expected slowest <= fastest"),
        (lambda: GoldenGateRope(8, still=1), "still is 1; expected a share from 0 up to below 1"),
        (lambda: WaveRope(((1.0, 2.0), (1.0,))), r"waves have rows of \[1, 2\] numbers"),
        (lambda: LieRope(8, block_size=3), "block_size 3 does not divide head_dim 8"),
        (lambda: ComRope(8, kind="LD", block_size=6), "block_size 6 does not divide head_dim 8"),
        (lambda: ComRope(8, kind="AP"), "head_dim 8 has 1 blocks of 8, too few for 2 axes"),
        (lambda: StringRope(10), "rotary_dim 10 is no multiple of 4"),
        (lambda: GrapeRope(7, mode="axis"), "head_dim 7 is odd; a plane takes two channels"),
        (lambda: GrapeRope(4, mode="axis", axes=3), "head_dim 4 has 2 planes, too few for 3 axes"),
        (lambda: CirculantRope(2), "head_dim is 2; expected at least 3"),
    ],
)
def test_encodings_that_make_no_sense_are_refused(make: Callable[[], Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make()


@pytest.mark.parametrize("make", ALL)
def test_positions_and_heads_that_do_not_fit_are_refused(make: Callable[[], Any]) -> None:
    encoding = make()
    axes, dim = sizes(encoding)
    x = torch.zeros(1, 3, 5, dim)
    with pytest.raises(ValueError, match=rf"expected \({axes}, N\) or \({axes}, B, N\)"):
        encoding.rotate(x, x, torch.zeros(axes + 1, 5))
    for shape in ((axes, 1), (axes, 4), (axes, 2, 5)):  # a single token would broadcast without a word
        with pytest.raises(ValueError, match=rf"positions have shape .* takes \({axes}, 5\) or \({axes}, 1, 5\)"):
            encoding.rotate(x, x, torch.zeros(shape))
    for other, why in (
        (x.double(), "q is torch.float32 on cpu, k is torch.float64 on cpu"),
        (x.to("meta"), "q is torch.float32 on cpu, k is torch.float32 on meta"),
    ):
        with pytest.raises(ValueError, match=why):
            encoding.rotate(x, other, torch.zeros(axes, 5))
    if not isinstance(encoding, LinearRope):
        with pytest.raises(ValueError, match=f"head dim {dim + 2}; the encoding was made for {dim}"):
            encoding.rotate(torch.zeros(1, 2, 5, dim + 2), torch.zeros(1, 2, 5, dim + 2), torch.zeros(axes, 5))
    if not isinstance(encoding, LinearRope) or encoding.frequencies.dim() == 3:
        with pytest.raises(ValueError, match="heads of the encoding are 2; they do not divide the 3 heads of q or k"):
            encoding.rotate(x, x, torch.zeros(axes, 5))
