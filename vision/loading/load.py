"""Pictures of every kind to RGB bytes: one policy for files, PDF pages, PIL images, arrays and tensors.

Letters: H rows and W columns of a picture.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from mrope.checks import whole

from .decoded import Decoded, Rgb, check_mode, eight_bits, rounded, turned
from .files import (
    MAX_PIXELS,
    File,
    check_limit,
    decoding,
    frames_in,
    is_file,
    opened,
    orientation_of,
    reopened,
    size_of,
    turns_itself,
)
from .pdf import PdfPage, render
from .pictures import Picture, check_kind

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile
else:
    Image = ImageFile = Any

Background = str | tuple[int, int, int]
"""The colour behind what is transparent: a CSS name or code, or red, green and blue in 0..255."""

_RGB = 3  # torchvision.io.ImageReadMode.RGB
# How Pillow reads the upper byte of each colour of 16 bits -> how it would read the lower one, which it drops.
_LITTLE, _BIG = (";16L", ";16B")
_LOWER_BYTES = {"LA;16B": "RGBA"} | {
    mode + read: mode + other
    for mode in ("RGB", "RGBA", "RGBX")
    for read, other in ((_BIG, _LITTLE), (_LITTLE, _BIG), (";16N", _BIG if sys.byteorder == "little" else _LITTLE))
}


def load(picture: Picture, *, background: Background = "white", max_pixels: int = MAX_PIXELS) -> UInt8[Tensor, "3 h w"]:
    """The pixels of a picture: red, green, blue, upright, opaque.

    The same content gives the same pixels, whichever way it comes. The EXIF orientation of files and PIL images is
    applied. What is transparent is laid over `background`. 16 bits become 8 by round(value / 257); a PIL image of 16
    bits a colour that was decoded before holds the upper bytes alone. Values in 0..1 become round(255 * value). Of
    an animated file the first frame is taken, of a PIL image the frame that it is at. A PDF page is rendered at its
    own resolution. Colour profiles are left alone.

    A file that ends early is refused, unless `PIL.ImageFile.LOAD_TRUNCATED_IMAGES` was set for the whole process. A
    JPEG that is damaged in the middle is not: it decodes to what libjpeg makes of it (gray or shifted blocks), since no
    decoder tells it from a sound one.

    The result keeps the memory order (rows, columns, channels), which resizes fastest, of files, and of arrays theirs;
    it shares memory with an array or tensor of bytes that was given.

    Args:
        picture: path, bytes of a file, `PdfPage`, PIL image, or array or tensor (H, W), (H, W, 1 to 4), (1, H, W),
            (3, H, W) or (4, H, W), of uint8 or uint16, bool, or floating point in 0..1; two channels are gray and
            alpha, four are RGBA. Where two readings fit, as for (3, 7, 4), an array is (H, W, C) and a tensor
            (C, H, W), as Pillow and torchvision have them.
        background: the colour behind what is transparent: a CSS name or code, or (red, green, blue) in 0..255. A PDF
            page is always white.
        max_pixels: the most pixels of a file, a PDF page or a PIL image that are decoded, against decompression bombs.
            Of TIFF, WebP and a few more Pillow has a limit of its own, PIL.Image.MAX_IMAGE_PIXELS.

    Raises:
        OSError: a path cannot be opened.
        ValueError: broken file, more than `max_pixels`, or an array of another shape or of values that do not say what
            white is.
        TypeError: not a picture.

    >>> load(np.zeros((2, 5), dtype=np.uint8)).shape
    torch.Size([3, 2, 5])
    """
    return decode(picture, background=background, max_pixels=max_pixels).all()


def decode(picture: Picture, *, background: Background = "white", max_pixels: int = MAX_PIXELS) -> Decoded:
    """What `load` gives, with the same arguments and refusals, still to be turned and made RGB."""
    colour, _ = _colour(background), whole("max_pixels", max_pixels, 1)
    if isinstance(picture, PdfPage):
        return Decoded(render(picture, picture.size, max_pixels=max_pixels))
    if is_file(picture):
        with opened(picture) as image:
            check_limit(image.height, image.width, max_pixels)
            orientation = orientation_of(image)
            pixels = _straight(image, "cpu")
            if pixels is not None:
                return Decoded(pixels, orientation)
            check_mode(image)
            return Decoded(_decoded(image), 1 if turns_itself(image) else orientation, colour)
    if isinstance(picture, (np.ndarray, Tensor)):
        return _of_array(picture, colour)
    check_kind(picture)
    with decoding("PIL image"):
        check_mode(picture)
        check_limit(picture.height, picture.width, max_pixels)
        orientation = orientation_of(picture)
        return Decoded(_decoded(picture), 1 if turns_itself(picture) else orientation, colour)


def measure(picture: Picture) -> tuple[tuple[int, int], int]:
    """The upright (height, width) of a picture and its EXIF orientation, 1..8; of a file only the header is read.

    A PIL image of a TIFF that was decoded has turned itself, and does not say how any more: it counts as upright.
    """
    if isinstance(picture, PdfPage):
        return picture.size, 1
    if is_file(picture):
        with opened(picture) as image:
            return _measured(image)
    if isinstance(picture, (np.ndarray, Tensor)):
        _check_values(picture)
        colour = _channel_axis(picture)
        height, width = (side for axis, side in enumerate(picture.shape) if axis != colour)
        return (height, width), 1
    check_kind(picture)
    with decoding("PIL image"):
        return _measured(picture)


def _measured(image: Image) -> tuple[tuple[int, int], int]:
    check_mode(image)
    orientation = orientation_of(image)
    return size_of(image, orientation), orientation


def decode_jpeg_on(
    file: File, device: torch.device | str, *, background: Background = "white", max_pixels: int = MAX_PIXELS
) -> UInt8[Tensor, "3 h w"]:
    """The pixels of a JPEG file, upright, decoded on a device: on CUDA by nvJPEG, a level or two from libjpeg's.

    Args:
        file: path or bytes of a file. What is no plain JPEG (gray or colour, complete) is loaded on the CPU and moved.
        device: where the pixels come to be.
        background: as in `load`.
        max_pixels: as in `load`.

    Raises:
        OSError, ValueError: as `load`.
    """
    with opened(file) as image:
        check_limit(image.height, image.width, max_pixels)
        pixels = _straight(image, device)
        if pixels is not None:
            return turned(pixels, orientation_of(image))
    return load(file, background=background, max_pixels=max_pixels).to(device)


def _colour(background: Background) -> Rgb:
    from PIL import ImageColor

    if isinstance(background, str):
        try:
            return ImageColor.getrgb(background)[:3]
        except ValueError:
            pass
    elif isinstance(background, tuple) and len(background) == 3 and all(part in range(256) for part in background):
        return background
    raise ValueError(f"background is {background!r}; expected a CSS colour or (red, green, blue) in 0..255")


def _straight(image: ImageFile, device: torch.device | str) -> Tensor | None:
    """The pixels of an open plain JPEG or WebP, by torchvision; None where Pillow must decode, or say what is wrong.

    The bytes are Pillow's, but they come straight into interleaved memory, without further copies of the picture.
    """
    still = image.format in ("JPEG", "MPO") or (image.format == "WEBP" and frames_in(image) == 1)
    if not still or image.mode not in ("RGB", "L") or image.fp is None:
        return None
    image.fp.seek(0)
    data = bytearray(image.fp.read())
    if image.format != "WEBP" and not data.endswith(b"\xff\xd9"):  # cut off, or followed by something
        return None
    encoded, device = torch.frombuffer(data, dtype=torch.uint8), torch.device(device)
    try:
        import torchvision.io  # noqa: F401 - registers the operators, whose wrappers torchvision 0.29 deprecates

        if image.format == "WEBP":
            return torch.ops.image.decode_webp(encoded, _RGB).to(device)
        if device.type == "cuda":
            return torch.ops.image.decode_jpegs_cuda([encoded], _RGB, device)[0]
        return torch.ops.image.decode_jpeg(encoded, _RGB, False)
    except (ImportError, AttributeError, RuntimeError):  # not in this torchvision, or not with this file
        return None


def _decoded(image: Image) -> Image:
    """A PIL image with its pixels, those of 16 bits a colour rounded: Pillow itself drops their lower bytes."""
    from PIL.ImageFile import ImageFile

    if isinstance(image, ImageFile) and turns_itself(image) and image.tile and image.tile[0].codec_name == "raw":
        image = reopened(image)  # from its path Pillow maps it into memory, with sides swapped before it is turned
    tiles = image.tile if isinstance(image, ImageFile) else []
    lower = [tile._replace(args=args) for tile in tiles if (args := _lower_bytes(tile.args)) is not None]
    if not isinstance(image, ImageFile) or not lower or len(lower) < len(tiles) or image.mode not in ("RGB", "RGBA"):
        image.load()
        return image
    # Twice from the file, so that the image of a caller stays as it is and decodes to the same again.
    again, other = reopened(image), reopened(image)
    other.tile = lower
    upper_bytes, lower_bytes = np.asarray(again), np.asarray(other)
    if tiles[0].args == "LA;16B":  # the bytes of gray and of alpha, upper before lower, in the place of four colours
        lower_bytes = lower_bytes[..., [1, 1, 1, 3]]
    return eight_bits(upper_bytes, lower_bytes, image.info.get("transparency"))


def _lower_bytes(args: Any) -> Any:
    """The arguments of a tile with which Pillow reads the lower bytes; None where it reads no colours of 16 bits."""
    if isinstance(args, str):
        return _LOWER_BYTES.get(args)
    return (_LOWER_BYTES[args[0]], *args[1:]) if isinstance(args, tuple) and args[0] in _LOWER_BYTES else None


def _channel_axis(array: np.ndarray | Tensor) -> int | None:
    """Which axis of an array is the colour; None where there is none."""
    shape = tuple(array.shape)
    if 0 in shape:
        raise ValueError(f"array of shape {shape} has no pixels")
    if len(shape) == 2:
        return None
    axes = [
        axis for axis, channels in ((2, (1, 2, 3, 4)), (0, (1, 3, 4))) if len(shape) == 3 and shape[axis] in channels
    ]
    if axes:
        return axes[-1] if isinstance(array, Tensor) else axes[0]
    raise ValueError(
        f"array of shape {shape} is no picture; expected (H, W), (H, W, 1 to 4), (1, H, W), (3, H, W) or (4, H, W)"
    )


def _of_array(array: np.ndarray | Tensor, background: Rgb) -> Decoded:
    axis = _channel_axis(array)
    pixels = _as_bytes(array)
    if axis is None:
        pixels, axis = pixels[..., None], 2
    if axis == 0:
        pixels = pixels.permute(1, 2, 0) if isinstance(pixels, Tensor) else pixels.transpose(1, 2, 0)
    channels = pixels.shape[2]
    if channels in (2, 4):
        from PIL import Image

        values = np.ascontiguousarray(pixels.cpu() if isinstance(pixels, Tensor) else pixels)
        return Decoded(Image.fromarray(values), background=background)
    tensor = pixels if isinstance(pixels, Tensor) else as_tensor(pixels)
    return Decoded((tensor.repeat(1, 1, 3) if channels == 1 else tensor).permute(2, 0, 1))


def _check_values(array: np.ndarray | Tensor) -> None:
    """Refuse values that do not say which is white, and tensors that hold none."""
    if isinstance(array, Tensor):
        if array.layout != torch.strided or array.is_meta:
            raise ValueError(f"tensor is {array.layout} on {array.device}; expected a dense one that holds its values")
        known = array.is_floating_point() or array.dtype in (torch.uint8, torch.uint16, torch.bool)
    else:
        known = array.dtype.kind in "fb" or (array.dtype.kind == "u" and array.dtype.itemsize <= 2)
    if not known:
        raise ValueError(f"{array.dtype} array does not say which value is white; scale it to 0..255 and make it uint8")


def _as_bytes(array: np.ndarray | Tensor) -> np.ndarray | Tensor:
    """The values of an array in 0..255: of 16 bits the nearest, of floating point in 0..1 and of truth their share."""
    _check_values(array)
    if array.dtype == (torch.uint8 if isinstance(array, Tensor) else np.uint8):
        return array
    if isinstance(array, Tensor):
        values = array.detach().cpu()
        values = (values.float() if values.is_floating_point() else values).numpy()
    else:
        values = array
    if values.dtype.kind == "u":
        return rounded(values >> 8, values & 255)
    if values.dtype == bool:
        return values * np.uint8(255)
    if not (values.min() >= 0 and values.max() <= 1):  # and not where one is no number
        reach = f"{values.min():.9g} to {values.max():.9g}"
        raise ValueError(f"{array.dtype} array reaches from {reach}; expected 0..1, or 0..255 as uint8")
    return np.rint(values.astype(np.float32) * 255).astype(np.uint8)


def as_tensor(array: np.ndarray) -> Tensor:
    """The array as a tensor; a copy where torch cannot share the memory (read-only, or strides run backwards)."""
    shared = array.flags.writeable and min(array.strides) >= 0
    return torch.from_numpy(array if shared else array.copy())
