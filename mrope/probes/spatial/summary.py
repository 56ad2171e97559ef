"""What the records of a run come to: accuracy with its interval, sets, agreement, curves and heat maps.

Figures are made of records (dicts, as ``samples.jsonl`` holds them) alone, so that anyone can count again.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from mrope.probes.files import write_whole
from mrope.probes.spatial.records import Record

THRESHOLD, LEAST = 0.95, 10
"""From this accuracy on, of so many samples at least, a size or a length counts as mastered."""
MASTERED: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(("cells", "columns", "words", "length", "letters"), max),
    "height": min,
}
"""Tags that say how hard a question is, and which of the mastered values counts: the effective resolution or length."""
OUTCOMES = ("right", "wrong", "empty", "unread", "several", "failed")
# 97.5 % of Student's distribution with 1 to 10 degrees of freedom; beyond, a normal one is within 0.3 of it.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True, slots=True)
class Score:
    """A share, and how sure it is.

    Args:
        value: the share, from 0 to 1; NaN of nothing.
        error: its standard error: over seeds where there are several, else over samples.
        low: of the 95 % interval: the wider of Student's over seeds and Wilson's over samples, since seeds that agree
            by chance make the first too narrow; of shares that are not right or wrong, Student's or a normal one.
        high: of the interval.
        count: samples (groups, of sets and agreement).
    """

    value: float
    error: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """What one task came to.

    Args:
        task: its name.
        asked: samples with a mark; those that failed count as wrong.
        refused: samples that the model cannot be asked.
        outcomes: outcome -> samples.
        accuracy: share of right answers.
        share: mean of the shares (edit similarity, intersection over union), where it is not the accuracy; else None.
        chance: mean accuracy of a guess.
        sets: share of groups of different questions that were all answered right; None where there are none.
        agreement: share of groups of one question whose answers all agree, right or not; a group with a sample that
            failed or could not be read does not. None where there are none.
        curves: tag -> value -> accuracy, of each tag whose values are numbers.
        best: tag of `MASTERED` -> the hardest value read at `THRESHOLD` or better, of `LEAST` samples; None if none is.
        parts: tag -> value -> accuracy, of each tag whose values are words.
        heat: accuracy of each (row, column) of the grids of one size: "rows x cols" -> rows of cells, None for a cell
            that was not asked about.
    """

    task: str
    asked: int
    refused: int
    outcomes: Mapping[str, int]
    accuracy: Score
    share: Score | None
    chance: float
    sets: Score | None
    agreement: Score | None
    curves: Mapping[str, Mapping[float, Score]]
    best: Mapping[str, float | None]
    parts: Mapping[str, Mapping[str, Score]]
    heat: Mapping[str, Sequence[Sequence[float | None]]]


def summarise(records: Iterable[Record]) -> tuple[TaskSummary, ...]:
    """One summary a task, in the order in which they come."""
    by_task: dict[str, list[Record]] = {}
    for record in records:
        by_task.setdefault(record["task"], []).append(record)
    return tuple(_task(name, its) for name, its in by_task.items())


def write_summary(summaries: Sequence[TaskSummary], folder: Path) -> Path:
    """Write ``summary.json``, whole or not at all; what is no number is null there."""
    path = folder / "summary.json"
    write_whole(path, json.dumps({"tasks": [_plain(asdict(one)) for one in summaries]}, indent=1) + "\n")
    return path


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _task(name: str, records: Sequence[Record]) -> TaskSummary:
    marked = [record for record in records if record["outcome"] != "refused"]
    counted = Counter(record["outcome"] for record in marked)
    cells = [{**record, "tags": {**record["tags"], "cells": _cells(record)}} for record in marked]
    tags = list(dict.fromkeys(tag for record in cells for tag, value in record["tags"].items() if value is not None))
    numbers = [tag for tag in tags if tag not in ("row", "col") and _varies(cells, tag, _is_number)]
    words = [tag for tag in tags if _varies(cells, tag, lambda value: isinstance(value, str))]
    curves = {tag: _by_tag(cells, tag) for tag in numbers}
    partial = any(record["kind"] in ("text", "list", "box") for record in marked)
    return TaskSummary(
        task=name,
        asked=len(marked),
        refused=len(records) - len(marked),
        outcomes={outcome: counted[outcome] for outcome in OUTCOMES if counted[outcome]},
        accuracy=score(marked, _right),
        share=score(marked, lambda record: record["share"]) if partial else None,
        chance=mean([record["chance"] for record in marked]) if marked else math.nan,
        sets=_groups(marked, same_answer=False),
        agreement=_groups(marked, same_answer=True),
        curves=curves,
        best={
            tag: hardest(
                (at for at, one in curves[tag].items() if one.value >= THRESHOLD and one.count >= LEAST), default=None
            )
            for tag, hardest in MASTERED.items()
            if tag in curves
        },
        parts={tag: _by_tag(cells, tag) for tag in words},
        heat=_heat(marked),
    )


def score(records: Sequence[Record], value: Callable[[Record], float]) -> Score:
    """The mean of `value` over records, with its interval; records name their seed."""
    values = [float(value(record)) for record in records]
    if not values:
        return Score(math.nan, math.nan, math.nan, math.nan, 0)
    by_seed: dict[int, list[float]] = {}
    for record, each in zip(records, values, strict=True):
        by_seed.setdefault(record["seed"], []).append(each)
    spread = [mean(its) for its in by_seed.values()] if len(by_seed) > 1 else values
    middle, error = mean(values), stdev(spread) / len(spread) ** 0.5 if len(spread) > 1 else math.nan
    ends = []
    if set(values) <= {0.0, 1.0}:
        ends += wilson(middle, len(values))
    if len(by_seed) > 1 or not ends:
        free = len(spread) - 2  # degrees of freedom - 1
        wide = error * (_STUDENT[free] if len(by_seed) > 1 and free < len(_STUDENT) else 1.96)
        least = -1.0 if min(values) < 0 else 0.0  # a difference of shares
        ends += [max(least, middle - wide), min(1.0, middle + wide)]
    return Score(middle, error, min(ends), max(ends), len(values))


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share of `count` (Wilson, 1927), which holds near 0 and 1 as well.

    >>> [round(side, 4) for side in wilson(0.5, 10)]
    [0.2366, 0.7634]
    """
    z = 1.959964
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    wide = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, middle - wide), min(1.0, middle + wide)


