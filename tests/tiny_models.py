"""Tiny random-weight transformers models of each family, and inputs for them with pictures, clips and padding.

The models have the real head dim and rotary split, so that positions and rotary tables are those of the released ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import timm
import torch
import transformers

from mrope import AxisSplit, Image, Span, Text, Video
from mrope.vlm import build_vlm

FAMILIES = ("qwen2-vl", "qwen2.5-vl", "qwen3-vl")
VOCABULARY, IMAGE, VIDEO, VISION_START, VISION_END = 512, 500, 501, 503, 504
MERGE = 2
_TOKENS: dict[str, Any] = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": VISION_START,
    "vision_end_token_id": VISION_END,
}


def tiny_config(name: str) -> Any:
    """The transformers configuration of a tiny model of family `name`."""
    text: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 256,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 4096,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    qwen2_rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}}
    if name == "qwen2-vl":
        vision = {"depth": 1, "embed_dim": 32, "hidden_size": 256, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14}
        return transformers.Qwen2VLConfig(text_config=text | qwen2_rope, vision_config=vision, **_TOKENS)
    vision: dict[str, Any] = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 256,
    }
    if name == "qwen2.5-vl":
        vision |= {"patch_size": 14, "tokens_per_second": 2, "fullatt_block_indexes": [0], "window_size": 112}
        return transformers.Qwen2_5_VLConfig(text_config=text | qwen2_rope, vision_config=vision, **_TOKENS)
    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
    vision |= {"patch_size": 16, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
    text |= {"head_dim": 128, "rope_parameters": rope}
    return transformers.Qwen3VLConfig(text_config=text, vision_config=vision, **_TOKENS)


def tiny_model(name: str) -> Any:
    """A ForConditionalGeneration of family `name`: float32, eager attention, in eval mode, always the same weights."""
    classes = {
        "qwen2-vl": transformers.Qwen2VLForConditionalGeneration,
        "qwen2.5-vl": transformers.Qwen2_5_VLForConditionalGeneration,
        "qwen3-vl": transformers.Qwen3VLForConditionalGeneration,
    }
    config = tiny_config(name)
    config._attn_implementation = "eager"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return classes[name](config).eval()


@dataclass(frozen=True)
class Sample:
    """A batch for a tiny model, and the spans of each row.

    `inputs` are keyword arguments of the model: input_ids, attention_mask and mm_token_type_ids (B, N), the grids, the
    pixel values, and second_per_grid_ts where a row has a clip of a family that scales time.
    """

    inputs: dict[str, torch.Tensor]
    rows: tuple[tuple[Span, ...], ...]

    @property
    def index_inputs(self) -> dict[str, torch.Tensor]:
        """What `get_rope_index` takes: all but the pixels."""
        return {key: value for key, value in self.inputs.items() if not key.startswith("pixel_values")}


def sample(name: str, rows: Sequence[Sequence[Span]], *, side: str = "left", seed: int = 0) -> Sample:
    """Random tokens and pixels for `rows` of spans, padded on `side`; no two visual spans of a row may touch."""
    generator = torch.Generator().manual_seed(seed)
    tokens, types = [], []
    for row in rows:
        kinds = torch.cat([_types(span) for span in row])
        text = torch.randint(10, 490, kinds.shape, generator=generator)
        tokens.append(torch.where(kinds == 1, IMAGE, torch.where(kinds == 2, VIDEO, text)))
        types.append(kinds)
    inputs = {
        "input_ids": _padded(tokens, side),
        "attention_mask": _padded([torch.ones_like(row) for row in tokens], side),
        "mm_token_type_ids": _padded(types, side).int(),
    }
    spans = [span for row in rows for span in row]
    patch_dim = 3 * 2 * (16 if name == "qwen3-vl" else 14) ** 2
    for kind, grid_key, pixel_key in (
        (Image, "image_grid_thw", "pixel_values"),
        (Video, "video_grid_thw", "pixel_values_videos"),
    ):
        grids = [span.grid for span in spans if isinstance(span, kind)]
        if grids:
            inputs[grid_key] = torch.tensor(grids)
            count = int(inputs[grid_key].prod(-1).sum())
            inputs[pixel_key] = torch.randn(count, patch_dim, generator=generator)
    seconds = [span.seconds for span in spans if isinstance(span, Video) and span.seconds is not None]
    if seconds:
        inputs["second_per_grid_ts"] = torch.tensor(seconds)
    return Sample(inputs, tuple(tuple(row) for row in rows))


def clip(name: str, grid: tuple[int, int, int], *, seconds: float = 1.0, stamp: int = 3) -> Video:
    """A clip of `grid` as family `name` declares it."""
    return Video(
        grid,
        seconds=seconds if name == "qwen2.5-vl" else None,
        stamp=stamp if name == "qwen3-vl" else None,
    )


def _types(span: Span) -> torch.Tensor:
    """The mm_token_type_ids of one span: 0 text, 1 image, 2 video."""
    if isinstance(span, Text):
        return torch.zeros(span.length, dtype=torch.int64)
    assert isinstance(span, (Image, Video))
    t, h, w = span.grid
    cells = h * w // MERGE**2
    if isinstance(span, Image):
        return torch.ones(t * cells, dtype=torch.int64)
    stamp = span.stamp if isinstance(span.stamp, int) else 0
    step = torch.tensor([0] * stamp + [2] * cells)
    return step.repeat(t)


def _padded(rows: Sequence[torch.Tensor], side: str) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_side=side)


def tiny_vlm() -> Any:
    """A model of `build_vlm` with random weights."""
    vision = timm.create_model(
        "vit_tiny_patch16_224", img_size=64, embed_dim=24, depth=1, num_heads=3, num_classes=0, pretrained=False
    )
    language = transformers.Qwen3Config(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        bos_token_id=None,
        eos_token_id=3,
        pad_token_id=0,
    )
    return build_vlm(vision, language, split=AxisSplit((6, 5, 5), "interleaved"), merge=2).eval()
