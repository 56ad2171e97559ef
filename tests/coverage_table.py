"""The table of evidence: prints it; `python tests/coverage_table.py --write` writes COVERAGE.md.

It collects the suite without running it, and counts the tests that are marked `evidence(column, *subjects, prompts)`. A
subject is the name of a family or of a class of layouts; where a mark names none, it comes from the test's parameters.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from sources import ROOT

import mrope
import mrope.layouts

COVERAGE = ROOT / "COVERAGE.md"
COLUMNS = {
    "oracle": "oracle",
    "parity": "transformers 5.24",
    "worked": "worked values",
    "swap": "h/w swap turns red",
    "shapes": "batch shapes",
}
# Rules of papers, whose code is a fork or a patch of one model. The raster is in every model without axes.
IN_NO_LIBRARY = (
    "AnchoredLayout",
    "CircleLayout",
    "HopeLayout",
    "IdAlignLayout",
    "PypeLayout",
    "ResetLayout",
    "RingLayout",
    "TieLayout",
    "V2peLayout",
    "VideoRopeLayout",
    "VropeLayout",
)
HEAD = """# What the tests show

Written by `python tests/coverage_table.py --write` from the marks of the tests; a test holds that it is up to date and
that no cell is empty. What is not listed is refused by name.

A cell says how many tests there are, and in brackets how many random prompts they try, where they count them; other
tests of random prompts draw 25 to 100 each.

- oracle: ids are those of a slow rule in plain Python, written from the formula, token by token. It is the rule that
  the weights were trained with.
- transformers 5.24: ids are those of the installed library, with a star where the family records another rule for the
  library than the trained one; both are tested then, each against its own.
- worked values: published ones, ones from reports of users, and ones worked out by hand.
- h/w swap turns red: ids whose rows and columns are swapped do not pass for the oracle's.
- batch shapes: padded, packed, cut, sharded, in turns, in batches, pruned and decoded ids are those of the row alone,
  as far as there are such shapes (a page of an encoder stands by itself and is followed by nothing).

A family has all of these for itself; they count for its layout, too. What a layout is tested with does not count for
its families. Families that the installed transformers lacks are skipped by name.
"""
LEGEND = """
n/a, in no library: a rule of a paper, whose code is a fork or a patch of one model.
n/a, one value on all axes: the layout has no rows and columns that could be swapped.
"""


@dataclass(frozen=True)
class Evidence:
    """The tests of one cell, and the random prompts that they count."""

    tests: int = 0
    prompts: int = 0

    def __add__(self, other: Evidence) -> Evidence:
        return Evidence(self.tests + other.tests, self.prompts + other.prompts)


def layout_names() -> list[str]:
    """The public classes of layouts."""
    public = {name: getattr(mrope.layouts, name) for name in mrope.layouts.__all__}
    return [name for name, each in public.items() if hasattr(each, "growth") and not inspect.isabstract(each)]


class _Suite:
    """A plugin that keeps what pytest collected."""

    items: Sequence[pytest.Item] = ()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = session.items


def collected() -> Sequence[pytest.Item]:
    """The tests of all files with marks."""
    files = [str(file) for file in sorted(ROOT.glob("tests/test_*.py")) if "mark.evidence" in file.read_text("utf-8")]
    suite = _Suite()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        failed = pytest.main(["--collect-only", "-q", "--assert=plain", "-p", "no:cacheprovider", *files], [suite])
    if failed:
        sys.exit(printed.getvalue())
    return suite.items


def evidence(items: Sequence[pytest.Item]) -> dict[tuple[str, str], Evidence]:
    """(subject, column) -> what there is.

    Raises:
        ValueError: a mark has a column that is none, or its test is about no family and no layout.
    """
    subjects = _subjects()
    cells: dict[tuple[str, str], Evidence] = {}
    for item in items:
        for mark in item.iter_markers("evidence"):
            column, *words = mark.args
            words = words or _words(item)
            if column not in COLUMNS or not words or not subjects.keys() >= set(words):
                raise ValueError(
                    f"{item.nodeid} is marked as {column!r} of {', '.join(words) or 'nothing'}; expected one of "
                    f"{', '.join(COLUMNS)}, and families or layouts that there are"
                )
            found = Evidence(1, mark.kwargs.get("prompts", 0))
            for subject in set().union(*(subjects[word] for word in words)):
                cells[subject, column] = cells.get((subject, column), Evidence()) + found
    return cells


def _subjects() -> dict[str, set[str]]:
    """What a mark or a parameter may say -> the families and classes of layouts that this is."""
    found = {name: {name} for name in layout_names()}
    found |= {name: {type(case.layout).__name__} for name, case in _cases().items()}
    for name in mrope.family_names():
        record = mrope.family(name)
        found |= {word: {name, type(record.layout).__name__} for word in (name, *record.model_types)}
    return found


def _words(item: pytest.Item) -> list[str]:
    """What the parameters of a test say: the name of a case or a family, a model type, or a layout."""
    if not (isinstance(item, pytest.Function) and hasattr(item, "callspec")):
        return []
    parameters = item.callspec.params
    if "layout" in parameters:
        return [type(parameters["layout"]).__name__]
    return [str(parameters[key]) for key in ("name", "model_type") if key in parameters]


def _cases() -> Mapping[str, Any]:
    from test_layouts import CASES  # as pytest imported it

    return CASES


def without_columns() -> set[str]:
    """The layouts of which no case has rows and columns."""
    layouts = [(type(case.layout).__name__, case.swapped) for case in _cases().values()]
    return {name for name, _ in layouts} - {name for name, swapped in layouts if swapped}


def table(cells: Mapping[tuple[str, str], Evidence]) -> str:
    """The whole of COVERAGE.md.

    Raises:
        ValueError: a cell is empty, or is filled where there can be nothing.
    """
    nothing = {(name, "parity"): "n/a, in no library" for name in IN_NO_LIBRARY}
    nothing |= {(name, "swap"): "n/a, one value on all axes" for name in without_columns()}
    other_rules = {(name, "parity") for name in mrope.family_names() if mrope.family(name).deviations}
    wrong: list[str] = []

    def cell(subject: str, column: str) -> str:
        found, excuse = cells.get((subject, column)), nothing.get((subject, column))
        if found is None and excuse is None:
            wrong.append(f"{subject} has no tests for {column}")
        if found is not None and excuse is not None:
            wrong.append(f"{subject} has tests for {column}, but is excused from it ({excuse})")
        if found is None:
            return excuse or ""
        star = " *" if (subject, column) in other_rules else ""
        return f"{found.tests} ({found.prompts}){star}" if found.prompts else f"{found.tests}{star}"

    parts = [HEAD]
    for title, subjects in (("family", mrope.family_names()), ("layout", layout_names())):
        rows = [
            (title, *COLUMNS.values()),
            *((f"`{each}`", *(cell(each, key) for key in COLUMNS)) for each in subjects),
        ]
        head, *body = (f"| {' | '.join(row)} |" for row in rows)
        parts.append("\n".join(("", head, "|---" * (len(COLUMNS) + 1) + "|", *body, "")))
    if wrong:
        raise ValueError("rows that cannot be listed: " + "; ".join(wrong))
    return "".join((*parts, LEGEND))


def main() -> None:
    text = table(evidence(collected()))
    if sys.argv[1:] == ["--write"]:
        COVERAGE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
