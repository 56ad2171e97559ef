"""Layouts: the rules that give each token of a span its coordinates, and the next span its start."""

from mrope.layouts.canvas import CanvasLayout
from mrope.layouts.generation import GenerationLayout
from mrope.layouts.grid import GridLayout
from mrope.layouts.layout import Layout, SpanLayout, Traits
from mrope.layouts.newline import NewlineLayout
from mrope.layouts.omni import OmniLayout
from mrope.layouts.page import PageLayout
from mrope.layouts.raster import RasterLayout
from mrope.layouts.xd import XdLayout

__all__ = [
    "CanvasLayout",
    "GenerationLayout",
    "GridLayout",
    "Layout",
    "NewlineLayout",
    "OmniLayout",
    "PageLayout",
    "RasterLayout",
    "SpanLayout",
    "Traits",
    "XdLayout",
]
