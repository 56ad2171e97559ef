"""Encodings that add to the tokens before the first layer, or do nothing.

Letters: A axes, B batch, N tokens, C channels, F pairs of an axis.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn
from torch.nn.functional import interpolate

from mrope.checks import Number, one_of, positive, whole
from mrope.encoding import Encoding, Properties, Where, read_ids
from mrope.encodings.operands import check_floating, wholes
from mrope.frequencies import Frequencies

Resampling = Literal["linear", "cubic", "cubic-antialiased"]


@dataclass(frozen=True, slots=True)
class NoPe(Encoding):
    """No encoding: what positions a model has come from its causal mask alone (NoPE, arXiv:2305.19466).

    >>> x = torch.ones(5, 8)
    >>> NoPe().embed(x, torch.arange(5)[None]) is x
    True
    """

    @property
    def properties(self) -> Properties:
        """See `Encoding.properties`."""
        return Properties(shift=True)


@dataclass(frozen=True, slots=True)
class Sinusoidal(Encoding):
    """Adds sines and cosines of the positions ("Attention Is All You Need", arXiv:1706.03762, section 3.5).

    Pair j of a part of C channels is (2j, 2j + 1): the sine and the cosine of ``position * base ** (-2j / C)``. Of
    several axes each has an equal part of the channels, in the order of the axes: halves for (h, w), thirds for
    (t, h, w). A shift of the positions is one linear map of the code, and the scores do depend on it.

    Angles are float32 products, as in the libraries: at position 1e6 the code is up to 0.06 off.

    Args:
        dim: channels C of the tokens.
        axes: A of the ids.
        base: wavelengths run from 2 pi to 2 pi times nearly this, in positions.

    Raises:
        ValueError: `dim` does not split into `axes` parts of whole pairs.

    >>> Sinusoidal(4).table(torch.tensor([[0, 1]]))
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """

    dim: int
    _: KW_ONLY
    axes: int = 1
    base: Number = 1e4

    def __post_init__(self) -> None:
        whole("dim", self.dim, 2)
        positive("base", self.base)
        if self.dim % (2 * whole("axes", self.axes, 1)):
            raise ValueError(
                f"dim {self.dim} does not split into pairs for {self.axes} axes; expected a multiple of {2 * self.axes}"
            )

    @property
    def properties(self) -> Properties:
        """See `Encoding.properties`."""
        return Properties(shift=False)

    def table(self, positions: Where) -> Float32[Tensor, "*b n c"]:
        """What is added: (N, C) from ids (A, N), (B, N, C) from (A, B, N); whole or real positions."""
        ids = read_ids(positions, self.axes).to(torch.float32)
        angles = ids[..., None] * Frequencies(self.base).inv_freq(self.dim // self.axes).to(ids.device)
        pairs = torch.stack((angles.sin(), angles.cos()), dim=-1)  # (A, ..., N, F, 2)
        return pairs.flatten(-2).movedim(0, -2).flatten(-2)

    def embed(self, x: Float[Tensor, "*b n c"], positions: Where) -> Float[Tensor, "*b n c"]:
        """Tokens (B, N, C) plus `table`, added in float32 and rounded once.

        Raises:
            ValueError: the tokens have another number of channels, or are others than the positions'.
        """
        return _add(x, self.table(positions))


class LearnedTable(nn.Module, Encoding):
    """Adds a learned row for each position, as ViT does (arXiv:2010.11929); it knows no position beyond its table.

    Args:
        dim: channels C of the tokens.
        shape: positions along each axis: (n,), (h, w) or (t, h, w).

    >>> table = LearnedTable(8, (2, 3))
    >>> table.embed(torch.zeros(1, 8), torch.tensor([[1], [2]])).equal(table.weight[1, 2][None])
    True
    >>> table.resampled((4, 6)).shape
    (4, 6)
    """

    def __init__(self, dim: int, shape: tuple[int, ...]):
        super().__init__()
        self.dim, self.shape = whole("dim", dim, 1), wholes("shape", shape)
        self.axes = len(self.shape)
        if not 1 <= self.axes <= 3:
            raise ValueError(f"shape {self.shape} has {self.axes} axes; expected 1 to 3: (n,), (h, w) or (t, h, w)")
        # The deviation that BERT and ViT draw their tables with.
        self.weight = nn.Parameter(torch.empty(*self.shape, self.dim).normal_(std=0.02))

    @property
    def properties(self) -> Properties:
        """See `Encoding.properties`."""
        return Properties(shift=False)

    def embed(self, x: Float[Tensor, "*b n c"], positions: Where) -> Float[Tensor, "*b n c"]:
        """Tokens (B, N, C) plus their rows of the table, added in float32 and rounded once.

        Looks at the smallest and the largest position first: on an accelerator the host waits for them. What
        torch.compile traces does not look: there a position outside the table fails in the lookup itself, and a
        negative one counts from its end.

        Raises:
            ValueError: a position is not whole or lies outside the table, the tokens have another number of channels,
                or are others than the positions'.
        """
        ids = read_ids(positions, self.axes)
        if ids.is_floating_point():
            raise ValueError(f"positions have dtype {ids.dtype}; a learned table has rows at whole positions only")
        ids = ids.long()
        if not torch.compiler.is_compiling():
            self._check_inside(ids.flatten(1))
        return _add(x, self.weight[tuple(ids)])

    @torch.no_grad()
    def resampled(self, shape: tuple[int, ...], *, by: Resampling = "cubic") -> LearnedTable:
        """A table of another shape whose rows lie between the rows of this one; computed in float32.

        The edges of the two grids coincide, not the centres of their first cells, as in timm and transformers.

        Args:
            shape: positions along each axis, of as many axes.
            by: "linear"; "cubic", which transformers takes for its ViTs; or "cubic-antialiased", timm's, which also
                averages where the new grid is coarser. Three axes know "linear" alone.

        Raises:
            ValueError: `shape` has another number of axes, or three axes come with another rule than "linear".
        """
        one_of("by", by, ("linear", "cubic", "cubic-antialiased"))
        shape = wholes("shape", shape)
        if len(shape) != self.axes:
            raise ValueError(f"shape {shape} has {len(shape)} axes; the table has {self.axes}: {self.shape}")
        if self.axes == 3 and by != "linear":
            raise ValueError(f"by is {by!r}; a table of three axes is resampled by 'linear' only")
        new = LearnedTable(self.dim, shape).to(self.weight.device, self.weight.dtype)
        # One axis goes as a picture of one row: there are no cubic rules for lines.
        line = (1,) * (self.axes == 1)
        grid = self.weight.float().movedim(-1, 0)[None].reshape(1, self.dim, *line, *self.shape)
        mode = "trilinear" if self.axes == 3 else "bilinear" if by == "linear" else "bicubic"
        grid = interpolate(
            grid, (*line, *new.shape), mode=mode, align_corners=False, antialias=by == "cubic-antialiased"
        )
        new.weight.copy_(grid[0].movedim(0, -1).reshape(new.weight.shape))
        return new

    def _check_inside(self, ids: Tensor) -> None:
        if not ids.numel():
            return
        least, most = (bound.tolist() for bound in ids.aminmax(dim=1))
        if min(least) < 0 or any(one >= size for one, size in zip(most, self.shape, strict=True)):
            needed = tuple(max(one + 1, size) for one, size in zip(most, self.shape, strict=True))
            more = f"; resampled({needed}) makes a table that holds them" if min(least) >= 0 else ""
            raise ValueError(
                f"positions reach from {tuple(least)} to {tuple(most)}; the table has shape {self.shape}, "
                f"from 0 on each axis{more}"
            )


def _add(x: Tensor, table: Tensor) -> Tensor:
    check_floating("x", x)
    if x.shape[-table.dim() :] != table.shape:
        raise ValueError(
            f"x has shape {tuple(x.shape)}; these positions are those of tokens of shape {tuple(table.shape)}"
        )
    dtype = torch.promote_types(x.dtype, torch.float32)
    return (x.to(dtype) + table.to(dtype)).to(x.dtype)
