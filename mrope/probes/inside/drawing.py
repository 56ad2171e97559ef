"""Attention over a picture, and a figure for each layer of where attention goes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from mrope.checks import whole
from mrope.probes.inside.attention import AttentionInside
from mrope.probes.overlay import Window, draw_token_grid
from mrope.probes.position_plot import write_plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL.Image import Image
else:
    Axes = Figure = Image = Any

_HEAT = (255, 90, 0)
_STRONG = 0.75  # how much of the heat covers the picture where attention is largest
_SHOWN = 4  # pictures of a figure


def draw_attention(picture: UInt8[Tensor, "3 h w"], factor: int, weight: Float[Tensor, "rows cols"]) -> Image:
    """The picture with each token the more covered the more attention it gets, and a frame around the largest.

    Args:
        picture: the resized picture.
        factor: side of a token in its pixels.
        weight: the attention to each token.

    Raises:
        ValueError: the picture has another number of tokens.
    """
    rows, cols = weight.shape
    if picture.shape[1:] != (rows * whole("factor", factor, 1), cols * factor):
        raise ValueError(
            f"picture is {picture.shape[1]} pixels high and {picture.shape[2]} wide; expected {rows * factor} and "
            f"{cols * factor}, {rows} rows and {cols} columns of tokens of {factor} pixels"
        )
    most = weight.max()
    cover = (_STRONG * weight / most if most > 0 else torch.zeros_like(weight)).repeat_interleave(factor, 0)
    cover = cover.repeat_interleave(factor, 1)
    covered = picture * (1 - cover) + torch.tensor(_HEAT)[:, None, None] * cover
    row, col = divmod(int(weight.argmax()), cols)
    return draw_token_grid(covered.round().to(torch.uint8), factor, window=Window(row, col, 1, 1))


def plot_attention(
    inside: AttentionInside,
    folder: str | os.PathLike[str],
    *,
    pictures: Sequence[tuple[UInt8[Tensor, "3 _ _"], int]] | None = None,
) -> tuple[Path, ...]:
    """Draw a figure for each layer into a folder: layer-00.png, layer-01.png, ...

    A figure has the maps of the first pictures, of a clip those of the step with most attention; the attention between
    cells of one step by rows and columns; and the share that goes to pictures by the distance from them. All are means
    over the heads.

    Args:
        inside: what is drawn.
        folder: is made if it is not there.
        pictures: for each of its maps the resized picture, or that step of a clip, and the side of a token in its
            pixels; without them the maps are drawn alone.

    Returns:
        The files, layer by layer.

    Raises:
        ValueError: there are more or fewer pictures than maps, or one has another number of tokens.
        ImportError: matplotlib is not installed.
    """
    if pictures is not None and len(pictures) != len(inside.maps):
        raise ValueError(f"pictures has {len(pictures)} entries; expected {len(inside.maps)}, one for each map")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    files = []
    for at, layer in enumerate(inside.layers):
        drawn = BytesIO()
        _figure(inside, at, pictures).savefig(drawn, format="png", dpi=110)
        files.append(target / f"layer-{layer:02d}.png")
        write_plot(files[-1], drawn.getvalue())
    return tuple(files)


def _figure(inside: AttentionInside, at: int, pictures: Sequence[tuple[Tensor, int]] | None) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("a plot needs matplotlib, which is not installed; the extra mrope[plot] brings it") from None
    shown = inside.maps[:_SHOWN]
    figure = Figure(figsize=(4.2 * (len(shown) + 2), 4.2), layout="constrained")
    panels = figure.subplots(1, len(shown) + 2)
    for number, (panel, each) in enumerate(zip(panels, shown, strict=False)):
        maps = each.weight[at].mean(0)
        step = int(maps.sum((1, 2)).argmax())
        if pictures is None:
            panel.imshow(maps[step].numpy(), cmap="viridis", vmin=0)
        else:
            panel.imshow(draw_attention(*pictures[number], maps[step]))
        panel.set_xticks([])
        panel.set_yticks([])
        name = f"batch {each.batch}, picture {each.picture}" + (f", step {step}" if len(maps) > 1 else "")
        panel.set_title(f"{name}\n{maps[step].sum():.1%} of the attention", fontsize=10)
    _between_cells(figure, panels[-2], inside, at)
    _by_distance(panels[-1], inside, at)
    figure.suptitle(f"Layer {inside.layers[at]}, mean over {inside.relative.weight.shape[1]} heads", fontsize=12)
    return figure


def _between_cells(figure: Figure, panel: Axes, inside: AttentionInside, at: int) -> None:
    """Attention between the cells of one step, as far as there are pairs."""
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import MaxNLocator

    relative = inside.relative
    _, rows, cols = relative.reach
    heat, pairs = relative.weight[at].mean(0)[relative.reach[0]], relative.pairs[relative.reach[0]]
    high = int((pairs.sum(1) > 0).sum()) // 2
    wide = int((pairs.sum(0) > 0).sum()) // 2
    heat = heat[rows - high : rows + high + 1, cols - wide : cols + wide + 1]
    seen = heat[heat > 0]
    norm = LogNorm(max(float(seen.min()), 1e-6), max(float(seen.max()), 2e-6)) if len(seen) else None
    image = panel.imshow(
        heat.numpy(),
        cmap="viridis",
        norm=norm,
        extent=(-wide - 0.5, wide + 0.5, high + 0.5, -high - 0.5),
        aspect="auto",
    )
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    panel.set_xlabel("columns to the right")
    panel.set_ylabel("rows below")
    panel.set_title("from a cell to one of its step", fontsize=10)
    figure.colorbar(image, ax=panel, label="mean weight")


def _by_distance(panel: Axes, inside: AttentionInside, at: int) -> None:
    share = inside.share
    distance = share.distance.tolist()
    panel.plot(distance, share.share[at].mean(0).tolist(), marker="o", markersize=3, label="attention")
    panel.plot(distance, share.even.tolist(), linestyle="--", color="#888888", label="if even")
    panel.set_ylim(0, 1)
    panel.set_xlabel("words behind the pictures")
    panel.set_ylabel("share to the cells of pictures")
    panel.set_title("from words to pictures", fontsize=10)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False)
