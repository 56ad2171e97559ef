"""Qwen2-VL (arXiv:2409.12191), Qwen2.5-VL (arXiv:2502.13923) and Qwen3-VL (arXiv:2511.21631)."""

from __future__ import annotations

from mrope.axes import AxisSplit
from mrope.families.record import Family
from mrope.frequencies import Frequencies
from mrope.layouts import GridLayout


def _sources(model: str, *, video: str, **others: str) -> dict[str, str]:
    """Field -> where its value was found. No checkpoint was opened for this: each entry says what was read instead."""
    unopened = f"of the released {model} checkpoints, read in public copies; not opened from a checkpoint"
    config, processor = f"config.json {unopened}", f"preprocessor_config.json {unopened}"
    code = "transformers 5.24, read and run; the checkpoints' JSON does not state it"
    return {
        "patch": processor,
        "temporal_patch": processor,
        "merge": processor,
        "mean": processor,
        "std": processor,
        "image_tokens": f"{processor}; stated in pixels",
        "video_pixels": f"{video} {unopened}",
        "video_budget": code,
        "split": config,
        "pairing": code,
        "frequencies": config,
        "head_dim": config,
        **others,
    }


_RULE = (
    "the rule: transformers 5.24, read and run, except that the next span starts at the largest position + 1, as the "
    "vendor's code and transformers 4 had it (public copies); the checkpoints' JSON does not state it"
)

QWEN2_VL = Family(
    name="qwen2-vl",
    model_types=("qwen2_vl",),
    patch=14,
    temporal_patch=2,
    merge=2,
    mean=(0.48145466, 0.4578275, 0.40821073),
    std=(0.26862954, 0.26130258, 0.27577711),
    image_tokens=(4, 16384),
    video_pixels=(3136, 12845056),
    video_budget="frame",
    layout=GridLayout(merge=2, time="index"),
    split=AxisSplit((16, 24, 24), "chunked"),
    pairing="half",
    frequencies=Frequencies(1e6),
    head_dim=128,
    boxes="0-1000",
    sources=_sources(
        "Qwen2-VL",
        video="preprocessor_config.json, which serves clips too,",
        layout=_RULE,
        boxes="statements of the model's team in public; not checked against a checkpoint",
    ),
)

QWEN25_VL = Family(
    name="qwen2.5-vl",
    model_types=("qwen2_5_vl",),
    patch=14,
    temporal_patch=2,
    merge=2,
    mean=(0.48145466, 0.4578275, 0.40821073),
    std=(0.26862954, 0.26130258, 0.27577711),
    image_tokens=(4, 16384),
    video_pixels=(3136, 12845056),
    video_budget="frame",
    layout=GridLayout(merge=2, time="seconds", ids_per_second=2),
    split=AxisSplit((16, 24, 24), "chunked"),
    pairing="half",
    frequencies=Frequencies(1e6),
    head_dim=128,
    boxes="processed-pixels",
    sources=_sources(
        "Qwen2.5-VL",
        video="preprocessor_config.json, which serves clips too,",
        layout="2 ids a second: config.json of the released Qwen2.5-VL checkpoints, read in public copies; not opened "
        f"from a checkpoint (the class default of transformers is 4); {_RULE}",
        boxes="statements of the model's team in public; not checked against a checkpoint",
    ),
)

QWEN3_VL = Family(
    name="qwen3-vl",
    model_types=("qwen3_vl", "qwen3_vl_moe"),
    patch=16,
    temporal_patch=2,
    merge=2,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    image_tokens=(64, 16384),
    video_pixels=(4096, 25165824),
    video_budget="clip",
    layout=GridLayout(merge=2, time="stamps"),
    split=AxisSplit((24, 20, 20), "interleaved"),
    pairing="half",
    frequencies=Frequencies(5e6),
    head_dim=128,
    boxes="0-1000",
    sources=_sources(
        "Qwen3-VL",
        video="video_preprocessor_config.json",
        layout=_RULE,
        boxes="statements of the model's team in public; not checked against a checkpoint",
    ),
)

QWEN = (QWEN2_VL, QWEN25_VL, QWEN3_VL)
