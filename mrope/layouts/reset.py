"""Layouts with spatial reset: rows and columns count from 0 in every picture, and only time moves along the prompt.

Letters: N tokens, T temporal steps, H and W the merged grid (one token a cell).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mrope.checks import Number, one_of
from mrope.layouts.blocks import BlockLayout, dtype_of, step
from mrope.layouts.layout import Traits, fill_cells
from mrope.positions import End

Origin = Literal["zero", "start"]


@dataclass(frozen=True, slots=True)
class ResetLayout(BlockLayout):
    """The token (t, row, col) of a block that starts at s gets (s + t, row, col); text is the same on all axes.

    The next span starts at s + 1 + max(T - 1, H - 1, W - 1), so that it clears all axes. This is MRoPE-I and MHRoPE
    with spatial reset (arXiv:2510.23095), IL-RoPE (arXiv:2505.05472) and OmniRoPE (arXiv:2506.18871). The code of the
    first gives that position to the token that closes a picture, the others to the text behind it: one rule, since the
    closing token is the first of a prompt's text here. (arXiv:2510.23095 ascribes text with rows and columns of 0 to
    the latter two, and finds it harmful; the code of OmniGen2 has text equal on all axes.)

    Args:
        merge: patches per token and side.
        scale: positions per temporal step, row and column. Ids are real-valued where one is no whole number.
        origin: where rows and columns count from. "zero": from 0, the reset; "start": from s, as in M-RoPE. With the
            latter and scale=(4, 8, 8) this is MM-RoPE (arXiv:2507.08801): steps of the latents counted in pixels.

    >>> from mrope.spans import Text, Video
    >>> ResetLayout()([Text(3), Video((2, 2, 6)), Text(1)]).ids.tolist()
    [[0, 1, 2, 3, 3, 3, 4, 4, 4, 6], [0, 1, 2, 0, 0, 0, 0, 0, 0, 6], [0, 1, 2, 0, 1, 2, 0, 1, 2, 6]]
    """

    scale: tuple[Number, Number, Number] = (1, 1, 1)
    origin: Origin = "zero"

    def __post_init__(self) -> None:
        BlockLayout.__post_init__(self)
        if not isinstance(self.scale, Sequence) or len(self.scale) != 3:
            raise ValueError(f"scale is {self.scale}; expected three factors (t, h, w)")
        t, h, w = (step(f"scale {axis}", factor) for axis, factor in zip("thw", self.scale, strict=True))
        object.__setattr__(self, "scale", (t, h, w))
        one_of("origin", self.origin, ("zero", "start"))

    @property
    def dtype(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whole ids where the scale is whole."""
        return dtype_of(*self.scale)

    @property
    def traits(self) -> Traits:
        """What the layout promises: after a reset, rows and columns meet those of the earliest text."""
        return Traits(clears_before=self.origin == "start")

    def growth(self, t: int, h: int, w: int) -> Number:
        """See `SpanLayout.growth`."""
        return 1 + max(factor * (side - 1) for factor, side in zip(self.scale, (t, h, w), strict=True))

    def place(self, block: np.ndarray, span: Any, end: End) -> Number:
        """See `SpanLayout.place`."""
        sides = self.grid(span)
        times, rows, cols = (factor * np.arange(side) for factor, side in zip(self.scale, sides, strict=True))
        corner = end.next if self.origin == "start" else 0
        fill_cells(block, end.next + times, corner + rows, corner + cols)
        return end.next + self.growth(*sides)
