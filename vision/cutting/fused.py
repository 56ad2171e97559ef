"""Bytes to patches in one pass over memory, compiled by Numba: no compiler is needed on the user's machine.

Letters: rows x cols tokens of mi x mj patches, T frames of a temporal patch, p pixels a side of a patch. A "step" is a
stride.

The result is that of the eager loop to the bit, since both read the output values of the 256 bytes from one table.
Each byte is read once; patches are written one after the other, and a second frame is copied while the first still lies
in the processor's cache. Stores that go past the cache would save a sixth of the time on memory that was written
before, and cost a quarter more on fresh pages, so there are none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import pairwise
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Shaped, UInt8
from torch import Tensor

from mrope.checks import whole

DTYPES = (torch.float32, torch.bfloat16, torch.uint8)


def unfit(step: Tensor, pixels: Tensor) -> Exception | None:
    """Why Numba cannot write these patches; None if it can."""
    if not installed():
        return ImportError("impl 'numba' needs Numba, which is not installed: pip install 'mrope[fast]'")
    if step.device.type != "cpu" or pixels.device.type != "cpu":
        return ValueError(
            f"impl 'numba' needs CPU tensors, not step on {step.device} and pixels on {pixels.device}; take 'eager'"
        )
    if step.dtype not in DTYPES:
        return ValueError(f"impl 'numba' writes float32, bfloat16 or uint8, not {step.dtype}; 'eager' writes any")
    return None


@functools.cache
def installed() -> bool:
    """Whether Numba is there."""
    return find_spec("numba") is not None


def fill_(
    step: Shaped[Tensor, "rows cols mi mj 3 frames p p"],
    pixels: UInt8[Tensor, "3 h w"],
    table: Shaped[Tensor, "3 256"],
    *,
    threads: int = 1,
) -> None:
    """Write one picture, or one frame, into its patches: every slot of T gets the same values.

    Args:
        step: (rows, cols, mi, mj, 3, T, p, p) float32, bfloat16 or uint8, a view of any strides, without overlap.
        pixels: (3, rows * mi * p, cols * mj * p) uint8, of any strides; those of `load` are read fastest.
        table: (3, 256) of the dtype of `step`, the output value of each byte of each channel.
        threads: how many share the rows of tokens. Pictures are better shared: one thread each.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
        ImportError: Numba is not installed.

    >>> patches, bytes = torch.empty(1, 2, 1, 1, 3, 1, 2, 2, dtype=torch.uint8), torch.arange(256, dtype=torch.uint8)
    >>> fill_(patches, bytes[:24].view(3, 2, 4), bytes.repeat(3, 1))
    >>> patches[0, 1, 0, 0, 2, 0].tolist()
    [[18, 19], [22, 23]]
    """
    if (reason := unfit(step, pixels)) is not None:
        raise reason
    rows, cols, mi, mj, _, frames, patch, _ = step.shape
    size = rows * mi * patch, cols * mj * patch
    if pixels.shape[1:] != size:
        raise ValueError(f"pixels are {tuple(pixels.shape[1:])} (height, width); the patches of step hold {size}")
    if table.dtype != step.dtype:
        raise ValueError(f"table is {table.dtype}, step is {step.dtype}; expected the same")
    threads = min(whole("threads", threads, 1), rows)
    if not step.numel():
        return
    steps = step.stride()
    dense = steps[6:] == (patch, 1)
    arguments = _flat(step), _flat(pixels), _flat(table.contiguous()), (cols, mi, mj), steps, pixels.stride()
    kernel = _kernel(patch, frames, dense)
    if threads == 1:
        kernel(*arguments, 0, rows)
        return
    bounds = [rows * i // threads for i in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(kernel, *arguments, *share) for share in pairwise(bounds)]:
            done.result()


def _flat(x: Tensor) -> np.ndarray:
    """The memory that a tensor lies in, from its first element to its last."""
    span = 1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    flat = x.detach().as_strided((span,), (1,))
    return (flat.view(torch.int16) if x.dtype == torch.bfloat16 else flat).numpy()


@functools.cache
def _kernel(patch: int, frames: int, dense: bool) -> Callable[..., None]:
    """The kernel for patches of this side, which is a constant in it so that its inner loops have a fixed length.

    `dense`: the pixels of one channel and frame lie side by side.
    """
    return compiled(_fill(patch, frames, dense))


def compiled(function: Callable[..., None]) -> Callable[..., None]:
    """The function compiled by Numba when it is first called, to run beside other threads of Python."""
    import numba

    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # neither this folder nor one of the user's can be written to
        return numba.njit(nogil=True)(function)


def _fill(patch: int, frames: int, dense: bool) -> Callable[..., None]:
    """The pass before it is compiled."""
    number = np.uintp  # unsigned indices need no test whether they count from the end
    side, plane, levels = number(patch), number(patch * patch), number(256)

    @no_type_check
    def fill(out, pixels, table, sizes, steps, pixel_steps, begin, end):
        cols, mi, mj = sizes
        down, right = number(steps[6]), number(steps[7])
        below, beside = number(pixel_steps[1]), number(pixel_steps[2])
        for row in range(begin, end):
            for col in range(cols):
                for i in range(mi):
                    for j in range(mj):
                        patch_to = row * steps[0] + col * steps[1] + i * steps[2] + j * steps[3]
                        patch_of = (row * mi + i) * patch * pixel_steps[1] + (col * mj + j) * patch * pixel_steps[2]
                        for channel in range(3):
                            to = number(patch_to + channel * steps[4])
                            of = number(patch_of + channel * pixel_steps[0])
                            level = number(channel) * levels
                            for y in range(side):
                                line_to, line_of = to + y * (side if dense else down), of + y * below
                                for x in range(side):
                                    value = table[level + number(pixels[line_of + x * beside])]
                                    out[line_to + (x if dense else x * right)] = value
                            for frame in range(1, frames):
                                again = to + number(frame * steps[5])
                                if dense:
                                    for k in range(plane):
                                        out[again + k] = out[to + k]
                                else:
                                    for y in range(side):
                                        for x in range(side):
                                            out[again + y * down + x * right] = out[to + y * down + x * right]

    return fill
