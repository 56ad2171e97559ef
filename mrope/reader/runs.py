"""One training run on disk: weights, recipe and log side by side in a folder."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from mrope.reader.model import Reader
from mrope.reader.train import OnStep, Recipe, quietly, train


def train_to(folder: Path, recipe: Recipe, *, device: str = "cpu", on_step: OnStep = quietly) -> Reader:
    """Train by `recipe` and write ``reader.safetensors``, ``recipe.json`` and ``log.csv`` into `folder`.

    Args:
        folder: is made first where it is missing; the three files are written at the end, the weights last.
        recipe: what to train.
        device: "cpu" or "cuda".
        on_step: told after each step.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)  # what is in the way is found before the training, not after it
    log = ["step,loss"]

    def note(step: int, loss: float) -> None:
        log.append(f"{step},{loss:.4f}")
        on_step(step, loss)

    reader = train(recipe, device=device, on_step=note)
    (folder / "recipe.json").write_text(json.dumps(asdict(recipe), indent=2) + "\n")
    (folder / "log.csv").write_text("\n".join(log) + "\n")
    weights = {name: tensor.cpu() for name, tensor in reader.state_dict().items()}
    save_file(weights, folder / "reader.safetensors.part")
    os.replace(folder / "reader.safetensors.part", folder / "reader.safetensors")
    return reader
