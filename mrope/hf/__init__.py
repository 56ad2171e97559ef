"""Our positions inside transformers models; needs transformers, and loads it when it is used."""

from mrope.hf.batch import batch_positions, batch_spans, token_kinds
from mrope.hf.plugging import Plugged, plug, unplug
from mrope.hf.reading import layout_of, read_positions, read_spans, take_rows

__all__ = [
    "Plugged",
    "batch_positions",
    "batch_spans",
    "layout_of",
    "plug",
    "read_positions",
    "read_spans",
    "take_rows",
    "token_kinds",
    "unplug",
]
