"""One forward of a model, layer by layer: the weights of its attention, and its hidden states.

Letters: B rows, N tokens, H heads, C channels.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from mrope.checks import whole
from mrope.hf.call import check_tensors
from mrope.hf.checkup.subject import Subject
from mrope.hf.comparing import _known, _parts, _tensor

Note: TypeAlias = Callable[[int, Tensor], None]
"""Takes the number of a layer and what was seen there, which is gone afterwards."""

_KIND = "_attn_implementation_internal"  # without the setter, which would change the towers as well


def batches_of(inputs: Any, model: Any) -> list[Mapping[str, Any]]:
    """One batch, or several, as a list, looked at before any of them runs.

    Raises:
        TypeError: they are neither, or hold something else than tensors.
        ValueError: there is none; or one has a name that the model does not take, a word that it does not know, or
            pixels that are no finite numbers.
    """
    batches = [inputs] if isinstance(inputs, Mapping) else inputs
    if not isinstance(batches, Sequence) or not all(isinstance(each, Mapping) for each in batches):
        raise TypeError(f"inputs are a {type(inputs).__name__}; expected a batch by name, or a list of them")
    if not batches:
        raise ValueError("inputs are empty; expected at least one batch")
    for batch in batches:
        _check(batch, model)
    return list(batches)


def _check(batch: Mapping[str, Any], model: Any) -> None:
    """Refuse what would be taken without a word, or crash far from its cause."""
    own = inspect.signature(type(model).forward).parameters
    taken = {name for each in model.modules() for name in inspect.signature(type(each).forward).parameters}
    if unknown := [name for name in batch if name not in taken]:
        names = [each.name for each in own.values() if each.kind is each.POSITIONAL_OR_KEYWORD and each.name != "self"]
        raise ValueError(
            f"inputs hold {unknown[0]!r}, which a {type(model).__name__} does not take; expected {', '.join(names)}"
        )
    check_tensors(batch)
    for name in ("attention_mask", "input_features"):
        if not isinstance(batch.get(name), (Tensor, NoneType)):
            raise TypeError(f"{name} is a {type(batch[name]).__name__}; expected a tensor")
    _known(batch.get("input_ids"), model, _parts(model).base)
    for name, value in batch.items():
        if isinstance(value, Tensor) and not value.isfinite().all():
            wrong = int((~value.isfinite()).sum())
            raise ValueError(f"{wrong} of {value.numel()} numbers of {name} are NaN or infinite; expected finite ones")


def config_of(model: Any) -> Any:
    """The configuration by which a model's batches are read.

    Raises:
        TypeError: the model is none of ours.
    """
    return _parts(model).base.config


def numbers_of(model: Any, layers: Sequence[int] | None, more: int = 0) -> list[int]:
    """The numbers of the layers that are asked for, checked; all of them by default.

    Args:
        model: a model with a language model.
        layers: their numbers, from 0.
        more: how many numbers behind the last layer's are there as well.
    """
    count = len(_parts(model).text.layers) + more
    if layers is None:
        return list(range(count))
    if not isinstance(layers, Sequence) or isinstance(layers, str):
        raise TypeError(f"layers is {layers!r}; expected a list of numbers, such as (0, 2)")
    numbers = sorted({whole("layer", number, 0) for number in layers})
    if not numbers or numbers[-1] >= count:
        raise ValueError(f"layers is {list(layers)}; expected numbers from 0 to {count - 1}, at least one")
    return numbers


@torch.no_grad()
def watch(model: Any, inputs: Mapping[str, Any], *, weights: Note | None = None, states: Note | None = None) -> None:
    """Run a model once, and hand out what its language model holds as it comes; afterwards it is as it was.

    It runs where it lies, without gradients and in eval mode, and with eager attention where `weights` are asked for:
    those of one layer are held at a time.

    Args:
        model: a transformers model of one of our families, or what `build_vlm` made.
        inputs: a batch by name.
        weights: is given the number of each layer that has attention, and its weights (B, H, N, N) behind the softmax,
            from queries to keys.
        states: is given 0 and the states (B, N, C) that go into the first layer, then 1 and those that leave it, and so
            on.

    Raises:
        ValueError: the batch does not run through the model.
    """
    parts = _parts(model)
    base, text = parts.base, parts.text
    own = {name: value.to(base.device) if isinstance(value, Tensor) else value for name, value in inputs.items()}
    rows, length = own["input_ids"].shape
    subject = Subject(type(model).__name__, base.config, given=model)
    configs = {id(each.config): each.config for each in text.modules() if hasattr(each, "config")}.values()
    before, hooks = [(config, config.__dict__[_KIND]) for config in configs if _KIND in config.__dict__], []

    def attention(number: int, note: Note) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any, output: Any) -> None:
            found = output[1] if isinstance(output, tuple) and len(output) > 1 else None
            if isinstance(found, Tensor) and found.dim() == 4 and found.shape[::2] == (rows, length):
                note(number, found.float())

        return hook

    def entry(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if states is not None:
            states(0, (args[0] if args else kwargs["hidden_states"]).flatten(2))

    def leaving(number: int, note: Note) -> Callable[..., None]:
        return lambda _, args, output: note(number, _tensor(output, "last_hidden_state").flatten(2))

    try:
        runner = subject.model
        if weights is not None:
            for config, _ in before:
                config.__dict__[_KIND] = "eager"
            for number, layer in enumerate(text.layers):
                hooks += [child.register_forward_hook(attention(number, weights)) for child in layer.children()]
        if states is not None:
            hooks.append(text.layers[0].register_forward_pre_hook(entry, with_kwargs=True))
            for number, layer in enumerate(text.layers, 1):
                hooks.append(layer.register_forward_hook(leaving(number, states)))
        runner(**own)
    except (IndexError, RuntimeError) as error:  # of tensors that do not fit its modules
        raise ValueError(
            f"inputs do not run through the {type(model).__name__}: {type(error).__name__}: {error}; expected a batch "
            "that it takes, with the pixels of its grids"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
        for config, kind in before:
            config.__dict__[_KIND] = kind
        subject.restore()
