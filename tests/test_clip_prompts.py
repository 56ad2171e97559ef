"""A planned clip takes as many tokens of a prompt, in the same places, as the families' own processors make of it."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX
from transformers.video_utils import VideoMetadata

import mrope
from mrope import Family
from mrope.spans import Text, Video
from mrope.vision import clip_of, plan_video

# What a chat template writes around the token of a clip.
QWEN = ("<|vision_start|>", "<|vision_end|>")
GLM = ("<|begin_of_video|>", "<|end_of_video|>")
ERNIE = ("<|VIDEO_START|>", "<|VIDEO_END|>")
BARE = ("", "")

# family -> the names of its processor and of its image and video processors in transformers, and the words around.
PROCESSORS: dict[str, tuple[str, str, str, tuple[str, str]]] = {
    "qwen2-vl": ("Qwen2VLProcessor", "Qwen2VLImageProcessor", "Qwen2VLVideoProcessor", QWEN),
    "qwen2.5-vl": ("Qwen2_5_VLProcessor", "Qwen2VLImageProcessor", "Qwen2VLVideoProcessor", QWEN),
    "qwen2.5-omni": ("Qwen2_5OmniProcessor", "Qwen2VLImageProcessor", "Qwen2VLVideoProcessor", QWEN),
    "qwen3-omni": ("Qwen3OmniMoeProcessor", "Qwen2VLImageProcessor", "Qwen2VLVideoProcessor", QWEN),
    "qwen3-vl": ("Qwen3VLProcessor", "Qwen2VLImageProcessor", "Qwen3VLVideoProcessor", BARE),
    "qwen3.5": ("Qwen3VLProcessor", "Qwen2VLImageProcessor", "Qwen3VLVideoProcessor", BARE),
    "qwen4-exp": ("Qwen3VLProcessor", "Qwen2VLImageProcessor", "Qwen3VLVideoProcessor", BARE),
    "cosmos3-omni": ("Qwen3VLProcessor", "Qwen2VLImageProcessor", "Qwen3VLVideoProcessor", BARE),
    "cosmos3-edge": ("Cosmos3EdgeProcessor", "Cosmos3EdgeImageProcessor", "Cosmos3EdgeVideoProcessor", QWEN),
    "cohere-compass": ("CohereCompassProcessor", "CohereCompassImageProcessor", "CohereCompassVideoProcessor", BARE),
    "glm4v": ("Glm4vProcessor", "Glm4vImageProcessor", "Glm4vVideoProcessor", GLM),
    "glm4v-moe": ("Glm4vProcessor", "Glm4vImageProcessor", "Glm4vVideoProcessor", GLM),
    "glm46v": ("Glm46VProcessor", "Glm46VImageProcessor", "Glm46VVideoProcessor", GLM),
    "glm-ocr": ("Glm46VProcessor", "Glm46VImageProcessor", "Glm46VVideoProcessor", GLM),
    "glmga": ("Glm46VProcessor", "GlmgaImageProcessor", "GlmgaVideoProcessor", GLM),
    "ernie4.5-vl": (
        "Ernie4_5_VLMoeProcessor",
        "Ernie4_5_VLMoeImageProcessor",
        "Ernie4_5_VLMoeVideoProcessor",
        ERNIE,
    ),
    "hy-v4-vl": ("HYV4VLProcessor", "HYV4VLImageProcessor", "HYV4VLVideoProcessor", BARE),
    "minicpm-v4.7": ("MiniCPMV4_7Processor", "MiniCPMV4_6ImageProcessor", "MiniCPMV4_6VideoProcessor", BARE),
}
SPECIAL = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "audio_token": "<|audio_pad|>",
    "vision_start_token": QWEN[0],
    "vision_end_token": QWEN[1],
    "vision_bos_token": QWEN[0],
    "vision_eos_token": QWEN[1],
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
    "image_start_token": "<image>",
    "image_end_token": "</image>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "image_id_start_token": "<image_id>",
    "image_id_end_token": "</image_id>",
    "video_start_token": ERNIE[0],
    "video_end_token": ERNIE[1],
    "begin_of_video_token": GLM[0],
    "end_of_video_token": GLM[1],
    "begin_of_image_token": "<|begin_of_image|>",
    "end_of_image_token": "<|end_of_image|>",
}
COMPASS = {
    "image_token": "<|IMAGE_PAD|>",
    "video_token": "<|VIDEO_PAD|>",
    "vision_start_token": "<|VISION_START|>",
    "vision_end_token": "<|VISION_END|>",
}
FAMILIES = pytest.mark.parametrize("name", PROCESSORS)


@cache
def tokenizer(name: str = "") -> Any:
    """Every word that the tokenizer of Qwen splits off is one token, and each digit is a word."""
    special = SPECIAL | (COMPASS if name == "cohere-compass" else {})
    words = {word: number for number, word in enumerate(("<unk>", *dict.fromkeys(special.values())))}
    split = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    split.pre_tokenizer = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "isolated")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=split, unk_token="<unk>", pad_token="<unk>", extra_special_tokens=special
    )


def words_of(text: str) -> list[int]:
    return tokenizer()(text, add_special_tokens=False).input_ids


def processor(family: Family) -> Any:
    """That of transformers, with the limits of the family's record."""
    whole, images, videos = (getattr(transformers, name, None) for name in PROCESSORS[family.name][:3])
    if whole is None or images is None or videos is None:
        pytest.skip(f"this version of transformers has no processor of {family.name}")
    options: dict[str, Any] = {"patch_size": family.patch}
    if family.slices is None:
        assert family.video_pixels is not None
        options["size"] = dict(zip(("shortest_edge", "longest_edge"), family.video_pixels, strict=True))
        frames = family.temporal_merge if family.name == "ernie4.5-vl" else family.temporal_patch
        options |= {"merge_size": family.merge, "temporal_patch_size": frames}
    else:
        options |= dict(zip(("scale_resolution", "max_slice_nums"), family.slices, strict=True))
    if family.name == "ernie4.5-vl":
        options["draw_on_frames"] = False
    parts = {"image_processor": images(), "video_processor": videos(**options), "tokenizer": tokenizer(family.name)}
    if "omni" in family.name and "Omni" in whole.__name__:
        parts["feature_extractor"] = transformers.WhisperFeatureExtractor()
    return whole(**parts)


