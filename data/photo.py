"""The demo's photograph: pool balls under a lamp, traced ray by ray, with depth blur, soft shadows and film grain.

Axes of the scene: x to the right, y away from the camera, z up; the unit is a ball's radius. Points, directions and
colours, which are linear light, stand in the columns of (3, n) arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TypeAlias

import numpy as np
from jaxtyping import Float32
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from .fonts import font

HEIGHT, WIDTH = 610, 870
LENS_SAMPLES = 12

Vectors: TypeAlias = Float32[np.ndarray, "3 _"]
Numbers: TypeAlias = Float32[np.ndarray, "_"]
Texture: TypeAlias = Float32[np.ndarray, "_ _"]

EYE, LOOK_AT = (-1.2, -15.5, 6.6), (0.15, 0.6, 0.75)
FOCUS, LENS_RADIUS, VIEW = (-1.0, -1.2, 1.0), 0.2, 0.42
"""Point in focus, radius of the lens, and half the picture's width at distance 1."""

CLOTH, CUSHION_Y, RAIL_HIGH, RAIL_DEEP = (0.010, 0.105, 0.085), 8.5, 1.25, 2.6
BED, CUSHION, RAIL_TOP, RAIL_FRONT = 100, 101, 102, 103
"""Numbers of the table's surfaces; the balls have their index."""

LAMP = (1.0, 3.0, 15.0)
LAMP_RADIUS = 2.4
LAMP_LIGHT = (1.0, 0.86, 0.66)


@dataclass(frozen=True, slots=True)
class _Ball:
    centre: tuple[float, float]
    colour: tuple[float, float, float]
    number: str
    striped: bool = False
    front: tuple[float, float, float] = (0.0, -0.9, 0.44)
    """Where the number's disc points."""


BALLS = (
    _Ball((-1.0, -1.2), (0.85, 0.50, 0.02), "9", striped=True, front=(-0.05, -0.86, 0.5)),
    _Ball((1.35, -2.6), (0.62, 0.02, 0.02), "3", front=(-0.35, -0.8, 0.5)),
    _Ball((3.55, 0.3), (0.02, 0.06, 0.42), "2", front=(-0.55, -0.72, 0.42)),
    _Ball((0.9, 1.5), (0.012, 0.012, 0.014), "8", front=(-0.1, -0.9, 0.42)),
    _Ball((-3.9, 1.0), (0.80, 0.78, 0.70), ""),
    _Ball((-1.9, 4.3), (0.85, 0.22, 0.02), "5", front=(0.2, -0.9, 0.4)),
    _Ball((3.1, 5.2), (0.22, 0.03, 0.35), "4", front=(0.1, -0.95, 0.3)),
    _Ball((-6.2, 5.6), (0.02, 0.25, 0.06), "6", front=(0.3, -0.9, 0.3)),
    _Ball((6.6, 3.6), (0.85, 0.50, 0.02), "7", front=(-0.3, -0.9, 0.3)),
)
ROOM_LAMPS = (
    (-0.37, -0.120, 0.021, (1.0, 0.50, 0.16)),
    (-0.27, -0.155, 0.013, (1.0, 0.72, 0.36)),
    (-0.16, -0.105, 0.024, (1.0, 0.62, 0.25)),
    (-0.02, -0.150, 0.014, (0.95, 0.22, 0.10)),
    (0.09, -0.115, 0.019, (0.45, 0.66, 1.0)),
    (0.13, -0.128, 0.019, (1.0, 0.70, 0.35)),
    (0.29, -0.145, 0.016, (1.0, 0.45, 0.15)),
    (0.41, -0.110, 0.023, (0.40, 0.75, 0.95)),
)
"""Lights in the room behind: direction (x, z) at y = 1, radius, colour."""


def _dot(a: Vectors, b: Vectors) -> Numbers:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _unit(a: Vectors) -> Vectors:
    return a / np.sqrt(_dot(a, a))


def _vector(values: tuple[float, float, float]) -> Vectors:
    return np.array(values, np.float32)[:, None]


def _blend(low: Numbers | float, high: Numbers | float, at: Numbers) -> Numbers:
    """0 below `low`, 1 above `high`, smooth between."""
    part = np.clip((at - low) / (high - low), 0, 1)
    return part * part * (3 - 2 * part)


