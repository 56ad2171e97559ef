"""From a size or a file's header to a `Plan`: the family's resize rule, and the upper limit that it may not pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, overload

from mrope.checks import positive, whole
from mrope.families import Family
from mrope.layouts import GridLayout

from .files import File, frames_in, frames_of, is_file, name_of, naming, opened, orientation_of, rate_of, size_of
from .load import Picture, measure
from .plan import Plan, Size
from .sizes import clip_size, picture_size


@overload
def plan(
    source: Picture | Size, family: Family, *, min_tokens: int | None = None, max_tokens: int | None = None
) -> Plan: ...
@overload
def plan(
    source: Sequence[Picture | Size], family: Family, *, min_tokens: int | None = None, max_tokens: int | None = None
) -> list[Plan]: ...
def plan(source, family, *, min_tokens=None, max_tokens=None):
    """What `patchify` will make of a picture, or of each in a list; of a file only the header is read.

    The size follows the family's trained rule. Unlike the rule, a plan never exceeds the upper limit: where the two
    conflict (a thin picture needs at least one token a side), it raises.

    Args:
        source: (height, width) in pixels, path, bytes of a file, PIL image, array, tensor, or a list of those.
        min_tokens: least LLM tokens of one picture (the rule may round below it), by default the family's.
        max_tokens: most LLM tokens of one picture, by default the family's.

    Raises:
        OSError: a path cannot be opened.
        ValueError: no picture, sides of more than 200 to 1, or more than `max_tokens`; the message says what would do.
            Or a rule of the family is not built yet.

    >>> import mrope
    >>> plan((480, 640), mrope.family("qwen2.5-vl")).tokens
    391
    """
    _check_built(family)
    if isinstance(source, list):
        return [plan(one, family, min_tokens=min_tokens, max_tokens=max_tokens) for one in source]
    if isinstance(source, tuple):
        (height, width), orientation = _sides("a picture", source, ("height", "width")), 1
    else:
        (height, width), orientation = measure(source)
    unit = family.factor**2
    least, most = _limits(family.pixel_limits, unit, min_tokens, max_tokens)

    def resize(most: int) -> Size:
        return picture_size(height, width, factor=family.factor, min_pixels=least, max_pixels=most)

    with naming(name_of(source)):
        resized = _bounded(resize, 1, unit, most)
    return _plan(family, (height, width), resized, source=source, orientation=orientation)


def plan_video(
    source: tuple[int, int, int] | File,
    family: Family,
    *,
    fps: float | None = None,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
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

    Raises:
        OSError: a path cannot be opened.
        ValueError: no clip, sides of more than 200 to 1, or more than `max_tokens`; the message says what would do.
            Or a rule of the family is not built yet, or it has none for clips.

    >>> import mrope
    >>> plan_video((5, 480, 640), mrope.family("qwen2.5-vl"), fps=4.0).grid
    (3, 34, 46)
    """
    _clip_limits(family)  # before the file is opened
    if not is_file(source):
        return plan_frames(source, family, fps, min_tokens, max_tokens)
    if fps is None:
        with opened(source) as image:
            fps = rate_of([frame.info.get("duration") for frame in frames_of(image)])
    return plan_animation(source, family, fps, min_tokens, max_tokens)


def plan_animation(
    source: File, family: Family, fps: float | None, min_tokens: int | None, max_tokens: int | None
) -> Plan:
    """`plan_video` for a file, without a look at how long its frames last."""
    _clip_limits(family)
    with opened(source) as image:
        orientation = orientation_of(image)
        size = (frames_in(image), *size_of(image, orientation))
    with naming(name_of(source)):
        return plan_frames(size, family, fps, min_tokens, max_tokens, source=source, orientation=orientation)


