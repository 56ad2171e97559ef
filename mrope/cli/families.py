"""`mrope families`: the records that the library knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrope.cli.options import AsJson
from mrope.cli.output import print_json, print_table

if TYPE_CHECKING:
    from mrope import Family


def families(json: AsJson = False) -> None:
    """List the model families: patches, token limits, rotary split, time rule and box convention."""
    import mrope

    facts = [_facts(mrope.family(name)) for name in mrope.family_names()]
    if json:
        print_json(facts)
    else:
        rows = [[_cell(value) for value in fact.values()] for fact in facts]
        print_table([name.replace("_", " ") for name in facts[0]], rows)


def _facts(record: Family) -> dict[str, object]:
    layout = record.layout
    return {
        "family": record.name,
        "patch": record.patch,
        "merge": record.merge,
        "factor": record.factor,
        "image_tokens": record.image_tokens,
        "split": record.split.counts,
        "allocation": record.split.allocation,
        "base": record.frequencies.base,
        "time": getattr(layout, "time", None),
        "ids_per_second": getattr(layout, "ids_per_second", None),
        "boxes": record.boxes,
    }


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
