"""The split of rotary pairs over axes: every allocation that is published, and the refusal of those that do not fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrope import AxisSplit
from mrope.axes import HeadSplit


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


# ------------------------------------------------------------------------------------------------- written-down orders

PATTERNS = {
    "Qwen2-VL": ("T*16 H*24 W*24", None, AxisSplit((16, 24, 24))),
    "Qwen3-VL": ("THW*20 T*4", None, AxisSplit((24, 20, 20), "interleaved")),
    "Qwen3.5": ("THW*10 TH", None, AxisSplit((11, 11, 10), "interleaved")),
    "HY-V4-VL": ("THW*10 TT", None, AxisSplit((12, 10, 10), "interleaved")),
    "GLM-4V": ("T*8 H*12 W*12", None, AxisSplit((8, 12, 12))),
    "Ernie 4.5 VL": ("HW*22 T*20", None, AxisSplit((20, 22, 22), "alternating")),
    "VideoRoPE, HoPE": ("HW*24 T*16", None, AxisSplit((16, 24, 24), "alternating")),
    "RoPE-Tie": ("XY*32", "XY", AxisSplit((32, 32), "alternating")),
    "XD-RoPE": ("S*16 W*16 H*16 I*16", "SWHI", AxisSplit((16,) * 4)),
    "MM-RoPE": ("TTHWHWHW*8", None, AxisSplit((16, 24, 24), "by-hand", (0, 0, 1, 2, 1, 2, 1, 2) * 8)),
    "VRoPE": ("0123*16", None, AxisSplit((16,) * 4, "by-hand", (0, 1, 2, 3) * 16)),
    "C2RoPE": ("T*58 X*3 Y*3", "TXY", AxisSplit((58, 3, 3))),
    "1-D": ("T*64", None, AxisSplit((64,))),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_every_published_allocation_can_be_spelled(name: str) -> None:
    pattern, axes, expected = PATTERNS[name]
    split = AxisSplit.parse(pattern, axes)
    assert split == expected
    assert split.pairs in (64, 32)
    letters = axes or ("0123" if split.axes == 4 else "THW")
    words = (word.partition("*") for word in pattern.split())
    assert "".join(letters[axis] for axis in split.axis) == "".join(word * int(count or 1) for word, _, count in words)
    assert AxisSplit.parse(split.pattern(axes), axes) == split


@given(st.lists(st.integers(0, 3), min_size=1, max_size=70))
def test_a_pattern_is_read_back_as_it_was_written(order: list[int]) -> None:
    used = sorted(set(order))
    split = AxisSplit.by_hand([used.index(axis) for axis in order])
    assert split.axis.tolist() == [used.index(axis) for axis in order]
    assert split.axis.bincount().tolist() == list(split.counts)
    assert AxisSplit.parse(split.pattern("ABCD"), "ABCD"[: split.axes]) == split


@given(st.lists(st.floats(0.05, 20), min_size=1, max_size=5), st.integers(5, 200))
def test_a_ratio_gives_whole_counts_that_add_up(ratio: list[float], pairs: int) -> None:
    counts = AxisSplit.by_ratio(ratio, pairs).counts
    exact = [share * pairs / sum(ratio) for share in ratio]
    assert sum(counts) == pairs
    assert min(counts) >= 1
    if min(exact) >= 1:
        assert all(abs(count - share) < 1 for count, share in zip(counts, exact, strict=True))


@pytest.mark.parametrize(
    ("ratio", "pairs", "counts"), [((2, 3, 3), 64, (16, 24, 24)), ((1, 1), 9, (5, 4)), ((100, 1, 1), 8, (6, 1, 1))]
)
def test_ratios_worked_by_hand(ratio: tuple[int, ...], pairs: int, counts: tuple[int, ...]) -> None:
    assert AxisSplit.by_ratio(ratio, pairs).counts == counts


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: AxisSplit.parse("THW*20 T*x"), r"has 'T\*x'; expected letters and a count, as in 'THW\*20 T\*4'"),
        (lambda: AxisSplit.parse(""), "pattern is empty"),
        (lambda: AxisSplit.parse("THX*3"), r"does not go with the axes 'TH' \(X\); .* name them, as in axes='THX'"),
        (lambda: AxisSplit.parse("TH*3", "THW"), r"does not go with the axes 'THW' \(W\)"),
        (lambda: AxisSplit.parse("TH*0 W"), r"has 'TH\*0'"),
        (lambda: AxisSplit.by_hand([]), "order is empty"),
        (lambda: AxisSplit.by_hand([0, 2]), r"order gives \(1, 0, 1\) pairs to axes 0 to 2; expected at least 1 each"),
        (lambda: AxisSplit((2, 1), "by-hand", (0, 1, 1)), r"\(2, 1\) by-hand, but order gives \(1, 2\)"),
        (lambda: AxisSplit((2, 1), "chunked", (0, 0, 1)), "it belongs to by-hand alone"),
        (lambda: AxisSplit.by_ratio((1, 1, 1), 2), "pairs is 2 for a ratio of 3 axes"),
        (lambda: AxisSplit.by_ratio((1, -1), 8), "ratio entry is -1; expected a finite number above 0"),
        (lambda: AxisSplit((24, 20, 22), "alternating"), r"not 20 and 22, as in \(24, 21, 21\)"),
        (lambda: AxisSplit((24, 20, 21), "alternating"), r"not 20 and 21, as in \(25, 20, 20\)"),
        (lambda: AxisSplit((16, 24, 24)).check_fits(64), r"sums to 64; rotary_dim 64 needs 32, as in \(8, 12, 12\)"),
        (lambda: AxisSplit((4, 30, 2), "interleaved"), r"as in \(22, 12, 2\)"),
    ],
)
def test_what_does_not_add_up_is_refused_with_what_does(make, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make()


# --------------------------------------------------------------------------------------------------------------- heads


def test_a_head_has_one_axis_in_mhrope() -> None:
    split = HeadSplit((2, 3, 3), pairs=64)
    assert split.axis.shape == (8, 64)
    assert split.axis[:, 0].tolist() == [0, 0, 1, 1, 1, 2, 2, 2]
    assert (split.axis == split.axis[:, :1]).all()
    assert HeadSplit((1, 1, 1), pairs=2, heads=4).axis.tolist() == [[0, 0], [1, 1], [2, 2], [-1, -1]]
    with pytest.raises(ValueError, match=r"counts \(2, 3, 3\) take 8 heads of 4"):
        HeadSplit((2, 3, 3), pairs=64, heads=4)
