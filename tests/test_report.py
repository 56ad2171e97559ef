"""The report: one self-contained file whose numbers are those of the run."""

from __future__ import annotations

import json
import math
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

import mrope
from mrope.data import GLYPHS, asset, questions
from mrope.probes import Exam, GridScore, Run, look, render, write_report
from mrope.probes.heat import heat_colour
from mrope.probes.reading.charts import heat_map
from mrope.probes.reading.exam import Example, Kind, Said, Shift, Swap, Twin, read_study
from mrope.probes.reading.findings import findings
from mrope.probes.reading.report import check_target


def score(shape: tuple[int, int], wrong: int, pictures: int = 2) -> GridScore:
    """A score with the first `wrong` answers wrong."""
    count = len(questions(np.zeros(shape, dtype=int))[0])
    correct = torch.ones(pictures, count, dtype=torch.bool)
    correct.view(-1)[:wrong] = False
    return GridScore(shape, correct, torch.zeros(pictures, count, dtype=torch.int64), torch.zeros_like(correct))


SCORES: tuple[tuple[Kind, GridScore], ...] = (
    ("trained", score((3, 4), 1)),
    ("unseen shape", score((2, 5), 4)),
    ("larger", score((8, 9), 300)),
)


@pytest.fixture(scope="module")
def exam() -> Exam:
    picture = torch.randint(0, 256, (3, 64, 96), dtype=torch.uint8)
    said = (Said("right", (1, 0), "A", "A", 0.91234), Said("above", (1, 2), "B", "C", 0.5))
    return Exam(
        scores=SCORES,
        swaps=(Swap(score((3, 4), 0), score((3, 4), 60), 0.98765),),
        shifts=(Shift(1000, 1234, 7, 0.00321, 1e-6),),
        examples=(Example((2, 3), picture, said, 20, 22),),
    )


@pytest.fixture(scope="module")
def run(exam) -> Run:
    looks = [look(asset(name), mrope.family("qwen2.5-vl")) for name in ("chart.png", "clip.webp")]
    twins = (Twin("1-d", {(8, 9): (0.25, 0.5), (3, 4): (0.75, 0.75)}), Twin("blind", {(8, 9): (0.03,)}))
    return Run("qwen2.5-vl", looks, exam, twins, (4, 36), {"mrope": "9.9", "seed": "5", "device": "a <abacus>"})


@pytest.fixture(scope="module")
def page(run) -> str:
    return render(run)


