"""Items to rows: what their headers say, what they cost at each limit, and what is wrong with them.

The columns; "?" may be null, L is a limit in tokens, or "own" for the family's; without a family there are none of L:

    source       string    "dir/a.jpg", "shard.tar/member.jpg", "file.pdf, page 1", "table.parquet:12" (row 12, from 1);
                           bytes that are no UTF-8 are written as \\udcff
    kind         string    "picture", "page" or "clip"
    bytes        int64?    of the file or member; null of a page
    height       int32?    of the upright picture in pixels, of a page at 200 dpi, of a frame
    width        int32?
    orientation  int8      EXIF, 1..8 (1: none); the size above is the turned one
    frames       int32?    of a clip, all that are in it
    seconds      float64?  of a clip, its duration
    tokens_L     int32?    LLM tokens that show it, as limits count them (without markers and newlines)
    grid_L       int32[3]? (t, h, w) in patches; of a sliced picture, of its thumbnail
    flags        list      words of `FLAGS`, in their order
    error        string?   why it cannot be used, in one line: it cannot be read, or fits at no limit
    reason       string?   the same in a word of `REASONS`, to count by
    hash         string?   SHA-256 of its bytes where hashes are asked for; of a page, of its file and number
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import chain, groupby
from threading import Lock
from typing import Any

import numpy as np

import mrope
from mrope.families import Family
from mrope.vision import BROKEN_SHARD, MAX_PIXELS, Plan, measure, measure_clip, pdf_pages, plan, plan_sizes, plan_video

from .items import File, Item, Kind, items_of
from .remote import UnreachableError
from .sources import Entry
from .store import Settings, arrow, labels

FLAGS = (
    "turned",  # EXIF turns or mirrors it
    "downscaled",  # it has fewer tokens than its own size would take, at one limit or more
    "upscaled",  # it has more
    "tiny",  # a side is shorter than a token
    "huge",  # it has more pixels than are decoded by default (`mrope.vision.MAX_PIXELS`)
    "extreme-ratio",  # its sides are too unequal for the family's rule: no plan
    "over-limit",  # the family's rule leaves it above one limit or more: no plan there
)
REASONS = (
    "not found",
    "not allowed",  # the system refuses to open it
    "unreachable",  # its file system did not answer
    "empty",
    "not a picture",  # something else, or a format that is not read
    "cut short",  # a shard, table or file ends too early
    "encrypted",
    "no path",  # a row of a table without path and bytes, or no row
    "broken label",  # of an export: a label beside it is no JSON, or no UTF-8
    "no package",  # an extra is not installed
    "no rule",  # the family has none for clips
    "too large",
    "does not fit",  # at any limit
    "broken",  # all else
)
_TOO_THIN, _TOO_MANY = "to 1, the limit is", "max_tokens is"
"""What plans say of sizes that do not fit."""
# What raises, what it says -> the reason; the first line that holds.
_TOLD = [
    (kinds, re.compile(words), reason)
    for kinds, words, reason in (
        (FileNotFoundError, "", "not found"),
        (NotADirectoryError, "", "not found"),
        (PermissionError, "", "not allowed"),
        (IsADirectoryError, "", "not a picture"),
        (UnreachableError, "", "unreachable"),
        (ImportError, "", "no package"),
        (MemoryError, "", "too large"),
        (EOFError, "", "cut short"),
        (BaseException, "^label ", "broken label"),
        (BaseException, "^the file is empty", "empty"),
        (BaseException, "no limits for clips|no rule to pick", "no rule"),
        (BaseException, "^not a picture|^a clip, or|holds pages|no PDF|no video stream|Parquet file", "not a picture"),
        (BaseException, "encrypted", "encrypted"),
        (BaseException, "ends inside|ends without|ends before|ends at|[Tt]runcated|end of data|end-of-st", "cut short"),
        (BaseException, "^column|JSON|^Expecting|^Extra data|^Unterminated|^Invalid", "no path"),
        (BaseException, "max_pixels=", "too large"),
        (BaseException, "", "broken"),
    )
]
_ELSEWHERE = re.compile(r", or (plan it with )?conflict=.*")
"""What plans say that a scan cannot do."""
_UNNAMED = re.compile(r"^(picture|clip|PDF) of \d+ bytes: ")
_AT_ONCE = 16
"""Remote items that are read at once."""
_MAX_SIDE = 1 << 24
_ERRORS = (
    OSError,
    ValueError,
    TypeError,
    ImportError,
    MemoryError,
    struct.error,
    *BROKEN_SHARD,
)


@dataclass(slots=True)
class _Row:
    source: str
    kind: Kind
    bytes: int | None = None
    height: int | None = None
    width: int | None = None
    orientation: int = 1
    frames: int | None = None
    seconds: float | None = None
    tokens: list[int | None] = field(default_factory=list)
    grids: list[tuple[int, int, int] | None] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)
    error: str | None = None
    reason: str | None = None
    hash: str | None = None
    picked: int | None = None  # frames of a clip that the family looks at
    misfit: str | None = None  # why it has no plan, at the last limit at which it has none

    @property
    def size(self) -> tuple[int, int]:
        assert self.height is not None
        assert self.width is not None
        return self.height, self.width


def scan_part(part: Sequence[Entry], settings: Settings) -> Any:
    """The rows of one part as a `pyarrow.Table`, a pure function of its sources and the settings.

    Raises:
        UnreachableError: a table or shard, or all of several files, cannot be reached; what can is counted as errors.
    """
    look = _Look(settings)
    items = chain.from_iterable(items_of(entry, settings) for entry in part)
    rows = list(_in_order(look, items))
    lost = [row for row in rows if row.reason == "unreachable"]
    if rows and len(lost) == len(rows):
        raise UnreachableError(f"{lost[0].source}: {lost[0].error}")
    look.plan(rows)
    return _table(rows, settings)


def _in_order(look: _Look, items: Iterable[Item]) -> Iterator[_Row]:
    for remote, group in groupby(items, lambda item: item.remote):
        if not remote:
            yield from chain.from_iterable(map(look.rows, group))
            continue
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            yield from chain.from_iterable(pool.map(look.rows, group))


class _Look:
    """How items become rows under the settings of a scan."""

    def __init__(self, settings: Settings) -> None:
        self.family: Family | None = None if settings["family"] is None else mrope.family(settings["family"])
        self.limits: list[int | None] = settings["limits"] or [None] * len(labels(settings))
        self.hash: bool = settings["hash"]
        self.one_clip = Lock()  # those from elsewhere come whole into memory

    def rows(self, item: Item) -> list[_Row]:
        """What the header of an item says: a row, or one for each page; and the plans of clips."""
        row = _Row(item.source, item.kind)
        with self.one_clip if item.kind == "clip" else nullcontext():
            return self._rows(row, item)

    def _rows(self, row: _Row, item: Item) -> list[_Row]:
        try:
            row.bytes = item.size()
            if item.kind == "page":
                return self._pages(item)
            file = item.whole() if self.hash or item.kind == "clip" else item.header()
            if self.hash:
                row.hash = _digest(file).hexdigest()
            if item.kind == "clip":
                self._clip(row, file)
            else:
                (row.height, row.width), row.orientation = measure(file)
        except _ERRORS as error:
            _fail(row, error)
        return [row]

    def _pages(self, item: Item) -> list[_Row]:
        file = item.whole()
        pages = pdf_pages(file)
        digest = _digest(file) if self.hash else None
        rows = []
        for page in pages:
            height, width = page.size
            row = _Row(f"{item.source}, page {page.number}", item.kind, height=height, width=width)
            if digest is not None:
                of_page = digest.copy()
                of_page.update(f", page {page.number}".encode())
                row.hash = of_page.hexdigest()
            rows.append(row)
        return rows

    def _clip(self, row: _Row, file: File) -> None:
        size = measure_clip(file)
        row.height, row.width, row.frames, row.seconds = size.height, size.width, size.frames, size.duration
        family = self.family
        if family is None:
            return
        for limit in self.limits:
            try:
                # Of the file once, to pick its frames; the limits need these alone.
                if row.picked is None:
                    picked = plan_video(file, family, conflict="family")
                    row.picked, row.orientation = picked.frames, picked.orientation
                planned = _clip_plan(row, family, limit)
            except ValueError as error:
                if not _is_misfit(error):
                    raise
                _leave_out(row, error)
                continue
            row.tokens.append(planned.tokens)
            row.grids.append(planned.grid)
            _compare(
                row, family, len({part.frame for part in planned.parts}) * planned.grid[0] // planned.temporal_merge
            )

    def plan(self, rows: Sequence[_Row]) -> None:
        """Put the plans of pictures and pages, and the flags of all, into the rows."""
        sized = [row for row in rows if row.height is not None]
        for row in sized:
            self._flag(row)
        family, still = self.family, [row for row in sized if row.kind != "clip" and row.error is None]
        if family is not None:
            sizes = np.array([row.size for row in still], dtype=np.int64).reshape(-1, 2)
            for limit in self.limits:
                found = plan_sizes(sizes, family, conflict="skip", max_tokens=limit)
                facts = zip(found.fits.tolist(), found.tokens.tolist(), found.grids.tolist(), strict=True)
                for row, (fits, tokens, grid) in zip(still, facts, strict=True):
                    if fits:
                        row.tokens.append(tokens)
                        row.grids.append(grid)
                        _compare(row, family)
                    else:
                        _leave_out(row, self._why(row.size, family, limit))
        for row in sized:
            if row.misfit is not None and not any(row.tokens):
                row.error, row.reason = row.misfit, "does not fit"

    def _flag(self, row: _Row) -> None:
        height, width = row.size
        if row.orientation != 1:
            row.flags.add("turned")
        if height * width > MAX_PIXELS:
            row.flags.add("huge")
        if self.family is not None and min(height, width) < self.family.factor:
            row.flags.add("tiny")
        if max(height, width) > _MAX_SIDE and row.error is None:
            row.error = f"{width} wide x {height} high; expected sides of at most {_MAX_SIDE} pixels"
            row.reason = "too large"

    def _why(self, size: tuple[int, int], family: Family, limit: int | None) -> ValueError:
        """What is said of a picture that does not fit."""
        try:
            plan(size, family, max_tokens=limit)
        except ValueError as error:
            return error
        raise AssertionError(size)


def _clip_plan(row: _Row, family: Family, limit: int | None) -> Plan:
    assert row.picked is not None
    clip = (row.picked, *row.size)
    try:
        return plan_video(clip, family, max_tokens=limit)
    except ValueError as error:
        if "give min_tokens too" not in str(error):
            raise
    return plan_video(
        clip, family, min_tokens=1, max_tokens=limit
    )  # a limit below the least that the family has for clips


def _is_misfit(error: ValueError) -> bool:
    return any(words in str(error) for words in (_TOO_THIN, _TOO_MANY))


def _leave_out(row: _Row, error: ValueError) -> None:
    """Tell in a row why it has no plan at a limit."""
    row.tokens.append(None)
    row.grids.append(None)
    row.misfit = _ELSEWHERE.sub("", _line(error, row.source))
    row.flags |= {
        flag for words, flag in ((_TOO_THIN, "extreme-ratio"), (_TOO_MANY, "over-limit")) if words in row.misfit
    }


def _compare(row: _Row, family: Family, steps: int = 1) -> None:
    """Flag a row whose last plan has other tokens than its own size would take."""
    rows, cols = (max(1, round(side / family.factor)) for side in row.size)
    tokens, own = row.tokens[-1] or 0, steps * rows * cols
    if tokens != own:
        row.flags.add("downscaled" if tokens < own else "upscaled")


def _fail(row: _Row, error: BaseException) -> None:
    row.error, row.reason = told(error, row.source)


def told(error: BaseException, source: str) -> tuple[str, str]:
    """What an error says of an item, in one line, and its reason."""
    line = _line(error, source)
    return line, next(reason for kinds, words, reason in _TOLD if isinstance(error, kinds) and words.search(line))


def _line(error: BaseException, source: str = "") -> str:
    """What an error says, in one line, without the name of what it is about."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    message = " ".join(str(error).split()) or type(error).__name__
    message = message.partition(f"{' '.join(source.split())}: ")[2] or message
    return _UNNAMED.sub("", message)


