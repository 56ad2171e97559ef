"""What a model says to a sample, and what any model must be able to do to be asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mrope.data import Sample
from mrope.vision import Plan


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """What a model said to one sample.

    Args:
        text: as it came; "" where only `scores` are known.
        scores: a logit or log-probability for each of the sample's choices, where the model gives such.
        failure: why there is no answer at all, such as "HTTP 500 after 4 tries"; "" where there is one.
        plans: of each picture as the model saw it, by which boxes find their way back to the picture's pixels; of a
            clip, that of its frames. () where the model's numbers are taken for pixels of the picture.
        seconds: that it took.
        refused: that `failure` says why the model cannot be asked this; such samples are counted apart.
    """

    text: str = ""
    scores: Mapping[str, float] | None = None
    failure: str = ""
    plans: tuple[Plan | None, ...] = ()
    seconds: float = 0.0
    refused: bool = False


@runtime_checkable
class Respondent(Protocol):
    """A model that can be asked."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    @property
    def facts(self) -> Mapping[str, str]:
        """What else reports should say of it: family, dtype, device, checkpoint, and whether its weights are random."""
        ...

    def refuses(self, sample: Sample) -> str:
        """Why this model cannot be asked this sample, "" if it can; such samples are counted apart."""
        ...

    def answer(self, samples: Sequence[Sample]) -> Iterator[Reply]:
        """One reply for each sample, in order, as they come; what fails is a reply with `failure`, and no exception."""
        ...


@dataclass(frozen=True, slots=True)
class Mark:
    """How a reply is judged.

    Args:
        outcome: "right", "wrong"; or why it could not be read and counts as wrong: "empty", "unread" (prose that names
            no answer), "several" (more answers than one), "failed" (no reply).
        share: 1 or 0; of lists and boxes the share that is right (edit similarity, intersection over union).
        read: the answer that was read from the reply, "" if none.
    """

    outcome: str
    share: float = 0.0
    read: str = ""
