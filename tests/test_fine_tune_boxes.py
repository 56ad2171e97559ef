"""The example that fine-tunes on boxes, in short: labels go through plans, and boxes are found in sizes never seen."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sources import ROOT

from mrope.hf import read_positions


@pytest.fixture(scope="module")
def example() -> ModuleType:
    path = ROOT / "examples" / "fine_tune_on_boxes.py"
    spec = importlib.util.spec_from_file_location("example_fine_tune_on_boxes", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_labels_are_written_in_pixels_that_the_model_sees_and_come_back(example: ModuleType) -> None:
    # 168 high x 84 wide is seen as it is; 336 x 280 = 12 x 10 tokens shrink to 5 x 4, which is 140 x 112 pixels.
    pictures = [Image.new("RGB", (84, 168)), Image.new("RGB", (280, 336))]
    inputs, plans = example.batch(pictures, [[7, 14, 70, 154], [70, 168, 210, 336]])
    assert [plan.resized for plan in plans] == [(168, 84), (140, 112)]
    numbers = [[1, 2, 10, 22], [28 // 7, 70 // 7, 84 // 7, 140 // 7]]
    for row, expected in zip(inputs["input_ids"], numbers, strict=True):
        assert (row[-4:] - example.FIRST - example.STEPS * torch.arange(4)).tolist() == expected
    assert inputs["input_ids"][0, :2].tolist() == [example.PAD, example.PAD]  # 18 tokens against 20
    assert inputs["attention_mask"].sum(1).tolist() == [1 + 18 + 5, 1 + 20 + 5]
    for plan, words, box in zip(plans, numbers, ([7, 14, 70, 154], [70, 168, 210, 336]), strict=True):
        assert plan.decode_boxes([word * example.STEP for word in words]) == pytest.approx(box)


def test_sizes_of_training_leave_some_grids_out_and_the_others_have_no_other(example: ModuleType) -> None:
    for new in (False, True):
        pictures, _ = example.draw(100, np.random.default_rng(0), new=new)
        assert len(pictures) == 100
        seen = [example.FAMILY.plan(picture, max_tokens=example.MOST).grid for picture in pictures]
        assert {(h // 2, w // 2) in example.HELD_OUT for _, h, w in seen} == {new}
        assert all(picture.width != picture.height for picture in pictures)


def test_boxes_of_shapes_are_those_of_their_pixels(example: ModuleType) -> None:
    for picture, box in zip(*example.draw(20, np.random.default_rng(0)), strict=True):
        shape = np.all(np.asarray(picture) < 128, axis=-1)
        rows, cols = (np.flatnonzero(np.any(shape, axis=axis)) for axis in (1, 0))
        assert [cols[0], rows[0], cols[-1] + 1, rows[-1] + 1] == pytest.approx(box, abs=1)


def test_overlaps_worked_by_hand(example: ModuleType) -> None:
    one = torch.tensor([[0.0, 0, 4, 2], [0, 0, 4, 2], [5, 5, 3, 3]])
    other = torch.tensor([[2.0, 1, 6, 4], [4, 0, 6, 2], [0, 0, 4, 4]])
    assert example.overlap(one, other).tolist() == pytest.approx([2 / 18, 0, 0])


def test_it_learns_to_find_boxes_in_sizes_that_it_never_saw(example: ModuleType) -> None:
    finder = example.train(200)  # of 600
    for new in (False, True):
        found, best = example.score(finder, new=new, count=100)
        assert found > 1.5 * best
    _depends_on_rows_and_columns(example, finder)


@torch.no_grad()
def _depends_on_rows_and_columns(example: ModuleType, finder: Any) -> None:
    inputs, _ = example.batch(*example.draw(100, np.random.default_rng(2), new=True))
    ids = read_positions(inputs, finder.config)
    given, by_hand, swapped = (
        finder(**inputs, **where).logits[:, -5:-1].argmax(-1)
        for where in ({}, {"position_ids": ids}, {"position_ids": ids[[0, 2, 1]]})
    )
    answers = inputs["input_ids"][:, -4:]
    assert torch.equal(given, by_hand)
    assert (swapped == answers).float().mean() < 0.5 * (given == answers).float().mean()


def test_no_steps_are_refused_in_one_line() -> None:
    command = [sys.executable, str(ROOT / "examples" / "fine_tune_on_boxes.py"), "--steps", "0"]
    paths = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, env=paths, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr.splitlines()[1:] == ["fine_tune_on_boxes.py: error: --steps is 0; expected at least 1"]


def test_ten_steps_of_which_one_would_warm_up_do_train(example: ModuleType) -> None:
    example.train(10)
