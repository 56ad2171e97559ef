"""Softmax attention through any encoding, as a function and as a module.

Letters: B batch, Hq heads of queries, Hk heads of keys and values, N queries, M keys, C channels, D head dim, E head
dim of the values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache as cached
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from mrope.attention.caches import Cache
from mrope.attention.masks import Mask, Tokens, read_tokens
from mrope.checks import Number, one_of, positive, whole
from mrope.encoding import Encoding, Where
from mrope.encodings.operands import check_encoding, check_floating, check_same_make
from mrope.positions import NO_PICTURE
from mrope.rotary import Rotary
from mrope.shards import PADDING

Backend: TypeAlias = Literal["sdpa", "flex"]


def attend(
    q: Float[Tensor, "b hq n d"],
    k: Float[Tensor, "b hk m d"],
    v: Float[Tensor, "b hk m e"],
    *,
    encoding: Encoding,
    positions: Where,
    keys: Where | None = None,
    cache: Cache | None = None,
    mask: Mask = Mask(),
    scale: Number | None = None,
    backend: Backend = "sdpa",
) -> Float[Tensor, "b hq n e"]:
    """Softmax attention whose queries and keys are turned, and scores biased, by `encoding`; values are left alone.

    Each key is turned once, when it comes: a cache holds turned ones, and only new tokens are handed in. A query that
    may look at nothing, as in padding, gives zeros; what padded q, k and v hold is never read, be it NaN.

    For the mask "pictures" positions must know the picture of each token: see the example of `Mask`.

    Args:
        q: (B, Hq, N, D), not turned; Hq is a multiple of Hk, and D even where an encoding turns pairs of channels.
        k: (B, Hk, M, D), not turned; M = N unless `keys` are given.
        v: (B, Hk, M, E).
        encoding: `rotate` and `bias` are called; `embed` is for the tokens before the first layer.
        positions: of the queries; one row of them serves the whole batch. Ids alone mean that each row is one document.
        keys: positions of the keys, where they are of other tokens than the queries; the causal rules then compare
            their slots.
        cache: takes the new keys and values, and gives all of them to look at: `KVCache`, `PagedKVCache.rows`. After an
            error it holds what it held before.
        mask: who may look at whom.
        scale: of the scores, before the bias; D ** -0.5 by default.
        backend: "sdpa" is torch's scaled_dot_product_attention with a dense mask; "flex" is FlexAttention, which skips
            blocks that the mask empties: compiled on CUDA, on the CPU uncompiled and without gradients.

    Raises:
        ValueError: shapes, dtypes or devices do not fit one another, positions are of other tokens, a cache would hide
            keys that the mask wants seen, `keys` and `cache` are both given, or one of them comes with frequencies that
            depend on the length of the row.
        TypeError: `encoding` or `mask` is none, or q, k and v are no floating tensors.

    >>> q, k, v = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
    >>> attend(q, k, v, encoding=Encoding(), positions=torch.arange(6).repeat(3, 1)).shape
    torch.Size([1, 4, 6, 8])
    """
    one_of("backend", backend, ("sdpa", "flex"))
    check_encoding(encoding)
    _check_mask(mask)
    check_shapes(q, k, v)
    check_head_dim(encoding, q.shape[-1])
    factor = q.shape[-1] ** -0.5 if scale is None else positive("scale", scale)
    if keys is None and k.shape[2] != q.shape[2]:
        raise ValueError(
            f"k has {k.shape[2]} tokens, q has {q.shape[2]}; expected as many, or the positions of `keys`. Keys that a "
            "cache gave are turned already: hand in the new tokens alone, and the cache"
        )
    if keys is not None and cache is not None:
        raise ValueError("keys and cache are both given; a cache knows the positions of its keys")
    if keys is not None:
        check_any_length(encoding, "keys of other tokens would turn by those of another one")
    asking = read_tokens(positions, (q.shape[0], q.shape[2]), encoding.axes)
    seen = asking if keys is None else read_tokens(keys, (k.shape[0], k.shape[2]), encoding.axes, "keys")
    mask = mask.of(asking, seen)
    q, k, v = blanked(q, asking), blanked(k, seen), blanked(v, seen)
    turned_q, turned_k = _turned(q, k, encoding, positions, keys)
    if cache is not None:
        _check_pieces(mask, asking, positions, cache)
        check_any_length(encoding, "cached keys would keep those of an earlier one")
    softmax = _sdpa if backend == "sdpa" else _flex
    bring_back = None if cache is None else cache.saved()
    try:
        if cache is not None:
            assert not isinstance(positions, Tensor)  # which `_check_pieces` has refused
            held = cache.append(turned_k, v, positions)
            turned_k, v, seen = held.k, held.v, held.tokens
        bias = encoding.bias(q, asking.ids, None if seen is asking else seen.ids)
        return softmax(turned_q, turned_k, v, bias, mask, (asking, seen), factor)
    except BaseException:
        if bring_back is not None:
            bring_back()
        raise


def check_head_dim(encoding: Encoding, head_dim: int) -> None:
    """Refuse the odd heads of which an encoding that turns pairs of channels would leave one channel as it is."""
    if head_dim % 2 and hasattr(encoding, "pairing"):
        raise ValueError(
            f"head dim {head_dim} is odd; {type(encoding).__name__} turns pairs of channels: expected an even one"
        )


def check_any_length(encoding: Encoding, why: str) -> None:
    """Refuse frequencies that depend on the length of the row."""
    if isinstance(encoding, Rotary) and encoding.frequencies.needs_length:
        raise ValueError(
            f"the frequencies of the encoding depend on the length of the row, and {why}; hold them at one length: "
            "mrope.extensions.At"
        )


def blanked(x: Tensor, tokens: Tokens) -> Tensor:
    """x (B, H, N, D) with zeros in padding, since a weight of 0 does not keep a NaN out."""
    return x.masked_fill((tokens.segments == PADDING)[:, None, :, None], 0)


def _check_mask(mask: Mask) -> None:
    if not isinstance(mask, Mask):
        raise TypeError(f"mask is {mask!r}; expected a Mask, as in Mask('causal')")


def check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse queries, keys and values that do not go together."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_floating(name, x)
    for name, x in (("k", k), ("v", v)):
        check_same_make("q", q, name, x)
    fits = q.dim() == k.dim() == v.dim() == 4 and len(q) == len(k) and k.shape[:3] == v.shape[:3]
    if not fits or q.shape[-1] != k.shape[-1] or 0 in (q.shape[1], k.shape[1], q.shape[-1]) or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"q, k and v have shapes {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}; expected (B, Hq, N, D), "
            "(B, Hk, M, D) and (B, Hk, M, E), and Hq a multiple of Hk"
        )


def _check_pieces(mask: Mask, asking: Tokens, positions: Where, cache: Cache) -> None:
    """Refuse what a cache cannot do: tokens that are in it already do not look at those that come."""
    if isinstance(positions, Tensor):
        raise TypeError("positions are ids alone; with a cache, expected Positions or BatchPositions, which have slots")
    if mask.rule == "all":
        raise ValueError(
            'mask rule "all" lets tokens see later ones: it takes the whole document at once, and no cache'
        )
    held = cache.tokens
    if mask.rule == "causal" or held is None or held.pictures is None or asking.pictures is None:
        return
    if len(held.segments) != len(asking.segments):
        return  # which the cache says best
    parts = (asking.pictures != NO_PICTURE) & (asking.segments != PADDING)
    same_picture = asking.pictures[:, :, None] == held.pictures[:, None]
    same_document = asking.segments[:, :, None] == held.segments[:, None]
    if (parts[:, :, None] & same_picture & same_document).any():
        raise ValueError(
            f"a picture is cut between what the cache holds and what comes; under mask rule {mask.rule!r} its "
            "tokens see later ones of its own: cut the prompt between pictures"
        )


def _turned(q: Tensor, k: Tensor, encoding: Encoding, positions: Where, keys: Where | None) -> tuple[Tensor, Tensor]:
    if keys is None:
        return encoding.rotate(q, k, positions)
    # `rotate` takes queries and keys of the same tokens, so each side goes with a stand-in that has the other's heads.
    turned_q, _ = encoding.rotate(q, q[:, : k.shape[1]], positions)
    _, turned_k = encoding.rotate(k.repeat_interleave(q.shape[1] // k.shape[1], dim=1), k, keys)
    return turned_q, turned_k


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Mask, tokens: tuple[Tokens, Tokens], scale: float
) -> Tensor:
    if not k.shape[2]:
        return q.new_zeros(*q.shape[:3], v.shape[-1])
    allowed = mask.dense(*tokens)
    blind = ~allowed.any(dim=-1, keepdim=True)
    allowed = allowed | blind  # no row without a key: kernels differ in what they make of one, and some say NaN
    scores = allowed if bias is None else bias.to(q.dtype).masked_fill(~allowed, -torch.inf)
    gqa = q.shape[1] != k.shape[1]
    return scaled_dot_product_attention(q, k, v, attn_mask=scores, scale=scale, enable_gqa=gqa).masked_fill(blind, 0)


def _flex(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Mask, tokens: tuple[Tokens, Tokens], scale: float
) -> Tensor:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if not (q.numel() and k.numel() and v.numel()):
        return q.new_zeros(*q.shape[:3], v.shape[-1])
    if not q.is_cuda and torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, bias)):
        raise ValueError('backend "flex" gives no gradients on a CPU; expected torch.no_grad(), or backend="sdpa"')
    blocks = create_block_mask(mask.mask_mod(*tokens), len(q), None, q.shape[2], k.shape[2], device=q.device)
    fused = _compiled_flex() if q.is_cuda else flex_attention
    score_mod = None if bias is None else lambda score, b, h, n, m: score + bias[b, h, n, m]
    return fused(q, k, v, score_mod=score_mod, block_mask=blocks, scale=scale, enable_gqa=q.shape[1] != k.shape[1])


@cached
def _compiled_flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def split_heads(dim: int, heads: int, kv_heads: int | None) -> tuple[int, int]:
    """The head dim, and the number of heads of keys, which is by default that of queries."""
    if whole("dim", dim, 1) % whole("heads", heads, 1):
        raise ValueError(f"dim {dim} does not split into {heads} heads")
    kv_heads = heads if kv_heads is None else whole("kv_heads", kv_heads, 1)
    if heads % kv_heads:
        raise ValueError(f"heads {heads} is no multiple of kv_heads {kv_heads}")
    return dim // heads, kv_heads


class EncodedAttention(nn.Module):
    """Multi-head attention through any encoding: four projections around `attend`.

    Args:
        dim: channels C.
        heads: Hq; ``dim / heads`` is the head dim D.
        kv_heads: Hk, which divides `heads`; as many by default, 1 for multi-query attention.
        encoding: where tokens are; its parameters, if it learns, are the module's as well. The model itself calls
            `encoding.embed` before its first layer.
        mask: who may look at whom.
        backend: see `attend`.

    Raises:
        ValueError: channels do not divide into heads, or heads into those of the keys, or the head dim is odd where an
            encoding turns pairs of channels.
        TypeError: `encoding` or `mask` is none.

    >>> attention = EncodedAttention(32, 4, kv_heads=2, encoding=Encoding())
    >>> attention(torch.randn(2, 5, 32), torch.arange(5).repeat(3, 1)).shape
    torch.Size([2, 5, 32])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        encoding: Encoding,
        kv_heads: int | None = None,
        mask: Mask = Mask(),
        backend: Backend = "sdpa",
    ):
        super().__init__()
        one_of("backend", backend, ("sdpa", "flex"))
        check_encoding(encoding)
        _check_mask(mask)
        self.head_dim, kv_heads = split_heads(dim, heads, kv_heads)
        check_head_dim(encoding, self.head_dim)
        self.encoding, self.mask = encoding, mask
        self.backend: Backend = backend
        self.q = nn.Linear(dim, dim, bias=False)
        self.k, self.v = (nn.Linear(dim, kv_heads * self.head_dim, bias=False) for _ in range(2))
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(
        self, x: Float[Tensor, "b n c"], positions: Where, *, cache: Cache | None = None
    ) -> Float[Tensor, "b n c"]:
        """Attend; with a cache, `x` and `positions` are of the new tokens alone."""
        q, k, v = (part(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in (self.q, self.k, self.v))
        seen = attend(
            q,
            k,
            v,
            encoding=self.encoding,
            positions=positions,
            cache=cache,
            mask=self.mask,
            backend=self.backend,
        )
        return self.out(seen.transpose(1, 2).flatten(2))
