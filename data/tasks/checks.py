"""The checks of `mrope.checks`, loaded when a task is made: the rest of `data/` needs nothing outside of its folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def whole(name: str, value: Any, least: int) -> int:
    """`value` as an int of at least `least`, or one line that says what came."""
    from mrope import checks

    return checks.whole(name, value, least)


def positive(name: str, value: Any) -> float:
    """`value` as a finite float above zero, or one line that says what came."""
    from mrope import checks

    return checks.positive(name, value)


def one_of(name: str, value: Any, words: Sequence[str]) -> None:
    """Refuse a word that is not in `words`."""
    from mrope import checks

    checks.one_of(name, value, words)
