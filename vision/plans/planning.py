"""From a size or a file's header to a `Plan`: the family's resize rule, and the upper limit that it may not pass."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, overload

import numpy as np
from jaxtyping import Bool, Int64

from mrope.checks import Number, one_of
from mrope.families import Family
from mrope.spans import Span

from ..loading.files import naming
from ..loading.load import measure
from ..loading.pictures import Picture, name_of
from .fitting import (
    MAX_SIDE,
    ClipConflict,
    Conflict,
    check_clips,
    check_family,
    check_side,
    clip_part,
    measured,
    picture_limits,
    picture_parts,
    refuse,
)
from .footage import ClipSource, Footage, footage
from .plan import Part, Plan, Resized, Size
from .prompt import Tokenizer, clip_spans, picture_spans, prompt_tokens


@dataclass(frozen=True, slots=True, eq=False)
class SizePlans:
    """What becomes of many pictures, known from their sizes: arrays with one row a picture.

    Args:
        original: (n, 2) int64, height and width in pixels.
        resized: (n, 2) int64, of the picture, or of its thumbnail.
        grids: (n, 3) int64, (t, h, w) in patches, of the picture or its thumbnail.
        slices: (n, 2) int64, rows and cols of slices; zeros where there are none.
        tokens: (n,) int64, LLM tokens that show the picture, as limits count them.
        prompt_tokens: (n,) int64, the same with newlines and markers.
        fits: (n,) bool, False where the limits or the picture's ratio do not allow the size; zeros stand there.
    """

    original: Int64[np.ndarray, "n 2"]
    resized: Int64[np.ndarray, "n 2"]
    grids: Int64[np.ndarray, "n 3"]
    slices: Int64[np.ndarray, "n 2"]
    tokens: Int64[np.ndarray, " n"]
    prompt_tokens: Int64[np.ndarray, " n"]
    fits: Bool[np.ndarray, " n"]


@overload
def plan(
    source: Picture | Size | Resized,
    family: Family,
    *,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    conflict: Literal["error", "pad", "tile", "family"] = "error",
) -> Plan: ...
@overload
def plan(
    source: Sequence[Picture | Size | Resized],
    family: Family,
    *,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    conflict: Literal["error", "pad", "tile", "family"] = "error",
) -> list[Plan]: ...
@overload
def plan(
    source: Any, family: Family, *, min_tokens: int | None = None, max_tokens: int | None = None, conflict: Conflict
) -> Any: ...
def plan(source, family, *, min_tokens=None, max_tokens=None, conflict: Conflict = "error"):
    """What `patchify` will make of a picture, or of each in a list; of a file only the header is read.

    The size follows the family's trained rule. Unlike the rule, a plan never exceeds the upper limit: where the two
    conflict (a thin picture needs at least one token a side), `conflict` says what happens.

    Args:
        source: (height, width) in pixels, path, bytes of a file, PIL image, array, tensor, or a list of those. Pixels
            that are `Resized` keep their plan.
        min_tokens: least LLM tokens of one picture (the rule may round below it), by default the family's.
        max_tokens: most LLM tokens of one picture, by default the family's; of each tile, where it is cut into tiles.
        conflict: what becomes of a picture whose trained size the limits or its ratio do not allow; see `Conflict`.

    Returns:
        A `Plan`, or a list of them as long as the list that was given; None stands for what was skipped.

    Raises:
        OSError: a path cannot be opened.
        ValueError: no picture, a limit that the family's rule does not have, or, with `conflict="error"`, sides of more
            than 200 to 1 or more than `max_tokens`; the message says what would do.

    >>> import mrope
    >>> plan((480, 640), mrope.family("qwen2.5-vl")).tokens
    391
    >>> tiles = plan((9, 2048), mrope.family("qwen2.5-vl"), max_tokens=40, conflict="tile")
    >>> [(part.corner, part.grid) for part in tiles.parts]
    [((0, 0), (1, 2, 74)), ((0, 1036), (1, 2, 72))]
    """
    one_of("conflict", conflict, get_args(Conflict))
    check_family(family)
    if isinstance(source, list):
        if source and all(isinstance(one, int) for one in source):
            raise TypeError(f"source is {source!r:.40}; expected a tuple for a size, (height, width)")
        plans = []
        for number, one in enumerate(source):
            if isinstance(one, list):
                raise TypeError(f"source {number} is {one!r:.40}; expected one picture, or a tuple (height, width)")
            with naming(name_of(one) or f"source {number}"):
                plans.append(plan(one, family, min_tokens=min_tokens, max_tokens=max_tokens, conflict=conflict))
        return plans
    if isinstance(source, Resized):
        return resized_plan(source, family, clip=False, min_tokens=min_tokens, max_tokens=max_tokens)
    if isinstance(source, tuple):
        if len(source) != 2:
            raise TypeError(f"the size of a picture is a tuple (height, width), got {source!r:.60}")
        (height, width), orientation = source, 1
    else:
        (height, width), orientation = measure(source)
    height, width = check_side("height", height), check_side("width", width)
    limits = picture_limits(family, min_tokens, max_tokens)
    with naming(name_of(source)):
        parts = picture_parts(family, height, width, limits, conflict)
    if parts is None:
        return None
    return _plan(family, (height, width), parts, picture_spans(family, parts), source=source, orientation=orientation)


def plan_sizes(
    sizes: Int64[np.ndarray, "n 2"] | Sequence[Size],
    family: Family,
    *,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    conflict: Literal["error", "skip", "family"] = "error",
) -> SizePlans:
    """What `plan` says of many sizes, in arrays and at a fraction of the cost.

    Args:
        sizes: (n, 2) height and width in pixels.
        min_tokens: as in `plan`.
        max_tokens: as in `plan`.
        conflict: "error" refuses all if one does not fit; "skip" says which in `fits`; "family" as in `plan`.

    Raises:
        TypeError, ValueError: as `plan`; or sizes that are no (n, 2) whole numbers of at least 1.

    >>> import mrope
    >>> plan_sizes([(480, 640), (768, 1024)], mrope.family("hunyuan-vl")).prompt_tokens
    array([319, 796])
    """
    one_of("conflict", conflict, ("error", "skip", "family"))
    check_family(family)
    original = np.asarray(sizes)
    if original.size == 0:
        original = original.reshape(0, 2).astype(np.int64)
    if original.ndim != 2 or original.shape[1] != 2 or original.dtype.kind not in "iu":
        raise TypeError(f"sizes are {original.dtype} of shape {original.shape}; expected whole numbers (n, 2)")
    height, width = np.ascontiguousarray(original.T, dtype=np.int64)
    if original.size and (original.min() < 1 or original.max() > MAX_SIDE):
        wrong = int(np.flatnonzero((height < 1) | (width < 1) | (height > MAX_SIDE) | (width > MAX_SIDE))[0])
        raise ValueError(f"size {wrong} is {original[wrong].tolist()} (height, width); expected 1 to {MAX_SIDE} each")
    limits = picture_limits(family, min_tokens, max_tokens)
    found = measured(family, height, width, limits)
    fits = ~found.thin if conflict == "family" else found.fits
    complete = bool(fits.all())
    if conflict != "skip" and not complete:
        first = int(np.flatnonzero(~fits)[0])
        with naming(f"size {first}"):
            refuse(family, int(height[first]), int(width[first]), limits, conflict)
    grids = np.ones((len(height), 3), dtype=np.int64)
    for side, cells in enumerate(found.cells, 1):
        np.multiply(cells, family.merge, out=grids[:, side])
    arrays = (np.column_stack(found.resized), grids, found.slices, found.tokens, prompt_tokens(family, found))
    if not complete:
        for array in arrays:
            array[~fits] = 0
    return SizePlans(np.column_stack((height, width)), *arrays, fits)


def plan_video(
    source: ClipSource | Resized,
    family: Family,
    *,
    fps: Number | None = None,
    frames: int | None = None,
    max_frames: int | None = None,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    conflict: ClipConflict = "error",
    tokenizer: Tokenizer | None = None,
) -> Plan:
    """What `patchify_video` will make of a clip.

    Of a file only the frames that the family's rule picks are planned, without decoding them. (Pillow decodes the
    frames of an animated picture to tell how long they last.) The limits, the family's as well as those given, are of
    each temporal step where the family limits frames, and of the whole padded clip where it limits clips
    (`Family.video_budget`).

    Args:
        source: (frames, height, width), a uint8 array or tensor (frames, 3, height, width), a `Clip`, or path or bytes
            of a video (extra `video`) or an animated picture. Frames that are `Resized` keep their plan.
        fps: frames a second: of a file, how many to pick, by default as the family does; of loose frames, how many
            these are, and None leaves their times unknown.
        frames: of a file, how many to pick instead of `fps`, at most those that are there.
        max_frames: of a file, the most to pick, instead of the family's.
        min_tokens: least LLM tokens (the rule may round below it), by default the family's.
        max_tokens: most LLM tokens, by default the family's.
        conflict: "error", "pad" or "family", as in `plan`. A clip of an odd number of frames may pass its limit by the
            frame that fills its last step.
        tokenizer: text -> its token ids, to count the tokens of time stamps exactly; by default they are counted where
            each digit is known to be one token, and else `spans` and `prompt_tokens` of the plan are None.

    Raises:
        OSError: a path cannot be opened.
        ValueError: neither a video nor a picture (a still one is a clip of one frame), or a broken or damaged one;
            sides of more than 200 to 1, or more than `max_tokens`: the message says what would do. Or the family has no
            rule for clips.
        ImportError: a video, and PyAV is not installed.

    >>> import mrope
    >>> plan_video((5, 480, 640), mrope.family("qwen2.5-vl"), fps=4.0).grid
    (3, 34, 46)
    """
    one_of("conflict", conflict, get_args(ClipConflict))
    check_clips(family)  # before the file is opened
    if isinstance(source, Resized):
        asked = {"fps": fps, "frames": frames, "max_frames": max_frames, "tokenizer": tokenizer}
        return resized_plan(source, family, clip=True, min_tokens=min_tokens, max_tokens=max_tokens, **asked)
    seen = footage(source, family, fps=fps, frames=frames, max_frames=max_frames)
    return plan_footage(seen, family, min_tokens, max_tokens, conflict, tokenizer)


def check_plan(planned: object, family: Family, *, clip: bool, name: str = "the plan of these pixels") -> Plan:
    """A plan of this family for a clip or for a picture, or one line that says what came."""
    wanted = f"{'a clip' if clip else 'a picture'} for {family.name}"
    if not isinstance(planned, Plan):
        raise TypeError(f"{name} is {planned!r:.40}; expected a Plan of {wanted}")
    if planned.family != family.name or (planned.frames is not None) != clip:
        came = f"{'a picture' if planned.frames is None else 'a clip'} for {planned.family}"
        raise ValueError(f"{name} is of {came}; expected one of {wanted}")
    return planned


def resized_plan(source: Resized, family: Family, *, clip: bool, **asked: object) -> Plan:
    """The plan of pixels that have their size, of which nothing else may be `asked`."""
    for name, value in asked.items():
        if value is not None:
            raise ValueError(f"{name} is {value!r}, and the pixels are resized to a plan already; drop it")
    return check_plan(source.plan, family, clip=clip)


def plan_footage(
    seen: Footage,
    family: Family,
    min_tokens: int | None,
    max_tokens: int | None,
    conflict: Conflict,
    tokenizer: Tokenizer | None = None,
) -> Plan:
    """`plan_video` for what was found in the file."""
    if tokenizer is not None and not callable(tokenizer):
        raise TypeError(f"tokenizer is {tokenizer!r}; expected a function from a text to its token ids")
    height, width = seen.size
    with naming(seen.name):
        if family.resize == "slices":  # frames are pictures
            limits = picture_limits(family, min_tokens, max_tokens)
            still = picture_parts(family, height, width, limits, conflict) or ()
            parts = tuple(replace(part, frame=frame) for frame in range(seen.frames) for part in still)
            times, spans = seen.steps(family, seen.frames), picture_spans(family, still) * seen.frames
        else:
            parts = (clip_part(family, seen.frames, height, width, min_tokens, max_tokens, conflict),)
            times = seen.steps(family, parts[0].grid[0])
            spans = clip_spans(family, parts[0].grid, seconds=_seconds(family, seen), times=times, tokenizer=tokenizer)
    return _plan(
        family,
        seen.size,
        parts,
        spans,
        source=seen.source,
        orientation=seen.orientation,
        frames=seen.frames,
        seconds=_seconds(family, seen),
        times=times,
        temporal_merge=family.temporal_merge,
    )


def _seconds(family: Family, seen: Footage) -> float | None:
    """Seconds per temporal step."""
    return None if seen.rate is None else family.temporal_patch / seen.rate


def _plan(
    family: Family,
    original: Size,
    parts: tuple[Part, ...],
    spans: tuple[Span, ...] | None,
    *,
    source: object,
    **facts: Any,
) -> Plan:
    return Plan(
        source=os.fsdecode(source) if isinstance(source, (str, os.PathLike)) else None,
        family=family.name,
        original=original,
        parts=parts,
        patch=family.patch,
        merge=family.merge,
        boxes=family.boxes,
        spans=spans,
        prompt_tokens=None if spans is None else sum(family.layout.tokens(span) for span in spans),
        **facts,
    )
