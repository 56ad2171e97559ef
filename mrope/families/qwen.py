"""Qwen2-VL (arXiv:2409.12191), Qwen2.5-VL (arXiv:2502.13923), Qwen3-VL (arXiv:2511.21631), and what followed them.

Qwen2.5-Omni is arXiv:2503.20215, Qwen3-Omni arXiv:2509.17765; Qwen3.5 and Qwen4-Exp have the positions of Qwen3-VL.
"""

from __future__ import annotations

from dataclasses import replace

from mrope.axes import AxisSplit
from mrope.families.record import Family
from mrope.families.sampling import Sampling, Stamp
from mrope.families.shared import CLIP_MEAN, CLIP_STD, CODE, DEFAULT, HALF, TEAM, UNKNOWN, copies, sources
from mrope.frequencies import Frequencies
from mrope.layouts import GridLayout, OmniLayout

_LARGEST = (
    "the vendor's code in transformers 4.57.1 and 5.0.0, vLLM and sglang: the next span starts at the largest position "
    "+ 1; transformers has another start from 5.3 on"
)
_STAMPS = "the vendor's code in transformers 4.57.1 and 5.0.0, and sglang"
_SPACED = f"{CODE}; 2 frames a second: the vendor's qwen-vl-utils, which spreads them from first to last"
_FRAMES_AS_PICTURES = "preprocessor_config.json, which serves clips too,"

QWEN2_VL = Family(
    name="qwen2-vl",
    model_types=("qwen2_vl",),
    patch=14,
    temporal_patch=2,
    merge=2,
    mean=CLIP_MEAN,
    std=CLIP_STD,
    image_tokens=(4, 16384),
    video_pixels=(3136, 12845056),
    video_budget="frame",
    sampling=Sampling(rule="spaced", fps=2, min_frames=4, max_frames=768, multiple=2),
    layout=GridLayout(merge=2, time="index"),
    deviations={"transformers-5.24": GridLayout(merge=2, time="index", advance="side")},
    split=AxisSplit((16, 24, 24), "chunked"),
    pairing="half",
    frequencies=Frequencies(1e6),
    head_dim=128,
    boxes="0-1000",
    sources=sources(
        pictures=copies("Qwen2-VL", "preprocessor_config.json"),
        video_pixels=copies("Qwen2-VL", _FRAMES_AS_PICTURES),
        sampling=_SPACED,
        language=copies("Qwen2-VL", "config.json"),
        rule=_LARGEST,
        boxes=TEAM,
    ),
)

QWEN25_VL = replace(
    QWEN2_VL,
    name="qwen2.5-vl",
    model_types=("qwen2_5_vl",),
    layout=GridLayout(merge=2, time="seconds", ids_per_second=2),
    deviations={"transformers-5.24": GridLayout(merge=2, time="seconds", ids_per_second=2, advance="side")},
    boxes="processed-pixels",
    sources=sources(
        pictures=copies("Qwen2.5-VL", "preprocessor_config.json"),
        video_pixels=copies("Qwen2.5-VL", _FRAMES_AS_PICTURES),
        sampling=_SPACED,
        language=copies("Qwen2.5-VL", "config.json"),
        layout=f"{CODE}; 2 ids a second: {copies('Qwen2.5-VL', 'config.json')} (the class default is 4)",
        rule=_LARGEST,
        boxes=TEAM,
    ),
)

QWEN3_VL = Family(
    name="qwen3-vl",
    model_types=("qwen3_vl", "qwen3_vl_moe"),
    patch=16,
    temporal_patch=2,
    merge=2,
    mean=HALF,
    std=HALF,
    image_tokens=(64, 16384),
    video_pixels=(4096, 25165824),
    video_budget="clip",
    # Chat templates write a pair of markers around the token of a clip. The processor of transformers 4.57 replaces the
    # pair too, and each step has its own; that of 5.24 leaves it around all, two tokens that are not counted here.
    clip_markers=0,
    step_markers=2,
    sampling=Sampling(rule="even", fps=2, min_frames=4, max_frames=768),
    stamp=Stamp(template="<{seconds:.1f} seconds>", place="before", time="mean", pieces=4),
    layout=GridLayout(merge=2, time="stamps"),
    split=AxisSplit((24, 20, 20), "interleaved"),
    pairing="half",
    frequencies=Frequencies(5e6),
    head_dim=128,
    boxes="0-1000",
    sources=sources(
        pictures=copies("Qwen3-VL", "preprocessor_config.json"),
        video_pixels=copies("Qwen3-VL", "video_preprocessor_config.json"),
        language=copies("Qwen3-VL", "config.json"),
        rule=_STAMPS,
        boxes=TEAM,
    ),
)

