"""Clip files: when each of their frames is shown, and how to decode some of them.

Letters: h x w pixels of a frame. Times are in seconds from the first frame on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from torch import Tensor

from mrope.checks import Number, whole
from mrope.families.sampling import Sampling, StampTime

from .container import first_frame, packets_of, pictures_of, video
from .decoded import Decoded
from .files import MAX_PIXELS, File, frames_in, frames_of, is_file, opened, orientation_of, size_of, turns_itself

if TYPE_CHECKING:
    from av.video.stream import VideoStream
    from PIL.ImageFile import ImageFile
else:
    ImageFile = VideoStream = Any

# How picture files begin, which Pillow reads with the durations of their frames: GIF, PNG, JPEG, TIFF, BMP.
_PICTURES = (b"GIF8", b"\x89PNG", b"\xff\xd8\xff", b"II*\0", b"MM\0*", b"BM")
_UNTOLD = 100  # milliseconds that browsers show a frame of an animation that does not say how long it lasts
_CLOSE = 1e-6  # seconds; times are written with few digits, and a frame that begins so little later is meant


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipSize:
    """What the header of a clip says.

    Args:
        frames: how many there are.
        height: of an upright frame, in pixels.
        width: the same.
        fps: frames a second, None if unknown. Where the rate varies, the mean: of a video the steps from its first
            frame to its last over the seconds between, of an animated picture its frames over the seconds they last.
        duration: frames / fps in seconds, None if unknown.
    """

    frames: int
    height: int
    width: int
    fps: Number | None
    duration: Number | None


def measure_clip(source: File, *, max_pixels: int = MAX_PIXELS) -> ClipSize:
    """The size of a clip in a file, as `read_clip` sees it.

    It is in the header of a file with an index (MP4, AVI) and a steady rate, and whether all frames are there is not
    looked at then; else the packets are counted. Of a video the first frame is decoded too, since it says how the
    frames are turned, and of an animated picture all frames, since they say how long they last.

    Args:
        source: path or bytes of a video, or of an animated picture.
        max_pixels: as in `read_clip`.

    Raises:
        OSError: a path cannot be opened.
        ValueError: no clip, or a broken one.
        ImportError: a video, and PyAV is not installed.
    """
    if not _is_picture(source):
        with video(source, max_pixels) as (container, stream):
            (height, width), _ = first_frame(container, stream)
            index, base, fps = stream.index_entries, stream.time_base, None
            shown = [entry.timestamp for entry in index if not entry.is_discard]
            if shown and base is not None and len(index) == stream.frames:
                fps = _steady_rate(_seconds(np.array(shown), base), _rates(stream), base)
        if fps is not None:
            return ClipSize(frames=len(shown), height=height, width=width, fps=fps, duration=len(shown) / fps)
    reel = open_reel(source, max_pixels)
    height, width = reel.size
    duration = None if reel.fps is None else reel.total / reel.fps
    return ClipSize(frames=reel.total, height=height, width=width, fps=reel.fps, duration=duration)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reel:
    """When the frames of a file are shown, and how to get some of them.

    Args:
        seconds: (total,) float64, ascending.
        fps: frames a second, the mean where it varies; None if unknown.
        steady: whether the frame rate does not vary.
        end: when the last frame is over, in seconds; a single picture stays.
        size: (height, width) of an upright frame, in pixels.
        orientation: how the stored frames are turned, as in EXIF.
        pictures: numbers of frames, ascending -> their upright pixels (3, h, w), one after the other.
    """

    seconds: np.ndarray
    fps: float | None
    steady: bool
    end: float
    size: tuple[int, int]
    orientation: int
    pictures: Callable[[np.ndarray], Iterator[Tensor]]

    @property
    def total(self) -> int:
        return len(self.seconds)

    def check_times(self) -> None:
        """Refuse frames of which nobody knows when they are shown."""
        if self.fps is None and self.total > 1:
            raise ValueError("it does not say how long its frames last; give them to clip_of with fps or seconds")

    def shown(self, chosen: np.ndarray) -> Iterator[Tensor]:
        """The pixels of these frames, ascending numbers, decoded once however often one is chosen."""
        wanted, counts = np.unique(chosen, return_counts=True)
        for number, pixels, count in zip(wanted.tolist(), self.pictures(wanted), counts.tolist(), strict=True):
            height, width = pixels.shape[1:]
            if (height, width) != self.size:
                raise ValueError(
                    f"frame {number} is {(height, width)} (height, width), the first one {self.size}; expected frames "
                    "of one size"
                )
            yield from [pixels] * count

    def numbered(self, indices: Sequence[int]) -> np.ndarray:
        picks = np.array([whole("an index", index, 0) for index in indices], dtype=np.int64)
        if not len(picks) or picks.max() >= self.total or (np.diff(picks) < 0).any():
            raise ValueError(f"indices are {list(indices)}; expected ascending numbers below {self.total}")
        return picks

    def at(self, seconds: Sequence[Number]) -> np.ndarray:
        moments = np.array([_moment("one of seconds", second) for second in seconds])
        if not len(moments) or moments.max() > self.end or (np.diff(moments) < 0).any():
            raise ValueError(f"seconds are {moments.tolist()}; expected ascending times from 0 to {self.end:g}")
        return np.searchsorted(self.seconds, moments + _CLOSE, "right") - 1

    def sampled(
        self, rule: Sampling, asked: dict[str, Any], start: Number | None, end: Number | None
    ) -> tuple[np.ndarray, float | None]:
        """The frames that the rule picks of those shown from `start` to `end`, and how many a second they are."""
        begin = 0.0 if start is None else _moment("start", start)
        if begin > self.end - _CLOSE:
            raise ValueError(f"start is {begin:g}; the clip is over at {self.end:g} seconds")
        if end is not None and _moment("end", end) <= begin:
            raise ValueError(f"end is {end:g}; expected seconds after start={begin:g}")
        if self.fps is None:  # a single picture
            return np.array(rule.indices(1, 1, **asked)), None
        until = self.end if end is None else min(end, self.end)
        first = int(np.searchsorted(self.seconds, begin + _CLOSE, "right")) - 1
        stop = self.total if end is None else max(int(np.searchsorted(self.seconds, end - _CLOSE)), first + 1)
        total = stop - first
        if not self.steady:
            seconds = self.seconds[first:stop] - self.seconds[first]
            late = np.abs(seconds - np.arange(total) / self.fps).max()
            # More than frames that tremble about their time, or a last frame that stays longer than the others.
            if max(late, until - self.seconds[first] - total / self.fps) > 0.5 / self.fps:
                # The rule sees a steady clip that is as long, with the mean rate of the file where few frames are.
                length = until - begin
                total = max(total, round(length * self.fps))
                picks = np.array(rule.indices(total, total / length, **asked))
                # Its last frame is the last one here, or later: the window may end while that is still on screen.
                last = max(self.seconds[stop - 1], until - length / total)
                moments = begin + picks * ((last - begin) / max(total - 1, 1))
                return np.searchsorted(self.seconds[:stop], moments + _CLOSE, "right") - 1, len(picks) / length
        picks = np.array(rule.indices(total, self.fps, **asked))
        return first + picks, len(picks) / total * self.fps


def _moment(name: str, value: Any) -> float:
    """A time as a finite number of seconds from 0 on, or one line that says what came."""
    try:
        number = float(value + 0)  # a string is no number
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {value!r}; expected a number") from None
    if not 0 <= number < math.inf:
        raise ValueError(f"{name} is {number:g}; expected a finite number of seconds from 0 on")
    return number


def open_reel(source: File, max_pixels: int) -> Reel:
    """What the file shows, through Pillow where it is a picture, else through PyAV."""
    return _animation(source, max_pixels) if _is_picture(source) else _film(source, max_pixels)


def _is_picture(source: File) -> bool:
    if not is_file(source):
        raise TypeError(f"a clip is a path or the bytes of a file; got a {type(source).__name__}")
    if isinstance(source, bytes):
        head = source[:12]
    else:
        with open(source, "rb") as file:
            head = file.read(12)
    webp, avif = head[:4] == b"RIFF" and head[8:] == b"WEBP", head[4:] in (b"ftypavif", b"ftypavis")
    return head.startswith(_PICTURES) or webp or avif


def _animation(source: File, max_pixels: int) -> Reel:
    """A picture file, through Pillow, which tells how long a frame lasts once it has decoded it."""
    with opened(source) as image:
        orientation = orientation_of(image)
        size = size_of(image, orientation)
        lasts = _frames(image, max_pixels) if frames_in(image) > 1 else ()
        durations = np.array([frame.info.get("duration") or 0.0 for frame in lasts] or [0.0])
    fps, end = None, math.inf
    if durations.any():
        durations[durations == 0] = _UNTOLD
        fps, end = float(1000 * len(durations) / durations.sum()), float(durations.sum() / 1000)
    steady = fps is not None and bool((durations == durations[0]).all())
    begins = np.concatenate([[0.0], durations.cumsum()[:-1]]) / 1000
    return Reel(
        seconds=np.arange(len(begins)) / fps if fps is not None and steady else begins,
        fps=fps,
        steady=steady,
        end=end,
        size=size,
        orientation=orientation,
        pictures=partial(_animation_pictures, source, max_pixels, orientation),
    )


def _frames(image: ImageFile, max_pixels: int) -> Iterator[ImageFile]:
    """The frames of an animation; an APNG may begin with a picture for those who show no animations."""
    return islice(frames_of(image, max_pixels=max_pixels), int(getattr(image, "default_image", False)), None)


def _animation_pictures(source: File, max_pixels: int, orientation: int, wanted: np.ndarray) -> Iterator[Tensor]:
    numbers = set(wanted.tolist())
    with opened(source) as image:
        turn = 1 if turns_itself(image) else orientation
        for number, frame in enumerate(_frames(image, max_pixels)):
            if number in numbers:
                yield Decoded(frame, turn).all()
            if number == wanted[-1]:
                return


def _film(source: File, max_pixels: int) -> Reel:
    """A video, through PyAV: all packets are counted, none is decoded but for the first frame's turn."""
    with video(source, max_pixels) as (container, stream):
        packets = packets_of(container, stream, source)
        rates, base, guessed = _rates(stream), stream.time_base, stream.guessed_rate
        # The AVI format numbers its frames in the order of decoding, and leaves out the numbers of dropped ones, in
        # whose place the frame before is shown: the frames that are there are shown at these numbers, in order.
        numbers = [packet.dts for packet in packets] if container.format.name == "avi" else None
        times = numbers or [packet.pts for packet in packets]
        timed = None not in times and (numbers is None or len(set(numbers)) == len(numbers))
    keys, ticks = None, np.arange(len(packets))
    if base is not None and timed:
        moments = np.unique(cast(list[int], times))
        if numbers is None:
            keys = np.unique([cast(int, packet.pts) for packet in packets if packet.is_keyframe] or moments[:1])
            ticks = moments = moments[moments >= keys[0]]  # nothing decodes what is shown before the first key frame
        seconds = _seconds(moments, base)
    elif guessed:
        seconds, rates, base = ticks / float(guessed), [float(guessed)], None
    else:
        raise ValueError("its frames have no times and no rate; give them to clip_of with fps or seconds")
    with video(source, max_pixels) as (container, stream):
        size, orientation = first_frame(container, stream)
    steady = _steady_rate(seconds, rates, base)
    fps = mean_rate(seconds) if steady is None else steady
    seconds = seconds if steady is None else np.arange(len(seconds)) / steady
    return Reel(
        seconds=seconds,
        fps=fps,
        steady=steady is not None,
        end=math.inf if fps is None else float(seconds[-1] + 1 / fps),
        size=size,
        orientation=orientation,
        pictures=partial(pictures_of, source, max_pixels, ticks, keys, orientation),
    )


