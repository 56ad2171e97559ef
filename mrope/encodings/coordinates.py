"""Where patches are: rules from a grid to real coordinates, and their augmentation.

Letters: A axes, B batch, N patches in raster order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from mrope.checks import Number, one_of, positive
from mrope.encodings.operands import check_floating, wholes

Rule: TypeAlias = Literal[
    "integers", "centres", "centres-longer", "centres-shorter", "ends", "unit", "reference", "span"
]


def patch_coordinates(
    grid: Sequence[int], *, rule: Rule = "integers", trained: Sequence[int] | None = None
) -> Float32[Tensor, "a n"]:
    """Coordinates (A, N) of the patches of a grid in raster order: what an encoder's encoding takes for positions.

    Patch i of n on one axis, of which the weights were trained with m, lies at:

    ==================  ===================  ==============================================================
    "integers"          i                    most encoders (Pixtral, Qwen, RoPE-Axial, RoPE-Mixed)
    "centres"           2 (i + 1/2) / n - 1  DINOv3 (arXiv:2508.10104); each axis fills [-1, 1]
    "centres-longer"    2 (i + 1/2) / s - 1  DINOv3 "max": s is the longer side; one step on both axes
    "centres-shorter"   2 (i + 1/2) / s - 1  DINOv3 "min": s is the shorter side
    "ends"              2 i / (n - 1) - 1    golden-gate RoPE; a single patch lies at -1
    "unit"              (i + 1/2) / n        ComRoPE (arXiv:2506.03737)
    "reference"         i m / n              EVA-02 (arXiv:2303.11331); the trained grid, stretched
    "span"              i n / (m (n - 1))    LieRE (arXiv:2406.10322): from 0 to n / m
    ==================  ===================  ==============================================================

    Args:
        grid: patches per axis: (h, w) or (t, h, w); by a side, (h, w) alone.
        rule: from the table.
        trained: the grid of the training; rules "reference" and "span" need it, no other takes it.

    Raises:
        ValueError: the rule has no meaning on this grid, or needs another `trained`.

    >>> patch_coordinates((2, 3), rule="centres")
    tensor([[-0.5000, -0.5000, -0.5000,  0.5000,  0.5000,  0.5000],
            [-0.6667,  0.0000,  0.6667, -0.6667,  0.0000,  0.6667]])
    """
    one_of("rule", rule, get_args(Rule))
    sides = wholes("grid", grid)
    if not sides:
        raise ValueError("grid is empty; expected (h, w) or (t, h, w)")
    if rule in ("centres-longer", "centres-shorter") and len(sides) != 2:
        raise ValueError(f"grid {sides} has {len(sides)} axes; rule {rule!r} compares the two sides (h, w)")
    if (trained is not None) != (rule in ("reference", "span")):
        wants = "needs `trained`, the grid of the training" if trained is None else "takes no `trained`"
        raise ValueError(f"trained is {trained!r}; rule {rule!r} {wants}")
    known = sides if trained is None else wholes("trained", trained)
    if len(known) != len(sides):
        raise ValueError(f"trained {known} has {len(known)} axes; grid {sides} has {len(sides)}")
    lines = [_line(rule, side, sides, m) for side, m in zip(sides, known, strict=True)]
    return torch.stack(torch.meshgrid(*lines, indexing="ij")).flatten(1)


def _line(rule: Rule, n: int, sides: Sequence[int], m: int) -> Tensor:
    """(n,) float32: one axis."""
    i = torch.arange(n, dtype=torch.float32)
    if rule == "integers":
        return i
    if rule == "reference":
        return i / n * m
    if rule == "span":
        return torch.linspace(0, n / m, n)
    if rule == "ends":
        return torch.linspace(-1, 1, n)
    if rule == "unit":
        return (i + 0.5) / n
    side = {"centres": n, "centres-longer": max(sides), "centres-shorter": min(sides)}[rule]
    return 2 * ((i + 0.5) / side) - 1


def augment(
    coordinates: Float[Tensor, "a *b n"],
    *,
    shift: Number | None = None,
    jitter: Number | None = None,
    rescale: Number | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "a *b n"]:
    """Coordinates moved and scaled at random, as DINOv3 (arXiv:2508.10104) does while it trains; one draw a call.

    Args:
        coordinates: (A, N) or (A, B, N).
        shift: s; every axis moves by its own amount from U(-s, s), in the unit of the coordinates.
        jitter: j >= 1; every axis is scaled by its own factor, log-uniform in [1/j, j].
        rescale: r >= 1; all axes are scaled by one factor, log-uniform in [1/r, r].
        generator: of the random numbers; None takes torch's own.

    Raises:
        TypeError: the coordinates are whole numbers.
        ValueError: they have another shape, or an amount is out of its range.

    >>> augment(torch.zeros(2, 3), shift=0.1, generator=torch.Generator().manual_seed(0)).unique().numel()
    2
    """

    check_floating("coordinates", coordinates)
    if coordinates.dim() not in (2, 3):
        raise ValueError(f"coordinates have shape {tuple(coordinates.shape)}; expected (A, N) or (A, B, N)")

    def draw(count: int, most: float) -> Tensor:
        drawn = coordinates.new_empty(count).uniform_(-most, most, generator=generator)
        return drawn.view(-1, *[1] * (coordinates.dim() - 1))

    axes = coordinates.shape[0]
    if shift is not None:
        coordinates = coordinates + draw(axes, positive("shift", shift))
    for name, most, count in (("jitter", jitter, axes), ("rescale", rescale, 1)):
        if most is not None:
            if positive(name, most) < 1:
                raise ValueError(f"{name} is {most:g}; expected a factor of at least 1")
            coordinates = coordinates * draw(count, math.log(most)).exp()
    return coordinates
