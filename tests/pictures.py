"""Small picture files for tests, and the real photographs that scikit-image ships."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

# What the 2 x 3 picture ((1, 2, 3), (4, 5, 6)) shows under each EXIF orientation (EXIF 2.32, section 4.6.4).
STORED = ((1, 2, 3), (4, 5, 6))
UPRIGHT = {
    1: ((1, 2, 3), (4, 5, 6)),
    2: ((3, 2, 1), (6, 5, 4)),
    3: ((6, 5, 4), (3, 2, 1)),
    4: ((4, 5, 6), (1, 2, 3)),
    5: ((1, 4), (2, 5), (3, 6)),
    6: ((4, 1), (5, 2), (6, 3)),
    7: ((6, 3), (5, 2), (4, 1)),
    8: ((3, 6), (2, 5), (1, 4)),
}


def photograph(name: str) -> Image.Image:
    """A photograph of scikit-image's wheel: "astronaut", "coffee", "chelsea" or "rocket"."""
    import skimage.data

    return Image.fromarray(getattr(skimage.data, name)())


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def noise(height: int, width: int, channels: int = 3) -> np.ndarray:
    return np.random.randint(0, 256, (height, width, channels), dtype=np.uint8)


def chunk(kind: bytes, content: bytes) -> bytes:
    """One chunk of a PNG file."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png16(values: np.ndarray, transparent: np.ndarray | None = None) -> bytes:
    """A PNG of 16 bits a sample; `values` (H, W, channels) are gray, gray + alpha, RGB or RGBA."""
    height, width, channels = values.shape
    colour_type = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)),
            b"" if transparent is None else chunk(b"tRNS", transparent.astype(">u2").tobytes()),
            chunk(b"IDAT", zlib.compress(rows)),
            chunk(b"IEND", b""),
        ]
    )


def png_header(height: int, width: int) -> bytes:
    """A PNG that ends before its pixels are complete."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0"))
