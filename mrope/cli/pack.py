"""`mrope pack`: the items of a scan in rows of one length, none of them cut."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from mrope.cli.options import AsJson
from mrope.cli.output import print_json

NAMED = 10
"""How many items that do not fit are called by name."""


def pack(
    scan: Annotated[Path, typer.Argument(metavar="SCAN", help="A folder that `mrope scan` wrote.")],
    row_tokens: Annotated[int, typer.Option(metavar="N", help="Most tokens of a row.")],
    limit: Annotated[
        str | None,
        typer.Option(metavar="L", help="Whose tokens count, of the scan's limits; own is the family's own."),
    ] = None,
    algo: Annotated[
        Literal["best-fit", "first-fit", "next-fit"],
        typer.Option(help="best-fit makes the fewest rows; first-fit and next-fit take items in their order."),
    ] = "best-fit",
    overhead: Annotated[
        int, typer.Option(metavar="K", help="Tokens that each item takes in a row beyond its own.")
    ] = 0,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the rows there, as Parquet.")] = None,
    json: AsJson = False,
) -> None:
    """Put the items of a scan into full rows, without cutting one, and say what they come to.

    The file has a line a row: its items by number, and cu_seqlens, where each begins and the last ends. What has an
    error, no tokens, or more than a row holds is in no row, and is counted.

    Example: mrope pack out/scan --row-tokens 32768 --limit 1280 --overhead 40 --out out/rows.parquet
    """
    from mrope.data import pack_scan

    found = pack_scan(scan, row_tokens, limit=limit, algo=algo, overhead=overhead)
    rows, packed = found.packed, len(found.packed.items)
    if out is not None:
        found.write(out)
    if json:
        facts = {
            "items": found.items,
            "packed": packed,
            "rows": len(rows),
            "tokens": int(rows.lengths.sum()),
            "fill": rows.fill,
            "left_out": found.left_out,
            "too_long": rows.left_out.tolist(),
        }
        print_json({"scan": str(scan), **found.settings, **facts})
        return
    print(f"{packed} of {_several(found.items, 'item')} in {_several(len(rows), 'row')} of {row_tokens} tokens")
    print(
        f"{100 * rows.fill:.2f} % full, {packed / len(rows):.1f} items a row; {algo}, limit {found.settings['limit']}"
    )
    for reason, count in found.left_out.items():
        print(f"left out: {count} {reason}")
    if len(rows.left_out):
        numbers = rows.left_out[:NAMED]
        for number, source in zip(numbers, found.sources(numbers), strict=True):
            print(f"  item {number}: {source}")
        if (more := len(rows.left_out) - NAMED) > 0:
            print(f"  and {more} more; --json lists all")
    if out is not None:
        print(f"wrote {out}")


def _several(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
