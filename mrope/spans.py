"""Spans: runs of tokens of one kind, declared in the order of the prompt and never found by scanning token ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mrope.checks import Number, positive, whole

Grid: TypeAlias = tuple[int, int, int]
"""(t, h, w) in patches, before the spatial merge."""

MOST = 2**31 - 1  # of anything that is counted in tokens or positions: what cu_seqlens (int32) can hold


@dataclass(frozen=True, slots=True)
class Text:
    """A run of `length` text tokens (at least one).

    >>> Text(15)
    Text(length=15)
    """

    length: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", _count("text length", self.length, 1))


@dataclass(frozen=True, slots=True)
class Audio:
    """A sound of `length` tokens (at least one), without the start and end tokens around it, which are text.

    >>> Audio(50)
    Audio(length=50)
    """

    length: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", _count("audio length", self.length, 1))


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
        stamp: text tokens in front of each temporal step, one number or one a step; only for a family that puts text
            between the steps, such as time stamps. What stands behind the last step is a `Text` of its own.
        audio: tokens of the clip's sound; only for a family that weaves it into the clip. The two start tokens and
            the two end tokens around clip and sound belong to the span then.

    >>> Video((84, 24, 32), seconds=2.0)
    Video(grid=(84, 24, 32), seconds=2.0, stamp=None, audio=None)
    """

    grid: Grid
    seconds: Number | None = None
    stamp: int | tuple[int, ...] | None = None
    audio: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid", _grid("video", self.grid))
        if self.seconds is not None:
            object.__setattr__(self, "seconds", positive("video seconds per temporal step", self.seconds))
            if self.seconds * self.grid[0] > MOST:
                raise ValueError(
                    f"video of {self.grid[0]} steps of {self.seconds:g} seconds each; expected at most {MOST} in all"
                )
        if self.stamp is not None:
            object.__setattr__(self, "stamp", self._stamps())
        if self.audio is not None:
            object.__setattr__(self, "audio", _count("video audio in tokens", self.audio, 1))

    def _stamps(self) -> int | tuple[int, ...]:
        if not isinstance(self.stamp, Sequence):
            return _count("video time stamp in tokens", self.stamp, 0)
        stamps = tuple(_count("video time stamp in tokens", stamp, 0) for stamp in self.stamp)
        if len(stamps) != self.grid[0]:
            raise ValueError(
                f"video has {len(stamps)} time stamps for {self.grid[0]} temporal steps; expected one each"
            )
        return stamps


@dataclass(frozen=True, slots=True)
class Sliced:
    """A picture as a thumbnail and, where it is large, `rows` x `cols` slices of one size (MiniCPM-V).

    The span covers the start and end tokens around the thumbnail and around each slice, the newline after each row of
    slices but the last, and `newlines` more behind the picture.

    Args:
        thumbnail: (1, h, w) in patches.
        slices: (rows, cols) of the slices; None where there are none.
        slice_grid: (1, h, w) of one slice in patches; goes with `slices`.
        newlines: newline tokens that follow the last end token.

    >>> Sliced((1, 24, 32), (2, 2), (1, 24, 32)).slices
    (2, 2)
    """

    thumbnail: Grid
    slices: tuple[int, int] | None = None
    slice_grid: Grid | None = None
    newlines: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "thumbnail", Image(self.thumbnail).grid)
        if (self.slices is None) != (self.slice_grid is None):
            raise ValueError(f"slices is {self.slices} and slice_grid is {self.slice_grid}; expected both or neither")
        if self.slices is not None and self.slice_grid is not None:
            if not isinstance(self.slices, Sequence) or len(self.slices) != 2:
                raise ValueError(f"slices is {self.slices!r}; expected (rows, cols)")
            rows, cols = (
                _count(f"slices {side}", count, 1) for side, count in zip(("rows", "cols"), self.slices, strict=True)
            )
            object.__setattr__(self, "slices", (rows, cols))
            object.__setattr__(self, "slice_grid", Image(self.slice_grid).grid)
        object.__setattr__(self, "newlines", _count("newlines", self.newlines, 0))


@dataclass(frozen=True, slots=True)
class Target:
    """A picture of `grid` (1, h, w) tokens that the model is to generate: no token of the prompt, but of the decoding.

    >>> Target((1, 24, 32))
    Target(grid=(1, 24, 32))
    """

    grid: Grid

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid", Image(self.grid).grid)


