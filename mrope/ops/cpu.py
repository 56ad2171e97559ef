"""The rotation on the CPU in one pass over memory, compiled by Numba: no compiler is needed on the user's machine.

Letters: B batch, H heads, K heads of a table, N tokens, D head dim, F rotary pairs. A "step" is a stride.

The arithmetic is that of `rotate` to the bit: nothing is reordered or fused. bfloat16 is read as 32-bit words of two
channels each, which need no packing, and every float32 is rounded to the nearest, ties to even.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, no_type_check

import numpy as np
import torch
from torch import Tensor

from mrope.ops.eager import Pairing
from mrope.ops.strides import four, steps, table

PAYS = 1 << 16
"""Elements of q and k from which a call takes less time than `rotate`."""
SHARE = 1 << 20
"""Elements that keep a thread busy for much longer than its start takes."""

AHEAD = 4096
"""Bytes between what is turned and what is fetched from memory: tokens or heads that lie next."""


def unfit(q: Tensor, k: Tensor, cos: Tensor, *, in_place: bool) -> Exception | None:
    """Why Numba cannot turn these two; None if it can."""
    if not _installed():
        return ImportError("impl 'numba' needs Numba, which is not installed: pip install 'mrope[fast]'")
    if q.device.type != "cpu":
        return ValueError(f"impl 'numba' takes CPU tensors, not {q.device}; 'auto' chooses what can run")
    if q.dtype not in (torch.float32, torch.bfloat16):
        return ValueError(f"impl 'numba' takes float32 or bfloat16, not {q.dtype}; 'eager' takes any")
    if in_place and not q.stride(-1) == k.stride(-1) == 1:
        return ValueError("impl 'numba' takes channels that lie side by side, with stride 1; 'eager' takes any")
    if q.dtype == torch.bfloat16 and not (_even(q) and _even(k) and cos.shape[-1] % 2 == 0):
        return ValueError(
            "impl 'numba' takes bfloat16 two channels at a time: sizes, strides and the number of pairs must be even; "
            "'eager' takes any"
        )
    return None


@functools.cache
def _installed() -> bool:
    return find_spec("numba") is not None


def _even(x: Tensor) -> bool:
    """Every row of channels begins and ends between two 32-bit words, if need be in a copy."""
    if x.stride(-1) != 1:
        return x.shape[-1] % 2 == 0
    odd = [step for size, step in zip(x.shape[:-1], x.stride(), strict=False) if size > 1 and step % 2]
    return not (odd or x.shape[-1] % 2 or x.storage_offset() % 2 or x.data_ptr() % 4)


def turn(q: Tensor, k: Tensor, out_q: Tensor, out_k: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing) -> None:
    """Write q and k, turned by cos and sin, into `out_q` and `out_k`: other tensors, or q and k themselves."""
    pairs = cos.shape[-1]
    cos, sin = table(cos), table(sin)
    tables = (_flat(cos), _flat(sin)), cos.shape[1], steps(cos)
    work: list[tuple[Any, ...]] = []
    for x, out in ((q, out_q), (k, out_k)):
        if x.numel():
            work += _shares(four(x.detach()), four(out.detach()), *tables)
    kernel = _kernel(str(q.dtype), pairing, pairs)
    if len(work) <= 2:
        for share in work:
            kernel(*share)
        return
    # Plain threads, which live as long as the call: unlike those of OpenMP they survive a fork, and a call from others.
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for done in [pool.submit(kernel, *share) for share in work]:
            done.result()


def _shares(
    x: Tensor, out: Tensor, tables: tuple[np.ndarray, ...], table_heads: int, table_steps: tuple[int, ...]
) -> list[tuple[Any, ...]]:
    """Arguments of the kernel for each thread: tokens of all rows of the batch, from the first to before the last."""
    batch, heads, tokens, channels = x.shape
    word = 2 if x.dtype == torch.bfloat16 else 1
    copies = x.data_ptr() != out.data_ptr()
    to = _flat(out)
    arrays = (_flat(x) if copies else to, to, *tables)
    sizes = (heads, tokens, channels // word, table_heads)
    moves = [tuple(step // word for step in steps(each)) for each in (x, out)]
    count = max(1, min(torch.get_num_threads(), x.numel() // SHARE))
    bounds = [batch * tokens * i // count for i in range(count + 1)]
    return [(*arrays, sizes, *moves, table_steps, copies, *each) for each in pairwise(bounds)]


def _flat(x: Tensor) -> np.ndarray:
    """The memory that a tensor of four dimensions lies in, from its first element to its last."""
    (rows, heads, tokens, channels), (row, head, token, channel) = x.shape, x.stride()
    span = 1 + (rows - 1) * row + (heads - 1) * head + (tokens - 1) * token + (channels - 1) * channel
    flat = x.as_strided((span,), (1,))
    return (flat.view(torch.uint32) if x.dtype == torch.bfloat16 else flat).numpy()


@functools.cache
def _kernel(dtype: str, pairing: Pairing, pairs: int) -> Callable[..., None]:
    """The kernel for so many pairs, whose number is a constant in it so that its inner loops have a fixed length."""
    import numba

    # A global, since a function that holds it in its closure would be compiled anew in each process.
    globals().setdefault("_fetch", _prefetch())
    function = _words(pairing, pairs) if dtype == "torch.bfloat16" else _floats(pairing, pairs)
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # neither this folder nor one of the user's can be written to
        return numba.njit(nogil=True)(function)


def _prefetch() -> Any:
    """A function of an array and an index: ask for the cache line there, which may lie beyond the end.

    Without it a processor that is busy turning one token finds the next ones late: 4.5 instead of 6.2 ms in bfloat16.
    """
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    @no_type_check
    def fetch(typing, array, index):
        def generate(context, builder, signature, arguments):
            # Compilers shun the widest registers for the sake of code around them; here they save a fifth of the time.
            set.add(builder.function.attributes, '"prefer-vector-width"="512"')
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            place = builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(8).as_pointer())
            number = ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
            prefetch = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
            builder.call(prefetch, [place, number(1), number(3), number(1)])  # to write, keep in every cache, data
            return context.get_dummy_value()

        return types.void(array, index), generate

    return intrinsic(fetch)


def _floats(pairing: Pairing, pairs: int) -> Callable[..., None]:
    """Of float32, before it is compiled."""
    number = np.uintp  # unsigned indices need no test whether they count from the end
    count, step, other = number(pairs), number(1), number(pairs)
    lines, line, ahead = number(-(-pairs // 8)), number(16), number(AHEAD // 4)
    if pairing == "adjacent":
        step, other = number(2), number(1)

    @no_type_check
    def turn(x, out, cos, sin, sizes, x_steps, out_steps, table_steps, copies, begin, end):
        heads, tokens, channels, table_heads = sizes
        group = heads // table_heads
        for token in range(begin, end):
            row, n = token // tokens, token % tokens
            for own in range(table_heads):
                table = number(row * table_steps[0] + own * table_steps[1] + n * table_steps[2])
                for head in range(own * group, (own + 1) * group):
                    to = number(row * out_steps[0] + head * out_steps[1] + n * out_steps[2])
                    for i in range(lines):
                        _fetch(out, to + ahead + i * line)
                    if copies:
                        of = number(row * x_steps[0] + head * x_steps[1] + n * x_steps[2])
                        for i in range(lines):
                            _fetch(x, of + ahead + i * line)
                        for i in range(number(channels)):
                            out[to + i] = x[of + i]
                    for j in range(count):
                        one = to + j * step
                        a, b, c, s = out[one], out[one + other], cos[table + j], sin[table + j]
                        out[one] = a * c - b * s
                        out[one + other] = b * c + a * s

    return turn


def _words(pairing: Pairing, pairs: int) -> Callable[..., None]:
    """Of bfloat16, two in each word: the lower half holds the even channel."""
    number, word, single = np.uintp, np.uint32, np.float32
    half, nearest, lowest, upper = word(16), word(0x7FFF), word(1), word(0xFFFF0000)
    lines, line, ahead = number(-(-pairs // 16)), number(16), number(AHEAD // 4)
    count, words, adjacent = number(pairs), number(pairs // 2), pairing == "adjacent"

    @no_type_check
    def turn(x, out, cos, sin, sizes, x_steps, out_steps, table_steps, copies, begin, end):
        heads, tokens, channels, table_heads = sizes
        group = heads // table_heads
        even_cos, odd_cos = np.empty(words, single), np.empty(words, single)
        even_sin, odd_sin = np.empty(words, single), np.empty(words, single)
        for token in range(begin, end):
            row, n = token // tokens, token % tokens
            for own in range(table_heads):
                table = number(row * table_steps[0] + own * table_steps[1] + n * table_steps[2])
                if not adjacent:
                    for j in range(words):
                        even_cos[j], odd_cos[j] = cos[table + j + j], cos[table + j + j + number(1)]
                        even_sin[j], odd_sin[j] = sin[table + j + j], sin[table + j + j + number(1)]
                for head in range(own * group, (own + 1) * group):
                    to = number(row * out_steps[0] + head * out_steps[1] + n * out_steps[2])
                    for i in range(lines):
                        _fetch(out, to + ahead + i * line)
                    if copies:
                        of = number(row * x_steps[0] + head * x_steps[1] + n * x_steps[2])
                        for i in range(lines):
                            _fetch(x, of + ahead + i * line)
                        for i in range(number(channels)):
                            out[to + i] = x[of + i]
                    if adjacent:
                        for j in range(count):
                            both = out[to + j]
                            a, b = word(both << half).view(single), word(both & upper).view(single)
                            c, s = cos[table + j], sin[table + j]
                            one, two = single(a * c - b * s).view(word), single(b * c + a * s).view(word)
                            one = word(one + nearest + ((one >> half) & lowest)) >> half
                            two = word(two + nearest + ((two >> half) & lowest)) & upper
                            out[to + j] = word(one | two)
                    else:
                        for j in range(words):
                            both_a, both_b = out[to + j], out[to + words + j]
                            a, b = word(both_a << half).view(single), word(both_b << half).view(single)
                            c, s = even_cos[j], even_sin[j]
                            one, two = single(a * c - b * s).view(word), single(b * c + a * s).view(word)
                            even_a = word(one + nearest + ((one >> half) & lowest)) >> half
                            even_b = word(two + nearest + ((two >> half) & lowest)) >> half
                            a, b = word(both_a & upper).view(single), word(both_b & upper).view(single)
                            c, s = odd_cos[j], odd_sin[j]
                            one, two = single(a * c - b * s).view(word), single(b * c + a * s).view(word)
                            out[to + j] = word(even_a | (word(one + nearest + ((one >> half) & lowest)) & upper))
                            out[to + words + j] = word(
                                even_b | (word(two + nearest + ((two >> half) & lowest)) & upper)
                            )

    return turn
