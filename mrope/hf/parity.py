"""Does a real checkpoint agree with us? Its files, pixels, prompts, positions, rotary tables, logits and tokens.

The command is `mrope parity FOLDER`. What a folder has no tokenizer for is asked in token ids.
Letters: A axes, B rows, N tokens.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mrope.devices import choose_device
from mrope.families import Family
from mrope.families.rope import read_rotary
from mrope.families.settings import Kind
from mrope.hf.checkup.compare import attempt, first_difference, ids_at
from mrope.hf.checkup.prompts import TALL, WIDE, batch, clip, has_clips, text_ids, words_around
from mrope.hf.checkup.static import stated_words
from mrope.hf.checkup.subject import Subject, model_class, read_subject
from mrope.hf.comparing import Comparison, Stage, compare
from mrope.hf.plugging import plug
from mrope.hf.processors import processor
from mrope.hf.processors.pixels import Images, Videos, turned_into
from mrope.hf.processors.settings import limits_words
from mrope.hf.reading import layout_of, read_positions
from mrope.layouts import OmniLayout, SpanLayout
from mrope.spans import Span, Text, Video

# (height, width): wide, tall, smaller than the least that a family takes, and sides that no patch divides.
SIZES = ((180, 260), (331, 97), (30, 41), (64, 120))
CLIP = (5, 90, 122)  # frames, height, width
NEW_TOKENS = 8
FURTHEST = 20_000  # positions of the rotary tables that are compared
_NOTHING = 1e-12  # of a token's largest value: less than any rounding
_NAMES = {"second_per_grids": "video_second_per_grid"}  # get_rope_index of omni models -> their forward


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one comparison."""

    name: str
    passed: bool
    detail: str


def check(folder: str | os.PathLike[str], *, device: str = "auto") -> tuple[Check, ...]:
    """Compare a checkpoint of any family with us; nothing is downloaded.

    Where positions of the installed library are not those of training, the model is run with the ones of training, and
    the check says so. Where the library is wrong in something else, as in HunyuanVL's rotary tables, that check fails.
    What two runs of one checkpoint cannot show, such as finite weights that were spoiled, is not found.

    Args:
        folder: config.json, weights and preprocessor files, and, to compare whole prompts, a tokenizer.
        device: "auto", "cpu" or "cuda", where the model computes, in the dtype of its weights.

    Raises:
        OSError, TypeError, ValueError: the folder is no such checkpoint or one of `build_vlm`, or there is no such
            device.
    """
    place, folder = choose_device(device), Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; expected a checkpoint folder with config.json")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of clips so short that steps share a position
        subject = read_subject(folder)
        if hasattr(subject.config, "record"):
            raise ValueError(
                f"{folder} is of `build_vlm`, whose positions and rotary are ours: nothing of transformers' own is "
                "there to compare; expected a checkpoint of a family"
            )
        return tuple(_checks(subject, folder, place))


def _checks(subject: Subject, folder: Path, device: str) -> Iterator[Check]:
    family, error = None, "its files agree with one another"
    try:
        family = Family.from_config(folder)
    except (TypeError, ValueError) as refusal:
        error = str(refusal)
    yield Check("configuration", family is not None, error)
    record, layout = subject.family, layout_of(subject.config)
    images, videos, own = _parts(folder, record)
    parts: dict[Kind, Any] = {"picture": turned_into(deepcopy(images), Images, record)}
    if videos is not None:
        parts["clip"] = turned_into(deepcopy(videos), Videos, record)
    if family is not None:
        assert isinstance(family.layout, SpanLayout)  # all records
        layout = family.layout
        yield from _stated(family, subject)
        yield from (_limits(family, kind, part) for kind, part in parts.items())
    pictures, frames = _textures()
    yield _both("patches of pictures", parts["picture"], images, {"images": pictures})[1]
    if videos is not None:
        yield _both("patches of a clip", parts["clip"], videos, {"videos": [frames], "do_sample_frames": False})[1]
    prompts: dict[str, Any] = {}
    if own is not None:
        yield from _words(subject, own)
    ours, error = (None, None) if own is None else attempt(lambda: processor(folder))
    if error is not None:
        yield Check("processor", False, f"ours raises {error}")
    if ours is not None:
        for name, given in _prompts(subject, own, pictures, frames).items():
            made, outcome = _both(name, ours, own, given)
            yield outcome
            if made is not None:
                prompts[f"the processor's {name.removeprefix('a ')}"] = made
    kind: Any = model_class(subject.config)
    options = {"config": subject.config, "local_files_only": True, "dtype": "auto", "output_loading_info": True}
    made, error = attempt(lambda: kind.from_pretrained(folder, ignore_mismatched_sizes=True, **options))
    if error is not None:
        yield Check("weights", False, error)
        return
    model, loaded = made
    yield _weights(model, loaded)
    run = Subject(subject.name, subject.config, folder, given=model.to(device).eval())
    yield from _model_checks(run, model, layout, prompts)


