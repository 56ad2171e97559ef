"""The parts of a transformers model that a plug goes into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from mrope.families import family, family_names
from mrope.hf.reading import record_of


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Where positions and rotary angles are made.

    Args:
        base: the model whose forward makes the position ids of its language model.
        text: its language model, which owns the rotary module.
        generating: the model around `base` that generates; None where only the base was handed over.
    """

    base: Any
    text: Any
    generating: Any


def parts_of(model: Any) -> Parts:
    """The parts of a model of one of our families, also inside a thinker, an adapter or another wrapper.

    Raises:
        TypeError: it is none, or its model_type is none of ours.
    """
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    base = next(filter(_is_base, modules), None)
    if base is None:
        types = [name for each in map(family, family_names()) for name in each.model_types]
        raise TypeError(
            f"model is a {type(model).__name__}; expected a transformers model with pictures, ForConditionalGeneration "
            f"or the base *Model, of one of {', '.join(types)}"
        )
    record_of(base.config)
    around = (each for each in modules if each._modules.get("model") is base and hasattr(each, "generate"))
    return Parts(base, _text_of(base), next(around, None))


def _is_base(module: nn.Module) -> bool:
    from transformers import PreTrainedModel

    if not isinstance(module, PreTrainedModel):
        return False
    # An omni model's thinker hands its rope index on to the wrapper; NeoMME has none, its processor makes the ids.
    own_index = hasattr(module, "get_rope_index") and "language_model" in module._modules
    return own_index or (module.config.model_type == "neomme" and "rotary_emb" in module._modules)


def _text_of(base: Any) -> Any:
    return base._modules.get("language_model", base)
