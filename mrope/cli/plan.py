"""`mrope plan`: what will happen to pictures, told from their sizes alone."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Annotated

import typer

from mrope.cli.options import AsJson, FamilyName
from mrope.cli.output import print_json, print_table

if TYPE_CHECKING:
    from mrope import Family
    from mrope.vision import Plan


def plan(
    pictures: Annotated[
        list[str],
        typer.Argument(metavar="PATH|WxH ...", help="Picture files, or sizes: 640x480 is 640 wide, 480 high."),
    ],
    family: FamilyName,
    min_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Fewest tokens a picture; by default the family's own limit.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Most tokens a picture; by default the family's own limit.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Print each picture's original and resized size, grid, tokens and scale; only file headers are read.

    One picture that cannot be planned stops the command: its one line names it, and nothing is printed for the others.
    """
    import mrope

    record = mrope.family(family)
    plans = [_plan(picture, record, min_tokens, max_tokens) for picture in pictures]
    if json:
        print_json([_as_json(picture, one) for picture, one in zip(pictures, plans, strict=True)])
    else:
        columns = ("picture", "original", "resized", "grid t x h x w", "tokens", "scale h, w")
        print_table(columns, [_as_row(picture, one) for picture, one in zip(pictures, plans, strict=True)])


def _plan(picture: str, family: Family, min_tokens: int | None, max_tokens: int | None) -> Plan:
    size = re.fullmatch(r"(\d+)x(\d+)", picture)
    if size is None and os.path.isdir(picture):
        raise ValueError(
            f"{picture}: is a folder; name the pictures in it, for example {os.path.join(picture, '*.png')}"
        )
    source = (int(size[2]), int(size[1])) if size else picture
    try:
        return family.plan(source, min_tokens=min_tokens, max_tokens=max_tokens)
    except ValueError as error:
        raise ValueError(str(error) if picture in str(error) else f"{picture}: {error}") from None


def _as_json(picture: str, plan: Plan) -> dict[str, object]:
    return {
        "picture": picture,
        "original": _sides(plan.original),
        "orientation": plan.orientation,
        "resized": _sides(plan.resized),
        "grid": dict(zip("thw", plan.grid, strict=True)),
        "tokens": plan.tokens,
        "scale": _sides(plan.scale),
    }


def _as_row(picture: str, plan: Plan) -> tuple[object, ...]:
    turned = "" if plan.orientation == 1 else f" (turned, EXIF {plan.orientation})"
    scale = "{:.4f}, {:.4f}".format(*plan.scale)
    return (
        picture,
        _words(plan.original) + turned,
        _words(plan.resized),
        "x".join(map(str, plan.grid)),
        plan.tokens,
        scale,
    )


def _sides(size: tuple[float, float]) -> dict[str, float]:
    return {"height": size[0], "width": size[1]}


def _words(size: tuple[int, int]) -> str:
    return f"{size[1]} wide x {size[0]} high"
