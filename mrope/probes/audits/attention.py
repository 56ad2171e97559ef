"""What an attention keeps: the known mistakes, each looked for in the outputs of any callable.

Letters: B batch, Hq heads of queries, Hk heads of keys and values, N tokens, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from mrope.attention import attend as reference_attend
from mrope.batches import BatchPositions, batch
from mrope.checks import whole
from mrope.encoding import Encoding
from mrope.encodings.operands import check_encoding
from mrope.layouts import GridLayout, Layout
from mrope.positions import Positions, pack
from mrope.spans import Image, Text

Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor, BatchPositions], Tensor]
"""q (B, Hq, N, D), k and v (B, Hk, N, D) and the positions of all of them -> (B, Hq, N, E)."""

CLOSE = 1e-4  # of the largest output, which float32 angles keep
_CUT = 9  # a token inside the first prompt's picture
_PROMPTS = ([Text(4), Image((1, 3, 5)), Text(3)], [Text(4), Image((1, 5, 3)), Text(3)], [Image((1, 4, 2)), Text(7)])
"""Two of one length that differ in their ids, since rows may be mixed up unseen otherwise, and a shorter one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionAudit:
    """What held, to `CLOSE`, for causal attention to random tokens of three prompts with pictures.

    Args:
        shift: the output stays when all positions move together, each axis by another amount. Not so where values are
            turned, a head size is odd, or queries and keys are turned differently.
        rows: a row of a batch comes out as it does alone. Not so with positions of the wrong row.
        padding: padding on the left changes no token, and gives no NaN.
        documents: documents packed in one row come out as they do alone.
        causal: no token feels a later one.
        cached: pieces with a cache come out as the whole. Not so where cached keys are turned again, or queries and
            new keys get positions from the wrong place. None: no cache was given.
        reference: the output is that of `mrope.attention.attend` with the encoding. Not so where axes are swapped,
            nothing is turned or all is turned twice, which a sound attention through another encoding does as well.
            None: no encoding was given.
        told: of each that did not hold, by how much, and where it is worst.
    """

    shift: bool
    rows: bool
    padding: bool
    documents: bool
    causal: bool
    cached: bool | None
    reference: bool | None
    told: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def faults(self) -> tuple[str, ...]:
        """The names of those that did not hold."""
        return tuple(each.name for each in fields(self) if getattr(self, each.name) is False)


