"""Whole items in rows of a fixed length. Letters: M items, K of them in rows, R rows, L left out."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Int64, Integer

from mrope.checks import one_of, whole

Algo: TypeAlias = Literal["best-fit", "first-fit", "next-fit"]
TooLong: TypeAlias = Literal["error", "skip"]


@dataclass(frozen=True, slots=True, eq=False)
class PackedItems:
    """Which items share a row: `items[bounds[r]:bounds[r + 1]]` are those of row r.

    Args:
        row_tokens: the most tokens of a row.
        items: (K,) int64, the numbers of the items, row by row; in a row from the lowest to the highest.
        lengths: (K,) int64, the tokens of each of them.
        bounds: (R + 1,) int64, where each row begins in `items`, and the end. Rows go by their lowest item.
        left_out: (L,) int64, the items that are longer than a row, from the lowest to the highest.
    """

    row_tokens: int
    items: Int64[np.ndarray, " k"]
    lengths: Int64[np.ndarray, " k"]
    bounds: Int64[np.ndarray, " r1"]
    left_out: Int64[np.ndarray, " l"]

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.bounds) - 1

    def row(self, number: int) -> Int64[np.ndarray, " n"]:
        """The items of row `number`, from 0."""
        if not 0 <= number < len(self):
            raise IndexError(f"row is {number}; expected 0 to {len(self) - 1}")
        return self.items[self.bounds[number] : self.bounds[number + 1]]

    @property
    def tokens(self) -> Int64[np.ndarray, " r"]:
        """(R,) the tokens of each row."""
        return np.diff(np.append(0, self.lengths.cumsum())[self.bounds]).astype(np.int64)

    @property
    def fill(self) -> float:
        """The share of all rows that holds tokens, from 0 to 1; 0 where there are no rows."""
        return float(self.lengths.sum() / (max(len(self), 1) * self.row_tokens))


def pack_items(
    tokens: Sequence[int] | Integer[np.ndarray, " m"],
    row_tokens: int,
    algo: Algo = "best-fit",
    *,
    too_long: TooLong = "error",
) -> PackedItems:
    """Put items into rows of `row_tokens`, none of them cut; the same items always give the same rows.

    Args:
        tokens: (M,) the tokens of each item, at least 1; with all that an item takes in a row, its text too.
        row_tokens: the most tokens of a row.
        algo: "best-fit" takes the longest first, and puts each into the fullest row that has room; beyond a few rows,
            it takes at most 11/9 of the fewest possible (Johnson, 1974). "first-fit" takes them in their order, and
            puts each into the first row that has room. "next-fit" begins a new row where one does not fit into the
            last, so that items keep their order.
        too_long: what becomes of items that are longer than a row: "error", or "skip" to list them in `left_out`.

    Time grows with M ("first-fit": M log R); memory is some 70 bytes an item.

    Raises:
        TypeError, ValueError: `tokens` are no row of whole numbers from 1 on, or an item is longer than a row.

    >>> packed = pack_items([3, 6, 5, 4, 2], 10)
    >>> [packed.row(number).tolist() for number in range(len(packed))], packed.fill
    ([[0, 2, 4], [1, 3]], 1.0)
    """
    one_of("algo", algo, get_args(Algo))
    one_of("too_long", too_long, get_args(TooLong))
    capacity = whole("row_tokens", row_tokens, 1)
    every = counts("tokens", tokens, 1)
    left_out = np.flatnonzero(every > capacity)
    if len(left_out) and too_long == "error":
        raise ValueError(
            f"tokens[{left_out[0]}] is {every[left_out[0]]}, and {len(left_out)} of {len(every)} items are longer than "
            f'row_tokens {capacity}; expected longer rows, or too_long="skip"'
        )
    numbers = np.flatnonzero(every <= capacity)
    rows = _ALGORITHMS[algo](every[numbers], capacity)
    _, firsts, rows = np.unique(rows, return_index=True, return_inverse=True)
    rows = firsts.argsort().argsort()[rows]
    order = rows.argsort(kind="stable")
    return PackedItems(
        row_tokens=capacity,
        items=numbers[order],
        lengths=every[numbers[order]],
        bounds=np.bincount(rows + 1, minlength=1).cumsum(),
        left_out=left_out,
    )


def counts(name: str, values: Any, least: int) -> Int64[np.ndarray, " m"]:
    """`values` as int64, or one line that says what is no row of whole numbers of at least `least`."""
    found = np.asarray(values)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise TypeError(f"{name} are {found.dtype} of shape {found.shape}; expected whole numbers of shape (items,)")
    if found.size and found.max() > np.iinfo(np.int64).max:
        place = int(found.argmax())
        raise ValueError(f"{name}[{place}] is {found[place]}; expected less than 2**63")
    found = found.astype(np.int64)
    if (found < least).any():
        place = int(found.argmin())
        raise ValueError(f"{name}[{place}] is {found[place]}; expected at least {least}")
    return found


def _best_fit(tokens: np.ndarray, capacity: int) -> np.ndarray:
    """The row of each item. Items of one length go together: the row that takes one is the fullest for the next."""
    order = (-tokens).argsort(kind="stable")
    lengths, numbers = np.unique(tokens, return_counts=True)
    rows = np.empty(len(tokens), np.int64)
    opened = first = 0
    rooms: list[int] = []  # what is left in some row, each number once, rising
    open_rows: dict[int, list[int]] = {}
    for length, number in zip(lengths[::-1].tolist(), numbers[::-1].tolist(), strict=True):
        last = first + number
        while first < last:
            if (place := bisect_left(rooms, length)) == len(rooms):
                row, room, opened = opened, capacity, opened + 1
            else:
                room = rooms[place]
                row = open_rows[room].pop()
                if not open_rows[room]:
                    del rooms[place]
            taken = min(room // length, last - first)
            rows[order[first : first + taken]] = row
            first += taken
            room -= taken * length
            if room >= lengths[0]:
                if not open_rows.setdefault(room, []):
                    insort(rooms, room)
                open_rows[room].append(row)
    return rows


def _first_fit(tokens: np.ndarray, capacity: int) -> np.ndarray:
    """The row of each item. `rooms` is a tree: the leaves are rows, and each node has the larger room of its two."""
    leaves = 1 << int(2 * tokens.sum() // capacity + 1).bit_length()  # at most one row is not more than half full
    rooms = [capacity] * (2 * leaves)
    rows = np.empty(len(tokens), np.int64)
    for item, length in enumerate(map(int, tokens)):
        node = 1
        while node < leaves:
            node = 2 * node + (rooms[2 * node] < length)
        rows[item] = node - leaves
        rooms[node] -= length
        while node > 1:
            node //= 2
            rooms[node] = max(rooms[2 * node], rooms[2 * node + 1])
    return rows


def _next_fit(tokens: np.ndarray, capacity: int) -> np.ndarray:
    """The row of each item."""
    ends = tokens.cumsum()
    rows = np.empty(len(tokens), np.int64)
    first = row = before = 0
    while first < len(tokens):
        last = int(ends.searchsorted(before + capacity, "right"))
        rows[first:last] = row
        first, row, before = last, row + 1, int(ends[last - 1])
    return rows


_ALGORITHMS = {"best-fit": _best_fit, "first-fit": _first_fit, "next-fit": _next_fit}
