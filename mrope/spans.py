"""Spans: runs of tokens of one kind, declared in the order of the prompt and never found by scanning token ids."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeAlias

from mrope.checks import Number, positive, whole

Grid: TypeAlias = tuple[int, int, int]
"""(t, h, w) in patches, before the spatial merge."""


@dataclass(frozen=True, slots=True)
class Text:
    """A run of `length` text tokens (at least one).

    >>> Text(15)
    Text(length=15)
    """

    length: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", whole("text length", self.length, 1))


@dataclass(frozen=True, slots=True)
class Image:
    """A still image of `grid` (1, h, w) patches.

    >>> Image((1, 24, 32))
    Image(grid=(1, 24, 32))
    """

    grid: Grid

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid", _grid("image", self.grid))
        if self.grid[0] != 1:
            raise ValueError(
                f"image grid {self.grid} has t = {self.grid[0]}; a still image has t = 1, a clip is a Video"
            )


@dataclass(frozen=True, slots=True)
class Video:
    """A clip of `grid` (t, h, w) patches.

    Args:
        grid: t counts temporal steps (one step is `temporal_patch` frames), h and w patches.
        seconds: seconds per temporal step; only for a family whose time ids follow the clock.
        stamp: text tokens in front of each temporal step; only for a family that writes time stamps into the text.

    >>> Video((84, 24, 32), seconds=2.0)
    Video(grid=(84, 24, 32), seconds=2.0, stamp=None)
    """

    grid: Grid
    seconds: Number | None = None
    stamp: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid", _grid("video", self.grid))
        if self.seconds is not None:
            object.__setattr__(self, "seconds", positive("video seconds per temporal step", self.seconds))
        if self.stamp is not None:
            object.__setattr__(self, "stamp", whole("video time stamp in tokens", self.stamp, 0))


Span: TypeAlias = Text | Image | Video

_FORMS = "text:N, image:1xHxW, video:TxHxW, video:TxHxW@SECONDS or video:TxHxW+STAMP"
_GRID = r"(?P<t>[0-9]+)x(?P<h>[0-9]+)x(?P<w>[0-9]+)"
_TEXT = re.compile(r"text:(?P<n>[0-9]+)")
_IMAGE = re.compile(rf"image:{_GRID}")
_VIDEO = re.compile(rf"video:{_GRID}(?:@(?P<seconds>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)|\+(?P<stamp>[0-9]+))?")


def parse_span(text: str) -> Span:
    """The span that `text` writes down: "text:15", "image:1x24x32", "video:84x24x32@2.0" or "video:4x24x32+7".

    Grids are t x h x w in patches; `@` is followed by seconds per temporal step, `+` by the text tokens before each.

    Raises:
        ValueError: the text has none of these forms, or a number is out of range.

    >>> parse_span("video:84x24x32@2.0")
    Video(grid=(84, 24, 32), seconds=2.0, stamp=None)
    """
    try:
        if match := _TEXT.fullmatch(text):
            return Text(int(match["n"]))
        if match := _IMAGE.fullmatch(text):
            return Image(_sides(match))
        if match := _VIDEO.fullmatch(text):
            seconds, stamp = match["seconds"], match["stamp"]
            return Video(
                _sides(match),
                seconds=None if seconds is None else float(seconds),
                stamp=None if stamp is None else int(stamp),
            )
    except ValueError as error:
        raise ValueError(f"span {text!r}: {error}") from None
    raise ValueError(f"span {text!r} cannot be read; expected {_FORMS}")


def _sides(match: re.Match[str]) -> Grid:
    return int(match["t"]), int(match["h"]), int(match["w"])


def _grid(kind: str, grid: Any) -> Grid:
    if len(grid) != 3:
        raise ValueError(f"{kind} grid {tuple(grid)} has {len(grid)} sides; expected (t, h, w) in patches")
    t, h, w = (whole(f"{kind} grid {axis}", side, 1) for axis, side in zip("thw", grid, strict=True))
    return t, h, w
