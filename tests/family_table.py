"""The README's table of families: prints it; `python tests/family_table.py --write` puts it in its place."""

from __future__ import annotations

import sys

from sources import ROOT

import mrope
from mrope import Family
from mrope.cli.families import facts

README = ROOT / "README.md"
MARKER = "<!-- families -->\n"
COLUMNS = ("family", "patch, merge", "layout", "rotary pairs", "resize rule", "patch order", "boxes")
LEGEND = """
`grid` is `GridLayout` of `mrope.layouts`, and so on; a star marks a rule of positions that is unconfirmed: found in one
code alone, or contradicted. Rotary pairs are those of t, h and w where no axes are named. `help(mrope.Family)` explains
the words. Positions are built and pictures planned and cut for all, and clips where the family's processors take them.

`mrope.Family.from_config(folder)` reads what a checkpoint of any family states. Each recorded value names its
source in `family.sources`; none could be opened from the checkpoints here. Class defaults and guesses are called that.
"""


def table() -> str:
    """The part of the README between its two markers."""
    rows = [_row(mrope.family(name)) for name in mrope.family_names()]
    head, *body = (f"| {' | '.join(row)} |" for row in (COLUMNS, *rows))
    return "\n".join(("", head, "|---" * len(COLUMNS) + "|", *body, LEGEND, ""))


def _row(record: Family) -> tuple[str, ...]:
    fact = facts(record)
    pairs = f"{', '.join(map(str, record.split.counts))} {fact['allocation']}"
    return (
        f"`{fact['family']}`",
        f"{fact['patch']}, {fact['merge']}",
        _layout(record) + ("" if record.rule == "confirmed" else " *"),
        pairs if record.axes == ("t", "h", "w") else f"{', '.join(record.axes)}: {pairs}",
        record.resize,
        record.patch_order,
        record.boxes,
    )


def _layout(record: Family) -> str:
    fact, layout = facts(record), record.layout
    words = [fact["layout"], fact["time"], getattr(layout, "weave", None)]
    if fact["ids_per_second"] is not None:
        words.append(f"{fact['ids_per_second']:g} ids a second")
    if getattr(layout, "temporal_merge", 1) != 1:
        words.append(f"temporal merge {getattr(layout, 'temporal_merge', 1)}")
    return ", ".join(str(word) for word in words if word is not None)


def main() -> None:
    if sys.argv[1:] != ["--write"]:
        print(table(), end="")
        return
    before, _, after = README.read_text(encoding="utf-8").split(MARKER)
    README.write_text(f"{before}{MARKER}{table()}{MARKER}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
