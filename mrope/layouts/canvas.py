"""The layout of MiniCPM-V 4.7: a thumbnail and its slices on one canvas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from mrope.checks import Number, one_of
from mrope.layouts.layout import SpanLayout, Traits, fill_cells, line
from mrope.positions import End
from mrope.spans import Sliced

Newline = Literal["origin", "text"]


@dataclass(frozen=True, slots=True)
class CanvasLayout(SpanLayout):
    """Slices tile a canvas, and the thumbnail is stretched over it, so that both say where they look.

    All tokens of a picture that starts at o have t = o. With rows x cols slices of sh x sw tokens the canvas is CH =
    rows sh high and CW = cols sw wide; without slices it is the thumbnail's own th x tw tokens. Then (h, w) is, for

    - the token before the thumbnail: o - 1 (0 if o is 0) on both axes; the token behind it: (o + CH, o + CW);
    - token (i, j) of the thumbnail: o + i (CH - 1) / (th - 1), rounded half to even, and likewise w;
    - token (i, j) of a slice whose corner lies at (a, b): (o + a + i, o + b + j); the token before it: (o + a, o + b);
      the token behind it: (o + a + sh - 1, o + b + sw - 1);
    - the newline behind row r of the slices: (o + (r + 1) sh - 1, o + CW).

    The next span starts at o + max(CH, CW) + 1. Source: transformers 5.24 (minicpmv4_7), and the vendor's reference.

    Args:
        merge: patches per token and side; 4, or 2 in the model's mode "4x".
        newline: where newlines behind a picture lie. "origin": at (o, o, o), as in the vendor's newer code and
            transformers; "text": behind it as text, as in the vendor's older code. Which one the weights were trained
            with is not known.

    >>> CanvasLayout()([Sliced((1, 4, 8))]).ids.tolist()
    [[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 2]]
    """

    merge: int = 4
    newline: Newline = "origin"

    def __post_init__(self) -> None:
        SpanLayout.__post_init__(self)
        one_of("newline", self.newline, ("origin", "text"))

    @property
    def traits(self) -> Traits:
        """What the layout promises of a picture without slices; with them, slices and thumbnail share positions."""
        return Traits(clears_before=False)

    def growth(self, t: int, h: int, w: int) -> Number:
        """See `SpanLayout.growth`."""
        return max(h, w) + 1

    def media_tokens(self, span: Any) -> int:
        """See `tokens`."""
        if not isinstance(span, Sliced):
            raise self.refuse(span, "declare a picture as Sliced, with slices or without")
        (thumb_rows, thumb_cols), (rows, cols), (slice_rows, slice_cols) = self.sliced(span)
        newlines = span.newlines + max(rows - 1, 0)
        return 2 + thumb_rows * thumb_cols + rows * cols * (2 + slice_rows * slice_cols) + newlines

    def place(self, block: np.ndarray, span: Any, end: End) -> Number:
        """See `SpanLayout.place`."""
        o = int(end.next)
        thumb, (rows, cols), (slice_rows, slice_cols) = self.sliced(span)
        high, wide = (rows * slice_rows, cols * slice_cols) if rows else thumb
        following = o + max(high, wide) + 1
        tail = block.shape[1] - span.newlines
        if self.newline == "text":
            block[:, tail:] = line(following, span.newlines, self.dtype)
            following += span.newlines
        else:
            block[:, tail:] = o
        cells = thumb[0] * thumb[1]
        block[:, 0] = o, max(o - 1, 0), max(o - 1, 0)
        fill_cells(
            block[:, 1 : 1 + cells], np.full(1, o), o + _stretched(high, thumb[0]), o + _stretched(wide, thumb[1])
        )
        block[:, 1 + cells] = o, o + high, o + wide
        if rows:
            _place_slices(block[:, 2 + cells : tail], o, rows, cols, slice_rows, slice_cols)
        return following


def _stretched(canvas: int, count: int) -> np.ndarray:
    """(count,) int64, places from 0 to canvas - 1; by torch in float32, as in the model, since halves are rounded."""
    return torch.linspace(0, canvas - 1, count).round().long().numpy()


def _place_slices(block: np.ndarray, o: int, rows: int, cols: int, high: int, wide: int) -> None:
    """Write the ids of `rows` x `cols` slices of `high` x `wide` tokens, with the tokens around and between them."""
    per_slice = 2 + high * wide
    block[0] = o
    # A newline stands behind each row but the last: laid out as if behind all, the last one is left away.
    whole = np.empty((2, rows, cols * per_slice + 1), dtype=block.dtype)
    slices = whole[:, :, :-1].reshape(2, rows, cols, per_slice)
    cell = np.concatenate(([0], np.arange(high * wide), [high * wide - 1]))  # the tokens around lie on the corners
    slices[0] = o + high * np.arange(rows)[:, None, None] + cell // wide
    slices[1] = o + wide * np.arange(cols)[:, None] + cell % wide
    whole[0, :, -1] = o + high * np.arange(1, rows + 1) - 1
    whole[1, :, -1] = o + cols * wide
    block[1:] = whole.reshape(2, -1)[:, :-1]
