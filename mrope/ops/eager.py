"""The specification of the rotation, in plain torch: any device and dtype, with autograd, and in a compiled graph.

Letters: A axes, B batch, H heads, K heads of a table, N tokens, D head dim, F rotary pairs (2F of the D channels turn).
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float, Float32, Int64, Shaped
from torch import Tensor

from mrope.checks import Number, one_of
from mrope.ops.strides import address

Pairing: TypeAlias = Literal["half", "adjacent"]
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def rotate(
    x: Float[Tensor, "*b h n d"], cos: Float[Tensor, "*c m f"], sin: Float[Tensor, "*c m f"], pairing: Pairing = "half"
) -> Float[Tensor, "*b h n d"]:
    """A copy of `x` whose first 2F channels are turned, in float32 (float64 for float64), rounded once at the end.

    Pair j of a token turns as a complex number does (RoFormer, arXiv:2104.09864, section 3.4.2), in one of two layouts:

        half      a a a a b b b b . .      adjacent  a b a b a b a b . .      . passes unchanged

    Args:
        x: (B, H, N, D) or (H, N, D), float16, bfloat16, float32 or float64.
        cos: (N, F), or (B, N, F) where rows of the batch differ, or (B or 1, K, N, F) where heads differ: each of its K
            heads serves H / K of x, one after another, as keys do in grouped attention.
        sin: the same shape.
        pairing: channels of pair j: "half" is (j, j + F), "adjacent" is (2j, 2j + 1).

    Raises:
        ValueError: the table does not fit x: other tokens, another batch, or more rotary channels than x has; or one of
            them is no dense floating tensor.
        TypeError: one is no tensor.

    >>> quarter = torch.tensor([[torch.pi / 2]])
    >>> rotate(torch.tensor([[[3.0, 4.0, 5.0]]]), quarter.cos(), quarter.sin()).round()
    tensor([[[-4.,  3.,  5.]]])
    """
    one_of("pairing", pairing, ("half", "adjacent"))
    check_x("x", x)
    check_table("x", x, cos, sin)
    return turned(x, cos, sin, pairing)


def turned(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing) -> Tensor:
    """`rotate` of arguments that are checked."""
    pairs = cos.shape[-1]
    dtype = torch.promote_types(x.dtype, torch.float32)
    turning, rest = x.split((2 * pairs, x.shape[-1] - 2 * pairs), dim=-1)
    turning = turning.to(dtype)
    cos, sin = _beside(x, cos).to(dtype), _beside(x, sin).to(dtype)
    if pairing == "half":
        a, b = turning.chunk(2, dim=-1)
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


def check_floats(name: str, x: Any) -> None:
    """Refuse what is no dense tensor of a dtype that is computed with."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; expected a torch.Tensor")
    if x.layout != torch.strided:
        raise ValueError(f"{name} has layout {x.layout}; expected a dense tensor, as of to_dense()")
    if x.dtype not in FLOATS:
        raise ValueError(f"{name} has dtype {x.dtype}; expected float16, bfloat16, float32 or float64")


def check_x(name: str, x: Any) -> None:
    """Refuse an x of this name that cannot turn, whatever the table."""
    check_floats(name, x)
    if x.dim() not in (3, 4):
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected (B, H, N, D) or (H, N, D)")


