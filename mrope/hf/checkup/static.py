"""Checks of what a configuration and a checkpoint's files state; nothing is run but the making of rotary tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mrope.families.checkpoint import read_json
from mrope.families.rope import read_rotary
from mrope.hf.checkup.report import Finding
from mrope.hf.checkup.subject import Subject
from mrope.hf.reading import layout_of
from mrope.rotary import Rotary

_FEWEST_TOKENS = 32  # a largest picture of fewer tokens is a number in another unit


def rotaries(subject: Subject) -> Iterator[tuple[str, Rotary | None, str | None]]:
    """(where, rotary, error) of each type of layer that has rotary parameters of its own."""
    text = getattr(subject.config, "text_config", subject.config)
    stated = getattr(text, "rope_parameters", None) or {}
    layers = [key for key, value in stated.items() if isinstance(value, Mapping)] or [None]
    for layer in layers:
        where = "rope_parameters" + (f" of {layer}" if layer else "")
        try:
            yield where, read_rotary(subject.config, layer), None
        except (ValueError, TypeError) as error:
            yield where, None, str(error)


def rotary(subject: Subject) -> Iterator[Finding]:
    """The rotary parameters that are stated make an encoding: the split fills the channels that turn."""
    stated = getattr(getattr(subject.config, "text_config", subject.config), "rope_parameters", None) or {}
    if any("section" in key for scope in (stated, *stated.values()) if isinstance(scope, Mapping) for key in scope):
        yield from splits(subject)


def splits(subject: Subject) -> Iterator[Finding]:
    """The same with the split of the family where none is stated."""
    family = subject.family
    pairs = int(family.head_dim * family.partial_rotary) // 2
    right = f"{family.split.counts} of {pairs} pairs, head_dim {family.head_dim}, as in {family.name}"
    for where, _, error in rotaries(subject):
        if error is not None:
            yield Finding(
                check="rotary",
                level="wrong",
                rule="mrope_section adds up to half of the channels of a head that turn",
                seen=f"{where}: {error}",
                right=right,
                fix="state mrope_section, head_dim and partial_rotary_factor as the checkpoint was trained",
            )


def words(subject: Subject) -> Iterator[Finding]:
    """The words that pictures are found by have ids."""
    omni = hasattr(subject.config, "position_id_per_seconds")
    for name in ("image_token_id", *(("vision_start_token_id", "audio_start_token_id") if omni else ())):
        if getattr(subject.config, name, None) is None:
            yield Finding(
                check="words",
                level="wrong",
                rule="the model finds pictures and sounds by the ids of words",
                seen=f"{name} is not stated, and its class has no default",
                right="the word's id in the tokenizer",
                fix=f"set {name} in the configuration" + (" of the thinker" if omni else ""),
            )


def rates(subject: Subject) -> Iterator[Finding]:
    """Clips go by the clock of training."""
    right = getattr(subject.family.layout, "ids_per_second", None)
    seen = None if right is None else getattr(layout_of(subject.config), "ids_per_second", None)
    if seen is not None and seen != right:
        key = "position_id_per_seconds" if hasattr(subject.config, "position_id_per_seconds") else "tokens_per_second"
        yield Finding(
            check="ids-per-second",
            level="wrong",
            rule="clips take as many positions a second as in training",
            seen=f"{key} is {seen:g}",
            right=f"{right:g}, as released for {subject.family.name}",
            fix=f"set {key} to {right:g}, unless these weights were trained otherwise",
        )


def extension(subject: Subject) -> Iterator[Finding]:
    """A context extension treats the axes alike."""
    from mrope.probes.audits.frequencies import frequency_report

    for where, own, _ in rotaries(subject):
        if own is None or own.frequencies.extension is None or own.frequencies.needs_length:
            continue
        report = frequency_report(own, axes=subject.family.axes)
        slowed = {
            axis.name: (axis.stretch.full + axis.stretch.stopped, axis.pairs, axis.stretch.most)
            for axis in report.axes
            if axis.stretch is not None
        }
        none = [axis.name for axis in report.axes if axis.stretch is not None and axis.stretch.kept == axis.pairs]
        starved = [name for name, (full, pairs, _) in slowed.items() if full == pairs]
        if starved and none:
            name = starved[0]
            most = slowed[name][2]
            yield Finding(
                check="extension",
                level="risky",
                rule="a context extension leaves each axis some pairs that tell neighbouring cells apart",
                seen=f"{where}: all {slowed[name][1]} pairs of {name} turn "
                + (f"{most:.3g} times slower" if most else "no more")
                + f", and none of {none[0]}",
                right="no extension on short inputs, or one an axis",
                fix="mrope frequencies --config FOLDER --advise TRAINED TARGET, or one an axis: --extend t=yarn:4",
            )


# -------------------------------------------------------------------------------------------- a checkpoint's files


def processor_files(folder: Path) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """(file, kind, settings) of the image and the video processor."""
    nested = read_json(folder / "processor_config.json") or {}
    for kind, name in (("image", "preprocessor_config.json"), ("video", "video_preprocessor_config.json")):
        own = read_json(folder / name)
        if own is not None:
            yield name, kind, own
        inner = nested.get(f"{kind}_processor")
        if isinstance(inner, Mapping):
            yield f"{kind}_processor of processor_config.json", kind, inner


def patches(subject: Subject) -> Iterator[Finding]:
    """Processor and model cut pictures alike."""
    if subject.folder is None or not hasattr(subject.config, "vision_config"):
        return
    vision = subject.config.vision_config
    for file, _, stated in processor_files(subject.folder):
        for key, own in (("patch_size", "patch_size"), ("merge_size", "spatial_merge_size")):
            seen, right = stated.get(key), getattr(vision, own, None)
            seen = seen["height"] if isinstance(seen, Mapping) and "height" in seen else seen
            if isinstance(seen, int) and isinstance(right, int) and seen != right:
                yield Finding(
                    check="patches",
                    level="wrong",
                    rule="the processor cuts the patches that the model was built for",
                    seen=f"{key} in {file} is {seen}",
                    right=f"{right}, {own} of the vision_config",
                    fix=f"set {key} to {right}; sides of a resized picture are multiples of patch_size x merge_size",
                )


def budgets(subject: Subject) -> Iterator[Finding]:
    """Limits are areas in pixels, whatever they are called."""
    if subject.folder is None or subject.family.image_tokens is None:
        return
    area = subject.family.factor**2
    for file, _, stated in processor_files(subject.folder):
        size = stated.get("size")
        size = size if isinstance(size, Mapping) else {}
        given = {key: stated[key] for key in ("min_pixels", "max_pixels") if stated.get(key) is not None}
        given |= {f"size.{key}": value for key, value in size.items() if value is not None}
        most = {key: value for key, value in given.items() if "max" in key or "longest" in key}
        least = {key: value for key, value in given.items() if "min" in key or "shortest" in key}
        for key, value in most.items():
            if value < _FEWEST_TOKENS * area:
                yield Finding(
                    check="budget",
                    level="wrong",
                    rule=f"{key} is an area in pixels; a token takes {subject.family.factor} x {subject.family.factor}",
                    seen=f"{key} in {file} is {value}: {value / area:.3g} tokens",
                    right=f"{value * area} if {value} tokens are meant, {value**2} if a side is",
                    fix="give the area: tokens x (patch_size x merge_size) ** 2, or the side squared",
                )
        if least and most and min(least.values()) > max(most.values()):
            yield Finding(
                check="budget",
                level="wrong",
                rule="the least pixels are no more than the most",
                seen=f"{next(iter(least))} in {file} is {min(least.values())}, {next(iter(most))} {max(most.values())}",
                right="least <= most",
                fix="swap them",
            )
        for name, values in (("least", least), ("most", most)):
            if len(set(values.values())) > 1:
                each = " and ".join(f"{key} {value}" for key, value in values.items())
                yield Finding(
                    check="budget",
                    level="wrong",
                    rule=f"the {name} pixels are stated once, or alike",
                    seen=f"{file} states {each}",
                    right="one value",
                    fix="keep size.shortest_edge and size.longest_edge, which transformers 5 reads",
                )
