"""A Python function that answers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mrope.data import Sample
from mrope.probes.spatial.reply import Reply
from mrope.probes.spatial.respondents.messages import failed


class CallableRespondent:
    """A function of one sample: a model of any kind, or a rule to hold models against.

    Args:
        function: takes a `Sample` and gives text, a number, a `Reply`, or scores: a mapping from each of the sample's
            choices to a number, the largest for what it thinks right. What it raises becomes a reply with `failure`.
        name: what reports call it, by default the function's name.
    """

    def __init__(self, function: Callable[[Sample], Any], *, name: str | None = None) -> None:
        if not callable(function):
            raise TypeError(f"function is {function!r:.80}; expected a function of one sample")
        self.function = function
        called = getattr(function, "__qualname__", type(function).__qualname__)
        self.name = called if name is None else name
        self.facts: Mapping[str, str] = {"function": f"{getattr(function, '__module__', '?')}:{called}"}

    def refuses(self, sample: Sample) -> str:
        """A function is asked everything."""
        return ""

    def answer(self, samples: Sequence[Sample]) -> Iterator[Reply]:
        """One reply for each sample, in order."""
        return map(self._answer, samples)

    def _answer(self, sample: Sample) -> Reply:
        start = time.perf_counter()
        try:
            said = self.function(sample)
        except Exception as error:
            return failed(error, time.perf_counter() - start)
        seconds = time.perf_counter() - start
        if isinstance(said, Reply):
            return said
        if isinstance(said, (str, int, float)) and not isinstance(said, bool):
            return Reply(str(said), seconds=seconds)
        return _scored(said, sample, seconds)


def _scored(said: Any, sample: Sample, seconds: float) -> Reply:
    """The reply of a function that gave scores, or neither text nor scores."""
    if not isinstance(said, Mapping):
        what = f"function gave {said!r:.80}; expected text, a Reply, or a mapping from each choice to a number"
        return Reply(failure=what, seconds=seconds)
    if not sample.choices or set(said) != set(sample.choices):
        known = ", ".join(map(repr, sample.choices)) or "text or a number, as the sample has no choices"
        what = f"function scored {', '.join(map(repr, said)) or 'nothing'}; expected {known}"
        return Reply(failure=what, seconds=seconds)
    try:
        scores = {choice: float(said[choice]) for choice in sample.choices}
    except (TypeError, ValueError) as error:
        return failed(error, seconds)
    if any(math.isnan(score) for score in scores.values()):
        return Reply(failure=f"function scored {scores}; expected numbers", seconds=seconds)
    return Reply(scores=scores, seconds=seconds)
