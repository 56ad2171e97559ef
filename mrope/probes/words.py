"""Words that several probes use in what they say."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """The noun as it stands behind a number.

    >>> plural(1, "other picture"), plural(0, "task")
    ('other picture', 'tasks')
    """
    return noun if count == 1 else f"{noun}s"


def counted(count: int, noun: str) -> str:
    """
    >>> counted(1, "task"), counted(1200, "task")
    ('1 task', '1,200 tasks')
    """
    return f"{count:,} {plural(count, noun)}"
