"""The frame of layouts whose pictures and clips are blocks of cells, one token a cell and nothing between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mrope.checks import Number, positive
from mrope.layouts.layout import SpanLayout
from mrope.spans import Grid, Image, Video


@dataclass(frozen=True, slots=True)
class BlockLayout(SpanLayout):
    """A layout of plain pictures and clips; a clip's seconds, time stamps and sound are refused, as no rule reads them.

    Args:
        merge: patches per token and side.
    """

    def media_tokens(self, span: Any) -> int:
        """See `tokens`."""
        return math.prod(self.grid(span))

    def grid(self, span: Any) -> Grid:
        """(T, H, W): the merged grid of a picture or clip; the span is checked."""
        if not isinstance(span, (Image, Video)):
            raise self.refuse(span)
        if isinstance(span, Video):
            for field in ("seconds", "stamp", "audio"):
                if getattr(span, field) is not None:
                    raise self.refuse(span, f"it has {field}, for which there is no rule; leave it away")
        return SpanLayout.grid(self, span)


@dataclass(frozen=True, slots=True)
class PictureLayout(BlockLayout):
    """A layout of plain pictures, whose paper has no clips.

    Args:
        merge: patches per token and side.
    """

    def grid(self, span: Any) -> Grid:
        """(1, H, W): the merged grid of a picture; the span is checked."""
        if not isinstance(span, Image):
            raise self.refuse(span)
        return SpanLayout.grid(self, span)


def step(name: str, value: Any) -> Number:
    """`value` as a finite number above zero: an int where it is whole, so that whole steps give whole ids."""
    number = positive(name, value)
    return int(number) if number.is_integer() else number


def dtype_of(*steps: Number) -> Any:
    """The dtype of ids that are made of such steps: int64 where all are whole, else float64."""
    return np.int64 if all(isinstance(number, int) for number in steps) else np.float64
