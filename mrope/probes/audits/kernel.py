"""What the frequencies of any rule of turning make of distances, without weights.

Letters: A axes, H heads, F pairs, D distances, N tokens. theta (H, F, A) is the radians per position of a pair on an
axis. The kernel K is the mean of cos(theta . d) over pairs: the score that is to be expected of two tokens that lie d
apart, whatever the weights are. The kernel of an axis is the same over the pairs that read it, along it alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mrope.probes.audits.frequencies import CELLS, KEPT, OFFSETS, SAME, aliasing
from mrope.probes.audits.ids import SUBJECTS, cells_of, named
from mrope.probes.audits.report import AuditCheck, outcome
from mrope.probes.audits.target import Laid
from mrope.spans import Grid

DISTANCES = (1, 8, 32, 128, 512, 2048)
"""Where kernels are told, in positions."""

FAR = 2**20
"""How far a kernel is followed, in positions."""

FADING = (0, 100, 1000, 10_000)
"""How much text stands between a picture and the question, in tokens."""

_CHUNK = 8192
_ANGLES = 64
_WORDS = {torch.float32: "float32", torch.bfloat16: "bf16", torch.float16: "float16"}


@dataclass(frozen=True, slots=True, eq=False)
class Waves:
    """The frequencies of a rule of turning.

    Args:
        axes: what the axes are called.
        theta: (H, F, A) float64, radians per position.
        reads: (H, F, A) bool, which axes a pair reads, though it may not turn.
        stopped: names of axes whose pairs are made to stand still on purpose.
    """

    axes: tuple[str, ...]
    theta: Tensor
    reads: Tensor
    stopped: tuple[str, ...] = ()

    def own(self, axis: int) -> Tensor:
        """(n,) radians per position along one axis, of the pairs of all heads that read it."""
        return self.theta[..., axis][self.reads[..., axis]]

    def kernel(self, between: Tensor) -> Tensor:
        """(D,) K over all pairs at distances (A, D)."""
        return (self.theta.flatten(0, 1) @ between.double()).cos().mean(0)

    def head(self, head: int) -> Waves:
        """Those of one head."""
        return Waves(self.axes, self.theta[head : head + 1], self.reads[head : head + 1], self.stopped)

    def along(self, axis: int, distances: Tensor) -> Tensor:
        """(D,) the kernel of an axis."""
        return (distances.double()[:, None] * self.own(axis)).cos().mean(1)


def falls_to(theta: Tensor, far: int = FAR) -> int | None:
    """The distance up to which the kernel of pairs (F,) falls; it rises at the next. None: it falls as far as `far`."""
    for begin in range(0, far, _CHUNK):
        distances = torch.arange(begin, min(begin + _CHUNK, far) + 1, dtype=torch.float64)
        drop = (distances[:, None] * theta / 2).sin().square().mean(1)
        rises = (drop.diff() < 0).nonzero()
        if len(rises):
            return int(distances[rises[0, 0]])
    return None


def first_below_zero(theta: Tensor, still: int = 0, far: int = FAR) -> int | None:
    """The first distance at which sum of cos(theta d) over pairs (F,) and `still` that do not turn is negative."""
    if still >= len(theta):
        return None
    for begin in range(1, far, _CHUNK):
        distances = torch.arange(begin, min(begin + _CHUNK, far + 1), dtype=torch.float64)
        below = ((distances[:, None] * theta).cos().sum(1) + still < 0).nonzero()
        if len(below):
            return int(distances[below[0, 0]])
    return None


def ripple(theta: Tensor, reach: int) -> tuple[float, float]:
    """The largest slope of the kernel of pairs (F,) and its total variation, up to a distance.

    Args:
        theta: radians per position.
        reach: in positions.
    """
    points = torch.linspace(0, reach, 16 * reach + 1, dtype=torch.float64)[:, None] * theta
    return float((theta * points.sin()).mean(1).abs().max()), float(points.cos().mean(1).diff().abs().sum())


def distinct_steps(theta: Tensor, start: int, cells: int, dtype: torch.dtype) -> int:
    """How many steps from one of `cells` positions to the next change cos or sin of pairs (F,) in tables of `dtype`.

    Angles are float32 products of whole positions.
    """
    angles = torch.arange(start, start + cells, dtype=torch.float32)[:, None] * theta.float()
    table = torch.cat((angles.cos(), angles.sin()), dim=1).to(dtype)
    return int((table[1:] != table[:-1]).any(1).sum())


def frequency_checks(
    waves: Waves, grid: tuple[int, int], frames: int, dtype: torch.dtype, shares: bool
) -> Iterator[AuditCheck]:
    """Every check that needs frequencies alone.

    Args:
        waves: the frequencies.
        grid: (height, width) in tokens.
        frames: temporal steps.
        dtype: of the tables that are judged.
        shares: whether coordinates are shares of a picture, and no whole numbers.
    """
    sides = sides_of(waves.axes, grid, frames)
    yield _spectrum(waves)
    yield _text(waves)
    if shares:
        return
    yield _coverage(waves, sides)
    yield _decay(waves)
    yield _range(waves)
    yield _aliases(waves, sides)
    if "t" in waves.axes and len(waves.own(waves.axes.index("t"))):
        yield _ripple(waves, max(256, 4 * frames))
    yield from _resolution(waves, sides, dtype)
    yield _length(waves)
    if named(waves.axes) is not None:
        yield _isotropy(waves, grid)


def sides_of(axes: tuple[str, ...], grid: tuple[int, int], frames: int) -> list[int]:
    """How many positions a picture or clip has on each axis; on those of no grid as on its longer side."""
    pair = named(axes)
    sides = [frames if name == "t" else max(grid) for name in axes]
    if pair is not None:
        sides[pair[0]], sides[pair[1]] = grid
    return sides


def _each(waves: Waves, words: list[str]) -> str:
    return "; ".join(f"{name} {word}" for name, word in zip(waves.axes, words, strict=True))


def _spectrum(waves: Waves) -> AuditCheck:
    """Pairs and wavelengths; an axis has the full spectrum with pairs in the fastest and the slowest eighth of all."""
    everything = waves.theta.abs().amax(-1)
    turning = everything[everything > 0]
    words, full = [], []
    for axis in range(len(waves.axes)):
        own = waves.own(axis).abs()
        moving = own[own > 0]
        if not len(moving):
            words.append(f"{len(own)} pairs, none turns")
            continue
        words.append(
            f"{len(own)} pairs, {2 * math.pi / float(own.max()):.4g} .. {2 * math.pi / float(moving.min()):.4g}"
        )
        width = math.log(float(turning.max() / turning.min())) / 8
        fast = float(own.max()) >= float(turning.max()) * math.exp(-width) * (1 - 1e-9)
        if fast and float(moving.min()) <= float(turning.min()) * math.exp(width) * (1 + 1e-9):
            full.append(waves.axes[axis])
    return AuditCheck(
        name="spectrum",
        means="pairs that read each axis, and the positions in which they turn once; full: from fast ones to slow ones",
        figure=f"{_each(waves, words)}; full: {', '.join(full) or 'none'}",
        value=len(full),
        source="arXiv:2510.23095",
    )


def _text(waves: Waves) -> AuditCheck:
    """What one position on all axes does to each pair: in 1-D RoPE the turns are a geometric series from 1."""
    turns = waves.theta.sum(-1)[0].abs().sort(descending=True).values
    turning = turns[turns > 0]
    still = len(turns) - len(turning)
    steps = turning.log().diff()
    even = len(steps) > 0 and bool((steps - steps.mean()).abs().max() < 1e-3)
    base = math.exp(-float(steps.mean()) * len(turns)) if even and not still else None
    told = f"from {float(turning.max()):.4g} to {float(turning.min()):.3g}" if len(turning) else "none"
    return AuditCheck(
        name="text-as-1d",
        means="radians by which one word turns the pairs; in 1-D RoPE a series of even ratios from 1, of one base",
        figure=told + (f", base {base:.6g}" if base else ", no series") + (f"; {still} stand still" if still else ""),
        value=base,
        source="arXiv:2104.09864, section 3.2.2",
    )


def _coverage(waves: Waves, sides: list[int]) -> AuditCheck:
    words, shares = [], {}
    for axis, side in enumerate(sides):
        own = waves.own(axis).abs()
        count = int((own * max(side - 1, 1) >= math.pi / 2).sum())
        words.append(f"{count} of {len(own)} over {side}")
        shares[waves.axes[axis]] = count / max(len(own), 1)
    return AuditCheck(
        name="coverage",
        means="pairs that turn by a quarter or more from the first cell of the grid to the last",
        figure=_each(waves, words),
        value=min(shares.values()),
        values=shares,
        source="arXiv:2403.13298",
    )


def _decay(waves: Waves) -> AuditCheck:
    """Of all heads together; and of each, where several read an axis and differ on it."""
    distances = torch.tensor(DISTANCES)
    words, values = [], {}
    for axis, name in enumerate(waves.axes):
        readers = waves.reads[..., axis].any(-1).nonzero()[:, 0].tolist()
        own = {name: waves.along(axis, distances)} if readers else {}
        each = {f"{name} of head {head}": waves.head(head).along(axis, distances) for head in readers}
        if len(each) > 1 and not all(torch.allclose(kernel, own[name]) for kernel in each.values()):
            own |= each
        said = [" ".join(f"{value:.3f}" for value in kernel.tolist()) for kernel in own.values()] or ["-"]
        words.append(", ".join((said[0], *(f"head {h} {line}" for h, line in zip(readers, said[1:], strict=False)))))
        if len(waves.theta) > 1 and len(own) == 1:
            words[-1] += f", heads {min(readers)}-{max(readers)}"
        for label, kernel in own.items():
            values |= {f"{label} at {far}": value for far, value in zip(DISTANCES, kernel.tolist(), strict=True)}
    return AuditCheck(
        name="decay",
        means=f"the kernel of each axis at {', '.join(map(str, DISTANCES))} positions",
        figure=_each(waves, words),
        values=values,
        source="arXiv:2104.09864, section 3.4.3",
    )


def _range(waves: Waves) -> AuditCheck:
    ends = [falls_to(waves.own(axis)) if waves.own(axis).any() else 0 for axis in range(len(waves.axes))]
    words = [f"{end:,}" if end else "beyond 2^20" if end is None else "flat: no pair turns" for end in ends]
    return AuditCheck(
        name="monotone-range",
        means="up to which distance the kernel of each axis falls; at the next it rises, and far looks nearer",
        figure=_each(waves, words),
        value=ends[waves.axes.index("t")] if "t" in waves.axes else ends[0],
        source="arXiv:2502.05173",
    )


def _aliases(waves: Waves, sides: list[int]) -> AuditCheck:
    """Cells of the grid that are far apart and look like one."""
    found = [aliasing(waves.own(axis), side - 1)[1] for axis, side in enumerate(sides)]
    words = ["none" if distance is None else f"{distance} apart" for distance in found]
    return AuditCheck(
        name="aliasing",
        means=f"cells of the grid whose kernel has fallen and is within {SAME:g} of 1 again: they look like one cell",
        figure=_each(waves, words),
        value=min((distance for distance in found if distance is not None), default=None),
        source="arXiv:2502.05173, V-NIAH-D",
    )


def _ripple(waves: Waves, reach: int) -> AuditCheck:
    slope, variation = ripple(waves.own(waves.axes.index("t")), reach)
    return AuditCheck(
        name="ripple",
        means="how steep the kernel of time gets, per position, and its total variation",
        figure=f"{slope:.3g}; {variation:.3g} within {reach} positions",
        value=variation,
        source="arXiv:2511.10979",
    )


def _resolution(waves: Waves, sides: list[int], dtype: torch.dtype) -> Iterator[AuditCheck]:
    """What one cell changes, and whether a table tells it from the next."""
    drops = [
        float(2 * (waves.own(axis) / 2).sin().square().mean()) if len(waves.own(axis)) else 0.0
        for axis in range(len(waves.axes))
    ]
    small = [name for name, drop in zip(waves.axes, drops, strict=True) if drop < KEPT["bf16"]]
    yield AuditCheck(
        name="one-cell",
        means=f"by how much one cell lowers the kernel of its axis; bf16 keeps {KEPT['bf16']:.2g}",
        figure=_each(waves, [f"{drop:.3g}" for drop in drops])
        + (f"; lost in bf16: {', '.join(small)}" if small else ""),
        value=min(drops),
        source="arXiv:2502.05173",
    )
    for judged in (True, False):
        kind = (torch.float32 if dtype == torch.float64 else dtype) if judged else torch.bfloat16
        starts = OFFSETS[:1] if judged else OFFSETS
        words: list[str] = []
        blind: list[str] = []
        for axis, side in enumerate(sides):
            cells = min(max(side, 2), 4096) if judged else CELLS
            counts = [distinct_steps(waves.own(axis), start, cells, kind) for start in starts]
            words.append(", ".join(f"{count} of {cells - 1}" for count in counts))
            if min(counts) < cells - 1 and waves.axes[axis] not in waves.stopped:
                blind.append(waves.axes[axis])
        yield AuditCheck(
            name="resolution" if judged else "resolution-bf16",
            means=f"steps of one cell that change a table of cos and sin in {_WORDS[kind]}, from "
            f"{' and '.join(map(str, starts))} on",
            figure=_each(waves, words) + (f"; blind: {', '.join(blind)}" if blind and judged else ""),
            value=len(blind),
            limit=("all" + (f" but on {', '.join(waves.stopped)}, which stands still" if waves.stopped else ""))
            if judged
            else "",
            outcome=outcome(not blind, judged),
        )


def _length(waves: Waves) -> AuditCheck:
    """HoPE's definition 3.1: where alike tokens are no longer preferred to others, in expectation."""
    text = first_below_zero(waves.theta.sum(-1).flatten())
    told = [f"text {'none' if text is None else f'{text:,}'}"]
    for axis, name in enumerate(waves.axes):
        own = waves.own(axis)
        end = first_below_zero(own, waves.theta[..., 0].numel() - len(own)) if own.any() else None
        told.append(f"{name} alone {'none' if end is None else f'{end:,}'}")
    return AuditCheck(
        name="preference-length",
        means="the first distance, of 2^20, at which a token like the query is not preferred: the kernel is negative",
        figure="; ".join(told),
        value=text,
        source="arXiv:2505.20444, definition 3.1",
    )


