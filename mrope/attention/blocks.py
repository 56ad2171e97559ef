"""A small rotary attention and the pre-norm block around it, used by our own models and probes.

Letters: B batch, N tokens, C channels, H heads, D head dim.
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from mrope.checks import whole
from mrope.rotary import apply_rotary

Table = tuple[Tensor, Tensor]  # cos and sin of every token, (N, F) or (B, N, F), float32: `Rotary.cos_sin`


class Attention(nn.Module):
    """Multi-head attention whose queries and keys are rotated, and whose values are not.

    Args:
        dim: channels C.
        heads: number of heads; ``dim / heads`` is the head dim D, of which the table's 2F channels rotate.
    """

    def __init__(self, dim: int, heads: int):
        super().__init__()
        if dim % whole("heads", heads, 1):
            raise ValueError(f"dim {dim} does not split into {heads} heads")
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Float[Tensor, "b n c"], table: Table, mask: Bool[Tensor, "..."] | None = None) -> Tensor:
        """Attend. ``mask`` broadcasts to (B, H, N, N) and is True where a query may look; None lets all see all."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = (apply_rotary(each, *table) for each in (q, k))
        return self.out(scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Pre-norm transformer block: rotary attention, then a GELU MLP four times as wide."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Float[Tensor, "b n c"], table: Table, mask: Bool[Tensor, "..."] | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x), table, mask)
        return x + self.down(gelu(self.up(self.norm2(x))))
