"""`mrope probe` and the pytest plugin, as users start them: on our reader, and on readers that must fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sources import ROOT
from typer.testing import CliRunner

import mrope.cli
from mrope.data import GLYPHS

CELLS = ("--task", "cell", "--set", "cell.shapes=[[3, 5], [6, 4]]", "--limit", "20")
BESIDE = ("--task", "neighbour", "--set", "neighbour.shapes=[[3, 5], [6, 4]]")


def probe(*arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of `mrope probe`, run in this process."""
    result = CliRunner().invoke(mrope.cli.app, ["probe", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def accuracy(folder: Path, task: str = "cell") -> float:
    """As counted from the file of samples."""
    records = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    marked = [one for one in records if one["task"] == task and one["outcome"] != "refused"]
    return sum(one["outcome"] == "right" for one in marked) / len(marked)


SWAPPED = """
from mrope.probes import swap_axes
from mrope.probes.spatial import ReaderRespondent

asked = ReaderRespondent(move=swap_axes)
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of the reader, its blind twin, and the reader with h and w swapped."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "swapped_reader.py").write_text(SWAPPED)
    asked = {
        "seeing": ["reader"],
        "blind": ["reader", "--option", "blind=true"],
        "swapped": ["python:swapped_reader:asked"],
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, model in asked.items():
            code, _, said = probe("run", *model, *CELLS, *BESIDE, "--seed", "0,1", "--out", folder / name)
            assert code == 0, said
    return folder


def test_table_says_what_the_samples_say(runs: Path) -> None:
    code, printed, _ = probe("report", runs / "seeing")
    assert code == 0
    cells = [cell.strip() for cell in printed.splitlines()[2].split("|")[1:-1]]
    assert cells[0] == "cell"
    assert float(cells[3]) == pytest.approx(accuracy(runs / "seeing"), abs=1e-4)
    assert cells[7] == "40"
    summary = json.loads((runs / "seeing" / "summary.json").read_text())
    assert summary["tasks"][0]["accuracy"]["value"] == pytest.approx(accuracy(runs / "seeing"))


def test_a_reader_that_sees_reads_and_others_do_not(runs: Path) -> None:
    """Probes that must fail do fail: a blind reader is at chance, one whose axes are swapped reads the wrong cells."""
    assert accuracy(runs / "seeing") >= 0.95
    # 40 guesses among 24: more than 7 right happens once in 1,000 times
    assert accuracy(runs / "blind") <= 7 / 40
    assert accuracy(runs / "seeing", "neighbour") >= 0.95
    assert accuracy(runs / "swapped", "neighbour") <= 0.5
    assert accuracy(runs / "swapped") == accuracy(runs / "seeing")  # a cell is found wherever both sides swap alike


def test_compare_is_paired(runs: Path) -> None:
    code, printed, _ = probe("compare", runs / "blind", runs / "seeing", "--json")
    assert code == 0
    one, _ = json.loads(printed)
    assert one["difference"]["value"] == pytest.approx(accuracy(runs / "seeing") - accuracy(runs / "blind"))
    assert one["p"] < 1e-6
    code, printed, _ = probe("compare", runs / "blind", runs / "seeing")
    assert printed.startswith("|Task")


def test_thresholds_are_the_exit_code(tmp_path: Path) -> None:
    asked = ("run", "reader", *CELLS, "--seed", 0, "--out", tmp_path)
    assert probe(*asked, "--require", "cell=0.9")[0] == 0
    code, _, said = probe(*asked, "--option", "blind=true", "--require", "cell=0.9", "--out", tmp_path / "blind")
    assert code == 1
    assert said.strip().splitlines()[-1].startswith("cell is 0.")


HALF = """
def across(sample):
    if sample.tags["relation"] in ("left", "right"):
        return sample.answer
    return next(choice for choice in sample.choices if choice != sample.answer)
"""


def test_a_limit_within_a_set_does_not_reach_its_threshold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_a_model.py").write_text(HALF)
    monkeypatch.chdir(tmp_path)
    asked = ("run", "python:half_a_model:across", *BESIDE, "--seed", 0, "--require", "neighbour.sets=0.9")
    for limit, count in ((4, 8), (20, 16)):
        code, printed, said = probe(*asked, "--limit", limit, "--out", tmp_path / str(limit))
        assert (code, said.strip().splitlines()[-1]) == (1, "neighbour.sets is 0.0000, below 0.9")
        words = f"\nlimit: at most {limit} samples of each task and seed, sets kept whole\n"
        assert words in printed
        assert len((tmp_path / str(limit) / "samples.jsonl").read_text().splitlines()) == count
        reported = probe("report", tmp_path / str(limit))[1]
        assert words in reported
        assert reported.splitlines()[:4] == printed.splitlines()[:4]
    (compared,) = json.loads(probe("compare", tmp_path / "20", tmp_path / "4", "--json")[1])
    assert (compared["difference"]["count"], compared["difference"]["value"]) == (8, 0)


def test_configuration_file_and_the_command_line_over_it(tmp_path: Path) -> None:
    (tmp_path / "probe.yaml").write_text(
        f"""
model: reader
tasks:
  cell: {{shapes: [[2, 3]], each: 3}}
  neighbour: {{shapes: [[2, 3]], each: 1}}
seeds: [3]
out: {tmp_path / "run"}
require: {{cell: 0.5}}
"""
    )
    assert probe("run", "--config", tmp_path / "probe.yaml")[0] == 0
    records = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert {one["seed"] for one in records} == {3}
    assert sum(one["task"] == "cell" for one in records) == 3
    changed = ("--seed", 4, "--limit", 2, "--task", "cell", "--out", tmp_path / "other")
    assert probe("run", "--config", tmp_path / "probe.yaml", *changed)[0] == 0
    records = [json.loads(line) for line in (tmp_path / "other" / "samples.jsonl").read_text().splitlines()]
    assert [(one["task"], one["seed"], one["tags"]["rows"]) for one in records] == [("cell", 4, 2)] * 2


def test_shapes_are_written_as_rows_x_columns(tmp_path: Path) -> None:
    for name, written in (("words", "3x5,6x4"), ("lists", "[[3, 5], [6, 4]]")):
        asked = ("--task", "cell", "--set", f"cell.shapes={written}", "--limit", "4", "--seed", 0)
        assert probe("run", "reader", *asked, "--out", tmp_path / name)[0] == 0
    words, lists = ((tmp_path / name / "samples.jsonl").read_bytes() for name in ("words", "lists"))
    assert words == lists
    assert {(one["tags"]["rows"], one["tags"]["cols"]) for one in map(json.loads, words.splitlines())} == {
        (3, 5),
        (6, 4),
    }


def test_a_file_is_no_folder_of_a_run(tmp_path: Path) -> None:
    file = tmp_path / "calls.py"
    file.write_text("")
    code, _, said = probe("run", "python:no_such_module:ask", "--out", file)
    assert code == 2
    assert said.endswith(f"out is {file}, a file; expected a folder\n")


def test_tasks_are_listed_and_drawn(tmp_path: Path) -> None:
    code, printed, _ = probe("ls", "--json", "--pictures", tmp_path / "sheet.png")
    assert code == 0
    listed = json.loads(printed)
    assert {"cell", "neighbour", "find", "moved", "needle", "time"} <= {one["name"] for one in listed}
    assert all(one["settings"] for one in listed)
    assert (tmp_path / "sheet.png").stat().st_size > 10_000


WRONG = {
    "no model": (("run",), "model is None; expected reader, hf:FOLDER"),
    "unknown model": (("run", "readr"), "model is 'readr'"),
    "unknown task": (("run", "reader", "--task", "cells"), "'cells'"),
    "unknown setting": (("run", "reader", "--task", "cell", "--set", "cell.side=3"), "'side'"),
    "setting of no task": (("run", "reader", "--task", "cell", "--set", "row.each=3"), "row.each"),
    "no value": (("run", "reader", "--set", "cell.each"), "'cell.each' is no NAME=VALUE"),
    "seed": (("run", "reader", "--seed", "one"), "seed is 'one'"),
    "limit": (("run", "reader", "--limit", "0"), "limit is 0"),
    "threshold": (("run", "reader", "--task", "cell", "--require", "row=0.5"), "'row'"),
    "file": (("run", "--config", "missing.yaml"), "missing.yaml: No such file"),
    "dtype": (("run", "hf:no", "--option", "dtype=int8"), "dtype is 'int8'; expected float32, bfloat16 or float16"),
    "option": (("run", "reader", "--option", "size=3"), "size is no option"),
    "no run": (("report", "."), "holds no run"),
    "no runs": (("compare", ".", "."), "holds no run"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line_and_leaves_nothing(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, message = WRONG[case]
    code, printed, said = probe(*arguments)
    assert code == 2, said
    assert message in said
    assert said.count("\n") == 1
    assert printed == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["tasks: [", "- cell", "modle: reader", "model: reader\nseeds: {a: 1}"])
def test_wrong_files_are_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / "probe.yaml").write_text(content)
    code, _, said = probe("run", "--config", tmp_path / "probe.yaml", "--out", tmp_path / "run")
    assert code == 2
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


TESTS = """
def test_cells(mrope_probe):
    summary = mrope_probe("cell", shapes=[[3, 5]], each=8)
    assert summary.accuracy.count == 8
    assert summary.accuracy.value > 0.9

def test_rows_are_refused(mrope_probe):
    assert mrope_probe("row", each=2).refused > 0
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Pytest as a user of the package starts it, in a folder of their own."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mrope.probes.pytest_plugin", *arguments]
    if "site-packages" in str(Path(mrope.__file__)):
        command[4:6] = []
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_plugin_asks_a_model(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TESTS)
    done = run_pytest(tmp_path, "--mrope-model=reader", f"--mrope-out={tmp_path / 'runs'}")
    assert "2 passed" in done.stdout, done.stdout
    assert len(list((tmp_path / "runs").iterdir())) == 2
    blind = run_pytest(tmp_path, "--mrope-model=reader", "--mrope-option", "blind=true")
    assert "1 failed, 1 passed" in blind.stdout, blind.stdout


def test_plugin_skips_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TESTS)
    done = run_pytest(tmp_path, "-rs")
    assert "2 skipped" in done.stdout, done.stdout
    assert "no --mrope-model to ask" in done.stdout


def test_plugin_is_an_entry_point() -> None:
    stated = (ROOT / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\nmrope = "mrope.probes.pytest_plugin"' in stated


def test_there_are_as_many_choices_as_glyphs(runs: Path) -> None:
    record = json.loads((runs / "seeing" / "samples.jsonl").read_text().splitlines()[0])
    assert sorted(record["choices"]) == sorted(GLYPHS)
    assert record["chance"] == pytest.approx(1 / 24)
