"""Single items of what is listed: files, members of shards, and what rows of tables name or hold."""

from __future__ import annotations

import json
import os
import posixpath
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

from mrope.vision import PICTURES, header_of, row_paths, shard_members

from .remote import RemoteFile, UnreachableError, file_system, is_url, tried
from .sources import CLIPS, Entry, opened, parquet_file
from .store import Settings, arrow

Kind: TypeAlias = Literal["picture", "page", "clip"]
File: TypeAlias = str | bytes
"""A path, or the bytes of a file."""
_ROWS = 16
"""Rows of a Parquet file that are in memory at a time; they may hold whole pictures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A picture, a clip, or a PDF with its pages, that is not read yet.

    Args:
        source: how it is called.
        kind: "page" stands for a PDF.
        size: bytes, None if unknown so far.
        header: a file that says as much as the whole one of size and orientation; raises what is wrong with it.
        whole: the whole file; raises the same.
        remote: whether reading it is waiting for another machine, so that several should be read at once.
    """

    source: str
    kind: Kind
    size: Callable[[], int | None]
    header: Callable[[], File]
    whole: Callable[[], File]
    remote: bool = False


def items_of(entry: Entry, settings: Settings) -> Iterator[Item]:
    """The items of an entry, in order. Each is read, if at all, before the next one is asked for, but remote ones.

    Raises:
        UnreachableError: the file system of a table or shard does not answer.
    """
    if entry.what == "left":
        return
    path = os.fsdecode(entry.path)
    place = path if settings["folder"] is None or is_url(path) else os.path.join(settings["folder"], path)
    if entry.what == "file":
        yield _file(path, place, entry.size)
        return
    found = {"tar": _members, "jsonl": _of_lines, "parquet": _of_rows}[entry.what](path, place, entry, settings)
    try:
        yield from found
    except UnreachableError:
        raise
    except (OSError, ValueError, ImportError) as error:
        yield failing(path, error)


def failing(source: str, error: Exception) -> Item:
    """An item that cannot be read."""

    def fail() -> Any:
        raise error

    return Item(source=source, kind=_kind(source), size=lambda: None, header=fail, whole=fail)


def _kind(name: str) -> Kind:
    name = name.partition("::")[0].lower() if is_url(name) else name.lower()
    return "clip" if name.endswith(CLIPS) else "page" if name.endswith(".pdf") else "picture"


def _file(source: str, place: str, size: int | None = None) -> Item:
    if not is_url(place) or os.path.exists(place):
        return Item(
            source=source,
            kind=_kind(source),
            size=lambda: _size(place),
            header=lambda: place,
            whole=lambda: place,
        )
    known = [size]  # until it is asked for

    def told() -> int | None:
        if known[0] is None:
            fs, path = file_system(place)
            known[0] = tried(place, lambda: fs.size(path))
        return known[0]

    def whole() -> bytes:
        fs, path = file_system(place)
        return tried(place, lambda: fs.cat_file(path))

    def header() -> bytes:
        length = told()
        if length is None:  # of HTTP, where the server does not say it
            return whole()
        fs, path = file_system(place)
        file = RemoteFile(place, fs, path)
        try:
            return header_of(file, 0, length)
        finally:
            file.close()

    return Item(source=source, kind=_kind(source), size=told, header=header, whole=whole, remote=True)


def _size(path: str) -> int:
    """Bytes of a file; what never ends, or waits for a writer, is none."""
    facts = os.stat(path)
    if not stat.S_ISREG(facts.st_mode) and not stat.S_ISDIR(facts.st_mode):
        raise ValueError("not a picture, but a pipe, socket or device")
    return facts.st_size


