"""Reads what a checkpoint states into a `Family`: its JSON files, or a transformers configuration.

The files are read into *facts*, field name -> (value, where it was stated). Facts of several files must agree; what no
file states keeps the record's value; what we cannot honour is refused, never ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from mrope.axes import AxisSplit
from mrope.checks import positive, whole
from mrope.extensions import both_parameters, read_extension
from mrope.families import family, family_names
from mrope.families.qwen import QWEN2_VL, QWEN3_VL, QWEN25_VL
from mrope.families.record import Family, tokens_of
from mrope.frequencies import Frequencies
from mrope.layouts import GridLayout, Layout

READ = (QWEN2_VL, QWEN25_VL, QWEN3_VL)
"""The records of the families whose files are understood here."""

Facts = dict[str, tuple[Any, str]]
Json = Mapping[str, Any]


def read_checkpoint(config: Any) -> Family:
    """See `Family.from_config`."""
    if isinstance(config, (str, os.PathLike)):
        return _from_folder(Path(config))
    if isinstance(config, Mapping):
        return _build(config, [_model_facts(config, "config")])
    if hasattr(config, "to_dict"):
        return _from_object(config)
    raise TypeError(
        f"config is a {type(config).__name__}; expected a checkpoint folder, a dict or a transformers configuration"
    )


def _from_folder(folder: Path) -> Family:
    if not folder.is_dir():
        raise ValueError(
            f"{folder} is not a folder; expected a checkpoint folder with config.json (nothing is downloaded)"
        )
    config = read_json(folder / "config.json")
    if config is None:
        raise ValueError(f"{folder} has no config.json; expected a checkpoint folder")
    return _build(config, [_model_facts(config, str(folder / "config.json")), *_processor_facts(folder, config)])


def _from_object(config: Any) -> Family:
    stated = config.to_dict()
    facts = _model_facts(stated, type(config).__name__)
    path = _json_behind(config)
    raw = None if path is None else read_json(path)
    if path is None or raw is None:
        return _build(stated, [facts])
    # The object holds class defaults as well. Made anew from its JSON it shows what was changed on it since; from a
    # copy, as transformers writes defaults into the dict that it is given.
    loaded = _model_facts(type(config).from_dict(deepcopy(raw)).to_dict(), str(path))
    changed = {name: fact for name, fact in facts.items() if name not in loaded or fact[0] != loaded[name][0]}
    written = {name: fact for name, fact in _model_facts(raw, str(path)).items() if name not in changed}
    return _build(stated, [written, changed, *_processor_facts(path.parent, stated)])


def _json_behind(config: Any) -> Path | None:
    """The config.json that a configuration object was loaded from: its folder's, or the hub cache's."""
    name = getattr(config, "_name_or_path", None)
    if not name:
        return None
    if Path(name).is_dir():
        return Path(name) / "config.json"
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, "config.json", revision=getattr(config, "_commit_hash", None))
    except HFValidationError:
        return None  # a folder that is gone, not a name of the hub
    return Path(cached) if isinstance(cached, str) else None


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`, None if there is no such file."""
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a JSON {type(content).__name__}; expected an object")
    return content


def _record(config: Json) -> Family:
    model_type = config.get("model_type")
    for record in READ:
        if model_type in record.model_types:
            return record
    for record in map(family, family_names()):
        if model_type in record.model_types:
            raise ValueError(
                f"model_type is {model_type!r}: reading the configuration of {record.name} is not built yet; its "
                f"record is mrope.family({record.name!r})"
            )
    known = ", ".join(name for record in READ for name in record.model_types)
    raise ValueError(f"model_type is {model_type!r}; known are {known}")


