"""The audit: measured figures against published and hand-worked ones, and every mistake on purpose is found."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

import mrope
from mrope import AxisSplit, Frequencies, GridLayout, Rotary, Span, Text, Video
from mrope.attention import attend
from mrope.encodings import LieRope, QwenVisionRope
from mrope.probes import AuditCheck, full_audit
from mrope.probes.audits.kernel import Waves, falls_to, first_below_zero, isotropy, ripple
from mrope.probes.audits.report import AuditReport
from mrope.probes.audits.target import Target, both, of_layout, of_object

PATTERNS = {
    "chunk": "T*16 H*24 W*24",
    "interleave": "THW*20 T*4",
    "videorope": "HW*24 T*16",
    "ernie": "HW*22 T*20",
    "mm-rope": "TTHWHWHW*8",
}
VERSION = tuple(int(part) for part in transformers.__version__.split(".")[:2])


def failed(report: AuditReport) -> set[str]:
    return {check.name for check in report.failed}


def number(report: AuditReport, name: str) -> float:
    value = report[name].value
    assert value is not None
    return float(value)


def quick(target: Any, **options: Any) -> AuditReport:
    """On a small grid whose sides differ."""
    return full_audit(target, **{"grid": (6, 10), "frames": 4, "device": "cpu", **options})


# ------------------------------------------------------------------------------------ published and hand-worked figures


@pytest.mark.parametrize(
    ("name", "distance"),
    [("chunk", 5), ("interleave", 4), ("mm-rope", 4), ("ernie", 70_913), ("videorope", 167_229)],
)
def test_time_falls_as_far_as_published(name: str, distance: int) -> None:
    """variants.md, section 1: the first distance at which the temporal kernel stops falling, base 1e6."""
    assert quick(PATTERNS[name])["monotone-range"].value == distance


def test_decay_is_that_of_the_published_table() -> None:
    """variants.md, section 1, at 1, 8, 32, 128, 512 and 2048 positions."""
    chunk = quick(PATTERNS["chunk"])["decay"].figure
    assert chunk == (
        "t 0.915 0.227 -0.046 -0.188 -0.117 -0.108; h 1.000 0.996 0.942 0.559 0.313 -0.055; "
        "w 1.000 1.000 1.000 1.000 1.000 0.992"
    )
    interleave = quick(PATTERNS["interleave"])["decay"].figure
    assert interleave.startswith(
        "t 0.973 0.789 0.696 0.544 0.482 0.400; h 0.979 0.813 0.762 0.395 0.377 0.201; w 0.986"
    )


def test_wavelengths_and_the_axes_with_a_full_spectrum_are_the_published_ones() -> None:
    told = quick(PATTERNS["chunk"])["spectrum"]
    assert told.figure.startswith("t 16 pairs, 6.283 .. 160.1; h 24 pairs, 198.7 .. 2.847e+04; w 24 pairs, 3.533e+04")
    full = {name: quick(pattern)["spectrum"].value for name, pattern in PATTERNS.items()}
    assert full == {"chunk": 0, "interleave": 3, "videorope": 0, "ernie": 0, "mm-rope": 3}
    assert quick("heads 2,3,3")["spectrum"].value == 3  # MHRoPE: each head has all of it on one axis


# Of the property matrix, variants.md section 6: growth of a clip (t, h, w), and which traits hold.
_T, _H, _W = 4, 6, 10
MATRIX: list[tuple[str, float, str]] = [
    ("raster", _T * _H * _W, "text before after distinct symmetric span"),
    ("grid", max(_T, _H, _W), "text before after distinct"),
    ("qwen3-vl", _T * max(_H, _W), "text before after distinct"),
    ("reset", max(_T, _H, _W), "text after distinct"),
    ("videorope", 2 * (_T - 1) + 1, "text distinct"),
    ("videorope(advance=paper)", 2 * _T, "text distinct"),
    ("hope(gamma=1)", _T, "text distinct"),
    ("qwen2.5-omni", 25 * (_T - 1) + 1, "text before after distinct"),  # a step a second, 25 ids a second
    ("vrope", _T * (_H + _W - 1), "text before after distinct symmetric"),
    ("tie(axes=3,steps=unit)", _T * _H * _W, "text before after distinct symmetric span"),
]


@pytest.mark.parametrize(("name", "growth", "holding"), MATRIX, ids=[row[0] for row in MATRIX])
def test_layouts_have_the_traits_of_the_property_matrix(name: str, growth: float, holding: str) -> None:
    report = quick(name)
    assert report.ok, failed(report)
    words = {
        "text": "text-is-1d",
        "before": "clears-before",
        "after": "clears-after",
        "distinct": "distinct",
        "symmetric": "symmetric",
    }
    held = {word for word, check in words.items() if report[check].outcome == "pass"}
    held |= {"span"} if report["span-is-tokens"].figure == "yes" else set()
    assert held == set(holding.split())
    assert f"clip {_T} x {_H} x {_W}: {growth:g} for" in report["growth"].figure


def test_rings_share_ids_as_published() -> None:
    """variants.md, section 6: of 8 x 12 tokens 4 ids with CCA, 9 with MCA; growth H / 2 and one less than H + W."""
    for kind, ids in (("chebyshev", 4), ("manhattan", 9)):
        report = quick(f"ring(kind={kind})", grid=(8, 12))
        assert report["distinct"].figure == f"picture 8 x 12: {ids} ids of 96 tokens"
        assert report["distinct"].outcome == "info"
        assert report["growth"].figure == f"picture 8 x 12: {ids} for 96 tokens"


def test_the_distance_spread_is_that_of_circle_rope() -> None:
    """Table 1 of arXiv:2505.16416: nine tokens one behind the other have 2.22, on a circle 0; 20 / 9 by hand."""
    assert quick("raster", grid=(3, 3))["distance-spread"].value == pytest.approx(20 / 9)
    circle = quick(f"circle+{PATTERNS['chunk']}")
    assert circle["distance-spread"].value == pytest.approx(0, abs=1e-6)
    # Not so in the kernel, which is what a query sees: there a grid of the same split has less of it.
    assert number(circle, "kernel-spread") > number(quick(f"grid+{PATTERNS['chunk']}"), "kernel-spread") > 0


def test_the_distance_spread_of_a_grid_is_that_of_a_loop() -> None:
    cells = [(3, 3 + row, 3 + col) for row in range(2) for col in range(4)]
    spread = []
    for text in range(7, 12):
        far = [math.dist((text,) * 3, cell) / 3**0.5 for cell in cells]
        spread += [abs(each - sum(far) / len(far)) for each in far]
    assert quick("grid", grid=(2, 4))["distance-spread"].value == pytest.approx(sum(spread) / len(spread))


def test_frames_of_hope_turn_alike_along_the_diagonal() -> None:
    """Without temporal pairs cell (row, col) of a frame turns like (row - 1, col - 1) of the next, with gamma 1."""
    report = quick(f"hope(gamma=1)+{PATTERNS['videorope']}", frames=2, extend=("t=zero",))
    shared = (_H - 1) * (_W - 1)
    assert f"clip 2 x 6 x 10: {2 * _H * _W - shared} turns of {2 * _H * _W} ids" in report["twins"].figure
    assert report["twins"].outcome == "info"  # HoPE gives time up knowingly
    assert report.ok
    assert "16 stand still" in report["text-as-1d"].figure
    assert report["monotone-range"].figure.startswith("t flat")


def test_one_pair_gives_the_figures_of_a_cosine() -> None:
    one = torch.ones(1, dtype=torch.float64)
    assert falls_to(one) == 3  # cos rises between 3 and 4
    assert first_below_zero(one) == 2  # cos 1 > 0 > cos 2
    assert first_below_zero(one, still=1, far=1000) is None  # 1 + cos never is
    slope, variation = ripple(one, 44)  # 7 turns of 2 pi, each of which falls by 2 and rises by 2
    assert slope == pytest.approx(1, abs=1e-3)
    assert variation == pytest.approx(28, abs=1e-2)


def test_a_pair_that_comes_round_within_the_grid_is_aliasing() -> None:
    """Columns that turn once in 7 positions: cell 7 looks like cell 0; the rows do not come round."""

    def tables_of_two(ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = ids[:2].double().T * torch.tensor([0.1, 2 * math.pi / 7], dtype=torch.float64)
        return angles.cos(), angles.sin()

    told = quick(tables_of_two, like=Rotary(AxisSplit((1, 1)), Frequencies(10.0)))["aliasing"]
    assert told.figure == "h none; w 7 apart"
    assert told.value == 7


def test_isotropy_is_the_spread_over_directions() -> None:
    """One pair for rows and one for columns, 0.3 radians a cell: the mean of two cosines, by numpy."""
    theta = torch.tensor([[[0.3, 0.0], [0.0, 0.3]]], dtype=torch.float64)
    waves = Waves(("h", "w"), theta, theta != 0)
    turn = np.arange(64) * 2 * np.pi / 64
    wanted = (np.cos(0.3 * 5 * np.sin(turn)) + np.cos(0.3 * 5 * np.cos(turn))) / 2
    assert isotropy(waves, 5) == pytest.approx((wanted.std(), wanted.mean()))
    # The more directions pairs look in, the more alike all directions are.
    spread = {name: number(quick(name), "isotropy") for name in ("axial", "spiral")}
    assert spread["spiral"] < spread["axial"]


def test_width_of_qwen2_vl_is_blind_in_bf16_tables() -> None:
    """What a table cast to bfloat16 still tells apart, made here by hand from position 4000 on."""
    theta = 1e6 ** (-torch.arange(40, 64).float() / 64)
    angles = torch.arange(4000, 4000 + 32).float()[:, None] * theta
    table = torch.cat((angles.cos(), angles.sin()), dim=1).bfloat16()
    right = int((table[1:] != table[:-1]).any(1).sum())
    assert right < 31
    report = quick("qwen2-vl", grid=(24, 32), dtype="bfloat16")
    assert report["resolution"].figure == f"t 3 of 3; h 23 of 23; w {right} of 31; blind: w"
    assert failed(report) == {"resolution"}
    assert quick("qwen2-vl", grid=(24, 32)).ok


def test_yarn_slows_width_alone_by_the_whole_factor() -> None:
    """variants.md, section 4: all of w, 16 of 24 pairs of h, none of t at base 1e6, L0 32768, factor 4."""
    told = quick("qwen2-vl", extend=("yarn:4",))["extension"].figure
    assert told.startswith("t 16 kept, 0 partly, 0 fully slowed")
    assert "h 8 kept, 16 partly, 0 fully slowed" in told
    assert "w 0 kept, 0 partly, 24 fully slowed, 4 times slower at most" in told


def test_frequencies_that_depend_on_a_length_want_one() -> None:
    with pytest.raises(ValueError, match="depend on how long the row is; expected a length"):
        quick("qwen2-vl", extend=("dynamic:2",))
    assert quick("qwen2-vl", extend=("dynamic:2",), length=65536).ok


# ------------------------------------------------------------------------------------------------ the installed library


def needs(model_type: str, least: tuple[int, int] = (5, 3)) -> None:
    if model_type not in transformers.CONFIG_MAPPING or least > VERSION:
        pytest.skip(f"no {model_type} as audited in transformers {transformers.__version__}")


@pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen2_5_vl", "ernie4_5_vl_moe", "paddleocr_vl"])
def test_text_that_starts_inside_a_clip_is_found_in_transformers(model_type: str) -> None:
    needs(model_type)
    report = quick(f"hf:{model_type}", frames=20)
    assert {"clears-after", "monotone", "decode", "ids-as-trained"} == failed(report)
    assert report["rotation"].outcome == report["turns-as-trained"].outcome == "pass"


def test_the_overlap_of_qwen2_vl_has_the_published_numbers() -> None:
    """variants.md, section 9.1, T = 6, H = W = 2: t up to s + 5, text from s + 2; here s = 4, behind a start word."""
    needs("qwen2_vl")
    report = full_audit("hf:qwen2_vl", grid=(2, 2), frames=6, device="cpu")
    assert report["clears-after"].figure == "clip 6 x 2 x 2: the block up to 9, text from 6"


def test_xd_rope_of_hunyuan_is_no_rotation_in_transformers() -> None:
    needs("hunyuan_vl")
    report = quick("hf:hunyuan_vl")
    assert {"rotation", "pairs", "shift", "turns-as-trained", "batch-order"} <= failed(report)
    assert ("frequencies", "it is no rotation") in report.skipped
    assert quick("hunyuan-vl").ok  # the vendor's rule


def test_v_jepa_2_is_no_rotation_in_transformers() -> None:
    needs("vjepa2")
    from transformers.models.vjepa2.modeling_vjepa2 import rotate_queries_or_keys

    x = torch.randn(1, 1, 1, 16, generator=torch.Generator().manual_seed(0))
    kept = rotate_queries_or_keys(x, torch.tensor([7.0])).norm() / x.norm()
    assert abs(kept - 1) > 1e-3
    assert {"rotation", "pairs", "shift"} <= failed(quick("hf:vjepa2"))


@pytest.mark.parametrize(
    "model_type",
    ["qwen3_vl", "qwen3_5", "glm4v", "glm4v_moe", "glm_ocr", "hy_v4_vl", "cosmos3_edge", "qwen2_5_omni", "neomme"],
)
def test_models_that_are_right_pass(model_type: str) -> None:
    needs(model_type, (5, 24))
    report = quick(f"hf:{model_type}")
    assert report.ok, [(check.name, check.figure) for check in report.failed]
    assert number(report, "turns-as-trained") < 1e-5


@pytest.mark.parametrize("name", mrope.family_names())
def test_every_family_keeps_what_it_promises(name: str) -> None:
    report = quick(name)
    assert report.ok, [(check.name, check.figure) for check in report.failed]


@pytest.mark.parametrize(
    "name", ["axial", "comrope-ap", "dinov3", "grape", "liere", "mixed", "pope", "spiral", "string"]
)
def test_encodings_keep_what_they_promise(name: str) -> None:
    report = quick(name)
    assert report.ok, [(check.name, check.figure) for check in report.failed]
    if name == "liere":
        assert report["shift"].outcome == report["commutes"].outcome == "info"  # its generators do not commute
        assert number(report, "commutes") > 0.1


def test_x_pos_overflows_at_a_million() -> None:
    report = quick("xpos")
    assert failed(report) == {"shift"}
    assert "nan by 1,000,000 (an exponential of the position overflows)" in report["shift"].figure
    assert report["shift"].value is None


# --------------------------------------------------------------------------------------------------- wrong on purpose


_THETA = 1e6 ** (-torch.arange(64, dtype=torch.float64) / 64)
_AXIS = torch.tensor([0] * 16 + [1] * 24 + [2] * 24)


def tables(ids: Tensor, axis: Tensor = _AXIS) -> tuple[Tensor, Tensor]:
    """(N, 64) cos and sin of Qwen2-VL, written out here."""
    angles = ids.double()[axis].T * _THETA
    return angles.cos(), angles.sin()


def by_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def by_neighbours(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)


def right(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    return by_halves(q, *tables(ids)), by_halves(k, *tables(ids))


def swapped(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    return right(q, k, ids[[0, 2, 1]])


def mixed_pairing(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    return by_halves(q, *tables(ids)), by_neighbours(k, *tables(ids))


def other_pairing(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    return by_neighbours(q, *tables(ids)), by_neighbours(k, *tables(ids))


def tiled_for_neighbours(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """What V-JEPA 2 does: the table of halves, the turn of neighbours."""
    cos, sin = (torch.cat((table, table), dim=-1) for table in tables(ids))
    out = [x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2) * sin for x in (q, k)]
    return out[0], out[1]


def time_alone(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    return right(q, k, ids[[0, 0, 0]])


def keys_twice(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    return right(q, k, ids)[0], right(k, right(k, k, ids)[1], ids)[1]


def by_length(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Positions interpolated by the largest one of the row: the frequencies change while it grows."""
    return right(q, k, ids.double() / max(1.0, float(ids.max()) / 10))


