"""The layout of NeoMME, an encoder that reads one page, or one text, at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mrope.checks import Number
from mrope.layouts.layout import SpanLayout, Traits, line
from mrope.positions import End, Positions
from mrope.spans import Image, Span


@dataclass(frozen=True, slots=True)
class PageLayout(SpanLayout):
    """The axes are (row, column). A page is two start tokens, then H rows of W tokens with a marker behind each.

    The start tokens get 0 and 1 on both axes, token (i, j) gets (2 + i, 2 + j), the marker of row i has j = W. Source:
    transformers 5.24, neomme, whose processor makes the positions; no other code is public.

    >>> PageLayout()([Image((1, 2, 3))]).ids.tolist()
    [[0, 1, 2, 2, 2, 2, 3, 3, 3, 3], [0, 1, 2, 3, 4, 5, 2, 3, 4, 5]]
    """

    merge: int = 1

    axes = 2

    @property
    def traits(self) -> Traits:
        """What the layout promises."""
        return Traits()

    def growth(self, t: int, h: int, w: int) -> Number:
        """See `SpanLayout.growth`."""
        return 2 + max(h, w + 1)

    def __call__(self, spans: Sequence[Span], start: Number | Positions = 0) -> Positions:
        """See `Layout`.

        Raises:
            ValueError: a page stands beside other spans.
        """
        earlier = start.end.slot if isinstance(start, Positions) else 0
        if any(isinstance(span, Image) for span in spans) and (len(spans) > 1 or earlier):
            raise ValueError(
                f"a page stands beside {len(spans) - 1} other spans; this model reads one page or one text"
            )
        return replace(SpanLayout.__call__(self, spans, start), attend="all")

    def media_tokens(self, span: Any) -> int:
        """See `tokens`."""
        if not isinstance(span, Image):
            raise self.refuse(span)
        _, rows, cols = self.grid(span)
        return 2 + rows * (cols + 1)

    def place(self, block: np.ndarray, span: Any, end: End) -> Number:
        """See `SpanLayout.place`."""
        _, rows, cols = self.grid(span)
        block[:, :2] = line(end.next, 2, self.dtype)
        row, column = block[:, 2:].reshape(2, rows, cols + 1)
        row[:] = end.next + 2 + np.arange(rows)[:, None]
        column[:] = end.next + 2 + np.arange(cols + 1)
        return end.next + 2 + max(rows, cols + 1)
