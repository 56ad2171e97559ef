"""`mrope families`: the records that the library knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrope.cli.options import AsJson
from mrope.cli.output import print_json, print_table

if TYPE_CHECKING:
    from mrope import Family, Layout


def families(json: AsJson = False) -> None:
    """List the model families: patches, token limits, layout, rotary split, resize rule, patch order, box convention.

    The rule of a layout is unconfirmed where it was found in one code alone, or where codes contradict each other.
    """
    import mrope

    records = [facts(mrope.family(name)) for name in mrope.family_names()]
    if json:
        print_json(records)
    else:
        rows = [[_cell(value) for value in record.values()] for record in records]
        print_table([name.replace("_", " ") for name in records[0]], rows)


def facts(record: Family) -> dict[str, object]:
    """What is listed of one family, and stands in the README's table."""
    return {
        "family": record.name,
        "patch": record.patch,
        "merge": record.merge,
        "factor": record.factor,
        "image_tokens": record.image_tokens,
        "layout": layout_name(record.layout),
        "time": getattr(record.layout, "time", None),
        "ids_per_second": getattr(record.layout, "ids_per_second", None),
        "rule": record.rule,
        "axes": record.axes,
        "split": record.split.counts,
        "allocation": record.split.allocation,
        "partial_rotary": record.partial_rotary,
        "base": record.frequencies.base,
        "extension": None if record.frequencies.extension is None else str(record.frequencies.extension),
        "resize": record.resize,
        "patch_order": record.patch_order,
        "boxes": record.boxes,
    }


def layout_name(layout: Layout) -> str:
    """The word of a layout: "grid" of a GridLayout."""
    return type(layout).__name__.removesuffix("Layout").lower()


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value:.10g}" if isinstance(value, float) else str(value)
