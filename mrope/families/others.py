"""Families of makers with one or two: OpenBMB, Cohere, NVIDIA and H Company."""

from __future__ import annotations

from dataclasses import replace

from mrope.axes import AxisSplit
from mrope.families.qwen import QWEN3_VL
from mrope.families.record import Family
from mrope.families.sampling import Sampling, Stamp
from mrope.families.shared import CODE, DEFAULT, HALF, UNKNOWN, copies, sources
from mrope.frequencies import Frequencies
from mrope.layouts import CanvasLayout, PageLayout
from mrope.rotary import Rotary

# That of Qwen3-VL; whether the tokenizer splits digits as Qwen's does was not found.
_STAMP = Stamp(template="<{seconds:.1f} seconds>", place="before", time="mean")

MINICPM_V47 = Family(
    name="minicpm-v4.7",
    model_types=("minicpmv4_7",),
    patch=14,
    temporal_patch=1,
    merge=4,
    mean=HALF,
    std=HALF,
    image_tokens=None,
    video_pixels=None,
    video_budget=None,
    slices=(448, 9),
    resize="slices",
    sampling=Sampling(rule="seconds-floor", fps=1, max_frames=128),
    patch_order="strip",
    markers=0,
    clip_markers=0,
    layout=CanvasLayout(merge=4),
    rule="unconfirmed",
    split=AxisSplit((11, 11, 10), "interleaved"),
    pairing="half",
    frequencies=Frequencies(1e7),
    head_dim=256,
    partial_rotary=0.25,
    boxes="unknown",
    sources=sources(
        pictures=DEFAULT,
        patch="an overview of the vendor's cookbook (the class default is 16)",
        merge="an overview of the vendor's cookbook; 2 in the mode that keeps four times the tokens",
        image_tokens=f"{CODE}: slices of about 448 x 448 pixels, at most 9",
        video_pixels="code of transformers 5.24: the frames of a clip are pictures",
        language=DEFAULT,
        frequencies="default of mlx-vlm 0.7.10 for version 4.6 (the class default is 1e4)",
        rule="the vendor's code in transformers 5.24 and mlx-vlm 0.7.10; an older reference of the vendor's and sglang "
        "place the newline behind a picture as text",
        boxes=UNKNOWN,
    ),
)

COHERE_COMPASS = replace(
    QWEN3_VL,
    name="cohere-compass",
    stamp=_STAMP,
    model_types=("cohere_compass",),
    image_tokens=(16, 3778),
    image_pixels=(16384, 3868706),
    video_pixels=(131072, 786432),
    rule="unconfirmed",
    frequencies=Frequencies(1e4),
    boxes="unknown",
    sources=sources(
        pictures="defaults of mlx-vlm 0.7.10 (the class defaults of transformers 5.24 are others)",
        video_pixels=DEFAULT,
        language=DEFAULT,
        split=f"{DEFAULT}, and its code; in 5.17 rows and columns took turns (22 pairs each), as in Ernie 4.5 VL",
        frequencies="default of mlx-vlm 0.7.10, of the layers that rotate",
        rule="pictures: transformers 5.24 and mlx-vlm 0.7.10; clips: transformers 5.24 alone",
        boxes=UNKNOWN,
    ),
)

COSMOS3_OMNI = replace(
    QWEN3_VL,
    name="cosmos3-omni",
    model_types=("cosmos3_omni",),
    boxes="unknown",
    sources=sources(
        pictures=copies("Cosmos3-Nano"),
        language=copies("Cosmos3-Nano", "config.json"),
        rule="transformers 5.24 and sglang, of the model that reads; the one that draws has ids of its own",
        boxes=f"{UNKNOWN}; a guess would be 0-1000, as in Qwen3-VL",
    ),
)

COSMOS3_EDGE = replace(
    QWEN3_VL,
    name="cosmos3-edge",
    stamp=_STAMP,
    model_types=("cosmos3_edge",),
    temporal_patch=1,
    resize="volume",
    patch_order="blocks-channels-last",
    rule="unconfirmed",
    frequencies=Frequencies(1e8),
    boxes="unknown",
    sources=sources(
        pictures=DEFAULT,
        patch=copies("Cosmos3-Edge", "config.json"),
        language=copies("Cosmos3-Edge", "config.json"),
        rule="transformers 5.24 alone",
        boxes=f"{UNKNOWN}; a guess would be 0-1000, as in Qwen3-VL",
    ),
)

NEOMME = Family(
    name="neomme",
    model_types=("neomme",),
    patch=32,
    temporal_patch=1,
    merge=1,
    mean=HALF,
    std=HALF,
    image_tokens=None,
    video_pixels=None,
    video_budget=None,
    resize="padded",
    filter="bilinear",
    patch_order="raster-channels-last",
    markers=0,
    layout=PageLayout(merge=1),
    rule="unconfirmed",
    axes=("row", "col"),
    split=AxisSplit((16, 16), "alternating"),
    pairing="half",
    frequencies=Frequencies(1e4),
    head_dim=64,
    other_layers={"full_attention": Rotary(AxisSplit((4, 4), "alternating"), Frequencies(1e6))},
    boxes="none",
    sources=sources(
        pictures=DEFAULT,
        video_pixels="code of transformers 5.24, which has no clips",
        language=f"{DEFAULT}, of the layers with a window; every sixth and the last rotate a quarter, with base 1e6",
        rule="transformers 5.24 alone",
        boxes="code of transformers 5.24: an encoder writes nothing",
    ),
)

OTHERS = (MINICPM_V47, COHERE_COMPASS, COSMOS3_OMNI, COSMOS3_EDGE, NEOMME)
