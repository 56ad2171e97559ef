"""`mrope export`: pictures, pages and clips as patches in WebDataset shards, which training only has to read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mrope.cli.options import AsJson
from mrope.cli.output import print_json
from mrope.cli.scan import Address, Column, Engine, Workers, kept, print_left_out

if TYPE_CHECKING:
    from mrope.data import Catalogue

NAMED = 10
"""How many items that could not be exported are called by name."""


def export(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE...|SCAN", help="What `mrope scan` takes, or the folder that it wrote."),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of this export alone; a stopped one goes on there.")],
    family: Annotated[
        str | None,
        typer.Option(metavar="F", help="Which model family (`mrope families` lists them); by default the scan's."),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Most tokens of an item; by default the scan's limit, or the family's own."),
    ] = None,
    engine: Engine = "local",
    workers: Workers = None,
    address: Address = None,
    column: Column = None,
    json: AsJson = False,
) -> None:
    """Cut every picture, page and clip into patches of bytes, and write them with their plans and labels as tars.

    Labels are the other fields of a table's row, or the json, txt and cls of the same key in a shard. What cannot be
    decoded is counted, and is a row with an error. An export that was stopped goes on when the same command is given
    again. DIR holds what a scan does, too: `mrope pack DIR` packs its items.

    Example: mrope export train.jsonl 'shards/{000..137}.tar' --family qwen3-vl --max-tokens 1280 --out patches
    """
    from mrope.data import write_export

    bar = "bar" if sys.stderr.isatty() else "none"
    with kept("export", out, "nothing was exported"):
        found = write_export(
            sources,
            out,
            family=family,
            max_tokens=max_tokens,
            engine=engine,
            workers=workers,
            address=address,
            column=column,
            progress=bar,
        )
    _print_summary(found, json)


def _print_summary(found: Catalogue, json: bool) -> None:
    totals, (limit,) = found.summary(), found.limits
    shards = sorted((found.out / "shards").glob("*.tar"))
    size, exported = sum(shard.stat().st_size for shard in shards), totals["items"] - totals["errors"]
    if json:
        facts = {"family": found.settings["family"], "limit": limit, "exported": exported}
        print_json({"out": str(found.out), **facts, "shards": len(shards), "bytes": size, **totals})
        return
    print(f"{exported:,} of {totals['items']:,} items exported, {totals['tokens'][limit]:,} tokens at limit {limit}")
    for reason, count in totals["reasons"].items():
        print(f"not exported: {count:,} {reason}")
    for source, error in _unexported(found):
        print(f"  {source}: {error}")
    if (more := totals["errors"] - NAMED) > 0:
        print(f"  and {more:,} more; {found.out / 'report.html'} has them by reason")
    print_left_out(totals)
    print(f"wrote {len(shards)} shards, {size / 1e6:,.1f} MB, in {found.out / 'shards'}")


def _unexported(found: Catalogue) -> list[tuple[str, str]]:
    """The first items with errors, and those."""
    named: list[tuple[str, str]] = []
    for batch in found.rows(["source", "error"]):
        wrong = batch.filter(batch["error"].is_valid()).slice(0, NAMED - len(named)).to_pylist()
        named += [(row["source"], row["error"]) for row in wrong]
        if len(named) == NAMED:
            break
    return named
