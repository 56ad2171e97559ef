"""Rotary encodings whose pairs read the position along directions, fixed or learned.

Letters: A axes, H heads, R rotary channels (the first of D), F = R/2 pairs, G directions.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn

from mrope.checks import Number, one_of, positive, whole
from mrope.encodings.planar import LinearRope, check_pairs
from mrope.frequencies import Frequencies
from mrope.ops import Pairing


@dataclass(frozen=True, slots=True)
class WaveRope(LinearRope):
    """Any linear angles, by hand: pair i turns along the wave vector that column i of `waves` is.

    Args:
        waves: A rows of F numbers, radians per unit of the coordinate.
        pairing: channels of pair j: "half" is (j, j + F), "adjacent" is (2j, 2j + 1).

    Raises:
        ValueError: the rows are not of one length, or a number is not finite.
        TypeError: an entry is no number.

    >>> WaveRope(((1.0, 0.5), (0.0, 0.5))).frequencies
    tensor([[1.0000, 0.5000],
            [0.0000, 0.5000]])
    """

    waves: tuple[tuple[Number, ...], ...]
    _: KW_ONLY
    pairing: Pairing = "half"

    def __post_init__(self) -> None:
        one_of("pairing", self.pairing, ("half", "adjacent"))
        try:
            waves = tuple(tuple(float(entry + 0) for entry in row) for row in self.waves)  # a string is no number
        except TypeError:
            raise TypeError(f"waves is {self.waves!r}; expected one row of numbers per axis") from None
        object.__setattr__(self, "waves", waves)
        if not all(math.isfinite(entry) for row in waves for entry in row):
            raise ValueError(f"waves is {waves}; expected finite numbers")
        lengths = sorted({len(row) for row in waves})
        if len(lengths) != 1 or not lengths[0]:
            raise ValueError(f"waves have rows of {lengths} numbers; expected one row per axis, all of F >= 1 numbers")

    @property
    def axes(self) -> int:
        return len(self.waves)

    @property
    def frequencies(self) -> Float32[Tensor, "a f"]:
        return torch.tensor(self.waves, dtype=torch.float32)


@dataclass(frozen=True, slots=True)
class SpiralRope(LinearRope):
    """Groups of pairs read the position along directions spread evenly over half a turn, each with a whole spectrum
    (Spiral RoPE, arXiv:2602.03227).

    Pair k of group g of G turns by ``base ** (-2 k G / R)`` times ``col cos(g pi / G) + row sin(g pi / G)``. With two
    directions this is `AxialRope`.

    Args:
        rotary_dim: R, a multiple of 2 G.
        directions: G.
        base: of the spectrum; the default is that of RoPE-Axial.
        pairing: channels of pair j: "half" is (j, j + F), "adjacent" is (2j, 2j + 1).

    Raises:
        ValueError: `rotary_dim` does not give each direction as many pairs.

    >>> SpiralRope(8, directions=4).frequencies.mul(100).round()
    tensor([[  0.,  71., 100.,  71.],
            [100.,  71.,   0., -71.]])
    """

    axes = 2
    rotary_dim: int
    _: KW_ONLY
    directions: int
    base: Number = 100.0
    pairing: Pairing = "adjacent"

    def __post_init__(self) -> None:
        groups = whole("directions", self.directions, 1)
        check_pairs(self.rotary_dim, 2 * groups, f"{groups} directions take as many pairs each")
        positive("base", self.base)
        one_of("pairing", self.pairing, ("half", "adjacent"))

    @property
    def frequencies(self) -> Float32[Tensor, "2 f"]:
        spectrum = Frequencies(self.base).inv_freq(self.rotary_dim // self.directions)
        angle = torch.arange(self.directions, dtype=torch.float64) * (math.pi / self.directions)
        towards = torch.stack((angle.sin(), angle.cos())).float()
        return (towards[..., None] * spectrum).flatten(1)


@dataclass(frozen=True, slots=True)
class GoldenGateRope(LinearRope):
    """Every pair reads its own direction, a golden section of half a turn after the last one's (J. Xiong, "On
    N-dimensional rotary positional embeddings", 2025, https://jerryxio.ng/posts/nd-rope).

    Pair i turns by ``m_i (col cos a_i + row sin a_i)``, with ``a_i = i pi / 1.618..`` counted on from head to head,
    and m_i in even ratios from the slowest to the fastest. Coordinates lie in [-1, 1]:
    ``patch_coordinates(grid, rule="ends")``.

    Args:
        rotary_dim: R, even.
        heads: H sets of directions; H divides the heads of q and of k. 1: all heads share one.
        slowest: m of the first pair that turns, radians per unit.
        fastest: m of the last pair.
        still: the share of pairs, the first ones, that do not turn; from 0 up to below 1.
        pairing: channels of pair j: "half" is (j, j + F), "adjacent" is (2j, 2j + 1).

    >>> GoldenGateRope(4, slowest=1, fastest=4).frequencies
    tensor([[[ 0.0000,  3.7281],
             [ 1.0000, -1.4495]]])
    """

    axes = 2
    rotary_dim: int
    _: KW_ONLY
    heads: int = 1
    slowest: Number = 0.2
    fastest: Number = 20.0
    still: Number = 0.0
    pairing: Pairing = "half"

    def __post_init__(self) -> None:
        check_pairs(self.rotary_dim, 2, "a rotary pair takes two channels")
        whole("heads", self.heads, 1)
        if positive("slowest", self.slowest) > positive("fastest", self.fastest):
            raise ValueError(f"slowest is {self.slowest:g}, fastest {self.fastest:g}; expected slowest <= fastest")
        if not 0 <= self.still < 1:
            raise ValueError(f"still is {self.still:g}; expected a share from 0 up to below 1")
        one_of("pairing", self.pairing, ("half", "adjacent"))

    @property
    def frequencies(self) -> Float32[Tensor, "h 2 f"]:
        pairs = self.rotary_dim // 2
        resting = round(self.still * pairs)
        steps = torch.linspace(0, 1, pairs - resting, dtype=torch.float64)
        speed = torch.cat((torch.zeros(resting), self.slowest * (self.fastest / self.slowest) ** steps))
        angle = torch.arange(self.heads * pairs, dtype=torch.float64).view(-1, pairs) * (math.pi * (5**0.5 - 1) / 2)
        return torch.stack((speed * angle.sin(), speed * angle.cos()), dim=1).float()


class MixedRope(nn.Module, LinearRope):
    """Every pair of every head learns its direction and frequency: RoPE-Mixed (arXiv:2403.13298, section 3.2).

    One module a layer. At first half of the pairs of a head reads along a random direction and half across it, with
    ``base ** (-4 k / R)`` radians per patch.

    Args:
        rotary_dim: R, a multiple of 4.
        heads: H sets of frequencies; H divides the heads of q and of k.
        base: of the frequencies at first.
        pairing: channels of pair j: "half" is (j, j + F), "adjacent" is (2j, 2j + 1).

    Attributes:
        waves: (H, 2, F), the frequencies of row and of col. timm's `freqs` (2, layers, H, F) have the col first: those
            of layer l are ``freqs.flip(0)[:, l].transpose(0, 1)``.

    Raises:
        ValueError: `rotary_dim` is no multiple of 4.

    >>> MixedRope(8, heads=3).frequencies.shape
    torch.Size([3, 2, 4])
    """

    axes = 2

    def __init__(self, rotary_dim: int, *, heads: int, base: Number = 10.0, pairing: Pairing = "adjacent") -> None:
        super().__init__()
        check_pairs(rotary_dim, 4, "half of the pairs reads along a direction, half across it")
        one_of("pairing", pairing, ("half", "adjacent"))
        spectrum = Frequencies(positive("base", base)).inv_freq(rotary_dim // 2)
        along = 2 * math.pi * torch.rand(whole("heads", heads, 1), 1)
        angle = torch.cat((along.expand(-1, len(spectrum)), along.expand(-1, len(spectrum)) + math.pi / 2), dim=-1)
        self.waves = nn.Parameter(torch.stack((angle.sin(), angle.cos()), dim=1) * spectrum.repeat(2))
        self.pairing = pairing

    @property
    def frequencies(self) -> Float[Tensor, "h 2 f"]:
        return self.waves
