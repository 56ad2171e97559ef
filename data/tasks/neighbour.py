"""What stands right of, left of, above and below a letter, and the way back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..glyphs import GLYPHS, RELATIONS
from .base import Shape, either
from .grids import GridTask, deal, draw_letters, in_rows, where_tags
from .sample import Sample

_WORDS = {"right": "to the right of", "left": "to the left of", "above": "above", "below": "below"}
_BACK = {"right": "left", "left": "right", "above": "below", "below": "above"}
CHOICES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourTask(GridTask):
    """Settings of `GridTask`: which letter stands next to another.

    A set asks for all neighbours of one cell, and from each of them for the way back: what is right of A, and what is
    left of the answer. The cell has all four neighbours where the grid has three rows and three columns.
    """

    name: ClassVar[str] = "neighbour"
    summary: ClassVar[str] = "the letter right of, left of, above or below another, and back; sets of all"
    large: ClassVar[Mapping[str, Any]] = {"shapes": ((6, 9), (20, 14), (16, 31)), "each": 12}

    each: int = 3

    def __post_init__(self) -> None:
        GridTask.__post_init__(self)
        for shape in self.shapes:
            if shape == (1, 1):
                raise ValueError(f"shape is {shape}; expected two cells or more, since a lone letter has no neighbour")

    def __len__(self) -> int:
        return self.each * sum(2 * (min(rows - 1, 2) + min(cols - 1, 2)) for rows, cols in self.shapes)

    def _cells(self, shape: Shape) -> list[Shape]:
        # A side of three and more has cells with a neighbour either way; of two, each cell has one.
        rows, cols = (range(1, side - 1) if side > 2 else range(side) for side in shape)
        return [(row, col) for row in rows for col in cols]

    def _ask(self, name: str, shape: Shape, at: Shape, rng: np.random.Generator) -> Iterator[Sample]:
        around = _around(at, shape)
        # All that can be a choice stands once, so that the commonest or rarest letter is no better than another.
        steps = [around, *(_around(beside, shape) for beside in around.values())]
        once = list(dict.fromkeys(cell for step in steps for cell in step.values()))
        letters = _letters(shape, once, rng)
        picture = draw_letters(letters, rng, self.cell)
        for relation, beside in around.items():
            for way, start, end in (("out", at, beside), ("back", beside, at)):
                side = relation if way == "out" else _BACK[relation]
                choices = _choices(letters, start, once, rng)
                yield Sample(
                    id=f"{name}/{relation}-{way}",
                    task=self.name,
                    pictures=(picture,),
                    prompt=(
                        0,
                        f"\nWhich letter stands directly {_WORDS[side]} the letter {letters[start[0]][start[1]]}? "
                        f"Answer with one letter: {either(choices)}.",
                    ),
                    kind="choice",
                    answer=letters[end[0]][end[1]],
                    choices=choices,
                    group=name,
                    tags={**where_tags(shape, start), "relation": side, "way": way},
                    ask=self._pointing(side, start),
                )


def _around(at: Shape, shape: Shape) -> dict[str, Shape]:
    """The neighbours of a cell that lie in the grid: relation -> cell."""
    steps = {relation: (at[0] + down, at[1] + right) for relation, (down, right) in RELATIONS.items()}
    return {
        relation: (row, col)
        for relation, (row, col) in steps.items()
        if relation != "in" and 0 <= row < shape[0] and 0 <= col < shape[1]
    }


def _letters(shape: Shape, once: list[Shape], rng: np.random.Generator) -> list[list[str]]:
    """A grid in which each letter of the cells `once` stands nowhere else."""
    alone = deal(rng, len(once))
    rest = iter(deal(rng, shape[0] * shape[1] - len(once), [letter for letter in GLYPHS if letter not in alone]))
    by_cell = dict(zip(once, alone, strict=True))
    return in_rows([by_cell.get(at) or next(rest) for at in np.ndindex(shape)], shape)


def _choices(letters: list[list[str]], at: Shape, once: list[Shape], rng: np.random.Generator) -> tuple[str, ...]:
    """All neighbours of a cell, and other letters where it has fewer than four."""
    chosen = {letters[row][col] for row, col in _around(at, (len(letters), len(letters[0]))).values()}
    for pool in ({letters[row][col] for row, col in once}, set(GLYPHS)):
        left = sorted(pool - chosen - {letters[at[0]][at[1]]})
        chosen |= {left[index] for index in rng.permutation(len(left))[: CHOICES - len(chosen)].tolist()}
    return tuple(sorted(chosen))
