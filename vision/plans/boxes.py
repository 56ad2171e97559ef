"""Boxes, points and polygons between the pixel frames of one picture, in float64.

Boxes are (..., 4) of [left, top, right, bottom]; points are (..., 2) of [left, top], and a polygon is its corners
(n, 2). Arrays give arrays, tensors give tensors on their device with their gradient, lists and tuples of numbers give
lists as they come from JSON; a list of arrays or tensors may be ragged. Nothing is rounded or cut off at the border,
corners in the wrong order stay so and NaN stays NaN: what a model wrote is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from mrope.checks import Number, whole

Shapes = TypeVar("Shapes", np.ndarray, Tensor, Sequence[Any])
"""Boxes (..., 4), points (..., 2), or a list or tuple of those or of numbers, which comes back as a list."""

Sides = tuple[Number, Number]

# What each EXIF orientation does to a stored picture: it flips rows or columns, then, from 5 on, swaps the two.
_FLIPS_ROWS = (3, 4, 6, 7)
_FLIPS_COLS = (2, 3, 7, 8)
_UNSWAPPED = {5: 1, 6: 4, 7: 3, 8: 2}


def into_window(shapes: Shapes, corner: Sides, size: Sides, units: Sides) -> Shapes:
    """Shapes of a picture in the coordinates of a window of it.

    Args:
        shapes: in pixels of the picture.
        corner: (top, left) of the window in pixels.
        size: (height, width) of the window in pixels.
        units: (down, across), how many of its own units the window has.

    >>> into_window(np.array([20, 30, 40, 80]), (10, 20), (100, 50), (1000, 1000))
    array([  0., 200., 400., 700.])
    """
    (top, left), (height, width), (down, across) = corner, size, units
    return _moved(shapes, lambda xs, ys: ((xs - left) * across / width, (ys - top) * down / height))


def out_of_window(shapes: Shapes, corner: Sides, size: Sides, units: Sides) -> Shapes:
    """The inverse of `into_window`.

    >>> out_of_window(np.array([0, 200, 400, 700]), (10, 20), (100, 50), (1000, 1000))
    array([20., 30., 40., 80.])
    """
    (top, left), (height, width), (down, across) = corner, size, units
    return _moved(shapes, lambda xs, ys: (xs * width / across + left, ys * height / down + top))


def turned(shapes: Shapes, size: tuple[int, int], orientation: int) -> Shapes:
    """Shapes on a stored picture of `size` (height, width), once its EXIF `orientation` is applied.

    >>> turned(np.array([1, 2, 3, 4]), (16, 24), 6)
    array([12.,  1., 14.,  3.])
    """
    height, width = size

    def turn(xs: Tensor, ys: Tensor) -> tuple[Tensor, Tensor]:
        # A flip exchanges the near and the far side of a box; of points, there is one of each here.
        if orientation in _FLIPS_ROWS:
            ys = height - ys.flip(-1)
        if orientation in _FLIPS_COLS:
            xs = width - xs.flip(-1)
        return (ys, xs) if orientation in _UNSWAPPED else (xs, ys)

    return _moved(shapes, turn)


def turned_back(shapes: Shapes, size: tuple[int, int], orientation: int) -> Shapes:
    """The inverse of `turned`; `size` is the stored picture's here too.

    >>> turned_back(np.array([12, 1, 14, 3]), (16, 24), 6)
    array([1., 2., 3., 4.])
    """
    if orientation in _UNSWAPPED:
        shapes, orientation = turned(shapes, size, 5), _UNSWAPPED[orientation]
    return turned(shapes, size, orientation)


def clipped(shapes: Shapes, size: Sides) -> Shapes:
    """Shapes cut off at the border of a picture.

    Args:
        shapes: boxes (..., 4) or points (..., 2).
        size: (height, width), in the units of `shapes`.

    >>> clipped(np.array([-5, 10, 70, 90]), (80, 60))
    array([ 0., 10., 60., 80.])
    """
    if not isinstance(size, (tuple, list)) or len(size) != 2:
        raise TypeError(f"size is {size!r:.60}; expected (height, width)")
    height, width = size
    return _moved(shapes, lambda xs, ys: (xs.clamp(0, width), ys.clamp(0, height)))


def rounded(shapes: Shapes, *, digits: int = 0) -> Shapes:
    """Shapes with numbers as models write them: whole (int64) by default.

    Args:
        shapes: boxes (..., 4) or points (..., 2).
        digits: behind the point.

    Raises:
        ValueError: NaN or infinity, which has no digits.

    >>> rounded([[124.9, 333.4]])
    [[125, 333]]
    """
    whole("digits", digits, 0)

    def round_(values: Tensor) -> Tensor:
        if not values.isfinite().all():
            raise ValueError("a box or point holds NaN or infinity; leave it out before it is rounded")
        values = values.round(decimals=digits)
        return values if digits else values.to(torch.int64)

    return each(shapes, round_)


def each(shapes: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Shapes after `change` of each array, tensor or list of numbers in them, as a float64 tensor (..., 4) or (..., 2).

    Raises:
        TypeError: there is something else than numbers.
        ValueError: the last axis has neither 4 nor 2 entries.
    """
    if _nested(shapes):
        return [each(one, change) for one in shapes]
    done = change(_numbers(shapes))
    return done if isinstance(shapes, Tensor) else done.numpy() if isinstance(shapes, np.ndarray) else done.tolist()


def listed(shapes: Any) -> list[Any]:
    """Shapes as nested lists of floats, with the refusals of `each`.

    >>> listed((np.array([1, 2]), [3, 4]))
    [[1.0, 2.0], [3.0, 4.0]]
    """
    return [listed(one) for one in shapes] if _nested(shapes) else _numbers(shapes).tolist()


def _moved(shapes: Any, move: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Any:
    """Shapes after `move` of their places across and down, (..., corners) each."""

    def change(values: Tensor) -> Tensor:
        return torch.stack(move(values[..., 0::2], values[..., 1::2]), dim=-1).flatten(-2)

    return each(shapes, change)


def _nested(shapes: Any) -> bool:
    """Whether this is a list of shapes, and no shape."""
    return isinstance(shapes, (list, tuple)) and not any(isinstance(one, Real) for one in shapes)


def _numbers(shape: Any) -> Tensor:
    if isinstance(shape, (list, tuple)):
        known = all(isinstance(number, Real) for number in shape)
    else:
        known = isinstance(shape, Tensor) or (isinstance(shape, np.ndarray) and shape.dtype.kind in "biuf")
    if not known:
        came = f"an array of {shape.dtype}" if isinstance(shape, np.ndarray) else repr(shape)
        raise TypeError(
            f"a box or point is {came}; expected an array or tensor of numbers, or a list or tuple of those or of "
            "numbers"
        )
    values = shape.to(torch.float64) if isinstance(shape, Tensor) else torch.from_numpy(np.array(shape, np.float64))
    if values.ndim == 0 or values.shape[-1] not in (2, 4):
        raise ValueError(
            f"boxes or points have shape {tuple(values.shape)}; expected (..., 4) of left, top, right, bottom, or "
            "(..., 2) of left, top, a row for each corner of a polygon"
        )
    return values
