"""What stands in a cell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..glyphs import GLYPHS
from .base import Shape
from .grids import FROM_ONE, GridTask, cell_words, deal, draw_letters, in_rows, where_tags
from .sample import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTask(GridTask):
    """Settings of `GridTask`: which letter stands in the row r and the column c."""

    name: ClassVar[str] = "cell"
    summary: ClassVar[str] = "the letter in a row and a column of a grid"

    def _ask(self, name: str, shape: Shape, at: Shape, rng: np.random.Generator) -> Iterator[Sample]:
        letters = in_rows(deal(rng, shape[0] * shape[1]), shape)
        picture = draw_letters(letters, rng, self.cell)
        yield Sample(
            id=name,
            task=self.name,
            pictures=(picture,),
            prompt=(0, f"\nWhich letter stands in {cell_words(at)}? {FROM_ONE} Answer with one letter."),
            kind="choice",
            answer=letters[at[0]][at[1]],
            choices=tuple(GLYPHS),
            tags=where_tags(shape, at),
            ask=self._pointing("in", at),
        )
