"""Trains the reader on glyph grids that are drawn as it goes: minutes on two cores, one seed, one outcome."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from mrope.checks import one_of
from mrope.data import draw_grid, fonts, questions, sample_key
from mrope.layouts import RasterLayout
from mrope.reader.model import FAMILY, WORDS, Reader

Twin = Literal["none", "1-d", "blind"]
HELD_OUT_SHAPES = frozenset({(3, 5), (5, 2), (6, 4), (2, 9), (9, 3)})
"""Grids (rows, columns) inside the range of training that training never shows."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that a training run depends on.

    Args:
        seed: of the weights, the pictures and the questions.
        steps: optimiser steps.
        cells: cells drawn a step, about.
        most_cells: cells of the largest grid.
        most_side: rows or columns of the longest.
        rate: peak of the learning rate; 50 steps up, then a cosine down to a hundredth.
        twin: "none" for the reader; "1-d" numbers its tokens in raster order; "blind" is shown a neighbour's picture.
    """

    seed: int = 0
    steps: int = 900
    cells: int = 512
    most_cells: int = 36
    most_side: int = 12
    rate: float = 2e-3
    twin: Twin = "none"

    def __post_init__(self) -> None:
        one_of("twin", self.twin, ("none", "1-d", "blind"))

    def shapes(self) -> list[tuple[int, int]]:
        """The grids (rows, columns) of training: at least 4 cells, all that is not held out."""
        sides = range(1, self.most_side + 1)
        shapes = [(rows, cols) for rows in sides for cols in sides if 4 <= rows * cols <= self.most_cells]
        return [shape for shape in shapes if shape not in HELD_OUT_SHAPES]


@dataclass(frozen=True, slots=True)
class Batch:
    """B pictures of one grid and Q questions about each: what `Reader.forward` takes, and the right answers."""

    grid: tuple[int, int, int]
    values: Tensor  # (B * patches, patch_dim) float32
    names: Tensor  # (B, N) what each vision token shows
    cells: Tensor  # (B, Q)
    relations: Tensor  # (B, Q)
    answers: Tensor  # (B, Q)


def draw_batch(shape: tuple[int, int], pictures: int, rng: np.random.Generator) -> Batch:
    """Draw training pictures of one shape, with as many questions each as it has cells."""
    keys = [sample_key(*shape, rng, pairs="train") for _ in range(pictures)]
    grids = [draw_grid(key, fonts("train"), rng, distort=True) for key in keys]
    patches = FAMILY.patchify([grid.picture for grid in grids])
    asked = []
    for key in keys:
        every = np.stack(questions(key))
        asked.append(every[:, rng.integers(every.shape[1], size=key.size)])
    cells, relations, answers = torch.from_numpy(np.stack(asked, axis=1))
    names = torch.from_numpy(np.stack(keys)).flatten(1)
    return Batch(patches.plans[0].grid, patches.values, names, cells, relations, answers)


OnStep = Callable[[int, float], None]
"""Told after each step of training: the steps done, and the loss of the answers in nats."""


def quietly(step: int, loss: float) -> None:
    """The `OnStep` that shows nothing."""


def train(recipe: Recipe, *, device: str = "cpu", on_step: OnStep = quietly) -> Reader:
    """Train a reader on "cpu" or "cuda".

    The loss is the cross-entropy of the answers plus that of each vision token naming its own glyph, straight from the
    encoder: without the second, the encoder has nothing to learn from until attention has found the right cell, and
    attention finds nothing before the encoder tells glyphs apart.
    """
    torch.manual_seed(recipe.seed)
    rng = np.random.default_rng(recipe.seed)
    reader = Reader(RasterLayout(FAMILY.merge)) if recipe.twin == "1-d" else Reader()
    reader.to(device)
    optimiser = torch.optim.AdamW(reader.parameters(), lr=recipe.rate, betas=(0.9, 0.98), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / 50, 0.505 + 0.495 * math.cos(math.pi * step / recipe.steps))
    )
    shapes = recipe.shapes()
    for step in range(recipe.steps):
        shape = shapes[int(rng.integers(len(shapes)))]
        batch = draw_batch(shape, max(2, recipe.cells // math.prod(shape)), rng)
        words = torch.from_numpy(rng.integers(len(WORDS), size=int(rng.integers(1, 17)))).to(device)
        values = batch.values
        if recipe.twin == "blind":
            values = values.unflatten(0, (len(batch.cells), -1)).roll(1, 0).flatten(0, 1)
        ids = reader.positions(len(words), batch.grid).ids.to(device)
        logits = reader(values.to(device), words, ids, batch.cells.to(device), batch.relations.to(device))
        wanted = torch.cat([batch.names, batch.answers], dim=1).to(device)
        named, asked = (
            cross_entropy(logits[:, part].flatten(0, 1), wanted[:, part].flatten())
            for part in (slice(0, batch.names.shape[1]), slice(batch.names.shape[1], None))
        )
        optimiser.zero_grad()
        (named + asked).backward()
        torch.nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        on_step(step + 1, asked.item())
    return reader.eval()
