"""`mrope doctor`: what is wrong or risky with a checkpoint, a configuration, a model class or a saved batch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mrope.cli.options import AsJson
from mrope.cli.output import print_json


def doctor(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_CONFIG",
            help="A checkpoint's folder, a JSON file, or the name of a model class or model_type of transformers.",
        ),
    ],
    inputs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A batch for it, saved with torch.save(dict(inputs), FILE)."),
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Load the checkpoint's own weights, and compare it with us throughout.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Say what is wrong or risky: each finding with the rule, the number seen, the number right, and the fix.

    A small model with random weights is made from the configuration and run in the installed transformers; nothing is
    downloaded. The exit code is 1 if something is wrong, 2 if a target or a batch cannot be read; what is only risky
    leaves it at 0.

    Example: mrope doctor Qwen2VLForConditionalGeneration
    """
    from dataclasses import asdict

    from mrope.hf import doctor as examine

    report = examine(target, inputs=inputs, deep=deep)
    if json:
        print_json(asdict(report) | {"ok": report.ok})
    else:
        print(report)
    if not report.ok:
        raise typer.Exit(1)
