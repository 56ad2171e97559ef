"""What limits the pictures and clips of a processor, and which file of a checkpoint states it."""

from __future__ import annotations

from pathlib import Path

from mrope.families import Family
from mrope.families.checkpoint import object_of, read_json
from mrope.families.settings import Kind


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
