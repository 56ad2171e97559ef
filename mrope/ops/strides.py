"""How tensors lie in memory, for kernels that walk through it.

Letters: B batch, H heads, K heads of a table, N tokens, D channels, F pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad


def four(x: Tensor) -> Tensor:
    """(B, H, N, D) of queries or keys, whose B may be missing."""
    return x[None] if x.dim() == 3 else x


def table(x: Tensor) -> Tensor:
    """(B, K, N, F), float32 and in one piece, of cos or sin as (N, F), (B, N, F) or (B, K, N, F)."""
    x = x.detach().float().contiguous()
    return x[None, None] if x.dim() == 2 else x.unsqueeze(1) if x.dim() == 3 else x


def steps(x: Tensor) -> tuple[int, int, int]:
    """How many elements lie from one row of the batch, head and token to the next; 0 where there is but one."""
    row, head, token = (step if size > 1 else 0 for size, step in zip(x.shape[:3], x.stride(), strict=False))
    return row, head, token


def folded(x: Tensor) -> bool:
    """Whether one element may be seen at several places, as in an expanded tensor."""
    reach = 0
    for step, size in sorted((step, size) for size, step in zip(x.shape, x.stride(), strict=True) if size > 1):
        if step <= reach:
            return True
        reach += (size - 1) * step
    return False


def address(x: Tensor) -> int:
    """Where x begins in memory; 0 where it has none: empty, on meta, in a traced graph, or inside torch.func."""
    if torch.compiler.is_compiling():
        return 0
    try:
        return x.data_ptr()
    except RuntimeError:
        return 0


def plain(*tensors: Tensor) -> bool:
    """Whether what lies in memory is all there is to them: no tangent (forward AD), no sign kept apart."""
    return all(
        (address(x) or not x.numel()) and not x.is_neg() and forward_ad.unpack_dual(x).tangent is None for x in tensors
    )


def shared(q: Tensor, k: Tensor) -> bool:
    """Whether q and k have a byte in common; True as well where their strides make that hard to tell."""
    if not (address(q) and address(k)):
        return False
    # A byte of q less one of k is this far: the first byte less the first, and each step a number of times.
    times = {1: (q.itemsize - 1, k.itemsize - 1)}
    for x, ours in ((q, True), (k, False)):
        for size, step in zip(x.shape, x.stride(), strict=True):
            if size > 1:
                most, least = times.get(step * x.itemsize, (0, 0))
                times[step * x.itemsize] = (most + size - 1, least) if ours else (most, least + size - 1)
    return _adds_up(address(k) - address(q), sorted(times.items(), reverse=True))


def _adds_up(total: int, steps: list[tuple[int, tuple[int, int]]]) -> bool:
    """Whether steps, taken from -least to most times each, lead to the total; True if there are many ways to try."""
    if not steps:
        return total == 0
    (step, (most, least)), *rest = steps
    first = max(-least, -((sum(size * times[0] for size, times in rest) - total) // step))
    last = min(most, (total + sum(size * times[1] for size, times in rest)) // step)
    return last - first > 8 or any(_adds_up(total - count * step, rest) for count in range(first, last + 1))
