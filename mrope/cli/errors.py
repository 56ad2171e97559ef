"""What the library refuses becomes one line on stderr and exit code 2, for every command in one place."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

REFUSALS = (ValueError, TypeError, OSError, ImportError, MemoryError, OverflowError)


class OneLineErrors(TyperGroup):
    """A group of commands whose refusals are told in one line each, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader of our output has left (`mrope ... | head`): typer ends quietly
        except REFUSALS as error:
            typer.echo(f"{ctx.command_path} {ctx.invoked_subcommand or ''}".rstrip() + f": {one_line(error)}", err=True)
            raise typer.Exit(2) from None


def one_line(error: Exception) -> str:
    """The message of `error` on one line; an `OSError` from the system reads "PATH: No such file or directory"."""
    message = str(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        message = f"{error.filename or '(no name)'}: {error.strerror}"
    return " ".join(message.split()) or type(error).__name__
