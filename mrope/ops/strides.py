"""How tensors lie in memory, for kernels that walk through it.

Letters: B batch, H heads, K heads of a table, N tokens, D channels, F pairs.
"""

from __future__ import annotations

from torch import Tensor


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
