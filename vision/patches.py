"""Pixels to patches and back.

Letters: N patches of all pictures, V = 3 * T * p * p values of a patch of T frames and p pixels a side.
Patches lie in merge-block order: the merge * merge patches of one LLM token are neighbours, tokens run row by row,
temporal steps one after the other. With merge 2, a picture of 4 x 4 patches is laid out as

     0  1 |  4  5
     2  3 |  6  7
    ------+------
     8  9 | 12 13
    10 11 | 14 15
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt8
from torch import Tensor

from mrope.families import Family

from .files import File, frames_of, is_file, naming, opened, rate_of, turns_itself
from .load import Picture, as_tensor, load, to_tensor
from .plan import Plan
from .planning import plan, plan_animation, plan_frames

Colour = tuple[float, float, float]


@dataclass(frozen=True, slots=True, eq=False)
class Patches:
    """Pictures or clips as the patches that a vision encoder embeds.

    Args:
        values: (N, V) float32, normalised; a patch runs through channels, frames, rows, columns.
        grids: (pictures, 3) int64, (t, h, w) in patches.
        plans: of each picture.
        mean: that was subtracted, of each colour channel in 0..1.
        std: that was divided by.
    """

    values: Float32[Tensor, "n v"]
    grids: Int64[Tensor, "pictures 3"]
    plans: tuple[Plan, ...]
    mean: Colour
    std: Colour

    def __post_init__(self) -> None:
        if self.grids.tolist() != [list(plan.grid) for plan in self.plans]:
            raise ValueError(f"grids {self.grids.tolist()} are not those of the plans")
        if len(self.values) != sum(prod(plan.grid) for plan in self.plans):
            raise ValueError(f"{len(self.values)} patches do not fill the grids {self.grids.tolist()}")


def patchify(
    images: Picture | Sequence[Picture],
    family: Family,
    *,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    device: torch.device | str | None = None,
) -> Patches:
    """The patches of one picture or of a list, as `plan` foresees them.

    Values are equal to those of transformers' image processor (torchvision backend on the CPU) for the same pixels.
    Pictures are decoded and resized one after the other, each straight into its place in the result.

    Args:
        images: what `load` takes, or a list of that.
        min_tokens: least LLM tokens of one picture, by default the family's.
        max_tokens: most LLM tokens of one picture, by default the family's.
        device: where the values are built; decoding and resizing stay on the CPU, so that devices agree.

    Raises:
        OSError, ValueError, TypeError: as `plan` and `load`; headers are checked before any picture is decoded.

    >>> import mrope
    >>> patchify(np.zeros((56, 84, 3), dtype=np.uint8), mrope.family("qwen2-vl")).grids
    tensor([[1, 4, 6]])
    """
    pictures: Sequence[Any] = images if isinstance(images, (list, tuple)) else [images]
    if not pictures:
        raise ValueError("images is empty; expected at least one picture")
    names = [None if is_file(picture) else f"picture {number}" for number, picture in enumerate(pictures)]
    plans = []
    for name, picture in zip(names, pictures, strict=True):
        with naming(name):
            plans.append(plan(picture, family, min_tokens=min_tokens, max_tokens=max_tokens))
    values = _empty(plans, family, device)
    for name, picture, one, steps in zip(names, pictures, plans, _steps(values, plans), strict=True):
        with naming(name):
            pixels = _resized(load(picture), one)
        _fill(steps[0], pixels, family)
    return _patches(values, plans, family)


def patchify_video(
    frames: UInt8[Tensor, "t 3 h w"] | np.ndarray | File,
    family: Family,
    *,
    fps: float | None = None,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    device: torch.device | str | None = None,
) -> Patches:
    """The patches of one clip, as `plan_video` foresees them.

    Values are equal to those of transformers' video processor for the same frames. The last frame is repeated until
    the frames fill whole temporal patches; no frame is left out.

    Args:
        frames: (frames, 3, height, width) uint8, or path or bytes of an animated GIF, WebP or PNG.
        fps: frames a second; by default what the file says, unknown for frames.
        min_tokens: as in `plan_video`.
        max_tokens: as in `plan_video`.
        device: where the values are built; decoding and resizing stay on the CPU, so that devices agree.

    Raises:
        OSError, ValueError, TypeError: as `plan_video`, or frames that are no uint8 (frames, 3, height, width).

    >>> import mrope
    >>> frames = torch.zeros(3, 3, 56, 84, dtype=torch.uint8)
    >>> patchify_video(frames, mrope.family("qwen2-vl"), fps=2.0).grids
    tensor([[2, 4, 6]])
    """
    if not is_file(frames):
        clip = _clip(frames)
        planned = plan_frames((len(clip), clip.shape[2], clip.shape[3]), family, fps, min_tokens, max_tokens)
        return _patchify_frames(clip, planned, family, device)
    planned = plan_animation(frames, family, fps, min_tokens, max_tokens)
    durations: list[int | float | None] = []
    patches = _patchify_frames(_decoded(frames, planned.orientation, durations), planned, family, device)
    if fps is None and (rate := rate_of(durations)) is not None:
        patches = replace(patches, plans=(replace(planned, seconds=family.temporal_patch / rate),))
    return patches


def unpatchify(patches: Patches) -> list[Tensor]:
    """The resized pictures that `patches` were cut from, to the byte.

    Returns:
        uint8 (3, height, width) of each picture, (frames, 3, height, width) of each clip, without its padding.

    >>> import mrope
    >>> picture = torch.arange(56 * 84, dtype=torch.uint8).reshape(56, 84)
    >>> torch.equal(unpatchify(patchify(picture, mrope.family("qwen2-vl")))[0][0], picture)
    True
    """
    mean, std = _colours(patches, patches.values.device)
    pictures = []
    for planned, steps in zip(patches.plans, _steps(patches.values, patches.plans), strict=True):
        if planned.frames is None:
            steps = steps[..., :1, :, :]  # every frame of the temporal patch is the picture
        # (t, rows, cols, merge, merge, 3, T, p, p) -> (t, T, 3, rows, merge, p, cols, merge, p)
        frames = steps.permute(0, 6, 5, 1, 3, 7, 2, 4, 8).reshape(-1, 3, *planned.resized)
        frames = (frames * std).add_(mean).round_().clamp_(0, 255).to(torch.uint8)
        pictures.append(frames[0] if planned.frames is None else frames[: planned.frames])
    return pictures


def _patchify_frames(
    frames: Iterable[Tensor], planned: Plan, family: Family, device: torch.device | str | None
) -> Patches:
    values = _empty([planned], family, device)
    (steps,) = _steps(values, [planned])
    for number, frame in enumerate(frames):
        step, first = divmod(number, family.temporal_patch)
        # The last frame fills what is left of its temporal patch.
        after = None if number + 1 == planned.frames else first + 1
        _fill(steps[step][..., first:after, :, :], _resized(frame, planned), family)
    return _patches(values, [planned], family)


def _decoded(source: File, orientation: int, durations: list[int | float | None]) -> Iterator[Tensor]:
    """The frames of a file one after the other; `durations` grows by how many milliseconds each lasts."""
    with opened(source) as image:
        turn = 1 if turns_itself(image) else orientation
        for frame in frames_of(image):
            durations.append(frame.info.get("duration"))
            yield to_tensor(frame, turn)


def _clip(frames: Any) -> Tensor:
    clip = as_tensor(frames) if isinstance(frames, np.ndarray) else frames
    if not isinstance(clip, Tensor):
        raise TypeError(f"a clip is a path, bytes, array or tensor; got a {type(frames).__name__}")
    if clip.dtype != torch.uint8 or clip.ndim != 4 or clip.shape[1] != 3:
        raise ValueError(f"frames are {clip.dtype} of shape {tuple(clip.shape)}; expected uint8 (frames, 3, H, W)")
    return clip


def _empty(plans: Sequence[Plan], family: Family, device: torch.device | str | None) -> Tensor:
    return torch.empty(sum(prod(one.grid) for one in plans), family.patch_dim, device=device)


def _steps(values: Tensor, plans: Sequence[Plan]) -> Iterator[Tensor]:
    """Of each picture, its patches seen as (t, rows, cols, merge, merge, 3, T, p, p): tokens of patches of pixels."""
    parts = values.split([prod(one.grid) for one in plans])
    for one, part in zip(plans, parts, strict=True):
        t, h, w = one.grid
        yield part.view(t, h // one.merge, w // one.merge, one.merge, one.merge, 3, -1, one.patch, one.patch)


def _resized(pixels: Tensor, planned: Plan) -> Tensor:
    if pixels.shape[1:] != planned.original:
        raise ValueError(f"decoded to {tuple(pixels.shape[1:])} (height, width), its header says {planned.original}")
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2.functional import resize

    return resize(pixels.cpu(), list(planned.resized), interpolation=InterpolationMode.BICUBIC, antialias=True)


def _fill(step: Tensor, pixels: Tensor, family: Family) -> None:
    """Write pixels (3, height, width) into a step (rows, cols, merge, merge, 3, T, p, p), T times.

    One row of tokens at a time: what is normalised then still lies in the processor's cache when it is spread out.
    """
    _, cols, merge, _, _, _, patch, _ = step.shape
    mean, std = _colours(family, step.device)
    band = torch.empty(3, merge * patch, cols * merge * patch, device=step.device)
    tokens = band.view(3, merge, patch, cols, merge, patch).permute(3, 1, 4, 0, 2, 5).unsqueeze(4)
    for row, source in zip(step, pixels.to(step.device).split(merge * patch, dim=1), strict=True):
        band.copy_(source).sub_(mean).div_(std)
        row.copy_(tokens.expand_as(row))


def _colours(of: Family | Patches, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and std (3, 1, 1) of each channel in 0..255, in float32 as transformers folds its 1/255 into them."""
    mean, std = (torch.tensor(colour).view(3, 1, 1) * (1 / (1 / 255)) for colour in (of.mean, of.std))
    return mean.to(device), std.to(device)


def _patches(values: Tensor, plans: Sequence[Plan], family: Family) -> Patches:
    grids = torch.tensor([one.grid for one in plans])
    return Patches(values, grids, tuple(plans), family.mean, family.std)
