"""Queries and keys turned together, by the implementation that is asked for or by the one that suits them.

Letters: A axes, B batch, H heads, K heads of a table, N tokens, D head dim, F rotary pairs.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from mrope.checks import Number, one_of
from mrope.ops import cpu, gpu
from mrope.ops.eager import Pairing, angles, check_table, rotate
from mrope.ops.strides import folded

Impl: TypeAlias = Literal["auto", "eager", "numba", "triton"]
IMPLS = ("auto", "eager", "numba", "triton")


def choose(
    q: Float[Tensor, "*b hq n d"],
    k: Float[Tensor, "*b hk n d"],
    cos: Float[Tensor, "*c m f"],
    sin: Float[Tensor, "*c m f"],
    *,
    in_place: bool = False,
) -> Literal["eager", "numba", "triton"]:
    """The implementation that "auto" takes for these tensors.

    Triton on CUDA; Numba, where it is installed, for float32 and bfloat16 on the CPU from 65,536 elements on; else
    eager, as always inside `torch.compile`, and where cos or sin want a gradient.

    >>> few, table = torch.ones(1, 2, 3, 8), torch.ones(3, 4)
    >>> choose(few, few, table, table)
    'eager'
    """
    if torch.compiler.is_compiling() or _learned(cos, sin):
        return "eager"
    if q.is_cuda:
        return "eager" if gpu.unfit(q, k, in_place=in_place) else "triton"
    pays = q.numel() + k.numel() >= cpu.PAYS and type(q) is type(k) is Tensor
    return "numba" if pays and cpu.unfit(q, k, cos, in_place=in_place) is None else "eager"


def rotate_qk(
    q: Float[Tensor, "*b hq n d"],
    k: Float[Tensor, "*b hk n d"],
    cos: Float[Tensor, "*c m f"],
    sin: Float[Tensor, "*c m f"],
    *,
    pairing: Pairing = "half",
    impl: Impl = "auto",
) -> tuple[Float[Tensor, "*b hq n d"], Float[Tensor, "*b hk n d"]]:
    """Copies of `q` and `k` turned by the same table, as `rotate` turns each.

    Args:
        q: (B, Hq, N, D) or (Hq, N, D), of any strides: transposed views of (B, N, Hq, D) cost nothing.
        k: the same with its own heads; dtype and device are those of q.
        cos: (N, F), (B, N, F), or (B or 1, K, N, F), where K divides the heads of both.
        sin: the same shape.
        pairing: channels of pair j: "half" is (j, j + F), "adjacent" is (2j, 2j + 1).
        impl: "auto" takes what `choose` says. Numba and Triton give gradients to q and k alone, of any order.

    Raises:
        ValueError: the table does not fit, dtypes or devices differ, or the named implementation cannot take these.
        ImportError: the package of the named implementation is not installed.

    >>> q, k, quarter = torch.ones(2, 1, 4), torch.ones(1, 1, 4), torch.full((1, 2), torch.pi / 2)
    >>> rotate_qk(q, k, quarter.cos(), quarter.sin())[1].round()
    tensor([[[-1., -1.,  1.,  1.]]])
    """
    chosen = _chosen(q, k, cos, sin, pairing, impl, in_place=False)
    if chosen == "eager":
        return rotate(q, cos, sin, pairing), rotate(k, cos, sin, pairing)
    return _Turn.apply(q, k, cos, sin, pairing, chosen)


def rotate_qk_(
    q: Float[Tensor, "*b hq n d"],
    k: Float[Tensor, "*b hk n d"],
    cos: Float[Tensor, "*c m f"],
    sin: Float[Tensor, "*c m f"],
    *,
    pairing: Pairing = "half",
    impl: Impl = "auto",
) -> None:
    """Turn `q` and `k` where they lie, without gradients; arguments and errors are those of `rotate_qk`.

    Raises:
        ValueError: a tensor wants a gradient, or one element of memory is seen at several places.

    >>> q, k, quarter = torch.ones(2, 1, 4), torch.ones(1, 1, 4), torch.full((1, 2), torch.pi / 2)
    >>> rotate_qk_(q, k, quarter.cos(), quarter.sin())
    >>> k.round()
    tensor([[[-1., -1.,  1.,  1.]]])
    """
    for name, x in (("q", q), ("k", k), ("cos", cos), ("sin", sin)):
        if x.requires_grad:
            raise ValueError(f"{name} requires a gradient, which a rotation in place cannot give; use rotate_qk")
    for name, x in (("q", q), ("k", k)):
        if folded(x):
            raise ValueError(
                f"{name} of shape {tuple(x.shape)} has strides {x.stride()}, so that elements share memory; clone it"
            )
    if q.numel() and q.data_ptr() == k.data_ptr():
        raise ValueError("q and k begin at the same memory, which would be turned twice; clone one of them")
    chosen = _chosen(q, k, cos, sin, pairing, impl, in_place=True)
    if chosen == "eager":
        for x in (q, k):
            turning = x[..., : 2 * cos.shape[-1]]
            turning.copy_(rotate(turning, cos, sin, pairing))
        return
    _module(chosen).turn(q, k, q, k, cos, sin, pairing)
    for x in (q, k):  # as autograd would learn from an operation of torch
        if not x.is_inference():
            torch.autograd.graph.increment_version(x)


def rotate_qk_from_ids(
    q: Float[Tensor, "*b hq n d"],
    k: Float[Tensor, "*b hk n d"],
    ids: Shaped[Tensor, "a *c n"],
    axis: Int64[Tensor, " f"],
    inv_freq: Float[Tensor, " f"],
    *,
    scale: Number | Float[Tensor, " f"] = 1.0,
    pairing: Pairing = "half",
    impl: Impl = "auto",
) -> tuple[Float[Tensor, "*b hq n d"], Float[Tensor, "*b hk n d"]]:
    """`rotate_qk` by the table of `angles`, which Triton makes in its kernel and never writes down.

    Args:
        q: as in `rotate_qk`.
        k: as in `rotate_qk`.
        ids: (A, N) or (A, B, N), positions of any integer or real dtype.
        axis: (F,) int64, the axis that each pair reads.
        inv_freq: (F,) radians per position; in float64 the table is made outside the kernel.
        scale: what cos and sin are multiplied by, one number or one for each pair.
        pairing: as in `rotate_qk`.
        impl: as in `rotate_qk`.

    Raises:
        ValueError: as in `rotate_qk`.
        ImportError: as in `rotate_qk`.

    >>> q, k, ids = torch.ones(2, 1, 4), torch.ones(1, 1, 4), torch.tensor([[0], [1]])
    >>> rotate_qk_from_ids(q, k, ids, torch.tensor([0, 1]), torch.full((2,), torch.pi / 2))[1].round()
    tensor([[[ 1., -1.,  1.,  1.]]])
    """
    # A table without memory: its shape says whether all fits.
    shape = inv_freq.new_empty(()).expand(*ids.shape[1:], len(inv_freq))
    chosen = _chosen(q, k, shape, shape, pairing, impl, in_place=False)
    factor = torch.as_tensor(scale, dtype=torch.float32, device=q.device).expand(len(inv_freq))
    if chosen == "triton" and inv_freq.dtype == torch.float32 and not _learned(inv_freq, factor):
        return _TurnFromIds.apply(q, k, ids, axis, inv_freq, factor, 1.0, pairing)
    return rotate_qk(q, k, *angles(ids, axis, inv_freq, scale=scale), pairing=pairing, impl=impl)


def _learned(*tables: Tensor) -> bool:
    return torch.is_grad_enabled() and any(table.requires_grad for table in tables)


def _side_by_side(x: Tensor) -> Tensor:
    """x itself, or a copy whose channels lie side by side, as every kernel reads them."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _module(chosen: str) -> Any:
    return cpu if chosen == "numba" else gpu


