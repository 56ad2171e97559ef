"""`mrope frequencies`: what the rotary frequencies do on each axis, and which context extension to choose."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mrope.cli.options import AsJson
from mrope.cli.output import print_json, print_table

if TYPE_CHECKING:
    from mrope import Family, Rotary
    from mrope.extensions import Extension
    from mrope.probes.advice import Advice
    from mrope.probes.frequencies import AxisFacts, FrequencyReport, Trained

DISTANCES = (1, 8, 32, 128, 512, 2048)
"""Where --decay prints the kernels, in positions."""


def frequencies(
    family: Annotated[
        str | None, typer.Option("--family", metavar="F", help="Which model family; `mrope families` lists them.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A checkpoint's folder instead: its config.json is read.")
    ] = None,
    layer: Annotated[str | None, typer.Option(metavar="TYPE", help="Which type of layer, where they differ.")] = None,
    split: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Another split, fastest pair first: 'THW*20 T*4'.")
    ] = None,
    base: Annotated[float | None, typer.Option(metavar="B", help="Another base, as if trained with it.")] = None,
    extend: Annotated[
        list[str] | None,
        typer.Option(metavar="[AXES=]WORD", help="yarn:4, or repeated with axes: t=ntk:4 and hw=linear:2."),
    ] = None,
    trained: Annotated[int | None, typer.Option(metavar="L0", help="How far training went, in positions.")] = None,
    target: Annotated[int | None, typer.Option(metavar="L", help="How far it is to go, in positions.")] = None,
    advise: Annotated[
        tuple[int, int] | None,
        typer.Option(metavar="TRAINED TARGET", help="Choose the extension, between two lengths in positions."),
    ] = None,
    grid: Annotated[
        str | None,
        typer.Option(metavar="HxW", help="Rows and columns of tokens; by default the family's largest square picture."),
    ] = None,
    decay: Annotated[
        bool, typer.Option("--decay", help="Print the kernel of each axis over the distance, too.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw these kernels: .png, .svg or .pdf.")] = None,
    json: AsJson = False,
) -> None:
    """Print what each axis gets of the rotary frequencies, what an extension does to it, and what to beware of.

    The kernel of an axis is the mean cos over its pairs: the score that is to be expected over a distance.

    Example: mrope frequencies --family qwen2-vl --extend yarn:4
    """
    from mrope.probes.advice import advise as choose
    from mrope.probes.decay_plot import plot_decay
    from mrope.probes.frequencies import Trained, frequency_report
    from mrope.probes.frequencies import decay as kernels

    record, rotary = _rotary(family, config, layer)
    rotary = _changed(rotary, record, split, base)
    cells = _grid(grid, record)
    advice: Advice | None = None
    if advise is not None:
        for option, value in (("--extend", extend), ("--trained", trained), ("--target", target)):
            if value:
                raise ValueError(f"{option} does not go with --advise TRAINED TARGET, which chooses by itself")
        target = advise[1]
        told = Trained(length=advise[0], source="--advise")
        advice = choose(rotary, told, target, axes=record.axes, grid=cells)
        rotary = _extended(rotary, record, [advice.extend] if advice.extend else [], told)
        report = advice.report
    else:
        known = _trained(trained, record, rotary)
        rotary = _extended(rotary, record, extend or [], known)
        known = known or _trained(None, record, rotary)
        if target is not None and known is None:
            raise ValueError(f"--trained is not given, and not known of {record.name}: how far training went")
        report = frequency_report(rotary, axes=record.axes, trained=known, target=target, grid=cells)
    if plot is not None:
        reach = max(DISTANCES[-1], report.trained.length if report.trained else 0)
        plot_decay(rotary, plot, axes=record.axes, reach=reach, length=target)
    table = kernels(rotary, DISTANCES, length=target).tolist() if decay else None
    if json:
        print_json(_facts(record, report, advice, table))
        return
    _print_report(record, report)
    if table is not None:
        rows = [(name, *(f"{value:.3f}" for value in row)) for name, row in zip(record.axes, table, strict=True)]
        print_table(("mean cos at", *map(str, DISTANCES)), rows)
    if advice is not None:
        _print_advice(advice)
    for line in report.warnings:
        print(f"warning: {line}")
    if plot is not None:
        print(f"wrote {plot}")


def _rotary(name: str | None, config: Path | None, layer: str | None) -> tuple[Family, Rotary]:
    """The family, and the rotary encoding of its record or of a checkpoint."""
    import mrope

    if (name is None) == (config is None):
        raise ValueError("expected one of --family and --config, which says whose frequencies they are")
    if config is not None:
        rotary, record = mrope.Rotary.from_config(config, layer), mrope.Family.from_config(config)
    else:
        record = mrope.family(name or "")
        if layer is not None and layer not in record.other_layers:
            known = ", ".join(record.other_layers) or "none; all layers are alike"
            raise ValueError(f"--layer is {layer!r}; the other layers of {record.name} are: {known}")
        rotary = record.rotary() if layer is None else record.other_layers[layer]
    return record, rotary


def _letters(record: Family) -> str:
    """A letter for each axis."""
    return "".join(name[0] for name in record.axes)


def _changed(rotary: Rotary, record: Family, split: str | None, base: float | None) -> Rotary:
    """With another split or base."""
    from mrope import AxisSplit

    if split is not None:
        read = AxisSplit.parse(split.upper(), _letters(record).upper())
        read.check_fits(rotary.split.rotary_dim)
        rotary = replace(rotary, split=read)
    if base is not None:
        if not base > 1:
            raise ValueError(
                f"--base is {base:g}; expected more than 1, so that each pair is slower than the one before"
            )
        rotary = replace(rotary, frequencies=replace(rotary.frequencies, base=base))
    return rotary


def _extended(rotary: Rotary, record: Family, words: Sequence[str], trained: Trained | None) -> Rotary:
    """With the extensions of --extend in the place of its own; axes that none of them names keep theirs."""
    from mrope.extensions import parse_extension

    if not words:
        return rotary
    length = None if trained is None else trained.length
    own = rotary.frequencies.extension
    each: list[Extension | None] = list(own) if isinstance(own, tuple) else [own] * rotary.axes
    letters, given = _letters(record), ""
    for word in words:
        axes, equals, text = word.rpartition("=")
        if not equals:
            if len(words) > 1:
                raise ValueError(
                    f"--extend {word!r} names no axes beside others; expected one word for all, or t=ntk:4"
                )
            each = [parse_extension(text, length)] * rotary.axes
            return replace(rotary, frequencies=replace(rotary.frequencies, extension=each[0]))
        for letter in axes or "?":
            if letter not in letters:
                raise ValueError(f"--extend {word!r} names the axis {letter!r}; expected some of {', '.join(letters)}")
            if letter in given:
                raise ValueError(f"--extend {word!r} names the axis {letter!r} again; expected each axis once")
            given += letter
            each[letters.index(letter)] = parse_extension(text, length)
    return replace(rotary, frequencies=replace(rotary.frequencies, extension=tuple(each)))


def _trained(length: int | None, record: Family, rotary: Rotary) -> Trained | None:
    """How far training went: as told, as the extension goes by, or as is known of the family."""
    from mrope.probes.frequencies import TRAINED, Trained

    known = TRAINED.get(record.name)
    if length is not None:
        return Trained(length=length, source="--trained", most_factor=known.most_factor if known else None)
    own = rotary.frequencies.extension
    for extension in own if isinstance(own, tuple) else (own,):
        if (stated := getattr(extension, "trained", None)) is not None:
            return Trained(length=stated, source="the extension", most_factor=known.most_factor if known else None)
    return known


def _grid(words: str | None, record: Family) -> tuple[int, int] | None:
    """(height, width) in tokens, as told, or of the largest square picture; None where the family has no limits."""
    if words is not None:
        match = re.fullmatch(r"([0-9]+)x([0-9]+)", words)
        if match is None or not (int(match[1]) and int(match[2])):
            raise ValueError(f"--grid is {words!r}; expected HxW in tokens, such as 24x32 of 24 rows")
        return int(match[1]), int(match[2])
    if record.image_tokens is None:
        return None
    side = math.isqrt(record.image_tokens[1])
    return side, side


def _facts(
    record: Family, report: FrequencyReport, advice: Advice | None, table: list[list[float]] | None
) -> dict[str, object]:
    facts: dict[str, object] = {"family": record.name, **asdict(report)}
    if table is not None:
        facts["decay"] = {"distances": DISTANCES, "kernels": dict(zip(record.axes, table, strict=True))}
    if advice is not None:
        left = [asdict(axis) for axis in advice.left]
        facts["advice"] = {"extend": advice.extend, "reasons": advice.reasons, "left": left}
    return facts


def _print_report(record: Family, report: FrequencyReport) -> None:
    """Whose frequencies they are, and a line an axis."""
    trained, grid = report.trained, report.grid
    print(f"{record.name}: {report.pattern}, base {report.base:.10g}")
    length = "not known; --trained tells it" if trained is None else f"{trained.length} positions ({trained.source})"
    print(f"trained length {length}")
    print(
        "grid not known; --grid tells it" if grid is None else f"grid of {grid[0]} rows x {grid[1]} columns of tokens"
    )
    columns = ["axis", "pairs", "wavelengths", "turn within L0", "1 - kernel at 1", "distinct at 4000, 16000"]
    stretched = any(axis.stretch for axis in report.axes)
    if stretched:
        columns += ["kept", "partly slowed", "fully slowed", "stopped", "times slower", "cos, sin times"]
    print_table(columns, [_row(axis, stretched=stretched) for axis in report.axes])


def _row(axis: AxisFacts, *, stretched: bool) -> list[object]:
    turned = "-" if axis.turned is None else f"{axis.turned} ({axis.turned / axis.pairs:.0%})"
    cells = [axis.name, axis.pairs, _range(axis.shortest, axis.longest), turned, f"{axis.drop:.2g}"]
    cells.append(", ".join(map(str, axis.distinct)))
    if stretched and axis.stretch is None:
        cells += [axis.pairs, 0, 0, 0, "1 .. 1", "1"]
    elif axis.stretch is not None:
        did = axis.stretch
        cells += [did.kept, did.partly, did.full, did.stopped, _range(did.least, did.most), f"{did.attention:.4g}"]
    return cells


def _range(least: float | None, most: float | None) -> str:
    return "-" if least is None or most is None else f"{least:.4g} .. {most:.4g}"


def _print_advice(advice: Advice) -> None:
    print_table(
        ("axis", "one position apart in bf16", "in float32", "longest wavelength", "float32 angles off by"),
        [
            (
                axis.name,
                f"{axis.bf16} of {axis.pairs}",
                f"{axis.float32} of {axis.pairs}",
                "-" if axis.longest is None else f"{axis.longest:.4g}",
                f"{axis.error:.2g}",
            )
            for axis in advice.left
        ],
    )
    print(f"advice: {'no extension' if advice.extend is None else f'--extend {advice.extend}'}")
    for line in advice.reasons:
        print(f"  {line}")
