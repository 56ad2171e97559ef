"""Pictures of every kind to RGB bytes: one policy for files, PDF pages, PIL images, arrays and tensors.

Letters: H rows and W columns of a picture.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from .files import (
    MAX_PIXELS,
    File,
    check_limit,
    is_file,
    naming,
    opened,
    orientation_of,
    reopened,
    size_of,
    turns_itself,
)
from .pdf import PdfPage, render

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

    Picture = str | os.PathLike[str] | bytes | PdfPage | Image | np.ndarray | Tensor
else:  # at run time a wrong picture gets our own message
    Picture = Image = ImageFile = Any

Background = str | tuple[int, int, int]
"""The colour behind what is transparent: a CSS name or code, or red, green and blue in 0..255."""

_RGB = 3  # torchvision.io.ImageReadMode.RGB
_TURNS = {  # EXIF orientation -> whether rows become columns, and then the steps through rows and columns
    1: (False, 1, 1),
    2: (False, 1, -1),
    3: (False, -1, -1),
    4: (False, -1, 1),
    5: (True, 1, 1),
    6: (True, 1, -1),
    7: (True, -1, -1),
    8: (True, -1, 1),
}
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

    A file that ends early is refused. A JPEG that is damaged in the middle is not: it decodes to what libjpeg makes of
    it (gray or shifted blocks), since no decoder tells it from a sound one.

    The result keeps the memory order (rows, columns, channels), which resizes fastest, of files, and of arrays theirs;
    it shares memory with an array or tensor of bytes that was given.

    Args:
        picture: path, bytes of a file, `PdfPage`, PIL image, or array or tensor (H, W), (H, W, 1 to 4), (1, H, W),
            (3, H, W) or (4, H, W), of uint8 or uint16, bool, or floating point in 0..1; two channels are gray and
            alpha, four are RGBA.
        background: the colour behind what is transparent: a CSS name or code, or (red, green, blue) in 0..255.
        max_pixels: the most pixels of a file, a PDF page or a PIL image that are decoded, against decompression bombs.

    Raises:
        OSError: a path cannot be opened.
        ValueError: broken file, more than `max_pixels`, or an array that could mean several things.
        TypeError: not a picture.

    >>> load(np.zeros((2, 5), dtype=np.uint8)).shape
    torch.Size([3, 2, 5])
    """
    colour = _colour(background)
    if isinstance(picture, PdfPage):
        return render(picture, picture.size, max_pixels=max_pixels)
    if is_file(picture):
        with opened(picture) as image:
            check_limit(image.height, image.width, max_pixels)
            orientation = orientation_of(image)
            pixels = _jpeg(image, "cpu")
            if pixels is not None:
                return _turned(pixels, orientation)
            return to_tensor(_decoded(image), 1 if turns_itself(image) else orientation, background=colour)
    if isinstance(picture, (np.ndarray, Tensor)):
        return _from_array(picture, colour)
    check_kind(picture)
    with naming("PIL image"):
        check_limit(picture.height, picture.width, max_pixels)
        orientation = orientation_of(picture)  # 1 of a TIFF that was decoded: it has turned itself
        return to_tensor(_decoded(picture), 1 if turns_itself(picture) else orientation, background=colour)


def measure(picture: Picture) -> tuple[tuple[int, int], int]:
    """The upright (height, width) of a picture and its EXIF orientation, 1..8; of a file only the header is read."""
    if isinstance(picture, PdfPage):
        return picture.size, 1
    if is_file(picture):
        with opened(picture) as image:
            orientation = orientation_of(image)
            return size_of(image, orientation), orientation
    if isinstance(picture, (np.ndarray, Tensor)):
        height, width = (side for axis, side in enumerate(picture.shape) if axis != _channel_axis(picture))
        return (height, width), 1
    check_kind(picture)
    orientation = orientation_of(picture)
    return size_of(picture, orientation), orientation


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
        pixels = _jpeg(image, device)
        if pixels is not None:
            return _turned(pixels, orientation_of(image))
    return load(file, background=background, max_pixels=max_pixels).to(device)


