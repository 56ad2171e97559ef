"""Which pixels a token sees, which tokens see a region, and pieces cut out of the original."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pictures import noise

from mrope import family, family_names
from mrope.vision import (
    Plan,
    crop,
    patch_regions,
    patchify,
    region,
    token_frames,
    token_grids,
    token_map,
    token_regions,
    tokens_in,
)
from mrope.vision import plan as plan_of

QWEN2, QWEN3, MINICPM = family("qwen2-vl"), family("qwen3-vl"), family("minicpm-v4.7")


def tiled() -> Plan:
    return plan_of((9, 4096), QWEN2, max_tokens=74, conflict="tile")


def slow_regions(plan: Plan) -> list[list[float]]:
    """One token after the other, in the order of the prompt."""
    regions = []
    for part in plan.parts:
        t, h, w = part.grid
        for _ in range(t // plan.temporal_merge):
            for row in range(h // plan.merge):
                for col in range(w // plan.merge):
                    box = []
                    for col_, row_ in ((col, row), (col + 1, row + 1)):
                        x = part.corner[1] + min(col_ * plan.factor, part.window[1])
                        y = part.corner[0] + min(row_ * plan.factor, part.window[0])
                        box += [x / part.resized[1] * plan.original[1], y / part.resized[0] * plan.original[0]]
                    regions.append(box)
    return regions


@pytest.mark.parametrize(
    "plan",
    [
        *(family(name).plan((481, 903)) for name in family_names()),
        *(family(name).plan_video((5, 97, 181)) for name in ("qwen2.5-vl", "ernie4.5-vl", "minicpm-v4.7")),
        tiled(),
        plan_of((70, 5600), QWEN2, max_tokens=60, conflict="pad"),
    ],
    ids=lambda plan: f"{plan.original}x{len(plan.parts)}-{plan.patch}-{plan.merge}-{plan.frames}",
)
def test_regions_of_tokens(plan: Plan) -> None:
    regions = token_regions(plan)
    assert len(regions) == plan.tokens
    np.testing.assert_allclose(regions, slow_regions(plan), rtol=1e-12)
    np.testing.assert_array_equal(region(plan, plan.tokens - 1), regions[-1])
    height, width = plan.original
    assert regions.min() >= 0
    assert regions.max(axis=0)[2:].tolist() == pytest.approx([width, height])


@pytest.mark.parametrize("name", [name for name in family_names() if family(name).resize != "two-sided"])
def test_patches_hold_the_pixels_of_their_regions(name: str) -> None:
    record = family(name)
    side = record.factor
    height, width = side * 5, side * 7
    plan = record.plan((height, width))
    if plan.resized != plan.original:  # small pictures grow: take one that has its size
        height, width = plan.resized
        plan = replace(record.plan((height, width)))
    assert plan.resized == plan.original
    rows, cols = np.indices((height, width))
    picture = np.stack([rows // 256 * 16 + cols // 256, rows % 256, cols % 256], axis=-1).astype(np.uint8)
    values = patchify(picture, record, dtype="uint8").values
    frames = values.shape[1] // (3 * record.patch**2)
    last = "channels-last" in record.patch_order
    shape = (-1, record.patch, record.patch, 3, frames) if last else (-1, 3, frames, record.patch, record.patch)
    pixels = values.reshape(shape).numpy().astype(int)
    pixels = pixels[..., 0] if last else np.moveaxis(pixels[:, :, 0], 1, -1)
    down = pixels[..., 0] // 16 * 256 + pixels[..., 1]
    across = pixels[..., 0] % 16 * 256 + pixels[..., 2]
    found = np.stack([across.min((1, 2)), down.min((1, 2)), across.max((1, 2)) + 1, down.max((1, 2)) + 1], axis=1)
    np.testing.assert_allclose(patch_regions(plan, order=record.patch_order), found, atol=1e-9)


def test_a_token_of_padding_sees_nothing() -> None:
    plan = family("neomme").plan((40, 70))  # a canvas of 64 x 96
    assert token_regions(plan).tolist() == [
        [0, 0, 32, 32], [32, 0, 64, 32], [64, 0, 70, 32], [0, 32, 32, 40], [32, 32, 64, 40], [64, 32, 70, 40]
    ]  # fmt: skip
    assert tokens_in(plan, [66, 0, 90, 64]).tolist() == [False, False, True, False, False, True]


def sampled(plan: Plan, corners: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of which a polygon covers that share, and how sure that is, by 40 x 40 points in each."""
    from matplotlib.path import Path

    steps = (np.arange(40) + 0.5) / 40
    covered = []
    for left, top, right, bottom in token_regions(plan):
        x, y = np.meshgrid(left + steps * (right - left), top + steps * (bottom - top))
        covered.append(Path(corners).contains_points(np.stack([x.ravel(), y.ravel()], 1)).mean())
    return np.array(covered) >= share, np.abs(np.array(covered) - share) > 0.05


