"""The first part of a run's report: what each task came to, what could not be read, and how far mastery reaches."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from html import escape

from mrope.probes.markup import element, table
from mrope.probes.spatial.page_charts import bar
from mrope.probes.spatial.records import Record
from mrope.probes.spatial.summary import MASTERED, OUTCOMES, THRESHOLD, Score, TaskSummary

MASTERY = f"{100 * THRESHOLD:g} %"
OUTCOME_WORDS = {
    "right": "the right answer",
    "wrong": "another answer",
    "empty": "nothing was said",
    "unread": "words that name no answer",
    "several": "more answers than one",
    "failed": "no reply came",
}
TAG_WORDS = {
    "cells": "cells of the grid",
    "rows": "rows",
    "cols": "columns",
    "columns": "columns of the page",
    "words": "words",
    "length": "length",
    "letters": "letters of the clip",
    "frames": "frames of the clip",
    "height": "height of the print in pixels",
    "depth": "depth: 0 first, 1 last",
    "place": "place, from 0",
    "times": "times that it stands there",
}


def figures_sections(summaries: Sequence[TaskSummary], records: Sequence[Record]) -> list[str]:
    """The sections before those of single tasks, in reading order; such as have nothing to tell are left out."""
    asked = [summary for summary in summaries if summary.asked]
    return [*filter(None, (_scores(asked), _reach(asked), _outcomes(asked), _refused(records)))]


def share(value: float) -> str:
    """A share in percent.

    >>> share(0.4567)
    '45.7 %'
    """
    return "-" if math.isnan(value) else f"{100 * value:.1f} %"


def interval(one: Score) -> str:
    """The interval of a share, in percent."""
    return "-" if math.isnan(one.low) else f"{100 * one.low:.1f} to {100 * one.high:.1f} %"


def scrolled(inner: str, words: str) -> str:
    """What may be wider than a phone; keys scroll it too."""
    return element("div", inner, class_="wide", role="region", tabindex=0, aria_label=words)


def to_task(task: str) -> str:
    """A link to the section of a task."""
    return element("a", escape(task), href=f"#task-{escape(task)}")


def to_samples(words: str, task: str, outcome: str = "") -> str:
    """A link that shows the samples of a task, with one outcome where it is named."""
    return element("a", escape(words), href="#samples", data_task=task, data_outcome=outcome or None)


def summary_of(task: str) -> str:
    """What the task asks, "" if it is not one of ours."""
    from mrope.data import TASKS

    return TASKS[task].summary if task in TASKS else ""


def _scores(summaries: Sequence[TaskSummary]) -> str:
    if not summaries:
        return ""
    rows = []
    for one in summaries:
        at_chance = one.chance > 0 and one.accuracy.low <= one.chance <= one.accuracy.high
        note = element("span", "not told apart from chance", class_="tag") if at_chance else ""
        rows.append(
            (
                to_task(one.task) + element("span", escape(summary_of(one.task)) + note, class_="what"),
                bar(one.accuracy, one.chance),
                element("b", share(one.accuracy.value)),
                interval(one.accuracy),
                f"{one.asked:,}",
                share(one.chance) if one.chance else "-",
                *(share(each.value) if each else "-" for each in (one.sets, one.agreement, one.share)),
            )
        )
    columns = ("task", "0 to 100 %", "accuracy", "95 % interval", "asked", "chance", "sets", "agreement", "in part")
    caption = (
        "Share of questions answered right, with its interval; the dashed tick is what a guess gets. Sets: groups of "
        "questions that were all answered right. Agreement: groups of one question in several guises whose answers are "
        "the same. In part: the mean share of an answer that is right, of words, lists and boxes."
    )
    body = scrolled(table(columns, rows, numeric=range(2, 9), class_="score"), "accuracy by task")
    figure = element("figure", body + element("figcaption", caption))
    return element("section", element("h2", "What it gets right") + figure, id="scores")


def _reach(summaries: Sequence[TaskSummary]) -> str:
    rows = [
        (
            to_task(one.task),
            escape(TAG_WORDS.get(tag, tag)),
            element("b", "none" if best is None else f"{best:g}"),
            ", ".join(f"{size:g}" for size in one.curves[tag]),
        )
        for one in summaries
        for tag, best in one.best.items()
    ]
    if not rows:
        return ""
    caption = (
        f"The hardest value at which {MASTERY} of the answers or more are right: the largest, of print the "
        "smallest. An easier one may have been missed; the curves below tell."
    )
    assert set(MASTERED) <= set(TAG_WORDS)
    body = scrolled(table(("task", "by", "mastered", "asked"), rows, numeric=(2,), class_="reach"), "what is mastered")
    figure = element("figure", body + element("figcaption", caption))
    return element("section", element("h2", "How far that reaches") + figure, id="reach")


def _outcomes(summaries: Sequence[TaskSummary]) -> str:
    if not summaries:
        return ""
    shown = [
        outcome
        for outcome in OUTCOMES
        if outcome in ("right", "wrong") or any(outcome in o.outcomes for o in summaries)
    ]
    rows = []
    for one in summaries:
        counts = [one.outcomes.get(outcome, 0) for outcome in shown]
        links = [
            to_samples(f"{count:,}", one.task, outcome) if count else "0"
            for outcome, count in zip(shown, counts, strict=True)
        ]
        rows.append((to_task(one.task), _stacked(shown, counts), *links))
    key = "".join(
        element("span", element("i", "", class_=f"swatch {outcome}") + element("b", outcome) + OUTCOME_WORDS[outcome])
        for outcome in shown
    )
    replies = sum(one.asked for one in summaries)
    unread = sum(one.outcomes.get(outcome, 0) for one in summaries for outcome in shown[2:])
    words = (
        "Every reply could be read."
        if not unread
        else f"{unread:,} of {replies:,} {'reply' if replies == 1 else 'replies'} could not be read. Such count as "
        "wrong, and are counted here by what was amiss."
    )
    body = scrolled(table(("task", "", *shown), rows, numeric=range(2, 2 + len(shown)), class_="outcomes"), "outcomes")
    return element(
        "section",
        element("h2", "What was said") + element("p", words) + body + element("div", key, class_="key"),
        id="outcomes",
    )


def _stacked(outcomes: Sequence[str], counts: Sequence[int]) -> str:
    """A bar of one unit, parted by counts."""
    whole, left, parts = sum(counts), 0.0, []
    for outcome, count in zip(outcomes, counts, strict=True):
        width = 240 * count / whole
        parts.append(element("rect", x=left, y=0, width=width, height=12, class_=f"fill {outcome}"))
        left += width
    words = ", ".join(f"{count} {outcome}" for outcome, count in zip(outcomes, counts, strict=True) if count)
    return element("svg", "".join(parts), viewBox="0 0 240 12", class_="stack", role="img", aria_label=words)


def _refused(records: Sequence[Record]) -> str:
    reasons = Counter((record["task"], record["reason"]) for record in records if record["outcome"] == "refused")
    if not reasons:
        return ""
    rows = [
        (escape(task), escape(summary_of(task)), f"{count:,}", escape(reason))
        for (task, reason), count in reasons.items()
    ]
    words = "These samples ask for what the model cannot take or give. They are no mistakes, and count nowhere."
    body = scrolled(table(("task", "what it asks", "samples", "why not"), rows, numeric=(2,)), "what was not asked")
    return element("section", element("h2", "What it was not asked") + element("p", words) + body, id="refused")
