"""Learned position tables at any grid, by the rules that the families and timm resample with.

Letters: H x W positions of the table, h x w patches of a picture, C channels, P pictures, N patches of all of them.

Every rule treats the two axes apart: row i of the picture is a weighted sum of the rows of the table, and its columns
likewise. A rule is therefore one matrix (h, H) and one (w, W), and resampling is two matrix products.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from mrope.checks import one_of, whole
from mrope.encodings.operands import without_autocast
from mrope.families import PatchOrder

from ..cutting.orders import in_order
from ..cutting.packing import check_order

TableKind: TypeAlias = Literal[
    "bilinear",
    "bilinear-corners",
    "bilinear-shifted",
    "bilinear-antialias",
    "bicubic",
    "bicubic-antialias",
    "nearest",
]
Aspect: TypeAlias = Literal["stretched", "square"]


def table_for(
    table: Float[Tensor, "H W c"],
    grids: Int[Tensor, "p 3"],
    kind: TableKind,
    *,
    order: PatchOrder,
    merge: int,
    aspect: Aspect = "stretched",
) -> Float[Tensor, "n c"]:
    """The rows of a table for the patches of many pictures, in the order in which they lie.

    Each distinct (h, w) is resampled once; the temporal steps of a clip have the same rows.

    Args:
        table: (H, W, C), without the rows of class tokens.
        grids: (P, 3) int64 or int32, (t, h, w) in patches.
        kind: see `resample_table`.
        order: of the patches, `Family.patch_order`.
        merge: patches per LLM token and side.
        aspect: see `resample_table`.

    Raises:
        TypeError, ValueError: `grids` are none, or have a side below 1 or one that is no multiple of `merge`.

    >>> table = torch.arange(6.0).view(2, 3, 1)
    >>> grids = torch.tensor([[2, 2, 3], [1, 4, 2]])
    >>> table_for(table, grids, "bilinear", order="raster", merge=1)[:, 0].tolist()[:12]
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """
    check_order(grids, order, merge)
    made: dict[tuple[int, int], Tensor] = {}
    pieces = [table.new_empty(0, table.shape[-1])]
    for t, h, w in grids.tolist():
        if (h, w) not in made:
            raster = resample_table(table, (h, w), kind, aspect=aspect).view(h, w, -1)
            made[h, w] = in_order(raster, order, merge)
        pieces += [made[h, w]] * t
    return torch.cat(pieces)


def resample_table(
    table: Float[Tensor, "H W c"], grid: tuple[int, int], kind: TableKind, *, aspect: Aspect = "stretched"
) -> Float[Tensor, "n c"]:
    """A learned position table (ViT, arXiv:2010.11929) for a picture of another grid, row by row.

    Computed in float32 (float64 of such a table) and rounded once. The eight kinds of encoders among our families that
    have a table (Qwen3-VL, GLM-4V, PaddleOCR-VL, Cosmos3-Edge, HunyuanVL, HY-V4-VL, GLM-Image, MiniCPM-V) resample it
    by six rules, the ViTs of timm by a seventh. Row i of h lies at row u of the H of the table, and columns likewise:

    ====================  ======================================  ==================================================
    "bilinear"            u = (i + 1/2) H / h - 1/2               PaddleOCR-VL, HunyuanVL, GLM-Image; C-RADIO of timm
    "bilinear-corners"    u = i (H - 1) / (h - 1)                 Qwen3-VL, Qwen3.5, Cohere Compass; C-RADIOv3 B and H
    "bilinear-shifted"    u = (i + 1/2) H / (h + 1/10) - 1/2      HY-V4-VL
    "bilinear-antialias"  as "bilinear"                           SigLIP2 (arXiv:2502.14786), Cosmos3-Edge; NaFlexViT
                                                                  of timm with SigLIP weights
    "bicubic"             as "bilinear"                           GLM-4V
    "bicubic-antialias"   as "bilinear"                           timm: ViT, NaFlexViT
    "nearest"             the row of i / h, none between rows     MiniCPM-V, Idefics2
    ====================  ======================================  ==================================================

    A side of the table's own length takes its rows as they are, also "bilinear-shifted" (as torch has it on the CPU);
    so does a grid of its own size, also "square" (as timm has it). Beyond the edge the table goes on as its last row.
    The cubic kernel is Keys' with a = -3/4; where antialiased, a table that is shrunk is averaged over as many more
    rows, and the cubic kernel has a = -1/2. A picture of one column gets other rows antialiased than from the models
    themselves on a CPU: torch 2.14 resizes wrongly to a width of 1 there. "nearest" counts in float32, as its models
    do: where i H / h is whole it may fall one row short, at the table's own size too.

    Args:
        table: (H, W, C), without the rows of class tokens.
        grid: (h, w) in patches.
        kind: from the table above.
        aspect: "stretched" fits the table to both sides; "square" fits it to a square of the longer side, of which the
            picture is the upper left part (C-RADIO, and the NaFlexViTs of timm that keep aspect ratios).

    Returns:
        (h * w, C), of the table's dtype, differentiable.

    Raises:
        ValueError: a side of the grid or of the table below 1.

    >>> resample_table(torch.tensor([[[0.0], [6.0]]]), (1, 4), "bilinear-corners")[:, 0].tolist()
    [0.0, 2.0, 4.0, 6.0]
    >>> resample_table(torch.tensor([[[0.0], [6.0]]]), (1, 4), "bilinear")[:, 0].tolist()
    [0.0, 1.5, 4.5, 6.0]
    """
    one_of("aspect", aspect, get_args(Aspect))
    if not isinstance(table, Tensor):
        raise TypeError(f"table is a {type(table).__name__}; expected a tensor (H, W, C)")
    if table.dim() != 3 or not table.is_floating_point():
        raise ValueError(f"table is {table.dtype} of shape {tuple(table.shape)}; expected floating (H, W, C)")
    if not isinstance(grid, (tuple, list)) or len(grid) != 2:
        raise TypeError(f"grid is {grid!r}; expected (h, w)")
    h, w = (whole("grid entry", side, 1) for side in grid)
    full = (max(h, w),) * 2 if aspect == "square" and (h, w) != table.shape[:2] else (h, w)
    dtype = torch.promote_types(table.dtype, torch.float32)
    rows, cols = (
        axis_weights(size, side, kind)[:kept].to(table.device, dtype)
        for size, side, kept in zip(full, table.shape[:2], (h, w), strict=True)
    )
    with without_autocast(table.device):
        by_rows = (rows @ table.to(dtype).flatten(1)).view(h, *table.shape[1:])
        return (cols @ by_rows).flatten(0, 1).to(table.dtype)


def axis_weights(size: int, side: int, kind: TableKind) -> Float64[Tensor, "size side"]:
    """What each of `size` positions takes of each of the `side` rows of a table: its rows sum to 1.

    >>> axis_weights(3, 2, "bilinear-corners")
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000],
            [0.0000, 1.0000]], dtype=torch.float64)
    """
    one_of("kind", kind, get_args(TableKind))
    whole("size", size, 1)
    whole("side", side, 1)
    if kind == "nearest":
        # In float32, since a rounding decides between two rows where i * side / size is whole.
        bounds = torch.arange(1 / side, 1, 1 / side, dtype=torch.float32)
        nearest = torch.bucketize(torch.arange(size, dtype=torch.float32) / size, bounds, right=True)
        return torch.eye(side, dtype=torch.float64)[nearest]
    if size == side:
        return torch.eye(side, dtype=torch.float64)
    index, source = torch.arange(size, dtype=torch.float64), torch.arange(side, dtype=torch.float64)
    if kind == "bilinear-corners":
        centre = index * (side - 1) / max(size - 1, 1)
    else:
        centre = (index + 0.5) * side / (size + 0.1 * (kind == "bilinear-shifted")) - 0.5
    centre = centre[:, None]
    if kind.endswith("antialias"):
        reach = (source - centre) / max(side / size, 1)
        weights = _cubic(reach, -0.5) if kind == "bicubic-antialias" else _linear(reach)
        return weights / weights.sum(1, keepdim=True)
    taps = centre.floor() + torch.arange(-1, 3)
    weights = _cubic(taps - centre, -0.75) if kind == "bicubic" else _linear(taps - centre)
    return torch.zeros(size, side, dtype=torch.float64).scatter_add_(1, taps.long().clamp(0, side - 1), weights)


def _linear(distance: Tensor) -> Tensor:
    return (1 - distance.abs()).clamp(min=0)


def _cubic(distance: Tensor, a: float) -> Tensor:
    """Keys' kernel ("Cubic convolution interpolation for digital image processing", 1981)."""
    x = distance.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = a * (((x - 5) * x + 8) * x - 4)
    return torch.where(x <= 1, near, torch.where(x < 2, far, 0.0))
