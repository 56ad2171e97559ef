"""The labels of a data set in the coordinates that a family's model reads and writes, by the plan of their pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args, overload

from mrope.checks import one_of, whole
from mrope.families import Boxes, Family

from .boxes import rounded
from .plan import Plan
from .planning import plan

Frame: TypeAlias = Literal["original", "stored"]
"""What labels were drawn on: the "original" picture upright, or the pixels as "stored", by a tool that ignores EXIF."""

Record: TypeAlias = Mapping[str, Any]

KEYS = ("box", "boxes", "bbox", "point", "points", "polygon", "polygons")


@overload
def transform_labels(
    record: Record,
    plan: Plan,
    *,
    keys: Sequence[str] = KEYS,
    frame: Frame = "original",
    digits: int | None = None,
    part: int | None = None,
    convention: Boxes | None = None,
) -> dict[str, Any]: ...
@overload
def transform_labels(
    record: list[Any],
    plan: Plan,
    *,
    keys: Sequence[str] = KEYS,
    frame: Frame = "original",
    digits: int | None = None,
    part: int | None = None,
    convention: Boxes | None = None,
) -> list[dict[str, Any]]: ...
def transform_labels(record, plan, *, keys=KEYS, frame="original", digits=None, part=None, convention=None):
    """The labels of one picture as its model writes them: transformed by the same plan as its pixels.

    Args:
        record: a dict, or a list of dicts for many objects in the picture. Under `keys` it holds boxes (..., 4) of
            [left, top, right, bottom], and points and polygons (..., 2), in pixels; everything else stays as it is.
        plan: of the picture.
        keys: of what is transformed, where the record has it and it is not None.
        frame: what the labels were drawn on; see `Frame`.
        digits: behind the point, 0 for whole numbers (int) as most models write them; None does not round.
        part: as in `Plan.encode_boxes`.
        convention: as in `Plan.encode_boxes`.

    Returns:
        A new dict, or a list of them; nothing is changed in place.

    Raises:
        ValueError: as `Plan.encode_boxes`, or no dict has any of the keys.

    >>> import mrope
    >>> planned = mrope.family("qwen3-vl").plan((600, 800))
    >>> transform_labels({"boxes": [[100, 300, 400, 600]], "text": "a cat"}, planned, digits=0)
    {'boxes': [[125, 500, 500, 1000]], 'text': 'a cat'}
    """
    one_of("frame", frame, get_args(Frame))
    if digits is not None:
        whole("digits", digits, 0)

    def encoded(shapes: Any) -> Any:
        upright = plan.from_stored(shapes) if frame == "stored" else shapes
        written = plan.encode_boxes(upright, part=part, convention=convention)
        return written if digits is None else rounded(written, digits=digits)

    def changed(one: Record) -> dict[str, Any]:
        return {key: encoded(value) if key in keys and value is not None else value for key, value in one.items()}

    records = record if isinstance(record, list) else [record]
    if records and not any(key in one for one in records for key in keys):
        raise ValueError(f"the record has none of the keys {', '.join(keys)}; name those of its labels in keys")
    done = [changed(one) for one in records]
    return done if isinstance(record, list) else done[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTransform:
    """`transform_labels` for a data set: it plans each picture itself, from its header.

    Give it the limits that training and inference give to `plan` and `patchify`: with others, boxes in pixels of the
    resized picture come out wrong.

    Args:
        family: whose model learns the labels.
        picture: the key of each picture: a path, bytes, PIL image, array, tensor, or its size (height, width).
        objects: the key of the dict, or list of dicts, that holds the labels; None if the record itself does.
        min_tokens: as in `plan`.
        max_tokens: as in `plan`.
        conflict: as in `plan`; tiles have no common coordinates, and are left to `transform_labels`.
        keys: as in `transform_labels`.
        frame: as in `transform_labels`.
        digits: as in `transform_labels`.
        convention: as in `Plan.encode_boxes`.

    Raises:
        ValueError: as `plan` and `transform_labels`, or a record has no picture.

    >>> import mrope
    >>> transform = LabelTransform(family=mrope.family("qwen2.5-vl"), picture="size", digits=0)
    >>> transform({"size": (480, 640), "points": [[320, 240]]})
    {'size': (480, 640), 'points': [[322, 238]]}
    """

    family: Family
    picture: str = "image"
    objects: str | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    conflict: Literal["error", "pad", "family"] = "error"
    keys: Sequence[str] = KEYS
    frame: Frame = "original"
    digits: int | None = None
    convention: Boxes | None = None

    @overload
    def __call__(self, record: Record) -> dict[str, Any]: ...
    @overload
    def __call__(self, record: list[Any]) -> list[dict[str, Any]]: ...
    def __call__(self, record):
        """A record with its labels transformed, or a list of records of one picture each."""
        if isinstance(record, list):
            return [self(one) for one in record]
        where = [self.picture] if self.objects is None else [self.picture, self.objects]
        if missing := [key for key in where if key not in record]:
            raise ValueError(f"the record has no {missing[0]!r}, only {', '.join(map(repr, record))}")
        planned = self._planned(record[self.picture])
        if self.objects is None:
            return self._transformed(record, planned)
        return {**record, self.objects: self._transformed(record[self.objects], planned)}

    def _planned(self, source: Any) -> Plan:
        if isinstance(source, list):
            source = tuple(source)  # a size that was stored as JSON
        return plan(source, self.family, min_tokens=self.min_tokens, max_tokens=self.max_tokens, conflict=self.conflict)

    def _transformed(self, record: Any, planned: Plan) -> Any:
        return transform_labels(
            record, planned, keys=self.keys, frame=self.frame, digits=self.digits, convention=self.convention
        )
