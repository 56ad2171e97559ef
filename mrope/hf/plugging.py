"""Puts our positions, and our rotary if asked, into one transformers model; `unplug` takes them out again.

Only that instance changes: attributes of the instance shadow its methods, and its forward gets hooks. The classes and
modules of transformers stay as they are. Letters: B batch, N tokens, F rotary pairs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from types import MethodType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from mrope.families import Family
from mrope.hf.cache import cached_tokens, remember
from mrope.hf.call import Border
from mrope.hf.reading import layout_of
from mrope.layouts import GridLayout
from mrope.rotary import Rotary

_PLUG = "_mrope_plug"
_ROTARY = "_mrope_rotary"
_STEMS = ("Qwen2VL", "Qwen2_5_VL", "Qwen3VL")  # of the class names


@dataclass(frozen=True, slots=True, eq=False)
class Plugged:
    """A plugged model; as a context manager it hands out the model, and unplugs it at the end."""

    model: nn.Module

    def __enter__(self) -> nn.Module:
        return self.model

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _PLUG in _base(self.model).__dict__:
            unplug(self.model)


@dataclass(slots=True, eq=False)
class _Plug:
    """What a plugged base model carries: how to read its batches, and how to undo the plug."""

    border: Border
    rope_deltas: Any
    shadowed: list[tuple[nn.Module, str, bool, Any]] = field(default_factory=list)
    hooks: list[Any] = field(default_factory=list)

    def shadow(self, module: nn.Module, name: str, value: Any) -> None:
        """Put `value` over the attribute `name` of `module` until the plug is undone."""
        self.shadowed.append((module, name, name in module.__dict__, module.__dict__.get(name)))
        module.__dict__[name] = value

    def undo(self) -> None:
        for hook in self.hooks:
            hook.remove()
        for module, name, present, value in reversed(self.shadowed):
            if present:
                module.__dict__[name] = value
            else:
                del module.__dict__[name]


def plug(model: Any, *, positions: bool = True, rotary: bool = False) -> Plugged:
    """Let `model` compute with our positions, and with our rotary angles if asked, until `unplug`.

    Positions follow the trained rule (a span starts at the largest position + 1) wherever the caller passes no
    `position_ids`: in forward, in `generate`, in `get_rope_index`, and in forwards that go on from a cache, with or
    without padding. Where decoding goes on is remembered on the cache. Spans come from mm_token_type_ids, or from the
    placeholder ids of the model's configuration where those are missing, and are checked against the grids.

    Args:
        model: a transformers Qwen2-VL, Qwen2.5-VL or Qwen3-VL model, ForConditionalGeneration or the base *Model.
        positions: put in our positions.
        rotary: put our angles into the language model's rotary module: the configuration's split and frequencies.

    Returns:
        A context manager that unplugs at the end; `plug` works without `with`, too.

    Raises:
        TypeError: another kind of model.
        ValueError: the model is plugged already, or its rope type is not supported (rotary only).

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
    base = _base(model)
    if _PLUG in base.__dict__:
        raise ValueError(f"this {type(model).__name__} is plugged already: unplug it first")
    if not (positions or rotary):
        raise ValueError("positions and rotary are both False; expected at least one to plug")
    angles = Family.from_config(base.config.to_dict()).rotary() if rotary else None
    plugged = _Plug(_border(base.config), getattr(base, "rope_deltas", None))
    if angles is not None:
        _plug_rotary(base.language_model.rotary_emb, angles, plugged)
    if positions:
        plugged.shadow(base, "get_rope_index", MethodType(_get_rope_index, base))
        plugged.hooks.append(base.register_forward_pre_hook(_before_forward, with_kwargs=True))
        plugged.hooks.append(base.register_forward_hook(_after_forward, with_kwargs=True))
        if model is not base:
            _plug_generation(model, plugged)
    setattr(base, _PLUG, plugged)
    return Plugged(model)


def unplug(model: Any) -> None:
    """Take out what `plug` put into `model`, to the bit.

    Raises:
        TypeError: a model that cannot be plugged.
        ValueError: the model is not plugged.
    """
    base = _base(model)
    plugged = base.__dict__.pop(_PLUG, None)
    if plugged is None:
        raise ValueError(f"this {type(model).__name__} is not plugged")
    plugged.undo()
    if "rope_deltas" in base.__dict__:
        base.rope_deltas = plugged.rope_deltas


def _base(model: Any) -> Any:
    """The base *Model of `model`, which owns get_rope_index."""
    import transformers

    for stem in _STEMS:
        if isinstance(model, getattr(transformers, f"{stem}ForConditionalGeneration")):
            return model.model
        if isinstance(model, getattr(transformers, f"{stem}Model")):
            return model
    raise TypeError(
        f"model is a {type(model).__name__}; expected a {', '.join(_STEMS[:-1])} or {_STEMS[-1]} Model or "
        "ForConditionalGeneration of transformers"
    )


def _border(config: Any) -> Border:
    """How the model with this configuration lays out a batch; its rope does not matter here."""
    layout = layout_of(config)
    assert isinstance(layout, GridLayout)  # all families that can be plugged
    return Border(layout, config.image_token_id, config.video_token_id)


