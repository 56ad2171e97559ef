"""Our angles in place of those of the rotary modules of a transformers model.

Letters: A axes, B batch, N tokens, F rotary pairs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from mrope.axes import AxisSplit
from mrope.encodings import QwenVisionRope
from mrope.extensions import Extension
from mrope.rotary import Rotary

_TURNS = "_mrope_turns"
_Extend: TypeAlias = Extension | tuple[Extension | None, ...]
Shadow: TypeAlias = Callable[[Any, str, Any], None]


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """What one type of layers is handed.

    Args:
        rotary: makes the angles.
        side_by_side: whether the two channels of a pair lie side by side in the table; otherwise F apart.
        per_axis: whether the table is handed out once for each axis, from which attention picks.
        as_input: whether the table has the dtype of the hidden states; otherwise it is float32.
    """

    rotary: Rotary
    side_by_side: bool
    per_axis: bool
    as_input: bool

    def table(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cos and sin (B, N, 2F), or (A, B, N, 2F) with equal entries."""
        axes = self.rotary.axes
        ids = position_ids[None] if position_ids.dim() == 2 else position_ids
        if len(ids) < axes:
            # A model's own ids of plain text, or the caller's, have the rows that it was made for.
            if len(ids) > 1 and not torch.equal(ids, ids[:1].expand_as(ids)):
                raise ValueError(f"position_ids have {len(ids)} rows; the split has {axes} axes: pass a row for each")
            ids = ids[:1].expand(axes, -1, -1)
        ids = ids[-axes:].to(x.device)
        # transformers reads the length from the device, too, where frequencies depend on it.
        length = int(ids.max()) + 1 if self.rotary.frequencies.needs_length else None
        tables = self.rotary.cos_sin(ids, length=length)
        cos, sin = (
            table.repeat_interleave(2, dim=-1) if self.side_by_side else torch.cat([table, table], dim=-1)
            for table in tables
        )
        dtype = x.dtype if self.as_input else torch.float32
        rows = (3, -1, -1, -1) if self.per_axis else (-1, -1, -1)
        return cos.to(dtype).expand(rows), sin.to(dtype).expand(rows)


def turns_of(
    module: Any, config: Any, split: AxisSplit | None, extend: _Extend | None, axes: int
) -> dict[str | None, Turn]:
    """What each type of layers of a language model is handed in place of what its rotary module makes.

    Args:
        module: the rotary module.
        config: the model's configuration, whose rotary it is but for the two that follow.
        split: another one.
        extend: another context extension.
        axes: A of the positions.

    Raises:
        TypeError: `split` is no AxisSplit.
        ValueError: the configuration cannot be honoured, `split` has other pairs or axes, or `extend` does not fit it.
    """
    layered = "layer_type" in inspect.signature(type(module).forward).parameters
    types = sorted({*module.config.layer_types}) if layered else [None]
    stated: Mapping[str | None, Any] = module.config.rope_parameters if layered else {None: True}
    own = {layer: Rotary.from_config(config, layer) for layer in types if stated.get(layer) is not None}
    turning = {layer: _changed(rotary, split, extend, axes) for layer, rotary in own.items()}
    # A fresh one for the probe, since a module in use may lie on another device and remember what it saw.
    with torch.device("cpu"):
        probed = type(module)(config=module.config)
    return {layer: _turn(probed, layer, own[layer].axes, rotary) for layer, rotary in turning.items()}


def _changed(rotary: Rotary, split: AxisSplit | None, extend: _Extend | None, axes: int) -> Rotary:
    assert isinstance(rotary.split, AxisSplit)  # all families
    if split is not None:
        if not isinstance(split, AxisSplit):
            raise TypeError(f"split is {split!r}; expected an AxisSplit, as a model has one table for all its heads")
        if split.pairs != rotary.split.pairs:
            raise ValueError(f"split {split.counts} has {split.pairs} pairs; the model rotates {rotary.split.pairs}")
        rotary = replace(rotary, split=split)
    if rotary.axes != axes:
        raise ValueError(
            f"split {rotary.split.counts} has {rotary.axes} axes; the positions have {axes}: pass split= and layout= "
            "that go together"
        )
    if extend is not None:
        rotary = replace(rotary, frequencies=replace(rotary.frequencies, extension=extend))
    return rotary


def _turn(module: Any, layer: str | None, axes: int, rotary: Rotary) -> Turn:
    """How the module hands out its table: seen from one, at position 1 on all axes, where no split shows."""
    more = {} if layer is None else {"layer_type": layer}
    ids = torch.ones(axes, 1, 1, dtype=torch.int64)
    table = module(torch.zeros(1), ids, **more)[1]
    first, second = table.chunk(2, dim=-1)
    dtype = module(torch.zeros(1, dtype=torch.float16), ids, **more)[1].dtype
    return Turn(rotary, not torch.equal(first, second), table.dim() == 4, dtype == torch.float16)


def put_in(module: Any, turns: Mapping[str | None, Turn], shadow: Shadow) -> None:
    """Let `module` hand out the tables of `turns`; `shadow(module, name, value)` puts a value over an attribute."""
    shadow(module, _TURNS, dict(turns))
    shadow(module, "forward", partial(_forward, module))


def _forward(module: Any, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:
    """In place of the rotary module's forward."""
    return getattr(module, _TURNS)[layer_type].table(x, position_ids)


def put_in_tower(base: Any, shadow: Shadow) -> None:
    """Let the rotary module of the vision tower hand out our tables, where the family's tower has one.

    Towers of older versions of transformers, whose module has no configuration and makes no cos and sin, keep theirs.
    """
    for name, module in base.named_modules():
        if name.rpartition(".")[2] == "rotary_pos_emb" and hasattr(module, "config"):
            rope = QwenVisionRope(4 * len(module.inv_freq), base=module.config.rope_parameters["rope_theta"])
            shadow(module, _TURNS, rope)
            shadow(module, "forward", partial(_tower_forward, module))


def _tower_forward(module: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """In place of the tower's rotary module's forward: (N, 2F) float32 from the rows and columns (N, 2) of patches."""
    cos, sin = getattr(module, _TURNS).cos_sin(position_ids.to(x.device).T)
    return torch.cat([cos, cos], dim=-1), torch.cat([sin, sin], dim=-1)
