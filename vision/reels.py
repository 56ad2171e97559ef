"""Clip files: when each of their frames is shown, and how to decode some of them.

Letters: h x w pixels of a frame. Times are in seconds from the first frame on.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from torch import Tensor

from mrope.checks import Number, whole
from mrope.families.sampling import Sampling, StampTime

from .files import (
    MAX_PIXELS,
    File,
    check_limit,
    frames_in,
    frames_of,
    is_file,
    name_of,
    opened,
    orientation_of,
    size_of,
    turns_itself,
)
from .load import to_tensor

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream
else:
    InputContainer = VideoStream = Any

# How picture files begin, which Pillow reads with the durations of their frames: GIF, PNG, JPEG, TIFF, BMP.
_PICTURES = (b"GIF8", b"\x89PNG", b"\xff\xd8\xff", b"II*\0", b"MM\0*", b"BM")
_CLOSE = 1e-6  # seconds; times are written with few digits, and a frame that begins so little later is meant
# The signs of a display matrix (x to x, x to y, y to x, y to y) -> the EXIF orientation that turns pixels likewise.
_ORIENTATIONS = {
    (1, 0, 0, 1): 1,
    (-1, 0, 0, 1): 2,
    (-1, 0, 0, -1): 3,
    (1, 0, 0, -1): 4,
    (0, 1, 1, 0): 5,
    (0, 1, -1, 0): 6,
    (0, -1, -1, 0): 7,
    (0, -1, 1, 0): 8,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipSize:
    """What the header of a clip says.

    Args:
        frames: how many there are.
        height: of an upright frame, in pixels.
        width: the same.
        fps: frames a second, on average; None if unknown.
        duration: seconds, None if unknown.
    """

    frames: int
    height: int
    width: int
    fps: Number | None
    duration: Number | None


def measure_clip(source: File, *, max_pixels: int = MAX_PIXELS) -> ClipSize:
    """The size of a clip in a file, from its header where that says it; else its packets are counted.

    Of a video the first frame is decoded too, since it says how the frames are turned, and of an animated picture all
    frames, since they say how long they last.

    Args:
        source: path or bytes of a video, or of an animated picture.
        max_pixels: as in `read_clip`.

    Raises:
        OSError: a path cannot be opened.
        ValueError: no clip, or a broken one.
        ImportError: a video, and PyAV is not installed.
    """
    if not _is_picture(source):
        with _video(source, max_pixels) as (container, stream):
            count, rate = stream.frames, stream.average_rate
            height, width = _upright(stream.height, stream.width, _first_orientation(container, stream))
        if count and rate:
            return ClipSize(frames=count, height=height, width=width, fps=float(rate), duration=float(count / rate))
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
        size: (height, width) of an upright frame, in pixels.
        orientation: how the stored frames are turned, as in EXIF.
        pictures: numbers of frames, ascending -> their upright pixels (3, h, w), one after the other.
    """

    seconds: np.ndarray
    fps: float | None
    steady: bool
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
        for pixels, count in zip(self.pictures(wanted), counts.tolist(), strict=True):
            yield from [pixels] * count

    def numbered(self, indices: Sequence[int]) -> np.ndarray:
        picks = np.array([whole("an index", index, 0) for index in indices], dtype=np.int64)
        if not len(picks) or picks.max() >= self.total or (np.diff(picks) < 0).any():
            raise ValueError(f"indices are {list(indices)}; expected ascending numbers below {self.total}")
        return picks

    def at(self, seconds: Sequence[Number] | None) -> np.ndarray:
        moments = np.array(seconds, dtype=np.float64)
        end = np.inf if self.fps is None else self.seconds[-1] + 1 / self.fps
        inside = (moments >= 0) & (moments <= end)
        if not len(moments) or not inside.all() or (np.diff(moments) < 0).any():
            raise ValueError(f"seconds are {moments.tolist()}; expected ascending times from 0 to {end:g}")
        return np.searchsorted(self.seconds, moments + _CLOSE, "right") - 1

    def sampled(
        self, rule: Sampling, asked: dict[str, Any], start: Number | None, end: Number | None
    ) -> tuple[np.ndarray, float | None]:
        """The frames that the rule picks between `start` and `end`, and how many a second they are."""
        first = 0 if start is None else int(np.searchsorted(self.seconds, start - _CLOSE))
        stop = self.total if end is None else int(np.searchsorted(self.seconds, end - _CLOSE))
        if first >= stop:
            raise ValueError(
                f"no frame begins from start={start} to end={end}; the last begins at {self.seconds[-1]:g}"
            )
        if self.fps is None:  # a single picture
            return np.array(rule.indices(1, 1, **asked)), None
        seconds = self.seconds[first:stop] - self.seconds[first]
        total, fps = len(seconds), self.fps if self.steady else mean_rate(self.seconds[first:stop]) or self.fps
        picks = np.array(rule.indices(total, fps, **asked))
        rate = len(picks) / total * fps
        if np.abs(seconds - np.arange(total) / fps).max() > 0.5 / fps:  # more than frames that tremble about their time
            picks = np.searchsorted(seconds, picks / fps + _CLOSE, "right") - 1
        return first + picks, rate


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
        lasts = frames_of(image, max_pixels=max_pixels) if frames_in(image) > 1 else ()
        durations = np.array([frame.info.get("duration") or 0.0 for frame in lasts] or [0.0])
    fps = float(1000 * len(durations) / durations.sum()) if durations.all() else None
    steady = fps is not None and bool((durations == durations[0]).all())
    begins = np.concatenate([[0.0], durations.cumsum()[:-1]]) / 1000
    return Reel(
        seconds=np.arange(len(begins)) / fps if fps is not None and steady else begins,
        fps=fps,
        steady=steady,
        size=size,
        orientation=orientation,
        pictures=partial(_animation_pictures, source, max_pixels, orientation),
    )


