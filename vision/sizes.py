"""How big a picture or clip becomes: the resize rules that the checkpoints were trained with.

Sizes are (height, width) in pixels, `factor` = patch * merge = the side of one LLM token.
"""

from __future__ import annotations

import math

MAX_RATIO = 200


def picture_size(height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """The (height, width) to resize one picture or frame to: multiples of `factor`, about the same shape.

    This is the published rule to the last digit (Qwen2-VL, `smart_resize` of transformers; Python rounds halves to
    even). It keeps `max_pixels` except where one factor a side, or rounding up to `min_pixels`, asks for more.

    Raises:
        ValueError: a side below 1, or one side more than 200 times the other.

    >>> picture_size(480, 640, factor=28, min_pixels=3136, max_pixels=12845056)
    (476, 644)
    >>> picture_size(639, 31, factor=28, min_pixels=3136, max_pixels=20 * 28 * 28)
    (560, 28)
    """
    _check(height, width)
    return _fit(height, width, 1, 1, factor, min_pixels, max_pixels)


def clip_size(
    frames: int, height: int, width: int, *, temporal_patch: int, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """The (height, width) to resize the frames of one clip to, where the limits hold for frames x height x width.

    This is the published rule to the last digit (Qwen3-VL, `smart_resize` of its video processor). It counts an odd
    number of frames rounded half to even, so that the padded clip can come out above `max_pixels`. A clip shorter
    than the temporal patch, which transformers refuses, counts as the whole patch that it is padded to.

    Raises:
        ValueError: no frame, a side below 1, or one side more than 200 times the other.

    >>> clip_size(8, 720, 1280, temporal_patch=2, factor=32, min_pixels=4096, max_pixels=786432)
    (224, 416)
    """
    if frames < 1:
        raise ValueError(f"a clip needs at least 1 frame, got {frames}")
    _check(height, width, ratio=False)
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    _check(height, width)
    frames = max(frames, temporal_patch)
    counted = round(frames / temporal_patch) * temporal_patch
    return _fit(height, width, frames, counted, factor, min_pixels, max_pixels)


def _check(height: int, width: int, *, ratio: bool = True) -> None:
    if height < 1 or width < 1:
        raise ValueError(f"a picture has at least 1 pixel a side, got {height} high x {width} wide")
    if ratio and max(height, width) > MAX_RATIO * min(height, width):
        stretch = max(height, width) / min(height, width)
        raise ValueError(f"{width} wide x {height} high is {stretch:.1f} to 1, the limit is {MAX_RATIO} to 1")


def _fit(height: int, width: int, frames: int, counted: int, factor: int, low: int, high: int) -> tuple[int, int]:
    rows, cols = round(height / factor), round(width / factor)
    volume = counted * rows * factor * cols * factor
    if volume > high:
        shrink = math.sqrt(frames * height * width / high)
        rows = max(1, math.floor(height / shrink / factor))
        cols = max(1, math.floor(width / shrink / factor))
    elif volume < low:
        grow = math.sqrt(low / (frames * height * width))
        rows = math.ceil(height * grow / factor)
        cols = math.ceil(width * grow / factor)
    return rows * factor, cols * factor
