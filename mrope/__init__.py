"""One position space for text, images and video, at native resolution."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrope.axes import AxisSplit, HeadSplit
from mrope.batches import BatchPositions, batch
from mrope.encoding import Encoding
from mrope.families import Family, family, family_names
from mrope.frequencies import Frequencies
from mrope.layouts import GridLayout, Layout
from mrope.positions import End, Positions, pack
from mrope.rotary import Rotary, apply_rotary
from mrope.shards import shard_index, unshard
from mrope.spans import Audio, Image, Sliced, Span, Target, Text, Video, parse_span
from mrope.truncation import Truncation, truncate

__all__ = [
    "Audio",
    "AxisSplit",
    "BatchPositions",
    "Encoding",
    "End",
    "Family",
    "Frequencies",
    "GridLayout",
    "HeadSplit",
    "Image",
    "Layout",
    "Positions",
    "Rotary",
    "Sliced",
    "Span",
    "Target",
    "Text",
    "Truncation",
    "Video",
    "apply_rotary",
    "batch",
    "family",
    "family_names",
    "pack",
    "parse_span",
    "shard_index",
    "truncate",
    "unshard",
]

# In a bare checkout `vision/` and `data/` stand beside this folder; an installed package has them inside.
_checkout = Path(__file__).resolve().parent.parent
if not (Path(__file__).parent / "vision").is_dir() and (_checkout / "vision").is_dir():
    __path__.append(str(_checkout))

__version__: str

if not TYPE_CHECKING:  # to a type checker, every name would be an attribute

    def __getattr__(name: str) -> Any:
        if name in ("data", "hf", "probes", "vision", "vlm"):  # found without an import of their own, loaded when used
            return import_module(f"mrope.{name}")
        if name != "__version__":
            raise AttributeError(f"module 'mrope' has no attribute {name!r}")
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("mrope")
        except PackageNotFoundError:
            return "0+checkout"
