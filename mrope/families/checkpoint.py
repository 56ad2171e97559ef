"""Reads what a checkpoint states into a `Family`: its JSON files, or a transformers configuration.

The files are read into *facts*, (scope, key) -> (value, where it was stated). What several files state must agree; what
no file states keeps the record's value; what we cannot honour is refused, never ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from mrope.checks import one_of, positive, whole
from mrope.extensions import both_parameters
from mrope.families import family, family_names
from mrope.families.record import Family
from mrope.families.settings import Kind, options_of, tuned
from mrope.layouts import CanvasLayout, GridLayout, Layout, OmniLayout, PageLayout, SpanLayout
from mrope.rotary import Rotary

Facts = dict[tuple[str, ...], tuple[Any, str]]
Json = Mapping[str, Any]


def read_checkpoint(config: Any) -> Family:
    """See `Family.from_config`."""
    if isinstance(config, (str, os.PathLike)):
        return _from_folder(Path(config))
    if isinstance(config, Mapping):
        return _build(_record(config), _model_facts(config, "config"))
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
    return _build(_record(config), _model_facts(config, str(folder / "config.json")), folder)


def _from_object(config: Any) -> Family:
    stated, word = config.to_dict(), type(config).__name__
    record, facts = _record(stated), _model_facts(stated, word)
    path = _json_behind(config)
    raw = None if path is None else read_json(path)
    if path is None or raw is None:
        # Its word is, too, that all channels turn where it does not say otherwise.
        return _build(record, {("text", "partial_rotary_factor"): (1, word)} | facts)
    # The object holds class defaults as well. Made anew from its JSON it shows what was changed on it since; from a
    # copy, as transformers writes defaults into the dict that it is given.
    loaded = _model_facts(type(config).from_dict(deepcopy(raw)).to_dict(), str(path))
    changed = {name: fact for name, fact in facts.items() if name not in loaded or fact[0] != loaded[name][0]}
    return _build(record, _model_facts(raw, str(path)) | changed, path.parent)


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
    model_type, records = config.get("model_type"), [family(name) for name in family_names()]
    for record in records:
        if model_type in record.model_types:
            return record
    known = ", ".join(name for record in records for name in record.model_types)
    raise ValueError(f"model_type is {model_type!r}; known are {known}")


def _build(record: Family, facts: Facts, folder: Path | None = None) -> Family:
    processors = [] if folder is None else _processors(folder, record)
    sizes = [_sizes(record, settings, kind, where) for kind, settings, where in processors]
    facts = _agreed([facts, *sizes])
    value = {name[-1]: fact[0] for name, fact in facts.items() if name[0] in ("size", "layout")}
    patch, merge = value.get("patch", record.patch), value.get("merge", record.merge)
    made = replace(
        record,
        patch=patch,
        temporal_patch=value.get("temporal_patch", record.temporal_patch),
        merge=merge,
        image_pixels=record.image_pixels if patch * merge == record.factor else None,
        layout=_layout(record.layout, value),
        deviations={version: _layout(layout, value) for version, layout in record.deviations.items()},
        **_rotaries(record, facts),
    )
    for kind, settings, where in processors:
        with _told(where):
            made = _with_processor(made, settings, kind)
        facts |= {(kind, key): (value, where) for key, value in settings.items() if value is not None}
    sources = {name: _source(record.sources[name], facts, keys) for name, keys in _STATED_BY.items()}
    return replace(made, sources={**record.sources, **sources})


# Field -> the scope and key of the facts that it is made of; no checkpoint states the rule of a layout.
_STATED_BY: dict[str, tuple[tuple[str, str], ...]] = {
    **{name: (("size", name),) for name in ("patch", "temporal_patch", "merge")},
    "layout": (("size", "merge"), ("layout", "ids_per_second"), ("layout", "rule")),
    "split": (("text", "mrope_section"), ("text", "mrope_interleaved")),
    "frequencies": (("text", "rope_theta"), ("text", "rope_type")),
    "head_dim": (("text", "head_dim"),),
    "partial_rotary": (("text", "partial_rotary_factor"),),
    "mean": (("picture", "image_mean"),),
    "std": (("picture", "image_std"),),
    "image_tokens": (("picture", "size"),),
    "slices": (("picture", "scale_resolution"), ("picture", "max_slice_nums")),
    "video_pixels": (("clip", "size"),),
    "video_colours": (("clip", "image_mean"), ("clip", "image_std")),
    "frame_pixels": (("clip", "max_image_size"),),
}


def _source(recorded: str, facts: Facts, keys: tuple[tuple[str, str], ...]) -> str:
    """Where a field's value is from, which is made of the facts `keys`."""
    found = [next((where for name, (_, where) in facts.items() if (name[0], name[-1]) == key), None) for key in keys]
    given = [f"{key}: {where}" for (_, key), where in zip(keys, found, strict=True) if where is not None]
    if len(given) < len(keys):
        given.append(f"not stated by the checkpoint: {recorded}")
    return "; ".join(given)


