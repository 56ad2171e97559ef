"""Figures of a run's report, as SVG: shares with their intervals, in rows and over a size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import median

from mrope.probes.markup import element, number, text
from mrope.probes.spatial.summary import THRESHOLD, Score

WIDTH, HEIGHT = 330, 226
LEFT, RIGHT, TOP, BOTTOM = 46, 18, 14, 46
_BAR_WIDTH, _BAR_HEIGHT, _EDGE = 240, 22, 6
_TICK_ROOM = 30


def bar(one: Score, chance: float) -> str:
    """A share between 0 and 1 as a dot with its interval, and a tick at chance where a guess gets anything."""

    def across(share: float) -> float:
        return _EDGE + (_BAR_WIDTH - 2 * _EDGE) * share

    middle = _BAR_HEIGHT / 2
    parts = [
        element("path", d=f"M{_EDGE} {middle:g}H{_BAR_WIDTH - _EDGE}", class_="grid"),
        *(element("path", d=f"M{number(across(at))} 4v14", class_="grid") for at in (0, 0.25, 0.5, 0.75, 1)),
    ]
    if chance > 0:
        parts.append(element("path", d=f"M{number(across(chance))} 1v20", class_="chance"))
    words = "nothing asked"
    if one.value == one.value:
        words = f"{100 * one.value:.1f} %"
        if not math.isnan(one.low):
            ends = number(across(one.low)), number(across(one.high))
            parts.append(element("path", d=f"M{ends[0]} {middle:g}H{ends[1]}", class_="interval"))
        parts.append(element("circle", cx=across(one.value), cy=middle, r=4.5, class_="point trained"))
    return element(
        "svg", "".join(parts), viewBox=f"0 0 {_BAR_WIDTH} {_BAR_HEIGHT}", class_="share", role="img", aria_label=words
    )


def curve(points: Mapping[float, Score], *, chance: float, words: str) -> str:
    """Accuracy over a size or a length, with the interval of each point; sizes that crowd at one end are spread.

    Args:
        points: size -> accuracy.
        chance: of a guess; 0 draws no line.
        words: what the size is.
    """
    sizes = sorted(points)
    across = _across(sizes)
    parts = [_frame(chance)]
    last = -math.inf
    for size in sizes:
        at = across(size)
        parts.append(element("path", d=f"M{number(at)} {HEIGHT - BOTTOM}v4", class_="axis"))
        if at - last >= _TICK_ROOM:
            parts.append(text(f"{size:g}", at, HEIGHT - BOTTOM + 18, class_="tick", text_anchor="middle"))
            last = at
    parts.append(text(words, WIDTH - RIGHT, HEIGHT - 8, class_="tick", text_anchor="end"))
    line = "L".join(f"{number(across(size))} {number(_down(points[size].value))}" for size in sizes)
    parts.append(element("path", d=f"M{line}", class_="line"))
    for size in sizes:
        one, at = points[size], across(size)
        if not math.isnan(one.low):
            ends = number(_down(one.high)), number(_down(one.low))
            parts.append(element("path", d=f"M{number(at)} {ends[0]}V{ends[1]}", class_="interval"))
        title = element("title", f"{size:g}: {100 * one.value:.1f} % of {one.count:,}")
        parts.append(element("circle", title, cx=at, cy=_down(one.value), r=5.0, class_="point trained"))
    return element(
        "svg", "".join(parts), viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=f"accuracy by {words}"
    )


def _across(sizes: list[float]) -> Callable[[float], float]:
    """From a size to its place: logarithmic where most sizes lie near the least one, which may be 0."""
    least, most = sizes[0], sizes[-1]
    far = least >= 0 and median(sizes) < 0.3 * (least + most)
    scaled: Callable[[float], float] = math.log1p if far else float
    low, high = scaled(least), scaled(most)
    room = WIDTH - LEFT - RIGHT - 28
    return lambda size: LEFT + 14 + room * ((scaled(size) - low) / (high - low) if high > low else 0.5)


def _down(accuracy: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - accuracy)


def _frame(chance: float) -> str:
    parts = []
    for percent in (0, 25, 50, 75, 100):
        base = _down(percent / 100)
        parts.append(element("path", d=f"M{LEFT} {number(base)}H{WIDTH - RIGHT}", class_="grid"))
        parts.append(text(f"{percent} %", LEFT - 8, base + 4, class_="tick", text_anchor="end"))
    parts.append(element("path", d=f"M{LEFT} {number(_down(THRESHOLD))}H{WIDTH - RIGHT}", class_="threshold"))
    if chance > 0:
        base = _down(chance)
        parts.append(element("path", d=f"M{LEFT} {number(base)}H{WIDTH - RIGHT}", class_="chance"))
    return "".join(parts)