def _rates(stream: VideoStream) -> list[float]:
    """The frames a second that the header and the first packets tell."""
    return [float(rate) for rate in (stream.average_rate, stream.base_rate, stream.guessed_rate) if rate]


def _seconds(ticks: np.ndarray, base: Fraction) -> np.ndarray:
    return (ticks - ticks[0]) * base.numerator / base.denominator


def _steady_rate(seconds: np.ndarray, rates: Sequence[float], base: Fraction | None) -> float | None:
    """Of these frames a second, those at which the frames are shown; None where the rate varies."""

    def error(rate: float) -> float:
        return float(np.abs(seconds - np.arange(len(seconds)) / rate).max())

    best = min(rates, key=error, default=None)
    # Containers round times to a tick, some writers to a millisecond; half a frame or more is a frame that is missing.
    tick = 0.0 if base is None else float(base)
    steady = best is not None and error(best) <= min(max(tick, 1e-3), 0.5 / best) + 1e-9
    return best if steady else None


def step_times(seconds: np.ndarray, steps: int, temporal_patch: int, time: StampTime) -> np.ndarray:
    """The time of each of `steps` temporal steps; the last frame is repeated until it fills what is left."""
    missing = steps * temporal_patch - len(seconds)
    frames = np.concatenate([seconds, np.repeat(seconds[-1], missing)]).reshape(steps, temporal_patch)
    return frames[:, 0] if time == "first" else (frames[:, 0] + frames[:, -1]) / 2


def mean_rate(seconds: np.ndarray) -> float | None:
    """Frames a second of frames at these times; None if they are all one."""
    span = seconds[-1] - seconds[0]
    return float((len(seconds) - 1) / span) if span > 0 else None
