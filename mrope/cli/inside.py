"""`mrope inside`: where the attention of a checkpoint goes, and what its hidden states know of places."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mrope.cli.options import AsJson
from mrope.cli.output import print_json, print_table

if TYPE_CHECKING:
    from torch import Tensor

    from mrope.probes import AttentionInside, LinearProbe


def inside(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A checkpoint's folder, with its processor.")],
    pictures: Annotated[list[Path], typer.Argument(metavar="PICTURE...", help="Each in a prompt of its own.")],
    ask: Annotated[str, typer.Option(metavar="TEXT", help="What stands behind each picture.")] = "What is shown here?",
    layer: Annotated[
        list[int] | None, typer.Option(metavar="N", help="Which layer, from 0; can be given several times.")
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(metavar="N", help="Most tokens a picture; attention takes their square in memory.")
    ] = 1024,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    plot: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Draw a figure for each layer.")] = None,
    json: AsJson = False,
) -> None:
    """Show for each layer how much attention pictures get, which neighbour of a cell gets most, and what states know.

    "last" is the share of the last word's attention that the picture gets, "words" that of all words behind it. With
    two pictures or more, row and column of each cell are read off its hidden state by a linear map, which is fitted to
    some pictures and asked about others: R2 is 1 if that tells all and 0 if it tells nothing, "-" where all others have
    one row or column alone; "shuffled" is the larger R2 of a map that was fitted to shuffled places. Take many, of
    several sizes. Nothing is downloaded, and the vision tower is not looked into.

    Example: mrope inside MY_CHECKPOINT photo.jpg page.png --ask "Where is the cat?" --plot figures
    """
    from mrope.checks import whole
    from mrope.devices import choose_device
    from mrope.hf import processor
    from mrope.hf.files import load_model
    from mrope.probes import attention_inside, linear_probe, places_of, plot_attention
    from mrope.probes.spatial.respondents.transformer import size_for
    from mrope.probes.words import counted

    whole("max_tokens", max_tokens, 1)
    place = choose_device(device)
    loaded = load_model(model).to(place)
    if hasattr(loaded.config, "record"):
        raise ValueError(
            f"{model} is a built model, which has no processor; use mrope.probes.attention_inside in Python"
        )
    made = processor(model)
    family = made.family
    sized = family.resize not in ("slices", "padded")
    limits = {"images_kwargs": {"size": size_for(family, max_tokens)}} if sized else {}
    batches = []
    for path in pictures:
        content = [{"type": "image", "image": str(path)}, {"type": "text", "text": ask}]
        prompt = made.apply_chat_template(
            [{"role": "user", "content": content}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            processor_kwargs={"return_tensors": "pt", **limits},
        )
        batches.append(
            {name: each.to(loaded.dtype) if name.startswith("pixel_values") else each for name, each in prompt.items()}
        )
        takes = int((places_of(batches[-1], loaded.config).picture >= 0).sum())
        if takes > max_tokens:
            raise ValueError(
                f"{path}: max_tokens is {max_tokens}, but {family.name} makes {counted(takes, 'token')} of it; give a "
                "larger --max-tokens"
            )
    seen = attention_inside(loaded, batches, layers=layer)
    behind = [0, *(number + 1 for number in seen.layers)]
    probe = linear_probe(loaded, batches, layers=behind) if len(pictures) > 1 else None
    files = ()
    if plot is not None:
        files = plot_attention(seen, plot, pictures=_resized(pictures, seen, family.factor) if sized else None)
    if json:
        print_json(_as_json(seen, probe) | {"files": [str(file) for file in files]})
        return
    _print(seen, probe)
    if plot is not None:
        print(f"wrote {counted(len(files), 'figure')} to {plot}")


def _resized(paths: list[Path], seen: AttentionInside, factor: int) -> list[tuple[Tensor, int]]:
    """The pictures at the size of their cells; to be looked at, not those that the model sees to the bit."""
    import torch
    from torch.nn.functional import interpolate

    from mrope.vision import load

    sides = [(each.weight.shape[-2] * factor, each.weight.shape[-1] * factor) for each in seen.maps]
    shown = [
        interpolate(load(str(path))[None].float(), size, mode="bilinear", antialias=True)[0].round().to(torch.uint8)
        for path, size in zip(paths, sides, strict=True)
    ]
    return [(picture, factor) for picture in shown]


def _print(seen: AttentionInside, probe: LinearProbe | None) -> None:
    from mrope.probes.words import counted

    rows = []
    columns = ["layer", "last", "words", "even", "strongest neighbour", "weight"]
    columns += ["R2 of row", "of column", "rows off", "columns off", "shuffled"] if probe is not None else []
    if probe is not None:
        rows.append(["(input)", *["-"] * 5, *_read(probe, 0)])
    told = _as_json(seen, None)
    for at, layer in enumerate(told["layers"]):
        down, right = layer["strongest"]["dh"], layer["strongest"]["dw"]
        cells = [layer["layer"], *(_percent(layer[name]) for name in ("last", "words")), _percent(told["even"])]
        cells += [f"{down:+d} rows, {right:+d} columns" if down or right else "-"]  # a picture of one cell has none
        cells += [f"{layer['strongest']['weight']:.3g}"]
        rows.append([*cells, *([] if probe is None else _read(probe, at + 1))])
    print_table(columns, rows)
    if probe is not None:
        fitted, held = probe.pictures
        print(f"read off hidden states: fitted to {counted(fitted, 'picture')}, asked about {counted(held, 'other')}")


def _read(probe: LinearProbe, at: int) -> list[str]:
    r2, error, control = (each[at, 1:].tolist() for each in (probe.r2, probe.error, probe.control_r2))
    told = [*r2, max((each for each in control if math.isfinite(each)), default=math.nan)]
    row, column, shuffled = (f"{each:.3f}" if math.isfinite(each) else "-" for each in told)
    return [row, column, *(f"{each:.2f}" for each in error), shuffled]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _as_json(seen: AttentionInside, probe: LinearProbe | None) -> dict[str, Any]:
    """Numbers that JSON has no words for are null; shares are means over heads, words and pictures."""
    relative, share, words = seen.relative, seen.share, seen.share.words
    layers = []
    for at, (layer, (dt, dh, dw)) in enumerate(zip(seen.layers, relative.strongest(), strict=True)):
        last = sum(float(each.weight[at].mean(0).sum()) for each in seen.maps) / len(seen.maps)
        given = float((share.share[at].mean(0) * words).sum() / words.sum()) if len(words) else math.nan
        strongest = {"dt": dt, "dh": dh, "dw": dw, "weight": float(relative.at(dt, dh, dw)[at].mean())}
        by_distance = [_finite(each) for each in share.share[at].mean(0).tolist()]
        told = {"layer": layer, "last": _finite(last), "words": _finite(given), "by_distance": by_distance}
        layers.append({**told, "strongest": strongest})
    even = _finite(float((share.even * words).sum() / words.sum())) if len(words) else None
    told = {"layers": layers, "even": even, "distance": share.distance.tolist(), "pictures": len(seen.maps)}
    if probe is None:
        return told
    kept = {
        name: [[_finite(each) for each in row] for row in getattr(probe, name).tolist()]
        for name in ("r2", "error", "control_r2", "control_error")
    }
    return told | {"probe": {"states": probe.layers, "axes": ("t", "h", "w"), "pictures": probe.pictures, **kept}}


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