@hypothesis_settings(deadline=None, max_examples=30)
@given(
    shifts=st.lists(st.floats(0, 0.9), min_size=4, max_size=7),
    reach=st.lists(st.floats(20, 300), min_size=7, max_size=7),
    share=st.sampled_from([0.2, 0.5, 0.8]),
    clockwise=st.booleans(),
)
def test_tokens_in_a_polygon(shifts: list[float], reach: list[float], share: float, clockwise: bool) -> None:
    # Less than half a turn from one corner to the next around (200, 90): no edges cross.
    angles = [(number + shift) * 2 * np.pi / len(shifts) for number, shift in enumerate(shifts)]
    angles = sorted(angles, reverse=clockwise)
    corners = np.array([[200 + r * np.cos(a), 90 + r * np.sin(a)] for a, r in zip(angles, reach, strict=False)])
    plan = QWEN2.plan((196, 420))
    x, y = corners.T
    if abs(x @ np.roll(y, 1) - y @ np.roll(x, 1)) < 1:
        return
    expected, sure = sampled(plan, corners, share)
    assert (tokens_in(plan, corners, share=share) == expected)[sure].all()


CROSSING = {
    "bow-tie": [[0, 0], [10, 20], [10, 0], [0, 20]],
    "bow-tie with more on one side": [[10, 10], [200, 150], [200, 10], [60, 150]],
    "through a corner of its own": [[0, 0], [50, 50], [100, 100], [100, 0], [50, 50], [0, 100]],
    "star": [[100, 0], [160, 180], [0, 70], [200, 70], [40, 180]],
    "twice around": [[0, 0], [100, 0], [100, 90], [0, 90], [0, 0], [100, 0], [100, 90], [0, 90]],
    "around a hole in the same direction": [
        [0, 0], [140, 0], [140, 140], [0, 140], [0, 0], [28, 28], [112, 28], [112, 112], [28, 112], [28, 28]
    ],
}  # fmt: skip


@pytest.mark.parametrize("corners", CROSSING.values(), ids=CROSSING)
def test_polygons_that_cross_themselves_are_refused(corners: list[list[int]]) -> None:
    plan = QWEN2.plan((196, 420))
    for turned in (corners, corners[::-1], corners[2:] + corners[:2], [[down, across] for across, down in corners]):
        with pytest.raises(ValueError, match="crosses itself; expected a polygon that runs once around what it covers"):
            tokens_in(plan, turned)


def test_polygons_may_touch_themselves() -> None:
    plan = QWEN2.plan((196, 420))  # 7 x 15 tokens of 28 pixels
    ring = [[0, 0], [140, 0], [140, 112], [0, 112], [0, 0], [28, 28], [28, 84], [112, 84], [112, 28], [28, 28]]
    expected = np.zeros((7, 15), dtype=bool)
    expected[:4, :5] = True
    expected[1:3, 1:4] = False  # the hole
    for corners in (ring, ring[::-1], tuple(map(tuple, ring))):
        np.testing.assert_array_equal(token_grids(plan, tokens_in(plan, corners))[0][0], expected)
    twins = [[0, 0], [28, 0], [28, 28], [84, 28], [84, 56], [28, 56], [28, 28], [0, 28]]  # corner to corner
    expected = np.zeros((7, 15), dtype=bool)
    expected[0, 0], expected[1, 1:3] = True, True
    np.testing.assert_array_equal(token_grids(plan, tokens_in(plan, twins))[0][0], expected)


