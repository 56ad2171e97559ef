"""Layouts: the rules that give each token of a span its coordinates, and the next span its start."""

from mrope.layouts.anchored import AnchoredLayout
from mrope.layouts.canvas import CanvasLayout
from mrope.layouts.centred import HopeLayout, VideoRopeLayout
from mrope.layouts.circle import CircleLayout
from mrope.layouts.generation import GenerationLayout
from mrope.layouts.grid import GridLayout
from mrope.layouts.idalign import IdAlignLayout
from mrope.layouts.layout import Layout, SpanLayout, Traits
from mrope.layouts.members import merge_clusters
from mrope.layouts.newline import NewlineLayout
from mrope.layouts.omni import OmniLayout
from mrope.layouts.page import PageLayout
from mrope.layouts.raster import RasterLayout
from mrope.layouts.reset import ResetLayout
from mrope.layouts.rings import PypeLayout, RingLayout
from mrope.layouts.tie import TieLayout
from mrope.layouts.v2pe import V2peLayout
from mrope.layouts.vrope import VropeLayout
from mrope.layouts.xd import XdLayout

__all__ = [
    "AnchoredLayout",
    "CanvasLayout",
    "CircleLayout",
    "GenerationLayout",
    "GridLayout",
    "HopeLayout",
    "IdAlignLayout",
    "Layout",
    "NewlineLayout",
    "OmniLayout",
    "PageLayout",
    "PypeLayout",
    "RasterLayout",
    "ResetLayout",
    "RingLayout",
    "SpanLayout",
    "TieLayout",
    "Traits",
    "V2peLayout",
    "VideoRopeLayout",
    "VropeLayout",
    "XdLayout",
    "merge_clusters",
]
