"""Thresholds: the least that a run must reach, for programs that go by the exit code."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mrope.checks import one_of
from mrope.probes.spatial.summary import TaskSummary

METRICS = ("accuracy", "sets", "agreement", "share")


def check_requirements(required: Mapping[str, float], tasks: Sequence[str]) -> None:
    """Refuse thresholds of tasks that are not asked, of metrics that there are not, and beyond 0 to 1.

    Args:
        required: "task" or "task.metric" -> the least share.
        tasks: that are asked.
    """
    for name, least in required.items():
        task, _, metric = name.partition(".")
        one_of("the task of a threshold", task, tasks)
        one_of(f"the metric of threshold {name!r}", metric or "accuracy", METRICS)
        if isinstance(least, bool) or not isinstance(least, (int, float)) or not 0 <= least <= 1:
            raise ValueError(f"threshold {name} is {least!r}; expected a share from 0 to 1")


def shortfalls(summaries: Sequence[TaskSummary], required: Mapping[str, float]) -> tuple[str, ...]:
    """What each threshold that was not reached lacks, in words; a metric that was not measured was not reached."""
    by_task = {summary.task: summary for summary in summaries}
    said = []
    for name, least in required.items():
        task, _, metric = name.partition(".")
        measured = getattr(by_task[task], metric or "accuracy") if task in by_task else None
        value = math.nan if measured is None else measured.value
        if not value >= least:
            said.append(f"{name} is {value:.4f}, below {least:g}" if value == value else f"{name} was not measured")
    return tuple(said)
