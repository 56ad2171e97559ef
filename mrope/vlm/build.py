"""From a vision encoder and a text model to a model that reads pictures of any size."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from copy import deepcopy
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from mrope.axes import AxisSplit
from mrope.checks import whole
from mrope.families import Family, family_names
from mrope.families import family as family_called

if TYPE_CHECKING:
    from mrope.vision import VisionEncoder
    from mrope.vlm.model import Vlm
else:  # annotations are looked up at run time in tests
    Vlm = VisionEncoder = Any


def build_vlm(
    vision: str | nn.Module,
    language: str | PathLike[str] | Any,
    *,
    family: str | Family | None = None,
    split: AxisSplit | None = None,
    merge: int | None = None,
    image_token_id: int | None = None,
    video_token_id: int | None = None,
    deepstack: Sequence[int] = (),
) -> Vlm:
    """A vision-language model with M-RoPE at any resolution: a `transformers.PreTrainedModel`.

    The language model stays as it is: what has no picture in it goes through untouched. It trains in a plain loop or
    with transformers' Trainer, generates, saves, and loads with `mrope.vlm.Vlm.from_pretrained`. Where it has a family,
    `mrope.hf.processor(model, tokenizer=...)` makes its inputs. Beside the parts only the merger, from `merge` x
    `merge` patches to a token, is new, and DeepStack's mergers where there are some.

    Args:
        vision: "timm/NAME" for published weights, a model that timm made (see `mrope.vision.from_timm`), or a
            `VisionEncoder` whose `out_dim` is the width of the language model.
        language: folder or name of a text model's checkpoint, its transformers configuration for fresh weights, or the
            model itself, an unchanged ...ForCausalLM such as Llama, Qwen2, Qwen3 or Mistral.
        family: whose resize rule, patches and layout the model takes, and whose split in the ratio of its counts; the
            name or the record of one that lays pictures out as a grid, such as "qwen3-vl". None: patches of the vision
            model's size, one frame each, and pictures and clips of up to 16384 tokens.
        split: the rotary pairs of (t, h, w); by default that of the family.
        merge: patches per token and side, by default that of the family, or of the encoder, or 2.
        image_token_id: the placeholder of a picture's tokens. By default the number behind the vocabulary, which the
            model can neither confuse with a word nor write; a word of the vocabulary is kept from `generate` by
            `suppress_tokens` of the generation configuration.
        video_token_id: that of a clip's; by default the number behind that.
        deepstack: numbers of the encoder's blocks whose patches, each through a merger of its own, are added to the
            picture's tokens behind the first layers of the language model (DeepStack, arXiv:2406.04334, as in
            Qwen3-VL).

    Raises:
        TypeError: an argument is something else, or the language model's rotary is of another kind.
        ValueError: there is neither a family nor a split, no such folder or model of timm, sizes do not fit one
            another, or a placeholder is a word with a meaning of its own (bos, eos, pad).

    >>> import timm, torch
    >>> from transformers import LlamaConfig
    >>> text = LlamaConfig(vocab_size=90, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    ...     num_attention_heads=2, num_key_value_heads=1, bos_token_id=1, eos_token_id=2)
    >>> vit = timm.create_model("vit_tiny_patch16_224", depth=1)
    >>> model = build_vlm(vit, text, split=AxisSplit((4, 2, 2)), merge=2)
    >>> patches = model.config.record.patchify(torch.zeros(3, 64, 96, dtype=torch.uint8))
    >>> prompt = torch.tensor([[1, *[model.config.image_token_id] * 6, 5]])
    >>> model(prompt, pixel_values=patches.values, image_grid_thw=patches.grids).logits.shape
    torch.Size([1, 8, 90])
    """
    from mrope.vlm.config import VlmConfig, grid_layout
    from mrope.vlm.encoder import describe
    from mrope.vlm.guide import default_split, pairs_of
    from mrope.vlm.model import Vlm

    if family is None and split is None:
        raise ValueError(f"family and split are None; expected one of {', '.join(family_names())}, or an AxisSplit")
    if split is not None and not isinstance(split, AxisSplit):
        raise TypeError(f"split is {split!r}; expected an AxisSplit, such as AxisSplit((4, 2, 2))")
    merge = None if merge is None else whole("merge", merge, 1)
    record = None if family is None else _published(family)
    if record is not None:
        grid_layout(record)
        if merge not in (None, record.merge):
            raise ValueError(f"merge is {merge}; family {record.name} merges {record.merge}")
    model = _language(language)
    decoder = model.get_decoder()
    if isinstance(model, Vlm) or not hasattr(decoder, "layers") or not hasattr(decoder, "rotary_emb"):
        raise TypeError(
            f"language is a {type(model).__name__}; expected a causal model with layers and one rotary_emb, such as "
            "Llama, Qwen2, Qwen3 or Mistral"
        )
    text = model.config
    pairs = pairs_of(decoder.rotary_emb)
    if split is None:
        assert record is not None  # or there is a split
        split = default_split(record.split, pairs)
    split.check_fits(2 * pairs)
    if split.axes != 3:
        raise ValueError(f"split {split.counts} has {split.axes} axes; expected 3: t, h, w")
    encoder, own = _encoder(vision, record, merge, text.hidden_size)
    words = text.vocab_size
    config = VlmConfig(
        text_config=text,
        encoder=describe(encoder),
        family=None if record is None else record.name,
        patch=own.patch,
        merge=own.merge,
        mean=own.mean,
        std=own.std,
        mrope_section=split.counts,
        allocation=split.allocation,
        order=split.order,
        image_token_id=words if image_token_id is None else whole("image_token_id", image_token_id, 0),
        video_token_id=words + 1 if video_token_id is None else whole("video_token_id", video_token_id, 0),
        deepstack=_blocks(deepstack, encoder, len(decoder.layers)),
        dtype=model.dtype,
        attn_implementation=text._attn_implementation,
    )
    if config.image_token_id == config.video_token_id:
        raise ValueError(f"image_token_id and video_token_id are both {config.image_token_id}; expected two numbers")
    for place in ("image_token_id", "video_token_id"):
        for word in ("bos_token_id", "eos_token_id", "pad_token_id"):
            for stated in (getattr(text, word, None), getattr(model.generation_config, word)):
                if getattr(config, place) in (stated if isinstance(stated, list) else [stated]):
                    raise ValueError(
                        f"{place} is {getattr(config, place)}, the {word} of the language model; expected another token"
                    )
    built = Vlm(config, encoder.to(device=model.device, dtype=model.dtype), model)
    built.generation_config = deepcopy(model.generation_config)  # where it stops, among others
    if places := [place for place in (config.image_token_id, config.video_token_id) if place < words]:
        built.generation_config.suppress_tokens = [*(built.generation_config.suppress_tokens or []), *places]
    return built


def _published(family: str | Family) -> Family:
    """The record of this name; one that is given must be equal to it, as the configuration keeps the name alone."""
    record = family_called(family.name if isinstance(family, Family) else family)
    if isinstance(family, Family) and family != record:
        raise ValueError(f"family is a changed record of {family.name}; expected mrope.family({family.name!r})")
    return record


def _language(language: Any) -> Any:
    """The text model: loaded, made or as it came."""
    from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

    name = isinstance(language, str) and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", language)
    if isinstance(language, (str, PathLike)) and not name and not Path(language).is_dir():
        raise ValueError(f"language is {os.fspath(language)!r}; expected the folder of a checkpoint, or its name")
    try:
        if isinstance(language, (str, PathLike)):
            return AutoModelForCausalLM.from_pretrained(language)
        if isinstance(language, PretrainedConfig):
            return AutoModelForCausalLM.from_config(language)
    except ValueError as error:
        if not str(error).startswith("Unrecognized configuration class"):
            raise
        kind = language if isinstance(language, (str, PathLike)) else type(language).__name__
        raise TypeError(
            f"language is {kind}, of which transformers makes no text model; expected one that AutoModelForCausalLM "
            "takes, such as Qwen3Config"
        ) from None  # with every class that there is
    if isinstance(language, PreTrainedModel) and language.can_generate():
        return language
    raise TypeError(
        f"language is a {type(language).__name__}; expected a checkpoint's folder or name, a transformers "
        "configuration, or a causal model"
    )


def _encoder(vision: Any, record: Family | None, merge: int | None, out_dim: int) -> tuple[VisionEncoder, Family]:
    """The encoder, and the record of its patches."""
    from mrope.vision import VisionEncoder, from_timm
    from mrope.vlm.config import own_record, patch_side

    if isinstance(vision, VisionEncoder):
        shape = vision.config
        if shape.out_dim != out_dim:
            raise ValueError(
                f"out_dim of the encoder is {shape.out_dim}; expected {out_dim}, as the language model has"
            )
        own = record or own_record(patch_side(shape.patch_dim), shape.merge, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
        stated = {"merge": shape.merge, "patch_dim": shape.patch_dim, "order": shape.order}
        wanted = {"merge": merge or own.merge, "patch_dim": own.patch_dim, "order": own.patch_order}
        for name, value in stated.items():
            if value != wanted[name]:
                raise ValueError(f"{name} of the encoder is {value!r}; expected {wanted[name]!r}")
        return vision, own
    if isinstance(vision, str):
        from timm import create_model

        maker, _, name = vision.partition("/")
        if maker != "timm" or not name:
            raise ValueError(f"vision is {vision!r}; expected 'timm/' and the name of a model, or the model itself")
        try:
            vision = create_model(name, pretrained=True)
        except RuntimeError as error:  # such as a name that timm does not know
            raise ValueError(f"vision is {vision!r}; expected a model of timm, which says: {error}") from error
    if not isinstance(vision, nn.Module):
        raise TypeError(
            f"vision is a {type(vision).__name__}; expected 'timm/NAME', a model of timm, or a VisionEncoder"
        )
    if record is None:
        record = _record_of(vision, 2 if merge is None else whole("merge", merge, 1))
    return from_timm(vision, family=record, out_dim=out_dim), record


def _record_of(vision: Any, merge: int) -> Family:
    """A record of patches as a model of timm takes them."""
    from mrope.vlm.config import own_record

    stem = getattr(vision, "embeds", getattr(vision, "patch_embed", None))
    side = getattr(stem, "patch_size", None)
    colours = getattr(vision, "pretrained_cfg", None) or {}
    if side is None or not {"mean", "std"} <= {*colours}:
        raise TypeError(f"vision is a {type(vision).__name__}; expected a ViT that timm.create_model made")
    patch = side if isinstance(side, int) else int(side[0])
    return own_record(patch, merge, colours["mean"], colours["std"])


def _blocks(deepstack: Sequence[int], encoder: VisionEncoder, layers: int) -> list[int]:
    """The numbers of DeepStack's blocks, checked."""
    if not isinstance(deepstack, Sequence) or isinstance(deepstack, str):
        raise TypeError(f"deepstack is {deepstack!r}; expected a list of numbers of blocks, such as (0, 2)")
    numbers = [whole("deepstack entry", number, 0) for number in deepstack]
    depth = encoder.config.depth
    if sorted({*numbers}) != numbers or any(number >= depth for number in numbers):
        raise ValueError(f"deepstack is {numbers}; expected numbers of the {depth} blocks, from 0, in order")
    if len(numbers) >= layers:
        raise ValueError(f"deepstack has {len(numbers)} blocks; the language model takes at most {layers - 1}")
    if numbers and encoder.config.merge > 1 and not encoder.config.order.startswith("blocks"):
        raise ValueError(f"deepstack is {numbers} with patches in {encoder.config.order!r} order; expected 'blocks'")
    return numbers
