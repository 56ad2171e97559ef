"""Which parts of a built model train: freezing, and LoRA where peft is installed."""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from mrope.checks import one_of, whole

Part = Literal["vision", "merger", "language"]
_PARTS = ("vision", "merger", "language")


def freeze(model: Any, *parts: Part) -> Any:
    """Let `parts` of a built model train no more; the others stay as they are.

    Args:
        model: what `build_vlm` made, or `add_lora` of it, whose adapters belong to the language model.
        parts: "vision" is the encoder without its merger, "merger" that and DeepStack's, "language" the text model.

    Returns:
        The model.

    Raises:
        TypeError: `model` is something else.
        ValueError: there is no such part.
    """
    for part in parts:
        one_of("part", part, _PARTS)
    for name, parameter in _built(model).named_parameters():
        if _part(name) in parts:
            parameter.requires_grad_(False)
    return model


def add_lora(model: Any, *, rank: int = 16) -> Any:
    """A peft model: LoRA adapters (arXiv:2106.09685) on all linear layers of the text model's layers, and the mergers.

    Both train, and `save_pretrained` saves both and nothing else; the rest is frozen.

    Args:
        model: what `build_vlm` made.
        rank: of the adapters; their scale is twice the rank.

    Raises:
        ImportError: peft is not installed; the extra `train` has it.
        TypeError: `model` is something else.
        ValueError: it has adapters already.
    """
    whole("rank", rank, 1)
    built = _built(model)
    if model is not built or any("lora_" in name for name, _ in built.named_parameters()):
        raise ValueError(f"model is a {type(model).__name__} that has adapters; expected what build_vlm made")
    try:
        from peft import LoraConfig, get_peft_model  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("LoRA needs peft, which is not installed: pip install 'mrope[train]'") from error
    inside = {id(layer) for layer in model.get_decoder().layers.modules()}
    targets = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and id(module) in inside]
    mergers = ["encoder.merger", *(f"deepstack.{number}" for number in range(len(model.deepstack)))]
    options = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, modules_to_save=mergers)
    return get_peft_model(model, options)


def _built(model: Any) -> Any:
    """The built model itself, inside an adapter or another wrapper."""
    from mrope.vlm.model import Vlm

    modules = model.modules() if isinstance(model, nn.Module) else ()
    built = next((module for module in modules if isinstance(module, Vlm)), None)
    if built is None:
        raise TypeError(f"model is a {type(model).__name__}; expected what build_vlm made")
    return built


def _part(name: str) -> Part:
    if name.startswith("language_model."):
        return "language"
    return "merger" if name.startswith(("encoder.merger.", "deepstack.")) else "vision"
