"""The token grid drawn over a resized picture, and a few tokens up close with their positions (t, h, w) written in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image
else:
    Image = Any

INKS = ((222, 184, 255), (255, 170, 130), (140, 205, 255))
"""The colours of t, h and w on the dark plate of a label."""

_PLATE, _MARK = (16, 20, 28, 215), (255, 196, 0, 255)
_RIGHT, _WRONG = (0, 122, 90, 255), (200, 40, 30, 255)


@dataclass(frozen=True, slots=True)
class Window:
    """Some tokens of a picture: `rows` x `cols` of them from (`row`, `col`) on, counted in tokens."""

    row: int
    col: int
    rows: int
    cols: int

    def box(self, side: int) -> tuple[int, int, int, int]:
        """(left, top, right, bottom) in pixels, where a token is `side` pixels wide and high."""
        return self.col * side, self.row * side, (self.col + self.cols) * side, (self.row + self.rows) * side


@dataclass(frozen=True, slots=True)
class Mark:
    """A question about the cell (`row`, `col`): its step from there (rows, columns), and if the answer was right."""

    row: int
    col: int
    step: tuple[int, int]
    right: bool


@dataclass(frozen=True, slots=True)
class Label:
    """The ids (t, h, w) written on the token at (`row`, `col`) of the picture, and the label's box in the drawing."""

    row: int
    col: int
    ids: tuple[int, int, int]
    box: tuple[int, int, int, int]


def draw_token_grid(picture: UInt8[Tensor, "3 h w"], factor: int, *, window: Window | None = None) -> Image:
    """The picture, pixel for pixel, with a line where each token begins.

    Args:
        picture: the resized picture; `factor` divides its sides.
        factor: side of a token in pixels.
        window: tokens to frame.
    """
    drawing = _pil(picture)
    _lines(drawing, factor)
    if window is not None:
        _frame(drawing, window.box(factor))
    return drawing


def draw_tokens(
    picture: UInt8[Tensor, "3 h w"], factor: int, ids: Int64[Tensor, "3 rows cols"], window: Window, *, side: int = 120
) -> tuple[Image, tuple[Label, ...]]:
    """The tokens in `window`, enlarged, with the position of each written on it.

    Args:
        picture: the resized picture.
        factor: side of a token in its pixels.
        ids: the positions of all its tokens.
        window: which of them to draw.
        side: side of a token in the drawing.

    Returns:
        The drawing, and what was written where, row by row.
    """
    from PIL import ImageDraw

    drawing = _pil(picture).crop(window.box(factor)).resize((window.cols * side, window.rows * side))
    _lines(drawing, side)
    draw = ImageDraw.Draw(drawing, "RGBA")
    size = _font_size(ids, window, side)
    labels = []
    for row in range(window.rows):
        for col in range(window.cols):
            at = window.row + row, window.col + col
            t, h, w = (int(value) for value in ids[:, at[0], at[1]])
            box = _write(draw, (t, h, w), (col * side, row * side), side, size)
            labels.append(Label(*at, (t, h, w), box))
    return drawing, tuple(labels)


