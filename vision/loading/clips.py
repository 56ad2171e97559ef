"""Clips: which frames of a file are looked at, those frames, and the times at which they are shown.

Letters: t frames, h x w pixels of a frame, T frames of a temporal step.
Frames are numbered from 0 in the order in which they are shown; the time of the first one is 0.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from jaxtyping import Float64, UInt8
from torch import Tensor

from mrope.checks import Number, one_of, positive, whole
from mrope.families import Family
from mrope.families.sampling import Sampling, StampTime

from .container import naming
from .files import MAX_PIXELS, File, is_file
from .load import load
from .pictures import Picture
from .reels import mean_rate, open_reel, step_times


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clip:
    """Frames that were picked from a clip, with their times; nothing samples them again.

    Args:
        frames: (t, 3, h, w) uint8; the memory of each frame runs through rows, columns, channels.
        seconds: (t,) float64, when each is shown: source index / source fps, or what the file says where its frame
            rate varies.
        indices: their numbers in the source, None if there is none.
        fps: frames a second of the source (where it varies, the mean that `measure_clip` gives), None if unknown.
        rate: frames a second of these frames, of the moments that were picked where the frame rate of the source
            varies; None if unknown.
        source: path of the file, None if there is none.
        orientation: the turn that was applied to the stored frames, as an EXIF orientation, 1..8 (1: none).

    Raises:
        ValueError: no frame, times that are not one a frame in order, or a rate that is no finite number above 0.
    """

    frames: UInt8[Tensor, "t 3 h w"]
    seconds: Float64[Tensor, "times"]
    indices: tuple[int, ...] | None = None
    fps: Number | None = None
    rate: Number | None = None
    source: str | None = None
    orientation: int = 1

    def __post_init__(self) -> None:
        count = len(self.frames)
        if not count:
            raise ValueError("frames is empty; expected at least one")
        if len(self.seconds) != count or (self.indices is not None and len(self.indices) != count):
            given = "" if self.indices is None else f" and {len(self.indices)} indices"
            raise ValueError(f"{count} frames have {len(self.seconds)} seconds{given}; expected one a frame")
        if not self.seconds.isfinite().all() or (self.seconds.diff() < 0).any():
            raise ValueError(f"seconds are {self.seconds.tolist()}; expected finite times that never go back")
        for name, rate in (("fps", self.fps), ("rate", self.rate)):
            if rate is not None:
                positive(name, rate)

    def steps(self, temporal_patch: int, *, time: StampTime = "mean") -> Float64[Tensor, "steps"]:
        """The time of each temporal step, in seconds; the last frame is repeated until it fills its step.

        Args:
            temporal_patch: T.
            time: the "mean" of the first and the last frame of a step, or the time of the "first".

        >>> clip_of([np.zeros((2, 3), np.uint8)] * 3, fps=2).steps(2)
        tensor([0.2500, 1.0000], dtype=torch.float64)
        """
        steps = -(-len(self.seconds) // whole("temporal_patch", temporal_patch, 1))
        one_of("time", time, ("mean", "first"))
        return torch.from_numpy(step_times(self.seconds.numpy(), steps, temporal_patch, time))

    def seconds_per_step(self, temporal_patch: int) -> float | None:
        """Seconds from one temporal step to the next, on average: T / `rate` (Qwen2.5-VL); None if unknown.

        >>> clip_of([np.zeros((2, 3), np.uint8)] * 3, fps=4).seconds_per_step(2)
        0.5
        """
        temporal_patch = whole("temporal_patch", temporal_patch, 1)
        return None if self.rate is None else temporal_patch / self.rate

    def stamps(self, family: Family) -> list[str] | None:
        """The text of each temporal step's time in the words of `family`; None where it writes none.

        >>> import mrope
        >>> clip_of([np.zeros((2, 3), np.uint8)] * 2, seconds=[10, 10.5]).stamps(mrope.family("qwen3-vl"))
        ['<10.2 seconds>']
        """
        if family.stamp is None:
            return None
        return [family.stamp.text(time) for time in self.steps(family.temporal_patch, time=family.stamp.time).tolist()]


def read_clip(
    source: File | Clip,
    sampling: Sampling | Family | None = None,
    *,
    fps: Number | None = None,
    frames: int | None = None,
    max_frames: int | None = None,
    indices: Sequence[int] | None = None,
    seconds: Sequence[Number] | None = None,
    start: Number | None = None,
    end: Number | None = None,
    max_pixels: int = MAX_PIXELS,
) -> Clip:
    """The frames of a file that a family looks at, or that are asked for.

    Only what is needed for those frames is decoded, and only they are kept. Where the frame rate varies, the rule
    picks moments as if it did not, from `start` to `end`, and each gives the frame that is shown then (the processors
    of transformers take the frame that has the number that was picked, whenever that is shown).

    What is transparent lies over white, in videos (VP8, VP9, ProRes, PNG and the like) as in pictures. Of an animated
    picture, a frame that does not say how long it lasts is shown for 0.1 s, as browsers do, unless none says it; the
    picture that some APNG files hold for those who show no animations is left out.

    Args:
        source: path or bytes of a video, or of a (moving) picture; a `Clip`, which comes back as it is.
        sampling: the rule, or the family that has one; None takes frames from first to last, evenly ("even"), as many
            as `fps`, `frames` or `max_frames` says, one of which it needs.
        fps: frames a second to look at, instead of the rule's.
        frames: how many frames to look at, at most those that are there; rounded to the rule's `multiple`.
        max_frames: most frames, instead of the rule's.
        indices: the frames to look at, in order, instead of a rule.
        seconds: moments whose frames to look at, in order, instead of a rule.
        start: where to begin, in seconds; the frame that is on screen then comes first, with its own, earlier time.
        end: where to end, in seconds; a frame that is shown from then on is left out.
        max_pixels: the most pixels of a frame that are decoded, against decompression bombs.

    Raises:
        OSError: a path cannot be opened.
        ValueError: no clip, a broken or damaged one, one whose frames have no times or times that go back, or several
            sizes; arguments that contradict each other.
        TypeError: `sampling` is neither a rule nor a family, or a number is none.
        ImportError: a video, and PyAV is not installed.
    """
    if sampling is not None and not isinstance(sampling, (Family, Sampling)):
        raise TypeError(
            f"sampling is {sampling!r}; expected a family, such as mrope.family('qwen3-vl'), or a Sampling, such as "
            "Sampling(rule='even', fps=2)"
        )
    asked = {"fps": fps, "frames": frames, "max_frames": max_frames}
    picked = {"indices": indices, "seconds": seconds}
    names = [name for name, value in (asked | picked | {"start": start, "end": end}).items() if value is not None]
    if isinstance(source, Clip):
        if names:
            raise ValueError(f"source is a Clip, which was sampled already; {names[0]} needs the file")
        return source
    for name, value in picked.items():
        if value is not None and np.ndim(value) != 1:
            raise TypeError(f"{name} is {value!r}; expected a list of numbers")
    picks = [name for name in names if name in picked]
    if picks and (len(names) > 1 or sampling is not None):
        other = next((name for name in names if name != picks[0]), "sampling")
        raise ValueError(f"{picks[0]} is a pick of its own; give it without {other}")
    if sampling is None and not {*asked, *picked} & set(names):
        raise ValueError("sampling is None; give a family, a Sampling, fps, frames, max_frames, indices or seconds")
    rule = sampling.sampling if isinstance(sampling, Family) else sampling or Sampling(rule="even")
    if rule is None:
        raise ValueError(f"sampling is {cast(Family, sampling).name}, a family that has no rule for clips")
    reel = open_reel(source, max_pixels)
    with naming(source):
        reel.check_times()
        if indices is not None:
            chosen, rate = reel.numbered(indices), None
        elif seconds is not None:
            # The moments that were asked for: one frame may be on screen at many of them.
            chosen, rate = reel.at(seconds), mean_rate(np.array(seconds, dtype=np.float64))
        else:
            chosen, rate = reel.sampled(rule, asked, start, end)
        pixels = _gathered(len(chosen), reel.shown(chosen))
    times = reel.seconds[chosen]
    return Clip(
        frames=pixels,
        seconds=torch.from_numpy(times),
        indices=tuple(chosen.tolist()),
        fps=reel.fps,
        rate=mean_rate(times) if rate is None else rate,
        source=None if isinstance(source, bytes) else os.fsdecode(source),
        orientation=reel.orientation,
    )


def clip_of(
    frames: Sequence[Picture] | np.ndarray | Tensor,
    *,
    fps: Number | None = None,
    seconds: Sequence[Number] | None = None,
) -> Clip:
    """A clip of frames that were picked elsewhere; their times are required, because nobody can guess them.

    Args:
        frames: one or more pictures of one size, each of a kind that `load` takes; or an array or tensor of them,
            (t, 3, h, w) or (t, h, w, 3).
        fps: how many of these frames stand for a second.
        seconds: when each frame is shown, instead of `fps`.

    Raises:
        OSError, ValueError, TypeError: as `load`; one picture alone, or frames of several sizes; both or neither of
            `fps` and `seconds`.

    >>> clip_of([np.zeros((2, 3), np.uint8)] * 3, fps=2).seconds.tolist()
    [0.0, 0.5, 1.0]
    """
    if is_file(frames):
        raise TypeError("frames is one path or file; expected several pictures (read_clip reads a clip from its file)")
    if not isinstance(frames, (Sequence, np.ndarray, Tensor)):
        raise TypeError(f"frames is a {type(frames).__name__}; expected a list of pictures, even of one, or an array")
    if isinstance(frames, (np.ndarray, Tensor)) and frames.ndim != 4:
        raise ValueError(
            f"frames are of shape {tuple(frames.shape)}; expected (t, 3, h, w) or (t, h, w, 3), or a list of pictures"
        )
    if (fps is None) == (seconds is None):
        raise ValueError(f"fps is {fps} and seconds is {seconds}; expected one of them")
    if not len(frames):
        raise ValueError("frames is empty; expected at least one")
    times = np.array(seconds, dtype=np.float64) if fps is None else np.arange(len(frames)) / positive("fps", fps)
    return Clip(
        frames=_gathered(len(frames), (load(frame) for frame in frames)),
        seconds=torch.from_numpy(times),
        rate=fps if fps is not None else mean_rate(times),
    )


def _gathered(count: int, pictures: Iterable[Tensor]) -> Tensor:
    """`count` pictures (3, h, w) as the frames of a clip; the memory runs through rows, columns, channels."""
    stack: Tensor | None = None
    for number, pixels in enumerate(pictures):
        rows = pixels.permute(1, 2, 0)
        stack = torch.empty(count, *rows.shape, dtype=torch.uint8) if stack is None else stack
        if rows.shape != stack.shape[1:]:
            raise ValueError(
                f"frame {number} is {tuple(rows.shape[:2])} (height, width), those before it "
                f"{tuple(stack.shape[1:3])}; expected frames of one size"
            )
        stack[number] = rows
    assert stack is not None
    return stack.permute(0, 3, 1, 2)
