"""Every kind of picture becomes the same upright, opaque RGB bytes, or is refused in one line."""

from __future__ import annotations

import io
import re
import zlib
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from bad_files import tiff16
from pictures import STORED, UPRIGHT, chunk, encoded, exif, noise, photograph, png16
from PIL import Image, ImageOps

from mrope.vision import decode_jpeg_on, load, measure
from mrope.vision.loading.decoded import Decoded, turned
from mrope.vision.loading.files import opened
from mrope.vision.loading.load import _straight


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


@pytest.mark.parametrize("packed", [False, True])
def test_xmp_behind_the_pixels_of_a_png(packed: bool) -> None:
    data = encoded(Image.fromarray(gray(STORED)), "PNG")
    end = data.index(b"IEND") - 4
    text = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    packet = b"XML:com.adobe.xmp\0" + bytes([packed, 0]) + b"en\0\0" + (zlib.compress(text) if packed else text)
    data = data[:end] + chunk(b"iTXt", b"Comment\0\0\0\0\0hello") + chunk(b"iTXt", packet) + data[end:]
    decoded = Image.open(io.BytesIO(data))
    decoded.load()
    for picture in (data, Image.open(io.BytesIO(data)), decoded):
        assert measure(picture) == ((3, 2), 6)
        np.testing.assert_array_equal(pixels(picture), gray(UPRIGHT[6]))


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
    np.testing.assert_array_equal(pixels(png16(values)), np.broadcast_to(expected, (6, 5, 3)))


def test_every_value_of_sixteen_bits() -> None:
    values = np.arange(65536, dtype=np.uint16).reshape(128, 512)
    np.testing.assert_array_equal(pixels(values), gray(np.round(values / 257)))


@pytest.mark.parametrize("compression", [None, "zlib"], ids=["plain", "deflated"])
@pytest.mark.parametrize("order", ["<", ">"], ids=["little-endian", "big-endian"])
@pytest.mark.parametrize("channels", [3, 4])
def test_sixteen_bits_of_a_tiff(channels: int, order: str, compression: str | None) -> None:
    values = np.random.randint(0, 65536, (40, 50, channels))
    values[..., 3:] = 65535
    file = tiff16(values, byteorder=order, compression=compression, rowsperstrip=16)
    np.testing.assert_array_equal(pixels(file), np.round(values[..., :3] / 257))


def test_sixteen_bits_of_a_pil_image_that_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "deep.png"
    path.write_bytes(png16(np.random.randint(0, 65536, (6, 5, 3))))
    with Image.open(path) as image:
        first = pixels(image)
        np.testing.assert_array_equal(pixels(image), first)
        np.testing.assert_array_equal(pixels(path), first)
        np.testing.assert_allclose(np.asarray(image), first, atol=1)  # Pillow's own reading


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
    np.testing.assert_array_equal(pixels(values[::-1, ::-1]), values[::-1, ::-1])
    for one in (values[..., 0], values[..., :1], values[None, ..., 0], torch.from_numpy(values[None, ..., 0])):
        np.testing.assert_array_equal(pixels(one), gray(values[..., 0]))
        assert load(one).stride() == (1, 21, 3)
    alpha = noise(5, 7, 4)
    np.testing.assert_array_equal(pixels(alpha.transpose(2, 0, 1)), pixels(alpha))
    values.setflags(write=False)
    np.testing.assert_array_equal(pixels(values), values)


def test_values_between_zero_and_one() -> None:
    values = noise(5, 7)
    for dtype in (np.float16, np.float32, np.float64):
        np.testing.assert_array_equal(pixels((values / 255).astype(dtype)), values)
    np.testing.assert_array_equal(pixels(torch.from_numpy(values).permute(2, 0, 1) / 255), values)
    middle = torch.tensor([[0.0, 0.4 / 255, 0.6 / 255], [0.25, 0.5, 1.0]])
    assert load(middle)[0].tolist() == [[0, 0, 1], [64, 128, 255]]
    assert load(middle.bfloat16())[1].tolist() == [[0, 0, 1], [64, 128, 255]]
    assert load(torch.tensor([[True, False]]))[2].tolist() == [[255, 0]]


