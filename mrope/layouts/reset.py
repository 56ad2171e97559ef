"""Layouts with spatial reset: rows and columns count from 0 in every picture, and only time moves along the prompt.

Letters: N tokens, T temporal steps, H and W the merged grid (one token a cell).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from mrope.checks import Number, one_of
from mrope.layouts.blocks import BlockLayout, dtype_of, step
from mrope.layouts.layout import Traits, fill_cells
from mrope.positions import End, Positions
from mrope.spans import Span, Text

Origin = Literal["zero", "start"]
TextSpatial = Literal["equal", "zero"]


@dataclass(frozen=True, slots=True)
class ResetLayout(BlockLayout):
    """The token (t, row, col) of a block that starts at s gets (s + t, row, col); text is the same on all axes.

    The next span starts at s + 1 + max(T - 1, H - 1, W - 1), so that it clears all axes. This is MRoPE-I and MHRoPE
    with spatial reset (arXiv:2510.23095), IL-RoPE (arXiv:2505.05472) and OmniRoPE (arXiv:2506.18871). The code of the
    first gives that position to the token that closes a picture, the others to the text behind it: one rule, since the
    closing token is the first of a prompt's text here.

    Args:
        merge: patches per token and side.
        scale: positions per temporal step, row and column. Ids are real-valued where one is no whole number.
        origin: where rows and columns count from. "zero": from 0, the reset; "start": from s, as in M-RoPE. With the
            latter and scale=(4, 8, 8) this is MM-RoPE (arXiv:2507.08801): steps of the latents counted in pixels.
        text_spatial: the rows and columns of text. "equal": its position, as on the temporal axis, which keeps what a
            text model has learnt; "zero": 0, which arXiv:2510.23095 ascribes to IL-RoPE and OmniRoPE and finds harmful
            (the released code of OmniGen2 has them equal).

    >>> from mrope.spans import Video
    >>> ResetLayout()([Text(3), Video((2, 2, 6)), Text(1)]).ids.tolist()
    [[0, 1, 2, 3, 3, 3, 4, 4, 4, 6], [0, 1, 2, 0, 0, 0, 0, 0, 0, 6], [0, 1, 2, 0, 1, 2, 0, 1, 2, 6]]
    """

    scale: tuple[Number, Number, Number] = (1, 1, 1)
    origin: Origin = "zero"
    text_spatial: TextSpatial = "equal"

    def __post_init__(self) -> None:
        BlockLayout.__post_init__(self)
        if not isinstance(self.scale, Sequence) or len(self.scale) != 3:
            raise ValueError(f"scale is {self.scale}; expected three factors (t, h, w)")
        t, h, w = (step(f"scale {axis}", factor) for axis, factor in zip("thw", self.scale, strict=True))
        object.__setattr__(self, "scale", (t, h, w))
        one_of("origin", self.origin, ("zero", "start"))
        one_of("text_spatial", self.text_spatial, ("equal", "zero"))

    @property
    def dtype(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whole ids where the scale is whole."""
        return dtype_of(*self.scale)

    @property
    def traits(self) -> Traits:
        """What the layout promises: after a reset, rows and columns meet those of the earliest text."""
        one_d = self.text_spatial == "equal"
        return Traits(text_is_1d=one_d, clears_before=self.origin == "start", clears_after=one_d)

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

    def __call__(self, spans: Sequence[Span], start: Number | Positions = 0) -> Positions:
        """The positions of `spans`, in the order of the prompt: see `Layout`.

        Raises:
            ValueError: a span does not fit the layout.
        """
        positions = BlockLayout.__call__(self, spans, start)
        if self.text_spatial == "equal":
            return positions
        done = 0
        for span in spans:
            count = self.tokens(span)
            if isinstance(span, Text):
                positions.ids[1:, done : done + count] = 0
            done += count
        return TimePositions(positions.ids, positions.text, positions.segments, positions.ends)


@dataclass(frozen=True, slots=True, eq=False)
class TimePositions(Positions):
    """Positions of one row whose text advances on the temporal axis alone, generated text too.

    Args:
        held: where text stays on the other axes.
    """

    held: Number = 0

    def decode(self, k: int, skip: int = 0) -> Positions:
        """See `Positions.decode`."""
        decoded = Positions.decode(self, k, skip)
        ids = decoded.ids.clone()
        ids[1:] = self.held
        return replace(self, ids=ids, text=decoded.text, segments=decoded.segments, ends=decoded.ends)

    def shift(self, delta: Number) -> Positions:
        """See `Positions.shift`."""
        return replace(Positions.shift(self, delta), held=self.held + delta)
