"""Targets from the installed transformers: a model's own index of positions, and its own turns.

Letters: A axes, B rows, N tokens, D head dim.
"""

from __future__ import annotations

import importlib
import inspect
import os
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mrope.checks import Number
from mrope.families import Family
from mrope.families.rope import read_rotary
from mrope.layouts import CanvasLayout, GridLayout, Traits
from mrope.probes.audits.target import CALLED_HEADS, OTHER_SECONDS, Laid, Prompt, Target, Turn, of_rotary
from mrope.spans import Grid, Image, Sliced, Span, Text, Video


def of_installed(words: str) -> Target:
    """A model of transformers as a target, run as a small one with random weights.

    Args:
        words: the name of a model class or model_type, a checkpoint's folder or a JSON file; or vjepa2, whose encoder
            turns queries and keys by time, row and column.

    Raises:
        ValueError: there is no such model.
    """
    from mrope.hf.checkup.doctor import _quiet

    if not words:
        raise ValueError("target is ''; expected a model class, a model_type, a folder or a JSON file, as hf:qwen2_vl")
    with _quiet():
        return _vjepa2() if words.lower().startswith("vjepa2") else _model(words)


def _model(words: str) -> Target:
    import transformers

    from mrope.hf.checkup.subject import read_subject

    subject = read_subject(words)
    record = subject.family
    name = f"{words} in transformers {transformers.__version__}"
    if not os.path.exists(words):
        _state(subject.config, record)
        name += f", with the values of {record.name}"
    layer, turn, width = _turn(subject)
    rotary = of_rotary(read_rotary(_small(subject), layer), record.name, axes=record.axes)
    clean = subject.has_index
    heads, kv_heads = CALLED_HEADS
    right = Target(
        name=record.name,
        axes=record.axes,
        head_dim=rotary.head_dim,
        heads=heads,
        kv_heads=kv_heads,
        turn=rotary.turn,
        lay=(lambda grid, before, after: _laid(subject, grid, before, after, ours=True)) if clean else None,
        rule=(lambda prompt: _ruled(subject, prompt, ours=True)) if clean else None,
    )
    return Target(
        name=name,
        axes=record.axes,
        head_dim=width,
        heads=heads,
        kv_heads=kv_heads,
        lay=(lambda grid, before, after: _laid(subject, grid, before, after, ours=False)) if clean else None,
        rule=(lambda prompt: _ruled(subject, prompt, ours=False)) if clean else None,
        prompted=(lambda prompt, seconds, merge: _prompted(subject, prompt, seconds, merge)) if clean else None,
        turn=turn,
        traits=getattr(subject.layout if clean else record.layout, "traits", Traits()),
        trained=right,
        batch_order=(lambda: _batch_order(subject)) if clean else None,
    )


_WORDS = ("image_token_id", "image_start_id", "image_end_id", "slice_start_id", "slice_end_id", "newline_id")


def _state(config: Any, record: Family) -> None:
    """What the class does not state, or states otherwise than the family's record, as it is recorded."""
    from mrope.hf.checkup.shrink import _SIZES

    text = config.get_text_config()
    text.head_dim = record.head_dim
    if len(record.axes) > 2:  # NeoMME's class states its own, of each type of layer
        counts = record.split.counts
        if record.split.allocation == "alternating":  # Ernie's order is h, w, t
            counts = (*counts[1:], *counts[:1])
        rope = {
            "rope_type": "default",
            "rope_theta": record.frequencies.base,
            "partial_rotary_factor": record.partial_rotary,
            "mrope_section": list(counts),
        }
        layered = record.name == "cohere-compass"
        text.rope_parameters = dict.fromkeys(text.layer_types, rope) if layered else rope
    rate = getattr(record.layout, "ids_per_second", None)
    if rate is not None and hasattr(config.vision_config, "tokens_per_second"):  # Qwen2.5-VL's class states 4
        config.vision_config.tokens_per_second = int(rate)
    for name, size in _SIZES.items():
        if name.startswith("indexer") and getattr(text, name, 0) is None:  # Qwen4, whose class states no indexer
            setattr(text, name, size)
    for number, name in enumerate(_WORDS):
        if getattr(config, name, 0) is None:
            setattr(config, name, 480 + number)


def _small(subject: Any) -> Any:
    return subject.small if subject.has_index else subject.model.config


def _laid(subject: Any, grid: Grid, before: int, after: int, *, ours: bool) -> Laid:
    """The ids of a prompt with one picture or clip, by the model's own index or by the trained rule."""
    layout = subject.layout
    inputs = _batch(subject, (before, grid, after), 1.0)
    config = subject.small
    words = [word for name in ("image_token_id", "video_token_id") if (word := getattr(config, name, None)) is not None]
    shown = torch.isin(inputs["input_ids"][0].cpu(), torch.tensor(words)).nonzero()[:, 0]
    around = 1 if isinstance(layout, CanvasLayout) else 0  # its words around a picture belong to the block
    first, last = int(shown[0]) - around, int(shown[-1]) + around
    ids, offset = _indexed(subject, inputs, ours)
    following = None if ours or not _decodes_by_offset(subject) else ids.shape[1] + offset
    return Laid(*ids.split((first, last - first + 1, ids.shape[1] - last - 1), dim=1), next=following)


