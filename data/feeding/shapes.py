"""Boxes, polygons and points of the objects in a picture, as lists of floats: read, moved, and cut off at a border."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from mrope.vision import clipped

Record: TypeAlias = dict[Any, Any]

BOXES = ("box", "bbox", "boxes")
_POLYGONS = ("polygon", "polygons")
_POINTS = ("point", "points")
KEYS = (*BOXES, *_POLYGONS, *_POINTS)
_SHAPES = {
    **dict.fromkeys(BOXES, (1, "boxes of four numbers")),
    **dict.fromkeys(_POLYGONS, (2, "polygons (corners, 2) of left, top, with three corners or more")),
    **dict.fromkeys(_POINTS, (1, "points of left, top")),
}
"""How many axes one of them has, and what it is."""


def is_column(value: Any) -> bool:
    return isinstance(value, (list, tuple, np.ndarray, Tensor))


def _depth(value: Any) -> int:
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def read(one: Mapping[Any, Any], keys: Sequence[str], row: int) -> Record:
    """An object with lists of floats under `keys`.

    Names of its shapes are in `KEYS`, or pairs of one of these and the name that came; a name of `KEYS` that is not
    among `keys` becomes a pair of "" and it.
    """
    made: Record = {}
    for key, value in one.items():
        if key not in keys or value is None:
            made[("", key) if key in KEYS and key not in keys else key] = value
        elif key in KEYS:
            made[key] = _shapes(key, value, f"{key} of object {row}")
        else:
            kind = _kind_of_numbers(value, f"{key} of object {row}")
            made[kind, key] = _shapes(kind, value, f"{key} of object {row}")
    return made


def name(key: Any) -> Any:
    """The name that came."""
    return key[1] if isinstance(key, tuple) else key


def kind(key: Any) -> Any:
    """The one of `KEYS` that tells what stands under a name, or something else."""
    return key[0] if isinstance(key, tuple) else key


def _kind_of_numbers(value: Any, named: str) -> str:
    """Boxes or points, as the last axis says."""
    wanted = "expected boxes of four numbers or points of two"
    made = last = _floats(value, named, wanted)
    while isinstance(last, list) and last and isinstance(last[0], list):
        last = last[0]
    if not isinstance(last, list) or len(last) not in (0, 2, 4):
        raise ValueError(f"{named} is {made}; {wanted}")
    return "points" if len(last) == 2 else "boxes"


def _shapes(kind: str, value: Any, named: str) -> Any:
    """One shape, or a list of them, as lists of floats."""
    axes, told = _SHAPES[kind]
    wanted = f"expected one of the {told}, or a list of them"
    made = _floats(value, named, wanted)
    some = made if _depth(made) > axes or made == [] else [made]
    numbers = 4 if kind in BOXES else 2
    for shape in some:
        rows = shape if axes == 2 else [shape]
        right = _depth(shape) == axes and all(len(one) == numbers for one in rows) and (axes == 1 or len(rows) >= 3)
        if not right or not all(isfinite(number) for one in rows for number in one):
            raise ValueError(f"{named} is {made}; {wanted}, finite")
    return made


def _floats(value: Any, name: str, wanted: str) -> Any:
    if isinstance(value, (np.ndarray, Tensor)):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_floats(one, name, wanted) for one in value]
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise TypeError(f"{name} holds {value!r:.60}; {wanted}")
    return float(value)


def listed(key: Any, value: Any) -> list[Any]:
    """The shapes under a key, of which there may be one alone or none."""
    if value is None:
        return []
    return value if _depth(value) > _SHAPES[kind(key)][0] or value == [] else [value]


def changed(one: Record, keys: Sequence[str], change: Callable[[Any], Any]) -> Record:
    """An object with each of its shapes changed; a shape of which nothing is left is None."""

    def of(key: Any, value: Any) -> Any:
        if kind(key) not in keys or value is None:
            return value
        made = [made for shape in listed(key, value) if (made := change(shape)) is not None]
        return made if listed(key, value) is value else made[0] if made else None

    return {key: of(key, value) for key, value in one.items()}


def moved(one: Record, move: Callable[[Any], Any]) -> Record:
    return changed(one, KEYS, move)


def with_corners(box: list[float]) -> list[float]:
    left, top, width, height = box
    return [left, top, left + width, top + height]


def with_sides(box: list[float]) -> list[float]:
    left, top, right, bottom = box
    return [left, top, right - left, bottom - top]


def cut(one: Record, size: tuple[int, int], visible: float) -> Record | None:
    """An object cut off at the border of a crop of this size; None where too little of it is to be seen."""
    for keys, measure in ((BOXES, _box_area), (_POLYGONS, _area), (_POINTS, lambda point: 1.0)):
        shapes = [(key, shape) for key, value in one.items() if kind(key) in keys for shape in listed(key, value)]
        if shapes:
            inside = [made for key, shape in shapes if (made := _inside(key, shape, size)) is not None]
            whole = sum(measure(shape) for _, shape in shapes)
            left = sum(measure(shape) for shape in inside)
            share = left / whole if whole else len(inside) / len(shapes)  # lines and dots have no area
            if not inside or share < visible:
                return None
            break
    return {
        key: changed({key: value}, KEYS, lambda shape, key=key: _inside(key, shape, size))[key]
        for key, value in one.items()
    }


def _inside(key: Any, shape: Any, size: tuple[int, int]) -> Any:
    """What is inside of a shape, or None."""
    height, width = size
    if kind(key) in BOXES:
        cut = clipped(shape, size)
        flat = _box_area(cut) == 0
        return None if flat and cut != shape else cut  # one that was flat before may lie inside
    if kind(key) in _POINTS:
        return shape if 0 <= shape[0] <= width and 0 <= shape[1] <= height else None
    for axis, limit, sign in ((0, 0, 1), (0, width, -1), (1, 0, 1), (1, height, -1)):
        shape = _beyond(shape, axis, limit, sign)
    return shape if _area(shape) else None


def _beyond(corners: list[list[float]], axis: int, limit: float, sign: int) -> list[list[float]]:
    """What of a polygon lies on one side of a line across an axis (Sutherland and Hodgman 1974)."""
    made: list[list[float]] = []
    for here, then in zip(corners, [*corners[1:], *corners[:1]], strict=True):
        far, near = sign * (here[axis] - limit), sign * (then[axis] - limit)
        if far >= 0:
            made.append(here)
        if far * near < 0:
            share = far / (far - near)
            point = [a + share * (b - a) for a, b in zip(here, then, strict=True)]
            point[axis] = float(limit)
            made.append(point)
    return made


def _box_area(box: list[float]) -> float:
    left, top, right, bottom = box
    return (right - left) * (bottom - top)


def _area(corners: list[list[float]]) -> float:
    """Of a polygon, by the sum over its edges."""
    pairs = zip(corners, [*corners[1:], *corners[:1]], strict=True)
    return abs(sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in pairs)) / 2
