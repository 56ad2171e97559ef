"""A resize that gives strip after strip, so that neither the picture between its two passes nor the result is whole.

Letters: h, w height and width before, h2, w2 after, N values of a row of pixels = 3 * w2, K source rows that a row
takes its values from.

Resizing goes first along the rows, then across them (each rounds to bytes). The first pass is torch's; it treats every
row alone. The second, compiled by Numba, knows which source rows a strip needs, and torch's whole-number weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from mrope.checks import whole

from ..loading.decoded import Decoded
from . import fused
from .resize import Filter, interleaved, resize

BLOCK = 4096
"""Values of a row that are summed at once, in the first cache of a processor."""


def strips(
    picture: Decoded | UInt8[Tensor, "3 h w"],
    size: tuple[int, int],
    rows: int,
    *,
    filter: Filter = "bicubic",  # noqa: A002
) -> Iterator[UInt8[Tensor, "3 _ w2"]]:
    """The pixels that `resize` gives, from top to bottom, some rows at a time.

    Without Numba, on other devices than the CPU, and on processors for which torchvision rounds in between in another
    way, the whole result is made first. Beside the picture, the strips take the memory of one strip at each size.

    Args:
        picture: pixels as in `resize`, or those of a decoder, which are turned and made RGB as they are needed.
        size: (height, width) in pixels.
        rows: of a strip; the last may have fewer.
        filter: as in `resize`.

    Returns:
        views of contiguous (rows, width, 3), each to be used before the next is asked for, which may overwrite it.

    Raises:
        ValueError: as `resize`, or `rows` is below 1; when the first strip is asked for.

    >>> [strip.shape[1] for strip in strips(torch.zeros(3, 40, 30, dtype=torch.uint8), (50, 70), 20)]
    [20, 20, 10]
    """
    height, width = size
    whole("rows", rows, 1)
    picture = Decoded(picture) if isinstance(picture, Tensor) else picture
    if min(*size, *picture.size) < 1 or not _fits(picture):
        yield from resize(picture.all(), size, filter=filter).split(rows, dim=1)
        return
    if picture.size[0] == height:
        for top in range(0, height, rows):
            strip = interleaved(picture.rows(top, min(top + rows, height)))
            yield resize(strip, (strip.shape[1], width), filter=filter)
        return
    first, count, weights, precision = _weights(picture.size[0], height, filter)
    ends = first + count
    across = torch.empty(_tallest(first, ends, rows), width, 3, dtype=torch.uint8)  # source rows of the new width
    out = torch.empty(rows, width, 3, dtype=torch.uint8)
    begin = end = 0  # of the source rows in `across`
    for top in range(0, height, rows):
        bottom = min(top + rows, height)
        lowest, highest = int(first[top]), int(ends[bottom - 1])
        kept = max(0, end - lowest)
        if kept:
            shifted = across.numpy()[lowest - begin : end - begin].copy()  # NumPy wakes no other threads for it
            across.numpy()[:kept] = shifted
        # What is turned or made RGB on the way is resized piece by piece; of plain pixels no piece is copied.
        piece = picture.size[0] if picture.plain else rows
        for row in range(lowest + kept, highest, piece):
            last = min(row + piece, highest)
            new = across[row - lowest : last - lowest].permute(2, 0, 1)
            resize(picture.rows(row, last), (last - row, width), filter=filter, out=new)
        begin, end = lowest, highest
        part = slice(top, bottom)
        _kernel()(
            out.view(rows, -1).numpy(), across.view(len(across), -1).numpy(),
            first[part] - lowest, count[part], weights[part], precision,
        )  # fmt: skip
        yield out[: bottom - top].permute(2, 0, 1)


def _fits(picture: Decoded) -> bool:
    vectors = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")  # elsewhere the passes were not looked at
    return picture.device.type == "cpu" and vectors and fused.installed()


def _tallest(first: np.ndarray, ends: np.ndarray, rows: int) -> int:
    """The most source rows that a strip needs."""
    tops = np.arange(0, len(first), rows)
    return int((ends[np.minimum(tops + rows, len(first)) - 1] - first[tops]).max())


@functools.lru_cache(64)
def _weights(source: int, target: int, kind: Filter) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Of each of `target` rows: its first source row, how many there are, their weights * 2**precision; precision.

    As torch computes them for bytes: in float64, one after the other, then rounded to 16 bits with the highest
    precision that these hold.
    """
    scale = source / target
    stretch = max(scale, 1.0)
    support = (2 if kind == "bicubic" else 1) * stretch
    centre = scale * (np.arange(target) + 0.5)
    first = np.maximum((centre - support + 0.5).astype(np.int64), 0)
    count = np.minimum((centre + support + 0.5).astype(np.int64), source) - first
    row = np.arange(count.max())
    away = np.abs((row + first[:, None] - centre[:, None] + 0.5) * (1.0 / stretch))
    if kind == "bilinear":
        value = np.where(away < 1, 1 - away, 0.0)
    else:  # Keys 1981, with a = -0.5
        near, far = (1.5 * away - 2.5) * away * away + 1, ((-0.5 * away + 2.5) * away - 4) * away + 2
        value = np.where(away < 1, near, np.where(away < 2, far, 0.0))
    value[row >= count[:, None]] = 0
    value /= np.cumsum(value, axis=1)[:, -1:]  # one after the other, as a sum of NumPy is not
    largest = value.max()
    precision = next((p for p in range(22) if int(0.5 + largest * (1 << (p + 1))) >= 1 << 15), 22)
    scaled = value * (1 << precision)
    return first, count, np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int32), precision


@functools.cache
def _kernel() -> Callable[..., None]:
    return fused.compiled(_across)


@no_type_check
def _across(out, strip, first, count, weights, precision):
    # Numba makes 64 bits of whole numbers that it computes with; every cast lets the processor stay at 32.
    int32, number = np.int32, np.uintp
    values, line = strip.shape[1], out.shape[1]
    source, target = strip.reshape(-1), out.reshape(-1)
    total = np.empty(BLOCK, np.int32)
    half, shift, black, white = int32(1 << (precision - 1)), precision & 31, int32(0), int32(255)
    for row in range(len(first)):
        for begin in range(0, values, BLOCK):
            size = number(min(BLOCK, values - begin))
            for x in range(size):
                total[x] = half
            taps = count[row]
            for k in range(0, taps - taps % 4, 4):
                a, b, c, d = weights[row, k], weights[row, k + 1], weights[row, k + 2], weights[row, k + 3]
                of = number((first[row] + k) * values + begin)
                below, lower, lowest = of + number(values), of + number(2 * values), of + number(3 * values)
                for x in range(size):
                    upper = int32(a * int32(source[of + x])) + int32(b * int32(source[below + x]))
                    under = int32(c * int32(source[lower + x])) + int32(d * int32(source[lowest + x]))
                    total[x] = int32(total[x] + int32(upper + under))
            for k in range(taps - taps % 4, taps):
                a, of = weights[row, k], number((first[row] + k) * values + begin)
                for x in range(size):
                    total[x] = int32(total[x] + int32(a * int32(source[of + x])))
            to = number(row * line + begin)
            for x in range(size):
                target[to + x] = min(max(int32(total[x] >> shift), black), white)
