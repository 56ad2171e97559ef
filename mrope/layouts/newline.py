"""The layout of HY-V4-VL: every row of a picture ends with a newline token, and frames are blocks of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mrope.checks import Number
from mrope.layouts.blocks import BlockLayout
from mrope.layouts.layout import Traits
from mrope.positions import End


@dataclass(frozen=True, slots=True)
class NewlineLayout(BlockLayout):
    """A frame is H rows of W + 1 tokens, and takes B = max(H, W + 1) positions on all axes, time among them.

    Token (f, i, j) of a span that starts at s, with j = W for the newline of row i, gets (s + f B, s + f B + i,
    s + f B + j); the next span starts at s + T B. Source: transformers 5.24, hy_v4_vl; no code of the vendor is public.

    >>> from mrope.spans import Image
    >>> NewlineLayout()([Image((1, 4, 4))]).ids.tolist()
    [[0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]]
    """

    @property
    def traits(self) -> Traits:
        """What the layout promises."""
        return Traits()

    def growth(self, t: int, h: int, w: int) -> Number:
        """See `SpanLayout.growth`."""
        return t * max(h, w + 1)

    def media_tokens(self, span: Any) -> int:
        """See `tokens`."""
        t, rows, cols = self._frames(span)
        return t * rows * cols

    def place(self, block: np.ndarray, span: Any, end: End) -> Number:
        """See `SpanLayout.place`."""
        t, rows, cols = self._frames(span)
        begins = end.next + max(rows, cols) * np.arange(t)[:, None, None]
        cells = block.reshape(3, t, rows, cols)
        cells[0] = begins
        cells[1] = begins + np.arange(rows)[:, None]
        cells[2] = begins + np.arange(cols)
        return end.next + t * max(rows, cols)

    def _frames(self, span: Any) -> tuple[int, int, int]:
        """(T, H, W + 1)."""
        t, rows, cols = self.grid(span)
        return t, rows, cols + 1