def draw_questions(picture: UInt8[Tensor, "3 h w"], factor: int, marks: Sequence[Mark], *, side: int = 64) -> Image:
    """The picture, `side` pixels a token, each question's cell framed and numbered, with an arrow to where it looks."""
    from PIL import ImageDraw

    drawing = _pil(picture)
    rows, cols = drawing.height // factor, drawing.width // factor
    drawing = drawing.resize((cols * side, rows * side))
    _lines(drawing, side)
    draw = ImageDraw.Draw(drawing, "RGBA")
    width, face = max(2, side // 20), _font(max(9, side // 4))
    for number, mark in enumerate(marks, 1):
        ink = _RIGHT if mark.right else _WRONG
        left, top = mark.col * side, mark.row * side
        draw.rectangle((left, top, left + side, top + side), outline=ink, width=width)
        if mark.step != (0, 0):
            _arrow(draw, (left + side / 2, top + side / 2), mark.step, side, ink)
        reach = draw.textlength(str(number), font=face) + side / 8
        draw.rectangle((left, top, left + reach, top + side * 0.3), fill=ink)
        draw.text((left + reach / 2, top + side * 0.15), str(number), font=face, fill=(255, 255, 255), anchor="mm")
    return drawing


def busiest(picture: UInt8[Tensor, "3 h w"], factor: int, rows: int, cols: int) -> Window:
    """The window of `rows` x `cols` tokens (fewer in a smaller picture) with the most contrast: worth a close look."""
    luma = picture.float().mean(0)
    height, width = luma.shape[0] // factor, luma.shape[1] // factor
    rows, cols = min(rows, height), min(cols, width)
    contrast = luma.unflatten(1, (width, factor)).unflatten(0, (height, factor)).var((1, 3))
    sums = torch.nn.functional.avg_pool2d(contrast[None], (rows, cols), stride=1)[0]
    row, col = divmod(int(sums.argmax()), sums.shape[1])
    return Window(row, col, rows, cols)


def _pil(picture: Tensor) -> Image:
    from PIL.Image import fromarray

    return fromarray(picture.permute(1, 2, 0).contiguous().numpy())


def _lines(drawing: Image, side: int) -> None:
    """A line on the first row and column of pixels of every token but the first: dark on light, light on dark."""
    from PIL import ImageDraw, ImageStat

    light = ImageStat.Stat(drawing.convert("L")).mean[0] > 140
    ink = (20, 60, 110, 88) if light else (255, 255, 255, 96)
    draw = ImageDraw.Draw(drawing, "RGBA")
    for col in range(side, drawing.width, side):
        draw.line((col, 0, col, drawing.height - 1), fill=ink)
    for row in range(side, drawing.height, side):
        draw.line((0, row, drawing.width - 1, row), fill=ink)


def _frame(drawing: Image, box: tuple[int, int, int, int]) -> None:
    from PIL import ImageDraw

    left, top, right, bottom = box
    width = max(3, drawing.width // 220)
    draw = ImageDraw.Draw(drawing)
    draw.rectangle(
        (left - width - 1, top - width - 1, right + width, bottom + width), outline=(20, 20, 20), width=width + 2
    )
    draw.rectangle((left - width, top - width, right + width - 1, bottom + width - 1), outline=_MARK, width=width)


def _arrow(draw: Any, middle: tuple[float, float], step: tuple[int, int], side: int, ink: tuple[int, ...]) -> None:
    """From a cell's edge into its neighbour's."""
    (down, right), width = step, max(2, side // 20)
    start = middle[0] + right * side * 0.42, middle[1] + down * side * 0.42
    end = middle[0] + right * side * 0.74, middle[1] + down * side * 0.74
    half = side * 0.1
    draw.line((*start, *end), fill=ink, width=width)
    tip = end[0] + right * half, end[1] + down * half
    wings = [(end[0] + sign * half * down, end[1] + sign * half * right) for sign in (1, -1)]
    draw.polygon([tip, *wings], fill=ink)


def _font(size: int) -> Any:
    from PIL.ImageFont import truetype

    from mrope.data import font

    return truetype(str(font("JetBrainsMono-Regular").path), size)


def _font_size(ids: Tensor, window: Window, side: int) -> int:
    """The largest letters with which the longest label fits its token, at most a sixth of the side."""
    rows, cols = slice(window.row, window.row + window.rows), slice(window.col, window.col + window.cols)
    longest = max((" ".join(map(str, label)) for label in ids[:, rows, cols].flatten(1).T.tolist()), key=len)
    advance = _font(100).getlength(longest) / 100  # of one pixel of letter size
    return max(6, min(side // 7, int((side - 10) / (advance + 0.8))))


def _write(
    draw: Any, ids: tuple[int, int, int], corner: tuple[int, int], side: int, size: int
) -> tuple[int, int, int, int]:
    """Write three ids on a plate at the foot of a token, each in its axis' colour; return the plate's box."""
    face = _font(size)
    words = [str(value) for value in ids]
    gap = face.getlength(" ")
    width = sum(face.getlength(word) for word in words) + 2 * gap
    left, top = corner[0] + (side - width) / 2, corner[1] + side - 1.75 * size
    box = int(left - 0.4 * size), int(top - 0.2 * size), int(left + width + 0.4 * size), int(top + 1.3 * size)
    draw.rounded_rectangle(box, radius=size // 4, fill=_PLATE)
    for word, ink in zip(words, INKS, strict=True):
        draw.text((left, top + 0.55 * size), word, font=face, fill=ink, anchor="lm")
        left += face.getlength(word) + gap
    return box
