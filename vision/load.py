"""Pictures of every kind to RGB bytes: one policy for files, PIL images, arrays and tensors."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from .files import check_limit, is_file, naming, opened, orientation_of, size_of, turns_itself

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

    Picture = str | os.PathLike[str] | bytes | Image | np.ndarray | Tensor
else:  # at run time a wrong picture gets our own message
    Picture = Image = ImageFile = Any

_TURNS = {  # EXIF orientation -> PIL.Image.Transpose
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
# How Pillow reads the upper byte of each colour of a 16-bit PNG, and how it would read the lower one, which it drops.
_LOWER_BYTES: dict[object, str] = {"RGB;16B": "RGB;16L", "RGBA;16B": "RGBA;16L"}


def load(picture: Picture) -> UInt8[Tensor, "3 h w"]:
    """The pixels of a picture: red, green, blue, upright, opaque.

    The EXIF orientation of files and PIL images is applied; transparency is laid over white; 16 bits become 8 by
    round(value / 257), or by their upper byte (at most one level off) in colour TIFF and in gray with alpha; of an
    animated file the first frame is taken. The result keeps Pillow's memory order (rows, columns, channels), which
    resizes fastest; it shares memory with an array or tensor that was given.

    Args:
        picture: path, bytes of a file, PIL image, or uint8 array or tensor (H, W), (H, W, 3), (H, W, 4) or (3, H, W).

    Raises:
        OSError: a path cannot be opened.
        ValueError: broken file, more pixels than Pillow's limit, or an array that could mean several things.
        TypeError: not a picture.

    >>> load(np.zeros((2, 5), dtype=np.uint8)).shape
    torch.Size([3, 2, 5])
    """
    if is_file(picture):
        with opened(picture) as image:
            orientation = orientation_of(image)
            return to_tensor(_decoded(image), 1 if turns_itself(image) else orientation)
    if isinstance(picture, (np.ndarray, Tensor)):
        return _from_array(picture)
    _check_pil(picture)
    with naming("PIL image"):
        picture.load()
        return to_tensor(picture, orientation_of(picture))


def measure(picture: Picture) -> tuple[tuple[int, int], int]:
    """The upright (height, width) of a picture and its EXIF orientation, 1..8; of a file only the header is read."""
    if is_file(picture):
        with opened(picture) as image:
            orientation = orientation_of(image)
            return size_of(image, orientation), orientation
    if isinstance(picture, (np.ndarray, Tensor)):
        rows = 1 if _layout(picture) == "CHW" else 0
        return (picture.shape[rows], picture.shape[rows + 1]), 1
    _check_pil(picture)
    orientation = orientation_of(picture)
    return size_of(picture, orientation), orientation


def to_tensor(image: Image, orientation: int) -> UInt8[Tensor, "3 h w"]:
    """The pixels of a loaded PIL image, with `orientation` applied."""
    image = _rgb(image)
    if orientation != 1:
        from PIL.Image import Transpose

        image = image.transpose(Transpose[_TURNS[orientation]])
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def _check_pil(picture: object) -> None:
    from PIL.Image import Image

    if not isinstance(picture, Image):
        raise TypeError(f"a picture is a path, bytes, PIL image, array or tensor; got a {type(picture).__name__}")


def _decoded(image: ImageFile) -> Image:
    """The picture of an open file with its pixels."""
    check_limit(image)
    lower = _LOWER_BYTES.get(image.tile[0].args) if image.format == "PNG" and image.tile else None
    file = image.fp
    image.load()
    if lower is None or file is None:
        return image
    file.seek(0)
    again = type(image)(file)
    again.tile = [again.tile[0]._replace(args=lower)]
    return _eight_bits(np.asarray(image, np.int32) * 256 + np.asarray(again), image.info.get("transparency"))


def _rgb(image: Image) -> Image:
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        image = _eight_bits(np.asarray(image)[..., None], image.info.get("transparency"))
    elif image.mode in ("I", "F"):
        raise ValueError(f"PIL mode {image.mode!r} does not say which value is white; scale it to 8 bits, mode 'L'")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _eight_bits(values: np.ndarray, transparent: int | tuple[int, ...] | None) -> Image:
    """A PIL image of values (H, W, channels) in 0..65535, in which the colour `transparent` is invisible."""
    from PIL import Image

    values = values.astype(np.int32)
    small = ((values + 128) // 257).astype(np.uint8)
    if transparent is not None:
        opaque = (values != np.array(transparent)).any(axis=-1, keepdims=True)
        small = np.concatenate([small, opaque * np.uint8(255)], axis=-1)
    return Image.fromarray(small[..., 0] if small.shape[-1] == 1 else small)


def _layout(array: np.ndarray | Tensor) -> Literal["HW", "HWC", "CHW"]:
    shape = tuple(array.shape)
    if array.dtype != (torch.uint8 if isinstance(array, Tensor) else np.uint8):
        raise ValueError(f"{array.dtype} array does not say which value is white; scale it to 0..255 and make it uint8")
    if 0 in shape:
        raise ValueError(f"array of shape {shape} has no pixels")
    if len(shape) == 2:
        return "HW"
    rows_first, channels_first = len(shape) == 3 and shape[2] in (3, 4), len(shape) == 3 and shape[0] == 3
    if rows_first == channels_first:
        fault = "could be (H, W, C) or (3, H, W): give a PIL image" if rows_first else "is not"
        raise ValueError(f"array of shape {shape} {fault}; expected (H, W), (H, W, 3), (H, W, 4) or (3, H, W)")
    return "HWC" if rows_first else "CHW"


def _from_array(array: np.ndarray | Tensor) -> Tensor:
    layout = _layout(array)
    if layout == "HWC" and array.shape[2] == 4:
        from PIL import Image

        return to_tensor(Image.fromarray(np.asarray(array.cpu() if isinstance(array, Tensor) else array)), 1)
    tensor = array if isinstance(array, Tensor) else as_tensor(array)
    if layout == "HW":
        return tensor.repeat(3, 1, 1)
    return tensor.permute(2, 0, 1) if layout == "HWC" else tensor


def as_tensor(array: np.ndarray) -> Tensor:
    """The array as a tensor; a copy where torch cannot share the memory (read-only, or strides run backwards)."""
    shared = array.flags.writeable and min(array.strides) >= 0
    return torch.from_numpy(array if shared else array.copy())
