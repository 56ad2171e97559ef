"""The report's two figures of the exam, as SVG: accuracy by size, and accuracy by cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from mrope.probes.heat import heat_grid
from mrope.probes.markup import element, number, text
from mrope.probes.reading.exam import Kind, Shape, Twin
from mrope.probes.reading.grid import CHANCE, GridScore

WIDTH, HEIGHT = 860, 400
LEFT, RIGHT, TOP, BOTTOM = 56, 24, 26, 56


def accuracy_curve(
    scores: Sequence[tuple[Kind, GridScore]], twins: Sequence[Twin], trained_cells: tuple[int, int] | None
) -> str:
    """Accuracy by number of cells, on a logarithmic axis, with standard errors.

    Args:
        scores: what was read, and what each shape is to the reader.
        twins: readers of a study, each a further line through the mean of its seeds.
        trained_cells: least and most cells of a grid in training; None if nothing was trained.
    """
    cells = [score.cells for _, score in scores]
    low, high = min(cells) * 0.82, max(cells) * 1.2
    parts = [_frame(low, high)]
    if trained_cells is not None:
        parts.insert(0, _band(max(trained_cells[0], low), trained_cells[1], low, high))
    parts += [_twin_line(twin, index, cells, low, high) for index, twin in enumerate(twins, 1)]
    means = [(key, _mean([s.accuracy for _, s in group])) for key, group in _by_cells(scores)]
    parts.append(element("path", d=_path(means, low, high), class_="line"))
    parts += [_point(kind, score, low, high) for kind, score in scores]
    parts += [_name(group, low, high) for _, group in _by_cells(scores) if group[0][0] == "larger"]
    return element("svg", "".join(parts), viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label="accuracy by cells")


def heat_map(score: GridScore, *, cell: int) -> str:
    """Accuracy of every cell of one shape over pictures and questions; each cell says its figure when pointed at."""
    return heat_grid(score.heat().tolist(), cell=cell)


def _across(cells: float, low: float, high: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * math.log(cells / low) / math.log(high / low)


def _down(accuracy: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - accuracy)


def _frame(low: float, high: float) -> str:
    parts = []
    for percent in (0, 25, 50, 75, 95, 100):
        base = _down(percent / 100)
        parts.append(element("path", d=f"M{LEFT} {number(base)}H{WIDTH - RIGHT}", class_="grid"))
        parts.append(text(f"{percent} %", LEFT - 8, base + 4, class_="tick", text_anchor="end"))
    ticks = [2**power for power in range(1, 14) if low <= 2**power <= high]
    for cells in ticks:
        at = _across(cells, low, high)
        parts.append(element("path", d=f"M{number(at)} {HEIGHT - BOTTOM}v5", class_="axis"))
        parts.append(text(str(cells), at, HEIGHT - BOTTOM + 20, class_="tick", text_anchor="middle"))
    parts.append(element("path", d=f"M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}", class_="axis"))
    words = "cells of the grid, which are tokens of the picture"
    parts.append(text(words, WIDTH - RIGHT, HEIGHT - 10, class_="tick", text_anchor="end"))
    chance = _down(CHANCE)
    parts.append(element("path", d=f"M{LEFT} {number(chance)}H{WIDTH - RIGHT}", class_="chance"))
    parts.append(text(f"chance {100 * CHANCE:.2f} %", WIDTH - RIGHT, chance - 6, class_="tick", text_anchor="end"))
    return "".join(parts)


def _band(first: float, last: float, low: float, high: float) -> str:
    left, right = _across(first, low, high), _across(last, low, high)
    rect = element("rect", x=left, y=TOP, width=right - left, height=HEIGHT - TOP - BOTTOM, class_="band")
    return rect + text("sizes of training", (left + right) / 2, TOP - 9, class_="tick", text_anchor="middle")


def _by_cells(scores: Sequence[tuple[Kind, GridScore]]) -> list[tuple[int, list[tuple[Kind, GridScore]]]]:
    ordered = sorted(scores, key=lambda each: each[1].cells)
    return [(key, list(group)) for key, group in groupby(ordered, key=lambda each: each[1].cells)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _path(points: Sequence[tuple[int, float]], low: float, high: float) -> str:
    return "M" + "L".join(f"{_across(cells, low, high):.1f} {_down(value):.1f}" for cells, value in points)


def _point(kind: Kind, score: GridScore, low: float, high: float) -> str:
    at, top = _across(score.cells, low, high), _down(score.accuracy)
    title = element("title", f"{_words(score.shape)}, {kind}: {100 * score.accuracy:.2f} %")
    bar = ""
    if not math.isnan(score.error):
        ends = _down(min(1, score.accuracy + score.error)), _down(max(0, score.accuracy - score.error))
        bar = element("path", d=f"M{at:.1f} {ends[0]:.1f}V{ends[1]:.1f}", class_="bar")
    return bar + element("circle", title, cx=at, cy=top, r=5, class_=f"point {kind.replace(' ', '-')}")


def _name(group: list[tuple[Kind, GridScore]], low: float, high: float) -> str:
    """The squarest shape's name, under its lowest point and to the left, where a curve that falls leaves room."""
    rows, cols = min((score.shape for _, score in group), key=lambda shape: abs(math.log(shape[0] / shape[1])))
    base = min(_down(min(score.accuracy for _, score in group)) + 20, HEIGHT - BOTTOM - 18)
    return text(f"{rows} x {cols}", _across(group[0][1].cells, low, high), base, class_="tick", text_anchor="end")


def _twin_line(twin: Twin, index: int, cells: Sequence[int], low: float, high: float) -> str:
    points: dict[int, list[float]] = {}
    for (rows, cols), values in twin.accuracy.items():
        if min(cells) <= rows * cols <= max(cells):
            points.setdefault(rows * cols, []).extend(values)
    means = [(key, _mean(points[key])) for key in sorted(points)]
    if not means:
        return ""
    title = element("title", f"{twin.name}, {twin.seeds} seeds")
    dots = "".join(
        element("circle", cx=_across(key, low, high), cy=_down(value), r=2.5, class_=f"dot twin-{index}")
        for key, value in means
    )
    return element("path", title, d=_path(means, low, high), class_=f"twin twin-{index}") + dots


def _words(shape: Shape) -> str:
    return f"{shape[0]} rows x {shape[1]} columns"
