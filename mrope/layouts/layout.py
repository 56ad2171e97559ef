"""What every layout can do, and the frame that most of them fill in: span after span, on the host, in one pass.

Letters: A axes, N tokens, T temporal steps, H and W the merged grid (one token a cell).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, ClassVar, Protocol, get_args, runtime_checkable

import numpy as np
import torch

from mrope.checks import Number, whole
from mrope.positions import End, Positions
from mrope.spans import MOST, Audio, Grid, Image, Sliced, Span, Text, Video


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a layout promises about a prompt of text, one picture or clip, and text; `mrope.probes.audit` measures it.

    Args:
        text_is_1d: text alone gets 0, 1, 2, ... on every axis.
        clears_before: no axis of the block goes back to a position of the text before it, or further.
        clears_after: no axis of the block reaches a position of the text behind it, or further.
        distinct: no two tokens of the block share their ids.
        monotone: the first axis never decreases along the prompt.
        symmetric: on every axis the centre of the block lies half-way between the text tokens before and behind it.
    """

    text_is_1d: bool = True
    clears_before: bool = True
    clears_after: bool = True
    distinct: bool = True
    monotone: bool = True
    symmetric: bool = False


@runtime_checkable
class Layout(Protocol):
    """A rule from spans to coordinates ("position design")."""

    def __call__(self, spans: Sequence[Span], start: Number | Positions = 0) -> Positions:
        """The positions of `spans`, in the order of the prompt.

        Args:
            spans: what the tokens are.
            start: the position of the first token, or the positions that these spans go on from: an earlier turn
                whose tokens lie in a cache. Either way the result holds the new tokens alone.
        """
        ...

    def tokens(self, span: Span) -> int:
        """How many tokens of the prompt `span` takes.

        Raises:
            ValueError: the span does not fit the layout.
        """
        ...


@dataclass(frozen=True, slots=True)
class SpanLayout(ABC):
    """The frame of a layout that places one span after the other: text on the diagonal, all else as a layout says.

    Args:
        merge: patches per token and side.
    """

    merge: int = 2

    axes: ClassVar[int] = 3
    dtype: ClassVar[Any] = np.int64  # of the ids; a float in real-valued layouts

    def __post_init__(self) -> None:
        object.__setattr__(self, "merge", whole("merge", self.merge, 1))

    @property
    def traits(self) -> Traits:
        """What the layout promises."""
        return Traits()

    @abstractmethod
    def growth(self, t: int, h: int, w: int) -> Number:
        """The positions that a picture (t = 1) or clip of the merged grid (t, h, w) takes, as it is declared."""

    @abstractmethod
    def media_tokens(self, span: Any) -> int:
        """How many tokens a span takes that is no text."""

    @abstractmethod
    def place(self, block: np.ndarray, span: Any, end: End) -> Number:
        """Write the ids of a span that is no text into its `block` (A, n); return the position of what follows."""

    def tokens(self, span: Span) -> int:
        """How many tokens of the prompt `span` takes.

        Raises:
            TypeError: it is no span.
            ValueError: the span does not fit the layout.
        """
        return span.length if isinstance(span, Text) else self.media_tokens(span)

    def __call__(self, spans: Sequence[Span], start: Number | Positions = 0) -> Positions:
        """The positions of `spans`, in the order of the prompt: see `Layout`.

        Raises:
            ValueError: a span does not fit the layout.
        """
        end = self.start_of(start)
        first = end.slot
        counts = [self.tokens(span) for span in spans]
        check_total(sum(counts))
        ids = np.empty((self.axes, sum(counts)), dtype=self.dtype)
        done, pictures, following, run = 0, end.pictures, end.next, end.run
        for span, count in zip(spans, counts, strict=True):
            block = ids[:, done : done + count]
            if isinstance(span, Text):
                block[:] = line(following, count, self.dtype)
                following += count
            else:
                at = End(following, first + done, pictures, run)
                following = run = self.place(block, span, at)
                pictures += isinstance(span, (Image, Video, Sliced))
            done += count
        return Positions.of_document(torch.from_numpy(ids), End(following, first + done, pictures, run))

    def start_of(self, start: Number | Positions) -> End:
        """Where a prompt begins.

        Raises:
            TypeError: `start` is neither a number nor positions.
            ValueError: it is not finite, or no whole number where the ids are, or a packed row.
        """
        if type(start) is int and -MOST <= start <= MOST:
            return End(start, 0, 0, start)
        if isinstance(start, Positions):
            if len(start.ids) != self.axes:
                raise ValueError(f"start has {len(start.ids)} axes; {type(self).__name__} has {self.axes}")
            end = start.end
        elif isinstance(start, (int, float, Real)) and math.isfinite(start):
            end = End(next=start, run=start)
        else:
            raise TypeError(f"start is {start!r}; expected a finite number, or the Positions of an earlier turn")
        if abs(end.next) > MOST:
            raise ValueError(f"start is {end.next}; expected at most {MOST} on either side of 0")
        if self.dtype is not np.int64 or isinstance(end.next, int):
            return end
        if end.next != int(end.next):
            raise ValueError(f"start is {end.next}; the positions of {type(self).__name__} are whole numbers")
        return replace(end, next=int(end.next), run=int(end.run))

    def grid(self, span: Image | Video) -> Grid:
        """(T, H, W): the merged grid of a picture or clip.

        Raises:
            ValueError: the merge does not divide the grid.
        """
        t, h, w = span.grid
        if h % self.merge or w % self.merge:
            raise ValueError(
                f"{name_of(span)} is not divisible: h and w must be multiples of the spatial merge {self.merge}"
            )
        return t, h // self.merge, w // self.merge

    def sliced(self, span: Sliced) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """The sides of the thumbnail, the numbers of slices, and the sides of a slice, in tokens; 0 without slices.

        Raises:
            ValueError: the merge does not divide a grid.
        """
        _, *thumbnail = self.grid(Image(span.thumbnail))
        _, *piece = self.grid(Image(span.slice_grid)) if span.slice_grid else (1, 0, 0)
        return (thumbnail[0], thumbnail[1]), span.slices or (0, 0), (piece[0], piece[1])

    def refuse(self, span: Span, because: str = "") -> ValueError:
        """The error about a span of a kind that the layout has no rule for.

        Raises:
            TypeError: it is no span at all.
        """
        if not isinstance(span, get_args(Span)):
            raise TypeError(f"span is {span!r}; expected one of {', '.join(kind.__name__ for kind in get_args(Span))}")
        return ValueError(f"{name_of(span)} has no place in {type(self).__name__}{because and ': '}{because}")


