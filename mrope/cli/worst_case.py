"""`mrope worst-case`: the picture that costs most within given limits."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from mrope.cli.options import AsJson, FamilyName, MaxTokens, MinTokens, told_in_options
from mrope.cli.output import print_json


def worst_case(
    family: FamilyName,
    min_tokens: MinTokens = None,
    max_tokens: MaxTokens = None,
    pictures: Annotated[int, typer.Option(metavar="N", help="How many such pictures come together.")] = 1,
    count: Annotated[
        Literal["tokens", "prompt"], typer.Option(help="What must be largest: prompt is with newlines and markers.")
    ] = "tokens",
    dtype: Annotated[Literal["float32", "bfloat16", "uint8"], typer.Option(help="Of the values.")] = "float32",
    json: AsJson = False,
) -> None:
    """Print the size of picture that costs most within the limits, over all ratios: to profile memory with.

    Example: mrope worst-case --family qwen2.5-vl --max-tokens 4200
    """
    import mrope
    from mrope import vision
    from mrope.vision import settings

    record = mrope.family(family)
    with told_in_options():
        worst = vision.worst_case(
            record, min_tokens=min_tokens, max_tokens=max_tokens, pictures=pictures, count=count, dtype=dtype
        )
    words = settings(record, min_tokens=min_tokens, max_tokens=max_tokens)
    height, width = worst.plan.original
    if json:
        facts = {"original": {"height": height, "width": width}, "pictures": pictures, "tokens": worst.tokens}
        facts |= {"prompt_tokens": worst.prompt_tokens, "patches": worst.patches, "values_bytes": worst.values_bytes}
        print_json({"settings": words} | facts)
        return
    print(f"{pictures} x {width} wide x {height} high: {worst.tokens} tokens, {worst.prompt_tokens} in the prompt")
    print(f"{worst.patches} patches, {worst.values_bytes} bytes of {dtype} values")
    print(f"{record.name}, {words['limits']}; {words['resize']}")
