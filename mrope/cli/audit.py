"""`mrope audit`: what a rule of positions and of turning keeps of what it promises, without any weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mrope.cli.options import AsJson
from mrope.cli.output import print_json, print_table

if TYPE_CHECKING:
    from mrope.probes import AuditReport


def audit(
    target: Annotated[
        str,
        typer.Argument(
            metavar="F | LAYOUT+SPLIT | hf:MODEL | python:MODULE:NAME",
            help="A family; a layout and a split, 'videorope+HW*24 T*16', each of which may be a family's "
            "(qwen2-vl@transformers-5.24 is that version's layout); one of them, or an encoding, alone; a model of the "
            "installed transformers by class, model_type or folder; or a callable of a module or of FILE.py.",
        ),
    ],
    like: Annotated[
        str | None,
        typer.Option(metavar="TARGET", help="What a callable or layout is meant to be: ids and turns must be equal."),
    ] = None,
    grid: Annotated[
        str | None,
        typer.Option(metavar="HxW", help="Rows and columns of tokens; by default 24x32, and 96x128 on a GPU."),
    ] = None,
    frames: Annotated[int, typer.Option(metavar="T", help="Temporal steps of the clip.")] = 8,
    dtype: Annotated[
        str, typer.Option(metavar="D", help="float32, bfloat16 or float16, of queries, keys and tables.")
    ] = "float32",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda, where queries and keys are turned.")] = "auto",
    base: Annotated[
        float | None, typer.Option(metavar="B", help="Of the frequencies of a SPLIT; 1e6 by default.")
    ] = None,
    extend: Annotated[
        list[str] | None,
        typer.Option(metavar="[AXES=]WORD", help="A context extension: yarn:4, or repeated with axes: t=ntk:4."),
    ] = None,
    trained: Annotated[
        int | None, typer.Option(metavar="L0", help="The trained length, in positions, that extensions go by.")
    ] = None,
    length: Annotated[
        int | None, typer.Option(metavar="L", help="How long rows are, for extensions that depend on it.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw ids, wavelengths and kernels: .png, .svg, .pdf, or a folder."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Measure what a rule of positions or of turning does, and hold it against what it promises; no weights, seconds.

    A callable takes spans and returns ids (A, N), or these and the position of the first decoded token; or ids (A, N)
    and returns cos and sin; or q (1, 4, N, D), k (1, 2, N, D) and ids, and returns both turned; or q, k, v and
    positions, and returns what it attended to. The exit code is 1 if a promise is broken, a rule breaks down, or it
    shares nothing with TARGET of --like; what is knowingly given up leaves it at 0.

    Example: mrope audit hf:qwen2_vl
    """
    from dataclasses import asdict

    from mrope.probes import full_audit

    report = full_audit(
        target,
        like=like,
        grid=None if grid is None else _sides(grid),
        frames=frames,
        dtype=dtype,
        device=device,
        base=base,
        extend=tuple(extend or ()),
        trained=trained,
        length=length,
        plot=plot,
    )
    undrawn = dict(report.skipped).get("plot")
    if json:
        print_json(asdict(report) | {"ok": report.ok})
    else:
        _print(report)
        if plot is not None and not undrawn:
            print(f"wrote {plot}")
    if undrawn:
        raise ValueError(undrawn)
    if not report.ok:
        raise typer.Exit(1)


def _sides(words: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]+)x([0-9]+)", words)
    if match is None:
        raise ValueError(f"--grid is {words!r}; expected HxW in tokens, such as 24x32 of 24 rows")
    return int(match[1]), int(match[2])


def _print(report: AuditReport) -> None:
    print(f"{report.subject}: {len(report.failed)} of {len(report.checks)} checks fail ({report.machine})")
    order = {"fail": 0, "pass": 1, "info": 2}
    checks = sorted(report.checks, key=lambda check: order[check.outcome])
    print_table(
        ("result", "check", "measured", "expected"),
        [(check.outcome, check.name, check.figure, check.limit or "-") for check in checks],
    )
    for check in checks:
        print(f"  {check.name}: {check.means}" + (f" ({check.source})" if check.source else ""))
    reasons = dict.fromkeys(why for _, why in report.skipped)
    for why in reasons:
        print(f"not measured: {', '.join(name for name, each in report.skipped if each == why)}: {why}")
