"""The cases of circle, ring and anchored layouts: see `layout_cases`."""

from __future__ import annotations

import math

from hypothesis import strategies as st
from layout_cases import Block, Case, Id, Rule, cells, grids, images

from mrope import GridLayout, Image, Span, Video
from mrope.layouts.anchored import AnchoredLayout
from mrope.layouts.circle import CircleLayout
from mrope.layouts.rings import PypeLayout, RingLayout


def circle(*, radius: float = 10, factor: float = 0, alpha: float = 0.5, merge: int = 2) -> Rule:
    """`factor` above 0 stands for a radius that goes by the size of the image."""

    def rule(span: Span, start: float, slot: int, pictures: int) -> Block:
        assert isinstance(span, Image)
        rows, cols = span.grid[1] // merge, span.grid[2] // merge
        corner = max((rows - 1) / 2, (cols - 1) / 2)
        size = factor * corner if factor else radius
        angles = [math.atan2(i - (rows - 1) / 2, j - (cols - 1) / 2) for _, i, j in cells(span, merge)]
        least, most = min(angles), max(angles)
        ids: list[Id] = []
        for k, angle in enumerate(angles):
            stretched = 2 * math.pi * (angle - least) / (most - least) if most > least else 0
            turn = alpha * stretched + (1 - alpha) * 2 * math.pi * k / len(angles)
            sin, cos = math.sin(turn), math.cos(turn)
            t = size * 2 * sin / math.sqrt(6)
            h = size * (cos / math.sqrt(2) - sin / math.sqrt(6))
            w = size * (-cos / math.sqrt(2) - sin / math.sqrt(6))
            ids.append((start + t, start + h, start + w))
        return ids, 1 + max(max(token) for token in ids)

    return rule


def rings(kind: str = "chebyshev", level: int = 1, merge: int = 2) -> Rule:
    """`level` is PyPE's k."""

    def rule(span: Span, start: float, slot: int, pictures: int) -> Block:
        assert isinstance(span, Image)
        rows, cols = span.grid[1] // merge, span.grid[2] // merge
        places = [(i, j) for _, i, j in cells(span, merge)]
        if kind == "manhattan":
            ends = [(i, j) for i, j in places if i in (0, rows - 1) and j in (0, cols - 1)]
            ring = [min(abs(i - a) + abs(j - b) for a, b in ends) for i, j in places]
        else:
            ends = [(i, j) for i, j in places if i in (0, rows - 1) or j in (0, cols - 1)]
            ring = [min(max(abs(i - a), abs(j - b)) for a, b in ends) for i, j in places]
        count = len(set(ring))
        kept = count + 1 - min(level, count)
        return [(start + min(r, kept - 1),) * 3 for r in ring], start + kept

    return rule


def grid(span: Span, start: float, slot: int, pictures: int) -> Block:
    """M-RoPE, for clips with text between their steps as well."""
    assert isinstance(span, (Image, Video))
    ids: list[Id] = []
    if isinstance(span, Video) and span.stamp is not None:
        stamps = span.stamp if isinstance(span.stamp, tuple) else (span.stamp,) * span.grid[0]
        for stamp in stamps:
            ids += [(start + n,) * 3 for n in range(stamp)]
            step, start = grid(Image((1, *span.grid[1:])), start + stamp, slot, pictures)
            ids += step
        return ids, start
    ids = [(start + f, start + i, start + j) for f, i, j in cells(span, 2)]
    return ids, 1 + max(max(token) for token in ids)


@st.composite
def stamped(draw: st.DrawFn) -> Span:
    """Clips with text between their steps."""
    shape = draw(grids(2, steps=4))
    stamp = st.integers(0, 3)
    return Video(shape, stamp=draw(st.one_of(stamp, st.tuples(*[stamp] * shape[0]))))


CASES: dict[str, Case] = {
    "circle": Case(CircleLayout(), images(2), circle(), exact=False),
    "circle, merge 3": Case(CircleLayout(merge=3, radius=2.5), images(3), circle(radius=2.5, merge=3), exact=False),
    "circle, auto": Case(CircleLayout(radius="auto"), images(2), circle(factor=1), exact=False),
    "circle, auto 3": Case(CircleLayout(radius="auto", factor=3), images(2), circle(factor=3), exact=False),
    "circle, even": Case(CircleLayout(alpha=0), images(2), circle(alpha=0), exact=False),
    "circle, by angle": Case(CircleLayout(alpha=1), images(2), circle(alpha=1), exact=False),
    "circle, layers": Case(CircleLayout(layers=5), images(2), circle(), exact=False),
    "circle, first layers": Case(CircleLayout(layers=4, alternate="first"), images(2), circle(), exact=False),
    "circle, last layers": Case(CircleLayout(layers=4, alternate="last"), images(2), circle(), exact=False),
    "circle, all layers": Case(CircleLayout(layers=2, alternate="all"), images(2), circle(), exact=False),
    "rings": Case(RingLayout(), images(2, side=7), rings(), swapped=None),
    "rings, merge 1": Case(RingLayout(merge=1), images(1, side=7), rings(merge=1), swapped=None),
    "rings, manhattan": Case(RingLayout(kind="manhattan"), images(2, side=7), rings("manhattan"), swapped=None),
    "rings, flat": Case(
        RingLayout(kind="manhattan", flat=1), images(2, side=7), rings("manhattan", level=2), swapped=None
    ),
    "pype": Case(PypeLayout(layers=7, jump=2), images(2, side=7), rings(), swapped=None),
    "anchored": Case(AnchoredLayout(GridLayout()), st.one_of(images(2), grids(2).map(Video)), grid),
    "anchored, stamps": Case(AnchoredLayout(GridLayout(time="stamps")), st.one_of(images(2), stamped()), grid),
    "anchored, layers": Case(AnchoredLayout(CircleLayout(layers=3)), images(2), circle(), exact=False),
}
