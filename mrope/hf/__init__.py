"""Positions, rotary, plans and patches inside transformers; needs transformers, and loads it when it is used."""

from mrope.hf.batch import batch_positions, batch_spans, token_kinds
from mrope.hf.checkup import Finding, Report, doctor
from mrope.hf.collator import Collator
from mrope.hf.comparing import Comparison, Stage, compare
from mrope.hf.plugging import Plugged, plug, unplug
from mrope.hf.processors import PlannedPrompt, processor
from mrope.hf.reading import layout_of, read_positions, read_spans, take_rows
from mrope.hf.serving import ChatRequest, chat_request, vllm_positions
from mrope.vlm.build import build_vlm

__all__ = [
    "ChatRequest",
    "Collator",
    "Comparison",
    "Finding",
    "PlannedPrompt",
    "Plugged",
    "Report",
    "Stage",
    "batch_positions",
    "batch_spans",
    "build_vlm",
    "chat_request",
    "compare",
    "doctor",
    "layout_of",
    "plug",
    "processor",
    "read_positions",
    "read_spans",
    "take_rows",
    "token_kinds",
    "unplug",
    "vllm_positions",
]
