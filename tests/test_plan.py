"""Plans: the trained resize rules, the hard upper limit, headers, boxes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import STORED, UPRIGHT, encoded, exif, photograph, png_header
from PIL import Image
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as smart_resize_clip

from mrope import Family, family, family_names
from mrope.vision import Part, Plan, Resized, clip_of, plan, plan_sizes, plan_video, read_clip

QWEN2, QWEN25, QWEN3 = (family(name) for name in ("qwen2-vl", "qwen2.5-vl", "qwen3-vl"))
SIDES = st.one_of(st.integers(1, 300), st.integers(1, 6000))


def outcome(function: Any, *args: Any, **options: Any) -> Any:
    try:
        return function(*args, **options)
    except ValueError:
        return "refused"


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 40), SIDES, SIDES, st.integers(1, 100), st.integers(0, 2000))
def test_a_clip_has_the_published_size(frames: int, height: int, width: int, least: int, more: int) -> None:
    most = least + more
    limits = {"factor": 32, "min_pixels": least * 2048, "max_pixels": most * 2048}
    expected = outcome(smart_resize_clip, frames, height, width, temporal_factor=2, **limits)
    options = {"min_tokens": least, "max_tokens": most, "conflict": "family"}
    ours = outcome(plan_video, (frames, height, width), QWEN3, **options)
    assert (ours if ours == "refused" else ours.resized) == expected


def test_halves_round_to_even() -> None:
    assert plan((70, 98), QWEN2).resized == (56, 112)


@settings(max_examples=200, deadline=None)
@given(SIDES, SIDES, st.sampled_from([QWEN2, QWEN3]), st.integers(1, 300), st.integers(0, 300))
def test_a_plan_keeps_the_upper_limit_and_whole_tokens(
    height: int, width: int, family: Family, least: int, more: int
) -> None:
    most = least + more
    planned = outcome(plan, (height, width), family, min_tokens=least, max_tokens=most)
    if planned == "refused":
        # Only for a reason: no such picture, or the trained rule leaves more than the limit.
        limits = {"min_pixels": least * family.factor**2, "max_pixels": most * family.factor**2}
        resized = outcome(smart_resize, height, width, factor=family.factor, **limits)
        assert resized == "refused" or resized[0] * resized[1] > limits["max_pixels"]
        return
    assert planned.tokens <= most
    assert planned.resized[0] >= family.factor <= planned.resized[1]
    assert planned.resized == (planned.grid[1] * family.patch, planned.grid[2] * family.patch)


@pytest.mark.parametrize(
    ("family", "size", "most", "resized", "grid", "tokens"),
    [
        (QWEN25, (480, 640), None, (476, 644), (1, 34, 46), 391),
        (QWEN3, (1000, 1000), None, (992, 992), (1, 62, 62), 961),
        (QWEN2, (639, 31), 20, (560, 28), (1, 40, 2), 20),
        (QWEN2, (1080, 1920), None, (1092, 1932), (1, 78, 138), 2691),
        (QWEN2, (4032, 4032), None, (3584, 3584), (1, 256, 256), 16384),
        (QWEN3, (3024, 4032), None, (3008, 4032), (1, 188, 252), 11844),
        (QWEN2, (768, 1024), None, (756, 1036), (1, 54, 74), 999),
        (QWEN3, (768, 1024), None, (768, 1024), (1, 48, 64), 768),
        (QWEN2, (1, 1), None, (56, 56), (1, 4, 4), 4),
    ],
)
def test_worked_sizes(
    family: Family, size: tuple[int, int], most: int | None, resized: object, grid: object, tokens: int
) -> None:
    planned = plan(size, family, max_tokens=most)
    assert (planned.resized, planned.grid, planned.tokens) == (resized, grid, tokens)
    assert planned.original == size
    assert planned.factor == family.factor


@pytest.mark.parametrize(
    ("size", "options", "message"),
    [
        ((10, 2000), {"max_tokens": 20}, "max_tokens is 20, .* 812 wide x 28 high = 29 tokens; max_tokens=29 would do"),
        ((28, 5600), {"max_tokens": 20}, "1764 wide x 28 high = 63 tokens; max_tokens=198 would do"),
        ((100, 100), {"min_tokens": 20, "max_tokens": 20}, "140 wide x 140 high = 25 tokens; max_tokens=25 would do"),
        ((20, 10000), {}, "10000 wide x 20 high is 500.0 to 1, the limit is 200 to 1"),
        ((9, 2048), {}, "227.6 to 1"),
        ((480, 640), {"min_tokens": 30, "max_tokens": 20}, "min_tokens is 30, above max_tokens 20"),
        ((480, 640), {"max_tokens": 3}, "max_tokens is 3, below the family's least, 4; give min_tokens too"),
        ((480, 640), {"min_tokens": 20000}, "min_tokens is 20000, above the family's most, 16384; give max_tokens too"),
        ((480, 640), {"max_tokens": 0}, "max_tokens is 0; expected at least 1"),
        ((0, 640), {}, "height is 0; expected at least 1"),
    ],
)
def test_refused_sizes(size: tuple[int, int], options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(size, QWEN2, **options)


def test_what_the_message_says_would_do_does() -> None:
    assert plan((10, 2000), QWEN2, max_tokens=29).tokens == 29
    assert plan((28, 5600), QWEN2, max_tokens=198).tokens == 198
    with pytest.raises(ValueError, match="max_tokens is 197"):
        plan((28, 5600), QWEN2, max_tokens=197)


def test_family_methods_and_lists() -> None:
    sizes = [(480, 640), (640, 480)]
    plans = QWEN2.plan(sizes, max_tokens=100)
    assert [one.grid for one in plans] == [(1, 16, 22), (1, 22, 16)]
    assert plans == [plan(size, QWEN2, max_tokens=100) for size in sizes]


def test_a_size_is_a_tuple() -> None:
    with pytest.raises(TypeError, match=r"tuple \(height, width\), got \(1, 480, 640\)"):
        plan((1, 480, 640), QWEN2)  # pyright: ignore
    with pytest.raises(TypeError, match=r"source is \[480, 640\]; expected a tuple for a size, \(height, width\)"):
        plan([480, 640], QWEN2)  # pyright: ignore[reportCallIssue, reportArgumentType]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "AVIF"])
def test_file_headers(kind: str, tmp_path: Path) -> None:
    data = encoded(photograph("chelsea"), kind)
    path = tmp_path / "cat"
    path.write_bytes(data)
    for source in (path, str(path), data):
        planned = plan(source, QWEN2)
        assert planned == plan((300, 451), QWEN2) if source is data else planned.original == (300, 451)
        assert planned.source == (None if source is data else str(path))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF"])
def test_pixels_are_not_needed(kind: str) -> None:
    data = encoded(photograph("chelsea"), kind)
    assert plan(data[: len(data) // 2], QWEN2).original == (300, 451)


def test_a_decompression_bomb_still_has_a_plan() -> None:
    assert plan(png_header(50000, 60000), QWEN2).original == (50000, 60000)


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_exif_orientation_turns_the_size(orientation: int, kind: str) -> None:
    data = encoded(Image.new("RGB", (24, 16)), kind, exif=exif(orientation))
    planned = plan(data, QWEN2)
    assert planned.orientation == orientation
    assert planned.original == ((24, 16) if orientation >= 5 else (16, 24))
    assert planned.stored == (16, 24)


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_boxes_turn_with_the_picture(orientation: int) -> None:
    planned = plan(encoded(Image.new("RGB", (3, 2)), "PNG", exif=exif(orientation)), QWEN2)
    for row in range(2):
        for col in range(3):
            box = np.array([col, row, col + 1, row + 1])
            turned = planned.from_stored(box)
            left, top, right, bottom = turned.astype(int)
            assert (right - left, bottom - top) == (1, 1)
            assert UPRIGHT[orientation][top][left] == STORED[row][col]
            np.testing.assert_array_equal(planned.to_stored(turned), box)


def test_boxes_between_original_and_resized() -> None:
    planned = plan((480, 640), QWEN25)
    assert planned.scale == (476 / 480, 644 / 640)
    boxes = np.array([[[0, 0, 640, 480], [64, 48, 320, 120]]])
    resized = planned.to_resized(boxes)
    np.testing.assert_allclose(resized, [[[0, 0, 644, 476], [64.4, 47.6, 322, 119]]])
    np.testing.assert_allclose(planned.to_original(resized), boxes)
    tensor = planned.to_resized(torch.from_numpy(boxes))
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_array_equal(tensor.numpy(), resized)


def test_boxes_as_each_model_writes_them() -> None:
    boxes = torch.tensor([[100.0, 100.0, 200.0, 200.0]])
    thousandths = plan((600, 800), QWEN3)
    expected = torch.tensor([[125.0, 1000 / 6, 250.0, 1000 / 3]], dtype=torch.float64)
    torch.testing.assert_close(thousandths.encode_boxes(boxes), expected)
    torch.testing.assert_close(thousandths.decode_boxes(expected), boxes.double())
    pixels = plan((480, 640), QWEN25)
    torch.testing.assert_close(pixels.encode_boxes(boxes), pixels.to_resized(boxes))
    torch.testing.assert_close(pixels.decode_boxes(pixels.encode_boxes(boxes)), boxes.double())
    square = plan((800, 800), QWEN2).decode_boxes(np.array([100, 200, 300, 400]))
    assert square.tolist() == [80, 160, 240, 320]


def test_boxes_are_checked() -> None:
    with pytest.raises(ValueError, match=r"shape \(2, 3\); expected \(..., 4\)"):
        plan((480, 640), QWEN2).to_resized(np.zeros((2, 3)))


def test_bad_files(tmp_path: Path) -> None:
    text, empty, thin = (tmp_path / name for name in ("text.png", "empty.jpg", "thin.png"))
    text.write_text("hello world")
    empty.touch()
    Image.new("L", (2010, 10)).save(thin)
    for path, message in ((text, "not a picture"), (empty, "is empty"), (thin, "2010 wide x 10 high is 201.0 to 1")):
        with pytest.raises(ValueError, match=f"{path.name}: .*{message}") as caught:
            plan([(480, 640), path], QWEN2)
        assert "\n" not in str(caught.value)
    with pytest.raises(FileNotFoundError, match="missing"):
        plan(tmp_path / "missing.png", QWEN2)


def test_a_plan_checks_itself() -> None:
    def planned(*parts: Part) -> Plan:
        return Plan(source=None, family="qwen2-vl", original=(9, 9), parts=parts, patch=14, merge=2, boxes="0-1000")

    assert planned(Part(resized=(56, 70), grid=(1, 4, 6))).canvas == (56, 84)
    for wrong in (
        Part(resized=(84, 56), grid=(1, 4, 6)),
        Part(resized=(56, 56), grid=(1, 4, 6)),  # lacks a whole token
        Part(resized=(56, 84), grid=(1, 4, 6), corner=(0, 1)),
        Part(resized=(56, 70), grid=(1, 4, 5)),
    ):
        with pytest.raises(ValueError, match=r"grid \(1, 4, \d\) does not cut a window of "):
            planned(wrong)
    with pytest.raises(ValueError, match="parts is empty"):
        planned()


def test_clip_with_a_budget_per_frame() -> None:
    planned = plan_video((7, 480, 640), QWEN25, fps=4.0)
    assert (planned.resized, planned.grid, planned.frames) == ((476, 644), (4, 34, 46), 7)
    assert planned.tokens == 4 * 391
    assert planned.seconds == 0.5
    assert plan_video((7, 480, 640), QWEN25).seconds is None
    assert QWEN25.plan_video((7, 480, 640), fps=4.0) == planned
    assert plan_video((7, 480, 640), QWEN25, max_tokens=100).tokens == 4 * 88


def test_a_clip_of_a_million_frames_is_refused_with_what_would_do() -> None:
    # 32 x 32 pixels in 500,000 steps of two frames are a token each.
    with pytest.raises(ValueError, match=r"max_tokens is 12288, .* = 500000 tokens; max_tokens=500000 would do"):
        plan_video((1_000_000, 480, 640), QWEN3)
    assert plan_video((1_000_000, 480, 640), QWEN3, max_tokens=500_000).tokens == 500_000


def test_a_clip_has_an_end() -> None:
    with pytest.raises(ValueError, match="frames is 1000000000; expected at most 4194304"):
        plan_video((10**9, 56, 84), QWEN2, fps=2)


def test_a_tokenizer_is_a_function() -> None:
    with pytest.raises(TypeError, match=r"tokenizer gives no token ids of a text \(.*\); expected a list of them"):
        plan_video((4, 480, 640), family("glm4v"), fps=2.0, tokenizer=len)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="tokenizer"):
        plan_video((4, 480, 640), QWEN3, fps=2.0, tokenizer=3)  # pyright: ignore[reportArgumentType]


def test_clip_with_a_budget_for_the_whole() -> None:
    planned = plan_video((60, 720, 1280), QWEN3, fps=1.0)
    assert (planned.grid, planned.tokens, planned.seconds) == ((30, 30, 52), 11_700, 2.0)
    assert plan_video((60, 720, 1280), QWEN3, max_tokens=2000).tokens <= 2000
    assert plan_video((1, 480, 640), QWEN3).grid == plan_video((2, 480, 640), QWEN3).grid == (1, 30, 40)


def test_an_odd_clip_above_its_budget_is_refused() -> None:
    limits = {"factor": 32, "min_pixels": 4096, "max_pixels": 600 * 2048}
    height, width = smart_resize_clip(5, 480, 640, temporal_factor=2, **limits)
    assert 6 * height * width > limits["max_pixels"], "the trained rule passes the limit here"
    with pytest.raises(ValueError, match=r"max_tokens is 600, .* in 6 frames = \d+ tokens; max_tokens=") as refused:
        plan_video((5, 480, 640), QWEN3, max_tokens=600)
    enough = int(str(refused.value).split("max_tokens=")[1].split()[0])
    assert plan_video((5, 480, 640), QWEN3, max_tokens=enough).tokens <= enough
    assert plan_video((6, 480, 640), QWEN3, max_tokens=600).tokens <= 600


@pytest.mark.parametrize(
    ("size", "fps", "message"),
    [
        ((0, 480, 640), 2.0, "frames is 0"),
        ((4, 480, 640), 0.0, "fps is 0"),
        ((4, 20, 10000), 2.0, "500.0 to 1"),
    ],
)
def test_refused_clips(size: tuple[int, int, int], fps: float, message: str) -> None:
    for record in (QWEN2, QWEN3):
        with pytest.raises(ValueError, match=message):
            plan_video(size, record, fps=fps)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_animated_files_know_their_rate(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "clip"
    frames = [Image.new("RGB", (60, 40), (50 * k, 0, 0)) for k in range(5)]
    frames[0].save(path, kind, save_all=True, append_images=frames[1:], duration=[100, 300, 200, 200, 200])
    planned = plan_video(path, QWEN25, fps=5.0)  # as many as there are, in whole temporal patches
    assert (planned.frames, planned.original, planned.source) == (4, (40, 60), str(path))
    assert planned.seconds == pytest.approx(1.0 / 2)
    assert planned.times == pytest.approx((0.05, 0.5))
    whole = plan_video(read_clip(path, indices=range(5)), QWEN25)
    assert (whole.frames, whole.original, whole.source) == (5, (40, 60), str(path))
    assert whole.times == pytest.approx((0.05, 0.5, 0.8))


def test_a_still_file_is_a_clip_of_one_frame_without_a_rate() -> None:
    planned = plan_video(encoded(photograph("chelsea"), "PNG"), QWEN2)
    assert (planned.frames, planned.grid[0], planned.seconds) == (2, 1, None)


def test_a_clip_of_known_pace_has_its_time_stamps_counted() -> None:
    planned = plan_video((60, 720, 1280), QWEN3, fps=1.0)
    assert planned.times == tuple(0.5 + 2 * step for step in range(30))
    # "<0.5 seconds>" is six tokens, "<10.5 seconds>" seven; two more are around each step.
    assert planned.prompt_tokens == 11_700 + 5 * 6 + 25 * 7 + 30 * 2
    assert planned.spans is not None
    assert QWEN3.positions(planned.spans).length == planned.prompt_tokens
    assert plan_video((60, 720, 1280), QWEN3).prompt_tokens is None
    glm = family("glm46v")
    assert plan_video((60, 720, 1280), glm, fps=1.0).prompt_tokens is None  # nobody knows how its digits are split
    exact = plan_video((60, 720, 1280), glm, fps=1.0, tokenizer=lambda text: list(range(len(text))))
    assert exact.spans is not None
    stamps = sum(len(f"{time:.1f} seconds") for time in exact.times or ())
    assert exact.prompt_tokens == glm.positions(exact.spans).length == exact.tokens + stamps + 30 * 2 + 2


def test_what_only_a_file_can_do_is_refused() -> None:
    options: Any
    for options, why in (({"frames": 3}, "frames is 3; source is no file"), ({"max_frames": 3}, "max_frames is 3")):
        with pytest.raises(ValueError, match=why):
            plan_video((5, 64, 64), QWEN2, **options)
    with pytest.raises(ValueError, match=r"fps is 2\.0; source is a Clip, which was sampled already"):
        plan_video(clip_of([np.zeros((64, 64), np.uint8)], fps=1), QWEN2, fps=2.0)


def test_what_cannot_be_planned_is_named() -> None:
    with pytest.raises(ValueError, match=r"^source 1: 2048 wide x 9 high is 227\.6 to 1"):
        plan([(480, 640), (9, 2048)], QWEN2)
    with pytest.raises(ValueError, match="height is 16777217; expected at most 16777216"):
        plan((1 << 24 | 1, 640), QWEN2)
    with pytest.raises(ValueError, match=r"size 1 is \[5, 16777217\] \(height, width\); expected 1 to 16777216 each"):
        plan_sizes([(5, 5), (5, 1 << 24 | 1)], QWEN2)


def test_a_clip_that_its_last_step_carries_over_the_limit_is_padded() -> None:
    # 5 frames count as 6: the rule's 2976 x 1664 would be 3 * 93 * 52 = 14,508 tokens.
    with pytest.raises(ValueError, match=r'= 14508 tokens; max_tokens=\d+ would do, or conflict="pad", or .*"family"'):
        plan_video((5, 2160, 3840), QWEN3)
    padded = plan_video((5, 2160, 3840), QWEN3, conflict="pad")
    rows, cols = padded.grid[1] // 2, padded.grid[2] // 2
    # The largest size of this shape whose whole tokens are at most 12,288 / 3 a step.
    assert rows * cols <= 4096 < (rows + 1) * (cols + 1)
    assert padded.tokens == 3 * rows * cols
    assert padded.canvas[0] - padded.resized[0] < 32
    assert padded.canvas[1] - padded.resized[1] < 32
    assert abs(padded.scale[0] - padded.scale[1]) < 1e-3
    assert plan_video((6, 2160, 3840), QWEN3, conflict="pad") == plan_video((6, 2160, 3840), QWEN3)


@pytest.mark.parametrize("name", [name for name in family_names() if family(name).video_pixels is not None])
def test_padded_clips_keep_their_limit(name: str) -> None:
    record = family(name)
    for frames, height, width in ((1, 900, 700), (3, 480, 641), (5, 1080, 1921), (7, 60, 4000)):
        padded = plan_video((frames, height, width), record, max_tokens=600, min_tokens=None, conflict="pad")
        limit = 600 * (padded.grid[0] // padded.temporal_merge if record.video_budget == "frame" else 1)
        assert padded.tokens <= limit


def test_the_advice_for_padded_clips_is_the_least() -> None:
    with pytest.raises(ValueError, match=r"max_tokens is 2, and 8 frames take a token a step; max_tokens=4 would do$"):
        plan_video((8, 20, 777), QWEN3, min_tokens=2, max_tokens=2, conflict="pad")
    assert plan_video((8, 20, 777), QWEN3, min_tokens=2, max_tokens=4, conflict="pad").tokens == 4


def test_a_thin_clip_is_padded() -> None:
    with pytest.raises(
        ValueError, match=r'225\.0 to 1, the limit is 200 to 1; crop it, or plan it with conflict="pad"'
    ):
        plan_video((4, 20, 4500), QWEN3)
    assert plan_video((4, 20, 4500), QWEN3, conflict="pad").resized == (20, 4500)


def test_nothing_is_asked_of_pixels_that_are_resized() -> None:
    moving = Resized(torch.zeros(4, 3, 56, 84, dtype=torch.uint8), QWEN2.plan_video((4, 56, 84), min_tokens=1))
    every: Any = {"fps": 3}, {"frames": 2}, {"max_frames": 1}, {"tokenizer": len}, {"max_tokens": 9}
    for asked in every:
        with pytest.raises(
            ValueError, match=f"{next(iter(asked))} is .*, and the pixels are resized to a plan already"
        ):
            plan_video(moving, QWEN2, **asked)


def test_advice_is_not_what_was_refused() -> None:
    with pytest.raises(ValueError, match=r'201.0 to 1, .*; crop it, or plan it with conflict="pad"$'):
        plan((100, 20100), QWEN2, min_tokens=1, max_tokens=2, conflict="tile")


def test_sizes_in_lists_and_empty_pictures() -> None:
    with pytest.raises(TypeError, match=r"source 1 is \[480, 640\]; expected one picture, or a tuple"):
        plan([(480, 640), [480, 640]], QWEN2)  # pyright: ignore
    with pytest.raises(ValueError, match="width is 0; expected at least 1"):
        plan(Image.new("RGB", (0, 5)), QWEN2)
