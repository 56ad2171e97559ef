"""The reader's study: several training seeds and two kinds of twin on the same budget, scored on the same pictures.

The reader that ships is the median of its seeds, not the best, and ``study.json`` beside it holds what was measured.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from mrope.data import fonts
from mrope.layouts import RasterLayout
from mrope.probes.reading.grid import CHANCE, GridScore, score_grid, swap_axes
from mrope.reader import FAMILY, HELD_OUT_SHAPES, WEIGHTS, Reader, Recipe, train_to

TRAINED_SHAPES = ((4, 4), (5, 7), (6, 6), (3, 12), (12, 3))
LARGER_SHAPES = ((8, 9), (9, 8), (6, 12), (12, 6), (10, 10), (12, 12), (16, 16), (20, 20), (24, 24))
SHAPES = (*TRAINED_SHAPES, *sorted(HELD_OUT_SHAPES), *LARGER_SHAPES)
"""The grids (rows, columns) that a study reads: of training, held out inside its range, and larger."""
DECISIVE = (8, 9)
"""The grid that orders the seeds: twice the cells of the largest of training."""


def run_study(
    folder: Path,
    recipes: Sequence[Recipe],
    *,
    pictures: int = 16,
    jobs: int = 2,
    on_run: Callable[[dict[str, Any]], None] = lambda run: None,
) -> dict[str, Any]:
    """Train and score each recipe in a folder of its own, `jobs` at a time with one thread each; write ``study.json``.

    Args:
        folder: where the runs go; a run that is there already, by the same recipe, is scored and not trained again.
        recipes: what to train.
        pictures: grids to draw of each shape, the same for every run.
        jobs: runs at a time.
        on_run: called with each run's entry as it ends.

    Returns:
        What ``study.json`` holds: the shapes, the chance level, and an entry a run.
    """
    runs = []
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(_run, folder, recipe, pictures) for recipe in recipes]):
            runs.append(future.result())
            on_run(runs[-1])
    runs.sort(key=lambda run: recipes.index(Recipe(**run["recipe"])))
    study = {
        "chance": CHANCE,
        "pictures": pictures,
        "fonts": [font.name for font in fonts("held-out")],
        "decisive": name_of(DECISIVE),
        "shipped": _median_seed(runs),
        "torch": torch.__version__,
        "runs": runs,
    }
    (folder / "study.json").write_text(json.dumps(study, indent=1) + "\n")
    return study


def ship(folder: Path, study: dict[str, Any], target: Path = WEIGHTS.parent) -> None:
    """Copy the median reader of `folder` and the study's figures to `target`, where the package looks for them."""
    target.mkdir(parents=True, exist_ok=True)
    for name in ("recipe.json", "log.csv", "reader.safetensors"):
        shutil.copyfile(run_folder(folder, Recipe(seed=study["shipped"])) / name, target / name)
    shutil.copyfile(folder / "study.json", target / "study.json")


def run_folder(folder: Path, recipe: Recipe) -> Path:
    """Where the run of a recipe lies inside the study's folder."""
    return folder / f"{recipe.twin}-{recipe.seed}"


def name_of(shape: tuple[int, int]) -> str:
    """``rows x columns`` as the study's files write it: "8x9"."""
    return f"{shape[0]}x{shape[1]}"


def _run(folder: Path, recipe: Recipe, pictures: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    started = time.monotonic()
    reader = _trained(run_folder(folder, recipe), recipe)
    seconds = round(time.monotonic() - started, 1)
    scores = {
        name_of(shape): _entry(score_grid(reader, shape, fonts("held-out"), pictures=pictures)) for shape in SHAPES
    }
    swapped = {
        name_of(shape): _entry(score_grid(reader, shape, fonts("held-out"), pictures=pictures, move=swap_axes))
        for shape in TRAINED_SHAPES
    }
    return {
        "twin": recipe.twin,
        "seed": recipe.seed,
        "recipe": asdict(recipe),
        "seconds": seconds,
        "scores": scores,
        "swapped": swapped,
    }


def _trained(folder: Path, recipe: Recipe) -> Reader:
    stated = folder / "recipe.json"
    if stated.exists() and (folder / WEIGHTS.name).exists() and Recipe(**json.loads(stated.read_text())) == recipe:
        layout = RasterLayout(FAMILY.merge) if recipe.twin == "1-d" else FAMILY.layout
        return Reader.load(folder / WEIGHTS.name, layout=layout)
    return train_to(folder, recipe)


def _entry(score: GridScore) -> dict[str, Any]:
    return {
        "accuracy": round(score.accuracy, 5),
        "error": round(score.error, 5),
        "by_relation": {name: round(value, 5) for name, value in score.by_relation().items()},
        "on_held_out_pairs": round(score.on_held_out_pairs, 5),
        "sets": round(score.sets, 5),
    }


def _median_seed(runs: Sequence[dict[str, Any]]) -> int:
    ours = sorted((r for r in runs if r["twin"] == "none"), key=lambda r: r["scores"][name_of(DECISIVE)]["accuracy"])
    return ours[(len(ours) - 1) // 2]["seed"]
