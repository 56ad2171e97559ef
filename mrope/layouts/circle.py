"""The circle layout: the tokens of a picture lie on a circle around the line of the text, all equally far from it.

Letters: N tokens, H and W the merged grid (one token a cell).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from mrope.checks import Number, one_of, positive, whole
from mrope.layouts.blocks import PictureLayout
from mrope.layouts.grid import GridLayout
from mrope.layouts.layout import SpanLayout, Traits, layer_by_layer
from mrope.positions import End, Positions
from mrope.spans import Span

Alternate = Literal["even", "first", "last", "all"]

# Two unit vectors in (t, h, w) that are at right angles to each other and to (1, 1, 1), the line of the text.
_ACROSS = np.array((0, 1, -1)) / math.sqrt(2)
_ALONG = np.array((2, -1, -1)) / math.sqrt(6)


@dataclass(frozen=True, slots=True)
class CircleLayout(PictureLayout):
    """Text advances all axes by 1; the tokens of an image lie on a circle around (s, s, s) at right angles to the text.

    A cell at (row, col) from the centre of the image has the angle a = atan2(row, col). Its token turns by alpha * A +
    (1 - alpha) * G, where A is `a` stretched so that the angles of the image go from 0 to 2 pi, and G is 2 pi / N times
    its number in raster order. The ids are real-valued and go below s; the next span starts at the largest + 1, a real
    number too (Circle-RoPE, arXiv:2505.16416; the released code with `move_to_origin`). A cell in the centre has the
    angle 0; where it is the only one there is nothing to stretch, and its token turns by 0. Clips are refused: the
    paper has none, and the released code gives all steps the circle of the first.

    Args:
        merge: patches per token and side.
        radius: of the circle in positions, or "auto": `factor` times the largest coordinate of a cell from the centre,
            (max(H, W) - 1) / 2.
        factor: goes with radius="auto", 1 by default; the paper's "auto-k" is factor k.
        alpha: 0 spreads the tokens evenly, 1 goes by their angle alone (then the first and the last angle meet).
        layers: how many the model has, where only some use the circle and the others `GridLayout` (the paper's AGE):
            the result then has `variants` (circle, grid), and `Positions.layer(l)` has those of layer l.
        alternate: which layers use the circle; goes with `layers`. "even": 0, 2, 4, ..., the default; "first": the
            first half, with the middle layer of an odd number; "last": the others; "all".

    >>> from mrope.spans import Image
    >>> CircleLayout()([Image((1, 2, 4))]).ids.round(decimals=2).tolist()
    [[0.0, 8.16], [-7.07, -4.08], [7.07, -4.08]]
    """

    radius: Number | Literal["auto"] = 10
    factor: Number | None = None
    alpha: Number = 0.5
    layers: int | None = None
    alternate: Alternate | None = None

    dtype: ClassVar[Any] = np.float64

    def __post_init__(self) -> None:
        SpanLayout.__post_init__(self)
        if self.radius != "auto":
            object.__setattr__(self, "radius", positive('radius (where it is not "auto")', self.radius))
        if self.factor is not None:
            object.__setattr__(self, "factor", positive("factor", self.factor))
            if self.radius != "auto":
                raise ValueError(f"factor is {self.factor:g} with radius={self.radius:g}; it goes with radius='auto'")
        if not (isinstance(self.alpha, (int, float)) and 0 <= self.alpha <= 1):
            raise ValueError(f"alpha is {self.alpha!r}; expected a number from 0 to 1")
        if self.alternate is not None:
            one_of("alternate", self.alternate, ("even", "first", "last", "all"))
            if self.layers is None:
                raise ValueError(f"alternate is {self.alternate!r} and layers is None; expected the number of layers")
        if self.layers is not None:
            object.__setattr__(self, "layers", whole("layers", self.layers, 1))

    @property
    def traits(self) -> Traits:
        """What the layout promises.

        `distinct` holds for nearly all images: with alpha = 0.5, of those up to 32 x 32 tokens, two tokens of 7 x 3,
        17 x 12, 23 x 12 and 29 x 12 meet.
        """
        return Traits(clears_before=False, distinct=self.alpha < 1, monotone=False)

    def growth(self, t: int, h: int, w: int) -> Number:
        """See `SpanLayout.growth`; real, and in layers with the circle."""
        return float(self._circle(h, w).max()) + 1

    def place(self, block: np.ndarray, span: Any, end: End) -> Number:
        """See `SpanLayout.place`."""
        block[:] = end.next + self._circle(*self.grid(span)[1:])
        return float(block.max()) + 1

    def __call__(self, spans: Sequence[Span], start: Number | Positions = 0) -> Positions:
        """The positions of `spans`, with `variants` where there are `layers`: see `Layout`.

        Raises:
            ValueError: a span does not fit the layout, or `start` was made for other layers.
        """
        if self.layers is None:
            return SpanLayout.__call__(self, spans, start)
        circle = replace(self, layers=None, alternate=None)
        layers = tuple(0 if self._in_circle(layer, self.layers) else 1 for layer in range(self.layers))
        return layer_by_layer((circle, GridLayout(self.merge)), layers, spans, start)

    def _in_circle(self, layer: int, layers: int) -> bool:
        """Whether a layer uses the circle."""
        if self.alternate in ("first", "last"):
            return (2 * layer < layers) == (self.alternate == "first")
        return self.alternate == "all" or layer % 2 == 0

    def _circle(self, rows: int, cols: int) -> np.ndarray:
        """(3, H * W) float64, the ids of an image that starts at 0."""
        down, right = (np.arange(side) - (side - 1) / 2 for side in (rows, cols))
        angle = np.arctan2(down[:, None], right).reshape(-1)
        stretched = (angle - angle.min()) / (np.ptp(angle) or 1)
        even = np.arange(angle.size) / angle.size
        turn = 2 * math.pi * (self.alpha * stretched + (1 - self.alpha) * even)
        radius = (self.factor or 1) * (max(rows, cols) - 1) / 2 if self.radius == "auto" else self.radius
        return radius * (np.outer(_ACROSS, np.cos(turn)) + np.outer(_ALONG, np.sin(turn)))
