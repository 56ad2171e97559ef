"""Families: frozen records of what published vision-language models chose."""

from __future__ import annotations

from mrope.families.qwen import QWEN
from mrope.families.record import Family

__all__ = ["Family", "family", "family_names"]

_RECORDS = {record.name: record for record in QWEN}


def family_names() -> tuple[str, ...]:
    """The names of all recorded families.

    >>> family_names()
    ('qwen2-vl', 'qwen2.5-vl', 'qwen3-vl')
    """
    return tuple(_RECORDS)


def family(name: str) -> Family:
    """The record called `name`: the values of the released checkpoints.

    Raises:
        ValueError: there is no such record.

    >>> family("qwen3-vl").factor
    32
    """
    if name not in _RECORDS:
        raise ValueError(f"unknown family {name!r}; known are {', '.join(_RECORDS)}")
    return _RECORDS[name]
