"""What every layout can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from mrope.positions import Positions
from mrope.spans import Span


@runtime_checkable
class Layout(Protocol):
    """A rule from spans to coordinates ("position design")."""

    def __call__(self, spans: Sequence[Span], start: int = 0) -> Positions:
        """The positions of `spans`, in the order of the prompt, the first token at `start`."""
        ...