def test_arrays_of_two_readings_are_read_as_their_library_does() -> None:
    for shape in ((3, 7, 4), (4, 7, 3), (3, 7, 3), (1, 7, 3), (4, 7, 2), (3, 7, 1)):
        values = np.random.randint(0, 256, shape, dtype=np.uint8)
        as_rows = values[..., 0] if shape[2] == 1 else values
        assert measure(values) == (shape[:2], 1)
        np.testing.assert_array_equal(pixels(values), pixels(Image.fromarray(as_rows)))
        as_planes = values.transpose(1, 2, 0)
        as_planes = as_planes[..., 0] if shape[0] == 1 else as_planes
        assert measure(torch.from_numpy(values)) == (shape[1:], 1)
        np.testing.assert_array_equal(pixels(torch.from_numpy(values)), pixels(Image.fromarray(as_planes)))


def test_what_was_loaded_is_loaded_again() -> None:
    for height, width in ((5, 3), (3, 4), (1, 1), (4, 2)):
        once = load(noise(height, width))
        assert torch.equal(load(once), once)


def test_arrays_of_the_other_byte_order() -> None:
    deep = np.random.randint(0, 1 << 16, (5, 7, 3)).astype(np.uint16)
    assert torch.equal(load(deep.astype(">u2")), load(deep))
    assert torch.equal(load((deep / 65535).astype(">f4")), load((deep / 65535).astype(np.float32)))


@pytest.mark.parametrize(
    "wrong",
    [np.array([[480, 640], [3, 4]]), np.zeros((5, 7, 3), np.int64), torch.zeros(5, 7, dtype=torch.int16)]
    + [Image.new(mode, (4, 3)) for mode in ("F", "I")],
    ids=["sizes", "int64", "int16", "F", "I"],
)
def test_what_is_not_loaded_is_not_measured(wrong: Any) -> None:
    for look in (load, measure):
        with pytest.raises(ValueError, match="does not say which value is white; scale it to "):
            look(wrong)


def test_a_clip_is_told_where_clips_are_read() -> None:
    for start in (b"\0\0\0\x20ftypisom", b"\x1aE\xdf\xa3\x01", b"RIFF\x24\0\0\0AVI LIST"):
        with pytest.raises(ValueError, match="patchify_video and read_clip take clips"):
            load(start + bytes(40))


