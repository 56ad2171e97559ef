"""Checks of what a saved batch shows: pixels against grids, grids against the sizes of pictures, and boxes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor

from mrope.families import Family, family, family_names
from mrope.families.record import tokens_of
from mrope.families.settings import Kind
from mrope.hf.batch import grids_of
from mrope.hf.checkup.compare import attempt
from mrope.hf.checkup.prompts import pixels_shape
from mrope.hf.checkup.report import Finding, Level
from mrope.hf.checkup.saved import Batch
from mrope.layouts import GenerationLayout, PageLayout
from mrope.spans import Image

_PIXELS = (  # and the names of their grids
    ("pixel_values", ("image_grid_thw", "target_sizes")),
    ("pixel_values_videos", ("video_grid_thw", "target_sizes_videos")),
)
_UNLIMITED = 2**40  # pixels
_RAW = 10  # which no colour reaches once mean and std are taken out
_CONTRAST = 0.5  # of values in 0..1: bright paper alone has less
_OVERSHOOT = 0.05  # of a resize, and the rounding of short floats


def pixels(batch: Batch) -> Iterator[Finding]:
    """The pixels that came are those of the grids."""
    layout = batch.subject.family.layout
    if isinstance(layout, PageLayout) or batch.inputs.get("mm_encoder_outputs") is not None:
        return
    for pixel_key, grid_keys in _PIXELS:
        grid_key = next((key for key in grid_keys if batch.inputs.get(key) is not None), grid_keys[0])
        given = batch.inputs.get(pixel_key)
        grids = grids_of(grid_key, batch.inputs.get(grid_key), sides=2 if "sizes" in grid_key else 3)
        if grids and isinstance(layout, GenerationLayout):  # the last grids are of pictures that are to be generated
            grids = [span.grid for row in batch.spans for span in row if isinstance(span, Image)]
        shape = pixels_shape(batch.subject, sum(map(math.prod, grids))) if grids else None
        seen = None if given is None else tuple(torch.as_tensor(given).shape)
        if _without_ones(seen) != _without_ones(shape):
            yield Finding(
                check="pixels",
                level="wrong",
                rule=f"{pixel_key} hold the patches of the grids",
                seen=f"{pixel_key} of shape {seen}" if seen else f"no {pixel_key}: placeholders are computed as words",
                right=f"shape {shape}, for {len(grids)} in {grid_key}"
                if shape
                else f"none: no {grid_key} of a picture came",
                fix="keep pixels and grids of one call of the processor together",
            )


def colours(batch: Batch) -> Iterator[Finding]:
    """Pixels are numbers, in the range that the mean and std of the checkpoint leave them."""
    for kind, (key, _) in zip(get_args(Kind), _PIXELS, strict=True):
        given = batch.inputs.get(key)
        values = torch.as_tensor([] if given is None else given).float()
        if not values.numel():
            continue
        mean, std = batch.family.colours(kind)
        low = min(-m / s for m, s in zip(mean, std, strict=True))
        high = max((1 - m) / s for m, s in zip(mean, std, strict=True))
        least, most = values.min().item(), values.max().item()
        level: Level = "risky"
        seen = f"{key} go from {least:.3g} to {most:.3g}"
        if not values.isfinite().all():
            level, seen = "wrong", f"{int((~values.isfinite()).sum())} values of {key} are not finite"
        elif max(-least, most) > _RAW:
            level, seen = "wrong", f"{seen}: raw bytes?"
        elif least >= 0 > low and most <= 1 and most - least > _CONTRAST:
            seen += ": without mean and std?"
        elif low - _OVERSHOOT <= least and most <= high + _OVERSHOOT:
            continue
        yield Finding(
            check="colours",
            level=level,
            rule=f"{key} are (colour in 0..1 - mean) / std, as in training",
            seen=seen,
            right=f"{low:.3g} to {high:.3g}, of mean {tuple(mean)} and std {tuple(std)}",
            fix="rescale by 1 / 255 and normalise once, with image_mean and image_std of the checkpoint's processor",
        )


def _without_ones(shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """A shape without the ones before it, which models do not look at."""
    while shape and shape[0] == 1:
        shape = shape[1:]
    return shape


def boxes(batch: Batch) -> Iterator[Finding]:
    """Boxes are written as the family writes them."""
    given, record = batch.inputs.get("boxes"), batch.family
    if given is None or record.boxes not in ("0-1000", "processed-pixels", "0-1"):
        return
    table, problem = _table("boxes", given, 4)
    right = f"corners (x0, y0, x1, y1) in {record.boxes}"
    rule = f"{record.name} writes boxes as {record.boxes}"
    fix = "plan.encode_boxes(boxes) of mrope.vision, which knows the picture's own and its resized size"
    grids = torch.tensor(grids_of("image_grid_thw", batch.inputs.get("image_grid_thw"))).reshape(-1, 3)
    sides = (grids[:, 1:].amax(0) * record.patch).tolist() if len(grids) else [math.inf, math.inf]
    high, wide = {"0-1000": (1000, 1000), "0-1": (1, 1), "processed-pixels": sides}[record.boxes]
    rows = table.tolist()
    for number, (x0, y0, x1, y1) in enumerate(rows):
        if not all(map(math.isfinite, (x0, y0, x1, y1))):
            trouble = "its corners are no numbers"
        elif x0 > x1 or y0 > y1:
            trouble = "its second corner lies before the first: width and height?"
        elif min(x0, y0) < 0:
            trouble = "it begins before 0"
        elif x1 > wide or y1 > high:
            trouble = f"it passes {wide:g} wide or {high:g} high"
        elif record.boxes != "0-1" and max(map(max, rows)) <= 1:
            trouble = "all boxes are shares of a side"
        else:
            continue
        problem = f"box {number} is ({x0:g}, {y0:g}, {x1:g}, {y1:g}): {trouble}"
        break
    if problem is not None:
        yield Finding(check="boxes", level="wrong", rule=rule, seen=problem, right=right, fix=fix)


def _table(name: str, given: Any, width: int) -> tuple[Tensor, str | None]:
    """(n, `width`) float64 of what came, with no rows where it is no such table, and what is wrong with it."""
    table, error = attempt(lambda: torch.as_tensor(given, dtype=torch.float64))
    if error is None and table.numel() and (table.dim() != 2 or table.shape[1] != width):
        error = f"shape {tuple(table.shape)}; expected (n, {width})"
    error = error and f"{name}: {error}"
    return (table.reshape(-1, width) if error is None else torch.zeros(0, width)), error


def sizes(batch: Batch) -> Iterator[Finding]:
    """Each picture has the grid that its size gets by the family's rule, and was resized once."""
    given, record = batch.inputs.get("image_sizes"), batch.family
    if given is None or record.resize not in ("area", "volume", "short-side", "newline"):
        return
    grids = grids_of("image_grid_thw", batch.inputs.get("image_grid_thw"))
    table, problem = _table("image_sizes", given, 2)
    for number, (height, width) in enumerate(table.tolist()):
        if not (height >= 1 <= width and float(height).is_integer() and float(width).is_integer()):
            problem = problem or f"image_sizes: row {number} is {height:g} x {width:g}"
    if problem is None and len(table) != len(grids):
        problem = f"image_sizes: {len(table)} rows for {len(grids)} grids"
    if problem is not None:
        yield Finding(
            check="image-sizes",
            level="wrong",
            rule="image_sizes are height and width of each picture in whole pixels",
            seen=problem,
            right=f"shape ({len(grids)}, 2), no side below 1",
            fix="state the sizes before anything resized the pictures, in the order of image_grid_thw",
        )
        return
    for number, ((height, width), grid) in enumerate(zip(table.long().tolist(), grids, strict=True)):
        found = _judged(record, (height, width), grid, f"picture {number} of {height} x {width} has grid {grid}")
        if found is not None:
            yield found
            return


