"""The part of a run's report on single tasks: an example, and accuracy by size, by word and by cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from mrope.probes.heat import heat_colour, heat_grid
from mrope.probes.markup import element, table
from mrope.probes.spatial.page_charts import bar, curve
from mrope.probes.spatial.page_figures import (
    MASTERY,
    TAG_WORDS,
    interval,
    scrolled,
    share,
    summary_of,
    to_samples,
)
from mrope.probes.spatial.page_samples import Chosen, picture_names, prompt_words, thumbnails
from mrope.probes.spatial.records import Record
from mrope.probes.spatial.summary import MASTERED, Score, TaskSummary
from mrope.probes.words import counted

_HEAT_SIDE, _LEAST_CELL, _MOST_CELL = 240, 6, 22
_MOST_WORDS = 240
_MOST_PICTURES = 4


def task_sections(summaries: Sequence[TaskSummary], records: Sequence[Record], chosen: Chosen) -> list[str]:
    """One section a task that was asked."""
    by_task = {}
    for record in records:
        if record["outcome"] != "refused":
            by_task.setdefault(record["task"], []).append(record)
    sections = [_task(one, by_task[one.task], chosen) for one in summaries if one.asked]
    if not sections:
        return []
    words = (
        "An example of each, a wrong answer where there is one. Bars are intervals of 95 %, red dots what a guess "
        f"gets; from the green dashes, {MASTERY}, a size or a length counts as mastered."
    )
    return [element("section", element("h2", "Task by task") + element("p", words) + "".join(sections), id="tasks")]


def _task(one: TaskSummary, records: Sequence[Record], chosen: Chosen) -> str:
    head = element("h3", escape(one.task)) + element("p", escape(summary_of(one.task)), class_="muted")
    said = [("accuracy", one.accuracy), ("sets", one.sets), ("agreement", one.agreement), ("in part", one.share)]
    rows = [(name, bar(each, one.chance if name == "accuracy" else 0), *_figures(each)) for name, each in said if each]
    columns = ("", "0 to 100 %", "share", "95 % interval", "n")
    body = scrolled(table(columns, rows, numeric=(2, 3, 4), class_="score"), f"figures of {one.task}")
    body += "".join(_part(tag, its, one) for tag, its in one.parts.items())
    left = element("div", head + _example(one.task, records, chosen))
    body += _curves(one) + _heat(one) + _numbers(one)
    return element(
        "article",
        element("div", left + element("div", body), class_="told"),
        id=f"task-{one.task}",
        class_="task",
    )


def _figures(one: Score) -> tuple[str, str, str]:
    return element("b", share(one.value)), interval(one), f"{one.count:,}"


def _part(tag: str, its: Mapping[str, Score], one: TaskSummary) -> str:
    rows = [(escape(str(value)), bar(each, one.chance), *_figures(each)) for value, each in its.items()]
    columns = (escape(tag), "0 to 100 %", "accuracy", "95 % interval", "n")
    return scrolled(table(columns, rows, numeric=(2, 3, 4), class_="score"), f"accuracy by {tag}")


def _example(task: str, records: Sequence[Record], chosen: Chosen) -> str:
    """The first wrong answer, else the first right one."""
    record = next((one for one in records if one["outcome"] == "wrong"), records[0])
    count, shown = len(picture_names(record)), list(thumbnails(record, chosen, most=_MOST_PICTURES))
    pictures = "".join(
        element("img", src=source, width=width, height=height, alt=words) for source, width, height, words in shown
    )
    if count > len(shown):
        pictures += element("p", f"{len(shown)} of {count:,} pictures or frames", class_="muted")
    said = record["reply"] or (record["read"] and f"{record['read']} (by its scores)") or record["failure"] or "nothing"
    answer = record["answer"] or " ".join(f"{side:.0f}" for side in record["box"] or ())
    lines = [
        element("p", escape(_brief(prompt_words(record)))),
        element("p", element("span", "right answer ", class_="muted") + element("b", escape(_brief(answer)))),
        element(
            "p",
            element("span", "said ", class_="muted")
            + element("b", escape(_brief(said)))
            + " "
            + element("span", record["outcome"], class_=f"badge {record['outcome']}"),
        ),
        element("p", to_samples(f"Show {_of(chosen.shown[task], len(records))}", task)),
    ]
    return element("div", element("div", pictures, class_="pictures") + "".join(lines), class_="shown")


def _of(shown: int, count: int) -> str:
    return counted(count, "sample") if shown == count else f"{shown:,} of {counted(count, 'sample')}"


def _brief(words: str) -> str:
    if len(words) <= _MOST_WORDS:
        return words
    half = _MOST_WORDS // 2
    return f"{words[:half]} [{len(words) - 2 * half:,} characters] {words[-half:]}"


def _curves(one: TaskSummary) -> str:
    """One a tag, those first that say how hard a question is."""
    tags = sorted(one.curves, key=lambda tag: tag not in MASTERED)
    if "cells" in one.curves:  # which says more than either
        tags = [tag for tag in tags if tag not in ("rows", "cols")]
    figures = [
        element("figure", curve(one.curves[tag], chance=one.chance, words=TAG_WORDS.get(tag, tag))) for tag in tags
    ]
    return element("div", "".join(figures), class_="curves") if figures else ""


def _heat(one: TaskSummary) -> str:
    """A map for each grid size, if cells of more than one were asked about."""
    maps = []
    for size, heat in one.heat.items():
        cell = min(_MOST_CELL, max(_LEAST_CELL, _HEAT_SIDE // max(len(heat), len(heat[0]))))
        maps.append(
            element("figure", heat_grid(heat, cell=cell, first=1) + element("figcaption", f"{escape(size)} cells"))
        )
    if not maps:
        return ""
    stops = ",".join(heat_colour(step / 10) for step in range(11))
    scale = element("div", "", class_="scale", style=f"background:linear-gradient(90deg,{stops})")
    key = element("figure", scale + element("figcaption", "0 to 100 % right, by cell; empty: not asked"))
    return element("div", "".join(maps) + key, class_="heat")


def _numbers(one: TaskSummary) -> str:
    """What the curves show, as a table."""
    rows = [
        (escape(TAG_WORDS.get(tag, tag)), f"{size:g}", *_figures(each))
        for tag, its in one.curves.items()
        for size, each in its.items()
    ]
    if not rows:
        return ""
    body = table(("by", "value", "accuracy", "95 % interval", "n"), rows, numeric=(1, 2, 3, 4), class_="reach")
    words = element("summary", "The curves in figures")
    return element("details", words + scrolled(body, f"curves of {one.task} in figures"))
