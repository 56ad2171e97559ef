"""Encodings that add to the scores. A bias takes as much memory as the scores do: (H, N, M), or (B, H, N, M).

Letters: A axes, B batch, H heads, N queries, M keys, D head dim.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn
from torch.nn.functional import linear

from mrope.checks import one_of, whole
from mrope.encoding import Encoding, Properties, Where, check_tokens, read_ids
from mrope.encodings.operands import check_heads, wholes, without_autocast

Direction = Literal["both", "causal"]


@dataclass(frozen=True, slots=True)
class Alibi(Encoding):
    """Takes from each score the distance of query and key, times a fixed slope of the head (arXiv:2108.12409).

    Along one axis the distance is ``|i - j|``; along several it is the Euclidean one (CROMA, arXiv:2311.00566).

    Args:
        heads: H of the queries.
        axes: A of the ids.

    >>> Alibi(2).slopes
    tensor([0.0625, 0.0039])
    >>> Alibi(2, axes=2).bias(torch.ones(2, 1, 4), torch.tensor([[0], [0]]), torch.tensor([[3], [4]])).flatten()
    tensor([-0.3125, -0.0195])
    """

    heads: int
    _: KW_ONLY
    axes: int = 1

    def __post_init__(self) -> None:
        whole("heads", self.heads, 1)
        whole("axes", self.axes, 1)

    @property
    def properties(self) -> Properties:
        """See `Encoding.properties`."""
        return Properties(shift=True)

    @property
    def slopes(self) -> Float32[Tensor, " h"]:
        """(H,) score per position: ``2 ** (-8 i / H)`` for i = 1 to H.

        Of other numbers of heads than powers of two, the slopes of the next lower power, then every other one of twice
        that power.
        """
        power = 1 << (self.heads.bit_length() - 1)
        exponents = [8 * i / power for i in range(1, power + 1)]
        between = [4 * i / power for i in range(1, 2 * power, 2)]
        return torch.tensor([2.0**-e for e in (exponents + between)[: self.heads]])

    def bias(
        self, q: Float[Tensor, "*b hq n d"], positions: Where, keys: Where | None = None
    ) -> Float[Tensor, "*b hq n m"]:
        """Minus slope times distance, float32 rounded once to the dtype of `q`; whole or real positions.

        Raises:
            ValueError: `q` has another number of heads, or its tokens are others than the positions'.
        """
        _check_heads(q, self.heads)
        dtype = torch.promote_types(q.dtype, torch.float32)
        distance = torch.linalg.vector_norm(_offsets(q, positions, keys, self.axes).to(dtype), dim=0)
        slopes = self.slopes.to(q.device, dtype)
        return _as_scores(-slopes[:, None, None] * distance.unsqueeze(-3), q)


class ShawBias(nn.Module, Encoding):
    """Adds ``q . a / sqrt(D)`` to the scores: a is the learned vector of the key's offset (Shaw, arXiv:1803.02155).

    Offsets (key minus query) are clipped to the reach; the vectors of several axes are added up. All heads share them.
    The part on the keys is built, equation 4; the vectors that the paper also adds to the values are not.

    Args:
        head_dim: D of the queries.
        reach: the farthest offset with a vector of its own, in positions.
        axes: A of the ids.

    >>> ShawBias(8, 4, axes=2).weight.shape
    torch.Size([2, 9, 8])
    """

    def __init__(self, head_dim: int, reach: int, *, axes: int = 1):
        super().__init__()
        self.head_dim, self.reach = whole("head_dim", head_dim, 1), whole("reach", reach, 1)
        self.axes = whole("axes", axes, 1)
        self.weight = nn.Parameter(torch.empty(self.axes, 2 * self.reach + 1, self.head_dim).normal_(std=0.02))

    @property
    def properties(self) -> Properties:
        """See `Encoding.properties`."""
        return Properties(shift=True)

    def bias(
        self, q: Float[Tensor, "*b hq n d"], positions: Where, keys: Where | None = None
    ) -> Float[Tensor, "*b hq n m"]:
        """Products of the queries and the vectors, float32 rounded once to the dtype of `q`.

        Raises:
            ValueError: a position is not whole, `q` has another head dim, or its tokens are others than the positions'.
        """
        check_heads("q", q)
        if q.shape[-1] != self.head_dim:
            raise ValueError(f"q has head dim {q.shape[-1]}; the vectors have {self.head_dim}")
        rows = _whole_offsets(q, positions, keys, self.axes).clamp(-self.reach, self.reach) + self.reach
        dtype = torch.promote_types(q.dtype, torch.float32)
        with without_autocast(q.device):
            # Every query meets the few vectors once, rather than one vector for each key.
            products = torch.einsum("...nd,ard->a...nr", q.to(dtype), self.weight.to(dtype))
        if rows.dim() < q.dim():
            rows = rows.unsqueeze(1)  # one for all rows of the batch
        products = products.take_along_dim(rows.unsqueeze(-3), dim=-1)
        return _as_scores(products.sum(0) / math.sqrt(self.head_dim), q)


class T5Bias(nn.Module, Encoding):
    """Adds a learned number for each head and bucket of offsets, as T5 does (arXiv:1910.10683, section 2.1).

    Near offsets have a bucket each, far ones share buckets that grow with the logarithm of the distance up to the
    reach; beyond it all share the last. Of several axes each has a table of its own, and their numbers are added up.

    Args:
        heads: H of the queries.
        buckets: number of buckets.
        reach: the distance from which on all offsets share one bucket, in positions.
        direction: "both" gives keys before and after the query half of the buckets each; "causal" gives keys before
            it all of them, and keys after it that of offset 0.
        axes: A of the ids.

    Raises:
        ValueError: `buckets` are odd or too few, or `reach` lies within the near offsets.

    >>> bias = T5Bias(2, axes=2)
    >>> bias.weight.shape
    torch.Size([2, 32, 2])
    >>> bias.bias(torch.ones(2, 5, 8), torch.arange(10).view(2, 5)).shape
    torch.Size([2, 5, 5])
    """

    def __init__(
        self, heads: int, *, buckets: int = 32, reach: int = 128, direction: Direction = "both", axes: int = 1
    ):
        super().__init__()
        one_of("direction", direction, ("both", "causal"))
        self.heads, self.axes, self.direction = whole("heads", heads, 1), whole("axes", axes, 1), direction
        self.buckets = whole("buckets", buckets, 4 if direction == "both" else 2)
        if self.buckets % 2:
            raise ValueError(f"buckets is {buckets}; expected an even number, half of them for near offsets")
        self.side = self.buckets // 2 if direction == "both" else self.buckets
        self.near = self.side // 2
        self.reach = whole("reach", reach, self.near + 1)
        self.weight = nn.Parameter(torch.empty(self.axes, self.buckets, self.heads).normal_(std=0.02))

    @property
    def properties(self) -> Properties:
        """See `Encoding.properties`."""
        return Properties(shift=True)

    def bias(
        self, q: Float[Tensor, "*b hq n d"], positions: Where, keys: Where | None = None
    ) -> Float[Tensor, "*b hq n m"]:
        """The numbers of all queries and keys, rounded once to the dtype of `q`.

        Raises:
            ValueError: a position is not whole, `q` has another number of heads, or its tokens are others than the
                positions'.
        """
        _check_heads(q, self.heads)
        buckets = self._bucket(_whole_offsets(q, positions, keys, self.axes))
        dtype = torch.promote_types(q.dtype, torch.float32)
        numbers = [table[bucket] for table, bucket in zip(self.weight.to(dtype), buckets, strict=True)]
        return _as_scores(sum(numbers[1:], numbers[0]).movedim(-1, -3), q)

    def _bucket(self, offset: Tensor) -> Tensor:
        distance, first = (-offset).clamp(min=0), 0
        if self.direction == "both":
            distance, first = offset.abs(), (offset > 0) * self.side
        # In the order of operations of transformers: trained models have their far buckets begin where it rounds.
        share = torch.log(distance.clamp(min=self.near).float() / self.near) / math.log(self.reach / self.near)
        far = (self.near + (share * (self.side - self.near)).long()).clamp(max=self.side - 1)
        return first + torch.where(distance < self.near, distance, far)


class ContinuousBias(nn.Module, Encoding):
    """Adds what a small network makes of the offset, on a logarithmic scale: Swin v2 (arXiv:2111.09883, section 3.3).

    An offset d (query minus key) enters as ``sign(d) log2(1 + 8 |d| / max(extent - 1, 1)) / log2(8)``, one number per
    axis; two layers with a ReLU between them make one number per head of it, and 16 times its sigmoid is added.

    Args:
        heads: H of the queries.
        extent: positions along each axis that the bias is trained on, the window (h, w) in Swin; larger ones are
            extrapolated.
        hidden: width of the network.

    >>> ContinuousBias(3, (7, 14)).bias(torch.ones(3, 5, 8), torch.arange(10).view(2, 5)).shape
    torch.Size([3, 5, 5])
    """

    def __init__(self, heads: int, extent: tuple[int, ...], *, hidden: int = 512):
        super().__init__()
        self.heads = whole("heads", heads, 1)
        self.extent = wholes("extent", extent)
        self.axes = len(self.extent)
        if not self.extent:
            raise ValueError("extent () is empty; expected at least one axis")
        self.inner = nn.Linear(self.axes, whole("hidden", hidden, 1))
        self.outer = nn.Linear(hidden, self.heads, bias=False)

    @property
    def properties(self) -> Properties:
        """See `Encoding.properties`."""
        return Properties(shift=True)

    def bias(
        self, q: Float[Tensor, "*b hq n d"], positions: Where, keys: Where | None = None
    ) -> Float[Tensor, "*b hq n m"]:
        """16 times a sigmoid, float32 rounded once to the dtype of `q`; whole or real positions.

        The network runs once for each different offset. On an accelerator the host waits for their number.

        Raises:
            ValueError: `q` has another number of heads, or its tokens are others than the positions'.
        """
        _check_heads(q, self.heads)
        different, which = _different(-_offsets(q, positions, keys, self.axes))
        dtype = torch.promote_types(q.dtype, torch.float32)
        farthest = torch.tensor(self.extent, device=q.device, dtype=dtype).sub(1).clamp(min=1)
        scaled = different.T.to(dtype) / farthest * 8
        scaled = scaled.sign() * torch.log2(1 + scaled.abs()) / 3
        with without_autocast(q.device):
            inner = linear(scaled, self.inner.weight.to(dtype), self.inner.bias.to(dtype)).relu()
            numbers = 16 * linear(inner, self.outer.weight.to(dtype)).sigmoid()
        return _as_scores(numbers[which].movedim(-1, -3), q)


def _check_heads(q: Tensor, heads: int) -> None:
    check_heads("q", q)
    if q.shape[-3] != heads:
        raise ValueError(f"q has {q.shape[-3]} heads; this bias is one for {heads} heads of queries")


def _offsets(q: Tensor, positions: Where, keys: Where | None, axes: int | None) -> Tensor:
    """(A, N, M) or (A, B, N, M): position of the key minus position of the query."""
    queries = _widened(read_ids(positions, axes))
    others = queries if keys is None else _widened(read_ids(keys, axes, "keys"))
    check_tokens(queries, q)
    if others.shape[1:-1] != queries.shape[1:-1]:
        raise ValueError(
            f"keys have shape {tuple(others.shape)}, positions {tuple(queries.shape)}; expected both with a batch of "
            "one size, or both without"
        )
    return others.unsqueeze(-2) - queries.unsqueeze(-1)


def _widened(ids: Tensor) -> Tensor:
    """The ids in a dtype that holds their differences: those of uint8 would wrap around."""
    return ids.to(torch.promote_types(ids.dtype, torch.float32) if ids.is_floating_point() else torch.int64)


def _whole_offsets(q: Tensor, positions: Where, keys: Where | None, axes: int | None) -> Tensor:
    offsets = _offsets(q, positions, keys, axes)
    if offsets.is_floating_point():
        raise ValueError(f"positions or keys have dtype {offsets.dtype}; this bias has entries at whole offsets only")
    return offsets


def _different(offsets: Tensor) -> tuple[Tensor, Tensor]:
    """(A, U), each different offset once, and which of them each of the offsets (A, ...) is, (...)."""
    code = torch.zeros_like(offsets[0], dtype=torch.int64)
    # Numbering the values of one axis after the other is six times as fast as unique(dim=1).
    for axis in offsets:
        values, index = axis.unique(return_inverse=True)
        code = code * len(values) + index
    codes, which = code.unique(return_inverse=True)
    every = torch.arange(which.numel(), device=which.device)
    example = torch.zeros_like(codes).scatter_(0, which.flatten(), every)
    return offsets.flatten(1)[:, example], which


def _as_scores(bias: Tensor, q: Tensor) -> Tensor:
    """(H, N, M) or (B, H, N, M) in the dtype of the queries; rows of a batch that share positions share memory."""
    return bias.to(q.dtype).expand(*q.shape[:-1], bias.shape[-1])
