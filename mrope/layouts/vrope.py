"""The layout of VRoPE: four axes, each the distance of a cell from one corner of its frame.

Letters: T temporal steps, H and W the merged grid (one token a cell).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from mrope.checks import Number, one_of
from mrope.layouts.blocks import BlockLayout
from mrope.layouts.layout import Traits
from mrope.positions import End

Order = Literal["paper", "code"]

# Which corner an axis counts from, as an index into the four distances of `place`.
_CORNERS = {"paper": (0, 1, 2, 3), "code": (0, 3, 1, 2)}


@dataclass(frozen=True, slots=True)
class VropeLayout(BlockLayout):
    """The four axes of a cell are its distances, rows plus columns, from the four corners of its frame.

    Frame t of a block that starts at s begins at s + t (H + W - 1); a cell adds its distance to that on each axis, and
    the next span starts at s + T (H + W - 1). There is no axis for time. Whatever lies near one corner lies far from
    the opposite one, so that no direction decays faster than another (VRoPE, arXiv:2502.11664). Text has its position
    on all four axes; a rotary lets pair i read axis i mod 4.

    Args:
        merge: patches per token and side.
        order: of the corners. "paper": top left, bottom left, bottom right, top right; "code": top left, top right,
            bottom left, bottom right.

    >>> from mrope.spans import Image
    >>> VropeLayout()([Image((1, 4, 6))]).ids.tolist()
    [[0, 1, 2, 1, 2, 3], [1, 2, 3, 0, 1, 2], [3, 2, 1, 2, 1, 0], [2, 1, 0, 3, 2, 1]]
    """

    order: Order = "paper"

    axes: ClassVar[int] = 4

    def __post_init__(self) -> None:
        BlockLayout.__post_init__(self)
        one_of("order", self.order, tuple(_CORNERS))

    @property
    def traits(self) -> Traits:
        """What the layout promises: as every axis is a distance, none grows along the whole prompt."""
        return Traits(monotone=False, symmetric=True)

    def growth(self, t: int, h: int, w: int) -> Number:
        """See `SpanLayout.growth`."""
        return t * (h + w - 1)

    def place(self, block: np.ndarray, span: Any, end: End) -> Number:
        """See `SpanLayout.place`."""
        t, rows, cols = self.grid(span)
        down, right = np.arange(rows)[:, None], np.arange(cols)
        up, left = down[::-1], right[::-1]
        distances = down + right, up + right, up + left, down + left
        begins = end.next + (rows + cols - 1) * np.arange(t)[:, None, None]
        for axis, corner in zip(block.reshape(4, t, rows, cols), _CORNERS[self.order], strict=True):
            axis[:] = begins + distances[corner]
        return end.next + self.growth(t, rows, cols)