def to_tensor(image: Image, orientation: int, *, background: Background = "white") -> UInt8[Tensor, "3 h w"]:
    """The pixels of a loaded PIL image, with `orientation` applied."""
    pixels = torch.from_numpy(np.array(_rgb(image, background)))
    return _turned(pixels.permute(2, 0, 1), orientation)


def _colour(background: Background) -> tuple[int, int, int]:
    from PIL import ImageColor

    if isinstance(background, str):
        try:
            return ImageColor.getrgb(background)[:3]
        except ValueError:
            pass
    elif isinstance(background, tuple) and len(background) == 3 and all(part in range(256) for part in background):
        return background
    raise ValueError(f"background is {background!r}; expected a CSS colour or (red, green, blue) in 0..255")


def check_kind(picture: object, name: str = "a picture") -> None:
    """Refuse what is no picture, called by `name`."""
    if is_file(picture) or isinstance(picture, (PdfPage, np.ndarray, Tensor)):
        return
    from PIL.Image import Image

    if not isinstance(picture, Image):
        raise TypeError(
            f"{name} is a path, bytes, PDF page, PIL image, array or tensor; got a {type(picture).__name__}"
        )


def _jpeg(image: ImageFile, device: torch.device | str) -> Tensor | None:
    """The pixels of an open plain JPEG, by torchvision; None where Pillow must decode, or say what is wrong.

    The bytes are Pillow's, but they come straight into interleaved memory, without two copies of the picture.
    """
    if image.format not in ("JPEG", "MPO") or image.mode not in ("RGB", "L") or image.fp is None:
        return None
    image.fp.seek(0)
    data = bytearray(image.fp.read())
    if not data.endswith(b"\xff\xd9"):  # no end of image: cut off, or followed by something
        return None
    encoded, device = torch.frombuffer(data, dtype=torch.uint8), torch.device(device)
    try:
        import torchvision.io  # noqa: F401 - registers the operators, whose wrappers torchvision 0.29 deprecates

        if device.type == "cuda":
            return torch.ops.image.decode_jpegs_cuda([encoded], _RGB, device)[0]
        return torch.ops.image.decode_jpeg(encoded, _RGB, False)
    except (ImportError, AttributeError, RuntimeError):  # not in this torchvision, or not with this file
        return None


def _decoded(image: Image) -> Image:
    """A PIL image with its pixels, those of 16 bits a colour rounded: Pillow itself drops their lower bytes."""
    from PIL.ImageFile import ImageFile

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
    return _eight_bits(upper_bytes, lower_bytes, image.info.get("transparency"))


def _lower_bytes(args: Any) -> Any:
    """The arguments of a tile with which Pillow reads the lower bytes; None where it reads no colours of 16 bits."""
    if isinstance(args, str):
        return _LOWER_BYTES.get(args)
    return (_LOWER_BYTES[args[0]], *args[1:]) if isinstance(args, tuple) and args[0] in _LOWER_BYTES else None


def _rgb(image: Image, background: Background) -> Image:
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        values = np.asarray(image)[..., None]
        image = _eight_bits(values >> 8, values & 255, image.info.get("transparency"))
    elif image.mode in ("I", "F"):
        raise ValueError(f"PIL mode {image.mode!r} does not say which value is white; scale it to 8 bits, mode 'L'")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, background), image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _eight_bits(upper: np.ndarray, lower: np.ndarray, transparent: int | tuple[int, ...] | None) -> Image:
    """A PIL image of values (H, W, channels) of 16 bits, in which the colour `transparent` is invisible."""
    from PIL import Image

    small = _rounded(upper, lower)
    if transparent is not None:
        values = upper.astype(np.uint16) << 8 | lower
        opaque = (values != np.array(transparent)).any(axis=-1, keepdims=True)
        small = np.concatenate([small, opaque * np.uint8(255)], axis=-1)
    return Image.fromarray(small[..., 0] if small.shape[-1] == 1 else small)


