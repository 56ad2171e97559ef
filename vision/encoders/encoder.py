"""The native-resolution vision encoder: patches of any number of pictures in, one vector a token out.

Letters: P patches, M = merge * merge patches of a token, C channels.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm

from mrope.attention import Block
from mrope.axes import AxisSplit
from mrope.frequencies import Frequencies
from mrope.rotary import Rotary


class WindowEncoder(nn.Module):
    """A ViT whose attention window is one token's block of patches, as `Patches` lays them out.

    Patches know their (row, col) inside the block through a 2-axis rotary. Nothing crosses a block, so the encoder
    costs the same for every patch, needs no padding at any picture size, and cannot tell a token where it stands in
    the picture: that knowledge is left to the positions of the decoder, which is what our probes measure.

    Args:
        patch_dim: values in a patch (channels * temporal patch * patch * patch).
        merge: patches on a side of a token's block.
        dim, depth, heads: width, number of blocks and heads of the ViT.
        out_dim: width of a token for the decoder.

    Example:
        >>> encoder = WindowEncoder(patch_dim=192, merge=4, dim=32, depth=1, heads=2, out_dim=64)
        >>> encoder(torch.zeros(6 * 16, 192)).shape
        torch.Size([6, 64])
    """

    table_cos: Tensor
    table_sin: Tensor

    def __init__(self, *, patch_dim: int, merge: int, dim: int, depth: int, heads: int, out_dim: int):
        super().__init__()
        self.block_patches = merge * merge
        self.embed = nn.Linear(patch_dim, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.merge_up = nn.Linear(self.block_patches * dim, 2 * out_dim)
        self.merge_down = nn.Linear(2 * out_dim, out_dim)

        pairs = dim // heads // 2
        rotary = Rotary(AxisSplit((pairs - pairs // 2, pairs // 2)), Frequencies(100.0))
        row_col = torch.cartesian_prod(torch.arange(merge), torch.arange(merge)).T
        cos, sin = rotary.cos_sin(row_col)
        self.register_buffer("table_cos", cos, persistent=False)
        self.register_buffer("table_sin", sin, persistent=False)

    def forward(self, values: Float[Tensor, "p v"]) -> Float[Tensor, "n c"]:
        """Encode patches in merge-block order (`Patches.values`) to P / M tokens."""
        blocks = values.unflatten(0, (-1, self.block_patches))
        # Ink and paper of any colours to about the same two levels: what is left to learn is shapes.
        x = self.embed(layer_norm(blocks, blocks.shape[1:]))
        for block in self.blocks:
            x = block(x, (self.table_cos, self.table_sin))
        return self.merge_down(gelu(self.merge_up(self.norm(x).flatten(1))))
