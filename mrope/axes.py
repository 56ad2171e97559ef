"""Allocation: which rotary pair reads which axis. Letters: A axes, F rotary pairs, R = 2F rotary channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Int64
from torch import Tensor

from mrope.checks import one_of, whole

Allocation = Literal["chunked", "interleaved"]


@dataclass(frozen=True, slots=True)
class AxisSplit:
    """How many rotary pairs each axis gets, and which.

    Chunked (Qwen2-VL, Qwen2.5-VL) gives each axis a run of pairs: ``tt..thh..hww..w``. Interleaved (Qwen3-VL) deals
    them in turn, ``thwthw..``, until h and w have theirs; t takes what is left. Pair j turns with frequency j in both.

    Args:
        counts: pairs per axis, in the order (t, h, w): what configurations call `mrope_section`. Chunked takes any
            number of axes, interleaved three.
        allocation: "chunked" or "interleaved".

    Raises:
        ValueError: the allocation cannot give each axis what was asked.

    >>> AxisSplit((3, 2, 2), "interleaved").axis.tolist()
    [0, 1, 2, 0, 1, 2, 0]
    """

    counts: tuple[int, ...] = (16, 24, 24)
    allocation: Allocation = "chunked"

    def __post_init__(self) -> None:
        counts = tuple(whole("mrope_section entry", count, 1) for count in self.counts)
        object.__setattr__(self, "counts", counts)
        one_of("allocation", self.allocation, ("chunked", "interleaved"))
        if not counts:
            raise ValueError("mrope_section () is empty; expected at least one axis")
        if self.allocation == "interleaved":
            self._check_interleaved()

    @property
    def pairs(self) -> int:
        """Rotary pairs F of all axes together."""
        return sum(self.counts)

    @property
    def rotary_dim(self) -> int:
        """Channels R = 2F that rotate."""
        return 2 * self.pairs

    @property
    def axis(self) -> Int64[Tensor, " f"]:
        """(F,) int64, the axis that each pair reads: 0 = t, 1 = h, 2 = w."""
        if self.allocation == "chunked":
            return torch.arange(len(self.counts)).repeat_interleave(torch.tensor(self.counts))
        return self._dealt()

    def check_fits(self, rotary_dim: int) -> None:
        """Refuse a number of rotary channels that this split does not fill.

        Raises:
            ValueError: `rotary_dim` is odd, or twice the sum of the counts is another number.
        """
        if rotary_dim % 2:
            raise ValueError(f"rotary_dim {rotary_dim} is odd; a rotary pair takes two channels")
        if rotary_dim != self.rotary_dim:
            raise ValueError(
                f"mrope_section {self.counts} sums to {self.pairs}; rotary_dim {rotary_dim} needs {rotary_dim // 2}"
            )

    def _dealt(self) -> Tensor:
        pair = torch.arange(self.pairs)
        axis = torch.zeros_like(pair)
        for turn in (1, 2):
            axis[(pair % 3 == turn) & (pair < 3 * self.counts[turn])] = turn
        return axis

    def _check_interleaved(self) -> None:
        if len(self.counts) != 3:
            raise ValueError(
                f"mrope_section {self.counts} has {len(self.counts)} axes; interleaved deals to 3: t, h, w"
            )
        dealt = tuple(torch.bincount(self._dealt(), minlength=3).tolist())
        if dealt != self.counts:
            # Of F pairs, (F + 1) // 3 have j % 3 == 1 and F // 3 have j % 3 == 2.
            most_h, most_w = (self.pairs + 1) // 3, self.pairs // 3
            raise ValueError(
                f"mrope_section {self.counts} does not fit interleaved: of {self.pairs} pairs h can get at most "
                f"{most_h} and w at most {most_w}, as in {(self.pairs - most_h - most_w, most_h, most_w)}; "
                "or split the same counts chunked"
            )
