"""Merged tokens that keep the positions of their members (PPE).

Letters: A axes, K members, N tokens, M merged tokens.
"""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from mrope.checks import whole
from mrope.positions import Positions


def merge_clusters(positions: Positions, clusters: Int64[Tensor, " n"], k: int = 8) -> Positions:
    """Each cluster of tokens merged into one that keeps the ids of `k` members, `Positions.members` (K, A, M).

    A merged token stands where the last token of its cluster stood and has its coordinates. Its members are the last
    `k` tokens of the cluster, from last to first, over again where there are fewer: what the released code of PPE
    (arXiv:2510.22936, k = 8) picks, but for its sort, which leaves the order inside a cluster to chance. There, the
    rotary pairs of each axis are cut into `k` runs, and run j reads member j: `members.movedim(0, 1).flatten(0, 1)` are
    ids on A * k axes, for a chunked `AxisSplit` of these runs, such as (2,) * 8 + (3,) * 16 for (16, 24, 24). Text,
    with `k` equal members, turns as it does without merging.

    Where a model goes on merging in deeper layers, merge the merged tokens with k=1: each keeps the members of the last
    token of its cluster, as in the released code.

    Args:
        positions: of one row, or packed.
        clusters: (N,) int64, the number of each token's cluster, in any order, each within one document; tokens below 0
            (text, padding) stay as they are.
        k: members of each token.

    Raises:
        ValueError: `clusters` has another shape, or a cluster has tokens of several documents.

    >>> import mrope
    >>> positions = mrope.family("qwen2-vl").positions(["text:1", "image:1x4x4", "text:1"])
    >>> merged = merge_clusters(positions, torch.tensor([-1, 0, 0, 1, 0, -1]), k=2)
    >>> merged.ids.T.tolist()
    [[0, 0, 0], [1, 2, 1], [1, 2, 2], [3, 3, 3]]
    >>> merged.members[1].T.tolist()
    [[0, 0, 0], [1, 2, 1], [1, 1, 2], [3, 3, 3]]
    """
    if clusters.shape != positions.segments.shape:
        raise ValueError(f"clusters has shape {tuple(clusters.shape)}; expected {tuple(positions.segments.shape)}")
    slots = torch.arange(len(clusters), device=clusters.device)
    numbers = torch.where(clusters < 0, -1 - slots, clusters)
    _, cluster, sizes = numbers.unique(return_inverse=True, return_counts=True)
    by_cluster = cluster.argsort(stable=True)  # the tokens of each in the row's order
    step = torch.arange(whole("k", k, 1), device=clusters.device)[:, None] % sizes
    members = by_cluster[sizes.cumsum(0) - 1 - step]
    return positions.merge(members[:, members[0].argsort()])
