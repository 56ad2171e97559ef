"""Frequencies: radians per position of each rotary pair. Letters: R rotary channels, F = R/2 pairs, H heads, A axes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from mrope.checks import Number, positive, whole
from mrope.extensions import Extension, default_inv_freq


@dataclass(frozen=True, slots=True)
class Frequencies:
    """Pair j turns by ``base ** (-2j / R)`` radians per position (RoFormer, arXiv:2104.09864, section 3.2.2).

    Args:
        base: what configurations call `rope_theta`.
        extension: what is done to them for a context that is longer than the trained one: one of `mrope.extensions`
            for all pairs, or a tuple with one for the pairs of each axis (None: as they are). No library extends by
            axis but VideoRoPE++'s: YaRN on a chunked (t, h, w) split slows all of width, part of height and no time.

    >>> Frequencies(10000.0).inv_freq(4)
    tensor([1.0000, 0.0100])
    >>> from mrope.extensions import Linear, Zero
    >>> Frequencies(10000.0, (Zero(), Linear(2))).inv_freq(4, torch.tensor([1, 0]))
    tensor([0.5000, 0.0000])
    """

    base: Number = 1e6
    extension: Extension | tuple[Extension | None, ...] | None = None

    def __post_init__(self) -> None:
        if positive("rope base (rope_theta)", self.base) < 1:
            raise ValueError(
                f"rope base (rope_theta) is {self.base:g}; expected at least 1, so that later pairs are slower"
            )
        object.__setattr__(self, "base", float(self.base))
        for extension in self._listed:
            if not isinstance(extension, (Extension, type(None))):
                raise TypeError(f"extension is {extension!r}; expected one of mrope.extensions, one an axis, or None")

    @property
    def needs_length(self) -> bool:
        """Whether they depend on how long the row is (dynamic NTK, LongRoPE)."""
        return any(extension is not None and extension.needs_length for extension in self._listed)

    def inv_freq(
        self,
        rotary_dim: int,
        axis: Int64[Tensor, "*h f"] | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        length: Number | None = None,
    ) -> Float[Tensor, "*h f"]:
        """(F,) or (H, F) rad per position; in the arithmetic of transformers, so that the bits are the trained ones.

        Args:
            rotary_dim: channels R that rotate.
            axis: the axis that each pair reads, `AxisSplit.axis`; needed where axes have extensions of their own.
            dtype: float32 for the trained bits, float64 for the exact values.
            length: the largest position + 1 of the row, where `needs_length`.

        Raises:
            ValueError: `rotary_dim` is odd or below 2, or the extensions are for another number of axes.
        """
        if whole("rotary_dim", rotary_dim, 2) % 2:
            raise ValueError(f"rotary_dim {rotary_dim} is odd; a rotary pair takes two channels")
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype is {dtype}; expected torch.float32 or torch.float64")
        if axis is not None and axis.shape[-1] != rotary_dim // 2:
            raise ValueError(f"axis has {axis.shape[-1]} pairs; {rotary_dim} rotary channels have {rotary_dim // 2}")

        def extended(extension: Extension | None) -> Tensor:
            if extension is None:
                return default_inv_freq(self.base, rotary_dim, dtype)
            return extension.inv_freq(self.base, rotary_dim, dtype, length)

        if not isinstance(self.extension, tuple):
            inv_freq = extended(self.extension)
            return inv_freq if axis is None else inv_freq.expand(axis.shape)
        self.check_axes(axis)
        assert axis is not None
        # Pairs that read no axis (-1) take those of the last one: they do not turn whatever these are.
        table = torch.stack([extended(extension) for extension in self.extension])
        return table[axis, torch.arange(rotary_dim // 2, device="cpu")]

    def attention_factor(self, axis: Int64[Tensor, "*h f"] | None = None) -> float | Tensor:
        """What cos and sin are multiplied with: a number, or (F,) or (H, F) float32 where axes have extensions of
        their own and differ in it."""
        factors = [1.0 if extension is None else extension.attention_factor for extension in self._listed]
        if len(set(factors)) == 1:
            return factors[0]
        self.check_axes(axis)
        assert axis is not None
        return torch.tensor(factors, device="cpu")[axis]

    def check_axes(self, axis: Tensor | None) -> None:
        """Refuse pairs that read other axes than there are extensions for.

        Raises:
            ValueError: there are others, or it is not said which pair reads which.
        """
        if not isinstance(self.extension, tuple):
            return
        if axis is None:
            raise ValueError(f"there are extensions of {len(self.extension)} axes; pass axis=, which pair reads which")
        if torch.compiler.is_compiling():  # what was compiled has been checked when it was made
            return
        if len(self.extension) != int(axis.max()) + 1:
            raise ValueError(
                f"there are extensions of {len(self.extension)} axes; the split has {int(axis.max()) + 1}: expected "
                "one for each, None for an axis that stays as it is"
            )

    @property
    def _listed(self) -> tuple[Extension | None, ...]:
        return self.extension if isinstance(self.extension, tuple) else (self.extension,)
