"""What will happen to one picture or clip: the only place that holds its sizes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import get_args

import torch
from torch import Tensor

from mrope.checks import one_of, whole
from mrope.families import Boxes
from mrope.spans import Grid, Span

from . import boxes as box
from .boxes import Shapes, Sides

Size = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One grid of patches: the whole picture, or a window of it.

    Args:
        resized: (height, width) in pixels that the whole picture is resized to.
        grid: (t, h, w) in patches.
        corner: (top, left) of the window in the resized picture.
        size: (height, width) of the window, by default the whole; what it lacks to whole patches is black, at the
            bottom and at the right.
        frame: the first frame of a clip that it shows.
    """

    resized: Size
    grid: Grid
    corner: Size = (0, 0)
    size: Size | None = None
    frame: int = 0

    @property
    def window(self) -> Size:
        """(height, width) of the window in pixels."""
        return self.resized if self.size is None else self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What becomes of one picture or clip: its sizes, its patches and tokens, and the way of its boxes.

    Most pictures are one grid of patches. MiniCPM-V cuts a large one into a thumbnail and slices, and a picture that is
    too thin can be cut into tiles: they have several parts, whose tokens follow one another.

    Args:
        source: path of the file, None if there is none.
        family: name of the record that it is for.
        original: (height, width) in pixels, after the EXIF orientation.
        parts: its grids of patches.
        patch: side of a patch in pixels.
        merge: patches per LLM token and side.
        boxes: how the model writes box corners: pixels of the resized picture, thousandths of its sides, shares of them
            ("0-1"), not at all ("none"), or in a way that was not found ("unknown").
        orientation: EXIF orientation that was applied, 1..8 (1: none).
        frames: frames of a clip before padding, None for a picture.
        seconds: seconds per temporal step of a clip, None if its frame rate is unknown.
        times: of each temporal step of a clip, in seconds from its start, as the family tells them; None if unknown.
        temporal_merge: temporal steps that become one step of LLM tokens.
        spans: how a prompt declares it, with the markers and time stamps around it as text; None for a clip with time
            stamps whose tokens were not counted.
        prompt_tokens: LLM tokens of all of `spans`; None where these are.

    Its methods take boxes (..., 4) of [left, top, right, bottom], or points (..., 2) of [left, top], of which polygons
    are made: arrays, tensors, or lists or tuples of those or of numbers. Results are of the same kind (lists of tuples)
    in float64, not rounded nor cut off; see `clipped` and `rounded`.
    """

    source: str | None
    family: str
    original: Size
    parts: tuple[Part, ...]
    patch: int
    merge: int
    boxes: Boxes
    orientation: int = 1
    frames: int | None = None
    seconds: float | None = None
    times: tuple[float, ...] | None = None
    temporal_merge: int = 1
    spans: tuple[Span, ...] | None = None
    prompt_tokens: int | None = None

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("parts is empty; a plan has at least one grid of patches")
        for part in self.parts:
            _, h, w = part.grid
            lacks = (h * self.patch - part.window[0], w * self.patch - part.window[1])
            outside = any(a + b > c for a, b, c in zip(part.corner, part.window, part.resized, strict=True))
            if min(lacks) < 0 or max(lacks) >= self.factor or outside or h % self.merge or w % self.merge:
                raise ValueError(
                    f"grid {part.grid} does not cut a window of {part.window} (height, width) of {part.resized} into "
                    f"patches of {self.patch} pixels, {self.merge} x {self.merge} a token"
                )

    @property
    def resized(self) -> Size:
        """(height, width) in pixels that the picture is resized to; of a picture in slices, its thumbnail."""
        return self.parts[0].resized

    @property
    def grid(self) -> Grid:
        """(t, h, w) in patches, of the first part."""
        return self.parts[0].grid

    @property
    def canvas(self) -> Size:
        """(height, width) in pixels of the first part with its padding."""
        return self.grid[1] * self.patch, self.grid[2] * self.patch

    @property
    def factor(self) -> int:
        """Side of one LLM token in pixels of the resized picture."""
        return self.patch * self.merge

    @property
    def patches(self) -> int:
        """Patches of the whole picture or clip."""
        return sum(prod(part.grid) for part in self.parts)

    @property
    def tokens(self) -> int:
        """LLM tokens that show the picture or clip: what limits count. `prompt_tokens` has all that stands around."""
        return sum(self.part_tokens)

    @property
    def part_tokens(self) -> tuple[int, ...]:
        """The same of each part."""
        return tuple(prod(part.grid) // (self.merge**2 * self.temporal_merge) for part in self.parts)

    @property
    def scale(self) -> tuple[float, float]:
        """(height, width) of the resized over the original picture."""
        return self.resized[0] / self.original[0], self.resized[1] / self.original[1]

    @property
    def stored(self) -> Size:
        """(height, width) of the pixels as stored in the file, before the EXIF orientation."""
        height, width = self.original
        return (width, height) if self.orientation >= 5 else (height, width)

    def to_resized(self, boxes: Shapes, *, part: int = 0) -> Shapes:
        """Boxes of the original picture in pixels of the resized one.

        Args:
            boxes: (..., 4) or points (..., 2).
            part: the resized picture that this part is cut from; those of a thumbnail and of slices differ.

        >>> import mrope, numpy
        >>> mrope.family("qwen2-vl").plan((480, 640)).to_resized(numpy.array([320, 240, 640, 480]))
        array([322., 238., 644., 476.])
        """
        return box.into_window(boxes, (0, 0), self.original, self._part(part).resized)

    def to_original(self, boxes: Shapes, *, part: int = 0) -> Shapes:
        """Boxes of the resized picture in pixels of the original one, the inverse of `to_resized`."""
        return box.out_of_window(boxes, (0, 0), self.original, self._part(part).resized)

    def from_stored(self, boxes: Shapes) -> Shapes:
        """Boxes drawn on the stored pixels (by a tool that ignores EXIF), in pixels of the upright picture."""
        return box.turned(boxes, self.stored, self.orientation)

    def to_stored(self, boxes: Shapes) -> Shapes:
        """Boxes of the upright picture in the stored pixels, the inverse of `from_stored`."""
        return box.turned_back(boxes, self.stored, self.orientation)

    def encode_boxes(self, boxes: Shapes, *, part: int | None = None, convention: Boxes | None = None) -> Shapes:
        """Boxes, points or polygons of the original picture in the coordinates that the model reads and writes.

        The model sees a part with its padding: thousandths are of that canvas.

        Args:
            boxes: (..., 4) or points (..., 2).
            part: whose coordinates; None where the first part shows the whole picture, which tiles do not.
            convention: how the model writes them, by default as the family does.

        Raises:
            TypeError: something else than numbers.
            ValueError: the model has none, or none that are known; or no such part.

        >>> import mrope, numpy
        >>> mrope.family("qwen3-vl").plan((600, 800)).encode_boxes([[100, 300], [400, 600]])
        [[125.0, 500.0], [500.0, 1000.0]]
        """
        return box.into_window(boxes, *self._canvas(part, convention))

    def decode_boxes(self, boxes: Shapes, *, part: int | None = None, convention: Boxes | None = None) -> Shapes:
        """Boxes, points or polygons that the model wrote, in pixels of the original picture.

        The inverse of `encode_boxes`, with the same arguments and refusals.

        >>> import mrope, numpy
        >>> mrope.family("qwen3-vl").plan((800, 800)).decode_boxes(numpy.array([100, 200, 300, 400]))
        array([ 80., 160., 240., 320.])
        """
        return box.out_of_window(boxes, *self._canvas(part, convention))

    def part_number(self, number: int) -> int:
        """`number` itself, or one line where there is no such part."""
        if whole("part", number, 0) >= len(self.parts):
            raise ValueError(f"part is {number}; the picture has {len(self.parts)}, counted from 0")
        return number

    def _part(self, number: int) -> Part:
        return self.parts[self.part_number(number)]

    def _canvas(self, number: int | None, convention: Boxes | None) -> tuple[Sides, Sides, Sides]:
        """Corner and size of a part with its padding in pixels of the original, and its size as the model counts it."""
        part = self._part(0 if number is None else number)
        if number is None and part.window != part.resized:
            raise ValueError(
                f"part is None, and this picture is cut into {len(self.parts)} tiles with coordinates of their own; "
                f"expected a part, 0..{len(self.parts) - 1}"
            )
        convention = self.boxes if convention is None else convention
        one_of("convention", convention, get_args(Boxes))
        if convention == "none":
            raise ValueError("boxes is 'none': this family's model reads and writes none")
        if convention == "unknown":
            raise ValueError(
                "boxes is 'unknown': how this family's model writes them was not found; give convention, say '0-1000'"
            )
        canvas = (part.grid[1] * self.patch, part.grid[2] * self.patch)
        corner, size = self._in_original(part.corner, part), self._in_original(canvas, part)
        units = {"0-1000": (1000, 1000), "0-1": (1, 1), "processed-pixels": canvas}[convention]
        return corner, size, units

    def _in_original(self, sides: Size, part: Part) -> Sides:
        """(down, across) pixels of the resized picture in those of the original."""
        (height, width), (new_height, new_width) = self.original, part.resized
        return sides[0] * height / new_height, sides[1] * width / new_width


@dataclass(frozen=True, slots=True, eq=False)
class Resized:
    """Pixels that have the size which their plan wants: they are never planned, nor resized, again.

    Args:
        pixels: (3, height, width) uint8, or (frames, 3, height, width) of a clip, as `unpatchify` gives them.
        plan: whose one part they fill.
    """

    pixels: Tensor
    plan: Plan

    def __post_init__(self) -> None:
        if not isinstance(self.pixels, Tensor) or not isinstance(self.plan, Plan):
            kinds = type(self.pixels).__name__, type(self.plan).__name__
            raise TypeError(f"pixels and plan are a {kinds[0]} and a {kinds[1]}; expected a Tensor and a Plan")
        parts, clip = self.plan.parts, self.plan.frames
        if len(parts) != 1:
            raise ValueError(f"plan has {len(parts)} parts, which have no single size; expected a plan of one")
        wanted = (3, *parts[0].window) if clip is None else (clip, 3, *parts[0].window)
        if tuple(self.pixels.shape) != wanted or self.pixels.dtype != torch.uint8:
            raise ValueError(
                f"pixels are {self.pixels.dtype} of shape {tuple(self.pixels.shape)}; expected uint8 of {wanted}, as "
                "their plan wants"
            )
