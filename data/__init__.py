"""Fonts and demo pictures that ship with the project, the generators that draw them, and glyph grids for probes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .chart import draw_chart
from .clip import clock_time, draw_clip
from .fonts import Font, font, fonts
from .glyphs import GLYPHS, HELD_OUT_PAIRS, RELATIONS, GlyphGrid, draw_grid, questions, sample_key
from .page import draw_page
from .photo import draw_photo
from .shipped import ASSETS, asset, write_asset
from .tasks import TASKS, Clip, Sample, Task, contact_sheet, task

if TYPE_CHECKING:
    from .feeding.augment import Augment, Augmented, RandomCrop, RandomFlip, RandomPad, RandomScale, RandomTurn
    from .feeding.export import write_export
    from .feeding.exported import Exported, ExportedItems, exported_item
    from .feeding.packing import PackedItems, pack_items
    from .feeding.sampler import TokenBudgetSampler
    from .feeding.scanned import PackedScan, pack_scan
    from .scanning.scan import write_scan
    from .scanning.store import Catalogue, scan_state

__all__ = [
    "ASSETS",
    "GLYPHS",
    "HELD_OUT_PAIRS",
    "RELATIONS",
    "TASKS",
    "Augment",
    "Augmented",
    "Catalogue",
    "Clip",
    "Exported",
    "ExportedItems",
    "Font",
    "GlyphGrid",
    "PackedItems",
    "PackedScan",
    "RandomCrop",
    "RandomFlip",
    "RandomPad",
    "RandomScale",
    "RandomTurn",
    "Sample",
    "Task",
    "TokenBudgetSampler",
    "asset",
    "clock_time",
    "contact_sheet",
    "draw_chart",
    "draw_clip",
    "draw_grid",
    "draw_page",
    "draw_photo",
    "exported_item",
    "font",
    "fonts",
    "pack_items",
    "pack_scan",
    "questions",
    "sample_key",
    "scan_state",
    "task",
    "write_asset",
    "write_export",
    "write_scan",
]

# Loaded when first used: what scans, packs and feeds data sets is not needed to draw a page.
_ROOMS = {
    "feeding.augment": (
        "Augment",
        "Augmented",
        "RandomCrop",
        "RandomFlip",
        "RandomPad",
        "RandomScale",
        "RandomTurn",
    ),
    "feeding.export": ("write_export",),
    "feeding.exported": ("Exported", "ExportedItems", "exported_item"),
    "feeding.packing": ("PackedItems", "pack_items"),
    "feeding.sampler": ("TokenBudgetSampler",),
    "feeding.scanned": ("PackedScan", "pack_scan"),
    "scanning.scan": ("write_scan",),
    "scanning.store": ("Catalogue", "scan_state"),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

if not TYPE_CHECKING:  # to a type checker, every name would be an attribute

    def __getattr__(name: str) -> Any:
        if name not in _ROOM_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_ROOM_OF[name]}"), name)
