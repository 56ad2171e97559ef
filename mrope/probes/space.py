"""The position space of a prompt, drawn: every token in the cell of a plane that its position names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from mrope.families import Family
from mrope.probes.markup import element, palette, text
from mrope.spans import Span, Text, parse_span

CELL, RULER, HEAD, GAP = 50, 46, 64, 36
"""Sides of a cell, of the rulers, of the heading over a panel and between panels, in the drawing's units."""

_AXES = "thw"
_SAYS = {"t": "t, time", "h": "h, rows", "w": "w, columns"}
_STYLE = """
.space text{font:13px Body,Inter,system-ui,sans-serif;fill:var(--ink)}
.space .id{font:600 12px Mono,"JetBrains Mono",ui-monospace,Menlo,Consolas,monospace}
.space .small{font-size:12px;fill:var(--muted)}.space .title{font-size:16px;font-weight:700}
.space .line{stroke:var(--rule);stroke-width:1}.space .hull{fill:none;stroke:var(--muted);stroke-dasharray:4 4}
.space .text{fill:var(--wash);stroke:var(--rule)}.space .vision{fill:var(--paper);stroke:var(--ink);stroke-width:1.3}
.space .next{fill:none;stroke:var(--muted);stroke-dasharray:3 3}
.space .t{fill:var(--t)}.space .h{fill:var(--h)}.space .w{fill:var(--w)}
"""


@dataclass(frozen=True, slots=True)
class Panel:
    """One prompt, looked at along one axis.

    Args:
        family: whose layout places the tokens.
        spans: of the prompt, in order; each is a `Span` or what `parse_span` reads.
        title: a few words above it.
        down: the axis that runs downwards.
        across: the axis that runs to the right; tokens that differ in the third alone stand behind one another.
    """

    family: Family
    spans: tuple[Span | str, ...]
    title: str
    down: str = "h"
    across: str = "w"

    def __post_init__(self) -> None:
        if len({self.down, self.across} & set(_AXES)) != 2:
            raise ValueError(f"axes are {self.down!r} and {self.across!r}; expected two of t, h and w")


@dataclass(frozen=True, slots=True)
class _Place:
    """The tokens of one cell of the plane: their ids from first to last, and whether they are text, vision or next."""

    kind: str
    first: tuple[int, ...]
    last: tuple[int, ...]
    count: int


def position_space(panels: Sequence[Panel]) -> str:
    """A self-contained SVG: `panels` side by side, each token with its three ids where they put it.

    Text runs down the diagonal, pictures are blocks, and the dashed square around a block shows where text goes on:
    after the largest of its positions. Made for small prompts: a cell has room for ids below 100.

    Raises:
        ValueError: a span does not fit its family.

    >>> import mrope
    >>> panel = Panel(mrope.family("qwen2-vl"), ("text:2", "image:1x4x6", "text:1"), "a small prompt")
    >>> position_space([panel]).count("<rect class='next'")
    0
    """
    drawn, left = [], 0
    height = 0
    for panel in panels:
        body, side = _panel(panel)
        drawn.append(element("g", body, transform=f"translate({left} 0)"))
        left, height = left + side + GAP, max(height, HEAD + side + RULER + 30)
    width = left - GAP + 24
    drawn.append(element("g", _legend(), transform=f"translate({RULER} {height - 42})"))
    paper = element("rect", width=width, height=height, rx=10, style="fill:var(--paper)")
    return element(
        "svg",
        element("style", palette() + _STYLE) + paper + element("g", "".join(drawn), transform="translate(12 0)"),
        xmlns="http://www.w3.org/2000/svg",
        class_="space",
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_label="; ".join(panel.title for panel in panels),
    )


def _panel(panel: Panel) -> tuple[str, int]:
    """The markup of one panel, and its width."""
    places, hulls = _places(panel)
    cells = 1 + max(max(place.last) for place in places.values())
    side = RULER + cells * CELL
    parts = [_heading(panel), _rulers(panel, cells)]
    for start, stop in hulls:
        corner = CELL * start
        parts.append(
            element(
                "rect", x=corner, y=corner, width=CELL * (stop - start), height=CELL * (stop - start), class_="hull"
            )
        )
        words = f"largest position {stop - 1}, so text goes on at {stop}"
        parts.append(text(words, CELL * stop - 8, CELL * stop + CELL / 2 + 4, class_="small", text_anchor="end"))
    parts += [_cell(*where, place) for where, place in places.items()]
    body = element("g", "".join(parts[1:]), transform=f"translate({RULER} {HEAD + RULER - 12})")
    return parts[0] + body, side


