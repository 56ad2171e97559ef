"""What an audit says: what was measured, what was promised, and whether that holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from mrope.checks import Number, one_of

Outcome = Literal["pass", "fail", "info"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditCheck:
    """One thing that was measured.

    Args:
        name: of the check.
        means: what it tells, in a line.
        figure: what was measured, in words.
        value: the number in it that counts, if there is one, and it is finite.
        values: the finite numbers in it by their names, where there are several, such as one an axis.
        limit: what it should be; empty where nothing is promised.
        outcome: "pass"; "fail": a promise is broken; "info": what a rule knowingly gives up, or has without a promise.
        source: where the formula or the promise stands.

    Raises:
        ValueError: there is no such outcome.
    """

    name: str
    means: str
    figure: str
    value: Number | None = None
    values: Mapping[str, Number] = field(default_factory=dict)
    limit: str = ""
    outcome: Outcome = "info"
    source: str = ""

    def __post_init__(self) -> None:
        one_of("outcome", self.outcome, get_args(Outcome))
        if self.value is not None and not math.isfinite(self.value):
            object.__setattr__(self, "value", None)  # the figure says it; JSON has no word for it
        finite = {name: value for name, value in self.values.items() if math.isfinite(value)}
        object.__setattr__(self, "values", finite)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What an audit found.

    Args:
        subject: what was looked at, in words.
        machine: where it was computed.
        checks: in the order of the audit.
        skipped: (name, why) of those that have no meaning here.
    """

    subject: str
    machine: str
    checks: tuple[AuditCheck, ...]
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def failed(self) -> tuple[AuditCheck, ...]:
        """The broken promises."""
        return tuple(check for check in self.checks if check.outcome == "fail")

    @property
    def ok(self) -> bool:
        """Whether something was measured, and no promise is broken."""
        return bool(self.checks) and not self.failed

    def __getitem__(self, name: str) -> AuditCheck:
        """The check called `name`.

        Raises:
            KeyError: there is none; it says why it was skipped.
        """
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(f"{name}: {dict(self.skipped).get(name, 'no such check')}")


def outcome(holds: bool, promised: bool | None = True) -> Outcome:
    """What a trait comes to that holds or not, and is promised or knowingly given up (False, None)."""
    if promised:
        return "pass" if holds else "fail"
    return "info"
