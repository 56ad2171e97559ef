"""What checks have in common that run a model: calls that may fail, and ids that are held against one another.

Letters: A axes, B rows, N tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mrope.hf.checkup.report import Finding, Level
from mrope.hf.checkup.subject import Subject
from mrope.hf.reading import read_spans

PLUG = "mrope.hf.plug(model)"
_MOST = 120  # letters of an error
_SAME = 1e-3  # hidden states and logits that are farther apart, as a share of their size, have seen other tokens


def attempt(call: Callable[[], Any]) -> tuple[Any, str | None]:
    """What a call gives, or the error that the library raises, in a few words."""
    try:
        return call(), None
    except Exception as error:  # the library raises whatever its code runs into
        words = " ".join(str(error).split())
        cut = words if len(words) <= _MOST else f"{words[:_MOST]} ..."
        return None, f"{type(error).__name__}: {cut}" if words else type(error).__name__


def first_difference(seen: Tensor, right: Tensor) -> tuple[int, int] | None:
    """(row, token) of the first token whose ids (A, B, N) differ, None where all are equal."""
    if seen.shape != right.shape:
        return 0, min(seen.shape[-1], right.shape[-1]) - 1
    places = ((seen.to(torch.float64) - right.to(torch.float64)).abs().amax(0) > 1e-4).nonzero().tolist()
    return (places[0][0], places[0][1]) if places else None


def share_off(seen: Tensor, right: Tensor) -> float:
    """How far apart two tensors are at most, as a share of the size of the second; 0 where rounding can do that."""
    off = float((seen - right).abs().amax() / right.abs().amax())
    return off if off > max(_SAME, 4 * torch.finfo(right.dtype).eps) else 0.0


def ids_at(ids: Tensor, row: int, token: int) -> str:
    """The ids of one token, as findings write them."""
    if row >= ids.shape[1] or not -ids.shape[-1] <= token < ids.shape[-1]:
        return f"ids of shape {tuple(ids.shape)}"
    return "(" + ", ".join(f"{value:g}" for value in ids[:, row, token].tolist()) + ")"


def finding(
    check: str, level: Level, *, rule: str, seen: str, right: str, fix: str = f"{PLUG}, or pass position_ids"
) -> Finding:
    """A finding whose fix is most often ours."""
    return Finding(check=check, level=level, rule=rule, seen=seen, right=right, fix=fix)


def next_ids(subject: Subject, inputs: dict[str, Any]) -> Tensor:
    """(A, B) where each row goes on."""
    rows = read_spans(inputs, subject.small)
    return torch.stack([subject.layout(row).decode(1).ids[:, 0] for row in rows], dim=1).cpu()
