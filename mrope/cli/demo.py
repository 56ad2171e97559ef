"""`mrope demo`: pictures to their places, the reader to its exam, and a report of both."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from mrope.cli.output import print_table, progress

T = TypeVar("T")


def demo(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE ...]", help="Pictures or clips of your own, instead of those that ship."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for report.html.")] = Path("out"),
    device: Annotated[str, typer.Option(help="auto, cpu or cuda: where the reader computes.")] = "auto",
    family: Annotated[str, typer.Option(metavar="F", help="For which family pictures are cut.")] = "qwen2.5-vl",
    seed: Annotated[int, typer.Option(help="Of the glyph grids that the reader is asked about.")] = 0,
) -> None:
    """Show pictures in the position space, test the reader on grids of many sizes, and write report.html.

    For files of your own there are plans, patches, token grids and positions; the reader reads glyph grids only.
    """
    from mrope.probes import run_demo

    run_demo(files or [], out=out, device=device, family=family, seed=seed, screen=Terminal())


class Terminal:
    """Progress bars for people who watch, plain lines for logs."""

    def track(self, items: Iterable[T], what: str) -> Iterator[T]:
        """Go through `items` under a progress bar on stderr; where nobody watches, after one plain line."""
        if not sys.stderr.isatty():
            print(f"{what} ...", flush=True)
            yield from items
            return
        with progress() as bars:
            yield from bars.track(list(items), description=what)

    def say(self, words: str) -> None:
        """Print a line."""
        print(words, flush=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print a table under an empty line."""
        print()
        print_table(columns, rows)
