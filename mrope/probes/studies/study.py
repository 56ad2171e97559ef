"""What a study is: models to train, how each is scored, and the published claims that the scores are held against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mrope.probes.studies.model import StudyModel
from mrope.probes.studies.scoring import Rows

Verdict = Literal["held", "not shown", "reversed", "differs", "one seed"]


@dataclass(frozen=True, slots=True)
class Claim:
    """A published claim, and the rule, stated in advance, by which it holds.

    Args:
        source: of the claim.
        words: what it says.
        one: the cell (row, column) of the study's table that should be better.
        other: the cell that it should be better than.
        rule: "higher": the 95 % interval of the difference over seeds lies above 0; below 0 the claim is reversed.
            "same": no seed differs by more than 0.002, which is rounding.
    """

    source: str
    words: str
    one: tuple[str, str]
    other: tuple[str, str]
    rule: Literal["higher", "same"] = "higher"


Evaluate = Callable[[StudyModel, str, int, int, str], Rows]
"""(trained model, its variant's name, seed, limit, device) -> the rows of the table that come of it."""


@dataclass(frozen=True, slots=True)
class Study:
    """One question to small models.

    Args:
        name: on the command line and in file names.
        title: for people.
        words: what is trained, what is measured, and what the columns mean.
        variants: what is trained, by name, in the order of the table.
        evaluate: scores one model.
        claims: what is tested.
    """

    name: str
    title: str
    words: str
    variants: tuple[str, ...]
    evaluate: Evaluate
    claims: tuple[Claim, ...]
