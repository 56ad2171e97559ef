"""The processors of transformers with our patches and plans in them."""

from mrope.hf.processors.processor import PlannedPrompt, processor

__all__ = ["PlannedPrompt", "processor"]