def isotropy(waves: Waves, radius: float) -> tuple[float, float]:
    """The standard deviation over all directions of the kernel of rows and columns at a distance, and its mean."""
    pair = named(waves.axes)
    assert pair is not None
    turn = torch.arange(_ANGLES, dtype=torch.float64) * 2 * math.pi / _ANGLES
    spatial = waves.reads[..., list(pair)].any(-1)
    theta = waves.theta[spatial][:, list(pair)]
    kernel = (theta @ (radius * torch.stack((turn.sin(), turn.cos())))).cos().mean(0)
    return float(kernel.std(correction=0)), float(kernel.mean())


def _isotropy(waves: Waves, grid: tuple[int, int]) -> AuditCheck:
    told, value = [], 0.0
    for radius in dict.fromkeys((1, 4, max(2, min(grid) // 2))):
        value, mean = isotropy(waves, radius)
        told.append(f"{value:.3g} around {mean:.3g} at {radius}")
    return AuditCheck(
        name="isotropy",
        means="how the kernel of rows and columns differs from direction to direction, at so many cells",
        figure=", ".join(told),
        value=value,
        source="arXiv:2403.13298",
    )


# ------------------------------------------------------------------------------------------- positions and frequencies


def prompt_checks(waves: Waves, looks: Mapping[Grid, Laid], shown: list[Grid]) -> Iterator[AuditCheck]:
    """Every check that needs both: what a question behind a picture sees of its cells.

    Args:
        waves: the frequencies.
        looks: prompts around grids.
        shown: the grids that are told of.
    """
    picture = looks[shown[0]]
    yield _twins(waves, looks, shown)
    kernel = cell_kernel(waves, picture)
    cells = cells_of(picture, shown[0])
    where = ""
    if cells is not None and min(cells.shape[2:]) > 2:
        plane = kernel.unflatten(0, shown[0])[0]
        edge = torch.ones_like(plane, dtype=torch.bool)
        edge[1:-1, 1:-1] = False
        where = f"; centre {float(plane[~edge].mean()):.3g}, edge {float(plane[edge].mean()):.3g}"
    yield AuditCheck(
        name="cell-bias",
        means="the kernel between the first token behind a picture and each of its cells",
        figure=f"{float(kernel.min()):.3g} .. {float(kernel.max()):.3g}{where}",
        value=float(kernel.max() - kernel.min()),
        source="arXiv:2502.11664, figure 2",
    )
    yield AuditCheck(
        name="kernel-spread",
        means="how differently near the tokens of a picture are to a token of the text behind it, in the kernel",
        figure=f"{kernel_spread(waves, picture):.3g}",
        value=kernel_spread(waves, picture),
        source="the PTD of arXiv:2505.16416 with the kernel for the distance",
    )
    into = float(waves.kernel(picture.block[:, :1] - picture.before[:, -1:]))
    out = float(waves.kernel(picture.after[:, :1] - picture.block[:, -1:]))
    beside = float(waves.kernel(torch.ones(len(waves.axes), 1)))
    yield AuditCheck(
        name="boundary-kernel",
        means="the kernel from text into the first cell, and from the last cell into text; two words have the third",
        figure=f"{into:.3g} in, {out:.3g} out, {beside:.3g} in text",
        source="arXiv:2502.11664",
    )
    far = [float(waves.kernel(picture.after[:, :1] + words - picture.block).mean()) for words in FADING]
    yield AuditCheck(
        name="fading",
        means=f"the mean kernel from a question to the picture with {', '.join(map(str, FADING))} words between them",
        figure=", ".join(f"{value:.3g}" for value in far),
        value=far[-1],
        source="arXiv:2603.10863",
    )


def cell_kernel(waves: Waves, look: Laid) -> Tensor:
    """(N,) the kernel between the first token behind a picture and each of its tokens."""
    return waves.kernel(look.after[:, :1] - look.block)


def kernel_spread(waves: Waves, look: Laid) -> float:
    """PTD with the kernel in place of the distance."""
    kernel = torch.stack([waves.kernel(look.after[:, :1] + words - look.block) for words in range(SUBJECTS)])
    return float((kernel - kernel.mean(1, keepdim=True)).abs().mean())


def twins(waves: Waves, look: Laid) -> tuple[int, int]:
    """How many different turns the tokens of a block have, and how many different ids."""
    turns = look.block.double().T @ waves.theta.flatten(0, 1).T
    scale = float(waves.theta.abs()[waves.theta != 0].min()) if waves.theta.any() else 1.0
    kinds = len((turns / (scale * 1e-3)).round().unique(dim=0)) if scale > 1e-12 else len(turns.unique(dim=0))
    return kinds, torch.unique(look.block, dim=1).shape[1]


def _twins(waves: Waves, looks: Mapping[Grid, Laid], shown: list[Grid]) -> AuditCheck:
    """Tokens with other ids that turn alike: no query can tell them apart."""
    told, alike = [], False
    for grid in shown:
        kinds, ids = twins(waves, looks[grid])
        t, h, w = grid
        told.append(f"{f'picture {h} x {w}' if t == 1 else f'clip {t} x {h} x {w}'}: {kinds} turns of {ids} ids")
        alike = alike or kinds < ids
    promised = not waves.stopped
    return AuditCheck(
        name="twins",
        means="tokens with different ids turn differently",
        figure="; ".join(told),
        value=int(alike),
        limit="as many turns as ids" if promised else "",
        outcome=outcome(not alike, promised),
        source="arXiv:2505.20444, where time is left to a shift along the diagonal",
    )
