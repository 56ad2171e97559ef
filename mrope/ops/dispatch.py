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
from mrope.ops.eager import Pairing, check_angles, check_table, check_x, made, turned
from mrope.ops.strides import folded, plain, shared

Impl: TypeAlias = Literal["auto", "eager", "numba", "triton"]
IMPLS = ("auto", "eager", "numba", "triton")
BLOCK = 1 << 20
"""Elements that eager torch turns at once where no gradient is wanted: its own memory is some times as many."""


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
    eager, as always inside `torch.compile`, inside transforms of `torch.func`, in forward-mode differentiation, and
    where cos or sin want a gradient.

    >>> few, table = torch.ones(1, 2, 3, 8), torch.ones(3, 4)
    >>> choose(few, few, table, table)
    'eager'
    """
    if torch.compiler.is_compiling():  # asks no sizes, which would become guards of the graph
        return "eager"
    impl = "triton" if q.is_cuda else "numba"
    pays = q.is_cuda or q.numel() + k.numel() >= cpu.PAYS
    fits = pays and type(q) is type(k) is Tensor and _unfit(impl, q, k, cos, sin, in_place=in_place) is None
    return impl if fits else "eager"


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
        ValueError: the table does not fit, dtypes or devices differ, one is no dense floating tensor, or the named
            implementation cannot take these.
        TypeError: one is no tensor.
        ImportError: the package of the named implementation is not installed.

    >>> q, k, quarter = torch.ones(2, 1, 4), torch.ones(1, 1, 4), torch.full((1, 2), torch.pi / 2)
    >>> rotate_qk(q, k, quarter.cos(), quarter.sin())[1].round()
    tensor([[[-1., -1.,  1.,  1.]]])
    """
    chosen = _chosen(q, k, cos, sin, pairing, impl, in_place=False)
    if chosen == "eager":
        return _eager(q, cos, sin, pairing), _eager(k, cos, sin, pairing)
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
        ValueError: a tensor wants a gradient; or an element of memory is seen at several places, or may be both in q
            and in k, which is not looked for in a compiled graph. Parts of one buffer side by side are welcome.

    >>> q, k, quarter = torch.ones(2, 1, 4), torch.ones(1, 1, 4), torch.full((1, 2), torch.pi / 2)
    >>> rotate_qk_(q, k, quarter.cos(), quarter.sin())
    >>> k.round()
    tensor([[[-1., -1.,  1.,  1.]]])
    """
    chosen = _chosen(q, k, cos, sin, pairing, impl, in_place=True)
    for name, x in (("q", q), ("k", k), ("cos", cos), ("sin", sin)):
        if x.requires_grad:
            raise ValueError(f"{name} requires a gradient, which a rotation in place cannot give; use rotate_qk")
    if not torch.compiler.is_compiling():
        _check_memory(q, k)
    if chosen == "eager":
        for x in (q, k):
            turning = x[..., : 2 * cos.shape[-1]]
            _turn_blocks(turning, turning, cos, sin, pairing)
        return
    _module(chosen).turn(q, k, q, k, cos, sin, pairing)
    for x in (q, k):  # as autograd would learn from an operation of torch
        if not x.is_inference():
            torch.autograd.graph.increment_version(x)


def rotate_qk_from_ids(
    q: Float[Tensor, "*b hq n d"],
    k: Float[Tensor, "*b hk n d"],
    ids: Shaped[Tensor, "a *c m"],
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
        axis: (F,) int64, the axis that each pair reads. In Triton a pair of an axis that ids do not have is left alone.
        inv_freq: (F,) radians per position; in float64 the table is made outside the kernel.
        scale: what cos and sin are multiplied by, one number or one for each pair.
        pairing: as in `rotate_qk`.
        impl: as in `rotate_qk`.

    Raises:
        ValueError: as in `rotate_qk` and `angles`, or ids are of other tokens or rows.
        TypeError: as in `rotate_qk` and `angles`.
        ImportError: as in `rotate_qk`.

    >>> q, k, ids = torch.ones(2, 1, 4), torch.ones(1, 1, 4), torch.tensor([[0], [1]])
    >>> rotate_qk_from_ids(q, k, ids, torch.tensor([0, 1]), torch.full((2,), torch.pi / 2))[1].round()
    tensor([[[ 1., -1.,  1.,  1.]]])
    """
    check_angles(ids, axis, inv_freq, scale)
    for name, x in (("q", q), ("k", k)):
        check_x(name, x)
        *batch, _, tokens, _ = x.shape
        if tuple(ids.shape[1:]) not in ((tokens,), (*batch, tokens)):
            raise ValueError(
                f"ids have shape {tuple(ids.shape)}; {name} of shape {tuple(x.shape)} takes "
                f"{' or '.join(map(str, dict.fromkeys([(len(ids), tokens), (len(ids), *batch, tokens)])))}"
            )
    # A table without memory: its shape says whether all fits.
    shape = inv_freq.new_empty(()).expand(*ids.shape[1:], len(inv_freq))
    chosen = _chosen(q, k, shape, shape, pairing, impl, in_place=False)
    factor = torch.as_tensor(scale, dtype=torch.float32, device=q.device).expand(len(inv_freq))
    given = ids, inv_freq, factor
    if chosen == "triton" and inv_freq.dtype == torch.float32 and plain(*given) and not _learned(*given):
        return _TurnFromIds.apply(q, k, ids, axis, inv_freq, factor, 1.0, pairing)
    return rotate_qk(q, k, *made(ids, axis, inv_freq, scale), pairing=pairing, impl=impl)


