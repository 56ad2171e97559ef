"""What stands beside a picture in its source: the row of a table, or the words of a shard with the same key."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from mrope.vision import BROKEN_SHARD, row_paths, shard_members

from ..scanning.items import Item, items_of
from ..scanning.remote import is_url
from ..scanning.sources import Entry, opened, parquet_file
from ..scanning.store import Settings, arrow

WORDS = ("json", "txt", "cls")
"""What of a WebDataset shard goes along with the picture of the same key."""


def with_labels(entry: Entry, settings: Settings) -> Iterator[tuple[Item, Any]]:
    """The items of an entry, in order, each with what stands beside it.

    That is of a table the other fields of the row, of a Parquet file but those of bytes, of a tar shard {"json": ...,
    "txt": ..., "cls": ...} of what there is of these before the place where it may be broken, and else None; or the
    ValueError that says why it cannot be read.
    """
    items = items_of(entry, settings)
    if entry.what == "file":
        yield from ((item, None) for item in items)
    elif entry.what == "tar":
        beside: dict[str, dict[str, Any] | ValueError] | None = None
        for item in items:
            if beside is None:
                beside = _beside(entry, settings)
            yield item, beside.get(_key(item.source)[0])
    else:
        rows = (_of_lines if entry.what == "jsonl" else _of_rows)(entry, settings)
        labels = _or_error(rows)
        yield from ((item, next(labels, None)) for item in items)


def _or_error(rows: Iterator[Any]) -> Iterator[Any]:
    """The rows; where one cannot be read, the error for it and all that follow."""
    try:
        yield from rows
    except (ValueError, OSError) as error:
        while True:
            yield ValueError(f"label cannot be read ({' '.join(str(error).split())})")


def _place(entry: Entry, settings: Settings) -> str:
    path = os.fsdecode(entry.path)
    return path if settings["folder"] is None or is_url(path) else os.path.join(settings["folder"], path)


def _key(name: str) -> tuple[str, str]:
    """Key and extension, as WebDataset divides a name."""
    folder, slash, base = name.rpartition("/")
    key, _, extension = base.partition(".")
    return f"{folder}{slash}{key}", extension.lower()


def _beside(entry: Entry, settings: Settings) -> dict[str, dict[str, Any] | ValueError]:
    """Key -> extension -> words, or what is wrong with these, of a shard as far as it can be read."""
    path, found = os.fsdecode(entry.path), dict[str, dict[str, Any] | ValueError]()
    with opened(_place(entry, settings)) as file:
        try:
            for shard, member in shard_members(path, file):
                key, extension = _key(f"{path}/{member.name}")
                if extension in WORDS:
                    words = shard.extractfile(member)
                    assert words is not None  # of a regular file
                    data = words.read()
                    labels = found.setdefault(key, {})
                    try:
                        if isinstance(labels, dict):
                            labels[extension] = json.loads(data) if extension == "json" else data.decode()
                    except (ValueError, RecursionError):
                        kind = "JSON" if extension == "json" else "UTF-8"
                        found[key] = ValueError(f"label {member.name} is no {kind}; mend it, or leave it out")
        except (ValueError, OSError, RuntimeError, *BROKEN_SHARD) as error:  # the scan tells where it is broken
            if getattr(error, "errno", None) is not None:  # of its reading, where others are of its content
                raise
    return found


def _of_lines(entry: Entry, settings: Settings) -> Iterator[Any]:
    """The other fields of each item of a range of a JSONL file."""
    with opened(_place(entry, settings)) as file:
        file.seek(entry.start)
        at = entry.start
        while at < entry.stop and (line := file.readline()):
            at += len(line)
            text = line.decode("utf-8-sig" if at == len(line) else "utf-8", "surrogateescape")
            if not text.strip():
                continue
            try:
                row = json.loads(text)
                count = len(row_paths(row, settings["column"]))
            except (ValueError, RecursionError):
                row, count = {}, 1
            beside = {name: value for name, value in row.items() if name != settings["column"]}
            yield from [beside or None] * count


def _of_rows(entry: Entry, settings: Settings) -> Iterator[Any]:
    """The other fields of each item of a range of a Parquet file."""
    pa, column = arrow(), settings["column"]
    place = _place(entry, settings)
    with opened(place) as file, parquet_file(os.fsdecode(entry.path), file) as table:
        schema = table.schema_arrow
        beside = [field.name for field in schema if field.name != column and not _is_bytes(pa, field.type)]
        listed = _is_list(pa, schema.field(column).type)
        at = 0
        for group in range(table.num_row_groups):
            count = table.metadata.row_group(group).num_rows
            first, last = max(entry.start - at, 0), min(entry.stop - at, count)
            if first < last:
                read = table.read_row_group(group, columns=[*beside, *([column] if listed else ())], use_threads=False)
                for row in read.slice(first, last - first).to_pylist() if read.num_columns else [{}] * (last - first):
                    items = _count(row.pop(column)) if listed else 1
                    yield from [row or None] * items
            at += count


def _is_list(pa: Any, kind: Any) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _is_bytes(pa: Any, kind: Any) -> bool:
    """Whether a field holds bytes, such as another picture."""
    if _is_list(pa, kind):
        return _is_bytes(pa, kind.value_type)
    if pa.types.is_struct(kind):
        return any(_is_bytes(pa, field.type) for field in kind)
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)


def _count(value: Any) -> int:
    """How many items the field of a picture holds."""
    return sum(map(_count, value)) if isinstance(value, list) else 1