def _build(config: Json, facts: Iterable[Facts]) -> Family:
    record, stated = _record(config), _agreed(facts)
    value = {name: fact[0] for name, fact in stated.items()}
    plain = {
        name: value[name] for name in ("patch", "temporal_patch", "merge", "mean", "std", "head_dim") if name in value
    }
    factor = value.get("patch", record.patch) * value.get("merge", record.merge)
    assert record.video_pixels is not None  # our own records
    keys: dict[str, tuple[str, ...]] = {
        **{name: (name,) for name in plain},
        "layout": ("merge", "ids_per_second", "rule"),  # no checkpoint states the rule
        "split": ("section", "interleaved"),
        "frequencies": ("base", "extension"),
        "image_tokens": ("image_least", "image_most"),
        "video_pixels": ("video_least", "video_most"),
    }
    return replace(
        record,
        **plain,
        **_image_limits(record, value, factor),
        video_pixels=(
            value.get("video_least", record.video_pixels[0]),
            value.get("video_most", record.video_pixels[1]),
        ),
        layout=_layout(record.layout, value),
        deviations={version: _layout(layout, value) for version, layout in record.deviations.items()},
        split=_split(record, value),
        frequencies=Frequencies(
            value.get("base", record.frequencies.base), value.get("extension", record.frequencies.extension)
        ),
        sources={**record.sources, **{name: _source(record.sources[name], stated, of) for name, of in keys.items()}},
    )


def _source(recorded: str, stated: Facts, keys: tuple[str, ...]) -> str:
    """Where a field's value is from, which is made of the facts `keys`."""
    given = [f"{key}: {stated[key][1]}" for key in keys if key in stated]
    if len(given) < len(keys):
        given.append(f"not stated by the checkpoint: {recorded}")
    return "; ".join(given)


def _agreed(all_facts: Iterable[Facts]) -> Facts:
    agreed: Facts = {}
    for facts in all_facts:
        for name, (value, where) in facts.items():
            known, earlier = agreed.setdefault(name, (value, where))
            if known != value:
                raise ValueError(f"{name} is {known} in {earlier}, but {value} in {where}; expected one value")
    return agreed


def _layout(layout: Layout, value: Mapping[str, Any]) -> GridLayout:
    assert isinstance(layout, GridLayout)  # our own records
    ids_per_second = layout.ids_per_second
    if layout.time == "seconds":  # other families do not read the key
        ids_per_second = value.get("ids_per_second", ids_per_second)
    return replace(layout, merge=value.get("merge", layout.merge), ids_per_second=ids_per_second)


def _split(record: Family, value: Mapping[str, Any]) -> AxisSplit:
    allocation = record.split.allocation
    if "interleaved" in value:
        allocation = "interleaved" if value["interleaved"] else "chunked"
    return AxisSplit(value.get("section", record.split.counts), allocation)


def _image_limits(record: Family, value: Mapping[str, Any], factor: int) -> dict[str, Any]:
    if "image_least" not in value and "image_most" not in value:
        return {}
    area = factor * factor
    assert record.image_tokens is not None  # our own records
    least = value.get("image_least", record.image_tokens[0] * area)
    most = value.get("image_most", record.image_tokens[1] * area)
    exact = least % area == 0 and most % area == 0
    return {"image_tokens": tokens_of((least, most), factor), "image_pixels": None if exact else (least, most)}


def _model_facts(config: Json, where: str) -> Facts:
    """What a config.json states, in the flat style of transformers 4 or the nested one of transformers 5."""
    text, vision = object_of(config, "text_config", where), object_of(config, "vision_config", where)

    def find(*keys: str) -> Any:
        found = (scope.get(key) for scope in (text, config) for key in keys)
        return next((value for value in found if value is not None), None)

    given = [find(key) or {} for key in ("rope_parameters", "rope_scaling")]
    for each in given:
        if not isinstance(each, Mapping):
            raise ValueError(f"rope parameters in {where} are {each!r}; expected an object")
    rope = both_parameters(*given)
    head_dim, hidden, heads = find("head_dim"), find("hidden_size"), find("num_attention_heads")
    if head_dim is None and hidden and heads:
        head_dim = whole("hidden_size", hidden, 1) // whole("num_attention_heads", heads, 1)
    base = rope.get("rope_theta")
    values = {
        "head_dim": head_dim,
        "base": find("rope_theta") if base is None else base,
        "extension": read_extension(rope, find("max_position_embeddings")),
        "section": rope.get("mrope_section"),
        "interleaved": rope.get("mrope_interleaved"),
        "patch": vision.get("patch_size"),
        "merge": vision.get("spatial_merge_size"),
        "temporal_patch": vision.get("temporal_patch_size"),
        "ids_per_second": vision.get("tokens_per_second"),
    }
    partial = rope.get("partial_rotary_factor", find("partial_rotary_factor"))
    _refuse_others(where, "partial_rotary_factor", (partial,), (1,))
    _refuse_others(where, "in_channels", (vision.get("in_channels"), vision.get("in_chans")), (3,))
    return _checked(values, where)


