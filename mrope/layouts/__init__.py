"""Layouts: the rules that give each token of a span its coordinates, and the next span its start."""

from mrope.layouts.grid import GridLayout
from mrope.layouts.layout import Layout, SpanLayout, Traits
from mrope.layouts.raster import RasterLayout

__all__ = ["GridLayout", "Layout", "RasterLayout", "SpanLayout", "Traits"]
