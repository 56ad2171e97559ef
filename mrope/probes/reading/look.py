"""One picture or clip on its way into a model: plan, patches and back, positions in a text-image-text prompt."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from jaxtyping import Int64
from torch import Tensor

from mrope.families import Family
from mrope.layouts import GridLayout
from mrope.positions import Positions
from mrope.spans import Image, Span, Text, Video
from mrope.vision import Patches, Plan, Resized, clip_of, load, measure_clip, patchify, patchify_video, unpatchify

BEFORE, AFTER = Text(15), Text(12)
"""The text around every picture: as many tokens as a short system line and a question take."""
STAMP = 6
"""Tokens of a time stamp in front of a temporal step, for the families that write them: "<1.5 seconds>" in words."""
MOST_FRAMES = 64
"""At most so many frames of a clip are looked at."""
ASSUMED_FPS = 2.0
"""Frames a second of a clip that does not say how fast it runs."""


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
        steps = self.positions.ids[:, BEFORE.length : -AFTER.length].unflatten(1, (t // self.plan.temporal_merge, -1))
        return steps[:, :, -rows * cols :].unflatten(2, (rows, cols))

    def span_ends(self) -> tuple[tuple[int, int], ...]:
        """The (first, last) token of each span."""
        last = self.positions.length - AFTER.length
        return (0, BEFORE.length - 1), (BEFORE.length, last - 1), (last, self.positions.length - 1)


def look(path: Path, family: Family) -> Look:
    """Carry one file from its header to its positions.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is no picture, or one that the family refuses; or the family's tokens are not one a cell.
    """
    _check_cells(family)
    notes: list[str] = []
    patches = _cut_clip(path, family, notes) if _is_clip(path) else patchify(str(path), family)
    (plan,) = patches.plans
    whole = unpatchify(patches)[0]
    resized = Resized(whole, plan)
    again = patchify(resized, family) if plan.frames is None else patchify_video(resized, family)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        spans = (BEFORE, _span(plan, family), AFTER)
        positions = family.positions(spans)
    notes += [str(warning.message) for warning in caught]
    return Look(
        path=path,
        family=family,
        plan=plan,
        pictures=whole[None] if plan.frames is None else whole[:: family.temporal_patch * family.temporal_merge],
        exact=torch.equal(again.values, patches.values),
        spans=spans,
        positions=positions,
        notes=tuple(notes),
    )


def _check_cells(family: Family) -> None:
    """Refuse a family whose pictures are more than one token a cell of a grid, on three axes: nothing draws those."""
    if family.resize == "slices" or len(family.axes) != 3 or family.layout.tokens(_grid(family, 2, 3)) != 6:
        raise ValueError(
            f"{family.name} places more than one token a cell, or not on (t, h, w), which this report cannot show; "
            "`mrope plan` and `mrope positions` can"
        )


def _grid(family: Family, rows: int, cols: int) -> Image:
    return Image((1, rows * family.merge, cols * family.merge))


def _is_clip(path: Path) -> bool:
    """Whether the file is an animation (a TIFF of several pages is none)."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            return image.format in ("GIF", "PNG", "WEBP") and getattr(image, "is_animated", False)
    except (UnidentifiedImageError, Image.DecompressionBombError):
        return False  # whoever reads it says what is wrong with it


def _cut_clip(path: Path, family: Family, notes: list[str]) -> Patches:
    """The patches of the frames that the family looks at, of the first `MOST_FRAMES` where nobody knows how fast."""
    size = measure_clip(str(path))
    if size.fps is None and size.frames > 1:
        notes.append(f"The file does not say how fast it runs; {ASSUMED_FPS:g} frames a second are assumed.")
        return patchify_video(clip_of(_frames(path), fps=ASSUMED_FPS), family)
    patches = patchify_video(str(path), family, max_frames=MOST_FRAMES)
    taken = patches.plans[0].frames
    if taken != size.frames:
        notes.append(f"{size.frames} frames at {size.fps or 1:g} a second; {taken} are taken, as {family.name} does.")
    return patches


def _frames(path: Path) -> list[Tensor]:
    from PIL import Image, ImageSequence

    with Image.open(path) as image:
        return [load(frame) for frame in islice(ImageSequence.Iterator(image), MOST_FRAMES)]


def _span(plan: Plan, family: Family) -> Span:
    if plan.frames is None:
        return Image(plan.grid)
    time = family.layout.time if isinstance(family.layout, GridLayout) else "seconds"
    return Video(
        plan.grid,
        seconds=plan.seconds if time == "seconds" else None,
        stamp=STAMP if time == "stamps" else None,
    )
