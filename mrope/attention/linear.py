"""Linear attention that rotary encodings can turn: cost linear in the tokens, and a state of one size to decode from.

Letters: B batch, H heads (Hk of keys and values), N tokens, C channels, D head dim, E head dim of the values, L tokens
of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from mrope.attention.masks import Tokens, read_tokens
from mrope.attention.slots import check_follow, last_tokens, on_host
from mrope.attention.softmax import blanked, check_any_length, check_head_dim, check_shapes, split_heads
from mrope.checks import one_of, whole
from mrope.encoding import Encoding, Where
from mrope.encodings.operands import check_encoding
from mrope.shards import PADDING


@dataclass(frozen=True, slots=True, eq=False)
class LinearState:
    """What causal linear attention keeps of the tokens before: sums over the keys of each row's last document.

    Args:
        kv: (B, H, D, E) of turned key times value.
        keys: (B, H, D) of keys, not turned.
        segments: (B,) int64, that document; -1 before the first token.
        slots: (B,) int64, the slot of its last token; -1 before the first.
    """

    kv: Float[Tensor, "b h dt e"]
    keys: Float[Tensor, "b h d"]
    segments: Int64[Tensor, " b"]
    slots: Int64[Tensor, " b"]


@dataclass(frozen=True, slots=True, eq=False)
class LinearOutput:
    """What linear attention gives.

    Args:
        values: (B, H, N, E); from `LinearAttention`, (B, N, C).
        state: to go on from, after causal attention; None after attention to all.
    """

    values: Float[Tensor, "*b n e"]
    state: LinearState | None


def linear_attend(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b hk n d"],
    v: Float[Tensor, "b hk n e"],
    *,
    encoding: Encoding,
    positions: Where,
    rule: Literal["causal", "all"] = "causal",
    state: LinearState | None = None,
    chunk: int = 64,
) -> LinearOutput:
    """Attention with weights phi(q) . phi(k), phi = elu + 1, turned above the fraction bar and not below it.

    RoFormer (arXiv:2104.09864), equation 19: token m gets the sum of (R_m phi(q_m)) . (R_n phi(k_n)) v_n over the sum
    of phi(q_m) . phi(k_n). What is below stays positive; the turned weights may be negative and add up to another
    number than 1. Sums are of float32 at least. A query without a key, as in padding, gives zeros; what padded q, k and
    v hold is never read.

    Args:
        q: (B, H, N, D), not turned.
        k: (B, Hk, N, D), not turned; Hk divides H.
        v: (B, Hk, N, E).
        encoding: `rotate` is called; one that biases scores is refused, as there are none, and one that does not
            declare that it keeps norms, as what it scales would be scaled above the fraction bar alone.
        positions: of the tokens; one row of them serves the whole batch. In a packed row each document is for itself.
        rule: "causal" in the order of the row, or "all" of a document.
        state: of the tokens before these, causal only. Tokens of the same document go on from it. That none is left
            out or comes twice is looked at where the host knows slots: on the CPU, and not of ids alone.
        chunk: L, causal only: tokens that are worked on at once, in memory of L * L a head.

    Raises:
        ValueError: the encoding adds a bias or does not keep norms, shapes do not fit, positions are of other tokens,
            documents of a row are not in the order of their numbers, a state is given for attention to all or with
            frequencies that depend on the length of the row, or it is one of other rows, heads or slots.
        TypeError: `encoding` or `state` is none, or q, k and v are no floating tensors.

    >>> q, k, v = torch.randn(3, 1, 2, 6, 8)
    >>> whole = linear_attend(q, k, v, encoding=Encoding(), positions=torch.arange(6).repeat(3, 1))
    >>> whole.values.shape, whole.state.kv.shape
    (torch.Size([1, 2, 6, 8]), torch.Size([1, 2, 8, 8]))
    """
    one_of("rule", rule, ("causal", "all"))
    size = whole("chunk", chunk, 1)
    _check_turns(encoding)
    check_shapes(q, k, v)
    check_head_dim(encoding, q.shape[-1])
    if k.shape[2] != q.shape[2]:
        raise ValueError(f"k has {k.shape[2]} tokens, q has {q.shape[2]}; expected those of the same tokens")
    tokens = read_tokens(positions, (q.shape[0], q.shape[2]), encoding.axes)
    exact = torch.promote_types(q.dtype, torch.float32)
    plain_q, plain_k, v = _phi(blanked(q, tokens).to(exact)), _phi(blanked(k, tokens).to(exact)), blanked(v, tokens)
    turned_q, turned_k = encoding.rotate(plain_q, plain_k, positions)
    group = q.shape[1] // k.shape[1]
    plain_k, turned_k, wide_v = (x.repeat_interleave(group, dim=1) for x in (plain_k, turned_k, v.to(exact)))
    parts = _Parts(plain_q, plain_k, turned_q, turned_k, wide_v)
    if rule == "all":
        if state is not None:
            raise ValueError('state is given; rule "all" looks at whole documents and goes on from none')
        return LinearOutput(_documents(parts, tokens).to(v.dtype), None)
    segments, slots, told = tokens.segments, tokens.slots, on_host(tokens, positions)
    if told is not None and ((told[0] != PADDING) & (told[0] != told[0].cummax(dim=1).values)).any():
        raise ValueError("segments go down along a row; expected documents in the order of their numbers")
    now, out = _start(parts), []
    if state is not None:
        check_any_length(encoding, "the state would keep those of an earlier one")
        _check_state(state, now)
        now, before = state, torch.stack((state.segments, state.slots), dim=1)
        if isinstance(positions, Tensor):  # ids alone know no slots: they go on
            slots = slots + state.slots[:, None] + 1
        elif told is not None and before.device.type == "cpu":
            check_follow(told, before)
    last = last_tokens(segments, slots, torch.stack((now.segments, now.slots), dim=1))
    for start in range(0, q.shape[2], size):
        piece = slice(start, start + size)
        values, now = _step(parts.cut(piece), segments[:, piece], now)
        out.append(values)
    values = torch.cat(out, dim=2) if out else parts.v
    return LinearOutput(values.to(v.dtype), replace(now, slots=last[:, 1]))


def _phi(x: Tensor) -> Tensor:
    """elu + 1, which would cancel below 0 if it were written so."""
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())  # of large x the exponential is infinite, its gradient NaN


def _check_turns(encoding: Encoding) -> None:
    check_encoding(encoding)
    name = type(encoding).__name__
    if type(encoding).bias is not Encoding.bias:
        raise ValueError(f"{name} adds a bias to scores, which linear attention never makes")
    if torch.compiler.is_compiling() or type(encoding).rotate is Encoding.rotate:
        return
    if encoding.properties.norm is not True:
        raise ValueError(
            f"{name} does not declare that it keeps norms (properties.norm); linear attention divides by products that "
            "are not turned: expected one that turns queries and keys and does not scale them"
        )


def _check_state(state: LinearState, expected: LinearState) -> None:
    if not isinstance(state, LinearState):
        raise TypeError(f"state is {state!r}; expected the state of an earlier LinearOutput")
    for name in ("kv", "keys", "segments", "slots"):
        own, other = getattr(state, name), getattr(expected, name)
        if (own.shape, own.dtype, own.device) != (other.shape, other.dtype, other.device):
            raise ValueError(
                f"state has {name} of shape {tuple(own.shape)}, {own.dtype} on {own.device}; these tokens take "
                f"{tuple(other.shape)}, {other.dtype} on {other.device}"
            )


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """phi(q) and phi(k), (B, H, N, D), turned or not, and v."""

    q: Tensor
    k: Tensor
    turned_q: Tensor
    turned_k: Tensor
    v: Tensor

    def cut(self, piece: slice) -> _Parts:
        return _Parts(*(x[:, :, piece] for x in (self.q, self.k, self.turned_q, self.turned_k, self.v)))


def _start(parts: _Parts) -> LinearState:
    rows, heads = parts.v.shape[:2]
    return LinearState(
        parts.v.new_zeros(rows, heads, parts.turned_k.shape[-1], parts.v.shape[-1]),
        parts.v.new_zeros(rows, heads, parts.k.shape[-1]),
        *torch.full((2, rows), PADDING, device=parts.v.device),
    )


def _step(parts: _Parts, segments: Tensor, state: LinearState) -> tuple[Tensor, LinearState]:
    """One chunk: its own pairs of tokens, and the sums over the tokens before it."""
    real = segments != PADDING
    own = ((segments[:, :, None] == segments[:, None, :]) & real[:, None, :]).tril()[:, None]
    before = ((segments == state.segments[:, None]) & real)[:, None, :, None]
    above = (parts.turned_q @ parts.turned_k.mT * own) @ parts.v + parts.turned_q @ state.kv * before
    below = (parts.q @ parts.k.mT * own).sum(-1, keepdim=True) + parts.q @ state.keys[..., None] * before
    last = torch.maximum(state.segments, segments.amax(dim=1))
    kept, new = state.segments == last, ((segments == last[:, None]) & real)[:, None, :, None]
    kv = state.kv * kept[:, None, None, None] + (parts.turned_k * new).mT @ parts.v
    keys = state.keys * kept[:, None, None] + (parts.k * new).sum(dim=2)
    return _ratio(above, below), replace(state, kv=kv, keys=keys, segments=last)


def _documents(parts: _Parts, tokens: Tokens) -> Tensor:
    """Attention to all of a document, document by document."""
    rows = torch.arange(len(parts.v), device=parts.v.device)[:, None].expand_as(tokens.segments)
    keys, document, lengths = torch.unique(
        torch.stack((rows, tokens.segments)).flatten(1), dim=1, return_inverse=True, return_counts=True
    )
    order = document.argsort(stable=True)

    def split(x: Tensor) -> Iterable[Tensor]:
        """(H, tokens of a document, D) for each document."""
        return (part.transpose(0, 1) for part in x.transpose(1, 2).flatten(0, 1)[order].split(lengths.tolist()))

    columns = map(split, (parts.q, parts.k, parts.turned_q, parts.turned_k, parts.v))
    out = []
    for segment, q, k, turned_q, turned_k, v in zip(keys[1].tolist(), *columns, strict=True):
        above = turned_q @ (turned_k.mT @ v)
        below = q @ k.sum(dim=1)[..., None]
        out.append(torch.zeros_like(v) if segment == PADDING else _ratio(above, below))
    flat = torch.cat([part.transpose(0, 1) for part in out])[order.argsort()]
    return flat.unflatten(0, rows.shape).transpose(1, 2)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """`above` / `below`, and 0 where there was no key: `below` is positive otherwise."""
    return above / torch.where(below == 0, 1, below)


class LinearAttention(nn.Module):
    """Multi-head linear attention through any encoding that turns: four projections around `linear_attend`.

    Args:
        dim: channels C.
        heads: H; ``dim / heads`` is the head dim D.
        kv_heads: Hk, which divides `heads`; as many by default.
        encoding: where tokens are; its parameters, if it learns, are the module's as well.
        rule: "causal" or "all".
        chunk: tokens that are worked on at once, causal only.

    Raises:
        ValueError: channels do not divide into heads, or heads into those of the keys, or `linear_attend` refuses the
            encoding.

    >>> attention = LinearAttention(32, 4, encoding=Encoding())
    >>> prompt = attention(torch.randn(1, 5, 32), torch.arange(5).repeat(3, 1))
    >>> attention(torch.randn(1, 1, 32), torch.full((3, 1), 5), state=prompt.state).values.shape
    torch.Size([1, 1, 32])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        encoding: Encoding,
        kv_heads: int | None = None,
        rule: Literal["causal", "all"] = "causal",
        chunk: int = 64,
    ):
        super().__init__()
        one_of("rule", rule, ("causal", "all"))
        _check_turns(encoding)
        self.head_dim, kv_heads = split_heads(dim, heads, kv_heads)
        check_head_dim(encoding, self.head_dim)
        self.encoding, self.chunk = encoding, whole("chunk", chunk, 1)
        self.rule: Literal["causal", "all"] = rule
        self.q, self.out = (nn.Linear(dim, dim, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(dim, kv_heads * self.head_dim, bias=False) for _ in range(2))

    def forward(self, x: Float[Tensor, "b n c"], positions: Where, *, state: LinearState | None = None) -> LinearOutput:
        """Attend; with a state, `x` and `positions` are of the new tokens alone."""
        q, k, v = (part(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in (self.q, self.k, self.v))
        seen = linear_attend(
            q, k, v, encoding=self.encoding, positions=positions, rule=self.rule, state=state, chunk=self.chunk
        )
        return LinearOutput(self.out(seen.values.transpose(1, 2).flatten(2)), seen.state)