def _processor_facts(folder: Path, config: Json) -> list[Facts]:
    """What the files of the image and the video processor state; transformers 5 nests both in one file."""
    nested_file, image_file = folder / "processor_config.json", folder / "preprocessor_config.json"
    nested, image = read_json(nested_file) or {}, read_json(image_file) or {}
    video_file = folder / "video_preprocessor_config.json"
    video = read_json(video_file) or {}
    # Without a file of its own the video processor reads the image's, where the limits mean the same: of one frame.
    if not video and _record(config).video_budget == "frame":
        video, video_file = image, image_file
    if found := object_of(nested, "image_processor", str(nested_file)):
        image, image_file = found, nested_file
    if found := object_of(nested, "video_processor", str(nested_file)):
        video, video_file = found, nested_file
    return [_pixel_facts(image, "image", str(image_file)), _pixel_facts(video, "video", str(video_file))]


def _pixel_facts(processor: Json, kind: str, where: str) -> Facts:
    size = object_of(processor, "size", where)
    limits = {
        f"{kind}_{end}": next((value for value in found if value is not None), None)
        for end, found in (
            ("least", (processor.get("min_pixels"), size.get("shortest_edge"), size.get("min_pixels"))),
            ("most", (processor.get("max_pixels"), size.get("longest_edge"), size.get("max_pixels"))),
        )
    }
    if size and all(limit is None for limit in limits.values()):
        raise ValueError(f"size in {where} is {dict(size)}; expected shortest_edge and longest_edge, in pixels in all")
    for key in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"):
        _refuse_others(where, key, (processor.get(key),), (True,))
    for key in ("do_center_crop", "cap_pixels_per_frame"):
        _refuse_others(where, key, (processor.get(key),), (False,))
    _refuse_others(where, "resample", (processor.get("resample"),), (3,))
    _refuse_others(where, "rescale_factor", (processor.get("rescale_factor"),), (1 / 255,))
    values = {
        "patch": processor.get("patch_size"),
        "merge": processor.get("merge_size"),
        "temporal_patch": processor.get("temporal_patch_size"),
        "mean": processor.get("image_mean"),
        "std": processor.get("image_std"),
        **limits,
    }
    return _checked(values, where)


def _checked(values: Json, where: str) -> Facts:
    """The values that are stated, each in the type that the record has."""
    return {name: (_typed(name, value, where), where) for name, value in values.items() if value is not None}


def _typed(name: str, value: Any, where: str) -> Any:
    label = f"{name} in {where}"
    if name == "extension":
        return value
    if name in ("base", "ids_per_second"):
        return positive(label, value)
    if name == "interleaved":
        return bool(value)
    listed = isinstance(value, (list, tuple))
    if name in ("mean", "std", "section"):
        if not listed:
            raise ValueError(f"{label} is {value!r}; expected a list")
        return tuple(whole(label, entry, 1) if name == "section" else float(entry) for entry in value)
    if listed and len(set(value)) == 1:  # a patch may be given as (height, width)
        value = value[0]
    return whole(label, value, 1)


def object_of(parent: Json, key: str, where: str | None = None) -> Json:
    """The object at `key`, empty if there is none."""
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        label = key if where is None else f"{key} in {where}"
        raise ValueError(f"{label} is {value!r}; expected an object")
    return value


def _refuse_others(where: str, name: str, values: Iterable[Any], supported: tuple[Any, ...]) -> None:
    for value in values:
        if value is not None and value not in supported:
            known = " or ".join(map(str, supported))
            raise ValueError(f"{name} is {value} in {where}; only {known} is supported, and ignoring it would be wrong")
