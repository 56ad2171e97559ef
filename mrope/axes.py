"""Allocation: which rotary pair reads which axis. Letters: A axes, F rotary pairs, R = 2F rotary channels, H heads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from string import digits
from typing import Literal, get_args

import torch
from jaxtyping import Int64
from torch import Tensor

from mrope.checks import Number, one_of, positive, whole

Allocation = Literal["chunked", "interleaved", "alternating", "by-hand"]

_LETTERS = {1: "T", 2: "HW", 3: "THW"}  # of the axes in a pattern, by their number, where no others are named


@dataclass(frozen=True, slots=True)
class AxisSplit:
    """How many rotary pairs each axis gets, and which: an axis for each pair, which all published allocations are.

    Chunked (Qwen2-VL, Qwen2.5-VL) gives each axis a run of pairs: ``tt..thh..hww..w``. Interleaved (Qwen3-VL) deals
    them in turn, ``thwthw..``, until h and w have theirs; t takes what is left. Alternating (Ernie 4.5 VL, VideoRoPE
    arXiv:2502.05173) gives the first and fastest pairs to h and w by turns, ``hwhw..``, and the slow rest to t; of two
    axes (NeoMME) it leaves no rest. Any other order is written down, with `parse` or `by_hand`; one of the three that
    is written down is that one. Pair j turns with frequency j in all of them.

    Args:
        counts: pairs per axis, in the order (t, h, w): what most configurations call `mrope_section` (Ernie's is in the
            order h, w, t). Chunked takes any number of axes, interleaved three, alternating two or three.
        allocation: "chunked", "interleaved", "alternating", or "by-hand".
        order: the axis of each pair, fastest first; of "by-hand" alone.

    Raises:
        ValueError: the allocation cannot give each axis what was asked.

    >>> AxisSplit((3, 2, 2), "interleaved").axis.tolist()
    [0, 1, 2, 0, 1, 2, 0]
    >>> AxisSplit((3, 2, 2), "alternating").axis.tolist()
    [1, 2, 1, 2, 0, 0, 0]
    """

    counts: tuple[int, ...] = (16, 24, 24)
    allocation: Allocation = "chunked"
    order: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        counts = tuple(whole("mrope_section entry", count, 1) for count in self.counts)
        object.__setattr__(self, "counts", counts)
        one_of("allocation", self.allocation, get_args(Allocation))
        if not counts:
            raise ValueError("mrope_section () is empty; expected at least one axis")
        if self.allocation == "by-hand":
            self._check_order()
        elif self.order:
            raise ValueError(f"order is {self.order} with {self.allocation}; it belongs to by-hand alone")
        elif self.allocation == "interleaved":
            self._check_interleaved()
        elif self.allocation == "alternating":
            self._check_alternating()

    @classmethod
    def by_hand(cls, order: Sequence[int]) -> AxisSplit:
        """The split that gives pair j the axis ``order[j]``; every axis from 0 on must have a pair.

        Raises:
            ValueError: an axis has none.

        >>> AxisSplit.by_hand([0, 0, 1, 2])
        AxisSplit(counts=(2, 1, 1), allocation='chunked', order=())
        """
        order = tuple(whole("order entry", axis, 0) for axis in order)
        if not order:
            raise ValueError("order is empty; expected an axis for each pair")
        counts = tuple(order.count(axis) for axis in range(max(order) + 1))
        if 0 in counts:
            raise ValueError(f"order gives {counts} pairs to axes 0 to {max(order)}; expected at least 1 each")
        return cls(counts, "by-hand", order)

    @classmethod
    def by_ratio(cls, ratio: Sequence[Number], pairs: int, allocation: Allocation = "chunked") -> AxisSplit:
        """`pairs` pairs in this ratio, rounded to whole ones that add up; every axis gets at least one.

        Raises:
            ValueError: there are fewer pairs than axes, or the allocation cannot give these counts.

        >>> AxisSplit.by_ratio((2, 3, 3), 64).counts, AxisSplit.by_ratio((1, 1, 1), 64, "interleaved").counts
        ((16, 24, 24), (22, 21, 21))
        """
        shares = [positive("ratio entry", share) for share in ratio]
        if whole("pairs", pairs, 1) < len(shares) or not shares:
            raise ValueError(f"pairs is {pairs} for a ratio of {len(shares)} axes; expected at least one pair an axis")
        return cls(_in_ratio(shares, pairs), allocation)

    @classmethod
    def parse(cls, pattern: str, axes: str | None = None) -> AxisSplit:
        """The split that a pattern spells, fastest pair first: groups of letters, each repeated as often as it says.

        Args:
            pattern: such as "THW*20 T*4" (Qwen3-VL), "TTHWHWHW*8" (MM-RoPE) or "0123*16" (VRoPE).
            axes: the letters of axes 0, 1, ...; by default those of T, H and W that occur, or digits.

        Raises:
            ValueError: it is no such pattern, or an axis of `axes` gets no pair.

        >>> AxisSplit.parse("THW*20 T*4")
        AxisSplit(counts=(24, 20, 20), allocation='interleaved', order=())
        >>> AxisSplit.parse("T*58 X*3 Y*3", axes="TXY").counts
        (58, 3, 3)
        """
        letters = ""
        for group in pattern.split():
            match = re.fullmatch(r"\(?(\w+?)\)?(?:[*\u00d7](\d+))?", group)
            if not match or not 1 <= int(match[2] or 1) <= 4096:
                raise ValueError(f"pattern {pattern!r} has {group!r}; expected letters and a count, as in 'THW*20 T*4'")
            letters += match[1] * int(match[2] or 1)
        if not letters:
            raise ValueError("pattern is empty; expected such as 'THW*20 T*4'")
        if axes is None:
            axes = digits[: int(max(letters)) + 1] if letters.isdigit() else "".join(a for a in "THW" if a in letters)
        missing = sorted({*letters} ^ {*axes})
        if missing or len({*axes}) != len(axes):
            raise ValueError(
                f"pattern {pattern!r} does not go with the axes {axes!r} ({', '.join(missing) or 'one occurs twice'}); "
                f"expected each of them at least once, and no other; name them, as in "
                f"axes={''.join(dict.fromkeys(letters))!r}"
            )
        return cls.by_hand([axes.index(letter) for letter in letters])

    @property
    def axes(self) -> int:
        """How many axes A it reads."""
        return len(self.counts)

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
        return torch.tensor(self._dealt(), device="cpu")

    def pattern(self, axes: str | None = None) -> str:
        """How `parse` spells it, in few groups.

        Args:
            axes: the letters of axes 0, 1, ...; by default T, H and W, and digits of more than three.

        Raises:
            ValueError: there are more axes than letters.

        >>> AxisSplit((24, 20, 20), "interleaved").pattern()
        'THW*20 T*4'
        """
        axes = axes or _LETTERS.get(self.axes, digits)
        if len({*axes}) < max(self.axes, len(axes)) or not axes.isalnum():
            raise ValueError(f"axes is {axes!r}; expected another letter for each of the {self.axes} axes")
        return _spell("".join(axes[axis] for axis in self._dealt()))

    def check_fits(self, rotary_dim: int) -> None:
        """Refuse a number of rotary channels that this split does not fill.

        Raises:
            ValueError: `rotary_dim` is odd, or twice the sum of the counts is another number.
        """
        if rotary_dim % 2:
            raise ValueError(f"rotary_dim {rotary_dim} is odd; a rotary pair takes two channels")
        if rotary_dim != self.rotary_dim:
            needed = rotary_dim // 2
            near = f", as in {_in_ratio(self.counts, needed)}" if needed >= self.axes else ""
            raise ValueError(
                f"mrope_section {self.counts} sums to {self.pairs}; rotary_dim {rotary_dim} needs {needed}{near}"
            )

    def _dealt(self) -> tuple[int, ...]:
        """The axis of each pair."""
        pairs = range(self.pairs)
        if self.allocation == "by-hand":
            return self.order
        if self.allocation == "chunked":
            return tuple(axis for axis, count in enumerate(self.counts) for _ in range(count))
        if self.allocation == "alternating":
            return tuple(self.axes - 2 + j % 2 if j < 2 * self.counts[-1] else 0 for j in pairs)
        return tuple(j % 3 if j < 3 * self.counts[j % 3] else 0 for j in pairs)

    def _check_order(self) -> None:
        """Refuse an order that does not give the counts; one that has a name is the split of this name."""
        order = tuple(whole("order entry", axis, 0) for axis in self.order)
        given = tuple(order.count(axis) for axis in range(self.axes))
        if given != self.counts or sum(given) != len(order):
            raise ValueError(
                f"mrope_section {self.counts} by-hand, but order gives {given}; `by_hand` counts by itself"
            )
        object.__setattr__(self, "order", order)
        for allocation in ("chunked", "interleaved", "alternating"):
            try:
                named = AxisSplit(self.counts, allocation)
            except ValueError:  # not of so many axes, or not with these counts
                continue
            if named._dealt() == order:
                object.__setattr__(self, "allocation", allocation)
                object.__setattr__(self, "order", ())
                return

    def _check_interleaved(self) -> None:
        if self.axes != 3:
            raise ValueError(f"mrope_section {self.counts} has {self.axes} axes; interleaved deals to 3: t, h, w")
        dealt = self._dealt()
        if tuple(dealt.count(axis) for axis in range(3)) != self.counts:
            # Of F pairs, (F + 1) // 3 have j % 3 == 1 and F // 3 have j % 3 == 2.
            most_h, most_w = (self.pairs + 1) // 3, self.pairs // 3
            h, w = min(self.counts[1], most_h), min(self.counts[2], most_w)
            raise ValueError(
                f"mrope_section {self.counts} does not fit interleaved: of {self.pairs} pairs h can get at most "
                f"{most_h} and w at most {most_w}, as in {(self.pairs - h - w, h, w)}; "
                "or split the same counts chunked"
            )

    def _check_alternating(self) -> None:
        if self.axes not in (2, 3):
            raise ValueError(
                f"mrope_section {self.counts} has {self.axes} axes; alternating takes 3: t, h, w; or the last 2"
            )
        *rest, one, other = self.counts
        if one != other:
            # Of three, t takes the odd one; two have an even number of pairs.
            even, odd = divmod(one + other, 2)
            near = f", as in {(*(count + odd for count in rest), even, even)}"
            raise ValueError(
                f"mrope_section {self.counts} does not fit alternating: the last two axes take turns and need as many "
                f"pairs each, not {one} and {other}{near}"
            )


@dataclass(frozen=True, slots=True)
class HeadSplit:
    """An axis for each head, not for each pair: every head has all frequencies, on its one axis.

    MHRoPE ("Revisiting Multimodal Positional Encoding in VLMs", arXiv:2510.23095) gives the first heads of keys to t,
    the next to h, the next to w; what is left does not turn. Heads of queries go with the keys that they look at.

    Args:
        counts: heads of keys per axis, in the order (t, h, w).
        pairs: rotary pairs F of a head.
        heads: heads of keys Hk; those beyond the counts do not turn. None: as many as the counts add up to.

    Raises:
        ValueError: the counts take more heads than there are.

    >>> HeadSplit((1, 2, 1), pairs=2, heads=5).axis.tolist()
    [[0, 0], [1, 1], [1, 1], [2, 2], [-1, -1]]
    """

    counts: tuple[int, ...]
    pairs: int
    heads: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", tuple(whole("counts entry", count, 1) for count in self.counts))
        whole("pairs", self.pairs, 1)
        taken = sum(self.counts)
        heads = taken if self.heads is None else whole("heads", self.heads, 1)
        if not 1 <= taken <= heads:
            near = f", as in {_in_ratio(self.counts, heads)}" if heads >= len(self.counts) > 0 else ""
            raise ValueError(f"counts {self.counts} take {taken} heads of {heads}; expected at most all of them{near}")
        object.__setattr__(self, "heads", heads)

    @property
    def axes(self) -> int:
        """How many axes A it reads."""
        return len(self.counts)

    @property
    def rotary_dim(self) -> int:
        """Channels R = 2F that rotate."""
        return 2 * self.pairs

    @property
    def axis(self) -> Int64[Tensor, "h f"]:
        """(Hk, F) int64, the axis that each pair of each head reads; -1 where it does not turn."""
        assert self.heads is not None  # set on construction
        of_head = [axis for axis, count in enumerate(self.counts) for _ in range(count)]
        of_head += [-1] * (self.heads - len(of_head))
        return torch.tensor(of_head, device="cpu")[:, None].repeat(1, self.pairs)


def _in_ratio(shares: Sequence[Number], pairs: int) -> tuple[int, ...]:
    """Whole counts of at least 1 that add up to `pairs`, each as near to its share as they can be together."""
    exact = [share * pairs / sum(shares) for share in shares]
    counts = [max(1, int(count)) for count in exact]
    while (left := pairs - sum(counts)) != 0:
        step = 1 if left > 0 else -1
        open_to = [a for a, count in enumerate(counts) if count + step >= 1]
        counts[max(open_to, key=lambda a: step * (exact[a] - counts[a]))] += step
    return tuple(counts)


def _spell(letters: str) -> str:
    """Groups of at most eight letters that repeat, the longest stretch first from the left; the rest as it is."""
    words: list[str] = []
    alone = False
    while letters:
        best, repeats = letters[0], 1
        for size in range(1, 9):
            group, count = letters[:size], 1
            while letters[size * count : size * (count + 1)] == group:
                count += 1
            if count > 1 and size * count > len(best) * repeats:
                best, repeats = group, count
        if repeats > 1:
            words.append(f"{best}*{repeats}")
        elif alone:
            words[-1] += best
        else:
            words.append(best)
        alone = repeats == 1
        letters = letters[len(best) * repeats :]
    return " ".join(words)
