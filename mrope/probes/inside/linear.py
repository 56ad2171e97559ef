"""What a linear map of hidden states tells of the place of a cell: its step, row and column, layer by layer.

Letters: L layers, n cells, C channels; three axes: step, row and column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from mrope.checks import Number, positive, whole
from mrope.probes.inside.places import places_of
from mrope.probes.inside.watching import batches_of, config_of, numbers_of, watch


@dataclass(frozen=True, slots=True, eq=False)
class LinearProbe:
    """How well a ridge regression reads (step, row, column) of a cell off its hidden state, in pictures held out.

    Args:
        layers: of the states: 0 what goes into the first layer, 1 what leaves it, and so on.
        r2: (L, 3) 1 less the squared error over the variance: 1 is all, 0 is what the mean of the held-out cells tells.
            NaN where an axis does not vary in them, as the step in pictures.
        error: (L, 3) the mean absolute error, in cells and steps.
        control_r2: (L, 3) the same of a regression on shuffled places: what chance gives.
        control_error: (L, 3) its error.
        pictures: how many pictures and clips it was fitted to, and how many were held out.
        cells: how many cells these have.
    """

    layers: tuple[int, ...]
    r2: Float[Tensor, "l 3"]
    error: Float[Tensor, "l 3"]
    control_r2: Float[Tensor, "l 3"]
    control_error: Float[Tensor, "l 3"]
    pictures: tuple[int, int]
    cells: tuple[int, int]


def linear_probe(
    model: Any,
    inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    layers: Sequence[int] | None = None,
    held_out: Number = 0.25,
    penalty: Number = 1e-2,
    seed: int = 0,
) -> LinearProbe:
    """Run a model, and read the places of the cells of its pictures off the hidden states of its language model.

    Whole pictures are held out, never single cells of one: neighbours show the same, so that cells of a picture tell
    of one another. Take pictures of several sizes, and contents that do not tell where they are. The states of the
    layers that are asked for are kept on the CPU in float32. Without pixels, placeholders are words, all of them the
    same one.

    Args:
        model: as `attention_inside` takes it.
        inputs: a batch by name, as the model takes it, or several, with two pictures or clips at least.
        layers: of the states, from 0, see `LinearProbe`; by default all.
        held_out: the share of the pictures that is held out, at least one.
        penalty: of the squared weights, for channels of variance 1, a cell.
        seed: of which pictures are held out, and of the shuffled places.

    Raises:
        TypeError: the model is none of ours, or an argument is of another kind.
        ValueError: there are fewer than two pictures, no such layer, or an argument is out of range; or a batch has a
            name that the model does not take, or numbers that are not finite, or does not run through it.
    """
    numbers, config = numbers_of(model, layers, more=1), config_of(model)
    _shares(held_out, penalty, seed)
    batches = batches_of(inputs, model)
    places = [places_of(batch, config) for batch in batches]
    states: dict[int, list[Tensor]] = {number: [] for number in numbers}
    cells, owners, pictures = [], [], 0
    for place in places:
        seen = place.picture >= 0
        cells.append(place.cells[:, seen])
        owners.append(place.picture[seen] + pictures)
        pictures += len(place.grids)
    if pictures < 2:
        raise ValueError(f"the number of pictures and clips is {pictures}; expected at least 2, as some are held out")
    for batch, place in zip(batches, places, strict=True):
        seen = place.picture >= 0

        def note(layer: int, state: Tensor, seen: Tensor = seen) -> None:
            if layer in states:
                states[layer].append(state[seen.to(state.device)].float().cpu())

        watch(model, batch, states=note)
    known: dict[str, Any] = {"cells": torch.cat(cells, 1), "picture": torch.cat(owners)}
    fitted = [
        probe_states(torch.cat(states[number]), **known, held_out=held_out, penalty=penalty, seed=seed)
        for number in numbers
    ]
    joined = {
        name: torch.cat([getattr(each, name) for each in fitted])
        for name in ("r2", "error", "control_r2", "control_error")
    }
    return LinearProbe(tuple(numbers), **joined, pictures=fitted[0].pictures, cells=fitted[0].cells)


def probe_states(
    states: Float[Tensor, "n c"],
    cells: Int64[Tensor, "3 n"],
    picture: Int64[Tensor, " n"],
    *,
    held_out: Number = 0.25,
    penalty: Number = 1e-2,
    seed: int = 0,
) -> LinearProbe:
    """Read the places of cells off states, as of layer 0: see `linear_probe`.

    Args:
        states: one for each cell.
        cells: step, row and column of each.
        picture: the number of the picture of each.
        held_out: see `linear_probe`, as the others.
        penalty: of the squared weights.
        seed: of the split and the shuffle.

    Raises:
        ValueError: there are fewer than two pictures, an argument is out of range or of another number of cells, or
            states are not finite.

    >>> picture = torch.arange(4).repeat_interleave(6)
    >>> row, column = torch.arange(6).repeat(4) // 3, torch.arange(6).repeat(4) % 3
    >>> states = torch.stack([row * 2.0 + 1, column - row * 1.0], dim=1)
    >>> probe = probe_states(states, torch.stack([row * 0, row, column]), picture)
    >>> [round(number, 2) for number in probe.r2[0].tolist()]
    [nan, 1.0, 1.0]
    """
    share, penalty, seed = _shares(held_out, penalty, seed)
    count = len(states)
    if cells.shape != (3, count) or picture.shape != (count,):
        raise ValueError(
            f"cells have shape {tuple(cells.shape)} and picture {tuple(picture.shape)}; expected (3, {count}) and "
            f"({count},), as there are {count} states"
        )
    if not states.isfinite().all():
        raise ValueError("states hold NaN or infinite numbers; expected finite ones")
    numbers = picture.unique()
    if len(numbers) < 2:
        raise ValueError(f"the number of pictures is {len(numbers)}; expected at least 2, as some are held out")
    rng = np.random.default_rng(seed)
    count = min(max(round(share * len(numbers)), 1), len(numbers) - 1)
    held = torch.isin(picture, numbers[torch.from_numpy(rng.permutation(len(numbers))[:count])])
    x, y = states[~held].double(), cells[:, ~held].T.double()
    shuffled = y[torch.from_numpy(rng.permutation(len(y)))]
    read = _ridge(x, torch.cat([y, shuffled], dim=1), states[held].double(), penalty)
    wanted = cells[:, held].T.double().repeat(1, 2)
    missed = wanted - read
    spread = (wanted - wanted.mean(0)).square().sum(0)
    r2 = torch.where(spread > 0, 1 - missed.square().sum(0) / spread, torch.nan).float()[None]
    error = missed.abs().mean(0).float()[None]
    return LinearProbe(
        (0,), r2[:, :3], error[:, :3], r2[:, 3:], error[:, 3:], (len(numbers) - count, count), (len(y), len(missed))
    )


def _ridge(x: Tensor, y: Tensor, asked: Tensor, penalty: float) -> Tensor:
    """What the ridge regression of y on x says at `asked`; channels are brought to mean 0 and variance 1."""
    mean, middle = x.mean(0), y.mean(0)
    scale = (x - mean).square().mean(0).sqrt()
    # A channel that does not vary, or by rounding alone, says nothing.
    scale = torch.where(scale > torch.maximum(1e-9 * scale.max(), 1e-6 * x.abs().amax(0)), scale, torch.inf)
    x, asked, y = (x - mean) / scale, (asked - mean) / scale, y - middle
    if len(x) < x.shape[1]:
        gram = x @ x.T
        gram.diagonal().add_(penalty * len(x))
        return asked @ (x.T @ torch.linalg.solve(gram, y)) + middle
    gram = x.T @ x
    gram.diagonal().add_(penalty * len(x))
    return asked @ torch.linalg.solve(gram, x.T @ y) + middle


def _shares(held_out: Any, penalty: Any, seed: Any) -> tuple[float, float, int]:
    """The settings of a probe, checked."""
    share = positive("held_out", held_out)
    if share >= 1:
        raise ValueError(f"held_out is {share:g}; expected a share below 1")
    return share, positive("penalty", penalty), whole("seed", seed, 0)
