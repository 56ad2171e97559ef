"""Sources listed: which files, shards and ranges of tables there are, in parts, without opening a picture."""

from __future__ import annotations

import glob
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from mrope.vision import PICTURES, matching, unbraced, walk

from .remote import file_system, is_url, tried, url_of
from .store import arrow

CLIPS = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi")
"""How files end that are taken for clips."""
PART = 2000
"""Most files, or rows of tables, of one part; a shard is a part of its own."""

_TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_LINES = (".jsonl", ".ndjson")
_TABLES = (".parquet", ".pq")
_SHOWN = (*PICTURES, *CLIPS, ".pdf")
_LEFT = (*_TARS, *_LINES, *_TABLES)
"""What is not read where it lies in a folder: a table may name the pictures there, a shard may hold them."""
_BLOCK = 1 << 22
"""Bytes of a table or shard of another file system that are fetched at a time."""


class Entry(NamedTuple):
    """One thing to look at.

    Fields:
        what: "file", "tar", "jsonl" or "parquet"; "left" for a shard or table that lies in a folder, and is counted.
        path: a path or URL, as the system has it.
        size: bytes of a file, where its listing says so.
        start: where a range begins: a byte of a JSONL file, a row of a Parquet file from 0.
        stop: where it ends.
        first: number of its first line, from 1.
    """

    what: str
    path: bytes
    size: int | None = None
    start: int = 0
    stop: int = 0
    first: int = 0


def parts_of(sources: Iterable[str], column: str) -> Iterator[list[Entry]]:
    """The entries of all sources in parts, in order; folders and globs in the order of names."""
    part: list[Entry] = []
    weight = 0
    for source in sources:
        for path in unbraced(source):
            for entry, rows in _entries(path, column):
                if part and weight + rows > PART:
                    yield part
                    part, weight = [], 0
                part.append(entry)
                weight += rows
    if part:
        yield part


def check_sources(sources: Sequence[str], column: str) -> None:
    """Refuse a source that does not exist, or that names nothing.

    Raises:
        OSError: it does not exist or cannot be opened.
        ValueError: a folder or glob without pictures, or a table that has no such column; one that is broken is an
            error of the scan.
    """
    for source in sources:
        for path in unbraced(source):
            next(_entries(path, column), None)


Weighed = tuple[Entry, int]
"""An entry, and how many items it counts as."""


def _entries(path: str, column: str) -> Iterator[Weighed]:
    return _of_url(path, column) if is_url(path) and not os.path.exists(path) else _of_path(path, column)


def _of_path(path: str, column: str) -> Iterator[Weighed]:
    if os.path.isdir(path):
        yield from _some(map(_in_folder, _below_path(path)), f"{path} is a folder")
    elif not os.path.exists(path) and glob.has_magic(path):
        names = (name for name in sorted(set(matching(path))) if not os.path.isdir(name))
        yield from _some((each for name in names for each in _of_file(name, column)), f"{path} is a pattern")
    else:
        os.stat(path)  # which raises where there is nothing
        yield from _of_file(path, column)


def _below_path(path: str) -> Iterator[str]:
    unread: list[OSError] = []
    for folder, names in walk(path, unread.append):
        yield from (os.path.join(folder, name) for name in names if _is_shown(name))
    yield from (str(error.filename) for error in unread)  # each an error, once somebody looks at it


def _of_url(url: str, column: str) -> Iterator[Weighed]:
    fs, path = file_system(url)
    if re.search(r"[*[]" if url.startswith("http") else r"[*?[]", path) and not tried(url, lambda: fs.exists(path)):
        found = tried(url, lambda: fs.glob(path, detail=True))
        files = ((url_of(fs, url, name), info) for name, info in sorted(found.items()) if info["type"] == "file")
        entries = (each for name, info in files for each in _of_file(name, column, info.get("size")))
        yield from _some(entries, f"{url} is a pattern")
        return
    info = tried(url, lambda: fs.info(path))
    if info["type"] == "directory":
        files = ((url_of(fs, url, one["name"]), one.get("size")) for one in _below(fs, url, path))
        yield from _some((_in_folder(name, size) for name, size in files), f"{url} is a folder")
    else:
        yield from _of_file(url, column, info.get("size"))


def _below(fs: Any, url: str, folder: str) -> Iterator[dict[str, Any]]:
    """The files below a folder, its own first."""
    found = sorted(tried(url, lambda: fs.ls(folder, detail=True)), key=lambda one: one["name"])
    shown = [one for one in found if not os.path.basename(one["name"].rstrip("/")).startswith(".")]
    yield from (one for one in shown if one["type"] == "file" and _is_shown(one["name"]))
    for one in shown:
        if one["type"] == "directory" and one["name"].rstrip("/") != folder.rstrip("/"):
            yield from _below(fs, url, one["name"])


