"""What an encoding is: anything that tells attention where its tokens are, by one of three verbs.

Letters: A axes, B batch, H heads, N queries, M keys, C channels, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from mrope.batches import BatchPositions
from mrope.positions import Positions

Where: TypeAlias = Tensor | Positions | BatchPositions
"""Where tokens are: ids (A, N) or (A, B, N) of any integer or real dtype, or the object that holds them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """What an encoding promises; `mrope.probes.audit_encoding` measures it. None: it has no meaning there.

    Args:
        norm: rotated queries and keys keep their norm.
        shift: scores depend on the differences of positions alone, on every axis.
        text_is_rope: tokens with one position on all axes turn as in plain 1-D RoPE.
        commutes: turning by p and then by p' is turning by p + p'.
    """

    norm: bool | None = None
    shift: bool | None = None
    text_is_rope: bool | None = None
    commutes: bool | None = None


class Encoding:
    """The three verbs, each of which does nothing until an encoding says otherwise.

    A model calls all of them: `embed` on the tokens before its first layer, `rotate` on the queries and keys of each
    layer, `bias` on the scores. An encoding that learns is an `nn.Module` as well.
    """

    __slots__ = ()

    axes: int | None = None
    """How many axes it reads: A of the ids. None takes any."""

    @property
    def properties(self) -> Properties:
        """What the encoding promises."""
        return Properties()

    def embed(self, x: Float[Tensor, "*b n c"], positions: Where) -> Float[Tensor, "*b n c"]:
        """Tokens (B, N, C) that know where they are; B may be missing."""
        return x

    def rotate(
        self, q: Float[Tensor, "*b hq n d"], k: Float[Tensor, "*b hk n d"], positions: Where
    ) -> tuple[Float[Tensor, "*b hq n e"], Float[Tensor, "*b hk n e"]]:
        """Queries (B, Hq, N, D) and keys (B, Hk, N, D) of the same N tokens, turned; B may be missing.

        Keys are turned once, by their own positions, and cached turned. The head dim may change (PoPE).
        """
        return q, k

    def bias(
        self, q: Float[Tensor, "*b hq n d"], positions: Where, keys: Where | None = None
    ) -> Float[Tensor, "*b hq n m"] | None:
        """What is added to the scores (B, Hq, N, M), after they were scaled; None adds nothing.

        Args:
            q: the queries before they were turned: their number of heads, dtype and device count, and in some
                encodings their values.
            positions: of the N queries.
            keys: of the M keys, where they are others than the queries: a KV cache, or another picture.
        """
        return None


def read_ids(positions: Where, axes: int | None = None, name: str = "positions") -> Tensor:
    """(A, N) or (A, B, N): the ids that `positions` are, or holds.

    Where a batch or a row is as long as there are axes, the shape cannot tell whether they were swapped.

    Raises:
        TypeError: `positions` hold no ids.
        ValueError: they have another number of axes than `axes`; the axes may lie last, as in other libraries.
    """
    if not isinstance(positions, (Tensor, Positions, BatchPositions)):
        raise TypeError(f"{name} is {positions!r}; expected a tensor, Positions or BatchPositions")
    ids = positions if isinstance(positions, Tensor) else positions.ids
    # A graph cannot trace the fields that positions make when they are first read.
    if not isinstance(positions, Tensor) and not torch.compiler.is_compiling():
        _check_one_id(positions, name)
    shape = tuple(ids.shape)
    wanted = "A" if axes is None else axes
    if ids.dim() not in (2, 3):
        raise ValueError(f"{name} have shape {shape}; expected ({wanted}, N) or ({wanted}, B, N)")
    if axes is not None and shape[0] != axes:
        swapped = f"; the axes lie last, so that {name}.movedim(-1, 0) would do" if shape[-1] == axes else ""
        raise ValueError(f"{name} have shape {shape}; expected ({axes}, N) or ({axes}, B, N){swapped}")
    if ids.dtype == torch.bool or ids.is_complex():
        raise ValueError(f"{name} have dtype {ids.dtype}; expected whole or real numbers")
    return ids


def _check_one_id(positions: Positions | BatchPositions, name: str) -> None:
    """Refuse positions of which a token has several ids."""
    first = positions if isinstance(positions, Positions) else positions.rows[0]
    if first.layers:
        raise ValueError(f"{name} differ from layer to layer; expected those of one: {name}.layer(index)")
    if positions.query is not None:
        raise ValueError(
            f"{name} have second ids for queries; expected one pass with {name}.ids, one with {name}.query"
        )
    if positions.members is not None:
        raise ValueError(
            f"{name} have ids of merged tokens; expected those of all members, {name}.members.movedim(0, 1).flatten(0, "
            "1), and a split of as many axes; or the ids alone"
        )


def check_tokens(ids: Tensor, x: Tensor) -> None:
    """Refuse ids (A, N) or (A, B, N) of other tokens than those of x (B, H, N, D), one included."""
    if tuple(ids.shape[1:]) not in ((x.shape[-2],), (*x.shape[:-3], x.shape[-2])):
        shapes = dict.fromkeys([(len(ids), x.shape[-2]), (len(ids), *x.shape[:-3], x.shape[-2])])
        raise ValueError(
            f"positions have shape {tuple(ids.shape)}; q or k of shape {tuple(x.shape)} takes "
            f"{' or '.join(map(str, shapes))}"
        )
