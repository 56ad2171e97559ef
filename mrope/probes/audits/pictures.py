"""Pictures of an audit: ids along a prompt, wavelengths beside the grid, and kernels over distances and cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mrope.checks import Number
from mrope.probes.audits.ids import cells_of, named
from mrope.probes.audits.kernel import Waves, cell_kernel, sides_of
from mrope.probes.audits.target import Laid
from mrope.probes.position_plot import write_plot
from mrope.spans import Grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # of Okabe and Ito
_PALE = "#888888"
_REACH = 4096  # how far kernels are drawn, in positions


class NothingToDrawError(ValueError):
    """An audit has neither positions nor frequencies."""


def picture_file(path: Path) -> Path:
    """The file that is written: in a folder, audit.png.

    Raises:
        ValueError: the suffix is none of .png, .svg and .pdf.
    """
    if path.is_dir() or not path.suffix:
        return path / "audit.png"
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ValueError(f"plot is {str(path)!r}; expected a folder, or a file that ends in .png, .svg or .pdf")
    return path


def draw_audit(
    path: Path,
    name: str,
    axes: tuple[str, ...],
    looks: Mapping[Grid, Laid],
    waves: Waves | None,
    grid: tuple[int, int],
    frames: int,
    share: Number | None,
) -> None:
    """Draw what there is of the panels into one picture.

    Args:
        path: a .png, .svg or .pdf file, whose folder is made where it is missing.
        name: of what was audited.
        axes: what the axes are called.
        looks: prompts around grids; empty without a rule of positions.
        waves: the frequencies; None where there are none.
        grid: (height, width) in tokens of the picture that is drawn.
        frames: steps of the clip.
        share: the extent of coordinates that are shares of a picture; None where they are whole positions.

    Raises:
        ImportError: matplotlib is not installed.
        NothingToDrawError: there is nothing to draw.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("a plot needs matplotlib, which is not installed; the extra mrope[plot] brings it") from None
    clip, picture = (looks.get((steps, *grid)) for steps in (frames, 1))
    panels: list[Callable[[Axes], None]] = []
    if clip is not None or picture is not None:
        shown = clip or picture
        assert shown is not None
        words = f"clip of {frames} x {grid[0]} x {grid[1]}" if clip else f"picture of {grid[0]} x {grid[1]}"
        panels.append(lambda panel: _ids(panel, axes, shown, words))
    if waves is not None:
        panels.append(lambda panel: _wavelengths(panel, waves, None if share else sides_of(axes, grid, frames)))
        if share is None:
            panels.append(lambda panel: _decay(panel, waves))
        if named(axes) is not None:
            panels.append(lambda panel: _plane(panel, waves, grid, share))
        if picture is not None and cells_of(picture, (1, *grid)) is not None:
            panels.append(lambda panel: _cells(panel, cell_kernel(waves, picture).unflatten(0, grid)))
    if not panels:
        raise NothingToDrawError(f"there is nothing to draw of {name}: neither positions nor frequencies")
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(6.5 * columns, 4.2 * rows + 0.5), layout="constrained")
    figure.suptitle(name, x=0.01, ha="left", fontsize=13)
    places: list[Any] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for draw, place in zip(panels, places, strict=False):
        draw(place)
    for place in places[len(panels) :]:
        place.set_visible(False)
    content = BytesIO()
    figure.savefig(content, format=path.suffix.lower()[1:], dpi=110)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_plot(path, content.getvalue())


def _plain(panel: Axes, title: str, across: str, up: str) -> None:
    panel.set_title(title, loc="left", fontsize=10)
    panel.set_xlabel(across)
    panel.set_ylabel(up)
    panel.spines[["top", "right"]].set_visible(False)


