"""A needle: one picture among many, or one frame of a clip, with look-alikes at regular distances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from PIL import Image

from ..glyphs import GLYPHS
from .base import Shape, check_each, check_pair, generator
from .checks import one_of, whole
from .grids import any_hand, deal, grain
from .sample import Clip, Sample
from .sheet import Sheet

PERIOD = 4
"""Every so many pictures comes one with two rings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedleTask:
    """Every picture shows a letter. One has a ring around it, which is the needle; look-alikes have two rings.

    Args:
        lengths: pictures in a haystack.
        depths: places of the needle in each haystack, evenly from its first picture to its last.
        each: haystacks of each length and depth.
        shown: as many pictures, or as the frames of one clip, where each is held for two frames.
        size: (height, width) of a picture in pixels.
    """

    name: ClassVar[str] = "needle"
    summary: ClassVar[str] = "the ringed letter among many pictures or frames, some of them look-alikes"
    large: ClassVar[Mapping[str, Any]] = {"lengths": (1, 16, 64, 256), "depths": 9, "each": 4}

    lengths: tuple[int, ...] = (1, 5, 16)
    depths: int = 5
    each: int = 2
    shown: Literal["pictures", "clip"] = "pictures"
    size: Shape = (92, 151)

    def __post_init__(self) -> None:
        check_each("lengths", self.lengths)
        for length in self.lengths:
            whole("length", length, 1)
        whole("depths", self.depths, 1)
        whole("each", self.each, 1)
        one_of("shown", self.shown, ("pictures", "clip"))
        check_pair("size", self.size, 24)

    def __len__(self) -> int:
        return self.each * sum(len(self._places(length)) for length in self.lengths)

    def samples(self, seed: int = 0) -> Iterator[Sample]:
        """Draw the samples one by one."""
        for index in range(self.each):
            for length in self.lengths:
                for place in self._places(length):
                    yield self._haystack(length, place, index, generator(self.name, seed, length, place, index))

    def _places(self, length: int) -> list[int]:
        """The pictures that are needles, from 0."""
        if self.depths == 1:
            return [length // 2]
        return sorted({round(depth * (length - 1) / (self.depths - 1)) for depth in range(self.depths)})

    def _haystack(self, length: int, place: int, index: int, rng: np.random.Generator) -> Sample:
        letters = deal(rng, length)
        first = int(rng.integers(PERIOD))
        rings = [2 if each % PERIOD == first else 0 for each in range(length)]
        rings[place] = 1
        clip = self.shown == "clip"
        pictures = []
        for each, count in zip(letters, rings, strict=True):
            pictures += [self._draw(each, count, rng)] * (2 if clip else 1)
        what = "frames of this clip" if clip else "pictures"
        seconds = tuple(each / 2 for each in range(len(pictures)))
        return Sample(
            id=f"{self.name}/{self.shown}-{length}/{place}-{index}",
            task=self.name,
            pictures=(Clip(tuple(pictures), seconds),) if clip else tuple(pictures),
            prompt=(
                *((0,) if clip else range(length)),
                f"\nThe {what} show letters. Which letter has exactly one ring around it? Answer with one letter.",
            ),
            kind="choice",
            answer=letters[place],
            choices=tuple(GLYPHS),
            tags={"length": length, "depth": round(place / max(1, length - 1), 3), "shown": self.shown},
        )

    def _draw(self, letter: str, rings: int, rng: np.random.Generator) -> Image.Image:
        """A letter in so many rings, anywhere."""
        hand, room = any_hand(rng, self.size), min(self.size)
        sheet = Sheet(*self.size, hand.colours)
        row, col = (side / 2 + float(rng.uniform(-0.5, 0.5)) * (side - 0.98 * room) for side in self.size)
        sheet.write(letter, (row, col), face=hand.face, size=0.6 * hand.size)
        for ring in range(rings):
            sheet.ring((row, col), (0.35 + 0.1 * ring) * room, width=0.03 * room)
        return sheet.picture(grain(rng, sheet, hand))
