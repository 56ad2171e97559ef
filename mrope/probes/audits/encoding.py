"""What an encoding keeps: its declared properties, measured on random queries and keys.

Letters: A axes, H heads, N tokens, D head dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mrope.axes import AxisSplit
from mrope.checks import Number, positive, whole
from mrope.encoding import Encoding, Properties
from mrope.encodings.operands import check_encoding
from mrope.frequencies import Frequencies
from mrope.rotary import Rotary

TOKENS, CLOSE = 12, 1e-3


@torch.no_grad()
def audit_encoding(
    encoding: Encoding, *, axes: int, head_dim: int, heads: int = 2, extent: Number = 20, seed: int = 0
) -> Properties:
    """The properties that an encoding has on random tokens at random positions, to be held against the declared ones.

    Args:
        encoding: to measure, in the state of learning that it is in.
        axes: A of the positions that it gets.
        head_dim: D of queries and keys.
        heads: of queries and of keys.
        extent: positions are whole numbers from 0 up to this one on every axis; they are moved by up to a quarter of
            it, each axis by another amount.
        seed: of the random numbers.

    Raises:
        TypeError: `encoding` is none.
        ValueError: a size is out of range, is not that of the encoding, or its frequencies depend on a length.

    >>> from mrope import AxisSplit, Frequencies, Rotary
    >>> rotary = Rotary(AxisSplit((2, 1, 1)), Frequencies(100.0))
    >>> audit_encoding(rotary, axes=3, head_dim=8)
    Properties(norm=True, shift=True, text_is_rope=True, commutes=True)
    """
    check_encoding(encoding)
    width = whole("heads", heads, 1) * whole("head_dim", head_dim, 1)
    taken = getattr(encoding, "dim", width)
    if taken != width:
        raise ValueError(
            f"{heads} heads of {head_dim} channels make tokens of {width}; {type(encoding).__name__} takes tokens of "
            f"{taken}: expected heads * head_dim to be that"
        )
    if isinstance(encoding, Rotary) and encoding.frequencies.needs_length:
        raise ValueError(
            "the frequencies of the encoding depend on the length of the row, which random tokens have not: hold them "
            "at one length, mrope.extensions.At"
        )
    rng = torch.Generator().manual_seed(seed)
    most = max(4, int(positive("extent", extent)))
    ids = torch.randint(0, most, (whole("axes", axes, 1), TOKENS), generator=rng)
    step = torch.arange(1, axes + 1)[:, None] * most // (4 * axes) + 1
    q, k = torch.randn(2, heads, TOKENS, head_dim, generator=rng, dtype=torch.float64)

    def scores(positions: Tensor) -> Tensor:
        embedded = [encoding.embed(x.transpose(0, 1).flatten(1), positions) for x in (q, k)]
        queries, keys = (x.unflatten(1, (heads, -1)).transpose(0, 1) for x in embedded)
        bias = encoding.bias(queries, positions)
        queries, keys = encoding.rotate(queries, keys, positions)
        return queries @ keys.transpose(-1, -2) + (0 if bias is None else bias)

    before, after = scores(ids), scores(ids + step)
    shift = _same(before, after)
    if type(encoding).rotate is Encoding.rotate:
        return Properties(shift=shift)
    turned, _ = encoding.rotate(q, k, ids)
    if turned.shape != q.shape:
        return Properties(shift=shift)
    return Properties(
        norm=_same(turned.norm(dim=-1), q.norm(dim=-1)),
        shift=shift,
        text_is_rope=_text_is_rope(encoding, q, k) if isinstance(encoding, Rotary) else None,
        commutes=_same(encoding.rotate(turned, k, step.expand_as(ids))[0], encoding.rotate(q, k, ids + step)[0]),
    )


def _text_is_rope(rotary: Rotary, q: Tensor, k: Tensor) -> bool:
    text = torch.arange(q.shape[-2]) * 99_991  # far enough for the slowest pairs to have turned
    frequencies = rotary.frequencies
    if isinstance(frequencies.extension, tuple):  # of one axis each: what they leave alone is the plain rotary
        frequencies = Frequencies(frequencies.base)
    plain = Rotary(AxisSplit((rotary.split.pairs,)), frequencies, rotary.pairing, rotary.angles)
    return _same(rotary(q, k, text.expand(rotary.axes, -1))[0], plain(q, k, text[None])[0])


def _same(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() < CLOSE * a.abs().max())
