"""Tiny models of every family that run, prompts for them, and positions from an oracle."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers
from every_family import MODEL_TYPES, OMNI, STAMPED, Batch, case_of, config_of, encode, installed
from torch import Tensor

from mrope import Audio, Image, Sliced, Span, Target, Text, Video

DECODERS = tuple(name for name in MODEL_TYPES if name != "neomme")
TEXT = ("input_ids", "attention_mask", "mm_token_type_ids")
TYPED = "mm_token_type_ids" in inspect.signature(transformers.Qwen2VLForConditionalGeneration.forward).parameters
_HEADS = ("q_proj", "k_proj", "q_b_proj", "k_norm", "q_norm", "q_layernorm", "k_layernorm")


def of_families(names: Sequence[str]) -> Any:
    """A test for each of these families that the installed transformers has."""
    why = f"transformers {transformers.__version__} does not have it, or not in the form that is plugged"
    missing = [name for name in names if not installed(name) or not _in_form(name)]
    return pytest.mark.parametrize(
        "model_type",
        [pytest.param(name, marks=pytest.mark.skipif(name in missing, reason=why)) for name in names],
    )


def _in_form(model_type: str) -> bool:
    """Thinkers of earlier versions are one class with their base, and GLM-Image did not know which row has a grid."""
    if model_type == "glm_image":
        return "images_per_sample" in inspect.signature(transformers.GlmImageModel.forward).parameters
    return model_type not in OMNI or hasattr(transformers, _omni(model_type))


@functools.cache
def model_of(model_type: str) -> Any:
    """One small model of a family with random weights for all tests, which leave it as it was; its attention is sharp.

    With the small random weights of a new model attention is almost even, and positions hardly show in the logits.
    """
    model = fresh_model(model_type)
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        if any(part in _HEADS for part in name.split(".")):
            weight.data *= 5
        if name.endswith("o_proj.weight") and not weight.any():  # NeoMME begins with attention switched off
            weight.data = torch.randn(weight.shape, generator=generator) / 8
    return model


def fresh_model(model_type: str, **text: Any) -> Any:
    """A model whose attention is as it was made, in float32 and eval mode; `text` changes its language model."""
    config = copy.deepcopy(config_of(model_type))
    config._attn_implementation = "eager"
    if model_type == "neomme":
        for name, value in {"embedding_rank": 8, "hidden_size": 64, "intermediate_size": 64}.items():
            setattr(config, name, value)
        config.num_hidden_layers, config.layer_types = 2, ["sliding_attention", "full_attention"]
        config.num_attention_heads, config.num_key_value_heads = 2, 1
    for name, value in {"out_hidden_size": 256, "image_size": 64, "temporal_patch_size": 2}.items():
        if hasattr(getattr(config, "vision_config", None), name):
            setattr(config.vision_config, name, value)
    for name, value in text.items():
        setattr(config.text_config, name, value)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if model_type == "neomme":
            return transformers.NeoMMEForMaskedLM(config).eval()
        if model_type in OMNI:
            name = _omni(model_type).replace("ThinkerModel", "ThinkerForConditionalGeneration")
            return getattr(transformers, name)(config).eval()
        if model_type == "glm_image":
            return transformers.GlmImageForConditionalGeneration(config).eval()
        return transformers.AutoModelForImageTextToText.from_config(config).eval()


def _omni(model_type: str) -> str:
    """The class of a thinker's base model."""
    return "Qwen2_5OmniThinkerModel" if "2_5" in model_type else "Qwen3OmniMoeThinkerModel"


def picture(model_type: str, grid: tuple[int, int, int] = (1, 4, 8)) -> Span:
    """A picture, wider than high."""
    if model_type == "minicpmv4_7":
        return Sliced((1, 8, 12), (1, 2), (1, 8, 4))
    return Image((1, 3, 5)) if model_type in ("glm_image", "neomme") else Image(grid)


