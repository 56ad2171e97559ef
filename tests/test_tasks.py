"""Tasks: settings and what they refuse, samples that are the same for a seed, and no answer that can be guessed."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mrope.data import GLYPHS, TASKS, Clip, Sample, contact_sheet, task
from mrope.reader import Reader

NAMES = (
    *("cell", "neighbour", "row", "column", "count", "order", "point", "find", "moved", "print", "table", "time"),
    *("needle", "distance"),
)
SMALL: dict[str, dict[str, Any]] = {
    **{name: {"shapes": ((2, 3), (5, 3))} for name in NAMES if name not in ("order", "print", "time", "needle")},
    "neighbour": {"shapes": ((2, 5), (4, 3)), "each": 2},
    "print": {"heights": (14, 5), "each": 2},
    "needle": {"lengths": (1, 5)},
    "distance": {"shapes": ((2, 3), (5, 3)), "words": (0, 9), "each": 2},
}


def small(name: str, **more: Any) -> Any:
    return task(name, **{**SMALL.get(name, {}), **more})


def frames(sample: Sample) -> Iterator[Image.Image]:
    for picture in sample.pictures:
        yield from picture.frames if isinstance(picture, Clip) else (picture,)


def fingerprint(sample: Sample) -> str:
    """All that a sample says, and its pixels."""
    told = (
        sample.id,
        sample.prompt,
        sample.answer,
        sample.choices,
        sample.box,
        sample.group,
        dict(sample.tags),
        sample.ask,
        [picture.seconds for picture in sample.pictures if isinstance(picture, Clip)],
    )
    pixels = b"".join(picture.tobytes() + repr(picture.size).encode() for picture in frames(sample))
    return hashlib.sha256(repr(told).encode() + pixels).hexdigest()


FIRST = {
    "cell": "S",
    "neighbour": "V",
    "row": "F U M L P",
    "column": "X C V",
    "count": "0",
    "order": "muffin salmon cabin lemon sandal daisy prairie button",
    "moved": "K",
    "print": "HERON",
    "table": "748",
    "time": "J",
    "needle": "B",
    "distance": "K",
}


def test_the_first_answers_are_the_same_on_every_machine() -> None:
    assert {name: next(task(name).samples()).answer for name in NAMES if name not in ("point", "find")} == FIRST


def test_the_tasks_by_name() -> None:
    assert tuple(TASKS) == NAMES
    assert all(kind.name == name for name, kind in TASKS.items())
    assert all(kind.summary and "\n" not in kind.summary for kind in TASKS.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_draws_the_same_bytes_and_another_seed_does_not(name: str) -> None:
    one, two, other = ([fingerprint(sample) for sample in small(name).samples(seed)] for seed in (3, 3, 4))
    assert one == two
    assert not set(one) & set(other)


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_counted_named_apart_and_well_formed(name: str) -> None:
    samples = list(small(name).samples(1))
    assert len(samples) == len(small(name))
    assert len({sample.id for sample in samples}) == len(samples)
    for sample in samples:
        assert sample.task == name
        assert sample.id.startswith(f"{name}/")
        shown = [part for part in sample.prompt if isinstance(part, int)]
        assert shown == list(range(len(sample.pictures)))
        assert "Answer with " in str(sample.prompt[-1])
        assert all(picture.mode == "RGB" and picture.width != picture.height for picture in frames(sample))
        if sample.choices:
            assert sample.answer in sample.choices
            assert len(set(sample.choices)) == len(sample.choices)
        assert (sample.box is not None) == (sample.kind in ("point", "box"))
        if sample.box:
            left, top, right, bottom = sample.box
            picture = sample.pictures[sample.where]
            assert isinstance(picture, Image.Image)
            assert 0 <= left < right <= picture.width
            assert 0 <= top < bottom <= picture.height
        json.dumps([dict(sample.tags), sample.ask])


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("print", "needle")])
def test_a_longer_run_begins_with_the_shorter_one(name: str) -> None:
    def by_id(each: int) -> dict[str, str]:
        return {sample.id: fingerprint(sample) for sample in small(name, each=each).samples(2)}

    shorter, longer = by_id(1), by_id(2)
    assert shorter.items() < longer.items()


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_drawn_when_they_are_asked_for(name: str) -> None:
    # A task of a hundred million samples gives its first ones at once.
    assert len(list(islice(small(name, each=10**8).samples(), 3))) == 3


@pytest.mark.parametrize("name", NAMES)
def test_the_large_variant_asks_more_and_settings_survive_json(name: str) -> None:
    large = task(name, large=True)
    assert len(large) > len(task(name))
    again = task(name, **json.loads(json.dumps(asdict(large))))
    assert again == large
    assert fingerprint(next(islice(again.samples(), 1))) == fingerprint(next(large.samples()))


@pytest.mark.parametrize("name", NAMES)
def test_grids_of_the_defaults_are_not_square_and_no_picture_is_whole_patches(name: str) -> None:
    for sample in islice(task(name).samples(), 40):
        assert sample.tags.get("rows") is None or sample.tags["rows"] != sample.tags["cols"]
    sizes = {side for sample in islice(task(name).samples(), 40) for frame in frames(sample) for side in frame.size}
    assert any(side % 28 and side % 32 for side in sizes)
    if name in ("cell", "neighbour", "row", "column", "count", "point", "distance"):
        assert all(side % 32 for side in sizes)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("cells", {}, "task is 'cells'; expected one of cell, neighbour, row"),
        ("cell", {"rows": 3}, "setting of cell is 'rows'; expected one of shapes, each, cell"),
        ("cell", {"shapes": []}, r"shapes are \(\); expected a list of at least one, each once"),
        ("cell", {"shapes": [[3, 5], [3, 5]]}, "expected a list of at least one, each once"),
        ("cell", {"shapes": [[3, 0]]}, r"side of shape \(3, 0\) is 0; expected at least 1"),
        ("cell", {"each": 0}, "each is 0; expected at least 1"),
        ("cell", {"cell": [32, 8]}, r"side of cell \(32, 8\) is 8; expected at least 12"),
        ("neighbour", {"shapes": [[1, 1]]}, r"shape is \(1, 1\); expected two cells or more"),
        ("count", {"shapes": [[7, 2]]}, "most is 3; expected at most 2, the length of a row of 7 x 2"),
        (
            "count",
            {"shapes": [[2, 7]], "line": "column"},
            "most is 3; expected at most 2, the length of a column of 2 x 7",
        ),
        ("order", {"columns": [40]}, "words in all are 320; expected at most 222, as many as there are"),
        ("order", {"columns": [0]}, "columns is 0; expected at least 1"),
        ("find", {"shapes": [[100, 3]]}, r"shape is \(100, 3\); expected at most 222 cells"),
        ("moved", {"guises": ["plain", "turned"]}, "guise is 'turned'; expected one of plain, shifted"),
        ("moved", {"budget": 0}, "budget is 0; expected at least 1"),
        ("print", {"heights": [60]}, r"size is \(230, 370\); expected at least \(128, 488\) for capitals of 60 pixels"),
        ("print", {"heights": [0.2]}, "height is 0.2; expected at least 1 pixel"),
        ("print", {"heights": [0]}, "height is 0; expected a finite number above 0"),
        ("table", {"shapes": [[100, 10]]}, r"shape is \(100, 10\); expected at most 222 rows and columns"),
        ("time", {"letters": [2]}, "letters is 2; expected at least 3"),
        ("time", {"letters": [25]}, "letters is 25; expected at most 24"),
        ("time", {"size": [9, 90]}, r"side of size \(9, 90\) is 9; expected at least 24"),
        ("needle", {"lengths": [0]}, "length is 0; expected at least 1"),
        ("needle", {"depths": 0}, "depths is 0; expected at least 1"),
        ("distance", {"words": [-1]}, "words is -1; expected at least 0"),
    ],
)
def test_a_wrong_setting_is_one_clear_error(name: str, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        task(name, **wrong)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("cell", {"each": "3"}), ("cell", {"shapes": 5}), ("count", {"line": "diagonal"}), ("needle", {"shown": "film"})],
)
def test_a_setting_of_another_type_is_refused(name: str, wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        task(name, **wrong)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seed is -1; expected at least 0"):
        next(task("cell").samples(-1))


SHAPES = st.tuples(st.integers(1, 6), st.integers(1, 7)).filter(lambda shape: shape != (1, 1))
CELLS = st.tuples(st.integers(12, 50), st.integers(12, 50))


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(("cell", "neighbour", "row", "column", "point", "find", "table", "moved", "distance")),
    shape=SHAPES,
    cell=CELLS,
    seed=st.integers(0, 2**70),
)
def test_any_grid_in_any_cell(name: str, shape: tuple[int, int], cell: tuple[int, int], seed: int) -> None:
    drawn = task(name, shapes=(shape,), cell=cell, each=1)
    samples = list(drawn.samples(seed))
    assert len(samples) == len(drawn)
    for sample in samples:
        rows, cols = sample.tags["rows"], sample.tags["cols"]
        assert (rows, cols) == shape
        if name in ("cell", "neighbour", "row", "column", "point"):
            (picture,) = frames(sample)
            assert 0 < abs(picture.height - shape[0] * cell[0]) <= 3 * cell[0] / 8
            assert 0 < abs(picture.width - shape[1] * cell[1]) <= 3 * cell[1] / 8
        if sample.choices:
            assert sample.answer in sample.choices


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.sets(st.integers(1, 9), min_size=1).map(tuple),
    depths=st.integers(1, 6),
    shown=st.sampled_from(("pictures", "clip")),
    size=st.tuples(st.integers(24, 70), st.integers(24, 70)),
)
def test_any_haystack(lengths: tuple[int, ...], depths: int, shown: str, size: tuple[int, int]) -> None:
    drawn = task("needle", lengths=lengths, depths=depths, shown=shown, size=size, each=1)
    samples = list(drawn.samples(5))
    assert len(samples) == len(drawn)
    for sample in samples:
        pictures = list(frames(sample))
        assert len(pictures) == sample.tags["length"] * (1 if shown == "pictures" else 2)
        assert {picture.size for picture in pictures} == {(size[1], size[0])}
        assert 0 <= float(sample.tags["depth"]) <= 1


@settings(max_examples=15, deadline=None)
@given(letters=st.integers(3, 24), hold=st.integers(1, 3), size=st.tuples(st.integers(24, 60), st.integers(24, 60)))
def test_any_clip(letters: int, hold: int, size: tuple[int, int]) -> None:
    for sample in task("time", letters=(letters,), hold=hold, size=size, each=1).samples():
        (clip,) = sample.pictures
        assert isinstance(clip, Clip)
        assert len(clip.frames) == len(clip.seconds) == letters * hold
        gaps = {after - before for before, after in zip(clip.seconds, clip.seconds[1:], strict=False)}
        assert min(gaps) > 0


def test_time_stamps_are_uneven() -> None:
    (clip,) = next(task("time").samples()).pictures
    assert isinstance(clip, Clip)
    assert len({after - before for before, after in zip(clip.seconds, clip.seconds[1:], strict=False)}) > 1


# Guesses: strategies that never look at a picture.


def commonest_letter(sample: Sample) -> str:
    return next((letter for letter in "ETAN" if letter in sample.choices), sample.choices[0])


GUESSES: dict[str, Callable[[Sample], str]] = {
    "first": lambda sample: sample.choices[0],
    "last": lambda sample: sample.choices[-1],
    "middle": lambda sample: sample.choices[len(sample.choices) // 2],
    "common in English": commonest_letter,
    "named last": lambda sample: max(sample.choices, key=lambda choice: sample.words.rfind(choice)),
}


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("cell", {"shapes": ((2, 3),), "each": 700}),
        ("neighbour", {"shapes": ((3, 4), (1, 3), (2, 5)), "each": 60}),
        ("count", {"shapes": ((2, 5),), "each": 700}),
        ("moved", {"shapes": ((2, 3),), "each": 700, "guises": ("plain",)}),
        ("time", {"letters": (3, 5), "each": 130, "hold": 1, "size": (24, 31)}),
        ("needle", {"lengths": (3,), "depths": 3, "each": 250, "size": (24, 31)}),
        ("distance", {"shapes": ((2, 3),), "each": 700, "words": (0,)}),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_a_blind_guess_is_at_chance(name: str, more: dict[str, Any]) -> None:
    # All samples of a group share one picture, so that it is they that are counted apart.
    samples = list(task(name, **more).samples(9))
    chance = sum(sample.chance for sample in samples) / len(samples)
    pictures = len({sample.group or sample.id for sample in samples})
    sure = 4 * (chance * (1 - chance) / pictures) ** 0.5
    for how, guess in GUESSES.items():
        share = sum(guess(sample) == sample.answer for sample in samples) / len(samples)
        assert abs(share - chance) < sure, f"{how}: {share:.3f}, chance {chance:.3f}"
    by_answer = Counter(sample.answer for sample in samples)
    if len({sample.choices for sample in samples}) == 1:
        expected = len(samples) / len(samples[0].choices)
        assert all(abs(by_answer[choice] - expected) < 4.5 * expected**0.5 for choice in samples[0].choices)


def test_letters_stand_in_no_order() -> None:
    rows = [sample.answer.split() for sample in task("row", shapes=((2, 3),), each=120).samples(2)]
    assert abs(sum(row == sorted(row) for row in rows) - 20) < 17  # one in 3!


def test_every_cell_is_asked_about_as_often_as_any_other() -> None:
    for name in ("cell", "point", "find", "moved", "table", "distance"):
        samples = list(small(name, shapes=((3, 4),), each=24).samples())
        asked = Counter((sample.tags["row"], sample.tags["col"]) for sample in samples)
        assert len(asked) == 12
        assert len(set(asked.values())) == 1


def test_the_number_in_a_table_is_not_known_by_its_size() -> None:
    # Rank of the answer among all numbers of its table, from a reading of the picture's size order: thirds are even.
    samples = list(task("table", shapes=((2, 2),), each=300, cell=(14, 20)).samples())
    thirds = Counter((int(sample.answer) - 100) // 300 for sample in samples)
    assert all(abs(thirds[third] - 100) < 36 for third in range(3))


@pytest.mark.parametrize(("relation", "places"), [("before", (0, 1, 2)), ("after", (1, 2, 3)), ("at", (0, 1, 2, 3))])
def test_no_place_in_a_clip_is_asked_for_more_often(relation: str, places: tuple[int, ...]) -> None:
    samples = task("time", letters=(4,), each=150, hold=1, size=(24, 31)).samples(3)
    asked = Counter(sample.tags["place"] for sample in samples if sample.tags["relation"] == relation)
    assert set(asked) == set(places)
    assert all(abs(asked[place] - 150 / len(places)) < 4 * (150 / len(places)) ** 0.5 for place in places)


def test_needles_lie_at_even_depths_and_look_alikes_come_regularly() -> None:
    samples = list(task("needle", lengths=(9, 2), depths=5, each=1).samples())
    depths = [sample.tags["depth"] for sample in samples]
    assert depths == [0.0, 0.25, 0.5, 0.75, 1.0, 0.0, 1.0]


def test_a_set_of_neighbours_holds_every_direction_and_the_way_back() -> None:
    samples = list(task("neighbour", shapes=((4, 3),), each=1).samples(8))
    assert len({sample.group for sample in samples}) == 1
    ways = {(sample.tags["way"], sample.tags["relation"]) for sample in samples}
    assert ways == {(way, relation) for way in ("out", "back") for relation in ("right", "left", "above", "below")}
    by_id = {sample.id.rsplit("/", 1)[1]: sample for sample in samples}
    named = re.compile(r"the letter ([A-Z])\?")
    for relation in ("right", "left", "above", "below"):
        out, back = by_id[f"{relation}-out"], by_id[f"{relation}-back"]
        (start,), (end,) = named.findall(out.words), named.findall(back.words)
        assert (out.answer, back.answer) == (end, start)
    # All four neighbours of the cell are among the choices of each question that starts from it.
    outs = [sample for sample in samples if sample.tags["way"] == "out"]
    assert all(set(sample.choices) == {other.answer for other in outs} for sample in outs)


@pytest.mark.parametrize(
    ("shape", "relations"),
    [((1, 2), 1), ((1, 5), 2), ((5, 1), 2), ((2, 2), 2), ((2, 6), 3), ((3, 4), 4)],
    ids=lambda part: str(part),
)
def test_thin_grids_have_the_neighbours_that_there_are(shape: tuple[int, int], relations: int) -> None:
    samples = list(task("neighbour", shapes=(shape,), each=1).samples())
    assert len(samples) == 2 * relations
    assert all(len(sample.choices) == 4 for sample in samples)


def test_the_groups_of_moved_and_distance_have_one_answer() -> None:
    for name, size in (("moved", 6), ("distance", 3)):
        groups: dict[str, list[Sample]] = {}
        for sample in small(name).samples():
            groups.setdefault(sample.group, []).append(sample)
        assert all(len(group) == size and len({one.answer for one in group}) == 1 for group in groups.values())
    budgets = [(sample.tags["guise"], sample.max_tokens) for sample in task("moved", each=1).samples()][:6]
    assert budgets == [
        *((guise, None) for guise in ("plain", "shifted", "nudged", "padded", "scaled")),
        ("budget", 128),
    ]


def test_words_stand_before_or_after_the_picture() -> None:
    for sample in small("distance", words=(0, 7)).samples():
        before, after = (
            re.findall("do not matter: (.*)[.]", str(part)) for part in (sample.prompt[0], sample.prompt[-1])
        )
        counts = [len(words[0].split()) if words else 0 for words in (before, after)]
        expected = {None: [0, 0], "before": [7, 0], "after": [0, 7]}[sample.tags.get("place")]  # pyright: ignore
        assert counts == expected
        assert sample.tags["words"] == sum(counts)


def test_the_shipped_reader_answers_cells_neighbours_and_moved_grids() -> None:
    reader = Reader.load()
    asked = Counter()
    for name in ("cell", "neighbour", "moved"):
        for sample in task(name, shapes=((3, 5), (9, 6)), each=2).samples(11):
            if sample.ask is None:
                continue
            row, col = sample.ask["cell"]
            (said,) = reader.ask(sample.pictures[0], [(sample.ask["relation"], (row, col))])
            assert said.glyph == sample.answer, sample.id
            asked[name, sample.tags.get("guise", "")] += 1
    assert set(asked) == {
        ("cell", ""),
        ("neighbour", ""),
        ("moved", "plain"),
        ("moved", "shifted"),
        ("moved", "padded"),
    }
    assert all(sample.ask is None for sample in task("cell", cell=(40, 32), each=1).samples())


def test_a_contact_sheet_shows_pictures_clips_boxes_and_long_prompts() -> None:
    names = ("cell", "find", "time", "needle", "distance")
    samples = [list(small(name).samples())[-1] for name in names]
    assert len(samples[3].pictures) == 5
    sheet = contact_sheet(samples, columns=2)
    assert sheet.mode == "RGB"
    assert sheet.width == 2 * 414 + 14
    boxed = contact_sheet([samples[1]])
    assert (230, 30, 90) in {colour for _, colour in boxed.getcolors(1 << 24) or []}
    assert contact_sheet(samples, columns=2).tobytes() == sheet.tobytes()
    with pytest.raises(ValueError, match="samples is empty; expected at least one"):
        contact_sheet([])


def test_glyphs_of_the_grids_are_those_of_the_reader() -> None:
    letters = {
        letter for sample in task("row", shapes=((8, 12),), each=40).samples() for letter in sample.answer.split()
    }
    assert letters == set(GLYPHS)
