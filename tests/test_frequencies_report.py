"""What is told of the frequencies of each axis, held to worked values and to sums in plain Python."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy
import pytest
import torch

import mrope
from mrope import AxisSplit, Frequencies, Rotary
from mrope.axes import HeadSplit
from mrope.extensions import Extension, Linear, Ntk, Yarn, Zero, parse_extension
from mrope.probes.advice import Advice, advise
from mrope.probes.audits.decay_plot import plot_decay
from mrope.probes.audits.frequencies import TRAINED, FrequencyReport, Trained, decay, frequency_report

CHUNK = AxisSplit((16, 24, 24))
INTERLEAVE = AxisSplit((24, 20, 20), "interleaved")
VIDEOROPE = AxisSplit((16, 24, 24), "alternating")
ERNIE = AxisSplit((20, 22, 22), "alternating")
MM = AxisSplit.parse("TTHWHWHW*8")
TOLD = Trained(length=32768, source="told")


def rotary(split: AxisSplit = CHUNK, base: float = 1e6, extension=None) -> Rotary:
    return Rotary(split, Frequencies(base, extension))


def wavelengths(split: AxisSplit, base: float, axis: int) -> list[float]:
    pairs = split.axis.tolist()
    return [2 * math.pi * base ** (j / len(pairs)) for j, each in enumerate(pairs) if each == axis]


def kernel(split: AxisSplit, base: float, axis: int, distance: float) -> float:
    lengths = wavelengths(split, base, axis)
    return sum(math.cos(2 * math.pi * distance / length) for length in lengths) / len(lengths)


def report(
    split: AxisSplit = CHUNK, base: float = 1e6, extension: Extension | tuple | None = None, **given
) -> FrequencyReport:
    return frequency_report(rotary(split, base, extension), **{"trained": TOLD, "grid": (24, 32), **given})


def warned(told: FrequencyReport, words: str) -> list[str]:
    """What warnings with these words begin with: the axis."""
    return [line.partition(":")[0] for line in told.warnings if words in line]


# ------------------------------------------------------------------------------------------------------- each axis

WAVELENGTHS = {  # shortest and longest of t, h, w, as catalogued
    "chunk": (CHUNK, [(6.3, 160), (199, 28473), (35333, 5.06e6)]),
    "interleave": (INTERLEAVE, [(6.3, 5.06e6), (7.8, 1.72e6), (9.7, 2.14e6)]),
    "videorope": (VIDEOROPE, [(198692, 5.06e6), (6.3, 129027), (7.8, 160114)]),
    "ernie": (ERNIE, [(83788, 5.06e6), (6.3, 54410), (7.8, 67520)]),
    "mm-rope": (MM, [(6.3, 1.39e6), (9.7, 4.08e6), (12, 5.06e6)]),
}


@pytest.mark.parametrize(("split", "ends"), WAVELENGTHS.values(), ids=WAVELENGTHS)
def test_the_wavelengths_of_each_axis(split: AxisSplit, ends: list[tuple[float, float]]) -> None:
    for number, (axis, worked) in enumerate(zip(report(split).axes, ends, strict=True)):
        assert (axis.shortest, axis.longest) == pytest.approx(worked, rel=0.01)
        lengths = wavelengths(split, 1e6, number)
        assert (axis.shortest, axis.longest) == pytest.approx((lengths[0], lengths[-1]))
        assert axis.pairs == len(lengths)
        assert axis.turned == sum(length <= 32768 for length in lengths)


def test_height_and_width_are_told_apart() -> None:
    swapped = report(AxisSplit.parse("T*16 W*24 H*24"))
    t, h, w = report().axes
    assert [replace(h, name="w", searched=31), replace(w, name="h", searched=23)] == [swapped.axes[2], swapped.axes[1]]
    assert swapped.axes[0] == t
    assert swapped.pattern == "T*16 W*24 H*24"
    assert (h.searched, w.searched) == (23, 31)


DECAY = {
    ("chunk", 0): [0.915, 0.227, -0.046, -0.188, -0.117, -0.108],
    ("chunk", 1): [1.00, 0.996, 0.942, 0.559, 0.313, -0.055],
    ("chunk", 2): [1.00, 1.00, 1.00, 1.00, 1.00, 0.992],
    ("interleave", 0): [0.973, 0.789, 0.696, 0.544, 0.482, 0.400],
    ("interleave", 1): [0.979, 0.813, 0.762, 0.395, 0.377, 0.201],
    ("interleave", 2): [0.986, 0.817, 0.697, 0.672, 0.527, 0.357],
    ("videorope", 0): [1.0] * 6,
    ("videorope", 1): [0.966, 0.717, 0.613, 0.283, 0.230, 0.161],
    ("videorope", 2): [0.977, 0.764, 0.632, 0.483, 0.338, 0.037],
}
DISTANCES = [1, 8, 32, 128, 512, 2048]


@pytest.mark.parametrize(("name", "axis"), DECAY, ids=str)
def test_the_kernel_over_the_distance(name: str, axis: int) -> None:
    split, _ = WAVELENGTHS[name]
    told = decay(rotary(split), DISTANCES)
    assert told.shape == (3, 6)
    numpy.testing.assert_allclose(told[axis].numpy(), DECAY[name, axis], atol=6e-4)
    slow = [kernel(split, 1e6, axis, distance) for distance in DISTANCES]
    numpy.testing.assert_allclose(told[axis].numpy(), slow, atol=1e-12)


def test_the_kernel_takes_a_tensor_and_any_number_of_axes() -> None:
    plain = decay(rotary(AxisSplit((5,)), 100.0), torch.tensor([0.5, 3.0]))
    slow = [sum(math.cos(d * 100 ** (-j / 5)) for j in range(5)) / 5 for d in (0.5, 3.0)]
    numpy.testing.assert_allclose(plain[0].numpy(), slow, atol=1e-12)


def test_heads_have_all_frequencies_on_their_axis() -> None:
    heads = Rotary(HeadSplit((1, 2, 1), pairs=8, heads=5), Frequencies(1e4))
    plain = decay(rotary(AxisSplit((8,)), 1e4), DISTANCES)
    numpy.testing.assert_allclose(decay(heads, DISTANCES).numpy(), plain.expand(3, -1).numpy())
    told = frequency_report(heads, grid=(4, 5), trained=TOLD)
    assert [axis.pairs for axis in told.axes] == [8, 16, 8]
    assert told.pattern == "heads (1, 2, 1)"


def test_a_zero_extension_stops_an_axis() -> None:
    told = report(VIDEOROPE, extension=(Zero(), None, Linear(2)), target=65536)
    t, h, w = told.axes
    assert (t.shortest, t.longest, t.turned, t.drop, t.distinct, t.unseen) == (None, None, 0, 0, (1, 1), 0)
    assert t.stretch is not None
    assert (t.stretch.stopped, t.stretch.kept, t.stretch.least) == (16, 0, None)
    assert h.stretch is None
    assert w.stretch is not None
    assert (w.stretch.full, w.stretch.least, w.stretch.most) == (24, 2, 2)


# ---------------------------------------------------------------------------------------------------- one cell in bf16


@pytest.mark.parametrize(
    ("name", "drops", "distinct"),
    [
        ("qwen2-vl", (8.5e-2, 5.9e-5, 1.9e-9), [(64, 64), (64, 64), (52, 35)]),
        ("qwen3-vl", (2.5e-2, 1.9e-2, 1.2e-2), [(64, 64)] * 3),
    ],
)
def test_how_far_one_cell_moves_an_axis(name: str, drops: tuple[float, ...], distinct: list) -> None:
    told = frequency_report(mrope.family(name).rotary())
    assert [axis.drop for axis in told.axes] == pytest.approx(drops, rel=0.03)
    assert [axis.distinct for axis in told.axes] == distinct
    hardly = ["h", "w"] if name == "qwen2-vl" else []
    assert warned(told, "hardly moves for one cell in bf16") == hardly


def test_distinct_cells_are_counted_one_by_one() -> None:
    told = report(AxisSplit((1, 2, 1)), 1e8)
    for number, axis in enumerate(told.axes):
        counts = []
        for offset in (4000, 16000):
            rows = set()
            for cell in range(offset, offset + 64):
                angles = [2 * math.pi * cell / length for length in wavelengths(AxisSplit((1, 2, 1)), 1e8, number)]
                values = [[math.cos(angle), math.sin(angle)] for angle in angles]
                rows.add(tuple(torch.tensor(values).bfloat16().flatten().tolist()))
            counts.append(len(rows))
        assert axis.distinct == tuple(counts)


# ------------------------------------------------------------------------------------------------------------ aliasing


@pytest.mark.parametrize(
    ("split", "falls_to"),
    [(CHUNK, 5), (INTERLEAVE, 4), (MM, 4), (ERNIE, 70913), (VIDEOROPE, 167229)],
    ids=["chunk", "interleave", "mm-rope", "ernie", "videorope"],
)
def test_how_far_the_kernel_of_time_falls(split: AxisSplit, falls_to: int) -> None:
    told = report(split, trained=Trained(length=200_000, source="told"))
    assert told.axes[0].falls_to == falls_to
    assert warned(told, "and rises at the next")[0] == "t"
    short = report(split, trained=Trained(length=falls_to + 1, source="told"))  # the last distance is still lower
    assert short.axes[0].falls_to is None
    assert "t" not in warned(short, "and rises at the next")


def test_the_first_rise_is_that_of_a_slow_search() -> None:
    told = report(INTERLEAVE, 5e6)
    for number, axis in enumerate(told.axes):
        heights = [kernel(INTERLEAVE, 5e6, number, distance) for distance in range(30)]
        assert axis.falls_to == next(d for d, (near, far) in enumerate(pairwise(heights)) if far > near)


@pytest.mark.parametrize("reach", [44, 43])
def test_cells_that_look_like_one(reach: int) -> None:
    # One pair of wavelength 2 pi: 7 turns are 43.98 positions, and cos(44) is 0.99984; 6 are 37.7, cos(38) = 0.955.
    told = report(AxisSplit((2, 1, 1), "by-hand", (1, 2, 0, 0)), grid=(reach + 1, 30))
    _, h, _ = told.axes
    assert (h.falls_to, h.looks_same) == (3, 44 if reach == 44 else None)
    assert warned(told, "cells 44 apart look like one cell") == (["h"] if reach == 44 else [])
    assert ("h" in warned(told, "falls up to distance 3")) == (reach != 44)


def test_a_return_far_out_is_found_in_a_later_stretch_of_the_search() -> None:
    slow = 40_000 / (2 * math.pi)  # one pair with the wavelength 40 000
    told = report(AxisSplit((1, 1, 1), "by-hand", (1, 2, 0)), slow**1.5, trained=Trained(length=45_000, source="told"))
    t = told.axes[0]
    assert t.longest == pytest.approx(40_000)
    assert t.falls_to == pytest.approx(20_000, abs=1)
    first = next(d for d in range(30_000, 41_000) if 1 - math.cos(2 * math.pi * d / 40_000) < 1e-3)
    assert t.looks_same == pytest.approx(first, abs=1)


def test_what_is_not_known_is_not_searched() -> None:
    told = frequency_report(rotary(INTERLEAVE))
    assert [(axis.searched, axis.falls_to, axis.turned, axis.unseen) for axis in told.axes] == [(None,) * 4] * 3
    assert told.warnings == ()
    one = report(INTERLEAVE, grid=(1, 32))
    assert [axis.falls_to for axis in one.axes] == [4, None, 6]


def test_rows_and_columns_have_a_grid_whatever_they_are_called() -> None:
    told = frequency_report(
        Rotary(AxisSplit((8, 8), "alternating"), Frequencies(1e4)), axes=("row", "col"), grid=(5, 9)
    )
    assert [axis.searched for axis in told.axes] == [4, 8]
    assert told.pattern == "RC*8"


# ---------------------------------------------------------------------------------------------------------- extensions


def test_what_yarn_does_to_a_chunked_split() -> None:
    told = report(extension=Yarn(4, 32768))
    t, h, w = (axis.stretch for axis in told.axes)
    assert t is not None
    assert h is not None
    assert w is not None
    assert (t.kept, t.partly, t.full, t.most) == (16, 0, 0, 1)
    assert (h.kept, h.partly, h.full) == (8, 16, 0)
    assert h.most == pytest.approx(4 / (16 / 17 + 4 / 17))  # pair 39: 16 of the 17 steps of the ramp from 23 to 40
    assert (w.kept, w.partly, w.full, w.least, w.most) == (0, 0, 24, pytest.approx(4), pytest.approx(4))
    assert [each.attention for each in (t, h, w)] == pytest.approx([0.1 * math.log(4) + 1] * 3)
    assert warned(told, "slows all pairs of w and none of t") != []


@pytest.mark.parametrize(
    ("split", "extension"),
    [
        (CHUNK, None),
        (INTERLEAVE, Yarn(4, 32768)),
        (CHUNK, Linear(4)),
        (CHUNK, (None, Yarn(4, 32768), Yarn(4, 32768))),
    ],
    ids=["none", "interleaved", "all alike", "per axis, as it was asked"],
)
def test_localisation_is_warned_of_only_where_one_extension_splits_the_axes(split: AxisSplit, extension) -> None:
    assert warned(report(split, extension=extension), "slows all pairs") == []


def test_ntk_slows_the_slowest_pair_alone_by_the_whole_factor() -> None:
    t, h, w = (axis.stretch for axis in report(extension=Ntk(4)).axes)
    assert t is not None
    assert h is not None
    assert w is not None
    assert [(each.kept, each.partly, each.full) for each in (t, h, w)] == [(1, 15, 0), (0, 24, 0), (0, 23, 1)]
    assert (h.least, h.most) == pytest.approx((4 ** (16 / 63), 4 ** (39 / 63)))


def test_frequencies_that_depend_on_the_length_are_those_at_the_target() -> None:
    dynamic = parse_extension("dynamic:2,32768")
    t, _, w = report(extension=dynamic, target=131072).axes
    assert t.stretch is not None
    assert w.stretch is not None
    assert w.stretch.most == pytest.approx(7)  # 2 * 4 - 1
    assert (t.stretch.kept, t.stretch.full, w.stretch.full) == (1, 0, 1)
    with pytest.raises(ValueError, match=r"target is not given, and the frequencies of this extension depend"):
        report(extension=dynamic)


def test_half_of_the_pairs_stand_still() -> None:
    stretches = [axis.stretch for axis in report(extension=parse_extension("proportional:0.5")).axes]
    assert [each and (each.kept, each.stopped) for each in stretches] == [(16, 0), (16, 8), (0, 24)]


# -------------------------------------------------------------------------------------------------------------- target


def test_pairs_that_never_turned_meet_unseen_angles() -> None:
    told = report(INTERLEAVE, target=65536)
    expected = [sum(length > 32768 for length in wavelengths(INTERLEAVE, 1e6, axis)) for axis in range(3)]
    assert [axis.unseen for axis in told.axes] == expected
    assert min(expected) > 0
    assert warned(told, "the base is left unadjusted") == ["t", "h", "w"]


@pytest.mark.parametrize(
    ("extension", "axes"),
    [(Yarn(4, 32768), []), (Linear(4), []), (Yarn(2, 32768), ["w"]), (Ntk(4), ["w"]), (Ntk(9), [])],
    ids=str,
)
def test_an_extension_may_leave_angles_unseen(extension: Extension, axes: list[str]) -> None:
    told = report(extension=extension, target=131072)
    assert warned(told, "even with the extension") == axes
    assert warned(told, "the base is left unadjusted") == []


def test_a_target_within_the_trained_length_meets_nothing_new() -> None:
    told = report(target=32768)
    assert [axis.unseen for axis in told.axes] == [0, 0, 0]
    assert warned(told, "never turned") == []


@pytest.mark.parametrize(
    ("name", "factor", "target", "warns"),
    [
        ("qwen3-vl", 4, None, True),
        ("qwen3-vl", 3, None, False),
        ("qwen3-vl", 4, 1_000_000, False),  # the target is in positions: the factor is no guess
        ("qwen2.5-vl", 4, None, False),
    ],
)
def test_the_card_of_qwen3_vl_wants_a_smaller_factor(name: str, factor: int, target: int | None, warns: bool) -> None:
    plain, trained = mrope.family(name).rotary(), TRAINED[name]
    extended = replace(plain, frequencies=Frequencies(plain.frequencies.base, Yarn(factor, trained.length)))
    told = frequency_report(extended, trained=trained, target=target)
    assert bool(warned(told, "a smaller one will do")) == warns


# -------------------------------------------------------------------------------------------------------------- advice


def advised(target: int, split: AxisSplit = CHUNK, trained: int = 32768) -> Advice:
    return advise(rotary(split), Trained(length=trained, source="told"), target, grid=(24, 32))


def test_an_ntk_is_advised_on_as_the_base_that_it_is() -> None:
    told = advise(rotary(extension=Ntk(8)), TOLD, 131072, grid=(24, 32))
    same = advise(rotary(base=1e6 * 8 ** (128 / 126)), TOLD, 131072, grid=(24, 32))
    assert told.extend == same.extend == "yarn:4,32768"
    assert told.report.base == pytest.approx(1e6 * 8 ** (128 / 126))
    assert (told.left, told.report.axes) == (same.left, same.report.axes)
    assert (told.reasons[1:], told.reasons[0][:23]) == (same.reasons, "its own Ntk(factor=8) i")


def test_within_the_trained_length_nothing_is_extended() -> None:
    told = advised(32768)
    assert told.extend is None
    assert len(told.reasons) == 1
    assert told.report.axes[2].stretch is None


def test_up_to_twice_the_length_it_is_ntk_with_the_least_factor_that_suffices() -> None:
    # The first pair that never turned in 32768 positions is pair 40: f ** (40 / 63) = 2, and f = 2.9798.
    told = advised(65536)
    assert told.extend == "ntk:2.98"
    assert [axis.unseen for axis in told.report.axes] == [0, 0, 0]
    assert any("2 would leave all but the slowest" in line for line in told.reasons)
    less = report(extension=Ntk(2.97), target=65536)
    assert [axis.unseen for axis in less.axes] == [0, 0, 1]


def test_where_every_pair_turned_ntk_takes_the_quotient_itself() -> None:
    told = advise(rotary(base=1e4), Trained(length=100_000, source="told"), 150_000)
    assert told.extend == "ntk:1.5"
    assert not any("least factor" in line for line in told.reasons)


def test_beyond_twice_the_length_it_is_yarn() -> None:
    told = advised(65537)
    assert told.extend == "yarn:2.01,32768"
    assert any("YaRN, fine-tuned" in line for line in told.reasons)
    assert [axis.unseen for axis in told.report.axes] == [0, 0, 0]
    assert not any("so far out" in line for line in told.reasons)


@pytest.mark.parametrize("target", [2_000_000, 10_000_000])
def test_millions_of_positions_tell_what_is_left_of_each_axis(target: int) -> None:
    told = advised(target)
    # 1 - cos(theta) > 2 ** -9 takes theta > 0.06251, pairs 0 to 12 of 64 at 1e6; > 2 ** -25 takes 2 ** -12, to 38.
    t, h, w = told.left
    assert (t.bf16, h.bf16, w.bf16) == (13, 0, 0)
    assert (t.float32, w.float32) == (16, 0)
    plain = advise(rotary(), Trained(length=target, source="told"), target)
    assert [axis.float32 for axis in plain.left] == [16, 23, 0]
    assert w.longest == pytest.approx(wavelengths(CHUNK, 1e6, 2)[-1] * target / 32768, rel=1e-3)
    assert sum(line.startswith(("t: ", "h: ", "w: ")) for line in told.reasons) == 3
    assert any("so far out training is needed" in line for line in told.reasons)
    assert any('angles="exact"' in line for line in told.reasons)


def test_the_error_of_float32_angles_is_measured() -> None:
    # At a million positions float32 angles are some 6e-2 off, at 10 thousand some 5e-4 (base 1e6).
    assert advised(1_000_000).left[0].error == pytest.approx(6.2e-2, rel=0.1)
    near = advised(10_000, trained=9_000)
    assert near.left[0].error == pytest.approx(5e-4, rel=0.5)
    assert not any('angles="exact"' in line for line in near.reasons)
    theta = torch.tensor(1.0) / torch.tensor(1e6) ** (torch.arange(0, 128, 2, dtype=torch.float32) / 128)
    exact = [1e6 ** (-j / 64) for j in range(64)]
    slow = 0.0
    for position in range(10_000 - 1024, 10_000):
        for j in range(16):
            angle = float(theta[j] * position)
            slow = max(slow, abs(math.cos(angle) - math.cos(exact[j] * position)))
            slow = max(slow, abs(math.sin(angle) - math.sin(exact[j] * position)))
    assert advise(rotary(), Trained(length=10_000, source="told"), 10_000).left[0].error == pytest.approx(
        slow, rel=0.05
    )


# ------------------------------------------------------------------------------------------------------------ refusals


def test_what_cannot_be_reported_is_refused() -> None:
    with pytest.raises(ValueError, match=r"axes are t, h; the split has 3"):
        frequency_report(rotary(), axes=("t", "h"))
    with pytest.raises(ValueError, match=r"target is 9, but trained is not given"):
        frequency_report(rotary(), target=9)
    with pytest.raises(ValueError, match=r"target is 0; expected at least 1"):
        report(target=0)
    with pytest.raises(ValueError, match=r"width of grid is 0"):
        report(grid=(4, 0))
    with pytest.raises(ValueError, match=r"trained is 0; expected at least 1"):
        Trained(length=0, source="told")
    with pytest.raises(ValueError, match=r"trained is 1000000000000000; expected at most"):
        Trained(length=10**15, source="told")
    for extension in (Linear(2), (Ntk(2), None, None)):
        with pytest.raises(ValueError, match=r"rotary has an extension, .*expected none, or one Ntk for all axes"):
            advise(rotary(extension=extension), TOLD, 65536)


def test_a_plot_of_the_decay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plot_decay(rotary(), tmp_path / "decay.png")
    assert (tmp_path / "decay.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"expected \.png, \.svg or \.pdf"):
        plot_decay(rotary(), tmp_path / "decay.gif")
    with pytest.raises(ValueError, match=r"axes are t; the split has 3"):
        plot_decay(rotary(), tmp_path / "decay.svg", axes=("t",))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"mrope\[plot\]"):
        plot_decay(rotary(), tmp_path / "decay.svg")
    assert [file.name for file in tmp_path.iterdir()] == ["decay.png"]
