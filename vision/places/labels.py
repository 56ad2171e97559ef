"""The labels of a data set in the coordinates that a family's model reads and writes, by the plan of their pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, TypeAlias, get_args, overload

import numpy as np
import torch
from torch import Tensor

from mrope.checks import one_of, whole
from mrope.families import Boxes, Family

from ..loading.files import naming
from ..plans.boxes import each, rounded
from ..plans.fitting import check_family, picture_limits
from ..plans.plan import Plan
from ..plans.planning import plan

Frame: TypeAlias = Literal["original", "stored"]
"""What labels were drawn on: the "original" picture upright, or the pixels as "stored", by a tool that ignores EXIF."""

BoxFormat: TypeAlias = Literal["xyxy", "xywh"]
"""What the four numbers of a label's box are: [left, top, right, bottom], or COCO's [left, top, width, height]."""

Record: TypeAlias = Mapping[str, Any]

_BOXES = ("box", "boxes", "bbox")
_POINTS = ("point", "points", "polygon", "polygons")
KEYS = (*_BOXES, *_POINTS)


@overload
def transform_labels(
    record: Record,
    plan: Plan,
    *,
    keys: Sequence[str] = KEYS,
    box_format: BoxFormat = "xyxy",
    frame: Frame = "original",
    digits: int | None = None,
    part: int | None = None,
    convention: Boxes | None = None,
) -> dict[str, Any]: ...
@overload
def transform_labels(
    record: Sequence[Any],
    plan: Plan,
    *,
    keys: Sequence[str] = KEYS,
    box_format: BoxFormat = "xyxy",
    frame: Frame = "original",
    digits: int | None = None,
    part: int | None = None,
    convention: Boxes | None = None,
) -> list[dict[str, Any]]: ...
def transform_labels(
    record,
    plan,
    *,
    keys=KEYS,
    box_format: BoxFormat = "xyxy",
    frame="original",
    digits=None,
    part=None,
    convention=None,
):
    """The labels of one picture as its model writes them: transformed by the same plan as its pixels.

    Boxes come out as [left, top, right, bottom], as models write them. COCO's `bbox` is [left, top, width, height] and
    needs `box_format="xywh"`: without it only those are refused that cannot be corners. What lies beyond the picture
    stays there; see `clipped`.

    Args:
        record: a dict, or a list of dicts for many objects in the picture. Under `keys` it holds boxes (..., 4), and
            points and polygons (..., 2) of [left, top], in pixels; everything else stays as it is.
        plan: of the picture.
        keys: of what is transformed, where the record has it and it is not None. Under those of `KEYS` that name boxes
            there are boxes, under the others of `KEYS` points; under any other key the last axis says which.
        box_format: what the boxes of the record are; see `BoxFormat`.
        frame: what the labels were drawn on; see `Frame`.
        digits: behind the point, 0 for whole numbers (int) as most models write them; None does not round.
        part: as in `Plan.encode_boxes`.
        convention: as in `Plan.encode_boxes`.

    Returns:
        A new dict, or a list of them; nothing is changed in place.

    Raises:
        TypeError: `record`, `plan` or `keys` is something else than stated, or a label is no numbers.
        ValueError: as `Plan.encode_boxes`; no dict has any of the keys; there are boxes under a key for points, or
            points under one for boxes; or a box has its right side left of the left one, or its bottom above its top.

    >>> import mrope
    >>> planned = mrope.family("qwen3-vl").plan((600, 800))
    >>> transform_labels({"boxes": [[100, 300, 400, 600]], "text": "a cat"}, planned, digits=0)
    {'boxes': [[125, 500, 500, 1000]], 'text': 'a cat'}
    >>> transform_labels({"bbox": [100, 300, 300, 300]}, planned, digits=0, box_format="xywh")
    {'bbox': [125, 500, 500, 1000]}
    """
    one_of("frame", frame, get_args(Frame))
    one_of("box_format", box_format, get_args(BoxFormat))
    if isinstance(keys, str):
        raise TypeError(f"keys is {keys!r}; expected a list or tuple of names, such as [{keys!r}]")
    if not isinstance(plan, Plan):
        raise TypeError(f"plan is a {type(plan).__name__}; expected the Plan of the one picture that the labels are of")
    if digits is not None and whole("digits", digits, 0) == 0 and (convention or plan.boxes) == "0-1":
        raise ValueError("digits is 0, and this model writes shares of 0..1; expected 3 or more, or None")
    records = list(record) if isinstance(record, (list, tuple)) else [record]
    if others := [one for one in records if not isinstance(one, Mapping)]:
        raise TypeError(f"the record is or holds a {type(others[0]).__name__}; expected a dict or a list of dicts")

    def encoded(key: str, shapes: Any) -> Any:
        with naming(key):
            corners = each(shapes, lambda values: _corners(values, box_format, key))
        upright = plan.from_stored(corners) if frame == "stored" else corners
        written = plan.encode_boxes(upright, part=part, convention=convention)
        return written if digits is None else rounded(written, digits=digits)

    def changed(one: Record) -> dict[str, Any]:
        return {key: encoded(key, value) if key in keys and value is not None else value for key, value in one.items()}

    if records and not any(key in one for one in records for key in keys):
        raise ValueError(f"the record has none of the keys {', '.join(keys)}; name those of its labels in keys")
    done = [changed(one) for one in records]
    return done[0] if isinstance(record, Mapping) else done


def _corners(shapes: Tensor, box_format: BoxFormat, key: str) -> Tensor:
    """What stands under a key: points (..., 2) as they are, boxes (..., 4) of either format by their corners."""
    wanted = 4 if key in _BOXES else 2 if key in _POINTS else shapes.shape[-1]
    if shapes.shape[-1] != wanted:
        kind = "boxes (..., 4)" if wanted == 4 else "points (..., 2) of left, top"
        raise ValueError(f"shape {tuple(shapes.shape)} came; expected {kind}")
    if wanted == 2:
        return shapes
    near, far = shapes[..., :2], shapes[..., 2:]
    if box_format == "xywh":
        far = near + far
    if (wrong := (far < near).any(dim=-1)).any():
        numbers = shapes[wrong][0].tolist()
        if box_format == "xywh":
            raise ValueError(f"{numbers} came; expected [left, top, width, height] with no side below 0")
        raise ValueError(
            f"{numbers} came; expected [left, top, right, bottom] with left <= right and top <= bottom, or "
            "box_format='xywh' where labels are [left, top, width, height], as COCO's are"
        )
    return torch.cat((near, far), dim=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTransform:
    """`transform_labels` for a data set: it plans each picture itself, from its header.

    Give it the limits that training and inference give to `plan` and `patchify`: with others, boxes in pixels of the
    resized picture come out wrong.

    It takes a record of one picture, a list of such records, or a batch as `map(batched=True)` and `with_transform` of
    Hugging Face data sets hand it over: a dict whose columns are lists, one entry a picture.

    Args:
        family: whose model learns the labels.
        picture: the key of each picture: a path, bytes, PIL image, array, tensor, or its size (height, width). A list
            is a batch, but a list of numbers is a size as JSON stores it.
        objects: the key of the dict, or list of dicts, that holds the labels; None if the record itself does.
        min_tokens: as in `plan`.
        max_tokens: as in `plan`.
        conflict: as in `plan`; tiles have no common coordinates, and are left to `transform_labels`.
        keys: as in `transform_labels`.
        box_format: as in `transform_labels`.
        frame: as in `transform_labels`.
        digits: as in `transform_labels`.
        convention: as in `Plan.encode_boxes`.

    Raises:
        TypeError: as `transform_labels`.
        ValueError: as `plan` and `transform_labels`; a record has no picture; or a column of a batch has not one entry
            for each picture.

    >>> import mrope
    >>> transform = LabelTransform(family=mrope.family("qwen2.5-vl"), picture="size", digits=0)
    >>> transform({"size": (480, 640), "points": [[320, 240]]})
    {'size': (480, 640), 'points': [[322, 238]]}
    >>> transform({"size": [[480, 640], [960, 640]], "points": [[[320, 240]], [[320, 240]]]})["points"]
    [[[322, 238]], [[322, 238]]]
    """

    family: Family
    picture: str = "image"
    objects: str | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    conflict: Literal["error", "pad", "family"] = "error"
    keys: Sequence[str] = KEYS
    box_format: BoxFormat = "xyxy"
    frame: Frame = "original"
    digits: int | None = None
    convention: Boxes | None = None

    def __post_init__(self) -> None:
        check_family(self.family)
        one_of("conflict", self.conflict, ("error", "pad", "family"))
        picture_limits(self.family, self.min_tokens, self.max_tokens)
        if self.convention is not None:
            one_of("convention", self.convention, get_args(Boxes))
        self._transformed([], plan((56, 84), self.family, conflict="family"))  # which refuses settings that are wrong

    @overload
    def __call__(self, record: Record) -> dict[str, Any]: ...
    @overload
    def __call__(self, record: Sequence[Any]) -> list[dict[str, Any]]: ...
    def __call__(self, record):
        """A record or a batch with its labels transformed, or a list of records of one picture each."""
        if isinstance(record, (list, tuple)):
            return [self(one) for one in record]
        if not isinstance(record, Mapping):
            raise TypeError(f"the record is a {type(record).__name__}; expected a dict or a list of dicts")
        where = [self.picture] if self.objects is None else [self.picture, self.objects]
        if missing := [key for key in where if key not in record]:
            raise ValueError(f"the record has no {missing[0]!r}, only {', '.join(map(repr, record))}")
        source = _listed(record[self.picture])
        if isinstance(source, list) and not _is_size(source):
            return self._batch(record, len(source))
        planned = self._planned(source)
        if self.objects is None:
            return self._transformed(record, planned)
        return {**record, self.objects: self._transformed(record[self.objects], planned)}

    def _batch(self, record: Record, count: int) -> dict[str, Any]:
        columns = [key for key in self.keys if key in record] if self.objects is None else [self.objects]
        for key in columns:
            column = record[key]
            if not isinstance(column, (list, tuple)) or len(column) != count:
                came = f" of {len(column)}" if isinstance(column, (list, tuple)) else ""
                raise ValueError(
                    f"{key} is a {type(column).__name__}{came}; expected a list of {count}, one entry for each picture "
                    f"of the batch under {self.picture}"
                )
        rows = [self({key: record[key][row] for key in (self.picture, *columns)}) for row in range(count)]
        return {**record, **{key: [row[key] for row in rows] for key in columns}}

    def _planned(self, source: Any) -> Plan:
        source = _listed(source)
        if _is_size(source):
            source = tuple(source)
        return plan(source, self.family, min_tokens=self.min_tokens, max_tokens=self.max_tokens, conflict=self.conflict)

    def _transformed(self, record: Any, planned: Plan) -> Any:
        return transform_labels(
            record,
            planned,
            keys=self.keys,
            box_format=self.box_format,
            frame=self.frame,
            digits=self.digits,
            convention=self.convention,
        )


def _listed(source: Any) -> Any:
    """A size, or the sizes of a batch, that came as an array of whole numbers, as lists; anything else as it is."""
    whole_numbers = isinstance(source, (np.ndarray, Tensor)) and str(source.dtype).removeprefix("torch.") == "int64"
    return source.tolist() if whole_numbers and source.ndim <= 2 and source.shape[-1] == 2 else source


def _is_size(source: Any) -> bool:
    """Whether a list is the size of one picture, and no batch of them."""
    return isinstance(source, list) and len(source) > 0 and all(isinstance(side, Real) for side in source)
