"""Clips give exactly the frames that are shown at the times that are asked for, or one line that says what is wrong."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from pictures import STORED, UPRIGHT, encoded, exif, noise
from PIL import Image
from transformers import Qwen3VLVideoProcessor
from transformers.video_utils import VideoMetadata

from mrope import family
from mrope.families.sampling import QWEN_VL_UTILS, Sampling
from mrope.vision import Clip, clip_of, measure_clip, patchify_video, plan_video, read_clip

MILLISECOND = Fraction(1, 1000)
UNEVEN = [0, 100, 150, 1000, 4000, 4100, 4200, 6000, 6500, 9000]  # when frames are shown, in milliseconds
LOSSLESS: dict[str, Any] = {"kind": "mov", "codec": "png", "pixels": "rgb24"}


def pictures(count: int, height: int = 48, width: int = 64) -> list[np.ndarray]:
    """Frames that differ in brightness, each with a ramp to the right and another one downwards."""
    rows, cols = np.mgrid[:height, :width]
    ramps = np.stack([rows, cols, rows + 2 * cols], axis=-1)
    return [((ramps + 29 * number) % 256).astype(np.uint8) for number in range(count)]


def video(
    frames: Sequence[np.ndarray],
    times: Sequence[int] | None = None,
    *,
    tick: Fraction | None = None,
    rate: Fraction = Fraction(30),
    kind: str = "mp4",
    codec: str = "libx264",
    pixels: str = "yuv420p",
    options: dict[str, str] | None = None,
    container: dict[str, str] | None = None,
    sound: int = 0,
) -> bytes:
    """A file of frames, which are shown at `times` in ticks, with so many seconds of sound."""
    file = io.BytesIO()
    with av.open(file, "w", format=kind, options=container or {}) as output:
        stream: Any = output.add_stream(codec, rate=rate)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = pixels
        stream.codec_context.time_base = tick or 1 / rate
        stream.options = {"g": "12"} if options is None else options
        if sound:
            add_sound(output, sound, "libopus" if kind == "webm" else "pcm_s16le")
        for number, values in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(values, format="rgb24")
            frame.pts = number if times is None else times[number]
            frame.time_base = tick or 1 / rate
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return file.getvalue()


def add_sound(output: Any, seconds: int = 2, codec: str = "pcm_s16le") -> None:
    stream = output.add_stream(codec, rate=8000, layout="mono")
    frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000 * seconds), np.int16), format="s16", layout="mono")
    frame.sample_rate, frame.pts = 8000, 0
    output.mux(stream.encode(frame))
    output.mux(stream.encode(None))


def decoded(data: bytes) -> list[np.ndarray]:
    """All frames in order, by a plain decoder."""
    with av.open(io.BytesIO(data)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def rows(clip: Clip) -> np.ndarray:
    """(t, h, w, 3)"""
    return clip.frames.permute(0, 2, 3, 1).numpy()


def animation(kind: str, count: int, durations: int | list[int], **options: Any) -> bytes:
    images = [Image.fromarray(picture) for picture in pictures(count, 20, 36)]
    lossless = {"lossless": True} if kind == "WEBP" else {}
    return encoded(images[0], kind, save_all=True, append_images=images[1:], duration=durations, **lossless, **options)


def test_frames_lie_interleaved_and_are_the_ones_that_were_written(tmp_path: Path) -> None:
    written = pictures(7, 33, 47)  # odd sides
    path = tmp_path / "clip.mov"
    path.write_bytes(video(written, **LOSSLESS))
    for source in (path, str(path), path.read_bytes()):
        clip = read_clip(source, indices=[0, 3, 4, 4, 6])
        np.testing.assert_array_equal(rows(clip), np.stack([written[index] for index in (0, 3, 4, 4, 6)]))
        assert clip.frames.dtype == torch.uint8
        assert clip.frames.stride() == (33 * 47 * 3, 1, 47 * 3, 3)
        assert clip.indices == (0, 3, 4, 4, 6)
        assert clip.seconds.tolist() == [index / 30 for index in clip.indices or ()]
        assert (clip.fps, clip.orientation) == (30, 1)
        assert clip.source == (None if isinstance(source, bytes) else str(path))


KINDS: dict[str, dict[str, Any]] = {
    "mp4": {},
    "mp4-fragmented": {"container": {"movflags": "frag_keyframe+empty_moov"}},
    "mkv": {"kind": "matroska"},
    "mpegts": {"kind": "mpegts"},
    "avi": {"kind": "avi"},
    "avi-mpeg4": {"kind": "avi", "codec": "mpeg4"},
    "webm-vp8": {"kind": "webm", "codec": "libvpx", "options": {"g": "12", "auto-alt-ref": "1", "lag-in-frames": "16"}},
    "webm-vp9": {"kind": "webm", "codec": "libvpx-vp9"},
    "h265": {"codec": "libx265", "options": {"x265-params": "log-level=none:keyint=12"}},
    "bare-h264": {"kind": "h264"},
    "open-gop": {"options": {"x264-params": "open-gop=1:keyint=12:bframes=3"}},
    "intra-refresh": {"options": {"x264-params": "intra-refresh=1:keyint=12"}},
    "mpeg2": {"kind": "mpegts", "codec": "mpeg2video", "options": {"g": "12", "bf": "2"}},
    "one-key-frame": {"options": {"g": "999"}},
    "with-sound": {"kind": "mov", "sound": 2},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_frame_equals_a_plain_decoder(kind: str) -> None:
    data = video(pictures(50), **KINDS[kind])
    every = decoded(data)
    assert len(every) == 50
    for picks in (list(range(50)), [0, 49], [13], [11, 12, 24, 35, 36, 37], [5, 6, 30, 31]):
        clip = read_clip(data, indices=picks)
        np.testing.assert_array_equal(rows(clip), np.stack([every[index] for index in picks]))
        assert clip.seconds.tolist() == [index / 30 for index in picks]
    size = measure_clip(data)
    assert (size.frames, size.height, size.width, size.fps) == (50, 48, 64, 30)
    assert size.duration == pytest.approx(50 / 30)


@pytest.mark.parametrize("kind", ["mp4", "matroska", "mpegts"])
@pytest.mark.parametrize("rate", [Fraction(24000, 1001), Fraction(25), Fraction(30000, 1001)], ids=str)
def test_broken_rates_keep_exact_times(kind: str, rate: Fraction) -> None:
    clip = read_clip(video(pictures(90), rate=rate, kind=kind), family("qwen3-vl"))
    assert clip.fps == float(rate)
    assert clip.indices is not None
    assert clip.seconds.tolist() == [index / float(rate) for index in clip.indices or ()]


@pytest.mark.parametrize("kind", ["mp4", "matroska", "mpegts"])
def test_variable_frame_rate(kind: str) -> None:
    data = video(pictures(10), UNEVEN, tick=MILLISECOND, kind=kind)
    every = decoded(data)
    clip = read_clip(data, indices=range(10))
    np.testing.assert_array_equal(rows(clip), np.stack(every))
    assert clip.seconds.tolist() == pytest.approx([time / 1000 for time in UNEVEN], abs=1e-9)
    assert clip.fps == pytest.approx(1.0)  # nine steps in nine seconds
    # At 0, 2, 4, 7 and 9 s, the frames are shown that begin at 0, 1, 4, 6.5 and 9 s.
    clip = read_clip(data, frames=5)
    assert clip.indices == (0, 3, 4, 8, 9)
    np.testing.assert_array_equal(rows(clip), np.stack([every[index] for index in clip.indices or ()]))
    clip = read_clip(data, seconds=[0.12, 0.15, 3.9, 4, 9.5])
    assert clip.indices == (1, 2, 3, 4, 9)
    np.testing.assert_array_equal(rows(clip), np.stack([every[index] for index in clip.indices or ()]))
    # From 3 to 6.2 s, frame 3 (until 4 s) and frames 4 to 7 are on screen: two of them, at 3 s and at 6 s.
    clip = read_clip(data, frames=2, start=3, end=6.2)
    assert clip.indices == (3, 7)
    assert clip.seconds.tolist() == [1, 6]  # when they begin


def test_frames_that_tremble_about_their_time_are_picked_by_number() -> None:
    times = [number * 40 + (7 if number % 3 else -7) + 7 for number in range(50)]
    clip = read_clip(video(pictures(50), times, tick=MILLISECOND), family("qwen3-vl"))
    assert clip.indices == tuple(family("qwen3-vl").sampling.indices(50, 49 / 1.974))  # pyright: ignore[reportOptionalMemberAccess]
    assert clip.seconds.tolist() == pytest.approx([times[index] / 1000 for index in clip.indices or ()], abs=1e-4)


def test_families_look_at_their_own_frames() -> None:
    data = video(pictures(75))
    every = decoded(data)
    for name in ("qwen2-vl", "qwen3-vl", "glm4v", "glm46v", "ernie4.5-vl", "minicpm-v4.7"):
        rule = family(name).sampling
        assert rule is not None
        clip = read_clip(data, family(name))
        assert clip.indices == tuple(rule.indices(75, 30))
        np.testing.assert_array_equal(rows(clip), np.stack([every[index] for index in clip.indices or ()]))
        assert read_clip(data, rule).indices == clip.indices
    assert read_clip(data, QWEN_VL_UTILS, fps=4, max_frames=6).indices == (0, 15, 30, 44, 59, 74)
    assert read_clip(data, frames=3).indices == (0, 37, 74)
    assert read_clip(data, fps=1).indices == (0, 74)
    assert read_clip(data, Sampling(rule="even")).indices == tuple(range(75))


def test_a_part_of_a_clip() -> None:
    data = video(pictures(90))
    clip = read_clip(data, family("qwen3-vl"), start=1, end=2)
    assert clip.indices == (30, 40, 49, 59)
    assert clip.seconds.tolist() == [index / 30 for index in clip.indices or ()]
    assert clip.rate == 4  # four frames of one second
    assert read_clip(data, frames=2, start=2.9).indices == (87, 89)
    assert read_clip(data, frames=2, end=0.1).indices == (0, 2)
    assert read_clip(data, frames=1, start=2.99, end=100).indices == (89,)


@pytest.mark.parametrize("kind", ["mp4", "matroska", "mpegts"])
def test_the_frame_on_screen_at_the_start_was_left_out(kind: str) -> None:
    data = video(pictures(10), UNEVEN, tick=MILLISECOND, kind=kind)
    every = decoded(data)
    for start, expected in ((0, 0), (0.1, 1), (0.999, 2), (1, 3), (2.5, 3), (3.9999999, 4), (8.999, 8), (9.5, 9)):
        clip = read_clip(data, frames=1, start=start)
        assert clip.indices == (expected,)
        np.testing.assert_array_equal(rows(clip)[0], every[expected])
    # From 1.5 to 4.15 s, frames 3, 4 and 5 are on screen, from 1.5, 4 and 4.1 s on: 1.3 s from one to the next.
    assert read_clip(data, frames=3, start=1.5, end=4.15).indices == (3, 3, 5)
    steady = video(pictures(30, 20, 36), rate=Fraction(10))
    assert read_clip(steady, frames=3, start=0.55, end=0.8).indices == (5, 6, 7)  # from 0.5 s on, until 0.8 s


@pytest.mark.parametrize(
    ("times", "fault"),
    [
        ({"start": float("nan")}, "start is nan; expected a finite number of seconds from 0 on"),
        ({"start": -0.5}, "start is -0.5; expected a finite number of seconds from 0 on"),
        ({"start": float("inf")}, "start is inf; expected a finite number of seconds from 0 on"),
        ({"end": float("nan")}, "end is nan; expected a finite number of seconds from 0 on"),
        ({"end": float("inf")}, "end is inf; expected a finite number of seconds from 0 on"),
        ({"end": -1}, "end is -1; expected a finite number of seconds from 0 on"),
        ({"start": 0.2, "end": 0.2}, "end is 0.2; expected seconds after start=0.2"),
        ({"start": 0.2, "end": 0.1}, "end is 0.1; expected seconds after start=0.2"),
        ({"end": 0}, "end is 0; expected seconds after start=0"),
        ({"start": 1}, "start is 1; the clip is over at 1 seconds"),
    ],
    ids=str,
)
def test_times_that_are_none(times: dict[str, Any], fault: str) -> None:
    for data in (video(pictures(10, 20, 36), rate=Fraction(10)), animation("GIF", 10, 100)):
        with pytest.raises(ValueError, match=rf"^clip of \d+ bytes: {fault}$"):
            read_clip(data, fps=1, **times)
    single = encoded(Image.fromarray(noise(20, 36)), "PNG")
    for moment in (float("nan"), float("inf"), -1):
        for source in (single, animation("GIF", 10, 100)):
            with pytest.raises(ValueError, match=r"one of seconds is (nan|inf|-1); expected a finite"):
                read_clip(source, seconds=[0, moment])
    wrong: dict[str, Any]
    for wrong in ({"fps": 1, "start": "1"}, {"fps": 1, "end": [1]}, {"seconds": ["1"]}, {"seconds": 1}, {"indices": 1}):
        with pytest.raises(TypeError):
            read_clip(single, **wrong)


@pytest.mark.parametrize("kind", ["mp4", "matroska", "mpegts", "avi"])
def test_one_answer_for_the_rate_of_a_clip_whose_rate_varies(kind: str) -> None:
    frames = pictures(10)
    uneven = video(frames, UNEVEN, tick=MILLISECOND, kind=kind, options={"bf": "0"})
    late = video(frames, [*range(9), 9 + 60], rate=Fraction(10), kind=kind, options={"bf": "0"})
    for data, fps in ((uneven, 9 / 9), (late, 9 / 6.9)):
        size, clip = measure_clip(data), read_clip(data, indices=range(10))
        assert (size.frames, size.fps) == (len(clip.frames), clip.fps)
        assert size.fps == pytest.approx(fps)
        assert size.duration == pytest.approx(10 / fps)
    steady = video(frames, rate=Fraction(24000, 1001), kind=kind)
    assert measure_clip(steady).fps == read_clip(steady, frames=1).fps == 24000 / 1001


def test_transformers_picks_the_frames_of_an_uneven_clip_by_number() -> None:
    data = video(pictures(10), UNEVEN, tick=MILLISECOND)  # a mean of one frame a second
    every = decoded(data)
    rule = Sampling(rule="even", fps=0.5, min_frames=4, max_frames=768)
    theirs = Qwen3VLVideoProcessor(fps=0.5).sample_frames(VideoMetadata(total_num_frames=10, fps=1.0))
    # Five frames over ten: 0, 2.25, 4.5, 6.75 and 9, rounded half to even.
    assert theirs.tolist() == rule.indices(10, 1) == [0, 2, 4, 7, 9]
    # At 0, 2, 4, 7 and 9 s, the frames are on screen that begin at 0, 1, 4, 6.5 and 9 s.
    clip = read_clip(data, rule)
    assert clip.indices == (0, 3, 4, 8, 9)
    np.testing.assert_array_equal(rows(clip), np.stack([every[index] for index in clip.indices or ()]))


def test_only_what_is_needed_is_decoded() -> None:
    data = bytearray(video(pictures(48), options={"x264-params": "keyint=12:scenecut=0:open-gop=0"}))
    with av.open(io.BytesIO(bytes(data))) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
        damaged = [(packet.pos, packet.size) for packet in packets[12:24]]
    whole = decoded(bytes(data))
    for place, size in damaged:
        assert place is not None
        data[place : place + size] = bytes(size)
    clip = read_clip(bytes(data), indices=[3, 24, 25, 40])
    np.testing.assert_array_equal(rows(clip), np.stack([whole[index] for index in (3, 24, 25, 40)]))
    with pytest.raises(ValueError, match=r"clip of \d+ bytes: (broken or unreadable clip|truncated or broken)"):
        read_clip(bytes(data), indices=[15])


def moving(count: int) -> list[np.ndarray]:
    """Coloured squares that move to the right, whose every frame is built on the one before."""
    squares = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
    return [np.roll(squares, 3 * number, 1) for number in range(count)]


@pytest.mark.parametrize("kind", ["mp4", "matroska", "mpegts"])
def test_periodic_intra_refresh_gave_other_frames(kind: str) -> None:
    data = video(moving(90), kind=kind, options={"x264-params": "intra-refresh=1:keyint=20"})
    every = decoded(data)
    with av.open(io.BytesIO(data)) as container:
        assert sum(packet.is_keyframe for packet in container.demux(video=0)) >= 3  # all but one build up bit by bit
    for picks in (*([number] for number in range(0, 90, 3)), [0, 89], [22, 51, 64], list(range(40, 60)), range(90)):
        clip = read_clip(data, indices=picks)
        np.testing.assert_array_equal(rows(clip), np.stack([every[index] for index in picks]))


def test_files_that_were_joined_lost_half_of_their_frames(tmp_path: Path) -> None:
    dark, bright = ([np.full((48, 64, 3), value, np.uint8)] * 30 for value in (40, 200))
    for lengths in ((30, 30), (30, 20), (20, 30)):
        path = tmp_path / "joined.ts"
        path.write_bytes(b"".join(video(f[:n], kind="mpegts") for f, n in zip((dark, bright), lengths, strict=True)))
        reads: Any
        for reads in (measure_clip, lambda path: read_clip(path, fps=5)):
            with pytest.raises(
                ValueError, match=r"joined\.ts: its times go back from [0-9.]+ to 0 seconds, as in file"
            ):
                reads(path)


def test_frames_before_the_first_key_frame_were_others() -> None:
    data = video(moving(50), kind="mpegts", options={"x264-params": "keyint=12:scenecut=0:bframes=0"})
    with av.open(io.BytesIO(data)) as container:
        places = [packet.pos for packet in container.demux(video=0) if packet.size]
    assert places[0] is not None
    data = data[: places[0]] + data[places[5] :]  # a recording that begins between two key frames
    every = decoded(data)
    assert len(every) == 50 - 12
    clip = read_clip(data, indices=range(38))
    np.testing.assert_array_equal(rows(clip), np.stack(every))
    assert clip.seconds.tolist() == pytest.approx([number / 30 for number in range(38)])
    assert measure_clip(data).frames == 38


def test_frames_that_vp8_does_not_show_were_counted() -> None:
    data = bytearray(video(pictures(20), kind="webm", codec="libvpx"))
    with av.open(io.BytesIO(bytes(data))) as container:
        packet = [bytes(packet) for packet in container.demux(video=0) if packet.size][7]
    place = data.index(packet)
    data[place] &= ~0x10  # the bit that says that a frame is shown
    every = decoded(bytes(data))
    assert len(every) == measure_clip(bytes(data)).frames == 19
    clip = read_clip(bytes(data), indices=range(19))
    np.testing.assert_array_equal(rows(clip), np.stack(every))
    assert clip.seconds[6:8].tolist() == pytest.approx([6 / 30, 8 / 30], abs=1e-3)


def test_damaged_frames_came_back_as_good(tmp_path: Path) -> None:
    whole = video(moving(48), options={"x264-params": "keyint=12:scenecut=0:open-gop=0:bframes=0"})
    every, seen = decoded(whole), 0
    with av.open(io.BytesIO(whole)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    path = tmp_path / "damaged.mp4"
    for number in (14, 15, 16, 17, 18, 19):
        place, size = packets[number]
        assert place is not None
        data = bytearray(whole)
        for byte in range(place + size // 2, place + size // 2 + 4):
            data[byte] ^= 0xFF
        path.write_bytes(data)
        with av.open(str(path)) as container:
            marked = [frame.is_corrupt for frame in container.decode(video=0)]
        if not any(marked):  # the decoder does not notice it
            continue
        seen += 1
        assert marked.index(True) == number
        with pytest.raises(ValueError, match=rf"^{path}: frame {number} is damaged$"):
            read_clip(path, frames=48)
        with pytest.raises(ValueError, match=rf"^{path}: frame {number} is damaged, and frame 23 is built on it$"):
            read_clip(path, indices=[23])
        clip = read_clip(path, indices=[0, number - 1, 24, 47])
        np.testing.assert_array_equal(rows(clip), np.stack([every[index] for index in (0, number - 1, 24, 47)]))
    assert seen


def test_a_size_that_changes_midway_is_told_with_the_name(tmp_path: Path) -> None:
    path = tmp_path / "grows.h264"
    path.write_bytes(video(pictures(5), kind="h264") + video(pictures(5, 96, 80), kind="h264"))
    reads: Any
    for reads in (
        lambda: read_clip(path, indices=range(10)),
        lambda: patchify_video(path, family("qwen3-vl"), frames=10),
    ):
        with pytest.raises(
            ValueError, match=rf"^{path}: frame 5 is \(96, 80\) \(height, width\), the first one \(48, 6"
        ):
            reads()
    assert read_clip(path, indices=[0, 4]).frames.shape == (2, 3, 48, 64)


TRANSPARENT = {
    "qtrle": ("mov", "argb"),
    "png": ("mov", "rgba"),
    "libvpx-vp9": ("webm", "yuva420p"),
    "libvpx": ("webm", "yuva420p"),
    "prores_ks": ("mov", "yuva444p10le"),
}


@pytest.mark.parametrize("codec", TRANSPARENT)
def test_transparent_videos_lay_over_black(codec: str) -> None:
    if codec not in av.codecs_available:
        pytest.skip(f"PyAV was built without {codec}")
    kind, pixels = TRANSPARENT[codec]
    written = []
    for number in range(4):
        picture = np.zeros((32, 48, 4), np.uint8)
        picture[8:24, 8 * number : 8 * number + 16] = (255, 0, 0, 255)
        picture[24:, :16] = (0, 0, 255, 128)
        written.append(picture)
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as output:
        stream: Any = output.add_stream(codec, rate=10)
        stream.height, stream.width, stream.pix_fmt = 32, 48, pixels
        stream.options = {"auto-alt-ref": "0", "b": "2M"} if codec == "libvpx" else {}
        for picture in written:
            output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgba").reformat(format=pixels)))
        output.mux(stream.encode(None))
    clip = read_clip(file.getvalue(), indices=[0, 1, 2, 3])
    white = Image.new("RGBA", (48, 32), "white")
    laid = [Image.alpha_composite(white, Image.fromarray(picture)).convert("RGB") for picture in written]
    over = np.stack([np.array(picture) for picture in laid])
    if codec in ("qtrle", "png"):
        np.testing.assert_array_equal(rows(clip), over)
    # Away from the edges, which lossy coding blurs.
    for place in ((4, 4), (16, 44), (4, 44), (28, 6)):
        np.testing.assert_allclose(rows(clip)[0][place].astype(int), over[0][place].astype(int), atol=12)


SCREEN = [*range(0, 1000, 40), *range(10000, 11000, 40)]  # 25 frames in the first second, 25 in the eleventh


@pytest.mark.parametrize("kind", ["mp4", "matroska", "mpegts"])
def test_a_window_over_a_still_picture_had_too_few_moments(kind: str) -> None:
    data = video(pictures(50), SCREEN, tick=MILLISECOND, kind=kind)
    clip = read_clip(data, fps=2, end=10)
    # 20 moments of ten seconds, the first four at 0, 0.44, 1.11 (frame 24 stays until 10 s) and 1.56 s: the rule sees
    # 45 frames, 4.5 a second, and takes 0, 2, 5, 7, ...
    assert clip.indices == (0, 11, *[24] * 18)
    assert clip.rate == pytest.approx(2)
    assert plan_video(clip, family("qwen2.5-vl")).seconds == pytest.approx(1)
    for start, end, count in ((2, 8, 12), (0, 5, 10), (1, 10, 18), (0, 1, 2), (10, 11, 2), (9.5, 10.5, 2)):
        clip = read_clip(data, fps=2, start=start, end=end)
        assert len(clip.frames) == count
        assert clip.rate == pytest.approx(2)
    clip = read_clip(data, fps=10, start=0, end=1)  # as many as are there, however few the mean rate has
    assert clip.indices == (0, 3, 5, 8, 11, 13, 16, 19, 21, 24)
    clip = read_clip(data, frames=2, start=9.5, end=10.04)
    assert (clip.indices, clip.rate) == ((24, 25), pytest.approx(2 / 0.54))


def test_a_window_over_an_animation_whose_frames_last_unevenly() -> None:
    data = animation("GIF", 4, [100, 100, 100, 2700])
    clip = read_clip(data, fps=1)
    # Three moments of three seconds; the rule sees four frames, 4/3 a second, the last one at 2.25 s.
    assert (clip.indices, clip.rate) == ((0, 3, 3), pytest.approx(1))
    clip = read_clip(data, fps=1, start=1, end=3)
    assert (clip.indices, clip.rate) == ((3, 3), pytest.approx(1))
    assert read_clip(data, seconds=[2.9]).indices == (3,)  # it is over at 3 s, not at 0.3 s + 0.75 s


def test_the_rate_of_moments_that_were_asked_for_came_from_the_frames_found() -> None:
    data = video(pictures(50), SCREEN, tick=MILLISECOND)
    clip = read_clip(data, seconds=[number / 2 for number in range(20)])
    assert clip.rate == 2
    assert plan_video(clip, family("qwen2.5-vl")).seconds == 1
    assert clip.seconds[-1] == pytest.approx(0.96)
    assert read_clip(data, seconds=[3]).rate is None
    assert read_clip(data, indices=[0, 24]).rate == pytest.approx(1 / 0.96)


MATRICES = {
    1: (1, 0, 0, 1),
    2: (-1, 0, 0, 1),
    3: (-1, 0, 0, -1),
    4: (1, 0, 0, -1),
    5: (0, 1, 1, 0),
    6: (0, 1, -1, 0),
    7: (0, -1, -1, 0),
    8: (0, -1, 1, 0),
}


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_frames_are_turned_as_the_file_says(orientation: int) -> None:
    stored = np.array(STORED, np.uint8)[..., None].repeat(3, axis=2).repeat(8, axis=0).repeat(8, axis=1) * 40
    data = bytearray(video([stored] * 3, **LOSSLESS))
    place = data.index(b"tkhd") + 44  # ISO 14496-12, section 8.3.2: the matrix of a track
    a, b, c, d = (65536 * sign for sign in MATRICES[orientation])
    data[place : place + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    clip = read_clip(bytes(data), indices=[2])
    upright = np.array(UPRIGHT[orientation], np.uint8)[..., None].repeat(3, axis=2).repeat(8, axis=0).repeat(8, axis=1)
    np.testing.assert_array_equal(rows(clip)[0], upright * 40)
    assert clip.orientation == orientation
    assert (measure_clip(bytes(data)).height, measure_clip(bytes(data)).width) == upright.shape[:2]


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_rotation_that_a_writer_sets(degrees: int) -> None:
    file = io.BytesIO()
    picture = pictures(1, 16, 24)[0]
    with av.open(file, "w", format="mov") as output:
        stream: Any = output.add_stream("png", rate=30)
        stream.height, stream.width, stream.pix_fmt = 16, 24, "rgb24"
        stream.set_display_rotation(degrees)
        output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        output.mux(stream.encode(None))
    with av.open(io.BytesIO(file.getvalue())) as container:
        turn = next(container.decode(video=0)).rotation  # degrees against the clock
    assert turn % 360 == degrees
    clip = read_clip(file.getvalue(), indices=[0])
    np.testing.assert_array_equal(rows(clip)[0], np.rot90(picture, degrees // 90))


@pytest.mark.parametrize("name", ["qwen2-vl", "qwen3-vl", "glm4v", "glm46v", "glmga", "ernie4.5-vl", "minicpm-v4.7"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_very_short_clips(name: str, count: int) -> None:
    record = family(name)
    clip = read_clip(video(pictures(count)), record)
    assert len(clip.frames) % record.sampling.multiple == 0  # pyright: ignore[reportOptionalMemberAccess]
    assert len(clip.steps(record.temporal_patch)) == -(-len(clip.frames) // record.temporal_patch)
    assert measure_clip(video(pictures(count))).frames == count


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_animated_pictures(kind: str) -> None:
    data = animation(kind, 6, 200)
    with Image.open(io.BytesIO(data)) as image:
        every = []
        for number in range(6):
            image.seek(number)
            every.append(np.array(image.convert("RGB")))
    clip = read_clip(data, frames=3)
    assert clip.indices == (0, 2, 5)
    np.testing.assert_array_equal(rows(clip), np.stack([every[index] for index in clip.indices or ()]))
    assert clip.seconds.tolist() == [index / 5 for index in clip.indices or ()]
    assert (clip.fps, clip.rate) == (5, 2.5)
    assert clip.frames.stride() == (20 * 36 * 3, 1, 36 * 3, 3)
    size = measure_clip(data)
    assert (size.frames, size.height, size.width, size.fps) == (6, 20, 36, 5)
    assert size.duration == pytest.approx(1.2)


def test_animation_whose_frames_last_unevenly() -> None:
    data = animation("WEBP", 4, [100, 500, 100, 300])
    clip = read_clip(data, indices=range(4))
    assert clip.seconds.tolist() == pytest.approx([0, 0.1, 0.6, 0.7])
    assert clip.fps == pytest.approx(4)
    assert read_clip(data, seconds=[0.05, 0.3, 0.6, 0.9]).indices == (0, 1, 2, 3)


def test_animation_that_does_not_say_how_long_its_frames_last(tmp_path: Path) -> None:
    path = tmp_path / "timeless.gif"
    path.write_bytes(animation("GIF", 3, 0))
    with pytest.raises(ValueError, match=r"timeless\.gif: it does not say how long its frames last; .* clip_of"):
        read_clip(path, frames=2)
    size = measure_clip(path)
    assert (size.frames, size.fps, size.duration) == (3, None, None)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_one_frame_without_a_duration_refused_the_whole_animation(kind: str) -> None:
    for untold in range(3):
        durations = [200 if number != untold else 0 for number in range(3)]
        data = animation(kind, 3, durations)
        begins = [0.0, 0.1 if untold == 0 else 0.2, 0.4 if untold == 2 else 0.3]
        clip = read_clip(data, indices=range(3))
        assert clip.seconds.tolist() == pytest.approx(begins)
        assert clip.fps == pytest.approx(3 / 0.5)
        assert measure_clip(data).duration == pytest.approx(0.5)


def test_the_default_picture_of_an_apng_was_its_first_frame() -> None:
    written = pictures(4, 20, 36)
    images = [Image.fromarray(picture) for picture in written]
    data = encoded(images[0], "PNG", save_all=True, append_images=images[1:], duration=200, default_image=True)
    clip = read_clip(data, indices=[0, 1, 2])
    np.testing.assert_array_equal(rows(clip), np.stack(written[1:]))
    assert (clip.fps, clip.seconds.tolist()) == (5, [0, 0.2, 0.4])
    assert measure_clip(data).frames == 3


def test_a_single_picture_is_a_clip_of_one_frame() -> None:
    picture = Image.fromarray(noise(20, 30))
    clip = read_clip(encoded(picture, "PNG", exif=exif(6)), family("qwen3-vl"))
    np.testing.assert_array_equal(rows(clip)[0], np.rot90(np.array(picture), -1))
    assert (clip.seconds.tolist(), clip.fps, clip.rate, clip.orientation) == ([0.0], None, None, 6)
    assert clip.seconds_per_step(2) is None
    assert clip.stamps(family("qwen3-vl")) == ["<0.0 seconds>"]


def sound_only() -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="wav") as output:
        add_sound(output)
    return file.getvalue()


def truncated(tmp_path: Path, kind: str) -> bytes:
    path = tmp_path / f"whole.{kind}"
    with av.open(str(path), "w", options={"movflags": "faststart"} if kind == "mp4" else {}) as output:
        stream: Any = output.add_stream("libx264", rate=30)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        for values in [noise(48, 64) for _ in range(90)]:
            output.mux(stream.encode(av.VideoFrame.from_ndarray(values, format="rgb24")))
        output.mux(stream.encode(None))
    data = path.read_bytes()
    return data[: len(data) // 2]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("empty", "the file is empty"),
        ("text", r"broken or unreadable clip \(Invalid data"),
        ("headless", r"broken or unreadable clip \(Invalid data"),
        ("sound", "no video stream in it"),
        ("half-mp4", r"truncated: 90 frames are announced and \d+ are there"),
        ("half-mkv", r"truncated: it ends \d+ bytes early"),
        ("half-avi", r"truncated: 90 frames are announced and \d+ are there"),
        ("playlist", "broken or unreadable clip"),
        ("concat", "broken or unreadable clip"),
    ],
)
def test_bad_files_are_named_in_one_line(tmp_path: Path, name: str, fault: str) -> None:
    whole = tmp_path / "whole.mp4"
    whole.write_bytes(video(pictures(10)))
    contents = {
        "empty": lambda: b"",
        "text": lambda: b"no clip at all" * 20,
        "headless": lambda: whole.read_bytes().partition(b"moov")[0],  # the index of an MP4, at its end
        "sound": sound_only,
        "half-mp4": lambda: truncated(tmp_path, "mp4"),
        "half-mkv": lambda: truncated(tmp_path, "mkv"),
        "half-avi": lambda: truncated(tmp_path, "avi"),
        "playlist": lambda: f"#EXTM3U\n#EXTINF:5,\n{whole}\n#EXT-X-ENDLIST\n".encode(),
        "concat": lambda: f"ffconcat version 1.0\nfile {whole}\n".encode(),
    }
    path = tmp_path / f"bad-{name}.mp4"
    path.write_bytes(contents[name]())
    with pytest.raises(ValueError, match=rf"^{path}: {fault}") as caught:
        read_clip(path, frames=3)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=rf"^clip of {path.stat().st_size} bytes: {fault}"):
        read_clip(path.read_bytes(), frames=3)


FILMS: dict[str, dict[str, Any]] = {
    "mkv": {"kind": "matroska"},
    "mkv-b-frames": {"kind": "matroska", "options": {"x264-params": "open-gop=1:keyint=12:bframes=3"}},
    "mkv-uneven": {"kind": "matroska", "times": UNEVEN, "tick": MILLISECOND},
    "mkv-short-sound": {"kind": "matroska", "sound": 1},
    "mkv-long-sound": {"kind": "matroska", "sound": 6},
    "webm": {"kind": "webm", "codec": "libvpx-vp9"},
    "webm-vp8": {"kind": "webm", "codec": "libvpx", "options": {"auto-alt-ref": "1", "lag-in-frames": "16"}},
    "webm-uneven": {"kind": "webm", "codec": "libvpx-vp9", "times": UNEVEN, "tick": MILLISECOND},
    "webm-short-sound": {"kind": "webm", "codec": "libvpx-vp9", "sound": 1},
    "webm-long-sound": {"kind": "webm", "codec": "libvpx-vp9", "sound": 6},
}


@pytest.mark.parametrize("film", FILMS)
def test_matroska_that_lacks_its_last_moments_was_read(film: str) -> None:
    frames = pictures(10 if "times" in FILMS[film] else 50)
    data = video(frames, **FILMS[film])
    assert measure_clip(data).frames == len(frames)
    for missing in (1, 40, 300, len(data) // 4):  # the index at the end, and more and more frames
        with pytest.raises(ValueError, match=rf"^clip of {len(data) - missing} bytes: truncated: it ends {missing} b"):
            read_clip(data[:-missing], frames=2)
        with pytest.raises(ValueError, match="truncated: it ends"):
            measure_clip(data[:-missing])
    # What is written while it is sent announces nothing, and may end anywhere.
    live = video(frames, **FILMS[film], container={"live": "1"})
    assert measure_clip(live).frames == len(frames)
    assert measure_clip(live[: -len(live) // 4]).frames < len(frames)
    assert measure_clip(data + b"more").frames == len(frames)


# In tenths of a second; what an AVI does not show anew, it holds as an empty chunk.
DROPPED = [0, 1, 2, 5, 6, 10, 11, 12, 13, 20]


@pytest.mark.parametrize("codec", ["mpeg4", "mjpeg"])
def test_avi_with_dropped_frames_was_called_truncated(codec: str) -> None:
    pixels = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    data = video(pictures(10), DROPPED, rate=Fraction(10), kind="avi", codec=codec, pixels=pixels)
    assert data.count(b"00dc" + bytes(4)) >= 11  # the empty chunks of 21 less 10
    every = decoded(data)
    clip = read_clip(data, indices=range(10))
    np.testing.assert_array_equal(rows(clip), np.stack(every))
    assert clip.seconds.tolist() == pytest.approx([tenth / 10 for tenth in DROPPED])
    assert clip.fps == pytest.approx(9 / 2)
    size = measure_clip(data)
    assert (size.frames, size.height, size.width, size.fps) == (10, 48, 64, clip.fps)
    assert read_clip(data, seconds=[0.2, 0.4, 0.5, 0.9, 1.9, 2.0]).indices == (2, 2, 3, 4, 8, 9)
    cut = data[: data.index(b"idx1") - 100]
    more = data + b"RIFF" + struct.pack("<I", 1000) + b"AVIX" + bytes(900)  # large files go on in another chunk
    for broken in (cut, more):
        with pytest.raises(ValueError, match=r"truncated: 21 frames are announced and (9|10) are there"):
            read_clip(broken, frames=2)


def test_one_frame_that_is_missing_among_even_ones() -> None:
    times = [0, 1, 2, 3, 4, 6, 7, 8]
    options: dict[str, Any]
    for options in ({"kind": "avi", "options": {"bf": "0"}}, LOSSLESS):
        data = video(pictures(8), times, rate=Fraction(5), **options)
        clip = read_clip(data, indices=range(8))
        assert clip.seconds.tolist() == pytest.approx([time / 5 for time in times])
        assert measure_clip(data).fps == clip.fps == pytest.approx(7 / 1.6)


def test_missing_files_and_wrong_types(tmp_path: Path) -> None:
    reads: Any
    for reads in (measure_clip, lambda source: read_clip(source, frames=2)):
        with pytest.raises(FileNotFoundError, match="nowhere"):
            reads(tmp_path / "nowhere.mp4")
        with pytest.raises(TypeError, match="a clip is a path or the bytes of a file; got a int"):
            reads(5)


def test_frames_beyond_the_limit_are_not_decoded() -> None:
    for data in (video(pictures(2)), animation("GIF", 2, 100)):
        with pytest.raises(ValueError, match=r"wide x .* high is more than max_pixels=100; max_pixels=\d+ would do"):
            read_clip(data, frames=2, max_pixels=100)


def test_arguments_that_contradict_each_other() -> None:
    data = video(pictures(10))
    with pytest.raises(ValueError, match="sampling is None; give a family, a Sampling, fps, frames"):
        read_clip(data)
    with pytest.raises(ValueError, match="sampling is None"):
        read_clip(data, start=1)
    with pytest.raises(ValueError, match="indices is a pick of its own; give it without fps"):
        read_clip(data, indices=[0], fps=2)
    with pytest.raises(ValueError, match="seconds is a pick of its own; give it without sampling"):
        read_clip(data, family("qwen3-vl"), seconds=[0])
    with pytest.raises(ValueError, match="frames is 4 together with fps"):
        read_clip(data, frames=4, fps=2)
    with pytest.raises(ValueError, match="sampling is neomme, a family that has no rule for clips"):
        read_clip(data, family("neomme"))
    for indices in ([10], [3, 2], []):
        with pytest.raises(ValueError, match=r"clip of .* bytes: indices are .*; expected ascending numbers below 10"):
            read_clip(data, indices=indices)
    for seconds in ([0.5], [], [0.2, 0.1]):
        with pytest.raises(ValueError, match=r"seconds are .*; expected ascending times from 0 to 0\.33"):
            read_clip(data, seconds=seconds)


def test_names_are_no_rules() -> None:
    data = video(pictures(10))
    for name in ("even", "qwen3-vl"):
        with pytest.raises(TypeError, match="sampling"):
            read_clip(data, name)  # pyright: ignore[reportArgumentType]


def test_more_frames_than_the_clip_has_were_repeated(tmp_path: Path) -> None:
    path = tmp_path / "short.mp4"
    path.write_bytes(video(pictures(9)))
    reads: Any
    for reads in (
        lambda frames: read_clip(path, frames=frames),
        lambda frames: read_clip(path, family("qwen2-vl"), frames=frames),
        lambda frames: plan_video(path, family("qwen3-vl"), frames=frames),
        lambda frames: patchify_video(path, family("qwen3-vl"), frames=frames),
    ):
        with pytest.raises(ValueError, match=r"short\.mp4: frames is 10, and there are 9; expected at most 9, or max_"):
            reads(10)
        reads(9)
    with pytest.raises(ValueError, match="frames is 4, and there are 3"):
        read_clip(path, frames=4, start=0.1, end=0.2)
    assert read_clip(path, max_frames=10).indices == tuple(range(9))
    assert read_clip(path, indices=[0, 0, 8]).indices == (0, 0, 8)  # who wants a frame twice says so


def test_rates_that_are_none() -> None:
    data = video(pictures(9))
    source: Any
    for source in (data, (9, 48, 64), np.zeros((9, 3, 48, 64), np.uint8)):
        for fps in (0, -2, float("nan"), float("inf")):
            with pytest.raises(ValueError, match=rf"fps is {fps:g}; expected a finite number above 0"):
                plan_video(source, family("qwen2.5-vl"), fps=fps)
        with pytest.raises(TypeError):
            plan_video(source, family("qwen2.5-vl"), fps="2")  # pyright: ignore[reportArgumentType]
    for frames in (0, -1):
        with pytest.raises(ValueError, match=rf"frames is {frames}; expected at least 1"):
            plan_video(data, family("qwen2.5-vl"), frames=frames)
    clip = read_clip(data, frames=2)
    with pytest.raises(ValueError, match="fps is 0; expected a finite number above 0"):
        Clip(frames=clip.frames, seconds=clip.seconds, fps=0)
    with pytest.raises(ValueError, match="rate is -1; expected a finite number above 0"):
        Clip(frames=clip.frames, seconds=clip.seconds, rate=-1)


def test_a_clip_is_not_sampled_again() -> None:
    clip = read_clip(video(pictures(30)), family("qwen3-vl"))
    assert read_clip(clip, family("qwen2-vl")) is clip
    assert read_clip(clip) is clip
    with pytest.raises(ValueError, match="source is a Clip, which was sampled already; frames needs the file"):
        read_clip(clip, frames=2)


def test_lists_of_frames(tmp_path: Path) -> None:
    frames = pictures(5, 10, 14)
    path = tmp_path / "frame.png"
    Image.fromarray(frames[1]).save(path)
    mixed = [frames[0], path, Image.fromarray(frames[2]), encoded(Image.fromarray(frames[3]), "PNG"), frames[4]]
    stacked = np.stack(frames)
    for given in (mixed, frames, stacked, torch.from_numpy(stacked).permute(0, 3, 1, 2)):
        clip = clip_of(given, fps=2)
        np.testing.assert_array_equal(rows(clip), stacked)
        assert clip.frames.stride() == (10 * 14 * 3, 1, 14 * 3, 3)
        assert clip.seconds.tolist() == [0, 0.5, 1, 1.5, 2]
        assert (clip.indices, clip.fps, clip.rate, clip.source) == (None, None, 2, None)
    clip = clip_of(frames, seconds=[0, 1, 5, 5, 8])
    assert (clip.seconds.tolist(), clip.rate) == ([0, 1, 5, 5, 8], 0.5)


def test_lists_that_make_no_clip(tmp_path: Path) -> None:
    frames = pictures(3, 10, 14)
    for times in ({}, {"fps": 2, "seconds": [0, 1, 2]}):
        with pytest.raises(ValueError, match=r"fps is .* and seconds is .*; expected one of them"):
            clip_of(frames, **times)
    with pytest.raises(ValueError, match=r"frame 2 is \(14, 10\) \(height, width\), those before it \(10, 14\)"):
        clip_of([*frames[:2], frames[2].transpose(1, 0, 2)], fps=2)
    with pytest.raises(ValueError, match="3 frames have 2 seconds; expected one a frame"):
        clip_of(frames, seconds=[0, 1])
    for seconds in ([0, 2, 1], [0, 1, float("nan")]):
        with pytest.raises(ValueError, match=r"seconds are .*; expected finite times that never go back"):
            clip_of(frames, seconds=seconds)
    with pytest.raises(ValueError, match="frames is empty"):
        clip_of([], fps=2)
    with pytest.raises(ValueError, match="fps is 0; expected a finite number above 0"):
        clip_of(frames, fps=0)
    with pytest.raises(TypeError, match="frames is one path or file"):
        clip_of(str(tmp_path / "clip.mp4"), fps=2)


def test_one_picture_was_taken_for_a_clip_of_its_rows() -> None:
    picture = noise(10, 3)
    array: Any
    for array in (picture, picture.transpose(2, 0, 1), picture[0], torch.from_numpy(picture), np.array(5)):
        with pytest.raises(ValueError, match=r"frames are of shape \(.*\); expected \(t, 3, h, w\) or \(t, h"):
            clip_of(array, fps=2)
    clip = clip_of([picture], fps=2)
    single: Any
    for single in (Image.fromarray(picture), clip, (frame for frame in [picture]), {"frame": picture}, 5):
        with pytest.raises(TypeError):
            clip_of(single, fps=2)
    assert clip_of([picture], fps=2).frames.shape == (1, 3, 10, 3)
    assert clip_of([noise(10, 14)[..., 0]] * 4, fps=2).frames.shape == (4, 3, 10, 14)  # gray


def test_steps() -> None:
    clip = clip_of(pictures(5, 6, 8), seconds=[0, 1, 3, 4, 8])
    assert clip.steps(1).tolist() == [0, 1, 3, 4, 8]
    assert clip.steps(2).tolist() == [0.5, 3.5, 8]
    assert clip.steps(2, time="first").tolist() == [0, 3, 8]
    assert clip.steps(3).tolist() == [1.5, 6]  # the last step: 4, 8 and 8 again
    with pytest.raises(ValueError, match="temporal_patch is 0; expected at least 1"):
        clip.steps(0)


@pytest.mark.parametrize("count", [7, 50, 75])
@pytest.mark.parametrize("fps", [0.7, 2, 5])
def test_seconds_per_step_equal_transformers(count: int, fps: float) -> None:
    clip = read_clip(video(pictures(count), kind="matroska"), family("qwen2.5-vl"), fps=fps)
    assert clip.indices is not None
    metadata = VideoMetadata(total_num_frames=count, fps=30.0, frames_indices=list(clip.indices))
    assert clip.seconds_per_step(2) == 2 / metadata.sampled_fps


def test_pyav_is_loaded_when_a_video_is_read() -> None:
    heavy = ("av", "PIL", "transformers")
    code = f"import sys, mrope.vision.loading.clips; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"clips are read through PyAV, .* pip install 'mrope\[video\]'"):
        measure_clip(b"\0" * 100)
