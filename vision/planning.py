"""From a size or a file's header to a `Plan`: the family's resize rule, and the upper limit that it may not pass."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, overload

import numpy as np
from jaxtyping import Bool, Int64
from torch import Tensor

from mrope.checks import one_of, positive, whole
from mrope.families import Family
from mrope.spans import Span

from .files import File, frames_in, frames_of, is_file, name_of, naming, opened, orientation_of, rate_of, size_of
from .fitting import Conflict, check_clips, clip_part, measured, picture_limits, picture_parts, refuse
from .load import Picture, measure
from .plan import Part, Plan, Size
from .prompt import clip_spans, picture_spans, prompt_tokens


@dataclass(frozen=True, slots=True, eq=False)
class Resized:
    """Pixels that have the size which their plan wants: they are never planned, nor resized, again.

    Args:
        pixels: (3, height, width) uint8, as `unpatchify` gives them.
        plan: whose one part they fill.
    """

    pixels: Tensor
    plan: Plan

    def __post_init__(self) -> None:
        if len(self.plan.parts) != 1 or tuple(self.pixels.shape[-2:]) != self.plan.parts[0].window:
            raise ValueError(
                f"pixels of {tuple(self.pixels.shape[-2:])} (height, width) do not fill a plan of "
                f"{[part.window for part in self.plan.parts]}; expected one part of that size"
            )


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
def plan(source, family, *, min_tokens=None, max_tokens=None, conflict="error"):
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
    >>> [(part.corner, part.grid) for part in plan((9, 2048), mrope.family("qwen2.5-vl"), conflict="tile").parts]
    [((0, 0), (1, 2, 74)), ((0, 1036), (1, 2, 72))]
    """
    one_of("conflict", conflict, get_args(Conflict))
    if isinstance(source, list):
        return [plan(one, family, min_tokens=min_tokens, max_tokens=max_tokens, conflict=conflict) for one in source]
    if isinstance(source, Resized):
        if min_tokens is not None or max_tokens is not None:
            raise ValueError("min_tokens and max_tokens came with pixels that are resized to a plan already; drop them")
        return source.plan
    if isinstance(source, tuple):
        (height, width), orientation = _sides("a picture", source, ("height", "width")), 1
    else:
        (height, width), orientation = measure(source)
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
    array([318, 796])
    """
    one_of("conflict", conflict, ("error", "skip", "family"))
    original = np.asarray(sizes)
    if original.size == 0:
        original = original.reshape(0, 2).astype(np.int64)
    if original.ndim != 2 or original.shape[1] != 2 or original.dtype.kind not in "iu":
        raise TypeError(f"sizes are {original.dtype} of shape {original.shape}; expected whole numbers (n, 2)")
    original = original.astype(np.int64)
    if (wrong := np.flatnonzero((original < 1).any(axis=1))).size:
        raise ValueError(f"size {wrong[0]} is {original[wrong[0]].tolist()} (height, width); expected at least 1 each")
    limits = picture_limits(family, min_tokens, max_tokens)
    found = measured(family, original[:, 0], original[:, 1], limits)
    fits = ~found.thin if conflict == "family" else found.fits
    if conflict != "skip" and not fits.all():
        height, width = original[np.flatnonzero(~fits)[0]].tolist()
        with naming(f"size {np.flatnonzero(~fits)[0]}"):
            refuse(family, height, width, limits)
    return SizePlans(
        original,
        *(array * fits[:, None] for array in (found.resized, found.grids, found.slices)),
        *(array * fits for array in (found.tokens, prompt_tokens(family, found))),
        fits,
    )


def plan_video(
    source: tuple[int, int, int] | File,
    family: Family,
    *,
    fps: float | None = None,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    conflict: Literal["error", "family"] = "error",
) -> Plan:
    """What `patchify_video` will make of a clip.

    The limits, the family's as well as those given, are of each temporal step where the family limits frames, and of
    the whole padded clip where it limits clips (`Family.video_budget`).

    Args:
        source: (frames, height, width), or path or bytes of an animated GIF, WebP or PNG. Pillow decodes the frames of
            such a file to tell how long they last, unless `fps` is given.
        fps: frames a second, by default what the file says (frames over duration); None leaves `seconds` unknown.
        min_tokens: least LLM tokens (the rule may round below it), by default the family's.
        max_tokens: most LLM tokens, by default the family's.
        conflict: "error" or "family", as in `plan`.

    Raises:
        OSError: a path cannot be opened.
        ValueError: no clip, sides of more than 200 to 1, or more than `max_tokens`; the message says what would do.
            Or the family has no rule for clips.

    >>> import mrope
    >>> plan_video((5, 480, 640), mrope.family("qwen2.5-vl"), fps=4.0).grid
    (3, 34, 46)
    """
    one_of("conflict", conflict, ("error", "family"))
    check_clips(family)  # before the file is opened
    if not is_file(source):
        return plan_frames(source, family, fps, min_tokens, max_tokens, conflict)
    if fps is None:
        with opened(source) as image:
            fps = rate_of([frame.info.get("duration") for frame in frames_of(image)])
    return plan_animation(source, family, fps, min_tokens, max_tokens, conflict)


def plan_animation(
    source: File, family: Family, fps: float | None, min_tokens: int | None, max_tokens: int | None, conflict: Conflict
) -> Plan:
    """`plan_video` for a file, without a look at how long its frames last."""
    check_clips(family)
    with opened(source) as image:
        orientation = orientation_of(image)
        size = (frames_in(image), *size_of(image, orientation))
    with naming(name_of(source)):
        return plan_frames(size, family, fps, min_tokens, max_tokens, conflict, source=source, orientation=orientation)


def plan_frames(
    size: tuple[int, int, int],
    family: Family,
    fps: float | None,
    min_tokens: int | None,
    max_tokens: int | None,
    conflict: Conflict,
    *,
    source: object = None,
    orientation: int = 1,
) -> Plan:
    """`plan_video` for a clip of known size (frames, height, width)."""
    check_clips(family)
    frames, height, width = _sides("a clip", size, ("frames", "height", "width"))
    if family.resize == "slices":  # frames are pictures
        limits = picture_limits(family, min_tokens, max_tokens)
        still = picture_parts(family, height, width, limits, conflict) or ()
        parts = tuple(replace(part, frame=frame) for frame in range(frames) for part in still)
        spans = picture_spans(family, still) * frames
    else:
        parts = (clip_part(family, frames, height, width, min_tokens, max_tokens, conflict),)
        spans = clip_spans(family, parts[0].grid, seconds=fps and family.temporal_patch / positive("fps", fps))
    return _plan(
        family,
        (height, width),
        parts,
        spans,
        source=source,
        orientation=orientation,
        frames=frames,
        seconds=None if fps is None else family.temporal_patch / positive("fps", fps),
        temporal_merge=family.temporal_merge,
    )


def _sides(what: str, size: Any, names: tuple[str, ...]) -> tuple[int, ...]:
    if not isinstance(size, tuple) or len(size) != len(names):
        raise TypeError(f"the size of {what} is a tuple ({', '.join(names)}), got {size!r}")
    return tuple(whole(name, side, 1) for name, side in zip(names, size, strict=True))


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
        original=original,
        parts=parts,
        patch=family.patch,
        merge=family.merge,
        boxes=family.boxes,
        spans=spans,
        prompt_tokens=None if spans is None else sum(family.layout.tokens(span) for span in spans),
        **facts,
    )
