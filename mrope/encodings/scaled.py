"""Rotary encodings that also change sizes: xPos scales queries and keys, PoPE keeps of each channel its size alone.

Letters: A axes, B batch, H heads, N tokens, D head dim, F pairs.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import softplus

from mrope.axes import AxisSplit
from mrope.checks import Number, one_of, positive, whole
from mrope.encoding import Encoding, Properties, Where, check_tokens, read_ids
from mrope.encodings.operands import check_pair
from mrope.frequencies import Frequencies
from mrope.rotary import Pairing, Rotary, apply_rotary


@dataclass(frozen=True, slots=True)
class XPos(Encoding):
    """Rotary whose scores fade as the query moves on from the key: "A Length-Extrapolatable Transformer", 2212.10554.

    Pair j of a query at position n is rotated and multiplied by ``zeta ** (n / scale_base)``, of a key divided by it,
    with ``zeta = (j / F + 0.4) / 1.4``: fast pairs fade first. Keys *after* their query grow as much, so it is for
    causal attention. Of several axes each pair turns and fades by its own.

    Divided keys grow with the absolute position: at position 70 ``scale_base`` (4 in float16: 8.8) the fastest pair
    leaves the range of float32 and bfloat16; let positions start near 0.

    Args:
        split: which pair reads which axis; ``AxisSplit((F,))`` is the paper's, along one axis.
        base: pair j turns by ``base ** (-j / F)`` radians per position.
        scale_base: positions over which a pair fades by its zeta.
        pairing: channels of pair j: "half" is (j, j + F), "adjacent" is (2j, 2j + 1), which the paper has.

    >>> xpos = XPos(AxisSplit((4,)))
    >>> q, k = xpos.rotate(torch.ones(1, 2, 8), torch.ones(1, 2, 8), torch.tensor([[0, 512]]))
    >>> q.norm(dim=-1), k.norm(dim=-1)
    (tensor([[2.8284, 1.6645]]), tensor([[2.8284, 6.4484]]))
    """

    split: AxisSplit
    _: KW_ONLY
    base: Number = 1e4
    scale_base: Number = 512
    pairing: Pairing = "half"

    def __post_init__(self) -> None:
        _check_split(self.split)
        positive("base", self.base)
        positive("scale_base", self.scale_base)
        one_of("pairing", self.pairing, ("half", "adjacent"))

    @property
    def axes(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `Encoding.axes`."""
        return self.split.axes

    @property
    def properties(self) -> Properties:
        """See `Encoding.properties`."""
        return Properties(norm=False, shift=True, commutes=True)

    def rotate(
        self, q: Float[Tensor, "*b hq n d"], k: Float[Tensor, "*b hk n d"], positions: Where
    ) -> tuple[Float[Tensor, "*b hq n d"], Float[Tensor, "*b hk n d"]]:
        """Queries and keys, rotated and scaled in float32, rounded once; channels beyond the split's pass unchanged."""
        ids = read_ids(positions, self.axes)
        check_pair(q, k)
        check_tokens(ids, q)
        cos, sin = Rotary(self.split, Frequencies(self.base)).cos_sin(ids)
        zeta = (torch.arange(self.split.pairs, device=ids.device) / self.split.pairs + 0.4) / 1.4
        each = ids.to(torch.float32).movedim(0, -1)[..., self.split.axis.to(ids.device)]
        scale = zeta ** (each / self.scale_base)
        return (
            apply_rotary(q, cos * scale, sin * scale, pairing=self.pairing),
            apply_rotary(k, cos / scale, sin / scale, pairing=self.pairing),
        )