QWEN25_OMNI = replace(
    QWEN2_VL,
    name="qwen2.5-omni",
    model_types=("qwen2_5_omni", "qwen2_5_omni_thinker"),
    image_tokens=(4, 1280),
    video_pixels=(100352, 602112),
    layout=OmniLayout(merge=2, ids_per_second=25, weave="chunks"),
    deviations={},
    boxes="unknown",
    sources=sources(
        pictures=DEFAULT,
        sampling=_SPACED,
        language=DEFAULT,
        layout=f"{CODE}; 25 ids a second: {copies('Qwen2.5-Omni', 'config.json')}",
        rule="the vendor's code in transformers 4.57.1, and vLLM",
        boxes=f"{UNKNOWN}; a guess would be pixels of the resized picture, as in Qwen2.5-VL",
    ),
)

QWEN3_OMNI = replace(
    QWEN3_VL,
    name="qwen3-omni",
    model_types=("qwen3_omni_moe", "qwen3_omni_moe_thinker"),
    image_tokens=(4, 980),
    image_pixels=(3136, 1003520),
    video_pixels=(131072, 786432),
    video_budget="frame",
    clip_markers=2,
    step_markers=0,
    sampling=QWEN2_VL.sampling,
    stamp=None,
    layout=OmniLayout(merge=2, ids_per_second=13, weave="time"),
    frequencies=Frequencies(1e6),
    boxes="unknown",
    sources=sources(
        pictures=DEFAULT,
        mean="a guess, as in Qwen3-VL (the class default is CLIP's)",
        std="a guess, as in Qwen3-VL (the class default is CLIP's)",
        video_pixels="default of the processor in transformers 5.24",
        sampling=_SPACED,
        language=copies("Qwen3-Omni", "config.json"),
        layout=f"{CODE}; 13 ids a second: {copies('Qwen3-Omni', 'config.json')} (the class default is 25)",
        rule="the vendor's code in transformers 4.57.1, and sglang; vLLM rounds the ids and shares start and end ids",
        boxes=f"{UNKNOWN}; a guess would be 0-1000, as in Qwen3-VL",
    ),
)

QWEN35 = replace(
    QWEN3_VL,
    name="qwen3.5",
    model_types=("qwen3_5", "qwen3_5_moe"),
    split=AxisSplit((11, 11, 10), "interleaved"),
    frequencies=Frequencies(1e7),
    head_dim=256,
    partial_rotary=0.25,
    sources=sources(
        pictures=copies("Qwen3.5", "preprocessor_config.json"),
        video_pixels=copies("Qwen3.8", "video_preprocessor_config.json"),
        language=copies("Qwen3.5", "config.json"),
        rule=f"{_STAMPS}, for Qwen3-VL; transformers 5.24 and sglang have the same for this family",
        boxes=TEAM,
    ),
)

QWEN4_EXP = replace(
    QWEN35,
    name="qwen4-exp",
    model_types=("qwen4_exp",),
    boxes="unknown",
    sources=sources(
        pictures="a guess, as in Qwen3.5",
        **dict.fromkeys(("patch", "temporal_patch", "merge"), DEFAULT),
        language="defaults of mlx-vlm 0.7.10",
        head_dim=copies("Qwen4-Exp", "config.json"),
        rule=f"{_STAMPS}, for Qwen3-VL; transformers 5.24 has the same code for this family",
        boxes=f"{UNKNOWN}; a guess would be 0-1000, as in Qwen3.5",
    ),
)

QWEN = (QWEN2_VL, QWEN25_VL, QWEN3_VL, QWEN25_OMNI, QWEN3_OMNI, QWEN35, QWEN4_EXP)
