"""From the settings of an image or video processor of transformers to a `Family` that plans and cuts the same way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from mrope.families import Family
from mrope.families.checkpoint import object_of, read_json
from mrope.families.record import tokens_of
from mrope.layouts import SpanLayout

Kind = Literal["picture", "clip"]

# What is done in one way here: setting -> its values that say so.
_FIXED: dict[str, tuple[Any, ...]] = {
    "do_resize": (True,),
    "do_rescale": (True,),
    "do_normalize": (True,),
    "do_convert_rgb": (True, None),
    "rescale_factor": (1 / 255,),
    "do_center_crop": (False, None),
    "do_pad": (False, None),
    "cap_pixels_per_frame": (False, None),
    "slice_mode": (True,),
    "stack_frames": (1,),
    "draw_on_frames": (False,),
    "spatial_patch_size": (1,),
    "patch_expand_factor": (1,),
    "max_side": (None,),
    "input_data_format": (None,),
}


def tuned(record: Family, settings: Mapping[str, Any], kind: Kind) -> Family:
    """The record with the sizes, limits and colours that a processor has.

    Args:
        record: of the family.
        settings: of the image processor or the video processor by name, those of one call among them.
        kind: which of the two.

    Raises:
        ValueError: a setting that is not built here, and would change the numbers if it were ignored.
    """
    fixed = {**_FIXED, "resample": (2 if record.filter == "bilinear" else 3,)}
    for name, allowed in fixed.items():
        if name in settings and settings[name] not in allowed:
            known = " or ".join(map(str, allowed))
            raise ValueError(f"{name} is {settings[name]}; only {known} is built for {record.name}")
    changes: dict[str, Any] = {"patch": settings.get("patch_size") or record.patch}
    mean, std = (_colour(name, settings.get(name)) for name in ("image_mean", "image_std"))
    changes |= {"mean": mean, "std": std} if kind == "picture" else {"video_colours": (mean, std)}
    if record.resize == "slices":
        changes["slices"] = (settings["scale_resolution"], settings["max_slice_nums"])
        changes["merge"] = 2 if settings.get("downsample_mode") == "4x" else 4
    elif record.resize == "padded":
        if settings.get("size") is not None:
            raise ValueError(f"size is {settings['size']}; only None is built for {record.name}")
    else:
        changes["merge"] = settings.get("merge_size") or record.merge
        frames = settings.get("temporal_patch_size") or record.temporal_patch
        if record.temporal_merge == 1:  # else the video processor calls by this name what the model merges
            changes["temporal_patch"] = frames
        changes |= _limits(record, settings, kind, (changes["patch"] * changes["merge"]), frames)
    if isinstance(record.layout, SpanLayout) and changes.get("merge", record.merge) != record.merge:
        changes["layout"] = replace(record.layout, merge=changes["merge"])
        changes["deviations"] = {}
    return replace(record, **changes)


def _colour(name: str, value: Any) -> tuple[float, float, float]:
    if not isinstance(value, (list, tuple)) or len(value) != 3:
        raise ValueError(f"{name} is {value!r}; expected 3 numbers: red, green, blue")
    return float(value[0]), float(value[1]), float(value[2])


def _limits(record: Family, settings: Mapping[str, Any], kind: Kind, factor: int, frames: int) -> dict[str, Any]:
    """The limits in pixels, and in tokens of `factor` x `factor` pixels where there are such."""
    size = dict(settings.get("size") or {})
    edges = {"shortest_edge": "min_pixels", "longest_edge": "max_pixels"}
    least, most = (
        size.get(edge) if settings.get(pixels) is None else settings[pixels] for edge, pixels in edges.items()
    )
    if least is None or most is None:
        raise ValueError(f"size is {size}; expected shortest_edge and longest_edge, in pixels in all")
    if kind == "clip":
        largest = settings.get("max_image_size")
        most_of_one = {"frame_pixels": largest["longest_edge"]} if record.frame_pixels is not None and largest else {}
        return {"video_pixels": (least, most), **most_of_one}
    if record.resize == "volume":  # a picture counts as one temporal patch
        for edge in (least, most):
            if edge % frames:
                raise ValueError(f"size holds {edge} pixels; expected a multiple of {frames}, the frames of a patch")
        least, most = least // frames, most // frames
    tokens = tokens_of((least, most), factor)
    return {"image_tokens": tokens, "image_pixels": (least, most)}


def limits_words(family: Family, kind: Kind) -> str:
    """What limits a picture or a clip, in words."""
    if family.resize == "slices":
        return f"{family.slices[1]} slices of {family.slices[0]} x {family.slices[0]} pixels"  # pyright: ignore[reportOptionalSubscript]
    if family.resize == "padded":
        return "no limit"
    limits = family.pixel_limits if kind == "picture" else family.video_pixels
    assert limits is not None
    return f"{limits[0]} to {limits[1]} pixels"


def stated_in(folder: Path, kind: Kind) -> str:
    """The file of a checkpoint that states the limits of pictures or clips, as transformers looks for it."""
    file = folder / "processor_config.json"
    part = "image_processor" if kind == "picture" else "video_processor"
    stated = object_of(read_json(file) or {}, part, str(file))
    if not stated:
        own = folder / "video_preprocessor_config.json"
        file = own if kind == "clip" and own.exists() else folder / "preprocessor_config.json"
        stated = read_json(file) or {}
    limits = {"size", "min_pixels", "max_pixels", "scale_resolution", "max_slice_nums"}
    return str(file) if limits & stated.keys() else f"class default of transformers, as {file} states none"


def template_in(folder: Path) -> str:
    """The file of a checkpoint that states the chat template, as transformers looks; the tokenizer's else."""
    files = (folder / name for name in ("chat_template.jinja", "chat_template.json", "tokenizer_config.json"))
    return str(next((file for file in files if file.exists()), "none"))
