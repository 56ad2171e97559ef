"""What the README shows is what the project prints."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from family_table import MARKER, table
from sources import ROOT

from mrope.reader import WEIGHTS

README = (ROOT / "README.md").read_text()


def stdout(*command: str, folder: Path = ROOT) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return "\n".join(line.rstrip() for line in done.stdout.splitlines())


@pytest.mark.parametrize("name", ["quickstart", "pixels", "shapes", "encodings", "probes"])
def test_a_program_is_an_example_and_prints_what_is_shown(name: str) -> None:
    example = ROOT / "examples" / f"{name}.py"
    program = example.read_text().split('"""\n', 1)[1].strip()
    assert f"```python\n{program}\n```\n\n```\n{stdout(sys.executable, str(example))}\n```" in README


@pytest.mark.parametrize("command", ["plan", "positions", "frequencies"])
def test_the_shell_prints_what_is_shown(command: str) -> None:
    shown = README.split(f"$ mrope {command} ")[1].split("\n```")[0].split("\n\n$ ")[0]
    arguments, _, output = shown.partition("\n")
    folder = ROOT / "data" / "assets"
    assert stdout(sys.executable, "-m", "mrope", command, *shlex.split(arguments), folder=folder) == output


def test_the_reader_reads_what_the_example_draws(tmp_path: Path) -> None:
    printed = stdout(sys.executable, str(ROOT / "examples" / "read_grid.py"), str(tmp_path / "grid.png"))
    assert [line for line in printed.splitlines() if "as drawn" in line] == printed.splitlines()[1:5]
    assert (tmp_path / "grid.png").is_file()


def test_the_table_of_families_holds() -> None:
    _, shown, _ = README.split(MARKER)
    assert shown == table(), "run: python tests/family_table.py --write"
    assert max(map(len, shown.splitlines())) <= 120


def test_the_figures_of_the_reader_are_those_of_the_study() -> None:
    study = json.loads((WEIGHTS.parent / "study.json").read_text())
    for shape in ("6x6", "8x9", "16x16", "24x24"):
        accuracies = sorted(run["scores"][shape]["accuracy"] for run in study["runs"] if run["twin"] == "none")
        low, high = (f"{100 * each:.1f}" for each in (accuracies[0], accuracies[-1]))
        (row,) = (line for line in README.splitlines() if line.startswith(f"| {shape.replace('x', ' x ')} |"))
        assert f"| {low} to {high} % |" in row
