"""Printing: a table for people, JSON for programs, both on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


def print_json(value: object) -> None:
    """Print `value` as one JSON document."""
    print(json.dumps(value))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print `rows` under `columns`; where the terminal is too narrow, each row as a block of lines. A pipe is never."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))  # as Text: a file name with brackets is no markup
    wide = Console(width=10_000)
    if not sys.stdout.isatty() or wide.measure(table).maximum <= Console().width:
        wide.print(table)
        return
    for first, *others in rows:
        print(first)
        for column, cell in zip(columns[1:], others, strict=True):
            print(f"  {column}: {cell}")


def progress() -> Progress:
    """Progress bars on stderr, so that stdout holds results alone."""
    from rich.console import Console
    from rich.progress import Progress

    return Progress(console=Console(stderr=True))
