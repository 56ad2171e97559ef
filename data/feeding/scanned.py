"""The items of a scan in rows, and the Parquet file of these rows."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from mrope.checks import whole

from ..scanning.store import Catalogue, arrow, in_place
from .packing import Algo, PackedItems, pack_items

LONGER, UNPLANNED = "longer than a row", "no tokens"
_AT_ONCE = 4096
"""Rows that are written at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedScan:
    """The items of a scan in rows; an item's number is its place in the rows of the scan, from 0.

    Args:
        scan: its folder.
        packed: the rows; what is longer than a row is in its `left_out`.
        items: how many items the scan has.
        left_out: reason -> how many items are in no row: the scan's own reasons for errors, "no tokens" for what it
            could not plan at this limit, and "longer than a row".
        settings: what the rows were made with: row_tokens, algo, limit and overhead.
    """

    scan: Path
    packed: PackedItems
    items: int
    left_out: dict[str, int]
    settings: dict[str, Any]

    def sources(self, numbers: Sequence[int] | Int64[np.ndarray, " n"]) -> list[str]:
        """What the items with these numbers, which ascend, are called in the scan.

        Raises:
            IndexError: a number beyond the items.
            ValueError: a number below 0, or numbers that do not ascend.
        """
        numbers = np.array([whole("numbers", number, 0) for number in numbers], np.int64)
        if len(numbers) and (largest := int(numbers.max())) >= self.items:
            raise IndexError(f"numbers has {largest}; expected 0 to {self.items - 1}")
        if (np.diff(numbers) < 0).any():
            raise ValueError(f"numbers is {numbers.tolist()!r:.60}; expected ascending ones")
        names, first = list[str](), 0
        for batch in Catalogue(self.scan).rows(["source"]):
            begin, end = numbers.searchsorted([first, first + len(batch)])
            names += batch["source"].take(arrow().array(numbers[begin:end] - first)).to_pylist()
            first += len(batch)
        return names

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a Parquet file, put into its place in one step: a row of it for each row of tokens.

        Its columns are `row`, int64; `tokens`, int64; `items`, a list of int64; and `cu_seqlens`, a list of int32: 0,
        and where each item ends in the row, as varlen attention and `Positions.cu_seqlens` have it. The settings are
        in its metadata, as the JSON of "mrope.pack".
        """
        pa, path = arrow(), Path(path)
        if path.is_dir():
            raise ValueError(f"{path} is a folder; expected the path of a file")
        facts = json.dumps({**self.settings, "items": self.items, "left_out": self.left_out}).encode()
        counted, integers = pa.list_(pa.int32()), pa.list_(pa.int64())
        columns = {"row": pa.int64(), "tokens": pa.int64(), "items": integers, "cu_seqlens": counted}
        schema = pa.schema(columns.items(), metadata={"mrope.pack": facts})
        path.parent.mkdir(parents=True, exist_ok=True)
        with in_place(path) as temporary, pa.parquet.ParquetWriter(temporary, schema, compression="zstd") as file:
            for first in range(0, len(self.packed), _AT_ONCE):
                file.write_batch(_batch(self.packed, first, min(first + _AT_ONCE, len(self.packed)), schema))


def pack_scan(
    scan: str | os.PathLike[str],
    row_tokens: int,
    *,
    limit: str | int | None = None,
    algo: Algo = "best-fit",
    overhead: int = 0,
) -> PackedScan:
    """Put all items that a scan could plan into rows of `row_tokens`; see `pack_items`.

    Args:
        scan: the folder that `mrope scan` wrote.
        row_tokens: the most tokens of a row.
        limit: whose tokens count: one of the scan's limits, "own" for the family's own; it may be left out where the
            scan has but one.
        algo: "best-fit", "first-fit" or "next-fit".
        overhead: tokens that each item takes in a row beyond its own: text, and the marks around a picture.

    Memory is some 150 bytes an item, the writing of the file included.

    Raises:
        ValueError: the scan is not done, or has no such limit; or no item fits into a row.
        ImportError: pyarrow is not installed.
    """
    beyond, capacity, catalogue = whole("overhead", overhead, 0), whole("row_tokens", row_tokens, 1), Catalogue(scan)
    chosen = _limit(catalogue, limit)
    tokens, left_out = _tokens(catalogue, f"tokens_{chosen}")
    numbers = np.flatnonzero(tokens >= 0)
    if not len(numbers):
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items()) or "no items at all"
        raise ValueError(f"{scan} has nothing to pack at limit {chosen}: {reasons}")
    lengths = tokens[numbers].astype(np.int64) + beyond
    if (shortest := int(lengths.min())) > capacity:
        words = f", {beyond} of them overhead" if beyond else ""
        raise ValueError(f"row_tokens is {capacity}; the shortest of {len(numbers)} items takes {shortest}{words}")
    packed = pack_items(lengths, capacity, algo, too_long="skip")
    if count := len(packed.left_out):
        left_out[LONGER] = count
    found = PackedItems(
        row_tokens=capacity,
        items=numbers[packed.items],
        lengths=packed.lengths,
        bounds=packed.bounds,
        left_out=numbers[packed.left_out],
    )
    settings = {"row_tokens": capacity, "algo": algo, "limit": chosen, "overhead": beyond}
    return PackedScan(scan=Path(scan), packed=found, items=len(tokens), left_out=left_out, settings=settings)


def _limit(catalogue: Catalogue, limit: str | int | None) -> str:
    """The limit that is meant, as columns are called by it."""
    there = list(catalogue.limits)
    if not there:
        raise ValueError(f"{catalogue.out} has no tokens to pack by; scan with a family")
    if limit is None and len(there) > 1:
        raise ValueError(f"limit is not given, and {catalogue.out} has several; expected one of {', '.join(there)}")
    chosen = there[0] if limit is None else str(limit)
    if chosen not in there:
        raise ValueError(f"limit is {chosen}; {catalogue.out} has {', '.join(there)}")
    return chosen


def _tokens(catalogue: Catalogue, column: str) -> tuple[np.ndarray, dict[str, int]]:
    """The tokens of each item, int32, -1 where it has none; and reason -> how many have none."""
    pieces, reasons = [np.empty(0, np.int32)], Counter[str]()
    for batch in catalogue.rows([column, "error", "reason"]):
        wrong = batch["error"].is_valid().to_numpy(zero_copy_only=False)
        found = batch[column].fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
        reasons.update(reason or "error" for reason in batch["reason"].filter(batch["error"].is_valid()).to_pylist())
        reasons[UNPLANNED] += int(((found < 0) & ~wrong).sum())
        pieces.append(np.where(wrong, np.int32(-1), found))
    return np.concatenate(pieces), {reason: count for reason, count in sorted(reasons.items()) if count}


def _batch(packed: PackedItems, first: int, last: int, schema: Any) -> Any:
    """The rows from `first` up to `last`, as the file has them."""
    pa = arrow()
    bounds: Int64[np.ndarray, " r1"] = packed.bounds[first : last + 1]
    begin, end = int(bounds[0]), int(bounds[-1])
    ends, rows = packed.lengths[begin:end].cumsum(), np.arange(last - first)
    before = np.append(0, ends)[bounds - begin]  # tokens of the rows in front
    row_of = rows.repeat(np.diff(bounds))
    marks = np.zeros(end - begin + len(rows), np.int32)  # one more a row than it has items: the 0 in front
    marks[np.arange(end - begin) + row_of + 1] = ends - before[row_of]

    def lists(offsets: np.ndarray, values: np.ndarray) -> Any:
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))

    columns = [
        pa.array(rows + first),
        pa.array(np.diff(before)),
        lists(bounds - begin, packed.items[begin:end]),
        lists(bounds - begin + np.append(rows, len(rows)), marks),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
