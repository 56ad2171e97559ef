"""Ring layouts: the tokens of a picture share one position a ring, and attend to one another ring by ring.

Letters: N tokens, H and W the merged grid (one token a cell).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch

from mrope.checks import Number, one_of, whole
from mrope.layouts.blocks import PictureLayout
from mrope.layouts.layout import SpanLayout, Traits, layer_by_layer
from mrope.positions import NO_PICTURE, End, Positions
from mrope.spans import Span, Text

RingKind = Literal["chebyshev", "manhattan"]


@dataclass(frozen=True, slots=True)
class RingLayout(PictureLayout):
    """All axes of an image that starts at s carry s + ring, where rings count from the border of the image inwards.

    The next span starts at the largest position + 1. `Positions.mask` lets a token of an image attend to the tokens of
    its own ring and of those outside it: an image must be prefilled in one piece. The released codes are written for
    one image of 24 x 24 tokens; the formula takes any height and width, and any number of images. Clips are in neither
    paper.

    Args:
        merge: patches per token and side.
        kind: how far a cell is from the border. "chebyshev": from the nearest side, min(row, H - 1 - row, col,
            W - 1 - col) (CCA, arXiv:2410.15926). "manhattan": from the nearest corner, min(row, H - 1 - row) +
            min(col, W - 1 - col) (MCA-LLaVA, arXiv:2507.09184).
        flat: how many of the innermost rings take the position of the one around them; all of an image share one where
            it has no more (PyPE, see `PypeLayout`).

    >>> from mrope.spans import Image
    >>> RingLayout()([Text(3), Image((1, 6, 8)), Text(1)]).ids[0].tolist()
    [0, 1, 2, 3, 3, 3, 3, 3, 4, 4, 3, 3, 3, 3, 3, 5]
    """

    kind: RingKind = "chebyshev"
    flat: int = 0

    def __post_init__(self) -> None:
        SpanLayout.__post_init__(self)
        one_of("kind", self.kind, ("chebyshev", "manhattan"))
        object.__setattr__(self, "flat", whole("flat", self.flat, 0))

    @property
    def traits(self) -> Traits:
        """What the layout promises: many tokens share a position, and a ring comes back on its far side."""
        return Traits(distinct=False, monotone=False, symmetric=True)

    def growth(self, t: int, h: int, w: int) -> Number:
        """See `SpanLayout.growth`: the number of rings."""
        return int(self._rings(h, w).max()) + 1

    def place(self, block: np.ndarray, span: Any, end: End) -> Number:
        """See `SpanLayout.place`."""
        rings = self._rings(*self.grid(span)[1:])
        block[:] = end.next + rings.reshape(-1)
        return end.next + int(rings.max()) + 1

    def __call__(self, spans: Sequence[Span], start: Number | Positions = 0) -> Positions:
        """The positions of `spans` with their `pictures`: see `Layout`.

        Raises:
            ValueError: a span does not fit the layout.
        """
        positions = SpanLayout.__call__(self, spans, start)
        pictures = np.array([not isinstance(span, Text) for span in spans], dtype=bool)
        numbers = positions.end.pictures - pictures.sum() + pictures.cumsum() - 1
        counts = [self.tokens(span) for span in spans]
        numbers = np.where(pictures, numbers, NO_PICTURE).repeat(counts)
        return replace(positions, pictures=torch.from_numpy(numbers), attend="rings")

    def _rings(self, rows: int, cols: int) -> np.ndarray:
        """(H, W) int64, the ring of each cell of an image."""
        down, along = (np.minimum(np.arange(side), np.arange(side)[::-1]) for side in (rows, cols))
        rings = np.minimum(down[:, None], along) if self.kind == "chebyshev" else down[:, None] + along
        return rings.clip(max=max(rings.max() - self.flat, 0))


@dataclass(frozen=True, slots=True)
class PypeLayout(SpanLayout):
    """Rings as in CCA whose flat centre grows with depth: layer l flattens l // jump of them (PyPE, arXiv:2501.10967).

    The first layers see CCA's rings, the last ones a picture whose tokens all share one position. So positions differ
    from layer to layer, those of text behind a picture too: `Positions.layer(l)` has ids, mask and decoding of layer l.
    The paper has square pictures of an even side H with H / 2 rings; for others we count the rings that there are,
    ceil(min(H, W) / 2). A picture that has become flat stays so in deeper layers, each of a prompt for itself.

    Args:
        merge: patches per token and side.
        layers: how many the model has.
        jump: layers after which one more ring becomes flat.

    >>> from mrope.spans import Image
    >>> positions = PypeLayout(layers=4, jump=2)([Text(3), Image((1, 6, 8)), Text(1)])
    >>> [positions.layer(l).ids[0, -6:].tolist() for l in (0, 1, 2, 3)]
    [[3, 3, 3, 3, 3, 5], [3, 3, 3, 3, 3, 5], [3, 3, 3, 3, 3, 4], [3, 3, 3, 3, 3, 4]]
    """

    layers: int = field(kw_only=True)
    jump: int = field(kw_only=True)

    def __post_init__(self) -> None:
        SpanLayout.__post_init__(self)
        object.__setattr__(self, "layers", whole("layers", self.layers, 1))
        object.__setattr__(self, "jump", whole("jump", self.jump, 1))

    @property
    def levels(self) -> tuple[RingLayout, ...]:
        """The layout of each group of `jump` layers, the first one first."""
        return tuple(RingLayout(self.merge, flat=flat) for flat in range((self.layers - 1) // self.jump + 1))

    @property
    def traits(self) -> Traits:
        """What the layout of the first layers promises; that of the others promises the same."""
        return self.levels[0].traits

    def growth(self, t: int, h: int, w: int) -> Number:
        """See `SpanLayout.growth`: in the first layers."""
        return self.levels[0].growth(t, h, w)

    def media_tokens(self, span: Any) -> int:
        """See `tokens`."""
        return self.levels[0].media_tokens(span)

    def place(self, block: np.ndarray, span: Any, end: End) -> Number:
        """See `SpanLayout.place`: in the first layers."""
        return self.levels[0].place(block, span, end)

    def __call__(self, spans: Sequence[Span], start: Number | Positions = 0) -> Positions:
        """The positions of `spans`, with one of `variants` for each group of layers: see `Layout`.

        Raises:
            ValueError: a span does not fit the layout, or `start` was made for other layers.
        """
        return layer_by_layer(self.levels, tuple(layer // self.jump for layer in range(self.layers)), spans, start)