def _agreed(all_facts: Iterable[Facts]) -> Facts:
    agreed: Facts = {}
    for facts in all_facts:
        for name, (value, where) in facts.items():
            known, earlier = agreed.setdefault(name, (value, where))
            if known != value:
                raise ValueError(f"{name[-1]} is {known} in {earlier}, but {value} in {where}; expected one value")
    return agreed


# ---------------------------------------------------------------------------------------------- what config.json states


def _model_facts(config: Json, where: str) -> Facts:
    """What a config.json states, in the flat style of transformers 4 or the nested one of transformers 5."""
    outer = object_of(config, "thinker_config", where) or config
    text, vision = object_of(outer, "text_config", where), object_of(outer, "vision_config", where)
    layout = _record(config).layout

    def find(key: str) -> Any:
        return next((scope[key] for scope in (text, outer) if scope.get(key) is not None), None)

    head_dim, hidden, heads = find("head_dim"), find("hidden_size"), find("num_attention_heads")
    if head_dim is None and hidden and heads:
        head_dim = whole("hidden_size", hidden, 1) // whole("num_attention_heads", heads, 1)
    patch, merge, rate = vision.get("patch_size"), vision.get("spatial_merge_size"), vision.get("tokens_per_second")
    if isinstance(layout, PageLayout):
        patch = outer.get("patch_size")
    if isinstance(layout, CanvasLayout):
        merge = _of_mode(outer.get("downsample_mode"), where)
    if isinstance(layout, OmniLayout):
        rate = outer.get("position_id_per_seconds")
    _refuse_others(where, "in_channels", [vision.get(key) for key in ("in_channels", "in_chans", "num_channels")], 3)
    if isinstance(layout, GridLayout) and layout.temporal_merge > 1:
        _refuse_others(where, "temporal_merge_size", [vision.get("temporal_merge_size")], layout.temporal_merge)
    stated: dict[tuple[str, ...], Any] = {
        # Of a latent attention head a slice turns.
        ("text", "head_dim"): find("qk_rope_head_dim") or head_dim,
        **{("text", key): find(key) for key in _TEXT},
        ("size", "patch"): _side("patch", patch, where),
        ("size", "merge"): _side("merge", merge, where),
        ("size", "temporal_patch"): _side("temporal_patch", vision.get("temporal_patch_size"), where),
        ("layout", "ids_per_second"): None if rate is None else positive(f"ids_per_second in {where}", rate),
        ("layout", "seconds_per_chunk"): outer.get("seconds_per_chunk"),
    }
    stated = {name: value for name, value in stated.items() if value is not None}
    parameters, scaling = (
        next((found for scope in (text, outer) if (found := object_of(scope, key, where))), {})
        for key in ("rope_parameters", "rope_scaling")
    )
    for key, value in both_parameters(parameters, scaling).items():
        if isinstance(value, Mapping):
            stated |= {("text", "rope", key, inner): each for inner, each in value.items()}
        else:
            stated["text", "rope", "mrope_section" if key == "xdrope_section" else key] = value
    return {name: (value, where) for name, value in stated.items()}


_TEXT = ("model_type", "layer_types", "max_position_embeddings", "rope_theta", "partial_rotary_factor")


def _side(name: str, value: Any, where: str) -> int | None:
    """A size that a checkpoint states, be it as (height, width)."""
    if isinstance(value, (list, tuple)) and len(set(value)) == 1:
        value = value[0]
    return None if value is None else whole(f"{name} in {where}", value, 1)


def _of_mode(mode: Any, where: str) -> int | None:
    """The patches per token and side of a mode of MiniCPM-V."""
    if mode is None:
        return None
    one_of(f"downsample_mode in {where}", mode, ("4x", "16x"))
    return 2 if mode == "4x" else 4


def _layout(layout: Layout, value: Mapping[str, Any]) -> Layout:
    assert isinstance(layout, SpanLayout)  # our own records
    changes = {"merge": value.get("merge", layout.merge)}
    if isinstance(layout, OmniLayout) or (isinstance(layout, GridLayout) and layout.time == "seconds"):
        changes["ids_per_second"] = value.get("ids_per_second", layout.ids_per_second)
    if isinstance(layout, OmniLayout) and layout.weave == "chunks":
        changes["seconds_per_chunk"] = value.get("seconds_per_chunk", layout.seconds_per_chunk)
    return replace(layout, **changes)