def check_total(tokens: int) -> None:
    """Refuse more tokens than can be counted."""
    if tokens > MOST:
        raise ValueError(f"these spans take {tokens} tokens; expected at most {MOST}")


def name_of(span: Span) -> str:
    """What an error calls a span: its kind, and its size."""
    kind = type(span).__name__.lower()
    if isinstance(span, (Text, Audio)):
        return f"{kind} of {span.length} tokens"
    return f"{kind} grid {'x'.join(map(str, span.thumbnail if isinstance(span, Sliced) else span.grid))}"


def line(start: Number, count: int, dtype: Any) -> np.ndarray:
    """(count,) of `dtype`: start, start + 1, ...; real ones are counted in float64, and rounded once if at all."""
    if dtype is np.int64:
        return np.arange(start, start + count)
    return (start + np.arange(count)).astype(dtype)


def layer_by_layer(
    layouts: Sequence[SpanLayout], layers: tuple[int, ...], spans: Sequence[Span], start: Number | Positions
) -> Positions:
    """The positions of `spans` where layer l follows layouts[layers[l]], each with an end of its own.

    Raises:
        ValueError: a span does not fit one of the layouts, or `start` was made for other layers.
    """
    if isinstance(start, Positions) and (start.layers != layers or len(start.variants) != len(layouts)):
        raise ValueError(
            f"start has {len(start.variants)} variants for {len(start.layers)} layers; expected positions that this "
            f"layout made, of {len(layouts)} variants for {len(layers)} layers"
        )
    starts = start.variants if isinstance(start, Positions) else [start] * len(layouts)
    variants = tuple(layout(spans, begin) for layout, begin in zip(layouts, starts, strict=True))
    return replace(variants[0], variants=variants, layers=layers)


def fill_cells(block: np.ndarray, times: Any, rows: Any, cols: Any) -> None:
    """Write the ids of a block of cells (3, T * H * W): `times` (T,), `rows` (H,) and `cols` (W,) of its axes."""
    cells = block.reshape(3, len(times), len(rows), len(cols))
    cells[0] = times[:, None, None]
    cells[1] = rows[:, None]
    cells[2] = cols
