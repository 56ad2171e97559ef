"""Picture files through Pillow: found out by content, read lazily, refused in one line."""

from __future__ import annotations

import io
import os
import re
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

from mrope.checks import whole

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile
    from typing_extensions import TypeIs

    File = str | os.PathLike[str] | bytes
    IsFile = TypeIs[File]
else:  # at run time a wrong source gets our own message
    File = Image = ImageFile = Any
    IsFile = bool

MAX_PIXELS = 178_956_970
"""The most pixels of a picture that are decoded by default: 13,377 x 13,377, at which Pillow refuses too."""

_ORIENTATION = 0x0112
# XMP in a chunk of a PNG (whether it is compressed, the text), what it says of the orientation, and how long it may be.
_XMP = re.compile(rb"XML:com\.adobe\.xmp\0(.).[^\0]*\0[^\0]*\0(.*)", re.DOTALL)
# What ImageMagick writes of EXIF into a chunk of text: a name, how many bytes, and these as hexadecimal digits.
_RAW_EXIF = re.compile(rb"Raw profile type exif\0(.*)", re.DOTALL)
_XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
_TEXT_BYTES = 1 << 20
# What Pillow and its decoders raise about broken files, beside ValueError.
_BROKEN = (
    OSError,
    RuntimeError,
    SyntaxError,
    EOFError,
    LookupError,
    ArithmeticError,
    AttributeError,
    TypeError,
    MemoryError,
    struct.error,
    zlib.error,
)
_STILL = (b"avif", b"avis", b"heic", b"heix", b"mif1")  # brands of pictures in the container of MP4
_OUTSIDE = ("EPS",)  # formats that Pillow hands to another program on the machine
_SILENT = Lock()  # the filters of warnings belong to the whole process


def is_file(source: object) -> IsFile:
    """Whether `source` names or holds a file: a path or bytes."""
    return isinstance(source, (str, os.PathLike, bytes))


def name_of(source: object) -> str | None:
    """How errors call a file; None for what is none."""
    if isinstance(source, bytes):
        return f"picture of {len(source)} bytes"
    return os.fsdecode(source) if is_file(source) else None


@contextmanager
def opened(source: File) -> Iterator[ImageFile]:
    """The picture in `source`, its header read and its pixels not yet.

    Unlike `PIL.Image.open` it has no limit of size, because a header costs nothing: pixels ask `check_limit` first.
    Its formats are those of Pillow without Encapsulated PostScript, which Pillow gives to Ghostscript.

    Raises:
        OSError: the path cannot be opened.
        ValueError: the content is no picture, or turns out to be broken while the picture is open.
    """
    with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as file, decoding(name_of(source)):
        yield _identified(file)


@contextmanager
def naming(name: str | None) -> Iterator[None]:
    """Let refusals begin with the name of what they are about, if it has one."""
    try:
        yield
    except ValueError as error:
        if name is None or str(error).startswith(f"{name}: "):
            raise
        raise ValueError(f"{name}: {_one_line(error)}") from error


@contextmanager
def decoding(name: str | None) -> Iterator[None]:
    """Turn what Pillow and its decoders say about a broken picture into one line that names the picture."""
    from PIL.Image import DecompressionBombError

    with naming(name):
        try:
            yield
        except DecompressionBombError as error:
            raise ValueError(f"{_one_line(error)}: PIL.Image.MAX_IMAGE_PIXELS limits the whole process") from error
        except _BROKEN as error:
            raise ValueError(f"broken or unreadable picture ({_one_line(error)})") from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


@contextmanager
def _silence() -> Iterator[None]:
    """Keep Pillow's warnings about odd metadata to ourselves; one thread at a time, as the filters demand."""
    with _SILENT, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")
        yield


