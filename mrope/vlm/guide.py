"""How three-axis positions, and features of the vision encoder, reach the layers of an unchanged language model.

What a forward passes as the keyword `_mrope` goes through the model into each of its layers, where a hook takes it
out. Nothing is kept on a module between two calls, and a call without it is the language model's own.
Letters: B batch, N tokens, A axes, F rotary pairs, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mrope.axes import AxisSplit

KEY = "_mrope"


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """What the layers of one forward are given.

    Args:
        tables: cos and sin (B, N, R) in place of those of the language model; None: they stay.
        seen: (B, N), which tokens are a picture's or a clip's.
        features: what is added to these tokens behind the first layers, (tokens, C) each.
    """

    tables: tuple[Float[Tensor, "b n r"], Float[Tensor, "b n r"]] | None = None
    seen: Bool[Tensor, "b n"] | None = None
    features: Sequence[Float[Tensor, "tokens c"]] = ()


def guide(decoder: Any) -> None:
    """Let the layers of a language model take what is `Given`."""
    for number, layer in enumerate(decoder.layers):
        layer.register_forward_pre_hook(partial(_take, number), with_kwargs=True)


def _take(number: int, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = kwargs.pop(KEY, None)
    if given is None:
        return None
    x = args[0] if args else kwargs["hidden_states"]
    if given.tables is not None:
        if "position_embeddings" not in kwargs:
            raise TypeError(f"{type(layer).__name__} takes no position_embeddings; expected a layer that does")
        kwargs["position_embeddings"] = tuple(table.to(x.device) for table in given.tables)
    if 0 < number <= len(given.features):
        added = given.features[number - 1].to(x)
        x = x + torch.zeros_like(x).masked_scatter(given.seen.to(x.device)[..., None], added)
        args, kwargs = ((x, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": x})
    return args, kwargs


def pairs_of(rotary: Any) -> int:
    """The rotary pairs F of a language model, by its rotary module.

    Raises:
        TypeError: it is none whose angles can be replaced.
    """
    frequencies = getattr(rotary, "inv_freq", None)
    if not isinstance(frequencies, Tensor) or frequencies.dim() != 1:
        raise TypeError(
            f"the rotary module of the language model is a {type(rotary).__name__}; expected one with one inv_freq for "
            "all layers, as Llama, Qwen2, Qwen3 and Mistral have it"
        )
    return len(frequencies)


def axis_of_columns(rotary: Any, axis: Sequence[int]) -> tuple[int, ...]:
    """The axis of each column of the tables that a rotary module makes, by that of each pair.

    The module may be on the meta device: a twin of it on the CPU is asked.

    Raises:
        TypeError: its tables are no (cos, sin) with the pairs one behind the other or each twice.
    """
    with torch.device("cpu"):
        twin = type(rotary)(config=rotary.config)
        made = twin(torch.zeros(1, dtype=torch.float32), torch.ones(1, 1, dtype=torch.int64))
    pairs = len(axis)
    if isinstance(made, tuple) and len(made) == 2 and all(isinstance(table, Tensor) for table in made):
        cos = made[0].flatten()
        if len(cos) == pairs:
            return tuple(axis)
        if len(cos) == 2 * pairs and torch.equal(cos[:pairs], cos[pairs:]):
            return (*axis, *axis)
        if len(cos) == 2 * pairs and torch.equal(cos[::2], cos[1::2]):
            return tuple(each for each in axis for _ in range(2))
    raise TypeError(f"{type(rotary).__name__} gives no tables of cos and sin for {pairs} pairs")


def tables(
    rotary: Any, x: Float[Tensor, "b n c"], ids: Int[Tensor, "a b n"], columns: Sequence[int]
) -> tuple[Float[Tensor, "b n r"], Float[Tensor, "b n r"]]:
    """Cos and sin of ids (A, B, N): those that the rotary module gives on each axis, column by column.

    Where the axes are equal they are the module's own to the bit, whatever its context extension.
    """
    axes, batch, length = ids.shape
    pick = torch.tensor(columns, device=ids.device).expand(1, batch, length, -1)
    cos, sin = (
        table.view(axes, batch, length, -1).gather(0, pick)[0] for table in rotary(x, ids.reshape(axes * batch, length))
    )
    return cos, sin


def default_split(record_split: AxisSplit, pairs: int) -> AxisSplit:
    """The split of a family for a language model of `pairs` rotary pairs: in the same ratio where they are others.

    What h and w cannot get of pairs that are dealt in turn goes to t.

    Raises:
        ValueError: it is written by hand, and not for so many.
    """
    if record_split.pairs == pairs:
        return record_split
    if record_split.allocation == "by-hand":
        raise ValueError(
            f"the family splits {record_split.pairs} pairs by hand, the language model has {pairs}: pass split"
        )
    t, *sides = AxisSplit.by_ratio(record_split.counts, pairs).counts
    if record_split.allocation == "interleaved":
        sides = [min(count, len(range(axis, pairs, 3))) for axis, count in enumerate(sides, 1)]
        t = pairs - sum(sides)
    return AxisSplit((t, *sides), record_split.allocation)
