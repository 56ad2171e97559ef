"""A study's results, read and counted: means and intervals over seeds, and what became of each claim."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrope.probes.studies.study import Claim, Verdict

RESULTS = Path(__file__).parent / "results"
"""Where the figures lie that ship with the package."""
ROUNDING = 0.002

# 97.5 % points of Student's distribution with 1, 2, ... degrees of freedom; beyond, the last one, which is wider.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over seeds.

    Args:
        value: the mean.
        half: half of its 95 % interval; infinite with one seed.
        seeds: how many.
    """

    value: float
    half: float
    seeds: int


@dataclass(frozen=True, slots=True)
class Tested:
    """What became of a claim.

    Args:
        claim: what was tested.
        difference: its first cell minus its other, seed by seed.
        verdict: by the claim's rule; "one seed" where that is too few to tell.
    """

    claim: Claim
    difference: Mean
    verdict: Verdict


def mean_of(values: Sequence[float]) -> Mean:
    """The mean and Student's 95 % interval.

    >>> mean_of([0.5, 0.7, 0.9]).half.__round__(4)
    0.4969
    """
    count = len(values)
    middle = math.fsum(values) / count
    if count == 1:
        return Mean(middle, math.inf, 1)
    spread = math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (count - 1))
    return Mean(middle, _STUDENT[min(count - 1, len(_STUDENT)) - 1] * spread / math.sqrt(count), count)


@dataclass(frozen=True, slots=True)
class Results:
    """What a study's file holds.

    Args:
        entry: the file, read.
    """

    entry: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read ``<study>.json``.

        Raises:
            ValueError: it is no such file.
        """
        try:
            entry = json.loads(path.read_text("utf-8"))
            if not entry["runs"]:
                raise KeyError("runs")
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no file of results ({error!r}); expected what a study wrote") from None
        return cls(entry)

    @property
    def runs(self) -> list[dict[str, Any]]:
        """An entry for each run."""
        return self.entry["runs"]

    @property
    def rows(self) -> list[str]:
        """Names of the table's rows."""
        return list(dict.fromkeys(row for run in self.runs for row in run["rows"]))

    @property
    def columns(self) -> list[str]:
        """Names of the table's columns."""
        return list(dict.fromkeys(column for run in self.runs for row in run["rows"].values() for column in row))

    def by_seed(self, row: str, column: str) -> dict[int, float]:
        """A cell of the table, seed by seed; empty where it was not measured."""
        return {
            run["seed"]: run["rows"][row][column]
            for run in self.runs
            if row in run["rows"] and column in run["rows"][row]
        }

    def mean(self, row: str, column: str) -> Mean | None:
        """A cell of the table over its seeds; None where it was not measured."""
        values = list(self.by_seed(row, column).values())
        return mean_of(values) if values else None

    def tested(self, claim: Claim) -> Tested | None:
        """What became of a claim, on the seeds that both of its cells have; None where there are none."""
        one, other = self.by_seed(*claim.one), self.by_seed(*claim.other)
        pairs = [one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())]
        if not pairs:
            return None
        difference = mean_of(pairs)
        if difference.seeds == 1:
            verdict: Verdict = "one seed"
        elif claim.rule == "same":
            verdict = "held" if max(map(abs, pairs)) <= ROUNDING else "differs"
        elif difference.value > difference.half:
            verdict = "held"
        else:
            verdict = "reversed" if difference.value < -difference.half else "not shown"
        return Tested(claim, difference, verdict)
