"""What the frequencies of a rotary encoding do on each axis.

Letters: A axes, F rotary pairs, D distances. theta is the radians per position of a pair, its wavelength 2 pi / theta.
The kernel K(d) of an axis is the mean of cos(theta d) over its pairs: the score that is to be expected of two tokens
that lie d positions apart on it, whatever the weights are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from mrope.axes import AxisSplit
from mrope.checks import Number, whole
from mrope.extensions import Extension, Yarn, default_inv_freq
from mrope.rotary import Rotary

AXES = ("t", "h", "w")
CELLS = 64
"""How many neighbouring cells are compared in tables of bfloat16."""

OFFSETS = (4000, 16000)
"""Where these begin, in positions."""

SAME = 1e-3  # cells whose kernel is so near to 1 look like one cell
KEPT = {"bf16": torch.finfo(torch.bfloat16).eps / 4, "float32": torch.finfo(torch.float32).eps / 4}
"""The least change of a number just below 1 that survives rounding: half of the spacing there."""

_SEARCHED = 2**20  # distances at most
_CHUNK = 4096  # distances at a time
_GRID_SIDE = {"h": 0, "row": 0, "w": 1, "col": 1}  # axis -> its place in a grid (height, width)
_MOST = 2**40  # positions


def check_position(name: str, value: int) -> int:
    if whole(name, value, 1) > _MOST:
        raise ValueError(f"{name} is {value}; expected at most {_MOST} positions")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """How far positions went in training.

    Args:
        length: in positions.
        source: where the number was found.
        most_factor: the largest YaRN factor that the vendor advises where tokens are counted, if it does.
    """

    length: int
    source: str
    most_factor: Number | None = None

    def __post_init__(self) -> None:
        check_position("trained", self.length)


TRAINED: Mapping[str, Trained] = {
    "qwen2-vl": Trained(
        length=32768,
        source="max_position_embeddings of Qwen2-VL; pictures and clips up to 16384 tokens, arXiv:2409.12191",
    ),
    "qwen2.5-vl": Trained(length=32768, source="the model card of Qwen2.5-VL"),
    "qwen3-vl": Trained(length=262144, source="the model card of Qwen3-VL", most_factor=3),
}
"""Family -> how far it was trained, where a source says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What a context extension does to the pairs of an axis.

    Args:
        kept: pairs that turn as before.
        partly: pairs that are slower, but not by the whole factor.
        full: pairs that are slower by the whole factor.
        stopped: pairs that no longer turn.
        least: how many times slower the pairs that turn are, at least.
        most: at most.
        attention: what cos and sin are multiplied with.
    """

    kept: int
    partly: int
    full: int
    stopped: int
    least: float | None
    most: float | None
    attention: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisFacts:
    """What the pairs of one axis do.

    Args:
        name: of the axis.
        pairs: how many read it.
        shortest: wavelength in positions; None where no pair turns.
        longest: the same.
        turned: pairs that turn at least once within the trained length; None where that is not known.
        drop: 1 - K(1), by how much one cell lowers the kernel.
        distinct: how many of 64 neighbouring cells, from each of `OFFSETS` on, have cos and sin of their own in tables
            cast to bfloat16: transformers casts them, `Rotary` turns in float32.
        searched: the largest distance that was looked at for the next two; None where it was not known how far.
        falls_to: the distance up to which the kernel falls; it rises at the next one. None: it falls all the way.
        looks_same: the first distance beyond at which the kernel is within 1e-3 of 1 again.
        stretch: what the extension does; None without one.
        unseen: pairs that reach angles at the target which they never had in training; None without a target.
    """

    name: str
    pairs: int
    shortest: float | None
    longest: float | None
    turned: int | None
    drop: float
    distinct: tuple[int, ...]
    searched: int | None
    falls_to: int | None
    looks_same: int | None
    stretch: Stretch | None
    unseen: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrequencyReport:
    """What the frequencies of a rotary encoding do.

    Args:
        pattern: the axis of each pair, as `AxisSplit.parse` reads it.
        base: before any extension.
        trained: how far positions went in training, where it is known.
        target: how far they are to go, in positions.
        grid: rows and columns of tokens in which aliasing was looked for.
        axes: of each axis.
        warnings: a line each.
    """

    pattern: str
    base: float
    trained: Trained | None
    target: int | None
    grid: tuple[int, int] | None
    axes: tuple[AxisFacts, ...]
    warnings: tuple[str, ...]


def decay(
    rotary: Rotary, distances: Sequence[Number] | Tensor, *, length: Number | None = None
) -> Float64[Tensor, "a d"]:
    """(A, D) float64, the kernel K of each axis at these distances.

    Args:
        rotary: with any split and extension.
        distances: (D,) in positions.
        length: the largest position + 1 of the row, for frequencies that depend on it.

    Raises:
        ValueError: the length is needed.

    >>> from mrope import AxisSplit, Frequencies
    >>> decay(Rotary(AxisSplit((16, 24, 24)), Frequencies(1e6)), [1, 8, 128])[1].round(decimals=3).tolist()
    [1.0, 0.996, 0.559]
    """
    d = torch.as_tensor(distances, dtype=torch.float64)
    theta = radians(rotary, length)
    return torch.stack([1 - _drop(theta[mask], d) for mask in pairs_of_axes(rotary)])


def frequency_report(
    rotary: Rotary,
    *,
    axes: Sequence[str] = AXES,
    trained: Trained | None = None,
    target: int | None = None,
    grid: tuple[int, int] | None = None,
) -> FrequencyReport:
    """What the frequencies do on each axis, and what there is to warn of.

    Args:
        rotary: with or without an extension; what that does is told against the base without it.
        axes: what the axes are called; h and row are the rows of a grid, w and col its columns.
        trained: how far positions went in training; axes that are not of the grid are searched for aliasing so far, up
            to 2 ** 20 positions.
        target: how far they are to go, in positions.
        grid: (height, width) in tokens, in which aliasing is looked for; without one h and w are not searched.

    Raises:
        ValueError: the names are not those of the axes, or a target came without a trained length.

    >>> from mrope import AxisSplit, Frequencies
    >>> report = frequency_report(Rotary(AxisSplit((16, 24, 24)), Frequencies(1e6)), grid=(128, 128))
    >>> [(facts.name, round(facts.longest)) for facts in report.axes]
    [('t', 160), ('h', 28473), ('w', 5063256)]
    >>> report.warnings[0].partition(":")[0]
    'h'
    """
    if len(axes) != rotary.axes:
        raise ValueError(f"axes are {', '.join(axes)}; the split has {rotary.axes}")
    if grid is not None:
        for name, side in zip(("height", "width"), grid, strict=True):
            whole(f"{name} of grid", side, 1)
    if target is not None and check_position("target", target) and trained is None:
        raise ValueError(f"target is {target}, but trained is not given: how far training went")
    if rotary.frequencies.needs_length and target is None:
        raise ValueError("target is not given, and the frequencies of this extension depend on how long the row is")
    theta = radians(rotary, target)
    before = default_inv_freq(float(rotary.frequencies.base), rotary.split.rotary_dim, torch.float64)
    before = before.expand(theta.shape)
    tables = _bf16_tables(rotary, target)
    facts = []
    for name, mask, extension in zip(axes, pairs_of_axes(rotary), extensions_of_axes(rotary), strict=True):
        own = theta[mask]
        wavelengths = (2 * math.pi / own[own > 0]).tolist()
        reach = _reach(name, trained, grid)
        falls_to, looks_same = aliasing(own, reach)
        facts.append(
            AxisFacts(
                name=name,
                pairs=len(own),
                shortest=min(wavelengths, default=None),
                longest=max(wavelengths, default=None),
                turned=None if trained is None else sum(length <= trained.length for length in wavelengths),
                drop=float(_drop(own, torch.ones(1, dtype=torch.float64))),
                distinct=tuple(len(table[:, mask.flatten().repeat(2)].unique(dim=0)) for table in tables),
                searched=reach,
                falls_to=falls_to,
                looks_same=looks_same,
                stretch=None if extension is None else _stretch(extension, rotary, before[mask] / own, target),
                unseen=_unseen(before[mask], own, trained, target),
            )
        )
    letters = "".join(name[0] for name in axes).upper()
    report = FrequencyReport(
        pattern=rotary.split.pattern(letters)
        if isinstance(rotary.split, AxisSplit)
        else f"heads {rotary.split.counts}",
        base=float(rotary.frequencies.base),
        trained=trained,
        target=target,
        grid=grid,
        axes=tuple(facts),
        warnings=(),
    )
    return replace(report, warnings=tuple(_warnings(report, rotary)))


def radians(rotary: Rotary, length: Number | None) -> Tensor:
    """(F,) or (H, F) float64."""
    split = rotary.split
    return rotary.frequencies.inv_freq(split.rotary_dim, split.axis, dtype=torch.float64, length=length).detach()


def pairs_of_axes(rotary: Rotary) -> list[Bool[Tensor, "*h f"]]:
    """Which pairs read each axis."""
    return [rotary.split.axis == axis for axis in range(rotary.axes)]


def extensions_of_axes(rotary: Rotary) -> tuple[Extension | None, ...]:
    """Of each axis."""
    extension = rotary.frequencies.extension
    return extension if isinstance(extension, tuple) else (extension,) * rotary.axes


def _drop(theta: Float64[Tensor, " f"], distances: Float64[Tensor, " d"]) -> Float64[Tensor, " d"]:
    """1 - K, as 2 sin(theta d / 2) ** 2: slow pairs leave nothing of it where 1 is subtracted from 1."""
    return 2 * (distances[:, None] * theta / 2).sin().square().mean(dim=1)


def _bf16_tables(rotary: Rotary, length: Number | None) -> list[Tensor]:
    """For each of `OFFSETS` (cells, 2F or 2HF): cos and sin of neighbouring cells, every axis at the same position."""
    tables = []
    for offset in OFFSETS:
        ids = torch.arange(offset, offset + CELLS).expand(rotary.axes, -1)
        rows = (table.movedim(-2, 0).reshape(CELLS, -1) for table in rotary.cos_sin(ids, length=length))
        tables.append(torch.cat([row.detach().bfloat16() for row in rows], dim=1).float())
    return tables


def _reach(name: str, trained: Trained | None, grid: tuple[int, int] | None) -> int | None:
    """The largest distance that there is on an axis, where it is known."""
    if name in _GRID_SIDE:
        return None if grid is None else min(grid[_GRID_SIDE[name]] - 1, _SEARCHED)
    return None if trained is None else min(trained.length - 1, _SEARCHED)


def aliasing(theta: Tensor, reach: int | None) -> tuple[int | None, int | None]:
    """`falls_to` and `looks_same` of `AxisFacts` for pairs (F,), among the distances up to `reach`."""
    falls_to: int | None = None
    for begin in range(1, (reach or 0) + 1, _CHUNK):
        distances = torch.arange(begin - 1, min(begin + _CHUNK, (reach or 0) + 1), dtype=torch.float64)
        drop = _drop(theta, distances)
        if falls_to is None:
            rises = (drop.diff() < 0).nonzero()[:, 0]
            falls_to = int(distances[rises[0]]) if len(rises) else None
        if falls_to is not None:
            same = distances[(distances > falls_to) & (drop < SAME)]
            if len(same):
                return falls_to, int(same[0])
    return falls_to, None


def _stretch(extension: Extension, rotary: Rotary, quotient: Tensor, length: Number | None) -> Stretch:
    """Of the pairs of an axis that are `quotient` times slower; infinity where one no longer turns."""
    turning = quotient[quotient.isfinite()]
    factor = getattr(extension, "factor", math.inf)
    if extension.needs_length:  # what the factor comes to at this length is the most that any pair of all axes gets
        base, rotary_dim = float(rotary.frequencies.base), rotary.split.rotary_dim
        theta = extension.inv_freq(base, rotary_dim, torch.float64, length)
        factor = float((default_inv_freq(base, rotary_dim, torch.float64) / theta).max())
    kept, full = (turning - 1).abs() < 1e-6, turning > factor * (1 - 1e-6)
    return Stretch(
        kept=int(kept.sum()),
        partly=int((~kept & ~full).sum()),
        full=int((full & ~kept).sum()),
        stopped=len(quotient) - len(turning),
        least=float(turning.min()) if len(turning) else None,
        most=float(turning.max()) if len(turning) else None,
        attention=extension.attention_factor,
    )


def _unseen(before: Tensor, now: Tensor, trained: Trained | None, target: int | None) -> int | None:
    """How many pairs meet angles at the target that they did not have in training; one that turned has had all."""
    if trained is None or target is None:
        return None
    turned = before * trained.length >= 2 * math.pi
    return int((~turned & (now * target > before * trained.length * (1 + 1e-6))).sum())


def _warnings(report: FrequencyReport, rotary: Rotary) -> list[str]:
    lines = []
    for axis in report.axes:
        if axis.looks_same is not None:
            lines.append(f"{axis.name}: cells {axis.looks_same} apart look like one cell: aliasing")
        elif axis.falls_to is not None:
            lines.append(
                f"{axis.name}: its kernel falls up to distance {axis.falls_to} and rises at the next: cells that are "
                "farther apart can look nearer"
            )
    for axis in report.axes:
        if axis.drop < KEPT["bf16"]:
            near, far = (f"{count} of {CELLS}" for count in axis.distinct)
            lines.append(
                f"{axis.name}: hardly moves for one cell in bf16: its kernel falls by {axis.drop:.2g}, and "
                f"{KEPT['bf16']:.2g} is kept; tables cast to bf16, as transformers does, tell {near} "
                f"neighbouring cells apart at {OFFSETS[0]}, {far} at {OFFSETS[1]}"
            )
    trained = report.trained
    for axis in report.axes:
        if axis.unseen and trained is not None:
            why = "even with the extension" if axis.stretch else "the base is left unadjusted, and nothing extends it"
            lines.append(
                f"{axis.name}: {axis.unseen} of {axis.pairs} pairs never turned once within {trained.length} positions "
                f"and meet angles never seen at {report.target}: {why}"
            )
    if not isinstance(rotary.frequencies.extension, tuple):  # each axis its own is meant so
        whole_axes = [axis.name for axis in report.axes if axis.stretch and axis.stretch.full == axis.pairs]
        kept_axes = [axis.name for axis in report.axes if axis.stretch and axis.stretch.kept == axis.pairs]
        if whole_axes and kept_axes:
            lines.append(
                f"the extension slows all pairs of {', '.join(whole_axes)} and none of {', '.join(kept_axes)}: "
                "the model card of Qwen2.5-VL warns that this hurts where and when things are found"
            )
    if trained is not None and trained.most_factor is not None and report.target is None:
        factor = max((each.factor for each in extensions_of_axes(rotary) if isinstance(each, Yarn)), default=1)
        if factor > trained.most_factor:
            lines.append(
                f"factor {factor:g} is above {trained.most_factor:g}: positions grow more slowly than tokens, so that "
                f"a smaller one will do ({trained.source})"
            )
    return lines
