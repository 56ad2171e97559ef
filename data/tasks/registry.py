"""All tasks by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from .base import Task
from .cell import CellTask
from .distance import DistanceTask
from .lines import ColumnTask, CountTask, RowTask
from .moments import TimeTask
from .moved import MovedTask
from .needle import NeedleTask
from .neighbour import NeighbourTask
from .order import OrderTask
from .places import FindTask, PointTask
from .small_print import PrintTask
from .table import TableTask

TASKS: Mapping[str, type[Task]] = {
    kind.name: kind
    for kind in (
        CellTask,
        NeighbourTask,
        RowTask,
        ColumnTask,
        CountTask,
        OrderTask,
        PointTask,
        FindTask,
        MovedTask,
        PrintTask,
        TableTask,
        TimeTask,
        NeedleTask,
        DistanceTask,
    )
}
"""Every task by its name."""


def task(name: str, /, *, large: bool = False, **settings: Any) -> Task:
    """The task of that name.

    Args:
        name: a key of `TASKS`.
        large: start from the settings for a machine with a GPU.
        settings: those that are others than that; lists, as YAML and JSON have them, pass for tuples.

    Raises:
        ValueError: there is no such task or setting, or its value cannot be.
        TypeError: a value is of another type.

    Example:
        >>> sample = next(task("cell", shapes=[[3, 5]]).samples(seed=1))
        >>> sample.id, sample.tags["rows"], sample.tags["cols"]
        ('cell/3x5/0', 3, 5)
    """
    if name not in TASKS:
        raise ValueError(f"task is {name!r}; expected one of {', '.join(TASKS)}")
    kind = TASKS[name]
    known = [field.name for field in fields(kind)]
    for setting in settings:
        if setting not in known:
            raise ValueError(f"setting of {name} is {setting!r}; expected one of {', '.join(known)}")
    chosen = {**(kind.large if large else {}), **settings}
    return kind(**{setting: _tuples(value) for setting, value in chosen.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value
