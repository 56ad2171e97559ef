"""Text distance: words that say nothing, before the picture or between it and the question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..glyphs import GLYPHS
from .base import Shape, check_each
from .checks import whole
from .grids import FROM_ONE, GridTask, cell_words, deal, draw_letters, in_rows, where_tags
from .sample import Sample
from .words import some_words


@dataclass(frozen=True, slots=True, kw_only=True)
class DistanceTask(GridTask):
    """The question of `CellTask` with other words around the picture. A group is a question.

    Args:
        words: how many words there are, before the picture and again after it.
    """

    name: ClassVar[str] = "distance"
    summary: ClassVar[str] = "the cell's letter with many words before or after the picture"
    large: ClassVar[Mapping[str, Any]] = {"shapes": ((6, 9),), "each": 24, "words": (0, 128, 1024, 4096, 16384)}

    shapes: tuple[Shape, ...] = ((4, 7),)
    each: int = 6
    words: tuple[int, ...] = (0, 32, 128, 512)

    def __post_init__(self) -> None:
        GridTask.__post_init__(self)
        check_each("words", self.words)
        for count in self.words:
            whole("words", count, 0)

    def __len__(self) -> int:
        return len(self.shapes) * self.each * sum(2 if count else 1 for count in self.words)

    def _ask(self, name: str, shape: Shape, at: Shape, rng: np.random.Generator) -> Iterator[Sample]:
        letters = in_rows(deal(rng, shape[0] * shape[1]), shape)
        picture = draw_letters(letters, rng, self.cell)
        question = f"Which letter stands in {cell_words(at)} of the picture? {FROM_ONE} Answer with one letter."
        for count in self.words:
            filler = f"These words do not matter: {' '.join(some_words(rng, count))}."
            prompts = {"before": (f"{filler}\n", 0, f"\n{question}"), "after": (0, f"\n{filler}\n{question}")}
            for place, prompt in prompts.items() if count else [("", (0, f"\n{question}"))]:
                yield Sample(
                    id=f"{name}/{count}{place and '-'}{place}",
                    task=self.name,
                    pictures=(picture,),
                    prompt=prompt,
                    kind="choice",
                    answer=letters[at[0]][at[1]],
                    choices=tuple(GLYPHS),
                    group=name,
                    tags={**where_tags(shape, at), "words": count, **({"place": place} if place else {})},
                )
