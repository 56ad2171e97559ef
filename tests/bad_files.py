"""Files that loaders stumble over, made by hand: broken ones, bombs, and sound ones that look odd."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from pictures import chunk, encoded, exif, noise, photograph, png_header
from PIL import Image
from PIL.PngImagePlugin import PngInfo


def photo(height: int = 30, width: int = 41) -> Image.Image:
    return photograph("coffee").resize((width, height))


def pdf(
    contents: Sequence[bytes] = (b"",),
    box: Sequence[float] = (0, 0, 300, 200),
    entries: bytes = b"",
    trailer: bytes = b"",
) -> bytes:
    """A PDF of one page for each of `contents`, PDF operators; `entries` go into the dictionary of every page."""
    count = len(contents)
    pages = b" ".join(b"%d 0 R" % (3 + 2 * page) for page in range(count))
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [%s] /Count %d >>" % (pages, count)]
    font = b"<< /Font << /F << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >>"
    sides = " ".join(map(str, box)).encode()
    for page, content in enumerate(contents):
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [%s] /Resources %s /Contents %d 0 R %s >>"
            % (sides, font, 4 + 2 * page, entries)
        )
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content))
    file, places = b"%PDF-1.4\n", [b"0000000000 65535 f \n"]
    for number, one in enumerate(objects, 1):
        places.append(b"%010d 00000 n \n" % len(file))
        file += b"%d 0 obj\n%s\nendobj\n" % (number, one)
    table = b"xref\n0 %d\n%s" % (len(places), b"".join(places))
    end = b"trailer << /Size %d /Root 1 0 R %s >>\nstartxref\n%d\n%%%%EOF" % (len(places), trailer, len(file))
    return file + table + end


def encrypted_pdf() -> bytes:
    """A PDF that asks for a password: the check values of its standard security handler fit none."""
    keys = b"/O <%s> /U <%s>" % (b"41" * 32, b"42" * 32)
    handler = b"/Encrypt << /Filter /Standard /V 1 /R 2 /Length 40 /P -4 %s >> /ID [<61> <61>]" % keys
    return pdf(trailer=handler)


def cut(kind: str) -> bytes:
    file = encoded(photograph("chelsea"), kind)
    return file[: len(file) // 2]


def bmp_header(height: int, width: int) -> bytes:
    sizes = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + sizes


def gif_bomb() -> bytes:
    """The header of a huge canvas, and the frames of a small animation."""
    file = encoded(photo(), "GIF", save_all=True, append_images=[photo().rotate(9)])
    return file[:6] + struct.pack("<HH", 60000, 50000) + file[10:]


def png_bomb(height: int = 20000, width: int = 20000) -> bytes:
    """A complete white PNG of one bit a pixel, some fifty kilobytes."""
    rows = zlib.compress((b"\0" + b"\xff" * (width // 8)) * height)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def png_text(size: int) -> bytes:
    text = PngInfo()
    text.add_text("note", "a" * size, zip=True)
    return encoded(photo(), "PNG", pnginfo=text)


def jpeg_with_exif(content: bytes) -> bytes:
    return encoded(photo(), "JPEG", exif=b"Exif\0\0" + content)


def broken_exif() -> bytes:
    """The orientation, and then entries that are promised but not there: Pillow warns."""
    return jpeg_with_exif(b"II*\0\x08\0\0\0\x20\0" + struct.pack("<HHII", 0x0112, 3, 1, 6) + b"\1\1\4\0\1")


def long_exif() -> bytes:
    tags = exif(6)
    tags[0x010E] = "a" * 60000
    return encoded(photo(), "JPEG", exif=tags)


def damaged_jpeg() -> bytes:
    """Bytes in the middle of the pixels are others."""
    file = bytearray(encoded(photo(300, 410), "JPEG"))
    middle = len(file) // 2
    file[middle : middle + 40] = bytes(range(1, 41))
    return bytes(file)


def deep_tiff(pages: int) -> bytes:
    """A TIFF of many pages, of one gray pixel each."""
    entries = ((256, 1), (257, 1), (258, 8), (259, 1), (262, 1), (273, 8), (277, 1), (278, 1), (279, 1))
    file = b"II*\0" + struct.pack("<I", 12) + bytes([77, 0, 0, 0])
    for page in range(pages):
        following = 0 if page == pages - 1 else len(file) + 2 + 12 * len(entries) + 4
        tags = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries)
        file += struct.pack("<H", len(entries)) + tags + struct.pack("<I", following)
    return file


def endless_tiff() -> bytes:
    """Its second page is the first again."""
    file = deep_tiff(2)
    return file[:-4] + struct.pack("<I", 12)


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (bytes, "the file is empty"),
    "text": (lambda: b"hello world", "not a picture in a format that Pillow reads; it starts with b'hello world'"),
    "zeros": (lambda: bytes(1000), "not a picture|broken or unreadable"),
    "prefix alone": (lambda: b"\x89PNG\r\n\x1a\n", "not a picture|broken or unreadable"),
    "PDF": (pdf, "a PDF holds pages; .* pdf_pages"),
    "PostScript": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a picture"),
    "bomb": (png_bomb, "20000 wide x 20000 high is more than max_pixels=178956970; max_pixels=400000000 would do"),
    "PNG header": (partial(png_header, 50000, 60000), "60000 wide x 50000 high is more than max_pixels"),
    "BMP header": (partial(bmp_header, 20000, 20000), "20000 wide x 20000 high is more than max_pixels"),
    "animated bomb": (gif_bomb, "60000 wide x 50000 high is more than max_pixels"),
    "long PNG text": (partial(png_text, 3_000_000), "MAX_TEXT_CHUNK"),
    **{f"half a {kind}": (partial(cut, kind), "") for kind in ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "AVIF")},
}
"""What no loader can take: how to make it, and what the error says behind the file's name."""

