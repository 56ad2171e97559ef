"""Drawings over pictures, by their pixels, and the example that draws a page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sources import ROOT

from mrope import family
from mrope.vision import draw, plan
from mrope.vision.places.draw import HEAT, INKS, TINT

QWEN2 = family("qwen2-vl")
LIGHT, DARK = 230, 20


def flat(height: int, width: int, value: int) -> np.ndarray:
    return np.full((height, width, 3), value, dtype=np.uint8)


@pytest.mark.parametrize("value", [LIGHT, DARK], ids=["light", "dark"])
def test_lines_stand_where_tokens_begin_on_light_and_dark_pages(value: int) -> None:
    picture = flat(140, 196, value)  # 5 x 7 tokens of 28 pixels
    drawn = np.asarray(draw(picture, QWEN2.plan(picture)), dtype=int)
    lines = np.zeros((140, 196), dtype=bool)
    lines[28::28], lines[:, 28::28] = True, True
    assert (drawn[~lines] == value).all()
    assert (np.abs(drawn[lines] - value) > 60).all()
    assert (picture == value).all()


def test_chosen_tokens_are_tinted_and_no_others() -> None:
    picture = flat(140, 196, LIGHT)
    planned = QWEN2.plan(picture)
    drawn = np.asarray(draw(picture, planned, grid="none", tokens=[2 * 7 + 4]), dtype=int)
    expected = picture.astype(int)
    expected[56:84, 112:140] = np.round(LIGHT * 0.6 + np.array(TINT) * 0.4)
    assert (np.abs(drawn - expected) <= 1).all()
    mask = torch.zeros(planned.tokens, dtype=torch.bool)
    mask[2 * 7 + 4] = True
    np.testing.assert_array_equal(np.asarray(draw(picture, planned, grid="none", tokens=mask)), drawn)


def test_boxes_and_labels() -> None:
    picture = flat(400, 600, LIGHT)
    planned = QWEN2.plan(picture)
    boxes = torch.tensor([[100.0, 80.0, 300.0, 200.0], [350.0, 250.0, 500.0, 390.0]])
    drawn = np.asarray(draw(picture, planned, grid="none", boxes=boxes))
    for (left, top, right, bottom), ink in zip(boxes.int().tolist(), INKS, strict=False):
        for row, col in ((top, left), (bottom, right), ((top + bottom) // 2, left), (top, (left + right) // 2)):
            assert tuple(drawn[row, col]) == ink
        assert (drawn[top + 4 : bottom - 4, left + 4 : right - 4] == LIGHT).all()
    assert (drawn[:76] == LIGHT).all()
    labelled = np.asarray(draw(picture, planned, grid="none", boxes=boxes, labels=["cat", "dog"]))
    plate = labelled[55:78, 100:150]
    assert (plate == INKS[0]).all(-1).sum() > 150
    letters = (plate != INKS[0]).any(-1) & (plate != LIGHT).any(-1)
    assert letters.sum() > 20
    at_the_top = np.asarray(draw(picture, planned, grid="none", boxes=[[20, 0, 200, 90]], labels=["cat"]))
    inside = at_the_top[3:20, 24:40]
    assert (inside == INKS[0]).all(-1).any()
    assert ((inside != INKS[0]).any(-1) & (inside != LIGHT).any(-1)).any()


def test_points_are_dots_and_polygons_are_drawn_by_their_border() -> None:
    picture = flat(400, 600, LIGHT)
    planned = QWEN2.plan(picture)
    corners = [[300, 100], [560, 130], [420, 380]]

    def drawn(**shapes: Any) -> np.ndarray:
        return np.asarray(draw(picture, planned, grid="none", **shapes))

    got = drawn(boxes=[20, 30, 90, 200], points=torch.tensor([[150, 60], [200, 350]]), polygons=[corners])
    for (row, col), ink in (((100, 20), 0), ((60, 150), 1), ((350, 200), 2), ((115, 430), 3), ((240, 360), 3)):
        assert tuple(got[row, col]) == INKS[ink]
    rows, cols = np.indices((400, 600))
    away = np.minimum(np.hypot(rows - 60, cols - 150), np.hypot(rows - 350, cols - 200))
    dots = (got == INKS[1]).all(-1) | (got == INKS[2]).all(-1)
    assert dots[away < 3.5].all()
    assert not dots[away > 5].any()
    assert (got[160:240, 410:440] == LIGHT).all()  # inside of the polygon
    for shapes in (
        {"points": ((150, 60), (200, 350)), "polygons": (tuple(map(tuple, corners)),)},
        {"points": [np.array([150, 60]), torch.tensor([200.0, 350.0], requires_grad=True)], "polygons": corners},
        {"points": np.array([[150, 60], [200, 350]]), "polygons": torch.tensor([corners])},
    ):
        np.testing.assert_array_equal(drawn(boxes=(20, 30, 90, 200), **shapes), got)
    ragged = drawn(polygons=[corners, [[9, 9], [9, 50], [80, 50], [80, 9]]])
    assert tuple(ragged[30, 9]) == INKS[1]
    assert (drawn(boxes=[], points=np.zeros((0, 2)), polygons=[], labels=[]) == LIGHT).all()
    labelled = drawn(boxes=[[20, 90, 90, 200]], points=[150, 60], polygons=corners, labels=["box", "dot", "area"])
    for (row, col), ink in (((80, 20), 0), ((50, 150), 1), ((90, 300), 2)):
        assert tuple(labelled[row, col]) == INKS[ink]
    at_the_top = drawn(points=[150, 1], labels=["dot"])
    assert tuple(at_the_top[1, 150]) == INKS[0] == tuple(at_the_top[8, 152])


def test_heat() -> None:
    picture = flat(140, 196, LIGHT)
    planned = QWEN2.plan(picture)
    values = np.zeros(planned.tokens)
    values[7 + 2] = 3.0
    drawn = np.asarray(draw(picture, planned, grid="none", heat=values), dtype=int)
    for (row, col), colour in (((29, 57), HEAT[2]), ((55, 83), HEAT[2]), ((57, 29), HEAT[0]), ((0, 0), HEAT[0])):
        assert np.abs(drawn[row, col] - (LIGHT + 0.55 * (np.array(colour) - LIGHT))).max() <= 1


def test_a_large_picture_is_drawn_small_and_at_the_right_places() -> None:
    picture = flat(1400, 2800, LIGHT)
    planned = QWEN2.plan(picture)
    drawn = draw(picture, planned, grid="none", boxes=np.array([[700, 280, 2100, 1120]]), max_side=560)
    assert drawn.size == (560, 280)
    assert [drawn.getpixel(at) for at in ((140, 56), (420, 224), (140, 100))] == [INKS[0]] * 3


def test_parts() -> None:
    picture = flat(9, 4096, LIGHT)
    planned = plan(picture, QWEN2, max_tokens=74, conflict="tile")
    drawn = np.asarray(draw(picture, planned, grid="parts", max_side=4096), dtype=int)
    (lines,) = (drawn[4, :, 0] < LIGHT - 60).nonzero()
    starts = [round(part.corner[1] * 4096 / part.resized[1]) for part in planned.parts[1:]]
    assert starts
    assert all(np.abs(lines - start).min() <= 1 for start in starts)
    assert len(lines) <= 4 * len(starts)


def test_what_does_not_fit_is_refused() -> None:
    picture = flat(140, 196, LIGHT)
    planned = QWEN2.plan(picture)
    options: Any
    for options, message in (
        ({"labels": ["cat"]}, "1 labels came for 0 boxes"),
        ({"boxes": [[1, 2, 3, 4]], "labels": ["cat", "dog"]}, "2 labels came for 1 boxes"),
        ({"boxes": [[9, 2, 3, 4]]}, r"boxes hold \[9.0, 2.0, 3.0, 4.0\]; expected left <= right"),
        ({"boxes": [[1, 9, 3, 4]]}, "top <= bottom"),
        ({"boxes": [[1, 2, np.nan, 4]]}, "leave out what is not finite"),
        ({"boxes": [[1, 2], [3, 4]]}, r"boxes hold \[1.0, 2.0\]; expected boxes \(n, 4\)"),
        ({"boxes": np.zeros((3, 3))}, r"shape \(3, 3\)"),
        ({"points": torch.zeros(5, 4)}, r"expected points \(n, 2\)"),
        ({"points": [[1, np.inf]]}, "leave out what is not finite"),
        ({"polygons": [[1, 2], [3, 4]]}, "three corners or more"),
        ({"polygons": [[[1, 2], [3, 4], [5, 6]], [1, 2]]}, "three corners or more"),
        ({"polygons": np.zeros((1, 3, 4))}, r"expected polygons \(corners, 2\)"),
        ({"tokens": [35]}, "tokens are .35.; the picture has 35"),
        ({"heat": np.zeros(3)}, "3 values came for 35 tokens"),
        ({"max_side": 0}, "max_side is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            draw(picture, planned, **options)
    with pytest.raises(TypeError, match="a box or point is 'a'"):
        draw(picture, planned, points=["a", "b"])
    with pytest.raises(ValueError, match="its plan says"):
        draw(flat(196, 140, LIGHT), planned)


def test_the_example_draws_a_page(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "find_the_way_back.py"), "--out", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "2145 tokens of 32 pixels a side" in run.stdout
    drawn = np.asarray(Image.open(tmp_path / "way_back.png").convert("RGB"), dtype=int)
    page = Image.open(ROOT / "data" / "assets" / "page.png").convert("RGB").resize((drawn.shape[1], drawn.shape[0]))
    scale = drawn.shape[0] / 1754
    # By hand, in shares of a page 1240 wide and 1754 high: the corners of two boxes; that of token 137, in row 3 and
    # column 20 of 55 x 39; a point; and a corner of a polygon.
    places = ((0.08, 0.072), (0.512, 0.488), (20 / 39, 3 / 55), (0.411, 0.946), (0.486, 0.799))
    for (x, y), ink in zip(places, INKS, strict=False):
        col, row = round(x * 1240 * scale), round(y * 1754 * scale)
        assert (drawn[row - 1 : row + 2, col - 1 : col + 2] == ink).all(-1).any()
    changed = np.abs(drawn - np.asarray(page, dtype=int)).max(-1)
    table = changed[round(0.5 * 1754 * scale) : round(0.6 * 1754 * scale), round(650 * scale) : round(1100 * scale)]
    assert np.median(table) > 40  # the tint
    line, half = (changed[round(y * 1754 * scale)] for y in (0.805, 0.825))  # of a paragraph of a line and a half
    inside, right_of_half = (
        slice(round(a * 1240 * scale), round(b * 1240 * scale)) for a, b in ((0.1, 0.32), (0.36, 0.47))
    )
    assert np.median(line[inside]) > 40 < np.median(line[right_of_half])
    assert np.median(half[inside]) > 40 > np.median(half[right_of_half])
    empty = changed[round(0.95 * 1754 * scale) :]
    assert 0.05 < (empty > 20).mean() < 0.2  # the grid alone: one line in about 29 pixels down and across


def test_tokens_are_whole_numbers_and_labels_words() -> None:
    picture = torch.zeros(3, 56, 84, dtype=torch.uint8)
    planned = plan(picture, family("qwen2-vl"))
    box = [[1, 2, 30, 40]]
    wrong: Any = {"tokens": [1.5]}, {"boxes": box, "labels": [1]}, {"boxes": box, "labels": "a"}
    for options in wrong:
        with pytest.raises(TypeError, match=r"tokens|labels"):
            draw(picture, planned, **options)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_heat_is_finite(value: float) -> None:
    picture = torch.zeros(3, 56, 84, dtype=torch.uint8)
    planned = plan(picture, family("qwen2-vl"))
    with pytest.raises(ValueError, match="heat holds NaN or infinity"):
        draw(picture, planned, heat=np.array([0.0, 1.0, value, 2.0, 3.0, 4.0]))