def _members(path: str, place: str, entry: Entry, settings: Settings) -> Iterator[Item]:
    count, end = 0, None
    with opened(place) as file:
        if path.lower().endswith(".tar"):
            end = file.seek(0, os.SEEK_END)
            file.seek(0)
        for shard, member in shard_members(path, file):
            if not member.name.lower().endswith((*PICTURES, *CLIPS, ".pdf")):
                continue
            count += 1
            name = f"{path}/{member.name}"
            if end is not None and member.offset_data + member.size > end:
                yield failing(name, ValueError("the shard ends inside of it"))
                continue
            whole = partial(_range_of, shard.fileobj, member.offset_data, member.size)
            yield Item(
                source=name,
                kind=_kind(member.name),
                size=partial(int, member.size),
                header=partial(header_of, shard.fileobj, member.offset_data, member.size),
                whole=whole,
            )
    if not count:
        raise ValueError(f"a shard without pictures, pages and clips; expected names that end in {' '.join(PICTURES)}")


def _range_of(file: Any, start: int, size: int) -> bytes:
    file.seek(start)
    data = file.read(size)
    if len(data) < size:
        raise ValueError("the shard ends inside of it")
    return data


def _beside(table: str, path: str) -> str:
    """A path in a table, which counts from the table's folder."""
    if is_url(path):
        return path
    if not is_url(table):
        return os.path.join(os.path.dirname(table), path)
    address, chained, rest = table.partition("::")
    protocol, _, place = address.partition("://")
    return f"{protocol}://{posixpath.normpath(posixpath.join(posixpath.dirname(place), path))}{chained}{rest}"


def _of_lines(path: str, place: str, entry: Entry, settings: Settings) -> Iterator[Item]:
    start, stop, number = entry.start, entry.stop, entry.first
    with opened(place) as file:
        file.seek(start)
        while start < stop:
            line = file.readline()
            if not line:
                raise ValueError(f"the table ends before line {number}; it was longer when it was listed")
            start += len(line)
            name, number = f"{path}:{number}", number + 1
            text = line.decode("utf-8-sig" if start == len(line) else "utf-8", "surrogateescape")
            if not text.strip():
                continue
            try:
                named = row_paths(json.loads(text), settings["column"])
            except (ValueError, RecursionError) as error:
                yield failing(name, error if isinstance(error, ValueError) else ValueError("JSON that is too deep"))
                continue
            yield from (_file(_beside(path, one), _beside(place, one)) for one in named)


def _of_rows(path: str, place: str, entry: Entry, settings: Settings) -> Iterator[Item]:
    column, start, stop = settings["column"], entry.start, entry.stop
    pa = arrow()
    with opened(place) as file, parquet_file(path, file) as table:
        begins, groups, at = [], [], 0
        for group in range(table.num_row_groups):
            begins.append(at)
            at += table.metadata.row_group(group).num_rows
            if begins[-1] < stop and at > start:
                groups.append(group)
        if at < stop:
            raise ValueError(f"the table ends at row {at}; it was longer when it was listed")
        place_now = begins[groups[0]]
        try:
            for batch in table.iter_batches(_ROWS, row_groups=groups, columns=[column], use_threads=False):
                if place_now + len(batch) > start:
                    for offset, value in enumerate(batch.column(0)):
                        if start <= place_now + offset < stop:
                            name = f"{path}:{place_now + offset + 1}"
                            yield from _of_value(value.as_py(), name, path, place, column)
                place_now += len(batch)
                if place_now >= stop:
                    return
        except pa.ArrowException as error:
            raise ValueError(f"broken table ({' '.join(str(error).split())})") from None


def _of_value(value: Any, name: str, table: str, place: str, column: str) -> Iterator[Item]:
    """The pictures of a field: a path, bytes, a struct of both as Hugging Face has it, or a list of those."""
    if isinstance(value, list):
        for number, one in enumerate(value, 1):
            yield from _of_value(one, f"{name}, {number}", table, place, column)
        return
    data, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, value)
    if isinstance(data, bytes):
        kind = "page" if data.startswith(b"%PDF-") else _kind(path if isinstance(path, str) else "")
        yield Item(source=name, kind=kind, size=lambda: len(data), header=lambda: data, whole=lambda: data)
    elif isinstance(path, str) and path:
        yield _file(_beside(table, path), _beside(place, path))
    else:
        error = f"column {column!r} is {value!r:.60}; expected a path, bytes, a struct of bytes and path, or a list"
        yield failing(name, ValueError(error))
