"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

FamilyName = Annotated[
    str, typer.Option("--family", metavar="F", help="Which model family; `mrope families` lists them.")
]
MinTokens = Annotated[
    int | None, typer.Option(metavar="N", help="Fewest tokens a picture; by default the family's own limit.")
]
MaxTokens = Annotated[
    int | None, typer.Option(metavar="N", help="Most tokens a picture; by default the family's own limit.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
