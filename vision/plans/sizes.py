"""How big pictures and clips become: the resize rules that the checkpoints were trained with, for many sizes at once.

Each rule takes int64 arrays of heights and widths in pixels, one entry a picture, and gives the same of what they are
resized to; `factor` = patch * merge is the side of one LLM token. Arithmetic is that of the published Python code to
the last digit (float64; halves round to even). Limits in pixels are kept by all but the corners that `area` names: who
needs a hard bound looks at the result, as `plan` does.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from jaxtyping import Int64

MAX_RATIO = 200
"""One side may be so many times the other, in all rules but "two-sided"."""
TWO_SIDED_RATIO = 4
"""The same for "two-sided"."""

Sides: TypeAlias = Int64[np.ndarray, " n"]
Sizes: TypeAlias = tuple[Sides, Sides]


def area(height: Sides, width: Sides, *, factor: int, least: int, most: int) -> Sizes:
    """Each side to the nearest multiple of `factor`, then height * width into the limits (Qwen2-VL).

    More than `most` pixels are left where a side would fall below one factor, or where growing to `least` rounds up.

    >>> area(np.array([480, 639]), np.array([640, 31]), factor=28, least=3136, most=20 * 28 * 28)
    (array([ 84, 560]), array([140,  28]))
    """
    return _fit(height, width, factor=factor, least=least, most=most)


def volume(
    height: Sides, width: Sides, *, factor: int, least: int, most: int, frames: int, temporal_patch: int
) -> Sizes:
    """A side below `factor` is first scaled up to it; the limits hold for frames * height * width (GLM-V, Qwen3-VL).

    `frames` are counted to whole temporal patches, halves to even, so that the padded clip can come out above `most`.
    A clip shorter than the temporal patch, which transformers refuses, counts as the whole patch it is padded to.

    >>> volume(np.array([720]), np.array([1280]), factor=32, least=4096, most=786432, frames=8, temporal_patch=2)
    (array([224]), array([416]))
    """
    grow = np.maximum(factor / height, factor / width)
    small = (height < factor) | (width < factor)
    height = np.where(small, (height * grow).astype(np.int64), height)
    width = np.where(small, (width * grow).astype(np.int64), width)
    frames = max(frames, temporal_patch)
    counted = round(frames / temporal_patch) * temporal_patch
    return _fit(height, width, factor=factor, least=least, most=most, frames=frames, counted=counted)


def short_side(height: Sides, width: Sides, *, factor: int, least: int, most: int) -> Sizes:
    """A side below `factor` is brought up to it, with the other, height first; then as `area` (PaddleOCR-VL).

    >>> short_side(np.array([7]), np.array([20]), factor=28, least=3136, most=12845056)
    (array([56]), array([112]))
    """
    height, width = _brought_up(height, width, factor)
    width, height = _brought_up(width, height, factor)
    return area(height, width, factor=factor, least=least, most=most)


def two_sided(height: Sides, width: Sides, *, factor: int, least: int, most: int) -> Sizes:
    """The shorter side up to the root of `least`, the longer one down to that of `most`, then half (GLM-Image).

    >>> two_sided(np.array([768]), np.array([1024]), factor=16, least=512**2, most=2048**2)
    (array([384]), array([512]))
    """
    low, high = round(least**0.5), round(most**0.5)
    short, long = np.minimum(height, width), np.maximum(height, width)
    scale = np.where(short < low, low / short, 1.0)
    scale = np.where(long * scale > high, high / long, scale)
    rows, cols = (_at_least_one(np.rint(side // 2 * scale / factor)) for side in (height, width))
    excess = np.maximum(rows, cols) * factor / high
    over = excess > 1
    rows, cols = (
        np.where(over, _at_least_one(np.floor(side * factor / excess / factor)), side) for side in (rows, cols)
    )
    return _pixels(rows, factor), _pixels(cols, factor)


def newline_clip(frames: int, height: int, width: int, *, factor: int, most: int, frame_most: int) -> tuple[int, int]:
    """The largest (height, width) of about the clip's shape, never more than its own (HY-V4-VL).

    A frame of rows x cols tokens costs rows * (cols + 1), with a newline behind each row; all frames together cost at
    most `most` pixels' worth, and one has at most `frame_most` pixels. Where nothing fits, it is one token.

    >>> newline_clip(8, 720, 1280, factor=32, most=33554432, frame_most=1024 * 1024)
    (704, 1280)
    """
    rows = np.arange(max(1, height // factor), 0, -1)
    fewest = np.where(rows == 1, 1, np.maximum(1, width * rows // height))
    widest = np.maximum(1, -(-width * (rows + 1) // height) - 1)
    cols = np.minimum(widest, max(1, width // factor))
    cols = np.minimum(cols, most // factor**2 // (frames * rows) - 1)
    cols = np.minimum(cols, frame_most // (factor**2 * rows))
    fits = np.flatnonzero(cols >= fewest)
    best = (int(rows[fits[0]]), int(cols[fits[0]])) if len(fits) else (1, 1)
    return best[0] * factor, best[1] * factor


def slices(height: Sides, width: Sides, *, factor: int, side: int, most: int) -> Int64[np.ndarray, "n 3 2"]:
    """A thumbnail of about side x side pixels, and for a larger picture up to `most` slices of that area (MiniCPM-V).

    Returns:
        Of each picture the (height, width) of the thumbnail, the (rows, cols) of slices, and the (height, width) of
        what they make up; zeros where there are no slices.

    >>> slices(np.array([768]), np.array([1024]), factor=64, side=448, most=9).tolist()
    [[[384, 512], [2, 2], [768, 1024]]]
    """
    wanted = np.minimum(np.ceil(width * height / (side * side)), most).astype(np.int64)
    log_ratio = np.log(width / height)
    rows, cols = np.ones_like(height), np.ones_like(width)
    error = np.full(height.shape, np.inf)
    for count in range(2, most + 1):
        near = (wanted > 1) & (np.abs(wanted - count) <= 1)
        for down in (down for down in range(1, count + 1) if count % down == 0):
            here = np.abs(log_ratio - np.log(count // down / down))
            better = near & ((here < error) | ((here == error) & (down > rows)))
            rows, cols = np.where(better, down, rows), np.where(better, count // down, cols)
            error = np.where(better, here, error)
    cut = wanted > 1
    thumbnail = _square_area(height, width, factor, side, upscale=~cut)
    each = _square_area(_nearest(height, rows) / rows, _nearest(width, cols) / cols, factor, side, upscale=cut)
    found = (*thumbnail, rows * cut, cols * cut, each[0] * rows * cut, each[1] * cols * cut)
    return np.stack(found, axis=1).reshape(-1, 3, 2)


def padded(height: Sides, width: Sides, *, factor: int, most: int | None) -> Sizes:
    """The size that it has; above `most` tokens, so much smaller that it fills no more of them, padding too (NeoMME).

    >>> padded(np.array([770, 10]), np.array([1030, 2000]), factor=32, most=100)
    (array([263,  10]), array([ 352, 2000]))
    """
    if most is None:
        return height, width
    scale = np.array([_scale_within(h, w, factor, most) for h, w in zip(height.tolist(), width.tolist(), strict=True)])
    small = scale < 1
    height, width = (
        np.where(small, np.maximum(1, np.floor(s * scale + 1e-9)), s).astype(np.int64) for s in (height, width)
    )
    return height, width


def _scale_within(height: int, width: int, factor: int, most: int) -> float:
    """The largest scale, at most 1, at which a picture fills at most `most` tokens of `factor` x `factor` pixels."""

    def filled(scale: np.ndarray) -> np.ndarray:
        rows, cols = (np.ceil(np.maximum(1, np.floor(side * scale + 1e-9)) / factor) for side in (height, width))
        return rows * cols

    if filled(np.ones(1))[0] <= most:
        return 1.0
    # The best scale fills whole tokens along one of the sides.
    tokens = np.arange(1, most + 1) * factor
    scales = np.concatenate([tokens / height, tokens / width])
    scales = scales[(scales < 1) & (filled(scales) <= most)]
    return float(scales.max(initial=1 / max(height, width)))


def _fit(
    height: Sides, width: Sides, *, factor: int, least: int, most: int, frames: int = 1, counted: int = 1
) -> Sizes:
    """The sides, of which `frames` frames go into the limits; `counted` frames count of what comes out."""
    rows, cols = np.rint(height / factor), np.rint(width / factor)
    result = rows * cols
    result *= counted * factor**2
    if (over := np.flatnonzero(result > most)).size:
        h, w = height[over], width[over]
        shrink = np.sqrt(frames * h * w / most)
        rows[over], cols[over] = (_at_least_one(np.floor(side / shrink / factor)) for side in (h, w))
    if (under := np.flatnonzero(result < least)).size:
        h, w = height[under], width[under]
        grow = np.sqrt(least / (frames * h * w))
        rows[under], cols[under] = (np.ceil(side * grow / factor) for side in (h, w))
    return _pixels(rows, factor), _pixels(cols, factor)


def _brought_up(short: Sides, other: Sides, factor: int) -> Sizes:
    small = short < factor
    return np.where(small, factor, short), np.where(small, np.rint(other * factor / short).astype(np.int64), other)


def _square_area(height: np.ndarray, width: np.ndarray, factor: int, side: int, *, upscale: np.ndarray) -> Sizes:
    """Sides of about side * side pixels for what is larger, or for all that `upscale` names, in whole tokens."""
    scaled = (height * width > side * side) | upscale
    tall = np.trunc(side / np.sqrt(width / height))
    wide = np.trunc(tall * (width / height))
    height, width = np.where(scaled, tall, height), np.where(scaled, wide, width)
    return _nearest(height, factor), _nearest(width, factor)


def _nearest(side: np.ndarray, unit: int | Sides) -> Sides:
    """The nearest multiple of `unit` above zero."""
    return (_at_least_one(np.rint(side / unit)) * unit).astype(np.int64)


def _at_least_one(tokens: np.ndarray) -> np.ndarray:
    return np.maximum(1, tokens)


def _pixels(tokens: np.ndarray, factor: int) -> Sides:
    return tokens.astype(np.int64) * factor
