"""The layout of V2PE: one position for all axes, and a step below 1 from one visual token to the next."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mrope.checks import Number, whole
from mrope.layouts.blocks import BlockLayout
from mrope.layouts.layout import Traits
from mrope.positions import End

_TILE = 256  # tokens of a picture tile in InternVL, over which a stride of 1 spreads one position


@dataclass(frozen=True, slots=True)
class V2peLayout(BlockLayout):
    """Visual token j of a block, counted from 1 in raster order, gets L + j stride / 256, where L is the token before.

    The text behind it goes on one position further than the last visual token, rounded up. V2PE (arXiv:2412.09616) is
    1-D: all three axes carry the same real-valued position, so that any rotary split turns by it. A clip is one block.
    Far out, small steps need a rotary with angles="exact": in float32, neighbours meet from position 65,536 on.

    Args:
        merge: patches per token and side.
        stride: positions per 256 tokens, 1 to 256. In training one of 1, 2, 4, ..., 256 is drawn for each image; it
            stays the same in evaluation. With 256 a visual token takes a whole position, as text does.

    >>> from mrope.spans import Image, Text
    >>> V2peLayout(stride=64)([Text(2), Image((1, 4, 6)), Text(2)]).ids[0].tolist()
    [0.0, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 4.0, 5.0]
    """

    stride: int = 64

    dtype: ClassVar[Any] = np.float64

    def __post_init__(self) -> None:
        BlockLayout.__post_init__(self)
        object.__setattr__(self, "stride", whole("stride", self.stride, 1))
        if self.stride > _TILE:
            raise ValueError(f"stride is {self.stride}; expected at most {_TILE}, a whole position a token")

    @property
    def traits(self) -> Traits:
        """What the layout promises; with small steps the gap in front of a block is smaller than the one behind it."""
        return Traits(symmetric=self.stride == _TILE)

    def growth(self, t: int, h: int, w: int) -> Number:
        """See `SpanLayout.growth`; for a block that starts at a whole position, as all do behind text."""
        return math.ceil(t * h * w * self.stride / _TILE)

    def place(self, block: np.ndarray, span: Any, end: End) -> Number:
        """See `SpanLayout.place`."""
        ids = end.next - 1 + np.arange(1, block.shape[1] + 1) * (self.stride / _TILE)
        block[:] = ids
        return math.ceil(ids[-1]) + 1