ODD: dict[str, tuple[Callable[[], bytes], tuple[int, int]]] = {
    "one pixel": (lambda: encoded(photo(1, 1), "PNG"), (1, 1)),
    "one row": (lambda: encoded(photo(1, 3000), "PNG"), (1, 3000)),
    "PNG text": (partial(png_text, 900_000), (30, 41)),
    "broken EXIF": (broken_exif, (41, 30)),
    "empty EXIF": (partial(jpeg_with_exif, b""), (30, 41)),
    "long EXIF": (long_exif, (41, 30)),
    "long colour profile": (lambda: encoded(photo(), "JPEG", icc_profile=noise(500, 500).tobytes()), (30, 41)),
    "damaged JPEG": (damaged_jpeg, (300, 410)),
    "JPEG and more": (lambda: encoded(photo(), "JPEG") + bytes(100), (30, 41)),
    "deep TIFF": (partial(deep_tiff, 5000), (1, 1)),
    "endless TIFF": (endless_tiff, (1, 1)),
}
"""What is loaded although it looks odd: how to make it, and its (height, width)."""

SMALL: dict[str, Callable[[], bytes]] = {
    "JPEG": lambda: encoded(photo(), "JPEG", exif=exif(6)),
    "progressive JPEG": lambda: encoded(photo(), "JPEG", progressive=True),
    "CMYK JPEG": lambda: encoded(photo().convert("CMYK"), "JPEG"),
    "PNG": lambda: encoded(photo(), "PNG", exif=exif(6)),
    "palette PNG": lambda: encoded(photo().quantize(8), "PNG", transparency=2),
    "animated PNG": lambda: encoded(photo(), "PNG", save_all=True, append_images=[photo().rotate(9)]),
    "GIF": lambda: encoded(photo(), "GIF", save_all=True, append_images=[photo().rotate(9)]),
    "WebP": lambda: encoded(photo(), "WEBP", exif=exif(6)),
    "TIFF": lambda: encoded(photo(), "TIFF", exif=exif(6)),
    "LZW TIFF": lambda: encoded(photo(), "TIFF", compression="tiff_lzw"),
    "BMP": lambda: encoded(photo(), "BMP"),
    "AVIF": lambda: encoded(photo(), "AVIF", exif=exif(6)),
    "JPEG 2000": lambda: encoded(photo(), "JPEG2000"),
    "ICO": lambda: encoded(photo(), "ICO"),
    "PPM": lambda: encoded(photo(), "PPM"),
}
"""Sound small files, to be damaged."""


def damaged(file: bytes, seed: int) -> bytes:
    """The file cut off somewhere, or with up to four other bytes, half the time in its header."""
    random = np.random.default_rng(seed)
    if seed % 3 == 0:
        return file[: random.integers(len(file))]
    end = len(file) if seed % 3 == 1 else min(len(file), 200)
    changed = np.frombuffer(file, np.uint8).copy()
    changed[random.integers(0, end, random.integers(1, 5))] = random.integers(0, 256)
    return changed.tobytes()


def tiff16(values: np.ndarray, **options: Any) -> bytes:
    """A TIFF of values (H, W, 3 or 4) of 16 bits."""
    import tifffile  # comes with scikit-image

    file = io.BytesIO()
    extra: dict[str, Any] = {"extrasamples": ["unassalpha"]} if values.shape[-1] == 4 else {}
    tifffile.imwrite(file, values.astype(np.uint16), photometric="rgb", metadata=None, **extra, **options)
    return file.getvalue()
