"""Tables: the number in a row and a column that are named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .base import Shape
from .grids import GridTask, in_rows, where_tags
from .sample import Sample
from .sheet import Sheet, any_face, ink_size, page_colours
from .words import WORDS, some_words


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTask(GridTask):
    """Look up a number in a table. Every other table is ruled, columns differ in width.

    The settings are those of `GridTask`, where a shape counts the numbers alone, and `cell` is the (height, width) of
    the narrowest cell: an em is 0.6 of its height.
    """

    name: ClassVar[str] = "table"
    summary: ClassVar[str] = "the number in a row and a column that are named, in ruled and unruled tables"
    large: ClassVar[Mapping[str, Any]] = {"shapes": ((6, 3), (12, 7), (30, 10)), "each": 48}

    shapes: tuple[Shape, ...] = ((4, 2), (3, 5), (9, 4))
    cell: Shape = (35, 60)

    def __post_init__(self) -> None:
        GridTask.__post_init__(self)
        for rows, cols in self.shapes:
            if rows + cols > len(WORDS) or rows * cols > 900:
                raise ValueError(
                    f"shape is {(rows, cols)}; expected at most {len(WORDS)} rows and columns in all and 900 cells, "
                    "as there are names and numbers"
                )

    def _ask(self, name: str, shape: Shape, at: Shape, rng: np.random.Generator) -> Iterator[Sample]:
        (rows, cols), high = shape, self.cell[0]
        names = some_words(rng, rows + cols)
        down, across = names[:rows], names[rows:]
        numbers = in_rows([str(100 + number) for number in rng.permutation(900)[: rows * cols].tolist()], shape)
        ruled = int(name.rsplit("/", 1)[1]) % 2 == 0
        table = [["", *across], *([word, *line] for word, line in zip(down, numbers, strict=True))]
        face, size = any_face(rng), 0.6 * high
        widths = [
            max(self.cell[1], round(max(ink_size(line[place] or " ", face=face, size=size)[1] for line in table)) + 16)
            + int(rng.integers(0, high))
            for place in range(cols + 1)
        ]
        margin = high // 2 + int(rng.integers(0, high))
        edges = [margin, *(margin + np.cumsum(widths)).tolist()]
        sheet = Sheet((rows + 1) * high + 2 * margin, edges[-1] + margin, page_colours(rng))
        for r, line in enumerate(table):
            for c, word in enumerate(line):
                if word:
                    # Names of rows begin where their column does, all else ends there.
                    col, anchor = (edges[0] + 8, "lm") if c == 0 else (edges[c + 1] - 8, "rm")
                    sheet.write(word, (margin + (r + 0.5) * high, col), face=face, size=size, anchor=anchor)
        if ruled:
            bottom = margin + (rows + 1) * high
            for r in range(rows + 2):
                sheet.rule((margin + r * high, margin), (margin + r * high, edges[-1]))
            for col in edges:
                sheet.rule((margin, col), (bottom, col))
        yield Sample(
            id=name,
            task=self.name,
            pictures=(sheet.picture(),),
            prompt=(
                0,
                f'\nWhich number does the table give in the row "{down[at[0]]}" and the column "{across[at[1]]}"? '
                "Answer with the number.",
            ),
            kind="number",
            answer=numbers[at[0]][at[1]],
            tags={**where_tags(shape, at), "ruled": "ruled" if ruled else "unruled"},
        )
