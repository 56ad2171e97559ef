"""The anchored layout: a second set of ids, for queries that look at tokens of the other modality (DIPE).

Letters: A axes, N tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from mrope.checks import Number
from mrope.layouts.grid import stamps_of
from mrope.layouts.layout import SpanLayout, Traits, name_of
from mrope.positions import NO_PICTURE, End, Positions
from mrope.spans import Image, Span, Text, Video


@dataclass(frozen=True, slots=True)
class AnchoredLayout:
    """The ids of a base layout, and in `Positions.query` the first id of each token's segment, the same on all axes.

    A segment is a picture, a clip (each step of it where text stands between its steps), or a run of text between
    these, which may go over several `Text` spans and turns; `Positions.pictures` tells text from the rest. Between two
    tokens of text, or two that are none, query and key rotate by `ids`. Between text and the rest the query rotates by
    `query` and the key by `ids`, so that a picture does not fade as the text behind it grows (DIPE, arXiv:2603.10863;
    keys are cached once). A base layout whose layers differ gets the ids of queries for each group of layers.

    Args:
        base: the layout that places the tokens.

    >>> from mrope.layouts.grid import GridLayout
    >>> positions = AnchoredLayout(GridLayout())([Text(2), Image((1, 4, 4)), Text(1), Text(2)])
    >>> positions.ids[2].tolist(), positions.query[2].tolist()
    ([0, 1, 2, 3, 2, 3, 4, 5, 6], [0, 0, 2, 2, 2, 2, 4, 4, 4])
    """

    base: SpanLayout

    def __post_init__(self) -> None:
        if not isinstance(self.base, SpanLayout):
            raise TypeError(f"base is {self.base!r}; expected a layout that places one span after the other")

    @property
    def merge(self) -> int:
        """Patches per token and side."""
        return self.base.merge

    @property
    def traits(self) -> Traits:
        """What the base layout promises."""
        return self.base.traits

    def growth(self, t: int, h: int, w: int) -> Number:
        """See `SpanLayout.growth`."""
        return self.base.growth(t, h, w)

    def tokens(self, span: Span) -> int:
        """How many tokens of the prompt `span` takes.

        Raises:
            ValueError: the span does not fit the layout.
        """
        return sum(count for _, count in self._pieces(span))

    def __call__(self, spans: Sequence[Span], start: Number | Positions = 0) -> Positions:
        """The positions of `spans`, with their `query`: see `Layout`.

        Raises:
            ValueError: a span does not fit the layout.
        """
        pieces: list[tuple[int | None, int]] = []
        picture = -1
        for span in spans:
            picture += not isinstance(span, Text)
            pieces += [(None if text else picture, count) for text, count in self._pieces(span)]
        return _anchored(self.base(spans, start), pieces, start)

    def _pieces(self, span: Span) -> list[tuple[bool, int]]:
        """(whether it is text, its tokens) of each piece of a span, in order."""
        if not isinstance(span, (Text, Image, Video)) or (isinstance(span, Video) and span.audio is not None):
            raise ValueError(
                f"{name_of(span)} has no segments in {type(self).__name__}: only text, images and silent clips do"
            )
        tokens = self.base.tokens(span)
        if not isinstance(span, Video) or span.stamp is None:
            return [(isinstance(span, Text), tokens)]
        stamps = stamps_of(span).tolist()
        step = (tokens - sum(stamps)) // len(stamps)
        return [piece for stamp in stamps for piece in ((True, stamp), (False, step))]


def _anchored(positions: Positions, pieces: list[tuple[int | None, int]], start: Number | Positions) -> Positions:
    """`positions` with the first id of each token's segment and its picture, in all groups of layers.

    `pieces` are (picture, None for text; tokens), the pictures counted from 0.
    """
    end = start.end if isinstance(start, Positions) else End(run=start)
    anchor = end.run
    anchors, begin, in_text = [], 0, True  # text here goes on with the earlier turn's run, empty behind a picture
    for picture, count in pieces:
        if not (picture is None and in_text):
            anchor = positions.ids[0, begin].item()
        anchors.append(anchor)
        begin, in_text = begin + count, picture is None
    counts = torch.tensor([count for _, count in pieces], dtype=torch.int64)
    query = torch.tensor(anchors, dtype=positions.ids.dtype).repeat_interleave(counts)
    numbers = [NO_PICTURE if picture is None else end.pictures + picture for picture, _ in pieces]
    starts = start.variants if isinstance(start, Positions) else [start] * len(positions.variants)
    variants = tuple(
        _anchored(variant, pieces, begins) for variant, begins in zip(positions.variants, starts, strict=True)
    )
    return replace(
        positions,
        query=query.repeat(len(positions.ids), 1),
        pictures=torch.tensor(numbers, dtype=torch.int64).repeat_interleave(counts),
        variants=variants,
    )
