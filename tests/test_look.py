"""Pictures and clips on their way from the file to their positions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import mrope
from mrope.data import asset
from mrope.probes import look


@pytest.fixture(scope="module", params=["qwen2-vl", "qwen2.5-vl", "qwen3-vl"])
def family(request) -> mrope.Family:
    return mrope.family(request.param)


def test_a_picture_that_lies_on_its_side(family):
    seen = look(asset("photo.jpg"), family)
    assert (seen.plan.original, seen.plan.orientation) == ((610, 870), 6)
    assert seen.exact
    assert tuple(seen.pictures.shape) == (1, 3, *seen.plan.resized)
    rows, cols = (side // seen.plan.factor for side in seen.plan.resized)
    ids = seen.vision_ids()
    assert tuple(ids.shape) == (3, 1, rows, cols)
    for row, col in ((0, 0), (0, cols - 1), (rows - 1, 0), (rows - 1, cols - 1), (2, 5)):
        assert ids[:, 0, row, col].tolist() == [15, 15 + row, 15 + col]
    assert seen.span_ends() == ((0, 14), (15, 14 + rows * cols), (15 + rows * cols, 26 + rows * cols))
    assert seen.positions.ids[:, 15 + rows * cols].tolist() == [15 + max(rows, cols)] * 3


@pytest.mark.parametrize(
    ("name", "frames", "first_t"),
    [("qwen2-vl", 4, [15, 16]), ("qwen2.5-vl", 4, [15, 17]), ("qwen3-vl", 4, [21, 21 + 13 + 6])],
)
def test_the_clip_keeps_its_steps_apart(name, frames, first_t):
    # All look at two frames a second of the clip's two seconds, two a temporal step. qwen2.5-vl has 2 ids a second;
    # qwen3-vl writes 6 tokens of time stamp in front of each step, and a step moves on by its 13 columns.
    seen = look(asset("clip.webp"), mrope.family(name))
    assert (seen.plan.frames, len(seen.pictures)) == (frames, frames // 2)
    assert seen.exact
    ids = seen.vision_ids()
    assert ids[0, :, 0, 0].tolist() == first_t
    assert torch.equal(ids[0], ids[0, :, :1, :1].expand_as(ids[0]))
    assert (ids[1, :, 1:] - ids[1, :, :-1] == 1).all()
    assert (ids[2, :, :, 1:] - ids[2, :, :, :-1] == 1).all()
    assert seen.notes == (f"16 frames at 8 a second; 4 are taken, as {name} does.",)


def test_what_is_shown_is_the_resized_picture(family):
    seen = look(asset("chart.png"), family)
    height, width = seen.plan.resized
    expected = Image.open(asset("chart.png")).convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
    difference = seen.pictures[0].permute(1, 2, 0).numpy().astype(int) - np.asarray(expected)
    assert np.abs(difference).max() <= 2  # Pillow and torchvision round differently


def test_pages_are_no_clip(tmp_path):
    pages = [Image.new("RGB", (90, 60), colour) for colour in ("white", "black")]
    pages[0].save(tmp_path / "pages.tiff", save_all=True, append_images=pages[1:])
    assert look(tmp_path / "pages.tiff", mrope.family("qwen2.5-vl")).plan.frames is None


def test_a_picture_above_the_limit_is_refused_in_words(tmp_path):
    Image.new("1", (20000, 10000)).save(tmp_path / "big.png")
    with pytest.raises(ValueError, match=r"big\.png: 20000 wide x 10000 high is more than"):
        look(tmp_path / "big.png", mrope.family("qwen2.5-vl"))


def test_a_turned_clip_says_so(tmp_path):
    frames = [Image.fromarray(np.full((60, 90, 3), 80 * index, dtype=np.uint8)) for index in range(3)]
    exif = Image.Exif()
    exif[0x0112] = 6
    frames[0].save(tmp_path / "turned.webp", save_all=True, append_images=frames[1:], duration=500, exif=exif)
    plan = look(tmp_path / "turned.webp", mrope.family("qwen2.5-vl")).plan
    assert (plan.orientation, plan.original, plan.stored) == (6, (90, 60), (60, 90))


def test_a_clip_that_hides_its_pace_is_said_to(tmp_path):
    frames = [Image.fromarray(np.full((60, 90, 3), 80 * index, dtype=np.uint8)) for index in range(3)]
    frames[0].save(tmp_path / "still.png", save_all=True, append_images=frames[1:], duration=0)
    seen = look(tmp_path / "still.png", mrope.family("qwen2.5-vl"))
    assert seen.plan.seconds == 1.0
    assert "does not say how fast" in seen.notes[0]
