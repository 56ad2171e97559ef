"""The report of a run: one HTML file that needs nothing else."""

from __future__ import annotations

from html import escape
from pathlib import Path

from mrope.probes.spatial.records import read_records, write_whole
from mrope.probes.spatial.summary import summarise
from mrope.probes.spatial.table import summary_table


def write_page(folder: Path) -> Path:
    """Write ``report.html`` of the run in `folder`."""
    path = folder / "report.html"
    write_whole(
        path, f"<!doctype html><title>mrope</title><pre>{escape(summary_table(summarise(read_records(folder))))}</pre>"
    )
    return path
