"""A decoded picture, made RGB and upright some rows at a time, so that no second copy of it is ever whole.

Letters: H rows and W columns as stored, h and w of the upright picture, n rows of those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from .pages import fresh

if TYPE_CHECKING:
    from PIL.Image import Image
else:
    Image = Any

Rgb = tuple[int, int, int]

BAND = 1 << 18
"""About how many bytes of a PIL image are converted at once."""

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


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """Pixels as a decoder left them.

    Args:
        stored: (3, H, W) uint8 of any strides, or a loaded PIL image.
        orientation: EXIF, 1..8, still to be applied.
        background: red, green and blue behind what is transparent.

    >>> Decoded(torch.arange(18, dtype=torch.uint8).view(3, 2, 3), 6).rows(1, 3)[0]
    tensor([[4, 1],
            [5, 2]], dtype=torch.uint8)
    """

    stored: Tensor | Image
    orientation: int = 1
    background: Rgb = (255, 255, 255)

    @property
    def size(self) -> tuple[int, int]:
        """(h, w)."""
        high, wide = self._stored_size
        return (wide, high) if _TURNS[self.orientation][0] else (high, wide)

    @property
    def _stored_size(self) -> tuple[int, int]:
        if isinstance(self.stored, Tensor):
            return self.stored.shape[1], self.stored.shape[2]
        return self.stored.height, self.stored.width

    @property
    def device(self) -> torch.device:
        """Where the pixels lie."""
        return self.stored.device if isinstance(self.stored, Tensor) else torch.device("cpu")

    @property
    def plain(self) -> bool:
        """Whether `rows` gives views of the pixels themselves."""
        return isinstance(self.stored, Tensor) and self.orientation == 1

    def rows(self, first: int, last: int) -> UInt8[Tensor, "3 n w"]:
        """The upright rows from `first` to before `last`, in the memory order (rows, columns, channels) or as given."""
        band = last - first if isinstance(self.stored, Tensor) else max(1, BAND // (4 * self.size[1]))
        if last - first <= band:
            return turned(self._stored_rows(first, last), self.orientation)
        pixels = fresh((last - first, self.size[1], 3), torch.uint8).permute(2, 0, 1)
        for top in range(first, last, band):
            bottom = min(top + band, last)
            pixels[:, top - first : bottom - first] = turned(self._stored_rows(top, bottom), self.orientation)
        return pixels

    def _stored_rows(self, first: int, last: int) -> Tensor:
        """What the upright rows are made of: rows or columns as stored."""
        transposed, down, _ = _TURNS[self.orientation]
        if down < 0:
            first, last = self.size[0] - last, self.size[0] - first
        high, wide = self._stored_size
        left, top, right, bottom = (first, 0, last, high) if transposed else (0, first, wide, last)
        if isinstance(self.stored, Tensor):
            return self.stored[:, top:bottom, left:right]
        piece = np.array(_rgb(self.stored.crop((left, top, right, bottom)), self.background))
        return torch.from_numpy(piece).permute(2, 0, 1)

    def all(self) -> UInt8[Tensor, "3 h w"]:
        """The whole picture; a tensor that is upright is passed on as it is."""
        return self.rows(0, self.size[0])


def turned(pixels: UInt8[Tensor, "3 H W"], orientation: int) -> UInt8[Tensor, "3 h w"]:
    """Stored pixels upright, in the memory order (rows, columns, channels)."""
    if orientation == 1:
        return pixels
    transposed, down, right = _TURNS[orientation]
    if pixels.device.type != "cpu":
        flipped = [axis for axis, step in ((1, down), (2, right)) if step < 0]
        return (pixels.mT if transposed else pixels).flip(flipped)
    # One item of three bytes a pixel: numpy moves them together.
    rows = pixels.permute(1, 2, 0)
    stored = (rows if rows.stride(2) == 1 else rows.contiguous()).numpy().view("V3")[..., 0]
    upright = np.ascontiguousarray((stored.T if transposed else stored)[::down, ::right])
    return torch.from_numpy(upright.view(np.uint8).reshape(*upright.shape, 3)).permute(2, 0, 1)


def check_mode(image: Image) -> None:
    """Refuse a PIL image whose values do not say what white is."""
    if image.mode == "F" or (image.mode == "I" and image.format != "PPM"):
        raise ValueError(f"PIL mode {image.mode!r} does not say which value is white; scale it to 8 bits, mode 'L'")


def _rgb(image: Image, background: Rgb) -> Image:
    from PIL import Image

    if image.mode.startswith("I"):
        values = np.asarray(image)[..., None]
        image = eight_bits(values >> 8, values & 255, image.info.get("transparency"))
    if image.mode == "La":  # of which Pillow makes nothing else
        image = image.convert("LA")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, background), image)
    return image if image.mode == "RGB" else image.convert("RGB")


def eight_bits(upper: np.ndarray, lower: np.ndarray, transparent: int | tuple[int, ...] | None) -> Image:
    """A PIL image of values (H, W, channels) of 16 bits, in which the colour `transparent` is invisible."""
    from PIL import Image

    small = rounded(upper, lower)
    if transparent is not None:
        values = upper.astype(np.uint16) << 8 | lower
        opaque = (values != np.array(transparent)).any(axis=-1, keepdims=True)
        small = np.concatenate([small, opaque * np.uint8(255)], axis=-1)
    return Image.fromarray(small[..., 0] if small.shape[-1] == 1 else small)


def rounded(upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """round(value / 257) of values 256 * upper + lower = 257 * upper + (lower - upper)."""
    rest = lower.astype(np.int16) - upper.astype(np.int16)
    return (upper + (rest > 128) - (rest < -128)).astype(np.uint8)
