"""What every layout is tested with: spans that fit it, and an oracle that knows its rule in slow, plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from hypothesis import strategies as st

from mrope import Audio, GridLayout, Image, Positions, Sliced, Span, Target, Text, Video
from mrope.layouts import (
    AnchoredLayout,
    CanvasLayout,
    GenerationLayout,
    NewlineLayout,
    OmniLayout,
    PageLayout,
    RasterLayout,
    SpanLayout,
    XdLayout,
)

Id: TypeAlias = tuple[float, ...]
Block: TypeAlias = tuple[list[Id], float]
Rule: TypeAlias = Callable[[Span, float, int, int], Block]


@dataclass(frozen=True)
class Case:
    """One layout under test.

    Args:
        layout: the layout.
        media: spans that fit it and are no text, among them t > 1 and h != w where it takes such.
        rule: (span, position of its first token, slot of its first token, pictures before it) -> (the ids of its tokens
            one by one, the position of what follows): written from the formula, without a line of ours.
        axes: how many axes an id has.
        exact: ids are whole numbers; else they are compared to float32's precision.
        max_media: how many media spans a prompt may hold, for layouts that take one.
        swapped: the two axes that hold rows and columns, None for layouts that have none.
        alone: a media span stands by itself in its row.
        last: spans that may stand at the end only, and take no token of the prompt.
    """

    layout: SpanLayout | AnchoredLayout
    media: st.SearchStrategy[Span]
    rule: Rule
    axes: int = 3
    exact: bool = True
    max_media: int = 4
    swapped: tuple[int, int] | None = (1, 2)
    alone: bool = False
    last: st.SearchStrategy[Span] | None = None

    def oracle(self, spans: Sequence[Span], start: float = 0) -> Block:
        """The ids of a whole prompt, token by token, and the position of what follows."""
        ids: list[Id] = []
        following, pictures = start, 0
        for span in spans:
            if isinstance(span, Target):  # generated, not a token of the prompt
                following += max(span.grid)
            elif isinstance(span, Text):
                ids += [(following + i,) * self.axes for i in range(span.length)]
                following += span.length
            else:
                block, following = self.rule(span, following, len(ids), pictures)
                ids += block
                pictures += not isinstance(span, Audio)
        return ids, following

    def prompts(self, *, targets: bool = True) -> st.SearchStrategy[list[Span]]:
        """Prompts of text and media in any order, and targets at the end where the layout has such."""
        texts = st.builds(Text, st.integers(1, 6))
        media = st.lists(self.media, max_size=self.max_media)
        last = st.lists(self.last, max_size=2) if targets and self.last is not None else st.just([])
        if self.alone:
            return st.one_of(st.lists(texts, max_size=4), self.media.map(lambda span: [span]))

        @st.composite
        def draw_prompt(draw: st.DrawFn) -> list[Span]:
            return [*draw(st.permutations([*draw(media), *draw(st.lists(texts, max_size=4))])), *draw(last)]

        return draw_prompt()


def assert_as_oracle(case: Case, spans: Sequence[Span], positions: Positions, start: float = 0) -> None:
    """The ids and the end of `positions` are those that the oracle gives to `spans`."""
    ids, following = case.oracle(spans, start)
    wanted = np.array(ids, dtype=float).reshape(len(ids), case.axes).T
    tolerance = 0 if case.exact else 1e-5 if positions.ids.dtype == torch.float32 else 1e-11
    assert positions.ids.shape == wanted.shape, spans
    assert np.allclose(positions.ids.numpy(), wanted, rtol=tolerance, atol=tolerance), (spans, positions.ids, wanted)
    assert math.isclose(positions.next, following, rel_tol=tolerance, abs_tol=tolerance), (spans, positions, following)


def grids(merge: int, steps: int = 7, side: int = 5) -> st.SearchStrategy[tuple[int, int, int]]:
    """Grids of 1 to `steps` steps and 1 to `side` merged rows and columns, in patches."""
    length = st.integers(1, side).map(lambda n: n * merge)
    return st.tuples(st.integers(1, steps), length, length)


def images(merge: int, side: int = 5) -> st.SearchStrategy[Span]:
    """Still images of 1 to `side` merged rows and columns."""
    return grids(merge, 1, side).map(Image)


def cells(span: Image | Video, merge: int) -> list[tuple[int, int, int]]:
    """The (step, row, column) of each merged cell, in the order of the tokens."""
    t, h, w = span.grid
    return [(f, i, j) for f in range(t) for i in range(h // merge) for j in range(w // merge)]


def _raster(span: Span, start: float, slot: int, pictures: int) -> Block:
    assert isinstance(span, (Image, Video))
    count = len(cells(span, 2))
    return [(start + n,) * 3 for n in range(count)], start + count


def _grid(
    *,
    merge: int = 2,
    ids_per_second: float | None = None,
    temporal_merge: int = 1,
    side_only: bool = False,
) -> Rule:
    def rule(span: Span, start: float, slot: int, pictures: int) -> Block:
        assert isinstance(span, (Image, Video))
        rows, cols = span.grid[1] // merge, span.grid[2] // merge
        steps = span.grid[0] // temporal_merge if isinstance(span, Video) else 1
        ids: list[Id] = []
        if isinstance(span, Video) and span.stamp is not None:
            stamps = span.stamp if isinstance(span.stamp, tuple) else (span.stamp,) * steps
            for stamp in stamps:
                ids += [(start + n,) * 3 for n in range(stamp)]
                start += stamp
                ids += [(start, start + i, start + j) for i in range(rows) for j in range(cols)]
                start = max(max(token) for token in ids) + 1
            return ids, start
        for f in range(steps):
            time = f
            if isinstance(span, Video) and span.seconds is not None and ids_per_second is not None:
                time = int(f * span.seconds * ids_per_second)
            ids += [(start + time, start + i, start + j) for i in range(rows) for j in range(cols)]
        return ids, start + max(rows, cols) if side_only else max(max(token) for token in ids) + 1

    return rule


def _newline(span: Span, start: float, slot: int, pictures: int) -> Block:
    assert isinstance(span, (Image, Video))
    ids: list[Id] = []
    for _ in range(span.grid[0]):
        rows, cols = span.grid[1] // 2, span.grid[2] // 2
        ids += [(start, start + i, start + j) for i in range(rows) for j in range(cols + 1)]
        start += max(rows, cols + 1)
    return ids, start


def _xd(axes: int) -> Rule:
    def rule(span: Span, start: float, slot: int, pictures: int) -> Block:
        assert isinstance(span, Image)
        rows, cols = span.grid[1] // 2, span.grid[2] // 2
        inside = [(float(j), float(i), float(pictures)) for i in range(rows) for j in range(cols + 1)]
        ids: list[Id] = [(start,) * axes]
        for n, token in enumerate(inside, 1):
            ids.append((start + n, *token)[-axes:])
        ids.append((start + len(ids),) * axes)
        return ids, start + len(ids)

    return rule


def _page(span: Span, start: float, slot: int, pictures: int) -> Block:
    assert isinstance(span, Image)
    _, rows, cols = span.grid
    ids: list[Id] = [(start, start), (start + 1, start + 1)]
    ids += [(start + 2 + i, start + 2 + j) for i in range(rows) for j in [*range(cols), cols]]
    return ids, max(max(token) for token in ids) + 1


def _half_to_even(top: int, bottom: int) -> int:
    """top / bottom rounded, halves to the even side, in whole numbers."""
    whole, rest = divmod(top, bottom)
    return whole + (2 * rest > bottom or (2 * rest == bottom and whole % 2 == 1))


def _canvas(newline: str) -> Rule:
    def rule(span: Span, start: float, slot: int, pictures: int) -> Block:
        assert isinstance(span, Sliced)
        o = int(start)
        th, tw = span.thumbnail[1] // 4, span.thumbnail[2] // 4
        rows, cols = span.slices or (0, 0)
        sh, sw = (span.slice_grid[1] // 4, span.slice_grid[2] // 4) if span.slice_grid else (0, 0)
        high, wide = (rows * sh, cols * sw) if span.slices else (th, tw)
        ids: list[Id] = [(o, max(o - 1, 0), max(o - 1, 0))]
        for i in range(th):
            for j in range(tw):
                row = _half_to_even(i * (high - 1), th - 1) if th > 1 else 0
                col = _half_to_even(j * (wide - 1), tw - 1) if tw > 1 else 0
                ids.append((o, o + row, o + col))
        ids.append((o, o + high, o + wide))
        for r in range(rows):
            for c in range(cols):
                a, b = o + r * sh, o + c * sw
                ids += [(o, a, b), *((o, a + i, b + j) for i in range(sh) for j in range(sw))]
                ids.append((o, a + sh - 1, b + sw - 1))
            if r < rows - 1:
                ids.append((o, o + (r + 1) * sh - 1, o + cols * sw))
        following = o + max(high, wide) + 1
        for _ in range(span.newlines):
            ids.append((o, o, o) if newline == "origin" else (following,) * 3)
            following += newline == "text"
        return ids, following

    return rule


def _omni(weave: str, ids_per_second: float) -> Rule:
    def rule(span: Span, start: float, slot: int, pictures: int) -> Block:
        if isinstance(span, Audio):
            return [(start + n,) * 3 for n in range(span.length)], start + span.length
        assert isinstance(span, (Image, Video))
        rows, cols = span.grid[1] // 2, span.grid[2] // 2
        seconds = span.seconds if isinstance(span, Video) and span.seconds is not None else 0
        sound = span.audio if isinstance(span, Video) else None
        ids: list[Id] = []
        end = start
        if sound is not None:
            ids = [(start,) * 3, (start if weave == "chunks" else start + 1,) * 3]
            start = ids[-1][0] + 1
        times = [f * seconds * ids_per_second for f in range(span.grid[0])]
        if weave == "chunks":
            times = [float(int(t)) for t in times]
        clip: list[Id] = [(start + t, start + i, start + j) for t in times for i in range(rows) for j in range(cols)]
        if sound is None:
            return clip, max(max(token) for token in clip) + 1
        voice: list[Id] = [(start + n,) * 3 for n in range(sound)]
        pieces = _pieces(clip, voice, start, 2 * ids_per_second) if weave == "chunks" else _merge(clip, voice)
        for piece in pieces:
            ids += piece
        end = max(max(token) for token in pieces[-1]) + 1
        ids += [(end,) * 3, (end if weave == "chunks" else end + 1,) * 3]
        return ids, ids[-1][0] + 1

    return rule


def _pieces(clip: list[Id], voice: list[Id], start: float, span: float) -> list[list[Id]]:
    """Chunks of the clip and of the voice in turns; a counter of each opens one chunk a token at most."""

    def cut(tokens: list[Id]) -> list[list[Id]]:
        chunks: list[list[Id]] = [[]]
        for token in tokens:
            if token[0] - start >= len(chunks) * span:
                chunks.append([])
            chunks[-1].append(token)
        return chunks

    one, other = cut(clip), cut(voice)
    turns: list[list[Id]] = []
    for n in range(max(len(one), len(other))):
        turns += [chunks[n] for chunks in (one, other) if n < len(chunks)]
    return turns


def _merge(clip: list[Id], voice: list[Id]) -> list[list[Id]]:
    """Tokens by time, the clip's first in a tie; what is left of one at the end is a piece of its own."""
    pieces: list[list[Id]] = []
    while clip and voice:
        first = clip if clip[0][0] <= voice[0][0] else voice
        pieces.append([first[0]])
        clip, voice = (clip[1:], voice) if first is clip else (clip, voice[1:])
    return [*pieces, clip or voice]


