"""One picture or clip on its way into a model: plan, patches and back, positions in a text-image-text prompt."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Int64
from torch import Tensor

from mrope.families import Family
from mrope.layouts import GridLayout
from mrope.positions import Positions
from mrope.spans import Image, Span, Text, Video
from mrope.vision import Patches, Plan, load, patchify, patchify_video, plan_video, unpatchify

BEFORE, AFTER = Text(15), Text(12)
"""The text around every picture: as many tokens as a short system line and a question take."""
STAMP = 6
"""Tokens of a time stamp in front of a temporal step, for the families that write them: "<1.5 seconds>" in words."""
MOST_FRAMES = 64
"""A longer clip is thinned out to this many frames."""


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """What becomes of one file.

    Args:
        path: the file.
        family: for whom.
        plan: its sizes, grid and tokens.
        pictures: (T, 3, height, width) uint8, the resized picture, or the first frame of each temporal step.
        exact: whether the patches, put together to pixels and cut again, are the same patches to the bit.
        spans: the prompt: text, the picture or clip, text.
        positions: of the prompt.
        notes: what a reader of the figures should know, in sentences.
    """

    path: Path
    family: Family
    plan: Plan
    pictures: Tensor
    exact: bool
    spans: tuple[Span, ...]
    positions: Positions
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name

    def vision_ids(self) -> Int64[Tensor, "3 t rows cols"]:
        """The positions of the picture's tokens where they stand, time stamps left away."""
        t, h, w = self.plan.grid
        rows, cols = h // self.plan.merge, w // self.plan.merge
        steps = self.positions.ids[:, BEFORE.length : -AFTER.length].unflatten(1, (t, -1))
        return steps[:, :, -rows * cols :].unflatten(2, (rows, cols))

    def span_ends(self) -> tuple[tuple[int, int], ...]:
        """The (first, last) token of each span."""
        last = self.positions.length - AFTER.length
        return (0, BEFORE.length - 1), (BEFORE.length, last - 1), (last, self.positions.length - 1)


def look(path: Path, family: Family) -> Look:
    """Carry one file from its header to its positions.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is no picture, or one that the family refuses.
    """
    notes: list[str] = []
    patches, rate = _cut_clip(path, family, notes) if _is_clip(path) else (patchify(str(path), family), None)
    (plan,) = patches.plans
    whole = unpatchify(patches)[0]
    again = patchify(whole, family) if rate is None else patchify_video(whole, family, fps=rate)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        spans = (BEFORE, _span(plan, family), AFTER)
        positions = family.positions(spans)
    notes += [str(warning.message) for warning in caught]
    return Look(
        path=path,
        family=family,
        plan=plan,
        pictures=whole[None] if rate is None else whole[:: family.temporal_patch],
        exact=torch.equal(again.values, patches.values),
        spans=spans,
        positions=positions,
        notes=tuple(notes),
    )


def _is_clip(path: Path) -> bool:
    """Whether the file is an animation (a TIFF of several pages is none)."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            return image.format in ("GIF", "PNG", "WEBP") and getattr(image, "is_animated", False)
    except (UnidentifiedImageError, Image.DecompressionBombError):
        return False  # whoever reads it says what is wrong with it


def _cut_clip(path: Path, family: Family, notes: list[str]) -> tuple[Patches, float]:
    """The patches of a clip and the frames a second that were taken of it."""
    from PIL import Image, ImageSequence

    plan = plan_video(str(path), family)
    if plan.seconds is None:
        rate = 2.0
        notes.append("The file does not say how fast it runs; 2 frames a second are assumed.")
    else:
        rate = family.temporal_patch / plan.seconds
    count = plan.frames or 1
    stride = max(1, math.ceil(count / MOST_FRAMES))
    if isinstance(family.layout, GridLayout) and family.layout.ids_per_second is not None:
        # Any denser, and temporal steps would share ids.
        stride = max(stride, math.ceil(rate / (family.temporal_patch * family.layout.ids_per_second)))
    if stride > 1:
        notes.append(f"{count} frames at {rate:g} a second; one in {stride} is taken, {rate / stride:g} a second.")
    with Image.open(path) as image:
        frames = [load(frame) for index, frame in enumerate(ImageSequence.Iterator(image)) if index % stride == 0]
    cut = patchify_video(torch.stack(frames), family, fps=rate / stride)
    turned = replace(cut.plans[0], orientation=plan.orientation)  # loose frames no longer say that they were turned
    return replace(cut, plans=(turned,)), rate / stride


def _span(plan: Plan, family: Family) -> Span:
    if plan.frames is None:
        return Image(plan.grid)
    time = family.layout.time if isinstance(family.layout, GridLayout) else "index"
    return Video(
        plan.grid,
        seconds=plan.seconds if time == "seconds" else None,
        stamp=STAMP if time == "stamps" else None,
    )
