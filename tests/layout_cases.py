"""What every layout is tested with: spans that fit it, and an oracle that knows its rule in slow, plain Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hypothesis import strategies as st

from mrope import GridLayout, Image, Layout, Span, Text, Video
from mrope.layouts import RasterLayout

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
    """

    layout: Layout
    media: st.SearchStrategy[Span]
    rule: Rule
    axes: int = 3
    exact: bool = True
    max_media: int = 4
    swapped: tuple[int, int] | None = (1, 2)

    def oracle(self, spans: Sequence[Span], start: float = 0) -> Block:
        """The ids of a whole prompt, token by token, and the position of what follows."""
        ids: list[Id] = []
        following, pictures = start, 0
        for span in spans:
            if isinstance(span, Text):
                ids += [(following + i,) * self.axes for i in range(span.length)]
                following += span.length
            else:
                block, following = self.rule(span, following, len(ids), pictures)
                ids += block
                pictures += 1
        return ids, following

    def prompts(self) -> st.SearchStrategy[list[Span]]:
        """Prompts of text and media in any order."""
        texts = st.builds(Text, st.integers(1, 6))
        media = st.lists(self.media, max_size=self.max_media)

        @st.composite
        def draw_prompt(draw: st.DrawFn) -> list[Span]:
            return draw(st.permutations([*draw(media), *draw(st.lists(texts, max_size=4))]))

        return draw_prompt()


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
}