def _animation_pictures(source: File, max_pixels: int, orientation: int, wanted: np.ndarray) -> Iterator[Tensor]:
    numbers = set(wanted.tolist())
    with opened(source) as image:
        turn = 1 if turns_itself(image) else orientation
        for number, frame in enumerate(frames_of(image, max_pixels=max_pixels)):
            if number in numbers:
                yield to_tensor(frame, turn)
            if number == wanted[-1]:
                return


def _film(source: File, max_pixels: int) -> Reel:
    """A video, through PyAV: all packets are counted, none is decoded but for the first frame's turn."""
    with _video(source, max_pixels) as (container, stream):
        packets = _packets(container, stream)
        rates = [float(rate) for rate in (stream.average_rate, stream.base_rate, stream.guessed_rate) if rate]
        base, guessed = stream.time_base, stream.guessed_rate
        # The AVI format has no times of its own: those that come are the order of decoding.
        timed = base is not None and container.format.name != "avi" and all(pts is not None for pts, _ in packets)
    if base is not None and timed:
        ticks = np.unique([cast(int, pts) for pts, _ in packets])
        keys = np.unique([cast(int, pts) for pts, is_key in packets if is_key])
        seconds, tick = (ticks - ticks[0]) * base.numerator / base.denominator, float(base)
    elif guessed:
        ticks, keys, rates = np.arange(len(packets)), None, [float(guessed)]
        seconds, tick = ticks / float(guessed), 0.0
    else:
        raise ValueError("its frames have no times and no rate; give them to clip_of with fps or seconds")
    with _video(source, max_pixels) as (container, stream):
        orientation = _first_orientation(container, stream)
        size = _upright(stream.height, stream.width, orientation)

    def error(rate: float) -> float:
        return float(np.abs(seconds - np.arange(len(seconds)) / rate).max())

    fps = min(rates, key=error, default=None)
    # Containers round times to a tick, some writers to a millisecond.
    steady = fps is not None and error(fps) <= max(tick, 1e-3) + 1e-9
    if not steady:
        fps = None if len(seconds) == 1 else float((len(seconds) - 1) / seconds[-1])
    return Reel(
        seconds=np.arange(len(seconds)) / fps if fps is not None and steady else seconds,
        fps=fps,
        steady=steady,
        size=size,
        orientation=orientation,
        pictures=partial(_film_pictures, source, max_pixels, ticks, keys, orientation),
    )


def _packets(container: InputContainer, stream: VideoStream) -> list[tuple[int | None, bool]]:
    """Of each packet that holds a frame to be shown, its time in ticks and whether it is a key frame."""
    # An MP4 may show less than it holds; its index is of what is shown.
    promised = len(stream.index_entries) if "mp4" in container.format.name else stream.frames
    found, shown, end = 0, [], 0.0
    for packet in container.demux():
        if packet.size and packet.pts is not None and packet.time_base is not None:
            end = max(end, float((packet.pts + (packet.duration or 0)) * packet.time_base))
        if packet.stream_index == stream.index and packet.size and not packet.is_corrupt:
            found += 1
            if not packet.is_discard:
                shown.append((packet.pts, packet.is_keyframe))
    if not shown:
        raise ValueError("no frame in its video stream")
    if found < promised:
        raise ValueError(f"truncated: {promised} frames are announced and {found} are there")
    # Matroska announces no number of frames, but how long the longest stream is.
    announced = (container.duration or 0) / 1e6 if "matroska" in container.format.name else 0
    if end < announced - 1:
        raise ValueError(f"truncated: {announced:g} seconds are announced and {end:g} are there")
    return shown


