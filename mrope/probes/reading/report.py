"""The report: one HTML file that needs nothing else, for a phone or a wide screen, light or dark."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import mrope.probes
from mrope.data import GLYPHS
from mrope.probes.files import write_whole
from mrope.probes.markup import document, element
from mrope.probes.reading.exam import Exam, Kind, Twin
from mrope.probes.reading.findings import by_kind, findings, percent
from mrope.probes.reading.grid import CHANCE, effective_resolution
from mrope.probes.reading.look import Look
from mrope.probes.reading.report_exam import exam_sections
from mrope.probes.reading.report_looks import looks_section, space_section

NAME = "report.html"
_FIRST: tuple[tuple[Kind, str], ...] = (
    ("trained", "of questions answered right on grids of trained sizes"),
    ("unseen shape", "on shapes that training never showed"),
)


@dataclass(frozen=True, slots=True)
class Run:
    """What a report tells.

    Args:
        family: name of the family for which the pictures were cut.
        looks: at each picture.
        exam: the reader's, None where it was not asked.
        twins: readers of the study, if there is one.
        trained_cells: least and most cells of the reader's training grids.
        facts: name -> value: versions, device, seed, seconds and the like.
    """

    family: str
    looks: Sequence[Look]
    exam: Exam | None
    twins: Sequence[Twin]
    trained_cells: tuple[int, int]
    facts: Mapping[str, str]


def check_target(folder: Path) -> None:
    """Refuse a folder into which no report can be written, before any work is done.

    Raises:
        ValueError: a file stands where the folder should be, or a folder where the report should be.
        PermissionError: the folder cannot be written to.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists() or path.is_symlink())
    if not there.is_dir():
        raise ValueError(f"{there} is in the way: it is a file, and {folder / NAME} needs a folder there")
    if (folder / NAME).is_dir():
        raise ValueError(f"{folder / NAME} is in the way: it is a folder, and the report is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"{there} cannot be written to; name another folder")


def write_report(run: Run, folder: Path) -> Path:
    """Write ``report.html`` into `folder`, which is made where it is missing: whole, or not at all."""
    check_target(folder)
    page = render(run)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / NAME, page)
    return folder / NAME


def render(run: Run) -> str:
    """The report as one HTML document."""
    sections = [_head(run), space_section(), looks_section(run.looks, run.family)]
    if run.exam is None:
        sections.append(_not_asked())
    else:
        sections += exam_sections(run.exam, run.twins, run.trained_cells)
        sections.append(_meaning(run.exam, run.twins))
    sections.append(_foot(run.facts))
    style = Path(mrope.probes.__file__).with_name("report.css").read_text(encoding="utf-8")
    return document("mrope: one position space", style, element("main", "\n".join(sections)))


def _head(run: Run) -> str:
    lead = (
        "Every token of a prompt, a word or a piece of a picture, stands at one place in time, height and width. "
        "This page carries pictures to theirs at native resolution"
    )
    lead += (
        "." if run.exam is None else ", then asks a small reader whether it knows its way around grids it never saw."
    )
    parts = [
        element("p", f"mrope {escape(run.facts['mrope'])}, a report", class_="kicker"),
        element("h1", "One position space, seen and tested"),
        element("p", lead, class_="lead"),
    ]
    if run.exam is not None:
        parts.append(_figures(run.exam))
    return element("header", "".join(parts))


def _figures(exam: Exam) -> str:
    """The few numbers that one should see first."""
    figures = []
    for kind, words in _FIRST:
        right, asked = by_kind(exam, kind)
        if asked:
            figures.append((percent(right / asked), words))
    best = effective_resolution(score for _, score in exam.scores)
    figures.append(
        ("none", "of the grids was read at 95 % or better")
        if best is None
        else (f"{best.shape[0]} x {best.shape[1]}", "effective resolution: the largest grid read at 95 % or better")
    )
    if exam.shifts:
        far = max(exam.shifts, key=lambda shift: shift.delta)
        figures.append(
            (f"{far.changed:,} of {far.asked:,}", f"answers changed when all positions moved by {far.delta:,}")
        )
    figures.append((percent(CHANCE), f"chance: one glyph of {len(GLYPHS)}"))
    return element(
        "dl", "".join(element("div", element("dd", a) + element("dt", b)) for a, b in figures), class_="figures"
    )


def _not_asked() -> str:
    words = (
        "The reader was not asked about these pictures. It reads glyph grids only: one letter a block of "
        "32 x 32 pixels. <code>mrope demo</code> without file names shows what it can do, <code>mrope read</code> "
        "reads a grid of your own."
    )
    return element("section", element("h2", "No questions") + element("p", words))


def _meaning(exam: Exam, twins: Sequence[Twin]) -> str:
    found = "".join(element("dt", escape(what)) + element("dd", escape(words)) for what, words in findings(exam, twins))
    plain = (
        "A question of the reader is one word that points: it takes the position (t, h, w) of the cell it asks "
        "about, and finds the token that stands one step away. That works on a grid of any shape, because a step "
        "right is the same step everywhere: the rotary encoding sees differences of positions, never positions. "
        "Shifting all of them must therefore change nothing, and exchanging rows and columns must break every "
        "answer but the cell's own.",
        "It does not work without end. A larger grid brings distances that training never showed, and more glyphs that "
        "compete for the same glance; the curve shows where that begins for this reader.",
    )
    limits = (
        "The reader reads glyph grids, one glyph a block of 32 x 32 pixels, and nothing else: not the page, not "
        "the chart.",
        "It is tiny, trained in minutes. Its curve says something about positions, nothing about large models.",
        "The published families are followed in sizes, patches, positions and rotary tables; their weights are not "
        "run here.",
        "Standard errors come from the spread over pictures of this run, the spread over training seeds from the "
        "study.",
    )
    left = element("h3", "In plain words") + "".join(element("p", words) for words in plain)
    right = element("h3", "Limits") + element("ul", "".join(element("li", words) for words in limits))
    body = element("div", element("div", left) + element("div", right), class_="two")
    return element("section", element("h2", "What it means") + body + element("dl", found, class_="found"))


def _foot(facts: Mapping[str, str]) -> str:
    rows = "".join(
        element("tr", element("th", escape(name), scope="row") + element("td", escape(value)))
        for name, value in facts.items()
    )
    return element("footer", element("h3", "How this page was made") + element("table", rows, class_="facts"))
