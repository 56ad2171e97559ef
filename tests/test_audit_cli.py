"""The command `mrope audit`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import mrope.cli

GRID = ("--grid", "6x10", "--frames", "4", "--device", "cpu")
ROTATION = """
import torch

THETA = 1e6 ** (-torch.arange(64, dtype=torch.float64) / 64)
AXIS = torch.tensor([0] * 16 + [1] * 24 + [2] * 24)


def rotate(q, k, ids):
    angles = ids.double()[AXIS].T * THETA
    cos, sin = (each.repeat(1, 2) for each in (angles.cos(), angles.sin()))
    return tuple(x * cos + torch.cat((-x[..., 64:], x[..., :64]), -1) * sin for x in (q, k))


def swapped(q, k, ids):
    return rotate(q, k, ids[[0, 2, 1]])
"""


def audit(*arguments: str, code: int = 0) -> str:
    """What the command prints, run in this process."""
    result = CliRunner().invoke(mrope.cli.app, ["audit", *arguments])
    assert result.exit_code == code, result.output
    return result.stdout


def test_a_table_tells_what_was_measured_and_what_it_means() -> None:
    lines = audit("qwen2-vl", *GRID).splitlines()
    assert lines[0].startswith("qwen2-vl: 0 of ")
    assert lines[1].split() == ["result", "check", "measured", "expected"]
    growth = next(line for line in lines if " growth " in line)
    assert growth.startswith("pass ")
    assert "picture 6 x 10: 10 for 60 tokens; clip 4 x 6 x 10: 10 for 240 tokens" in growth
    assert any(line.startswith("  growth: how many positions a picture or clip takes") for line in lines)


def test_a_broken_promise_comes_first_and_is_the_exit_code() -> None:
    told = audit("grid+T*16 H*24 W*24", "--like", "raster", *GRID, code=1).splitlines()
    assert told[2].split()[:2] == ["fail", "ids-as-trained"]


def test_json_holds_every_check() -> None:
    told = json.loads(audit("liere", *GRID, "--json"))
    names = [check["name"] for check in told["checks"]]
    assert told["ok"]
    assert {"rotation", "commutes", "declared"} <= set(names)
    assert ["frequencies", "its channels do not turn in pairs"] in told["skipped"]


def test_callables_of_files_and_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "turning_by_hand.py").write_text(ROTATION, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    right = audit("python:turning_by_hand.py:rotate", "--like", "qwen2-vl", *GRID)
    assert "turns-as-trained" in right
    found = audit("python:turning_by_hand:swapped", "--like", "qwen2-vl", *GRID, code=1).splitlines()
    assert "it differs along h, w" in found[2]
    sys.modules.pop("turning_by_hand")


def test_a_plot_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "audit.svg"
    told = audit("reset+THW*20 T*4", *GRID, "--plot", str(file))
    assert told.endswith(f"wrote {file}\n")
    assert file.read_text(encoding="utf-8").startswith("<?xml")


BAD_INPUT: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "nothing of this name": (("qwen9",), ("target is 'qwen9'", "hf:MODEL")),
    "no grid": (("grid", "--grid", "6"), ("'6'", "HxW")),
    "an empty grid": (("grid", "--grid", "0x4"), ("height of grid is 0",)),
    "no such dtype": (("grid", "--dtype", "int8"), ("dtype is 'int8'",)),
    "no such device": (("grid", "--device", "tpu"), ("device is 'tpu'",)),
    "no such module": (("python:no_such_module:f",), ("No module named",)),
    "a plot of no format": (("grid", "--plot", "audit.gif"), (".png, .svg or .pdf",)),
    "a base that is ignored": (("qwen2-vl", "--base", "5e5"), ("base is 500000 for qwen2-vl", "a SPLIT")),
    "a length that is ignored": (("qwen2-vl", "--length", "9"), ("length is 9, and nothing is extended",)),
    "nothing to be like": (("grid", "--like", "qwen9"), ("like is 'qwen9'",)),
    "an extension without a length": (("qwen2-vl", "--extend", "dynamic:2"), ("expected a length",)),
}


@pytest.mark.parametrize(("arguments", "words"), BAD_INPUT.values(), ids=list(BAD_INPUT))
def test_bad_input_is_one_line(
    arguments: tuple[str, ...], words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    result: Any = CliRunner().invoke(mrope.cli.app, ["audit", *arguments])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    assert result.stderr.startswith("mrope audit: ")
    assert [word for word in words if word not in result.stderr] == []
    assert list(tmp_path.iterdir()) == []


def test_a_crash_is_an_exit_code(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("def crash(spans): raise RuntimeError('no such rule')", encoding="utf-8")
    for more in ((), ("--like", "qwen2-vl")):
        lines = audit(f"python:{file}:crash", *more, *GRID, code=1).splitlines()
        assert lines[2].split()[:2] == ["fail", "ids-run"]
        assert "RuntimeError: no such rule" in lines[2]


def test_what_cannot_be_drawn_is_told_behind_the_table(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "l.png"
    result = CliRunner().invoke(mrope.cli.app, ["audit", "liere", *GRID, "--plot", str(file)])
    assert result.exit_code == 2
    assert result.stdout.startswith("liere: 0 of ")
    assert "wrote" not in result.stdout
    assert result.stderr == "mrope audit: there is nothing to draw of liere: neither positions nor frequencies\n"
    assert not file.exists()


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = CliRunner().invoke(mrope.cli.app, ["audit", "grid", *GRID, "--plot", str(tmp_path / "audit.png")])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "mrope[plot]" in result.stderr
