"""Questions in words, as the tasks `cell`, `neighbour` and `moved` of `mrope.data` write them, read back."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mrope.data import GLYPHS

UNSUPPORTED = "unsupported_question"
"""The code of the server's error for what the reader cannot be asked; other errors have their status as code."""
_CELL = re.compile(r"Which letter stands in (?:its )?row (\d{1,4}), column (\d{1,4})\?")
_NEXT = re.compile(
    rf"Which letter stands directly (to the right of|to the left of|above|below) the letter ([{GLYPHS}])\?"
)
_RELATIONS = {"to the right of": "right", "to the left of": "left", "above": "above", "below": "below"}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a question asks.

    Args:
        relation: of `mrope.data.RELATIONS`.
        start: the cell (row, column) that it starts from, from 0, or the letter that stands there.
    """

    relation: str
    start: tuple[int, int] | str


def asked(words: str) -> Asked:
    """The question in `words`.

    Raises:
        ValueError: there is none that the reader understands, or more than one.

    >>> asked("Which letter stands in row 2, column 5? Answer with one letter.")
    Asked(relation='in', start=(1, 4))
    """
    line = " ".join(words.split())
    cells, letters = _CELL.findall(line), _NEXT.findall(line)
    if len(cells) + len(letters) != 1 or any(int(number) == 0 for cell in cells for number in cell):
        raise ValueError(
            f'the question is {line[-200:]!r}; expected one "Which letter stands in row 2, column 5?", counted from 1, '
            'or "Which letter stands directly to the right of the letter K?"'
        )
    if cells:
        ((row, col),) = cells
        return Asked("in", (int(row) - 1, int(col) - 1))
    ((side, letter),) = letters
    return Asked(_RELATIONS[side], letter)