def plan_frames(
    size: tuple[int, int, int],
    family: Family,
    fps: float | None,
    min_tokens: int | None,
    max_tokens: int | None,
    *,
    source: object = None,
    orientation: int = 1,
) -> Plan:
    """`plan_video` for a clip of known size (frames, height, width)."""
    pixels = _clip_limits(family)
    frames, height, width = _sides("a clip", size, ("frames", "height", "width"))
    per_frame, factor = family.video_budget == "frame", family.factor
    steps = -(-frames // family.temporal_patch)
    # What a token costs of the limit, and how many frames count: the padding costs tokens too.
    unit, counted = (factor**2, 1) if per_frame else (factor**2 * family.temporal_patch, steps * family.temporal_patch)
    least, most = _limits(pixels, unit, min_tokens, max_tokens)

    def resize(most: int) -> Size:
        limits = {"factor": factor, "min_pixels": least, "max_pixels": most}
        if per_frame:
            return picture_size(height, width, **limits)
        return clip_size(frames, height, width, temporal_patch=family.temporal_patch, **limits)

    return _plan(
        family,
        (height, width),
        _bounded(resize, counted, unit, most),
        steps=steps,
        source=source,
        orientation=orientation,
        frames=frames,
        seconds=None if fps is None else family.temporal_patch / positive("fps", fps),
    )


def _check_built(family: Family) -> None:
    """Refuse a family whose pictures become patches by a rule that is not built."""
    for rule, word, built in (
        ("resize rule", family.resize, "area"),
        ("patch order", family.patch_order, "blocks"),
    ):
        if word != built:
            raise ValueError(f"the {rule} {word!r} of {family.name} is not built yet; its positions are")


def _clip_limits(family: Family) -> Size:
    """The least and most pixels of a clip, of a family whose clips become patches by rules that are built."""
    _check_built(family)
    if isinstance(family.layout, GridLayout) and family.layout.temporal_merge != 1:
        raise ValueError(
            f"the temporal merge {family.layout.temporal_merge} of clips of {family.name} is not built yet; its "
            "positions are, and its pictures"
        )
    if family.video_pixels is None:
        raise ValueError(f"{family.name} has no limits for clips (its video_pixels is None); its pictures have")
    return family.video_pixels


def _sides(what: str, size: Any, names: tuple[str, ...]) -> tuple[int, ...]:
    if not isinstance(size, tuple) or len(size) != len(names):
        raise TypeError(f"the size of {what} is a tuple ({', '.join(names)}), got {size!r}")
    return tuple(whole(name, side, 1) for name, side in zip(names, size, strict=True))


def _limits(pixels: Size, unit: int, min_tokens: int | None, max_tokens: int | None) -> Size:
    """The least and most pixels: the family's, or those that were asked for, `unit` pixels a token."""
    least = pixels[0] if min_tokens is None else whole("min_tokens", min_tokens, 1) * unit
    most = pixels[1] if max_tokens is None else whole("max_tokens", max_tokens, 1) * unit
    if least > most:
        raise ValueError(f"min_tokens is {-(-least // unit)}, above max_tokens {most // unit}; give both")
    return least, most


def _bounded(resize: Callable[[int], Size], frames: int, unit: int, most: int) -> Size:
    """The resized side lengths, or an error where the rule leaves more than `most` pixels in `frames` frames."""

    def pixels(most: int) -> int:
        height, width = resize(most)
        return frames * height * width

    if pixels(most) > most:
        height, width = resize(most)
        enough = next(tokens for tokens in count(most // unit + 1) if pixels(tokens * unit) <= tokens * unit)
        raise ValueError(
            f"max_tokens is {most // unit}, but the resize rule leaves {width} wide x {height} high"
            f"{'' if frames == 1 else f' in {frames} frames'} = {frames * height * width // unit} tokens; "
            f"max_tokens={enough} would do"
        )
    return resize(most)


def _plan(family: Family, original: Size, resized: Size, *, source: object, steps: int = 1, **facts: Any) -> Plan:
    return Plan(
        source=os.fsdecode(source) if isinstance(source, (str, os.PathLike)) else None,
        original=original,
        resized=resized,
        grid=(steps, resized[0] // family.patch, resized[1] // family.patch),
        patch=family.patch,
        merge=family.merge,
        boxes=family.boxes,
        **facts,
    )