def _places(panel: Panel) -> tuple[dict[tuple[int, int], _Place], list[tuple[int, int]]]:
    """What stands in each (down, across) cell, and the (first, following) position of each block."""
    spans = [parse_span(span) if isinstance(span, str) else span for span in panel.spans]
    positions = panel.family.positions(spans)
    ends = [0, *(panel.family.positions(spans[: count + 1]).length for count in range(len(spans)))]
    tokens = [
        ("text" if isinstance(span, Text) else "vision", tuple(token))
        for span, (start, end) in zip(spans, pairwise(ends), strict=True)
        for token in positions.ids[:, start:end].T.tolist()
    ]
    tokens += [("next", tuple(token)) for token in positions.decode(1).ids.T.tolist()]
    down, across = _AXES.index(panel.down), _AXES.index(panel.across)
    places: dict[tuple[int, int], _Place] = {}
    for kind, ids in tokens:
        where = ids[down], ids[across]
        before = places.get(where, _Place(kind, ids, ids, 0))
        places[where] = _Place(kind, before.first, ids, before.count + 1)
    hulls = []
    for count, span in enumerate(spans):
        if not isinstance(span, Text):
            first, following = positions.ids[0, ends[count]], panel.family.positions(spans[: count + 1]).next
            hulls.append((int(first), following))
    return places, hulls


def _heading(panel: Panel) -> str:
    spans = "   ".join(str(span) for span in panel.spans)
    return text(panel.title, RULER, 28, class_="title") + text(spans, RULER, 50, class_="id")


def _legend() -> str:
    """What the signs mean."""
    key = "".join(element("tspan", axis, dx=5 if axis != "t" else None, class_=axis) for axis in _AXES)
    parts = [element("text", key, x=CELL / 2, y=18, class_="id", text_anchor="middle")]
    parts.append(text("ids of a token", CELL - 2, 18, class_="small"))
    for kind, words, left in (("text", "text", 156), ("vision", "picture or clip", 224), ("next", "next token", 356)):
        parts.append(element("rect", x=left, y=5, width=17, height=17, rx=4, class_=kind))
        parts.append(text(words, left + 24, 18, class_="small"))
    parts.append(element("rect", x=466, y=5, width=17, height=17, class_="hull"))
    parts.append(text("square up to the largest position", 490, 18, class_="small"))
    return "".join(parts)


def _rulers(panel: Panel, cells: int) -> str:
    """The grid of the plane with the numbers of both axes and their names."""
    end = cells * CELL
    parts = []
    for index in range(cells + 1):
        at = index * CELL
        parts.append(element("path", d=f"M0 {at}H{end}M{at} 0V{end}", class_="line"))
        if index < cells:
            parts.append(text(str(index), at + CELL / 2, -8, class_=f"id {panel.across}", text_anchor="middle"))
            parts.append(text(str(index), -8, at + CELL / 2 + 4, class_=f"id {panel.down}", text_anchor="end"))
    parts.append(text(_SAYS[panel.across], end, end + 20, class_=panel.across, text_anchor="end"))
    parts.append(text(_SAYS[panel.down], 0, end + 20, class_=panel.down))
    return "".join(parts)


def _cell(down: int, across: int, place: _Place) -> str:
    """One cell of the plane: a card for each token in it (three at most), ids on the first."""
    left, top, size = across * CELL + 4, down * CELL + 4, CELL - 8
    behind = range(min(place.count, 3) - 1, -1, -1)
    cards = [
        element("rect", x=left + 2.5 * k, y=top - 2.5 * k, width=size, height=size, rx=5, class_=place.kind)
        for k in behind
    ]
    return "".join(cards) + _ids(left + size / 2, top + size / 2 + 4, place)


def _ids(middle: float, base: float, place: _Place) -> str:
    """The three ids in the colours of their axes; those in which the tokens of a cell differ are a range below."""
    ids = list(zip(_AXES, place.first, place.last, strict=True))
    same = [(axis, str(a)) for axis, a, b in ids if a == b]
    ranges = [(axis, f"{a}..{b}") for axis, a, b in ids if a != b]
    lines = [(base, same)] if not ranges else [(base - 8, same), (base + 8, ranges)]
    return "".join(
        element(
            "text",
            "".join(element("tspan", word, dx=5 if k else None, class_=axis) for k, (axis, word) in enumerate(words)),
            x=middle,
            y=at,
            class_="id",
            text_anchor="middle",
        )
        for at, words in lines
    )
