"""Boxes (..., 4) of [left, top, right, bottom] between the pixel frames of one picture, in float64.

Arrays give arrays, tensors give tensors on their device; nothing is rounded or cut off at the border.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

BoxArray = TypeVar("BoxArray", np.ndarray, Tensor)

# What each EXIF orientation does to a stored picture: it flips rows or columns, then, from 5 on, swaps the two.
_FLIPS_ROWS = (3, 4, 6, 7)
_FLIPS_COLS = (2, 3, 7, 8)
_UNSWAPPED = {5: 1, 6: 4, 7: 3, 8: 2}


def scaled(boxes: BoxArray, old: tuple[int, int], new: tuple[int, int]) -> BoxArray:
    """Boxes of a picture of size `old` (height, width) after it is resized to `new`.

    >>> scaled(np.array([0, 10, 100, 20]), (480, 640), (960, 320))
    array([ 0., 20., 50., 40.])
    """
    left, top, right, bottom = _sides(boxes)
    (old_height, old_width), (height, width) = old, new
    return _joined(
        boxes,
        left * width / old_width,
        top * height / old_height,
        right * width / old_width,
        bottom * height / old_height,
    )


def turned(boxes: BoxArray, size: tuple[int, int], orientation: int) -> BoxArray:
    """Boxes of a stored picture of `size` (height, width), once its EXIF `orientation` is applied.

    >>> turned(np.array([1, 2, 3, 4]), (16, 24), 6)
    array([12.,  1., 14.,  3.])
    """
    height, width = size
    left, top, right, bottom = _sides(boxes)
    if orientation in _FLIPS_ROWS:
        top, bottom = height - bottom, height - top
    if orientation in _FLIPS_COLS:
        left, right = width - right, width - left
    if orientation in _UNSWAPPED:
        left, top, right, bottom = top, left, bottom, right
    return _joined(boxes, left, top, right, bottom)


def turned_back(boxes: BoxArray, size: tuple[int, int], orientation: int) -> BoxArray:
    """The inverse of `turned`; `size` is the stored picture's here too.

    >>> turned_back(np.array([12, 1, 14, 3]), (16, 24), 6)
    array([1., 2., 3., 4.])
    """
    if orientation in _UNSWAPPED:
        boxes, orientation = turned(boxes, size, 5), _UNSWAPPED[orientation]
    return turned(boxes, size, orientation)


def _sides(boxes: Any) -> Any:
    if not isinstance(boxes, (np.ndarray, Tensor)):
        raise TypeError(f"boxes are a {type(boxes).__name__}; expected an array or a tensor of shape (..., 4)")
    if boxes.ndim == 0 or boxes.shape[-1] != 4:
        raise ValueError(f"boxes have shape {tuple(boxes.shape)}; expected (..., 4): left, top, right, bottom")
    boxes = boxes.to(torch.float64) if isinstance(boxes, Tensor) else boxes.astype(np.float64)
    return (boxes[..., side] for side in range(4))


def _joined(like: Any, *sides: Any) -> Any:
    return torch.stack(sides, dim=-1) if isinstance(like, Tensor) else np.stack(sides, axis=-1)
