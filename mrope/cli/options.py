"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

FamilyName = Annotated[
    str, typer.Option("--family", metavar="F", help="Which model family; `mrope families` lists them.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
