"""The report of a run: one HTML file that needs nothing else, for a phone or a wide screen, light or dark.

Every figure is in the markup. The script only shows the samples one by one, and switches the colours; the page's own
policy lets nothing else run, and nothing be fetched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import mrope.probes
from mrope.probes.files import write_whole
from mrope.probes.markup import document, element, policy, switched, table
from mrope.probes.spatial.page_figures import MASTERY, figures_sections, share
from mrope.probes.spatial.page_samples import choose_samples, samples_section
from mrope.probes.spatial.page_tasks import task_sections
from mrope.probes.spatial.records import Record, limited, read_records, read_run, unfinished
from mrope.probes.spatial.summary import MASTERED, TaskSummary, summarise
from mrope.probes.words import counted, plural

NAME = "report.html"
_MOST_FIGURES = 6
_REACH = (
    ("cells", "cells", "the largest grid"),
    ("height", "pixels", "the smallest print"),
    ("letters", "letters", "the longest clip"),
    ("words", "words", "the most words"),
)


def write_page(folder: Path) -> Path:
    """Write ``report.html`` of the run in `folder`, whole or not at all.

    Raises:
        ValueError: there is no run in the folder, or a line of it is no record.
        OSError: the folder cannot be read or written to.
    """
    run = read_run(folder)
    records = read_records(folder)
    write_whole(folder / NAME, _render(run, records, folder))
    return folder / NAME


def _render(run: Mapping[str, Any], records: Sequence[Record], folder: Path) -> str:
    """The report as one HTML document."""
    summaries = summarise(records)
    chosen = choose_samples(records, folder)
    here = Path(__file__).parent
    style = switched() + "".join(
        path.read_text(encoding="utf-8")
        for path in (Path(mrope.probes.__file__).parent / "report.css", here / "page.css")
    )
    script = (here / "page.js").read_text(encoding="utf-8")
    sections = [
        _head(run, records, summaries),
        *figures_sections(summaries, records),
        *task_sections(summaries, records, chosen),
        samples_section(chosen, records),
        _foot(run),
    ]
    body = element("a", "Skip to the samples", href="#samples", class_="skip")
    body += element("main", "\n".join(sections)) + element("script", script)
    return document(f"{run['model']}: where things are", style, body, head=policy(script))


def _head(run: Mapping[str, Any], records: Sequence[Record], summaries: Sequence[TaskSummary]) -> str:
    seeds = [str(seed) for seed in run["seeds"]]
    asked = sum(summary.asked for summary in summaries)
    tasks = sum(summary.asked > 0 for summary in summaries)
    limit = limited(run)
    lead = (
        f"{counted(asked, 'question')} of {counted(tasks, 'task')} about drawn pictures and clips whose "
        f"answers are known, {plural(len(seeds), 'seed')} {', '.join(seeds)}{limit and f', {limit}'}; on "
        f"{run['machine'].get('device', 'a machine that is not named')}."
    )
    switch = element(
        "button", "Dark", type="button", id="theme", hidden="", aria_pressed="false", title="light or dark colours"
    )
    top = (
        element("p", f"mrope {escape(str(run['machine'].get('mrope', '')))}, spatial probes", class_="kicker") + switch
    )
    return element(
        "header",
        element("div", top, class_="top")
        + element("h1", escape(str(run["model"])))
        + element("p", escape(lead), class_="lead")
        + _warnings(run, records)
        + _few(records, summaries),
    )


def _warnings(run: Mapping[str, Any], records: Sequence[Record]) -> str:
    """What must be known before any figure is read."""
    facts = run["facts"]
    marked = [record for record in records if record["outcome"] != "refused"]
    luck = sum(record["chance"] for record in marked) / max(1, len(marked))
    said = []
    if facts.get("random weights") == "yes":
        words = (
            "This model has not been trained. Whatever it gets right is luck: a guess gets "
            f"{share(luck)} of these questions, and the figures should lie around that."
        )
        said.append(("Random weights", words))
    if "blind" in facts:
        words = (
            "Each question was asked beside the pictures of another one. What is right was answered without looking; "
            f"a guess gets {share(luck)} of these questions."
        )
        said.append(("Blind", words))
    if not records:
        said.append(("No samples", "Nothing has been asked yet."))
    elif lacking := unfinished(run, records):
        said.append(("Not finished", f"{lacking}."))
    return "".join(
        element("p", element("strong", title) + " " + escape(words), class_="warning", role="note")
        for title, words in said
    )


def _few(records: Sequence[Record], summaries: Sequence[TaskSummary]) -> str:
    """The few numbers that one should see first."""
    marked = [record for record in records if record["outcome"] != "refused"]
    figures = []
    if marked:
        right = sum(record["outcome"] == "right" for record in marked)
        luck = sum(record["chance"] for record in marked) / len(marked)
        words = f"of {counted(len(marked), 'question')} answered right; a guess gets {share(luck)}"
        figures.append((share(right / len(marked)), words))
        unread = sum(record["outcome"] not in ("right", "wrong") for record in marked)
        figures.append((f"{unread:,}", f"{plural(unread, 'answer')} that could not be read; such count as wrong"))
    if refused := len(records) - len(marked):
        figures.append(
            (f"{refused:,}", f"{plural(refused, 'sample')} that this model cannot be asked; such count nowhere")
        )
    for tag, unit, words in _REACH:
        bests = [(one.best[tag], one.task) for one in summaries if one.best.get(tag) is not None]
        if bests and len(figures) < _MOST_FIGURES:
            best, task = MASTERED[tag](bests)
            figures.append((f"{best:g} {unit}", f"{words} answered right at {MASTERY} or better, task {task}"))
    cells = (element("div", element("dd", escape(a)) + element("dt", escape(b))) for a, b in figures)
    return element("dl", "".join(cells), class_="figures") if figures else ""


def _foot(run: Mapping[str, Any]) -> str:
    facts = {
        "model": run["model"],
        **run["facts"],
        **run["machine"],
        "seeds": ", ".join(map(str, run["seeds"])),
        "most samples of each task and seed, sets kept whole": "all" if run["limit"] is None else run["limit"],
    }
    settings = [
        (escape(name), element("code", escape(", ".join(f"{key} = {json.dumps(each)}" for key, each in its.items()))))
        for name, its in run["tasks"].items()
    ]
    notes = (
        "Intervals are of 95 %: the wider of Wilson's over samples and, where there are several seeds, Student's over "
        "them. Of answers that can be right in part they are Student's, or of one seed normal ones.",
        "A reply that cannot be read counts as wrong. A sample that the model cannot be asked counts nowhere.",
        "A set is a group of different questions that must all be right; an agreement, a group of the same question, "
        "about the same picture in other guises, whose answers must be one, right or not.",
        f"Mastered is a size or a length on which {MASTERY} of the answers or more are right.",
    )
    rows = "".join(
        element("tr", element("th", escape(str(name)), scope="row") + element("td", escape(str(value))))
        for name, value in facts.items()
    )
    return element(
        "footer",
        element("h2", "How it was asked")
        + element("table", rows, class_="facts")
        + element("ul", "".join(element("li", escape(note)) for note in notes), class_="notes")
        + element(
            "details",
            element("summary", "Settings of the tasks")
            + element("div", table(("task", "settings"), settings), class_="wide", tabindex=0),
        ),
    )
