"""`mrope parity`: does a real checkpoint agree with us?"""

from __future__ import annotations

from typing import Annotated

import typer

from mrope.cli.options import AsJson
from mrope.cli.output import print_json, print_table


def parity(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A checkpoint of any of the families.")],
    device: Annotated[str, typer.Option(help="Where the model computes: auto, cpu or cuda.")] = "auto",
    json: AsJson = False,
) -> None:
    """Compare a checkpoint with us: files, patches, prompts, positions, rotary tables, logits and generated tokens.

    All of it is held against the installed transformers; nothing is downloaded. Where its positions are not those of
    training, the line says so. The exit code is 1 if a check fails.
    """
    from dataclasses import asdict

    from mrope.hf.parity import check

    checks = check(folder, device=device)
    if json:
        print_json([asdict(one) for one in checks])
    else:
        print_table(
            ("check", "", "detail"), [(one.name, "pass" if one.passed else "FAIL", one.detail) for one in checks]
        )
    if not all(one.passed for one in checks):
        raise typer.Exit(1)
