"""Pages of PDF files, rendered straight at the size that a plan wants."""

from __future__ import annotations

import ctypes
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

import torch
from jaxtyping import UInt8
from torch import Tensor

from mrope.checks import Number, positive, whole

from .files import MAX_PIXELS, File, check_limit

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument

_PDFIUM = Lock()  # pdfium is not thread-safe, not even between documents


@dataclass(frozen=True, slots=True)
class PdfPage:
    """One page of a PDF file: a picture that is not rendered yet, small enough to be sent to another process.

    Args:
        file: path or bytes of the PDF.
        number: of the page, from 1.
        points: (height, width) of what it shows, in points of 1/72 inch, its crop box and rotation applied.
        dpi: pixels an inch, where a size is not given.

    >>> PdfPage("a4.pdf", 1, (841.89, 595.28), dpi=72).size
    (842, 595)
    """

    file: File = field(repr=False)
    number: int
    points: tuple[Number, Number]
    dpi: Number = 200

    def __post_init__(self) -> None:
        whole("number", self.number, 1)
        positive("dpi", self.dpi)
        for side in self.points:
            positive("points", side)

    def __str__(self) -> str:
        return f"{_name(self.file)}, page {self.number}"

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels at `dpi`."""
        height, width = (max(1, round(side * self.dpi / 72)) for side in self.points)
        return height, width


def pdf_pages(source: File, *, dpi: Number = 200) -> list[PdfPage]:
    """The pages of a PDF file, from its page boxes alone; `load` renders them, and `plan` and `patchify` take them.

    Args:
        source: path or bytes of a PDF.
        dpi: pixels an inch of a page that is loaded on its own.

    Raises:
        ImportError: pypdfium2 is not installed.
        OSError: the path cannot be opened.
        ValueError: no PDF, a broken or an encrypted one.
    """
    positive("dpi", dpi)
    with _opened(source) as document:
        sizes = [document.get_page_size(index) for index in range(len(document))]
        return [PdfPage(source, number, (height, width), dpi) for number, (width, height) in enumerate(sizes, 1)]


def render(page: PdfPage, size: tuple[int, int], *, max_pixels: int = MAX_PIXELS) -> UInt8[Tensor, "3 h w"]:
    """The page on white at exactly `size` (height, width), each side scaled on its own, in memory (h, w, 3).

    Raises:
        ImportError, OSError: as `pdf_pages`.
        ValueError: as `pdf_pages`, no such page, or more than `max_pixels`.
    """
    height, width = (whole("size", side, 1) for side in size)
    try:
        check_limit(height, width, max_pixels)
    except ValueError as error:
        raise ValueError(f"{page}: {error}; or a smaller dpi than {page.dpi}") from None
    with _opened(page.file) as document:
        import pypdfium2.raw as pdfium

        if page.number > len(document):
            raise ValueError(f"{page}: the last page of the file is {len(document)}")
        opened = document[page.number - 1]
        pixels = torch.full((height, width, 3), 255, dtype=torch.uint8)
        memory = ctypes.c_void_p(pixels.data_ptr())  # pdfium draws straight into the result
        bitmap = pdfium.FPDFBitmap_CreateEx(width, height, pdfium.FPDFBitmap_BGR, memory, 3 * width)
        try:
            flags = pdfium.FPDF_ANNOT | pdfium.FPDF_REVERSE_BYTE_ORDER
            pdfium.FPDF_RenderPageBitmap(bitmap, opened, 0, 0, width, height, 0, flags)
        finally:
            pdfium.FPDFBitmap_Destroy(bitmap)
            opened.close()
    return pixels.permute(2, 0, 1)


@contextmanager
def _opened(source: File) -> Iterator[PdfDocument]:
    """The document, while no other thread is in pdfium."""
    try:
        from pypdfium2 import PdfDocument, PdfiumError
    except ImportError:
        raise ImportError("PDF pages need pypdfium2, which is not installed: pip install 'mrope[pdf]'") from None
    with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as file:  # the system's own word
        if not file.read(1):
            raise ValueError(f"{_name(source)}: the file is empty")
    with _PDFIUM:
        document = None
        try:
            document = PdfDocument(source if isinstance(source, bytes) else os.fsdecode(source))
            yield document
        except PdfiumError as error:
            fault = "encrypted" if "password" in str(error).lower() else "broken or no PDF"
            raise ValueError(f"{_name(source)}: {fault} ({' '.join(str(error).split())})") from error
        finally:
            if document is not None:
                document.close()


def _name(source: File) -> str:
    return f"PDF of {len(source)} bytes" if isinstance(source, bytes) else os.fsdecode(source)