# ----------------------------------------------------------------------------------------------------------- files


def _stated(family: Family, subject: Subject) -> Iterator[Check]:
    """What is stated, held against what the library makes of it, and against the released checkpoints."""
    record = subject.family
    rope = getattr(subject.config.get_text_config(), "rope_parameters", None) or {}
    for layer in [key for key, value in rope.items() if isinstance(value, Mapping)] or [None]:
        ours = family.other_layers.get(layer or "", family.rotary())
        theirs, error = attempt(lambda layer=layer: read_rotary(subject.config, layer))
        said, name = f"{ours.split.counts}, base {ours.frequencies.base:g}", "rotary parameters"
        name += f" of {layer}" if layer else ""
        yield Check(name, ours == theirs, said if ours == theirs else f"{said}; transformers reads {error or theirs}")
    values = {
        "split": tuple((each.split.counts, each.split.allocation) for each in (family, record)),
        "colours of pictures": (family.colours("picture"), record.colours("picture")),
        "colours of clips": (family.colours("clip"), record.colours("clip")),
        "ids a second": tuple(getattr(each.layout, "ids_per_second", None) for each in (family, record)),
    }
    if family.split.pairs != record.split.pairs:  # of a model of another size
        del values["split"]
    if record.sampling is None:
        del values["colours of clips"]
    for name, (seen, released) in values.items():
        if released is not None:
            detail = f"{seen}" if seen == released else f"{seen}; {released} was released"
            yield Check(f"{name} as released", seen == released, detail)


def _limits(family: Family, kind: Kind, part: Any) -> Check:
    """Whether the limits that the files state are those that the processor of transformers has."""
    name, own = f"limits of {kind}s", family
    # The processors of omni models state the limits of clips in each call.
    if kind == "picture" or (family.video_budget is not None and not isinstance(family.layout, OmniLayout)):
        own, error = attempt(part.tuned)
        if error is not None:
            return Check(name, False, f"ours raises {error}")
    stated, seen = (limits_words(each, kind) for each in (family, own))
    return Check(name, stated == seen, stated if stated == seen else f"{stated}; {seen} in transformers' processor")


def _words(subject: Subject, own: Any) -> Iterator[Check]:
    """Whether the model finds pictures, clips and sounds by the words that the tokenizer writes for them."""
    for kind, configured, token, word in stated_words(subject.config, own):
        same = configured == word
        yield Check(
            f"the word of {kind}s", same, f"{token} is {word}" if same else f"config {configured}, tokenizer {word}"
        )


def _weights(model: Any, loaded: Mapping[str, Any]) -> Check:
    """Whether all weights are there, of the model's shapes, and numbers."""
    missing, other = sorted(loaded["missing_keys"]), sorted(loaded["mismatched_keys"])
    state = model.state_dict().items()
    spoiled = [name for name, value in state if value.is_floating_point() and not _finite(value)]
    trouble = ""
    if other:
        name, shape, wanted = other[0]
        trouble = f"{name} has shape {tuple(shape)}, and {tuple(wanted)} in the model, one of {len(other)}"
    elif missing:
        trouble = f"{missing[0]} is missing, one of {len(missing)}"
    elif spoiled:
        trouble = f"{spoiled[0]} is not finite, one of {len(spoiled)}"
    return Check("weights", not trouble, trouble or "all there")


def _finite(value: Tensor) -> bool:
    return value.element_size() == 1 or bool(value.isfinite().all())  # a float of 8 bits cannot be asked


# ---------------------------------------------------------------------------------------------- pixels and prompts


def _parts(folder: Path, family: Family) -> tuple[Any, Any, Any]:
    """The folder's image processor, its video processor or None, and its whole processor or None without a tokenizer.

    Raises:
        OSError, ValueError: there is no image processor.
    """
    from transformers import AutoImageProcessor, AutoProcessor, AutoVideoProcessor

    files = ("preprocessor_config.json", "processor_config.json")
    if not any((folder / name).is_file() for name in files):
        raise ValueError(f"{folder} has no {' and no '.join(files)}; expected one of them, for its image processor")
    if [*folder.glob("tokenizer.*"), *folder.glob("vocab.*")]:
        whole = AutoProcessor.from_pretrained(folder, local_files_only=True)
        if hasattr(whole, "image_processor"):
            return whole.image_processor, getattr(whole, "video_processor", None), whole
    images = AutoImageProcessor.from_pretrained(folder, local_files_only=True)
    videos = None
    if family.sampling is not None:
        videos, _ = attempt(lambda: AutoVideoProcessor.from_pretrained(folder, local_files_only=True))
    return images, videos, None


