"""Video files through PyAV: what their containers say, and how to decode some of their frames.

A tick is a time in the unit of its stream, or the number of a frame where frames are counted.
"""

from __future__ import annotations

import io
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from torch import Tensor

from .decoded import Decoded
from .files import File, check_limit, name_of

if TYPE_CHECKING:
    from av import VideoCodecContext, VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream
    from PIL.Image import Image
else:
    Image = InputContainer = VideoCodecContext = VideoFrame = VideoStream = Any

_EBML = b"\x1a\x45\xdf\xa3"  # how Matroska files begin
_SEGMENT = 0x8538067  # the element of such a file that holds all the rest
# Decoders that show what is transparent, of codecs whose usual decoders do not.
_WITH_ALPHA = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
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


class Packet(NamedTuple):
    """What a packet of a film says: times in ticks at which its frame is shown and decoded."""

    pts: int | None
    dts: int | None
    is_keyframe: bool


def packets_of(container: InputContainer, stream: VideoStream, source: File) -> list[Packet]:
    """Each packet that holds a frame to be shown, without its data, in the order of decoding.

    Raises:
        ValueError: there is none, the end of the file is missing, or the times go back.
    """
    # An MP4 may show less than it holds; its index is of what is shown.
    promised = len(stream.index_entries) if "mp4" in container.format.name else stream.frames
    may_hide = stream.codec_context.name == "vp8"
    found, shown = 0, []
    for packet in container.demux(stream):
        if packet.size and not packet.is_corrupt:
            found += 1
            # VP8 may build a frame that is not shown; a bit of the packet says so (RFC 6386, section 9.1).
            if not packet.is_discard and not (may_hide and not bytes(packet)[0] & 0x10):
                shown.append(Packet(packet.pts, packet.dts, packet.is_keyframe))
    if not shown:
        raise ValueError("no frame in its video stream")
    # An AVI counts the frames that were dropped too.
    lost = _lost_bytes(source)
    if found < promised and (lost or container.format.name != "avi"):
        raise ValueError(f"truncated: {promised} frames are announced and {found} are there")
    # Matroska announces no number of frames.
    if lost and "matroska" in container.format.name:
        raise ValueError(f"truncated: it ends {lost} bytes early")
    for before, after in pairwise(packet.dts for packet in shown if packet.dts is not None):
        if after < before:
            base = float(stream.time_base or 1)
            raise ValueError(
                f"its times go back from {before * base:g} to {after * base:g} seconds, as in files that were joined; "
                "expected one clip (join them with a tool that writes new times)"
            )
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


def pictures_of(
    source: File, max_pixels: int, ticks: np.ndarray, keys: np.ndarray | None, orientation: int, wanted: np.ndarray
) -> Iterator[Tensor]:
    """The upright pixels (3, h, w) of the wanted frames, one after the other; most packets are not decoded.

    A decoder begins at the last key frame before each wanted frame. Some streams call frames key frames from which the
    picture is built up bit by bit (periodic intra refresh): what is asked for then does not come out, and the decoder
    begins one key frame earlier from there on, and at last at the first one. So a file is decoded three times at most.

    Args:
        source: the file.
        max_pixels: the most pixels of a frame.
        ticks: (total,) when each frame is shown, ascending.
        keys: ticks of the key frames, ascending; None where frames are counted, and all of them decoded.
        orientation: how the stored frames are turned, as in EXIF.
        wanted: numbers of frames, ascending, each once.

    Raises:
        ValueError: a frame is damaged, needs one that is, or does not come out.
    """
    left, damaged = ticks[wanted].tolist()[::-1], None
    for back in (0,) if keys is None else (0, 1, len(keys)):
        with video(source, max_pixels) as (container, stream):
            damaged = yield from _decoded(container, stream, keys, back, left, orientation)
        if not left:
            return
    number = int(np.searchsorted(ticks, left[-1]))
    if damaged is None:
        raise ValueError(f"truncated or broken: frame {number} does not come out of the decoder")
    first = int(np.searchsorted(ticks, damaged))
    raise ValueError(f"frame {first} is damaged" + (f", and frame {number} is built on it" if number != first else ""))


def _decoded(
    container: InputContainer,
    stream: VideoStream,
    keys: np.ndarray | None,
    back: int,
    left: list[int],
    orientation: int,
) -> Generator[Tensor, None, int | None]:
    """The frames at the ticks in `left`, the last of which comes first and is taken off, in one pass of the file.

    Each is decoded from the key frame that lies `back` key frames before its own. The pass ends at the first one that
    does not come out as it should; what is returned is the tick of the damaged frame in its way, if there is one.
    """

    def begin(tick: int) -> int:
        assert keys is not None
        return int(keys[max(int(np.searchsorted(keys, tick, "right")) - 1 - back, 0)])

    decoder = _decoder(stream)
    decoder.thread_type = "AUTO"
    feeding, fed, count, damaged = keys is None, None, 0, None
    for packet in container.demux(stream):
        if not feeding and packet.size:
            if packet.pts != begin(left[-1]):
                continue
            if fed is not None:
                decoder.flush_buffers()
            feeding, fed, damaged = True, packet.pts, None
        fed = packet.pts if packet.is_keyframe else fed
        for frame in decoder.decode(packet):
            tick, count = frame.pts if keys is not None else count, count + 1
            # Until the next key frame, frames are built on those before them.
            damaged = tick if frame.is_corrupt else None if frame.key_frame else damaged
            if tick is not None and tick > left[-1]:
                return None
            if tick == left[-1]:
                if damaged is not None:
                    return damaged
                yield Decoded(_image(frame), orientation).all()
                left.pop()
                if not left:
                    return None
        feeding = keys is None or fed is None or begin(left[-1]) <= fed
    return None


def _decoder(stream: VideoStream) -> VideoCodecContext:
    """The decoder of a stream, which shows what is transparent."""
    import av

    decoder = stream.codec_context
    name = _WITH_ALPHA.get(decoder.name)
    if stream.metadata.get("alpha_mode") == "1" and name in av.codecs_available:
        return cast(VideoCodecContext, av.CodecContext.create(name, "r"))
    return decoder


def _image(frame: VideoFrame) -> Image:
    """A frame as a PIL image, RGBA where it may be transparent."""
    if not any(component.is_alpha for component in frame.format.components):
        return frame.to_image()
    from PIL import Image

    return Image.fromarray(frame.to_ndarray(format="rgba"))


@contextmanager
def video(source: File, max_pixels: int) -> Iterator[tuple[InputContainer, VideoStream]]:
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


def first_frame(container: InputContainer, stream: VideoStream) -> tuple[tuple[int, int], int]:
    """The (height, width) of the first frame once it is upright, and its turn as an EXIF orientation."""
    for frame in container.decode(stream):
        orientation = 1
        for data in cast(Any, frame.side_data):
            if data.type.name == "DISPLAYMATRIX":
                matrix = np.frombuffer(bytes(data), np.int32)[[0, 1, 3, 4]]
                orientation = _ORIENTATIONS.get(tuple(np.sign(matrix).tolist()), 1)
        return (frame.width, frame.height) if orientation >= 5 else (frame.height, frame.width), orientation
    raise ValueError("no frame of it can be decoded")
