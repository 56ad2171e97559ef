"""A vision encoder as plain words for a config file, and back; its weights go with those of the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from inspect import signature
from typing import Any

import torch
from torch import nn

from mrope.encoding import Encoding
from mrope.encodings import MixedRope, encoding, encoding_names
from mrope.vision import VisionEncoder, VitConfig


def describe(encoder: VisionEncoder) -> dict[str, Any]:
    """All that makes `encoder` but its weights: what `restore` takes, of numbers, words and lists.

    Raises:
        ValueError: an encoding is not told by numbers and words, or `fold_normalization` made the first layer.
    """
    if type(encoder.embed) is not nn.Linear:
        raise ValueError(
            f"embed of the encoder is a {type(encoder.embed).__name__}; expected nn.Linear: fold the normalization "
            "into the built model, encoder.embed"
        )
    each = list({id(one): one for one in encoder.encodings}.values())
    number = {id(one): index for index, one in enumerate(each)}
    made = {
        "vit": asdict(encoder.config),
        "encodings": [_words(one) for one in each],
        "of_block": [number[id(one)] for one in encoder.encodings],
    }
    return json.loads(json.dumps(made))


def restore(made: Mapping[str, Any]) -> VisionEncoder:
    """An encoder with fresh weights.

    >>> from mrope.encodings import AxialRope
    >>> config = VitConfig(patch_dim=48, dim=16, depth=2, heads=2, hidden=16)
    >>> restore(describe(VisionEncoder(config, encoding=AxialRope(8)))).encodings[1]
    AxialRope(rotary_dim=8, axes=2, base=100.0, pairing='adjacent')
    """
    with torch.device("cpu"):  # not all can be made on the meta device, where transformers makes models to load
        each = [encoding(words["name"])(**_tuples(words["arguments"])) for words in made["encodings"]]
    return VisionEncoder(VitConfig(**_tuples(made["vit"])), encoding=[each[index] for index in made["of_block"]])


def _words(one: Encoding) -> dict[str, Any]:
    """The name of an encoding, and the arguments that make it."""
    name = next((name for name in encoding_names() if encoding(name) is type(one)), None)
    wanted = [word for word in signature(type(one)).parameters if word != "_"]
    given = {word: getattr(one, word) for word in wanted if hasattr(one, word)}
    if isinstance(one, MixedRope):  # which keeps what it learns alone
        heads, _, pairs = one.waves.shape
        given |= {"rotary_dim": 2 * pairs, "heads": heads, "base": 10.0}
    try:
        told = name is not None and given.keys() == {*wanted} and json.dumps(given)
    except TypeError:
        told = False
    if not told:
        raise ValueError(
            f"encoding {type(one).__name__} cannot be written into a configuration; expected one of mrope.encodings "
            "whose arguments are numbers and words"
        )
    return {"name": name, "arguments": given}


def _tuples(words: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _tuple(value) for name, value in words.items()}


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value
