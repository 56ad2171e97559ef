"""What tasks say of their pictures, read from the pixels: letters by comparing shapes, words by tesseract."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from functools import cache
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont
from skimage.measure import label, regionprops

from mrope.data import GLYPHS, Clip, Sample, fonts, task

Letter = tuple[float, float, str]
"""(row, col) of the middle of its ink, and which it is."""


def ink_of(picture: Image.Image) -> np.ndarray:
    """Where ink is: pixels 0.4 of the way and more from the paper's colour, the middle one, to the farthest from it."""
    pixels = np.asarray(picture, np.float64)
    paper = np.median(pixels.reshape(-1, 3), 0)
    away = pixels - paper
    far = (away**2).sum(-1)
    ink = away[far >= np.quantile(far, 0.995)].mean(0)
    return away @ ink / (ink @ ink) > 0.4


def shape_of(ink: np.ndarray) -> np.ndarray:
    """Ink, cut to its box, in the middle of a square of its longer side, at 32 x 32."""
    rows, cols = np.flatnonzero(ink.any(1)), np.flatnonzero(ink.any(0))
    cut = Image.fromarray(ink[rows[0] : rows[-1] + 1, cols[0] : cols[-1] + 1].astype(np.uint8) * 255)
    square = Image.new("L", (max(cut.size), max(cut.size)))
    square.paste(cut, ((square.width - cut.width) // 2, (square.height - cut.height) // 2))
    return np.asarray(square.resize((32, 32), Image.Resampling.BOX), np.float64) / 255


@cache
def known_shapes() -> tuple[np.ndarray, list[str]]:
    """The shapes of all letters in all held-out faces, drawn without the code under test."""
    shapes, names = [], []
    for face in fonts("held-out"):
        pen = ImageFont.truetype(str(face.path), 96)
        for letter in GLYPHS:
            drawn = Image.new("L", (200, 200))
            ImageDraw.Draw(drawn).text((40, 40), letter, font=pen, fill=255)
            shapes.append(shape_of(np.asarray(drawn) > 127))
            names.append(letter)
    return np.stack(shapes), names


def letter_of(ink: np.ndarray) -> str:
    shapes, names = known_shapes()
    return names[int(np.abs(shapes - shape_of(ink)).mean((1, 2)).argmin())]


def letters_in(picture: Image.Image) -> list[Letter]:
    """Every letter of a picture; at least 3 times its size, so that strokes stay whole."""
    larger = picture.resize((picture.width * 3, picture.height * 3), Image.Resampling.BICUBIC)
    found = []
    for region in regionprops(label(ink_of(larger), connectivity=2)):
        top, left, bottom, right = region.bbox
        if bottom - top > 15:
            found.append(((top + bottom) / 6, (left + right) / 6, letter_of(region.image)))
    return found


def grid_in(picture: Image.Image) -> list[str]:
    """The rows of a grid of letters, wherever it lies: letters whose rows lie close together stand in one row."""
    rows: list[list[Letter]] = []
    for letter in sorted(letters_in(picture)):
        if rows and letter[0] - np.mean([row for row, _, _ in rows[-1]]) < 12:
            rows[-1].append(letter)
        else:
            rows.append([letter])
    return ["".join(name for _, _, name in sorted(row, key=lambda each: each[1])) for row in rows]


def picture_of(sample: Sample) -> Image.Image:
    picture = sample.pictures[0]
    assert isinstance(picture, Image.Image)
    return picture


def number_after(word: str, sample: Sample) -> int:
    found = re.search(rf"{word} (\d+)", sample.words)
    assert found, sample.words
    return int(found[1]) - 1


# Each answers a question from the rows that were read and the words of the prompt alone.


def answer_cell(rows: list[str], sample: Sample) -> str:
    return rows[number_after("row", sample)][number_after("column", sample)]


def answer_neighbour(rows: list[str], sample: Sample) -> str:
    found = re.search(r"directly (to the right of|to the left of|above|below) the letter ([A-Z])\?", sample.words)
    assert found
    ((row, col),) = [(r, line.index(found[2])) for r, line in enumerate(rows) if found[2] in line]
    down, right = {"to the right of": (0, 1), "to the left of": (0, -1), "above": (-1, 0), "below": (1, 0)}[found[1]]
    assert min(row + down, col + right) >= 0
    return rows[row + down][col + right]


def answer_row(rows: list[str], sample: Sample) -> str:
    return " ".join(rows[number_after("Read row", sample)])


def answer_column(rows: list[str], sample: Sample) -> str:
    return " ".join(row[number_after("Read column", sample)] for row in rows)


def answer_count(rows: list[str], sample: Sample) -> str:
    found = re.search(r"letter ([A-Z]) stand in (row|column)", sample.words)
    assert found
    lines = rows if found[2] == "row" else ["".join(line) for line in zip(*rows, strict=True)]
    return str(lines[number_after(f"in {found[2]}", sample)].count(found[1]))


ORACLES: list[tuple[str, dict[str, Any], Callable[[list[str], Sample], str]]] = [
    ("cell", {"each": 8}, answer_cell),
    ("cell", {"each": 6, "shapes": ((1, 5), (4, 3)), "cell": (40, 52)}, answer_cell),
    ("neighbour", {"each": 2, "shapes": ((3, 5), (6, 4))}, answer_neighbour),
    ("row", {"each": 4}, answer_row),
    ("column", {"each": 4}, answer_column),
    ("count", {"each": 8}, answer_count),
    ("count", {"each": 8, "line": "column", "shapes": ((7, 4),)}, answer_count),
    ("moved", {"each": 3}, answer_cell),
    ("distance", {"each": 3, "words": (0, 5)}, answer_cell),
]


def grids_of(name: str, settings: dict[str, Any], seed: int) -> list[tuple[Sample, list[str]]]:
    return [(sample, grid_in(picture_of(sample))) for sample in task(name, **settings).samples(seed)]


@pytest.mark.parametrize(
    ("name", "settings", "answer"), ORACLES, ids=lambda part: part if isinstance(part, str) else ""
)
def test_the_right_answer_stands_in_the_picture_where_the_words_say(
    name: str, settings: dict[str, Any], answer: Callable[[list[str], Sample], str]
) -> None:
    read = grids_of(name, settings, seed=6)
    for sample, rows in read:
        assert (len(rows), {len(row) for row in rows}) == (sample.tags["rows"], {sample.tags["cols"]}), sample.id
        assert answer(rows, sample) == sample.answer, (sample.id, rows)


@pytest.mark.parametrize(("name", "answer"), [("cell", answer_cell), ("row", answer_row), ("column", answer_column)])
def test_with_rows_and_columns_exchanged_the_answers_are_wrong(
    name: str, answer: Callable[[list[str], Sample], str]
) -> None:
    right = asked = 0
    for sample, rows in grids_of(name, {"each": 12, "shapes": ((3, 5), (6, 4))}, seed=2):
        swapped = ["".join(line) for line in zip(*rows, strict=True)]
        asked += 1
        try:
            right += answer(swapped, sample) == sample.answer
        except IndexError:
            continue
    assert asked == 24
    assert right <= 6  # a cell on the diagonal is its own mirror image


def test_the_cell_of_a_point_holds_the_letter_and_no_other() -> None:
    for sample in task("point", each=6).samples(4):
        assert sample.box is not None
        left, top, right, bottom = sample.box
        inside = [
            letter for row, col, letter in letters_in(picture_of(sample)) if top < row < bottom and left < col < right
        ]
        assert inside == [re.findall(r"the letter ([A-Z])\.", sample.words)[0]]
        swapped = [
            letter for row, col, letter in letters_in(picture_of(sample)) if left < row < right and top < col < bottom
        ]
        assert swapped != inside or sample.tags["row"] == sample.tags["col"]


def test_the_box_of_a_word_is_that_of_its_ink() -> None:
    for sample in task("find", each=4).samples(4):
        assert sample.box is not None
        pixels = np.asarray(picture_of(sample), np.int64)
        ink = (pixels != pixels[0, 0]).any(-1)
        left, top, right, bottom = map(int, sample.box)
        assert (left, top, right, bottom) == sample.box
        inside = ink[top:bottom, left:right]
        assert inside[0].any()
        assert inside[-1].any()
        assert inside[:, 0].any()
        assert inside[:, -1].any()
        ring = ink[max(0, top - 2) : bottom + 2, max(0, left - 2) : right + 2]
        assert ring.sum() == inside.sum(), "ink beside the box"


def test_moved_pictures_show_the_same_pixels() -> None:
    samples = list(task("moved", shapes=((3, 5),), each=2).samples(3))
    for start in (0, 6):
        plain, shifted, nudged, padded, scaled, budget = (picture_of(one) for one in samples[start : start + 6])
        wanted = np.asarray(plain)
        assert places_of(wanted, np.asarray(padded)) == [(0, 0)]
        ((down, right),) = places_of(wanted, np.asarray(shifted))
        assert down % 32 == right % 32 == 0
        assert min(down, right) > 0
        ((down, right),) = places_of(wanted, np.asarray(nudged))
        assert 0 < down < 32
        assert 0 < right < 32
        assert scaled.size == (round(1.5 * plain.width), round(1.5 * plain.height))
        assert abs(budget.width * budget.height / (2 * 128 * 32 * 32) - 1) < 0.01
        assert abs(budget.width / budget.height - plain.width / plain.height) < 0.02


def places_of(part: np.ndarray, whole: np.ndarray) -> list[tuple[int, int]]:
    """Every (row, col) at which `part` lies in `whole`."""
    high, wide = whole.shape[0] - part.shape[0] + 1, whole.shape[1] - part.shape[1] + 1
    return [
        (row, col)
        for row, col in np.argwhere((whole[:high, :wide] == part[0, 0]).all(-1)).tolist()
        if np.array_equal(whole[row : row + part.shape[0], col : col + part.shape[1]], part)
    ]


@pytest.mark.parametrize("shown", ["pictures", "clip"])
def test_one_letter_has_one_ring_and_look_alikes_have_two(shown: str) -> None:
    for sample in task("needle", lengths=(1, 9), depths=3, each=2, shown=shown, size=(92, 151)).samples(2):
        pictures = [
            frame
            for picture in sample.pictures
            for frame in (picture.frames[::2] if isinstance(picture, Clip) else (picture,))
        ]
        seen = [rings_and_letter(picture) for picture in pictures]
        assert [letter for rings, letter in seen if rings == 1] == [sample.answer]
        twos = [index for index, (rings, _) in enumerate(seen) if rings == 2]
        assert len({index % 4 for index in twos}) <= 1
        assert bool(twos) == (len(seen) > 1)
        (needle,) = (index for index, (rings, _) in enumerate(seen) if rings == 1)
        assert sample.tags["depth"] == needle / max(1, len(seen) - 1)


def rings_and_letter(picture: Image.Image) -> tuple[int, str]:
    regions = [region for region in regionprops(label(ink_of(picture), connectivity=2)) if region.area > 8]
    rings = [region for region in regions if region.bbox[2] - region.bbox[0] > 0.6 * picture.height]
    top, left, bottom, right = min((one.bbox for one in regions if one not in rings), key=lambda box: box[0])
    return len(rings), letters_in(picture.crop((left - 3, top - 3, right + 3, bottom + 3)))[0][2]


def test_clips_show_before_after_and_at_the_second_what_they_should() -> None:
    for sample in task("time", letters=(3, 5), each=3).samples(1):
        (clip,) = sample.pictures
        assert isinstance(clip, Clip)
        seen = [letters_in(frame)[0][2] for frame in clip.frames]
        assert seen[::2] == seen[1::2]
        if at := re.search(r"at ([0-9.]+) seconds", sample.words):
            (place,) = (
                place for place in range(len(seen) // 2)
                if clip.seconds[2 * place] < float(at[1]) < clip.seconds[2 * place + 1]
            )  # fmt: skip
        else:
            found = re.search(r"directly (before|after) the letter ([A-Z])\?", sample.words)
            assert found
            place = seen[::2].index(found[2]) + (1 if found[1] == "after" else -1)
            assert place >= 0
        assert seen[2 * place] == sample.answer, sample.id


# Words are read by tesseract, which knows nothing of how they were drawn.

needs_tesseract = pytest.mark.skipif(shutil.which("tesseract") is None, reason="tesseract is not installed")
Word = tuple[str, float, float, float, float]


def read_words(picture: Image.Image) -> list[Word]:
    """(text, left, top, right, bottom) of every word that tesseract finds."""
    content = BytesIO()
    picture.resize((picture.width * 2, picture.height * 2), Image.Resampling.BICUBIC).save(content, "PNG")
    command = ["tesseract", "-", "-", "--psm", "11", "--dpi", "150", "tsv"]
    run = subprocess.run(command, input=content.getvalue(), capture_output=True, check=True)
    words = []
    for line in run.stdout.decode().splitlines()[1:]:
        *_, left, top, wide, high, _, text = line.split("\t")
        if text.strip():
            box = (int(left), int(top), int(left) + int(wide), int(top) + int(high))
            words.append((text.strip(), *(side / 2 for side in box)))
    return words


def mean(values: Iterable[float]) -> float:
    kept = list(values)
    return sum(kept) / len(kept)


@needs_tesseract
def test_a_page_read_by_tesseract_column_by_column_gives_its_words_in_order() -> None:
    shares, across = [], []
    for sample in task("order", columns=(2, 3), each=2, size=26).samples(7):
        words, columns = read_words(picture_of(sample)), int(sample.tags["columns"])
        wanted = sample.answer.split()
        # Columns begin where no word stands in any line: at the widest gaps.
        free = np.ones(picture_of(sample).width, bool)
        for _, left, _, right, _ in words:
            free[int(left) : int(right) + 1] = False
        gaps = [(right - left, left) for left, right in runs(free)][1:-1]
        starts = sorted(left for _, left in sorted(gaps)[-(columns - 1) :])
        placed = sorted(
            words, key=lambda word: (sum(word[1] > start for start in starts), round(word[2] / 20), word[1])
        )
        shares.append(mean(read == word for read, word in zip([word[0] for word in placed], wanted, strict=False)))
        lines = sorted(words, key=lambda word: (round(word[2] / 20), word[1]))
        across.append(mean(read == word for read, word in zip([word[0] for word in lines], wanted, strict=False)))
    assert mean(shares) > 0.9, shares
    assert max(across) < 0.5, "read across the columns, the page is not in order"


def runs(free: np.ndarray) -> list[tuple[int, int]]:
    """(first, last + 1) of each run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], free.astype(np.int8), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


@needs_tesseract
def test_a_table_read_by_tesseract_gives_the_number_where_row_and_column_cross() -> None:
    right = swapped = asked = 0
    for sample in task("table", shapes=((3, 5), (6, 3)), each=4, cell=(44, 90)).samples(5):
        words = read_words(picture_of(sample))
        row, col = re.findall(r'"(\w+)"', sample.words)
        places = {text: box for text, *box in words}
        if row not in places or col not in places:
            continue  # which tesseract has not read
        asked += 1
        numbers = [word for word in words if word[0].isdecimal()]
        down, along = (places[row][1] + places[row][3]) / 2, places[col][2]
        right += sample.answer == nearest(numbers, down, along)
        swapped += sample.answer == nearest(numbers, along, down)
    assert asked >= 6
    assert right >= asked - 1
    assert swapped <= asked / 2


def nearest(words: list[Word], row: float, right: float) -> str:
    """The word whose middle lies nearest to a row and whose end lies nearest to a column, in pixels."""
    return min(words, key=lambda word: abs((word[2] + word[4]) / 2 - row) + abs(word[3] - right))[0]


@needs_tesseract
def test_large_print_is_read_by_tesseract_and_the_smallest_is_not() -> None:
    read: dict[float, list[bool]] = {}
    for sample in task("print", heights=(24, 3), each=5).samples(3):
        words = " ".join(word[0] for word in read_words(picture_of(sample)))
        read.setdefault(float(sample.tags["height"]), []).append(words.upper() == sample.answer)
    assert sum(read[24]) >= 4
    assert sum(read[3]) == 0


def test_capitals_are_as_high_as_said_and_words_lie_inside_the_page() -> None:
    for height in (30, 11.5, 6):
        for sample in task("print", heights=(height,), size=(83, 262), each=16).samples(8):
            pixels = np.asarray(picture_of(sample), np.float64)
            away = np.abs(pixels - pixels[0, 0]).sum(-1)
            rows, cols = np.flatnonzero((away > 0).any(1)), np.flatnonzero((away > 0).any(0))
            assert rows[0] >= 1
            assert cols[0] >= 1
            assert rows[-1] <= 81
            assert cols[-1] <= 260
            if not set(sample.answer) & set("QJ"):  # whose tails hang down; round letters go over the lines of an H
                assert height - 1 <= rows[-1] - rows[0] + 1 <= 1.06 * height + 2


def test_the_same_words_are_printed_in_all_heights() -> None:
    words: dict[float, list[str]] = {}
    for sample in task("print", heights=(20, 9.5, 4), each=6).samples(2):
        words.setdefault(float(sample.tags["height"]), []).append(sample.answer)
    assert words[20] == words[9.5] == words[4]
    assert len(set(words[20])) > 3


def test_every_other_table_is_ruled() -> None:
    for sample in task("table", shapes=((3, 5),), each=4).samples(2):
        pixels = np.asarray(picture_of(sample), np.int64)
        ink = (pixels != pixels[0, 0]).any(-1)
        longest = max(last - first for row in ink if row.any() for first, last in runs(row))
        assert (longest > 200) == (sample.tags["ruled"] == "ruled") == (int(sample.id.rsplit("/", 1)[1]) % 2 == 0)