@pytest.mark.parametrize("limit", [None, 1e6, True, 0, -3])
@pytest.mark.parametrize("kind", ["array", "file"])
def test_a_wrong_limit_is_no_fault_of_the_picture(limit: Any, kind: str) -> None:
    picture = noise(4, 5) if kind == "array" else encoded(Image.new("RGB", (4, 5)), "PNG")
    with pytest.raises((TypeError, ValueError), match="max_pixels") as caught:
        load(picture, max_pixels=limit)
    assert "broken" not in str(caught.value)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((5, 7, 3), np.int64), "int64 .* scale it to 0..255 and make it uint8"),
        (torch.zeros(5, 7, dtype=torch.int16), "int16 .* scale it"),
        (np.full((5, 7, 3), 255.0), "float64 array reaches from 255 to 255; expected 0..1, or 0..255 as uint8"),
        (torch.linspace(-1, 1, 35).view(5, 7), "float32 array reaches from -1 to 1"),
        (np.full((5, 7), np.nan), "float64 array reaches from nan"),
        (np.zeros((2, 5, 7), np.uint8), r"\(2, 5, 7\) is no picture"),  # two pictures, or gray and alpha?
        (np.zeros((5, 7, 5), np.uint8), r"\(5, 7, 5\) is no picture"),
        (np.zeros((2, 5, 7, 3), np.uint8), r"\(2, 5, 7, 3\) is no picture"),
        (np.zeros((5, 0, 3), np.uint8), "no pixels"),
        (Image.new("F", (4, 4)), "mode 'F' does not say"),
        (Image.new("I", (4, 4)), "mode 'I' does not say"),
    ],
)
def test_refused_values(array: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(array)


def test_refused_type() -> None:
    with pytest.raises(TypeError, match="picture is a int; expected a path, "):
        load(cast(Any, 3))


def test_truncated_sixteen_bit_png_is_refused() -> None:
    with pytest.raises(ValueError, match="broken or unreadable"):
        load(png16(np.random.randint(0, 65536, (64, 64, 3)))[:-2000])


# One policy for every route: name -> the file, the same content as an array where one holds it, and what it shows.


def shown(values: np.ndarray, background: tuple[int, int, int] = (255, 255, 255)) -> np.ndarray:
    """Values (H, W, channels) of 0..255, the last one alpha, over a background."""
    alpha = values[..., -1:] / 255
    return np.broadcast_to(values[..., :-1], (*values.shape[:2], 3)) * alpha + np.array(background) * (1 - alpha)


def kinds() -> dict[str, tuple[bytes, np.ndarray | None, np.ndarray]]:
    rgb, rgba, la = noise(5, 7), noise(5, 7, 4), noise(5, 7, 2)
    deep = np.random.randint(0, 65536, (5, 7, 4)).astype(np.uint16)
    bits = np.random.rand(5, 7) < 0.5
    palette = Image.fromarray(rgb[..., 0] // 64, "L").convert("P")
    palette.putpalette([0, 50, 100, 9, 8, 7, 200, 100, 0, 90, 80, 70])
    colours = np.array(palette.convert("RGB"))
    hole = rgb.copy()
    hole[2, 3] = 1, 2, 3
    over_hole = hole.copy()
    over_hole[2, 3] = 255
    over_palette = np.where(np.array(palette)[..., None] == 2, 255, colours)
    frames = {"save_all": True, "append_images": [Image.fromarray(255 - rgb)]}
    photo = Image.fromarray(rgb)
    return {
        "RGB PNG": (encoded(photo, "PNG"), rgb, rgb),
        "RGB TIFF": (encoded(photo, "TIFF"), rgb, rgb),
        "RGB BMP": (encoded(photo, "BMP"), rgb, rgb),
        "RGB WebP": (encoded(photo, "WEBP", lossless=True), rgb, rgb),
        "RGB AVIF": (encoded(Image.new("RGB", (7, 5), (9, 9, 9)), "AVIF", quality=100), None, gray([[9] * 7] * 5)),
        "EXIF 6": (encoded(photo, "PNG", exif=exif(6)), None, np.rot90(rgb, -1)),
        "gray": (encoded(Image.fromarray(rgb[..., 0]), "PNG"), rgb[..., 0], gray(rgb[..., 0])),
        "RGBA": (encoded(Image.fromarray(rgba), "PNG"), rgba, shown(rgba)),
        "RGBA WebP": (encoded(Image.fromarray(rgba), "WEBP", lossless=True, exact=True), rgba, shown(rgba)),
        "LA": (encoded(Image.fromarray(la), "PNG"), la, shown(la)),
        "palette": (encoded(palette, "PNG"), None, colours),
        "palette with a hole": (encoded(palette, "PNG", transparency=2), None, over_palette),
        "palette with alpha": (
            encoded(palette, "PNG", transparency=bytes([255, 255, 0, 255])),
            None,
            over_palette,
        ),
        "RGB with a hole": (encoded(Image.fromarray(hole), "PNG", transparency=(1, 2, 3)), None, over_hole),
        "1 bit": (encoded(Image.fromarray(bits), "PNG"), bits, gray(bits * 255)),
        "16-bit gray PNG": (png16(deep[..., :1]), deep[..., 0], gray(np.round(deep[..., 0] / 257))),
        "16-bit gray TIFF": (
            encoded(Image.fromarray(deep[..., 0]), "TIFF"),
            deep[..., 0],
            gray(np.round(deep[..., 0] / 257)),
        ),
        "16-bit LA": (png16(deep[..., 2:]), deep[..., 2:], shown(np.round(deep[..., 2:] / 257))),
        "16-bit RGB PNG": (png16(deep[..., :3]), deep[..., :3], np.round(deep[..., :3] / 257)),
        "16-bit RGB TIFF": (tiff16(deep[..., :3]), deep[..., :3], np.round(deep[..., :3] / 257)),
        "16-bit RGBA PNG": (png16(deep), deep, shown(np.round(deep / 257))),
        "16-bit RGBA TIFF": (tiff16(deep), deep, shown(np.round(deep / 257))),
        "CMYK TIFF": (
            encoded(Image.new("CMYK", (7, 5), (0, 255, 0, 0)), "TIFF"),
            None,
            np.array([[[255, 0, 255]] * 7] * 5),
        ),
        "animated GIF": (encoded(palette, "GIF", **frames), None, colours),
        "animated WebP": (encoded(photo, "WEBP", lossless=True, **frames), rgb, rgb),
        "animated PNG": (encoded(photo, "PNG", **frames), rgb, rgb),
    }


@pytest.mark.parametrize("kind", kinds())
def test_every_route_gives_the_same_pixels(kind: str, tmp_path: Path) -> None:
    file, array, expected = kinds()[kind]
    path = tmp_path / "some.picture"
    path.write_bytes(file)
    loaded = load(path)
    close = re.search("RGBA|LA|AVIF", kind) is not None  # Pillow's blending rounds its own way, AVIF is lossy
    np.testing.assert_allclose(loaded.permute(1, 2, 0).numpy(), expected, atol=close, rtol=0)
    with Image.open(path) as image:
        routes: list[Any] = [str(path), file, Image.open(io.BytesIO(file)), image]
        if array is not None:
            array = np.ascontiguousarray(array)
            routes += [array, torch.from_numpy(array)]
        for picture in routes:
            assert measure(picture)[0] == tuple(loaded.shape[1:])
            assert torch.equal(load(picture), loaded)
            assert load(picture).stride() == (1, 3 * loaded.shape[2], 3)
    loaded.add_(1)  # writable
    loaded = load(path)
    if not kind.startswith("16-bit"):  # of which a decoded PIL image holds the upper bytes
        decoded = Image.open(io.BytesIO(file))
        decoded.load()
        assert torch.equal(load(decoded), loaded)


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "L", "P", "PA", "1", "CMYK", "I;16", "tensor"])
def test_rows_of_a_decoded_picture_are_those_of_the_whole(mode: str, orientation: int) -> None:
    # 700 rows of 900 pixels are several bands of what is converted at once.
    values = noise(700, 900, 4)
    if mode == "I;16":
        image = Image.fromarray(values[..., :2].copy().view(np.uint16)[..., 0])
    else:
        image = (
            Image.fromarray(values, "CMYK")
            if mode == "CMYK"
            else Image.fromarray(values).convert("RGB" if mode == "tensor" else mode)
        )
    file = io.BytesIO()
    Image.fromarray(pixels(image)).save(file, "PNG", exif=exif(orientation))
    whole = ImageOps.exif_transpose(Image.open(file))
    picture = Decoded(
        torch.from_numpy(values[..., :3].copy()).permute(2, 0, 1) if mode == "tensor" else image, orientation
    )
    assert picture.size == (whole.height, whole.width)
    expected = torch.from_numpy(np.array(whole)).permute(2, 0, 1)
    assert torch.equal(picture.all(), expected)
    for first, last in ((0, 1), (3, 250), (picture.size[0] - 7, picture.size[0])):
        assert torch.equal(picture.rows(first, last), expected[:, first:last])


