"""From tokens to the pixels that they see, and from pixels to the tokens that see them.

Letters: N LLM tokens of a plan in the order of the prompt, newlines and markers not counted; P patches in the family's
order; t steps of R x C tokens of one part; h x w pixels.

A region is a box (4,) of [left, top, right, bottom] or a polygon (corners, 2) of [left, top], in pixels of the upright
original picture. A polygon runs once around what it covers, either way round: it may touch itself, as one does that
runs along a bridge to the border of a hole and back, but not cross itself. The tokens of a clip see the same places
step after step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped, UInt8
from torch import Tensor

from mrope.checks import Number, one_of, whole
from mrope.families import Boxes, Family, PatchOrder

from ..cutting.orders import in_order
from ..loading.load import load
from ..loading.pictures import Picture
from ..plans.boxes import Shapes, into_window, listed, out_of_window
from ..plans.plan import Part, Plan, Size

Region: TypeAlias = np.ndarray | Tensor | Sequence[Any]

_SLIVER = 1e-6  # of a pixel or of a token's area: what rounding errors may leave of a border that is shared


def token_regions(plan: Plan) -> Float64[np.ndarray, "N 4"]:
    """Which part of the original picture each LLM token sees, as boxes in its pixels.

    What a token sees of padding is left out: a token that sees nothing else has a box without area. Resampling mixes in
    about two pixels of the resized picture around a token, and the encoder looks at its neighbours.

    >>> import mrope
    >>> token_regions(mrope.family("qwen2-vl").plan((56, 84)))[4]
    array([28., 28., 56., 56.])
    """
    return np.concatenate([np.tile(_cells(plan, part, plan.factor), (_steps(plan, part), 1)) for part in plan.parts])


def region(plan: Plan, token: int) -> Float64[np.ndarray, "4"]:
    """Which part of the original picture one LLM token sees: a row of `token_regions`.

    Raises:
        ValueError: the picture has no such token.

    >>> import mrope
    >>> region(mrope.family("qwen2-vl").plan((480, 640)), 137).round(1)
    array([612.2, 141.2, 640. , 169.4])
    """
    if whole("token", token, 0) >= plan.tokens:
        raise ValueError(f"token is {token}; the picture has {plan.tokens}, counted from 0")
    return token_regions(plan)[token]


def patch_regions(plan: Plan, *, order: PatchOrder) -> Float64[np.ndarray, "P 4"]:
    """Which part of the original picture each patch sees, in the order in which `Patches.values` has them.

    Args:
        order: `Patches.order`, or that of the family.

    >>> import mrope
    >>> patch_regions(mrope.family("qwen2-vl").plan((56, 84)), order="blocks")[4]
    array([28.,  0., 42., 14.])
    """
    one_of("order", order, get_args(PatchOrder))
    regions = []
    for part in plan.parts:
        t, h, w = part.grid
        cells = torch.from_numpy(_cells(plan, part, plan.patch)).view(h, w, 4)
        regions.append(np.tile(in_order(cells, order, plan.merge).numpy(), (t, 1)))
    return np.concatenate(regions)


def tokens_in(plan: Plan, region: Region, *, share: Number = 0) -> Bool[np.ndarray, " N"]:
    """Which LLM tokens see a region of the original picture, at all steps and in all parts.

    Args:
        region: box (4,) or polygon (corners, 2) in pixels of the original picture; array, tensor, list or tuple.
        share: of what a token sees, the least that must lie in the region, 0..1; with 0 any overlap will do.

    Raises:
        ValueError: the region has no area, is not finite or is a polygon that crosses itself; or `share` is no share.

    >>> import mrope
    >>> tokens_in(mrope.family("qwen2-vl").plan((56, 84)), [20, 30, 60, 50]).nonzero()[0]
    array([3, 4, 5])
    """
    if isinstance(share, bool) or not isinstance(share, (int, float)):
        raise TypeError(f"share is {share!r}; expected a number from 0 to 1")
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share}; expected 0 to 1")
    least = max(share - _SLIVER, _SLIVER)
    corners = _polygon(region)
    return np.concatenate(
        [
            np.tile(_covered(_cells(plan, part, plan.factor), corners) >= least, _steps(plan, part))
            for part in plan.parts
        ]
    )


def token_frames(plan: Plan, family: Family) -> Int64[np.ndarray, "N 2"]:
    """The first and the last frame that each LLM token sees, of the frames that the clip was given with.

    They index what there is one of a frame: `clip.seconds[token_frames(plan, family)]` are the times in seconds.

    >>> import mrope
    >>> family = mrope.family("qwen2-vl")
    >>> token_frames(family.plan_video((5, 28, 56), min_tokens=1), family).tolist()
    [[0, 1], [0, 1], [2, 3], [2, 3], [4, 4], [4, 4]]
    """
    shown = family.temporal_patch * plan.temporal_merge
    frames = []
    for part in plan.parts:
        first = part.frame + shown * np.arange(_steps(plan, part))
        spans = np.stack([first, first + shown - 1], axis=1)
        frames.append(spans.repeat(part.grid[1] * part.grid[2] // plan.merge**2, axis=0))
    return np.minimum(np.concatenate(frames), (plan.frames or 1) - 1)


def token_grids(plan: Plan, values: Shaped[np.ndarray, " N"] | Shaped[Tensor, " N"]) -> tuple[np.ndarray, ...]:
    """One value a token, such as the attention that it gets, as the grid (t, R, C) of each part.

    Raises:
        ValueError: there is not one value a token.

    >>> import mrope
    >>> token_grids(mrope.family("qwen2-vl").plan((56, 84)), np.arange(6))
    (array([[[0, 1, 2],
            [3, 4, 5]]]),)
    """
    if len(values) != plan.tokens:
        raise ValueError(f"{len(values)} values came for {plan.tokens} tokens; expected one each")
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.double() if values.is_floating_point() else values).numpy()  # NumPy has no bfloat16
    shapes = [(_steps(plan, part), part.grid[1] // plan.merge, part.grid[2] // plan.merge) for part in plan.parts]
    ends = np.cumsum([np.prod(shape) for shape in shapes])
    return tuple(one.reshape(shape) for one, shape in zip(np.split(values, ends[:-1]), shapes, strict=True))


def token_map(
    plan: Plan,
    values: Shaped[np.ndarray, " N"] | Shaped[Tensor, " N"],
    *,
    part: int | None = None,
    step: int = 0,
    size: Size | None = None,
) -> Float64[np.ndarray, "h w"]:
    """One value a token as a picture over the original: each pixel has that of the token which sees its middle.

    Args:
        values: (N,), such as the attention that each token gets.
        part: whose tokens; None lays all over one another, later ones above: tiles side by side, slices over their
            thumbnail.
        step: of a clip, counted in steps of LLM tokens.
        size: (height, width) of the result, by default that of the original picture.

    Returns:
        NaN stands where no token of the part looks.

    Raises:
        ValueError: there is not one value a token, or no such part or step.

    >>> import mrope
    >>> token_map(mrope.family("qwen2-vl").plan((56, 84)), np.arange(6), size=(4, 6)).astype(int)
    array([[0, 0, 1, 1, 2, 2],
           [0, 0, 1, 1, 2, 2],
           [3, 3, 4, 4, 5, 5],
           [3, 3, 4, 4, 5, 5]])
    """
    height, width = plan.original if size is None else (whole("size", side, 1) for side in size)
    chosen = range(len(plan.parts)) if part is None else [plan.part_number(part)]
    grids, drawn, shown = token_grids(plan, values), np.full((height, width), np.nan), False
    whole("step", step, 0)
    for number in chosen:
        one, grid = plan.parts[number], grids[number]
        if 0 <= step - one.frame < len(grid):
            rows, inside_h = _looked_up(height, one.resized[0], one.corner[0], one.window[0], plan.factor)
            cols, inside_w = _looked_up(width, one.resized[1], one.corner[1], one.window[1], plan.factor)
            drawn[np.ix_(inside_h, inside_w)] = grid[step - one.frame][np.ix_(rows, cols)]
            shown = True
    if not shown:
        raise ValueError(f"step is {step}, and there are no tokens of it; steps are counted from 0")
    return drawn


@dataclass(frozen=True, slots=True, eq=False)
class Crop:
    """A piece of a picture that remembers where it was cut out.

    Args:
        pixels: (3, h, w) uint8: a picture of its own, to be planned anew. They are a view of what `load` gives: of an
            array or tensor of bytes they share the memory, so clone them before you write into them.
        corner: (top, left) in pixels of the whole picture.
    """

    pixels: UInt8[Tensor, "3 h w"]
    corner: Size

    def to_whole(self, boxes: Shapes) -> Shapes:
        """Boxes, points or polygons in pixels of the crop, in those of the whole picture."""
        return out_of_window(boxes, self.corner, (1, 1), (1, 1))

    def from_whole(self, boxes: Shapes) -> Shapes:
        """The inverse of `to_whole`."""
        return into_window(boxes, self.corner, (1, 1), (1, 1))


def crop(
    picture: Picture,
    plan: Plan,
    box: Region,
    *,
    margin: Number = 0,
    part: int | None = None,
    convention: Boxes | None = None,
) -> Crop:
    """What a model's box shows, in all the pixels of the original picture: to look again, closer.

    Args:
        picture: what the plan was made of; see `load`.
        box: (4,) as the model wrote it; array, tensor, list or tuple.
        margin: to add on each side, as a share of the box's height and width.
        part: as in `Plan.decode_boxes`.
        convention: as in `Plan.decode_boxes`.

    Returns:
        Whole pixels, at least those of the box, as far as the picture goes. Boxes that a model finds in the crop come
        back by `crop.to_whole(family.plan(crop.pixels).decode_boxes(boxes))`.

    Raises:
        ValueError: the picture has another size than the plan says; the box has no area, is not finite, or lies outside
            of the picture; or `margin` is negative.

    >>> import mrope, torch
    >>> picture = torch.zeros(3, 480, 640, dtype=torch.uint8)
    >>> cut = crop(picture, mrope.family("qwen3-vl").plan(picture), [250, 500, 500, 750], margin=0.5)
    >>> cut.corner, tuple(cut.pixels.shape), cut.to_whole([[0, 0, 10, 20]])
    ((180, 80), (3, 240, 320), [[80.0, 180.0, 90.0, 200.0]])
    """
    if not 0 <= margin < np.inf:
        raise ValueError(f"margin is {margin}; expected a share of the box, 0 or more")
    left, top, right, bottom = _box(plan.decode_boxes(_numbers(box), part=part, convention=convention)).tolist()
    pixels = load(picture)
    if tuple(pixels.shape[1:]) != plan.original:
        raise ValueError(f"picture is {tuple(pixels.shape[1:])} (height, width), its plan says {plan.original}")
    down, across = margin * (bottom - top), margin * (right - left)
    (top, bottom), (left, right) = (
        (max(int(np.floor(first + _SLIVER)), 0), min(int(np.ceil(last - _SLIVER)), side))
        for first, last, side in zip(
            (top - down, left - across), (bottom + down, right + across), plan.original, strict=True
        )
    )
    if top >= bottom or left >= right:
        raise ValueError(
            f"box {_numbers(box).tolist()} shows nothing of the picture of {plan.original} (height, width)"
        )
    return Crop(pixels[:, top:bottom, left:right], (top, left))


def _steps(plan: Plan, part: Part) -> int:
    """Steps of LLM tokens."""
    return part.grid[0] // plan.temporal_merge


def _cells(plan: Plan, part: Part, side: int) -> Float64[np.ndarray, "cells 4"]:
    """The squares of `side` resized pixels that a part is cut into, row by row, in pixels of the original."""
    edges = []
    for axis in range(2):
        starts = np.arange(part.grid[1 + axis] * plan.patch // side + 1) * side
        inside = part.corner[axis] + np.minimum(starts, part.window[axis])
        edges.append(inside * plan.original[axis] / part.resized[axis])
    down, across = edges
    near, far = np.meshgrid(down[:-1], across[:-1], indexing="ij"), np.meshgrid(down[1:], across[1:], indexing="ij")
    return np.stack([near[1], near[0], far[1], far[0]], axis=-1).reshape(-1, 4)


def _looked_up(
    pixels: int, resized: int, corner: int, window: int, factor: int
) -> tuple[Int64[np.ndarray, " inside"], Int64[np.ndarray, " inside"]]:
    """Along one side: which token each pixel's middle falls on, and which pixels fall on any."""
    places = (np.arange(pixels) + 0.5) * resized / pixels - corner
    (inside,) = ((places >= 0) & (places < window)).nonzero()
    return (places[inside] // factor).astype(np.int64), inside


def _covered(cells: Float64[np.ndarray, "cells 4"], corners: Float64[np.ndarray, "corners 2"]) -> np.ndarray:
    """The share of each cell that lies in a polygon, exactly; 0 of a cell without area.

    The area of the polygon in a cell is a sum over its edges, by Green's theorem: of each edge's height, held between
    the top and the bottom of the cell, over its run between the cell's left and right side.
    """
    left, top, right, bottom = (cells[:, side, None] for side in range(4))
    (x1, y1), (x2, y2) = corners.T, np.roll(corners, -1, axis=0).T
    slope = (y2 - y1) / np.where(x1 == x2, 1, x2 - x1)
    start, end = np.clip(x1, left, right), np.clip(x2, left, right)
    # The edge's height at both ends of its run in the cell; what is below and above the cell counts as its border.
    heights = np.sort([y1 + slope * (start - x1), y1 + slope * (end - x1)], axis=0)
    low, high = np.clip(heights, top, bottom)
    above, below = np.maximum(top - heights[0], 0), np.maximum(heights[1] - bottom, 0)
    run = heights[1] - heights[0]
    above, below = np.minimum(above, run), np.minimum(below, run)
    weighed = top * above + bottom * below + (low + high) / 2 * (run - above - below)
    mean = np.where(run > 0, weighed / np.where(run > 0, run, 1), low)
    area = np.abs((mean * (end - start)).sum(axis=1))
    whole_area = ((right - left) * (bottom - top))[:, 0]
    return area / np.where(whole_area > 0, whole_area, np.inf)


def _crosses_itself(corners: Float64[np.ndarray, "corners 2"]) -> bool:
    """Whether a polygon does more than run once around what it covers.

    Between the heights of two corners, one after the other, its edges lie side by side unless they cross. Each adds or
    takes away one turn for what is right of it: there may be no turn, or one in the polygon's own direction.
    """
    (x1, y1), (x2, y2) = corners.T, np.roll(corners, -1, axis=0).T
    turn = -np.sign(x1 @ y2 - x2 @ y1)
    for low, high in pairwise(np.unique(y1)):
        (edges,) = ((np.minimum(y1, y2) <= low) & (high <= np.maximum(y1, y2))).nonzero()
        shares = (np.array([[low], [high]]) - y1[edges]) / (y2 - y1)[edges]
        ends = x1[edges] + shares * (x2 - x1)[edges]
        order = ends.sum(axis=0).argsort()
        gaps, turns = np.diff(ends[:, order]), np.sign(y2 - y1)[edges][order].cumsum()[:-1]
        if (gaps < -_SLIVER).any() or not np.isin(turns[(gaps > _SLIVER).any(axis=0)], (0, turn)).all():
            return True
    return False


def _numbers(region: Region) -> Float64[np.ndarray, "..."]:
    numbers = listed(region)
    try:
        return np.array(numbers, dtype=np.float64)
    except ValueError:  # rows of several lengths
        raise ValueError(f"region is {numbers}; expected a box (4,) or a polygon (3 or more, 2)") from None


def _box(box: Float[np.ndarray, "..."]) -> Float[np.ndarray, "4"]:
    if box.shape != (4,):
        raise ValueError(f"box has shape {box.shape}; expected (4,): left, top, right, bottom")
    if not (np.isfinite(box).all() and box[0] < box[2] and box[1] < box[3]):
        raise ValueError(f"box {box.tolist()} has no area; expected left < right and top < bottom")
    return box


def _polygon(region: Region) -> Float64[np.ndarray, "corners 2"]:
    corners = _numbers(region)
    if corners.ndim == 1:
        left, top, right, bottom = _box(corners)
        return np.array([(left, top), (right, top), (right, bottom), (left, bottom)])
    if corners.ndim != 2 or corners.shape[1] != 2 or len(corners) < 3:
        raise ValueError(f"region has shape {corners.shape}; expected a box (4,) or a polygon (3 or more, 2)")
    across, down = corners.T
    if np.isfinite(corners).all() and _crosses_itself(corners):
        raise ValueError(
            f"region {corners.tolist()} crosses itself; expected a polygon that runs once around what it covers: cut "
            "it where it crosses, and join the tokens of its pieces with |"
        )
    if not np.isfinite(corners).all() or not abs(across @ np.roll(down, 1) - down @ np.roll(across, 1)) > 0:
        raise ValueError(f"region {corners.tolist()} has no area")
    return corners
