"""Glyph grids: pictures of letters in rows and columns, drawn from real fonts, with the answer key beside.

A probe asks what stands in a cell, or next to it. Every cell of a grid holds one glyph, picture sides are native (about
32 pixels a cell, but rarely divisible by it), and font, size, place, colours and noise vary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .fonts import Font

GLYPHS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
"""The 24 glyphs: capitals without I, a bare stroke, and O, a Q but for its tail. A probe asks where, not what: digits,
whose 8, 5 and 3 pass for B, S and each other at this size, would measure the font instead."""

CELL = 32
"""Pixels of a cell's side, before the picture's own jitter."""

STAMP = 48
"""Pixels of the square that one glyph is drawn in: the largest, distorted, does not fill it."""

RELATIONS: dict[str, tuple[int, int]] = {
    "in": (0, 0),
    "right": (0, 1),
    "left": (0, -1),
    "above": (-1, 0),
    "below": (1, 0),
}
"""Where each question looks from the cell that it names, as (rows, columns)."""


HELD_OUT_PAIRS = np.fromfunction(lambda first, second: (5 * first + 3 * second) % 10 == 0, (len(GLYPHS), len(GLYPHS)))
"""(24, 24) bool: the (left, right) or (upper, lower) neighbours that training never shows, a tenth of all."""


@dataclass(frozen=True, slots=True)
class GlyphGrid:
    """A picture and its key: ``glyphs`` (rows, columns) holds indices into `GLYPHS`."""

    picture: Image.Image
    glyphs: np.ndarray

    def text(self) -> str:
        """The key as lines of glyphs."""
        return "\n".join("".join(GLYPHS[g] for g in row) for row in self.glyphs)


def sample_key(rows: int, cols: int, rng: np.random.Generator, *, pairs: str = "all") -> np.ndarray:
    """Draw a (rows, cols) key; with ``pairs="train"`` no two neighbours form a held-out pair."""
    if pairs not in ("all", "train"):
        raise ValueError(f"pairs is {pairs!r}; expected 'all' or 'train'")
    key = rng.integers(len(GLYPHS), size=(rows, cols))
    if pairs == "train":
        for r, c in np.ndindex(rows, cols):
            while (c and HELD_OUT_PAIRS[key[r, c - 1], key[r, c]]) or (r and HELD_OUT_PAIRS[key[r - 1, c], key[r, c]]):
                key[r, c] = rng.integers(len(GLYPHS))
    return key


def questions(key: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All questions that a key (rows, columns) can answer: cell, relation and answer, each (Q,)."""
    rows, cols = key.shape
    row, col, relation = (axis.ravel() for axis in np.indices((rows, cols, len(RELATIONS))))
    step = np.array(list(RELATIONS.values()))[relation]
    to_row, to_col = row + step[:, 0], col + step[:, 1]
    inside = (to_row >= 0) & (to_row < rows) & (to_col >= 0) & (to_col < cols)
    row, col, relation, to_row, to_col = (each[inside] for each in (row, col, relation, to_row, to_col))
    return row * cols + col, relation, key[to_row, to_col]


def draw_grid(key: np.ndarray, fonts: Sequence[Font], rng: np.random.Generator, *, distort: bool = False) -> GlyphGrid:
    """Draw `key` (rows, columns) with one of `fonts`.

    The picture's sides miss the multiple of `CELL` by up to 12 pixels either way, so that a plan has to resize; each
    glyph sits up to 2 pixels off its cell's centre; ink and paper are random colours at least 90 luma levels apart,
    under Gaussian noise of up to 10 levels.

    Args:
        key: indices into `GLYPHS`.
        fonts: the faces to choose from; one, in one size, serves the whole picture.
        rng: decides everything that varies.
        distort: also vary what a face does not: width, height, slant and tilt, one way a picture (for training).
    """
    rows, cols = key.shape
    height, width = (side * CELL + int(rng.integers(-12, 13)) for side in (rows, cols))
    paper, ink = _colours(rng)
    face, affine = _face(fonts, rng), _distortion(rng) if distort else None
    stamps = {letter: _stamp(face, GLYPHS[letter], affine) for letter in np.unique(key).tolist()}
    picture = Image.new("RGB", (width, height), paper)
    for (row, col), (down, right) in zip(np.ndindex(rows, cols), rng.uniform(-2, 2, (rows * cols, 2)), strict=True):
        centre = (right + (col + 0.5) * width / cols, down + (row + 0.5) * height / rows)
        picture.paste(ink, tuple(round(at) - STAMP // 2 for at in centre), stamps[int(key[row, col])])
    noise = rng.standard_normal((height, width, 3), dtype=np.float32) * float(rng.uniform(0, 10))
    pixels = np.clip(np.asarray(picture, dtype=np.float32) + noise, 0, 255).round().astype(np.uint8)
    return GlyphGrid(Image.fromarray(pixels), key)


def _colours(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    luma = np.array((0.299, 0.587, 0.114))
    while True:
        paper, ink = rng.integers(0, 256, (2, 3))
        if abs((paper - ink) @ luma) >= 90:
            return tuple(paper.tolist()), tuple(ink.tolist())


def _face(fonts: Sequence[Font], rng: np.random.Generator) -> ImageFont.FreeTypeFont:
    """One of `fonts` in a size that fits a cell."""
    return _load(fonts[int(rng.integers(len(fonts)))].path, int(rng.integers(19, 28)))


@lru_cache(maxsize=512)
def _load(path: Path, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(path, size)


def _distortion(rng: np.random.Generator) -> tuple[float, ...]:
    """An affine map about the middle of a stamp, from output to input as Pillow's transform takes it."""
    tilt, slant = rng.uniform(-0.1, 0.1), rng.uniform(-0.25, 0.25)
    wide, high = rng.uniform(0.8, 1.2, 2)
    turn = np.array([[np.cos(tilt), -np.sin(tilt)], [np.sin(tilt), np.cos(tilt)]])
    inverse = np.linalg.inv(turn @ np.array([[wide, slant], [0.0, high]]))
    middle = np.full(2, STAMP / 2)
    return tuple(np.column_stack([inverse, middle - inverse @ middle]).ravel().tolist())


def _stamp(face: ImageFont.FreeTypeFont, glyph: str, affine: tuple[float, ...] | None) -> Image.Image:
    """A mask of STAMP x STAMP pixels with the glyph in its middle."""
    mask = Image.new("L", (STAMP, STAMP))
    ImageDraw.Draw(mask).text((STAMP / 2, STAMP / 2), glyph, font=face, fill=255, anchor="mm")
    if affine is None:
        return mask
    return mask.transform(mask.size, Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR)