@pytest.mark.parametrize(
    ("background", "colour"),
    [("black", (0, 0, 0)), ((10, 200, 30), (10, 200, 30)), ("#0ac81e", (10, 200, 30))],
    ids=str,
)
def test_background(background: Any, colour: tuple[int, int, int]) -> None:
    values = noise(5, 7, 4)
    image = Image.fromarray(values)
    for picture in (image, encoded(image, "PNG"), values, torch.from_numpy(values)):
        loaded = load(picture, background=background).permute(1, 2, 0).numpy()
        np.testing.assert_allclose(loaded, shown(values, colour), atol=1)


@pytest.mark.parametrize("background", ["whitish", (1, 2, 256), (-1, 2, 3)], ids=str)
def test_refused_background(background: Any) -> None:
    with pytest.raises(ValueError, match=r"background is .*; expected a CSS colour or \(red, green, blue\)"):
        load(noise(5, 7), background=background)


SIZES = ((1, 1), (1, 5), (3, 1), (8, 8), (9, 17), (16, 33), (300, 451))


@pytest.mark.parametrize("progressive", [False, True], ids=["baseline", "progressive"])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "4:1:1", "gray"])
@pytest.mark.parametrize("name", ["astronaut", "coffee", "chelsea", "rocket"])
def test_a_jpeg_is_what_pillow_decodes(name: str, subsampling: str, progressive: bool) -> None:
    gray, options = subsampling == "gray", {} if subsampling == "gray" else {"subsampling": subsampling}
    for height, width in SIZES:
        photo = photograph(name).crop((3, 5, 3 + width, 5 + height)).convert("L" if gray else "RGB")
        for quality in (40, 95):
            file = encoded(photo, "JPEG", quality=quality, progressive=progressive, **options)
            expected = np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))
            with opened(file) as image:
                assert _straight(image, "cpu") is not None  # not by Pillow
            np.testing.assert_array_equal(pixels(file), expected)
            assert load(file).stride() == (1, 3 * width, 3)