def _chosen(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, pairing: str, impl: str, *, in_place: bool) -> str:
    """The implementation for these arguments, which are checked."""
    one_of("pairing", pairing, ("half", "adjacent"))
    one_of("impl", impl, IMPLS)
    if q.dtype != k.dtype or q.device != k.device:
        raise ValueError(f"q is {q.dtype} on {q.device}, k is {k.dtype} on {k.device}; expected the same of both")
    for name, table in (("cos", cos), ("sin", sin)):
        if table.device != q.device:
            raise ValueError(f"{name} is on {table.device}, q on {q.device}; expected the same device")
    check_table("q", q, cos, sin)
    check_table("k", k, cos, sin)
    if impl == "auto":
        return choose(q, k, cos, sin, in_place=in_place)
    if impl != "eager":
        if torch.compiler.is_compiling():
            raise ValueError(f"impl {impl!r} cannot be traced by torch.compile; take 'auto' or 'eager'")
        unfit = cpu.unfit(q, k, cos, in_place=in_place) if impl == "numba" else gpu.unfit(q, k, in_place=in_place)
        if unfit is not None:
            raise unfit
        if _learned(cos, sin):
            raise ValueError(f"cos or sin requires a gradient, which impl {impl!r} cannot give; take 'auto' or 'eager'")
    return impl


class _Turn(torch.autograd.Function):
    """A turn, whose gradient is the turn back: a function of this kind again, so that it has gradients of any order."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing, impl: str
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        ctx.words = pairing, impl
        q, k = _side_by_side(q), _side_by_side(k)
        out_q, out_k = torch.empty_like(q), torch.empty_like(k)
        _module(impl).turn(q, k, out_q, out_k, cos, sin, pairing)
        return out_q, out_k

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return (*_Turn.apply(*grads, cos, -sin, *ctx.words), None, None, None, None)


class _TurnFromIds(torch.autograd.Function):
    """The same with angles made in the kernel."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        ids: Tensor,
        axis: Tensor,
        inv_freq: Tensor,
        scale: Tensor,
        sign: float,
        pairing: Pairing,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(ids, axis, inv_freq, scale)
        ctx.sign, ctx.pairing = sign, pairing
        q, k = _side_by_side(q), _side_by_side(k)
        out_q, out_k = torch.empty_like(q), torch.empty_like(k)
        gpu.turn_from_ids(q, k, out_q, out_k, ids, axis, inv_freq, scale, sign, pairing)
        return out_q, out_k

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (*_TurnFromIds.apply(*grads, *ctx.saved_tensors, -ctx.sign, ctx.pairing), *[None] * 6)
