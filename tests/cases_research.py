"""Research layouts, first part: spans that fit each, and its rule written cell by cell from the formula."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

from hypothesis import strategies as st
from layout_cases import Block, Case, Id, Rule, cells, grids, images

from mrope import Image, Sliced, Span, Video
from mrope.layouts.centred import HopeLayout, VideoRopeLayout
from mrope.layouts.idalign import IdAlignLayout
from mrope.layouts.reset import ResetLayout
from mrope.layouts.tie import TieLayout
from mrope.layouts.v2pe import V2peLayout
from mrope.layouts.vrope import VropeLayout


def _sides(span: Span, merge: int) -> tuple[int, int, int]:
    assert isinstance(span, (Image, Video))
    return span.grid[0], span.grid[1] // merge, span.grid[2] // merge


def _reset(scale: tuple[float, float, float] = (1, 1, 1), *, reset: bool = True, merge: int = 2) -> Rule:
    def rule(span: Span, start: float, slot: int, pictures: int) -> Block:
        assert isinstance(span, (Image, Video))
        ids: list[Id] = []
        reached = start
        for f, i, j in cells(span, merge):
            inside = scale[0] * f, scale[1] * i, scale[2] * j
            ids.append((start + inside[0], *(n if reset else start + n for n in inside[1:])))
            reached = max(reached, *(start + n for n in inside))
        return ids, reached + 1

    return rule


def _centred(delta: float, *, advance: str = "code", centre: str = "code") -> Rule:
    def rule(span: Span, start: float, slot: int, pictures: int) -> Block:
        assert isinstance(span, (Image, Video))
        steps, rows, cols = _sides(span, 2)
        row0 = math.floor((rows - 1) / 2) if centre == "code" else rows / 2
        col0 = math.floor((cols - 1) / 2) if centre == "code" else cols / 2
        ids: list[Id] = []
        for f, i, j in cells(span, 2):
            time = start + delta * f
            ids.append((time, time + i - row0, time + j - col0))
        return ids, ids[-1][0] + 1 if advance == "code" else start + delta * steps

    return rule


def _vrope(order: str) -> Rule:
    def rule(span: Span, start: float, slot: int, pictures: int) -> Block:
        assert isinstance(span, (Image, Video))
        steps, rows, cols = _sides(span, 2)
        ids: list[Id] = []
        for f, h, w in cells(span, 2):
            begin = start + f * (rows + cols - 1)
            if order == "paper":
                u = w + h, w - h, -w - h, -w + h
                shift = 0, rows - 1, rows + cols - 2, cols - 1
                ids.append(tuple(begin + a + b for a, b in zip(u, shift, strict=True)))
            else:
                code = w + h, h + cols - 1 - w, rows - 1 - h + w, rows - 1 - h + cols - 1 - w
                ids.append(tuple(begin + n for n in code))
        return ids, start + steps * (rows + cols - 1)

    return rule


def _tie(steps: str, axes: int) -> Rule:
    def rule(span: Span, start: float, slot: int, pictures: int) -> Block:
        assert isinstance(span, (Image, Video))
        t, h, w = _sides(span, 2)
        count, last = t * h * w, start - 1
        ids: list[Id] = []
        for f, i, j in cells(span, 2):
            k, row, col = f + 1, i + 1, j + 1
            if steps == "whole":
                ids.append((last + row * (w + 1), last + col * (h + 1)))
            elif steps == "real":
                ids.append((last + row * (w * h + 1) / (h + 1), last + col * (w * h + 1) / (w + 1)))
            else:
                cell = (last + (count - t) / 2 + k, last + (count - h) / 2 + row, last + (count - w) / 2 + col)
                ids.append(cell[-axes:])
        return ids, last + (w + 1) * (h + 1) if steps == "whole" else last + count + 1

    return rule


def _v2pe(stride: int) -> Rule:
    def rule(span: Span, start: float, slot: int, pictures: int) -> Block:
        assert isinstance(span, (Image, Video))
        ids: list[Id] = []
        at = start - 1
        for _ in cells(span, 2):
            at += stride / 256
            ids.append((at,) * 3)
        return ids, math.ceil(at) + 1

    return rule


def _idalign(span: Span, start: float, slot: int, pictures: int) -> Block:
    if isinstance(span, Image):
        span = Sliced(span.grid)
    assert isinstance(span, Sliced)
    th, tw = span.thumbnail[1] // 2, span.thumbnail[2] // 2
    thumbnail = {(i, j): start + n for n, (i, j) in enumerate(product(range(th), range(tw)))}
    ids = list(thumbnail.values())
    if span.slices and span.slice_grid:
        (rows, cols), sh, sw = span.slices, span.slice_grid[1] // 2, span.slice_grid[2] // 2
        for r, c, i, j in product(range(rows), range(cols), range(sh), range(sw)):
            top, left = Fraction(r * sh + i, rows * sh), Fraction(c * sw + j, cols * sw)
            over = (
                position
                for (y, x), position in thumbnail.items()
                if Fraction(y, th) <= top < Fraction(y + 1, th) and Fraction(x, tw) <= left < Fraction(x + 1, tw)
            )
            ids.append(next(over))
    return [(n,) * 3 for n in ids], start + th * tw


def _clips(merge: int = 2) -> st.SearchStrategy[Span]:
    return st.one_of(images(merge), grids(merge).map(Video))


@st.composite
def _sliced(draw: st.DrawFn) -> Span:
    side, length = st.integers(1, 3), st.integers(1, 5).map(lambda n: 2 * n)
    thumbnail = 1, draw(length), draw(length)
    if draw(st.booleans()):
        return draw(st.sampled_from((Image, Sliced)))(thumbnail)
    return Sliced(thumbnail, (draw(side), draw(side)), (1, draw(length), draw(length)))


# Real steps are exact in binary here, so that decode offsets, which are differences, are the same to the bit.
CASES: dict[str, Case] = {
    "reset": Case(ResetLayout(), _clips(), _reset()),
    "reset, merge 3": Case(ResetLayout(merge=3), _clips(3), _reset(merge=3)),
    "reset, scale": Case(ResetLayout(scale=(4, 8, 3)), _clips(), _reset((4, 8, 3))),
    "reset, real scale": Case(ResetLayout(scale=(0.5, 1, 1.25)), _clips(), _reset((0.5, 1, 1.25)), exact=False),
    "reset, mm": Case(ResetLayout(scale=(4, 8, 8), origin="start"), _clips(), _reset((4, 8, 8), reset=False)),
    "videorope": Case(VideoRopeLayout(), _clips(), _centred(2)),
    "videorope, paper": Case(
        VideoRopeLayout(advance="paper", centre="paper"),
        _clips(),
        _centred(2, advance="paper", centre="paper"),
        exact=False,
    ),
    "videorope, paper's advance": Case(
        VideoRopeLayout(delta=3, advance="paper"), _clips(), _centred(3, advance="paper")
    ),
    "videorope, paper's centre": Case(
        VideoRopeLayout(centre="paper"), _clips(), _centred(2, centre="paper"), exact=False
    ),
    "videorope, real": Case(
        VideoRopeLayout(delta=0.5, advance="paper"), _clips(), _centred(0.5, advance="paper"), exact=False
    ),
    "hope": Case(HopeLayout(), _clips(), _centred(1.5), exact=False),
    "hope, 0.75": Case(HopeLayout(gamma=0.75), _clips(), _centred(0.75), exact=False),
    "hope, 1": Case(HopeLayout(gamma=1), _clips(), _centred(1)),
    "vrope": Case(VropeLayout(), _clips(), _vrope("paper"), axes=4, swapped=(1, 3)),
    "vrope, code": Case(VropeLayout(order="code"), _clips(), _vrope("code"), axes=4, swapped=(1, 2)),
    "tie": Case(TieLayout(), images(2), _tie("whole", 2), axes=2, swapped=(0, 1)),
    "tie, real": Case(TieLayout(steps="real"), images(2), _tie("real", 2), axes=2, exact=False, swapped=(0, 1)),
    "tie, unit": Case(TieLayout(steps="unit"), images(2), _tie("unit", 2), axes=2, exact=False, swapped=(0, 1)),
    "tie, unit, 3 axes": Case(TieLayout(steps="unit", axes=3), _clips(), _tie("unit", 3), exact=False),
    "v2pe": Case(V2peLayout(), _clips(), _v2pe(64), exact=False, swapped=None),
    "v2pe, 1": Case(V2peLayout(stride=1), _clips(), _v2pe(1), exact=False, swapped=None),
    "v2pe, 256": Case(V2peLayout(stride=256), _clips(), _v2pe(256), exact=False, swapped=None),
    "idalign": Case(IdAlignLayout(), _sliced(), _idalign, swapped=None),
}
