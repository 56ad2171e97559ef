"""The demo's clip: a train that goes right, a balloon that goes up, clouds that go left, and a clock that runs."""

from __future__ import annotations

from math import cos, pi, sin

import numpy as np
from PIL import Image

from .canvas import Canvas, Colour, Number, Point

HEIGHT, WIDTH = 300, 410
FRAMES, FRAMES_PER_SECOND = 16, 8

SKY_TOP, SKY_LOW = (92, 148, 206), (253, 226, 190)
WHITE, DARK, STEEL = (255, 255, 255), (38, 42, 54), (98, 104, 116)
SPEED = 13
"""The train's pixels per frame."""

RAIL = 236
"""Row of the rails."""

WAGONS = (("A", (206, 78, 58)), ("B", (232, 170, 56)), ("C", (70, 140, 120)))


def draw_clip() -> list[Image.Image]:
    """Draw the frames, each (300, 410) RGB.

    Example:
        >>> frames = draw_clip()
        >>> len(frames), frames[0].size
        (16, (410, 300))
    """
    return [draw_frame(index) for index in range(FRAMES)]


def clock_time(frame: int) -> str:
    """What the clock shows in a frame: minutes, seconds and thousandths since the first."""
    thousandths = frame * 1000 // FRAMES_PER_SECOND
    return f"{thousandths // 60000:02}:{thousandths // 1000 % 60:02}.{thousandths % 1000:03}"


def draw_frame(frame: int) -> Image.Image:
    """Draw one frame."""
    canvas = Canvas(HEIGHT, WIDTH, SKY_LOW)
    _land(canvas, frame)
    _balloon(canvas, (148 - 6.4 * frame, 318 + 5 * sin(frame / 3)))
    _railway(canvas)
    _train(canvas, frame)
    _meadow(canvas)
    canvas.box((12, 12, 152, 50), fill=DARK, radius=7)
    canvas.text(clock_time(frame), (31.5, 82), face="JetBrainsMono-Regular", size=22, ink=(255, 214, 120), anchor="mm")
    return canvas.picture()


def _land(canvas: Canvas, frame: int) -> None:
    """Sky, sun, clouds and hills."""
    for row in range(0, 190, 2):
        canvas.box((0, row, WIDTH, row + 2), fill=_mix(SKY_TOP, SKY_LOW, row / 190))
    canvas.disc((158, 236), 30, fill=(255, 238, 204))
    canvas.disc((158, 236), 24, fill=(255, 248, 232))
    for row, col, size in ((66, 214, 1.0), (44, 396, 0.75), (98, 80, 0.6)):
        _cloud(canvas, (row, col - 2.2 * size * frame), size)
    for base, swing, length, shift, colour in (
        (176, 22, 68, 0.4, (158, 176, 196)),
        (196, 15, 44, 2.2, (124, 160, 148)),
        (214, 8, 80, 4.0, (112, 158, 98)),
    ):
        ridge: list[Point] = [
            (base - swing * (sin(col / length + shift) + 0.4 * sin(2.7 * col / length + 3 * shift)), col)
            for col in range(0, WIDTH + 4, 3)
        ]
        canvas.polygon([*ridge, (HEIGHT, WIDTH + 4), (HEIGHT, 0)], fill=colour)


def _cloud(canvas: Canvas, at: Point, size: Number) -> None:
    row, col = at
    for down, right, radius in ((0, 0, 13), (4, -17, 9), (3, 17, 10), (-6, 8, 10)):
        canvas.disc((row + down * size, col + right * size), radius * size, fill=(250, 250, 250))
    canvas.box(
        (col - 26 * size, row + 2 * size, col + 27 * size, row + 13 * size), fill=(250, 250, 250), radius=5 * size
    )


def _balloon(canvas: Canvas, at: Point) -> None:
    """A striped hot-air balloon; `at` is the middle of its envelope."""
    row, col = at
    outline = [
        (row + down, half)
        for down, half in (
            *((27 * sin(angle), 27 * cos(angle)) for angle in np.linspace(-pi / 2, 0.45, 24).tolist()),
            (22, 17.5), (31, 9), (36, 6),
        )
    ]  # fmt: skip
    for part, colour in ((1.0, (200, 58, 62)), (0.66, (250, 236, 214)), (0.3, (200, 58, 62))):
        right = [(r, col + half * part) for r, half in outline]
        left = [(r, col - half * part) for r, half in reversed(outline)]
        canvas.polygon([*right, *left], fill=colour)
    for side in (-5, 5):
        canvas.line([(row + 36, col + side), (row + 48, col + side * 0.8)], ink=DARK, width=0.8)
    canvas.box((col - 6, row + 47, col + 6, row + 56), fill=(140, 94, 54), radius=2)


