"""Where two models part ways on a batch: the first stage, token and channel, from the ids to the logits.

Each model runs once, with hooks on that instance alone, which are taken out again.
Letters: A axes, B rows, N tokens, P patches, C channels, F rotary pairs.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mrope.checks import Number, positive
from mrope.families import Family, family
from mrope.hf.batch import check_mask, token_kinds
from mrope.hf.call import check_tensors
from mrope.hf.checkup.subject import Subject
from mrope.hf.parts import Parts, parts_of
from mrope.hf.plugging import plug
from mrope.hf.reading import record_of
from mrope.rotary import Rotary

_PIXELS = ("pixel_values", "pixel_values_videos", "input_features")
_TOWERS = {
    **dict.fromkeys(("visual", "vision_tower", "patch_embeddings", "encoder"), "vision"),
    "audio_tower": "sound",
}
_EXACT = ("input_ids", "positions")
_CLOSE, _ULPS = 1e-4, 8  # of the largest value of a token, and how often a coarser dtype's eps is allowed
_Note: TypeAlias = Callable[[str, Tensor], None]
_CHUNK = 256  # tokens that are compared at once, since logits are long


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stage:
    """How far two models are apart at one stage of their forward.

    Args:
        name: of the stage.
        unit: what a place of the stage is: a "token" of a row, or a "patch" (a sound's frame) in the tower's order.
        largest: the largest absolute difference; inf where shapes differ, or where either has NaN, which is like
            nothing.
        tolerance: what a token's difference may be: of input_ids and positions as it is, of all else in parts of the
            largest absolute value of that token.
        differences: (B, N) or (1, P) the largest difference of each token as the tolerance measures it, 0 in padding.
        place: (row, token, channel) of the first that passes the tolerance, row by row; None if none does. The
            channels of positions are axes; those of cos/sin are 2F cosines and then 2F sines.
        values: what the two have there.
        note: why nothing can be compared, where that is so.
    """

    name: str
    unit: str
    largest: float
    tolerance: float
    differences: Float[Tensor, "b n"]
    place: tuple[int, int, int] | None = None
    values: tuple[float, float] | None = None
    note: str = ""

    @property
    def parts(self) -> bool:
        """Whether the two part ways here."""
        return self.place is not None or bool(self.note)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """How far two models are apart on one batch, stage by stage.

    Args:
        names: of the two.
        stages: in the order of the data.
        kinds: (B, N) of each token: 0 text, 1 image, 2 video, 3 audio.
        mask: (B, N), False in padding.
        axes: what the axes of positions are called.
    """

    names: tuple[str, str]
    stages: tuple[Stage, ...]
    kinds: Int[Tensor, "b n"]
    mask: Bool[Tensor, "b n"]
    axes: tuple[str, ...]

    @property
    def first(self) -> Stage | None:
        """The first stage at which the two part ways; None where they nowhere do."""
        return next((stage for stage in self.stages if stage.parts), None)

    def where(self, stage: Stage) -> str:
        """The place at which the two part at a stage, in words, with what they have there; "" where they do not."""
        if stage.place is None or stage.values is None:
            return stage.note
        row, token, channel = stage.place
        words = [f"row {row}"] if stage.unit == "token" else []
        words.append(f"{stage.unit} {token}")
        if stage.name == "positions":
            words.append(f"axis {self.axes[channel] if channel < len(self.axes) else channel}")
        elif stage.name != "input_ids":
            words.append(f"channel {channel}")
        return f"{', '.join(words)}: {stage.values[0]:.6g} against {stage.values[1]:.6g}"

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the differences of each stage (down) and token (across) into a .png, .svg or .pdf file.

        Raises:
            ValueError: the suffix is none of these.
            ImportError: matplotlib is not installed.
        """
        from mrope.hf.comparing_plot import plot_comparison

        plot_comparison(self, path)

    def __str__(self) -> str:
        first = self.first
        outcome = "nowhere apart" if first is None else f"apart from {first.name} on, {self.where(first)}"
        rows = [["stage", "largest difference", "most of a token", "tolerance", "first place"]]
        for stage in self.stages:
            most = stage.differences.max().item() if stage.differences.numel() else 0.0
            allowed = "exact" if stage.name in _EXACT else f"{stage.tolerance:.3g}"
            rows.append([stage.name, f"{stage.largest:.3g}", f"{most:.3g}", allowed, self.where(stage)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([f"{self.names[0]} against {self.names[1]}: {outcome}", *lines])


def compare(
    model_a: nn.Module,
    model_b: nn.Module | Family | str,
    inputs: Mapping[str, Any] | tuple[Mapping[str, Any], Mapping[str, Any]],
    *,
    tolerance: Number | None = None,
) -> Comparison:
    """Run two models on a batch, and find the first place where they part ways.

    Compared are, in this order, what there is of: the words (input_ids), the ids that reach the rotary module
    (positions), pixels and sounds as they came, cos and sin, layers and output of the towers, cos and sin of each type
    of layers of the language model, its embeddings, layers and output, and the logits. Padding is left out; of a pair
    whose rows are padded otherwise, with as many tokens, the tokens are compared in order, and numbered so. Both run
    without gradients, in eval mode, each where it lies; what they carry and remember is afterwards as it was. What the
    stages hold is kept on the CPU until both have run.

    Args:
        model_a: a transformers model of one of our families, plugged or not, or what `build_vlm` made.
        model_b: another one; or the family of `model_a` or its name, for `model_a` itself with our positions and
            rotary (`plug`).
        inputs: what both take, as keyword arguments; or a pair, for each its own, say of two processors.
        tolerance: of a token's largest value. By default 1e-4; where a coarser dtype comes up, its eps for cos, sin
            and pixels, and 8 times that for what is computed from there on. Words and positions are compared exactly.
            NaN passes none, even where both have it.

    Raises:
        TypeError: a model is none of ours, or `inputs` are neither a batch nor two, or hold lists for tensors.
        ValueError: the family is not that of `model_a`, which is then plugged already or cannot be; `inputs` have no
            tokens, or words that a model does not know; a model does not run on them; or `tolerance` is not above 0.

    >>> from transformers import Qwen2VLConfig, Qwen2VLModel
    >>> text = {"hidden_size": 128, "num_attention_heads": 1, "num_key_value_heads": 1, "num_hidden_layers": 1}
    >>> vision = {"depth": 1, "embed_dim": 16, "num_heads": 1, "hidden_size": 128}
    >>> text |= {"intermediate_size": 8, "vocab_size": 8, "bos_token_id": None, "eos_token_id": None}
    >>> model = Qwen2VLModel(Qwen2VLConfig(text_config=text, vision_config=vision, image_token_id=6, video_token_id=7))
    >>> compare(model, "qwen2-vl", {"input_ids": torch.tensor([[1, 2, 3]])}).first is None
    True
    """
    config = _parts(model_a).base.config
    record, allowed = record_of(config), None if tolerance is None else positive("tolerance", tolerance)
    both = inputs if isinstance(inputs, tuple) else (inputs, inputs)
    if len(both) != 2 or not all(isinstance(each, Mapping) for each in both):
        raise TypeError(f"inputs are a {type(inputs).__name__}; expected a batch by name, or a tuple of two of them")
    for each in both:
        check_tensors(each)
        if each.get("input_ids") is None and each.get("inputs_embeds") is None:
            raise ValueError(f"inputs hold {sorted(each)}; expected input_ids or inputs_embeds among them")
    if isinstance(model_b, nn.Module):
        _parts(model_b)  # which refuses before anything runs
        other = type(model_b).__name__
        seen = _seen(model_a, both[0]), _seen(model_b, both[1])
    elif hasattr(config, "record"):
        raise TypeError(
            f"model_b is {model_b!r:.80} and model_a a built model, whose positions are ours; expected a model"
        )
    else:
        wanted = family(model_b) if isinstance(model_b, str) else model_b
        if not isinstance(wanted, Family) or wanted.name != record.name:
            name = repr(wanted.name) if isinstance(wanted, Family) else f"a {type(wanted).__name__}"
            raise ValueError(f"model_b is {name}; expected a model, or {record.name!r}, the family of model_a")
        other = f"{record.name} plugged"
        with plug(model_a, rotary=True):
            ours = _seen(model_a, both[1])
        seen = _seen(model_a, both[0]), ours
    (kinds, mask), (_, beside) = (_kinds(*each, config) for each in zip(both, seen, strict=True))
    if torch.equal(mask.sum(1), beside.sum(1)) and not torch.equal(mask, beside):
        seen = _kept(seen[0], mask), _kept(seen[1], beside)
        kinds, mask = (_kept({"": each}, mask)[""] for each in (kinds, mask))
    elif mask.shape == beside.shape:
        mask = mask | beside
    return Comparison(
        names=(type(model_a).__name__, other),
        stages=tuple(_stages(*seen, mask, allowed)),
        kinds=kinds,
        mask=mask,
        axes=record.axes,
    )


def _parts(model: Any) -> Parts:
    """Those of a model of a family, or of one that `build_vlm` made."""
    from mrope.vlm import Vlm

    modules = model.modules() if isinstance(model, nn.Module) else ()
    built = next((module for module in modules if isinstance(module, Vlm)), None)
    return parts_of(model) if built is None else Parts(built, built.get_decoder(), None)


# ------------------------------------------------------------------------------------------------- what a model does


@torch.no_grad()
def _seen(model: Any, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """What each stage of one forward holds, on the CPU: (B, N, C), or (1, P, C) in a tower."""
    base, text = _parts(model).base, _parts(model).text
    own: dict[str, Any] = {
        name: value.to(base.device) if isinstance(value, Tensor) else value for name, value in inputs.items()
    }
    seen: dict[str, list[Tensor]] = {}

    def note(name: str, value: Tensor) -> None:
        seen.setdefault(name, []).append(value.detach().to("cpu", copy=True))

    if own.get("input_ids") is not None:
        note("input_ids", own["input_ids"][..., None])
    seen["positions"] = []  # which come before pixels, and are used behind the towers
    for name in _PIXELS:
        if own.get(name) is not None:
            note(name, _patches(own[name]))
    _known(own.get("input_ids"), model, base)
    subject = Subject(type(model).__name__, base.config, given=model)
    runner, hooks = subject.model, [*_tower_hooks(base, note), *_text_hooks(text, base.config, note)]
    try:
        try:
            output = runner(**own)
        except (IndexError, RuntimeError) as error:  # of tensors that do not fit its modules
            raise ValueError(
                f"inputs do not run through the {type(model).__name__}: {type(error).__name__}: {error}; "
                "expected a batch that each model takes, or a pair, for each its own"
            ) from error
        if isinstance(getattr(output, "logits", None), Tensor):
            note("logits", output.logits)
    finally:
        for hook in hooks:
            hook.remove()
        subject.restore()
    # Pictures and clips go through a tower one after the other.
    return {name: torch.cat(values, dim=1) for name, values in seen.items() if values}


def _known(words: Tensor | None, model: Any, base: Any) -> None:
    """Refuse words beyond the vocabulary, which a GPU answers with an assert that ends the process."""
    count, config = base.get_input_embeddings().num_embeddings, base.config
    shown = [getattr(config, f"{kind}_token_id", None) for kind in ("image", "video", "audio")]
    beyond = [] if words is None else words[(words < 0) | (words >= count)].tolist()
    if beyond := [word for word in beyond if word not in shown]:  # those of a built model may be of no vocabulary
        raise ValueError(
            f"input_ids hold {beyond[0]}; expected 0 to {count - 1}, the words of the {type(model).__name__}"
        )


def _tower_hooks(base: Any, note: _Note) -> Iterator[Any]:
    def table(_: Any, args: Any, output: Any) -> None:
        joined = output if isinstance(output, Tensor) else torch.cat(output, dim=-1)
        note("vision cos/sin", joined.reshape(1, -1, joined.shape[-1]))

    def output_hook(name: str) -> Callable[..., None]:
        def hook(_: Any, args: Any, output: Any) -> None:
            value = _tensor(output, "pooler_output", "last_hidden_state")
            note(name, value.reshape(1, -1, value.shape[-1]))

        return hook

    for child, word in _TOWERS.items():
        tower = base._modules.get(child)
        inner = [] if tower is None else [(name.rpartition(".")[2], each) for name, each in tower.named_modules()]
        yield from (each.register_forward_hook(table) for name, each in inner if name == "rotary_pos_emb")
        layers: Any = next((each for name, each in inner if name in ("blocks", "layers")), ())
        for number, layer in enumerate(layers):
            yield layer.register_forward_hook(output_hook(f"{word} layer {number}"))
        if tower is not None:
            yield tower.register_forward_hook(output_hook(f"{word} output"))


def _text_hooks(text: Any, config: Any, note: _Note) -> Iterator[Any]:
    noted: set[str] = set()
    stacked: list[str] = []

    def rotary(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        call = inspect.signature(type(module).forward).bind(module, *args, **kwargs).arguments
        ids, layer_type, rows = call["position_ids"], call.get("layer_type"), len(call["x"])
        name = "cos/sin" if layer_type is None else f"cos/sin {layer_type}"
        if not noted:
            if ids.dim() == 2 and len(ids) > rows:  # a built model asks for all axes at once, and its layers get a mix
                ids = ids.unflatten(0, (-1, rows))
                stacked.append(name)
                noted.add(name)
            note("positions", (ids[None] if ids.dim() == 2 else ids).movedim(0, -1).expand(rows, -1, -1))
        if name not in noted:
            noted.add(name)
            tables = [_by_pair(table, config, layer_type) for table in output]
            note(name, torch.cat(tables, dim=-1).expand(rows, -1, -1))

    def embeddings(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if stacked:
            note(stacked.pop(), torch.cat(kwargs["position_embeddings"], dim=-1))
        note("embeddings", (args[0] if args else kwargs["hidden_states"]).flatten(2))

    def output_hook(name: str) -> Callable[..., None]:
        return lambda _, args, output: note(name, _tensor(output, "last_hidden_state").flatten(2))

    yield text.rotary_emb.register_forward_hook(rotary, with_kwargs=True)
    yield text.layers[0].register_forward_pre_hook(embeddings, with_kwargs=True)
    for number, layer in enumerate(text.layers):
        yield layer.register_forward_hook(output_hook(f"layer {number}"))
    yield text.register_forward_hook(output_hook("output"))


def _by_pair(table: Tensor, config: Any, layer_type: str | None) -> Tensor:
    """(B, N, 2F): old versions hand out (A, B, N, 2F), and attention takes each pair from its axis."""
    if table.dim() == 3:
        return table
    axis = Rotary.from_config(config, layer_type).split.axis.repeat(2).to(table.device)  # pyright: ignore
    return table.movedim(0, -1).gather(-1, axis[:, None].expand(*table.shape[1:3], -1, 1)).squeeze(-1)


def _tensor(output: Any, *names: str) -> Tensor:
    """The tensor of a module's output: under the first of these names that is there, or the first of a tuple."""
    if isinstance(output, Mapping):
        output = next(output[name] for name in names if output.get(name) is not None)
    if isinstance(output, (tuple, list)):
        return torch.cat(list(output)) if isinstance(output, list) else output[0]
    return output


def _patches(pixels: Tensor) -> Tensor:
    """(1, P, C): a strip (1, 3, side, P x side) is cut into its patches."""
    if pixels.dim() == 4 and len(pixels) == 1:
        pixels = pixels[0].unflatten(-1, (-1, pixels.shape[2])).permute(2, 0, 1, 3)
    return pixels.flatten(1)[None]


def _kinds(inputs: Mapping[str, Any], seen: Mapping[str, Tensor], config: Any) -> tuple[Tensor, Tensor]:
    """The kind (B, N) of each token, and where it is no padding."""
    rows, length = seen["embeddings"].shape[:2]
    kinds, mask = inputs.get("mm_token_type_ids"), inputs.get("attention_mask")
    if kinds is None and "input_ids" in seen:
        kinds = token_kinds(
            seen["input_ids"][..., 0],
            image_token_id=config.image_token_id,
            video_token_id=getattr(config, "video_token_id", None),
            audio_token_id=getattr(config, "audio_token_id", None),
        )
    kinds = torch.zeros(rows, length, dtype=torch.int64) if kinds is None else torch.as_tensor(kinds).cpu()
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        return kinds, torch.ones(rows, length, dtype=torch.bool)
    check_mask(mask, kinds)
    return kinds, mask.cpu() != 0


def _kept(seen: Mapping[str, Tensor], mask: Tensor) -> dict[str, Tensor]:
    """What stages hold (B, N, ...), without the padding that all rows have: kept tokens come first in each row."""
    order = (~mask).long().argsort(dim=1, stable=True)[:, : int(mask.sum(1).max())]
    return {
        name: each.take_along_dim(order.reshape(*order.shape, *(1,) * (each.dim() - 2)), 1)
        if each.shape[:2] == mask.shape and _unit(name) == "token"
        else each
        for name, each in seen.items()
    }


# --------------------------------------------------------------------------------------------------- how far apart


def _unit(name: str) -> str:
    """What a place of a stage of this name is."""
    return "patch" if name in _PIXELS or name.startswith(tuple(_TOWERS.values())) else "token"


def _stages(
    seen_a: Mapping[str, Tensor], seen_b: Mapping[str, Tensor], mask: Tensor, tolerance: float | None
) -> Sequence[Stage]:
    stages, coarsest = [], 0.0
    names, behind = [*seen_a], 0
    for name in seen_b:
        if name not in seen_a:
            names.insert(behind, name)
        behind = names.index(name) + 1
    for name in names:
        pair = [seen[name] for seen in (seen_a, seen_b) if name in seen]
        given = name in (*_PIXELS, *_EXACT) or "cos/sin" in name
        eps = max(torch.finfo(each.dtype).eps if each.is_floating_point() else 0.0 for each in pair)
        coarsest = coarsest if given else max(coarsest, eps)
        usual = max(_CLOSE, eps if given else _ULPS * coarsest)
        allowed = usual if tolerance is None else tolerance
        stages.append(_stage(name, pair, mask, allowed, "model_a" if name in seen_a else "model_b"))
    return stages


def _stage(name: str, pair: Sequence[Tensor], mask: Tensor, tolerance: float, owner: str) -> Stage:
    exact = name in _EXACT
    unit = _unit(name)
    tolerance = _CLOSE if exact else tolerance  # which is less than one position, and more than a float's rounding
    note, (a, *others) = f"only {owner} has it", pair
    b = others[0] if others else a
    if others:
        note = "" if a.shape == b.shape else f"shape {tuple(a.shape)} against {tuple(b.shape)}"
    if note:
        apart = torch.full((1, 1), math.inf)
        return Stage(name=name, unit=unit, largest=math.inf, tolerance=tolerance, differences=apart, note=note)
    gaps, scales = [], []
    for x, y in zip(a.split(_CHUNK, 1), b.split(_CHUNK, 1), strict=True):
        gaps.append(_gap(x, y).amax(-1))
        scales.append(torch.maximum(x.abs(), y.abs()).double().nan_to_num(nan=0, posinf=0).amax(-1))
    gap, scale = torch.cat(gaps, 1), torch.cat(scales, 1)
    if gap.shape == mask.shape and unit == "token":
        gap = gap.masked_fill(~mask, 0)
    apart = gap if exact else torch.where(gap > 0, gap / scale, 0.0)
    place, values = None, None
    passing = (apart > tolerance).nonzero().tolist()
    if passing:
        row, token = passing[0]
        x, y = a[row, token], b[row, token]
        own = _gap(x, y) / (1 if exact else scale[row, token])
        channel = int((own > tolerance).nonzero()[0])
        place, values = (row, token, channel), (x[channel].item(), y[channel].item())
    return Stage(
        name=name,
        unit=unit,
        largest=gap.max().item() if gap.numel() else 0.0,
        tolerance=tolerance,
        differences=apart.float(),
        place=place,
        values=values,
    )


def _gap(a: Tensor, b: Tensor) -> Tensor:
    """The absolute differences in float64: 0 where both have the same, and inf where either has NaN."""
    x, y = a.double(), b.double()
    return torch.where(x == y, 0.0, (x - y).abs()).nan_to_num(nan=math.inf, posinf=math.inf)