class Pope(nn.Module, Encoding):
    """Attends by size and by position, apart: polar coordinate position embedding (PoPE, arXiv:2509.10534).

    The score of a query at m and a key at n is ``sum_i softplus(q_i) softplus(k_i) cos((n - m) theta_i + b_i)``, with
    ``theta_i = base ** (-i / D)`` and b learned per head and channel. `rotate` returns queries and keys of 2D channels
    whose dot product it is; scores stay scaled by ``1 / sqrt(D)``, so attention is told ``scale``, since its default
    would read 2D. The phase b is put on the queries, so that every query head has its own also where keys are shared,
    and cached keys do not depend on it.

    Args:
        split: which axis each of the D channels reads, one "pair" a channel: ``AxisSplit((D,))`` for text, equal parts
            for pictures.
        heads: H of the queries.
        base: of the frequencies.

    The parameter `phase` (H, D) starts at 0 and is used clamped to -2 pi .. 0, as in the paper. Outside, the gradient
    passes where it leads back, so that no step can leave a phase there for ever.

    >>> pope = Pope(AxisSplit((2, 2)), 3)
    >>> q, k = pope.rotate(torch.ones(3, 5, 4), torch.ones(1, 5, 4), torch.arange(10).view(2, 5))
    >>> q.shape, k.shape
    (torch.Size([3, 5, 8]), torch.Size([1, 5, 8]))
    """

    def __init__(self, split: AxisSplit, heads: int, *, base: Number = 1e4):
        super().__init__()
        _check_split(split)
        self.split, self.heads, self.base = split, whole("heads", heads, 1), positive("base", base)
        self.axes = split.axes
        self.phase = nn.Parameter(torch.zeros(self.heads, split.pairs))

    @property
    def properties(self) -> Properties:
        """See `Encoding.properties`."""
        return Properties(shift=True)

    def rotate(
        self, q: Float[Tensor, "*b hq n d"], k: Float[Tensor, "*b hk n d"], positions: Where
    ) -> tuple[Float[Tensor, "*b hq n e"], Float[Tensor, "*b hk n e"]]:
        """Queries (B, Hq, N, 2D) and keys (B, Hk, N, 2D), cosine parts first; float32, rounded once.

        Raises:
            ValueError: `q` has another number of heads than the phases, or `q` or `k` another head dim.
        """
        ids = read_ids(positions, self.axes)
        check_pair(q, k)
        check_tokens(ids, q)
        heads, head_dim = self.phase.shape
        if (q.shape[-3], q.shape[-1], k.shape[-1]) != (heads, head_dim, head_dim):
            raise ValueError(
                f"q has {q.shape[-3]} heads of {q.shape[-1]} channels, k has heads of {k.shape[-1]}; expected {heads} "
                f"heads of queries, and {head_dim} channels in all heads"
            )
        cos, sin = Rotary(self.split, Frequencies(self.base)).cos_sin(ids)
        dtype = torch.promote_types(q.dtype, torch.float32)
        phase = self.phase.to(dtype).unsqueeze(1)
        phase = _Clamp.apply(phase)
        size_q, size_k = softplus(q.to(dtype)), softplus(k.to(dtype))
        start_q = torch.cat((size_q * phase.cos(), size_q * -phase.sin()), dim=-1)
        start_k = torch.cat((size_k, torch.zeros_like(size_k)), dim=-1)
        return apply_rotary(start_q, cos, sin).to(q.dtype), apply_rotary(start_k, cos, sin).to(k.dtype)


class _Clamp(torch.autograd.Function):
    """To -2 pi .. 0, with a gradient at the bounds too, where learning starts, and from beyond them back inside."""

    @staticmethod
    def forward(ctx: Any, phase: Tensor) -> Tensor:
        ctx.save_for_backward(phase)
        return phase.clamp(-2 * math.pi, 0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (phase,), (grad,) = ctx.saved_tensors, grads
        # A step goes against the gradient: above 0 a positive one leads back, below -2 pi a negative one.
        stuck = ((phase > 0) & (grad < 0)) | ((phase < -2 * math.pi) & (grad > 0))
        return grad.masked_fill(stuck, 0)


def _check_split(split: AxisSplit) -> None:
    if not isinstance(split, AxisSplit):
        raise TypeError(f"split is {split!r}; expected an AxisSplit, which gives each pair its axis")
