"""The command line: each command parses, calls the library and prints; none of them knows anything of its own.

A new command is a file with one function, named as the command and with the help as its docstring, and a place in
`COMMANDS`; one with subcommands is a file with a `typer.Typer` called `app`, and a place in `GROUPS`. Modules import
the library inside their functions.
"""

from __future__ import annotations

import warnings
from typing import Annotated

import typer

from mrope.cli import (
    audit,
    compare,
    demo,
    doctor,
    export,
    families,
    frequencies,
    inside,
    pack,
    parity,
    plan,
    positions,
    probe,
    read,
    reader,
    scan,
    study,
    worst_case,
)
from mrope.cli.errors import OneLineErrors

__all__ = ["app", "main"]

COMMANDS = (
    plan.plan,
    scan.scan,
    worst_case.worst_case,
    positions.positions,
    families.families,
    frequencies.frequencies,
    audit.audit,
    inside.inside,
    demo.demo,
    read.read,
    parity.parity,
    compare.compare,
    export.export,
    pack.pack,
    doctor.doctor,
)
GROUPS = {"reader": reader.app, "probe": probe.app, "study": study.app}

app = typer.Typer(
    name="mrope", cls=OneLineErrors, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
for command in COMMANDS:
    app.command()(command)
for name, group in GROUPS.items():
    app.add_typer(group, name=name)


def _print_version(asked: bool) -> bool:
    if asked:
        import mrope

        print(f"mrope {mrope.__version__}")
        raise typer.Exit
    return asked


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """One position space for text, images and video at native resolution."""


def main() -> None:
    """Run the command line; the console command `mrope` and `python -m mrope` both start here."""
    warnings.simplefilter("once", UserWarning)
    warnings.formatwarning = lambda message, *_: f"mrope: warning: {message}\n"
    app(prog_name="mrope")
