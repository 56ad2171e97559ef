"""Trains a model of the studies: one budget for all variants, one seed one outcome, and weights that are kept."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from mrope.checks import whole
from mrope.probes.studies.model import StudyModel
from mrope.probes.studies.prompts import Batch, Form, answerable, draw
from mrope.probes.studies.variants import Looks, Variant, variant

CELLS = 256
"""Cells drawn a step, about."""
LONGEST = 44
"""Positions of the longest prompt of training under M-RoPE: 12 of text, three pictures of 4 with 4 of text, 8 asked."""
STEPS = 1500
OnStep = Callable[[int, float], None]
"""Told after each step: the steps done, and the loss in nats."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that the weights of a run depend on.

    Args:
        variant: its name.
        seed: of the weights and the prompts.
        steps: optimiser steps.
    """

    variant: str
    seed: int = 0
    steps: int = STEPS

    def __post_init__(self) -> None:
        variant(self.variant)
        whole("seed", self.seed, 0)
        whole("steps", self.steps, 1)

    @property
    def name(self) -> str:
        """The run's, in file names."""
        return f"{self.variant}-{self.seed}"


def training_form(rng: np.random.Generator) -> Form:
    """Two of three prompts have one picture of 3 to 6 rows and columns, the third has two or three of 3 or 4."""
    before = int(rng.integers(1, 13))
    if rng.random() < 2 / 3:
        return Form((_sides(rng, 3, 6),), before, between=int(rng.integers(1, 5)))
    pictures = tuple(_sides(rng, 3, 4) for _ in range(int(rng.integers(2, 4))))
    return Form(pictures, before, between=int(rng.integers(1, 5)))


def train(recipe: Recipe, *, device: str = "cpu", on_step: OnStep = lambda step, loss: None) -> StudyModel:
    """Train a model from nothing on "cpu" or "cuda"."""
    torch.manual_seed(recipe.seed)
    model = StudyModel(variant(recipe.variant)).to(device)
    rng = np.random.default_rng([recipe.seed, 0])
    return fit(model, recipe.steps, rng, training_form, device=device, on_step=on_step).eval()


def fit(
    model: StudyModel,
    steps: int,
    rng: np.random.Generator,
    forms: Callable[[np.random.Generator], Form],
    *,
    rate: float = 4e-3,
    device: str = "cpu",
    on_step: OnStep = lambda step, loss: None,
) -> StudyModel:
    """Train `model` in place: the loss is that of the neighbours of all cells, plus that of the answers.

    Args:
        model: what is trained.
        steps: optimiser steps.
        rng: of the prompts.
        forms: draws the form of a step's prompts.
        rate: peak of the learning rate; a tenth of the steps up, 50 at most, then a cosine down to a hundredth.
        device: "cpu" or "cuda".
        on_step: told after each step.
    """
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.05)
    warm = max(1, min(50, steps // 10))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / warm, 0.505 + 0.495 * math.cos(math.pi * step / steps))
    )
    model.train()
    for step in range(steps):
        form = forms(rng)
        batch = draw(form, max(2, CELLS // form.cells), rng).to(device)
        loss = loss_of(model, batch)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        on_step(step + 1, loss.item())
    return model


def loss_of(model: StudyModel, batch: Batch) -> Tensor:
    """Nats, a mean over the neighbours of cells plus a mean over those of the glyphs that are asked about."""
    looks = model.variant.looks
    pairs = zip(model(batch), (batch.beside, batch.answers), strict=True)
    losses = [cross_entropy(said[known(right, looks)], right[known(right, looks)]) for said, right in pairs]
    return losses[0] + losses[1]


def known(right: Tensor, looks: Looks) -> Tensor:
    """(..., 4) where there is a neighbour that a cell can see: those to the left and above alone under "causal"."""
    return (right >= 0) & answerable(directions_of(looks)).to(right.device)


def directions_of(looks: Looks) -> Sequence[str]:
    """The directions in which a cell can see."""
    return ("left", "up") if looks == "causal" else ("right", "left", "down", "up")


def trained(
    folder: Path, recipe: Recipe, *, device: str = "cpu", on_step: OnStep = lambda step, loss: None
) -> StudyModel:
    """The model of a recipe: from `folder` where its weights lie, else trained, and its weights and log put there.

    Raises:
        ValueError: weights of this variant and seed lie there that were trained by another recipe.
    """
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    path = folder / f"{recipe.name}.safetensors"
    stated = json.dumps(asdict(recipe))
    if path.exists():
        with safe_open(path, "pt") as file:
            there = (file.metadata() or {}).get("recipe")
        if there != stated:
            raise ValueError(f"{path} was trained by {there}, not by {stated}; expected the same, or another folder")
        return read_as(load_file(path), variant(recipe.variant)).to(device)
    folder.mkdir(parents=True, exist_ok=True)
    log = ["step,loss"]

    def note(step: int, loss: float) -> None:
        log.append(f"{step},{loss:.4f}")
        on_step(step, loss)

    model = train(recipe, device=device, on_step=note)
    (folder / f"{recipe.name}.csv").write_text("\n".join(log) + "\n")
    part = folder / f"{recipe.name}.{os.getpid()}.part"
    save_file(
        {name: tensor.cpu().contiguous() for name, tensor in model.state_dict().items()}, part, {"recipe": stated}
    )
    os.replace(part, path)
    return model


def read_as(weights: dict[str, Tensor], variant: Variant) -> StudyModel:
    """A model with these weights that knows where its tokens are as `variant` does, which adds no other weights."""
    model = StudyModel(variant)
    model.load_state_dict(weights)
    return model.eval()


def _sides(rng: np.random.Generator, least: int, most: int) -> tuple[int, int]:
    rows, cols = rng.integers(least, most + 1, size=2)
    return int(rows), int(cols)