def clip(model_type: str) -> Span:
    """A clip that lasts longer than it is wide; another picture where a family has no clips."""
    if model_type in ("paddleocr_vl", "hunyuan_vl"):
        return Image((1, 6, 4))
    if model_type in ("minicpmv4_7", "glm_image"):
        return picture(model_type)
    if model_type in STAMPED:
        return Video((9, 4, 6), stamp=3)
    if model_type == "ernie4_5_vl_moe":
        return Video((18, 4, 6))
    return Video((9, 4, 6), seconds=1.5 if model_type == "qwen2_5_vl" or model_type in OMNI else None)


def prompt(model_type: str) -> list[list[Span]]:
    """A clip and a picture in one row, text in the other; where transformers from 5.3 on may be wrong."""
    if model_type == "neomme":
        return [[picture(model_type)], [Text(9)]]
    targets = [Target((1, 2, 3))] if model_type == "glm_image" else []
    sound = [Audio(7), Text(2)] if model_type in OMNI else []
    return [[Text(4), clip(model_type), Text(3), picture(model_type), Text(5), *sound, *targets], [Text(9)]]


def still(model_type: str) -> list[list[Span]]:
    """Pictures, where transformers is right."""
    first: list[Span] = [Text(4), picture(model_type), Text(3)]
    if model_type == "neomme":
        return [[picture(model_type)], [Text(9)]]
    if model_type == "hunyuan_vl":  # it numbers pictures through the batch
        return [[*first, Text(2)], [Text(6)]]
    return [[*first, picture(model_type, (1, 6, 4)), Text(5)], [Text(3), picture(model_type, (1, 6, 4)), Text(2)]]


def batch(model_type: str, rows: Sequence[Sequence[Span]], side: str = "left") -> Batch:
    """What the family's forward takes, without pixels: positions come from grids, and placeholders are words."""
    made = encode(model_type, rows, side=side)
    inputs = dict(made.inputs)
    if model_type in OMNI:
        if "second_per_grids" in inputs:
            inputs["video_second_per_grid"] = inputs.pop("second_per_grids")
        if "audio_seqlens" in inputs:
            lengths = inputs.pop("audio_seqlens")
            inputs["feature_attention_mask"] = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
    inputs.pop("image_grid_hw", None)
    if not TYPED:
        inputs.pop("mm_token_type_ids", None)
    return Batch(inputs, made.rows)


def by_hand(model_type: str, made: Batch) -> tuple[Tensor, Tensor]:
    """(A, B, N) ids of the oracle, 0 in padding, and (B,) the position of what follows."""
    case, mask = case_of(model_type), made.inputs["attention_mask"].bool()
    ids = torch.zeros(case.axes, *mask.shape, dtype=torch.int64 if case.exact else torch.float32)
    ends = []
    for row, spans in enumerate(made.rows):
        places, end = case.oracle(spans)
        ids[:, row, mask[row]] = torch.tensor(places).T.to(ids.dtype)
        ends.append(end)
    return ids, torch.tensor(ends).to(ids.dtype)


def columns(inputs: dict[str, Any], part: slice) -> dict[str, Any]:
    """`inputs` with a part of the tokens of each row."""
    return {key: value[:, part] if key in TEXT else value for key, value in inputs.items()}


def pixels_of(model_type: str, made: Batch) -> dict[str, Tensor]:
    """Random patches for the pictures of a batch, as the family's tower takes them."""
    count = int(made.inputs["image_grid_thw"].prod(-1).sum())
    flat = 3 * 16 * 16 * (1 if model_type in ("cosmos3_edge", "ernie4_5_vl_moe", "hunyuan_vl", "hy_v4_vl") else 2)
    shape = (count, 3, 16, 16) if model_type == "paddleocr_vl" else (count, flat)
    return {"pixel_values": torch.randn(shape, generator=torch.Generator().manual_seed(0))}
