"""The blind twin of any model: it answers each question beside the picture of another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from mrope.data import Clip, Sample
from mrope.probes.spatial.reply import Reply, Respondent


class Blind:
    """A model that is shown, with each question, the pictures of another one, at the size of its own.

    What it gets right it gets right without looking: its accuracy is the floor that a probe must show.

    Args:
        respondent: the model.
        seed: of who is shown whose pictures.
    """

    def __init__(self, respondent: Respondent, *, seed: int = 0) -> None:
        self.respondent = respondent
        self.seed = seed
        self.name = f"{respondent.name}, blind"
        self.facts: Mapping[str, str] = {**respondent.facts, "blind": f"pictures exchanged, seed {seed}"}

    def refuses(self, sample: Sample) -> str:
        """Why the model cannot be asked this sample; "" if it can."""
        return self.respondent.refuses(sample)

    def answer(self, samples: Sequence[Sample], *, among: Sequence[Sample] | None = None) -> Iterator[Reply]:
        """One reply for each sample, in order.

        Args:
            samples: that are asked.
            among: the samples whose pictures are exchanged, those that are asked among them; None for these alone. A
                run gives as many as it draws together, so that one that goes on shows each sample what it would have
                been shown anyway.
        """
        among = samples if among is None else among
        shown = {id(own): other for own, other in zip(among, exchanged(among, self.seed), strict=True)}
        return self.respondent.answer([shown[id(sample)] for sample in samples])


def exchanged(samples: Sequence[Sample], seed: int = 0) -> list[Sample]:
    """The samples, each with the pictures of another that shows other ones; grey ones where there is no other.

    Samples that show the same picture all get another one; sizes, and the frames of clips, stay those of the sample.
    """
    order = np.random.default_rng([seed, 5]).permutation(len(samples)).tolist()
    made = list(samples)
    for place, index in enumerate(order):
        own = samples[index]
        others = (samples[order[(place + step) % len(order)]].pictures for step in range(1, len(order)))
        # Only samples that show as many pictures have one for each.
        fitting = (each for each in others if len(each) == len(own.pictures) and not _shared(own.pictures, each))
        theirs = next(fitting, (Image.new("RGB", (8, 8), (128, 128, 128)),) * len(own.pictures))
        pairs = zip(own.pictures, theirs, strict=True)
        made[index] = replace(own, pictures=tuple(_sized(mine, other) for mine, other in pairs))
    return made


def _shared(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return bool({id(each) for each in one} & {id(each) for each in other})


def _sized(own: Any, other: Any) -> Any:
    """The picture or clip `other` at the size of `own`, and with as many frames."""
    if isinstance(own, Clip):
        frames = other.frames if isinstance(other, Clip) else (other,)
        size = own.frames[0].size
        return Clip(tuple(frames[at % len(frames)].resize(size) for at in range(len(own.frames))), own.seconds)
    return (other.frames[0] if isinstance(other, Clip) else other).resize(own.size)
