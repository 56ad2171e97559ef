"""Allocation: which rotary pair reads which axis. Letters: A axes, F rotary pairs, R = 2F rotary channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Int64
from torch import Tensor

from mrope.checks import one_of, whole

Allocation = Literal["chunked", "interleaved", "alternating"]


@dataclass(frozen=True, slots=True)
class AxisSplit:
    """How many rotary pairs each axis gets, and which.

    Chunked (Qwen2-VL, Qwen2.5-VL) gives each axis a run of pairs: ``tt..thh..hww..w``. Interleaved (Qwen3-VL) deals
    them in turn, ``thwthw..``, until h and w have theirs; t takes what is left. Alternating (Ernie 4.5 VL, VideoRoPE
    arXiv:2502.05173) gives the first and fastest pairs to h and w by turns, ``hwhw..``, and the slow rest to t; of two
    axes (NeoMME) it leaves no rest. Pair j turns with frequency j in all of them.

    Args:
        counts: pairs per axis, in the order (t, h, w): what most configurations call `mrope_section` (Ernie's is in the
            order h, w, t). Chunked takes any number of axes, interleaved three, alternating two or three.
        allocation: "chunked", "interleaved" or "alternating".

    Raises:
        ValueError: the allocation cannot give each axis what was asked.

    >>> AxisSplit((3, 2, 2), "interleaved").axis.tolist()
    [0, 1, 2, 0, 1, 2, 0]
    >>> AxisSplit((3, 2, 2), "alternating").axis.tolist()
    [1, 2, 1, 2, 0, 0, 0]
    """

    counts: tuple[int, ...] = (16, 24, 24)
    allocation: Allocation = "chunked"

    def __post_init__(self) -> None:
        counts = tuple(whole("mrope_section entry", count, 1) for count in self.counts)
        object.__setattr__(self, "counts", counts)
        one_of("allocation", self.allocation, get_args(Allocation))
        if not counts:
            raise ValueError("mrope_section () is empty; expected at least one axis")
        if self.allocation == "interleaved":
            self._check_interleaved()
        if self.allocation == "alternating":
            self._check_alternating()

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
        axes = len(self.counts)
        if self.allocation == "chunked":
            return torch.arange(axes).repeat_interleave(torch.tensor(self.counts))
        if self.allocation == "alternating":
            pair = torch.arange(self.pairs)
            return torch.where(pair < 2 * self.counts[-1], axes - 2 + pair % 2, 0)
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

    def _check_alternating(self) -> None:
        if len(self.counts) not in (2, 3):
            raise ValueError(
                f"mrope_section {self.counts} has {len(self.counts)} axes; alternating takes 3: t, h, w; or the last 2"
            )
        *_, one, other = self.counts
        if one != other:
            raise ValueError(
                f"mrope_section {self.counts} does not fit alternating: the last two axes take turns and need as many "
                f"pairs each, not {one} and {other}"
            )
