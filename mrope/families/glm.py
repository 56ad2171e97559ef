"""GLM-4.1V, GLM-4.5V and GLM-4.6V (arXiv:2507.01006), GLM-GA, GLM-OCR and GLM-Image of Z.ai."""

from __future__ import annotations

from dataclasses import replace

from mrope.axes import AxisSplit
from mrope.families.record import Family
from mrope.families.sampling import Sampling, Stamp
from mrope.families.shared import CLIP_MEAN, CLIP_STD, CODE, DEFAULT, UNKNOWN, copies, sources
from mrope.frequencies import Frequencies
from mrope.layouts import GenerationLayout, GridLayout

_HALF_ROTARY = "the only share that the default split fills; code of transformers 5.24, where the configuration sets it"
_RULE = "the vendor's code in transformers 4.57.1 (glm4v, glm4v_moe), sglang and PaddleFormers"
_BOXES = "README of the vendor's repository"

GLM4V = Family(
    name="glm4v",
    model_types=("glm4v",),
    patch=14,
    temporal_patch=2,
    merge=2,
    mean=CLIP_MEAN,
    std=CLIP_STD,
    image_tokens=(8, 7500),
    video_pixels=(12544, 47040000),
    video_budget="clip",
    resize="volume",
    step_markers=2,
    sampling=Sampling(rule="seconds-ceil", fps=2, max_seconds=300, multiple=2),
    stamp=Stamp(template="{whole}", place="after", time="first"),
    layout=GridLayout(merge=2, time="stamps"),
    split=AxisSplit((8, 12, 12), "chunked"),
    pairing="adjacent",
    frequencies=Frequencies(1e4),
    head_dim=128,
    partial_rotary=0.5,
    boxes="0-1000",
    sources=sources(pictures=DEFAULT, language=DEFAULT, partial_rotary=_HALF_ROTARY, rule=_RULE, boxes=_BOXES),
)

GLM4V_MOE = replace(
    GLM4V,
    name="glm4v-moe",
    model_types=("glm4v_moe",),
    pairing="half",
    sources=sources(
        pictures=DEFAULT,
        patch=copies("GLM-4.5V", "config.json"),
        language=copies("GLM-4.5V", "config.json"),
        rule=_RULE,
        boxes=_BOXES,
    ),
)

GLM46V = replace(
    GLM4V,
    name="glm46v",
    model_types=("glm46v",),
    sampling=Sampling(rule="whole-ticks", fps=6, slower=((30, 2), (300, 1)), max_frames=640, multiple=2),
    stamp=Stamp(template="{seconds:.1f} seconds", place="after", time="first"),
    sources=sources(
        pictures=DEFAULT,
        language=f"{DEFAULT}, of a glm4v_text backbone",
        pairing=f"{CODE}, with a glm4v_text backbone; with a glm4v_moe_text backbone it is half",
        partial_rotary=_HALF_ROTARY,
        rule=_RULE,
        boxes=_BOXES,
    ),
)

GLMGA = replace(
    GLM46V,
    name="glmga",
    model_types=("glmga",),
    sampling=Sampling(rule="ticks", fps=2, max_frames=640, multiple=2),
    video_pixels=(12544, 87478720),
    rule="unconfirmed",
    boxes="unknown",
    sources={
        **GLM46V.sources,
        "rule": "transformers 5.24 alone, with the code of glm46v",
        "boxes": f"{UNKNOWN}; a guess would be 0-1000, as in GLM-4.6V",
    },
)

GLM_OCR = replace(
    GLM4V,
    name="glm-ocr",
    model_types=("glm_ocr",),
    sampling=GLM46V.sampling,
    stamp=GLM46V.stamp,
    image_tokens=(8, 6144),
    split=AxisSplit((16, 24, 24), "chunked"),
    partial_rotary=1,
    boxes="unknown",
    sources=sources(
        pictures=copies("GLM-OCR"),
        video_pixels=f"{DEFAULT}, of the processor of glm46v",
        language=copies("GLM-OCR", "config.json"),
        rule=_RULE,
        boxes=UNKNOWN,
    ),
)

GLM_IMAGE = replace(
    GLM4V,
    name="glm-image",
    model_types=("glm_image",),
    patch=16,
    temporal_patch=1,
    merge=1,
    image_tokens=(1024, 16384),
    video_pixels=None,
    video_budget=None,
    resize="two-sided",
    sampling=None,
    stamp=None,
    layout=GenerationLayout(merge=1),
    rule="unconfirmed",
    pairing="half",
    boxes="none",
    sources=sources(
        pictures=f"{DEFAULT}, of the model (its processor's are others)",
        image_tokens=f"{DEFAULT}, of the function that resizes (the processor's are others)",
        video_pixels="code of transformers 5.24, which has no clips",
        language=DEFAULT,
        partial_rotary=_HALF_ROTARY,
        rule="transformers 5.24, and sglang, which copies it",
        boxes="code of transformers 5.24: the model draws and does not write",
    ),
)

GLM = (GLM4V, GLM4V_MOE, GLM46V, GLMGA, GLM_OCR, GLM_IMAGE)
