"""Runs a study: some processes, a file for each that is finished, so that a killed study goes on where it was."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from mrope.checks import one_of, whole
from mrope.probes.files import write_whole
from mrope.probes.studies.catalogue import study
from mrope.probes.studies.scoring import rounded
from mrope.probes.studies.study import Study
from mrope.probes.studies.training import STEPS, Recipe, trained

LIMIT = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a study's figures depend on, beside the study itself.

    Args:
        seeds: models of each variant, from seed 0.
        steps: optimiser steps of each.
        limit: prompts of about 32 cells that each figure is measured on.
        device: "cpu" or "cuda".
    """

    seeds: int = 5
    steps: int = STEPS
    limit: int = LIMIT
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("seeds", "steps", "limit"):
            whole(name, getattr(self, name), 1)
        one_of("device", self.device, ("cpu", "cuda"))


@dataclass(frozen=True, slots=True)
class Step:
    """How far a run has come.

    Args:
        run: its name, such as "mrope-0".
        step: optimiser steps done.
        loss: in nats.
    """

    run: str
    step: int
    loss: float


def recipes_of(study: Study, settings: Settings, only: Sequence[str] = ()) -> list[Recipe]:
    """The runs of a study, seed by seed.

    Args:
        study: which.
        settings: how many seeds and steps.
        only: names of variants; all of them by default.

    Raises:
        ValueError: the study has no variant of such a name.
    """
    for name in only:
        one_of(f"variant of {study.name}", name, study.variants)
    variants = [name for name in study.variants if not only or name in only]
    return [Recipe(name, seed, settings.steps) for seed in range(settings.seeds) for name in variants]


def run_study(
    name: str,
    folder: Path,
    settings: Settings = Settings(),
    *,
    only: Sequence[str] = (),
    jobs: int = 2,
    on_step: Callable[[Step], None] = lambda step: None,
    on_run: Callable[[Recipe, float], None] = lambda recipe, seconds: None,
) -> Path:
    """Train and score all that a study needs, and write ``<name>.json`` into `folder`.

    A run that lies there already, by the same recipe and limit, is neither trained nor scored again; weights of one
    recipe are trained once for all studies.

    Args:
        name: of the study.
        folder: weights go into ``weights``, finished runs into a folder with the study's name.
        settings: seeds, steps, limit, device.
        only: variants to run; all by default.
        jobs: runs at a time, one thread each.
        on_step: told now and then how far a run is.
        on_run: told of each run that is finished, and the seconds it took.

    Returns:
        The file of results, which holds all runs by these settings that lie in `folder`.

    Raises:
        OSError: a run was killed from outside. Finished ones are kept, as after any interruption.
        ValueError: the folder holds runs by other settings.
    """
    chosen = study(name)
    recipes = recipes_of(chosen, settings, only)
    whole("jobs", jobs, 1)
    (folder / name).mkdir(parents=True, exist_ok=True)
    left = []
    for recipe in recipes:
        if (run := finished(folder, name, recipe, settings)) is None:
            left.append(recipe)
        else:
            on_run(recipe, run["seconds"])
    _share_out(left, min(jobs, len(left)), (name, folder, settings), on_step, on_run)
    runs = [finished(folder, name, recipe, settings) for recipe in recipes_of(chosen, settings)]
    path = folder / f"{name}.json"
    there = {"study": name} | _circumstances(settings) | {"runs": [run for run in runs if run is not None]}
    write_whole(path, json.dumps(there, indent=1) + "\n")
    return path


def finished(folder: Path, name: str, recipe: Recipe, settings: Settings) -> dict[str, Any] | None:
    """The entry of a run that lies in `folder`, with its seconds; None where there is none.

    Raises:
        ValueError: it lies there by another recipe or limit.
    """
    path = folder / name / f"{recipe.name}.json"
    if not path.exists():
        return None
    run = json.loads(path.read_text("utf-8"))
    for what, there, asked in (
        ("recipe", run["recipe"], asdict(recipe)),
        ("limit", run["limit"], settings.limit),
    ):
        if there != asked:
            raise ValueError(f"{path} has {what} {there}, not {asked}; expected the same, or another folder")
    return run | {"seconds": float(path.with_suffix(".seconds").read_text("utf-8"))}


def _share_out(
    recipes: Sequence[Recipe],
    jobs: int,
    given: tuple[str, Path, Settings],
    on_step: Callable[[Step], None],
    on_run: Callable[[Recipe, float], None],
) -> None:
    """Have `jobs` workers do the recipes.

    Each has a pipe and shares nothing, so that whoever is killed leaves no lock and no semaphore behind.
    """
    context, rest, asked, workers = get_context("spawn"), iter(recipes), {}, []
    resource_tracker.ensure_running()  # which unblocks interrupts as it begins
    # A worker begins with interrupts blocked: one would end it in the middle of an import, with a traceback.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        for recipe in islice(rest, jobs):
            pipe, theirs = context.Pipe()
            workers.append(context.Process(target=_work, args=(theirs, *given), daemon=True))
            workers[-1].start()
            theirs.close()  # so that ours ends with the worker
            pipe.send(recipe)
            asked[pipe] = recipe
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        while asked:
            ready: list[Any] = wait(list(asked))
            for pipe in ready:
                following = None
                try:
                    told = pipe.recv()
                    if isinstance(told, float) and (following := next(rest, None)):
                        pipe.send(following)
                except (EOFError, OSError):
                    raise OSError("a run was killed, for lack of memory perhaps; what is finished is kept") from None
                if isinstance(told, Exception):
                    raise told
                if isinstance(told, Step):
                    on_step(told)
                    continue
                done = asked.pop(pipe)
                if following:
                    asked[pipe] = following
                on_run(done, told)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for worker in workers:
            worker.terminate()
            worker.join()


def _work(pipe: Connection, name: str, folder: Path, settings: Settings) -> None:
    """Train and score what comes through `pipe`, one thread, until its other end is closed or dies."""
    torch.set_num_threads(1)
    recipes: SimpleQueue[Recipe] = SimpleQueue()

    def listen() -> None:
        try:
            while True:
                recipes.put(pipe.recv())
        except (EOFError, OSError):
            os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        try:
            told: Any = _run(name, folder, recipes.get(), settings, pipe.send)
        except Exception as error:
            told = error
        pipe.send(told)


def _run(name: str, folder: Path, recipe: Recipe, settings: Settings, on_step: Callable[[Step], None]) -> float:
    """Train and score one model, write its file, and return the seconds."""
    started = time.monotonic()

    def tell(step: int, loss: float) -> None:
        if step % 10 == 0 or step == recipe.steps:
            on_step(Step(recipe.name, step, loss))

    model = trained(folder / "weights", recipe, device=settings.device, on_step=tell)
    rows = study(name).evaluate(model, recipe.variant, recipe.seed, settings.limit, settings.device)
    seconds = round(time.monotonic() - started, 1)
    path = folder / name / f"{recipe.name}.json"
    path.with_suffix(".seconds").write_text(f"{seconds}\n", "utf-8")
    entry = {
        "variant": recipe.variant,
        "seed": recipe.seed,
        "recipe": asdict(recipe),
        "limit": settings.limit,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "rows": rounded(rows),
    }
    write_whole(path, json.dumps(entry, indent=1) + "\n")
    return seconds


def _circumstances(settings: Settings) -> dict[str, Any]:
    machine = torch.cuda.get_device_name() if settings.device == "cuda" else f"{platform.machine()}, one thread a run"
    return {
        "settings": asdict(settings),
        "machine": machine,
        "versions": {"python": sys.version.split()[0], "torch": torch.__version__},
    }
