"""Broken files are refused in one line that names them; odd ones load; nothing warns, hangs or crashes."""

from __future__ import annotations

import io
import re
import tracemalloc
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from bad_files import ODD, REFUSED, SMALL, broken_exif, damaged, damaged_jpeg, photo, png_bomb
from pictures import encoded
from PIL import Image

from mrope.vision import MAX_PIXELS, load, measure
from mrope.vision.loading.files import frames_of, opened


@pytest.mark.parametrize("name", REFUSED)
def test_broken_files_are_refused_in_one_line_that_names_them(name: str, tmp_path: Path) -> None:
    make, message = REFUSED[name]
    path = tmp_path / "some.jpg"  # mostly a wrong extension, too
    path.write_bytes(make())
    with pytest.raises(ValueError, match=rf"some\.jpg: .*({message})") as caught:
        load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ODD)
def test_odd_files_are_loaded(name: str, tmp_path: Path) -> None:
    make, size = ODD[name]
    path = tmp_path / "some.gif"
    path.write_bytes(make())
    assert measure(path)[0] == size
    assert load(path).shape == (3, *size)


def test_paths_that_cannot_be_opened(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.png", tmp_path):
        with pytest.raises(OSError, match=path.name):
            load(path)


@pytest.mark.parametrize("limit", [None, 10**12], ids=["unset", "raised"])
def test_the_limit_is_ours(limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(ValueError, match=f"more than max_pixels={MAX_PIXELS}"):
        load(png_bomb())


def test_max_pixels_of_files_and_pil_images() -> None:
    file = encoded(photo(), "PNG")
    for picture in (file, photo()):
        assert load(picture, max_pixels=30 * 41).shape == (3, 30, 41)
        with pytest.raises(ValueError, match="41 wide x 30 high is more than max_pixels=1229; max_pixels=1230 would"):
            load(picture, max_pixels=30 * 41 - 1)
    assert load(np.asarray(photo()), max_pixels=1).shape == (3, 30, 41)  # decoded already
    with pytest.raises(ValueError, match="max_pixels is 0; expected at least 1"):
        load(file, max_pixels=0)


def test_max_pixels_of_the_frames_of_a_clip() -> None:
    with opened(SMALL["GIF"]()) as image:
        assert len(list(frames_of(image, max_pixels=1230))) == 2
        with pytest.raises(ValueError, match="more than max_pixels=1229"):
            list(frames_of(image, max_pixels=1229))


def test_a_bomb_is_refused_before_its_pixels_are_made() -> None:
    bomb = png_bomb()
    tracemalloc.start()
    with pytest.raises(ValueError, match="max_pixels"):
        load(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000


def test_a_damaged_jpeg_is_what_pillow_makes_of_it() -> None:
    file = damaged_jpeg()
    expected = np.asarray(Image.open(io.BytesIO(file)))
    assert torch.equal(load(file), torch.from_numpy(expected.copy()).permute(2, 0, 1))


@pytest.mark.parametrize("kind", SMALL)
def test_any_damage_gives_pixels_or_one_line(kind: str) -> None:
    file = SMALL[kind]()
    for seed in range(60):
        broken = damaged(file, seed)
        message = None
        try:
            pixels = load(broken, max_pixels=10**6)  # smaller than the canvas that a damaged header may promise
            assert pixels.dtype == torch.uint8
            assert tuple(pixels.shape[1:]) == measure(broken)[0]
        except ValueError as error:
            message = str(error)
        assert message is None or re.fullmatch(rf"picture of {len(broken)} bytes: .+", message)


def test_threads_keep_pillow_silent_and_leave_the_filters_alone() -> None:
    file, filters = broken_exif(), list(warnings.filters)
    with ThreadPoolExecutor(8) as pool:
        sizes = set(pool.map(lambda _: tuple(load(file).shape), range(200)))
    assert sizes == {(3, 41, 30)}
    assert warnings.filters == filters


def test_the_corpus_does_make_pillow_warn() -> None:
    with pytest.warns(UserWarning, match="Corrupt EXIF data"):
        Image.open(io.BytesIO(broken_exif())).getexif()
