"""Tasks: questions about pictures and clips whose right answers are known, since we drew them."""

from __future__ import annotations

from .base import Task
from .contact import contact_sheet
from .registry import TASKS, task
from .sample import Clip, Sample

__all__ = ["TASKS", "Clip", "Sample", "Task", "contact_sheet", "task"]