def _ruled(subject: Any, prompt: Prompt, *, ours: bool) -> Tensor:
    """The ids of any prompt, by the model's own index or by the trained rule."""
    return _indexed(subject, _batch(subject, prompt, OTHER_SECONDS), ours)[0]


def _batch(subject: Any, prompt: Prompt, seconds: Number) -> dict[str, Any]:
    from mrope.hf.checkup.prompts import batch

    row = [Text(part) if isinstance(part, int) else _span(subject, part, seconds) for part in prompt]
    return batch(subject, [row])


def _prompted(subject: Any, prompt: Prompt, seconds: Number, merge: int) -> list[Span]:
    """The spans of a prompt as the model reads them, in patches of which `merge` a side make a token."""
    from mrope.hf import read_spans

    def scaled(grid: Grid) -> Grid:
        return grid[0], grid[1] // subject.layout.merge * merge, grid[2] // subject.layout.merge * merge

    def fitted(span: Span) -> Span:
        if isinstance(span, (Image, Video)):
            return replace(span, grid=scaled(span.grid))
        if isinstance(span, Sliced):
            piece = None if span.slice_grid is None else scaled(span.slice_grid)
            return replace(span, thumbnail=scaled(span.thumbnail), slice_grid=piece)
        return span

    return [fitted(span) for span in read_spans(_batch(subject, prompt, seconds), subject.small)[0]]


def _span(subject: Any, grid: Grid, seconds: Number) -> Image | Video:
    from mrope.hf.checkup.prompts import clip, has_clips

    layout, merge = subject.layout, subject.family.merge
    t, h, w = grid
    if t > 1 and (isinstance(layout, CanvasLayout) or not has_clips(subject)):
        raise ValueError(f"{subject.family.name} lays out no clips here")
    sides = h * merge, w * merge
    if t == 1:
        return Image((1, *sides))
    span = clip(subject, (t * (layout.temporal_merge if isinstance(layout, GridLayout) else 1), *sides))
    return span if span.seconds is None else replace(span, seconds=seconds)


def _indexed(subject: Any, inputs: Any, ours: bool) -> tuple[Tensor, float]:
    """(A, N) the ids of a batch of one row, and the offset that the model's index returns beside them."""
    if ours:
        return subject.trained(inputs)[:, 0], 0.0
    takes = inspect.signature(subject.base.get_rope_index).parameters
    others = any(each.kind is each.VAR_KEYWORD for each in takes.values())
    found, offset = subject.base.get_rope_index(**{key: inputs[key] for key in inputs if others or key in takes})
    return found[-subject.layout.axes :, 0].cpu(), float(offset.flatten()[0])


def _decodes_by_offset(subject: Any) -> bool:
    """Whether decoding goes on at the number of tokens + the offset that the index returns; GLM-Image has a table."""
    return not hasattr(subject.base, "_cached_decode_position_ids")


def _batch_order(subject: Any) -> bool:
    from mrope.hf.checkup.index import batch_order

    return not list(batch_order(subject))


def _turn(subject: Any) -> tuple[str | None, Turn | None, int]:
    """The type of layer, how queries and keys turn in it, and the channels that they have.

    Versions of transformers that choose the axes of pairs in the attention have no turn to call.
    """
    model = subject.base.language_model if subject.has_index else subject.model
    model = model if hasattr(model, "rotary_emb") else next(m for m in model.modules() if hasattr(m, "rotary_emb"))
    module = model.rotary_emb
    apply = getattr(importlib.import_module(type(module).__module__), "apply_rotary_pos_emb", None)
    layer = None
    if "layer_type" in inspect.signature(type(module).forward).parameters:
        stated = module.config.rope_parameters
        layer = next(name for name in sorted({*module.config.layer_types}) if stated.get(name) is not None)
    more = {} if layer is None else {"layer_type": layer}

    def turn(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        assert apply is not None
        narrow = q if q.dtype.itemsize < 4 else q.float()  # the module makes tables of this dtype
        cos, sin = module.to(q.device)(narrow, ids[:, None], **more)
        return apply(q, k, cos, sin)

    cos, _ = module(torch.zeros(1, 1, 1), torch.zeros(len(subject.family.axes), 1, 1, dtype=torch.int64), **more)
    text = _small(subject).get_text_config()
    width = getattr(text, "qk_rope_head_dim", None) or getattr(text, "head_dim", None) or cos.shape[-1]
    return layer, None if apply is None else turn, int(width)


def _vjepa2() -> Target:
    """The encoder of V-JEPA 2: each third of a head turns by the frame, the row and the column of its patch."""
    from transformers import VJEPA2Config, __version__
    from transformers.models.vjepa2 import modeling_vjepa2

    config = VJEPA2Config(hidden_size=96, num_attention_heads=2, num_hidden_layers=1)
    attention = modeling_vjepa2.VJEPA2RopeAttention(config, hidden_size=96, num_attention_heads=2)

    def turn(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        axes = [axis.to(q.dtype) for axis in ids]
        return attention.apply_rotary_embeddings(q, axes), attention.apply_rotary_embeddings(k, axes)

    name = f"the encoder of V-JEPA 2 in transformers {__version__}"
    return Target(name=name, axes=("t", "h", "w"), head_dim=48, turn=turn)
