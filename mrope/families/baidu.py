"""Ernie 4.5 VL and PaddleOCR-VL (arXiv:2510.14528)."""

from __future__ import annotations

from mrope.axes import AxisSplit
from mrope.families.record import Family
from mrope.families.sampling import Sampling
from mrope.families.shared import CLIP_MEAN, CLIP_STD, DEFAULT, HALF, UNKNOWN, copies, sources
from mrope.frequencies import Frequencies
from mrope.layouts import GridLayout

ERNIE45_VL = Family(
    name="ernie4.5-vl",
    model_types=("ernie4_5_vl_moe",),
    patch=14,
    temporal_patch=1,
    merge=2,
    mean=CLIP_MEAN,
    std=CLIP_STD,
    image_tokens=(4, 6177),
    video_pixels=(234416, 937664),
    video_budget="frame",
    sampling=Sampling(rule="stride", min_frames=16, max_frames=180),
    layout=GridLayout(merge=2, temporal_merge=2),
    deviations={"transformers-5.24": GridLayout(merge=2, temporal_merge=2, advance="side")},
    split=AxisSplit((20, 22, 22), "alternating"),
    pairing="adjacent",
    frequencies=Frequencies(5e5),
    head_dim=128,
    boxes="unknown",
    sources=sources(
        pictures=f"{DEFAULT}, and of the vendor's FastDeploy",
        language=DEFAULT,
        split=f"{DEFAULT}, and the vendor's code in PaddleFormers",
        layout="the vendor's code in FastDeploy and PaddleFormers",
        rule="the vendor's code in FastDeploy and PaddleFormers, vLLM, sglang and transformers 5.0.0",
        boxes=f"{UNKNOWN}; a guess would be 0-1000",
    ),
)

PADDLEOCR_VL = Family(
    name="paddleocr-vl",
    model_types=("paddleocr_vl",),
    patch=14,
    temporal_patch=1,
    merge=2,
    mean=HALF,
    std=HALF,
    image_tokens=(188, 3600),
    image_pixels=(147384, 2822400),
    video_pixels=None,
    video_budget=None,
    resize="short-side",
    patch_order="raster",
    layout=GridLayout(merge=2, time="seconds", ids_per_second=2),
    deviations={"transformers-5.24": GridLayout(merge=2, time="index", advance="side")},
    rule="unconfirmed",
    split=AxisSplit((16, 24, 24), "chunked"),
    pairing="half",
    frequencies=Frequencies(5e5),
    head_dim=128,
    boxes="unknown",
    sources=sources(
        pictures=copies("PaddleOCR-VL 1.0"),
        video_pixels="code of transformers 5.24, which has no processor of clips",
        language=copies("PaddleOCR-VL 1.0", "config.json"),
        layout=f"the vendor's serving code FastDeploy; 2 ids a second: {copies('PaddleOCR-VL', 'config.json')}",
        rule="pictures: the vendor's FastDeploy, vLLM, sglang and transformers 5.0.0; clips: the first three, which "
        "serve them, while nothing says that clips were trained",
        boxes=f"{UNKNOWN}; version 1.5 writes places in tokens of their own",
    ),
)

BAIDU = (ERNIE45_VL, PADDLEOCR_VL)
