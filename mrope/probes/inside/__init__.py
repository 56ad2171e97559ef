"""Inside real models: where attention goes, and what hidden states know of a token's place."""

from mrope.probes.inside.attention import (
    AttentionInside,
    AttentionMap,
    RelativeAttention,
    VisionShare,
    attention_inside,
    measure_attention,
)
from mrope.probes.inside.drawing import draw_attention, plot_attention
from mrope.probes.inside.linear import LinearProbe, linear_probe, probe_states
from mrope.probes.inside.places import Places, places_of

__all__ = [
    "AttentionInside",
    "AttentionMap",
    "LinearProbe",
    "Places",
    "RelativeAttention",
    "VisionShare",
    "attention_inside",
    "draw_attention",
    "linear_probe",
    "measure_attention",
    "places_of",
    "plot_attention",
    "probe_states",
]
