"""What the rows of a scan come to: one pass over them, in memory that does not grow with their number."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute

import mrope

from .store import Catalogue

pc: Any = pyarrow.compute  # makes its functions when it is loaded, where no type checker sees them

PERCENTS = (0, 5, 50, 95, 99, 100)
SHOWN, EXAMPLES = 10, 5
"""Items in a list of the largest, and examples of one reason or flag."""
_BUCKETS = 64
"""Files that hashes are spilled to, by their first bits; one at a time is read back."""
_COLUMNS = ("source", "kind", "bytes", "height", "width", "seconds", "flags", "error", "reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One item that a report names.

    Args:
        name: its source; bytes that are no UTF-8 are written as escapes.
        kind: "picture", "page" or "clip".
        height: in pixels, upright; None if it could not be read.
        width: the same.
        tokens: LLM tokens at each limit; None where it does not fit.
        error: why it could not be read or does not fit.
    """

    name: str
    kind: str
    height: int | None
    width: int | None
    tokens: tuple[int | None, ...]
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitTally:
    """What the items cost at one limit.

    Args:
        limit: most tokens of an item, in words; "own" for the family's.
        planned: items that have a plan.
        tokens: LLM tokens of all of them.
        unfit: items with a size and without a plan: too thin, or too large for the limit.
        downscaled: items with fewer tokens than their own size would take, of a clip in each of its steps.
        upscaled: items with more.
        kept: share of the pixels that are left, 0..1, of clips in the frames that are looked at; an upscaled item
            keeps all. None where nothing was planned.
        percentiles: (per cent, tokens): so many per cent of the planned items have at most so many tokens.
        bins: (from, to, items, tokens): items that have `from` or more and fewer than `to` tokens, and all tokens of
            these; the edges are 1, 2, 3, 4, 6, 8, 12, 16 and so on. Without empty bins at the ends.
        worst: the item with most tokens, the first of equals.
    """

    limit: str
    planned: int
    tokens: int
    unfit: int
    downscaled: int
    upscaled: int
    kept: float | None
    percentiles: tuple[tuple[int, int], ...]
    bins: tuple[tuple[int, int, int, int], ...]
    worst: Item | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Class:
    """Items that share a flag or a reason: the word, how many, and the first few."""

    word: str
    count: int
    examples: tuple[Item, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Items of one content: how many, and the names of the first few."""

    count: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates:
    """Items whose bytes are the same.

    Args:
        groups: contents that came more than once.
        copies: items beyond the first of each.
        tokens: of these copies, at each limit.
        largest: the groups with most items.
    """

    groups: int
    copies: int
    tokens: tuple[int, ...]
    largest: tuple[Copies, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What a scan comes to.

    Args:
        items: rows of the scan.
        kinds: kind -> items.
        measured: items whose size is known.
        failed: items with an error: unreadable, or without a plan at any limit.
        bytes: of all items, where they are known.
        seconds: of all clips.
        limits: in the order of the scan.
        reasons: classes of errors, the largest first.
        flags: the largest first.
        largest: items of most pixels.
        smallest: items of fewest.
        thinnest: items whose sides differ most.
        duplicates: None where no hashes were asked for.
    """

    items: int
    kinds: Mapping[str, int]
    measured: int
    failed: int
    bytes: int
    seconds: float
    limits: tuple[LimitTally, ...]
    reasons: tuple[Class, ...]
    flags: tuple[Class, ...]
    largest: tuple[Item, ...]
    smallest: tuple[Item, ...]
    thinnest: tuple[Item, ...]
    duplicates: Duplicates | None


def tally(catalogue: Catalogue) -> Tally:
    """Count up the rows of a scan.

    Memory holds one batch of rows, a count for each number of tokens that occurs, and a 64th of the hashes: these are
    spilled to a temporary folder, 24 bytes an item and 8 for each limit.
    """
    settings, names = catalogue.settings, catalogue.limits
    columns = [*_COLUMNS, *(f"{what}_{name}" for name in names for what in ("tokens", "grid"))]
    found = _Found([_Limit(name, mrope.family(settings["family"])) for name in names])
    with tempfile.TemporaryDirectory() as folder:
        hashes = _Hashes(Path(folder), names) if settings["hash"] else None
        for batch in catalogue.rows(columns + ["hash"] * settings["hash"]):
            if hashes is not None:
                hashes.add(batch, found.items)
            found.add(batch)
        duplicates = None if hashes is None else hashes.duplicates(catalogue)
    return found.tally(duplicates)


class _Found:
    """The counts so far."""

    def __init__(self, limits: list[_Limit]) -> None:
        self.limits = limits
        self.items = self.measured = self.failed = self.bytes = 0
        self.seconds = 0.0
        self.kinds: Counter[str] = Counter()
        self.reasons, self.flags = _Classes(), _Classes()
        self.largest, self.smallest, self.thinnest = _Top(), _Top(), _Top()

    def add(self, batch: pyarrow.RecordBatch) -> None:
        height, width = _numbers(batch["height"]), _numbers(batch["width"])
        sized = (height > 0) & (width > 0)
        clips = pc.equal(batch["kind"], "clip").to_numpy(zero_copy_only=False)
        errors = np.flatnonzero(_there(batch["reason"]))
        self.kinds.update(dict(_counts(batch["kind"])))
        self.measured += int(sized.sum())
        self.failed += len(errors)
        self.bytes += int(_numbers(batch["bytes"]).sum())
        self.seconds += float(np.nansum(_numbers(batch["seconds"])))
        named = _Named(batch, [limit.name for limit in self.limits], self.items)
        area = (height * width).astype(float)
        self.largest.add(np.where(sized, area, -np.inf), named)
        self.smallest.add(np.where(sized, -area, -np.inf), named)
        longer, shorter = np.maximum(height, width), np.maximum(1, np.minimum(height, width))
        self.thinnest.add(np.where(sized, longer / shorter, -np.inf), named)
        self.reasons.add(batch["reason"].drop_null(), errors, named)
        self.flags.add(pc.list_flatten(batch["flags"]), pc.list_parent_indices(batch["flags"]).to_numpy(), named)
        for limit in self.limits:
            limit.add(batch, height, width, sized, clips, named)
        self.items += batch.num_rows

    def tally(self, duplicates: Duplicates | None) -> Tally:
        return Tally(
            items=self.items,
            kinds=dict(self.kinds),
            measured=self.measured,
            failed=self.failed,
            bytes=self.bytes,
            seconds=self.seconds,
            limits=tuple(limit.tally() for limit in self.limits),
            reasons=self.reasons.classes(),
            flags=self.flags.classes(),
            largest=self.largest.items(),
            smallest=self.smallest.items(),
            thinnest=self.thinnest.items(),
            duplicates=duplicates,
        )


class _Limit:
    """The counts so far at one limit."""

    def __init__(self, name: str, family: mrope.Family) -> None:
        self.name, self.family = name, family
        self.values, self.counts = np.zeros(0, np.int64), np.zeros(0)
        self.unfit = self.downscaled = self.upscaled = self.shown = self.whole = 0
        self.worst = _Top(1)

    def add(
        self, batch: pyarrow.RecordBatch, height: np.ndarray, width: np.ndarray, sized: np.ndarray, clips: np.ndarray,
        named: _Named,
    ) -> None:  # fmt: skip
        column, grids = batch[f"tokens_{self.name}"], batch[f"grid_{self.name}"]
        planned = _there(column)
        tokens = _numbers(column)
        self.unfit += int((sized & ~planned).sum())
        self.worst.add(np.where(planned, tokens, -np.inf), named)
        self.values, place = np.unique(np.concatenate((self.values, tokens[planned])), return_inverse=True)
        weights = np.concatenate((self.counts, np.ones(int(planned.sum()))))  # exact up to 2**53
        self.counts = np.bincount(place, weights, len(self.values))
        # A clip is as large as one of its temporal steps; in slices its grid does not tell how many there are.
        compared = planned & sized & (~clips | (self.family.resize != "slices"))
        steps = np.ones(len(tokens), np.int64)
        steps[_there(grids)] = grids.flatten().to_numpy()[::3]
        steps = np.where(clips, np.maximum(1, steps // self.family.temporal_merge), 1)
        factor = self.family.factor
        rows, cols = (np.maximum(1, np.rint(side / factor)).astype(np.int64) for side in (height, width))
        more = np.where(compared, tokens - steps * rows * cols, 0)
        self.downscaled += int((more < 0).sum())
        self.upscaled += int((more > 0).sum())
        area = height * width * compared
        self.shown += int(np.minimum(tokens * factor**2 // steps, area).sum())
        self.whole += int(area.sum())

    def tally(self) -> LimitTally:
        planned = int(self.counts.sum())
        return LimitTally(
            limit=self.name,
            planned=planned,
            tokens=_dot(self.values, self.counts),
            unfit=self.unfit,
            downscaled=self.downscaled,
            upscaled=self.upscaled,
            kept=self.shown / self.whole if self.whole else None,
            percentiles=_percentiles(self.values, self.counts),
            bins=_bins(self.values, self.counts),
            worst=next(iter(self.worst.items()), None),
        )


def _percentiles(values: np.ndarray, counts: np.ndarray) -> tuple[tuple[int, int], ...]:
    """The least number of tokens that so many per cent have or fall short of."""
    below = np.cumsum(counts)
    if not len(below):
        return ()
    # In whole numbers: a product in floats could fall on the wrong side of a step.
    places = [int(np.searchsorted(below, max(1, -(-per * int(below[-1]) // 100)))) for per in PERCENTS]
    return tuple((per, int(values[place])) for per, place in zip(PERCENTS, places, strict=True))


def _bins(values: np.ndarray, counts: np.ndarray) -> tuple[tuple[int, int, int, int], ...]:
    if not len(values):
        return ()
    edges = [1, *sorted(n * 2**power for n in (2, 3) for power in range(int(values[-1]).bit_length()))]
    ends = np.searchsorted(values, edges)
    first = int(np.searchsorted(edges, values[0], side="right")) - 1
    last = int(np.searchsorted(edges, values[-1], side="right"))
    found = []
    for place in range(first, last):
        within = slice(ends[place], ends[place + 1])
        its = int(counts[within].sum()), _dot(values[within], counts[within])
        found.append((edges[place], edges[place + 1], *its))
    return tuple(found)


def _dot(values: np.ndarray, counts: np.ndarray) -> int:
    return int((values * counts.astype(np.int64)).sum())


class _Named:
    """The items of a batch, made when they are asked for."""

    def __init__(self, batch: pyarrow.RecordBatch, limits: list[str], first: int) -> None:
        self.batch, self.limits, self.first = batch, limits, first

    def item(self, place: int) -> Item:
        batch = self.batch
        return Item(
            name=_text(batch["source"][place]) or "",
            kind=batch["kind"][place].as_py(),
            height=batch["height"][place].as_py(),
            width=batch["width"][place].as_py(),
            tokens=tuple(batch[f"tokens_{limit}"][place].as_py() for limit in self.limits),
            error=_text(batch["error"][place]),
        )


class _Top:
    """The items of the largest values, the first of equals."""

    def __init__(self, count: int = SHOWN) -> None:
        self.count = count
        self.found: list[tuple[float, int, Item]] = []

    def add(self, values: np.ndarray, named: _Named) -> None:
        """Take in a batch; a value of minus infinity is none."""
        least = -self.found[-1][0] if len(self.found) == self.count else -np.inf
        better = np.flatnonzero(values > least)
        for place in better[np.argsort(-values[better], kind="stable")[: self.count]]:
            self.found.append((-float(values[place]), named.first + int(place), named.item(int(place))))
        self.found = sorted(self.found, key=lambda one: one[:2])[: self.count]

    def items(self) -> tuple[Item, ...]:
        return tuple(item for *_, item in self.found)


class _Classes:
    """Counts of words, and the first items of each."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.examples: dict[str, list[Item]] = {}

    def add(self, words: pyarrow.Array, places: np.ndarray, named: _Named) -> None:
        """Take in words, and in which rows of the batch they stand."""
        for word, count in _counts(words):
            self.count[word] += count
            known = self.examples.setdefault(word, [])
            if len(known) < EXAMPLES:
                rows = places[pc.equal(words, word).to_numpy(zero_copy_only=False)]
                known += [named.item(int(place)) for place in rows[: EXAMPLES - len(known)]]

    def classes(self) -> tuple[Class, ...]:
        ordered = sorted(self.count.items(), key=lambda one: (-one[1], one[0]))
        return tuple(Class(word=word, count=n, examples=tuple(self.examples[word])) for word, n in ordered)


class _Hashes:
    """Hashes with the numbers and tokens of their items, spilled to files by their first bits."""

    def __init__(self, folder: Path, limits: Sequence[str]) -> None:
        self.paths = [folder / str(bucket) for bucket in range(_BUCKETS)]
        self.limits = limits

    def add(self, batch: pyarrow.RecordBatch, first: int) -> None:
        """Take in a batch whose first item has the number `first`."""
        there = np.flatnonzero(_there(batch["hash"]))
        digits = "".join(one[:32] for one in batch["hash"].drop_null().to_pylist())
        keys = np.frombuffer(bytes.fromhex(digits), dtype=">u8").reshape(-1, 2).astype(np.uint64)
        costs = [_numbers(batch[f"tokens_{limit}"])[there] for limit in self.limits]
        rows = np.column_stack((keys.view(np.int64), first + there, *costs))
        buckets = keys[:, 0] >> np.uint64(58)
        for bucket in np.unique(buckets):
            with self.paths[int(bucket)].open("ab") as file:
                file.write(rows[buckets == bucket].tobytes())

    def duplicates(self, catalogue: Catalogue) -> Duplicates:
        groups = copies = 0
        tokens = np.zeros(len(self.limits), np.int64)
        largest: list[tuple[int, list[int]]] = []
        for path in self.paths:
            if not path.exists():
                continue
            rows = np.fromfile(path, np.int64).reshape(-1, 3 + len(self.limits))
            rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
            new = np.ones(len(rows), bool)
            new[1:] = (rows[1:, :2] != rows[:-1, :2]).any(axis=1)
            starts = np.flatnonzero(new)
            sizes = np.diff(np.append(starts, len(rows)))
            groups += int((sizes > 1).sum())
            copies += int((~new).sum())
            tokens += rows[~new, 3:].sum(axis=0)
            for place in np.lexsort((rows[starts, 2], -sizes))[:SHOWN]:
                if sizes[place] > 1:
                    its = rows[starts[place] : starts[place] + min(sizes[place], EXAMPLES), 2]
                    largest.append((int(sizes[place]), its.tolist()))
        largest = sorted(largest, key=lambda one: (-one[0], one[1]))[:SHOWN]
        names = _names_of(catalogue, [number for _, its in largest for number in its])
        shown = (Copies(count=count, names=tuple(names[one] for one in its)) for count, its in largest)
        return Duplicates(groups=groups, copies=copies, tokens=tuple(tokens.tolist()), largest=tuple(shown))


def _names_of(catalogue: Catalogue, numbers: list[int]) -> dict[int, str]:
    """The names of a few items by their numbers."""
    wanted, first, names = np.array(sorted(numbers), dtype=np.int64), 0, {}
    for batch in catalogue.rows(["source"]) if numbers else ():
        here = wanted[(wanted >= first) & (wanted < first + batch.num_rows)]
        names |= {int(one): _text(batch["source"][int(one) - first]) or "" for one in here}
        first += batch.num_rows
    return names


def _numbers(column: pyarrow.Array) -> np.ndarray:
    """A column of numbers, int64 or float64, with 0 where there is none."""
    values = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    return values.astype(np.float64 if values.dtype.kind == "f" else np.int64)


def _there(column: pyarrow.Array) -> np.ndarray:
    """Where a column has a value."""
    return column.is_valid().to_numpy(zero_copy_only=False)


def _counts(words: pyarrow.Array) -> Iterable[tuple[str, int]]:
    return ((one["values"].as_py(), one["counts"].as_py()) for one in words.value_counts())


def _text(value: Any) -> str | None:
    """A string of a column, which may hold bytes that are no UTF-8."""
    return value.as_buffer().to_pybytes().decode("utf-8", "backslashreplace") if value.is_valid else None
