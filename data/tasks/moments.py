"""Moments of a clip: what is shown before and after, and when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .base import Shape, check_each, check_pair, either, generator
from .checks import whole
from .grids import any_hand, deal, grain
from .sample import Clip, Sample
from .sheet import Sheet

RELATIONS = ("before", "after", "at")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeTask:
    """A clip shows one letter after another, each anywhere in its frames: which comes before, after, or is seen at t?

    Frames come at uneven times. A letter is asked for halfway between its first frame and its last.

    Args:
        letters: how many letters a clip shows.
        hold: frames that show one letter, so that families that merge two frames see one letter in both.
        each: clips of each number of letters, for each of "before", "after" and "at".
        size: (height, width) of a frame in pixels.
    """

    name: ClassVar[str] = "time"
    summary: ClassVar[str] = "the letter shown before or after another in a clip, or at second t"
    large: ClassVar[Mapping[str, Any]] = {"letters": (4, 8, 16, 22), "hold": 8, "each": 16, "size": (230, 370)}

    letters: tuple[int, ...] = (3, 7)
    hold: int = 2
    each: int = 4
    size: Shape = (92, 151)

    def __post_init__(self) -> None:
        check_each("letters", self.letters)
        for count in self.letters:
            if whole("letters", count, 3) > 24:
                raise ValueError(f"letters is {count}; expected at most 24, since each is shown once")
        whole("hold", self.hold, 1)
        whole("each", self.each, 1)
        check_pair("size", self.size, 24)

    def __len__(self) -> int:
        return len(self.letters) * len(RELATIONS) * self.each

    def samples(self, seed: int = 0) -> Iterator[Sample]:
        """Draw the samples one by one."""
        for index in range(self.each):
            for count in self.letters:
                for place, relation in enumerate(RELATIONS):
                    yield self._clip(count, relation, index, generator(self.name, seed, count, place, index))

    def _clip(self, count: int, relation: str, index: int, rng: np.random.Generator) -> Sample:
        letters = deal(rng, count)
        clip = self._draw(letters, rng)
        if relation == "at":
            place = int(rng.integers(count))
            second = (clip.seconds[place * self.hold] + clip.seconds[(place + 1) * self.hold - 1]) / 2
            question = f"at {second:g} seconds"
            choices = sorted(letters)
        else:
            step = -1 if relation == "before" else 1
            named = int(rng.integers(1, count)) if step < 0 else int(rng.integers(count - 1))
            place = named + step
            question = f"directly {relation} the letter {letters[named]}"
            choices = sorted(set(letters) - {letters[named]})
        return Sample(
            id=f"{self.name}/{count}/{relation}-{index}",
            task=self.name,
            pictures=(clip,),
            prompt=(
                0,
                f"\nThe clip shows one letter after another. Which letter is shown {question}? "
                f"Answer with one letter: {either(choices)}.",
            ),
            kind="choice",
            answer=letters[place],
            choices=tuple(choices),
            tags={"letters": count, "frames": len(clip.frames), "relation": relation, "place": place},
        )

    def _draw(self, letters: list[str], rng: np.random.Generator) -> Clip:
        hand = any_hand(rng, self.size)
        frames, seconds, second = [], [], 0.0
        for letter in letters:
            sheet = Sheet(*self.size, hand.colours)
            sheet.write_in(letter, (0, 0, self.size[1], self.size[0]), rng, face=hand.face, size=hand.size)
            for _ in range(self.hold):
                frames.append(sheet.picture(grain(rng, sheet, hand)))
                seconds.append(second)
                second += int(rng.integers(2, 9)) / 4
        return Clip(tuple(frames), tuple(seconds))
