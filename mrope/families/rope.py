"""Reads the rotary encoding of a transformers configuration, of any family."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mrope.axes import AxisSplit
from mrope.checks import positive, whole
from mrope.extensions import Zero, both_parameters, read_extension
from mrope.families import family, family_names
from mrope.families.checkpoint import Json, object_of, read_json
from mrope.families.record import Family
from mrope.frequencies import Frequencies
from mrope.rotary import Rotary

_NESTED = ("thinker_config", "text_config")  # where the language model's own configuration lies


def read_rotary(config: Any, layer: str | None = None) -> Rotary:
    """See `Rotary.from_config`."""
    whole_config = _stated(config)
    text = whole_config
    for key in _NESTED:
        text = object_of(text, key) or text
    record = _record(text, whole_config)

    def find(key: str) -> Any:
        return next((scope[key] for scope in (text, whole_config) if scope.get(key) is not None), None)

    def parameters(key: str) -> Json:
        return next((found for scope in (text, whole_config) if (found := object_of(scope, key))), {})

    stated = both_parameters(parameters("rope_parameters"), parameters("rope_scaling"))
    rope = _of_layer(stated, layer, find("layer_types"))
    if rope is None:
        return Rotary(record.split, Frequencies(record.frequencies.base, Zero()), record.pairing)
    head_dim, hidden, heads = find("head_dim"), find("hidden_size"), find("num_attention_heads")
    if head_dim is None and hidden is not None and heads is not None:
        head_dim = whole("hidden_size", hidden, 1) // whole("num_attention_heads", heads, 1)
    head_dim = record.head_dim if head_dim is None else whole("head_dim", head_dim, 1)
    share = rope.get("partial_rotary_factor", find("partial_rotary_factor"))
    if share is None:  # of an object the class default of transformers counts, which is all
        share = 1 if hasattr(config, "to_dict") else record.partial_rotary
    proportional = rope.get("rope_type") == "proportional"  # there it is the share of pairs that turn, of all
    rotary_dim = int(head_dim * (1 if proportional else positive("partial_rotary_factor", share)))
    split = _split(record, rope, rotary_dim)
    split.check_fits(rotary_dim)
    extension = read_extension(rope, find("max_position_embeddings"))
    if not rope.keys() - {"rope_theta", "mrope_section", "partial_rotary_factor"}:
        extension = record.frequencies.extension  # nothing is stated
    bases = (rope.get("rope_theta"), find("rope_theta"), record.frequencies.base)
    base = next(value for value in bases if value is not None)
    return Rotary(split, Frequencies(base, extension), record.pairing)


def _stated(config: Any) -> Json:
    """What a configuration states."""
    if isinstance(config, (str, os.PathLike)):
        folder, config = config, read_json(Path(config) / "config.json")
        if config is None:
            raise ValueError(f"{folder} has no config.json; expected a checkpoint folder (nothing is downloaded)")
    elif hasattr(config, "to_dict"):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        raise TypeError(
            f"config is a {type(config).__name__}; expected a checkpoint folder, a dict or a transformers configuration"
        )
    return config


def _record(*scopes: Json) -> Family:
    """The record of a language model, by its own type before that of the whole: GLM-4.6V takes one of two of them."""
    types = [str(scope.get("model_type")).removesuffix("_text") for scope in scopes]
    records = [family(name) for name in family_names()]
    for model_type in types:
        for record in records:
            if {model_type, f"{model_type}_thinker"} & {*record.model_types}:
                return record
    raise ValueError(
        f"model_type is {scopes[-1].get('model_type')!r}; known are "
        f"{', '.join(name for record in records for name in record.model_types)}"
    )


def _of_layer(rope: Json, layer: str | None, types: Any) -> Json | None:
    """The rope parameters of one type of layer; None where it has none."""
    nested = any(isinstance(value, Mapping) for value in rope.values())
    layered = {
        key: value
        for key, value in rope.items()
        if key in (types or ()) or isinstance(value, Mapping) or (nested and value is None)
    }
    if not layered:
        if layer is not None and layer not in (types or ()):
            raise ValueError(f"layer is {layer!r}; the layer types are {', '.join(types or ()) or 'not stated'}")
        return rope
    if layer is None and len(layered) == 1:
        return next(iter(layered.values()))
    if layer not in layered:
        raise ValueError(f"layer is {layer!r}; expected one of {', '.join(layered)}, which differ")
    return layered[layer]


def _split(record: Family, rope: Json, rotary_dim: int) -> AxisSplit:
    allocation = record.split.allocation
    if rope.get("mrope_interleaved") is not None:
        allocation = "interleaved" if rope["mrope_interleaved"] else "chunked"
    section = rope.get("mrope_section") or rope.get("xdrope_section")
    if section is None:
        counts = record.split.counts
        if record.split.axes == 2:  # NeoMME states no section: row and column have half each
            counts = (rotary_dim // 4, rotary_dim // 4)
        return AxisSplit(counts, allocation)
    if not isinstance(section, (list, tuple)):
        raise ValueError(f"mrope_section is {section!r}; expected a list, the pairs of each axis")
    counts = tuple(section)
    if len(counts) != record.split.axes:
        raise ValueError(f"mrope_section is {counts}; {record.name} has {record.split.axes} axes")
    if allocation == "alternating":  # Ernie's order is h, w, t
        counts = (*counts[2:], *counts[:2])
    return AxisSplit(counts, allocation)