def _railway(canvas: Canvas) -> None:
    """Embankment, sleepers and rail."""
    canvas.polygon([(RAIL + 2, 0), (RAIL + 2, WIDTH), (RAIL + 22, WIDTH), (RAIL + 22, 0)], fill=(150, 136, 120))
    for col in range(-4, WIDTH, 14):
        canvas.box((col, RAIL + 3, col + 8, RAIL + 8), fill=(104, 80, 62), radius=1)
    canvas.line([(RAIL + 2, 0), (RAIL + 2, WIDTH)], ink=STEEL, width=2.4)


def _train(canvas: Canvas, frame: int) -> None:
    """Three lettered wagons behind an engine; smoke stays where it was puffed out."""
    nose = 150 + SPEED * frame
    for age in range(1, 9):
        drift = nose - 22 - SPEED * 0.85 * age
        canvas.disc(
            (RAIL - 58 - 3.2 * age, drift), 3.5 + 1.25 * age, fill=_mix((244, 244, 246), (214, 222, 228), age / 8)
        )
    for index, (letter, colour) in enumerate(WAGONS):
        left = nose - 130 - 62 * index
        canvas.line([(RAIL - 12, left + 50), (RAIL - 12, left + 66)], ink=DARK, width=2.5)
        canvas.box((left, RAIL - 42, left + 54, RAIL - 8), fill=colour, radius=4)
        canvas.box((left - 2, RAIL - 46, left + 56, RAIL - 40), fill=DARK, radius=2.5)
        canvas.disc((RAIL - 24, left + 27), 12, fill=(252, 248, 238))
        canvas.text(letter, (RAIL - 24, left + 27), face="Inter-Bold", size=18, ink=DARK, anchor="mm")
        for wheel in (12, 42):
            _wheel(canvas, (RAIL - 6, left + wheel), 7, nose)
    _engine(canvas, nose)


def _engine(canvas: Canvas, nose: Number) -> None:
    body = (44, 84, 136)
    canvas.box((nose - 68, RAIL - 56, nose - 40, RAIL - 10), fill=body, radius=3)
    canvas.box((nose - 72, RAIL - 61, nose - 36, RAIL - 54), fill=DARK, radius=2.5)
    canvas.box((nose - 62, RAIL - 50, nose - 46, RAIL - 34), fill=(252, 226, 160), radius=2)
    canvas.box((nose - 44, RAIL - 38, nose - 4, RAIL - 10), fill=body, radius=8)
    canvas.box((nose - 30, RAIL - 54, nose - 19, RAIL - 34), fill=DARK, radius=2)
    canvas.box((nose - 33, RAIL - 57, nose - 16, RAIL - 52), fill=DARK, radius=2)
    canvas.disc((RAIL - 26, nose - 5), 4, fill=(255, 240, 190))
    canvas.polygon([(RAIL - 14, nose - 6), (RAIL - 14, nose), (RAIL, nose + 8), (RAIL, nose - 6)], fill=STEEL)
    canvas.box((nose - 68, RAIL - 14, nose - 4, RAIL - 8), fill=(178, 54, 48))
    for wheel, radius in ((-56, 10), (-33, 8), (-15, 8)):
        _wheel(canvas, (RAIL + 1 - radius, nose + wheel), radius, nose)


def _wheel(canvas: Canvas, centre: Point, radius: Number, rolled: Number) -> None:
    """A wheel that has rolled so many pixels to the right."""
    canvas.disc(centre, radius, fill=DARK)
    canvas.disc(centre, radius * 0.72, fill=(214, 190, 150))
    for spoke in range(3):
        angle = rolled / radius + spoke * pi / 3
        down, right = radius * 0.75 * sin(angle), radius * 0.75 * cos(angle)
        ends = [(centre[0] - down, centre[1] - right), (centre[0] + down, centre[1] + right)]
        canvas.line(ends, ink=DARK, width=1.6)
    canvas.disc(centre, radius * 0.26, fill=DARK)


def _meadow(canvas: Canvas) -> None:
    """The foreground, with tufts of grass and flowers."""
    edge: list[Point] = [(RAIL + 22 + 3 * sin(col / 31) + 2 * sin(col / 9), col) for col in range(0, WIDTH + 4, 3)]
    canvas.polygon([*edge, (HEIGHT, WIDTH + 4), (HEIGHT, 0)], fill=(84, 134, 66))
    rng = np.random.default_rng(3)
    for row, col, lean in rng.uniform((266, 0, -3), (302, WIDTH, 3), (170, 3)).tolist():
        blade = [(row, col - 1.3), (row - 9, col + lean), (row, col + 1.3)]
        canvas.polygon(blade, fill=_mix((104, 156, 78), (66, 112, 54), (row - 266) / 36))
    for row, col, kind in rng.uniform((270, 0, 0), (297, WIDTH, 3), (34, 3)).tolist():
        canvas.disc((row, col), 2.1, fill=((250, 244, 226), (238, 186, 70), (214, 96, 92))[int(kind)])


def _mix(one: Colour, other: Colour, part: Number) -> Colour:
    """The colour that lies `part` of the way from one to the other."""
    r, g, b = (round(a + (z - a) * part) for a, z in zip(one, other, strict=True))
    return r, g, b
