"""The layouts of VideoRoPE and HoPE: frames along the diagonal of the text, each centred on it.

Letters: T temporal steps, H and W the merged grid (one token a cell).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mrope.checks import Number, one_of
from mrope.layouts.blocks import BlockLayout, dtype_of, step
from mrope.layouts.layout import Traits
from mrope.positions import End

Source = Literal["code", "paper"]


@dataclass(frozen=True, slots=True)
class VideoRopeLayout(BlockLayout):
    """Frame t of a block that starts at s has u = s + delta t, and its tokens (u, u + row - centre, u + col - centre).

    Rows and columns lie on both sides of u, so that they overlap the text before and behind. An image is a clip of one
    frame. Ids are real-valued where `delta` is no whole number or centre="paper". The paper (VideoRoPE,
    arXiv:2502.05173) and its released code differ in two rules, each of which is a choice here.

    Args:
        merge: patches per token and side.
        delta: positions per temporal step.
        advance: where the next span starts. "code": at the last u + 1, s + delta (T - 1) + 1, which leaves the same gap
            behind the block as before it; "paper": at s + delta T.
        centre: of the rows, and likewise of the columns. "code": (H - 1) / 2 rounded down, so that ids stay whole;
            "paper": H / 2.

    >>> from mrope.spans import Video
    >>> VideoRopeLayout()([Video((2, 2, 6))]).ids.tolist()
    [[0, 0, 0, 2, 2, 2], [0, 0, 0, 2, 2, 2], [-1, 0, 1, 1, 2, 3]]
    """

    delta: Number = 2
    advance: Source = "code"
    centre: Source = "code"

    def __post_init__(self) -> None:
        BlockLayout.__post_init__(self)
        object.__setattr__(self, "delta", step("delta", self.delta))
        one_of("advance", self.advance, ("code", "paper"))
        one_of("centre", self.centre, ("code", "paper"))

    @property
    def dtype(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whole ids where steps and centres are whole."""
        return dtype_of(self.delta) if self.centre == "code" else np.float64

    @property
    def traits(self) -> Traits:
        """What the layout promises: only time clears the text; sides of an even length are off their centre."""
        return Traits(clears_before=False, clears_after=False)

    def growth(self, t: int, h: int, w: int) -> Number:
        """See `SpanLayout.growth`; the sides of a frame take no position."""
        return self.delta * (t - 1) + 1 if self.advance == "code" else self.delta * t

    def place(self, block: np.ndarray, span: Any, end: End) -> Number:
        """See `SpanLayout.place`."""
        t, rows, cols = self.grid(span)
        diagonal = end.next + self.delta * np.arange(t)[:, None, None]
        cells = block.reshape(3, t, rows, cols)
        cells[0] = diagonal
        cells[1] = diagonal + self._around(rows)[:, None]
        cells[2] = diagonal + self._around(cols)
        return end.next + self.growth(t, rows, cols)

    def _around(self, side: int) -> np.ndarray:
        """(side,) the rows or columns of a frame, counted from its centre."""
        return np.arange(side) - ((side - 1) // 2 if self.centre == "code" else side / 2)


@dataclass(frozen=True, slots=True)
class HopeLayout(BlockLayout):
    """The layout of VideoRoPE's code with `gamma` positions per temporal step (HoPE, arXiv:2505.20444).

    Ids are real-valued where `gamma` is no whole number, and so is the position of the next span. The other half of
    HoPE is the rotary's business: the slowest 16 of its 64 pairs do not turn, for text neither. Those are the pairs of
    the temporal axis, so that a frame is told from the next by its shift along the diagonal alone: with a whole gamma,
    cell (row, col) of one turns like cell (row - gamma, col - gamma) of the next.

    Args:
        merge: patches per token and side.
        gamma: positions per temporal step. In training one of 0.5, 0.75, 1, 1.25 and 1.5 is drawn for each clip; the
            authors evaluate with 1.5 for understanding and 0.75 for retrieval.

    >>> from mrope.spans import Video
    >>> prompt = HopeLayout(gamma=0.75)([Video((2, 2, 6))])
    >>> prompt.ids[2].tolist(), prompt.next
    ([-1.0, 0.0, 1.0, -0.25, 0.75, 1.75], 1.75)
    """

    gamma: Number = 1.5

    def __post_init__(self) -> None:
        BlockLayout.__post_init__(self)
        object.__setattr__(self, "gamma", step("gamma", self.gamma))

    @property
    def dtype(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whole ids where gamma is whole."""
        return dtype_of(self.gamma)

    @property
    def traits(self) -> Traits:
        """What the layout promises: what VideoRoPE's does. Without temporal pairs, tokens of two frames may meet."""
        return self._videorope.traits

    def growth(self, t: int, h: int, w: int) -> Number:
        """See `SpanLayout.growth`."""
        return self._videorope.growth(t, h, w)

    def place(self, block: np.ndarray, span: Any, end: End) -> Number:
        """See `SpanLayout.place`."""
        return self._videorope.place(block, span, end)

    @property
    def _videorope(self) -> VideoRopeLayout:
        return VideoRopeLayout(self.merge, delta=self.gamma)
