"""Paper that text is written on, which knows where its ink is."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, floor

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ..canvas import Colour, Number, Point
from ..fonts import Font, fonts
from .sample import Box

FACES = fonts("held-out")
"""The faces of all tasks: the shipped reader has met none of them."""

_FINENESS = 3
_LUMA = np.array((299, 587, 114))


def any_colours(rng: np.random.Generator) -> tuple[Colour, Colour]:
    """Paper and ink at least 90 luma levels apart, the lighter of them as either."""
    while True:
        paper, ink = rng.integers(0, 256, (2, 3))
        if abs((paper - ink) @ _LUMA) >= 90_000:
            return _colour(paper), _colour(ink)


def page_colours(rng: np.random.Generator) -> tuple[Colour, Colour]:
    """Light paper and dark ink."""
    return _colour(rng.integers(232, 256, 3)), _colour(rng.integers(0, 72, 3))


def any_face(rng: np.random.Generator) -> Font:
    """One of `FACES`."""
    return FACES[int(rng.integers(len(FACES)))]


class Sheet:
    """Paper of (height, width) pixels in one colour, written on in one ink.

    Letters are drawn three times finer than they end, as on `Canvas`: their size can be any fraction of a pixel, and
    depends little on FreeType's grid fitting.
    """

    def __init__(self, height: int, width: int, colours: tuple[Colour, Colour]) -> None:
        self.height, self.width = height, width
        self._paper, self._ink = (np.array(colour, np.float64) for colour in colours)
        self._cover = np.zeros((height, width), np.uint8)  # how much of a pixel is ink, of 255

    def write(self, text: str, at: Point, *, face: Font, size: Number, anchor: str = "mm") -> Box:
        """Write `text` in `size` pixels an em; return the box of its ink.

        Args:
            text: one line.
            at: (row, col) in pixels of the anchor.
            face: the font.
            size: pixels of an em.
            anchor: Pillow's, "mm" for the middle.
        """
        pen = _pen(face, round(size * _FINENESS))
        row, col = at
        left, top, right, bottom = pen.getbbox(text, anchor=anchor)
        first_row, first_col = floor(row + top / _FINENESS) - 1, floor(col + left / _FINENESS) - 1
        last_row, last_col = ceil(row + bottom / _FINENESS) + 1, ceil(col + right / _FINENESS) + 1
        fine = Image.new("L", ((last_col - first_col) * _FINENESS, (last_row - first_row) * _FINENESS))
        place = ((col - first_col) * _FINENESS, (row - first_row) * _FINENESS)
        ImageDraw.Draw(fine).text(place, text, font=pen, fill=255, anchor=anchor)
        return self._lay(np.asarray(fine.reduce(_FINENESS)), first_row, first_col)

    def write_in(self, text: str, room: Box, rng: np.random.Generator, *, face: Font, size: Number) -> Box:
        """Write `text` anywhere in `room` (in its middle, where it has no room); return the box of its ink."""
        left, top, right, bottom = ink(text, face=face, size=size)
        high, wide = room[3] - room[1] - (bottom - top), room[2] - room[0] - (right - left)
        down, across = rng.uniform(-0.5, 0.5, 2).tolist()
        row = (room[1] + room[3] - top - bottom) / 2 + down * max(0.0, high)
        col = (room[0] + room[2] - left - right) / 2 + across * max(0.0, wide)
        return self.write(text, (row, col), face=face, size=size)

    def rule(self, start: tuple[int, int], end: tuple[int, int], width: int = 1) -> None:
        """Draw a line along a row or a column, between the pixels `start` and `end` (row, col)."""
        (top, left), (bottom, right) = start, end
        self._cover[top : bottom + width, left : right + width] = 255

    def ring(self, centre: Point, radius: Number, *, width: Number = 2) -> None:
        """Draw a circle."""
        rows, cols = np.ogrid[: self.height, : self.width]
        away = np.sqrt((rows + 0.5 - centre[0]) ** 2 + (cols + 0.5 - centre[1]) ** 2)
        cover = np.clip((width + 1) / 2 - np.abs(away - radius), 0, 1)
        self._cover = np.maximum(self._cover, np.rint(cover * 255).astype(np.uint8))

    def picture(self, grain: np.ndarray | int = 0) -> Image.Image:
        """The sheet as an RGB picture, with `grain` (height, width, 3) added to it."""
        share = self._cover[..., None] / 255.0
        pixels = np.rint(self._paper + (self._ink - self._paper) * share) + grain
        return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))

    def _lay(self, cover: np.ndarray, row: int, col: int) -> Box:
        """Lay ink on the paper from (row, col) on, cut off at its edges; return the box of what was laid."""
        up, back = max(0, -row), max(0, -col)
        cover = cover[up : self.height - row, back : self.width - col]
        row, col = row + up, col + back
        under = self._cover[row : row + cover.shape[0], col : col + cover.shape[1]]
        np.maximum(under, cover, out=under)
        rows, cols = np.flatnonzero(cover.any(1)), np.flatnonzero(cover.any(0))
        return (
            float(col + cols[0]),
            float(row + rows[0]),
            float(col + cols[-1] + 1),
            float(row + rows[-1] + 1),
        )


def ink(text: str, *, face: Font, size: Number) -> Box:
    """The box of a line's ink in pixels, from the line's middle."""
    left, top, right, bottom = _pen(face, round(size * _FINENESS)).getbbox(text, anchor="mm")
    return left / _FINENESS, top / _FINENESS, right / _FINENESS, bottom / _FINENESS


def ink_size(text: str, *, face: Font, size: Number) -> tuple[float, float]:
    """(height, width) in pixels of the ink of a line."""
    left, top, right, bottom = ink(text, face=face, size=size)
    return bottom - top, right - left


def _colour(levels: np.ndarray) -> Colour:
    red, green, blue = levels.tolist()
    return red, green, blue


@lru_cache(maxsize=256)
def _pen(face: Font, size: int) -> ImageFont.FreeTypeFont:
    # The basic layout engine is in every build of Pillow; the other one comes and goes and would move letters.
    return ImageFont.truetype(str(face.path), size, layout_engine=ImageFont.Layout.BASIC)
