"""The table of evidence: prints it; `python tests/coverage_table.py --write` writes COVERAGE.md.

It collects the suite without running it, and counts the tests that are marked `evidence(column, *subjects, prompts)`. A
subject is the name of a family or of a class of layouts or encodings; where a mark names none, it comes from the test's
parameters.
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
from mrope.encodings import LinearRope, encoding, encoding_names

COVERAGE = ROOT / "COVERAGE.md"
COLUMNS = {
    "oracle": "oracle",
    "parity": "transformers 5.24",
    "worked": "worked values",
    "swap": "h/w swap turns red",
    "shapes": "batch shapes",
}
ENCODING_COLUMNS = {
    "definition": "definition",
    "library": "installed library",
    "properties": "declared properties",
    "gradient": "gradient",
    "kernels": "kernels",
}
# Rules of papers, whose code is a fork or a patch of one model. The raster is in every model without axes.
IN_NO_LIBRARY = (
    "CirculantRope",
    "ComRope",
    "GoldenGateRope",
    "GrapeRope",
    "LieRope",
    "NoPe",
    "Pope",
    "StringRope",
    "XPos",
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

Of encodings, in the third table:

- definition: equal to the formula, written once more in slow Python or float64 NumPy, or to values worked by hand.
- installed library: whole tensors equal to those of transformers or timm.
- declared properties: norm, shift, text and commutation are measured, and are as the class declares them; of those that
  learn, after they have learned, too.
- gradient: gradcheck of what learns, and of what is turned or added to.
- kernels: Numba and Triton against plain torch, forward and backward.
"""
LEGEND = """
n/a, in no library: a rule of a paper, whose code is a fork or a patch of one model.
n/a, one value on all axes: the layout has no rows and columns that could be swapped.
n/a, plain torch: the encoding has no kernels of its own and calls none.
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


def encodings() -> Mapping[str, type[mrope.Encoding]]:
    """The classes of encodings, by their own names."""
    return {kind.__name__: kind for kind in map(encoding, encoding_names())}


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
            if column not in {**COLUMNS, **ENCODING_COLUMNS} or not words or not subjects.keys() >= set(words):
                raise ValueError(
                    f"{item.nodeid} is marked as {column!r} of {', '.join(words) or 'nothing'}; expected one of "
                    f"{', '.join({**COLUMNS, **ENCODING_COLUMNS})}, and families, layouts or encodings that there are"
                )
            found = Evidence(1, mark.kwargs.get("prompts", 0))
            for subject in set().union(*(subjects[word] for word in words)):
                cells[subject, column] = cells.get((subject, column), Evidence()) + found
    return cells


def _subjects() -> dict[str, set[str]]:
    """What a mark or a parameter may say -> the families and classes of layouts that this is."""
    found = {name: {name} for name in (*layout_names(), *encodings())}
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


def excuses() -> dict[tuple[str, str], str]:
    """(subject, column) -> why there is nothing."""
    found = {(name, column): "n/a, in no library" for name in IN_NO_LIBRARY for column in ("parity", "library")}
    found |= {(name, "swap"): "n/a, one value on all axes" for name in without_columns()}
    found |= {
        (name, "kernels"): "those of `Rotary`" if issubclass(kind, LinearRope) else "n/a, plain torch"
        for name, kind in encodings().items()
        if name != "Rotary"
    }
    return found


def table(cells: Mapping[tuple[str, str], Evidence]) -> str:
    """The whole of COVERAGE.md.

    Raises:
        ValueError: a cell is empty, or is filled where there can be nothing.
    """
    nothing = excuses()
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
    for title, subjects, columns in (
        ("family", mrope.family_names(), COLUMNS),
        ("layout", layout_names(), COLUMNS),
        ("encoding", encodings(), ENCODING_COLUMNS),
    ):
        rows = [
            (title, *columns.values()),
            *((f"`{each}`", *(cell(each, key) for key in columns)) for each in subjects),
        ]
        head, *body = (f"| {' | '.join(row)} |" for row in rows)
        parts.append("\n".join(("", head, "|---" * (len(columns) + 1) + "|", *body, "")))
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