Span: TypeAlias = Text | Audio | Image | Video | Sliced | Target

_FORMS = (
    "text:N, audio:N, image:1xHxW, video:TxHxW, video:TxHxW@SECONDS, video:TxHxW@SECONDS&AUDIO, video:TxHxW+STAMP, "
    "sliced:1xHxW, sliced:1xHxW/ROWSxCOLSx1xHxW or target:1xHxW"
)
_GRID = r"(?P<t>[0-9]+)x(?P<h>[0-9]+)x(?P<w>[0-9]+)"
_TEXT = re.compile(r"(?P<kind>text|audio):(?P<n>[0-9]+)")
_IMAGE = re.compile(rf"(?P<kind>image|target):{_GRID}")
_SECONDS = r"@(?P<seconds>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:&(?P<audio>[0-9]+))?"
_VIDEO = re.compile(rf"video:{_GRID}(?:{_SECONDS}|\+(?P<stamp>[0-9]+(?:,[0-9]+)*))?")
_SLICED = re.compile(rf"sliced:{_GRID}(?:/(?P<rows>[0-9]+)x(?P<cols>[0-9]+)x(?P<slice>[0-9]+x[0-9]+x[0-9]+))?")


def parse_span(text: str) -> Span:
    """The span that `text` writes down: "text:15", "image:1x24x32", "video:84x24x32@2.0" or "video:4x24x32+7".

    Grids are t x h x w in patches. Behind a clip's grid `@` is followed by seconds per temporal step, `&` by the tokens
    of its sound, `+` by the text tokens before each step: one number, or one a step with commas between. Behind a
    thumbnail's grid `/` is followed by rows, columns and grid of its slices.

    Raises:
        ValueError: the text has none of these forms, or a number is out of range.

    >>> parse_span("video:84x24x32@2.0")
    Video(grid=(84, 24, 32), seconds=2.0, stamp=None, audio=None)
    """
    if not isinstance(text, str):
        raise TypeError(f"span is {text!r}; expected a string such as 'text:15'")
    try:
        if match := _TEXT.fullmatch(text):
            return {"text": Text, "audio": Audio}[match["kind"]](int(match["n"]))
        if match := _IMAGE.fullmatch(text):
            return {"image": Image, "target": Target}[match["kind"]](_sides(match))
        if match := _VIDEO.fullmatch(text):
            return _video(match)
        if match := _SLICED.fullmatch(text):
            return _sliced(match)
    except ValueError as error:
        raise ValueError(f"span {text!r}: {error}") from None
    raise ValueError(f"span {text!r} cannot be read; expected {_FORMS}")


def _video(match: re.Match[str]) -> Video:
    seconds, audio = match["seconds"], match["audio"]
    stamps = [int(stamp) for stamp in (match["stamp"] or "").split(",") if stamp]
    return Video(
        _sides(match),
        seconds=None if seconds is None else float(seconds),
        stamp=None if not stamps else stamps[0] if len(stamps) == 1 else tuple(stamps),
        audio=None if audio is None else int(audio),
    )


def _sliced(match: re.Match[str]) -> Sliced:
    if match["rows"] is None:
        return Sliced(_sides(match))
    t, h, w = map(int, match["slice"].split("x"))
    return Sliced(_sides(match), (int(match["rows"]), int(match["cols"])), (t, h, w))


def _sides(match: re.Match[str]) -> Grid:
    return int(match["t"]), int(match["h"]), int(match["w"])


def _count(name: str, value: Any, least: int) -> int:
    number = whole(name, value, least)
    if number > MOST:
        raise ValueError(f"{name} is {number}; expected at most {MOST}")
    return number


def _grid(kind: str, grid: Any) -> Grid:
    try:
        sides = tuple(grid)
    except TypeError:
        raise TypeError(f"{kind} grid is {grid!r}; expected (t, h, w) in patches") from None
    if len(sides) != 3:
        raise ValueError(f"{kind} grid {sides} has {len(sides)} sides; expected (t, h, w) in patches")
    t, h, w = (_count(f"{kind} grid {axis}", side, 1) for axis, side in zip("thw", sides, strict=True))
    return t, h, w
