"""`mrope frequencies`: what the rotary frequencies do on each axis, and which context extension to choose."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mrope.cli.options import AsJson
from mrope.cli.output import print_json, print_table

if TYPE_CHECKING:
    from mrope import Family, Rotary
    from mrope.probes.advice import Advice
    from mrope.probes.audits.frequencies import FrequencyReport, Trained

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
    from mrope.frequencies import Frequencies
    from mrope.probes.advice import advise as choose
    from mrope.probes.audits.decay_plot import plot_decay
    from mrope.probes.audits.frequencies import Trained, frequency_report
    from mrope.probes.audits.frequencies import decay as kernels
    from mrope.probes.audits.named import extended

    record, rotary = _rotary(family, config, layer)
    own = rotary = _changed(rotary, record, split, base)
    cells = _grid(grid, record)
    advice: Advice | None = None
    if advise is not None:
        for option, value in (("--extend", extend), ("--trained", trained), ("--target", target)):
            if value:
                raise ValueError(f"{option} does not go with --advise TRAINED TARGET, which chooses by itself")
        target = advise[1]
        told = Trained(length=advise[0], source="--advise")
        advice = choose(rotary, told, target, axes=record.axes, grid=cells)
        report = advice.report
        rotary = replace(rotary, frequencies=Frequencies(report.base))
        rotary = extended(rotary, record.axes, [advice.extend] if advice.extend else [], told.length)
    else:
        known = _trained(trained, record, rotary)
        rotary = extended(rotary, record.axes, extend or [], known.length if known else None)
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
        _print_advice(advice, own.frequencies.base)
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


def _changed(rotary: Rotary, record: Family, split: str | None, base: float | None) -> Rotary:
    """With another split or base."""
    from mrope import AxisSplit

    if split is not None:
        read = AxisSplit.parse(split.upper(), "".join(name[0] for name in record.axes).upper())
        read.check_fits(rotary.split.rotary_dim)
        rotary = replace(rotary, split=read)
    if base is not None:
        if not base > 1:
            raise ValueError(
                f"--base is {base:g}; expected more than 1, so that each pair is slower than the one before"
            )
        rotary = replace(rotary, frequencies=replace(rotary.frequencies, base=base))
    return rotary


def _trained(length: int | None, record: Family, rotary: Rotary) -> Trained | None:
    """How far training went: as told, as the extension goes by, or as is known of the family."""
    from mrope.probes.audits.frequencies import TRAINED, Trained

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
    factors = {f"{axis.stretch.attention if axis.stretch else 1:.4g}" for axis in report.axes}
    if len(factors) == 1 and factors != {"1"}:
        print(f"the extension multiplies cos and sin with {factors.pop()}")
    columns = _columns(report)
    print_table([heading for heading, _, _ in columns], list(zip(*(cells for _, _, cells in columns), strict=True)))
    for heading, meaning, _ in columns[1:]:
        print(f"  {heading}: {meaning}")


def _columns(report: FrequencyReport) -> list[tuple[str, str, list[str]]]:
    """What a column is called, what it means, and its cell for each axis."""
    from mrope.probes.audits.frequencies import CELLS, OFFSETS, Stretch

    axes, (near, far) = report.axes, OFFSETS
    columns = [
        ("axis", "", [axis.name for axis in axes]),
        ("pairs", "of channels, which read the axis", [f"{axis.pairs}" for axis in axes]),
        (
            "wavelengths",
            "positions in which they turn once, from the fastest pair to the slowest",
            [_range(axis.shortest, axis.longest) for axis in axes],
        ),
        (
            "turn in L0",
            "pairs that turn at least once within the trained length L0",
            ["-" if axis.turned is None else f"{axis.turned} ({axis.turned / axis.pairs:.0%})" for axis in axes],
        ),
        (
            "1 - K(1)",
            "by how much a distance of one position lowers the kernel K, the mean cos over the pairs",
            [f"{axis.drop:.2g}" for axis in axes],
        ),
        (
            "bf16 tables tell apart",
            f"of {CELLS} cells from {near} and {far}, with cos and sin cast (transformers does, mrope.Rotary not)",
            [", ".join(map(str, axis.distinct)) for axis in axes],
        ),
    ]
    if any(axis.stretch for axis in axes):
        untouched = Stretch(kept=0, partly=0, full=0, stopped=0, least=1, most=1, attention=1)
        did = [axis.stretch or replace(untouched, kept=axis.pairs) for axis in axes]
        columns += [
            ("kept", "pairs that turn as before the extension", [f"{each.kept}" for each in did]),
            ("partly", "pairs that it slows, but not by the whole factor", [f"{each.partly}" for each in did]),
            ("fully", "pairs that it slows by the whole factor", [f"{each.full}" for each in did]),
            (
                "times slower",
                "the pairs that still turn, from the least to the most",
                [_range(each.least, each.most) for each in did],
            ),
        ]
        if any(each.stopped for each in did):
            columns.append(("stopped", "pairs that no longer turn", [f"{each.stopped}" for each in did]))
        factors = [f"{each.attention:.4g}" for each in did]
        if len(set(factors)) > 1:
            columns.append(("cos, sin times", "what the extension multiplies them with", factors))
    return [column for column in columns if set(column[2]) != {"-"}]


def _range(least: float | None, most: float | None) -> str:
    return "-" if least is None or most is None else f"{least:.4g} .. {most:.4g}"


def _print_advice(advice: Advice, base: float) -> None:
    """What is left of each axis, and the options to give; `base` is that of the family."""
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
    rebased = "" if advice.report.base == base else f"--base {advice.report.base:.10g} "
    print(f"advice: {'no extension' if advice.extend is None else f'{rebased}--extend {advice.extend}'}")
    for line in advice.reasons:
        print(f"  {line}")