@functools.cache
def long_table() -> Tensor:
    return torch.stack(tables(torch.arange(200_000).expand(3, -1)))


def squashed(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    return right(q.tanh(), k.tanh(), ids)


def doubled(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    q, k = right(q, k, ids)
    return torch.cat((q, q), -1), torch.cat((k, k), -1)


def short_table(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """A table of 200,000 positions, as many libraries make one."""
    cos, sin = long_table()[:, ids[_AXIS].T, torch.arange(64)]
    return by_halves(q, cos, sin), by_halves(k, cos, sin)


def loose_planes(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """GRAPE as its authors train it: two vectors of a plane are orthonormal, planes among them are not."""
    rng = torch.Generator().manual_seed(0)
    planes = torch.eye(q.shape[-1], dtype=torch.float64) + 0.05 * torch.randn(128, 128, generator=rng).double()
    start = [q.double(), k.double()]
    out = list(start)
    for pair in range(16):
        a, b = torch.linalg.qr(planes[2 * pair : 2 * pair + 2].T)[0].T
        angle = (ids.double()[pair % 3] * _THETA[pair])[:, None]
        for place, x in enumerate(out):
            xa, xb = start[place] @ a[:, None], start[place] @ b[:, None]
            turned = (xa * angle.cos() - xb * angle.sin() - xa) * a + (xa * angle.sin() + xb * angle.cos() - xb) * b
            out[place] = x + turned  # all planes take their part of what came in
    return out[0], out[1]


def test_a_right_rotation_passes_beside_the_family() -> None:
    report = quick(right, like="qwen2-vl")
    assert report.ok, failed(report)
    assert number(report, "turns-as-trained") < 1e-4
    assert "64 pairs, halves (j, j + 64)" in report["pairs"].figure
    assert report["monotone-range"].value == 5  # seen from outside
    assert "base 1e+06" in report["text-as-1d"].figure


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (swapped, {"turns-as-trained"}),
        (other_pairing, {"turns-as-trained"}),
        (time_alone, {"turns-as-trained", "resolution"}),
        (mixed_pairing, {"queries-and-keys", "shift"}),
        (keys_twice, {"queries-and-keys", "shift"}),
        (tiled_for_neighbours, {"rotation", "pairs", "shift", "commutes", "turns-as-trained"}),
        (by_length, {"own-position", "shift", "commutes", "turns-as-trained"}),
        (squashed, {"rotation", "turns-as-trained"}),
        (doubled, {"rotation"}),
        (short_table, {"shift", "turns-as-trained"}),
        (loose_planes, {"rotation", "shift", "commutes", "turns-as-trained"}),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_wrong_rotation_is_found(wrong: Callable[..., Any], found: set[str]) -> None:
    assert failed(quick(wrong, like="qwen2-vl")) == found


def test_swapped_axes_are_named() -> None:
    assert "it differs along h, w" in quick(swapped, like="qwen2-vl")["turns-as-trained"].figure


def test_tables_are_turned_as_they_are_laid_out() -> None:
    def halves(ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = tables(ids)
        return torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)

    def neighbours(ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = tables(ids)
        return cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)

    def doubled_sections(ids: Tensor) -> tuple[Tensor, Tensor]:
        """HunYuan-VL in transformers 5.24: sections doubled over the doubled table."""
        axis = torch.tensor([0] * 32 + [1] * 48 + [2] * 48)
        angles = ids.double()[axis].T * _THETA.repeat(2)
        return angles.cos(), angles.sin()

    assert "halves (j, j + 64)" in quick(tables)["pairs"].figure
    assert quick(halves, like="qwen2-vl").ok
    report = quick(neighbours)
    assert report.ok
    assert "neighbours (2j, 2j + 1)" in report["pairs"].figure
    assert {"rotation", "pairs", "shift"} <= failed(quick(doubled_sections))


def qwen2(spans: Sequence[Span], *, swap: bool = False, side: bool = False, late: int = 0) -> tuple[Tensor, int]:
    """Ids of Qwen2-VL and the position of the first decoded token, written out here; grids count tokens."""
    columns: list[tuple[int, ...]] = []
    start = 0
    for span in spans:
        if isinstance(span, Text):
            columns += [(start + word,) * 3 for word in range(span.length)]
            start += span.length
            continue
        t, h, w = span.grid  # pyright: ignore[reportAttributeAccessIssue]
        cells = [(f, i, j) for f in range(t) for i in range(h) for j in range(w)]
        columns += [(start + f, start + (j if swap else i), start + (i if swap else j)) for f, i, j in cells]
        start += max(h, w) if side else max(t, h, w)
    return torch.tensor(columns).T, start + late


def test_a_right_layout_passes_beside_the_family() -> None:
    report = quick(lambda spans: qwen2(spans), like="grid")
    assert report.ok, failed(report)
    assert report["ids-as-trained"].outcome == report["decode"].outcome == "pass"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"swap": True}, {"rows-and-columns"}),
        ({"side": True}, {"clears-after", "monotone"}),
        ({"late": 1}, {"decode"}),
        ({"late": -1}, {"decode"}),
    ],
    ids=["rows and columns swapped", "time ignored", "decoded one late", "decoded one early"],
)
def test_a_wrong_layout_is_found(change: dict[str, Any], found: set[str]) -> None:
    assert failed(quick(lambda spans: qwen2(spans, **change))) == found
    if "late" not in change:
        assert failed(quick(lambda spans: qwen2(spans, **change), like="grid")) == found | {"ids-as-trained"}