def _check_memory(q: Tensor, k: Tensor) -> None:
    """Refuse q and k if something in them would be turned twice."""
    for name, x in (("q", q), ("k", k)):
        if folded(x):
            raise ValueError(
                f"{name} of shape {tuple(x.shape)} has strides {x.stride()}, so that elements share memory; clone it"
            )
    if shared(q, k):
        raise ValueError("q and k may have memory in common, which would be turned twice; clone one of them")


def _learned(*tables: Tensor) -> bool:
    return torch.is_grad_enabled() and any(table.requires_grad for table in tables)


def _eager(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing) -> Tensor:
    """`rotate`, in blocks where nothing watches: its parts in float32 are several times what is turned."""
    given = x, cos, sin
    if (
        torch.compiler.is_compiling()
        or x.numel() <= BLOCK
        or type(x) is not Tensor
        or not plain(*given)
        or _learned(*given)
    ):
        return turned(x, cos, sin, pairing)
    out = torch.empty_like(x)
    _turn_blocks(x, out, cos, sin, pairing)
    return out


def _turn_blocks(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing) -> None:
    """Write x, turned, into `out`: another tensor or x itself, some tokens at a time."""
    if torch.compiler.is_compiling() or x.numel() <= BLOCK:
        out.copy_(turned(x, cos, sin, pairing))
        return
    size = max(1, BLOCK * x.shape[-2] // x.numel())
    for part, target, c, s in zip(*(each.split(size, dim=-2) for each in (x, out, cos, sin)), strict=True):
        target.copy_(turned(part, c, s, pairing))


def _side_by_side(x: Tensor) -> Tensor:
    """x itself, or a copy whose channels lie side by side, as every kernel reads them."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _module(chosen: str) -> Any:
    return cpu if chosen == "numba" else gpu


def _unfit(impl: str, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, in_place: bool) -> Exception | None:
    """Why Numba or Triton cannot turn these; None if it can."""
    if torch.compiler.is_compiling():
        return ValueError(f"impl {impl!r} cannot be traced by torch.compile; take 'auto' or 'eager'")
    unfit = cpu.unfit(q, k, cos, in_place=in_place) if impl == "numba" else gpu.unfit(q, k, in_place=in_place)
    if unfit is not None:
        return unfit
    if not plain(q, k, cos, sin):
        return ValueError(f"impl {impl!r} reads memory, past torch.func and forward AD; take 'auto' or 'eager'")
    if _learned(cos, sin):
        return ValueError(f"cos or sin requires a gradient, which impl {impl!r} cannot give; take 'auto' or 'eager'")
    return None


def _chosen(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, pairing: str, impl: str, *, in_place: bool) -> str:
    """The implementation for these arguments, which are checked."""
    one_of("pairing", pairing, ("half", "adjacent"))
    one_of("impl", impl, IMPLS)
    check_x("q", q)
    check_x("k", k)
    if q.dtype != k.dtype or q.device != k.device:
        raise ValueError(f"q is {q.dtype} on {q.device}, k is {k.dtype} on {k.device}; expected the same of both")
    check_table("q", q, cos, sin)
    check_table("k", k, cos, sin)
    if impl == "auto":
        return choose(q, k, cos, sin, in_place=in_place)
    if impl != "eager" and (unfit := _unfit(impl, q, k, cos, sin, in_place=in_place)) is not None:
        raise unfit
    return impl


class _Turn(torch.autograd.Function):
    """A turn, whose gradient is the turn back: a function of this kind again, so that it has gradients of any order."""

    generate_vmap_rule = True  # for tensors that vmap does not split; `choose` keeps the others away

    @staticmethod
    def forward(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing, impl: str) -> tuple[Tensor, Tensor]:
        q, k = _side_by_side(q), _side_by_side(k)
        out_q, out_k = torch.empty_like(q), torch.empty_like(k)
        _module(impl).turn(q, k, out_q, out_k, cos, sin, pairing)
        return out_q, out_k

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, _, cos, sin, ctx.pairing, ctx.impl = inputs
        ctx.save_for_backward(cos, sin)

    @staticmethod
    def backward(ctx: Any, q: Tensor, k: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        if _unfit(ctx.impl, q, k, cos, sin, in_place=False) is None:
            turned_back = _Turn.apply(q, k, cos, -sin, ctx.pairing, ctx.impl)
        else:  # as for the many gradients of a vectorised Jacobian
            turned_back = (_eager(grad, cos, -sin, ctx.pairing) for grad in (q, k))
        return (*turned_back, None, None, None, None)


class _TurnFromIds(torch.autograd.Function):
    """The same with angles made in the kernel."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        q: Tensor,
        k: Tensor,
        ids: Tensor,
        axis: Tensor,
        inv_freq: Tensor,
        scale: Tensor,
        sign: float,
        pairing: Pairing,
    ) -> tuple[Tensor, Tensor]:
        q, k = _side_by_side(q), _side_by_side(k)
        out_q, out_k = torch.empty_like(q), torch.empty_like(k)
        gpu.turn_from_ids(q, k, out_q, out_k, ids, axis, inv_freq, scale, sign, pairing)
        return out_q, out_k

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, _, *tables, ctx.sign, ctx.pairing = inputs
        ctx.save_for_backward(*tables)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tables = ctx.saved_tensors
        if plain(*grads):
            turned_back = _TurnFromIds.apply(*grads, *tables, -ctx.sign, ctx.pairing)
        else:
            cos, sin = made(*tables)
            turned_back = (_eager(grad, cos, -ctx.sign * sin, ctx.pairing) for grad in grads)
        return (*turned_back, *[None] * 6)
