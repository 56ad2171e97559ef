"""The grid layout of the Qwen-VL and GLM-V families: text on the diagonal, pictures and clips as blocks in (t, h, w).

Letters: N tokens, T temporal steps, H and W the merged grid (one token a cell).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from mrope.checks import Number, one_of, positive, whole
from mrope.layouts.layout import SpanLayout, Traits, check_total, fill_cells, name_of
from mrope.positions import End, Positions
from mrope.spans import Grid, Image, Span, Text, Video

Time = Literal["index", "seconds", "stamps"]
Advance = Literal["largest", "side"]
_BEGIN = End()


@dataclass(frozen=True, slots=True)
class GridLayout(SpanLayout):
    """Text advances all axes by 1; the token of an image that starts at s gets (s, s + row, s + col).

    The next span starts at the largest position + 1, also after a clip: the rule that the released weights were trained
    with (M-RoPE, arXiv:2409.12191).

    Args:
        merge: patches per token and side.
        time: the temporal ids of a clip's step f. "index": s + f (Qwen2-VL). "seconds": s + int(f * seconds *
            ids_per_second) (Qwen2.5-VL), truncated after the product. "stamps": each step is `stamp` text tokens and
            then an image (Qwen3-VL, GLM-V).
        ids_per_second: temporal ids per second; with time="seconds" alone.
        temporal_merge: temporal steps of a clip's grid per temporal id and token (Ernie 4.5 VL: 2).
        advance: where the next span starts. "largest": the largest position + 1. "side": s + max(H, W), which ignores
            a clip's time, so that text behind a long clip lands inside it: what transformers from 5.3 on does, for
            comparisons.

    >>> from mrope.spans import Text
    >>> GridLayout(time="seconds", ids_per_second=2)([Text(4), Video((2, 4, 6), seconds=1.0)]).ids[0].tolist()
    [0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 6, 6, 6, 6, 6, 6]
    """

    time: Time = "index"
    ids_per_second: Number | None = None
    temporal_merge: int = 1
    advance: Advance = "largest"

    def __post_init__(self) -> None:
        SpanLayout.__post_init__(self)
        one_of("time", self.time, ("index", "seconds", "stamps"))
        one_of("advance", self.advance, ("largest", "side"))
        object.__setattr__(self, "temporal_merge", whole("temporal_merge", self.temporal_merge, 1))
        if self.time == "stamps" and self.temporal_merge > 1:
            raise ValueError(
                f"temporal_merge is {self.temporal_merge} with time='stamps'; there each step is a picture"
            )
        if (self.time == "seconds") != (self.ids_per_second is not None):
            raise ValueError(f"ids_per_second is {self.ids_per_second} with time={self.time!r}; it goes with 'seconds'")
        if self.ids_per_second is not None:
            object.__setattr__(self, "ids_per_second", positive("ids_per_second", self.ids_per_second))

    @property
    def traits(self) -> Traits:
        """What the layout promises; with advance="side" text behind a long clip may lie inside it."""
        kept = self.advance == "largest" or self.time == "stamps"
        return Traits(clears_after=kept, monotone=kept)

    def growth(self, t: int, h: int, w: int) -> Number:
        """The positions of a picture, or of a clip of one second a step and no text between its steps."""
        if self.time == "stamps":
            return t * max(h, w)
        last = 0 if t == 1 else int((t - 1) * (self.ids_per_second or 1))
        return max(h, w) if self.advance == "side" else max(last + 1, h, w)

    def media_tokens(self, span: Any) -> int:
        """See `tokens`."""
        if not isinstance(span, (Image, Video)):
            raise self.refuse(span)
        t, rows, cols = self.grid(span)
        stamps = span.stamp if isinstance(span, Video) and span.stamp else 0
        return t * rows * cols + (stamps * t if isinstance(stamps, int) else sum(stamps))

    def __call__(self, spans: Sequence[Span], start: Number | Positions = 0) -> Positions:
        """The positions of `spans`, in the order of the prompt: see `Layout`.

        Raises:
            ValueError: a span does not fit the layout.
        """
        sizes: list[tuple[int, int]] = []
        for span in spans:
            if isinstance(span, Video):
                return SpanLayout.__call__(self, spans, start)
            sizes.append((span.length, 0) if isinstance(span, Text) else self._picture(span))
        begin = _BEGIN if start == 0 and not isinstance(start, Positions) else self.start_of(start)
        total = sum([rows * cols or rows for rows, cols in sizes])
        check_total(total)
        ids = np.empty((3, total), dtype=np.int64)
        following, run, pictures = write_still(ids, sizes, int(begin.next))
        end = End(following, begin.slot + total, begin.pictures + pictures, run if pictures else begin.run)
        return Positions.of_document(torch.from_numpy(ids), end)

    def _picture(self, span: Span) -> tuple[int, int]:
        """(H, W) of a still image."""
        if not isinstance(span, Image):
            raise self.refuse(span)
        _, rows, cols = SpanLayout.grid(self, span)
        return rows, cols

    def place(self, block: np.ndarray, span: Any, end: End) -> Number:
        """See `SpanLayout.place`."""
        t, rows, cols = self.grid(span)
        start, side, last = end.next, max(rows, cols), 0
        if isinstance(span, Video) and self.time == "stamps":
            return place_stamped(block, start, stamps_of(span), rows, cols)
        cells = block.reshape(3, t, rows, cols)
        cells[0] = start
        if isinstance(span, Video):
            times = self.times(span)
            cells[0] += times[:, None, None]
            last = int(times[-1])
        cells[1] = np.arange(start, start + rows)[:, None]
        cells[2] = np.arange(start, start + cols)
        return start + (side if self.advance == "side" else max(last + 1, side))

    def grid(self, span: Image | Video) -> Grid:
        """(T, H, W): the merged grid, in time as well; the span is checked."""
        if isinstance(span, Video):
            self._check_time(span)
        t, rows, cols = SpanLayout.grid(self, span)
        if isinstance(span, Video) and t % self.temporal_merge:
            raise ValueError(
                f"{name_of(span)} is not divisible: t must be a multiple of the temporal merge {self.temporal_merge}"
            )
        return t // self.temporal_merge if isinstance(span, Video) else t, rows, cols

    def times(self, span: Image | Video) -> np.ndarray:
        """(T,) int64, the temporal ids of a picture, or of a clip without stamps, that starts at 0."""
        steps = self.grid(span)[0]
        if isinstance(span, Image) or span.seconds is None or self.ids_per_second is None:
            return np.arange(steps)
        # float32, as the models computed it in training: near a whole number other precisions truncate otherwise.
        interval = np.float32(span.seconds) * np.float32(self.ids_per_second)
        times = (np.arange(steps, dtype=np.float32) * interval).astype(np.int64)
        if (distinct := len(np.unique(times))) < len(times):
            warnings.warn(
                f"video {span.grid} at {span.seconds:g} seconds per step: its {len(times)} temporal steps share "
                f"{distinct} ids ({self.ids_per_second:g} a second), as in training; sample fewer frames per second",
                stacklevel=2,
            )
        return times

    def _check_time(self, video: Video) -> None:
        grid = name_of(video)
        if video.audio is not None:
            raise self.refuse(video, "it has sound, which this layout does not weave in")
        for field, time, mark in (("seconds", "seconds", "@SECONDS"), ("stamp", "stamps", "+TOKENS")):
            given = getattr(video, field) is not None
            if given and self.time != time:
                raise ValueError(f"{grid} has {field} ({mark}), but this layout's time is {self.time!r}: leave it away")
            if not given and self.time == time:
                raise ValueError(
                    f"{grid} has no {field}; this layout's time is {self.time!r}: write {mark} after the grid"
                )


def write_still(ids: np.ndarray, sizes: Sequence[tuple[int, int]], start: int) -> tuple[int, int, int]:
    """Write the ids (3, N) of text and still pictures, and no more than that, as it is what most prompts are.

    Args:
        ids: where to write.
        sizes: (tokens, 0) of a text, (rows, columns) of a picture.
        start: the position of the first token.

    Returns:
        The position of what follows, that of what follows the last picture, and the number of pictures.
    """
    line = np.arange(start, start + sum(map(max, sizes)))
    done = at = behind_picture = pictures = 0
    for rows, cols in sizes:
        if cols:
            behind = done + rows * cols
            ids[0, done:behind] = line[at]
            cells = ids[1:, done:behind].reshape(2, rows, cols)
            cells[0] = line[at : at + rows, None]
            cells[1] = line[at : at + cols]
            at += rows if rows > cols else cols
            behind_picture = at
            pictures += 1
        else:
            behind = done + rows
            ids[:, done:behind] = line[at : at + rows]
            at += rows
        done = behind
    return start + at, start + behind_picture, pictures


def stamps_of(video: Video) -> np.ndarray:
    """(T,) int64, the text tokens before each temporal step."""
    return np.broadcast_to(np.asarray(video.stamp or 0, dtype=np.int64), video.grid[:1])


def place_stamped(block: np.ndarray, start: Number, stamps: np.ndarray, rows: int, cols: int) -> Number:
    """Write the ids of a clip whose every step is some text and then an image; return where the next span starts."""
    side, cells = max(rows, cols), rows * cols
    begins = start + stamps.cumsum() + side * np.arange(len(stamps))  # where the image of each step begins
    following = int(begins[-1]) + side
    if (stamps == stamps[0]).all():
        stamp = int(stamps[0])
        steps = block.reshape(3, len(stamps), stamp + cells)
        steps[:, :, :stamp] = (begins - stamp)[:, None] + np.arange(stamp)
        image = steps[:, :, stamp:]
        cell = np.arange(cells)
        image[0] = begins[:, None]
        image[1] = begins[:, None] + cell // cols
        image[2] = begins[:, None] + cell % cols
        return following
    ends = (stamps + cells).cumsum()
    for begin, stamp, end in zip(begins.tolist(), stamps.tolist(), ends.tolist(), strict=True):
        image = end - cells
        block[:, image - stamp : image] = np.arange(begin - stamp, begin)
        fill_cells(block[:, image:end], np.full(1, begin), begin + np.arange(rows), begin + np.arange(cols))
    return following