def check_table(name: str, x: Tensor, cos: Any, sin: Any) -> None:
    """Refuse cos and sin that are no table for the x of this name."""
    for part, table in (("cos", cos), ("sin", sin)):
        check_floats(part, table)
        if table.device != x.device:
            raise ValueError(f"{part} is on {table.device}, {name} on {x.device}; expected the same device")
        if x.requires_grad and torch.is_grad_enabled() and not torch.compiler.is_compiling() and table.is_inference():
            raise ValueError(f"{part} was made in inference mode, so that {name} can have no gradient; clone it")
    if cos.shape != sin.shape:
        raise ValueError(f"cos has shape {tuple(cos.shape)}, sin {tuple(sin.shape)}; expected one shape")
    if cos.dim() not in (2, 3, 4):
        raise ValueError(f"cos has shape {tuple(cos.shape)}; expected (N, F), (B, N, F) or (B or 1, K, N, F)")
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
        ids: (A, N) or (A, B, N), positions of any integer or real dtype. One that is no finite number makes NaN of the
            pairs that read it, of them alone.
        axis: (F,) int64, the axis that each pair reads.
        inv_freq: (F,) float32 or float64, radians per position. Its dtype is that of the products: in float32 they have
            the bits of transformers, in float64 they stay true far out.
        scale: what cos and sin are multiplied by, one number or one a pair (YaRN, arXiv:2309.00071, section 3.4).

    Raises:
        ValueError: a shape, dtype or device does not fit, or a pair reads an axis that ids do not have. The last is
            seen on the CPU alone: reading `axis` would wait for another device.
        TypeError: one is no tensor, or the scale no number.

    >>> cos, sin = angles(torch.tensor([[0, 0], [2, 4]]), torch.tensor([0, 1]), torch.tensor([1.0, torch.pi / 2]))
    >>> cos
    tensor([[ 1., -1.],
            [ 1.,  1.]])
    """
    check_angles(ids, axis, inv_freq, scale)
    return made(ids, axis, inv_freq, scale)


def made(ids: Tensor, axis: Tensor, inv_freq: Tensor, scale: Number | Tensor) -> tuple[Tensor, Tensor]:
    """`angles` of arguments that are checked."""
    position = ids.to(inv_freq.dtype)
    if ids.is_floating_point():
        angle = position.index_select(0, axis).movedim(0, -1).contiguous() * inv_freq
    else:
        # A weight is 0 where a pair reads another axis, so that a sum over the few axes chooses; it adds zeros alone,
        # hence rounds nothing, and takes a fifth of the time; but 0 times infinity would be no zero.
        weights = inv_freq.new_zeros(ids.shape[0], inv_freq.shape[0]).scatter(0, axis[None], inv_freq[None])
        first, *others = position.unsqueeze(-1)
        angle = first * weights[0]
        for other, weight in zip(others, weights[1:], strict=True):
            angle = angle.addcmul_(other, weight)
    cos, sin = angle.cos(), angle.sin()
    if isinstance(scale, Tensor) or scale != 1:
        cos, sin = cos * scale, sin * scale
    return cos.float(), sin.float()


def check_angles(ids: Any, axis: Any, inv_freq: Any, scale: Any) -> None:
    """Refuse what makes no angles, by what is known without waiting for a device."""
    check_floats("inv_freq", inv_freq)
    if inv_freq.dim() != 1 or inv_freq.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"inv_freq is {inv_freq.dtype} of shape {tuple(inv_freq.shape)}; expected (F,) of float32 or float64"
        )
    tensors = [("ids", ids), ("axis", axis)]
    if isinstance(scale, Tensor):
        check_floats("scale", scale)
        tensors.append(("scale", scale))
    elif not isinstance(scale, (float, int)):
        raise TypeError(f"scale is {scale!r}; expected a number, or a tensor of one for each pair")
    for name, x in tensors:
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}; expected a torch.Tensor")
        if x.device != inv_freq.device:
            raise ValueError(f"{name} is on {x.device}, inv_freq on {inv_freq.device}; expected the same device")
        if name != "ids" and x.shape != inv_freq.shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; expected that of inv_freq, {tuple(inv_freq.shape)}")
    if ids.dim() not in (2, 3) or not len(ids):
        raise ValueError(f"ids have shape {tuple(ids.shape)}; expected (A, N) or (A, B, N), of an axis at least")
    if ids.dtype == torch.bool or ids.is_complex():
        raise ValueError(f"ids have dtype {ids.dtype}; expected whole or real numbers")
    if axis.dtype != torch.int64:
        raise ValueError(f"axis has dtype {axis.dtype}; expected torch.int64")
    if axis.is_cpu and type(axis) is Tensor and address(axis):
        used, axes = axis.tolist(), len(ids)
        if min(used) < 0 or max(used) >= axes:
            raise ValueError(f"axis has {min(used)} to {max(used)}; expected 0 to {axes - 1}, as ids have {axes} axes")
