"""One position space for text, images and video, at native resolution."""

from pathlib import Path
from typing import TYPE_CHECKING

from mrope.axes import AxisSplit
from mrope.families import Family, family, family_names
from mrope.frequencies import Frequencies
from mrope.layouts import GridLayout, Layout
from mrope.positions import BatchPositions, Positions, batch
from mrope.rotary import Rotary, apply_rotary
from mrope.spans import Image, Span, Text, Video, parse_span

__all__ = [
    "AxisSplit",
    "BatchPositions",
    "Family",
    "Frequencies",
    "GridLayout",
    "Image",
    "Layout",
    "Positions",
    "Rotary",
    "Span",
    "Text",
    "Video",
    "apply_rotary",
    "batch",
    "family",
    "family_names",
    "parse_span",
]

# In a bare checkout `vision/` and `data/` stand beside this folder; an installed package has them inside.
_checkout = Path(__file__).resolve().parent.parent
if not (Path(__file__).parent / "vision").is_dir() and (_checkout / "vision").is_dir():
    __path__.append(str(_checkout))

__version__: str

if not TYPE_CHECKING:  # to a type checker, every name would be an attribute

    def __getattr__(name: str) -> str:
        if name != "__version__":
            raise AttributeError(f"module 'mrope' has no attribute {name!r}")
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("mrope")
        except PackageNotFoundError:
            return "0+checkout"
