"""Frequencies: radians per position of each rotary pair. Letters: R rotary channels, F = R/2 pairs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float32
from torch import Tensor

from mrope.checks import Number, positive, whole


@dataclass(frozen=True, slots=True)
class Frequencies:
    """Pair j turns by ``base ** (-2j / R)`` radians per position (RoFormer, arXiv:2104.09864, section 3.2.2).

    >>> Frequencies(10000.0).inv_freq(4)
    tensor([1.0000, 0.0100])
    """

    base: Number = 1e6

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", positive("rope base (rope_theta)", self.base))

    def inv_freq(self, rotary_dim: int) -> Float32[Tensor, " f"]:
        """(F,) float32, rad per position; in the arithmetic of transformers, so that the bits are the trained ones.

        Raises:
            ValueError: `rotary_dim` is odd or below 2.
        """
        if whole("rotary_dim", rotary_dim, 2) % 2:
            raise ValueError(f"rotary_dim {rotary_dim} is odd; a rotary pair takes two channels")
        return 1.0 / (self.base ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim))
