"""How replies are read: each rule by replies that were written by hand, as models write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import mrope
from mrope.data import Sample
from mrope.probes.spatial.marking import edits, mark, overlap
from mrope.probes.spatial.reply import Reply

PICTURE = Image.new("RGB", (80, 60))


def sample(kind: Any, answer: str = "", **more: Any) -> Sample:
    return Sample(id="one", task="test", pictures=(PICTURE,), prompt=(0, "?"), kind=kind, answer=answer, **more)


@pytest.mark.parametrize(
    ("text", "outcome", "read"),
    [
        ("B", "right", "B"),
        ("b", "right", "B"),
        (" **B**.\n", "right", "B"),
        ('"B"', "right", "B"),
        ("The letter is B.", "right", "B"),
        ("A", "wrong", "A"),
        ("I see a B there", "right", "B"),  # an article is no letter A
        ("There is an A next to it, so the answer is B", "right", "B"),
        ("Answer: B", "right", "B"),
        ("answer: b", "right", "B"),
        ("A or B", "several", ""),
        ("It says Banana", "unread", ""),
        ("I cannot tell.", "unread", ""),
        ("", "empty", ""),
        (" \n ", "empty", ""),
        ("...", "unread", ""),
        ("A cat sits there, and I cannot read it.", "unread", ""),
        ("A letter B", "right", "B"),
        ("A is in that cell", "wrong", "A"),
        ("<think>it could be A or C</think>B", "right", "B"),
        ("<think>A</think>\nB", "right", "B"),
        ("it could be A or C</think>B", "right", "B"),
        ("<think>maybe A", "unread", ""),
        ("The right answer is not A", "unread", ""),
        ("\u7b54\u6848\u662fB", "right", "B"),
        ("Answer: B\nExplanation: A stands above it.", "right", "B"),
        ("\u00c9B", "unread", ""),
    ],
)
def test_letters(text: str, outcome: str, read: str) -> None:
    marked = mark(sample("choice", "B", choices=("A", "B", "C")), Reply(text))
    assert (marked.outcome, marked.read, marked.share) == (outcome, read, float(outcome == "right"))


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("Light Blue", "right"),
        ("It is light blue, I think.", "right"),
        ("blue", "wrong"),
        ("blue or light blue", "several"),
        ("bluebell", "unread"),
    ],
)
def test_words_inside_others(text: str, outcome: str) -> None:
    assert mark(sample("choice", "light blue", choices=("blue", "light blue")), Reply(text)).outcome == outcome


def test_scores_count_before_text() -> None:
    asked = sample("choice", "C", choices=("A", "B", "C"))
    assert mark(asked, Reply("A", scores={"A": -3.0, "B": -2.0, "C": -1.0})).outcome == "right"
    assert mark(asked, Reply(scores={"A": -1.0, "B": -2.0, "C": -1.5})).read == "A"
    assert mark(asked, Reply(scores={"A": -1.0, "B": -1.0, "C": -1.0})).outcome == "several"
    assert mark(asked, Reply(scores={"A": float("nan"), "B": -1.0, "C": -1.0})).outcome == "unread"
    assert mark(asked, Reply("C", scores={"A": float("nan"), "B": -1.0, "C": -1.0})).outcome == "right"
    counted = sample("number", "2", choices=("0", "1", "2"))
    assert mark(counted, Reply(scores={"0": -2.0, "1": -2.0, "2": -1.0})).outcome == "right"
    with pytest.raises(ValueError, match="scores of sample one miss 'B'"):
        mark(asked, Reply(scores={"A": 0.0}))


def test_no_reply_is_a_failure_whatever_else_it_says() -> None:
    assert mark(sample("choice", "A", choices=("A", "B")), Reply("A", failure="HTTP 500")).outcome == "failed"


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("3", "right"),
        ("three", "right"),
        ("There are Three of them.", "right"),
        ("03", "right"),
        ("3.", "right"),
        ("4", "wrong"),
        ("3.5", "unread"),
        ("between 3 and 4", "several"),
        ("row 2 has 4 of them; the answer is 3", "right"),
        ("none", "unread"),
        ("-3", "wrong"),
        ("3.0", "right"),
        ("The number is 3, not 5", "several"),
    ],
)
def test_numbers(text: str, outcome: str) -> None:
    assert mark(sample("number", "3"), Reply(text)).outcome == outcome


def test_text_counts_edits() -> None:
    asked = sample("text", "Harbour")
    assert mark(asked, Reply("harbour.")).outcome == "right"
    near = mark(asked, Reply("Harbor"))
    assert (near.outcome, near.share) == ("wrong", pytest.approx(6 / 7))
    assert mark(asked, Reply("The word is HARBOUR.")).outcome == "right"
    for prose in ("a long sentence about something else", "I cannot see any picture."):
        assert mark(asked, Reply(prose)).outcome == "unread"


def test_lists() -> None:
    asked = sample("list", "K L M N")
    for text in ("K L M N", "K, L, M, N", "KLMN", "k l m n", "1. it says\nAnswer: K-L-M-N".replace("-", " ")):
        assert mark(asked, Reply(text)).outcome == "right", text
    moved = mark(asked, Reply("K M L N"))
    assert (moved.outcome, moved.share) == ("wrong", 0.5)
    assert mark(asked, Reply("1. K\n2. L\n3. M\n4. N")).outcome == "right"
    assert mark(asked, Reply("The row reads K L M N")).outcome == "right"
    assert mark(asked, Reply("I cannot see a row.")).outcome == "unread"
    assert mark(sample("list", "red green"), Reply("green red")).outcome == "wrong"
    assert mark(sample("list", "red green"), Reply("I cannot see any picture.")).outcome == "unread"


def test_boxes_in_pixels() -> None:
    asked = sample("box", box=(10, 20, 30, 40))
    assert mark(asked, Reply('{"bbox_2d": [10, 20, 30, 40]}')).share == 1  # the 2 of bbox_2d is no coordinate
    half = mark(asked, Reply("(10, 20), (30, 32)"))
    assert (half.outcome, half.share) == ("right", pytest.approx(0.6))
    assert mark(asked, Reply("10 20 30 25")).outcome == "wrong"
    assert mark(asked, Reply("30 40 10 20")).share == 0  # corners the wrong way round
    assert mark(asked, Reply("20 10 40 30")).outcome == "wrong"  # x and y swapped
    assert mark(asked, Reply("10 20 30")).outcome == "unread"
    assert mark(asked, Reply("10 20 30 40 and 50 60 70 80")).outcome == "several"


def test_points() -> None:
    asked = sample("point", box=(10, 20, 30, 50))
    assert mark(asked, Reply("(29, 22)")).outcome == "right"
    assert mark(asked, Reply("(22, 31px)")).outcome == "right"
    assert mark(asked, Reply("22, 9")).outcome == "wrong"
    assert mark(asked, Reply("(31, 22)")).outcome == "wrong"
    assert mark(asked, Reply("[10, 20, 30, 50]")).outcome == "right"  # the middle of a box
    assert mark(asked, Reply("<loc_22><loc_31>")).outcome == "right"


@pytest.mark.parametrize("name", ["qwen2.5-vl", "qwen3-vl"])
def test_boxes_in_the_convention_of_the_family(name: str) -> None:
    picture = Image.new("RGB", (803, 517))
    plan = mrope.family(name).plan((517, 803))
    box = (103.0, 51.0, 311.0, 403.0)
    written = np.asarray(plan.encode_boxes(np.array(box))).round().astype(int).tolist()
    asked = Sample(id="one", task="test", pictures=(picture,), prompt=(0,), kind="box", box=box)
    assert mark(asked, Reply(str(written), plans=(plan,))).share > 0.98
    left, top, right, bottom = written
    assert mark(asked, Reply(str([top, left, bottom, right]), plans=(plan,))).outcome == "wrong"


def test_edits_by_hand() -> None:
    assert [edits(*pair) for pair in (("", "abc"), ("abc", ""), ("abc", "abc"), ("flaw", "lawn"))] == [3, 3, 0, 2]


@given(st.text("ab", max_size=8), st.text("ab", max_size=8), st.text("ab", max_size=8))
def test_edits_are_a_distance(a: str, b: str, c: str) -> None:
    assert edits(a, b) == edits(b, a)
    assert (edits(a, b) == 0) == (a == b)
    assert edits(a, c) <= edits(a, b) + edits(b, c)


@given(st.lists(st.integers(0, 9), min_size=8, max_size=8))
def test_overlap_is_that_of_counted_pixels(sides: list[int]) -> None:
    a, b = (
        (*map(min, zip(box[:2], box[2:], strict=True)), *map(max, zip(box[:2], box[2:], strict=True)))
        for box in (sides[:4], sides[4:])
    )
    pixels = np.zeros((2, 10, 10), bool)
    for plane, (left, top, right, bottom) in zip(pixels, (a, b), strict=True):
        plane[top:bottom, left:right] = True
    both, either = (pixels[0] & pixels[1]).sum(), (pixels[0] | pixels[1]).sum()
    assert overlap(a, b) == pytest.approx(both / either if both else 0)