def _generation(span: Span, start: float, slot: int, pictures: int) -> Block:
    assert isinstance(span, Image)
    _, rows, cols = span.grid
    return [(start, start + i, start + j) for i in range(rows) for j in range(cols)], start + max(rows, cols)


def _pages(draw_sides: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[int, int, int]]:
    return st.tuples(st.just(1), draw_sides, draw_sides)


@st.composite
def _sliced(draw: st.DrawFn) -> Span:
    grids_ = _pages(st.integers(1, 5).map(lambda n: 4 * n))
    newlines = draw(st.integers(0, 2))
    if draw(st.booleans()):
        return Sliced(draw(grids_), newlines=newlines)
    side = st.integers(1, 3)
    return Sliced(draw(grids_), (draw(side), draw(side)), draw(grids_), newlines)


OMNI = st.one_of(
    images(2),
    st.builds(Audio, st.integers(1, 60)),
    st.builds(Video, grids(2), seconds=st.integers(1, 40).map(lambda n: n / 8)),
    st.builds(Video, grids(2), seconds=st.integers(1, 40).map(lambda n: n / 8), audio=st.integers(1, 120)),
)


def _clips(merge: int) -> st.SearchStrategy[Span]:
    return st.one_of(images(merge), grids(merge).map(Video))


# Eighths of a second are exact in any float, so that an oracle's arithmetic cannot differ by rounding.
SECONDS = st.integers(4, 40).map(lambda n: n / 8)
TIMED = st.one_of(images(2), st.builds(Video, grids(2), seconds=SECONDS))