def _identified(file: io.BytesIO | io.BufferedReader) -> ImageFile:
    from PIL import Image

    prefix = file.read(16)
    if not prefix:
        raise ValueError("the file is empty")
    if prefix.startswith(b"%PDF-"):
        raise ValueError("a PDF holds pages; give the pages that pdf_pages makes of it")
    tried: set[str] = set(_OUTSIDE)
    for find_plugins in (Image.preinit, Image.init):  # the common formats, then all
        find_plugins()
        plugins = [Image.OPEN[name] for name in Image.ID if name not in tried]
        tried.update(Image.ID)
        answers = [(factory, accepts and accepts(prefix.ljust(16, b"\0"))) for factory, accepts in plugins]
        # A string says why Pillow was built without this format; None, that the format has no first bytes of its own.
        known = [factory for factory, answer in answers if answer and not isinstance(answer, str)]
        unsure = [factory for factory, accepts in plugins if accepts is None]
        with _silence():
            for factory in (*known, *unsure):
                file.seek(0)
                try:
                    return factory(file, "")
                except (SyntaxError, IndexError, TypeError, struct.error):
                    continue  # another format with the same first bytes
    film = prefix[4:8] == b"ftyp" and prefix[8:12] not in _STILL
    if film or prefix.startswith(b"\x1aE\xdf\xa3") or prefix[8:12] == b"AVI ":
        raise ValueError("a clip, or no picture that Pillow reads; plan_video, patchify_video and read_clip take clips")
    raise ValueError(f"not a picture in a format that Pillow reads; it starts with {prefix!r}")


def reopened(image: ImageFile) -> ImageFile:
    """The frame of an open file once more, not decoded."""
    assert image.fp is not None  # as long as it is not decoded
    image.fp.seek(0)
    with _silence():
        again = type(image)(image.fp)
        again.seek(image.tell())
    orientation_of(again)  # of a TIFF, Pillow reads it with the pixels otherwise, and warns then
    return again


def orientation_of(image: Image) -> int:
    """The EXIF orientation of a PIL image, 1..8; 1 where there is none or none that makes sense."""
    try:
        with _silence():
            value = _exif(image).get(_ORIENTATION, 1)
    except (*_BROKEN, ValueError):
        return 1  # broken metadata of a sound picture
    return int(value) if value in range(1, 9) else 1


def _exif(image):
    from PIL import Image

    if image.format != "PNG" or "exif" in image.info or getattr(image, "fp", None) is None:
        return image.getexif()
    # A PNG may hold EXIF, or XMP, behind its pixels, and Pillow decodes the pixels to get there. Step over the chunks.
    file, told = image.fp, None
    place = file.tell()
    file.seek(8)
    try:
        while len(head := file.read(8)) == 8:
            length, kind = struct.unpack(">I4s", head)
            end = file.tell() + length + 4
            if kind == b"IEND":
                break
            if kind == b"eXIf":
                exif = Image.Exif()
                exif.load(file.read(length))
                return exif
            if kind in (b"tEXt", b"zTXt") and (raw := _RAW_EXIF.fullmatch(file.read(length))):
                text = _inflated(raw[1][1:]) if kind == b"zTXt" else raw[1]
                exif = Image.Exif()
                exif.load(bytes.fromhex("".join(text.decode("latin-1").split("\n")[3:])))
                return exif
            if kind == b"iTXt" and (xmp := _XMP.fullmatch(file.read(length))):
                text = _inflated(xmp[2]) if xmp[1] == b"\1" else xmp[2]
                told = _XMP_ORIENTATION.search(text)
            file.seek(end)
    finally:
        file.seek(place)
    exif = Image.Image.getexif(image)
    if told is not None:
        exif.setdefault(_ORIENTATION, int(told[1]))
    return exif


def _inflated(text: bytes) -> bytes:
    return zlib.decompressobj().decompress(text, _TEXT_BYTES)


def size_of(image: Image, orientation: int) -> tuple[int, int]:
    """The (height, width) of a PIL image once `orientation` is applied."""
    tags = getattr(image, "tag_v2", {})
    swaps = orientation >= 5 and tags.get(_ORIENTATION, 1) < 5  # Pillow has swapped the size of a TIFF by its tag
    return (image.width, image.height) if swaps else (image.height, image.width)


def turns_itself(image: Image) -> bool:
    """Whether Pillow applies the orientation on its own: it turns the pixels of a TIFF when it loads them."""
    return image.format == "TIFF"


def check_limit(height: int, width: int, max_pixels: int) -> None:
    """Refuse to make more pixels than `max_pixels`."""
    if height * width > whole("max_pixels", max_pixels, 1):
        raise ValueError(
            f"{width} wide x {height} high is more than max_pixels={max_pixels}; "
            f"max_pixels={height * width} would do, if you trust the file"
        )


def frames_in(image: Image) -> int:
    """How many frames an open file holds."""
    return getattr(image, "n_frames", 1)


def frames_of(image: ImageFile, *, max_pixels: int = MAX_PIXELS) -> Iterator[ImageFile]:
    """The frames of an open file in order, each decoded: the same object, moved on."""
    check_limit(image.height, image.width, max_pixels)
    for index in range(frames_in(image)):
        image.seek(index)
        image.load()
        yield image
