"""Glyph grids: the key, the questions and the picture agree, and training never shows what is held out."""

from __future__ import annotations

import numpy as np
import pytest

from mrope.data import HELD_OUT_PAIRS, RELATIONS, draw_grid, fonts, questions, sample_key

KEY = np.array([[0, 1, 2], [3, 4, 5]])


def test_questions_of_a_small_key_by_hand():
    cell, relation, answer = questions(KEY)
    asked = {
        (list(RELATIONS)[r], c): a for c, r, a in zip(cell.tolist(), relation.tolist(), answer.tolist(), strict=True)
    }
    assert {cell: asked.pop(("in", cell)) for cell in range(6)} == {cell: cell for cell in range(6)}
    assert asked == {
        ("right", 0): 1,
        ("right", 1): 2,
        ("right", 3): 4,
        ("right", 4): 5,
        ("left", 1): 0,
        ("left", 2): 1,
        ("left", 4): 3,
        ("left", 5): 4,
        ("above", 3): 0,
        ("above", 4): 1,
        ("above", 5): 2,
        ("below", 0): 3,
        ("below", 1): 4,
        ("below", 2): 5,
    }


def test_a_tenth_of_the_pairs_is_held_out_and_never_drawn_for_training():
    assert 0.09 < HELD_OUT_PAIRS.mean() < 0.11
    rng = np.random.default_rng(0)
    keys = [sample_key(5, 7, rng, pairs="train") for _ in range(200)]
    assert not any(HELD_OUT_PAIRS[k[:, :-1], k[:, 1:]].any() or HELD_OUT_PAIRS[k[:-1], k[1:]].any() for k in keys)
    free = [sample_key(5, 7, rng) for _ in range(200)]
    assert any(HELD_OUT_PAIRS[key[:, :-1], key[:, 1:]].any() for key in free)


@pytest.mark.parametrize("distort", [False, True], ids=["plain", "distorted"])
def test_each_glyph_is_drawn_in_its_own_cell(distort):
    # Two pictures from one seed differ in one glyph: only the pixels around that cell may differ.
    other = KEY.copy()
    other[1, 2] = 9
    one, two = (draw_grid(key, fonts("train"), np.random.default_rng(7), distort=distort) for key in (KEY, other))
    height, width = one.picture.height, one.picture.width
    assert abs(height - 64) <= 12
    assert abs(width - 96) <= 12
    changed = np.argwhere((np.asarray(one.picture) != np.asarray(two.picture)).any(-1))
    assert len(changed) > 20
    centre_row, centre_col = 1.5 * height / 2, 2.5 * width / 3
    assert (abs(changed - (centre_row, centre_col)) < 20).all()


def test_the_same_seed_draws_the_same_picture_and_another_does_not():
    pictures = [np.asarray(draw_grid(KEY, fonts("train"), np.random.default_rng(seed)).picture) for seed in (3, 3, 4)]
    assert np.array_equal(pictures[0], pictures[1])
    assert not np.array_equal(pictures[0], pictures[2])


def test_the_key_reads_as_lines_of_glyphs():
    assert draw_grid(KEY, fonts("train"), np.random.default_rng(0)).text() == "ABC\nDEF"


def test_an_unknown_choice_of_pairs_is_refused():
    with pytest.raises(ValueError, match="pairs is 'some'; expected 'all' or 'train'"):
        sample_key(2, 2, np.random.default_rng(0), pairs="some")
