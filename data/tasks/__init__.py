"""Tasks: questions about pictures and clips whose right answers are known, since we drew them."""

from __future__ import annotations

from .sample import Clip, Sample

__all__ = ["Clip", "Sample"]
