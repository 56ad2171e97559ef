"""Reading order: the words of a page that is set in columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from .base import check_each, generator
from .checks import whole
from .sample import Sample
from .sheet import Sheet, any_face, ink_size, page_colours
from .words import WORDS, some_words


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderTask:
    """Read a page: its columns from left to right, each from top to bottom.

    Args:
        columns: how many, page by page.
        lines: of a column.
        words: of a line.
        each: pages of each number of columns.
        size: pixels of an em.
    """

    name: ClassVar[str] = "order"
    summary: ClassVar[str] = "all words of a page that is set in columns, in reading order"
    large: ClassVar[Mapping[str, Any]] = {"columns": (1, 2, 3, 4), "lines": 12, "each": 24}

    columns: tuple[int, ...] = (1, 2, 3)
    lines: int = 4
    words: int = 2
    each: int = 4
    size: int = 22

    def __post_init__(self) -> None:
        check_each("columns", self.columns)
        for name, least in (("lines", 1), ("words", 1), ("each", 1), ("size", 6)):
            whole(name, getattr(self, name), least)
        for columns in self.columns:
            count = whole("columns", columns, 1) * self.lines * self.words
            if count > len(WORDS):
                raise ValueError(f"words in all are {count}; expected at most {len(WORDS)}, as many as there are")

    def __len__(self) -> int:
        return len(self.columns) * self.each

    def samples(self, seed: int = 0) -> Iterator[Sample]:
        """Draw the samples one by one."""
        for index in range(self.each):
            for columns in self.columns:
                yield self._page(columns, index, seed)

    def _page(self, columns: int, index: int, seed: int) -> Sample:
        rng = generator(self.name, seed, columns, index)
        words = some_words(rng, columns * self.lines * self.words)
        lines = [" ".join(words[at : at + self.words]) for at in range(0, len(words), self.words)]
        face, size = any_face(rng), self.size
        widest = max(ink_size(line, face=face, size=size)[1] for line in lines)
        column, leading, margin = round(widest + 2.5 * size), round(1.6 * size), round(size * float(rng.uniform(1, 2)))
        sheet = Sheet(
            self.lines * leading + 2 * margin, round(columns * column - 2.5 * size) + 2 * margin + 1, page_colours(rng)
        )
        for place, line in enumerate(lines):
            at = (margin + (place % self.lines + 0.5) * leading, margin + place // self.lines * column)
            sheet.write(line, at, face=face, size=size, anchor="lm")
        return Sample(
            id=f"{self.name}/{columns}/{index}",
            task=self.name,
            pictures=(sheet.picture(),),
            prompt=(
                0,
                "\nRead all words of this page: its columns from left to right, each column from top to bottom. "
                "Answer with the words in this order, separated by spaces.",
            ),
            kind="list",
            answer=" ".join(words),
            tags={"columns": columns, "words": len(words)},
        )
