"""What a checkup says: findings, each with its rule, the number seen, the number right and the fix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mrope.checks import one_of

Level = Literal["wrong", "risky"]
_LEVELS = ("wrong", "risky")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong or risky.

    Args:
        check: the name of the check that found it.
        level: "wrong": numbers differ from those of training without a word, or nothing runs; "risky": an error is
            raised where the input is in order, or the numbers depend on how the model is used.
        rule: what should hold.
        seen: what was seen.
        right: what would be right.
        fix: what to do.

    Raises:
        ValueError: there is no such level.
    """

    check: str
    level: Level
    rule: str
    seen: str
    right: str
    fix: str

    def __post_init__(self) -> None:
        one_of("level", self.level, _LEVELS)

    def __str__(self) -> str:
        return f"{self.level} {self.check}: {self.rule}\n  seen: {self.seen}; right: {self.right}\n  fix: {self.fix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a checkup found.

    Args:
        subject: what was looked at, in words.
        findings: the wrong ones before the risky ones.
        checked: the names of the checks that ran to their end.
        skipped: (name, why) of those that could not.
    """

    subject: str
    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; what is only risky does not count."""
        return all(finding.level != "wrong" for finding in self.findings)

    def __str__(self) -> str:
        counts = ", ".join(f"{sum(one.level == level for one in self.findings)} {level}" for level in _LEVELS)
        lines = [f"{self.subject}: {counts}, {len(self.checked)} checks", *map(str, self.findings)]
        reasons = dict.fromkeys(why for _, why in self.skipped)
        for reason in reasons:
            names = ", ".join(name for name, why in self.skipped if why == reason)
            lines.append(f"not checked: {names}: {reason}")
        return "\n".join(lines)