def _both(name: str, ours: Any, own: Any, given: Mapping[str, Any]) -> tuple[Any, Check]:
    """What our processor makes, and whether the folder's own makes the same."""
    made, error = attempt(lambda: ours(**deepcopy(given), return_tensors="pt"))
    if error is not None:
        return None, Check(name, False, f"ours raises {error}")
    theirs, error = attempt(lambda: own(**deepcopy(given), return_tensors="pt"))
    if error is not None:
        return made, Check(name, False, f"transformers' raises {error}")
    missing = sorted(set(made) ^ set(theirs))
    if missing:
        return made, Check(name, False, f"{', '.join(missing)} only by {'ours' if missing[0] in made else 'theirs'}")
    for key in made:
        a, b = torch.as_tensor(made[key]), torch.as_tensor(theirs[key])
        if a.shape != b.shape:
            return made, Check(name, False, f"{key} has shape {tuple(a.shape)}, transformers' {tuple(b.shape)}")
        if not torch.equal(a, b):
            most = (a.double() - b.double()).abs().max().item()
            return made, Check(name, False, f"{key} differs by up to {most:.3g}")
    return made, Check(name, True, f"{', '.join(made)} equal")


def _prompts(subject: Subject, own: Any, pictures: list[np.ndarray], frames: Tensor) -> dict[str, dict[str, Any]]:
    """What both processors are given: two rows with pictures, and one with a clip."""
    family = subject.family
    if own.image_token is None or family.resize == "padded":  # an encoder reads a page or a text
        return {"a prompt with pictures": {"text": None, "images": pictures, "padding": True}}
    image = _marked(subject, own, own.image_token, WIDE, family.markers)
    rows = [f"This is {image} and this {image}", f"What is {image} , {image} ?"]
    prompts = {
        "a prompt with pictures": {"text": rows, "images": pictures, "padding": True, "padding_side": "left"},
    }
    if family.sampling is not None and getattr(own, "video_processor", None) is not None:
        video = _marked(subject, own, own.video_token, Video((2, 4, 8)), family.clip_markers)
        known = {"total_num_frames": 12 * len(frames), "fps": 24.0, "frames_indices": [*range(0, 12 * len(frames), 12)]}
        prompts["a prompt with a clip"] = {
            "text": [f"What is {video} ?"],
            "videos": [frames],
            "video_metadata": [{**known, "duration": len(frames) / 2}],
            "do_sample_frames": False,
        }
    return prompts


def _marked(subject: Subject, own: Any, token: str, span: Span, markers: int) -> str:
    """A placeholder between the words that the family's prompts have around it."""
    start, end = words_around(subject.config, span) if markers else ([], [])
    return "".join([*own.tokenizer.convert_ids_to_tokens(start), token, *own.tokenizer.convert_ids_to_tokens(end)])


def _textures() -> tuple[list[np.ndarray], Tensor]:
    """Pictures (height, width, 3), and the frames (F, 3, height, width) of a clip, uint8."""
    generator = np.random.default_rng(0)
    frames = np.stack([_texture(generator, *CLIP[1:]) for _ in range(CLIP[0])])
    return [_texture(generator, *size) for size in SIZES], torch.from_numpy(frames).permute(0, 3, 1, 2)


def _texture(generator: np.random.Generator, height: int, width: int) -> np.ndarray:
    """(height, width, 3) uint8: waves with noise, so that a resize has something to get wrong."""
    rows, cols = np.mgrid[:height, :width]
    waves = np.stack([np.sin(rows / 9), np.cos(cols / 7), np.sin((rows + 2 * cols) / 11)], axis=-1)
    return (127.5 + 90 * waves + generator.uniform(-37, 37, waves.shape)).astype(np.uint8)


# ------------------------------------------------------------------------------------------------------- the model