def _rounded(upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """round(value / 257) of values 256 * upper + lower = 257 * upper + (lower - upper)."""
    rest = lower.astype(np.int16) - upper.astype(np.int16)
    return (upper + (rest > 128) - (rest < -128)).astype(np.uint8)


def _turned(pixels: Tensor, orientation: int) -> Tensor:
    """Stored pixels (3, H, W) upright, in the memory order (rows, columns, channels)."""
    if orientation == 1:
        return pixels
    transposed, down, right = _TURNS[orientation]
    if pixels.device.type != "cpu":
        flipped = [axis for axis, step in ((1, down), (2, right)) if step < 0]
        return (pixels.mT if transposed else pixels).flip(flipped)
    # One item of three bytes a pixel: numpy moves them together.
    stored = pixels.permute(1, 2, 0).numpy().view("V3")[..., 0]
    upright = np.ascontiguousarray((stored.T if transposed else stored)[::down, ::right])
    return torch.from_numpy(upright.view(np.uint8).reshape(*upright.shape, 3)).permute(2, 0, 1)


def _channel_axis(array: np.ndarray | Tensor) -> int | None:
    """Which axis of an array is the colour; None where there is none."""
    shape = tuple(array.shape)
    if 0 in shape:
        raise ValueError(f"array of shape {shape} has no pixels")
    if len(shape) == 2:
        return None
    for last, first in (((3, 4), (3, 4)), ((1, 2), (1,))):  # colour before gray
        axes = [axis for axis, channels in ((2, last), (0, first)) if len(shape) == 3 and shape[axis] in channels]
        if len(axes) == 2:
            raise ValueError(f"array of shape {shape} could be (H, W, C) or (C, H, W): give a PIL image")
        if axes:
            return axes[0]
    raise ValueError(
        f"array of shape {shape} is no picture; expected (H, W), (H, W, 1 to 4), (1, H, W), (3, H, W) or (4, H, W)"
    )


def _from_array(array: np.ndarray | Tensor, background: Background) -> Tensor:
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
        return to_tensor(Image.fromarray(values), 1, background=background)
    tensor = pixels if isinstance(pixels, Tensor) else as_tensor(pixels)
    return (tensor.repeat(1, 1, 3) if channels == 1 else tensor).permute(2, 0, 1)


def _as_bytes(array: np.ndarray | Tensor) -> np.ndarray | Tensor:
    """The values of an array in 0..255: of 16 bits the nearest, of floating point in 0..1 and of truth their share."""
    if array.dtype == (torch.uint8 if isinstance(array, Tensor) else np.uint8):
        return array
    if isinstance(array, Tensor):
        values = array.detach().cpu()
        values = (values.float() if values.is_floating_point() else values).numpy()
    else:
        values = array
    if values.dtype == np.uint16:
        return _rounded(values >> 8, values & 255)
    if values.dtype == bool:
        return values * np.uint8(255)
    if not np.issubdtype(values.dtype, np.floating):
        raise ValueError(f"{array.dtype} array does not say which value is white; scale it to 0..255 and make it uint8")
    if not (values.min() >= 0 and values.max() <= 1):  # and not where one is no number
        raise ValueError(
            f"{array.dtype} array reaches from {values.min():g} to {values.max():g}; expected 0..1, or 0..255 as uint8"
        )
    return np.rint(values.astype(np.float32) * 255).astype(np.uint8)


def as_tensor(array: np.ndarray) -> Tensor:
    """The array as a tensor; a copy where torch cannot share the memory (read-only, or strides run backwards)."""
    shared = array.flags.writeable and min(array.strides) >= 0
    return torch.from_numpy(array if shared else array.copy())
