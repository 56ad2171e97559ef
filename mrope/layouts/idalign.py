"""The layout of ID-Align: the tokens of a picture's slices have the positions of the thumbnail tokens they overlap.

Letters: th and tw the sides of the thumbnail, sh and sw those of a slice, in tokens; R and C the rows and columns of
slices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mrope.checks import Number
from mrope.layouts.layout import SpanLayout, Traits
from mrope.positions import End
from mrope.spans import Image, Sliced


@dataclass(frozen=True, slots=True)
class IdAlignLayout(SpanLayout):
    """A thumbnail takes one position a token, as text does, and the slices behind it take none of their own.

    A picture that starts at s is the tokens of its thumbnail in raster order, then its slices one after another, row by
    row, each in raster order, with no token around or between them. Token (i, j) of the thumbnail gets s + i tw + j.
    The slices tile a canvas of R sh x C sw tokens; the token at (row, col) of the canvas gets the position of the
    thumbnail's token (row th // (R sh), col tw // (C sw)), the one over its upper left corner. The next span starts at
    s + th tw. An `Image` is a thumbnail without slices.

    The formula is our reading of the abstract of ID-Align (arXiv:2505.21465): "high-resolution tokens inherit IDs from
    their corresponding thumbnail token". The ids are 1-D: all three axes carry the same one, so that any rotary split
    turns by it.

    Args:
        merge: patches per token and side.

    >>> IdAlignLayout()([Sliced((1, 2, 4), (1, 2), (1, 4, 4))]).ids[0].tolist()
    [0, 1, 0, 0, 0, 0, 1, 1, 1, 1]
    """

    @property
    def traits(self) -> Traits:
        """What the layout promises of a picture without slices; with them, slices and thumbnail share positions."""
        return Traits(symmetric=True)

    def growth(self, t: int, h: int, w: int) -> Number:
        """See `SpanLayout.growth`; h and w are the thumbnail's."""
        return h * w

    def media_tokens(self, span: Any) -> int:
        """See `tokens`."""
        (th, tw), (rows, cols), (sh, sw) = self._sizes(span)
        return th * tw + rows * cols * sh * sw

    def place(self, block: np.ndarray, span: Any, end: End) -> Number:
        """See `SpanLayout.place`."""
        (th, tw), (rows, cols), (sh, sw) = self._sizes(span)
        thumbnail = np.arange(th * tw)
        block[:, : th * tw] = end.next + thumbnail
        if rows:
            down = np.arange(rows * sh) * th // (rows * sh)
            right = np.arange(cols * sw) * tw // (cols * sw)
            canvas = thumbnail.reshape(th, tw)[down[:, None], right]
            slices = canvas.reshape(rows, sh, cols, sw).swapaxes(1, 2)
            block[:, th * tw :] = end.next + slices.reshape(-1)
        return end.next + th * tw

    def _sizes(self, span: Any) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """What `sliced` gives; the span is checked."""
        if isinstance(span, Image):
            span = Sliced(span.grid)
        if not isinstance(span, Sliced):
            raise self.refuse(span)
        if span.newlines:
            raise self.refuse(span, f"it has {span.newlines} newlines, which are text here; leave them away")
        return self.sliced(span)