def _judged(record: Family, size: tuple[int, int], grid: tuple[int, ...], seen: str) -> Finding | None:
    """What is to be said of a picture of `size` (height, width) that has this grid; None if nothing."""
    planned = _grid(record, size)
    if planned == grid:
        return None
    right = f"grid {planned}" if planned else f"another picture: {record.name} refuses sides of this ratio"
    for other in map(family, family_names()):
        first = None if other.factor == record.factor or other.resize != "area" else _resized(other, size)
        if planned and first and _grid(record, first) == grid:
            return Finding(
                check="two-resizers",
                level="wrong",
                rule="a picture is resized once, by the family's own rule",
                seen=f"{seen}: first resized to multiples of {other.factor} ({first[0]} x {first[1]}), then of "
                f"{record.factor}",
                right=right,
                fix="hand over the picture itself, or pass do_resize=False",
            )
    least, most = record.pixel_limits
    if _possible(record, size, grid):
        level, why, fix = "risky", "which other limits give", "pass the limits that the model was trained with"
    else:
        level, why, fix = "wrong", "which no limits give", "hand over the picture itself, and its own height and width"
        if _possible(record, (size[1], size[0]), grid):
            why, fix = f"{why}; {size[1]} x {size[0]} has it", "state height before width in image_sizes"
    return Finding(
        check="image-sizes",
        level=level,
        rule=f"a picture has the grid that {record.name} gives its size between {least} and {most} pixels",
        seen=f"{seen}, {why}",
        right=right,
        fix=fix,
    )


def _possible(record: Family, size: tuple[int, int], grid: tuple[int, ...]) -> bool:
    """Whether some limits give a picture of `size` this grid: a limit scales both sides alike."""
    height, width = size
    rows, columns = (side * record.patch for side in grid[1:])
    for area in (int(rows**2 * width / height), int(columns**2 * height / width)):  # where one side just fits
        # A side below a token's is first scaled up to it, and rounded: that moves the place a little.
        for near in (*range(area - 1, area + 3), int(0.99 * area), int(1.01 * area)):
            pixels = max(near, record.factor**2)
            for limits in ((1, pixels), (pixels, _UNLIMITED)):
                tokens = tokens_of(limits, record.factor)
                if _grid(replace(record, image_pixels=limits, image_tokens=tokens), size) == grid:
                    return True
    return False


def _grid(record: Family, size: tuple[int, int]) -> tuple[int, int, int] | None:
    """The grid of a picture of `size`, None where the rule refuses it."""
    from mrope.vision import plan

    try:
        return plan(size, record, conflict="family").grid
    except ValueError:
        return None


def _resized(record: Family, size: tuple[int, int]) -> tuple[int, int] | None:
    try:
        return record.plan(size).resized
    except ValueError:
        return None
