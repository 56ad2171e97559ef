"""What ships in `mrope.data`: fonts with their licences, demo pictures, and the generators that drew them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageDraw, ImageFont, ImageOps, ImageSequence

from mrope.data import (
    ASSETS,
    GLYPHS,
    Font,
    asset,
    clock_time,
    draw_chart,
    draw_clip,
    draw_page,
    draw_photo,
    font,
    fonts,
    write_asset,
)

FOLDER = Path(asset("page.png")).parents[1]


def draw_glyph(face: Font, glyph: str) -> np.ndarray:
    """A glyph alone, its ink scaled to 32 x 32."""
    picture = Image.new("L", (120, 120), 0)
    pen = ImageFont.truetype(str(face.path), 64, layout_engine=ImageFont.Layout.BASIC)
    ImageDraw.Draw(picture).text((60, 60), glyph, font=pen, fill=255, anchor="mm")
    box = picture.getbbox() or (0, 0, 1, 1)
    return np.asarray(picture.crop(box).resize((32, 32)), np.float64) / 255


def inked(pen: ImageFont.FreeTypeFont, glyph: str) -> bytes:
    picture = Image.new("L", (80, 80), 0)
    ImageDraw.Draw(picture).text((10, 10), glyph, font=pen, fill=255)
    return picture.tobytes()


@pytest.mark.parametrize("face", fonts(), ids=lambda face: face.name)
def test_each_font_draws_all_glyphs_and_no_two_alike(face: Font) -> None:
    missing = draw_glyph(face, "\u4e2d")
    drawn = [draw_glyph(face, glyph) for glyph in GLYPHS]
    assert all(ink.any() for ink in drawn)
    for index, (glyph, ink) in enumerate(zip(GLYPHS, drawn, strict=True)):
        assert np.abs(ink - missing).mean() > 0.05, f"{glyph} is the box for a missing glyph"
        for other, more in zip(GLYPHS[:index], drawn, strict=False):
            assert np.abs(ink - more).mean() > 0.03, f"{glyph} and {other} are alike"


@pytest.mark.parametrize("face", fonts(), ids=lambda face: face.name)
def test_each_font_is_small_has_printable_ascii_and_may_be_passed_on(face: Font) -> None:
    assert face.path.stat().st_size < 21_000
    pen = ImageFont.truetype(str(face.path), 40, layout_engine=ImageFont.Layout.BASIC)
    missing = inked(pen, "\u4e2d")
    assert all(inked(pen, chr(code)) != missing for code in range(0x21, 0x7F))
    # The name table holds the copyright line; a changed copy of a face with a reserved name could not keep its name.
    names = face.path.read_bytes()
    assert face.copyright.encode("utf-16-be") in names
    assert "Cut down to printable ASCII".encode("utf-16-be") in names
    assert "Reserved Font Name".encode("utf-16-be").lower() not in names.lower()
    opening = {
        "OFL-1.1": "This Font Software is licensed under the SIL Open Font License, Version 1.1.",
        "Apache-2.0": "Apache License",
        "Bitstream-Vera": "Fonts are (c) Bitstream",
    }[face.licence]
    assert face.licence_path.read_text(encoding="utf-8").strip().startswith(opening)


def test_splits_share_no_family_and_each_has_the_ordinary_styles() -> None:
    train, held_out = fonts("train"), fonts("held-out")
    assert len(train) >= 16
    assert len(held_out) >= 6
    assert not {face.family for face in train} & {face.family for face in held_out}
    assert set(train) | set(held_out) == set(fonts())
    for split in (train, held_out):
        styles = {word for face in split for word in face.style.split()}
        assert styles >= {"sans", "serif", "mono", "slab", "bold", "italic", "condensed"}
    on_disk = {path.name for path in (FOLDER / "fonts").glob("*.ttf")}
    assert on_disk == {face.file for face in fonts()}


def test_unknown_names_get_one_line_that_lists_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"^no font 'Comic'; there are AlegreyaSans-Medium, Arimo-Regular, "):
        font("Comic")
    with pytest.raises(ValueError, match=r"^no demo picture 'cat.png'; there are page.png, chart.png"):
        asset("cat.png")


SIZES = {"page.png": (1754, 1240), "chart.png": (610, 900), "photo.jpg": (870, 610), "clip.webp": (300, 410)}
"""(height, width) as stored."""


@pytest.mark.parametrize("name", ASSETS)
def test_demo_pictures_are_of_sizes_that_no_patch_divides(name: str) -> None:
    with Image.open(asset(name)) as picture:
        height, width = picture.height, picture.width
    assert (height, width) == SIZES[name]
    assert height != width
    assert all(side % patch for side in (height, width) for patch in (14, 16, 28, 32))
    assert sum(asset(each).stat().st_size for each in ASSETS) < 900_000


def test_photo_lies_on_its_side_until_exif_turns_it() -> None:
    with Image.open(asset("photo.jpg")) as picture:
        assert picture.getexif()[ExifTags.Base.Orientation] == 6
        upright = np.asarray(ImageOps.exif_transpose(picture), np.float64)
    assert upright.shape == (610, 870, 3)
    # The room behind the table is darker than the cloth in front.
    assert upright[:120].mean() < 0.6 * upright[-120:].mean()


def test_clip_has_sixteen_frames_at_eight_a_second_and_things_move_as_told() -> None:
    with Image.open(asset("clip.webp")) as clip:
        frames, times = [], []
        for frame in ImageSequence.Iterator(clip):
            frames.append(np.asarray(frame.convert("RGB"), np.int64))
            times.append(frame.info["duration"])
    assert times == [125] * 16
    assert [clock_time(index) for index in (0, 1, 8, 15)] == ["00:00.000", "00:00.125", "00:01.000", "00:01.875"]

    def place(frame: np.ndarray, colour: tuple[int, int, int], rows: slice) -> tuple[float, float]:
        near = np.abs(frame[rows] - colour).max(-1) < 12
        return tuple(np.argwhere(near).mean(0))

    engine = [place(frame, (44, 84, 136), slice(160, 260)) for frame in frames]
    balloon = [place(frame, (200, 58, 62), slice(0, 185)) for frame in frames]
    assert np.diff([col for _, col in engine]) == pytest.approx(13, abs=0.6)
    assert np.ptp([row for row, _ in engine]) < 0.6
    assert np.diff([row for row, _ in balloon]) == pytest.approx(-6.4, abs=0.6)
    clocks = {frame[12:50, 12:152].tobytes() for frame in frames}
    assert len(clocks) == 16


def pixels(path: Path) -> np.ndarray:
    """All frames of a file, (frames, h, w, 3)."""
    with Image.open(path) as picture:
        return np.stack([np.asarray(frame.convert("RGB"), np.int64) for frame in ImageSequence.Iterator(picture)])


@pytest.mark.parametrize("name", ASSETS)
def test_generator_makes_the_shipped_pictures_again(name: str, tmp_path: Path) -> None:
    """Not `array_equal`: another FreeType, libjpeg or float routine may round a few pixels otherwise.

    Measured between Pillow 10.4 and 13.0: no level apart, in the clip up to 3 levels at a few edges.
    """
    again, shipped = pixels(write_asset(name, tmp_path)), pixels(asset(name))
    assert again.shape == shipped.shape
    apart = np.abs(again - shipped)
    assert apart.mean() < 0.1
    assert (apart > 32).mean() < 1e-4


@pytest.mark.parametrize(
    "draw",
    [draw_page, draw_chart, draw_clip, lambda: draw_photo(height=61, width=87, samples=3)],
    ids=["page", "chart", "clip", "photo"],
)
def test_two_runs_give_the_same_pixels(draw) -> None:
    one, two = (np.stack(drawn if isinstance(drawn := draw(), list) else [drawn]) for _ in range(2))
    assert np.array_equal(one, two)


def test_photo_follows_its_seed() -> None:
    one, two = (np.asarray(draw_photo(height=30, width=44, samples=1, seed=seed), np.int64) for seed in (1, 2))
    assert (one != two).mean() > 0.5


def test_generator_command_refuses_what_is_no_folder_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mrope.data.assets", str(tmp_path / "missing")]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=FOLDER.parent)
    assert ran.returncode == 2
    assert ran.stderr == "usage: python -m mrope.data.assets FOLDER  (a folder that exists)\n"


def test_nothing_outside_the_folder_is_needed(tmp_path: Path) -> None:
    """A copy under another name, away from the checkout, finds its files and draws."""
    shutil.copytree(FOLDER, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("__pycache__"))
    program = (
        "import sys, elsewhere\n"
        "from elsewhere import write_asset\n"
        "from pathlib import Path\n"
        "assert all(face.path.is_file() and face.licence_path.is_file() for face in elsewhere.fonts())\n"
        "assert all(elsewhere.asset(name).is_file() for name in elsewhere.ASSETS)\n"
        "write_asset('chart.png', Path('.'))\n"
        "try:\n    elsewhere.fonts('test')\n"
        "except ValueError as error:\n    print(error)\n"
        "assert 'mrope' not in sys.modules and 'torch' not in sys.modules, 'data/ needs more than itself'\n"
    )
    command = [sys.executable, "-B", "-c", program]
    ran = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    # Asked here, where no type check of the tests forestalls the message.
    assert ran.stdout == "split is 'test'; it can be 'train', 'held-out' or 'all'\n"
    assert (tmp_path / "chart.png").is_file()