def _ids(panel: Axes, axes: tuple[str, ...], look: Laid, words: str) -> None:
    """Tokens of text are drawn as wide as a twentieth of the block, or they would not be seen."""
    ids = torch.cat((look.before, look.block, look.after), dim=1).double()
    edges = (look.before.shape[1], look.before.shape[1] + look.block.shape[1])
    wide = max(1.0, look.block.shape[1] / 20)
    place = torch.arange(ids.shape[1], dtype=torch.float64)
    place = torch.where(place < edges[0], (place - edges[0] + 0.5) * wide, place - edges[0])
    behind = torch.arange(ids.shape[1]) >= edges[1]
    place[behind] = look.block.shape[1] + (torch.arange(int(behind.sum()), dtype=torch.float64) + 0.5) * wide
    lines = list(zip(axes, _COLOURS, ids.tolist(), strict=False))
    for name, colour, line in reversed(lines):  # the first axis on top, which has the fewest values
        panel.plot(place.tolist(), line, ".", color=colour, label=name, markersize=4 if name == axes[0] else 2)
    panel.axvspan(0, look.block.shape[1], color="#e69f00", alpha=0.12, linewidth=0)
    _plain(panel, f"positions of text, a {words} tokens, and text", "token of the block; text drawn wider", "position")
    panel.legend(frameon=False, markerscale=3, reverse=True)


def _wavelengths(panel: Axes, waves: Waves, sides: list[int] | None) -> None:
    for axis, name in enumerate(waves.axes):
        own = waves.own(axis).abs()
        periods = (2 * math.pi / own[own > 0]).tolist()
        colour = _COLOURS[axis % len(_COLOURS)]
        panel.plot(periods, [axis] * len(periods), "|", color=colour, markersize=16)
        if sides is not None:
            at = (sides[axis], axis - 0.3)
            panel.plot(*at, "^", color="#1a1a1a", markersize=6)
            words = f"{sides[axis]} {'step' if name == 't' else 'cell'}s"
            panel.annotate(words, at, (6, -4), textcoords="offset points", fontsize=8)
    panel.set_xscale("log")
    panel.set_yticks(range(len(waves.axes)), waves.axes)
    panel.set_ylim(len(waves.axes) - 0.5, -0.6)
    marked = "" if sides is None else "; a triangle marks the grid"
    _plain(panel, f"wavelength of each pair{marked}", "positions" if sides else "coordinate", "axis")


def _decay(panel: Axes, waves: Waves) -> None:
    distances = torch.logspace(0, math.log10(_REACH), 800, dtype=torch.float64).round().unique()
    for axis, name in enumerate(waves.axes):
        if len(waves.own(axis)):
            line = waves.along(axis, distances).tolist()
            panel.plot(distances.tolist(), line, label=name, color=_COLOURS[axis % len(_COLOURS)], linewidth=1.2)
    panel.set_xscale("log")
    panel.axhline(0, color=_PALE, linewidth=0.7)
    _plain(panel, "kernel of each axis", "distance in positions", "mean cos over its pairs")
    panel.legend(frameon=False)


def _plane(panel: Axes, waves: Waves, grid: tuple[int, int], share: Number | None) -> None:
    """The kernel over all distances in rows and columns that two cells of the grid can have."""
    pair = named(waves.axes)
    assert pair is not None
    ends = [side - 1 if share is None else 2 * float(share) for side in grid]
    down, right = (
        torch.linspace(-end, end, 2 * side - 1, dtype=torch.float64) for end, side in zip(ends, grid, strict=True)
    )
    between = torch.zeros(len(waves.axes), len(down), len(right), dtype=torch.float64)
    between[pair[0]], between[pair[1]] = down[:, None], right
    kernel = waves.kernel(between.flatten(1)).unflatten(0, (len(down), len(right)))
    (high, wide), half = ends, 0.5 if share is None else 0.0
    image = panel.imshow(kernel.numpy(), extent=(-wide - half, wide + half, high + half, -high - half), cmap="viridis")
    panel.figure.colorbar(image, ax=panel, shrink=0.85)
    unit = "" if share is None else ", in coordinates"
    _plain(panel, "kernel between two cells", f"columns apart{unit}", f"rows apart{unit}")


def _cells(panel: Axes, kernel: Tensor) -> None:
    image = panel.imshow(kernel.numpy(), cmap="viridis")
    panel.figure.colorbar(image, ax=panel, shrink=0.85)
    _plain(panel, "kernel between the first word behind a picture and its cells", "column", "row")
