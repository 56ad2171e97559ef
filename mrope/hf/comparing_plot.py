"""A picture of where two models part ways: stages down, tokens across, differences over the tolerance as colours."""

from __future__ import annotations

import os
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mrope.hf.batch import AUDIO, IMAGE, TEXT, VIDEO
from mrope.hf.comparing import Comparison, Stage
from mrope.probes.position_plot import write_plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

# The palette of Okabe and Ito, which colour-blind readers can tell apart, as in plots of positions.
_KINDS = {
    TEXT: ("text", "#999999"),
    IMAGE: ("image", "#56b4e9"),
    VIDEO: ("clip", "#e69f00"),
    AUDIO: ("audio", "#009e73"),
}
_EQUAL, _INK = "#f2f2f2", "#1a1a1a"
_COLUMNS = 2000  # drawn columns: one a token, or the largest difference of several
_REACH = 4  # powers of ten below and above the tolerance that have colours of their own
_NAMED = 48  # stages that are named at most


def plot_comparison(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Draw a comparison into a .png, .svg or .pdf file: see `Comparison.plot`.

    The rows of a batch lie behind one another. Stages of towers, whose places are patches, have a panel of their own,
    in which each is as wide as the one with most patches. The file is written whole or not at all.
    """
    target, kind, picture = Path(path), kind_of(path), BytesIO()
    _draw(comparison).savefig(picture, format=kind, dpi=150)
    write_plot(target, picture.getvalue())


def kind_of(path: str | os.PathLike[str]) -> str:
    """The kind of picture that a file's name asks for: png, svg or pdf.

    Raises:
        ValueError: it is another one.
    """
    suffix = Path(path).suffix
    if suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ValueError(f"plot {os.fspath(path)!r} ends in {suffix!r}; expected .png, .svg or .pdf")
    return suffix.lower().removeprefix(".")


def _draw(comparison: Comparison) -> Figure:
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError:
        raise ImportError("a plot needs matplotlib, which is not installed; the extra mrope[plot] brings it") from None
    units = [unit for unit in ("patch", "token") if any(stage.unit == unit for stage in comparison.stages)]
    groups = [[stage for stage in comparison.stages if stage.unit == unit] for unit in units]
    heights = [0.16 * len(group) + 0.5 for group in groups]
    figure = Figure(figsize=(12, 1.9 + sum(heights)), layout="constrained")
    panels = figure.subplots(len(groups) + 1, 1, squeeze=False, height_ratios=[*heights, 0.3])[:, 0]
    images = []
    for panel, group, unit in zip(panels, groups, units, strict=False):
        width = comparison.mask.numel() if unit == "token" else max(stage.differences.numel() for stage in group)
        images.append(_heat(panel, group, width, comparison.first))
        panel.set_xlabel("patch, in the order of the tower" if unit == "patch" else "")
    _kinds(panels[-1], comparison)
    length = comparison.mask.shape[1]
    for panel in panels[-2:]:
        for row in range(1, len(comparison.mask)):
            panel.axvline(row * length, color=_INK, linewidth=1.2, linestyle=(0, (4, 3)))
    first = comparison.first
    outcome = "nowhere apart" if first is None else f"apart from {first.name} on; {comparison.where(first)}"
    figure.suptitle(f"{comparison.names[0]} against {comparison.names[1]}\n{outcome}", fontsize=12, wrap=True)
    bar = figure.colorbar(images[0], ax=list(panels[:-1]), extend="both", pad=0.01)
    bar.set_label("difference over tolerance, power of ten")
    present = set(comparison.kinds[comparison.mask].tolist())
    handles = [Patch(label=word, color=colour) for kind, (word, colour) in _KINDS.items() if kind in present]
    handles.append(Patch(label="equal, or padding", facecolor=_EQUAL, edgecolor="#cccccc"))
    figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), frameon=False)
    return figure


def _heat(panel: Axes, stages: Sequence[Stage], width: int, first: Stage | None) -> AxesImage:
    """The differences of some stages; a ring at the place where the two part first."""
    from matplotlib import colormaps

    heat = np.stack([_columns(stage, width) for stage in stages])
    colours = colormaps["coolwarm"].with_extremes(bad=_EQUAL)
    image = panel.imshow(
        heat,
        aspect="auto",
        interpolation="nearest",
        cmap=colours,
        vmin=-_REACH,
        vmax=_REACH,
        extent=(0, width, len(stages), 0),
    )
    step = -(-len(stages) // _NAMED)
    numbers = range(0, len(stages), step)
    panel.set_yticks([number + 0.5 for number in numbers], [stages[number].name for number in numbers], fontsize=7)
    for number, stage in enumerate(stages):
        if stage is first and stage.place is not None:
            row, place, _ = stage.place
            column = (row * stage.differences.shape[1] + place + 0.5) / stage.differences.numel() * width
            panel.plot(column, number + 0.5, "o", markersize=9, fillstyle="none", color=_INK, markeredgewidth=1.5)
    return image


def _columns(stage: Stage, width: int) -> np.ndarray:
    """The powers of ten of a stage's differences over its tolerance in each drawn column; NaN where all are equal."""
    apart = stage.differences.double().flatten().numpy() / stage.tolerance
    apart = apart[np.arange(width) * len(apart) // width]
    columns = min(width, _COLUMNS)
    most = np.maximum.reduceat(apart, np.arange(columns) * width // columns)
    with np.errstate(divide="ignore"):
        return np.where(most > 0, np.clip(np.log10(most), -_REACH, _REACH), np.nan)


def _kinds(panel: Axes, comparison: Comparison) -> None:
    """A band of the kinds of the tokens under the panels."""
    kinds, mask = comparison.kinds.flatten().numpy(), comparison.mask.flatten().numpy()
    for kind, (_, colour) in _KINDS.items():
        edges = np.flatnonzero(np.diff(np.concatenate(([0], (kinds == kind) & mask, [0])).astype(int)))
        bands = [(begin, end - begin) for begin, end in edges.reshape(-1, 2).tolist()]
        panel.broken_barh(bands, (0, 1), facecolor=colour, linewidth=0)
    panel.set_xlim(0, len(kinds))
    panel.set_yticks([])
    panel.set_xlabel("token" if len(comparison.mask) == 1 else "token, the rows of the batch behind one another")
    panel.spines[["top", "left", "right"]].set_visible(False)
