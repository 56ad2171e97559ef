"""Checks of what a configuration and a checkpoint's files state; nothing is run but the making of rotary tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mrope.families.checkpoint import read_json
from mrope.families.rope import read_rotary
from mrope.hf.checkup.report import Finding
from mrope.hf.checkup.subject import Subject
from mrope.layouts import GridLayout, OmniLayout
from mrope.rotary import Rotary

_FEWEST_TOKENS = 32  # a largest picture of fewer tokens is a number in another unit

_WORDS = ("image_token_id", "video_token_id", "audio_token_id")  # which the model finds pictures, clips and sounds by
_COUNTS = (
    *("num_hidden_layers", "depth", "num_attention_heads", "num_heads", "num_key_value_heads", "vocab_size"),
    *("intermediate_size", "patch_size", "temporal_patch_size", "spatial_merge_size"),
)


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
    """The words that pictures are found by have ids, of the vocabulary, and each its own."""
    config = subject.config
    omni = hasattr(config, "position_id_per_seconds")
    where = " of the thinker" if omni else ""
    for name in ("image_token_id", *(("vision_start_token_id", "audio_start_token_id") if omni else ())):
        if getattr(config, name, None) is None:
            yield _word(f"{name} is not stated, and its class has no default", name, where)
    ids = {name: getattr(config, name) for name in _WORDS if isinstance(getattr(config, name, None), int)}
    vocabulary = vocabulary_of(config)
    for number, (name, word) in enumerate(ids.items()):
        if vocabulary is not None and not 0 <= word < vocabulary:
            yield _word(f"{name} is {word}, and the vocabulary has {vocabulary} words", name, where)
        if (other := next((each for each in list(ids)[:number] if ids[each] == word), None)) is not None:
            yield _word(f"{name} and {other} are both {word}", name, where)
    own = subject.own_processor
    for kind, configured, token, word in () if own is None else stated_words(config, own):
        if configured != word:
            seen = f"{kind}_token_id: config {configured}, tokenizer {word} for {token}"
            yield _word(seen, f"{kind}_token_id", where, right=str(word))


def vocabulary_of(config: Any) -> int | None:
    """How many words the model knows, where that is stated."""
    count = getattr(getattr(config, "text_config", config), "vocab_size", None)
    return count if isinstance(count, int) else None


def stated_words(config: Any, processor: Any) -> Iterator[tuple[str, int, str, int]]:
    """(kind, id in the configuration, token, id in the tokenizer) of what both the processor and the model name."""
    for kind in ("image", "video", "audio"):
        configured, token = getattr(config, f"{kind}_token_id", None), getattr(processor, f"{kind}_token", None)
        if isinstance(configured, int) and isinstance(token, str):
            yield kind, configured, token, processor.tokenizer.convert_tokens_to_ids(token)


def _word(seen: str, name: str, where: str, right: str = "the word's id in the tokenizer") -> Finding:
    return Finding(
        check="words",
        level="wrong",
        rule="the model finds pictures and sounds by the ids of words",
        seen=seen,
        right=right,
        fix=f"set {name} in the configuration{where}",
    )


def sizes(subject: Subject) -> Iterator[Finding]:
    """Counts and sides are at least 1, and heads share the width, and keys and values, evenly."""
    config = subject.config
    sections = {name: getattr(config, name, None) for name in ("text_config", "vision_config")}
    if sections["text_config"] is None:
        sections = {"configuration": config}
    for where, section in sections.items():
        stated = {name: getattr(section, name, None) for name in (*_COUNTS, "hidden_size", "embed_dim", "head_dim")}
        counts = {name: value for name, value in stated.items() if isinstance(value, int)}
        troubles = [(f"{name} is {value}", "at least 1", name) for name, value in counts.items() if value < 1]
        heads = counts.get("num_attention_heads") or counts.get("num_heads") or 1
        shares: dict[str, tuple[int | None, int | None]] = {
            "num_key_value_heads": (heads, counts.get("num_key_value_heads"))
        }
        if "head_dim" not in counts:
            name = "embed_dim" if "embed_dim" in counts else "hidden_size"
            shares[name] = (counts.get(name), heads)
        for name, (whole, part) in shares.items():
            if not troubles and whole and part and whole % part:
                seen = f"{name} is {counts[name]} with {heads} attention heads"
                troubles.append((seen, "the one divides the other", name))
        for seen, right, name in troubles:
            yield Finding(
                check="sizes",
                level="wrong",
                rule="counts and sides are at least 1, and heads share what they have evenly",
                seen=f"{seen} in the {where}",
                right=right,
                fix=f"set {name} to what the checkpoint was trained with"
                + ("" if name in _COUNTS else ", or state head_dim"),
            )


def rates(subject: Subject) -> Iterator[Finding]:
    """Clips go by the clock of training."""
    layout = subject.family.layout
    if isinstance(layout, OmniLayout):
        scope, key = subject.config, "position_id_per_seconds"
    elif isinstance(layout, GridLayout) and layout.time == "seconds":
        scope, key = subject.config.vision_config, "tokens_per_second"
    else:
        return
    seen, right = getattr(scope, key, None), layout.ids_per_second
    if seen is not None and seen != right:
        yield Finding(
            check="ids-per-second",
            level="wrong",
            rule="clips take as many positions a second as in training",
            seen=f"{key} is {seen}",
            right=f"{right:g}, as released for {subject.family.name}",
            fix=f"set {key} to {right:g}, unless these weights were trained otherwise",
        )


def extension(subject: Subject) -> Iterator[Finding]:
    """A context extension treats the axes alike."""
    from mrope.probes.audits.frequencies import Trained, frequency_report

    for where, own, _ in rotaries(subject):
        if own is None or own.frequencies.extension is None:
            continue
        lengths: list[dict[str, Any]] = [{}]
        if own.frequencies.needs_length:  # within the trained length, and beyond
            reach = Trained(length=own.frequencies.extension.trained, source=where)  # pyright: ignore[reportAttributeAccessIssue]
            lengths = [{"trained": reach, "target": times * reach.length} for times in (1, 2)]
        for more in lengths:
            axes = [axis for axis in frequency_report(own, axes=subject.family.axes, **more).axes if axis.pairs]
            slowed = {axis.name: axis.stretch for axis in axes if axis.stretch is not None}
            pairs = {axis.name: axis.pairs for axis in axes}
            none = [name for name, stretch in slowed.items() if stretch.kept == pairs[name]]
            starved = [name for name, stretch in slowed.items() if stretch.kept == 0]
            if not (starved and none):
                continue
            name = max(starved, key=lambda each: slowed[each].least or math.inf)
            least, most = slowed[name].least, slowed[name].most
            times = f"{most:.3g}" if least == most else f"{least:.3g} to {most:.3g}"
            yield Finding(
                check="extension",
                level="risky",
                rule="a context extension leaves each axis some pairs that tell neighbouring cells apart",
                seen=f"{where}: all {pairs[name]} pairs of {name} turn "
                + (f"{times} times slower" if most else "no more")
                + f", and none of {none[0]}",
                right="no extension on short inputs, or one an axis",
                fix="mrope frequencies --config FOLDER --advise TRAINED TARGET, or one an axis: --extend t=yarn:4",
            )
            break


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
