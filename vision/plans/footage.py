"""What a clip is made of before it is planned: how many frames, their size and times, and how to get their pixels.

A file is sampled by its family's rule; loose frames and a `Clip` are taken as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mrope.checks import Number, positive, whole
from mrope.families import Family

from ..loading.clips import Clip
from ..loading.container import naming
from ..loading.files import MAX_PIXELS, File, is_file, name_of
from ..loading.load import as_tensor
from ..loading.reels import open_reel, step_times
from .fitting import check_side
from .plan import Size

MAX_FRAMES = 1 << 22
"""The most frames of a clip that is given by its size: a plan holds the time of each step."""
ClipSource = tuple[int, int, int] | Clip | File | np.ndarray | Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Footage:
    """Frames that are not decoded yet.

    Args:
        frames: how many.
        size: (height, width) of each, upright.
        seconds: (frames,) float64, when each is shown; None if unknown.
        rate: frames a second, None if unknown.
        pictures: gives them one after the other, (3, height, width) uint8.
        source: path of the file, None if there is none.
        name: how errors call it, None if it has none.
        orientation: EXIF orientation that is applied.
    """

    frames: int
    size: Size
    seconds: np.ndarray | None
    rate: float | None
    pictures: Callable[[], Iterator[Tensor]]
    source: str | None = None
    name: str | None = None
    orientation: int = 1

    def steps(self, family: Family, steps: int) -> tuple[float, ...] | None:
        """The time of each of `steps` temporal steps, as the family tells it; the last frame fills what is left."""
        if self.seconds is None:
            return None
        time = "mean" if family.stamp is None else family.stamp.time
        return tuple(step_times(self.seconds, steps, family.temporal_patch, time).tolist())


def footage(source: Any, family: Family, *, fps: Number | None, frames: int | None, max_frames: int | None) -> Footage:
    """What `source` shows, sampled if it is a file.

    Raises:
        OSError, ValueError, TypeError, ImportError: as `plan_video`.
    """
    asked = {"fps": fps, "frames": frames, "max_frames": max_frames}
    if is_file(source):
        return _of_file(source, family, asked)
    if isinstance(source, Clip):
        _refuse(asked, "source is a Clip, which was sampled already")
        height, width = source.frames.shape[-2:]
        return Footage(
            frames=len(source.frames),
            size=(height, width),
            seconds=source.seconds.numpy(),
            rate=source.rate,
            pictures=lambda: iter(source.frames),
            source=source.source,
            name=source.source,
            orientation=source.orientation,
        )
    _refuse({"frames": frames, "max_frames": max_frames}, "source is no file, so all of its frames are taken")
    clip = None
    if isinstance(source, tuple):
        if len(source) != 3:
            raise TypeError(f"the size of a clip is a tuple (frames, height, width), got {source!r}")
        count = whole("frames", source[0], 1)
        if count > MAX_FRAMES:
            raise ValueError(f"frames is {count}; expected at most {MAX_FRAMES}")
        height, width = check_side("height", source[1]), check_side("width", source[2])
    else:
        clip = _checked(source)
        count, _, height, width = clip.shape
    return Footage(
        frames=count,
        size=(height, width),
        seconds=None if fps is None else np.arange(count) / positive("fps", fps),
        rate=fps,
        pictures=lambda: iter(() if clip is None else clip),
    )


def _of_file(source: File, family: Family, asked: dict[str, Any]) -> Footage:
    if family.sampling is None:
        raise ValueError(f"{family.name} has no rule to pick frames; pick them with read_clip")
    reel = open_reel(source, MAX_PIXELS)
    with naming(source):
        reel.check_times()
        chosen, rate = reel.sampled(family.sampling, asked, None, None)

    def pictures() -> Iterator[Tensor]:
        with naming(source):
            yield from reel.shown(chosen)

    return Footage(
        frames=len(chosen),
        size=reel.size,
        seconds=reel.seconds[chosen] if rate is not None else None,
        rate=rate,
        pictures=pictures,
        source=None if isinstance(source, bytes) else os.fsdecode(source),
        name=name_of(source),
        orientation=reel.orientation,
    )


def _refuse(asked: dict[str, Any], why: str) -> None:
    for name, value in asked.items():
        if value is not None:
            raise ValueError(f"{name} is {value}; {why}")


def _checked(frames: Any) -> Tensor:
    clip = as_tensor(frames) if isinstance(frames, np.ndarray) else frames
    if not isinstance(clip, Tensor):
        raise TypeError(
            f"a clip is a path, bytes, Clip, array or tensor; got a {type(frames).__name__} (clip_of makes a Clip of a "
            "list of pictures)"
        )
    if clip.dtype != torch.uint8 or clip.ndim != 4 or clip.shape[1] != 3 or 0 in clip.shape:
        raise ValueError(f"frames are {clip.dtype} of shape {tuple(clip.shape)}; expected uint8 (frames, 3, H, W)")
    return clip