@st.composite
def _stamped(draw: st.DrawFn) -> Span:
    grid = draw(grids(2))
    stamp = st.integers(0, 5)
    return Video(grid, stamp=draw(st.one_of(stamp, st.tuples(*[stamp] * grid[0]))))


CASES: dict[str, Case] = {
    "grid": Case(GridLayout(merge=2), _clips(2), _grid()),
    "grid, merge 3": Case(GridLayout(merge=3), _clips(3), _grid(merge=3)),
    "grid, seconds": Case(GridLayout(time="seconds", ids_per_second=2), TIMED, _grid(ids_per_second=2)),
    "grid, stamps": Case(GridLayout(time="stamps"), st.one_of(images(2), _stamped()), _grid()),
    "grid, temporal merge": Case(
        GridLayout(temporal_merge=2),
        st.one_of(images(2), grids(2).map(lambda grid: Video((2 * grid[0], *grid[1:])))),
        _grid(temporal_merge=2),
    ),
    "grid, side": Case(GridLayout(advance="side"), _clips(2), _grid(side_only=True)),
    "grid, seconds, side": Case(
        GridLayout(time="seconds", ids_per_second=2, advance="side"),
        TIMED,
        _grid(ids_per_second=2, side_only=True),
    ),
    "raster": Case(RasterLayout(merge=2), _clips(2), _raster, swapped=None),
    "newline": Case(NewlineLayout(), _clips(2), _newline),
    "xd": Case(XdLayout(), images(2), _xd(4), axes=4),
    "xd, 3 axes": Case(XdLayout(axes=3), images(2), _xd(3), swapped=(0, 1)),
    "page": Case(PageLayout(), _pages(st.integers(1, 7)).map(Image), _page, axes=2, swapped=(0, 1), alone=True),
    "canvas": Case(CanvasLayout(), _sliced(), _canvas("origin")),
    "canvas, newline as text": Case(CanvasLayout(newline="text"), _sliced(), _canvas("text")),
    "omni, chunks": Case(OmniLayout(), OMNI, _omni("chunks", 25)),
    "omni, small chunks": Case(OmniLayout(ids_per_second=3), OMNI, _omni("chunks", 3)),
    "omni, time": Case(OmniLayout(ids_per_second=13, weave="time"), OMNI, _omni("time", 13), exact=False),
    "generation": Case(
        GenerationLayout(),
        _pages(st.integers(1, 6)).map(Image),
        _generation,
        last=_pages(st.integers(1, 6)).map(Target),
    ),
}