@torch.no_grad()
def audit_attention(
    attend: Attend,
    *,
    cached: Callable[[], Attend] | None = None,
    encoding: Encoding | None = None,
    layout: Layout = GridLayout(merge=1),
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    seed: int = 0,
) -> AttentionAudit:
    """Run an attention on random float64 tokens and say which known mistakes it does not make.

    Args:
        attend: the attention, causal inside each document, from queries and keys that are not turned.
        cached: makes the same attention with an empty cache; it is called with piece after piece of one prompt.
        encoding: what the attention is meant to turn or bias by; without it nobody can say whether it does at all.
        layout: gives the positions; it takes text and images of any size.
        heads: Hq.
        kv_heads: Hk.
        head_dim: D.
        seed: of the random numbers.

    Raises:
        TypeError: the attention returns no tensor, or `attend`, `cached`, `layout` or `encoding` is none.
        ValueError: the attention returns other rows, heads or tokens than those of q.

    >>> from mrope.attention import attend
    >>> audit_attention(lambda q, k, v, positions: attend(q, k, v, encoding=Encoding(), positions=positions)).faults
    ()
    """
    for name, called in (("attend", attend), ("layout", layout), ("cached", cached)):
        if not callable(called) and (name, called) != ("cached", None):
            raise TypeError(f"{name} is {called!r}; expected something to call")
    if encoding is not None:
        check_encoding(encoding)
    whole("head_dim", head_dim, 1)
    sizes = (whole("heads", heads, 1), whole("kv_heads", kv_heads, 1), whole("kv_heads", kv_heads, 1))
    rng = torch.Generator().manual_seed(seed)
    rows = [layout(prompt) for prompt in _PROMPTS]
    parts = [
        [torch.randn(1, h, row.length, head_dim, generator=rng, dtype=torch.float64) for h in sizes] for row in rows
    ]
    alone = [_run(attend, qkv, row) for qkv, row in zip(parts, rows, strict=True)]
    missing = rows[0].length - rows[2].length
    padded = [pad(x, (0, 0, missing, 0)) for x in parts[2]]
    step = torch.arange(1, len(rows[0].ids) + 1)[:, None] * 3
    both, together = _joined(parts[:2], dim=0), torch.cat(alone[:2])
    other_end = [torch.cat((x[:, :, :_CUT], -x[:, :, _CUT:]), dim=2) for x in parts[0]]
    moved = replace(rows[0], ids=rows[0].ids + step)
    pairs: dict[str, tuple[Tensor, Tensor]] = {
        "shift": (_run(attend, parts[0], moved), alone[0]),
        "rows": (_run(attend, both, *rows[:2]), together),
        "padding": (_run(attend, _joined([parts[0], padded], dim=0), rows[0], rows[2])[1:, :, missing:], alone[2]),
        "documents": (_run(attend, _joined(parts, dim=2), pack(rows)), torch.cat(alone, dim=2)),
        "causal": (_run(attend, other_end, rows[0])[:, :, :_CUT], alone[0][:, :, :_CUT]),
    }
    if cached is not None:
        pairs["cached"] = (_in_pieces(cached(), parts[0], rows[0]), alone[0])
    if encoding is not None:
        right = _run(lambda q, k, v, at: reference_attend(q, k, v, encoding=encoding, positions=at), both, *rows[:2])
        pairs["reference"] = (together, right)
    told = {name: words for name, pair in pairs.items() if (words := _apart(*pair))}
    held = {name: name not in told for name in pairs}
    return AttentionAudit(**{"cached": None, "reference": None, **held}, told=told)


def _run(attend: Attend, qkv: Sequence[Tensor], *rows: Positions) -> Tensor:
    q, k, v = qkv
    out = attend(q, k, v, batch(rows))
    if not isinstance(out, Tensor):
        raise TypeError(f"the attention returns {out!r}; expected a tensor (B, Hq, N, E)")
    if out.dim() != 4 or out.shape[:3] != q.shape[:3]:
        raise ValueError(
            f"the attention returns shape {tuple(out.shape)} for q of shape {tuple(q.shape)}; expected (B, Hq, N, E): "
            "the same rows, heads and tokens"
        )
    return out


def _joined(parts: Sequence[Sequence[Tensor]], dim: int) -> list[Tensor]:
    """All q, all k and all v behind one another."""
    return [torch.cat(each, dim=dim) for each in zip(*parts, strict=True)]


def _in_pieces(attend: Attend, qkv: Sequence[Tensor], row: Positions) -> Tensor:
    """A first piece, a second one from inside the picture on, and the last three tokens one by one."""
    edges = [0, _CUT, *range(row.length - 3, row.length + 1)]
    pieces = [
        _run(attend, [x[:, :, start:stop] for x in qkv], row.chunk(start, stop)) for start, stop in pairwise(edges)
    ]
    return torch.cat(pieces, dim=2)


def _apart(a: Tensor, b: Tensor) -> str:
    """By how much two outputs (B, Hq, N, E) differ, and where most; empty: by nothing that counts."""
    if a.shape != b.shape:
        return f"shape {tuple(a.shape)}, not {tuple(b.shape)}"
    off = ((a - b).abs().amax(-1) / b.abs().max()).nan_to_num(torch.inf)
    if float(off.max()) < CLOSE:
        return ""
    row, head, token = (int(each) for each in torch.unravel_index(off.argmax(), off.shape))
    size = f"off by {float(off.max()):.2g} of the largest output" if off.max().isfinite() else "NaN or infinity"
    return f"{size} at row {row}, head {head}, token {token}"
