"""What a checkup looks at: a folder, a configuration, a model class or a model, and a small model of the same kind."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mrope.families import Family
from mrope.families.checkpoint import read_json
from mrope.hf.checkup.making import made_processor, own_processor
from mrope.hf.checkup.shrink import VOCABULARY, shrink, words_of
from mrope.hf.reading import layout_of, read_positions, record_of
from mrope.layouts import SpanLayout

_STATE = ("rope_deltas", "_cached_decode_position_ids", "_prefill_len")  # what forwards leave on a model


@dataclass(eq=False)
class Subject:
    """What a checkup looks at.

    Args:
        name: in words.
        config: its transformers configuration; that of the thinker of an omni model.
        folder: where its files lie, if it came as a folder.
        given: the model itself, if one came: then that one is run, and no small model is made.
    """

    name: str
    config: Any
    folder: Path | None = None
    given: nn.Module | None = None
    _state: list[tuple[nn.Module, str, Any]] = field(default_factory=list)

    @cached_property
    def family(self) -> Family:
        """The record of its family."""
        return record_of(self.config)

    @cached_property
    def model(self) -> Any:
        """The model that is run: the given one, or a small one with random weights."""
        if self.given is not None:
            model = getattr(self.given, "thinker", self.given)
            self._state = [
                (module, name, module.__dict__[name])
                for module in model.modules()
                for name in (*_STATE, "training")
                if name in module.__dict__
            ]
            return model.eval()
        small = shrink(self.config)
        _fill_words(small)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return model_class(small)(small).eval()

    @cached_property
    def own_processor(self) -> Any:
        """The processor in its folder; None where it is not whole."""
        return None if self.folder is None else own_processor(self.folder)

    @cached_property
    def processor(self) -> Any:
        """The processor in its folder, or else one of the library's class.

        Raises:
            ValueError: the library names none for it.
        """
        return self.own_processor or made_processor(self.config.model_type.removesuffix("_thinker"))

    def restore(self) -> None:
        """Put back what forwards left on a given model."""
        for module, name, value in self._state:
            module.__dict__[name] = value

    @property
    def _owner(self) -> Any:
        named = (module for module in self.model.modules() if hasattr(module, "get_rope_index"))
        return next((module for module in named if hasattr(module, "language_model")), None)

    @property
    def has_index(self) -> bool:
        """Whether the model makes ids; of NeoMME the processor does."""
        return self._owner is not None

    @cached_property
    def base(self) -> Any:
        """The part of the model that owns get_rope_index and the language model."""
        owner = self._owner
        if owner is None:
            raise ValueError(
                f"{type(self.model).__name__} has no get_rope_index: its processor or its forward makes the ids"
            )
        return owner

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return next(self.base.parameters()).device

    @property
    def small(self) -> Any:
        """The configuration of the model that is run."""
        return self.base.config

    @cached_property
    def layout(self) -> SpanLayout:
        """The rule that the model's weights were trained with."""
        return layout_of(self.small)

    def trained(self, inputs: Mapping[str, Any]) -> Tensor:
        """(A, B, N) the ids of a batch by that rule."""
        return read_positions(inputs, self.small).cpu()

    def takes(self, name: str) -> bool:
        """Whether the base model's forward has an argument of this name."""
        return name in inspect.signature(type(self.base).forward).parameters

    def index(self, inputs: Mapping[str, Any]) -> Tensor:
        """(A, B, N) the ids that the model's own get_rope_index gives, as they come."""
        takes = inspect.signature(self.base.get_rope_index).parameters
        others = any(each.kind is each.VAR_KEYWORD for each in takes.values())
        ids, _ = self.base.get_rope_index(**{name: inputs[name] for name in inputs if others or name in takes})
        return ids[-self.layout.axes :].cpu()

    @contextmanager
    def seen(self) -> Iterator[list[Tensor]]:
        """Collect the ids (A, B, N) that reach the language model, one entry for each forward."""
        collected: list[Tensor] = []

        def note(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            ids, embeds = kwargs.get("position_ids"), kwargs.get("inputs_embeds")
            tokens = kwargs.get("input_ids") if embeds is None else embeds
            cache = kwargs.get("cache") if kwargs.get("past_key_values") is None else kwargs["past_key_values"]
            if ids is None:
                past = 0 if cache is None else int(cache.get_seq_length())
                ids = torch.arange(past, past + tokens.shape[1])[None]  # pyright: ignore[reportOptionalMemberAccess]
            if ids.dim() == 2:
                ids = ids[None].expand(self.layout.axes, -1, -1)
            collected.append(ids[-self.layout.axes :].cpu().clone())

        handle = self.base.language_model.register_forward_pre_hook(note, with_kwargs=True)
        try:
            yield collected
        finally:
            handle.remove()

    def run(self, inputs: Mapping[str, Any], **more: Any) -> tuple[Tensor, Any]:
        """The ids (A, B, N) of one forward of the base model, and its cache."""
        with self.seen() as ids:
            output = self.base(**inputs, **more, use_cache=True)
        return ids[-1], _cache_in(output)

    @property
    def cache_name(self) -> str:
        """What the argument for a KV cache is called."""
        return "cache" if self.takes("cache") else "past_key_values"


def _cache_in(output: Any) -> Any:
    from transformers import Cache

    values = output.values() if isinstance(output, Mapping) else output
    return next((value for value in values if isinstance(value, Cache)), None)


def _fill_words(config: Any) -> None:
    """Put words right without which no prompt can be made: that of clips, where it is the one of pictures, and those
    around the pictures of an omni model, which its class does not name."""
    free = iter(sorted(set(range(VOCABULARY // 2, VOCABULARY)) - words_of(config)))
    if getattr(config, "video_token_id", None) == config.image_token_id is not None:
        config.video_token_id = next(free)
    if hasattr(config, "position_id_per_seconds"):
        for name in ("vision_start_token_id", "vision_end_token_id", "audio_end_token_id"):
            if getattr(config, name, None) is None:
                setattr(config, name, next(free))


def model_class(config: Any) -> Any:
    """The class of the whole model of a configuration, or its base model where there is no other.

    Raises:
        ValueError: the installed transformers has neither.
    """
    import transformers

    stem = type(config).__name__.removesuffix("Config")
    for name in (f"{stem}ForConditionalGeneration", f"{stem}Model"):
        if hasattr(transformers, name):
            return getattr(transformers, name)
    for mapping in (transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, transformers.MODEL_MAPPING):
        if type(config) in mapping:
            return mapping[type(config)]
    raise ValueError(f"transformers {transformers.__version__} has no model for a {type(config).__name__}")


def model_forward(config: Any) -> Mapping[str, inspect.Parameter]:
    """The arguments of the forward of the whole model of a configuration."""
    return inspect.signature(model_class(config).forward).parameters


def read_subject(target: Any) -> Subject:
    """What came, as a subject.

    Args:
        target: a checkpoint folder, a JSON file, a configuration (object, class or dict), a model, a model class, or
            the name of a class or model_type of transformers.

    Raises:
        TypeError: it is none of these, or of no family of ours.
        ValueError: there is no such file or name, or transformers takes no such configuration.
    """
    if isinstance(target, (str, os.PathLike)):
        subject = _from_name(target)
    elif isinstance(target, Mapping):
        subject = Subject("a configuration", _config(target, "the configuration"))
    elif isinstance(target, nn.Module) and hasattr(target, "config"):
        subject = Subject(f"this {type(target).__name__}", target.config, given=target)
    elif isinstance(target, type):
        subject = _from_class(target)
    elif hasattr(target, "to_dict"):
        subject = Subject(f"this {type(target).__name__}", target)
    else:
        raise TypeError(
            f"target is a {type(target).__name__}; expected a checkpoint folder, a JSON file, a configuration, a "
            "model, a model class, or the name of one of transformers"
        )
    subject.config = getattr(subject.config, "thinker_config", subject.config)
    record_of(subject.config)
    return subject


def _from_name(target: str | os.PathLike[str]) -> Subject:
    import transformers

    path, word = Path(target), os.fspath(target)
    if path.is_dir():
        stated = read_json(path / "config.json")
        if stated is None:
            raise ValueError(f"{path} has no config.json; expected a checkpoint folder")
        return Subject(word, _config(stated, str(path / "config.json")), folder=path)
    if path.is_file():
        return Subject(word, _config(read_json(path) or {}, word))
    if word in transformers.CONFIG_MAPPING:
        return _from_class(transformers.CONFIG_MAPPING[word])
    if word.isidentifier() and isinstance(found := getattr(transformers, word, None), type):
        return _from_class(found)
    raise ValueError(f"target is {word!r}; expected a folder, a JSON file, or the name of a class of transformers")


def _from_class(target: type) -> Subject:
    made: Any = getattr(target, "config_class", None) or target
    if not hasattr(made, "from_dict") or not hasattr(made, "model_type"):
        raise TypeError(f"target is the class {target.__name__}; expected one of a model or configuration")
    return Subject(f"{target.__name__} with the defaults of its class", made())


def _config(stated: Mapping[str, Any], where: str) -> Any:
    from transformers import CONFIG_MAPPING

    import mrope.vlm.config  # noqa: F401  # makes built models known to transformers

    model_type = stated.get("model_type")
    if model_type not in CONFIG_MAPPING:
        raise ValueError(f"model_type in {where} is {model_type!r}, which the installed transformers does not know")
    made: Any = CONFIG_MAPPING[str(model_type)]
    try:
        return made.from_dict(deepcopy(dict(stated)))
    except Exception as error:  # transformers raises whatever its checks run into
        words = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{made.__name__} of transformers refuses {where}: {words}") from None