def _named(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments by name of a call of `function`, which is a method, so that `self` comes before `args`."""
    names = list(inspect.signature(function).parameters)[1:]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _before_forward(base: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    call = _named(type(base).forward, args, kwargs) if args else kwargs
    tokens = call.get("inputs_embeds") if call.get("input_ids") is None else call["input_ids"]
    if tokens is not None and call.get("position_ids") is None:
        call = {**call, "position_ids": getattr(base, _PLUG).border.positions(call)}
    return (), call


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
        remember(cache, past, ids)


def _get_rope_index(base: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """In place of the method of this name: ids (3, B, N) and deltas (B, 1), as this transformers defines them."""
    signature = inspect.signature(type(base).get_rope_index)
    call = _named(type(base).get_rope_index, args, kwargs)
    ids = getattr(base, _PLUG).border.positions(
        {**call, "cache": None, "past_key_values": None, "cache_position": None}
    )
    mask = call.get("attention_mask")
    # Up to 5.2, which had no mm_token_type_ids, deltas counted padding as well.
    padded = mask is None or "mm_token_type_ids" not in signature.parameters
    length = torch.full_like(ids[0, :, 0], ids.shape[-1]) if padded else (mask != 0).sum(-1)
    return ids, (ids.amax((0, 2)) + 1 - length)[:, None]


def _plug_generation(model: Any, plugged: _Plug) -> None:
    if hasattr(type(model), "_prepare_position_ids_for_generation"):
        plugged.shadow(model, "_prepare_position_ids_for_generation", MethodType(_prompt_ids, model))
        plugged.shadow(model, "_update_model_kwargs_for_generation", MethodType(_update_kwargs, model))
    else:  # 5.0 and 5.1 make the ids at each step
        plugged.shadow(model, "prepare_inputs_for_generation", MethodType(_prepare_step, model))


def _prompt_ids(model: Any, inputs_tensor: Tensor, model_kwargs: Mapping[str, Any]) -> Tensor:
    """The ids (4, B, N) of a prompt, text row first, its cached part included."""
    from transformers import GenerationMixin

    text = GenerationMixin._prepare_position_ids_for_generation(model, inputs_tensor, dict(model_kwargs))
    given = model_kwargs.get("input_ids")
    tokens = inputs_tensor if given is None or given.shape[1] == 0 else given
    past = cached_tokens(model_kwargs)
    new = tokens[:, tokens.shape[1] - (text.shape[1] - past) :]
    name, other = ("input_ids", "inputs_embeds") if tokens.dim() == 2 else ("inputs_embeds", "input_ids")
    call = {**model_kwargs, name: new, other: None}
    ids = getattr(model.model, _PLUG).border.positions(call)
    text = text.expand(tokens.shape[0], -1)
    cached = text[None, :, :past].expand(3, -1, -1)  # never read: generate cuts off what the cache holds
    return torch.cat([text[None], torch.cat([cached, ids], dim=-1)])


def _update_kwargs(model: Any, outputs: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Let new tokens follow the largest id of the last token, also where the prompt ends on a picture."""
    before = model_kwargs.get("position_ids")
    model_kwargs = type(model)._update_model_kwargs_for_generation(model, outputs, model_kwargs, *args, **kwargs)
    after = model_kwargs.get("position_ids")
    if before is not None and after is not None and after.dim() == 3:
        last = before[-3:, :, -1:]
        # 5.2 hands on the new ids alone, later versions append them; on each axis they follow that axis.
        new = after.shape[-1] - before.shape[-1]
        after[-3:, :, -new if new > 0 else 0 :] += last.amax(0) - last
    return model_kwargs


def _prepare_step(model: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The inputs of one step of `generate`, with our ids (4, B, N) unless the caller passed some."""
    mask = kwargs["attention_mask"]  # generate always makes one
    ours = kwargs.get("position_ids") is None
    if ours:
        kwargs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)  # plain text, cut to the new tokens
    inputs = type(model).prepare_inputs_for_generation(model, *args, **kwargs)
    if ours:
        ids = getattr(model.model, _PLUG).border.positions({**inputs, "attention_mask": mask})
        inputs["position_ids"] = torch.cat([inputs["position_ids"][None], ids])
    return inputs


def _plug_rotary(module: Any, rotary: Rotary, plugged: _Plug) -> None:
    probe = torch.zeros(3, 1, 1, dtype=torch.int64, device=module.inv_freq.device)
    # Old versions hand out one table per axis, and the attention picks from them by section. The probe is made on a
    # copy, since dynamic NTK remembers what it saw.
    per_axis = deepcopy(module)(module.inv_freq, probe)[0].dim() == 4
    plugged.shadow(module, _ROTARY, (rotary, per_axis))
    plugged.shadow(module, "forward", MethodType(_rotary_forward, module))


def _rotary_forward(module: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """In place of the rotary module's forward: cos and sin (B, N, 2F), or (3, B, N, 2F) with equal entries."""
    rotary, per_axis = getattr(module, _ROTARY)
    shape = (3, -1, -1, -1) if per_axis else (-1, -1, -1)
    # transformers reads the length from the device, too, where frequencies depend on it.
    length = int(position_ids.max()) + 1 if rotary.frequencies.needs_length else None
    half = rotary.cos_sin(position_ids.expand(3, -1, -1), length=length)
    cos, sin = (torch.cat([table, table], dim=-1).to(x.dtype).expand(shape) for table in half)
    return cos, sin
