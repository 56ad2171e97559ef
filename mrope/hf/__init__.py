"""Positions, rotary, plans and patches inside transformers; needs transformers, and loads it when it is used."""

from mrope.hf.batch import batch_positions, batch_spans, token_kinds
from mrope.hf.checkup import Finding, Report, doctor
from mrope.hf.plugging import Plugged, plug, unplug
from mrope.hf.processors import PlannedPrompt, processor
from mrope.hf.reading import layout_of, read_positions, read_spans, take_rows
from mrope.vlm.build import build_vlm

__all__ = [
    "Finding",
    "PlannedPrompt",
    "Plugged",
    "Report",
    "batch_positions",
    "batch_spans",
    "build_vlm",
    "doctor",
    "layout_of",
    "plug",
    "processor",
    "read_positions",
    "read_spans",
    "take_rows",
    "token_kinds",
    "unplug",
]
