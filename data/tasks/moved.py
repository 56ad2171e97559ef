"""One question about one picture in several guises: whoever knows where things are gives one answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from ..glyphs import CELL, GLYPHS
from .base import Shape, check_each
from .checks import one_of, whole
from .grids import FROM_ONE, GridTask, Hand, any_hand, cell_words, deal, grain, in_rows, where_tags, write_letters
from .sample import Sample
from .sheet import Sheet

GUISES = ("plain", "shifted", "nudged", "padded", "scaled", "budget")


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedTask(GridTask):
    """The question of `CellTask`, about the same letters in other places, sizes and budgets. A group is a question.

    - plain: the grid alone.
    - shifted: on larger paper, whole cells away from its upper left corner; the letters' pixels are the same.
    - nudged: on larger paper, less than a cell away from the corner; the same pixels.
    - padded: with paper right of and below it; the same pixels.
    - scaled: 1.5 times as high and as wide.
    - budget: with twice as many pixels as `budget` tokens hold, which the model has to bring down to that budget.

    Args:
        guises: which of them.
        budget: tokens, of 32 x 32 pixels.
    """

    name: ClassVar[str] = "moved"
    summary: ClassVar[str] = "the cell's letter when the picture is shifted, padded, scaled or at another budget"
    large: ClassVar[Mapping[str, Any]] = {"shapes": ((6, 9), (14, 10), (9, 20)), "each": 24, "budget": 512}

    shapes: tuple[Shape, ...] = ((3, 5), (8, 6))
    each: int = 4
    guises: tuple[str, ...] = GUISES
    budget: int = 128

    def __post_init__(self) -> None:
        GridTask.__post_init__(self)
        check_each("guises", self.guises)
        for guise in self.guises:
            one_of("guise", guise, GUISES)
        whole("budget", self.budget, 1)

    def __len__(self) -> int:
        return len(self.shapes) * self.each * len(self.guises)

    def _ask(self, name: str, shape: Shape, at: Shape, rng: np.random.Generator) -> Iterator[Sample]:
        letters = in_rows(deal(rng, shape[0] * shape[1]), shape)
        hand = any_hand(rng, self.cell)
        # A few pixels off the multiple of a cell: the shipped reader's tokens still show one letter each when shifted.
        high, wide = (count * side + int(rng.integers(1, 5)) for count, side in zip(shape, self.cell, strict=True))
        sheet = Sheet(high, wide, hand.colours)
        write_letters(sheet, letters, rng, hand, slack=min(self.cell) / 16)
        plain = sheet.picture(grain(rng, sheet, hand))
        top, left, bottom, right = rng.integers(1, 4, 4).tolist()
        down, across = self.cell
        room = {
            "shifted": (top * down, left * across, bottom * down, right * across),
            "nudged": tuple(1 + int(rng.integers(side - 2)) for side in (*self.cell, *self.cell)),
            "padded": (0, 0, bottom * down, right * across),
        }
        pointed = {"plain": at, "padded": at, "shifted": (at[0] + top, at[1] + left)}
        for guise in self.guises:
            if guise in room:
                picture = _on_larger(plain, room[guise], hand, rng)
            elif guise == "plain":
                picture = plain
            else:
                larger = sqrt(2 * self.budget * CELL * CELL / (high * wide))
                picture = _scaled(plain, 1.5 if guise == "scaled" else larger)
            yield Sample(
                id=f"{name}/{guise}",
                task=self.name,
                pictures=(picture,),
                prompt=(
                    0,
                    f"\nThe picture shows a grid of letters. Which letter stands in its {cell_words(at)}? "
                    f"{FROM_ONE.replace('the top left', 'the top left letter')} Answer with one letter.",
                ),
                kind="choice",
                answer=letters[at[0]][at[1]],
                choices=tuple(GLYPHS),
                group=name,
                tags={**where_tags(shape, at), "guise": guise},
                ask=self._pointing("in", pointed[guise]) if guise in pointed else None,
                max_tokens=self.budget if guise == "budget" else None,
            )


def _on_larger(picture: Image.Image, room: tuple[int, ...], hand: Hand, rng: np.random.Generator) -> Image.Image:
    """The picture on paper with room (top, left, bottom, right) around it."""
    top, left, bottom, right = room
    sheet = Sheet(top + picture.height + bottom, left + picture.width + right, hand.colours)
    larger = sheet.picture(grain(rng, sheet, hand))
    larger.paste(picture, (left, top))
    return larger


def _scaled(picture: Image.Image, factor: float) -> Image.Image:
    size = max(1, round(picture.width * factor)), max(1, round(picture.height * factor))
    return picture.resize(size, Image.Resampling.BICUBIC)
