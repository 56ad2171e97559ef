"""Options that several commands share, and the library's words for them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

FamilyName = Annotated[
    str, typer.Option("--family", metavar="F", help="Which model family; `mrope families` lists them.")
]
MinTokens = Annotated[
    int | None, typer.Option(metavar="N", help="Fewest tokens a picture, or clip; by default the family's own limit.")
]
MaxTokens = Annotated[
    int | None, typer.Option(metavar="N", help="Most tokens a picture, or clip; by default the family's own limit.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

_ARGUMENT = re.compile(r"\b(conflict|min_tokens|max_tokens|budget)=\"?(\w+)\"?")
_ADVICE = re.compile(r"\bgive (min_tokens|max_tokens|fps)\b")


def in_options(message: str) -> str:
    """What the library advises, as options: `conflict="pad"` becomes "--conflict pad"."""
    message = _ARGUMENT.sub(lambda found: f"--{found[1].replace('_', '-')} {found[2]}", message)
    return _ADVICE.sub(lambda found: f"give --{found[1].replace('_', '-')}", message)


@contextmanager
def told_in_options() -> Iterator[None]:
    """Let what the library refuses inside be told in options."""
    try:
        yield
    except ValueError as error:
        raise ValueError(in_options(str(error))) from error
