"""`mrope positions`: the (t, h, w) of each token of a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mrope.cli.options import AsJson, FamilyName
from mrope.cli.output import print_json, print_table

if TYPE_CHECKING:
    from torch import Tensor


def positions(
    spans: Annotated[
        list[str],
        typer.Argument(
            metavar="SPAN ...",
            help="text:N, image:TxHxW, video:TxHxW, video:TxHxW@SECONDS (seconds per temporal step, where the family "
            "scales time) or video:TxHxW+K (K text tokens before each frame, where it stamps time); grids in patches.",
        ),
    ],
    family: FamilyName,
    json: AsJson = False,
) -> None:
    """Print the positions of a prompt, given as its spans in order, and the decode offset."""
    import mrope

    record = mrope.family(family)
    whole = record.positions(spans)
    if json:
        print_json({"length": whole.length, "ids": whole.ids.tolist(), "next": whole.next, "offset": whole.offset})
        return
    rows, start = [], 0
    for span in spans:
        part = record.layout([mrope.parse_span(span)], start)
        rows.append((span, part.length, _id(part.ids[:, 0]), _id(part.ids[:, -1])))
        start = part.next
    print_table(("span", "tokens", "first (t, h, w)", "last (t, h, w)"), rows)
    print(f"length {whole.length}, next {whole.next}, offset {whole.offset}")


def _id(column: Tensor) -> str:
    return ", ".join(map(str, column.tolist()))
