"""The specification of the rotation, in plain torch: any device and dtype, with autograd, and in a compiled graph.

Letters: A axes, B batch, H heads, K heads of a table, N tokens, D head dim, F rotary pairs (2F of the D channels turn).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from jaxtyping import Float, Float32, Int64, Shaped
from torch import Tensor

from mrope.checks import Number, one_of

Pairing: TypeAlias = Literal["half", "adjacent"]


def rotate(
    x: Float[Tensor, "*b h n d"], cos: Float[Tensor, "*c m f"], sin: Float[Tensor, "*c m f"], pairing: Pairing = "half"
) -> Float[Tensor, "*b h n d"]:
    """A copy of `x` whose first 2F channels are turned, in float32 (float64 for float64), rounded once at the end.

    Pair j of a token turns as a complex number does (RoFormer, arXiv:2104.09864, section 3.4.2), in one of two layouts:

        half      a a a a b b b b . .      adjacent  a b a b a b a b . .      . passes unchanged

    Args:
        x: (B, H, N, D) or (H, N, D), any floating dtype.
        cos: (N, F), or (B, N, F) where rows of the batch differ, or (B or 1, K, N, F) where heads differ: each of its K
            heads serves H / K of x, one after another, as keys do in grouped attention.
        sin: the same shape.
        pairing: channels of pair j: "half" is (j, j + F), "adjacent" is (2j, 2j + 1).

    Raises:
        ValueError: the table does not fit x: other tokens, another batch, or more rotary channels than x has.

    >>> quarter = torch.tensor([[torch.pi / 2]])
    >>> rotate(torch.tensor([[[3.0, 4.0, 5.0]]]), quarter.cos(), quarter.sin()).round()
    tensor([[[-4.,  3.,  5.]]])
    """
    one_of("pairing", pairing, ("half", "adjacent"))
    check_table("x", x, cos, sin)
    pairs = cos.shape[-1]
    dtype = torch.promote_types(x.dtype, torch.float32)
    turning, rest = x[..., : 2 * pairs].to(dtype), x[..., 2 * pairs :]
    cos, sin = _beside(x, cos).to(dtype), _beside(x, sin).to(dtype)
    if pairing == "half":
        a, b = turning[..., :pairs], turning[..., pairs:]
    else:
        a, b = turning[..., 0::2], turning[..., 1::2]
    # Under autocast torch.cat may itself change the dtype of half-precision parts, so the one cast comes last; inductor
    # alone wants it first, as it then makes one vectorised loop of all.
    last = x.dtype if torch.compiler.is_compiling() else dtype
    a, b = (a * cos - b * sin).to(last), (b * cos + a * sin).to(last)
    parts = (a, b) if pairing == "half" else (torch.stack((a, b), dim=-1).flatten(-2),)
    return torch.cat((*parts, rest.to(last)), dim=-1).to(x.dtype)


def _beside(x: Tensor, table: Tensor) -> Tensor:
    """A checked table in a shape that broadcasts over x."""
    if table.dim() == 3:
        return table.unsqueeze(1)
    if table.dim() == 4 and 1 < table.shape[1] < x.shape[-3]:
        table = table.repeat_interleave(x.shape[-3] // table.shape[1], dim=1)
    return table if x.dim() == 4 or table.dim() == 2 else table.squeeze(0)


def check_table(name: str, x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Refuse cos and sin of one shape that are no table for the x of this name."""
    if cos.shape != sin.shape:
        raise ValueError(f"cos has shape {tuple(cos.shape)}, sin {tuple(sin.shape)}; expected one shape")
    *batch, heads, tokens, channels = x.shape
    *lead, own, pairs = cos.shape
    if channels < 2 * pairs:
        raise ValueError(f"{name} has {channels} channels; a table of {pairs} pairs rotates {2 * pairs}")
    fits = own == tokens and (
        not lead
        or (len(lead) == 1 and lead == batch)
        or (len(lead) == 2 and lead[0] in (1, *batch) and lead[1] > 0 and heads % lead[1] == 0)
    )
    if not fits:
        shapes = [(tokens, pairs), (*batch, tokens, pairs)] if len(batch) == 1 else [(tokens, pairs)]
        raise ValueError(
            f"cos has shape {tuple(cos.shape)}; {name} of shape {tuple(x.shape)} takes "
            f"{' or '.join(map(str, shapes))}, or a table of its own for each head: "
            f"({' or '.join(map(str, dict.fromkeys((*batch, 1))))}, {heads} or a divisor, {tokens}, {pairs})"
        )


def angles(
    ids: Shaped[Tensor, "a *b n"],
    axis: Int64[Tensor, " f"],
    inv_freq: Float[Tensor, " f"],
    *,
    scale: Number | Float[Tensor, " f"] = 1.0,
) -> tuple[Float32[Tensor, "*b n f"], Float32[Tensor, "*b n f"]]:
    """Cos and sin of each token and pair, float32: of the position on the axis of the pair, times its frequency.

    Args:
        ids: (A, N) or (A, B, N), positions of any integer or real dtype.
        axis: (F,) int64, the axis that each pair reads.
        inv_freq: (F,) radians per position. Its dtype is that of the products: in float32 they have the bits of
            transformers, in float64 they stay true far out.
        scale: what cos and sin are multiplied by, one number or one a pair (YaRN, arXiv:2309.00071, section 3.4).

    >>> cos, sin = angles(torch.tensor([[0, 0], [2, 4]]), torch.tensor([0, 1]), torch.tensor([1.0, torch.pi / 2]))
    >>> cos
    tensor([[ 1., -1.],
            [ 1.,  1.]])
    """
    # A weight is 0 where a pair reads another axis, so that a sum over the few axes chooses; it adds zeros alone, hence
    # rounds nothing, and takes a third of the time of a gather.
    weights = inv_freq.new_zeros(ids.shape[0], inv_freq.shape[0]).scatter(0, axis[None], inv_freq[None])
    first, *others = ids.to(inv_freq.dtype).unsqueeze(-1)
    angle = first * weights[0]
    for position, weight in zip(others, weights[1:], strict=True):
        angle = angle.addcmul_(position, weight)
    cos, sin = angle.cos(), angle.sin()
    if isinstance(scale, Tensor) or scale != 1:
        cos, sin = cos * scale, sin * scale
    return cos.float(), sin.float()
