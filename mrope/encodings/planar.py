"""Rotary encodings whose angles are linear in the coordinates: those of vision encoders.

Letters: A axes, B batch, H heads, N tokens, D head dim, R rotary channels (the first of D), F = R/2 pairs.

Coordinates are (h, w) = (row, col), or (t, h, w). Papers that write x first mean col; where their first pairs read it,
so do ours. Tokens without a place (class, registers) stay as they are at coordinate 0, where all angles vanish.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from mrope.checks import Number, one_of, positive, whole
from mrope.encoding import Encoding, Properties, Where, check_tokens, read_ids
from mrope.encodings.operands import check_pair
from mrope.frequencies import Frequencies
from mrope.ops import Pairing, rotate_qk


class LinearRope(Encoding):
    """Pair i turns by ``sum over axes a of f[a, i] p[a]``, whatever its subclass says that f is.

    Angles are float32 sums of float32 products, as the weights were trained with: at a coordinate of 1e6 and 1 radian
    per unit they are up to 0.04 off, on grids of patches 1e-5.
    """

    __slots__ = ()

    axes: int
    pairing: Pairing

    @property
    def frequencies(self) -> Float[Tensor, "*h a f"]:
        """(A, F), or (H, A, F) where heads differ: radians per unit of each coordinate."""
        raise NotImplementedError

    @property
    def properties(self) -> Properties:
        return Properties(norm=True, shift=True, commutes=True)

    def cos_sin(self, positions: Where) -> tuple[Float[Tensor, "*b n f"], Float[Tensor, "*b n f"]]:
        """Cos and sin of every token: (N, F) or (B, N, F); where heads differ (1, H, N, F) or (B, H, N, F).

        Raises:
            ValueError: the positions have another number of axes.
        """
        frequencies = self.frequencies
        ids = read_ids(positions, frequencies.shape[-2])
        if frequencies.dim() == 2:
            angles = over_axes(ids, frequencies[None]).squeeze(-3)
        else:
            angles = over_axes(ids, frequencies)
            angles = angles[None] if ids.dim() == 2 else angles
        return angles.cos(), angles.sin()

    def rotate(
        self, q: Float[Tensor, "*b hq n d"], k: Float[Tensor, "*b hk n d"], positions: Where
    ) -> tuple[Float[Tensor, "*b hq n d"], Float[Tensor, "*b hk n d"]]:
        """Rotated copies of `q` (B, Hq, N, D) and `k` (B, Hk, N, D); channels from R on pass unchanged.

        Where heads differ, H divides Hq and Hk, and neighbouring heads share: with H = Hk, a query turns as its key.
        """
        check_pair(q, k)
        check_tokens(read_ids(positions, self.axes), q)
        cos, sin = self.cos_sin(positions)
        for x in (q, k) if cos.dim() == 4 else ():
            heads_per_set(x, cos.shape[1])
        return rotate_qk(q, k, cos, sin, pairing=self.pairing)


def over_axes(ids: Tensor, rates: Tensor, least: torch.dtype = torch.float32) -> Tensor:
    """(B, H, N, ..): the sum over axes of ids (A, B, N) times rates (H, A, ..), in `least` at least; B may be missing.

    No matrix product: some devices round its factors.
    """
    rates = rates.to(ids.device, torch.promote_types(rates.dtype, least)).unsqueeze(2)
    ids = ids.to(rates.dtype).unsqueeze(-2)[(..., *[None] * (rates.dim() - 3))]
    total = ids[0] * rates[:, 0]
    for axis in range(1, len(ids)):
        total = total + ids[axis] * rates[:, axis]
    return total


def heads_per_set(x: Tensor, sets: int) -> int:
    """How many neighbouring heads of x (B, H, N, D) share one of `sets` sets of parameters."""
    if x.shape[-3] % sets:
        raise ValueError(f"heads of the encoding are {sets}; they do not divide the {x.shape[-3]} heads of q or k")
    return x.shape[-3] // sets


def check_pairs(rotary_dim: int, divisor: int, why: str) -> None:
    """Refuse rotary channels that are no multiple of `divisor`."""
    if whole("rotary_dim", rotary_dim, 2) % divisor:
        raise ValueError(f"rotary_dim {rotary_dim} is no multiple of {divisor}; {why}")


# ------------------------------------------------------------------------------------------ pairs that read one axis


class _AxisRope(LinearRope):
    """Every pair reads one axis, and every axis has as many pairs."""

    __slots__ = ()

    rotary_dim: int
    base: Number

    def __post_init__(self) -> None:
        axes = whole("axes", self.axes, 1)
        check_pairs(self.rotary_dim, 2 * axes, f"{axes} axes take as many pairs each")
        positive("base", self.base)
        one_of("pairing", self.pairing, ("half", "adjacent"))


@dataclass(frozen=True, slots=True)
class AxialRope(_AxisRope):
    """Each axis turns an equal run of pairs with one spectrum, the last axis first: RoPE-Axial (arXiv:2403.13298).

    Pair k of an axis turns by ``base ** (-2 k A / R)`` radians per patch.

    Args:
        rotary_dim: R, a multiple of 2 A.
        axes: A: 2 for (h, w), whose first pairs read the col; 3 for (t, h, w).
        base: of the spectrum.
        pairing: channels of pair j: "half" is (j, j + F), "adjacent" is (2j, 2j + 1).

    Raises:
        ValueError: `rotary_dim` does not give each axis as many pairs.

    >>> AxialRope(8).frequencies
    tensor([[0.0000, 0.0000, 1.0000, 0.1000],
            [1.0000, 0.1000, 0.0000, 0.0000]])
    """

    rotary_dim: int
    _: KW_ONLY
    axes: int = 2
    base: Number = 100.0
    pairing: Pairing = "adjacent"

    @property
    def frequencies(self) -> Float32[Tensor, "a f"]:
        return _in_runs(self.rotary_dim, self.axes, self.base).flip(0)


@dataclass(frozen=True, slots=True)
class QwenVisionRope(_AxisRope):
    """Each axis turns an equal run of pairs with one spectrum, the first axis first: the towers of Qwen2-VL
    (arXiv:2409.12191) to Qwen3-VL, GLM-4V, Ernie 4.5 VL; with three axes that of MiniMax-M3-VL.

    Pair k of an axis turns by ``base ** (-2 k A / R)`` radians per patch. Other arguments as in `AxialRope`.

    Args:
        axes: A: 2 for (h, w), 3 for (t, h, w).

    >>> QwenVisionRope(8).frequencies
    tensor([[1.0000, 0.0100, 0.0000, 0.0000],
            [0.0000, 0.0000, 1.0000, 0.0100]])
    """

    rotary_dim: int
    _: KW_ONLY
    axes: int = 2
    base: Number = 1e4
    pairing: Pairing = "half"

    @property
    def frequencies(self) -> Float32[Tensor, "a f"]:
        return _in_runs(self.rotary_dim, self.axes, self.base)


@dataclass(frozen=True, slots=True)
class Eva02Rope(_AxisRope):
    """The rows turn the first half of the pairs, the cols the second, over a stretched grid: EVA-02 (arXiv:2303.11331).

    Pair k of an axis turns by ``base ** (-4 k / R)``. Coordinates are
    ``patch_coordinates(grid, rule="reference", trained=...)``. Arguments as in `AxialRope`.

    >>> Eva02Rope(8).frequencies[0]
    tensor([1.0000, 0.0100, 0.0000, 0.0000])
    """

    axes = 2
    rotary_dim: int
    _: KW_ONLY
    base: Number = 1e4
    pairing: Pairing = "adjacent"

    @property
    def frequencies(self) -> Float32[Tensor, "2 f"]:
        return _in_runs(self.rotary_dim, 2, self.base)


@dataclass(frozen=True, slots=True)
class Dinov3Rope(_AxisRope):
    """Periods from 1 up over centres of patches in [-1, 1]: DINOv3 (arXiv:2508.10104).

    Pair k of an axis turns by ``2 pi base ** (-4 k / R)``, the rows first. Coordinates are
    ``patch_coordinates(grid, rule="centres")``, in training `augment`-ed. Arguments as in `AxialRope`.

    >>> Dinov3Rope(8).frequencies[0]
    tensor([6.2832, 0.6283, 0.0000, 0.0000])
    """

    axes = 2
    rotary_dim: int
    _: KW_ONLY
    base: Number = 100.0
    pairing: Pairing = "half"

    @property
    def frequencies(self) -> Float32[Tensor, "2 f"]:
        return 2 * math.pi * _in_runs(self.rotary_dim, 2, self.base)


@dataclass(frozen=True, slots=True)
class PixtralRope(_AxisRope):
    """One spectrum dealt to both axes: the rows take its frequencies 0, 2, 4 .., the cols 1, 3, 5 .. (Pixtral,
    arXiv:2410.07073); the pairs of the rows come first.

    Arguments as in `AxialRope`; the pairing is that of the weights in transformers, the original's is "adjacent".

    >>> PixtralRope(8).frequencies
    tensor([[1.0000, 0.0100, 0.0000, 0.0000],
            [0.0000, 0.0000, 0.1000, 0.0010]])
    """

    axes = 2
    rotary_dim: int
    _: KW_ONLY
    base: Number = 1e4
    pairing: Pairing = "half"

    @property
    def frequencies(self) -> Float32[Tensor, "2 f"]:
        spectrum = Frequencies(self.base).inv_freq(self.rotary_dim)
        return torch.block_diag(spectrum[0::2], spectrum[1::2])


@dataclass(frozen=True, slots=True)
class MoonVitRope(_AxisRope):
    """Cols and rows take turns, col first, two pairs to a frequency: MoonViT (Kimi-VL, arXiv:2504.07491).

    Pairs 2k and 2k + 1 turn by ``base ** (-4 k / R)``. Arguments as in `AxialRope`; the original pairs channels
    "adjacent", Kimi K2.5 in transformers "half".

    >>> MoonVitRope(8).frequencies
    tensor([[0.0000, 1.0000, 0.0000, 0.0100],
            [1.0000, 0.0000, 0.0100, 0.0000]])
    """

    axes = 2
    rotary_dim: int
    _: KW_ONLY
    base: Number = 1e4
    pairing: Pairing = "adjacent"

    @property
    def frequencies(self) -> Float32[Tensor, "2 f"]:
        spectrum = Frequencies(self.base).inv_freq(self.rotary_dim // 2)
        still = torch.zeros_like(spectrum)
        return torch.stack((torch.stack((still, spectrum), -1), torch.stack((spectrum, still), -1))).flatten(1)


def _in_runs(rotary_dim: int, axes: int, base: Number) -> Tensor:
    """(A, F): the same spectrum for every axis, in runs of pairs."""
    return torch.block_diag(*[Frequencies(base).inv_freq(rotary_dim // axes)] * axes)
