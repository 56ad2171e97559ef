"""Accuracy by cell, as SVG: each cell in a colour from calm to red."""

from __future__ import annotations

from collections.abc import Sequence

from mrope.probes.markup import element


def heat_grid(heat: Sequence[Sequence[float | None]], *, cell: int, first: int = 0) -> str:
    """Rows of cells in the colour of their accuracy, `cell` units wide, counted from `first`; None is a cell that was
    not asked about.
    """
    parts = [
        element(
            "rect",
            element("title", f"row {row + first}, column {col + first}: {_asked(accuracy)}"),
            x=col * cell,
            y=row * cell,
            width=cell - 1,
            height=cell - 1,
            style="fill:none;stroke:var(--rule)" if accuracy is None else f"fill:{heat_colour(accuracy)}",
        )
        for row, cells in enumerate(heat)
        for col, accuracy in enumerate(cells)
    ]
    rows, cols = len(heat), len(heat[0])
    width, height = cols * cell - 1, rows * cell - 1
    return element(
        "svg", "".join(parts), viewBox=f"0 0 {width} {height}", width=width, height=height, role="img",
        aria_label=f"accuracy by cell, {rows} rows, {cols} columns",
    )  # fmt: skip


def _asked(accuracy: float | None) -> str:
    return "not asked" if accuracy is None else f"{100 * accuracy:.1f} %"


def heat_colour(accuracy: float) -> str:
    """CSS: calm at 1, red at 0; the share of red grows fast at first, so that the first mistakes can be seen."""
    return f"color-mix(in srgb,var(--warm) {100 * (1 - accuracy) ** 0.8:.0f}%,var(--cold))"
