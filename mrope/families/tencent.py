"""HunyuanVL with HunyuanOCR (arXiv:2511.19575), and HY-V4-VL."""

from __future__ import annotations

from mrope.axes import AxisSplit
from mrope.extensions import Ntk
from mrope.families.record import Family
from mrope.families.sampling import Sampling
from mrope.families.shared import CLIP_MEAN, CLIP_STD, DEFAULT, HALF, UNKNOWN, copies, sources
from mrope.frequencies import Frequencies
from mrope.layouts import NewlineLayout, XdLayout

HUNYUAN_VL = Family(
    name="hunyuan-vl",
    model_types=("hunyuan_vl",),
    patch=16,
    temporal_patch=1,
    merge=2,
    mean=CLIP_MEAN,
    std=CLIP_STD,
    image_tokens=(256, 4096),
    video_pixels=None,
    video_budget=None,
    patch_order="raster",
    layout=XdLayout(merge=2),
    axes=("sequence", "w", "h", "image"),
    split=AxisSplit((16, 16, 16, 16), "chunked"),
    pairing="half",
    frequencies=Frequencies(1e4, Ntk(1000)),
    head_dim=128,
    boxes="0-1000",
    sources=sources(
        pictures=f"{DEFAULT}, and of the vendor's code",
        patch=copies("HunyuanOCR", "config.json"),
        video_pixels="code of transformers 5.24, which has no clips",
        language=copies("HunyuanOCR", "config.json"),
        layout="the vendor's processor and its ports in vLLM, llama.cpp and mlx-lm",
        rule="the vendor's processor, vLLM, llama.cpp, mlx-lm and transformers 5.24, which numbers pictures through "
        "the batch; a document of the vendor's says that its reinforcement learning used a plain index",
        pairing="the vendor's code, vLLM and mlx-lm; transformers 5.24 has a mixture that is no rotation",
        boxes="the vendor's HunyuanOCR code",
    ),
)

HY_V4_VL = Family(
    name="hy-v4-vl",
    model_types=("hy_v4_vl",),
    patch=16,
    temporal_patch=1,
    merge=2,
    mean=CLIP_MEAN,
    std=CLIP_STD,
    image_tokens=(256, 4096),
    video_pixels=(1, 33554432),
    video_budget="clip",
    frame_pixels=1048576,
    video_colours=(HALF, HALF),
    resize="newline",
    sampling=Sampling(rule="even", fps=2, min_frames=2, max_frames=1024),
    patch_order="raster",
    markers=0,
    clip_markers=0,
    layout=NewlineLayout(merge=2),
    rule="unconfirmed",
    split=AxisSplit((12, 10, 10), "interleaved"),
    pairing="adjacent",
    frequencies=Frequencies(1e4),
    head_dim=64,
    boxes="unknown",
    sources=sources(
        pictures=DEFAULT,
        video_pixels=f"{DEFAULT}; there is no lower limit",
        language=DEFAULT,
        head_dim=f"{DEFAULT}: the rotary slice of a latent attention head",
        rule="transformers 5.24 alone; other code has the text model only",
        boxes=UNKNOWN,
    ),
)

TENCENT = (HUNYUAN_VL, HY_V4_VL)
