"""A scan from its sources to its folder, by one engine or another."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from mrope.checks import one_of, whole
from mrope.families import Family, family_names
from mrope.families import family as family_of

from . import store
from .store import Catalogue

if TYPE_CHECKING:
    from .sources import Entry
else:
    Entry = Any

Engine = Literal["local", "ray"]
Progress = Literal["none", "bar"]
FORMAT = 1
"""Of the folder; a scan goes on in a folder of its own format alone."""


def write_scan(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    family: Family | str | None = None,
    limits: Sequence[int] = (),
    engine: Engine = "local",
    workers: int | None = None,
    address: str | None = None,
    column: str | None = None,
    hash: bool = False,  # noqa: A002 - as the option
    progress: Progress = "none",
) -> Catalogue:
    """Look at every picture, page and clip that the sources name, by their headers, and write a row of each.

    `store.py` tells what is in the folder, `rows.py` which columns there are; a report is written beside them. The rows
    do not depend on the engine and the number of workers. A scan that was stopped goes on where it was when it is
    called again with the same settings; one that is done is returned as it is. What cannot be read is a row with an
    error.

    Args:
        sources: folders, globs, braces, JSONL and Parquet files, tar shards, PDFs, clips and pictures, as in
            `mrope.vision.scan`; or URLs of those that fsspec opens (extra `scale`): "s3://bucket/folder". A field of a
            table holds a path, relative to the table, a list of them, or, of Parquet, the bytes of a file too. Shards
            and tables that lie in folders are counted, and read where they or globs of them are named. Clips
            are told by how their names end. Clips, PDFs and WebP pictures that lie elsewhere are fetched whole, of
            other pictures the headers.
        out: a folder of this scan alone, made if it is missing; on a file system that all workers share.
        family: for whom items are planned, a recorded one or its name; None writes sizes without tokens.
        limits: most tokens of a picture or clip, each of them for all items; by default the family's own limits.
            A limit below the least of the family's clips lowers that too.
        engine: "local" for processes on this machine, "ray" for a cluster (extra `scale`).
        workers: processes of the local engine, by default one for each core that this process may use.
        address: of a running Ray cluster; by default one is started on this machine, and stopped at the end.
        column: of tables, the field with pictures; by default "image".
        hash: also read every byte, and write its SHA-256.
        progress: "bar" shows one on stderr.

    Raises:
        OSError: a source does not exist (nothing is written then), or rows cannot be written.
        ValueError: a source without pictures, a table without that column, a column and no table, settings that
            contradict each other or the family, or an `out` with other files or other settings.
        ImportError: a package is not installed.

    >>> import tempfile
    >>> from mrope.data import asset, write_scan
    >>> with tempfile.TemporaryDirectory() as out:
    ...     write_scan(asset("page.png"), out, family="qwen3-vl", limits=(256, 1024)).summary()["tokens"]
    {'256': 247, '1024': 988}
    """
    settings = settings_of(sources, family, limits, column, hash)
    store.arrow()
    parts = listed(out, settings)
    return carry_out(out, settings, parts, engine=engine, workers=workers, address=address, progress=progress)


def listed(out: Any, settings: store.Settings) -> Iterable[Sequence[Entry]]:
    """The parts of the sources, listed as they are taken; sources are checked at once, unless `out` lists them already.

    Raises:
        OSError, ValueError: as `write_scan`.
    """
    from .sources import check_sources, parts_of

    if not (folder_of(out) / "parts").is_dir():
        check_sources(settings["sources"], settings["column"])
    return parts_of(settings["sources"], settings["column"])


def carry_out(
    out: str | os.PathLike[str],
    settings: store.Settings,
    parts: Iterable[Sequence[Entry]],
    *,
    engine: Engine,
    workers: int | None,
    address: str | None,
    progress: Progress,
) -> Catalogue:
    """Begin the folder, or go on in it: list its parts, do each, count all, and write the report."""
    one_of("engine", engine, get_args(Engine))
    one_of("progress", progress, get_args(Progress))
    if address is not None and engine != "ray":
        raise ValueError(f"address is {address!r}, and engine is {engine!r}; expected engine 'ray' with an address")
    if workers is not None and engine == "ray":
        raise ValueError(f"workers is {workers}, and engine is 'ray', which asks its cluster; drop workers")
    workers = _cores() if workers is None else whole("workers", workers, 1)
    folder = folder_of(out)
    store.begin(folder, settings)
    with store.alone(folder):
        store.write_parts(folder, parts)
        numbers = store.pending(folder)
        with _bar(store.count_parts(folder), len(numbers), shown=progress == "bar") as on_part:
            if engine == "ray" and numbers:
                from .on_ray import run_ray

                run_ray(folder, numbers, address, on_part)
            elif numbers:
                from .local import run_local

                run_local(folder, numbers, workers, on_part)
        store.finish(folder)
        if not (folder / "report.html").exists():
            from .report import render_report

            html, markdown = render_report(Catalogue(folder))
            store.write_text(folder / "report.md", markdown)
            store.write_text(folder / "report.html", html)
    return Catalogue(folder)


def folder_of(out: Any) -> Path:
    """The folder to write, or one line that says what came instead."""
    if not isinstance(out, (str, os.PathLike)):
        raise TypeError(f"out is {out!r:.60}; expected the path of a folder")
    if "://" in os.fspath(out):
        raise ValueError(f"out is {out}; expected a folder of a file system, which all workers share")
    return Path(out)


def settings_of(
    sources: Any, family: Family | str | None, limits: Sequence[int], column: str | None, hashed: bool
) -> dict[str, Any]:
    from mrope import __version__
    from mrope.vision import plan_sizes, unbraced

    from .remote import is_url
    from .sources import is_table

    if not isinstance(sources, (str, os.PathLike, Iterable)):
        raise TypeError(f"sources is {sources!r:.60}; expected a path or URL, or a list of them")
    listed = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    if not listed:
        raise ValueError("sources is empty; expected at least one folder, glob, table, shard, file or URL")
    for number, one in enumerate(listed):
        if not isinstance(one, (str, os.PathLike)):
            raise TypeError(f"source {number} is {one!r:.60}; expected a path or URL")
    names = [os.fsdecode(one) for one in listed]
    if not isinstance(hashed, bool):
        raise TypeError(f"hash is {hashed!r}; expected True or False")
    if column is not None and not isinstance(column, str):
        raise TypeError(f"column is {column!r}; expected the name of a field")
    if column is not None and not any(is_table(path) or has_magic(path) for name in names for path in unbraced(name)):
        raise ValueError(f"column is {column!r}, and no JSONL or Parquet file came; drop it")
    if not isinstance(limits, Iterable) or isinstance(limits, str):
        raise TypeError(f"limits is {limits!r:.60}; expected a list of whole numbers, such as [1024]")
    wanted = [whole("limits", limit, 1) for limit in limits]
    if len(set(wanted)) < len(wanted):
        raise ValueError(f"limits are {wanted}; expected each once")
    name = family.name if isinstance(family, Family) else family
    if name is None:
        if wanted:
            raise ValueError(f"limits are {wanted} and family is None; expected a family with limits")
    else:
        record = family_of(name)
        if isinstance(family, Family) and family != record:
            raise ValueError(f"family is a changed {name}; expected a recorded one, of {', '.join(family_names())}")
        for limit in wanted:
            try:
                plan_sizes([], record, max_tokens=limit)
            except ValueError:
                least = record.image_tokens[0] if record.image_tokens else 1
                raise ValueError(f"limits has {limit}; expected at least {least}, the least of {name}") from None
    local = [one for one in names if not is_url(one)]
    return {
        "format": FORMAT,
        "sources": names,
        "folder": None if all(map(os.path.isabs, local)) else os.getcwd(),
        "column": "image" if column is None else column,
        "family": name,
        "limits": wanted,
        "hash": hashed,
        "patch": None if name is None else family_of(name).patch,
        "factor": None if name is None else family_of(name).factor,
        "version": __version__,
        "done": False,
    }


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _bar(parts: int, left: int, *, shown: bool) -> Iterator[Callable[[int, int], None]]:
    """A function to call with the number and the rows of each part that is done; a bar on stderr follows it."""
    if not shown:
        yield lambda number, rows: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task, items = bars.add_task("parts", total=parts, completed=parts - left), 0

        def on_part(number: int, rows: int) -> None:
            nonlocal items
            items += rows
            bars.update(task, advance=1, description=f"parts, {items:,} items")

        yield on_part
