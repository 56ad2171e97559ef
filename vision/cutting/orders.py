"""The orders in which patches lie, as views: what is written through a view lies in the family's order at once.

Letters: t temporal steps, R x C tokens, m patches a side of a token, 3 channels, T frames of a patch, p pixels a side.
"""

from __future__ import annotations

from jaxtyping import Shaped
from torch import Tensor

from mrope.families import PatchOrder
from mrope.spans import Grid


def by_token(
    values: Shaped[Tensor, "n v"], grid: Grid, *, patch: int, merge: int, order: PatchOrder
) -> Shaped[Tensor, "t r c m m 3 f p p"]:
    """The patches of one grid seen as (t, R, C, m, m, 3, T, p, p): tokens row by row, patches of them, their pixels.

    Args:
        values: (t*h*w, 3*T*p*p) in the family's order.
        grid: (t, h, w) in patches.

    >>> import torch
    >>> values = torch.arange(16).reshape(16, 1).expand(16, 3)
    >>> by_token(values, (1, 4, 4), patch=1, merge=2, order="blocks")[0, 0, 1, :, :, 0, 0, 0, 0]
    tensor([[4, 5],
            [6, 7]])
    """
    t, h, w = grid
    rows, cols = h // merge, w // merge
    if order in ("blocks", "blocks-channels-last"):
        tokens = values.view(t, rows, cols, merge, merge, -1)
    else:
        tokens = values.view(t, rows, merge, cols, merge, -1).transpose(2, 3)
    if order in ("blocks-channels-last", "raster-channels-last"):  # a patch is (p, p, 3, T)
        return tokens.unflatten(-1, (patch, patch, 3, -1)).permute(0, 1, 2, 3, 4, 7, 8, 5, 6)
    return tokens.unflatten(-1, (3, -1, patch, patch))


def in_order(raster: Shaped[Tensor, "h w c"], order: PatchOrder, merge: int) -> Shaped[Tensor, "n c"]:
    """(h * w, C): what belongs to the patches of one picture, in the order in which they lie."""
    h, w, _ = raster.shape
    if not order.startswith("blocks"):
        return raster.flatten(0, 1)
    return raster.view(h // merge, merge, w // merge, merge, -1).transpose(1, 2).flatten(0, 3)
