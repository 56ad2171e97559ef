"""The split of rotary pairs over axes: every allocation that is published, and the refusal of those that do not fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrope import AxisSplit


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((16, 24, 24), [0] * 16 + [1] * 24 + [2] * 24),  # Qwen2-VL, Qwen2.5-VL
        ((8, 12, 12), [0] * 8 + [1] * 12 + [2] * 12),
        ((16, 16, 16, 16), [0] * 16 + [1] * 16 + [2] * 16 + [3] * 16),  # Hunyuan: four axes
        ((5,), [0] * 5),
    ],
)
def test_chunked_gives_each_axis_a_run(counts: tuple[int, ...], expected: list[int]) -> None:
    assert AxisSplit(counts).axis.tolist() == expected


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((24, 20, 20), [0, 1, 2] * 20 + [0] * 4),  # Qwen3-VL
        ((11, 11, 10), [0, 1, 2] * 10 + [0, 1]),  # Qwen3.5
        ((6, 5, 4), [0, 1, 2] * 4 + [0, 1, 0]),
        ((5, 1, 2), [0, 1, 2, 0, 0, 2, 0, 0]),
    ],
)
def test_interleaved_deals_until_h_and_w_have_theirs(counts: tuple[int, ...], expected: list[int]) -> None:
    assert AxisSplit(counts, "interleaved").axis.tolist() == expected


@pytest.mark.parametrize(
    ("counts", "axes", "expected"),
    [
        ((20, 22, 22), "THW", "HW" * 22 + "T" * 20),  # Ernie 4.5 VL
        ((16, 24, 24), "THW", "HW" * 24 + "T" * 16),  # VideoRoPE
        ((16, 16), "HW", "HW" * 16),  # NeoMME: row, column
        ((1, 1, 1), "THW", "HWT"),
    ],
)
def test_alternating_gives_the_last_two_axes_turns(counts: tuple[int, ...], axes: str, expected: str) -> None:
    split = AxisSplit(counts, "alternating")
    assert "".join(axes[number] for number in split.axis) == expected
    assert split.axis.bincount().tolist() == list(counts)


@pytest.mark.parametrize(
    ("counts", "why"),
    [
        ((24, 20, 22), r"\(24, 20, 22\) does not fit alternating: .* need as many pairs each, not 20 and 22"),
        ((22, 22, 20), "not 22 and 20"),  # Ernie's own order: h, w, t
        ((3, 4), "not 3 and 4"),
        ((64,), r"\(64,\) has 1 axes; alternating takes 3: t, h, w; or the last 2"),
        ((16, 16, 16, 16), "has 4 axes; alternating takes 3"),
    ],
)
def test_what_alternating_cannot_deliver_is_refused(counts: tuple[int, ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        AxisSplit(counts, "alternating")


@given(st.tuples(*[st.integers(1, 40)] * 3), st.sampled_from(["chunked", "interleaved"]))
def test_every_axis_gets_exactly_what_was_asked_or_it_is_refused(counts: tuple[int, int, int], allocation: str) -> None:
    fits = allocation == "chunked" or (counts[1] <= (sum(counts) + 1) // 3 and counts[2] <= sum(counts) // 3)
    if not fits:
        with pytest.raises(ValueError, match="does not fit interleaved"):
            AxisSplit(counts, "interleaved")
        return
    split = AxisSplit(counts, allocation)  # pyright: ignore[reportArgumentType]
    assert tuple(split.axis.bincount(minlength=3).tolist()) == counts
    assert (split.pairs, split.rotary_dim) == (sum(counts), 2 * sum(counts))


@pytest.mark.parametrize(
    ("counts", "why"),
    [
        ((16, 24, 24), r"\(16, 24, 24\) .* of 64 pairs h can get at most 21 and w at most 21, as in \(22, 21, 21\)"),
        ((8, 12, 12), r"of 32 pairs h can get at most 11 and w at most 10, as in \(11, 11, 10\)"),
        ((32, 32), r"\(32, 32\) has 2 axes; interleaved deals to 3"),
    ],
)
def test_what_interleaved_cannot_deliver_is_refused_with_what_fits(counts: tuple[int, ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        AxisSplit(counts, "interleaved")


def test_the_split_that_is_offered_fits() -> None:
    AxisSplit((22, 21, 21), "interleaved")
    AxisSplit((11, 11, 10), "interleaved")


@pytest.mark.parametrize(
    ("counts", "why"), [((), "empty"), ((8, 0, 8), "entry is 0; expected at least 1"), ((8, -4, 8), "entry is -4")]
)
def test_a_split_without_pairs_is_refused(counts: tuple[int, ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        AxisSplit(counts)


def test_a_head_that_the_split_does_not_fill_is_refused() -> None:
    split = AxisSplit((8, 12, 12))
    split.check_fits(64)
    with pytest.raises(ValueError, match=r"mrope_section \(8, 12, 12\) sums to 32; rotary_dim 72 needs 36"):
        split.check_fits(72)
    with pytest.raises(ValueError, match="rotary_dim 63 is odd; a rotary pair takes two channels"):
        split.check_fits(63)
