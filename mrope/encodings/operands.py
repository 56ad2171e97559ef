"""What encodings and attention take: checks of tokens, of an encoding itself, and of its sizes.

Letters: B batch, H heads, N tokens, D head dim.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from mrope.checks import whole
from mrope.encoding import Encoding


def check_encoding(encoding: Any) -> None:
    """Refuse what is no encoding, such as its class."""
    if not isinstance(encoding, Encoding):
        raise TypeError(f"encoding is {encoding!r}; expected an instance of an mrope.encoding.Encoding")


def check_floating(name: str, x: Tensor) -> None:
    """Refuse tokens of a dtype in which what an encoding adds or turns would be cut to whole numbers."""
    if not x.is_floating_point():
        raise TypeError(f"{name} has dtype {x.dtype}; expected a floating one")


def check_heads(name: str, x: Tensor) -> None:
    """Refuse what is no queries or keys (B, H, N, D) or (H, N, D) of a floating dtype."""
    check_floating(name, x)
    if x.dim() not in (3, 4):
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected (B, H, N, D) or (H, N, D)")


def check_pair(q: Tensor, k: Tensor) -> None:
    """Refuse queries and keys that are not of the same tokens and make; their numbers of heads may differ."""
    check_heads("q", q)
    check_heads("k", k)
    if (q.shape[:-3], q.shape[-2:]) != (k.shape[:-3], k.shape[-2:]):
        raise ValueError(
            f"q has shape {tuple(q.shape)}, k {tuple(k.shape)}; expected one shape of both but for their heads"
        )
    check_same_make("q", q, "k", k)


def check_same_make(one: str, x: Tensor, other: str, y: Tensor) -> None:
    """Refuse two tensors of different dtypes or devices."""
    if (x.dtype, x.device) != (y.dtype, y.device):
        raise ValueError(
            f"{one} is {x.dtype} on {x.device}, {other} is {y.dtype} on {y.device}; expected the same of both"
        )


def wholes(name: str, values: Any) -> tuple[int, ...]:
    """`values` as a tuple of ints of at least 1, one for each axis, or one line that says what came."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} is {values!r}; expected a whole number for each axis, as in (4, 7)")
    return tuple(whole(f"{name} entry", value, 1) for value in values)


def without_autocast(device: torch.device) -> AbstractContextManager:
    """Autocast off, on devices that have it: "meta" has not."""
    known = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()
