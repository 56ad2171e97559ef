"""A drawing surface with smooth edges, on which the demo pictures are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TypeAlias

from PIL import Image, ImageDraw, ImageFont

from .fonts import font

Colour: TypeAlias = tuple[int, int, int]
Number: TypeAlias = float | int  # typing lets an int pass for a float, a check at run time does not
Point: TypeAlias = tuple[Number, Number]
"""(row, col) in pixels of the finished picture, from its upper left corner."""

INK, GREY, RULE = (30, 31, 36), (104, 107, 115), (196, 198, 203)
BLUE, ORANGE, GREEN = (38, 92, 160), (217, 109, 38), (52, 132, 92)

FINENESS = 3


@cache
def _face(name: str, size: int) -> ImageFont.FreeTypeFont:
    # The basic layout engine is in every build of Pillow; the other one comes and goes and would move letters.
    return ImageFont.truetype(str(font(name).path), size, layout_engine=ImageFont.Layout.BASIC)


def text_width(text: str, *, face: str, size: Number) -> float:
    """Width of a line of text in pixels of the finished picture."""
    return _face(face, round(size * FINENESS)).getlength(text) / FINENESS


class Canvas:
    """A picture in the making, three times finer than it ends, so that letters and edges are smooth and evenly spaced.

    The fine drawing also makes the pictures depend little on the version of FreeType: its grid fitting moves an edge by
    less than a pixel of the fine surface.
    """

    def __init__(self, height: int, width: int, paper: Colour) -> None:
        self._fine = Image.new("RGB", (width * FINENESS, height * FINENESS), paper)
        self._draw = ImageDraw.Draw(self._fine)

    def picture(self) -> Image.Image:
        """The picture at its own size."""
        return self._fine.reduce(FINENESS)

    def text(self, text: str, at: Point, *, face: str, size: Number, ink: Colour = INK, anchor: str = "ls") -> None:
        """Write a line; `anchor` is Pillow's, "ls" means that `at` is the left end of the baseline."""
        fine = _face(face, round(size * FINENESS))
        self._draw.text(_fine(at), text, font=fine, fill=ink, anchor=anchor)

    def text_upwards(self, text: str, at: Point, *, face: str, size: Number, ink: Colour = INK) -> None:
        """Write a line that runs from bottom to top, centred on `at`."""
        fine = _face(face, round(size * FINENESS))
        left, top, right, bottom = fine.getbbox(text)
        mask = Image.new("L", (int(right - left), int(bottom - top)), 0)
        ImageDraw.Draw(mask).text((-left, -top), text, font=fine, fill=255)
        mask = mask.transpose(Image.Transpose.ROTATE_90)
        x, y = _fine(at)
        self._fine.paste(ink, (round(x) - mask.width // 2, round(y) - mask.height // 2), mask)

    def line(self, points: Sequence[Point], *, ink: Colour = INK, width: Number = 1.0) -> None:
        """Draw a line with rounded joints."""
        self._draw.line([_fine(point) for point in points], fill=ink, width=round(width * FINENESS), joint="curve")

    def dashes(self, start: Point, end: Point, *, ink: Colour = INK, width: Number = 1.0, dash: Number = 6.0) -> None:
        """Draw a dashed line; dashes and gaps are `dash` pixels long."""
        rows, cols = end[0] - start[0], end[1] - start[1]
        length = (rows**2 + cols**2) ** 0.5
        at = 0.0
        while at < length:
            a, b = at / length, min(at + dash, length) / length
            one, two = ((start[0] + rows * part, start[1] + cols * part) for part in (a, b))
            self.line([one, two], ink=ink, width=width)
            at += 2 * dash

    def box(
        self,
        corners: tuple[Number, Number, Number, Number],
        *,
        fill: Colour | None = None,
        edge: Colour | None = None,
        width: Number = 1.0,
        radius: Number = 0.0,
    ) -> None:
        """Draw a rectangle (left, top, right, bottom) with round corners of `radius` pixels."""
        left, top, right, bottom = (round(side * FINENESS) for side in corners)
        self._draw.rounded_rectangle(
            (left, top, right - 1, bottom - 1),
            radius=round(radius * FINENESS),
            fill=fill,
            outline=edge,
            width=round(width * FINENESS) if edge else 0,
        )

    def polygon(self, points: Sequence[Point], *, fill: Colour) -> None:
        """Fill a polygon."""
        self._draw.polygon([_fine(point) for point in points], fill=fill)

    def disc(
        self, centre: Point, radius: Number, *, fill: Colour, edge: Colour | None = None, width: Number = 1.0
    ) -> None:
        """Fill a disc."""
        (x, y), r = _fine(centre), radius * FINENESS
        self._draw.ellipse((x - r, y - r, x + r, y + r), fill=fill, outline=edge, width=round(width * FINENESS))


def _fine(point: Point) -> Point:
    """Pillow's (x, y) on the fine surface."""
    return point[1] * FINENESS, point[0] * FINENESS
