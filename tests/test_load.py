"""Every kind of picture becomes the same upright, opaque RGB bytes, or is refused in one line."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from pictures import STORED, UPRIGHT, chunk, encoded, exif, noise, photograph, png16, png_header
from PIL import Image

from mrope.vision import load


def pixels(picture: Any) -> np.ndarray:
    """(H, W, 3) as the loader sees it."""
    return load(picture).permute(1, 2, 0).numpy()


def gray(rows: object) -> np.ndarray:
    return np.array(rows, dtype=np.uint8)[..., None].repeat(3, axis=2)


def test_paths_bytes_and_pil_images_are_the_same_picture(tmp_path: Path) -> None:
    photo = photograph("coffee")
    data = encoded(photo, "PNG")
    path = tmp_path / "coffee.png"
    path.write_bytes(data)
    for picture in (path, str(path), data, photo, Image.open(path), np.array(photo), torch.from_numpy(np.array(photo))):
        loaded = load(picture)
        assert loaded.shape == (3, 400, 600)
        assert loaded.dtype == torch.uint8
        np.testing.assert_array_equal(loaded.permute(1, 2, 0).numpy(), np.array(photo))


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_exif_orientation(orientation: int, kind: str) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(Image.fromarray(gray(STORED) * 40), kind, exif=exif(orientation), **options)
    expected = gray(UPRIGHT[orientation]) * 40
    np.testing.assert_array_equal(pixels(data), expected)
    np.testing.assert_array_equal(pixels(Image.open(io.BytesIO(data))), expected)


def test_exif_orientation_of_a_jpeg() -> None:
    photo = photograph("chelsea")
    turned = pixels(encoded(photo, "JPEG", exif=exif(6)))
    np.testing.assert_array_equal(turned, np.rot90(pixels(encoded(photo, "JPEG")), -1))


def test_exif_behind_the_pixels_of_a_png() -> None:
    data = encoded(Image.fromarray(gray(STORED)), "PNG")
    end = data.index(b"IEND") - 4
    data = data[:end] + chunk(b"eXIf", exif(6).tobytes().removeprefix(b"Exif\0\0")) + data[end:]
    np.testing.assert_array_equal(pixels(data), gray(UPRIGHT[6]))
    np.testing.assert_array_equal(pixels(Image.open(io.BytesIO(data))), gray(UPRIGHT[6]))


def test_senseless_orientation_is_none() -> None:
    np.testing.assert_array_equal(pixels(encoded(Image.fromarray(gray(STORED)), "PNG", exif=exif(9))), gray(STORED))


def test_one_pixel() -> None:
    assert load(encoded(Image.new("RGB", (1, 1), (1, 2, 3)), "PNG")).flatten().tolist() == [1, 2, 3]


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_lies_over_white(mode: str) -> None:
    values = noise(9, 7, len(mode))
    values[:3, :, -1], values[3:6, :, -1] = 0, 255
    image = Image.fromarray(values)
    assert image.mode == mode
    alpha = values[..., -1:] / 255
    expected = values[..., :-1] * alpha + 255 * (1 - alpha)
    for picture in (image, encoded(image, "PNG")):
        loaded = pixels(picture)
        assert (loaded[:3] == 255).all()
        np.testing.assert_array_equal(loaded[3:6], np.broadcast_to(values[3:6, :, :-1], (3, 7, 3)))
        np.testing.assert_allclose(loaded, np.broadcast_to(expected, loaded.shape), atol=1)


def test_rgba_array_lies_over_white() -> None:
    values = noise(5, 7, 4)
    expected = pixels(Image.fromarray(values))
    np.testing.assert_array_equal(pixels(values), expected)
    np.testing.assert_array_equal(pixels(torch.from_numpy(values)), expected)


@pytest.mark.parametrize(
    ("mode", "shown"),
    [("P", [[9, 8, 7], [255, 255, 255]]), ("RGB", [[9, 8, 7], [255, 255, 255]]), ("L", [[8, 8, 8], [255, 255, 255]])],
)
def test_transparent_colour_is_white(mode: str, shown: list[list[int]]) -> None:
    image = Image.new("RGB", (2, 1), (9, 8, 7))
    image.putpixel((1, 0), (200, 10, 20))
    image = image.quantize(4) if mode == "P" else image.convert(mode)
    data = encoded(image, "PNG", transparency=image.getpixel((1, 0)))
    assert pixels(data).tolist() == [shown]


def test_palette_and_bits_without_alpha() -> None:
    image = Image.fromarray(np.array(photograph("chelsea"))).quantize(16)
    np.testing.assert_array_equal(pixels(encoded(image, "PNG")), np.array(image.convert("RGB")))
    bits = np.array([[0, 1, 1], [1, 0, 1]], dtype=bool)
    np.testing.assert_array_equal(pixels(encoded(Image.fromarray(bits), "PNG")), gray(bits * 255))


def test_cmyk() -> None:
    inks = [(0, 0, 0, 0), (255, 0, 0, 0), (0, 255, 0, 0), (0, 0, 255, 0), (0, 0, 0, 255)]
    colours = [[255, 255, 255], [0, 255, 255], [255, 0, 255], [255, 255, 0], [0, 0, 0]]
    for ink, colour in zip(inks, colours, strict=True):
        image = Image.new("CMYK", (16, 8), ink)
        np.testing.assert_array_equal(pixels(encoded(image, "TIFF")), np.full((8, 16, 3), colour))
        np.testing.assert_allclose(pixels(encoded(image, "JPEG")), np.full((8, 16, 3), colour), atol=2)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_sixteen_bits_become_eight(channels: int) -> None:
    values = np.random.randint(0, 65536, (6, 5, channels))
    values[:2] = [[[0], [128], [129], [65534], [65535]], [[256], [257], [385], [386], [65406]]]
    if channels in (2, 4):
        values[..., -1] = 65535
    expected = np.round(values[..., : channels - (channels in (2, 4))] / 257)
    off = 1 if channels == 2 else 0  # Pillow keeps the upper byte of gray with alpha
    np.testing.assert_allclose(pixels(png16(values)), np.broadcast_to(expected, (6, 5, 3)), atol=off, rtol=0)


def test_sixteen_bit_gray_of_other_kinds() -> None:
    values = np.array([[0, 128, 129], [30000, 65534, 65535]], dtype=np.uint16)
    image = Image.fromarray(values)
    assert image.mode == "I;16"
    expected = gray(np.round(values / 257))
    pgm = b"P5 3 2 65535\n" + values.astype(">u2").tobytes()
    for picture in (image, encoded(image, "TIFF"), pgm):
        np.testing.assert_array_equal(pixels(picture), expected)


@pytest.mark.parametrize("channels", [1, 3])
def test_sixteen_bit_transparent_colour_is_white(channels: int) -> None:
    values = np.full((1, 3, channels), 257 * 90)
    values[0, 1] += 1  # another colour, though the upper byte is the same
    transparent = values[0, 1]
    assert pixels(png16(values, transparent))[0, :, 0].tolist() == [90, 255, 90]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_animation_gives_its_first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (4, 3), colour) for colour in ("red", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    np.testing.assert_array_equal(pixels(data), np.array(frames[0]))


def test_array_layouts() -> None:
    values = noise(5, 7)
    np.testing.assert_array_equal(pixels(values), values)
    np.testing.assert_array_equal(pixels(torch.from_numpy(values).permute(2, 0, 1)), values)
    np.testing.assert_array_equal(pixels(values[..., 0]), gray(values[..., 0]))
    np.testing.assert_array_equal(pixels(values[::-1, ::-1]), values[::-1, ::-1])
    values.setflags(write=False)
    np.testing.assert_array_equal(pixels(values), values)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((5, 7, 3)), "float64 .* scale it to 0..255 and make it uint8"),
        (np.zeros((5, 7), np.uint16), "uint16 .* scale it"),
        (torch.zeros(3, 5, 7), "float32 .* scale it"),
        (np.zeros((3, 7, 3), np.uint8), r"\(3, 7, 3\) could be"),
        (np.zeros((3, 7, 4), np.uint8), r"\(3, 7, 4\) could be"),
        (np.zeros((5, 7, 2), np.uint8), r"\(5, 7, 2\) is not"),
        (np.zeros((2, 5, 7, 3), np.uint8), r"\(2, 5, 7, 3\) is not"),
        (np.zeros((5, 0, 3), np.uint8), "no pixels"),
        (Image.new("F", (4, 4)), "mode 'F' does not say"),
        (Image.new("I", (4, 4)), "mode 'I' does not say"),
    ],
)
def test_refused_values(array: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(array)


def test_refused_type() -> None:
    with pytest.raises(TypeError, match="got a int"):
        load(cast(Any, 3))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP"])
def test_truncated_file_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "cut"
    data = encoded(photograph("chelsea"), kind)
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="cut: ") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_truncated_sixteen_bit_png_is_refused() -> None:
    with pytest.raises(ValueError, match="broken or unreadable"):
        load(png16(np.random.randint(0, 65536, (64, 64, 3)))[:-2000])


def test_what_is_no_picture_is_refused(tmp_path: Path) -> None:
    text, empty = tmp_path / "text.png", tmp_path / "empty.png"
    text.write_text("hello world")
    empty.touch()
    with pytest.raises(ValueError, match=r"text\.png: not a picture .* starts with b'hello world'"):
        load(text)
    with pytest.raises(ValueError, match=r"empty\.png: the file is empty"):
        load(empty)
    with pytest.raises(FileNotFoundError, match=r"missing\.png"):
        load(tmp_path / "missing.png")


def test_decompression_bomb_is_refused() -> None:
    limit = Image.MAX_IMAGE_PIXELS
    with pytest.raises(ValueError, match="60000 wide x 50000 high is more than"):
        load(png_header(50000, 60000))
    assert limit == Image.MAX_IMAGE_PIXELS
