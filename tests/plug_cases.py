"""Batches for plugged models, and positions written down by hand to hold against them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from tiny_models import FAMILIES, VISION_START, Sample, clip, sample, tiny_model

from mrope import Image, Span, Text, Video

by_name = pytest.mark.parametrize("name", FAMILIES)
by_side = pytest.mark.parametrize("side", ["left", "right"])

_ARGUMENTS = inspect.signature(transformers.Qwen2VLForConditionalGeneration.forward).parameters
CACHE = "cache" if "cache" in _ARGUMENTS else "past_key_values"  # its name changed in transformers 5.24
TYPES = "mm_token_type_ids"  # models have taken them since transformers 5.3


@cache
def model_of(name: str) -> Any:
    """One tiny model of family `name` for all tests, which leave it as it was; its attention is sharp.

    With the small random weights of a new model attention is almost even, and positions hardly show in the logits.
    """
    model = tiny_model(name)
    for layer in model.model.language_model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            projection.weight.data *= 5
    return model


def pictures(name: str) -> list[list[Span]]:
    """Two pictures in one row, a clip in the other, rows of different lengths; the clip is not longer than wide."""
    return [
        [Text(4), Image((1, 4, 6)), Text(3), Image((1, 6, 4)), Text(5)],
        [Text(3), clip(name, (2, 6, 8)), Text(4)],
    ]


def long_clip(name: str) -> list[list[Span]]:
    """A clip that lasts longer than it is wide, where transformers from 5.3 on starts the next text inside the clip."""
    return [[Text(4), clip(name, (9, 4, 6), seconds=1.5), Text(3), Image((1, 4, 8)), Text(5)], [Text(9)]]


def batch(name: str, rows: Sequence[Sequence[Span]], side: str = "left") -> Sample:
    """`sample` for the installed transformers: <vision_start> before pictures, and no token types if it has none."""
    made = sample(name, rows, side=side)
    ids, kinds = made.inputs["input_ids"], made.inputs[TYPES]
    ids[:, :-1][(kinds[:, 1:] != 0) & (kinds[:, :-1] == 0)] = VISION_START
    if TYPES not in _ARGUMENTS:
        del made.inputs[TYPES]
    return made


def columns(inputs: dict[str, Any], part: slice) -> dict[str, Any]:
    """`inputs` with a part of the tokens of each row."""
    per_token = ("input_ids", "attention_mask", TYPES)
    return {key: value[:, part] if key in per_token else value for key, value in inputs.items()}


def by_hand(name: str, made: Sample) -> torch.Tensor:
    """(3, B, N) positions under the trained rule: each span starts at the largest position + 1."""
    mask = made.inputs["attention_mask"].bool()
    ids = torch.zeros(3, *mask.shape, dtype=torch.int64)
    for row, spans in enumerate(made.rows):
        places: list[tuple[int, int, int]] = []
        for span in spans:
            places += _places(name, span, max(map(max, places), default=-1) + 1)
        ids[:, row, mask[row]] = torch.tensor(places).T
    return ids


def _places(name: str, span: Span, start: int) -> list[tuple[int, int, int]]:
    """(t, h, w) of each token of a span."""
    if isinstance(span, Text):
        return [(start + i, start + i, start + i) for i in range(span.length)]
    assert isinstance(span, (Image, Video))
    frames, rows, cols = span.grid[0], span.grid[1] // 2, span.grid[2] // 2
    places = []
    for f in range(frames):
        time = start + f
        if name == "qwen2.5-vl" and isinstance(span, Video):
            time = start + int(f * 2 * (span.seconds or 1.0))
        if name == "qwen3-vl" and isinstance(span, Video):  # each frame comes after its stamp, as a picture
            stamp = span.stamp if isinstance(span.stamp, int) else 0
            places += [(start + i, start + i, start + i) for i in range(stamp)]
            time = start = start + stamp
        places += [(time, start + i, start + j) for i in range(rows) for j in range(cols)]
        if name == "qwen3-vl":
            start += max(rows, cols)
    return places