def _film_pictures(
    source: File, max_pixels: int, ticks: np.ndarray, keys: np.ndarray | None, orientation: int, wanted: np.ndarray
) -> Iterator[Tensor]:
    """The wanted frames in one pass: packets that none of them depends on are not decoded.

    A decoder can begin at any key frame, so that of each wanted frame only what lies between it and the key frame
    before it is given to the decoder.
    """
    left = ticks[wanted].tolist()[::-1]

    def key(tick: int) -> int:
        assert keys is not None
        return int(keys[max(int(np.searchsorted(keys, tick, "right")) - 1, 0)])

    with _video(source, max_pixels) as (container, stream):
        stream.thread_type = "AUTO"
        feeding, fed, count = keys is None or not len(keys), None, 0
        for packet in container.demux(stream):
            if not feeding and packet.size:
                if not packet.is_keyframe or packet.pts != key(left[-1]):
                    continue
                if fed is not None:
                    stream.codec_context.flush_buffers()
                feeding = True
            fed = packet.pts if packet.is_keyframe else fed
            for frame in packet.decode():
                number, count = count if keys is None else frame.pts, count + 1
                # A packet may hold no picture of its own (VP8): the next one is shown instead.
                while left and number is not None and number >= left[-1]:
                    yield to_tensor(frame.to_image(), orientation)
                    left.pop()
                if not left:
                    return
            feeding = keys is None or fed is None or key(left[-1]) <= fed
    raise ValueError(f"truncated or broken: {len(left)} of {len(wanted)} frames could not be decoded")


@contextmanager
def _video(source: File, max_pixels: int) -> Iterator[tuple[InputContainer, VideoStream]]:
    """The container in `source` and its first video stream, nothing of which is decoded yet."""
    try:
        import av
        from av.stream import Disposition
    except ImportError as error:
        raise ImportError("clips are read through PyAV, which is not installed: pip install 'mrope[video]'") from error
    with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as file, naming(source):
        if not file.read(1):
            raise ValueError("the file is empty")
        file.seek(0)
        # A playlist names other files: none of them is opened.
        with av.open(file, mode="r", options={"protocol_whitelist": "none"}) as container:
            streams = [
                stream for stream in container.streams.video if not stream.disposition & Disposition.attached_pic
            ]
            if not streams:
                raise ValueError("no video stream in it")
            check_limit(streams[0].height, streams[0].width, max_pixels)
            yield container, streams[0]


@contextmanager
def naming(source: File) -> Iterator[None]:
    """Turn what PyAV says about a broken clip into one line that names the clip."""
    name = f"clip of {len(source)} bytes" if isinstance(source, bytes) else os.fsdecode(source)
    try:
        yield
    except Exception as error:
        if type(error).__module__.startswith("av."):
            words = getattr(error, "strerror", None) or str(error)
            raise ValueError(f"{name}: broken or unreadable clip ({words})") from error
        if isinstance(error, ValueError) and not str(error).startswith((name, str(name_of(source)))):
            raise ValueError(f"{name}: {error}") from error
        raise


def _first_orientation(container: InputContainer, stream: VideoStream) -> int:
    """The turn of the first frame, as an EXIF orientation."""
    for frame in container.decode(stream):
        for data in cast(Any, frame.side_data):
            if data.type.name == "DISPLAYMATRIX":
                matrix = np.frombuffer(bytes(data), np.int32)[[0, 1, 3, 4]]
                return _ORIENTATIONS.get(tuple(np.sign(matrix).tolist()), 1)
        return 1
    raise ValueError("no frame of it can be decoded")


def _upright(height: int, width: int, orientation: int) -> tuple[int, int]:
    return (width, height) if orientation >= 5 else (height, width)


def step_times(seconds: np.ndarray, steps: int, temporal_patch: int, time: StampTime) -> np.ndarray:
    """The time of each of `steps` temporal steps; the last frame is repeated until it fills what is left."""
    missing = steps * temporal_patch - len(seconds)
    frames = np.concatenate([seconds, np.repeat(seconds[-1], missing)]).reshape(steps, temporal_patch)
    return frames[:, 0] if time == "first" else (frames[:, 0] + frames[:, -1]) / 2


def mean_rate(seconds: np.ndarray) -> float | None:
    """Frames a second of frames at these times; None if they are all one."""
    span = seconds[-1] - seconds[0]
    return float((len(seconds) - 1) / span) if span > 0 else None
