"""Rotary encodings that learn a group of rotations: LieRE, ComRoPE, STRING, GRAPE.

Letters: A axes, B batch, H heads of the encoding, G heads of q or k that share one of them, N tokens, D head dim,
F = D/2 planes, J blocks of b channels.

Rotations are matrix exponentials R(p) = exp(sum over axes of p[a] L[a]) of skew generators L. Scores depend on p - p'
alone if and only if the generators commute; all but LieRE keep them commuting whatever they learn.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mrope.checks import Number, one_of, positive, whole
from mrope.encoding import Encoding, Properties, Where, check_tokens, read_ids
from mrope.encodings.operands import check_pair, without_autocast
from mrope.encodings.planar import QwenVisionRope, heads_per_set, over_axes
from mrope.frequencies import Frequencies

Commuting: TypeAlias = Literal["AP", "LD"]
Reading: TypeAlias = Literal["axis", "mixed"]


class _GroupRope(nn.Module, Encoding):
    """Heads that turn as one group: its H sets of parameters divide the heads of q and of k, and neighbours share."""

    axes: int

    def __init__(self, head_dim: int, *, axes: int, heads: int) -> None:
        super().__init__()
        self.head_dim = whole("head_dim", head_dim, 2)
        self.axes = whole("axes", axes, 1)
        self.heads = whole("heads", heads, 1)

    @property
    def properties(self) -> Properties:
        return Properties(norm=True, shift=True, commutes=True)

    def rotate(
        self, q: Float[Tensor, "*b hq n d"], k: Float[Tensor, "*b hk n d"], positions: Where
    ) -> tuple[Float[Tensor, "*b hq n d"], Float[Tensor, "*b hk n d"]]:
        """Rotated copies of `q` (B, Hq, N, D) and `k` (B, Hk, N, D), in float32 or above and rounded once at the end.

        H divides Hq and Hk, and neighbouring heads share: with H = Hk, a query turns as its key.

        Raises:
            ValueError: q and k differ in more than their heads, have another head dim, or heads that H does not
                divide; or positions are of other tokens.
        """
        ids = read_ids(positions, self.axes)
        check_pair(q, k)
        check_tokens(ids, q)
        with without_autocast(q.device):
            tables = self._tables(ids.to(q.device), torch.promote_types(q.dtype, torch.float32))
            return self._rotated(q, tables), self._rotated(k, tables)

    def _rotated(self, x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        if x.shape[-1] != self.head_dim:
            raise ValueError(f"q or k has head dim {x.shape[-1]}; the encoding was made for {self.head_dim}")
        heads_per_set(x, self.heads)
        if not x.numel():
            return x.clone()  # some Fourier transforms take nothing empty
        wide = x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(-3, (self.heads, -1))
        return self._turn(wide, *tables).flatten(-4, -3).to(x.dtype)

    def _tables(self, ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """All that depends on positions (A, N) or (A, B, N) and parameters alone, made in `dtype` at least."""
        raise NotImplementedError

    def _turn(self, x: Tensor, *tables: Tensor) -> Tensor:
        """(B, H, G, N, D) turned by the tables."""
        raise NotImplementedError


def _wide(x: Tensor) -> Tensor:
    """In float32 at least: parameters may be half precision, angles may not."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _skew(entries: Tensor, size: int) -> Tensor:
    """(..., b, b) skew matrices of the (..., b (b - 1) / 2) entries above their diagonals."""
    row, col = torch.triu_indices(size, size, 1, device=entries.device)
    upper = entries.new_zeros(*entries.shape[:-1], size, size)
    upper[..., row, col] = entries
    return upper - upper.mT


# ------------------------------------------------------------------------------------------------ blocks, exponentiated


