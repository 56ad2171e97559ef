"""Small print: a word at letter heights from large to illegible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..canvas import Number
from .base import Shape, check_each, check_pair, generator
from .checks import positive, whole
from .sample import Sample
from .sheet import FACES, Sheet, ink_size, page_colours
from .words import some_words

WIDEST = 8
"""No word of capitals is wider than this many times its height (seven letters, in the widest face)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintTask:
    """One word in capitals, anywhere on a page: from which height on can it be read?

    Args:
        heights: of a capital, in pixels of the picture.
        each: words of each height.
        size: (height, width) of the page in pixels; the same for all, so that all cost the same tokens.
    """

    name: ClassVar[str] = "print"
    summary: ClassVar[str] = "a word in letters from large to illegible"
    large: ClassVar[Mapping[str, Any]] = {"each": 48, "size": (1149, 1613)}

    heights: tuple[Number, ...] = (32, 20, 14, 10, 8, 7, 6, 5, 4, 3)
    each: int = 8
    size: Shape = (230, 370)

    def __post_init__(self) -> None:
        check_each("heights", self.heights)
        whole("each", self.each, 1)
        check_pair("size", self.size, 1)
        for height in self.heights:
            if positive("height", height) < 1:
                raise ValueError(f"height is {height:g}; expected at least 1 pixel")
            least = round(2 * height + 8), round(WIDEST * height + 8)
            if self.size[0] < least[0] or self.size[1] < least[1]:
                raise ValueError(f"size is {self.size}; expected at least {least} for capitals of {height:g} pixels")

    def __len__(self) -> int:
        return len(self.heights) * self.each

    def samples(self, seed: int = 0) -> Iterator[Sample]:
        """Draw the samples one by one."""
        for index in range(self.each):
            for height in self.heights:
                rng = generator(self.name, seed, index)  # the same words in all heights
                (word,), face = some_words(rng, 1), FACES[index % len(FACES)]
                size = 100 * height / ink_size("H", face=face, size=100)[0]
                sheet = Sheet(*self.size, page_colours(rng))
                room = (3, 3, self.size[1] - 3, self.size[0] - 3)
                sheet.write_in(word.upper(), room, rng, face=face, size=size)
                yield Sample(
                    id=f"{self.name}/{height}/{index}",
                    task=self.name,
                    pictures=(sheet.picture(),),
                    prompt=(0, "\nWhich word stands in the picture? Answer with the word."),
                    kind="text",
                    answer=word.upper(),
                    tags={"height": height},
                )
