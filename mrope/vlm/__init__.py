"""A vision-language model built from a vision encoder and a text model of transformers, with M-RoPE at any resolution.

Needs transformers, and loads it when `Vlm` or `VlmConfig` are looked up, which also makes their model type known to
transformers' Auto classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mrope.vlm.build import build_vlm
from mrope.vlm.training import add_lora, freeze

if TYPE_CHECKING:
    from mrope.vlm.config import VlmConfig
    from mrope.vlm.model import Vlm

__all__ = ["Vlm", "VlmConfig", "add_lora", "build_vlm", "freeze"]


def __getattr__(name: str) -> Any:
    if name not in ("Vlm", "VlmConfig"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mrope.vlm import model

    return getattr(model, name)
