"""A picture of the kernel of each axis over the distance."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mrope.checks import Number, whole
from mrope.probes.audits.frequencies import AXES, decay
from mrope.probes.position_plot import write_plot
from mrope.rotary import Rotary

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_decay(
    rotary: Rotary,
    path: str | os.PathLike[str],
    *,
    axes: Sequence[str] = AXES,
    reach: int = 32768,
    length: Number | None = None,
) -> None:
    """Draw the kernel of each axis over the distance, into a .png, .svg or .pdf file.

    Args:
        rotary: see `decay`.
        path: the file; its suffix says the format.
        axes: what the axes are called.
        reach: the largest distance, in positions.
        length: see `decay`.

    Raises:
        ValueError: the suffix is none of these.
        ImportError: matplotlib is not installed.

    >>> import tempfile
    >>> from mrope import AxisSplit, Frequencies
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plot_decay(Rotary(AxisSplit(), Frequencies(1e6)), f"{folder}/decay.svg")
    """
    target = Path(path)
    kind = target.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg", "pdf"):
        raise ValueError(f"plot {str(target)!r} ends in {target.suffix!r}; expected .png, .svg or .pdf")
    if len(axes) != rotary.axes:
        raise ValueError(f"axes are {', '.join(axes)}; the split has {rotary.axes}")
    distances = torch.logspace(0, math.log10(whole("reach", reach, 2)), 2000, dtype=torch.float64).round().unique()
    picture = BytesIO()
    _draw(distances, decay(rotary, distances, length=length), axes).savefig(picture, format=kind, dpi=150)
    write_plot(target, picture.getvalue())


def _draw(distances: Tensor, kernels: Tensor, axes: Sequence[str]) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("a plot needs matplotlib, which is not installed; the extra mrope[plot] brings it") from None
    figure = Figure(figsize=(9, 5), layout="constrained")
    panel = figure.subplots()
    for name, kernel in zip(axes, kernels.tolist(), strict=True):
        panel.plot(distances.tolist(), kernel, label=name, linewidth=1.2)
    panel.set_xscale("log")
    panel.set_xlabel("distance in positions")
    panel.set_ylabel("mean cos over the pairs of the axis")
    panel.axhline(0, color="#888888", linewidth=0.7)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False)
    return figure