@pytest.mark.parametrize("quality", [5, 80, 100, None])
@pytest.mark.parametrize("name", ["astronaut", "coffee", "chelsea", "rocket"])
def test_a_webp_is_what_pillow_decodes(name: str, quality: int | None) -> None:
    options = {"lossless": True} if quality is None else {"quality": quality}
    for height, width in SIZES:
        photo = photograph(name).crop((3, 5, 3 + width, 5 + height))
        file = encoded(photo, "WEBP", exif=exif(6), **options)
        with opened(file) as image:
            assert _straight(image, "cpu") is not None  # not by Pillow
        expected = ImageOps.exif_transpose(Image.open(io.BytesIO(file))).convert("RGB")
        np.testing.assert_array_equal(pixels(file), np.asarray(expected))
    with opened(encoded(photo, "WEBP", save_all=True, append_images=[photo.rotate(9)], **options)) as moving:
        assert _straight(moving, "cpu") is None
    for cut in (1, 20, len(file) // 2):
        with pytest.raises(ValueError, match="broken or unreadable picture"):
            load(file[:-cut])


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_a_turned_jpeg_is_what_pillow_makes_of_it(orientation: int) -> None:
    file = encoded(photograph("chelsea"), "JPEG", exif=exif(orientation))
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(file)))
    loaded = load(file)
    np.testing.assert_array_equal(loaded.permute(1, 2, 0).numpy(), np.asarray(expected))
    assert loaded.stride() == (1, 3 * loaded.shape[2], 3)
    assert torch.equal(decode_jpeg_on(file, "cpu"), loaded)


def test_other_jpegs_are_what_pillow_decodes() -> None:
    photo = photograph("coffee").crop((0, 0, 91, 70))
    kinds = {
        "colours that are not transformed": encoded(photo, "JPEG", keep_rgb=True),
        "two pictures": encoded(photo, "MPO", save_all=True, append_images=[photo.rotate(9)]),
        "something behind": encoded(photo, "JPEG") + b"more",
        "restart markers": encoded(photo, "JPEG", restart_marker_blocks=3),
        "inks": encoded(photo.convert("CMYK"), "JPEG"),
    }
    for file in kinds.values():
        expected = np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))
        np.testing.assert_array_equal(pixels(file), expected)


def test_a_torchvision_without_its_decoder_leaves_jpegs_to_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    file = encoded(photograph("coffee"), "JPEG")
    expected = load(file)
    monkeypatch.setattr(torch.ops, "image", object())
    with opened(file) as image:
        assert _straight(image, "cpu") is None
    assert torch.equal(load(file), expected)


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_turns_on_another_device(orientation: int) -> None:
    stored = torch.tensor(STORED, dtype=torch.uint8, device="meta").expand(3, 2, 3)
    assert turned(stored, orientation).shape[1:] == np.array(UPRIGHT[orientation]).shape


def test_decode_jpeg_on_loads_what_is_no_jpeg() -> None:
    file = encoded(Image.fromarray(noise(5, 7)), "PNG")
    assert torch.equal(decode_jpeg_on(file, "cpu"), load(file))
    with pytest.raises(ValueError, match="more than max_pixels=34"):
        decode_jpeg_on(file, "cpu", max_pixels=34)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("orientation", UPRIGHT)
