"""Token grids and positions drawn over pictures: every line, frame and label where it belongs, in pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mrope.probes import Mark, Window, busiest, draw_questions, draw_token_grid, draw_tokens
from mrope.probes.overlay import INKS

FACTOR, ROWS, COLS = 28, 3, 5
GREY = 200


@pytest.fixture
def plain() -> torch.Tensor:
    return torch.full((3, ROWS * FACTOR, COLS * FACTOR), GREY, dtype=torch.uint8)


def places(first: int = 7) -> torch.Tensor:
    """(3, ROWS, COLS) positions of a picture that starts at `first`, by hand."""
    return torch.tensor(
        [[[first] * COLS] * ROWS, [[first + r] * COLS for r in range(ROWS)], [[*range(first, first + COLS)]] * ROWS]
    )


def drawn(drawing, background=(GREY,) * 3) -> np.ndarray:
    """(height, width) bool: which pixels are not the background."""
    return np.abs(np.asarray(drawing).astype(int) - background).max(-1) > 0


def test_lines_lie_on_the_first_pixels_of_every_token(plain):
    lines = drawn(draw_token_grid(plain, FACTOR))
    expected = np.zeros((84, 140), dtype=bool)
    expected[[28, 56], :] = True
    expected[:, [28, 56, 84, 112]] = True
    assert (lines == expected).all()


@pytest.mark.parametrize("grey", [20, 235])
def test_lines_can_be_seen_on_dark_and_on_light(grey):
    picture = torch.full((3, 56, 84), grey, dtype=torch.uint8)
    drawing = np.asarray(draw_token_grid(picture, FACTOR)).astype(int)
    assert np.abs(drawing[28] - grey).max(-1).min() > 40


def test_the_picture_itself_is_left_alone(plain):
    before = plain.clone()
    draw_token_grid(plain, FACTOR, window=Window(0, 1, 2, 2))
    assert torch.equal(plain, before)


def test_the_window_is_framed_from_outside(plain):
    frame = drawn(draw_token_grid(plain, FACTOR, window=Window(1, 2, 1, 2))) ^ drawn(draw_token_grid(plain, FACTOR))
    rows, cols = np.nonzero(frame)
    assert (rows.min(), rows.max()) == (28 - 4, 55 + 4)
    assert (cols.min(), cols.max()) == (56 - 4, 111 + 4)
    assert not frame[30:54, 58:84].any(), "the tokens inside are covered"


def test_each_token_carries_its_own_position(plain):
    window, side = Window(1, 2, 2, 3), 100
    drawing, labels = draw_tokens(plain, FACTOR, places(), window, side=side)
    assert drawing.size == (300, 200)
    assert [(label.row, label.col) for label in labels] == [(1, 2), (1, 3), (1, 4), (2, 2), (2, 3), (2, 4)]
    written = drawn(drawing)
    for label in labels:
        assert label.ids == (7, 7 + label.row, 7 + label.col)
        left, top, right, bottom = label.box
        assert (label.col - 2) * side <= left < right <= (label.col - 1) * side
        assert (label.row - 1) * side <= top < bottom <= label.row * side
        assert written[top + 6 : bottom - 6, left + 6 : right - 6].all(), "the label's plate is missing"
        written[top : bottom + 1, left : right + 1] = False
    written[[100], :] = False
    written[:, [100, 200]] = False
    assert not written.any(), "something is drawn beside lines and labels"


def test_the_ids_stand_in_the_order_and_colours_of_their_axes(plain):
    drawing, (label,) = draw_tokens(plain, FACTOR, places(), Window(1, 2, 1, 1), side=140)
    left, top, right, bottom = label.box
    plate = np.asarray(drawing)[top:bottom, left:right].astype(int)
    middles = [np.nonzero((np.abs(plate - ink) < 12).all(-1))[1].mean() for ink in INKS]
    assert middles == sorted(middles)


def test_swapped_axes_are_written_swapped(plain):
    _, labels = draw_tokens(plain, FACTOR, places()[[0, 2, 1]], Window(0, 0, 1, 3))
    assert [label.ids for label in labels] == [(7, 7, 7), (7, 8, 7), (7, 9, 7)]


def test_long_ids_still_fit_their_token(plain):
    _, labels = draw_tokens(plain, FACTOR, places(123_456), Window(0, 0, 1, 2), side=120)
    assert all(label.col * 120 <= label.box[0] and label.box[2] <= (label.col + 1) * 120 for label in labels)


def test_the_busiest_window_is_where_the_contrast_is(plain):
    plain[:, 28:56, 84:112] = torch.randint(0, 256, (3, 28, 28), dtype=torch.uint8)
    assert busiest(plain, FACTOR, 1, 1) == Window(1, 3, 1, 1)
    assert busiest(plain, FACTOR, 9, 9) == Window(0, 0, ROWS, COLS)


def test_a_question_frames_its_cell_and_points_at_the_neighbour(plain):
    side = 60
    lines = drawn(draw_questions(plain, FACTOR, [], side=side))
    marked = drawn(draw_questions(plain, FACTOR, [Mark(1, 3, (0, 1), True)], side=side)) ^ lines
    cells = marked.reshape(ROWS, side, COLS, side).max((1, 3))
    inside = marked[side + 4 : 2 * side - 4, 3 * side + 4 : 4 * side - 4]
    assert inside.any(), "neither number nor arrow"
    assert marked[side + 26 : side + 34, 4 * side + 4 : 4 * side + 16].any(), "the arrow does not reach the neighbour"
    assert not cells[0, 0]
    assert not cells[2, 0]
    assert not marked[: side - 2].any()