def _model_checks(subject: Subject, model: Any, layout: SpanLayout, prompts: Mapping[str, Any]) -> Iterator[Check]:
    takes = inspect.signature(type(model).forward).parameters
    cases: dict[str, dict[str, Any]] = {}
    if subject.has_index:
        yield from _rotary(subject, model)
        cases["pictures"] = batch(subject, [[Text(4), WIDE, Text(3), TALL, Text(3)], [Text(5)]], pixels=True)
        if has_clips(subject) and subject.family.sampling is not None:
            for what, steps in (("a short clip", 2), ("a clip that lasts longer than it is wide", 12)):
                row: list[Span] = [Text(4), clip(subject, (steps, 4, 8)), Text(3)]
                cases[what] = {_NAMES.get(key, key): each for key, each in batch(subject, [row], pixels=True).items()}
    cases |= {name: {key: made[key] for key in made if key in takes} for name, made in prompts.items()}
    for name, inputs in cases.items():
        yield from _case(subject, model, layout, name, inputs)
    if "pictures" in cases and hasattr(model, "generate"):
        yield _generated(model, cases["pictures"])


def _rotary(subject: Subject, model: Any) -> Iterator[Check]:
    """Tables at positions far apart, of each type of layers."""
    tokens = text_ids(subject, 200)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, FURTHEST, (subject.layout.axes, *tokens.shape), generator=generator).to(subject.device)
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "position_ids": ids}
    outcome, error = attempt(lambda: compare(model, subject.family, inputs, tolerance=_NOTHING))
    if error is not None:
        yield Check("rotary cos and sin", False, f"the model raises {error}")
        return
    for stage in outcome.stages:
        if stage.name.startswith("cos/sin"):
            where = stage.name.removeprefix("cos/sin").strip()
            yield _equal("rotary cos and sin" + (f" of {where}" if where else ""), outcome, stage)


def _case(subject: Subject, model: Any, layout: SpanLayout, name: str, inputs: dict[str, Any]) -> Iterator[Check]:
    """The positions that reach the language model, and the logits, plugged against the positions of training."""
    given = inputs.pop("position_ids", None)
    trained, error = attempt(lambda: read_positions(inputs, subject.config, layout=layout))
    if error is not None:
        yield Check(f"positions of {name}", False, error)
        return
    note = ""
    if given is None:
        given, note = _given(subject, inputs, trained)
    unplugged = inputs if given is None else {**inputs, "position_ids": given}
    outcome, error = attempt(lambda: compare(model, subject.family, (unplugged, inputs), tolerance=_NOTHING))
    if error is not None:
        yield Check(f"positions of {name}", False, f"the model raises {error}{note}")
        return
    stages = {stage.name: stage for stage in outcome.stages}
    yield _equal(f"positions of {name}", outcome, stages["positions"], note)
    yield _equal(f"{outcome.stages[-1].name} of {name}", outcome, outcome.stages[-1])


def _given(subject: Subject, inputs: Mapping[str, Any], trained: Tensor) -> tuple[Tensor | None, str]:
    """The ids of training where the library's own are others, and a note of that."""
    named = {index: inputs[name] for index, name in _NAMES.items() if name in inputs}
    ids, error = attempt(lambda: subject.index({**inputs, **named}))
    if error is not None:
        return trained, f"; transformers' own get_rope_index raises {error}"
    ids, right = ids * inputs["attention_mask"].cpu(), trained.cpu()
    place = first_difference(ids, right)
    if place is None:
        return None, ""
    seen, wanted = ids_at(ids, *place), ids_at(right, *place)
    return trained, f"; transformers' own has token {place[1]} of row {place[0]} at {seen}, trained at {wanted}"


def _generated(model: Any, inputs: dict[str, Any]) -> Check:
    name = f"{NEW_TOKENS} generated tokens"
    options = {"do_sample": False, "min_new_tokens": NEW_TOKENS, "max_new_tokens": NEW_TOKENS}

    def run() -> Tensor:
        return model.generate(**inputs, **options)

    wanted, error = attempt(run)
    if error is not None:
        return Check(name, False, f"transformers' own raises {error}")
    with plug(model):
        made, error = attempt(run)
    if error is not None:
        return Check(name, False, f"plugged it raises {error}")
    same = torch.equal(made, wanted)
    return Check(name, same, "equal" if same else f"{made[0, -NEW_TOKENS:]} plugged, {wanted[0, -NEW_TOKENS:]} alone")


def _equal(name: str, outcome: Comparison, stage: Stage, note: str = "") -> Check:
    passed = stage.largest == 0 and not stage.parts
    rows, tokens = stage.differences.shape
    detail = f"equal at {rows} x {tokens} tokens" if passed else f"{outcome.where(stage)}, plugged"
    return Check(name, passed, detail + note)
