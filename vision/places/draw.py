"""What tokens see and what models say, drawn over the original picture.

Letters: N LLM tokens, n boxes or points, h x w pixels of the drawing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Bool, Float64, Shaped
from torch import Tensor

from mrope.checks import one_of, whole

from ..loading.load import load
from ..loading.pictures import Picture
from ..plans.boxes import into_window, listed
from ..plans.plan import Plan
from .regions import Region, token_map

if TYPE_CHECKING:
    from PIL.Image import Image
else:
    Image = Any

INKS = ((230, 60, 40), (20, 120, 220), (0, 140, 80), (190, 60, 190), (220, 130, 0), (0, 140, 150))
"""The colours of boxes, points and polygons, one after the other."""

TINT = (255, 190, 0)
HEAT = ((40, 60, 160), (240, 60, 30), (255, 230, 60))
"""The colours of the least, a middle and the greatest value of a heat map."""


def draw(
    picture: Picture,
    plan: Plan,
    *,
    grid: Literal["tokens", "parts", "none"] = "tokens",
    boxes: Region | None = None,
    points: Region | None = None,
    polygons: Region | None = None,
    labels: Sequence[str] | None = None,
    tokens: Shaped[np.ndarray, "..."] | Shaped[Tensor, "..."] | Sequence[int] | None = None,
    heat: Shaped[np.ndarray, " N"] | Shaped[Tensor, " N"] | None = None,
    part: int | None = None,
    step: int = 0,
    max_side: int = 1600,
) -> Image:
    """The original picture with its token grid, boxes, points, polygons, some of its tokens and a heat map.

    Shapes are arrays, tensors, lists or tuples in pixels of the original picture, as `Plan.decode_boxes` gives them.

    Args:
        picture: what the plan was made of, or one frame of a clip; see `load`.
        grid: lines where one token, or one part (tile, slice), ends and the next begins: dark on light and light on
            dark.
        boxes: (n, 4) or one (4,) of [left, top, right, bottom].
        points: (n, 2) or one (2,) of [left, top], drawn as dots.
        polygons: a list of (corners, 2), three corners or more each, or one of those; drawn by their border.
        labels: a word for each box, then for each point, then for each polygon.
        tokens: that are tinted: a mask (N,) as `tokens_in` gives it, or their numbers.
        heat: (N,), a value for each token, such as the attention that it gets, over the picture in gray; the least is
            blue and the greatest yellow.
        part: whose tokens; None lays all over one another, slices over their thumbnail.
        step: of a clip, as in `token_map`.
        max_side: most pixels of the longer side of the drawing; smaller pictures are drawn as they are.

    Returns:
        A PIL image; lines are as wide as it takes to see them.

    Raises:
        TypeError: shapes are no numbers.
        ValueError: the picture has another size than the plan says; a shape is not what its argument takes, has its
            corners in the wrong order or is not finite; there is not one label a shape or one value a token; or no such
            part, step or token.

    >>> import mrope, torch
    >>> picture = torch.zeros(3, 480, 640, dtype=torch.uint8)
    >>> draw(picture, mrope.family("qwen3-vl").plan(picture), tokens=[137], max_side=320).size
    (320, 240)
    """
    from PIL import Image

    one_of("grid", grid, ("tokens", "parts", "none"))
    pixels = load(picture)
    if tuple(pixels.shape[1:]) != plan.original:
        raise ValueError(f"picture is {tuple(pixels.shape[1:])} (height, width), its plan says {plan.original}")
    scale = min(1.0, whole("max_side", max_side, 1) / max(plan.original))
    height, width = (max(1, round(side * scale)) for side in plan.original)
    drawing = Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).cpu().numpy())).resize((width, height))
    canvas = np.asarray(drawing, dtype=np.float64)

    def laid(values: Any) -> Float64[np.ndarray, "h w"]:
        return token_map(plan, values, part=part, step=step, size=(height, width))

    if heat is not None:
        if not np.isfinite(np.asarray(_numbers(heat), dtype=np.float64)).all():
            raise ValueError("heat holds NaN or infinity; expected a finite value for each token")
        canvas = _heated(canvas, laid(heat))
    if tokens is not None:
        chosen = laid(_mask(tokens, plan.tokens)) == 1
        canvas[chosen] = canvas[chosen] * 0.6 + np.array(TINT) * 0.4
    if grid != "none":
        numbers = np.arange(plan.tokens) if grid == "tokens" else np.arange(len(plan.parts)).repeat(plan.part_tokens)
        lines = _borders(laid(numbers), width=max(1, max(height, width) // 1200))
        canvas[lines] = canvas[lines] * 0.6 + (canvas[lines].mean(axis=-1, keepdims=True) < 128) * (255 * 0.4)
    drawing = Image.fromarray(canvas.round().astype(np.uint8))
    given = {"boxes": boxes, "points": points, "polygons": polygons}
    shapes = [shape for name, some in given.items() if some is not None for shape in _separate(name, listed(some))]
    if labels is not None and len(labels) != len(shapes):
        raise ValueError(f"{len(labels)} labels came for {len(shapes)} boxes, points and polygons; expected one each")
    if isinstance(labels, str):
        raise TypeError(f"labels is {labels!r}; expected a list of words")
    if others := [word for word in labels or () if not isinstance(word, str)]:
        raise TypeError(f"labels hold {others[0]!r}; expected words")
    _draw_shapes(drawing, [into_window(shape, (0, 0), plan.original, (height, width)) for shape in shapes], labels)
    return drawing


def _separate(name: str, shapes: list[Any]) -> list[np.ndarray]:
    """Each box (4,), point (2,) or polygon (corners, 2) on its own."""
    axes, sides, wanted = {
        "boxes": (1, 4, "boxes (n, 4) of left, top, right, bottom"),
        "points": (1, 2, "points (n, 2) of left, top"),
        "polygons": (2, 2, "polygons (corners, 2) of left, top, with three corners or more"),
    }[name]
    if _depth(shapes) > axes:
        return [shape for some in shapes for shape in _separate(name, some)]
    if not shapes:
        return []
    rows = shapes if axes == 2 else [shapes]
    if _depth(shapes) < axes or any(len(row) != sides for row in rows) or (axes == 2 and len(rows) < 3):
        raise ValueError(f"{name} hold {shapes}; expected {wanted}")
    shape = np.array(shapes)
    if not np.isfinite(shape).all():
        raise ValueError(f"{name} hold {shapes}; leave out what is not finite")
    if name == "boxes" and (shape[:2] > shape[2:]).any():
        raise ValueError(f"boxes hold {shapes}; expected left <= right and top <= bottom")
    return [shape]


def _depth(shapes: Any) -> int:
    return 1 + max(map(_depth, shapes), default=0) if isinstance(shapes, list) else 0


def _numbers(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values


def _mask(tokens: Any, count: int) -> Bool[np.ndarray, " N"]:
    chosen = np.asarray(_numbers(tokens))
    if chosen.dtype == bool:
        return chosen
    if chosen.size and chosen.dtype.kind not in "iu":
        raise TypeError(f"tokens are {chosen.dtype}; expected a mask of bools, or whole numbers")
    chosen = chosen.astype(np.int64).reshape(-1)
    if ((chosen < 0) | (chosen >= count)).any():
        raise ValueError(f"tokens are {chosen.tolist()}; the picture has {count}, counted from 0")
    mask = np.zeros(count, dtype=bool)
    mask[chosen] = True
    return mask


def _borders(laid: Float64[np.ndarray, "h w"], *, width: int) -> Bool[np.ndarray, "h w"]:
    """The first pixels of everything that differs from its neighbour above or to the left."""
    laid, lines = np.nan_to_num(laid, nan=-1), np.zeros(laid.shape, dtype=bool)
    for shift in range(width):
        lines[1 + shift :] |= (laid[1:] != laid[:-1])[: len(laid) - 1 - shift]
        lines[:, 1 + shift :] |= (laid[:, 1:] != laid[:, :-1])[:, : laid.shape[1] - 1 - shift]
    return lines


def _heated(canvas: Float64[np.ndarray, "h w 3"], laid: Float64[np.ndarray, "h w"]) -> Float64[np.ndarray, "h w 3"]:
    """The canvas in gray under a heat map; where there is no value, gray alone."""
    seen = np.isfinite(laid)
    least, most = (laid[seen].min(), laid[seen].max()) if seen.any() else (0.0, 0.0)
    places = np.where(seen, laid - least, 0) / (most - least if most > least else 1)
    colours = np.stack([np.interp(places, (0, 0.5, 1), channel) for channel in zip(*HEAT, strict=True)], axis=-1)
    gray = canvas.mean(axis=-1, keepdims=True)
    return gray + np.where(seen[..., None], 0.55, 0) * (colours - gray)


def _draw_shapes(drawing: Image, shapes: list[np.ndarray], labels: Sequence[str] | None) -> None:
    """Shapes in a white and a dark frame, which show on any ground, with their labels on a plate above.

    Where the picture has no room above, the plate is inside, and below a point.
    """
    from PIL import ImageDraw, ImageFont

    pen = ImageDraw.Draw(drawing)
    width = max(2, max(drawing.size) // 400)
    font = ImageFont.load_default(max(13, max(drawing.size) // 70))
    for number, shape in enumerate(shapes):
        ink = INKS[number % len(INKS)]
        corners = [(across, down) for across, down in shape.reshape(-1, 2).tolist()]
        left, top = min(corners, key=lambda corner: (corner[1], corner[0]))
        dot = 2 * width if shape.shape == (2,) else 0
        for grow, colour in ((2, (20, 20, 20)), (1, (255, 255, 255)), (0, ink)):
            if dot:
                pen.circle((left, top), dot + grow, fill=colour)
            elif len(corners) == 2:
                right, bottom = corners[1]
                frame = (left - grow, top - grow, right + grow, bottom + grow)
                pen.rectangle(frame, outline=colour, width=1 if grow else width)
            else:
                pen.line([*corners, *corners[:2]], fill=colour, width=width + 2 * grow, joint="curve")
        if labels is not None:
            _, _, reach, tall = (round(side) for side in pen.textbbox((0, 0), labels[number], font=font))
            across = min(max(left, 0), max(drawing.width - reach - 2 * width, 0))
            down = top - dot - tall - 2 * width
            down = down if down >= 0 else max(top + dot, 0)
            pen.rectangle((across, down, across + reach + 2 * width, down + tall + 2 * width), fill=ink)
            pen.text((across + width, down + width), labels[number], font=font, fill=(255, 255, 255))
