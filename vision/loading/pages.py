"""Fresh memory for large results."""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from torch import Tensor

from mrope.checks import whole


def fresh(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str | None = None) -> Tensor:
    """A contiguous tensor without content, like `torch.empty`, in huge pages where the system has them.

    Linux gives a program its memory page by page, when it is first written to: for the 293 MB of one 12-megapixel
    photograph that takes longer than all else behind the decoder. NumPy asks for pages of 2 MiB, torch does not.

    Args:
        shape: of the tensor.
        dtype: any.
        device: the CPU by default; elsewhere this is `torch.empty`.

    >>> fresh((2, 3), torch.bfloat16).stride()
    (3, 1)
    """
    sizes = [whole("shape", size, 0) for size in shape]
    if torch.device(device or "cpu").type != "cpu":
        return torch.empty(sizes, dtype=dtype, device=device)
    count = prod(sizes)
    memory = torch.from_numpy(np.empty(max(count, 1) * dtype.itemsize, np.uint8))  # torch reads no empty bytes as bf16
    return memory.view(dtype)[:count].view(sizes)
