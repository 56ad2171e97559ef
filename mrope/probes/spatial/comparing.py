"""Two runs on the same samples: what changed, and whether it is more than chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mrope.probes.spatial.records import Record, key_of
from mrope.probes.spatial.summary import Score, score


@dataclass(frozen=True, slots=True)
class Comparison:
    """One task in two runs, sample by sample.

    Args:
        task: its name.
        baseline: accuracy of the first run, on the samples of both.
        accuracy: that of the second.
        difference: the second minus the first, paired.
        won: samples that only the second run answered right.
        lost: samples that only the first one did.
        p: how likely so uneven a split of won and lost is where both are as good (exact, two-sided; McNemar, 1947).
    """

    task: str
    baseline: float
    accuracy: float
    difference: Score
    won: int
    lost: int
    p: float


def compare_runs(baseline: Sequence[Record], records: Sequence[Record]) -> tuple[Comparison, ...]:
    """Compare the records of two runs, task by task, on the samples that both were asked.

    Raises:
        ValueError: they share no sample, or one of the same name that is another (other answer or other picture).
    """
    before = {key_of(one): one for one in baseline if one["outcome"] != "refused"}
    pairs: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        other = before.get(key_of(record))
        if other is None or record["outcome"] == "refused":
            continue
        for name in ("answer", "pictures", "prompt"):
            if other[name] != record[name]:
                raise ValueError(
                    f"sample {record['id']} of task {record['task']} (seed {record['seed']}) has another {name} in the "
                    "two runs; expected runs with the same settings"
                )
        right, was = (one["outcome"] == "right" for one in (record, other))
        pairs.setdefault(record["task"], []).append({"seed": record["seed"], "right": right, "was": was})
    if not pairs:
        raise ValueError("the runs share no sample; expected the same tasks, settings and seeds")
    return tuple(_comparison(task, its) for task, its in pairs.items())


def _comparison(task: str, pairs: Sequence[dict[str, Any]]) -> Comparison:
    won = sum(one["right"] and not one["was"] for one in pairs)
    lost = sum(one["was"] and not one["right"] for one in pairs)
    difference = score(pairs, lambda one: one["right"] - one["was"])
    return Comparison(
        task=task,
        baseline=sum(one["was"] for one in pairs) / len(pairs),
        accuracy=sum(one["right"] for one in pairs) / len(pairs),
        difference=difference,
        won=won,
        lost=lost,
        p=_sign_test(won, lost),
    )


def _sign_test(won: int, lost: int) -> float:
    """The two-sided p of a split of won + lost fair coins.

    >>> _sign_test(5, 0)
    0.0625
    """
    tosses = won + lost
    tail = sum(math.comb(tosses, k) for k in range(min(won, lost) + 1))
    return min(1.0, 2 * tail / 2**tosses)
