"""Positions: the coordinates of each token of a prompt, where decoding goes on, padding and batching.

Letters: A axes (3: t, h, w), B batch, N tokens, K new tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from torch.nn.functional import pad

from mrope.checks import one_of, whole

Side = Literal["left", "right"]
PADDING = -1  # the segment of a slot that holds no token


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """The positions of one row of tokens; what changes it returns a new object.

    Args:
        ids: (A, N) int64, the position of each token on each axis, in the order (t, h, w); 0 in padded slots.
        text: (N,) int64, the index of each token inside its segment (what masks are made from); 0 in padded slots.
        segments: (N,) int64, the document of each token, from 0; -1 in padded slots.
        next: the position, on all axes, of the text token that follows.

    >>> import mrope
    >>> p = mrope.family("qwen2-vl").positions(["text:2", "image:1x4x8", "text:1"])
    >>> p.ids[:, -2:].tolist(), p.next, p.length, p.offset
    ([[2, 6], [3, 6], [5, 6]], 7, 11, -4)
    """

    ids: Int64[Tensor, "a n"]
    text: Int64[Tensor, " n"]
    segments: Int64[Tensor, " n"]
    next: int

    @property
    def length(self) -> int:
        """How many tokens there are, padding not counted."""
        return int((self.segments != PADDING).sum())

    @property
    def offset(self) -> int:
        """What decoding adds to a token's index to get its position: one number per request, kept by padding."""
        return self.next - self.length

    def decode(self, k: int) -> Int64[Tensor, "a k"]:
        """The ids (A, K) of the next `k` text tokens."""
        count = whole("number of new tokens", k, 0)
        return torch.arange(self.next, self.next + count, device=self.ids.device).repeat(self.ids.shape[0], 1)

    def pad(self, length: int, side: Side = "left") -> Positions:
        """Padded to `length` slots in all; the tokens keep their ids.

        Raises:
            ValueError: there are more slots than `length` already, or `side` is neither "left" nor "right".
        """
        one_of("padding side", side, ("left", "right"))
        missing = whole("padded length", length, 0) - self.ids.shape[1]
        if missing < 0:
            raise ValueError(f"padded length is {length}; there are {self.ids.shape[1]} slots already")
        widths = (missing, 0) if side == "left" else (0, missing)
        return replace(
            self,
            ids=pad(self.ids, widths),
            text=pad(self.text, widths),
            segments=pad(self.segments, widths, value=PADDING),
        )

    def shift(self, delta: int) -> Positions:
        """All tokens moved by `delta` on all axes; a rotary model must not notice."""
        return replace(self, ids=self.ids + delta * (self.segments != PADDING), next=self.next + delta)


@dataclass(frozen=True, slots=True, eq=False)
class BatchPositions:
    """The positions of several rows, padded to one length.

    Args:
        ids: (A, B, N) int64; 0 in padded slots, as transformers has it.
        text: (B, N) int64, the index of each token inside its segment; 0 in padded slots.
        mask: (B, N) bool, True where there is a token.
        offsets: (B,) int64, the decode offset of each row.
    """

    ids: Int64[Tensor, "a b n"]
    text: Int64[Tensor, "b n"]
    mask: Bool[Tensor, "b n"]
    offsets: Int64[Tensor, " b"]

    def decode(self, k: int) -> Int64[Tensor, "a b k"]:
        """The ids (A, B, K) of the next `k` text tokens of each row."""
        start = self.mask.sum(-1) + self.offsets
        steps = torch.arange(whole("number of new tokens", k, 0), device=self.ids.device)
        return (start[:, None] + steps).repeat(self.ids.shape[0], 1, 1)


def batch(rows: Sequence[Positions], side: Side = "left") -> BatchPositions:
    """`rows` padded to the longest and stacked; generation wants left padding, the default.

    Raises:
        ValueError: there are no rows, or they differ in the number of axes.

    >>> import mrope
    >>> rows = [mrope.family("qwen2-vl").positions([span]) for span in ("text:3", "image:1x2x4")]
    >>> mrope.batch(rows).ids[2].tolist()
    [[0, 1, 2], [0, 0, 1]]
    """
    if not rows:
        raise ValueError("batch got no rows; expected at least one Positions")
    axes = sorted({row.ids.shape[0] for row in rows})
    if len(axes) > 1:
        raise ValueError(f"batch got rows of {' and '.join(map(str, axes))} axes; expected one number of axes")
    longest = max(row.ids.shape[1] for row in rows)
    padded = [row.pad(longest, side) for row in rows]
    return BatchPositions(
        ids=torch.stack([row.ids for row in padded], dim=1),
        text=torch.stack([row.text for row in padded]),
        mask=torch.stack([row.segments != PADDING for row in padded]),
        offsets=torch.tensor([row.offset for row in padded], device=padded[0].ids.device),
    )
