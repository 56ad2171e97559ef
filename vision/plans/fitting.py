"""From a family's resize rule and limits to the grids of a picture or clip, and what happens where these collide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NoReturn, TypeAlias

import numpy as np

from mrope.checks import whole
from mrope.families import Family

from . import sizes as rules
from .plan import Part, Size

Conflict = Literal["error", "skip", "pad", "tile", "family"]
"""What becomes of a picture whose trained size the limits do not allow, or that is too thin for the rule.

"error": refused, with what would do. "skip": no plan, None. "pad": as large as the limit allows at its own ratio, and
filled up with black to whole tokens. "tile": cut along its longer side into several grids that each keep the limit.
"family": the size that the trained rule gives all the same, above the limit, as drop-in processors have it.
"""
ClipConflict = Literal["error", "pad", "family"]
"""The same of a clip."""
MAX_SIDE = 1 << 24
"""The longest side of a picture or frame in pixels, so that all products stay whole numbers."""
Limits: TypeAlias = tuple[int | None, int | None]
"""Least and most pixels of a picture; None where there is no such limit."""


def picture_limits(family: Family, min_tokens: int | None, max_tokens: int | None) -> Limits:
    """The least and most pixels of a picture; None where the rule has no such limit and none was asked for."""
    unit = family.factor**2
    if family.image_tokens is not None:
        return _limits(family.pixel_limits, unit, min_tokens, max_tokens)
    if min_tokens is not None:
        raise ValueError(f"min_tokens is {min_tokens}; the resize rule {family.resize!r} of {family.name} has no least")
    return None, None if max_tokens is None else whole("max_tokens", max_tokens, 1) * unit


def _limits(pixels: Size, unit: int, min_tokens: int | None, max_tokens: int | None) -> Size:
    """The least and most pixels: the family's, or those that were asked for, `unit` pixels a token."""
    least = pixels[0] if min_tokens is None else whole("min_tokens", min_tokens, 1) * unit
    most = pixels[1] if max_tokens is None else whole("max_tokens", max_tokens, 1) * unit
    if least > most:
        low, high = -(-least // unit), most // unit
        if max_tokens is None:
            raise ValueError(f"min_tokens is {low}, above the family's most, {high}; give max_tokens too")
        if min_tokens is None:
            raise ValueError(f"max_tokens is {high}, below the family's least, {low}; give min_tokens too")
        raise ValueError(f"min_tokens is {low}, above max_tokens {high}; expected at most that")
    return least, most


def _grid_over(size: Size, family: Family) -> tuple[int, int, int]:
    """The grid of whole tokens over a size."""
    rows, cols = (-(-side // family.factor) * family.merge for side in size)
    return 1, rows, cols


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What the trained rule makes of n pictures.

    Args:
        resized: heights and widths (n,) in pixels, of the picture or its thumbnail.
        cells: rows and columns (n,) of tokens that these fill.
        slices: (n, 2) rows and columns of slices, zeros where there are none.
        whole: (n, 2) height and width of what the slices make up.
        tokens: (n,) of all.
        thin: (n,) those beyond the rule's ratio, or below its least side.
        fits: (n,) those that are neither thin nor above the limit.
    """

    resized: rules.Sizes
    cells: rules.Sizes
    slices: np.ndarray
    whole: np.ndarray
    tokens: np.ndarray
    thin: np.ndarray
    fits: np.ndarray


def measured(family: Family, height: np.ndarray, width: np.ndarray, limits: Limits) -> Found:
    """What the trained rule makes of pictures of these sizes (n,)."""
    least, most = limits
    factor = family.factor
    slices = whole = np.zeros((len(height), 2), dtype=np.int64)
    if family.resize == "slices":
        cut, tokens = _cut(family, height, width, None if most is None else most // factor**2)
        resized, slices, whole = (cut[:, 0, 0], cut[:, 0, 1]), cut[:, 1], cut[:, 2]
        cells = (resized[0] // factor, resized[1] // factor)
    else:
        resized = _rule(family, height, width, least, most)
        cells = (-(-resized[0] // factor), -(-resized[1] // factor))
        tokens = cells[0] * cells[1]
    thin = np.zeros(len(height), dtype=bool)
    if family.resize not in ("padded", "slices"):
        limit = _ratio(family)
        thin = (height > limit * width) | (width > limit * height)
    if family.resize == "two-sided":
        thin |= np.minimum(height, width) < factor
    fits = ~thin if most is None else ~thin & (tokens <= most // factor**2)
    return Found(resized, cells, slices, whole, tokens, thin, fits)


def _one(family: Family, height: int, width: int, limits: Limits) -> Found:
    """`measured` for one picture."""
    return measured(family, np.array([height]), np.array([width]), limits)


def _ratio(family: Family) -> int:
    """How many times the shorter side the longer one may be."""
    return rules.TWO_SIDED_RATIO if family.resize == "two-sided" else rules.MAX_RATIO


def _rule(family: Family, height: np.ndarray, width: np.ndarray, least: int | None, most: int | None) -> rules.Sizes:
    factor = family.factor
    if family.resize == "padded":
        return rules.padded(height, width, factor=factor, most=None if most is None else most // factor**2)
    assert least is not None
    assert most is not None
    if family.resize == "volume":
        frames = family.temporal_patch
        return rules.volume(
            height,
            width,
            factor=factor,
            least=least * frames,
            most=most * frames,
            frames=frames,
            temporal_patch=frames,
        )
    rule = {"short-side": rules.short_side, "two-sided": rules.two_sided}.get(family.resize, rules.area)
    return rule(height, width, factor=factor, least=least, most=most)


def _cut(family: Family, height: np.ndarray, width: np.ndarray, most: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Thumbnails and slices as `sizes.slices` gives them, fewer where `most` tokens ask for that, and their tokens."""
    assert family.slices is not None
    side, number = family.slices

    def cut(number: int) -> tuple[np.ndarray, np.ndarray]:
        found = rules.slices(height, width, factor=family.factor, side=side, most=number)
        return found, found[:, ::2].prod(axis=2).sum(axis=1) // family.factor**2

    found, tokens = cut(number)
    while most is not None and number > 1 and (over := tokens > most).any():
        number -= 1
        fewer, fewer_tokens = cut(number)
        found = np.where(over[:, None, None], fewer, found)
        tokens = np.where(over, fewer_tokens, tokens)
    return found, tokens


def picture_parts(
    family: Family, height: int, width: int, limits: Limits, conflict: Conflict
) -> tuple[Part, ...] | None:
    """The grids of one picture; None where it is skipped."""
    found = _one(family, height, width, limits)
    if found.fits[0] or (conflict == "family" and not found.thin[0]):
        return _parts(family, found)
    if conflict == "skip":
        return None
    if conflict not in ("pad", "tile") or family.resize == "slices":
        refuse(family, height, width, limits, conflict)
    return (_padded if conflict == "pad" else _tiles)(family, height, width, limits, found)


def _parts(family: Family, found: Found) -> tuple[Part, ...]:
    height, width, down, across = (int(side[0]) for side in (*found.resized, *found.cells))
    first = Part(resized=(height, width), grid=(1, down * family.merge, across * family.merge))
    (rows, cols), whole = found.slices[0].tolist(), found.whole[0].tolist()
    if not rows:
        return (first,)
    high, wide = whole[0] // rows, whole[1] // cols
    each = (1, high // family.patch, wide // family.patch)
    return (
        first,
        *(
            Part(resized=tuple(whole), grid=each, corner=(row * high, col * wide), size=(high, wide))
            for row in range(rows)
            for col in range(cols)
        ),
    )


def _padded(family: Family, height: int, width: int, limits: Limits, found: Found) -> tuple[Part, ...]:
    """The picture at its own ratio, as large as the limit allows, never enlarged."""
    assert limits[1] is not None
    sides = rules.padded(
        np.array([height]), np.array([width]), factor=family.factor, most=limits[1] // family.factor**2
    )
    size = (int(sides[0][0]), int(sides[1][0]))
    return (Part(resized=size, grid=_grid_over(size, family)),)


def _tiles(family: Family, height: int, width: int, limits: Limits, found: Found) -> tuple[Part, ...]:
    """The size that the rule gives, or the nearest whole tokens of what is too thin for it, cut along its longer side.

    Tiles are as equal as whole tokens allow, the larger ones first.
    """
    assert limits[1] is not None
    factor, most = family.factor, limits[1] // family.factor**2
    if found.thin[0]:
        rows, cols = (max(1, round(side / factor)) for side in (height, width))
    else:
        rows, cols = (int(side[0]) for side in found.cells)
    if min(rows, cols) > most:
        refuse(family, height, width, limits, "tile")
    longest = min(most // min(rows, cols), _ratio(family) * min(rows, cols))
    number = -(-max(rows, cols) // longest)
    ends = [-(-max(rows, cols) * tile // number) for tile in range(number + 1)]
    resized = (rows * factor, cols * factor)
    parts = []
    for first, last in pairwise(ends):
        high, wide = (last - first, cols) if rows > cols else (rows, last - first)
        corner = (first * factor, 0) if rows > cols else (0, first * factor)
        grid = (1, high * family.merge, wide * family.merge)
        parts.append(Part(resized=resized, grid=grid, corner=corner, size=(high * factor, wide * factor)))
    return tuple(parts)


def refuse(family: Family, height: int, width: int, limits: Limits, conflict: Conflict = "error") -> NoReturn:
    """Say why a picture does not fit, and what would do instead of `conflict`."""
    found = _one(family, height, width, limits)
    if found.thin[0]:
        limit = _ratio(family)
        stretch = max(height, width) / min(height, width)
        if stretch > limit:
            others = [f'conflict="{word}"' for word in ("pad", "tile") if word != conflict]
            raise ValueError(
                f"{width} wide x {height} high is {stretch:.1f} to 1, the limit is {limit} to 1; crop it, or plan it "
                f"with {' or '.join(others)}"
            )
        raise ValueError(
            f"{width} wide x {height} high has a side below {family.factor} pixels, the least of {family.name}"
        )
    unit = family.factor**2
    least, most = limits
    assert most is not None

    def tokens(limit: int) -> int:
        return int(_one(family, height, width, (least, limit * unit)).tokens[0])

    resized = f"{found.resized[1][0]} wide x {found.resized[0][0]} high"
    others = [] if family.resize == "slices" else [word for word in ("pad", "tile", "family") if word != conflict]
    _raise_above(most // unit, resized, int(found.tokens[0]), tokens, others)


def _raise_above(most: int, size: str, found: int, tokens: Callable[[int], int], others: Sequence[str]) -> NoReturn:
    enough = most
    while (needed := tokens(enough)) > enough:  # the size grows with the limit, so that none below `needed` will do
        enough = needed
    raise ValueError(
        f"max_tokens is {most}, but the resize rule leaves {size} = {found} tokens; max_tokens={enough} would do"
        + "".join(f', or conflict="{word}"' for word in others)
    )


def check_side(name: str, side: Any) -> int:
    """A side as an int of at least 1 that the rules can multiply, or one line that says what came."""
    side = whole(name, side, 1)
    if side > MAX_SIDE:
        raise ValueError(f"{name} is {side}; expected at most {MAX_SIDE}")
    return side


def check_family(family: object) -> None:
    """Refuse what is no family, such as its name."""
    if not isinstance(family, Family):
        raise TypeError(f"family is {family!r}; expected a Family, such as mrope.family('qwen3-vl')")


def check_clips(family: Family) -> None:
    """Refuse a family without a rule for clips."""
    check_family(family)
    if family.video_pixels is None and family.resize != "slices":
        raise ValueError(
            f"{family.name} has no limits for clips (its video_pixels is None); pass the frames as pictures, "
            "or take a family that has clips"
        )


def clip_limits(family: Family, min_tokens: int | None, max_tokens: int | None) -> tuple[Size, int]:
    """The least and most pixels of a frame or a clip, as `Family.video_budget` counts, and the pixels of one token."""
    assert family.video_pixels is not None
    if family.resize == "newline" and min_tokens is not None:
        raise ValueError(f"min_tokens is {min_tokens}; clips of {family.name} have no lower limit")
    one_frame = family.video_budget == "frame" or family.resize == "newline"
    unit = family.factor**2 * (1 if one_frame else family.temporal_patch)
    return _limits(family.video_pixels, unit, min_tokens, max_tokens), unit


def clip_part(
    family: Family,
    frames: int,
    height: int,
    width: int,
    min_tokens: int | None,
    max_tokens: int | None,
    conflict: Conflict,
) -> Part:
    per_frame, factor = family.video_budget == "frame", family.factor
    shown = family.temporal_patch * family.temporal_merge
    steps = -(-frames // shown) * family.temporal_merge
    if per_frame:
        counted = 1
    elif family.resize == "newline":  # no padding, and a newline behind each row costs as much as a token
        counted = frames
    else:  # the padding costs tokens too
        counted = steps * family.temporal_patch
    (least, most), unit = clip_limits(family, min_tokens, max_tokens)
    thin = max(height, width) > rules.MAX_RATIO * min(height, width)
    if thin and (conflict != "pad" or family.resize == "newline"):
        stretch = max(height, width) / min(height, width)
        raise ValueError(
            f"{width} wide x {height} high is {stretch:.1f} to 1, the limit is {rules.MAX_RATIO} to 1; crop it"
            + ("" if conflict == "pad" or family.resize == "newline" else ', or plan it with conflict="pad"')
        )

    def resize(most: int) -> Size:
        sides = np.array([height]), np.array([width])
        if family.resize == "newline":
            assert family.frame_pixels is not None
            return rules.newline_clip(frames, height, width, factor=factor, most=most, frame_most=family.frame_pixels)
        if per_frame:
            rows, cols = rules.area(*sides, factor=factor, least=least, most=most)
        else:
            rows, cols = rules.volume(
                *sides,
                factor=factor,
                least=least,
                most=most,
                frames=frames,
                temporal_patch=family.temporal_patch,
            )
        return int(rows[0]), int(cols[0])

    def cost(size: Size) -> int:
        newlines = factor if family.resize == "newline" else 0
        return counted * size[0] * (size[1] + newlines)

    resized = resize(most)
    if conflict == "pad" and family.resize != "newline" and (thin or cost(resized) > most):
        tokens = most // (counted * factor**2)
        if not tokens:
            raise ValueError(
                f"max_tokens is {most // unit}, and {frames} frames take a token a step; "
                f"max_tokens={-(-counted * factor**2 // unit)} would do"
            )
        sides = rules.padded(np.array([height]), np.array([width]), factor=factor, most=tokens)
        size = int(sides[0][0]), int(sides[1][0])
        return Part(resized=size, grid=(steps, *_grid_over(size, family)[1:]))
    if cost(resized) > most and conflict != "family":
        among = "" if counted == 1 else f" in {counted} frames"
        _raise_above(
            most // unit,
            f"{resized[1]} wide x {resized[0]} high{among}",
            cost(resized) // unit,
            lambda limit: -(-cost(resize(limit * unit)) // unit),
            ["family"] if family.resize == "newline" else ["pad", "family"],
        )
    return Part(resized=resized, grid=(steps, resized[0] // family.patch, resized[1] // family.patch))
