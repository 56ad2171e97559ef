"""The report of a scan as one HTML file that needs nothing else, in the look of the pages of `mrope.probes`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

import mrope
import mrope.probes.spatial
from mrope.probes.markup import document, element, number, policy, switched, table, text

from .report import Report, Section, Table
from .tally import LimitTally

WIDTH, HEIGHT = 520, 240
LEFT, RIGHT, TOP, BOTTOM = 54, 14, 16, 50
_TICK_ROOM = 46


def as_html(report: Report) -> str:
    """The report as one HTML document."""
    room = Path(mrope.probes.spatial.__file__).parent
    sheets = (room.parent / "report.css", room / "page.css", Path(__file__).parent / "page.css")
    style = switched() + "".join(path.read_text(encoding="utf-8") for path in sheets)
    script = (room / "page.js").read_text(encoding="utf-8")
    first = report.sections[0].name if report.sections else "facts"
    body = element("a", "Skip to the figures", href=f"#{first}", class_="skip")
    body += element("main", _head(report) + "".join(map(_section, report.sections)) + _foot(report))
    return document(report.title, style, body + element("script", script), head=policy(script))


def _head(report: Report) -> str:
    switch = element(
        "button", "Dark", type="button", id="theme", hidden="", aria_pressed="false", title="light or dark colours"
    )
    top = element("p", f"mrope {escape(mrope.__version__)}, scan", class_="kicker") + switch
    cells = (element("div", element("dd", escape(a)) + element("dt", escape(b))) for a, b in report.figures)
    return element(
        "header",
        element("div", top, class_="top")
        + element("h1", escape(report.title))
        + element("p", escape(report.lead), class_="lead")
        + element("dl", "".join(cells), class_="figures"),
    )


def _section(section: Section) -> str:
    words = "".join(element("p", escape(each)) for each in section.words)
    figure = histograms(section.drawn) if section.drawn else ""
    tables = "".join(_table(one) for one in section.tables if one.rows)
    return element("section", element("h2", section.title) + words + figure + tables, id=section.name, tabindex=-1)


def _table(one: Table) -> str:
    rows = [
        [element("code", escape(cell)) if place in one.names else escape(cell) for place, cell in enumerate(row)]
        for row in one.rows
    ]
    inner = table(tuple(map(escape, one.columns)), rows, numeric=one.numeric, class_="named" if one.names else None)
    body = element("div", inner, class_="wide", role="region", tabindex=0, aria_label=one.words)
    if one.folded:
        return element("details", element("summary", escape(one.words)) + body)
    return element("figure", element("h3", escape(one.words)) + body)


def _foot(report: Report) -> str:
    rows = "".join(
        element("tr", element("th", escape(name), scope="row") + element("td", escape(value)))
        for name, value in report.facts.items()
    )
    notes = element("ul", "".join(element("li", escape(note)) for note in report.notes), class_="notes")
    facts = element("h2", "How it was scanned") + element("table", rows, class_="facts") + notes
    return element("footer", facts, id="facts", tabindex=-1)


def histograms(limits: Sequence[LimitTally]) -> str:
    """A histogram for each limit, side by side on the same axes."""
    edges = [edge for limit in limits for bins in limit.bins for edge in bins[:2]]
    shares = [share for limit in limits for share in _shares(limit)]
    most = next(step for step in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1) if step >= max(map(max, shares)) - 1e-9)
    charts = "".join(_histogram(limit, min(edges), max(edges), most) for limit in limits if limit.bins)
    named = [("items", "share of the items"), ("cost", "share of their tokens"), ("limit", "the limit")]
    key = "".join(
        element("span", element("i", "", class_=f"swatch {name}") + words)
        for name, words in named[: 3 if any(limit.limit != "own" for limit in limits) else 2]
    )
    return element("div", charts, class_="histograms") + element("div", key, class_="key")


def _shares(limit: LimitTally) -> list[tuple[float, float]]:
    """The share of items and of tokens in each bin."""
    return [(count / limit.planned, tokens / limit.tokens) for *_, count, tokens in limit.bins]


def _histogram(limit: LimitTally, low: int, high: int, most: float) -> str:
    """Bars of items, and a line of tokens, over tokens on a logarithmic axis from `low` to `high`."""

    def across(tokens: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(tokens / low) / math.log(high / low)

    def down(share: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share / most)

    parts = []
    for quarter in range(5):
        base = down(most * quarter / 4)
        parts.append(element("path", d=f"M{LEFT} {number(base)}H{WIDTH - RIGHT}", class_="grid"))
        parts.append(text(f"{25 * most * quarter:g} %", LEFT - 8, base + 4, class_="tick", text_anchor="end"))
    line = []
    for (first, end, count, tokens), (items, cost) in zip(limit.bins, _shares(limit), strict=True):
        left, right = across(first), across(end)
        title = element("title", f"{first:,} to {end - 1:,} tokens: {count:,} items, {tokens:,} tokens")
        height = down(0) - down(items)
        parts.append(
            element("rect", title, x=left, y=down(items), width=right - left - 1, height=height, class_="count")
        )
        line.append(f"{number(left)} {number(down(cost))}H{number(right)}")
    parts.append(element("path", d="M" + "L".join(line), class_="cost"))
    if limit.limit != "own" and low <= int(limit.limit) <= high:
        parts.append(
            element("path", d=f"M{number(across(int(limit.limit)))} {TOP}V{HEIGHT - BOTTOM}", class_="threshold")
        )
    last = -math.inf
    for power in range(high.bit_length()):
        at = across(2**power)
        if low <= 2**power <= high:
            parts.append(element("path", d=f"M{number(at)} {HEIGHT - BOTTOM}v4", class_="axis"))
            if at - last >= _TICK_ROOM:
                parts.append(text(f"{2**power:,}", at, HEIGHT - BOTTOM + 18, class_="tick", text_anchor="middle"))
                last = at
    parts.append(text("tokens of an item", WIDTH - RIGHT, HEIGHT - 8, class_="tick", text_anchor="end"))
    words = "the family's own limit" if limit.limit == "own" else f"a limit of {int(limit.limit):,} tokens"
    drawing = element(
        "svg", "".join(parts), viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img",
        aria_label=f"items and tokens by the tokens of an item, at {words}",
    )  # fmt: skip
    return element("figure", element("h3", f"At {words}") + drawing)
