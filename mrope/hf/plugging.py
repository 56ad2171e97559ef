"""Puts our positions, and our rotary if asked, into one transformers model; `unplug` takes them out again.

Only that instance changes: attributes of the instance shadow its methods, and its forward gets hooks. The classes and
modules of transformers stay as they are. Letters: A axes, B batch, N tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MethodType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from mrope.axes import AxisSplit
from mrope.extensions import Extension
from mrope.hf.batch import VIDEO
from mrope.hf.cache import (
    cache_of,
    cached_tokens,
    following_of,
    new_of,
    new_tokens,
    next_ids,
    remember,
    remember_generated,
    repeat_rows,
    rows_of,
    with_rows,
)
from mrope.hf.call import Border, check_tensors, document_mask, ids_of_batch
from mrope.hf.drafts import expect_drafts, place_drafts
from mrope.hf.parts import parts_of
from mrope.hf.reading import placeholders
from mrope.hf.turning import put_in, put_in_tower, turns_of
from mrope.layouts import GenerationLayout, GridLayout, Layout

_PLUG = "_mrope_plug"
_UNDER_HOOK = "_old_forward"  # where accelerate's hooks, which take the place of a forward, keep what they call


@dataclass(frozen=True, slots=True, eq=False)
class Plugged:
    """A plugged model; as a context manager it hands out the model, and at the end does what `unplug(model)` does."""

    model: nn.Module

    def __repr__(self) -> str:
        return f"Plugged({type(self.model).__name__})"

    def __enter__(self) -> nn.Module:
        return self.model

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _PLUG in parts_of(self.model).base.__dict__:
            unplug(self.model)


@dataclass(slots=True, eq=False)
class _Plug:
    """What a plugged base model carries: how to read its batches, and how to undo the plug."""

    border: Border
    rope_deltas: Any
    shadowed: list[tuple[nn.Module, str, Any, bool, Any]] = field(default_factory=list)
    hooks: list[Any] = field(default_factory=list)

    def shadow(self, module: nn.Module, name: str, value: Any) -> None:
        """Put `value` over the attribute `name` of `module` until the plug is undone."""
        if name == "forward" and _UNDER_HOOK in module.__dict__:
            name = _UNDER_HOOK
        self.shadowed.append((module, name, value, name in module.__dict__, module.__dict__.get(name)))
        module.__dict__[name] = value

    def undo(self) -> None:
        for hook in self.hooks:
            hook.remove()
        for module, name, ours, present, value in reversed(self.shadowed):
            # Where ours is by now: a hook of accelerate that came or went since has moved it.
            name = next((each for each in ("forward", _UNDER_HOOK) if module.__dict__.get(each) is ours), name)
            if present:
                module.__dict__[name] = value
            elif name == _UNDER_HOOK:
                module.__dict__[name] = MethodType(type(module).forward, module)
            else:
                del module.__dict__[name]


def plug(
    model: Any,
    *,
    positions: bool = True,
    rotary: bool = False,
    layout: Layout | str | None = None,
    split: AxisSplit | None = None,
    extend: Extension | tuple[Extension | None, ...] | None = None,
) -> Plugged:
    """Let `model` compute with our positions, and with our rotary angles if asked, until `unplug`.

    Positions follow the trained rule (a span starts at the largest position + 1) wherever the caller passes no
    `position_ids`: in forward, in `generate`, in `get_rope_index`, and in forwards that go on from a cache, with or
    without padding. Where decoding goes on is remembered on the cache, and goes with its rows where those are
    reordered, selected or repeated. Tokens that a cache got from elsewhere, and a mask that contradicts the one that
    cached tokens came with, are refused. Spans come from mm_token_type_ids, or from the placeholder ids of the model's
    configuration where those are missing, and are checked against the grids. What goes on from a cache, a further turn
    or a chunk of a prompt, brings the grids and pixels of its own pictures alone, each in whole; `generate` takes all
    tokens with them. In assisted decoding the assistant may be a text model of the same vocabulary, which is told the
    words alone.

    Ids (B, N) that the caller passes are those of plain text, the same on all axes, and get the text row in front; a
    prompt with pictures wants (1 + A, B, N), the text row first, or (A, B, N). Where they, or the text row of
    (1 + A, B, N), start again between two tokens, documents are packed: they are kept apart, with a mask (B, N) or
    without, and no cache is made. HunyuanVL and Cosmos3-Edge, which take no text row, get a mask of pairs for that, in
    eager attention and SDPA. Linear attention (Qwen3.5, Qwen4, MiniCPM-V) and NeoMME would mix documents, and are
    refused. Compiled, a forward is not looked into: there it takes the text row, no mask and use_cache=False.

    `mrope.hf.unplug(model)` undoes all. A plugged model that is pickled, by torch.save or else, comes back plugged.

    Args:
        model: a transformers model of one of our families, ForConditionalGeneration or the base *Model, in a wrapper
            or not. Of an omni model the thinker is plugged.
        positions: put in our positions.
        rotary: put our angles into the rotary modules of the language model and, where it has one, of the vision tower:
            the configuration's split and frequencies.
        layout: another rule for the positions: a layout, or the name of a library version (see `Family.positions`).
        split: other axes for the rotary pairs; goes with rotary. Text alone, which has the same position on all axes,
            computes what it did to the bit.
        extend: another context extension, or one for each axis; goes with rotary.

    Returns:
        A context manager that unplugs at the end; `plug` works without `with`, too.

    Raises:
        TypeError: another kind of model, or an argument of another kind.
        ValueError: the model is plugged already, its rope type is not supported (rotary only), or layout, split and
            extension do not go together. In a forward or `generate`, what does not fit.

    >>> from transformers import Qwen2VLConfig, Qwen2VLModel
    >>> text = {"hidden_size": 128, "num_attention_heads": 1, "num_key_value_heads": 1, "num_hidden_layers": 1}
    >>> vision = {"depth": 1, "embed_dim": 16, "num_heads": 1, "hidden_size": 128}
    >>> text |= {"intermediate_size": 8, "vocab_size": 8, "bos_token_id": None, "eos_token_id": None}
    >>> model = Qwen2VLModel(Qwen2VLConfig(text_config=text, vision_config=vision, image_token_id=6, video_token_id=7))
    >>> with plug(model):
    ...     ids, _ = model.get_rope_index(torch.tensor([[1, 6, 6, 2]]), image_grid_thw=torch.tensor([[1, 2, 4]]))
    >>> ids[2].tolist()
    [[0, 1, 2, 3]]
    """
    parts = parts_of(model)
    base = parts.base
    if _PLUG in base.__dict__:
        raise ValueError(f"this {type(model).__name__} is plugged already: unplug it first")
    for name, value in (("positions", positions), ("rotary", rotary)):
        if not isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}; expected True or False")
    rotary = rotary or split is not None or extend is not None
    if layout is not None and not positions:
        raise ValueError("layout was given with positions=False; expected positions=True, which it is for")
    if not (positions or rotary):
        raise ValueError("positions and rotary are both False; expected at least one to plug")
    border = Border.of(base.config, layout)
    turns = None
    if rotary or border.axes != border.trained.axes:
        turns = turns_of(parts.text.rotary_emb, base.config, split, extend, border.axes)
    plugged = _Plug(border, getattr(base, "rope_deltas", None))
    if turns is not None:
        put_in(parts.text.rotary_emb, turns, plugged.shadow)
    if rotary:
        put_in_tower(base, plugged.shadow)
    if positions:
        if hasattr(base, "get_rope_index"):
            plugged.shadow(base, "get_rope_index", partial(_get_rope_index, base))
        plugged.hooks.append(base.register_forward_pre_hook(_before_forward, with_kwargs=True))
        plugged.hooks.append(base.register_forward_hook(_after_forward, with_kwargs=True))
        if parts.generating is not None:
            _plug_beams(parts.generating, plugged)
            # GLM-Image decodes without ids of the loop, from the table of what it is to draw.
            if not isinstance(border.trained, GenerationLayout):
                _plug_generation(parts.generating, plugged)
    setattr(base, _PLUG, plugged)
    return Plugged(model)


def unplug(model: Any) -> None:
    """Take out what `plug` put into `model`, to the bit.

    Raises:
        TypeError: a model that cannot be plugged.
        ValueError: the model is not plugged.
    """
    base = parts_of(model).base
    plugged = base.__dict__.pop(_PLUG, None)
    if plugged is None:
        raise ValueError(f"this {type(model).__name__} is not plugged")
    plugged.undo()
    if "rope_deltas" in base.__dict__:
        base.rope_deltas = plugged.rope_deltas


def _named(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments by name of a call of `function`, which is a method, so that `self` comes before `args`."""
    names = list(inspect.signature(function).parameters)[1:]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _before_forward(base: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    call = _named(type(base).forward, args, kwargs) if args else kwargs
    check_tensors(call)
    border, given = getattr(base, _PLUG).border, call.get("position_ids")
    tokens = call.get("inputs_embeds") if call.get("input_ids") is None else call["input_ids"]
    if tokens is not None and given is None:
        call = {**call, "position_ids": _read(border, call, torch.compiler.is_compiling())}
    elif tokens is not None:
        call = {**call, **_documents_apart(base, border, call, ids_of_batch(border, given, tokens))}
    return (), call


def _documents_apart(base: Any, border: Border, call: Mapping[str, Any], given: Tensor) -> dict[str, Any]:
    """What changes in the arguments of a forward with ids: the text row is there, and packed documents do not mix."""
    by_ids = border.takes_text_row and border.axes == 3
    if given.dim() == 2 and by_ids:
        given = given.expand(4, -1, -1)
    packed = border.packed(call, given)
    if packed is None:
        return {"position_ids": given}
    if by_ids:
        ids = torch.cat([packed[None].to(given.dtype), given[1:]])
        return {"position_ids": ids, "attention_mask": None, "use_cache": False}
    attention = base.config.get_text_config()._attn_implementation
    if attention not in ("eager", "sdpa"):
        raise ValueError(
            f"attention is {attention!r} and position_ids of packed documents came; expected 'eager' or 'sdpa', as "
            f"{base.config.model_type} keeps documents apart by a mask of pairs alone"
        )
    return {"position_ids": given, "attention_mask": document_mask(packed, base.dtype), "use_cache": False}


@torch.compiler.disable()
def _read(border: Border, call: dict[str, Any], compiling: bool) -> Tensor:
    """The ids of a forward as its language model takes them; what reads a batch on the host is no part of a graph."""
    ids = border.positions(call)
    if border.axes == 4 and border.takes_text_row:  # four rows would be read as the text row and three axes
        ids = _with_text_row(ids, torch.arange(ids.shape[-1], device=ids.device)[None])
    cache = cache_of(call)
    if compiling and cache is not None:  # the hook behind the forward is a part of the graph
        remember(cache, cached_tokens(call), ids, border.axes, call.get("attention_mask"))
    return ids


def _with_text_row(ids: Tensor, text: Tensor) -> Tensor:
    """(1 + A, B, N), which knows the rows that `ids` were made from."""
    whole = torch.cat([text.expand(1, *ids.shape[1:]).to(ids.dtype), ids])
    return with_rows(whole, rows_of(ids))


def _after_forward(base: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    ids = kwargs.get("position_ids")
    # In `generate` a compiled forward only decodes, with ids that it is given: it needs no memory, and keeps one graph.
    if ids is None or torch.compiler.is_compiling():
        return
    from transformers import Cache

    results = output.values() if isinstance(output, Mapping) else output
    cache = next((result for result in results if isinstance(result, Cache)), None)
    if cache is not None:
        slots = kwargs.get("cache_position")
        past = int(cache.get_seq_length()) - ids.shape[-1] if slots is None else int(slots[0])
        remember(cache, past, ids, getattr(base, _PLUG).border.axes, kwargs.get("attention_mask"))


def _get_rope_index(base: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """In place of the method of this name: ids (A, B, N) and deltas (B, 1), as this transformers defines them."""
    signature = inspect.signature(type(base).get_rope_index)
    call = _named(type(base).get_rope_index, args, kwargs)
    border = getattr(base, _PLUG).border
    ids = border.positions({**call, "cache": None, "past_key_values": None, "cache_position": None})
    mask = call.get("attention_mask")
    # Up to 5.2, which had no mm_token_type_ids, deltas counted padding as well.
    old = isinstance(border.trained, GridLayout) and "mm_token_type_ids" not in signature.parameters
    length = torch.full_like(ids[0, :, 0], ids.shape[-1]) if mask is None or old else (mask != 0).sum(-1)
    if isinstance(border.trained, GenerationLayout):  # which has a table instead
        return ids, torch.zeros_like(length)[:, None]
    following = torch.tensor([row.next for row in rows_of(ids)], dtype=ids.dtype, device=ids.device)
    return ids, (following - length)[:, None]


def _plug_beams(model: Any, plugged: _Plug) -> None:
    plugged.shadow(model, "_expand_inputs_for_generation", partial(_expand, model))
    if hasattr(type(model), "_expand_multimodal_outputs"):  # from 5.24 on
        plugged.shadow(model, "_expand_multimodal_outputs", partial(_expand_features, model))


def _plug_generation(model: Any, plugged: _Plug) -> None:
    if hasattr(type(model), "_prepare_position_ids_for_generation"):
        plugged.shadow(model, "_prepare_position_ids_for_generation", partial(_prompt_ids, model))
        plugged.shadow(model, "_update_model_kwargs_for_generation", partial(_update_kwargs, model))
        plugged.shadow(model, "prepare_inputs_for_generation", partial(_prepare_drafted, model))
    else:  # 5.0 and 5.1 make the ids at each step
        plugged.shadow(model, "prepare_inputs_for_generation", partial(_prepare_step, model))
    plugged.shadow(model, "_get_candidate_generator", partial(_candidates, model))


def _prompt_ids(model: Any, inputs_tensor: Tensor, model_kwargs: Mapping[str, Any]) -> Tensor:
    """The ids (1 + A, B, N) of a prompt, text row first, its cached part included; (A, B, N) without a text row."""
    from transformers import GenerationMixin

    border = getattr(model.model, _PLUG).border
    text = GenerationMixin._prepare_position_ids_for_generation(model, inputs_tensor, dict(model_kwargs))
    given = model_kwargs.get("input_ids")
    tokens = inputs_tensor if given is None or given.shape[1] == 0 else given
    past = cached_tokens(model_kwargs)
    new = new_of(tokens, past, text.shape[1])
    name, other = ("input_ids", "inputs_embeds") if tokens.dim() == 2 else ("inputs_embeds", "input_ids")
    ids = border.positions({**model_kwargs, name: new, other: None})
    text = text.expand(tokens.shape[0], -1)
    if past:  # never read: generate cuts off what the cache holds
        ids = with_rows(torch.cat([text[:, :past].expand(len(ids), -1, -1).to(ids.dtype), ids], dim=-1), rows_of(ids))
    return _with_text_row(ids, text) if border.takes_text_row else ids


def _update_kwargs(model: Any, outputs: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Let new tokens go on where the layout goes on, also where the prompt ends on a picture."""
    axes = getattr(model.model, _PLUG).border.axes
    before = model_kwargs.get("position_ids")
    if before is not None:
        remember_generated(cache_of(outputs), before, axes)
    model_kwargs = type(model)._update_model_kwargs_for_generation(model, outputs, model_kwargs, *args, **kwargs)
    after = model_kwargs.get("position_ids")
    if before is not None and after is not None and after.dim() == 3:
        last = before[-axes:, :, -1:]
        following = following_of(cache_of(model_kwargs), before.shape[-1])
        if following is None or len(following) != last.shape[1]:
            following = next_ids(before, axes)
        # 5.2 hands on the new ids alone, later versions append them; on each axis they follow that axis.
        new = after.shape[-1] - before.shape[-1]
        after[-axes:, :, -new if new > 0 else 0 :] += following[:, None] - 1 - last
    return model_kwargs


def _candidates(model: Any, **kwargs: Any) -> Any:
    """What drafts tokens in assisted decoding."""
    return type(model)._get_candidate_generator(model, **expect_drafts(kwargs, getattr(model.model, _PLUG).border.axes))


def _prepare_drafted(model: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The inputs of one step of `generate`, in which drafted tokens go on where the layout goes on."""
    given = args[0] if args else kwargs["input_ids"]
    call = place_drafts(kwargs, given.shape[1], getattr(model.model, _PLUG).border.axes)
    return type(model).prepare_inputs_for_generation(model, *args, **call)


def _expand(
    model: Any,
    expand_size: int = 1,
    is_encoder_decoder: bool = False,
    input_ids: Tensor | None = None,
    **model_kwargs: Any,
) -> tuple[Tensor | None, dict[str, Any]]:
    """Repeat rows for beams or several sequences, and those of a cache that the caller passes with them."""
    counts, grids = model_kwargs.get("images_per_sample"), model_kwargs.get("image_grid_thw")
    if expand_size > 1 and counts is not None and grids is not None:  # of GLM-Image, which repeats each grid by itself
        model_kwargs["image_grid_thw"] = None
        rows = [row for row in grids.split(counts.tolist()) for _ in range(expand_size)]
        input_ids, model_kwargs = _expand(model, expand_size, is_encoder_decoder, input_ids, **model_kwargs)
        return input_ids, {**model_kwargs, "image_grid_thw": torch.cat(rows)}
    expand: Any = partial(type(model)._expand_inputs_for_generation, model, expand_size, is_encoder_decoder)
    if expand_size == 1 or input_ids is None or not cached_tokens(model_kwargs):
        return expand(input_ids, **model_kwargs)
    repeat_rows(cache_of(model_kwargs), len(input_ids), expand_size)
    new = new_tokens(model_kwargs, input_ids.shape[1])  # whose pictures came
    _, model_kwargs = expand(input_ids[:, input_ids.shape[1] - new :], **model_kwargs)
    return input_ids.repeat_interleave(expand_size, dim=0), model_kwargs


def _expand_features(model: Any, input_ids: Tensor | None, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
    """Repeat what the tower made of pictures and clips: all of a row in order for each of its beams.

    GLM's own method repeats each picture by itself, and looks for clips by a word that stands in none of its prompts.
    """
    from transformers import GenerationMixin

    mixin: Any = GenerationMixin
    if input_ids is not None:
        clips = placeholders(input_ids, model.config) == VIDEO
        input_ids = input_ids.masked_fill(clips, getattr(model.config, "video_token_id", None) or 0)
    return mixin._expand_multimodal_outputs(model, input_ids, features, **kwargs)


def _prepare_step(model: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The inputs of one step of `generate`, with our ids (1 + A, B, N) unless the caller passed some."""
    mask = kwargs["attention_mask"]  # generate always makes one
    ours = kwargs.get("position_ids") is None
    text = (mask.cumsum(-1) - 1).clamp(min=0)
    if ours:
        kwargs["position_ids"] = text  # the method cuts it to the new tokens, or throws it away
    inputs = type(model).prepare_inputs_for_generation(model, *args, **kwargs)
    if ours:
        border = getattr(model.model, _PLUG).border
        ids = border.positions({**inputs, "attention_mask": mask})
        inputs["position_ids"] = _with_text_row(ids, text[:, -ids.shape[-1] :]) if border.takes_text_row else ids
    return inputs
