"""Batches: rows of positions padded to one length. Letters: A axes, B rows, N slots, K new tokens, M merged tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from mrope.checks import whole
from mrope.positions import Positions, Side, check_alike, moved_together
from mrope.shards import PADDING


@dataclass(frozen=True, slots=True, eq=False)
class BatchPositions:
    """The positions of several rows, padded to one length; what changes it returns a new object.

    Args:
        ids: (A, B, N) int64, or a float where the layout is real-valued; 0 in padded slots.
        text: (B, N) int64, the slot of each token inside its document; 0 in padded slots.
        segments: (B, N) int64, the document of each token in its row; -1 in padded slots.
        offsets: (B,) int64, or float64 where ids are real-valued: the decode offset of each row, the position of a
            generated text token minus its slot. None where rows are packed, which do not decode in place.
        rows: the padded rows, each with all that it holds; they stay where they were made.
        query: (A, B, N) the second ids of queries, where the layout has some.
        members: (M, A, B, N) the ids of merged tokens, where there are some.
        pictures: (B, N) the picture of each token, where attention must tell them apart; `rows` know how it goes.
    """

    ids: Int64[Tensor, "a b n"] | Float[Tensor, "a b n"]
    text: Int64[Tensor, "b n"]
    segments: Int64[Tensor, "b n"]
    offsets: Int64[Tensor, " b"] | Float[Tensor, " b"] | None
    rows: tuple[Positions, ...]
    query: Int64[Tensor, "a b n"] | Float[Tensor, "a b n"] | None = None
    members: Int64[Tensor, "m a b n"] | Float[Tensor, "m a b n"] | None = None
    pictures: Int64[Tensor, "b n"] | None = None

    @property
    def mask(self) -> Bool[Tensor, "b n"]:
        """(B, N) bool, True where there is a token."""
        return self.segments != PADDING

    @property
    def with_text(self) -> Int64[Tensor, "a1 b n"] | Float[Tensor, "a1 b n"]:
        """(1 + A, B, N), the slots on top of the ids: what transformers models take as position_ids of packed rows."""
        return torch.cat((self.text[None].to(self.ids.dtype), self.ids))

    def layer(self, index: int) -> BatchPositions:
        """The positions of layer `index`; the same ones for all where layers do not differ."""
        if not self.rows[0].layers:
            return self
        return batch([row.layer(index) for row in self.rows]).to(self.ids.device)

    def decode(self, k: int, skip: int | Sequence[int] | Int64[Tensor, " b"] = 0) -> BatchPositions:
        """The positions of `k` tokens that are generated after each row: see `Positions.decode`.

        Args:
            k: how many.
            skip: generated tokens to leave out: one number, or one a row.
        """
        skips = list(map(int, skip)) if isinstance(skip, (Sequence, Tensor)) else [skip] * len(self.rows)
        if len(skips) != len(self.rows):
            raise ValueError(f"skip has {len(skips)} entries for {len(self.rows)} rows; expected one a row")
        rows = [row.decode(k, each) for row, each in zip(self.rows, skips, strict=True)]
        return batch(rows).to(self.ids.device)

    def select(self, rows: Sequence[int]) -> BatchPositions:
        """The rows with these numbers, in this order, repeats allowed: beams, groups, or one device's share."""
        if wrong := [row for row in rows if not 0 <= row < len(self.rows)]:
            raise ValueError(f"row {wrong[0]} is not among the {len(self.rows)} rows of the batch")
        return batch([self.rows[row] for row in rows]).to(self.ids.device)

    def expand(self, n: int) -> BatchPositions:
        """Each row `n` times in a run, as beam search and groups of samples have it."""
        return self.select([row for row in range(len(self.rows)) for _ in range(whole("n", n, 1))])

    def micro_batches(self, size: int) -> list[BatchPositions]:
        """Pieces of `size` rows for a pipeline, the last one smaller; all axes stay together."""
        step, count = whole("micro-batch size", size, 1), len(self.rows)
        return [self.select(range(first, min(first + step, count))) for first in range(0, count, step)]

    def to(self, device: torch.device | str) -> BatchPositions:
        """On `device`: one copy of the batch for each dtype; `rows` stay."""
        names = [name for name in _TENSORS if getattr(self, name) is not None]
        if all(getattr(self, name).device == torch.device(device) for name in names):
            return self
        moved = moved_together([getattr(self, name) for name in names], device)
        return replace(self, **dict(zip(names, moved, strict=True)))


_TENSORS = ("ids", "text", "segments", "offsets", "query", "members", "pictures")


def batch(rows: Sequence[Positions], side: Side = "left", *, multiple: int = 1) -> BatchPositions:
    """`rows` padded to the longest, or on to a multiple, and stacked; generation wants left padding, the default.

    Raises:
        ValueError: there are no rows, or one layout cannot have made them all.

    >>> import mrope
    >>> rows = [mrope.family("qwen2-vl").positions([span]) for span in ("text:3", "image:1x2x4")]
    >>> mrope.batch(rows).ids[2].tolist()
    [[0, 1, 2], [0, 0, 1]]
    """
    rows = list(rows)
    check_alike("batch", rows)
    longest = max(row.ids.shape[1] for row in rows)
    longest += -longest % whole("multiple", multiple, 1)
    padded = tuple(row.pad(longest, side) for row in rows)

    def stacked(name: str) -> Any:
        tensors = [getattr(row, name) for row in padded]
        return None if tensors[0] is None else torch.stack(tensors, dim=-2)

    packed = any(len(row.ends) > 1 for row in padded)
    exact = torch.float64 if padded[0].ids.is_floating_point() else torch.int64
    return BatchPositions(
        ids=stacked("ids"),
        text=stacked("text"),
        segments=stacked("segments"),
        offsets=None
        if packed
        else torch.tensor([row.offset for row in padded], dtype=exact, device=padded[0].ids.device),
        rows=padded,
        query=stacked("query"),
        members=stacked("members"),
        pictures=stacked("pictures"),
    )
