"""Pictures of letters in rows and columns, and the settings of all tasks that ask about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from ..canvas import Colour
from ..fonts import Font
from ..glyphs import CELL, GLYPHS
from .base import Shape, check_pair, check_shapes, generator
from .checks import whole
from .sample import Sample
from .sheet import Sheet, any_colours, any_face

FROM_ONE = "Rows and columns are counted from 1 at the top left."
Letters = Sequence[Sequence[str]]
"""Rows of cells, each of one letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridTask:
    """Settings of a task that asks about grids; each question has a picture of its own.

    Args:
        shapes: (rows, columns) of the grids.
        each: questions (or sets of them) about grids of each shape.
        cell: (height, width) of a cell in pixels. A picture's sides miss their multiple, so that a plan has to resize.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    large: ClassVar[Mapping[str, Any]] = {"shapes": ((6, 9), (20, 14), (16, 31)), "each": 48}

    shapes: tuple[Shape, ...] = ((3, 5), (10, 6), (9, 14))
    each: int = 12
    cell: Shape = (CELL, CELL)

    def __post_init__(self) -> None:
        check_shapes(self.shapes)
        whole("each", self.each, 1)
        check_pair("cell", self.cell, 12)

    def __len__(self) -> int:
        return len(self.shapes) * self.each

    def samples(self, seed: int = 0) -> Iterator[Sample]:
        """Draw the samples one by one."""
        turns = {shape: self._turns(shape, seed) for shape in self.shapes}
        for index in range(self.each):
            for (rows, cols), cells in turns.items():
                at, rng = cells[index % len(cells)], generator(self.name, seed, rows, cols, index)
                yield from self._ask(f"{self.name}/{rows}x{cols}/{index}", (rows, cols), at, rng)

    def _turns(self, shape: Shape, seed: int) -> list[Shape]:
        """The cells in the order in which they take turns, so that every one is asked about as often as any other."""
        cells = self._cells(shape)
        return [cells[place] for place in generator(self.name, seed, *shape).permutation(len(cells))]

    def _cells(self, shape: Shape) -> list[Shape]:
        """The cells (row, col) to ask about."""
        return list(np.ndindex(shape))

    def _ask(self, name: str, shape: Shape, at: Shape, rng: np.random.Generator) -> Iterator[Sample]:
        """The samples of one question, about the cell `at` (row, col), where it is about one."""
        raise NotImplementedError

    def _pointing(self, relation: str, at: Shape) -> Mapping[str, Any] | None:
        """`Sample.ask`: the shipped reader reads cells of one size alone."""
        return {"relation": relation, "cell": list(at)} if self.cell == (CELL, CELL) else None


def deal(rng: np.random.Generator, count: int, letters: Sequence[str] = GLYPHS) -> list[str]:
    """`count` letters, none more often than another by more than one, so that the commonest is no good guess."""
    decks = [rng.permutation(len(letters)) for _ in range(-(-count // len(letters)))]
    return [letters[int(index)] for index in rng.permutation(np.concatenate(decks)[:count])] if count else []


def in_rows(letters: Sequence[str], shape: Shape) -> list[list[str]]:
    """The letters of a grid, row by row."""
    rows, cols = shape
    return [[*letters[row * cols : (row + 1) * cols]] for row in range(rows)]


def where_tags(shape: Shape, at: Shape) -> dict[str, str | int | float]:
    """The tags of a question about one cell, counted from 0."""
    return {"rows": shape[0], "cols": shape[1], "row": at[0], "col": at[1]}


def cell_words(at: Shape) -> str:
    """A cell as words have it, from 1."""
    return f"row {at[0] + 1}, column {at[1] + 1}"


@dataclass(frozen=True, slots=True)
class Hand:
    """How a grid is written.

    Args:
        face: the font.
        size: pixels of an em.
        colours: of paper and ink.
        grain: levels that a pixel is off at most.
    """

    face: Font
    size: float
    colours: tuple[Colour, Colour]
    grain: int


def any_hand(rng: np.random.Generator, cell: Shape) -> Hand:
    """A way to write letters that fit cells of (height, width) `cell`."""
    size = float(rng.uniform(0.6, 0.78)) * min(cell)
    return Hand(any_face(rng), size, any_colours(rng), int(rng.integers(0, 16)))


def draw_letters(letters: Letters, rng: np.random.Generator, cell: Shape) -> Image.Image:
    """Draw a grid.

    The sides miss the multiple of `cell` by one pixel to 3/8 of a cell either way (of one or two cells, upwards),
    letters sit up to a sixteenth of it off the middle, and there is grain of up to 15 levels over all.
    """
    hand = any_hand(rng, cell)
    sides = [
        count * side + int(rng.integers(1, 3 * side // 8 + 1)) * (int(rng.choice((-1, 1))) if count > 2 else 1)
        for count, side in zip((len(letters), len(letters[0])), cell, strict=True)
    ]
    sheet = Sheet(sides[0], sides[1], hand.colours)
    write_letters(sheet, letters, rng, hand, slack=min(cell) / 16)
    return sheet.picture(grain(rng, sheet, hand))


def write_letters(sheet: Sheet, letters: Letters, rng: np.random.Generator, hand: Hand, *, slack: float) -> None:
    """Write a grid over a whole sheet, each letter up to `slack` pixels off the middle of its cell."""
    rows, cols = len(letters), len(letters[0])
    off = rng.uniform(-slack, slack, (rows, cols, 2))
    for row, line in enumerate(letters):
        for col, letter in enumerate(line):
            down, right = off[row, col].tolist()
            at = (row + 0.5) * sheet.height / rows + down, (col + 0.5) * sheet.width / cols + right
            sheet.write(letter, at, face=hand.face, size=hand.size)


def grain(rng: np.random.Generator, sheet: Sheet, hand: Hand) -> np.ndarray:
    """Levels to add to each pixel; whole numbers, which are the same on every machine."""
    return rng.integers(-hand.grain, hand.grain + 1, (sheet.height, sheet.width, 3))