class Cells(HTMLParser):
    """The rows of every table, as their cells' text, and every attribute that could fetch something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.fetched: list[str] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs) -> None:
        if tag not in ("br", "img", "meta"):
            self.open.append(tag)
        self.fetched += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset", "data", "action")
        ]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag) -> None:
        if tag not in ("br", "img", "meta"):
            assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data) -> None:
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data
        if "style" not in self.open:
            self.text.append(data)


def test_the_page_fetches_nothing(page):
    cells = Cells(page)
    assert cells.open == []
    assert len(cells.fetched) >= 1 + 2 + 2
    assert all(source.startswith("data:image/") for source in cells.fetched)
    assert "<script" not in page
    assert "@import" not in page
    assert all(source.startswith("data:") for source in re.findall(r"url\(([^)]*)\)", page))
    outside = re.sub(r"data:[^\")]*", "", page)
    assert set(re.findall(r"\w+://[^\"'\s)<]+", outside)) <= {"http://www.w3.org/2000/svg"}
    assert len(page) < 4_000_000


def test_every_score_is_in_the_table(page):
    rows = {row[0]: row for row in Cells(page).rows if len(row) == 12}
    for kind, each in SCORES:
        row = rows[f"{each.shape[0]} x {each.shape[1]}"]
        names = ("in", "right", "left", "above", "below")
        assert row[1:3] == [str(each.cells), kind]
        numbers = [each.accuracy, each.error, *(each.by_relation()[name] for name in names), each.sets]
        assert row[3:11] == [f"{100 * value:.2f} %" for value in numbers]
        assert row[11] == "-", "no pair was held out"


def test_every_score_is_a_point_of_the_curve(page):
    points = dict(re.findall(r"<title>(\d+ rows x \d+ columns), [a-z ]+: ([\d.]+ %)</title>", page))
    assert points == {f"{s.shape[0]} rows x {s.shape[1]} columns": f"{100 * s.accuracy:.2f} %" for _, s in SCORES}


def test_the_curve_has_the_right_heights(page):
    (chart,) = re.findall(r'<svg viewBox="0 0 860 400".*?</svg>', page, re.DOTALL)
    tops = [float(top) for top in re.findall(r'cy="([\d.]+)" r="5"', chart)]
    ticks = {
        int(word): float(base) - 4
        for base, word in re.findall(r'y="([\d.]+)" class="tick" text-anchor="end">(\d+) %', chart)
    }
    measured = [(ticks[0] - top) / (ticks[0] - ticks[100]) for top in tops]
    assert measured == pytest.approx([each.accuracy for _, each in SCORES], abs=1e-3)
    lefts = [float(left) for left in re.findall(r'cx="([\d.]+)" cy="[\d.]+" r="5"', chart)]
    cells = [math.log(each.cells) for _, each in SCORES]
    assert (lefts[2] - lefts[0]) / (lefts[1] - lefts[0]) == pytest.approx(
        (cells[2] - cells[0]) / (cells[1] - cells[0]), rel=1e-3
    )


def test_the_other_numbers_are_there_too(page, exam):
    words = " ".join(" ".join(Cells(page).text).split())
    for expected in (
        "7 of 1,234",
        "3.2e-03",
        "1.0e-06",
        "98.77 %",
        "91.23 %",
        "a <abacus>",
        f"{100 / len(GLYPHS):.2f} %",
    ):
        assert expected in words, expected
    for _, sentence in findings(exam, ()):
        assert " ".join(sentence.split()) in words


def test_findings_add_up(exam):
    found = dict(findings(exam, (Twin("1-d", {(8, 9): (0.25, 0.5)}),)))
    total = SCORES[0][1].correct.numel()
    assert found["Sizes of training, fonts it never saw"].startswith(
        f"{100 * (total - 1) / total:.2f} % of {total:,} questions"
    )
    assert found["Effective resolution"].startswith("3 x 4, 12 cells, is the largest grid read at 95.00 % or better")
    assert "2 x 5" in found["Effective resolution"], "a smaller grid that was missed is named"
    assert found["All positions + 1,000"].startswith("7 of 1,234 answers changed")
    assert found["Study: 1-D positions"] == "8 x 9 read at 25.00 % to 50.00 % over 2 training seeds."


def test_nothing_read_is_said():
    bad = Exam((("trained", score((2, 3), 20)),), (Swap(score((2, 3), 0), score((2, 3), 0), 0.0),), (), ())
    assert "no grid was read" in dict(findings(bad, ()))["Effective resolution"]


def test_a_name_with_markup_stays_a_name(tmp_path, run):
    path = tmp_path / "a<b>&amp;.png"
    path.write_bytes(asset("chart.png").read_bytes())
    page = render(Run("qwen2-vl", [look(path, mrope.family("qwen2-vl"))], None, (), (4, 36), run.facts))
    assert "a&lt;b&gt;&amp;amp;.png" in page
    assert "<b>&amp;" not in page
    assert "It reads glyph grids only" in page, "the page must say why there are no questions"


def test_each_cell_of_a_heat_map_has_the_colour_of_its_accuracy():
    each = score((2, 4), 5, pictures=1)  # all of the first cell, some of the second
    rects = re.findall(r'<rect x="(\d+)" y="(\d+)" width="9" height="9" style="fill:([^"]+)">', heat_map(each, cell=10))
    drawn = {(int(top) // 10, int(left) // 10): colour for left, top, colour in rects}
    heat = each.heat()
    assert drawn == {(row, col): heat_colour(heat[row, col].item()) for row in range(2) for col in range(4)}
    assert len({heat_colour(value) for value in (0.0, 0.5, 1.0)}) == 3
    assert heat[0, 0] < 1, "the first cell has the wrong answers"


def test_a_study_is_read_by_twin_and_shape(tmp_path):
    runs = [
        {"twin": twin, "seed": seed, "scores": {"8x9": {"accuracy": value}, "3x12": {"accuracy": 1.0}}}
        for twin, seed, value in (("none", 0, 0.99), ("blind", 0, 0.03), ("none", 1, 0.97))
    ]
    (tmp_path / "study.json").write_text(json.dumps({"runs": runs}))
    ours, blind = read_study(tmp_path / "study.json")
    assert (ours.name, ours.seeds, ours.accuracy[8, 9], ours.accuracy[3, 12]) == ("none", 2, (0.99, 0.97), (1.0, 1.0))
    assert (blind.name, blind.accuracy[8, 9]) == ("blind", (0.03,))
    assert read_study(tmp_path / "none.json") == ()


BARE = Run("qwen2-vl", (), None, (), (4, 36), {"mrope": "9.9"})


def test_writing_makes_the_folder_and_leaves_nothing_else(tmp_path):
    target = write_report(BARE, tmp_path / "new" / "out")
    assert target.read_text(encoding="utf-8") == render(BARE)
    assert [path.name for path in target.parent.iterdir()] == ["report.html"]


def test_a_failed_write_keeps_the_old_report(tmp_path, monkeypatch):
    (tmp_path / "report.html").write_text("old")

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk is full"):
        write_report(BARE, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text() == "old"


@pytest.mark.parametrize("way", ["out", "out/deeper/still"])
def test_a_file_in_the_way_is_refused(tmp_path, way):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(ValueError, match="out is in the way: it is a file"):
        check_target(tmp_path / Path(way))


def test_a_folder_in_the_reports_way_is_refused(tmp_path):
    (tmp_path / "report.html").mkdir()
    with pytest.raises(ValueError, match=r"report.html is in the way: it is a folder"):
        check_target(tmp_path)
