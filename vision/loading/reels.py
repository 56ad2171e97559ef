"""Clip files: when each of their frames is shown, and how to decode some of them.

Letters: h x w pixels of a frame. Times are in seconds from the first frame on.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from torch import Tensor

from mrope.checks import Number, whole
from mrope.families.sampling import Sampling, StampTime

from .decoded import Decoded
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

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream
else:
    InputContainer = VideoStream = Any

# How picture files begin, which Pillow reads with the durations of their frames: GIF, PNG, JPEG, TIFF, BMP.
_PICTURES = (b"GIF8", b"\x89PNG", b"\xff\xd8\xff", b"II*\0", b"MM\0*", b"BM")
_EBML = b"\x1a\x45\xdf\xa3"  # how Matroska files begin
_SEGMENT = 0x8538067  # the element of such a file that holds all the rest
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
        with _video(source, max_pixels) as (container, stream):
            height, width = _upright(stream.height, stream.width, _first_orientation(container, stream))
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


class _Packet(NamedTuple):
    """What a packet of a film says: times in ticks at which its frame is shown and decoded."""

    pts: int | None
    dts: int | None
    is_keyframe: bool


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

    @property
    def end(self) -> float:
        """When the last frame is over, in seconds; a single picture stays."""
        return math.inf if self.fps is None else float(self.seconds[-1] + 1 / self.fps)

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
        first = int(np.searchsorted(self.seconds, begin + _CLOSE, "right")) - 1
        stop = self.total if end is None else max(int(np.searchsorted(self.seconds, end - _CLOSE)), first + 1)
        seconds, total, fps = self.seconds[first:stop], stop - first, self.fps
        if not self.steady:
            fps = mean_rate(seconds) or fps
        # More than frames that tremble about their time.
        varies = bool(np.abs(seconds - seconds[0] - np.arange(total) / fps).max() > 0.5 / fps)
        if varies:
            seconds = np.maximum(seconds, begin)  # of the frame that is on screen at `start`, the rest counts
            fps = mean_rate(seconds) or fps
        picks = np.array(rule.indices(total, fps, **asked))
        rate = len(picks) / total * fps
        if varies:
            picks = np.searchsorted(seconds - seconds[0], picks / fps + _CLOSE, "right") - 1
        return first + picks, rate


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
                yield Decoded(frame, turn).all()
            if number == wanted[-1]:
                return


def _film(source: File, max_pixels: int) -> Reel:
    """A video, through PyAV: all packets are counted, none is decoded but for the first frame's turn."""
    with _video(source, max_pixels) as (container, stream):
        packets = _packets(container, stream, _lost_bytes(source))
        rates, base, guessed = _rates(stream), stream.time_base, stream.guessed_rate
        # The AVI format numbers its frames in the order of decoding, and leaves out the numbers of dropped ones, in
        # whose place the frame before is shown: the frames that are there are shown at these numbers, in order.
        numbers = [packet.dts for packet in packets] if container.format.name == "avi" else None
        times = numbers or [packet.pts for packet in packets]
        timed = None not in times and (numbers is None or len(set(numbers)) == len(numbers))
    keys, ticks = None, np.arange(len(packets))
    if base is not None and timed:
        moments = np.unique(cast(list[int], times))
        seconds = _seconds(moments, base)
        if numbers is None:
            ticks, keys = moments, np.unique([cast(int, packet.pts) for packet in packets if packet.is_keyframe])
    elif guessed:
        seconds, rates, base = ticks / float(guessed), [float(guessed)], None
    else:
        raise ValueError("its frames have no times and no rate; give them to clip_of with fps or seconds")
    with _video(source, max_pixels) as (container, stream):
        orientation = _first_orientation(container, stream)
        size = _upright(stream.height, stream.width, orientation)
    fps = _steady_rate(seconds, rates, base)
    return Reel(
        seconds=seconds if fps is None else np.arange(len(seconds)) / fps,
        fps=mean_rate(seconds) if fps is None else fps,
        steady=fps is not None,
        size=size,
        orientation=orientation,
        pictures=partial(_film_pictures, source, max_pixels, ticks, keys, orientation),
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


def _packets(container: InputContainer, stream: VideoStream, lost: int) -> list[_Packet]:
    """Each packet that holds a frame to be shown, without its data; `lost` bytes of the file are not there."""
    # An MP4 may show less than it holds; its index is of what is shown.
    promised = len(stream.index_entries) if "mp4" in container.format.name else stream.frames
    found, shown = 0, []
    for packet in container.demux(stream):
        if packet.size and not packet.is_corrupt:
            found += 1
            if not packet.is_discard:
                shown.append(_Packet(packet.pts, packet.dts, packet.is_keyframe))
    if not shown:
        raise ValueError("no frame in its video stream")
    # An AVI counts the frames that were dropped too.
    if found < promised and (lost or container.format.name != "avi"):
        raise ValueError(f"truncated: {promised} frames are announced and {found} are there")
    # Matroska announces no number of frames.
    if lost and "matroska" in container.format.name:
        raise ValueError(f"truncated: it ends {lost} bytes early")
    return shown


def _lost_bytes(source: File) -> int:
    """How much of a Matroska or RIFF (AVI) file is missing at its end; 0 where it does not say, as live ones do."""
    with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as file:
        length, end = file.seek(0, os.SEEK_END), 0
        file.seek(0)
        magic = file.read(4)
        while magic == b"RIFF":  # large files have several, one behind the other
            end += 8 + int.from_bytes(file.read(4), "little")
            file.seek(end)
            magic = file.read(4)
        if magic == _EBML:
            file.seek(0)
            while file.tell() < length:
                (kind, _), (size, unknown) = _ebml_number(file), _ebml_number(file)
                if kind == _SEGMENT:
                    end = 0 if size == unknown else file.tell() + size
                    break
                file.seek(size, os.SEEK_CUR)
    return max(end - length, 0)


def _ebml_number(file: io.BytesIO | io.BufferedReader) -> tuple[int, int]:
    """A number of Matroska, whose first byte says how long it is, and the largest of this length: "unknown"."""
    first = file.read(1)
    count = 9 - int.from_bytes(first, "big").bit_length()
    most = (1 << 7 * count) - 1
    return int.from_bytes(first + file.read(count - 1), "big") & most, most


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
                    yield Decoded(frame.to_image(), orientation).all()
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
