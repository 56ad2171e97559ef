"""The reader's exam: grids of sizes and shapes seen and unseen in training, then the same with its positions moved."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from jaxtyping import UInt8
from torch import Tensor

from mrope.data import GLYPHS, RELATIONS, GlyphGrid, fonts, questions
from mrope.probes.reading.grid import GridScore, ask_everything, draw_grids, score_grid, swap_axes
from mrope.probes.reading.study import LARGER_SHAPES, TRAINED_SHAPES
from mrope.reader import FAMILY, HELD_OUT_SHAPES, Reader
from mrope.vision import unpatchify

Shape = tuple[int, int]
Kind = Literal["trained", "unseen shape", "larger"]
T = TypeVar("T")
MIRRORED = {"right": "below", "below": "right", "left": "above", "above": "left"}
"""Where each relation leads once h and w are swapped."""
Track = Callable[[Iterable[T], str], Iterator[T]]
"""Goes through items that take time, and says what for: a progress bar, or nothing."""


def quietly(items: Iterable[T], what: str) -> Iterator[T]:
    """The `Track` that shows nothing."""
    return iter(items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Syllabus:
    """What the exam asks; shapes are (rows, columns).

    Args:
        shapes: the grids to read, and what each is to the reader.
        pictures: grids to draw of each shape.
        moved: the shapes for the shift and the swap.
        moved_pictures: grids to draw of each of these.
        deltas: by how much all positions are shifted.
        examples: the shapes to show one picture of.
    """

    shapes: tuple[tuple[Kind, Shape], ...] = (
        *(("trained", shape) for shape in TRAINED_SHAPES),
        *(("unseen shape", shape) for shape in sorted(HELD_OUT_SHAPES)),
        *(("larger", shape) for shape in LARGER_SHAPES),
    )
    pictures: int = 16
    moved: tuple[Shape, ...] = ((4, 4), (3, 12), (6, 6), (8, 9))
    moved_pictures: int = 8
    deltas: tuple[int, ...] = (1, 1000, 100_000)
    examples: tuple[Shape, ...] = ((3, 5), (8, 9), (20, 20))


@dataclass(frozen=True, slots=True)
class Shift:
    """What a shift of all positions by `delta` did to the answers.

    Args:
        delta: added to t, h and w of every token.
        asked: questions asked.
        changed: answers that became another glyph.
        largest: the largest change of a logit.
        largest_exact: the same where angles are computed in float64 (`Rotary.angles` "exact").
    """

    delta: int
    asked: int
    changed: int
    largest: float
    largest_exact: float


@dataclass(frozen=True, slots=True)
class Said:
    """One question, the reader's answer with its probability, and the right one."""

    relation: str
    cell: tuple[int, int]
    said: str
    right: str
    probability: float


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """One picture with some of its questions: one a relation, and up to two that were answered wrong.

    Args:
        shape: (rows, columns).
        picture: (3, height, width), resized as the reader sees it: one cell a block of 32 x 32 pixels.
        said: the questions shown.
        correct: how many of all questions were answered right.
        asked: how many those are.
    """

    shape: Shape
    picture: UInt8[Tensor, "3 h w"]
    said: tuple[Said, ...]
    correct: int
    asked: int


@dataclass(frozen=True, slots=True)
class Swap:
    """One shape read as it is and with h and w swapped.

    Args:
        before: with its own positions.
        after: with h and w swapped.
        mirrored: share of the neighbours asked for whose answer was the glyph that stands there in the swapped grid:
            below instead of right, above instead of left, and the other way round.
    """

    before: GridScore
    after: GridScore
    mirrored: float


@dataclass(frozen=True, slots=True)
class Exam:
    """All answers: the scores by shape, the swap and the shift test, and examples."""

    scores: tuple[tuple[Kind, GridScore], ...]
    swaps: tuple[Swap, ...]
    shifts: tuple[Shift, ...]
    examples: tuple[Example, ...]


SYLLABUS = Syllabus()
"""What the demo asks."""


def take_exam(reader: Reader, syllabus: Syllabus = SYLLABUS, *, seed: int = 0, track: Track = quietly) -> Exam:
    """Ask `reader` what `syllabus` says, with the fonts that training never shows.

    Args:
        reader: trained or not.
        syllabus: what to ask.
        seed: of the pictures.
        track: told of what takes time.
    """
    faces = fonts("held-out")
    scores = tuple(
        (kind, score_grid(reader, shape, faces, pictures=syllabus.pictures, seed=seed))
        for kind, shape in track(syllabus.shapes, "asking about grids")
    )
    swaps = tuple(_swap(reader, shape, syllabus, seed) for shape in track(syllabus.moved, "swapping h and w"))
    grids = [
        grid
        for shape in syllabus.moved
        for grid in draw_grids(shape, faces, pictures=syllabus.moved_pictures, seed=seed)
    ]
    still = [ask_everything(reader, grid) for grid in grids]
    shifts = tuple(_shift(reader, grids, still, delta) for delta in track(syllabus.deltas, "shifting positions"))
    examples = tuple(
        _example(reader, draw_grids(shape, faces, pictures=1, seed=seed)[0]) for shape in syllabus.examples
    )
    return Exam(scores, swaps, shifts, examples)


