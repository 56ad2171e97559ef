"""`mrope scan`: what a data set of any size costs and what in it will break, told from headers alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mrope.cli.errors import one_line
from mrope.cli.options import AsJson
from mrope.cli.output import print_json, print_table

if TYPE_CHECKING:
    from mrope.data import Catalogue

Engine = Annotated[Literal["local", "ray"], typer.Option(help="local: processes on this machine; ray: a cluster.")]
Workers = Annotated[int | None, typer.Option(metavar="N", help="Processes of the local engine; by default one a core.")]
Address = Annotated[
    str | None, typer.Option(metavar="A", help="Of a running Ray cluster; by default one is started here.")
]
Column = Annotated[
    str | None,
    typer.Option(metavar="NAME", help='The field of a table that holds paths, or bytes of files; "image" if none.'),
]


def scan(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Folders, globs, JSONL and Parquet files, tar shards, PDFs, clips, pictures, or URLs of those.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of this scan alone; a stopped one goes on there.")],
    family: Annotated[
        str | None,
        typer.Option(metavar="F", help="Which model family (`mrope families` lists them); without one, sizes alone."),
    ] = None,
    limits: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N,N...", help="Most tokens of an item, each for all; by default the family's own limits."
        ),
    ] = None,
    engine: Engine = "local",
    workers: Workers = None,
    address: Address = None,
    column: Column = None,
    hashes: Annotated[
        bool, typer.Option("--hash", help="Read every byte too, to find items that are there several times.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Write size, grid, tokens and faults of each picture, page and clip as Parquet, and a report of all.

    What cannot be read is a row with an error, and stops nothing. A scan that was stopped goes on when the same command
    is given again.

    Example: mrope scan photos 'shards/{000..137}.tar' s3://bucket/pages --family qwen3-vl --limits 1280,4096 --out scan
    """
    from mrope.data import write_scan

    bar = "bar" if sys.stderr.isatty() else "none"
    with kept("scan", out, "nothing was looked at"):
        found = write_scan(
            sources,
            out,
            family=family,
            limits=_limits(limits or []),
            engine=engine,
            workers=workers,
            address=address,
            column=column,
            hash=hashes,
            progress=bar,
        )
    _print_summary(found, json)


def _limits(given: list[str]) -> list[int]:
    words = [word for one in given for word in one.replace(",", " ").split()]
    wrong = next((word for word in words if not word.isdecimal()), None)
    if wrong is not None or (given and not words):
        raise ValueError(f"--limits is {wrong or given[0]!r}; expected numbers of tokens, such as 1280,4096")
    return [int(word) for word in words]


@contextmanager
def kept(command: str, out: Path, nothing: str) -> Iterator[None]:
    """Let a command that is stopped, or cannot write, say what its folder holds, or that there is `nothing`."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"mrope {command}: stopped{_state(out) or f'; {nothing}'}", file=sys.stderr)
        raise typer.Exit(130) from None
    except OSError as error:
        raise OSError(f"{one_line(error)}{_state(out)}") from error


def _state(out: Path) -> str:
    from mrope.data import scan_state

    done, parts = scan_state(out)
    return f"; {out} holds {done} of {parts} parts, and the same command goes on from there" if parts else ""


def _print_summary(found: Catalogue, json: bool) -> None:
    totals = found.summary()
    if json:
        print_json({"out": str(found.out), **{name: found.settings[name] for name in ("family", "limits")}, **totals})
        return
    print(f"{totals['items']:,} items, {totals['errors']:,} of them with errors")
    rows = [(limit, f"{totals['planned'][limit]:,}", f"{totals['tokens'][limit]:,}") for limit in found.limits]
    if rows:
        print_table(("most tokens", "items with a plan", "tokens"), rows)
    for what in ("reasons", "flags"):
        for word, count in totals[what].items():
            print(f"{word}: {count:,}")
    print_left_out(totals)
    print(f"wrote {found.out / 'report.html'}")


def print_left_out(totals: dict[str, Any]) -> None:
    """Say what lies in folders and was not looked at."""
    if left := totals["left_out"]:
        words = ", ".join(f"{count:,} {ending}" for ending, count in left.items())
        print(f"not looked at: {words} in folders; name or glob them")