@hypothesis_settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 190)), min_size=3, max_size=6, unique=True))
def test_polygons_are_refused_where_two_edges_cross(corners: list[tuple[int, int]]) -> None:
    def side(a: Any, b: Any, c: Any) -> int:
        return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])

    triples = [(a, b, c) for a in corners for b in corners for c in corners if len({a, b, c}) == 3]
    if any(side(*triple) == 0 for triple in triples):
        return  # touching, or no area
    edges = list(zip(corners, corners[1:] + corners[:1], strict=True))
    crossing = any(
        side(*one, other[0]) * side(*one, other[1]) < 0 and side(*other, one[0]) * side(*other, one[1]) < 0
        for one in edges
        for other in edges
    )
    plan = QWEN2.plan((196, 420))
    if not crossing:
        assert tokens_in(plan, corners).any()
        return
    with pytest.raises(ValueError, match="crosses itself"):
        tokens_in(plan, corners)


def test_tokens_in_a_box() -> None:
    plan = QWEN2.plan((196, 420))  # 7 x 15 tokens of 28 pixels
    grid = token_grids(plan, tokens_in(plan, torch.tensor([28.0, 56.0, 84.0, 140.0])))[0][0]
    expected = np.zeros((7, 15), dtype=bool)
    expected[2:5, 1:3] = True  # rows 56..140, columns 28..84: borders that touch are no overlap
    np.testing.assert_array_equal(grid, expected)
    box = [28 + 14, 56, 84, 57]
    assert tokens_in(plan, box).sum() == 2
    assert tokens_in(plan, box, share=1 / 28).nonzero()[0].tolist() == [2 * 15 + 2]
    assert tokens_in(plan, [0, 0, 420, 196], share=1).all()


