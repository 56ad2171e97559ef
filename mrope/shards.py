"""Context parallelism: which slots of a row each rank holds. Letters: N slots, W ranks, L slots of a rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Int64
from torch import Tensor

from mrope.checks import one_of, whole

Scheme = Literal["zigzag", "contiguous"]
PADDING = -1  # the segment of a slot that holds no token


def shard_index(segments: Int64[Tensor, " n"], world: int, scheme: Scheme = "zigzag") -> Int64[Tensor, "w l"]:
    """The slots of each context-parallel rank, (W, L): one index for positions, tokens, labels and all that has slots.

    Each document is dealt for itself, so that its ids stay its own. "zigzag" cuts it into 2 W pieces and gives rank r
    the pieces r and 2 W - 1 - r, which evens out causal attention; "contiguous" cuts it into W. Padding belongs to the
    document in front of it (before the first, to the first).

    Args:
        segments: (N,) the document of each slot, -1 where there is padding: `Positions.segments`.
        world: W, the number of ranks.
        scheme: "zigzag" or "contiguous".

    Raises:
        ValueError: documents do not stand one behind the other in the order of their numbers, or one with its padding
            does not divide into the pieces: pad each to a multiple before packing.

    >>> shard_index(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), 2).tolist()
    [[0, 3, 4, 7], [1, 2, 5, 6]]
    """
    one_of("scheme", scheme, ("zigzag", "contiguous"))
    pieces = whole("world", world, 1) * (2 if scheme == "zigzag" and world > 1 else 1)
    documents = segments[segments != PADDING] if segments.dim() == 1 else segments
    if segments.dim() != 1 or (documents.diff() < 0).any() or (documents < 0).any():
        raise ValueError(
            f"segments of shape {tuple(segments.shape)} are no packed row; expected (N,) with -1 for padding and "
            "documents one behind the other: 0, ..., 0, 1, ..., 1, ..."
        )
    slots = torch.arange(len(segments), device=segments.device)
    owner = torch.cummax(segments, 0).values.clamp(min=0) if len(segments) else segments
    lengths = torch.unique_consecutive(owner, return_counts=True)[1]
    if (odd := (lengths % pieces != 0).nonzero()[:, 0]).numel():
        number = int(odd[0])
        raise ValueError(
            f"document {number} has {int(lengths[number])} slots with its padding, which {pieces} {scheme} pieces for "
            f"{world} ranks do not divide: pad each document on its right to a multiple of {pieces} before packing"
        )
    begin = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
    piece = (slots - begin) * pieces // lengths.repeat_interleave(lengths)
    rank = torch.minimum(piece, pieces - 1 - piece) if pieces > world else piece
    return rank.argsort(stable=True).view(world, -1)


def unshard(shards: Sequence[Tensor], index: Int64[Tensor, "w l"]) -> Tensor:
    """What the ranks hold, in rank order and with their slots in the last dim, put together again.

    Raises:
        ValueError: the shards are not those of `index`.

    >>> index = shard_index(torch.zeros(8, dtype=torch.int64), 2)
    >>> unshard([torch.arange(10, 18)[slots] for slots in index], index).tolist()
    [10, 11, 12, 13, 14, 15, 16, 17]
    """
    lengths = [shard.shape[-1] for shard in shards]
    if lengths != [index.shape[1]] * index.shape[0]:
        raise ValueError(f"shards have {lengths} slots; expected {index.shape[0]} shards of {index.shape[1]}")
    return torch.cat(list(shards), dim=-1)[..., index.flatten().argsort()]
