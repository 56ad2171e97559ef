"""The layout of HunyuanVL and HunyuanOCR: pictures count rows and columns from 0, beside the plain token index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mrope.checks import Number, whole
from mrope.layouts.layout import SpanLayout, Traits
from mrope.positions import End
from mrope.spans import Image


@dataclass(frozen=True, slots=True)
class XdLayout(SpanLayout):
    """The axes are (token index, column, row, number of the picture); text has the token index on all of them.

    A picture is a start token, H rows of W + 1 tokens with a newline at the end of each, and an end token. The start
    and the end are text; the others count column and row from 0, the newline's column being W, and carry the number of
    their picture in the prompt. Text behind it goes on with the token index, so that the decode offset is 0. Source:
    the vendor's processor and several ports of it; transformers 5.24 numbers pictures through the whole batch.

    Args:
        merge: patches per token and side.
        axes: 4 in the released checkpoints; with 3 there is no axis for the token index.

    >>> XdLayout()([Image((1, 2, 4)), Image((1, 2, 2))]).ids.tolist()[1:]
    [[0, 0, 1, 2, 4, 5, 0, 1, 8], [0, 0, 0, 0, 4, 5, 0, 0, 8], [0, 0, 0, 0, 4, 5, 1, 1, 8]]
    """

    axes: int = 4  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        SpanLayout.__post_init__(self)
        if whole("axes", self.axes, 3) > 4:
            raise ValueError(f"axes is {self.axes}; expected 3 (column, row, picture) or 4 (token index before them)")

    @property
    def traits(self) -> Traits:
        """What the layout promises: columns and rows go back to 0, only the first of four axes is monotone."""
        return Traits(clears_before=False, monotone=self.axes == 4)

    def growth(self, t: int, h: int, w: int) -> Number:
        """See `SpanLayout.growth`."""
        return h * (w + 1) + 2

    def media_tokens(self, span: Any) -> int:
        """See `tokens`."""
        if not isinstance(span, Image):
            raise self.refuse(span)
        _, rows, cols = self.grid(span)
        return rows * (cols + 1) + 2

    def place(self, block: np.ndarray, span: Any, end: End) -> Number:
        """See `SpanLayout.place`."""
        _, rows, cols = self.grid(span)
        count = block.shape[1]
        block[:] = np.arange(end.next, end.next + count)
        column, row, picture = block[-3:, 1:-1].reshape(3, rows, cols + 1)
        column[:] = np.arange(cols + 1)
        row[:] = np.arange(rows)[:, None]
        picture[:] = end.pictures
        return end.next + count
