"""Rotary encoding over several axes: positions -> cos and sin -> rotated queries and keys.

Letters: A axes, B batch, H heads (Hq of queries, Hk of keys), N tokens, D head dim, R rotary channels (the first of D),
F = R/2 pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal, TypeAlias, get_args

import torch
from jaxtyping import Float, Float32
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mrope.axes import AxisSplit, HeadSplit
from mrope.batches import BatchPositions
from mrope.checks import Number, one_of
from mrope.encoding import Encoding, Properties, Where, check_tokens, read_ids
from mrope.frequencies import Frequencies
from mrope.ops import Impl, Pairing, angles, rotate_qk, rotate_qk_from_ids
from mrope.ops import rotate as apply_rotary
from mrope.positions import Positions

__all__ = ["Angles", "Pairing", "Rotary", "apply_rotary"]

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
        impl: who rotates: "eager", "numba", "triton", or "auto", which takes what `mrope.ops.choose` says.

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
    impl: Impl = "auto"

    def __post_init__(self) -> None:
        if not isinstance(self.split, (AxisSplit, HeadSplit)):
            raise TypeError(f"split is {self.split!r}; expected an AxisSplit or a HeadSplit")
        if not isinstance(self.frequencies, Frequencies):
            raise TypeError(f"frequencies is {self.frequencies!r}; expected Frequencies, such as Frequencies(1e6)")
        one_of("pairing", self.pairing, ("half", "adjacent"))
        one_of("angles", self.angles, ("float32", "exact"))
        one_of("impl", self.impl, get_args(Impl))
        self.frequencies.check_axes(self.split.axis)

    @classmethod
    def from_config(cls, config: str | PathLike[str] | Mapping[str, Any] | Any, layer: str | None = None) -> Rotary:
        """The rotary encoding of a transformers language model of any of the families, context extension included.

        Args:
            config: a checkpoint's folder or the content of its config.json: what it does not state is the record's. Or
                a transformers configuration, which states its class defaults too and is taken at its word.
            layer: which of its `layer_types`, where they differ; of one that does not rotate all frequencies are 0.

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
            shift=not self.frequencies.needs_length,
            text_is_rope=not isinstance(extension, tuple) and bool((self.split.axis >= 0).all()),
            commutes=isinstance(factor, float) and factor == 1,
        )

    def cos_sin(
        self, positions: Where, *, length: Number | None = None
    ) -> tuple[Float32[Tensor, "*b n f"], Float32[Tensor, "*b n f"]]:
        """Cos and sin of every token, float32, one column a pair: (N, F) from ids (A, N), (B, N, F) from (A, B, N).

        With a `HeadSplit` they have the heads of keys before the tokens: (1, Hk, N, F), (B, Hk, N, F).

        Args:
            positions: ids of any integer or real dtype, or the objects that hold them.
            length: the largest position + 1, for frequencies that depend on it (dynamic NTK, LongRoPE). Objects that
                hold ids know that of each document; of a bare tensor it is not read, as that would wait for its device.

        Raises:
            ValueError: the ids have another number of axes than the split, or the length is needed.
        """
        ids = read_ids(positions, self.split.axes)
        if length is None and self.frequencies.needs_length and not isinstance(positions, Tensor):
            return self._by_document(positions, ids)
        return self._table(ids, length)

    def rotate(
        self, q: Float[Tensor, "*b hq n d"], k: Float[Tensor, "*b hk n d"], positions: Where
    ) -> tuple[Float[Tensor, "*b hq n d"], Float[Tensor, "*b hk n d"]]:
        """Rotated copies of `q` (B, Hq, N, D) and `k` (B, Hk, N, D); B may be missing. See `mrope.ops.rotate_qk`."""
        ids = read_ids(positions, self.split.axes)
        check_tokens(ids, q)
        if isinstance(self.split, HeadSplit) and (k.shape[-3] != self.split.heads or q.shape[-3] % k.shape[-3]):
            raise ValueError(
                f"k has {k.shape[-3]} heads and q {q.shape[-3]}; the split {self.split.counts} was made for "
                f"{self.split.heads} heads of keys, and a multiple of them for queries"
            )
        if isinstance(self.split, HeadSplit) or self.frequencies.needs_length:
            return rotate_qk(q, k, *self.cos_sin(positions), pairing=self.pairing, impl=self.impl)
        axis, inv_freq, factor = self._turns(ids.device)
        return rotate_qk_from_ids(q, k, ids, axis, inv_freq, scale=factor, pairing=self.pairing, impl=self.impl)

    __call__ = rotate

    def _table(self, ids: Tensor, length: Number | None) -> tuple[Tensor, Tensor]:
        axis, inv_freq, factor = self._turns(ids.device, length)
        if axis.dim() == 1:
            return angles(ids, axis, inv_freq, scale=factor)
        # All pairs of all heads at once, as if they were those of one head.
        factor = factor.flatten() if isinstance(factor, Tensor) else factor
        cos, sin = (
            table.unflatten(-1, axis.shape).movedim(-2, -3)
            for table in angles(ids, axis.flatten(), inv_freq.flatten(), scale=factor)
        )
        return (cos, sin) if ids.dim() == 3 else (cos[None], sin[None])

    def _by_document(self, positions: Positions | BatchPositions, ids: Tensor) -> tuple[Tensor, Tensor]:
        """A table in which each document has the frequencies of its own length."""
        rows = (positions,) if isinstance(positions, Positions) else positions.rows
        lengths = [torch.tensor([end.next for end in row.ends], device=ids.device) for row in rows]
        of_token = pad_sequence(lengths, batch_first=True).gather(
            1, positions.segments.view(len(rows), -1).clamp(min=0)
        )
        first, *others = sorted({end.next for row in rows for end in row.ends})
        cos, sin = self._table(ids, first)
        for length in others:
            here = (of_token == length)[:, None, :, None] if cos.dim() == 4 else (of_token == length)[..., None]
            here = here[0] if cos.dim() == 2 else here
            other = self._table(ids, length)
            cos, sin = (torch.where(here, new, old) for new, old in zip(other, (cos, sin), strict=True))
        return cos, sin

    def _turns(self, device: torch.device, length: Number | None = None) -> tuple[Tensor, Tensor, float | Tensor]:
        """Of each pair its axis, its frequency, and what its cos and sin are multiplied with."""
        axis = self.split.axis
        dtype = torch.float64 if self.angles == "exact" else torch.float32
        inv_freq = self.frequencies.inv_freq(self.split.rotary_dim, axis, dtype=dtype, length=length)
        factor = self.frequencies.attention_factor(axis)
        if isinstance(self.split, HeadSplit):  # heads without an axis do not turn, whichever they read
            inv_freq, axis = inv_freq.where(axis >= 0, 0), axis.clamp(min=0)
        if isinstance(factor, Tensor):
            factor = factor.to(device)
        return axis.to(device), inv_freq.to(device), factor
