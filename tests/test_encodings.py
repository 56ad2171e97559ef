"""Encodings that add, bias, or scale: against slow formulas, transformers and timm, and by their properties."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sources import ROOT
from test_attention import all_say
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.layers.pos_embed_sincos import build_sincos2d_pos_embed
from timm.models.swin_transformer_v2 import WindowAttention
from torch import Tensor, nn
from torch.autograd import gradcheck
from transformers import T5Config, Wav2Vec2BertConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.pegasus.modeling_pegasus import PegasusSinusoidalPositionalEmbedding
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import (
    Wav2Vec2BertSelfAttention,
    _apply_relative_key_position_encoding,
)

import mrope
from mrope import AxisSplit, Frequencies, Rotary
from mrope.encoding import Encoding, Properties
from mrope.encodings.additive import LearnedTable, NoPe, Resampling, Sinusoidal
from mrope.encodings.bias import Alibi, ContinuousBias, Direction, ShawBias, T5Bias
from mrope.encodings.scaled import Pope, XPos
from mrope.extensions import DynamicNtk
from mrope.probes.audits.encoding import audit_encoding

GRID = (4, 7)  # positions along h and w: never as many

ADDS: dict[str, Callable[[], Encoding]] = {
    "NoPe": NoPe,
    "Sinusoidal": lambda: Sinusoidal(16, axes=2),
    "LearnedTable": lambda: LearnedTable(16, (9, 10)),
}
BIASES: dict[str, Callable[[], Encoding]] = {
    "Alibi": lambda: Alibi(2, axes=2),
    "ShawBias": lambda: ShawBias(8, 3, axes=2),
    "T5Bias": lambda: T5Bias(2, buckets=12, reach=10, axes=2),
    "T5Bias-causal": lambda: T5Bias(2, buckets=12, reach=10, direction="causal", axes=2),
    "ContinuousBias": lambda: ContinuousBias(2, GRID, hidden=16),
}
TURNS: dict[str, Callable[[], Encoding]] = {
    "XPos": lambda: XPos(AxisSplit((1, 3)), base=100.0, scale_base=64),
    "Pope": lambda: Pope(AxisSplit((3, 5)), 2, base=100.0),
}
EVERY = ADDS | BIASES | TURNS


def made(name: str) -> Encoding:
    """An encoding of two axes, two heads and eight channels a head, as if it had learned."""
    encoding = EVERY[name]()
    if isinstance(encoding, nn.Module):
        for parameter in encoding.parameters():
            nn.init.normal_(parameter)
    if isinstance(encoding, Pope):
        nn.init.uniform_(encoding.phase, -2 * math.pi + 0.1, -0.1)
    return encoding


def evidence(column: str, *names: str):
    """One case a name, each marked as the evidence of its class."""
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=pytest.mark.evidence(column, name.split("-")[0])) for name in names]
    )


def grid_ids(*shape: int) -> Tensor:
    return torch.stack(torch.meshgrid(*map(torch.arange, shape), indexing="ij")).flatten(1)


def random_ids(*shape: int, high: int = 9) -> Tensor:
    return torch.randint(0, high, shape)


def outcome(encoding: Encoding, q: Tensor, k: Tensor, positions: Tensor) -> list[Tensor]:
    """All that an encoding does to tokens of two heads; of q and k (H, N, D) or (B, H, N, D)."""
    x = encoding.embed(q.transpose(-3, -2).flatten(-2), positions)
    bias = encoding.bias(q, positions)
    return [x, *encoding.rotate(q, k, positions), *([] if bias is None else [bias])]


# ------------------------------------------------------------------------------------------------ what all of them keep


@evidence("properties", *EVERY)
def test_the_declared_properties_are_the_measured_ones(name: str) -> None:
    encoding = made(name)
    assert audit_encoding(encoding, axes=2, head_dim=8, heads=2, extent=7) == encoding.properties


def test_what_the_encodings_promise() -> None:
    promises = {name: made(name).properties for name in EVERY}
    assert {name for name, kept in promises.items() if not kept.shift} == {"Sinusoidal", "LearnedTable"}
    assert promises["XPos"] == Properties(norm=False, shift=True, commutes=True)


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("NoPe", "Alibi")])
def test_swapped_axes_are_another_encoding(name: str) -> None:
    """ALiBi is the one whose axes are alike."""
    encoding, q, ids = made(name), torch.randn(2, 12, 8), random_ids(2, 12)
    before, after = (outcome(encoding, q, q, each) for each in (ids, ids.flip(0)))
    assert max((a - b).abs().max() for a, b in zip(before, after, strict=True)) > 0.1


@pytest.mark.parametrize("name", EVERY)
def test_rows_of_a_batch_have_positions_of_their_own(name: str) -> None:
    encoding, ids, q, k = made(name), random_ids(2, 3, 6), torch.randn(3, 2, 6, 8), torch.randn(3, 2, 6, 8)
    copies = ids.clone(), q.clone(), k.clone()
    together = outcome(encoding, q, k, ids)
    shared = outcome(encoding, q, k, ids[:, 0])
    for row in range(3):
        alone = outcome(encoding, q[row], k[row], ids[:, row])
        same = outcome(encoding, q[row], k[row], ids[:, 0])
        for b, s, one, other in zip(together, shared, alone, same, strict=True):
            torch.testing.assert_close(b[row], one)
            torch.testing.assert_close(s[row], other)
    assert all(map(torch.equal, copies, (ids, q, k)))


def test_objects_that_hold_ids_will_do() -> None:
    held = mrope.family("qwen2.5-vl").positions(["text:2", "image:1x4x6"])
    q, tokens = torch.randn(2, held.ids.shape[1], 8), mrope.batch([held])
    for encoding in (Sinusoidal(12, axes=3), LearnedTable(16, (9, 9, 9)), Alibi(2, axes=3), T5Bias(2, axes=3)):
        x = torch.randn(held.ids.shape[1], getattr(encoding, "dim", 16))
        assert torch.equal(encoding.embed(x, held), encoding.embed(x, held.ids))
        assert torch.equal(encoding.embed(x[None], tokens)[0], encoding.embed(x, held))
        ours, bare = encoding.bias(q, held, keys=held), encoding.bias(q, held.ids)
        assert ours is bare is None or torch.equal(ours, bare)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name in EVERY if name != "NoPe"])
def test_half_precision_is_the_float32_result_rounded_once(name: str) -> None:
    encoding, ids = made(name), random_ids(2, 3, 6)
    q, k = torch.randn(2, 3, 2, 6, 8).to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = outcome(encoding, q, k, ids)
    for ours, exact in zip(half, outcome(encoding, q.float(), k.float(), ids), strict=True):
        assert ours.dtype == torch.bfloat16
        assert torch.equal(ours, exact.to(torch.bfloat16))


@pytest.mark.parametrize("name", BIASES)
def test_decoding_with_a_cache_is_the_last_rows_of_the_full_bias(name: str) -> None:
    encoding, ids, q = made(name), random_ids(2, 3, 9), torch.randn(3, 2, 9, 8)
    full = encoding.bias(q, ids)
    decoded = encoding.bias(q[..., -2:, :], ids[..., -2:], keys=ids)
    assert full is not None
    assert decoded is not None
    assert decoded.shape == (3, 2, 2, 9)
    torch.testing.assert_close(decoded, full[..., -2:, :])


@evidence("gradient", *EVERY)
def test_gradients_flow_through_the_tokens_and_to_what_is_learned(name: str) -> None:
    encoding = made(name)
    learned = []
    if isinstance(encoding, nn.Module):
        learned = list(encoding.double().parameters())
    q, k = torch.randn(2, 2, 4, 8, dtype=torch.float64)
    ids = random_ids(2, 4)

    def scores(q: Tensor, k: Tensor, *_: Tensor) -> Tensor:
        queries, keys = encoding.rotate(q, k, ids)
        bias = encoding.bias(q, ids)
        x = encoding.embed(q.transpose(0, 1).flatten(1), ids)
        return (queries @ keys.transpose(-1, -2) + (0 if bias is None else bias)).sum() + x.square().sum()

    assert gradcheck(scores, (q.requires_grad_(), k.requires_grad_(), *learned))


@pytest.mark.parametrize("name", [name for name in EVERY if name != "NoPe"])
def test_no_encoding_needs_a_device_with_autocast(name: str) -> None:
    encoding = made(name)
    if isinstance(encoding, nn.Module):
        encoding = encoding.to("meta")
    if name in ("LearnedTable", "ContinuousBias"):
        return  # they read positions on the host
    q, ids = torch.empty(3, 2, 6, 8, device="meta"), torch.empty(2, 3, 6, dtype=torch.int64, device="meta")
    assert all(x.device.type == "meta" for x in outcome(encoding, q, q, ids))


# --------------------------------------------------------------------------------------------------------------- adding


@pytest.mark.evidence("definition", "NoPe")
def test_nope_does_nothing() -> None:
    q, k, ids = torch.randn(2, 5, 8), torch.randn(1, 5, 8), random_ids(3, 5)
    assert NoPe().embed(q, ids) is q
    assert NoPe().rotate(q, k, ids) == (q, k)
    assert NoPe().bias(q, ids) is None


def sines_by_hand(ids: Tensor, dim: int, base: float) -> np.ndarray:
    """One token, axis and pair at a time: ids (A, N)."""
    axes, tokens = ids.shape
    part = dim // axes
    out = np.zeros((tokens, dim))
    for a, n, j in np.ndindex(axes, tokens, part // 2):
        angle = ids[a, n].item() / base ** (2 * j / part)
        out[n, a * part + 2 * j], out[n, a * part + 2 * j + 1] = math.sin(angle), math.cos(angle)
    return out


@pytest.mark.evidence("definition", "Sinusoidal")
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_sinusoidal_is_its_formula(axes: int) -> None:
    encoding, x = Sinusoidal(12, axes=axes, base=100.0), torch.randn(2, 9, 12)
    ids = random_ids(axes, 2, 9, high=50) + 0.25 * torch.arange(axes).view(-1, 1, 1)  # real positions, too
    for row in range(2):
        by_hand = sines_by_hand(ids[:, row], 12, 100.0)
        np.testing.assert_allclose(encoding.table(ids)[row].numpy(), by_hand, atol=1e-5, rtol=0)
        np.testing.assert_allclose(encoding.embed(x, ids)[row].numpy(), x[row].numpy() + by_hand, atol=1e-5, rtol=0)


def test_sinusoidal_values_worked_by_hand() -> None:
    # Two axes of four channels: position 1 of h turns by 1 and 1/100 rad, position 2 of w by 2 and 1/50.
    code = Sinusoidal(8, axes=2).table(torch.tensor([[1], [2]]))
    expected = [0.841471, 0.540302, 0.01, 0.99995, 0.909297, -0.416147, 0.019999, 0.9998]
    torch.testing.assert_close(code, torch.tensor([expected]), atol=1e-6, rtol=0)


@pytest.mark.evidence("properties", "Sinusoidal")
@pytest.mark.parametrize("shift", [(3, 0), (0, 5), (2, 11)], ids=["h", "w", "both"])
def test_a_shift_is_one_linear_map_of_the_code(shift: tuple[int, int]) -> None:
    encoding, ids = Sinusoidal(8, axes=2, base=50.0), grid_ids(6, 9)
    here = encoding.table(ids).double()
    there = encoding.table(ids + torch.tensor(shift)[:, None]).double()
    linear = torch.linalg.lstsq(here, there).solution
    torch.testing.assert_close(here @ linear, there, atol=1e-5, rtol=0)
    # Each axis has its own block of it, and that of an axis that stays is the identity.
    block = torch.eye(8, dtype=torch.float64)
    for axis, step in enumerate(shift):
        for j in range(2):
            angle, at = step * 50.0 ** (-j / 2), 4 * axis + 2 * j
            cos, sin = math.cos(angle), math.sin(angle)
            block[at : at + 2, at : at + 2] = torch.tensor([[cos, -sin], [sin, cos]])
    torch.testing.assert_close(linear, block, atol=1e-4, rtol=0)


@pytest.mark.evidence("library", "Sinusoidal")
def test_sinusoidal_is_that_of_transformers_along_a_line() -> None:
    theirs = PegasusSinusoidalPositionalEmbedding(60, 24)
    sines, cosines = theirs.create_weight().chunk(2, dim=-1)  # apart there, side by side in the paper
    ours = Sinusoidal(24).table(torch.arange(60)[None])
    torch.testing.assert_close(ours, torch.stack((sines, cosines), dim=-1).flatten(1), atol=1e-5, rtol=0)


@pytest.mark.evidence("library", "Sinusoidal")
def test_sinusoidal_is_that_of_timm_on_a_grid() -> None:
    theirs = build_sincos2d_pos_embed([5, 8], 24, interleave_sin_cos=True)
    theirs = theirs.unflatten(1, (2, 2, 6)).transpose(-1, -2).flatten(1)  # of each axis all sines come first there
    torch.testing.assert_close(Sinusoidal(24, axes=2).table(grid_ids(5, 8)), theirs, atol=1e-5, rtol=0)


@pytest.mark.evidence("definition", "LearnedTable")
@pytest.mark.parametrize("shape", [(7,), (4, 7), (2, 4, 7)], ids=str)
def test_a_learned_table_adds_the_row_of_each_position(shape: tuple[int, ...]) -> None:
    table, x = LearnedTable(6, shape), torch.randn(2, 5, 6)
    ids = torch.stack([torch.randint(0, size, (2, 5)) for size in shape])
    ids[:, 0, 0] = torch.tensor(shape) - 1
    added = table.embed(x, ids)
    for b, n in np.ndindex(2, 5):
        row = table.weight
        for axis in range(len(shape)):
            row = row[int(ids[axis, b, n])]
        torch.testing.assert_close(added[b, n], x[b, n] + row)


@pytest.mark.evidence("library", "LearnedTable")
@pytest.mark.parametrize("new", [(9, 5), (3, 6), (4, 14)], ids=str)
@pytest.mark.parametrize("by", ["linear", "cubic", "cubic-antialiased"])
def test_a_table_is_resampled_as_in_timm(by: Resampling, new: tuple[int, int]) -> None:
    table = LearnedTable(6, GRID)
    theirs = resample_abs_pos_embed(
        table.weight.detach().flatten(0, 1)[None],
        list(new),
        list(GRID),
        num_prefix_tokens=0,
        interpolation="bilinear" if by == "linear" else "bicubic",
        antialias=by == "cubic-antialiased",
    )
    ours = table.resampled(new, by=by)
    torch.testing.assert_close(ours.weight.flatten(0, 1), theirs[0])
    torch.testing.assert_close(ours.embed(torch.zeros(new[0] * new[1], 6), grid_ids(*new)), theirs[0])
    assert ours.weight.requires_grad
    assert ours.weight.is_leaf


def test_lines_and_clips_are_resampled_between_their_rows() -> None:
    ramp = LearnedTable(2, (4,))
    ramp.weight.data = torch.arange(4.0)[:, None] * torch.tensor([1.0, -1.0])
    # Cells of half the size: the outer ones lie outside of the old centres and take their value.
    expected = torch.tensor([0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3])
    torch.testing.assert_close(ramp.resampled((8,), by="linear").weight[:, 0], expected)
    inner = ramp.resampled((8,), by="cubic-antialiased").weight[3:5]  # whose kernel keeps straight lines
    torch.testing.assert_close(inner, torch.tensor([[1.25, -1.25], [1.75, -1.75]]))
    clip = LearnedTable(2, (2, 4, 1)).bfloat16()
    clip.weight.data = (ramp.weight.data[:, None] + torch.tensor([10.0, 20.0]).view(2, 1, 1, 1)).bfloat16()
    new = clip.resampled((1, 2, 3), by="linear").weight
    assert new.dtype == torch.bfloat16
    torch.testing.assert_close(new[0, :, 2, 0], torch.tensor([15.5, 17.5], dtype=torch.bfloat16))


def test_a_table_refuses_what_it_does_not_hold() -> None:
    table, x = LearnedTable(6, GRID), torch.randn(2, 6)
    with pytest.raises(ValueError, match=r"from \(0, 2\) to \(4, 6\).*shape \(4, 7\).*resampled\(\(5, 7\)\) makes"):
        table.embed(x, torch.tensor([[0, 4], [6, 2]]))
    with pytest.raises(ValueError, match=r"from \(-1, 2\) to \(3, 6\).*on each axis$"):
        table.embed(x, torch.tensor([[-1, 3], [6, 2]]))
    with pytest.raises(ValueError, match="whole positions only"):
        table.embed(x, torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"x has shape \(2, 6\).*\(3, 6\)"):
        table.embed(x, torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"x has shape \(2, 6\).*\(4, 2, 6\)"):
        table.embed(x, torch.zeros(2, 4, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"has 1 axes; the table has 2"):
        table.resampled((3,))
    with pytest.raises(ValueError, match="three axes is resampled by 'linear' only"):
        LearnedTable(6, (2, *GRID)).resampled((3, 3, 3))
    with pytest.raises(ValueError, match="has 4 axes; expected 1 to 3"):
        LearnedTable(6, (1, 2, 3, 4))
    narrow = torch.tensor([[1, 3], [6, 2]], dtype=torch.uint16)
    assert torch.equal(table.embed(x, narrow), table.embed(x, narrow.long()))
    assert table.embed(x[:0], torch.zeros(2, 0, dtype=torch.int64)).shape == (0, 6)


def test_sinusoidal_refuses_what_does_not_split() -> None:
    with pytest.raises(ValueError, match="dim 10 does not split into pairs for 2 axes; expected a multiple of 4"):
        Sinusoidal(10, axes=2)
    with pytest.raises(ValueError, match="base is 0"):
        Sinusoidal(8, base=0)
    with pytest.raises(ValueError, match=r"x has shape \(5, 8\).*\(5, 12\)"):
        Sinusoidal(12).embed(torch.zeros(5, 8), torch.arange(5)[None])
    with pytest.raises(ValueError, match=r"the axes lie last, so that positions.movedim\(-1, 0\) would do"):
        Sinusoidal(12, axes=3).embed(torch.zeros(5, 12), torch.zeros(5, 3))


# ----------------------------------------------------------------------------------------------------- adding to scores


@pytest.mark.evidence("definition", "Alibi")
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_alibi_is_slope_times_distance(axes: int) -> None:
    ids, keys = random_ids(axes, 2, 5) * 0.5, random_ids(axes, 2, 7)
    bias = Alibi(4, axes=axes).bias(torch.randn(2, 4, 5, 8), ids, keys=keys)
    for b, h, n, m in np.ndindex(2, 4, 5, 7):
        distance = math.dist(ids[:, b, n].tolist(), keys[:, b, m].tolist())
        assert bias[b, h, n, m].item() == pytest.approx(-(2.0 ** (-2 * (h + 1))) * distance, abs=1e-6)


def test_alibi_values_worked_by_hand() -> None:
    assert Alibi(8).slopes.tolist() == [2.0**-i for i in range(1, 9)]
    # Six heads: the four slopes of four heads, then the first and third of eight.
    assert Alibi(6).slopes.tolist() == [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]
    assert Alibi(1).slopes.tolist() == [2.0**-8]
    # Patches at (0, 0) and (3, 4) lie 5 apart, wherever the axis of time adds 12: 13.
    pair = torch.tensor([[0, 12], [0, 3], [0, 4]])
    assert Alibi(8, axes=2).bias(torch.ones(8, 2, 4), pair[1:])[0].tolist() == [[0, -2.5], [-2.5, 0]]
    assert Alibi(8, axes=3).bias(torch.ones(8, 2, 4), pair)[0].tolist() == [[0, -6.5], [-6.5, 0]]
    # Positions of a narrow dtype have differences that it could not hold.
    narrow = torch.tensor([[0, 200]], dtype=torch.uint8)
    assert Alibi(8).bias(torch.ones(8, 2, 4), narrow)[0].tolist() == [[0, -100], [-100, 0]]


@pytest.mark.evidence("library", "Alibi")
@pytest.mark.parametrize("heads", [1, 2, 6, 8, 12, 20])
def test_alibi_is_that_of_transformers(heads: int) -> None:
    theirs = build_alibi_tensor(torch.ones(1, 9), heads, torch.float32)  # slope times the key's position
    ours = Alibi(heads).bias(torch.ones(heads, 9, 4), torch.arange(9)[None])
    shifted = ours - ours[..., :1]  # the softmax of a row does not know
    allowed = torch.ones(9, 9).tril()
    torch.testing.assert_close(shifted * allowed, theirs.expand(heads, 9, 9) * allowed)


@pytest.mark.evidence("definition", "ShawBias")
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_shaw_is_the_product_of_query_and_clipped_offset(axes: int) -> None:
    encoding, q = ShawBias(8, 3, axes=axes), torch.randn(2, 2, 5, 8)
    ids, keys = random_ids(axes, 2, 5), random_ids(axes, 2, 7)
    bias = encoding.bias(q, ids, keys=keys)
    vectors = encoding.weight.detach().numpy()
    for b, h, n, m in np.ndindex(2, 2, 5, 7):
        offsets = [max(-3, min(3, int(keys[a, b, m] - ids[a, b, n]))) for a in range(axes)]
        vector = sum(vectors[a, 3 + offset] for a, offset in enumerate(offsets))
        assert bias[b, h, n, m].item() == pytest.approx(q[b, h, n].numpy() @ vector / math.sqrt(8), abs=1e-6)


@pytest.mark.evidence("library", "ShawBias")
def test_shaw_is_that_of_transformers_along_a_line() -> None:
    config = Wav2Vec2BertConfig(
        hidden_size=32,
        num_attention_heads=4,
        position_embeddings_type="relative_key",
        left_max_position_embeddings=5,
        right_max_position_embeddings=5,
    )
    theirs, ours = Wav2Vec2BertSelfAttention(config), ShawBias(8, 5)
    ours.weight.data = theirs.distance_embedding.weight.data[None]
    q = torch.randn(2, 4, 20, 8)
    _, bias = _apply_relative_key_position_encoding(theirs, q, q)
    torch.testing.assert_close(ours.bias(q, torch.arange(20)[None]), bias)


def bucket_by_hand(offset: int, buckets: int, reach: int, direction: Direction) -> int:
    first = 0
    if direction == "both":
        buckets //= 2
        first, distance = (buckets if offset > 0 else 0), abs(offset)
    else:
        distance = max(-offset, 0)
    near = buckets // 2
    if distance < near:
        return first + distance
    far = math.floor(math.log(distance / near) / math.log(reach / near) * (buckets - near) + 1e-9)
    return first + min(near + far, buckets - 1)


@pytest.mark.evidence("definition", "T5Bias")
@pytest.mark.parametrize("direction", ["both", "causal"])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_t5_adds_the_numbers_of_the_buckets(axes: int, direction: Direction) -> None:
    encoding = T5Bias(2, buckets=12, reach=20, direction=direction, axes=axes)
    ids, keys = random_ids(axes, 2, 5, high=30), random_ids(axes, 2, 7, high=30)
    bias = encoding.bias(torch.randn(2, 2, 5, 8), ids, keys=keys)
    for b, h, n, m in np.ndindex(2, 2, 5, 7):
        rows = [bucket_by_hand(int(keys[a, b, m] - ids[a, b, n]), 12, 20, direction) for a in range(axes)]
        number = sum(encoding.weight[a, row, h].item() for a, row in enumerate(rows))
        assert bias[b, h, n, m].item() == pytest.approx(number, abs=1e-6)


def test_t5_buckets_worked_by_hand() -> None:
    # 8 buckets, causal, reach 16: 0 to 3 alone; then 4, 5 | 6, 7 | 8 to 11 | 12 on, at 4 * 4 ** (i / 4).
    encoding = T5Bias(1, buckets=8, reach=16, direction="causal")
    encoding.weight.data = torch.arange(8.0).view(1, 8, 1)
    back = encoding.bias(torch.ones(1, 1, 4), torch.tensor([[20]]), keys=torch.arange(22)[None]).flatten().tolist()
    assert back[::-1] == [0, 0, 1, 2, 3, 4, 4, 5, 5] + [6] * 4 + [7] * 9


@pytest.mark.evidence("library", "T5Bias")
@pytest.mark.parametrize("direction", ["both", "causal"])
@pytest.mark.parametrize(("buckets", "reach"), [(32, 128), (16, 50)])
def test_t5_is_that_of_transformers(direction: Direction, buckets: int, reach: int) -> None:
    config = T5Config(
        d_model=16,
        d_kv=4,
        num_heads=4,
        relative_attention_num_buckets=buckets,
        relative_attention_max_distance=reach,
        is_decoder=direction == "causal",
    )
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    ours = T5Bias(4, buckets=buckets, reach=reach, direction=direction)
    theirs.relative_attention_bias.weight.data.normal_()
    ours.weight.data = theirs.relative_attention_bias.weight.data[None]
    q, ids = torch.ones(1, 4, 700, 4), torch.arange(700)[None]
    assert torch.equal(ours.bias(q, ids), theirs.compute_bias(700, 700))
    decoded = ours.bias(q[..., -1:, :], ids[:, -1:], keys=ids)
    assert torch.equal(decoded, theirs.compute_bias(1, 700, past_seen_tokens=699))


@pytest.mark.evidence("definition", "ContinuousBias")
@pytest.mark.parametrize("extent", [(6,), (4, 7), (1, 4, 7)], ids=str)
def test_continuous_bias_is_its_network_of_log_offsets(extent: tuple[int, ...]) -> None:
    encoding = ContinuousBias(2, extent, hidden=5)
    axes = len(extent)
    ids, keys = random_ids(axes, 2, 5) * 0.5, random_ids(axes, 2, 7)
    bias = encoding.bias(torch.randn(2, 2, 5, 8), ids, keys=keys)
    into, shift, out = (p.detach().double().numpy() for p in encoding.parameters())
    for b, n, m in np.ndindex(2, 5, 7):
        offsets = [(ids[a, b, n] - keys[a, b, m]).item() / max(extent[a] - 1, 1) for a in range(axes)]
        logs = np.array([math.copysign(math.log2(1 + 8 * abs(d)), d) / math.log2(8) for d in offsets])
        numbers = 16 / (1 + np.exp(-out @ np.maximum(into @ logs + shift, 0)))
        np.testing.assert_allclose(bias[b, :, n, m].detach().numpy(), numbers, atol=1e-4, rtol=0)


@pytest.mark.evidence("library", "ContinuousBias")
@pytest.mark.parametrize("trained", [(0, 0), (9, 5)], ids=["trained here", "trained on another window"])
def test_continuous_bias_is_that_of_timm_on_a_window(trained: tuple[int, int]) -> None:
    theirs = WindowAttention(12, GRID, 3, pretrained_window_size=trained)
    ours = ContinuousBias(3, trained if trained[0] else GRID)
    ours.load_state_dict(
        {
            "inner.weight": theirs.cpb_mlp[0].weight,
            "inner.bias": theirs.cpb_mlp[0].bias,
            "outer.weight": theirs.cpb_mlp[2].weight,
        }
    )
    table = 16 * theirs.cpb_mlp(theirs.relative_coords_table).view(-1, 3).sigmoid()
    expected = table[theirs.relative_position_index].movedim(-1, 0)
    q = torch.ones(3, GRID[0] * GRID[1], 4)
    torch.testing.assert_close(ours.bias(q, grid_ids(*GRID)), expected)
    assert (ours.bias(q, grid_ids(*GRID).flip(0)) - expected).abs().max() > 0.1


def test_biases_refuse_what_does_not_fit() -> None:
    q, ids = torch.ones(2, 5, 8), torch.zeros(1, 5, dtype=torch.int64)
    for bias in (Alibi(3), T5Bias(3), ContinuousBias(3, (5,))):
        with pytest.raises(ValueError, match="q has 2 heads; this bias is one for 3 heads of queries"):
            bias.bias(q, ids)
    for bias in (ShawBias(8, 3), T5Bias(2)):
        with pytest.raises(ValueError, match=r"dtype torch.float32; this bias has entries at whole offsets only"):
            bias.bias(q, ids, keys=ids.float())
    with pytest.raises(ValueError, match=r"positions have shape \(1, 5\).*takes \(1, 1\)"):
        Alibi(2).bias(q[:, :1], ids)
    with pytest.raises(ValueError, match=r"positions have shape \(1, 3, 5\).*takes \(1, 5\)"):
        Alibi(2).bias(q, ids.expand(3, -1)[None])
    with pytest.raises(ValueError, match=r"keys have shape \(1, 1, 5\), positions \(1, 5\)"):
        Alibi(2).bias(q, ids, keys=ids[None])
    with pytest.raises(ValueError, match=r"keys have shape \(2, 5\); expected \(1, N\)"):
        Alibi(2).bias(q, ids, keys=ids.expand(2, -1))
    with pytest.raises(ValueError, match="q has head dim 8; the vectors have 16"):
        ShawBias(16, 3).bias(q, ids)
    with pytest.raises(ValueError, match="buckets is 7; expected an even number"):
        T5Bias(2, buckets=7)
    with pytest.raises(ValueError, match="reach is 8; expected at least 9"):
        T5Bias(2, reach=8)
    with pytest.raises(ValueError, match=r"extent \(\) is empty"):
        ContinuousBias(2, ())
    with pytest.raises(ValueError, match="heads is 0"):
        Alibi(0)


# -------------------------------------------------------------------------------------------------- turning and scaling

SPLITS = {"1": AxisSplit((4,)), "2": AxisSplit((1, 3)), "3": AxisSplit((2, 1, 1), "interleaved")}


@pytest.mark.evidence("definition", "XPos")
@pytest.mark.parametrize("pairing", ["half", "adjacent"])
@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS.keys())
def test_xpos_turns_and_scales_each_pair_by_its_axis(split: AxisSplit, pairing) -> None:
    xpos = XPos(split, base=100.0, scale_base=30, pairing=pairing)
    ids, q, k = random_ids(split.axes, 2, 5, high=60), torch.randn(2, 2, 5, 10), torch.randn(2, 1, 5, 10)
    for x, rotated, sign in zip((q, k), xpos.rotate(q, k, ids), (1, -1), strict=True):
        by_hand = x.double().numpy().copy()
        for b, h, n, j in np.ndindex(2, x.shape[1], 5, 4):
            place = ids[split.axis[j], b, n].item()
            one, other = (j, j + 4) if pairing == "half" else (2 * j, 2 * j + 1)
            size = ((j / 4 + 0.4) / 1.4) ** (sign * place / 30)
            turned = complex(*by_hand[b, h, n, [one, other]]) * np.exp(1j * place * 100.0 ** (-j / 4)) * size
            by_hand[b, h, n, [one, other]] = turned.real, turned.imag
        np.testing.assert_allclose(rotated.numpy(), by_hand, rtol=1e-4, atol=1e-4)


def test_xpos_values_worked_by_hand() -> None:
    # At position 512 each pair of the query has shrunk by its zeta, and each pair of the key has grown by it.
    x = torch.ones(1, 1, 4)
    q, k = XPos(AxisSplit((2,))).rotate(x, x, torch.tensor([[512]]))
    sizes = torch.tensor([0.4 / 1.4, 0.9 / 1.4])  # pairs (0, 2) and (1, 3) of sizes sqrt(2)
    torch.testing.assert_close(q.view(2, 2).norm(dim=0), sizes * math.sqrt(2))
    torch.testing.assert_close(k.view(2, 2).norm(dim=0), math.sqrt(2) / sizes)


@pytest.mark.evidence("properties", "XPos")
def test_scores_of_xpos_fade_with_distance_on_the_axis_that_grows() -> None:
    xpos = XPos(AxisSplit((2, 2)), scale_base=8)
    ids = torch.tensor([[0, 4, 4, 40], [0, 0, 9, 0]])
    q, k = xpos.rotate(torch.ones(1, 4, 8), torch.ones(1, 4, 8), ids)
    sizes = q.unflatten(-1, (2, 4)).norm(dim=-2)[0]  # (tokens, pairs)
    first = sizes[0]
    torch.testing.assert_close(sizes[1, 2:], first[2:])  # pairs of w do not see a move along h
    torch.testing.assert_close(sizes[2, :2], sizes[1, :2])
    assert (sizes[1, :2] < first[:2]).all()
    assert (sizes[2, 2:] < first[2:]).all()
    assert (k.unflatten(-1, (2, 4)).norm(dim=-2)[0, 3, :2] > first[:2]).all()


@pytest.mark.evidence("definition", "Pope")
@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS.keys())
def test_pope_scores_are_their_sum_of_cosines(split: AxisSplit) -> None:
    pope = Pope(split, 4, base=100.0)
    nn.init.uniform_(pope.phase, -9, 3)  # beyond both ends
    ids, q, k = random_ids(split.axes, 2, 5, high=60), torch.randn(2, 4, 5, 4), torch.randn(2, 2, 5, 4)
    rotated_q, rotated_k = pope.rotate(q, k, ids)
    assert rotated_q.shape[-1] == rotated_k.shape[-1] == 8
    scores = rotated_q @ rotated_k.repeat_interleave(2, dim=1).transpose(-1, -2)  # two heads of queries share keys
    for b, h, n, m in np.ndindex(2, 4, 5, 5):
        score = 0.0
        for j in range(4):
            apart = (ids[split.axis[j], b, m] - ids[split.axis[j], b, n]).item()
            phase = min(max(pope.phase[h, j].item(), -2 * math.pi), 0)
            sizes = math.log1p(math.exp(q[b, h, n, j])) * math.log1p(math.exp(k[b, h // 2, m, j]))
            score += sizes * math.cos(apart * 100.0 ** (-j / 4) + phase)
        assert scores[b, h, n, m].item() == pytest.approx(score, abs=1e-4)


def test_pope_values_worked_by_hand() -> None:
    # softplus(0) = ln 2. A quarter turn of the phase at equal places leaves nothing, a key one place on turns it back
    # by 1 rad.
    pope = Pope(AxisSplit((1,)), 1)
    pope.phase.data.fill_(-math.pi / 2)
    x = torch.zeros(1, 2, 1)
    q, k = pope.rotate(x, x, torch.tensor([[3, 4]]))
    expected = math.log(2) ** 2 * torch.tensor([[0, math.sin(1)], [-math.sin(1), 0]])
    torch.testing.assert_close((q @ k.transpose(-1, -2))[0], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("end", [0, -2 * math.pi])
def test_pope_learns_from_where_its_phase_starts(end: float) -> None:
    pope, ids, q, k = Pope(AxisSplit((1, 3)), 2), random_ids(2, 5), torch.randn(2, 5, 4), torch.randn(2, 5, 4)
    assert torch.equal(pope.phase.data, torch.zeros(2, 4))
    pope.phase.data.fill_(end)

    def loss() -> Tensor:
        turned_q, turned_k = pope.rotate(q, k, ids)
        return (turned_q @ turned_k.mT).square().sum()

    before = pope.phase.detach().clone()
    loss().backward()
    torch.optim.SGD(pope.parameters(), lr=1e-4).step()
    assert (pope.phase - before).abs().min() > 0


def test_cached_keys_of_pope_do_not_depend_on_what_it_learns() -> None:
    pope, ids, x = Pope(AxisSplit((1, 3)), 2), random_ids(2, 5), torch.randn(2, 5, 4)
    before = pope.rotate(x, x, ids)
    nn.init.uniform_(pope.phase, -3, -2)
    after = pope.rotate(x, x, ids)
    assert torch.equal(before[1], after[1])
    assert not torch.equal(before[0], after[0])


def test_turning_encodings_refuse_what_does_not_fit() -> None:
    x, ids = torch.ones(2, 5, 8), torch.zeros(1, 5, dtype=torch.int64)
    with pytest.raises(ValueError, match="q has 2 heads of 8 channels, k has heads of 8; expected 3 heads of queries"):
        Pope(AxisSplit((8,)), 3).rotate(x, x, ids)
    with pytest.raises(ValueError, match=r"positions have shape \(1, 5\); expected \(2, N\)"):
        XPos(AxisSplit((2, 2))).rotate(x, x, ids)
    with pytest.raises(ValueError, match="scale_base is -1"):
        XPos(AxisSplit((4,)), scale_base=-1)
    with pytest.raises(ValueError, match="base is 0"):
        Pope(AxisSplit((4,)), 2, base=0)
    for encoding in (XPos(AxisSplit((4,))), Pope(AxisSplit((8,)), 2)):
        for wrong in (ids[:, :4], ids[:, :1]):
            with pytest.raises(ValueError, match=r"positions have shape \(1, \d\); q or k of shape \(2, 5, 8\)"):
                encoding.rotate(x, x, wrong)
        with pytest.raises(ValueError, match=r"q is torch.float32 on cpu, k is torch.float64 on cpu"):
            encoding.rotate(x, x.double(), ids)


def test_what_is_of_another_kind_is_told_so() -> None:
    floating, split = "expected a floating one", "expected an AxisSplit, which gives each pair its axis"
    sizes = "expected a whole number for each axis, as in (4, 7)"
    all_say(
        {
            "Sinusoidal(8).embed(torch.ones(3, 8).long(), ids[:1])": "TypeError x has dtype torch.int64; " + floating,
            "LearnedTable(8, (3,)).embed(torch.ones(3, 8) > 0, ids[:1])": "TypeError x has dtype torch.bool; "
            + floating,
            "Alibi(2).bias(q.int(), ids[:1])": "TypeError q has dtype torch.int32; " + floating,
            "ShawBias(8, 2).bias(q.int(), ids[:1])": "TypeError q has dtype torch.int32; " + floating,
            "T5Bias(2).bias(q + 0j, ids[:1])": "TypeError q has dtype torch.complex64; " + floating,
            "Pope(mrope.AxisSplit((8,)), 2).rotate(q.int(), q.int(), ids[:1])": "TypeError q has dtype torch.int32",
            "XPos(mrope.AxisSplit((4,))).rotate(q.int(), q.int(), ids[:1])": "TypeError q has dtype torch.int32",
            "LieRope(8).rotate(q.int(), q.int(), ids[:2])": "TypeError q has dtype torch.int32; " + floating,
            "AxialRope(8).rotate(q, q > 0, ids[:2])": "TypeError k has dtype torch.bool; " + floating,
            "LieRope(8).rotate(q, q[:, :, :2], ids[:2])": "ValueError q has shape (2, 2, 3, 8), k (2, 2, 2, 8)",
            "ComRope(8, kind='LD').rotate(q, q[:1], ids[:2])": "ValueError q has shape (2, 2, 3, 8), k (1, 2, 3, 8)",
            "AxialRope(8).rotate(q, q[0], ids[:2])": "ValueError q has shape (2, 2, 3, 8), k (2, 3, 8); expected one",
            "XPos(mrope.AxisSplit((4,))).rotate(q, q[:, :, :2], ids[:1])": "ValueError q has shape (2, 2, 3, 8), k (",
            "Pope(mrope.AxisSplit((8,)), 2).rotate(q, q[..., :6], ids[:1])": "ValueError q has shape (2, 2, 3, 8), k (",
            "XPos(8)": "TypeError split is 8; " + split,
            "Pope(mrope.HeadSplit((1, 1), 4), 2)": "TypeError split is HeadSplit(",
            "XPos(mrope.HeadSplit((1, 1), 4))": split,
            "WaveRope((('1', '2'),))": "TypeError waves is (('1', '2'),); expected one row of numbers per axis",
            "WaveRope(3)": "TypeError waves is 3; expected one row of numbers per axis",
            "WaveRope(((1.0, math.nan),))": "ValueError waves is ((1.0, nan),); expected finite numbers",
            "WaveRope([[1, 2], [3, 4]]).waves": "((1.0, 2.0), (3.0, 4.0))",
            "LearnedTable(8, 4)": "TypeError shape is 4; " + sizes,
            "LearnedTable(8, (4,)).resampled(5)": "TypeError shape is 5; " + sizes,
            "ContinuousBias(4, 7)": "TypeError extent is 7; " + sizes,
            "patch_coordinates(5)": "TypeError grid is 5; " + sizes,
            "patch_coordinates((2, 3), rule='span', trained=4)": "TypeError trained is 4; " + sizes,
            "augment(torch.ones(2, 3).long(), shift=1)": "TypeError coordinates has dtype torch.int64",
            "augment(torch.ones(3), shift=1)": "ValueError coordinates have shape (3,); expected (A, N) or (A, B, N)",
            "Alibi(3).bias(torch.ones(3, 8), ids[:1])": "ValueError q has shape (3, 8); expected (B, H, N, D) or",
            "ShawBias(8, 2).bias(torch.ones(3, 8), ids[:1])": "ValueError q has shape (3, 8); expected (B, H, N, D) or",
            "LieRope(8).rotate(q[0, 0], q[0, 0], ids[:2])": "ValueError q has shape (3, 8); expected (B, H, N, D) or",
            "audit_encoding(Alibi(2), axes=1, head_dim=8, extent=math.nan)": "ValueError extent is nan; expected",
            "audit_encoding(Alibi(2), axes=1, head_dim=8, extent='7')": "TypeError extent is '7'; expected a number",
            "audit_encoding(Alibi(2), axes=1, head_dim=8, heads=0)": "ValueError heads is 0; expected at least 1",
            "audit_encoding(Alibi(2), axes=1, head_dim=0)": "ValueError head_dim is 0; expected at least 1",
        }
    )


def test_the_audit_says_what_it_cannot_measure() -> None:
    growing = Rotary(AxisSplit((4,)), Frequencies(100.0, DynamicNtk(2.0, 8)))
    with pytest.raises(ValueError, match=r"depend on the length of the row, .* at one length, mrope.extensions.At"):
        audit_encoding(growing, axes=1, head_dim=8)
    with pytest.raises(ValueError, match="2 heads of 8 channels make tokens of 16; Sinusoidal takes tokens of 24"):
        audit_encoding(Sinusoidal(24), axes=1, head_dim=8)


def test_a_phase_of_pope_that_left_its_bounds_comes_back() -> None:
    pope, target = Pope(AxisSplit((8,)), 4), Pope(AxisSplit((8,)), 4)
    target.phase.data.fill_(-1.0)
    optimiser = torch.optim.Adam(pope.parameters(), 1e-2)
    q, k, ids = torch.randn(4, 20, 8), torch.randn(4, 20, 8), torch.arange(20)[None]

    def loss() -> Tensor:
        (a, b), (c, d) = pope.rotate(q, k, ids), target.rotate(q, k, ids)
        return (a @ b.mT - c @ d.mT).square().mean()

    (-loss()).backward()
    optimiser.step()
    assert (pope.phase > 0).any()  # one step the wrong way
    for _ in range(400):
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()
    torch.testing.assert_close(pope.phase, target.phase, atol=0.02, rtol=0)


def test_encodings_of_several_bases_are_one_graph_each() -> None:
    # In a process of its own: the checks of shapes that tests put into our functions would be traced as well.
    script = """
import torch
from mrope import AxisSplit
from mrope.encodings import AxialRope, XPos
call = torch.compile(lambda encoding, q, p: encoding.rotate(q, q, p)[0], fullgraph=True, backend="eager")
q, p = torch.randn(1, 4, 15, 16), torch.rand(2, 15)
for base in (10.0, 100.0, 1000.0):
    for encoding in (AxialRope(16, base=base), XPos(AxisSplit((4, 4)), base=base)):
        assert torch.equal(call(encoding, q, p), encoding.rotate(q, q, p)[0])
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
