"""A respondent by one string, as a command line has it."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from mrope.probes.spatial.reply import Respondent
from mrope.probes.spatial.respondents.blind import Blind
from mrope.probes.spatial.respondents.called import CallableRespondent
from mrope.probes.spatial.respondents.messages import true_or_false
from mrope.probes.spatial.respondents.reader import ReaderRespondent
from mrope.probes.spatial.respondents.server import ServerRespondent
from mrope.probes.spatial.respondents.transformer import TransformersRespondent


def respondent(spec: str, *, blind: bool = False, **options: Any) -> Respondent:
    """Who is meant by `spec`.

    Args:
        spec: "reader", "hf:FOLDER" with a checkpoint of transformers, the address of a server up to /v1, or
            "python:MODULE:FUNCTION" with a function of a sample, or with a respondent, of a module that can be imported
            from here.
        blind: the blind twin of it, see `Blind`.
        options: those of `ReaderRespondent`, `TransformersRespondent`, `ServerRespondent` or `CallableRespondent`.

    Raises:
        ValueError: `spec` is none of these, an option is unknown, or one is missing.
        OSError, TypeError, ImportError: as the respondent itself.

    >>> respondent("reader").name
    'reader'
    """
    true_or_false("blind", blind)
    kind, _, rest = spec.partition(":")
    if spec == "reader":
        made: Respondent = _with(ReaderRespondent, spec, (), options)
    elif kind == "hf" and rest:
        made = _with(TransformersRespondent, spec, (rest,), options)
    elif kind in ("http", "https"):
        made = _with(ServerRespondent, spec, (spec,), options)
    elif kind == "python" and rest.count(":") == 1 and all(rest.split(":")):
        found = _found(*rest.split(":"))
        made = found if isinstance(found, Respondent) else _with(CallableRespondent, spec, (found,), options)
    else:
        raise ValueError(
            f"model is {spec!r}; expected reader, hf:FOLDER, http://HOST:PORT/v1 or python:MODULE:FUNCTION"
        )
    return Blind(made) if blind else made


def _with(make: Callable[..., Any], spec: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The respondent, or one line that says which option it does not know or lacks."""
    known = inspect.signature(make).parameters
    first = list(known)[len(arguments) :]
    if unknown := sorted(set(options) - set(first)):
        raise ValueError(f"{unknown[0]} is no option of {spec!r}; expected one of {', '.join([*first, 'blind'])}")
    missing = [name for name in first if known[name].default is inspect.Parameter.empty and name not in options]
    if missing:
        raise ValueError(f"{missing[0]} is missing for {spec!r}; expected it among the options")
    return make(*arguments, **options)


def _found(module: str, name: str) -> Any:
    """What `module` calls `name`; modules of the current folder are found, too."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        holder = importlib.import_module(module)
    finally:
        sys.path.remove(here)
    if not hasattr(holder, name):
        raise ValueError(f"model is 'python:{module}:{name}', and {module} has no {name}; expected a function there")
    return getattr(holder, name)