def _right(record: Record) -> float:
    return float(record["outcome"] == "right")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _varies(records: Sequence[Record], tag: str, fits: Callable[[Any], bool]) -> bool:
    values = {record["tags"].get(tag) for record in records} - {None}
    return len(values) > 1 and all(map(fits, values))


def _cells(record: Record) -> int | None:
    rows, cols = record["tags"].get("rows"), record["tags"].get("cols")
    return rows * cols if _is_number(rows) and _is_number(cols) else None


def _by_tag(records: Sequence[Record], tag: str) -> dict[Any, Score]:
    values = sorted({record["tags"][tag] for record in records if record["tags"].get(tag) is not None})
    return {value: score([one for one in records if one["tags"].get(tag) == value], _right) for value in values}


def _groups(records: Sequence[Record], *, same_answer: bool) -> Score | None:
    """The score of the groups of one question, whose right answers are the same; or of those of different ones."""
    groups: dict[tuple[int, str], list[Record]] = {}
    for record in records:
        if record["group"]:
            groups.setdefault((record["seed"], record["group"]), []).append(record)
    chosen = []
    for (seed, _), members in groups.items():
        if len(members) > 1 and (len({(one["answer"], str(one["box"])) for one in members}) == 1) == same_answer:
            if same_answer:
                agree = len({one["read"] for one in members}) == 1 and members[0]["read"] != ""
            else:
                agree = all(map(_right, members))
            chosen.append({"seed": seed, "whole": float(agree)})
    return score(chosen, lambda group: group["whole"]) if chosen else None


def _heat(records: Sequence[Record]) -> dict[str, list[list[float | None]]]:
    """The accuracy of each cell, of tasks whose tags name rows, cols, row and col (from 0)."""
    grids: dict[tuple[int, int], dict[tuple[int, int], list[float]]] = {}
    for record in records:
        tags = record["tags"]
        if all(_is_number(tags.get(tag)) for tag in ("rows", "cols", "row", "col")):
            cells = grids.setdefault((tags["rows"], tags["cols"]), {})
            cells.setdefault((tags["row"], tags["col"]), []).append(_right(record))
    return {
        f"{rows} x {cols}": [
            [mean(cells[row, col]) if (row, col) in cells else None for col in range(cols)] for row in range(rows)
        ]
        for (rows, cols), cells in sorted(grids.items(), key=lambda one: (one[0][0] * one[0][1], one[0]))
    }
