"""How a prompt declares planned pictures and clips: their spans, with the family's markers and time stamps as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from mrope.families import Family
from mrope.layouts import OmniLayout
from mrope.spans import Grid, Image, Sliced, Span, Text, Video

from .fitting import Found
from .plan import Part

Tokenizer: TypeAlias = Callable[[str], Sequence[int]]


def picture_spans(family: Family, parts: Sequence[Part]) -> tuple[Span, ...]:
    """How a prompt declares a picture of these parts: the spans, with the family's markers around each."""
    if family.resize == "slices":
        thumbnail, *slices = parts
        if not slices:
            return (Sliced(thumbnail.grid),)
        _, high, wide = slices[0].grid
        whole_rows = slices[0].resized[0] // (high * family.patch)
        return (Sliced(thumbnail.grid, (whole_rows, len(slices) // whole_rows), (1, high, wide)),)
    return tuple(span for part in parts for span in _wrapped(family.markers, (Image(part.grid),)))


def clip_spans(
    family: Family,
    grid: Grid,
    *,
    seconds: float | None,
    times: Sequence[float] | None,
    tokenizer: Tokenizer | None,
) -> tuple[Span, ...] | None:
    """How a prompt declares a clip: the spans, with markers and time stamps.

    Args:
        grid: (t, h, w) in patches.
        seconds: per temporal step; a family that counts time needs it.
        times: of each temporal step, in seconds; a family that writes time stamps needs them.
        tokenizer: of the time stamps.

    Returns:
        None where the family needs what is not known, or its time stamps cannot be counted.
    """
    if family.stamp is None:
        timed = isinstance(family.layout, OmniLayout) or getattr(family.layout, "time", None) == "seconds"
        if timed and seconds is None:
            return None
        return _wrapped(family.clip_markers, (Video(grid, seconds=seconds if timed else None),))
    if times is None or (tokenizer is None and family.stamp.pieces is None):
        return None
    stamps = family.stamp.tokens([family.stamp.text(time) for time in times], tokenizer)
    before, after = _halves(family.step_markers)
    behind = family.stamp.place == "after"
    fronts = [before + (0 if behind else stamp) for stamp in stamps]
    backs = [after + (stamp if behind else 0) for stamp in stamps]
    # What stands behind a step stands in front of the next one.
    steps = tuple(front + back for front, back in zip(fronts, [0, *backs[:-1]], strict=True))
    clip = (Video(grid, stamp=steps), *((Text(backs[-1]),) if backs[-1] else ()))
    return _wrapped(family.clip_markers, clip)


def _halves(markers: int) -> tuple[int, int]:
    """How many markers stand in front, and how many behind."""
    return markers - markers // 2, markers // 2


def _wrapped(markers: int, spans: tuple[Span, ...]) -> tuple[Span, ...]:
    """Half of the markers in front and half behind, as text."""
    before, after = _halves(markers)
    return (*((Text(before),) if before else ()), *spans, *((Text(after),) if after else ()))


def prompt_tokens(family: Family, found: Found) -> np.ndarray:
    """Tokens of the spans of many pictures."""
    if family.resize == "slices":
        kinds, which = np.unique(
            np.column_stack([*found.cells, found.slices, found.whole]), axis=0, return_inverse=True
        )
        counts = [_sliced_tokens(family, *row) for row in kinds.tolist()]
        return np.array(counts, dtype=np.int64)[which.reshape(-1)]
    per_token, per_row, once = _affine(family)
    return per_token * found.tokens + per_row * found.cells[0] + (once + family.markers)


def _sliced_tokens(family: Family, down: int, across: int, rows: int, cols: int, high: int, wide: int) -> int:
    thumbnail = (1, down * family.merge, across * family.merge)
    if not rows:
        return family.layout.tokens(Sliced(thumbnail))
    each = (1, high // rows // family.patch, wide // cols // family.patch)
    return family.layout.tokens(Sliced(thumbnail, (rows, cols), each))


@lru_cache(maxsize=64)
def _affine(family: Family) -> tuple[int, int, int]:
    """What a picture of rows x cols tokens takes of a prompt in all these layouts: a * rows * cols + b * rows + c."""
    one, tall, broad = (
        family.layout.tokens(Image((1, rows * family.merge, cols * family.merge)))
        for rows, cols in ((1, 1), (2, 1), (1, 2))
    )
    return broad - one, tall - broad, 2 * one - tall
