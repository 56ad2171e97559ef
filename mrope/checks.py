"""The checks of arguments that several modules share."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

Number: TypeAlias = float | int  # spelled out, since run-time checkers take no int for a float


def whole(name: str, value: Any, least: int) -> int:
    """`value` as an int of at least `least`, or one line that says what came."""
    counted: Any = None if isinstance(value, bool) else value  # True is no number
    try:
        number = operator.index(counted)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; expected a whole number") from None
    if number < least:
        raise ValueError(f"{name} is {number}; expected at least {least}")
    return number


def positive(name: str, value: Any) -> float:
    """`value` as a finite float above zero, or one line that says what came."""
    number = _number(name, value)
    if not 0 < number < math.inf:  # which torch.compile can trace
        raise ValueError(f"{name} is {number:g}; expected a finite number above 0")
    return number


def finite(name: str, value: Any) -> float:
    """`value` as a finite float, or one line that says what came."""
    number = _number(name, value)
    if not math.isfinite(number):
        raise ValueError(f"{name} is {number:g}; expected a finite number")
    return number


def _number(name: str, value: Any) -> float:
    measured: Any = None if isinstance(value, bool) else value
    try:
        return float(measured + 0)  # a string is no number
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {value!r}; expected a number") from None


def one_of(name: str, value: Any, words: Sequence[str]) -> None:
    """Refuse a word that is not in `words`."""
    if value not in words:
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(words)}")