def test_one_frequency_on_all_axes_gives_twins() -> None:
    """GRAPE's "axis" mode as its authors start it: every pair reads t + h + w, so that (0, 1) turns like (1, 0)."""

    def summed(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        return right(q, k, ids.sum(0, keepdim=True).expand(3, -1))

    bare = Target(name="bare", axes=("t", "h", "w"))
    turned = of_object(summed, "summed", bare)
    report = quick(both(of_layout(GridLayout(), "grid"), turned, "summed"))
    assert failed(report) == {"twins"}
    # row + column takes 6 + 10 - 1 values
    assert report["twins"].figure.startswith("picture 6 x 10: 15 turns of 60 ids")
    assert report["text-as-1d"].figure.startswith("from 3 ")


def test_turned_values_are_found() -> None:
    rotary = Rotary(AxisSplit((2, 3, 3)), Frequencies(1e4))

    def good(q: Tensor, k: Tensor, v: Tensor, positions: Any) -> Tensor:
        return attend(q, k, v, encoding=rotary, positions=positions)

    def turned_values(q: Tensor, k: Tensor, v: Tensor, positions: Any) -> Tensor:
        return attend(q, k, rotary(v, v, positions)[0], encoding=rotary, positions=positions)

    assert quick(good).ok
    assert quick(good, like=rotary)["attention-reference"].outcome == "pass"
    report = quick(turned_values, like=rotary)
    assert failed(report) == {"attention-shift", "attention-reference"}
    told = r"does not hold: off by [0-9.]+ of the largest output at row 0, head [0-3], token \d+"
    assert re.fullmatch(told, report["attention-shift"].figure)


# ------------------------------------------------------------------------------- what breaks down, or is beside nothing


def raising(spans: Any) -> Any:
    raise RuntimeError("no such rule")


def refusing_all(spans: Any) -> Any:
    raise ValueError("no rule")


def table_of_three(ids: Tensor) -> tuple[Tensor, Tensor]:
    row = torch.ones(3, 8)[ids[0]]  # ids go to 4
    return row, row


def table_of_four_axes(ids: Tensor) -> tuple[Tensor, Tensor]:
    return tables(ids[[0, 1, 3]])


BROKEN: dict[str, tuple[Callable[..., Any], str]] = {
    "raises": (raising, "RuntimeError: no such rule"),
    "a number": (lambda spans: 3, "int"),
    "nested lists": (lambda spans: qwen2(spans)[0].tolist(), "list"),
    "an array of numpy": (lambda spans: qwen2(spans)[0].numpy(), "ndarray"),
    "tokens first": (lambda spans: qwen2(spans)[0].T, "(67, 3)"),
    "positions of four axes": (lambda spans: mrope.family("hunyuan-vl").layout(spans), "(4, "),
    "a word for the next position": (lambda spans: (qwen2(spans)[0], "x"), "'x'"),
    "a module": (torch.nn.Linear(3, 3), "linear"),
    "a table that is too short": (table_of_three, "for ids (3, 5) it raises IndexError"),
    "a table of four axes": (table_of_four_axes, "for ids (3, 5) it raises IndexError"),
    "refuses all": (refusing_all, "picture 6 x 10: no rule"),
}


@pytest.mark.parametrize("like", [None, "grid"])
@pytest.mark.parametrize(("broken", "told"), BROKEN.values(), ids=list(BROKEN))
def test_a_callable_that_lays_nothing_out_fails(broken: Callable[..., Any], told: str, like: str | None) -> None:
    report = quick(broken, like=like)
    assert failed(report) == {"ids-run"}
    assert told in report["ids-run"].figure


def test_nothing_measured_is_not_right() -> None:
    assert not AuditReport(subject="a", machine="b", checks=()).ok


def test_a_rule_may_refuse_clips_but_not_break_down_on_them() -> None:
    def pictures_alone(spans: Sequence[Span], error: type[Exception]) -> tuple[Tensor, int]:
        if any(isinstance(span, Video) for span in spans):
            raise error("no clips here")
        return qwen2(spans)

    def refusing(spans: Sequence[Span]) -> tuple[Tensor, int]:
        return pictures_alone(spans, NotImplementedError)

    def breaking(spans: Sequence[Span]) -> tuple[Tensor, int]:
        return pictures_alone(spans, KeyError)

    assert quick(refusing).ok
    assert ("clip 4 x 6 x 10", "no clips here") in quick(refusing).skipped
    assert failed(quick(breaking)) == {"ids-run"}
    report = quick(refusing, like="grid")
    assert failed(report) == {"ids-as-trained"}
    assert report["ids-as-trained"].figure == "clip 4 x 6 x 10: it has no ids, and grid has"


@pytest.mark.parametrize(
    ("target", "like"),
    [(right, "grid"), (lambda spans: qwen2(spans), PATTERNS["chunk"]), ("liere", "grid")],
    ids=["turns beside ids", "ids beside turns", "an encoding beside ids"],
)
def test_what_is_compared_with_nothing_does_not_pass(target: Any, like: str) -> None:
    assert quick(target).ok
    assert failed(quick(target, like=like)) == {"compared"}


@pytest.mark.parametrize("name", ["pope", "liere", "mixed", "vrope", "qwen3-vl", "heads 2,3,3"])
def test_everything_is_like_itself(name: str) -> None:
    assert quick(name, like=name).ok


def test_a_model_is_like_its_family() -> None:
    needs("qwen3_vl")
    report = quick("hf:qwen3_vl", like="qwen3-vl")
    assert report.ok, [(check.name, check.figure) for check in report.failed]


@pytest.mark.parametrize(
    ("model_type", "name"),
    [("qwen3_vl", "qwen3-vl"), ("glm4v", "glm4v"), ("hunyuan_vl", "hunyuan-vl"), ("minicpmv4_7", "minicpm-v4.7")],
)
def test_a_callable_is_asked_for_the_prompts_of_the_model_that_it_is_meant_to_be(model_type: str, name: str) -> None:
    """With its words around pictures, its stamps and its seconds, in the callable's own patches."""
    needs(model_type)
    record = mrope.family(name)
    seen: list[Sequence[Span]] = []

    def right(spans: Sequence[Span]) -> Tensor:
        seen.append(spans)
        return record.layout(spans).ids

    def exchanged(spans: Sequence[Span]) -> Tensor:
        ids = right(spans).clone()
        row, col = record.axes.index("h"), record.axes.index("w")
        ids[[row, col]] = ids[[col, row]]
        return ids

    for rule in (right, exchanged):
        rule.axes, rule.merge = len(record.axes), record.merge  # pyright: ignore[reportFunctionMemberAccess]
    assert quick(right, like=f"hf:{model_type}")["ids-as-trained"].outcome == "pass"
    longest = max(seen[0], key=lambda span: isinstance(span, Text) and span.length)
    assert isinstance(longest, Text)
    assert any(span.length == 4 for spans in seen for span in spans if isinstance(span, Text)), "3 words and a bracket"
    report = quick(exchanged, like=f"hf:{model_type}")["ids-as-trained"]
    assert report.outcome == "fail"
    assert "ids of shape" not in report.figure
    assert quick(name, like=f"hf:{model_type}")["ids-as-trained"].outcome == "pass"


def test_the_class_of_qwen2_5_vl_is_audited_with_the_pace_of_its_checkpoints() -> None:
    needs("qwen2_5_vl")
    told = quick("qwen2.5-vl@trained", like="hf:qwen2_5_vl")["ids-as-trained"].figure
    assert not told.startswith("clip 4 x 6 x 10: token 60 of the block"), "2 positions a second, not 4 as its class has"


# -------------------------------------------------------------------------------------------- far positions, and heads


FAR_FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "clamped at 1200": lambda ids: ids.clamp(max=1200),
    "clamped at 4095": lambda ids: ids.clamp(max=4095),
    "a table of 32,768": lambda ids: ids.clamp(max=32_767),
    "modulo 600": lambda ids: ids % 600,
    "modulo 1500": lambda ids: ids % 1500,
    "modulo 5000": lambda ids: ids % 5000,
    "positions in float16": lambda ids: ids.half(),
    "noise beyond 2000": lambda ids: ids + (ids > 2000) * (ids.double() * 12.9898).sin() * 0.1,
}


