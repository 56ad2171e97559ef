"""Which context extension to choose, and what it leaves of each axis. Letters: F pairs, theta radians a position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from mrope.extensions import Ntk, default_inv_freq, ntk_base, parse_extension
from mrope.frequencies import Frequencies
from mrope.probes.audits.frequencies import (
    AXES,
    KEPT,
    FrequencyReport,
    Trained,
    check_position,
    extensions_of_axes,
    frequency_report,
    pairs_of_axes,
    radians,
)
from mrope.rotary import Rotary

_NTK_CARRIES = 2  # how many times the trained length, without training
_FAR = 2_000_000  # positions


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisLeft:
    """What an axis still tells at the target.

    Args:
        name: of the axis.
        pairs: how many read it.
        bf16: pairs that tell one position apart in bfloat16: 1 - cos(theta) survives rounding.
        float32: in float32.
        longest: wavelength in positions; None where no pair turns.
        error: how far cos and sin of float32 angles are off just before the target, at most.
    """

    name: str
    pairs: int
    bf16: int
    float32: int
    longest: float | None
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Which context extension to choose, and why.

    Args:
        extend: the word for `mrope.extensions.parse_extension`; None for none.
        reasons: a line each.
        left: of each axis.
        report: with the extension, which is of `report.base`.
    """

    extend: str | None
    reasons: tuple[str, ...]
    left: tuple[AxisLeft, ...]
    report: FrequencyReport


def advise(
    rotary: Rotary,
    trained: Trained,
    target: int,
    *,
    axes: Sequence[str] = AXES,
    grid: tuple[int, int] | None = None,
) -> Advice:
    """The context extension that carries `rotary` from its trained length to `target`.

    None up to the trained length; up to twice of it NTK-aware, which needs no training, with the least factor that
    leaves no pair beyond its trained angles; beyond it YaRN (arXiv:2309.00071), to be fine-tuned.

    Args:
        rotary: without an extension, or with one NTK for all axes, which is but a larger base: it is advised from that.
        trained: how far positions went in training.
        target: how far they are to go: in positions, which grow more slowly than tokens on several axes.
        axes: see `frequency_report`.
        grid: see `frequency_report`.

    Raises:
        ValueError: `rotary` has another extension already.

    >>> from mrope.axes import AxisSplit
    >>> advise(Rotary(AxisSplit(), Frequencies(1e6)), Trained(length=32768, source="told"), 131072).extend
    'yarn:4,32768'
    """
    extend, reasons, own = None, [], rotary.frequencies.extension
    rotary = _without_ntk(rotary)
    if own is not None:
        reasons.append(f"its own {own!r} is the same as the base {rotary.frequencies.base:.10g}: advised from that")
    factor = check_position("target", target) / trained.length
    if factor <= 1:
        reasons.append(f"the target {target} lies within the trained length {trained.length}: nothing to extend")
    elif factor <= _NTK_CARRIES:
        stretch = _ntk_factor(rotary, trained.length, factor)
        extend = f"ntk:{stretch:.10g}"
        reasons.append(f"{factor:.3g} times the trained length is what NTK-aware carries without training")
        if stretch > _up(factor):
            reasons.append(
                f"{stretch:.10g} is the least factor that leaves no pair beyond its trained angles; "
                f"{_up(factor):.10g} would leave all but the slowest of those that never turned once"
            )
    else:
        extend = f"yarn:{_up(factor):.10g},{trained.length}"
        reasons.append(
            f"{factor:.4g} times the trained length is more than NTK-aware carries without training: YaRN, fine-tuned"
        )
    frequencies = Frequencies(rotary.frequencies.base, None if extend is None else parse_extension(extend))
    extended = replace(rotary, frequencies=frequencies)
    report = frequency_report(extended, axes=axes, trained=trained, target=target, grid=grid)
    left = _left(extended, axes, target)
    if factor > 1 and len(axes) > 1:
        reasons.append(
            "positions count, not tokens: a picture of H x W tokens mostly takes max(H, W) positions (mrope positions)"
        )
    if target >= _FAR:
        reasons.append(
            "so far out training is needed: to reach 2M, LongRoPE (arXiv:2402.13753) searched a divisor for each pair "
            "and fine-tuned"
        )
        reasons += [_left_line(axis, target) for axis in left]
    if factor > 1 and (error := max(axis.error for axis in left)) > KEPT["bf16"]:
        reasons.append(f'float32 angles are up to {error:.2g} off at {target}: build them with angles="exact"')
    return Advice(extend=extend, reasons=tuple(reasons), left=left, report=report)


def _without_ntk(rotary: Rotary) -> Rotary:
    """The same frequencies from a base alone."""
    frequencies = rotary.frequencies
    if frequencies.extension is None:
        return rotary
    if not isinstance(frequencies.extension, Ntk):
        raise ValueError(
            f"rotary has an extension, {frequencies.extension!r}; expected none, or one Ntk for all axes: advise from "
            "the configuration without it (on the command line --family, with --base where the checkpoint has another)"
        )
    base = float(ntk_base(float(frequencies.base), frequencies.extension.factor, rotary.split.rotary_dim))
    return replace(rotary, frequencies=Frequencies(base))


def _ntk_factor(rotary: Rotary, trained: int, factor: float) -> float:
    """The least NTK factor, on two decimals, with which no pair that never turned goes beyond its trained angles.

    Pair j becomes f ** (j / (F - 1)) times slower by a factor f, so that the fastest of those pairs decides.
    """
    theta = default_inv_freq(float(rotary.frequencies.base), rotary.split.rotary_dim, torch.float64)
    never = (theta * trained < 2 * math.pi).nonzero()[:, 0].tolist()
    first = max(never[0], 1) if never else len(theta) - 1
    return _up(factor ** ((len(theta) - 1) / first))


def _up(factor: float) -> float:
    """Rounded up to two decimals."""
    return math.ceil(round(factor * 100, 6)) / 100


def _left(rotary: Rotary, axes: Sequence[str], target: int) -> tuple[AxisLeft, ...]:
    theta = radians(rotary, target)
    ids = torch.arange(max(target - 1024, 0), target).expand(rotary.axes, -1)
    pairs = zip(
        rotary.cos_sin(ids, length=target), replace(rotary, angles="exact").cos_sin(ids, length=target), strict=True
    )
    off = torch.stack([(given - exact).abs().movedim(-2, 0).flatten(1) for given, exact in pairs]).amax(dim=(0, 1))
    left = []
    for name, mask, extension in zip(axes, pairs_of_axes(rotary), extensions_of_axes(rotary), strict=True):
        own = theta[mask]
        drop = 2 * (own / 2).sin().square()
        wavelengths = (2 * math.pi / own[own > 0]).tolist()
        left.append(
            AxisLeft(
                name=name,
                pairs=len(own),
                bf16=int((drop > KEPT["bf16"]).sum()),
                float32=int((drop > KEPT["float32"]).sum()),
                longest=max(wavelengths, default=None),
                error=float(off[mask.flatten()].max()) / (extension.attention_factor if extension else 1),
            )
        )
    return tuple(left)


def _left_line(axis: AxisLeft, target: int) -> str:
    longest = (
        "no pair turns"
        if axis.longest is None
        else f"its longest wavelength is {axis.longest / target:.2g} of the target"
    )
    return (
        f"{axis.name}: {axis.bf16} of {axis.pairs} pairs tell one position apart in bf16, {axis.float32} in float32; "
        f"{longest}"
    )
