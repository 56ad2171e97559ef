"""Summaries and comparisons as tables in Markdown, in the columns that evaluation harnesses use."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from mrope.probes.spatial.comparing import Comparison
from mrope.probes.spatial.summary import MASTERED, Score, TaskSummary


def summary_table(summaries: Sequence[TaskSummary]) -> str:
    """One row a metric of each task: accuracy, sets, agreement, share, and the largest size or length mastered."""
    return _table(
        ("Task", "Metric", "", "Value", "", "Stderr", "95 %", "n", "Chance", "Not read"),
        [row for summary in summaries for row in _rows(summary)],
    )


def comparison_table(comparisons: Sequence[Comparison]) -> str:
    """One row a task: both accuracies, the paired difference with its standard error, and McNemar's p."""
    rows = [
        (
            one.task,
            f"{one.baseline:.4f}",
            f"{one.accuracy:.4f}",
            f"{one.difference.value:+.4f}",
            "±",
            _number(one.difference.error),
            f"{one.won} / {one.lost}",
            f"{one.p:.2g}",
            str(one.difference.count),
        )
        for one in comparisons
    ]
    return _table(("Task", "Baseline", "Model", "Difference", "", "Stderr", "Won / lost", "p", "n"), rows)


def _rows(summary: TaskSummary) -> Iterator[tuple[str, ...]]:
    unread = sum(count for outcome, count in summary.outcomes.items() if outcome not in ("right", "wrong"))
    lost = "" if not unread else str(unread)
    if summary.refused:
        lost += f"{', ' if lost else ''}{summary.refused} refused"
    # What got no answer counts as wrong, in sets and agreement as well, where no other column would say so.
    failed = f"{summary.outcomes['failed']} failed" if "failed" in summary.outcomes else ""
    yield _row(summary.task, "accuracy", summary.accuracy, _number(summary.chance), lost)
    for metric, one in (("sets", summary.sets), ("agreement", summary.agreement), ("share", summary.share)):
        if one is not None:
            yield _row("", metric, one, "", failed)
    for tag, best in summary.best.items():
        yield (
            "",
            f"{tag} mastered",
            "↓" if MASTERED[tag] is min else "↑",
            "none" if best is None else f"{best:g}",
            "",
            "",
            "",
            "",
            "",
            "",
        )


def _row(task: str, metric: str, one: Score, chance: str, lost: str) -> tuple[str, ...]:
    interval = "" if math.isnan(one.low) else f"{one.low:.3f} to {one.high:.3f}"
    sign = "±" if one.count > 1 else ""
    return (task, metric, "↑", _number(one.value), sign, _number(one.error), interval, str(one.count), chance, lost)


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4f}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    lines = [columns, ["-" * max(3, width) for width in widths], *rows]
    return "\n".join(
        "|" + "|".join(cell.ljust(max(3, width)) for cell, width in zip(line, widths, strict=True)) + "|"
        for line in lines
    )
