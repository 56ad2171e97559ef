"""What counts as a picture, and how errors call it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from torch import Tensor

from . import files
from .files import is_file
from .pdf import PdfPage

if TYPE_CHECKING:
    from PIL.Image import Image

    Picture = str | os.PathLike[str] | bytes | PdfPage | Image | np.ndarray | Tensor
else:  # at run time a wrong picture gets our own message
    Picture = Any

OnError: TypeAlias = Literal["raise", "skip", "keep"]
"""What becomes of a picture that cannot be read or planned: its error is raised, it is left out and listed in
`skipped`, or it comes with its error."""


def name_of(picture: object) -> str | None:
    """How errors call a file or a PDF page; None for what is neither."""
    return str(picture) if isinstance(picture, PdfPage) else files.name_of(picture)


def check_kind(picture: object, name: str = "picture") -> None:
    """Refuse what is no picture, called by `name`."""
    if is_file(picture) or isinstance(picture, (PdfPage, np.ndarray, Tensor)):
        return
    from PIL.Image import Image

    if not isinstance(picture, Image):
        raise TypeError(
            f"{name} is a {type(picture).__name__}; expected a path, bytes, PDF page, PIL image, array or tensor"
        )


def check_several(name: str, pictures: Any) -> None:
    """Refuse one picture or one size where several are expected; the rows of an array would pass for pictures."""
    shape = getattr(pictures, "shape", None)
    if isinstance(pictures, tuple) and pictures and all(isinstance(side, (int, np.integer)) for side in pictures):
        what = f"size {pictures}"
    elif shape is not None and len(shape) != 4:
        what = f"{type(pictures).__name__} of shape {tuple(shape)}"
    elif is_file(pictures) or isinstance(pictures, Mapping) or not isinstance(pictures, Iterable):
        what = type(pictures).__name__
    else:
        return
    raise TypeError(f"{name} is one {what}; expected several pictures, such as [picture]")
