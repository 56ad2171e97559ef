"""Rotary encoding over several axes: positions -> cos and sin -> rotated queries and keys.

Letters: A axes, B batch, H heads (Hq of queries, Hk of keys), N tokens, D head dim, R rotary channels (the first of D),
F = R/2 pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from mrope.axes import AxisSplit, HeadSplit
from mrope.checks import Number, one_of
from mrope.encoding import Encoding, Properties, Where, read_ids
from mrope.frequencies import Frequencies
from mrope.positions import Positions

Pairing: TypeAlias = Literal["half", "adjacent"]
Angles: TypeAlias = Literal["float32", "exact"]


@dataclass(frozen=True, slots=True)
class Rotary(Encoding):
    """Rotates queries and keys by the positions of their tokens, each pair by the axis that the split gives it.

    Args:
        split: which pair reads which axis (`AxisSplit`), or which head does (`HeadSplit`).
        frequencies: how fast each pair turns.
        pairing: channels of pair j: "half" is (j, j + F), "adjacent" is (2j, 2j + 1).
        angles: "float32" multiplies as the weights were trained with; "exact" computes frequencies, angles, cos and sin
            in float64 and rounds the last two: better far out (at position 1e6 float32 is 0.06 off).

    >>> rotary = Rotary(AxisSplit((2, 1, 1)), Frequencies(10000.0))
    >>> q, k = torch.ones(1, 2, 5, 8), torch.ones(1, 1, 5, 8)
    >>> rotated_q, rotated_k = rotary(q, k, torch.arange(5).repeat(3, 1))
    >>> rotated_q.shape
    torch.Size([1, 2, 5, 8])
    """

    split: AxisSplit | HeadSplit
    frequencies: Frequencies
    pairing: Pairing = "half"
    angles: Angles = "float32"

    def __post_init__(self) -> None:
        one_of("pairing", self.pairing, ("half", "adjacent"))
        one_of("angles", self.angles, ("float32", "exact"))
        self.frequencies.check_axes(self.split.axis)

    @classmethod
    def from_config(
        cls, config: str | PathLike[str] | Mapping[str, Any] | Any, layer: str | None = None
    ) -> Rotary | None:
        """The rotary encoding of a transformers language model of any of the families, context extension included.

        Args:
            config: a checkpoint's folder or the content of its config.json, or a transformers configuration.
            layer: which of its `layer_types`, where they differ.

        Returns:
            None where layers of this type do not rotate.

        Raises:
            ValueError: the model type is unknown, or the configuration cannot be honoured.
        """
        from mrope.families.rope import read_rotary

        return read_rotary(config, layer)

    @property
    def axes(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `Encoding.axes`."""
        return self.split.axes

    @property
    def properties(self) -> Properties:
        """See `Encoding.properties`: an attention factor other than 1 scales, and zero frequencies forget an axis."""
        factor = self.frequencies.attention_factor(self.split.axis)
        extension = self.frequencies.extension
        return Properties(
            norm=isinstance(factor, float) and factor == 1,
            shift=True,
            text_is_rope=isinstance(self.split, AxisSplit) and not isinstance(extension, tuple),
            commutes=isinstance(factor, float) and factor == 1,
        )

    def cos_sin(
        self, positions: Where, *, length: Number | None = None
    ) -> tuple[Float32[Tensor, "*b n f"], Float32[Tensor, "*b n f"]]:
        """Cos and sin of every token, float32, one column a pair: (N, F) from ids (A, N), (B, N, F) from (A, B, N).

        With a `HeadSplit` they have the heads of keys before the tokens: (1, Hk, N, F), (B, Hk, N, F).

        Args:
            positions: ids of any integer or real dtype, or the objects that hold them.
            length: the largest position + 1 of the row, for frequencies that depend on it (dynamic NTK, LongRoPE).
                Objects that hold ids know it; of a bare tensor it is not read, as that would wait for its device.

        Raises:
            ValueError: the ids have another number of axes than the split, or the length is needed.
        """
        ids = read_ids(positions, self.split.axes)
        dtype = torch.float64 if self.angles == "exact" else torch.float32
        axis = self.split.axis
        if self.frequencies.needs_length and length is None and not isinstance(positions, Tensor):
            rows = (positions,) if isinstance(positions, Positions) else positions.rows
            length = max(end.next for row in rows for end in row.ends)
        inv_freq = self.frequencies.inv_freq(self.split.rotary_dim, axis, dtype=dtype, length=length)
        factor = self.frequencies.attention_factor(axis)
        if isinstance(self.split, HeadSplit):
            inv_freq = torch.where(axis < 0, 0, inv_freq)
        inv_freq, axis = inv_freq.to(ids.device), axis.to(ids.device)
        angles = ids.to(dtype).movedim(0, -1)[..., axis] * inv_freq
        cos, sin = angles.cos(), angles.sin()
        if not isinstance(factor, float) or factor != 1:
            factor = factor if isinstance(factor, float) else factor.to(ids.device)
            cos, sin = cos * factor, sin * factor
        if isinstance(self.split, HeadSplit):
            cos, sin = ((table if ids.dim() == 3 else table[None]).movedim(-2, 1) for table in (cos, sin))
        return cos.float(), sin.float()

    def rotate(
        self, q: Float[Tensor, "*b hq n d"], k: Float[Tensor, "*b hk n d"], positions: Where
    ) -> tuple[Float[Tensor, "*b hq n d"], Float[Tensor, "*b hk n d"]]:
        """Rotated copies of `q` (B, Hq, N, D) and `k` (B, Hk, N, D); B may be missing. See `apply_rotary`."""
        cos, sin = self.cos_sin(positions)
        return apply_rotary(q, cos, sin, pairing=self.pairing), apply_rotary(k, cos, sin, pairing=self.pairing)

    __call__ = rotate


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
        cos: (N, F), or (B, N, F) where rows of the batch differ, or (B, Hk, N, F) where heads do; from
            `Rotary.cos_sin`.
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
