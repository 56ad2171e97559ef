"""COVERAGE.md is what the tests show, and lists nothing that they do not show."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import test_layouts
from coverage_table import (
    COLUMNS,
    COVERAGE,
    ENCODING_COLUMNS,
    Evidence,
    encodings,
    evidence,
    excuses,
    layout_names,
    table,
)
from sources import ROOT

import mrope


def test_the_table_is_what_the_suite_shows() -> None:
    command = (sys.executable, str(ROOT / "tests" / "coverage_table.py"))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert COVERAGE.read_text("utf-8") == done.stdout, "run: python tests/coverage_table.py --write"


def full() -> dict[tuple[str, str], Evidence]:
    """One test for each cell that may have some."""
    cells = [(name, column) for name in (*mrope.family_names(), *layout_names()) for column in COLUMNS]
    cells += [(name, column) for name in encodings() for column in ENCODING_COLUMNS]
    return dict.fromkeys(set(cells) - excuses().keys(), Evidence(1))


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (("glm-image", "swap"), "rows that cannot be listed: glm-image has no tests for swap"),
        (("RasterLayout", "parity"), "rows that cannot be listed: RasterLayout has no tests for parity"),
        (("LieRope", "gradient"), "rows that cannot be listed: LieRope has no tests for gradient"),
    ],
)
def test_what_has_no_full_row_is_not_listed(missing: tuple[str, str], message: str) -> None:
    cells = full()
    assert "| `glm-image` | 1 | 1 | 1 | 1 | 1 |" in table(cells)
    del cells[missing]
    with pytest.raises(ValueError, match=message):
        table(cells)


def test_an_excuse_that_is_none_is_named() -> None:
    excused = {("CircleLayout", "parity"): Evidence(1)}
    with pytest.raises(
        ValueError, match=r"CircleLayout has tests for parity, but is excused from it \(n/a, in no library\)"
    ):
        table(full() | excused)


@pytest.mark.parametrize("arguments", [("colour", "qwen2-vl"), ("oracle", "qwen9"), ("oracle",)], ids=str)
def test_a_mark_that_says_nothing_is_refused_with_its_test(arguments: tuple[str, ...], request: Any) -> None:
    request.node.add_marker(pytest.mark.evidence(*arguments))
    with pytest.raises(
        ValueError, match=r"test_a_mark_that_says_nothing.* is marked as .*; expected one of oracle, par"
    ):
        evidence([request.node])


def test_the_cases_are_those_of_the_layouts() -> None:
    assert {type(case.layout).__name__ for case in test_layouts.CASES.values()} == set(layout_names())