def test_every_token_lies_in_its_own_region() -> None:
    for plan in (QWEN3.plan((333, 517)), tiled(), MINICPM.plan((900, 1300))):
        for token in (0, plan.tokens // 3, plan.tokens - 1):
            assert tokens_in(plan, region(plan, token), share=1)[token]


def test_slices_and_thumbnail_both_see_a_region() -> None:
    plan = MINICPM.plan((900, 1300))
    inside = tokens_in(plan, [600, 400, 700, 500])
    first = plan.parts[0].grid[1] * plan.parts[0].grid[2] // plan.merge**2
    assert inside[:first].any()
    assert inside[first:].sum() > inside[:first].sum()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([10, 0, 5, 5], "has no area"),
        ([0, 0, np.nan, 5], "has no area"),
        ([0, 0, 5], r"shape \(3,\)"),
        ([[0, 0], [5, 5]], r"shape \(2, 2\)"),
        ([[0, 0], [5, 5], [10, 10]], "has no area"),
        ([[0, 0], [5, np.inf], [10, 10]], "has no area"),
        ([[0, 0], [5, 9], [1, 2, 3, 4]], "expected a box"),
        (["a", "b", "c"], "a box or point is 'a'"),
        ((0, 0, None, 5), r"a box or point is \(0, 0, None, 5\)"),
    ],
)
def test_regions_without_area_are_refused(wrong: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        tokens_in(QWEN2.plan((196, 420)), wrong)
    with pytest.raises(ValueError, match="share is 2"):
        tokens_in(QWEN2.plan((196, 420)), [0, 0, 5, 5], share=2)


def test_frames_of_tokens() -> None:
    clip = QWEN2.plan_video((5, 56, 84), min_tokens=1)
    assert token_frames(clip, QWEN2)[:: clip.tokens // 3].tolist() == [[0, 1], [2, 3], [4, 4]]
    ernie = family("ernie4.5-vl")
    merged = ernie.plan_video((5, 56, 112))
    each = merged.tokens // 3
    assert token_frames(merged, ernie)[::each].tolist() == [[0, 1], [2, 3], [4, 4]]
    assert token_frames(merged, ernie)[each - 1].tolist() == [0, 1]
    pictures = MINICPM.plan_video((3, 56, 84))
    assert len(token_frames(pictures, MINICPM)) == pictures.tokens
    assert sorted({tuple(pair) for pair in token_frames(pictures, MINICPM).tolist()}) == [(0, 0), (1, 1), (2, 2)]
    assert (token_frames(QWEN2.plan((56, 84)), QWEN2) == 0).all()


def test_maps_of_tokens() -> None:
    plan = QWEN2.plan((480, 640))
    drawn = token_map(plan, torch.arange(plan.tokens).to(torch.float32))
    assert drawn.shape == (480, 640)
    regions = token_regions(plan)
    for row, col in ((0, 0), (479, 639), (100, 530), (311, 5)):
        left, top, right, bottom = regions[int(drawn[row, col])]
        assert left <= col + 0.5 <= right
        assert top <= row + 0.5 <= bottom
    tiles = tiled()
    assert (np.diff(token_map(tiles, np.arange(tiles.tokens))[4]) >= 0).all()
    one = token_map(tiles, np.arange(tiles.tokens), part=1)
    assert np.isnan(one[:, 0]).all()
    assert np.isfinite(one).any()
    clip = QWEN2.plan_video((4, 56, 84))
    steps = [token_map(clip, torch.arange(clip.tokens, dtype=torch.bfloat16), step=step)[0, 0] for step in (0, 1)]
    assert steps == [0, clip.tokens // 2]
    wrong: Any
    for wrong, message in (({"step": 2}, "step is 2"), ({"part": 1}, "part is 1; the picture has 1")):
        with pytest.raises(ValueError, match=message):
            token_map(clip, np.zeros(clip.tokens), **wrong)
    with pytest.raises(ValueError, match=f"3 values came for {clip.tokens} tokens"):
        token_map(clip, np.zeros(3))


def test_crops_have_the_original_pixels_and_come_back() -> None:
    picture = noise(300, 500)
    plan = plan_of(picture, QWEN3, max_tokens=90)
    cut = crop(picture, plan, [100, 200, 300, 500])
    np.testing.assert_array_equal(cut.pixels.permute(1, 2, 0), picture[60:150, 50:150])
    wide = crop(picture, plan, torch.tensor([100, 200, 300, 500]), margin=1)
    np.testing.assert_array_equal(wide.pixels.permute(1, 2, 0), picture[0:240, 0:250])
    assert cut.pixels.data_ptr() == picture[60:, 50:].__array_interface__["data"][0]  # a view, as its docstring says
    assert cut.from_whole(cut.to_whole(((1, 2, 3, 4), (5, 6)))) == [[1, 2, 3, 4], [5, 6]]
    assert crop(picture, plan, (100, 200, 300, 500)).corner == cut.corner
    again = QWEN3.plan(cut.pixels)
    assert cut.to_whole(again.decode_boxes([[0, 0, 1000, 1000], [500, 100, 600, 200]])) == [
        [50, 60, 150, 150],
        [100, 69, 110, 78],
    ]
    edge = crop(picture, plan, [900, 900, 1500, 1500])
    assert (edge.corner, tuple(edge.pixels.shape)) == ((270, 450), (3, 30, 50))
    for box, message in (([1100, 0, 1200, 5], "shows nothing"), ([5, 5, 5, 9], "no area"), ([1, 2], r"shape \(2,\)")):
        with pytest.raises(ValueError, match=message):
            crop(picture, plan, box)
    with pytest.raises(ValueError, match="margin is -1"):
        crop(picture, plan, [0, 0, 5, 5], margin=-1)
    with pytest.raises(ValueError, match="its plan says"):
        crop(noise(301, 500), plan, [0, 0, 5, 5])


def test_a_token_that_is_not_there() -> None:
    plan = QWEN2.plan((196, 420))
    with pytest.raises(ValueError, match=f"token is {plan.tokens}; the picture has {plan.tokens}"):
        region(plan, plan.tokens)
