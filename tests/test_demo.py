"""`mrope demo` and `mrope read`: the whole run on small settings, and what they refuse."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sources import ROOT
from typer.testing import CliRunner

import mrope.cli
from mrope.cli.read import parse_question
from mrope.data import ASSETS, GLYPHS, asset, draw_grid, fonts, questions, sample_key
from mrope.positions import Positions
from mrope.probes import Syllabus, draw_grids, run_demo, score_grid, swap_axes, take_exam
from mrope.reader import Reader

SMALL = Syllabus(
    shapes=(("trained", (2, 3)), ("unseen shape", (3, 2)), ("larger", (3, 4))),
    pictures=2,
    moved=((2, 3),),
    moved_pictures=1,
    deltas=(1, 1000),
    examples=((2, 3),),
)


@dataclass
class Recorder:
    """A screen that keeps what it is told."""

    said: list[str] = field(default_factory=list)
    tables: list[list[tuple[object, ...]]] = field(default_factory=list)
    tracked: list[str] = field(default_factory=list)

    def track(self, items: Iterable[Any], what: str) -> Iterator[Any]:
        self.tracked.append(what)
        return iter(items)

    def say(self, words: str) -> None:
        self.said.append(words)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        assert all(len(row) == len(columns) for row in rows)
        self.tables.append([tuple(columns), *(tuple(row) for row in rows)])


@pytest.fixture(scope="module")
def untrained() -> Reader:
    torch.manual_seed(0)
    return Reader().eval()


def test_the_whole_demo_writes_what_it_says(tmp_path, untrained):
    screen = Recorder()
    report = run_demo([], out=tmp_path / "out", screen=screen, device="cpu", syllabus=SMALL, reader=untrained)
    page = report.read_text(encoding="utf-8")
    plans, positions, scores, examples = screen.tables
    assert [row[0] for row in plans[1:]] == list(ASSETS)
    assert plans[3][1:4] == ("870 wide x 610 high", "868 wide x 616 high", "1 x 44 x 62")
    assert [row[-1] for row in plans[1:]] == ["exact"] * 4
    assert (
        positions[8] == ("", "image:1x44x62", 682, "15, 15, 15", "15, 36, 45")[:0] or positions[8][1] == "image:1x44x62"
    )
    for row, (kind, shape) in zip(scores[1:], SMALL.shapes, strict=True):
        again = score_grid(untrained, shape, fonts("held-out"), pictures=2)
        assert row[:4] == (f"{shape[0]} x {shape[1]}", shape[0] * shape[1], kind, f"{100 * again.accuracy:.2f} %")
        assert str(row[3]) in page
    assert len(examples) - 1 >= 5
    assert all(name in page for name in ASSETS)
    assert screen.tracked == ["looking at pictures", "asking about grids", "swapping h and w", "shifting positions"]
    assert any("no grid was read at 95.00 % or better" in words for words in screen.said)
    assert screen.said[-1].startswith(str(report))


def test_the_reader_that_ships_is_asked_and_its_study_told(tmp_path):
    screen = Recorder()
    report = run_demo([], out=tmp_path, screen=screen, device="cpu", syllabus=SMALL)
    _, _, scores, _ = screen.tables
    assert all(float(str(row[3]).removesuffix(" %")) > 90 for row in scores[1:])
    page = report.read_text(encoding="utf-8")
    assert "Study: 1-D positions" in page
    assert "Study: blind" in page


def test_the_same_seed_gives_the_same_numbers(untrained):
    one, same, other = (take_exam(untrained, SMALL, seed=seed) for seed in (3, 3, 4))
    predicted = [torch.cat([score.predicted.flatten() for _, score in exam.scores]) for exam in (one, same, other)]
    assert torch.equal(predicted[0], predicted[1])
    assert not torch.equal(predicted[0], predicted[2])
    assert one.shifts == same.shifts


def test_a_shift_changes_nothing_but_roundings(untrained):
    for shift in take_exam(untrained, SMALL).shifts:
        assert shift.asked == len(questions(np.zeros((2, 3)))[0])
        assert shift.changed == 0
        assert 0 <= shift.largest_exact < 1e-5


def test_a_reader_that_breaks_under_a_shift_is_caught(untrained, monkeypatch):
    monkeypatch.setattr(Positions, "shift", lambda self, delta: swap_axes(self))
    (shift, _) = take_exam(untrained, SMALL).shifts
    assert shift.largest > 1e-3


def test_the_mirror_is_that_of_swapped_axes(untrained, monkeypatch):
    def follow(reader: object, grid: Any, *, move: Any = None) -> torch.Tensor:
        """A reader that goes where the positions say, right or wrong."""
        (rows, cols), (cells, relations, _) = grid.glyphs.shape, questions(grid.glyphs)
        steps = [(0, 0), (0, 1), (0, -1), (-1, 0), (1, 0)]
        logits = torch.zeros(len(cells), len(GLYPHS))
        for index, (cell, relation) in enumerate(zip(cells, relations, strict=True)):
            down, right = steps[relation][::-1] if move is swap_axes else steps[relation]
            row, col = cell // cols + down, cell % cols + right
            if 0 <= row < rows and 0 <= col < cols:
                logits[index, grid.glyphs[row, col]] = 1
        return logits

    monkeypatch.setattr("mrope.probes.reading.grid.ask_everything", follow)
    monkeypatch.setattr("mrope.probes.reading.exam.ask_everything", follow)
    (swap,) = take_exam(untrained, SMALL).swaps
    assert swap.before.accuracy == 1.0
    assert swap.mirrored == 1.0


def test_examples_show_the_answers_they_gave(untrained):
    (example,) = take_exam(untrained, SMALL).examples
    (grid,) = draw_grids((2, 3), fonts("held-out"), pictures=1)
    answers = untrained.ask(grid.picture, [(said.relation, said.cell) for said in example.said])
    assert [said.said for said in example.said] == [answer.glyph for answer in answers]
    assert [said.probability for said in example.said] == pytest.approx([a.probability for a in answers], rel=1e-4)
    lines = grid.text().split("\n")
    steps = {"in": (0, 0), "right": (0, 1), "left": (0, -1), "above": (-1, 0), "below": (1, 0)}
    for said in example.said:
        (row, col), (down, right) = said.cell, steps[said.relation]
        assert said.right == lines[row + down][col + right]
    assert {said.relation for said in example.said} == set(steps)


def test_files_of_the_users_are_shown_and_not_asked_about(tmp_path):
    screen = Recorder()
    shutil.copy(asset("chart.png"), tmp_path / "mine.png")
    report = run_demo(
        [tmp_path / "mine.png", asset("clip.webp")], out=tmp_path / "out", screen=screen, family="qwen3-vl"
    )
    plans, positions = screen.tables
    assert [row[0] for row in plans[1:]] == ["mine.png", "clip.webp"]
    assert positions[5][1] == "video:2x18x26+6"
    assert any("glyph grids only" in words for words in screen.said)
    assert "glyph grids only" in report.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    (folder / "text.png").write_text("no picture\n")
    (folder / "empty.png").touch()
    whole = asset("photo.jpg").read_bytes()
    (folder / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "in-the-way").write_text("mine")
    Image.new("RGB", (10_000, 20)).save(folder / "thin.png")
    return folder


BAD_INPUT = {
    "missing file": (("demo", "missing.png"), "missing.png: No such file"),
    "text file": (("demo", "text.png"), "text.png: not a picture"),
    "zero bytes": (("demo", "empty.png"), "empty.png: the file is empty"),
    "truncated": (("demo", "truncated.jpg"), "truncated.jpg"),
    "thin": (("demo", "thin.png"), "thin.png"),
    "folder": (("demo", "."), "is a folder"),
    "out is a file": (("demo", "--out", "in-the-way"), "in-the-way is in the way"),
    "family": (("demo", "--family", "qwen9"), "unknown family 'qwen9'"),
    "device": (("demo", "--device", "abacus"), "abacus"),
    "read a missing file": (("read", "missing.png", "--ask", "in 0,0"), "missing.png: No such file"),
    "read a text file": (("read", "text.png"), "text.png: not a picture"),
    "a question that is none": (("read", "text.png", "--ask", "east of 1,1"), "'east of 1,1' cannot be read"),
}


@pytest.mark.parametrize(("arguments", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_one_line(bad, monkeypatch, arguments, words):
    monkeypatch.chdir(bad)
    before = sorted(bad.iterdir())
    result = CliRunner().invoke(mrope.cli.app, arguments)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert words in line
    assert sorted(bad.iterdir()) == before, "something was written"


def test_the_real_command_tells_one_line(bad):
    run = subprocess.run(
        [sys.executable, "-m", "mrope", "demo", "text.png"],
        cwd=bad, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (run.returncode, len(run.stderr.splitlines())) == (2, 1)
    assert not (bad / "out").exists()


@pytest.mark.parametrize(
    ("words", "question"),
    [
        ("right of 2,3", ("right", (2, 3))),
        ("left of 0, 10", ("left", (0, 10))),
        ("above 1,0", ("above", (1, 0))),
        (" In 4,5 ", ("in", (4, 5))),
    ],
)
def test_questions_are_read_from_words(words, question):
    assert parse_question(words) == question


@pytest.mark.parametrize("words", ["", "right", "right of 2", "right of -1,2", "in 1,2,3", "in a,b"])
def test_other_words_are_no_question(words):
    with pytest.raises(ValueError, match="cannot be read"):
        parse_question(words)


def test_read_answers_and_reads(tmp_path):
    rng = np.random.default_rng(1)
    grid = draw_grid(sample_key(3, 5, rng), fonts("held-out"), rng)
    grid.picture.save(tmp_path / "grid.png")
    rows = grid.text().split("\n")

    def output(*options: str) -> str:
        result = CliRunner().invoke(mrope.cli.app, ("read", str(tmp_path / "grid.png"), *options))
        assert result.exit_code == 0, result.output
        return result.stdout

    assert output().split() == rows
    assert json.loads(output("--json"))["rows"] == rows
    (first, second) = json.loads(output("--ask", "right of 1,3", "--ask", "below 0,0", "--json"))["answers"]
    assert (first["relation"], first["row"], first["column"], first["glyph"]) == ("right", 1, 3, rows[1][4])
    assert second["glyph"] == rows[1][0]
    assert 0 < first["probability"] <= 1
    assert f"right of 1,3  {rows[1][4]}" in output("--ask", "right of 1,3")
