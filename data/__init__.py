"""Fonts and demo pictures that ship with the project, the generators that draw them, and glyph grids for probes."""

from __future__ import annotations

from .chart import draw_chart
from .clip import clock_time, draw_clip
from .fonts import Font, font, fonts
from .glyphs import GLYPHS, HELD_OUT_PAIRS, RELATIONS, GlyphGrid, draw_grid, questions, sample_key
from .page import draw_page
from .photo import draw_photo
from .shipped import ASSETS, asset, write_asset
from .tasks import TASKS, Clip, Sample, Task, contact_sheet, task

__all__ = [
    "ASSETS",
    "GLYPHS",
    "HELD_OUT_PAIRS",
    "RELATIONS",
    "TASKS",
    "Clip",
    "Font",
    "GlyphGrid",
    "Sample",
    "Task",
    "asset",
    "clock_time",
    "contact_sheet",
    "draw_chart",
    "draw_clip",
    "draw_grid",
    "draw_page",
    "draw_photo",
    "font",
    "fonts",
    "questions",
    "sample_key",
    "task",
    "write_asset",
]
