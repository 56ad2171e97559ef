"""Lines of letters: a row or a column read through, and letters counted along one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from ..glyphs import GLYPHS
from .base import Shape
from .checks import one_of, whole
from .grids import FROM_ONE, GridTask, deal, draw_letters, in_rows
from .sample import Sample

Line = Literal["row", "column"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTask(GridTask):
    """Settings of `GridTask`: read a row from left to right."""

    name: ClassVar[str] = "row"
    summary: ClassVar[str] = "all letters of a row, from left to right"
    large: ClassVar[Mapping[str, Any]] = {"shapes": ((6, 9), (20, 14), (16, 31)), "each": 16}

    each: int = 6

    def _ask(self, name: str, shape: Shape, at: Shape, rng: np.random.Generator) -> Iterator[Sample]:
        letters = in_rows(deal(rng, shape[0] * shape[1]), shape)
        line, place = ("row", at[0]) if self.name == "row" else ("column", at[1])
        way = "from left to right" if line == "row" else "from top to bottom"
        read = letters[place] if line == "row" else [each[place] for each in letters]
        picture = draw_letters(letters, rng, self.cell)
        yield Sample(
            id=name,
            task=self.name,
            pictures=(picture,),
            prompt=(
                0,
                f"\nRead {line} {place + 1}, counted from 1 at the {'top' if line == 'row' else 'left'}, {way}. "
                "Answer with its letters, separated by spaces.",
            ),
            kind="list",
            answer=" ".join(read),
            tags={"rows": shape[0], "cols": shape[1], "place": place, "length": len(read)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnTask(RowTask):
    """Settings of `GridTask`: read a column from top to bottom."""

    name: ClassVar[str] = "column"
    summary: ClassVar[str] = "all letters of a column, from top to bottom"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountTask(GridTask):
    """How often a letter stands in a line, where other lines have it as well.

    Args:
        line: count along a row or along a column.
        most: the largest number; from 0 to it, all are as frequent.
    """

    name: ClassVar[str] = "count"
    summary: ClassVar[str] = "how often a letter stands in a row (or a column)"

    line: Line = "row"
    most: int = 3

    def __post_init__(self) -> None:
        GridTask.__post_init__(self)
        one_of("line", self.line, ("row", "column"))
        whole("most", self.most, 1)
        for rows, cols in self.shapes:
            length = cols if self.line == "row" else rows
            if self.most > length:
                raise ValueError(
                    f"most is {self.most}; expected at most {length}, the length of a {self.line} of {rows} x {cols}"
                )

    def _ask(self, name: str, shape: Shape, at: Shape, rng: np.random.Generator) -> Iterator[Sample]:
        count, length = shape if self.line == "row" else shape[::-1]
        place = at[0] if self.line == "row" else at[1]
        letter, *others = deal(rng, len(GLYPHS))
        times = rng.integers(0, self.most + 1, count).tolist()
        lines = [_line(letter, often, deal(rng, length - often, others), rng) for often in times]
        letters = lines if self.line == "row" else [list(row) for row in zip(*lines, strict=True)]
        picture = draw_letters(letters, rng, self.cell)
        yield Sample(
            id=name,
            task=self.name,
            pictures=(picture,),
            prompt=(
                0,
                f"\nHow many times does the letter {letter} stand in {self.line} {place + 1}? {FROM_ONE} "
                f"Answer with one number from 0 to {self.most}.",
            ),
            kind="number",
            answer=str(times[place]),
            choices=tuple(map(str, range(self.most + 1))),
            tags={"rows": shape[0], "cols": shape[1], "place": place, "length": length, "times": times[place]},
        )


def _line(letter: str, often: int, others: list[str], rng: np.random.Generator) -> list[str]:
    """A line in which `letter` stands `often` times among `others`, anywhere."""
    line = [letter] * often + others
    return [line[index] for index in rng.permutation(len(line)).tolist()]
