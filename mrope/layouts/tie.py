"""RoPE-Tie: pictures that take as much room on every axis as their tokens would as text, with even gaps on both sides.

Letters: T temporal steps, H and W the merged grid (one token a cell), N = T H W tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mrope.checks import Number, one_of, whole
from mrope.layouts.blocks import BlockLayout
from mrope.layouts.layout import Traits
from mrope.positions import End
from mrope.spans import Grid, Video

Steps = Literal["whole", "real", "unit"]


@dataclass(frozen=True, slots=True)
class TieLayout(BlockLayout):
    """The axes are (row, col), or (t, row, col); a cell stands on each by its own row or column, spread over the block.

    With L the position of the token before, cell i of H rows, counted from 1, gets (columns and steps likewise)

    - L + i (W + 1) with steps="whole", the next span starting at L + (W + 1) (H + 1);
    - L + i (N + 1) / (H + 1) with steps="real", the next span starting at L + N + 1;
    - L + (N - H) / 2 + i with steps="unit", the next span starting at L + N + 1.

    The centre of the block lies half-way between the text on both sides in all three. The last two take N positions for
    N tokens, as text does; their ids are real-valued. Sources: Jianlin Su, RoPE-Tie (kexue.fm/archives/10040, the first
    two) and RoPE-Tie-v2 (kexue.fm/archives/10352, the third).

    Args:
        merge: patches per token and side.
        axes: 2 (row, col), for images; 3 (t, row, col) with steps="unit" alone, for images and clips.
        steps: from a row or column to the next, see above.

    >>> from mrope.spans import Image, Text
    >>> TieLayout()([Text(3), Image((1, 4, 6)), Text(1)]).ids.tolist()
    [[0, 1, 2, 6, 6, 6, 10, 10, 10, 14], [0, 1, 2, 5, 8, 11, 5, 8, 11, 14]]
    >>> TieLayout(steps="unit", axes=3)([Text(3), Image((1, 4, 6))]).ids.tolist()[1:]
    [[0.0, 1.0, 2.0, 5.0, 5.0, 5.0, 6.0, 6.0, 6.0], [0.0, 1.0, 2.0, 4.5, 5.5, 6.5, 4.5, 5.5, 6.5]]
    """

    axes: int = 2  # pyright: ignore[reportIncompatibleVariableOverride]
    steps: Steps = "whole"

    def __post_init__(self) -> None:
        BlockLayout.__post_init__(self)
        one_of("steps", self.steps, ("whole", "real", "unit"))
        if whole("axes", self.axes, 2) > 3:
            raise ValueError(f"axes is {self.axes}; expected 2 (row, col) or 3 (t, row, col)")
        if self.axes == 3 and self.steps != "unit":
            raise ValueError(f"axes is 3 with steps={self.steps!r}; a temporal axis goes with steps='unit'")

    @property
    def dtype(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whole ids with whole steps alone."""
        return np.int64 if self.steps == "whole" else np.float64

    @property
    def traits(self) -> Traits:
        """What the layout promises: all of it."""
        return Traits(symmetric=True)

    def growth(self, t: int, h: int, w: int) -> Number:
        """See `SpanLayout.growth`."""
        return (h + 1) * (w + 1) - 1 if self.steps == "whole" else t * h * w

    def place(self, block: np.ndarray, span: Any, end: End) -> Number:
        """See `SpanLayout.place`."""
        grid = self.grid(span)
        sides = grid[-self.axes :]
        lines = np.ix_(*(end.next - 1 + self._spread(side, block.shape[1]) for side in sides))
        for axis, values in zip(block.reshape(self.axes, *sides), lines, strict=True):
            axis[:] = values
        return end.next + self.growth(*grid)

    def grid(self, span: Any) -> Grid:
        """(T, H, W): the merged grid of a picture, or of a clip where there is an axis for time."""
        if isinstance(span, Video) and self.axes == 2:
            raise self.refuse(span, "its axes are (row, col); clips need steps='unit' and axes=3")
        return BlockLayout.grid(self, span)

    def _spread(self, side: int, tokens: int) -> np.ndarray:
        """(side,) where the cells of one side stand, counted from the token before the block."""
        cell = np.arange(1, side + 1)
        if self.steps == "unit":
            return cell + (tokens - side) / 2
        return cell * (tokens // side + 1 if self.steps == "whole" else (tokens + 1) / (side + 1))
