"""Between a `Family` and the settings of an image or video processor of transformers that does the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from mrope.families.record import Family, tokens_of
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
    exact = least % factor**2 == most % factor**2 == 0
    return {"image_tokens": tokens_of((least, most), factor), "image_pixels": None if exact else (least, most)}


def options_of(record: Family, kind: Kind) -> dict[str, Any]:
    """What an image or video processor of transformers must be given to do as the record says."""
    mean, std = record.colours(kind)
    options: dict[str, Any] = {"patch_size": record.patch, "image_mean": list(mean), "image_std": list(std)}
    if record.slices is not None:
        options["downsample_mode"] = "4x" if record.merge == 2 else "16x"
        return options | dict(zip(("scale_resolution", "max_slice_nums"), record.slices, strict=True))
    if record.resize == "padded":
        return options
    frames = record.temporal_patch
    if kind == "picture":
        counted = frames if record.resize == "volume" else 1
        limits = tuple(limit * counted for limit in record.pixel_limits)
    else:
        assert record.video_pixels is not None
        limits, frames = record.video_pixels, frames * record.temporal_merge
        if record.name == "ernie4.5-vl":
            options["draw_on_frames"] = False
        if record.frame_pixels is not None:
            options["max_image_size"] = {"longest_edge": record.frame_pixels}
    options["size"] = dict(zip(("shortest_edge", "longest_edge"), limits, strict=True))
    return options | {"merge_size": record.merge, "temporal_patch_size": frames}