def _rotaries(record: Family, facts: Facts) -> dict[str, Any]:
    """The fields of a record that say how queries and keys turn."""
    from mrope.families.rope import read_rotary  # which reads files with what stands here

    text: dict[str, Any] = {"rope_parameters": {}}
    for name, (value, _) in facts.items():
        scope, *inside, key = name
        if scope == "text":
            place = text["rope_parameters"] if inside else text
            for layer in inside[1:]:
                place = place.setdefault(layer, {})
            place[key] = value
    config, rope = {"model_type": record.model_types[0], "text_config": text}, text["rope_parameters"]
    nested = any(isinstance(value, Mapping) for value in rope.values())
    layers = [key for key, value in rope.items() if nested and (value is None or isinstance(value, Mapping))]
    where = next((where for name, (_, where) in facts.items() if name[0] == "text"), "the configuration")
    with _told(where):
        if layers:
            rotaries = {layer: read_rotary(config, layer) for layer in layers}
            turning = [layer for layer in layers if rope[layer] is not None]
            main = rotaries[next((layer for layer in turning if layer not in record.other_layers), turning[0])]
            others: Mapping[str, Rotary] = {layer: each for layer, each in rotaries.items() if each != main}
        else:
            main, others = read_rotary(config), record.other_layers
    head_dim, turned = text.get("head_dim", record.head_dim), main.split.rotary_dim
    return {
        "split": main.split,
        "pairing": main.pairing,
        "frequencies": main.frequencies,
        "head_dim": head_dim,
        "partial_rotary": 1 if turned == head_dim else turned / head_dim,
        "other_layers": others,
    }


# ----------------------------------------------------------------------------------------- what processors' files state

_EDGES = {"shortest_edge": "min_pixels", "longest_edge": "max_pixels"}
_SIZES = {"patch": "patch_size", "merge": "merge_size", "temporal_patch": "temporal_patch_size"}


def _processors(folder: Path, record: Family) -> list[tuple[Kind, dict[str, Any], str]]:
    """(kind, settings, file) of the image and the video processor; transformers 5 nests both in one file."""
    nested_file, image_file = folder / "processor_config.json", folder / "preprocessor_config.json"
    nested, image = read_json(nested_file) or {}, read_json(image_file) or {}
    video_file = folder / "video_preprocessor_config.json"
    video = read_json(video_file) or {}
    # Without a file of its own the video processor reads the image's, where the limits mean the same: of one frame.
    if not video and record.video_budget == "frame":
        video, video_file = image, image_file
    if inner := object_of(nested, "image_processor", str(nested_file)):
        image, image_file = inner, nested_file
    if inner := object_of(nested, "video_processor", str(nested_file)):
        video, video_file = inner, nested_file
    found: list[tuple[Kind, dict[str, Any], str]] = [("picture", _settings(image, str(image_file)), str(image_file))]
    # A record without limits of clips holds nothing of their own: the frames of MiniCPM-V are pictures.
    if record.video_budget is not None:
        found.append(("clip", _settings(video, str(video_file)), str(video_file)))
    return found


def _settings(stated: Json, where: str) -> dict[str, Any]:
    """What is stated, with the limits of all styles as `size`."""
    size = object_of(stated, "size", where)
    limits = {}
    for edge, pixels in _EDGES.items():
        found = (stated.get(pixels), size.get(edge), size.get(pixels))
        value = next((each for each in found if each is not None), None)
        if value is not None:
            limits[edge] = whole(f"{pixels} in {where}", value, 1)
    if size and not limits:
        raise ValueError(f"size in {where} is {dict(size)}; expected shortest_edge and longest_edge, in pixels in all")
    settings = {key: value for key, value in stated.items() if value is not None and key not in _EDGES.values()}
    return {**settings, "size": limits} if limits else {key: value for key, value in settings.items() if key != "size"}


def _sizes(record: Family, settings: Json, kind: Kind, where: str) -> Facts:
    """The sizes that the model's own configuration has to agree with."""
    values = {name: _side(name, settings.get(key), where) for name, key in _SIZES.items()}
    if record.slices is not None:
        values["merge"] = _of_mode(settings.get("downsample_mode"), where)
    if kind == "clip" and record.temporal_merge > 1:  # which the video processor calls by this name
        values["temporal_patch"] = None
    return {("size", name): (value, where) for name, value in values.items() if value is not None}


def _with_processor(family: Family, settings: Json, kind: Kind) -> Family:
    """The family, whose sizes are agreed on already, with the limits and colours of a processor."""
    own = options_of(family, kind)
    given = {key: value for key, value in settings.items() if key not in (*_SIZES.values(), "downsample_mode")}
    if isinstance(own.get("size"), dict):
        # The processors of omni models state the limits of clips in each call.
        stated = {} if kind == "clip" and isinstance(family.layout, OmniLayout) else settings.get("size", {})
        given["size"] = own["size"] | stated
    made = tuned(family, own | given, kind)
    return replace(made, video_colours=None) if made.video_colours == (made.mean, made.std) else made


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Say where what is refused is stated."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def object_of(parent: Json, key: str, where: str | None = None) -> Json:
    """The object at `key`, empty if there is none."""
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        label = key if where is None else f"{key} in {where}"
        raise ValueError(f"{label} is {value!r}; expected an object")
    return value


def _refuse_others(where: str, name: str, values: Iterable[Any], supported: Any) -> None:
    for value in values:
        if value is not None and value != supported:
            raise ValueError(f"{name} is {value} in {where}; expected {supported}: ignoring it would be wrong")