class _Scene:
    """Textures, and what a ray meets."""

    def __init__(self, rng: np.random.Generator) -> None:
        noise = rng.standard_normal((512, 512)).astype(np.float32)
        spectrum = np.fft.rfft2(noise)
        rows, cols = np.fft.fftfreq(512)[:, None], np.fft.rfftfreq(512)[None]
        frequency = np.sqrt(rows**2 + cols**2) + 1 / 512
        cloudy = np.fft.irfft2(spectrum / frequency**1.6, (512, 512))
        self.fibre = noise
        self.cloud = (cloudy / cloudy.std()).astype(np.float32)
        self.digits = {ball.number: _digit(ball.number) for ball in BALLS}

    def colour(self, origin: Vectors, ray: Vectors, *, bounces: int, skip: int = -1) -> Vectors:
        """The light that comes along each ray: (3, n)."""
        count = ray.shape[1]
        light = self._room(origin, ray)
        nearest = np.full(count, np.inf, np.float32)
        what = np.full(count, -1)
        # The table: cloth, cushion, rail.
        with np.errstate(divide="ignore", invalid="ignore"):
            for surface, axis, at in (
                (BED, 2, 0.0),
                (CUSHION, 1, CUSHION_Y),
                (RAIL_TOP, 2, RAIL_HIGH),
                (RAIL_FRONT, 1, CUSHION_Y + 0.5),
            ):
                away = (at - origin[axis]) / ray[axis]
                _, y, z = origin + away * ray
                if surface == BED:
                    inside = y < CUSHION_Y
                elif surface == CUSHION:
                    inside = (z > 0) & (z < RAIL_HIGH - 0.12)
                elif surface == RAIL_TOP:
                    inside = (y > CUSHION_Y + 0.5) & (y < CUSHION_Y + RAIL_DEEP)
                else:
                    inside = (z > RAIL_HIGH - 0.12) & (z < RAIL_HIGH)
                hit = inside & (away > 1e-3) & (away < nearest)
                nearest[hit], what[hit] = away[hit], surface
        for index, ball in enumerate(BALLS):
            if index == skip:
                continue
            from_centre = origin - _vector((*ball.centre, 1.0))
            half = _dot(from_centre, ray)
            under = half * half - _dot(from_centre, from_centre) + 1
            away = -half - np.sqrt(np.maximum(under, 0))
            hit = (under > 0) & (away > 1e-3) & (away < nearest)
            nearest[hit], what[hit] = away[hit], index
        for index in np.unique(what):
            if index < 0:
                continue
            chosen = np.flatnonzero(what == index)
            start = origin if origin.shape[1] == 1 else origin[:, chosen]
            point = start + nearest[chosen] * ray[:, chosen]
            if index >= BED:
                light[:, chosen] = self._table(int(index), point)
            else:
                light[:, chosen] = self._ball(int(index), point, ray[:, chosen], bounces)
        return light

    def _room(self, origin: Vectors, ray: Vectors) -> Vectors:
        """The dark room behind with its lights, and the lamp overhead."""
        up = np.clip(ray[2] * 2.0 + 0.35, 0, 1)
        light = _vector((0.030, 0.020, 0.017)) * (1 - up) + _vector((0.012, 0.012, 0.020)) * up
        ahead = np.where(ray[1] > 0.05, ray[1], np.inf)
        for x, z, radius, colour in ROOM_LAMPS:
            apart = np.sqrt((ray[0] / ahead - x) ** 2 + (ray[2] / ahead - z) ** 2)
            light = light + _vector(colour) * (
                0.55 * (1 - _blend(0.88 * radius, 1.1 * radius, apart)) * (ray[1] > 0.05)
            )
        rising = np.where(ray[2] > 0.05, ray[2], np.inf)
        away = (LAMP[2] - origin[2]) / rising
        x, y = origin[0] + away * ray[0] - LAMP[0], origin[1] + away * ray[1] - LAMP[1]
        shade = (np.abs(y) < 2.0) & (np.abs((x + 7.5) % 5.0 - 2.5) < 1.9) & (np.abs(x) < 7.4) & (ray[2] > 0.05)
        return light + _vector(LAMP_LIGHT) * np.where(shade, np.float32(26), np.float32(0))

    def _lit(self, point: Vectors, normal: Vectors, *, skip: int = -1) -> Vectors:
        """Light that arrives at a surface, soft shadows and the nearness of balls included: (3, n)."""
        to_lamp = _vector(LAMP) - point
        distance = np.sqrt(_dot(to_lamp, to_lamp))
        to_lamp = to_lamp / distance
        size = LAMP_RADIUS / distance
        open_sky, direct = np.ones_like(distance), np.ones_like(distance)
        for index, ball in enumerate(BALLS):
            if index == skip:
                continue
            to_ball = _vector((*ball.centre, 1.0)) - point
            away = np.maximum(np.sqrt(_dot(to_ball, to_ball)), 1.001)
            to_ball = to_ball / away
            angle = np.arccos(np.clip(_dot(to_lamp, to_ball), -1, 1))
            radius = np.arcsin(1 / away)
            direct *= 1 - (1 - _blend(np.abs(radius - size), radius + size, angle)) * np.minimum(
                1, (radius / size) ** 2
            )
            open_sky *= 1 - 0.9 * np.clip(_dot(normal, to_ball), 0, 1) / away**2
        facing = np.clip(_dot(normal, to_lamp) * 0.85 + 0.15, 0, 1)
        if skip >= 0:
            open_sky = open_sky * (0.55 + 0.45 * np.clip(point[2] - 0.2, 0, 1.5) / 1.5)
        fall = (LAMP[2] / distance) ** 2
        return _vector(LAMP_LIGHT) * (2.3 * facing * direct * fall) + _vector((0.16, 0.17, 0.2)) * open_sky

    def _texture(self, image: Texture, x: Numbers, y: Numbers) -> Numbers:
        return image[np.floor(y).astype(int) % 512, np.floor(x).astype(int) % 512]

    def _table(self, surface: int, point: Vectors) -> Vectors:
        """Cloth with its fibres and chalk marks, the cushion, or the wooden rail."""
        normal = _vector((0.0, 0.0, 1.0) if surface in (BED, RAIL_TOP) else (0.0, -1.0, 0.0)) + 0 * point
        light = self._lit(point, normal)
        if surface in (RAIL_TOP, RAIL_FRONT):
            grain = self._texture(self.cloud, point[0] * 6, (point[1] + point[2]) * 90)
            rings = np.sin(9 * (point[1] + point[2]) + 2.5 * self._texture(self.cloud, point[0] * 4, point[1] * 18))
            return light * _vector((0.16, 0.062, 0.026)) * (1 + 0.16 * grain + 0.25 * rings)
        across = point[1] if surface == BED else point[2]
        fibre = self._texture(self.fibre, point[0] * 34, across * 34)
        worn = self._texture(self.cloud, point[0] * 13 + 100, across * 13)
        chalk = np.clip(self._texture(self.cloud, point[0] * 24, across * 24 + 200) - 1.4, 0, 1) * (surface == BED)
        cloth = _vector(CLOTH) * (1 + 0.17 * fibre + 0.09 * worn) + _vector((0.02, 0.035, 0.05)) * chalk
        return light * cloth

    def _ball(self, index: int, point: Vectors, ray: Vectors, bounces: int) -> Vectors:
        """A ball's paint under a coat of lacquer."""
        ball = BALLS[index]
        normal = _unit(point - _vector((*ball.centre, 1.0)))
        front = _unit(_vector(ball.front))
        side = _unit(_vector((-ball.front[1], ball.front[0], 0.0)))
        top = np.cross(front[:, 0], side[:, 0])[:, None].astype(np.float32)
        u, v = _dot(normal, side), _dot(normal, top)
        paint = _vector(ball.colour) + 0 * normal
        ivory = _vector((0.80, 0.76, 0.64))
        if ball.striped:
            paint = np.where(np.abs(v) > 0.58, ivory, paint)
        if ball.number:
            disc = (u**2 + v**2 < 0.44**2) & (_dot(normal, front) > 0)
            digit = self.digits[ball.number]
            rows = np.clip((0.5 - v / 0.88) * digit.shape[0], 0, digit.shape[0] - 1).astype(int)
            cols = np.clip((0.5 + u / 0.88) * digit.shape[1], 0, digit.shape[1] - 1).astype(int)
            paint = np.where(disc, ivory * digit[rows, cols] + 0.012 * (1 - digit[rows, cols]), paint)
        light = paint * self._lit(point, normal, skip=index)
        # Light that the cloth throws back from below.
        light = light + paint * _vector(CLOTH) * (2.5 * np.clip(0.35 - normal[2], 0, 1))
        if bounces:
            mirrored = ray - 2 * _dot(ray, normal) * normal
            shine = 0.04 + 0.96 * (1 - np.clip(-_dot(ray, normal), 0, 1)) ** 5
            light = light * (1 - shine) + shine * self.colour(point, mirrored, bounces=bounces - 1, skip=index)
        return light


