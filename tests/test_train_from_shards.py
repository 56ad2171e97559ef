"""The example that trains from shards: killed and started again, its losses are those of a run that nobody stopped."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from sources import ROOT

import mrope
from mrope.data import ExportedItems
from mrope.vision import normalize, patchify

EXAMPLE = ROOT / "examples" / "train_from_shards.py"
STEPS, EVERY = 9, 3

needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("example_train_from_shards", EXAMPLE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def prepared(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    example.prepare(folder, pictures=60)
    return folder


def started(folder: Path) -> subprocess.Popen[str]:
    """The example in two processes, on the shards that are there."""
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    options = ["--rdzv-endpoint", "localhost:0", str(EXAMPLE), "--folder", str(folder)]
    return subprocess.Popen(
        [sys.executable, *launch, *options, "--steps", str(STEPS), "--every", str(EVERY)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def losses(printed: str) -> dict[int, str]:
    return {int(step): loss for step, loss in re.findall(r"^step (\d+): loss (\S+)$", printed, re.MULTILINE)}


def family_of(pid: int) -> list[int]:
    """A process and all that it started, which torchrun puts into sessions of their own."""
    below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in below for one in family_of(int(child)))]


def kill(process: subprocess.Popen[str]) -> None:
    for pid in family_of(process.pid):
        os.kill(pid, signal.SIGKILL)
    process.communicate()


@needs_proc
def test_a_training_that_is_killed_goes_on_to_the_same_losses(prepared: Path, tmp_path: Path) -> None:
    folders = [tmp_path / "whole", tmp_path / "killed"]
    for folder in folders:
        folder.mkdir()
        (folder / "shards").symlink_to(prepared / "shards")
    whole, killed = map(started, folders)
    printed: list[str] = []
    assert killed.stdout is not None
    for line in killed.stdout:
        printed.append(line)
        if f"step {EVERY + 2}:" in line:  # two steps behind a checkpoint
            break
    kill(killed)
    told, errors = whole.communicate(timeout=600)
    assert whole.returncode == 0, errors
    wanted = losses(told)
    assert list(wanted) == [*range(1, STEPS + 1)]
    assert [path.name for path in (folders[1] / "checkpoints").glob("step-??????")] == [f"step-{EVERY:06d}"]
    (folders[1] / "checkpoints" / "step-000006.tmp").mkdir()  # as one has it that is killed while it saves
    again = started(folders[1])
    told, errors = again.communicate(timeout=600)
    assert again.returncode == 0, errors
    assert told.splitlines()[0] == f"goes on behind step {EVERY}"
    before, behind = losses("".join(printed)), losses(told)
    assert list(before) == [*range(1, EVERY + 3)]
    assert list(behind) == [*range(EVERY + 1, STEPS + 1)]
    assert {**before, **behind} == wanted
    assert before == {step: wanted[step] for step in before}
    assert float(wanted[STEPS]) < float(wanted[1])
    assert [path.name for path in (folders[1] / "checkpoints").iterdir()] == [f"step-{STEPS:06d}"]


def test_a_row_is_packed_pictures_that_normalise_to_those_of_patchify(example: ModuleType, prepared: Path) -> None:
    reader, family = example.model(), mrope.family(example.FAMILY)
    items = ExportedItems(prepared / "shards")
    some = [items[number] for number in (3, 0, 8)]
    batch = example.Rows(reader)(some)
    assert batch["pixel_values"].dtype == torch.uint8
    whole = patchify([prepared / f"pictures/{number}.png" for number in (3, 0, 8)], family, max_tokens=157)
    assert torch.equal(normalize(batch["pixel_values"], family), whole.values)
    assert torch.equal(batch["image_grid_thw"], whole.grids)
    costs = [plan.tokens + example.BESIDE for plan in whole.plans]
    assert batch["input_ids"].shape == (1, sum(costs))
    ends = torch.tensor(costs).cumsum(0) - 1
    learnt = (batch["labels"][0] != -100).nonzero()[:, 0]
    assert learnt.tolist() == ends.tolist()
    assert batch["labels"][0, learnt].tolist() == [item.labels["colour"] for item in some]
    assert any(grid[1] != grid[2] for grid in whole.grids.tolist())


def test_no_steps_are_refused_in_one_line() -> None:
    command = [sys.executable, str(EXAMPLE), "--steps", "0"]
    paths = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, env=paths, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1] == "train_from_shards.py: error: --steps is 0; expected at least 1"
