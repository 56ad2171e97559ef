"""The demo's chart: bars for the tokens of an A4 page, a line for the height of its letters, two axes."""

from __future__ import annotations

from PIL import Image

from .canvas import BLUE, GREY, INK, ORANGE, RULE, Canvas, Point, text_width

HEIGHT, WIDTH = 610, 900
PLOT = (86, 132, 814, 486)
"""Left, top, right and bottom of the plotting area."""

PAPER = (255, 255, 255)
BAR = (142, 174, 214)
SANS, HEAD = "Inter-Regular", "Inter-Bold"

SIDES = (448, 672, 896, 1120, 1344, 1568, 1754)
A4_INCHES = (11.69, 8.27)
MERGED_PATCH = 28
CAPITAL_POINTS = 7.2
"""Height of a capital of 10 pt type, 0.72 em, in points of 1/72 inch."""

TOKEN_MAX, LETTER_MAX = 3000, 20


def tokens(side: int) -> int:
    """Tokens of an A4 page whose longer side has `side` pixels, rounded to merged patches of 28 pixels."""
    return round(side / MERGED_PATCH) * round(side * A4_INCHES[1] / A4_INCHES[0] / MERGED_PATCH)


def letter_height(side: int) -> float:
    """Height in pixels of a capital of 10 pt type on that page."""
    return CAPITAL_POINTS / 72 * side / A4_INCHES[0]


def draw_chart() -> Image.Image:
    """Draw the chart, (610, 900) RGB.

    Example:
        >>> draw_chart().size
        (900, 610)
    """
    canvas = Canvas(HEIGHT, WIDTH, PAPER)
    left, top, right, bottom = PLOT
    high = bottom - top
    canvas.text("One page, seven resolutions", (46, 30), face=HEAD, size=27)
    canvas.text(
        "What an A4 page costs, and how high its 10 pt capitals come out", (74, 30), face=SANS, size=16, ink=GREY
    )

    for step in range(7):
        row = bottom - step * high / 6
        if step:
            canvas.line([(row, left), (row, right)], ink=(228, 230, 234))
        canvas.text(f"{step * TOKEN_MAX // 6:,}", (row, left - 12), face=SANS, size=14, ink=BLUE, anchor="rm")
    for step in range(5):
        row = bottom - step * high / 4
        canvas.line([(row, right), (row, right + 5)], ink=ORANGE)
        canvas.text(str(step * LETTER_MAX // 4), (row, right + 12), face=SANS, size=14, ink=ORANGE, anchor="lm")
    canvas.text_upwards("visual tokens", ((top + bottom) / 2, 24), face=SANS, size=15, ink=BLUE)
    canvas.text_upwards("height of a capital, pixels", ((top + bottom) / 2, WIDTH - 22), face=SANS, size=15, ink=ORANGE)

    slot = (right - left) / len(SIDES)
    points = []
    for index, side in enumerate(SIDES):
        centre = left + (index + 0.5) * slot
        row = bottom - tokens(side) / TOKEN_MAX * high
        last = side == SIDES[-1]
        canvas.box((centre - 27, row, centre + 27, bottom), fill=BLUE if last else BAR)
        canvas.text(
            f"{tokens(side):,}", (bottom - 8, centre), face=HEAD, size=13, ink=PAPER if last else INK, anchor="ms"
        )
        canvas.text(str(side), (bottom + 22, centre), face=SANS, size=14, anchor="ms")
        points.append((bottom - letter_height(side) / LETTER_MAX * high, centre))

    patch = bottom - 14 / LETTER_MAX * high
    canvas.dashes((patch, left), (patch, right), ink=ORANGE, width=1.3)
    canvas.text("one patch, 14 pixels", (patch - 8, left + 8), face=SANS, size=14, ink=ORANGE)
    canvas.line(points, ink=ORANGE, width=3)
    for point in points:
        canvas.disc(point, 6, fill=PAPER, edge=ORANGE, width=3)
    canvas.line([(bottom, left), (bottom, right)], width=1.6)
    canvas.text("longer side of the page, pixels", (bottom + 48, (left + right) / 2), face=SANS, size=15, anchor="ms")

    _key(canvas, (106, left))
    canvas.line([(HEIGHT - 44, 30), (HEIGHT - 44, WIDTH - 30)], ink=RULE)
    note = (
        "Calculated, not measured: tokens = round(width / 28) x round(height / 28); a capital is 0.72 of the type size."
    )
    canvas.text(note, (HEIGHT - 22, 30), face=SANS, size=13, ink=GREY)
    return canvas.picture()


def _key(canvas: Canvas, at: Point) -> None:
    """Name the bars and the line."""
    row, col = at
    canvas.box((col, row - 11, col + 20, row + 1), fill=BAR)
    canvas.text("tokens (left axis)", (row, col + 28), face=SANS, size=14)
    col += 28 + text_width("tokens (left axis)", face=SANS, size=14) + 32
    canvas.line([(row - 5, col), (row - 5, col + 32)], ink=ORANGE, width=3)
    canvas.disc((row - 5, col + 16), 5, fill=PAPER, edge=ORANGE, width=3)
    canvas.text("capital of 10 pt type (right axis)", (row, col + 40), face=SANS, size=14)
