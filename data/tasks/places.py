"""Where something stands: a letter to point at, a word to put a box around."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..glyphs import GLYPHS
from .base import Shape
from .grids import GridTask, deal, draw_letters, in_rows, where_tags
from .sample import Sample
from .sheet import Sheet, any_face, page_colours
from .words import WORDS, some_words


@dataclass(frozen=True, slots=True, kw_only=True)
class PointTask(GridTask):
    """Settings of `GridTask`: point at a letter that stands once. A point is right anywhere in the letter's cell."""

    name: ClassVar[str] = "point"
    summary: ClassVar[str] = "a point on a letter"

    def _ask(self, name: str, shape: Shape, at: Shape, rng: np.random.Generator) -> Iterator[Sample]:
        letter, *others = deal(rng, len(GLYPHS))
        letters = in_rows(deal(rng, shape[0] * shape[1], others), shape)
        letters[at[0]][at[1]] = letter
        picture = draw_letters(letters, rng, self.cell)
        high, wide = picture.height / shape[0], picture.width / shape[1]
        yield Sample(
            id=name,
            task=self.name,
            pictures=(picture,),
            prompt=(0, f"\nPoint at the letter {letter}. Answer with the coordinates of one point: (x, y)."),
            kind="point",
            box=(at[1] * wide, at[0] * high, (at[1] + 1) * wide, (at[0] + 1) * high),
            tags=where_tags(shape, at),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FindTask(GridTask):
    """Find a word among others, which are scattered over a page, one anywhere in each cell.

    The settings are those of `GridTask`; a cell of `cell` pixels holds a word of a sixth of its width an em, or less.
    """

    name: ClassVar[str] = "find"
    summary: ClassVar[str] = "the box around a word on a page"
    large: ClassVar[Mapping[str, Any]] = {"shapes": ((5, 3), (8, 5), (19, 8)), "each": 48}

    shapes: tuple[Shape, ...] = ((3, 2), (4, 5), (11, 3))
    cell: Shape = (47, 151)

    def __post_init__(self) -> None:
        GridTask.__post_init__(self)
        for rows, cols in self.shapes:
            if rows * cols > len(WORDS):
                raise ValueError(f"shape is {(rows, cols)}; expected at most {len(WORDS)} cells, as there are words")

    def _ask(self, name: str, shape: Shape, at: Shape, rng: np.random.Generator) -> Iterator[Sample]:
        words = in_rows(some_words(rng, shape[0] * shape[1]), shape)
        face, (high, wide) = any_face(rng), self.cell
        size = min(wide / 6, high / 1.8) * float(rng.uniform(0.6, 0.95))
        sheet = Sheet(shape[0] * high, shape[1] * wide, page_colours(rng))
        boxes = {}
        for row, col in np.ndindex(shape):
            room = (col * wide + 3, row * high + 3, (col + 1) * wide - 3, (row + 1) * high - 3)
            boxes[row, col] = sheet.write_in(words[row][col], room, rng, face=face, size=size)
        yield Sample(
            id=name,
            task=self.name,
            pictures=(sheet.picture(),),
            prompt=(
                0,
                f'\nWhere does the word "{words[at[0]][at[1]]}" stand? '
                "Answer with the coordinates of the box around it: (left, top, right, bottom).",
            ),
            kind="box",
            box=boxes[at],
            tags=where_tags(shape, at),
        )