def _is_shown(name: str) -> bool:
    return os.path.basename(name)[:1] != "." and name.lower().endswith((*_SHOWN, *_LEFT))


def _some(entries: Iterator[Weighed], what: str) -> Iterator[Weighed]:
    """The entries, of which one must be more than counted."""
    left: list[Weighed] = []
    for one in entries:
        left.append(one)
        if one[0].what != "left":
            break
    else:
        counts = left_out(one.path for one, _ in left)
        words = ", ".join(f"{count:,} {ending}" for ending, count in counts.items())
        hint = f", with {words} to name or glob" if left else ""
        names = " ".join(_SHOWN)
        raise ValueError(f"{what} without pictures, pages and clips{hint}; expected names that end in {names}")
    yield from left
    yield from entries


def left_out(paths: Iterable[bytes]) -> dict[str, int]:
    """How many shards and tables of each ending there are among these paths."""
    names = [os.fsdecode(path).partition("::")[0].lower() for path in paths]
    return dict(sorted(Counter(next(filter(name.endswith, _LEFT)) for name in names).items()))


def _of_file(path: str, column: str, size: int | None = None) -> Iterator[Weighed]:
    name = path.partition("::")[0].lower() if is_url(path) else path.lower()
    if name.endswith(_TARS):
        yield Entry("tar", os.fsencode(path)), PART
    elif name.endswith(_LINES):
        yield from _lines(path, column)
    elif name.endswith(_TABLES):
        yield from _rows(path, column)
    else:
        yield _file(path, size)


def _in_folder(path: str, size: int | None = None) -> Weighed:
    if path.partition("::")[0].lower().endswith(_LEFT):
        return Entry("left", os.fsencode(path)), 1
    return _file(path, size)


def _file(path: str, size: int | None = None) -> Weighed:
    return Entry("file", os.fsencode(path), size), 1


def opened(path: str) -> Any:
    """A table or shard, open for reading and seeking."""
    if not is_url(path) or os.path.exists(path):
        return open(path, "rb")
    fs, inner = file_system(path)
    return tried(path, lambda: fs.open(inner, "rb", block_size=_BLOCK))


def is_table(path: str) -> bool:
    """Whether a name is that of a table."""
    return path.partition("::")[0].lower().endswith((*_LINES, *_TABLES))


def _check_field(path: str, column: str) -> None:
    """Refuse a JSONL file with rows, none of which has the field; mostly, the first one has it."""
    fields: dict[str, None] = {}
    with opened(path) as file:
        for line in file:
            try:
                row = json.loads(line.decode("utf-8-sig", "surrogateescape"))
            except (ValueError, RecursionError):  # each an error, once it is looked at
                continue
            if isinstance(row, dict):
                if column in row:
                    return
                fields.update(dict.fromkeys(row))
    if fields:
        raise ValueError(f"column is {column!r}, and {path} has {', '.join(fields)}; expected one of these")


def _lines(path: str, column: str) -> Iterator[Weighed]:
    _check_field(path, column)
    start = place = 0
    first = number = 1
    with opened(path) as file:
        for number, line in enumerate(file, 2):  # of the line behind it
            place += len(line)
            if number - first == PART:
                yield Entry("jsonl", os.fsencode(path), None, start, place, first), PART
                start, first = place, number
    if place > start:
        yield Entry("jsonl", os.fsencode(path), None, start, place, first), number - first


def _rows(path: str, column: str) -> Iterator[Weighed]:
    with opened(path) as file:
        try:
            table = parquet_file(path, file)
        except ValueError:  # one error, once it is looked at
            yield Entry("parquet", os.fsencode(path), None, 0, 1, 1), 1
            return
        with table:
            names = table.schema_arrow.names
            if column not in names:
                raise ValueError(f"column is {column!r}, and {path} has {', '.join(names)}; expected one of these")
            counts = [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]
    begin = 0
    for count in counts:  # a range lies in one group, since a group is read from its beginning
        for start in range(begin, begin + count, PART):
            stop = min(start + PART, begin + count)
            yield Entry("parquet", os.fsencode(path), None, start, stop, start + 1), stop - start
        begin += count


def parquet_file(path: str, file: Any) -> Any:
    """An open Parquet file.

    Raises:
        ValueError: it is none, or is broken.
    """
    pa = arrow()
    try:
        return pa.parquet.ParquetFile(file, pre_buffer=False, buffer_size=1 << 16)
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:  # of its reading, where others are of its content
            raise
        raise ValueError(f"{path}: broken, or no Parquet file ({' '.join(str(error).split())})") from None
