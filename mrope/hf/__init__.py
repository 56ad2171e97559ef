"""Our positions inside transformers models; needs transformers, and loads it when it is used."""

from mrope.hf.batch import batch_positions, batch_spans, token_kinds
from mrope.hf.plugging import Plugged, plug, unplug

__all__ = ["Plugged", "batch_positions", "batch_spans", "plug", "token_kinds", "unplug"]