def test_decode_jpeg_on_a_gpu(orientation: int) -> None:
    file = encoded(photograph("chelsea"), "JPEG", quality=95, exif=exif(orientation))
    decoded = decode_jpeg_on(file, "cuda")
    assert decoded.device.type == "cuda"
    difference = decoded.cpu().int() - load(file).int()
    assert difference.abs().max() <= 16  # another inverse transform, and other colours between the samples
    assert difference.abs().float().mean() < 1


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "CMYK", "I;16", "1"])
@pytest.mark.parametrize("compression", ["raw", "tiff_lzw"])
def test_a_tiff_opened_from_its_path_is_turned(compression: str, mode: str, orientation: int, tmp_path: Path) -> None:
    # Pillow maps uncompressed ones into memory, with their sides swapped before they are turned.
    values = noise(24, 40, 4)
    image = (
        Image.fromarray(values[..., :2].copy().view(np.uint16)[..., 0])
        if mode == "I;16"
        else Image.fromarray(values).convert("RGB").convert(mode)
    )
    path = tmp_path / "some.tif"
    image.save(path, exif=exif(orientation), compression=compression)
    expected = Decoded(load(image), orientation).all()
    with Image.open(path) as image:
        for picture in (path, path.read_bytes(), image, Image.open(io.BytesIO(path.read_bytes()))):
            assert measure(picture) == (tuple(expected.shape[1:]), orientation)
            assert torch.equal(load(picture), expected)


def test_the_orientation_of_a_tiff_in_xmp_swaps_its_size() -> None:
    text = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    file = encoded(Image.fromarray(gray(STORED)), "TIFF", tiffinfo={700: text})
    for picture in (file, Image.open(io.BytesIO(file))):
        assert measure(picture) == ((3, 2), 6)
        np.testing.assert_array_equal(pixels(picture), gray(UPRIGHT[6]))


@pytest.mark.parametrize("packed", [False, True])
def test_exif_as_text_behind_the_pixels_of_a_png(packed: bool) -> None:
    raw = exif(6).tobytes()
    text = f"\nexif\n{len(raw):8d}\n{raw.hex()}\n".encode()
    content = b"Raw profile type exif\0" + (b"\0" + zlib.compress(text) if packed else text)
    data = encoded(Image.fromarray(gray(STORED)), "PNG")
    end = data.index(b"IEND") - 4
    data = data[:end] + chunk(b"zTXt" if packed else b"tEXt", content) + data[end:]
    decoded = Image.open(io.BytesIO(data))
    decoded.load()
    for picture in (data, Image.open(io.BytesIO(data)), decoded):
        assert measure(picture) == ((3, 2), 6)
        np.testing.assert_array_equal(pixels(picture), gray(UPRIGHT[6]))


def test_the_limit_that_pillow_has_of_its_own_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    file = encoded(Image.new("RGB", (60, 50)), "WEBP")
    for look in (load, measure):
        with pytest.raises(ValueError, match=r"picture of \d+ bytes: .*PIL.Image.MAX_IMAGE_PIXELS limits the whole"):
            look(file)


def test_tensors_without_values_and_odd_ones_are_refused() -> None:
    with pytest.raises(ValueError, match=r"tensor is .* on meta; expected a dense one"):
        load(torch.empty(3, 4, 5, device="meta"))
    with pytest.raises(ValueError, match=r"tensor is torch.sparse_coo on cpu; expected a dense one"):
        load(torch.zeros(4, 5).to_sparse())
    with pytest.raises(ValueError, match=r"reaches from 1\.00000012 to 1\.00000012; expected"):
        load(np.full((5, 7), 1.0000001, np.float32))
    cut = encoded(Image.fromarray(noise(40, 50)), "AVIF")[:-300]
    with pytest.raises(ValueError, match="picture of") as caught:
        load(cut)
    assert "clip" not in str(caught.value)


def test_exif_behind_the_end_of_a_png_is_none() -> None:
    data = encoded(Image.fromarray(gray(STORED)), "PNG") + chunk(b"eXIf", exif(6).tobytes().removeprefix(b"Exif\0\0"))
    decoded = Image.open(io.BytesIO(data))
    decoded.load()
    for picture in (data, Image.open(io.BytesIO(data)), decoded):
        assert measure(picture) == ((2, 3), 1)


def test_gray_with_premultiplied_alpha() -> None:
    image = Image.fromarray(noise(4, 5, 2))
    np.testing.assert_array_equal(pixels(image.convert("La")), pixels(image.convert("La").convert("LA")))
