"""The rotation of queries and keys in one Triton launch, from tables or straight from positions.

Letters: A axes, B batch, H heads, K heads of a table, N tokens, D head dim, F rotary pairs. A "step" is a stride.

Each program holds cos and sin of `BLOCK` tokens and turns `GROUP` heads of them, of the queries or of the keys.
"""

from __future__ import annotations

import functools
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, no_type_check

import torch
from torch import Tensor

from mrope.ops.eager import Pairing
from mrope.ops.strides import four, steps, table

if TYPE_CHECKING:
    import triton.language as tl

BLOCK, GROUP, WARPS = 16, 4, 4
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def unfit(q: Tensor, k: Tensor, *, in_place: bool) -> Exception | None:
    """Why Triton cannot turn these two; None if it can."""
    if find_spec("triton") is None:
        return ImportError("impl 'triton' needs Triton, which is not installed: pip install triton")
    if not (q.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"):
        return ValueError(f"impl 'triton' takes CUDA tensors, not {q.device}; 'auto' chooses what can run")
    if q.dtype not in DTYPES:
        return ValueError(f"impl 'triton' takes float32, float16 or bfloat16, not {q.dtype}; 'eager' takes any")
    if in_place and not q.stride(-1) == k.stride(-1) == 1:
        return ValueError("impl 'triton' takes channels that lie side by side, with stride 1; 'eager' takes any")
    return None


def turn(q: Tensor, k: Tensor, out_q: Tensor, out_k: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing) -> None:
    """Write q and k, turned by cos and sin, into `out_q` and `out_k`: other tensors, or q and k themselves."""
    cos, sin = table(cos), table(sin)
    _launch(q, k, out_q, out_k, (cos, sin), steps(cos), cos.shape[1], cos.shape[-1], 0, 1.0, pairing)


def turn_from_ids(
    q: Tensor,
    k: Tensor,
    out_q: Tensor,
    out_k: Tensor,
    ids: Tensor,
    axis: Tensor,
    inv_freq: Tensor,
    scale: Tensor,
    sign: float,
    pairing: Pairing,
) -> None:
    """The same by the angles of `angles`, made in the kernel: ids (A, N) or (A, B, N), the others (F,).

    A pair whose axis ids do not have reads nothing and stands still, as the host cannot know it without waiting.
    """
    rows = ids if ids.dim() == 3 else ids[:, None]
    table_steps = (rows.stride(1) if rows.shape[1] > 1 else 0, rows.stride(0), rows.stride(2))
    tables = (rows, axis.contiguous(), inv_freq.contiguous(), scale.contiguous())
    _launch(q, k, out_q, out_k, tables, table_steps, 0, inv_freq.shape[0], len(rows), sign, pairing)


def _launch(
    q: Tensor,
    k: Tensor,
    out_q: Tensor,
    out_k: Tensor,
    tables: tuple[Tensor, ...],
    table_steps: tuple[int, int, int],
    table_heads: int,
    pairs: int,
    axes: int,
    sign: float,
    pairing: Pairing,
) -> None:
    tensors = [four(x.detach()) for x in (q, k, out_q, out_k)]
    (batch, q_heads, tokens, channels), k_heads = tensors[0].shape, tensors[1].shape[1]
    if not batch * tokens:
        return
    rest = 0 if out_q is q else channels - 2 * pairs
    groups = -(-q_heads // GROUP) + -(-k_heads // GROUP)
    with torch.cuda.device_of(q):
        _kernel()[(-(-tokens // BLOCK), groups, batch)](
            *tensors,
            *(tables if table_heads == 0 else (*tables, None, None)),
            *(step for x in tensors for step in steps(x)),
            *table_steps,
            q_heads,
            k_heads,
            tokens,
            axes,
            sign,
            TABLE_HEADS=table_heads,
            PAIRS=pairs,
            WIDE=_power(pairs),
            REST=rest,
            WIDE_REST=_power(rest),
            ADJACENT=pairing == "adjacent",
            BLOCK=BLOCK,
            GROUP=GROUP,
            num_warps=WARPS,
            enable_fp_fusion=False,  # a product and a sum are rounded one after the other, as in torch
        )


def _power(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


@functools.cache
def _kernel() -> Any:
    """The compiled kernel; Triton is loaded here, and never by an import of this module."""
    import triton
    import triton.language as tl

    # Triton looks the names in a kernel up among those of its module.
    globals().update(tl=tl, _turn_heads=triton.jit(_turn_heads))
    return triton.jit(_turn_block)


@no_type_check
def _turn_block(
    q,
    k,
    out_q,
    out_k,
    one,  # cos, or the ids
    two,  # sin, or the axis of each pair
    inv_freq,
    scale,
    q_row,
    q_head,
    q_token,
    k_row,
    k_head,
    k_token,
    out_q_row,
    out_q_head,
    out_q_token,
    out_k_row,
    out_k_head,
    out_k_token,
    row_step,  # of the table or the ids
    head_step,  # of the table; of the ids from axis to axis
    token_step,
    q_heads,
    k_heads,
    tokens,
    axes,
    sign,
    TABLE_HEADS: tl.constexpr,  # 0: from ids
    PAIRS: tl.constexpr,
    WIDE: tl.constexpr,
    REST: tl.constexpr,
    WIDE_REST: tl.constexpr,
    ADJACENT: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    # Where a block begins can lie beyond 2 ** 31 elements; within it no offset does.
    start = tl.program_id(0).to(tl.int64) * BLOCK
    row = tl.program_id(2).to(tl.int64)
    group = tl.program_id(1)
    token = tl.arange(0, BLOCK)[:, None]
    pair = tl.arange(0, WIDE)[None, :]
    there = token < tokens - start
    inside = there & (pair < PAIRS)
    spot = token * token_step
    one += row * row_step + start * token_step
    if TABLE_HEADS == 0:
        axis = tl.load(two + pair, mask=pair < PAIRS, other=0)
        known = inside & (axis >= 0) & (axis < axes)
        position = tl.load(one + spot + axis * head_step, mask=known, other=0).to(tl.float32)
        angle = position * tl.load(inv_freq + pair, mask=pair < PAIRS, other=0.0)
        factor = tl.load(scale + pair, mask=pair < PAIRS, other=0.0)
        cos, sin = tl.cos(angle) * factor, tl.sin(angle) * (factor * sign)
    else:
        two += row * row_step + start * token_step
        cos = tl.load(one + spot + pair, mask=inside, other=0.0)
        sin = tl.load(two + spot + pair, mask=inside, other=0.0)
    groups = tl.cdiv(q_heads, GROUP)
    if group < groups:
        q += row * q_row + start * q_token
        out_q += row * out_q_row + start * out_q_token
        _turn_heads(
            q, out_q, q_head, q_token, out_q_head, out_q_token, group * GROUP, q_heads, one, two, spot, head_step,
            cos, sin, there, inside, TABLE_HEADS, PAIRS, WIDE, REST, WIDE_REST, ADJACENT, BLOCK, GROUP,
        )  # fmt: skip
    else:
        k += row * k_row + start * k_token
        out_k += row * out_k_row + start * out_k_token
        _turn_heads(
            k, out_k, k_head, k_token, out_k_head, out_k_token, (group - groups) * GROUP, k_heads, one, two, spot,
            head_step, cos, sin, there, inside, TABLE_HEADS, PAIRS, WIDE, REST, WIDE_REST, ADJACENT, BLOCK, GROUP,
        )  # fmt: skip


@no_type_check
def _turn_heads(
    x,
    out,
    head_step,
    token_step,
    out_head_step,
    out_token_step,
    first,
    heads,
    table_cos,
    table_sin,
    spot,
    table_step,
    cos,
    sin,
    there,
    inside,
    TABLE_HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    WIDE: tl.constexpr,
    REST: tl.constexpr,
    WIDE_REST: tl.constexpr,
    ADJACENT: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    token = tl.arange(0, BLOCK)[:, None]
    pair = tl.arange(0, WIDE)[None, :]
    dtype = out.dtype.element_ty
    for i in tl.static_range(GROUP):
        head = (first + i).to(tl.int64)
        here = inside & (head < heads)
        if TABLE_HEADS > 1:
            own = spot + head * TABLE_HEADS // heads * table_step + pair
            cos = tl.load(table_cos + own, mask=here, other=0.0)
            sin = tl.load(table_sin + own, mask=here, other=0.0)
        of = x + head * head_step + token * token_step
        to = out + head * out_head_step + token * out_token_step
        if ADJACENT:
            channel = tl.arange(0, 2 * WIDE)[None, :]
            both_here = there & (head < heads) & (channel < 2 * PAIRS)
            both = tl.load(of + channel, mask=both_here, other=0.0).to(tl.float32)
            a, b = tl.split(tl.reshape(both, (BLOCK, WIDE, 2)))
            turned = tl.interleave(a * cos - b * sin, b * cos + a * sin)
            tl.store(to + channel, turned.to(dtype), mask=both_here)
        else:
            a = tl.load(of + pair, mask=here, other=0.0).to(tl.float32)
            b = tl.load(of + PAIRS + pair, mask=here, other=0.0).to(tl.float32)
            tl.store(to + pair, (a * cos - b * sin).to(dtype), mask=here)
            tl.store(to + PAIRS + pair, (b * cos + a * sin).to(dtype), mask=here)
        if REST > 0:
            channel = tl.arange(0, WIDE_REST)[None, :]
            rest_here = there & (head < heads) & (channel < REST)
            tl.store(to + 2 * PAIRS + channel, tl.load(of + 2 * PAIRS + channel, mask=rest_here), mask=rest_here)
