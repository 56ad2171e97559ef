"""The arithmetic of a plan in words, and the settings that are in effect."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any, get_args

from mrope.checks import Number, one_of
from mrope.families import Family

from .fitting import ClipConflict, Conflict, check_clips, check_family, clip_limits, picture_limits
from .plan import Plan, Size
from .planning import check_plan, plan, plan_video

_RULES = {
    "area": "each side to the nearest {factor} pixels, then height x width into the limits",
    "volume": "a side below {factor} pixels up to it, then frames x height x width into the limits",
    "short-side": "a side below {factor} pixels up to it, then height x width into the limits",
    "two-sided": "the shorter side up to the root of the least pixels, the longer down to that of the most, then half",
    "newline": "each side to the nearest {factor} pixels, then height x width into the limits; a clip never grows",
    "slices": "a thumbnail, and a large picture in up to {slices} slices of its area",
    "padded": "the size that it has, filled up to whole tokens of {factor} pixels at the bottom and at the right",
}


def settings(
    family: Family,
    *,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    conflict: Conflict = "error",
    clips: bool = False,
    fps: Number | None = None,
) -> dict[str, str]:
    """What a plan will go by, in words: rule, size of a token, limits in tokens and pixels, patch order, policy.

    Of clips, also how files are sampled.

    Args:
        min_tokens: as in `plan`, or in `plan_video` for clips.
        max_tokens: the same.
        conflict: the same.
        clips: whether the limits are those of clips.
        fps: of clips, the frames a second that are asked for instead of the family's.

    Raises:
        ValueError: limits that the family does not have, or that contradict each other; a family without clips, or a
            policy that clips do not have.

    >>> import mrope
    >>> settings(mrope.family("qwen2.5-vl"), max_tokens=1280)["limits"]
    '4 to 1280 tokens a picture = 3136 to 1003520 pixels'
    """
    check_family(family)
    one_of("conflict", conflict, get_args(ClipConflict if clips else Conflict))
    if fps is not None and not clips:
        raise ValueError(f"fps is {fps}, and pictures have none; drop it, or give clips=True")
    if clips:
        check_clips(family)
    by_rule = "volume" if clips and family.resize == "area" and family.video_budget == "clip" else family.resize
    rule = _RULES[by_rule].format(factor=family.factor, slices=(family.slices or (0, 0))[1])
    limits = _clip_limits(family, min_tokens, max_tokens) if clips else _limits(family, min_tokens, max_tokens)
    sampling = {"sampling": _sampling(family, fps)} if clips else {}
    return {
        "family": family.name,
        "resize": f"{by_rule}: {rule}",
        "token": f"{family.factor} pixels a side, {family.merge} x {family.merge} patches of {family.patch} pixels",
        "limits": limits,
        "patch order": family.patch_order,
        "conflict": conflict,
        **sampling,
    }


def explain(
    source: Plan | Size | tuple[int, int, int],
    family: Family,
    *,
    fps: Number | None = None,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    conflict: Conflict = "error",
) -> str:
    """How a plan comes about, line by line, down to the tokens of the prompt.

    Args:
        source: a plan, (height, width) of a picture or (frames, height, width) of a clip, all in pixels.
        fps: frames a second of a clip that is given by its size; a plan knows its own.
        min_tokens: as in `plan` or `plan_video`; of a plan, those that it was made with.
        max_tokens: the same.
        conflict: the same.

    Raises:
        ValueError: as `plan` and `plan_video`; a plan that `conflict="skip"` left out; a plan of another family, or one
            that these limits do not give, as those of `plan_many` do not; or `fps` of a picture or of a plan.

    >>> import mrope
    >>> print(explain((480, 640), mrope.family("qwen2.5-vl")))
    picture of 640 wide x 480 high
    limits: 4 to 16384 tokens a picture = 3136 to 12845056 pixels
    area: each side to the nearest 28 pixels, then height x width into the limits
    resized to 644 wide x 476 high: scale 0.9917 in height, 1.0063 in width
    grid 1 x 34 x 46 patches (t x h x w) of 14 pixels = 1564 patches
    tokens: 17 rows x 23 cols = 391
    prompt: 391 + 2 of markers, newlines = 393
    """
    if not isinstance(source, (Plan, tuple)):
        raise TypeError(f"source is {source!r:.40}; expected a Plan, (height, width) or (frames, height, width)")
    size = _size(source)
    clip = len(size) == 3
    if fps is not None and (isinstance(source, Plan) or not clip):
        raise ValueError(
            f"fps is {fps}; {'a plan knows its own' if isinstance(source, Plan) else 'a picture has none'}"
        )
    words = settings(family, min_tokens=min_tokens, max_tokens=max_tokens, conflict=conflict, clips=clip)
    limits: dict[str, Any] = {"min_tokens": min_tokens, "max_tokens": max_tokens, "conflict": conflict}
    if isinstance(source, Plan):
        planned = check_plan(source, family, clip=clip, name="source")
        _check_limits(planned, family, limits)
    else:
        planned = plan_video(size, family, fps=fps, **limits) if clip else plan(size, family, **limits)
    if planned is None:
        raise ValueError(f'{source} (height, width) was left out by conflict="skip"; there is nothing to explain')
    sizes = "picture" if planned.frames is None else f"clip of {planned.frames} frames,"
    turned = "" if planned.orientation == 1 else f", turned by EXIF orientation {planned.orientation}"
    lines = [f"{sizes}{'' if clip else ' of'} {_wide(planned.original)}{turned}", f"limits: {words['limits']}"]
    lines += [words["resize"], *_parts(planned)]
    lines.append(_tokens(planned))
    lines.append(_prompt(planned, family))
    return "\n".join(lines)


def _size(source: Plan | tuple[int, ...]) -> Any:
    """(height, width) of a picture, (frames, height, width) of a clip."""
    if not isinstance(source, Plan):
        return source
    return source.original if source.frames is None else (source.frames, *source.original)


def _check_limits(planned: Plan, family: Family, limits: dict[str, Any]) -> None:
    """Refuse limits that do not make this plan, since the arithmetic in words would not be its own."""
    try:
        again = (plan if planned.frames is None else plan_video)(_size(planned), family, **limits)
    except ValueError:
        again = None
    if again is None or again.parts != planned.parts:
        given = "none" if again is None else f"one of {again.tokens} tokens and grid {again.grid}"
        raise ValueError(
            f"source is a plan of {planned.tokens} tokens and grid {planned.grid}, and these limits give {given}; give "
            "the limits and the conflict that it was made with"
        )


def _limits(family: Family, min_tokens: int | None, max_tokens: int | None) -> str:
    least, most = picture_limits(family, min_tokens, max_tokens)
    if most is None:
        return "none"
    unit = family.factor**2
    low = "up to" if least is None else f"{-(-least // unit)} to"
    return f"{low} {most // unit} tokens a picture = {'up to' if least is None else f'{least} to'} {most} pixels"


def _clip_limits(family: Family, min_tokens: int | None, max_tokens: int | None) -> str:
    if family.video_pixels is None:
        return _limits(family, min_tokens, max_tokens).replace("a picture", "a frame")
    (least, most), unit = clip_limits(family, min_tokens, max_tokens)
    per_frame = family.video_budget == "frame"
    of = "a step = {} to {} pixels a frame" if per_frame else "a clip = {} to {} pixels in all frames"
    return f"{-(-least // unit)} to {most // unit} tokens " + of.format(least, most)


def _sampling(family: Family, asked: Number | None) -> str:
    rule = family.sampling
    if rule is None:
        return "none, all frames"
    if asked is not None:
        rates = [f"{asked:g} frames a second"]
    else:
        rates = ["all frames" if rule.fps is None else f"{rule.fps:g} frames a second"]
        rates += [f"{fps:g} above {seconds:g} seconds" for seconds, fps in rule.slower]
    most = [] if rule.max_frames is None else [f"at most {rule.max_frames}"]
    return f"{rule.rule}, {', '.join(rates + most)}"


def _parts(planned: Plan) -> list[str]:
    """The resized pictures, and the grids that they are cut into."""
    lines = []
    still = [part for part in planned.parts if part.frame == 0]
    if planned.frames is not None and len(still) < len(planned.parts):
        lines.append(f"each of {planned.frames} frames as a picture")
    elif planned.frames is not None and planned.frames != planned.grid[0]:
        full = "" if planned.frames % planned.grid[0] == 0 else ", the last filled up with the last frame"
        lines.append(f"{planned.frames} frames = {planned.grid[0]} steps{full}")
    done: set[Size] = set()
    for (resized, grid, window), count in Counter((part.resized, part.grid, part.window) for part in still).items():
        if resized not in done:
            scale = resized[0] / planned.original[0], resized[1] / planned.original[1]
            lines.append(f"resized to {_wide(resized)}: scale {scale[0]:.4f} in height, {scale[1]:.4f} in width")
        done.add(resized)
        times = f"{count} windows of {_wide(window)}, each " if count > 1 or window != resized else ""
        filled = (grid[1] * planned.patch, grid[2] * planned.patch)
        black = "" if filled == window else f", filled up with black to {_wide(filled)}"
        lines.append(
            f"{times}grid {grid[0]} x {grid[1]} x {grid[2]} patches (t x h x w) of {planned.patch} pixels = "
            f"{prod(grid)} patches{black}"
        )
    return lines


def _tokens(planned: Plan) -> str:
    words = []
    for grid, count in Counter(part.grid for part in planned.parts).items():
        steps = grid[0] // planned.temporal_merge
        rows, cols = grid[1] // planned.merge, grid[2] // planned.merge
        times = "" if count == 1 else f"{count} x "
        over = "" if planned.frames is None or steps == 1 else f"{steps} steps x "
        words.append(f"{times}{over}{rows} rows x {cols} cols")
    return f"tokens: {' + '.join(words)} = {planned.tokens}"


def _prompt(planned: Plan, family: Family) -> str:
    if planned.prompt_tokens is None:
        untold = family.stamp is None or planned.seconds is None
        lacks = "the frame rate; give fps" if untold else "the family's tokenizer, which counts the time stamps"
        return f"prompt: unknown without {lacks}"
    stamps = "" if family.stamp is None or planned.frames is None else ", time stamps"
    around = planned.prompt_tokens - planned.tokens
    return f"prompt: {planned.tokens} + {around} of markers, newlines{stamps} = {planned.prompt_tokens}"


def _wide(size: Size) -> str:
    return f"{size[1]} wide x {size[0]} high"