def clip(frames: int, height: int, width: int, source_fps: float) -> tuple[Tensor, VideoMetadata]:
    """Frames that were picked, and what the processors of transformers are told of them."""
    indices = [round(7.5 * number) for number in range(frames)]
    metadata = VideoMetadata(total_num_frames=400, fps=source_fps, frames_indices=indices, duration=400 / source_fps)
    return torch.zeros(frames, 3, height, width, dtype=torch.uint8), metadata


def expanded(family: Family, frames: Tensor, metadata: VideoMetadata, around: tuple[str, str]) -> list[int]:
    """The token ids of a prompt that is this clip alone."""
    make = processor(family)
    made = make(
        text=[around[0] + make.video_token + around[1]],
        videos=[frames],
        video_metadata=[metadata],
        do_sample_frames=False,
        return_metadata=True,
    )
    return torch.as_tensor(made["input_ids"]).flatten().tolist()


def planned(family: Family, frames: Tensor, metadata: VideoMetadata) -> Any:
    assert metadata.fps is not None
    seconds = [index / metadata.fps for index in metadata.frames_indices or ()]
    picked = clip_of(frames, seconds=seconds)
    return plan_video(picked, family, conflict="family", tokenizer=words_of)


def shows(spans: tuple[Any, ...], family: Family) -> list[bool]:
    """Of each token of a prompt, whether it shows the clip, or is a newline that counts as such."""
    marks: list[bool] = []
    for span in spans:
        if isinstance(span, Text):
            marks += [False] * span.length
            continue
        assert isinstance(span, Video)
        stamps = span.stamp if isinstance(span.stamp, tuple) else (0,)
        each = (family.layout.tokens(span) - sum(stamps)) // len(stamps)
        for stamp in stamps:
            marks += [False] * stamp + [True] * each
    return marks


CLIPS = [(5, 90, 250, 30.0), (2, 250, 90, 24000 / 1001), (12, 250, 330, 4.0), (3, 64, 200, 10.0)]


@FAMILIES
@pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")  # numpy, of the tensors of MiniCPM's processor
@pytest.mark.parametrize("size", CLIPS, ids=str)
def test_a_clip_takes_as_many_tokens_as_the_processors_make(name: str, size: tuple[int, int, int, float]) -> None:
    family = mrope.family(name)
    frames, metadata = clip(*size)
    ids = expanded(family, frames, metadata, PROCESSORS[name][3])
    plan = planned(family, frames, metadata)
    assert plan.prompt_tokens == len(ids)
    assert family.positions(plan.spans).length == len(ids)
    if name != "minicpm-v4.7":  # whose spans hold their own markers
        shown = {tokenizer(name).video_token_id, tokenizer(name).image_token_id}  # GLM shows clips as pictures
        assert shows(plan.spans, family) == [number in shown for number in ids]


@pytest.mark.parametrize("name", ["qwen3-vl", "qwen3.5", "qwen4-exp", "cosmos3-omni", "cohere-compass"])
def test_transformers_5_24_leaves_the_pair_of_markers_of_the_chat_template_around_a_clip(name: str) -> None:
    """Two tokens more than the processor of transformers 4.57, which replaced them too, and than ours."""
    family = mrope.family(name)
    frames, metadata = clip(5, 90, 250, 30.0)
    made = processor(family)
    ids = expanded(family, frames, metadata, (made.vision_start_token, made.vision_end_token))
    plan = planned(family, frames, metadata)
    assert plan.prompt_tokens == len(ids) - 2
    assert shows(plan.spans, family) == [number == tokenizer(name).video_token_id for number in ids[1:-1]]
