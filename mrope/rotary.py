"""Rotary encoding over several axes: positions -> cos and sin -> rotated queries and keys.

Letters: A axes, B batch, H heads, N tokens, D head dim, R rotary channels (the first of D), F = R/2 pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from mrope.axes import AxisSplit
from mrope.batches import BatchPositions
from mrope.checks import one_of
from mrope.frequencies import Frequencies
from mrope.positions import Positions

Pairing: TypeAlias = Literal["half", "adjacent"]
Angles: TypeAlias = Literal["float32", "exact"]


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotates queries and keys by the positions of their tokens, each pair by the axis that the split gives it.

    Args:
        split: which pair reads which axis.
        frequencies: how fast each pair turns.
        pairing: channels of pair j: "half" is (j, j + F), "adjacent" is (2j, 2j + 1).
        angles: "float32" multiplies as the weights were trained with; "exact" multiplies the same frequencies in
            float64 and rounds cos and sin, not the angle: better far out (at position 1e6 float32 is 0.03 rad off).

    >>> rotary = Rotary(AxisSplit((2, 1, 1)), Frequencies(10000.0))
    >>> q, k = torch.ones(1, 2, 5, 8), torch.ones(1, 1, 5, 8)
    >>> rotated_q, rotated_k = rotary(q, k, torch.arange(5).repeat(3, 1))
    >>> rotated_q.shape
    torch.Size([1, 2, 5, 8])
    """

    split: AxisSplit
    frequencies: Frequencies
    pairing: Pairing = "half"
    angles: Angles = "float32"

    def __post_init__(self) -> None:
        one_of("pairing", self.pairing, ("half", "adjacent"))
        one_of("angles", self.angles, ("float32", "exact"))

    def cos_sin(
        self, positions: Tensor | Positions | BatchPositions
    ) -> tuple[Float32[Tensor, "*b n f"], Float32[Tensor, "*b n f"]]:
        """Cos and sin of every token, float32, one column a pair: (N, F) from ids (A, N), (B, N, F) from (A, B, N).

        Args:
            positions: ids of any integer or real dtype, or the objects that hold them.

        Raises:
            ValueError: the ids have another number of axes than the split.
        """
        ids = positions if isinstance(positions, Tensor) else positions.ids
        axes = len(self.split.counts)
        if ids.dim() not in (2, 3) or ids.shape[0] != axes:
            raise ValueError(
                f"positions have shape {tuple(ids.shape)}; the split {self.split.counts} reads {axes} axes: "
                f"({axes}, N) or ({axes}, B, N)"
            )
        dtype = torch.float64 if self.angles == "exact" else torch.float32
        inv_freq = self.frequencies.inv_freq(self.split.rotary_dim).to(ids.device, dtype)
        angles = ids.to(dtype).movedim(0, -1)[..., self.split.axis.to(ids.device)] * inv_freq
        return angles.cos().float(), angles.sin().float()

    def __call__(
        self,
        q: Float[Tensor, "*b hq n d"],
        k: Float[Tensor, "*b hk n d"],
        positions: Tensor | Positions | BatchPositions,
    ) -> tuple[Float[Tensor, "*b hq n d"], Float[Tensor, "*b hk n d"]]:
        """Rotated copies of `q` (B, Hq, N, D) and `k` (B, Hk, N, D); B may be missing. See `apply_rotary`."""
        cos, sin = self.cos_sin(positions)
        return apply_rotary(q, cos, sin, pairing=self.pairing), apply_rotary(k, cos, sin, pairing=self.pairing)


def apply_rotary(
    x: Float[Tensor, "*b h n d"],
    cos: Float[Tensor, "*c m f"],
    sin: Float[Tensor, "*c m f"],
    *,
    pairing: Pairing = "half",
) -> Float[Tensor, "*b h n d"]:
    """A copy of `x` whose first R = 2F channels are rotated, in float32 (float64 for float64), rounded once at the end.

    Args:
        x: (B, H, N, D) or (H, N, D), any floating dtype; channels from R on pass unchanged.
        cos: (N, F), or (B, N, F) where rows of the batch differ; from `Rotary.cos_sin`.
        sin: the same shape.
        pairing: channels of pair j: "half" is (j, j + F), "adjacent" is (2j, 2j + 1).

    Raises:
        ValueError: the table does not fit x: other tokens, another batch, or more rotary channels than x has.

    >>> quarter = torch.tensor([[torch.pi / 2]])
    >>> apply_rotary(torch.tensor([[[3.0, 4.0, 5.0]]]), quarter.cos(), quarter.sin()).round()
    tensor([[[-4.,  3.,  5.]]])
    """
    one_of("pairing", pairing, ("half", "adjacent"))
    pairs = cos.shape[-1]
    _check_table(x, cos, sin)
    if cos.dim() == 3:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    dtype = torch.promote_types(x.dtype, torch.float32)
    turning, rest = x.to(dtype).split((2 * pairs, x.shape[-1] - 2 * pairs), dim=-1)
    cos, sin = cos.to(dtype), sin.to(dtype)
    if pairing == "half":
        a, b = turning[..., :pairs], turning[..., pairs:]
        turned = (a * cos - b * sin, b * cos + a * sin)
    else:
        a, b = turning[..., 0::2], turning[..., 1::2]
        turned = (torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2),)
    # The one cast comes last: under autocast torch.cat may itself change the dtype of half-precision parts.
    return torch.cat((*turned, rest), dim=-1).to(x.dtype)


def _check_table(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    if cos.shape != sin.shape:
        raise ValueError(f"cos has shape {tuple(cos.shape)}, sin {tuple(sin.shape)}; expected one shape")
    if x.shape[-1] < 2 * cos.shape[-1]:
        raise ValueError(f"x has {x.shape[-1]} channels; a table of {cos.shape[-1]} pairs rotates {2 * cos.shape[-1]}")
    wanted = (x.shape[-2],) if cos.dim() == 2 else (*x.shape[:-3], x.shape[-2])
    if tuple(cos.shape[:-1]) != wanted:
        raise ValueError(
            f"cos has shape {tuple(cos.shape)}; x of shape {tuple(x.shape)} takes "
            f"{(x.shape[-2], cos.shape[-1])} or {(*x.shape[:-3], x.shape[-2], cos.shape[-1])}"
        )