class _BlockRope(_GroupRope):
    """Blocks of channels that turn by the exponential of one matrix a token."""

    def __init__(self, head_dim: int, *, axes: int, heads: int, block_size: int) -> None:
        super().__init__(head_dim, axes=axes, heads=heads)
        self.block_size = whole("block_size", block_size, 2)
        if head_dim % block_size:
            raise ValueError(f"block_size {block_size} does not divide head_dim {head_dim}")
        self.blocks = head_dim // block_size

    @property
    def generators(self) -> Float[Tensor, "h a j c c"]:
        """(H, A, J, b, b), skew: radians per unit of each coordinate."""
        raise NotImplementedError

    def _tables(self, ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
        # Strided ids make a strided sum, in which torch's exponential crashes.
        return (torch.matrix_exp(over_axes(ids, self.generators, dtype).contiguous()),)

    def _turn(self, x: Tensor, *tables: Tensor) -> Tensor:
        (matrices,) = tables
        blocks = x.unflatten(-1, (self.blocks, self.block_size))
        return torch.einsum("...hnjrc,...hgnjc->...hgnjr", matrices.to(x.dtype), blocks).flatten(-2)


class LieRope(_BlockRope):
    """Learned dense generators: LieRE (arXiv:2406.10322).

    With two axes or more the generators do not commute: scores do not depend on differences of positions alone. They
    do with one axis, and with blocks of 2, which all commute. Every token has its own exponential: a head takes N D b
    numbers for it, N D D when dense. Coordinates are those of ``patch_coordinates(grid, rule="span", trained=...)``:
    float32 keeps norms of a dense head of 64 to 3e-5 there, to 4e-4 at coordinates of 20, to 2e-3 at 100 and to 1e-2
    at 1000 (blocks of 8: a tenth of it). Queries in float64 have exponentials in float64, which keep them to 1e-10.

    Args:
        head_dim: D.
        axes: A.
        heads: H sets of generators; 1: all heads share one.
        block_size: b, dense within blocks of so many channels; None for one block of D.

    Attributes:
        entries: (H, A, J, b (b - 1) / 2), those above the diagonals, the only free ones; at first from U(0, 2 pi).

    Raises:
        ValueError: the block size does not divide `head_dim`.

    >>> LieRope(8, block_size=4).generators.shape
    torch.Size([1, 2, 2, 4, 4])
    """

    def __init__(self, head_dim: int, *, axes: int = 2, heads: int = 1, block_size: int | None = None) -> None:
        size = whole("head_dim", head_dim, 2) if block_size is None else block_size
        super().__init__(head_dim, axes=axes, heads=heads, block_size=size)
        self.entries = nn.Parameter(2 * math.pi * torch.rand(heads, axes, self.blocks, size * (size - 1) // 2))

    @property
    def properties(self) -> Properties:
        commuting = self.axes == 1 or self.block_size == 2
        return Properties(norm=True, shift=commuting, commutes=commuting)

    @property
    def generators(self) -> Float[Tensor, "h a j c c"]:
        return _skew(_wide(self.entries), self.block_size)


class ComRope(_BlockRope):
    """Learned generators that commute, block by block: ComRoPE (arXiv:2506.03737).

    "AP", axial partition: block j reads axis j mod A alone. "LD", linearly dependent: all axes turn a block by one
    generator, each at its own rate. Every token has its own exponential: a head takes N D b numbers for it.
    Coordinates are those of ``patch_coordinates(grid, rule="unit")``: float32 keeps norms to 4e-7 there, to 7e-6 at
    coordinates of 20, to 4e-5 at 100 and to 3e-4 at 1000. Queries in float64 have exponentials in float64, which keep
    them to 1e-11.

    Args:
        head_dim: D.
        kind: "AP" or "LD".
        axes: A.
        heads: H sets of generators; 1: all heads share one.
        block_size: b channels that turn together.

    Attributes:
        entries: (H, J, b (b - 1) / 2), those of P - P^T above the diagonals; at first normal with variance 2, as for P
            with variance 1.
        rates: (H, A, J), of "LD" alone; at first normal.

    Raises:
        ValueError: the block size does not divide `head_dim`, or "AP" has an axis without a block.

    >>> ComRope(8, kind="AP", block_size=4).generators.abs().sum((-1, -2)) > 0  # which axis turns which block
    tensor([[[ True, False],
             [False,  True]]])
    """

    def __init__(self, head_dim: int, *, kind: Commuting, axes: int = 2, heads: int = 1, block_size: int = 8) -> None:
        super().__init__(head_dim, axes=axes, heads=heads, block_size=block_size)
        one_of("kind", kind, get_args(Commuting))
        if kind == "AP" and self.blocks < axes:
            raise ValueError(f"head_dim {head_dim} has {self.blocks} blocks of {block_size}, too few for {axes} axes")
        self.kind = kind
        self.entries = nn.Parameter(2**0.5 * torch.randn(heads, self.blocks, block_size * (block_size - 1) // 2))
        if kind == "LD":
            self.rates = nn.Parameter(torch.randn(heads, axes, self.blocks))

    @property
    def generators(self) -> Float[Tensor, "h a j c c"]:
        generators = _skew(_wide(self.entries), self.block_size)
        if self.kind == "LD":
            rates = _wide(self.rates)
        else:
            axis = torch.arange(self.blocks, device=generators.device) % self.axes
            rates = torch.eye(self.axes, dtype=generators.dtype, device=generators.device)[:, axis][None]
        return rates[..., None, None] * generators[:, None]


# ------------------------------------------------------------------------------------------------------ learned planes


class _PlaneRope(_GroupRope):
    """D/2 planes, each turned by an angle that is linear in the position.

    Plane i is spanned by rows 2i and 2i + 1 of an orthogonal matrix. Whatever is learned, planes stay orthogonal to one
    another, so that their rotations commute, and each takes the parts (a, b) of x that lie in it to
    ``(a cos - b sin, a sin + b cos)``.
    """

    def __init__(self, head_dim: int, *, axes: int, heads: int) -> None:
        super().__init__(head_dim, axes=axes, heads=heads)
        if head_dim % 2:
            raise ValueError(f"head_dim {head_dim} is odd; a plane takes two channels")
        self.entries = nn.Parameter(torch.zeros(heads, head_dim * (head_dim - 1) // 2))

    @property
    def basis(self) -> Float[Tensor, "h d d"]:
        """(H, D, D) orthogonal, by the Cayley transform (I - S)(I + S)^(-1) of the learned skew S; I at first."""
        skew = _skew(_wide(self.entries), self.head_dim)
        one = torch.eye(self.head_dim, dtype=skew.dtype, device=skew.device)
        return torch.linalg.solve(one + skew, one - skew)  # the factors commute

    @property
    def frequencies(self) -> Float[Tensor, "#h a f"]:
        """(H or 1, A, F): radians per unit of each coordinate."""
        raise NotImplementedError

    def _tables(self, ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
        angles = over_axes(ids, self.frequencies, dtype).unsqueeze(-3)
        return angles.cos(), angles.sin(), self.basis.unsqueeze(-3)

    def _turn(self, x: Tensor, *tables: Tensor) -> Tensor:
        cos, sin, basis = (table.to(x.dtype) for table in tables)
        a, b = (x @ basis.mT).unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2) @ basis


class StringRope(_PlaneRope):
    """Axial RoPE in a learned basis, P^T RoPE(p) P, with learned frequencies: Cayley-STRING (arXiv:2502.02562).

    At first it is `AxialRope` with the rows first.

    Args:
        head_dim: D, a multiple of 2 A.
        axes: A.
        heads: H sets of parameters; 1: all heads share one.
        base: of the frequencies at first.

    Attributes:
        entries: (H, D (D - 1) / 2), those of S above the diagonal; P = (I - S)(I + S)^(-1).
        waves: (H, A, F), the frequencies.

    Raises:
        ValueError: `head_dim` does not give each axis as many planes.

    >>> StringRope(8).frequencies.data
    tensor([[[1.0000, 0.1000, 0.0000, 0.0000],
             [0.0000, 0.0000, 1.0000, 0.1000]]])
    """

    def __init__(self, head_dim: int, *, axes: int = 2, heads: int = 1, base: Number = 100.0) -> None:
        super().__init__(head_dim, axes=axes, heads=heads)
        start = QwenVisionRope(head_dim, axes=axes, base=base).frequencies
        self.waves = nn.Parameter(start.repeat(heads, 1, 1))

    @property
    def frequencies(self) -> Float[Tensor, "h a f"]:
        return _wide(self.waves)


class GrapeRope(_PlaneRope):
    """Rank-2 generators b a^T - a b^T in learned planes: multiplicative GRAPE (arXiv:2512.07805), kept a rotation.

    Plane i turns, a towards b, by ``base ** (-2 i / D)`` radians per unit of what it reads. "axis": coordinate i mod A,
    so that text, with one position on all axes, turns as in 1-D. "mixed": the position along a learned unit direction,
    at first that axis. The authors' code orthonormalises the two vectors of a plane, but not the planes among them, and
    is no rotation once it has learned; here all planes stay orthonormal.

    Args:
        head_dim: D, even.
        mode: "axis" or "mixed".
        axes: A.
        heads: H sets of planes; 1: all heads share one.
        base: of the frequencies, which are fixed.

    Attributes:
        entries: (H, D (D - 1) / 2), of the skew matrix whose Cayley transform holds the planes as pairs of rows.
        directions: (H, A, F), of "mixed" alone; only where they point counts.

    Raises:
        ValueError: `head_dim` is odd, or "axis" has an axis without a plane.

    >>> GrapeRope(8, mode="axis", axes=2).frequencies
    tensor([[[1.0000, 0.0000, 0.0100, 0.0000],
             [0.0000, 0.1000, 0.0000, 0.0010]]])
    """

    def __init__(self, head_dim: int, *, mode: Reading, axes: int = 3, heads: int = 1, base: Number = 1e4) -> None:
        super().__init__(head_dim, axes=axes, heads=heads)
        one_of("mode", mode, get_args(Reading))
        if mode == "axis" and head_dim // 2 < axes:
            raise ValueError(f"head_dim {head_dim} has {head_dim // 2} planes, too few for {axes} axes")
        self.base = positive("base", base)
        self.mode = mode
        if mode == "mixed":
            self.directions = nn.Parameter(self._one_axis_each(torch.float32).repeat(heads, 1, 1))

    def _one_axis_each(self, dtype: torch.dtype) -> Tensor:
        """(A, F): 1 where plane i reads axis i mod A."""
        return torch.eye(self.axes, dtype=dtype)[:, torch.arange(self.head_dim // 2) % self.axes]

    @property
    def frequencies(self) -> Float[Tensor, "#h a f"]:
        like = _wide(self.entries)
        speed = Frequencies(self.base).inv_freq(self.head_dim).to(like)
        if self.mode == "axis":
            return (self._one_axis_each(like.dtype).to(like.device) * speed)[None]
        return nn.functional.normalize(_wide(self.directions), dim=1) * speed


# ----------------------------------------------------------------------------------------------------------- circulants


class CirculantRope(_GroupRope):
    """Generators C - C^T of learned circulant C: Circulant-STRING (arXiv:2502.02562).

    Circulants commute, and the Fourier transform diagonalises them all: mode m turns by ``2 Im rfft(c)[m]`` radians per
    unit, exactly and in D log D steps a token. Modes 0 and, of an even D, D/2 never turn.

    Args:
        head_dim: D, at least 3.
        axes: A.
        heads: H sets of circulants; 1: all heads share one.

    Attributes:
        columns: (H, A, D), the first column c of each C; at first normal, such that a mode turns by 1 radian per unit
            in root mean square.

    >>> encoding = CirculantRope(8)
    >>> x = torch.ones(1, 5, 8)  # a constant lies in mode 0
    >>> torch.allclose(encoding.rotate(x, x, torch.arange(5).repeat(2, 1))[0], x)
    True
    """

    def __init__(self, head_dim: int, *, axes: int = 2, heads: int = 1) -> None:
        super().__init__(whole("head_dim", head_dim, 3), axes=axes, heads=heads)
        self.columns = nn.Parameter(torch.randn(heads, axes, head_dim) / (2 * head_dim) ** 0.5)

    def _tables(self, ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
        modes = 2 * torch.fft.rfft(_wide(self.columns)).imag
        angles = over_axes(ids, modes, dtype).unsqueeze(-3)
        return angles.cos(), angles.sin()

    def _turn(self, x: Tensor, *tables: Tensor) -> Tensor:
        cos, sin = (table.to(x.dtype) for table in tables)
        return torch.fft.irfft(torch.fft.rfft(x) * torch.complex(cos, sin), n=self.head_dim)