def _digest(file: File) -> Any:
    digest = hashlib.sha256()
    if isinstance(file, bytes):
        digest.update(file)
        return digest
    with open(file, "rb") as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
    return digest


def _table(rows: Sequence[_Row], settings: Settings) -> Any:
    pa = arrow()
    fields: list[tuple[str, Any, list[Any]]] = [
        ("source", pa.string(), [writable(row.source) for row in rows]),
        ("kind", pa.string(), [row.kind for row in rows]),
        ("bytes", pa.int64(), [row.bytes for row in rows]),
        ("height", pa.int32(), [row.height for row in rows]),
        ("width", pa.int32(), [row.width for row in rows]),
        ("orientation", pa.int8(), [row.orientation for row in rows]),
        ("frames", pa.int32(), [row.frames for row in rows]),
        ("seconds", pa.float64(), [row.seconds for row in rows]),
    ]
    for number, limit in enumerate(labels(settings)):
        planned = [number < len(row.tokens) for row in rows]
        tokens = [row.tokens[number] if there else None for row, there in zip(rows, planned, strict=True)]
        grids = [row.grids[number] if there else None for row, there in zip(rows, planned, strict=True)]
        fields += [(f"tokens_{limit}", pa.int32(), tokens), (f"grid_{limit}", pa.list_(pa.int32(), 3), grids)]
    fields += [
        ("flags", pa.list_(pa.string()), [[flag for flag in FLAGS if flag in row.flags] for row in rows]),
        ("error", pa.string(), [None if row.error is None else writable(row.error) for row in rows]),
        ("reason", pa.string(), [row.reason for row in rows]),
        ("hash", pa.string(), [row.hash for row in rows]),
    ]
    schema = pa.schema([pa.field(name, kind) for name, kind, _ in fields])
    return pa.table([pa.array(values, kind) for _, kind, values in fields], schema=schema)


def writable(text: str) -> str:
    """Text with half characters, which no file takes, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()
