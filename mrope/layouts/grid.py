"""The grid layout of the Qwen-VL families: text on the diagonal, pictures and clips as blocks in (t, h, w).

Letters: N tokens, T temporal steps, H and W the merged grid (one token a cell).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from mrope.checks import Number, one_of, positive, whole
from mrope.positions import Positions
from mrope.spans import Grid, Image, Span, Text, Video

Time = Literal["index", "seconds", "stamps"]


@dataclass(frozen=True, slots=True)
class GridLayout:
    """Text advances all axes by 1; the token of an image that starts at s gets (s, s + row, s + col).

    The next span starts at the largest position + 1, also after a clip: the rule that the released weights were trained
    with (M-RoPE, arXiv:2409.12191). transformers 5 starts it at s + max(H, W), which ignores a clip's time.

    Args:
        merge: patches per token and side.
        time: the temporal ids of a clip's step f. "index": s + f (Qwen2-VL). "seconds": s + int(f * seconds *
            ids_per_second) (Qwen2.5-VL), truncated after the product. "stamps": each step is `stamp` text tokens and
            then an image (Qwen3-VL).
        ids_per_second: temporal ids per second; with time="seconds" alone.

    >>> GridLayout(time="seconds", ids_per_second=2)([Text(4), Video((2, 4, 6), seconds=1.0)]).ids[0].tolist()
    [0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 6, 6, 6, 6, 6, 6]
    """

    merge: int = 2
    time: Time = "index"
    ids_per_second: Number | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "merge", whole("merge", self.merge, 1))
        one_of("time", self.time, ("index", "seconds", "stamps"))
        if (self.time == "seconds") != (self.ids_per_second is not None):
            raise ValueError(f"ids_per_second is {self.ids_per_second} with time={self.time!r}; it goes with 'seconds'")
        if self.ids_per_second is not None:
            object.__setattr__(self, "ids_per_second", positive("ids_per_second", self.ids_per_second))

    def tokens(self, span: Span) -> int:
        """How many tokens `span` takes, the time stamps of a clip among them.

        Raises:
            ValueError: the merge does not divide the grid, or seconds or stamp are missing or out of place.
        """
        if isinstance(span, Text):
            return span.length
        t, rows, cols = self._merged(span)
        return t * ((span.stamp or 0) + rows * cols) if isinstance(span, Video) else rows * cols

    def __call__(self, spans: Sequence[Span], start: int = 0) -> Positions:
        """The positions of `spans`, in the order of the prompt, the first token at `start`.

        Raises:
            ValueError: as `tokens`.
        """
        counts = [self.tokens(span) for span in spans]
        ids = np.empty((3, sum(counts)), dtype=np.int64)
        end, following = 0, start
        for span, count in zip(spans, counts, strict=True):
            block = ids[:, end : end + count]
            end += count
            following = self._fill(block, span, following)
        length = ids.shape[1]
        return Positions(
            ids=torch.from_numpy(ids),
            text=torch.arange(length),
            segments=torch.zeros(length, dtype=torch.int64),
            next=following,
        )

    def _fill(self, block: np.ndarray, span: Span, start: int) -> int:
        """Write the ids of one span into its `block` (3, N) and return where the next span starts."""
        if isinstance(span, Text):
            block[:] = np.arange(start, start + span.length)
            return start + span.length
        t, rows, cols = self._merged(span)
        if isinstance(span, Video) and self.time == "stamps":
            return _fill_stamped(block.reshape(3, t, -1), start, span.stamp or 0, rows, cols)
        times = self._times(span) if isinstance(span, Video) else np.zeros(1, dtype=np.int64)
        cells = block.reshape(3, t, rows, cols)
        cells[0] = start + times[:, None, None]
        cells[1] = start + np.arange(rows)[:, None]
        cells[2] = start + np.arange(cols)
        return start + max(int(times[-1]), rows - 1, cols - 1) + 1

    def _times(self, video: Video) -> np.ndarray:
        """(T,) int64, the temporal ids of a clip that starts at 0."""
        steps = np.arange(video.grid[0])
        if video.seconds is None or self.ids_per_second is None:
            return steps
        # float32, as the models computed it in training: near a whole number other precisions truncate otherwise.
        interval = np.float32(video.seconds) * np.float32(self.ids_per_second)
        times = (steps.astype(np.float32) * interval).astype(np.int64)
        if (distinct := len(np.unique(times))) < len(times):
            warnings.warn(
                f"video {video.grid} at {video.seconds:g} seconds per step: its {len(times)} temporal steps share "
                f"{distinct} ids ({self.ids_per_second:g} a second), as in training; sample fewer frames per second",
                stacklevel=2,
            )
        return times

    def _merged(self, span: Image | Video) -> Grid:
        kind = "video" if isinstance(span, Video) else "image"
        if isinstance(span, Video):
            self._check_time(span)
        t, h, w = span.grid
        if h % self.merge or w % self.merge:
            raise ValueError(
                f"{kind} grid {t}x{h}x{w} is not divisible: h and w must be multiples of the spatial merge {self.merge}"
            )
        return t, h // self.merge, w // self.merge

    def _check_time(self, video: Video) -> None:
        t, h, w = video.grid
        for field, time, mark in (("seconds", "seconds", "@SECONDS"), ("stamp", "stamps", "+TOKENS")):
            given = getattr(video, field) is not None
            if given and self.time != time:
                raise ValueError(
                    f"video {t}x{h}x{w} has {field} ({mark}), but this layout's time is {self.time!r}: leave it away"
                )
            if not given and self.time == time:
                raise ValueError(
                    f"video {t}x{h}x{w} has no {field}; this layout's time is {self.time!r}: "
                    f"write {mark} after the grid"
                )


def _fill_stamped(steps: np.ndarray, start: int, stamp: int, rows: int, cols: int) -> int:
    """Write the ids of a time-stamped clip into `steps` (3, T, N / T): each step is text, then an image."""
    advance = stamp + max(rows, cols)
    begin = start + advance * np.arange(steps.shape[1])[:, None]
    steps[:, :, :stamp] = begin + np.arange(stamp)
    cell = np.arange(rows * cols)
    steps[0, :, stamp:] = begin + stamp
    steps[1, :, stamp:] = begin + stamp + cell // cols
    steps[2, :, stamp:] = begin + stamp + cell % cols
    return start + advance * steps.shape[1]
