"""Pictures changed at random together with their boxes, points and polygons, before they are planned and cut.

Letters: h x w pixels before a step, h2 x w2 behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from mrope.checks import Number, finite, one_of, positive, whole
from mrope.vision import into_window, load, resize, turned

from .shapes import (
    BOXES,
    KEYS,
    Record,
    changed,
    cut,
    is_column,
    kind,
    listed,
    moved,
    name,
    read,
    with_corners,
    with_sides,
)

Size: TypeAlias = tuple[int, int]
BoxFormat: TypeAlias = Literal["xyxy", "xywh"]
Step: TypeAlias = Callable[[Tensor, list[Record], np.random.Generator], tuple[Tensor, list[Record]]]
"""Pixels (3, height, width) and their objects, and what both are then; one of those below, or a function of yours.

Objects are dicts with lists of floats: boxes by their corners, points and polygons. What stands under a key of your own
is found under ("boxes", key) or ("points", key).
"""


@dataclass(frozen=True, slots=True, eq=False)
class Augmented:
    """A changed picture, and its labels in the form in which they came.

    Args:
        pixels: (3, height, width) uint8, which `patchify`, `load` and processors take.
        labels: in pixels of it.
    """

    pixels: UInt8[Tensor, "3 h w"]
    labels: Any


class Augment:
    """Steps that are done one after the other to a picture and to its labels, before both are planned.

    Labels are boxes, points and polygons in pixels of the upright picture, of one dict an object, or of columns:

    - [{"box": [left, top, right, bottom], "text": "a cat"}, ...]
    - {"bbox": [[...], ...], "category": [3, ...]}: each list, tuple, array and tensor has one entry an object, and what
      is none of these stays as it is.

    Under `box`, `bbox`, `boxes` there are boxes, under `polygon`, `polygons` and `point`, `points` those; of an object,
    one or a list of them. They come back as lists of floats in the same form. `transform_labels` takes the result.
    Boxes lie in the picture, up to a pixel that rounding may add.

    Words are not changed: a flip mirrors letters and makes "left" of "right".

    Args:
        steps: `RandomCrop`, `RandomFlip`, `RandomTurn`, `RandomScale`, `RandomPad`, or functions like them.
        keys: of the shapes, where an object has them and they are not None; everything else stays as it is. Under keys
            of your own, four numbers are a box and two a point.
        box_format: what the numbers of boxes are, as in `transform_labels`.

    Raises:
        TypeError: steps are no list, one cannot be called, or keys are no list; in a call, labels are neither of the
            two, or hold what is no numbers.
        ValueError: in a call, a picture that `load` refuses, a column of another length, labels with none of the keys,
            shapes that are not what their key names, corners in the wrong order, numbers that are not finite or boxes
            beyond the picture.

    >>> turn = Augment([RandomTurn(quarters=(1,))])
    >>> made = turn(np.zeros((60, 90, 3), np.uint8), [{"box": [0, 10, 20, 40]}], np.random.default_rng(0))
    >>> tuple(made.pixels.shape), made.labels
    ((3, 90, 60), [{'box': [20.0, 0.0, 50.0, 20.0]}])
    """

    def __init__(self, steps: Sequence[Step], *, keys: Sequence[str] = KEYS, box_format: BoxFormat = "xyxy") -> None:
        one_of("box_format", box_format, get_args(BoxFormat))
        if not isinstance(keys, (list, tuple)):
            raise TypeError(f"keys is {keys!r}; expected a list or tuple of names, such as ['bbox']")
        if not isinstance(steps, (list, tuple)):
            raise TypeError(f"steps is {steps!r:.80}; expected a list of them, such as [RandomFlip()]")
        for number, step in enumerate(steps):
            if not callable(step):
                raise TypeError(f"step {number} is {step!r:.80}; expected such as RandomFlip()")
        self.steps, self.keys, self.box_format = tuple(steps), tuple(keys), box_format

    def __call__(self, picture: Any, labels: Any, rng: np.random.Generator) -> Augmented:
        """The changed picture and labels; nothing is changed in place.

        Args:
            picture: what `load` takes: a path, bytes, PIL image, array or tensor.
            labels: of the picture.
            rng: of which all is drawn: ``np.random.default_rng((seed, epoch, number))`` gives each picture of each
                epoch its own, whatever worker reads it.
        """
        if not isinstance(rng, np.random.Generator):
            raise TypeError(f"rng is a {type(rng).__name__}; expected such as numpy.random.default_rng(0)")
        pixels = load(picture)
        objects = self._objects(labels, _size(pixels))
        for step in self.steps:
            pixels, objects = step(pixels, objects, rng)
        if self.box_format == "xywh":
            objects = [changed(one, BOXES, with_sides) for one in objects]
        objects = [{name(key): value for key, value in one.items()} for one in objects]
        if isinstance(labels, Mapping):
            columns = {key: [one[key] for one in objects] for key, value in labels.items() if is_column(value)}
            return Augmented(pixels, {**labels, **columns})
        return Augmented(pixels, objects)

    def _objects(self, labels: Any, size: Size) -> list[Record]:
        """One dict an object, with lists of floats, boxes by their corners; `size` is the picture's."""
        if isinstance(labels, Mapping):
            if wrong := [key for key in self.keys if not is_column(labels.get(key, ())) and labels[key] is not None]:
                raise TypeError(
                    f"{wrong[0]} of the labels is {labels[wrong[0]]!r:.60}; expected a list, one entry an object"
                )
            columns = {key: value for key, value in labels.items() if is_column(value)}
            lengths = {key: len(value) for key, value in columns.items()}
            if len({*lengths.values()}) > 1:
                raise ValueError(f"the columns of the labels have {lengths} entries; expected one each for each object")
            count = max(lengths.values(), default=0)
            objects = [{key: value[row] for key, value in columns.items()} for row in range(count)]
        elif isinstance(labels, (list, tuple)) and all(isinstance(one, Mapping) for one in labels):
            objects = [dict(one) for one in labels]
        else:
            raise TypeError(f"labels is {labels!r:.80}; expected a list of one dict an object, or a dict of columns")
        some = [labels] if isinstance(labels, Mapping) else objects
        if some and not any(key in one for one in some for key in self.keys):
            raise ValueError(f"the labels have none of the keys {', '.join(self.keys)}; name those of theirs in keys")
        objects = [read(one, self.keys, row) for row, one in enumerate(objects)]
        wanted = "left <= right and top <= bottom, or box_format='xywh'"
        if self.box_format == "xywh":
            objects, wanted = [changed(one, BOXES, with_corners) for one in objects], "no side below 0"
        for row, one in enumerate(objects):
            for key in (key for key in one if kind(key) in BOXES):
                for box in listed(key, one[key]):
                    left, top, right, bottom = box
                    came = f"{name(key)} of object {row} is {with_sides(box) if self.box_format == 'xywh' else box}"
                    if right < left or bottom < top:
                        raise ValueError(f"{came}; expected {wanted}")
                    if min(left, top) <= -1 or bottom >= size[0] + 1 or right >= size[1] + 1:
                        raise ValueError(
                            f"{came}, and the picture is {size[0]} x {size[1]} (height x width); expected a box inside "
                            "of it, which mrope.vision.clipped makes of another's corners"
                        )
        return objects


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomCrop:
    """A part of the picture.

    What is to be seen of an object is the share of its boxes' area inside the crop; without boxes that of its polygons,
    and without those the share of its points. Below `visible` the object is left out. What stays is cut off at the
    border; its points outside are left out, as are its further boxes and polygons of which nothing is inside: a list
    may be empty then, and one alone None.

    Args:
        area: least and greatest share of the picture's area.
        ratio: how much the crop may be narrower or flatter than the picture: 4 / 3 is 3 / 4 to 4 / 3 of its width to
            height.
        visible: least share of an object to keep it, in 0..1; 0 keeps all of which anything is inside.

    Raises:
        TypeError, ValueError: a number is none, or outside of what is stated.
    """

    area: tuple[Number, Number] = (0.25, 1.0)
    ratio: Number = 4 / 3
    visible: Number = 0.5

    def __post_init__(self) -> None:
        _range("area", self.area, most=1)
        if positive("ratio", self.ratio) < 1:
            raise ValueError(f"ratio is {self.ratio}; expected at least 1")
        if not 0 <= finite("visible", self.visible) <= 1:
            raise ValueError(f"visible is {self.visible}; expected a share in 0..1")

    def __call__(
        self, pixels: UInt8[Tensor, "3 h w"], objects: list[Record], rng: np.random.Generator
    ) -> tuple[UInt8[Tensor, "3 h2 w2"], list[Record]]:
        area = rng.uniform(*self.area)
        flat = self.ratio ** rng.uniform(-1, 1)  # width to height, of that of the picture
        height, width = pixels.shape[1:]
        rows = min(max(round(height * (area / flat) ** 0.5), 1), height)
        cols = min(max(round(width * (area * flat) ** 0.5), 1), width)
        top, left = int(rng.integers(height - rows + 1)), int(rng.integers(width - cols + 1))
        window = (rows, cols)
        shifted = (moved(one, lambda shape: into_window(shape, (top, left), window, window)) for one in objects)
        kept = (cut(one, window, float(self.visible)) for one in shifted)
        return pixels[:, top : top + rows, left : left + cols], [one for one in kept if one is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomFlip:
    """The picture in a mirror: left is right.

    Args:
        chance: of it, in 0..1.

    Raises:
        TypeError, ValueError: `chance` is no number, or outside.
    """

    chance: Number = 0.5

    def __post_init__(self) -> None:
        if not 0 <= finite("chance", self.chance) <= 1:
            raise ValueError(f"chance is {self.chance}; expected a number in 0..1")

    def __call__(
        self, pixels: UInt8[Tensor, "3 h w"], objects: list[Record], rng: np.random.Generator
    ) -> tuple[UInt8[Tensor, "3 h2 w2"], list[Record]]:
        if rng.random() >= self.chance:
            return pixels, objects
        size = _size(pixels)
        return pixels.flip(2), [moved(one, lambda shape: turned(shape, size, 2)) for one in objects]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomTurn:
    """The picture turned by quarters of a turn, clockwise.

    Args:
        quarters: of which one is drawn: of 0, 1, 2 and 3; what is named twice is drawn twice as often.

    Raises:
        TypeError: it is no list or tuple of whole numbers.
        ValueError: there are none, or others.
    """

    quarters: tuple[int, ...] = (0, 1, 2, 3)

    def __post_init__(self) -> None:
        if not isinstance(self.quarters, (tuple, list)):
            raise TypeError(f"quarters is {self.quarters!r}; expected some of 0, 1, 2, 3, such as (1, 3)")
        for quarter in self.quarters:
            whole("quarters", quarter, 0)
        if not self.quarters or not {*self.quarters} <= {0, 1, 2, 3}:
            raise ValueError(f"quarters is {self.quarters}; expected some of 0, 1, 2, 3")

    def __call__(
        self, pixels: UInt8[Tensor, "3 h w"], objects: list[Record], rng: np.random.Generator
    ) -> tuple[UInt8[Tensor, "3 h2 w2"], list[Record]]:
        quarters = self.quarters[int(rng.integers(len(self.quarters)))]
        size, orientation = _size(pixels), (1, 6, 3, 8)[quarters]  # as EXIF counts what is to be turned upright so
        turned_pixels = torch.rot90(pixels, -quarters, (1, 2))
        return turned_pixels, [moved(one, lambda shape: turned(shape, size, orientation)) for one in objects]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomScale:
    """The picture at another size, by `mrope.vision.resize`.

    Args:
        factor: least and greatest one of both sides; small and large are drawn equally often (log-uniform).

    Raises:
        TypeError, ValueError: a number is none, or outside of what is stated.
    """

    factor: tuple[Number, Number] = (0.5, 2.0)

    def __post_init__(self) -> None:
        _range("factor", self.factor)

    def __call__(
        self, pixels: UInt8[Tensor, "3 h w"], objects: list[Record], rng: np.random.Generator
    ) -> tuple[UInt8[Tensor, "3 h2 w2"], list[Record]]:
        factor = float(np.exp(rng.uniform(*np.log(self.factor))))
        before = _size(pixels)
        after = (max(round(before[0] * factor), 1), max(round(before[1] * factor), 1))
        return resize(pixels, after), [
            moved(one, lambda shape: into_window(shape, (0, 0), before, after)) for one in objects
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomPad:
    """The picture somewhere on a larger ground.

    Args:
        most: of the height added above and below together, and of the width to the left and right; a share of them.
        colour: (red, green, blue) of the ground, in 0..255.

    Raises:
        TypeError, ValueError: a number is none, or outside of what is stated.
    """

    most: Number = 0.5
    colour: tuple[int, int, int] = (255, 255, 255)

    def __post_init__(self) -> None:
        if finite("most", self.most) < 0:
            raise ValueError(f"most is {self.most}; expected a share of 0 or more")
        if not isinstance(self.colour, (tuple, list)) or len(self.colour) != 3:
            raise TypeError(f"colour is {self.colour!r}; expected (red, green, blue) in 0..255")
        if not all(whole("colour", value, 0) <= 255 for value in self.colour):
            raise ValueError(f"colour is {self.colour}; expected (red, green, blue) in 0..255")

    def __call__(
        self, pixels: UInt8[Tensor, "3 h w"], objects: list[Record], rng: np.random.Generator
    ) -> tuple[UInt8[Tensor, "3 h2 w2"], list[Record]]:
        height, width = pixels.shape[1:]
        more = [int(rng.integers(int(side * self.most) + 1)) for side in (height, width)]
        top, left = (int(rng.integers(extra + 1)) for extra in more)
        size = (height + more[0], width + more[1])
        ground = torch.tensor(self.colour, dtype=torch.uint8, device=pixels.device).expand(*size, 3).permute(2, 0, 1)
        ground = ground.clone()
        ground[:, top : top + height, left : left + width] = pixels
        return ground, [moved(one, lambda shape: into_window(shape, (-top, -left), size, size)) for one in objects]


def _range(name: str, values: Any, most: float = float("inf")) -> None:
    """Refuse what is no (least, greatest) above zero."""
    if not isinstance(values, (tuple, list)) or len(values) != 2:
        raise TypeError(f"{name} is {values!r:.60}; expected (least, greatest)")
    least, greatest = (positive(name, value) for value in values)
    if not least <= greatest <= most:
        up_to = f" <= {most}" if isfinite(most) else ""
        raise ValueError(f"{name} is {tuple(values)}; expected 0 < least <= greatest{up_to}")


def _size(pixels: Tensor) -> Size:
    return pixels.shape[1], pixels.shape[2]
