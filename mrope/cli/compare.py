"""`mrope compare`: the first place where two checkpoints, or one and our own computation, part ways on a batch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mrope.cli.options import AsJson
from mrope.cli.output import print_json

if TYPE_CHECKING:
    from mrope.hf import Comparison, Stage


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A checkpoint's folder, also of a model that build_vlm made.")],
    b: Annotated[
        str,
        typer.Argument(metavar="B", help="Another folder; or the family of A by name, for A with our own positions."),
    ],
    inputs: Annotated[
        Path, typer.Option(metavar="FILE", help="A batch for both, saved with torch.save(dict(inputs), FILE).")
    ],
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the differences: .png, .svg or .pdf.")] = None,
    json: AsJson = False,
) -> None:
    """Run two models on a batch, and say at which stage, token and channel they part ways, from the ids to the logits.

    Both run on the CPU; nothing is downloaded. The exit code is 1 if they part.

    Example: mrope compare MY_CHECKPOINT qwen2.5-vl --inputs batch.pt
    """
    from dataclasses import replace

    from mrope.families import family_names
    from mrope.hf import compare as part
    from mrope.hf.comparing_plot import kind_of
    from mrope.hf.files import BESIDE, load_batch, load_model

    if plot is not None:
        kind_of(plot)  # which refuses before anything runs
    batch, folder = load_batch(inputs), Path(b).is_dir()
    if not folder and b not in family_names():
        raise ValueError(f"B is {b!r}; expected a checkpoint folder, or a family: {', '.join(family_names())}")
    taken = {name: value for name, value in batch.items() if name not in BESIDE}
    result = part(load_model(a), load_model(b) if folder else b, taken)
    result = replace(result, names=(a, b if folder else result.names[1]))
    if json:
        print_json(_as_json(result))
    else:
        print(result)
    if plot is not None:
        result.plot(plot)
        if not json:
            print(f"wrote {plot}")
    if result.first is not None:
        raise typer.Exit(1)


def _as_json(result: Comparison) -> dict[str, Any]:
    first = result.first
    return {
        "names": result.names,
        "ok": first is None,
        "first": None if first is None else first.name,
        "stages": [_stage(stage) for stage in result.stages],
    }


def _stage(stage: Stage) -> dict[str, Any]:
    """Numbers that JSON has no words for, NaN and infinite ones, are null."""
    most = stage.differences.max().item() if stage.differences.numel() else 0.0
    numbers = {"largest": stage.largest, "most": most, "tolerance": stage.tolerance}
    values = None if stage.values is None else [_finite(value) for value in stage.values]
    told = {"name": stage.name, "unit": stage.unit, "parts": stage.parts, "place": stage.place, "values": values}
    return {**told, **{name: _finite(number) for name, number in numbers.items()}, "note": stage.note}


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