def _swap(reader: Reader, shape: Shape, syllabus: Syllabus, seed: int) -> Swap:
    faces, pictures = fonts("held-out"), syllabus.moved_pictures
    before = score_grid(reader, shape, faces, pictures=pictures, seed=seed)
    after = score_grid(reader, shape, faces, pictures=pictures, seed=seed, move=swap_axes)
    hits: list[bool] = []
    for grid, said in zip(
        draw_grids(shape, faces, pictures=pictures, seed=seed), after.predicted.tolist(), strict=True
    ):
        cells, relations, answers = (each.tolist() for each in questions(grid.glyphs))
        names = list(RELATIONS)
        stands = {(cell, names[r]): glyph for cell, r, glyph in zip(cells, relations, answers, strict=True)}
        for cell, relation, glyph in zip(cells, relations, said, strict=True):
            mirrored = stands.get((cell, MIRRORED.get(names[relation], "")))
            if mirrored is not None:
                hits.append(glyph == mirrored)
    return Swap(before, after, sum(hits) / len(hits) if hits else float("nan"))


def _shift(reader: Reader, grids: Sequence[GlyphGrid], still: Sequence[Tensor], delta: int) -> Shift:
    """Ask about `grids` with all positions shifted; `still` holds the logits of each without."""
    exact = copy.copy(reader)  # shares the weights
    exact.rotary = replace(reader.rotary, angles="exact")
    changed, largest, largest_exact = 0, 0.0, 0.0
    for grid, before in zip(grids, still, strict=True):
        after, after_exact = (
            ask_everything(one, grid, move=lambda positions: positions.shift(delta)) for one in (reader, exact)
        )
        changed += int((after.argmax(-1) != before.argmax(-1)).sum())
        largest = max(largest, (after - before).abs().max().item())
        # Near 0 the two kinds of angles agree to a rounding, so that one reference serves both.
        largest_exact = max(largest_exact, (after_exact - before).abs().max().item())
    return Shift(delta, sum(len(each) for each in still), changed, largest, largest_exact)


def _example(reader: Reader, grid: GlyphGrid) -> Example:
    cells, relations, answers = questions(grid.glyphs)
    sure, said = ask_everything(reader, grid).softmax(-1).max(-1)
    wrong = np.flatnonzero(said.numpy() != answers)
    rng = np.random.default_rng(0)
    shown: list[int] = []
    lots = [(np.flatnonzero(relations == index), 1) for index in np.unique(relations)]
    for candidates, count in (*lots, (wrong, 2)):
        new = [int(index) for index in rng.permutation(candidates) if index not in shown]
        asked_about = cells[shown]
        new.sort(key=lambda index: bool(np.isin(cells[index], asked_about)))  # another cell each, where there is one
        shown += new[:count]
    rows, cols = grid.glyphs.shape
    names = list(RELATIONS)
    return Example(
        shape=(rows, cols),
        picture=unpatchify(FAMILY.patchify(grid.picture))[0],
        said=tuple(
            Said(
                relation=names[relations[index]],
                cell=divmod(int(cells[index]), cols),
                said=GLYPHS[int(said[index])],
                right=GLYPHS[int(answers[index])],
                probability=float(sure[index]),
            )
            for index in shown
        ),
        correct=len(answers) - len(wrong),
        asked=len(answers),
    )


@dataclass(frozen=True, slots=True)
class Twin:
    """Readers trained by one recipe over several seeds: accuracies by shape, one a seed."""

    name: str
    accuracy: dict[Shape, tuple[float, ...]] = field(hash=False)

    @property
    def seeds(self) -> int:
        """How many readers there are."""
        return max((len(each) for each in self.accuracy.values()), default=0)


def read_study(path: Path) -> tuple[Twin, ...]:
    """The readers of a ``study.json`` by the name of their twin ("none": the reader itself); () without the file."""
    if not path.is_file():
        return ()
    runs = json.loads(path.read_text())["runs"]
    names = dict.fromkeys(run["twin"] for run in runs)
    return tuple(Twin(name, _by_shape([run["scores"] for run in runs if run["twin"] == name])) for name in names)


def _by_shape(scores: list[dict[str, dict[str, float]]]) -> dict[Shape, tuple[float, ...]]:
    together: dict[Shape, tuple[float, ...]] = {}
    for each in scores:
        for name, score in each.items():
            rows, cols = (int(side) for side in name.split("x"))
            together[rows, cols] = (*together.get((rows, cols), ()), score["accuracy"])
    return together