def _digit(text: str) -> Texture:
    """White square with a black digit, 0..1."""
    picture = Image.new("L", (192, 192), 255)
    face = ImageFont.truetype(str(font("Inter-Bold").path), 128, layout_engine=ImageFont.Layout.BASIC)
    ImageDraw.Draw(picture).text((96, 96), text, font=face, fill=0, anchor="mm")
    return np.asarray(picture, np.float32) / 255


def draw_photo(*, height: int = HEIGHT, width: int = WIDTH, samples: int = LENS_SAMPLES, seed: int = 7) -> Image.Image:
    """Trace the picture, (height, width) RGB, upright; `samples` rays go through the lens for each pixel.

    Example:
        >>> draw_photo(height=30, width=44, samples=1).size
        (44, 30)
    """
    rng = np.random.default_rng(seed)
    scene = _Scene(rng)
    eye = _vector(EYE)
    forward = _unit(_vector(LOOK_AT) - eye)
    right = _unit(np.cross(forward[:, 0], (0, 0, 1)).astype(np.float32)[:, None])
    up = np.cross(right[:, 0], forward[:, 0])[:, None]
    sharp = float(_dot(_vector(FOCUS) - eye, forward)[0])
    rows, cols = (part.ravel().astype(np.float32) for part in np.mgrid[:height, :width])
    total = np.zeros((3, height * width), np.float32)
    for sample in range(samples):
        jitter = rng.random((2, height * width), dtype=np.float32)
        turn = rng.random(height * width, dtype=np.float32) * 0.5 + 2.39996 * sample
        radius = LENS_RADIUS * sqrt((sample + 0.5) / samples)
        lens = right * (radius * np.cos(turn)) + up * (radius * np.sin(turn))
        x = (2 * (cols + jitter[0]) / width - 1) * VIEW
        y = (1 - 2 * (rows + jitter[1]) / height) * VIEW * height / width
        target = eye + sharp * (forward + x * right + y * up)
        start = eye + lens
        total += np.minimum(scene.colour(start, _unit(target - start), bounces=1), 8.0)
    return _develop((total / samples).reshape(3, height, width), rng)


def _develop(light: Float32[np.ndarray, "3 h w"], rng: np.random.Generator) -> Image.Image:
    """Glow, vignette, film curve and grain: linear light (3, h, w) to a picture."""
    _, height, width = light.shape
    bright = (np.clip(light - 0.9, 0, 4).transpose(1, 2, 0) * (255 / 4)).astype(np.uint8)
    glow = Image.fromarray(bright).filter(ImageFilter.GaussianBlur(width / 90))
    light = light + np.asarray(glow, np.float32).transpose(2, 0, 1) * (4 / 255) * 0.5
    rows, cols = np.linspace(-1, 1, height)[:, None], np.linspace(-1, 1, width)[None]
    light = light * (1 - 0.22 * (rows**2 + cols**2)) * 1.25
    curve = light * (2.51 * light + 0.03) / (light * (2.43 * light + 0.59) + 0.14)  # Narkowicz's fit of the ACES curve
    level = np.clip(curve, 0, 1) ** (1 / 2.2)
    grain = rng.standard_normal((height, width)) * 0.014 + rng.standard_normal((3, height, width)) * 0.006
    return Image.fromarray((np.clip(level + grain, 0, 1) * 255).round().astype(np.uint8).transpose(1, 2, 0))