@pytest.mark.parametrize("fault", FAR_FAULTS.values(), ids=list(FAR_FAULTS))
def test_far_positions_that_turn_wrongly_are_found(fault: Callable[[Tensor], Tensor]) -> None:
    def turning(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        return right(q, k, fault(ids))

    assert failed(quick(turning)) == {"shift"}
    assert failed(quick(turning, like="qwen2-vl")) == {"shift", "turns-as-trained"}


def test_angles_in_float32_are_no_fault_a_million_positions_away() -> None:
    def float32_angles(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = ids.float()[_AXIS].T * _THETA.float()
        cos, sin = angles.cos().double(), angles.sin().double()
        return by_halves(q, cos, sin), by_halves(k, cos, sin)

    report = quick(float32_angles, like="qwen2-vl")
    assert report.ok, failed(report)
    assert 1e-4 < number(report, "shift") < 5e-3  # what was measured, for a threshold of one's own


def test_turns_get_several_heads_and_fewer_of_keys() -> None:
    seen: set[tuple[int, int]] = set()

    def looking(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        seen.add((q.shape[1], k.shape[1]))
        return right(q, k, ids)

    assert quick(looking, like="qwen2-vl").ok
    assert seen == {(4, 2)}


def test_a_turn_of_the_first_head_alone_is_found() -> None:
    def first_head(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        turned = right(q[:, :1], k[:, :1], ids)
        return torch.cat((turned[0], q[:, 1:]), 1), torch.cat((turned[1], k[:, 1:]), 1)

    assert failed(quick(first_head)) == {"queries-and-keys", "shift"}
    assert "turns-as-trained" in failed(quick(first_head, like="qwen2-vl"))


def test_a_turn_of_a_model_that_spares_its_second_head_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("qwen2_vl")
    from transformers.models.qwen2_vl import modeling_qwen2_vl

    assert quick("hf:qwen2_vl")["rotation"].outcome == "pass"
    turning = modeling_qwen2_vl.apply_rotary_pos_emb

    def sparing(q: Tensor, k: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        turned, keys = turning(q, k, *rest)
        return torch.cat((turned[:, :1], q[:, 1:2], turned[:, 2:]), dim=1), keys

    monkeypatch.setattr(modeling_qwen2_vl, "apply_rotary_pos_emb", sparing)
    assert "turns-as-trained" in failed(quick("hf:qwen2_vl"))


def nan_queries(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    return q * math.nan, right(q, k, ids)[1]


def noisy(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    return q + 0.1 * torch.randn_like(q), k


def narrowed(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    q, k = right(q, k, ids)
    return q.bfloat16(), k.bfloat16()


def exchanged(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    q, k = right(q, k, ids)
    return k, q


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (nan_queries, "NaN or infinity in the queries of 6 of 6 tokens"),
        (noisy, "the queries differ between two calls"),
        (narrowed, "bfloat16 comes back for float64"),
        (squashed, "it is not linear"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_what_is_no_rotation_says_why(wrong: Callable[..., Any], told: str) -> None:
    assert quick(wrong)["rotation"].figure.startswith(told)


def test_exchanged_queries_and_keys_are_called_so() -> None:
    figure = quick(exchanged)["turns-run"].figure
    assert "returns (1, 2, 6, 128) and (1, 4, 6, 128) for q and k of (1, 4, 6, 128) and (1, 2, 6, 128)" in figure
    three_heads = Target(name="three heads", axes=("t", "h", "w"), heads=3)
    told = quick(exchanged, like=three_heads)["rotation"].figure
    assert told == "what comes back first is the key, turned: queries and keys are exchanged"


def test_tables_of_a_model_have_the_dtype_that_is_asked_for() -> None:
    """Its module casts cos and sin to the dtype of its input: by hand, how far cos^2 + sin^2 is from 1 then."""
    needs("qwen3_vl")
    assert number(quick("hf:qwen3_vl"), "rotation") < 1e-5
    ours, theirs = (number(quick(name, dtype="bfloat16"), "rotation") for name in ("qwen3-vl", "hf:qwen3_vl"))
    assert ours == pytest.approx(theirs)
    angles = torch.arange(50).float()[:, None] * 5e6 ** (-torch.arange(64).float() / 64)
    cos, sin = (table.bfloat16().double() for table in (angles.cos(), angles.sin()))
    assert 1e-3 < theirs <= float((cos**2 + sin**2 - 1).abs().max())


# ------------------------------------------------------------------------------------------------------- other prompts


def late_behind_two(spans: Sequence[Span]) -> tuple[Tensor, int]:
    """The last word is one too low where there are two pictures."""
    ids, following = qwen2(spans)
    pictures = sum(not isinstance(span, Text) for span in spans)
    return torch.cat((ids[:, :-1], ids[:, -1:] - int(pictures > 1)), 1), following


def refusing_where(wrong: Callable[[Sequence[Span]], bool]) -> Callable[[Sequence[Span]], tuple[Tensor, int]]:
    def rule(spans: Sequence[Span]) -> tuple[Tensor, int]:
        if wrong(spans):
            raise ValueError("not this prompt")
        return qwen2(spans)

    return rule


def clamped(spans: Sequence[Span]) -> tuple[Tensor, int]:
    ids, following = qwen2(spans)
    return ids.clamp(max=40), min(following, 40)


def halved(spans: Sequence[Span]) -> tuple[Tensor, int]:
    ids, following = qwen2(spans)
    return ids.half(), following


PROMPT_FAULTS: dict[str, tuple[Callable[..., Any], str]] = {
    "last word behind two pictures": (late_behind_two, "two pictures: word 3 of the last text is at 17"),
    "refuses two pictures": (
        refusing_where(lambda spans: sum(not isinstance(span, Text) for span in spans) > 1),
        "two pictures: not this prompt",
    ),
    "refuses a picture first": (refusing_where(lambda spans: not isinstance(spans[0], Text)), "a picture first: not"),
    "refuses a picture last": (refusing_where(lambda spans: not isinstance(spans[-1], Text)), "a picture last: not"),
    "refuses long text": (
        refusing_where(lambda spans: any(isinstance(span, Text) and span.length > 6 for span in spans)),
        "long text: not this prompt",
    ),
    "clamped at 40": (clamped, "long text: word 41 of the last text is at 40, the one before it at 40"),
    "float16": (halved, "long text: word 2049 of the last text is at 2048, the one before it at 2048"),
}


@pytest.mark.parametrize(("wrong", "told"), PROMPT_FAULTS.values(), ids=list(PROMPT_FAULTS))
def test_a_fault_in_other_prompts_is_found(wrong: Callable[..., Any], told: str) -> None:
    report = quick(wrong)
    assert failed(report) == {"prompts"}
    assert told in report["prompts"].figure
    assert failed(quick(wrong, like="qwen2-vl")) == {"prompts", "ids-as-trained"}


@pytest.mark.parametrize(("name", "change"), [("qwen2.5-vl", {"seconds": 1.0}), ("qwen3-vl", {"stamp": 0})])
def test_seconds_and_stamps_of_clips_are_seen(name: str, change: dict[str, Any]) -> None:
    """qwen2.5-vl goes by the clock, and qwen3-vl has text between frames: no constant will do."""
    family = mrope.family(name)

    class Rule:
        merge = 2

        def __init__(self, change: dict[str, Any]) -> None:
            self.change = change

        def __call__(self, spans: Sequence[Span]) -> Any:
            constant = [replace(each, **self.change) if isinstance(each, Video) else each for each in spans]
            return family.positions(constant)

    assert quick(Rule({}), like=name).ok
    report = quick(Rule(change), like=name)
    assert failed(report) == {"ids-as-trained"}
    assert report["ids-as-trained"].figure.startswith("a clip: ")


# -------------------------------------------------------------------------------------------------- options and figures


def test_an_encoding_that_is_stopped_on_all_axes_fails() -> None:
    report = quick("qwen2-vl", extend=("zero",))
    assert failed(report) == {"resolution", "twins"}
    one = quick("qwen2-vl", extend=("t=zero",))["resolution"]
    assert (one.figure, one.limit) == ("t 0 of 3; h 5 of 5; w 9 of 9", "all but on t, which stands still")


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("qwen2-vl", {"base": 0}, "base is 0; expected a finite number above 0"),
        ("qwen2-vl", {"base": 5e5}, "base is 500000 for qwen2-vl; expected a SPLIT"),
        ("grid+qwen2-vl", {"base": 5e5}, "base is 500000 for grid+qwen2-vl; expected a SPLIT"),
        ("liere", {"base": 10}, "base is 10 for liere; expected a SPLIT"),
        (right, {"base": 10}, "base is 10 for an object; expected a target by its name"),
        ("qwen2-vl", {"trained": 100}, "trained is 100, and nothing is extended"),
        ("qwen2-vl", {"length": 100}, "length is 100, and nothing is extended"),
        ("qwen2-vl", {"extend": ("yarn:4,1000",), "trained": 32768}, "trained is 32768, and extend is 'yarn:4,1000'"),
        ("qwen2-vl", {"extend": ("yarn:4",), "length": 9000}, "length is 9000 for yarn:4; expected an extension"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(target: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        quick(target, **options)


def test_the_base_of_a_split_is_taken() -> None:
    assert "base 10000" in quick("grid+T*16 H*24 W*24", base=1e4)["text-as-1d"].figure


@pytest.mark.parametrize(
    ("name", "value"),
    [("axes", 0), ("axes", -1), ("axes", "x"), ("head_dim", "x"), ("head_dim", 0), ("merge", 0), ("merge", -1)],
)
def test_attributes_of_a_callable_that_are_no_counts_are_refused(name: str, value: Any) -> None:
    def rule(spans: Sequence[Span]) -> tuple[Tensor, int]:
        return qwen2(spans)

    setattr(rule, name, value)
    with pytest.raises((ValueError, TypeError), match=f"{name} of rule is {value!r}; expected"):
        quick(rule)


def test_arguments_without_a_place_are_named() -> None:
    def by_name(q: Tensor, k: Tensor, *, ids: Tensor) -> tuple[Tensor, Tensor]:
        return right(q, k, ids)

    def starred(*a: Tensor) -> tuple[Tensor, Tensor]:
        return right(*a)

    for each, told in ((by_name, "by_name takes ids by no place"), (starred, r"starred takes \*a.* by no place")):
        with pytest.raises(TypeError, match=told):
            quick(each)


def test_arguments_of_another_type_are_refused() -> None:
    told: dict[str, Any] = {"grid": 5, "extend": 4, "plot": 3}
    for name, value in told.items():
        with pytest.raises(TypeError, match=f"{name}"):
            quick("qwen2-vl", **{name: value})
    with pytest.raises(TypeError, match="extend"):
        quick("qwen2-vl", extend="yarn:4")


def test_figures_of_several_numbers_have_values_by_name() -> None:
    report = quick("qwen2-vl")
    cosine = sum(math.cos(8 * 1e6 ** (-pair / 64)) for pair in range(16)) / 16
    assert report["decay"].values["t at 8"] == pytest.approx(cosine)
    assert report["boundary"].values["picture 6 x 10 out h"] == 10 - 5  # rows 0 to 5, and text from 10 on
    # Over 3 steps of 4 frames; no pair of rows or columns turns so far, the fastest by 0.03 and 0.0002 a cell.
    share = sum(3 * 1e6 ** (-pair / 64) >= math.pi / 2 for pair in range(16)) / 16
    assert report["coverage"].values == {"t": share, "h": 0, "w": 0}
    assert report["coverage"].value == 0


def test_decay_is_told_of_each_head_that_differs() -> None:
    from mrope.encodings import MixedRope

    torch.manual_seed(0)
    mixed = MixedRope(64, heads=2)
    told = quick(mixed)["decay"]
    row = mixed.frequencies.detach().double()[1, 0]  # of head 1, along rows
    assert told.values["h of head 1 at 8"] == pytest.approx(float((8 * row).cos().mean()), abs=1e-6)
    assert told.values["h of head 0 at 8"] != pytest.approx(told.values["h of head 1 at 8"], abs=1e-3)
    assert "head 1 " in told.figure


# --------------------------------------------------------------------------------------------------------- what is told


def test_a_report_is_json_and_says_what_was_left_out() -> None:
    report = quick(LieRope(16))
    assert json.loads(json.dumps(asdict(report)))["subject"] == "LieRope"
    assert dict(report.skipped) == {
        "ids": "it has no rule of positions",
        "frequencies": "its channels do not turn in pairs",
    }
    with pytest.raises(KeyError, match="it has no rule of positions"):
        report["ids"]
    with pytest.raises((ValueError, TypeError), match="good"):
        AuditCheck(name="a", means="b", figure="c", outcome="good")  # pyright: ignore[reportArgumentType]


def test_code_that_raises_fails_and_does_not_end_the_audit() -> None:
    def broken(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        raise RuntimeError("no such kernel")

    report = quick(broken)
    assert failed(report) == {"turns-run"}
    assert report["turns-run"].figure == "RuntimeError: no such kernel"


def test_a_module_is_measured_and_left_alone() -> None:
    module = LieRope(16, axes=3)
    before = module.entries.clone()
    assert quick(module).ok
    assert torch.equal(module.entries, before)

    class Turning(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
            return right(q, k, ids)

    assert quick(Turning(), like="qwen2-vl").ok


def test_layers_with_positions_of_their_own_are_told() -> None:
    assert quick("circle(layers=6)")["layers"].figure == "2 kinds in 6 layers"
    assert quick("pype(layers=4,jump=2)", grid=(8, 12))["layers"].value == 2


def test_a_model_of_ours_and_its_layout_are_told_apart() -> None:
    assert quick(QwenVisionRope(32)).ok
    assert quick(GridLayout()).ok
    assert failed(quick(GridLayout(advance="side"), like="grid")) == {"ids-as-trained"}  # it declares the overlap
    assert quick("qwen2-vl@transformers-5.24")["clears-after"].outcome == "info"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("qwen9", "target is 'qwen9'; expected a family"),
        ("grid+qwen9", "'qwen9' is unknown"),
        ("vrope+T*16 H*24 W*24", "the layout has 4 axes and the split 3"),
        ("grid(merge)", "'merge' is no setting"),
        ("grid(size=3)", "unexpected keyword"),
        ("python:nowhere", "expected python:MODULE:NAME"),
        ("python:no_such_module_here:f", "No module named"),
        ("python:math:nothing", "math has no nothing"),
        ("python:missing.py:f", "missing.py is no file"),
        ("hf:no_such_model", "target is 'hf:no_such_model'"),
        ("hf:", "target is 'hf:'; expected a model class, a model_type, a folder or a JSON file"),
        ("pype", "layout is 'pype' without layers, jump; expected such as pype(layers=2,jump=2)"),
        ("anchored", "target is 'anchored'; expected a family"),
        ("xd+S*16 W*16 H*16 I*16", "(I, S); expected axes T, H and W, or digits, as in 0123*16"),
    ],
)
def test_a_name_that_names_nothing_is_refused(target: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        quick(target)


def test_wrong_numbers_and_things_are_refused() -> None:
    with pytest.raises(ValueError, match="width of grid is 0; expected at least 1"):
        quick("grid", grid=(3, 0))
    with pytest.raises(ValueError, match="dtype is 'int8'; expected one of float32, bfloat16, float16"):
        quick("grid", dtype="int8")
    with pytest.raises(TypeError, match="target is 3; expected a name, something to call"):
        quick(3)
    with pytest.raises(TypeError, match="like is 3; expected a name, something to call"):
        quick("grid", like=3)
    with pytest.raises(ValueError, match="like is 'nosuch'; expected a family"):
        quick("grid", like="nosuch")
    with pytest.raises(TypeError, match="expected an object of it"):
        quick(GridLayout.__mro__[0])
    with pytest.raises(TypeError, match=r"takes 2 arguments \(a, b\)"):
        quick(lambda a, b: a)
    with pytest.raises(ValueError, match="expected frequencies of ours"):
        quick("grid", extend=("yarn:4",))
    with pytest.raises(ValueError, match="expected each of t, h, w once"):
        quick("qwen2-vl", extend=("tt=ntk:4", "h=ntk:4"))


def test_pictures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from PIL import Image as Picture

    quick("qwen2-vl", plot=tmp_path / "out" / "audit")
    with Picture.open(tmp_path / "out" / "audit" / "audit.png") as picture:
        assert picture.width > 1000
    quick("dinov3", plot=tmp_path / "dino.svg")
    assert "<svg" in (tmp_path / "dino.svg").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"expected a folder, or a file that ends in \.png"):
        quick("grid", plot=tmp_path / "audit.gif")
    report = quick("liere", plot=tmp_path / "liere.png")
    assert dict(report.skipped)["plot"] == "there is nothing to draw of liere: neither positions nor frequencies"
    assert report.checks
    assert not (tmp_path / "liere.png").exists()


def test_spans_reach_a_callable_in_patches_where_it_merges() -> None:
    seen: list[Span] = []

    class Merging:
        merge = 2

        def __call__(self, spans: Sequence[Span]) -> Any:
            seen.extend(spans)
            return GridLayout(merge=2)(spans)

    assert quick(Merging(), like="grid").ok
    assert Video((4, 12, 20)) in seen
