"""The 1-D layout: every token one step further, whatever it is; what a VLM had before M-RoPE, kept as a baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mrope.checks import Number
from mrope.layouts.blocks import BlockLayout
from mrope.layouts.layout import Traits
from mrope.positions import End
from mrope.spans import Audio


@dataclass(frozen=True, slots=True)
class RasterLayout(BlockLayout):
    """All axes carry the index of the token, in raster order (t, then row, then column).

    Equal axes make any rotary split the 1-D RoPE of RoFormer (arXiv:2104.09864).

    >>> from mrope.spans import Image, Text
    >>> RasterLayout(merge=2)([Text(2), Image((1, 4, 4))]).ids[2].tolist()
    [0, 1, 2, 3, 4, 5]
    """

    @property
    def traits(self) -> Traits:
        """What the layout promises: all of it."""
        return Traits(symmetric=True)

    def growth(self, t: int, h: int, w: int) -> Number:
        """See `SpanLayout.growth`."""
        return t * h * w

    def media_tokens(self, span: Any) -> int:
        """See `tokens`."""
        return span.length if isinstance(span, Audio) else BlockLayout.media_tokens(self, span)

    def place(self, block: np.ndarray, span: Any, end: End) -> Number:
        """See `SpanLayout.place`."""
        count = block.shape[1]
        block[:] = np.arange(end.next, end.next + count)
        return end.next + count
