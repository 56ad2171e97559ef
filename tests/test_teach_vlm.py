"""The example that teaches a built model to read, in short: it reads, and its blind twin does not."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from sources import ROOT

FEW = [(1, 2), (2, 1), (1, 3), (3, 1)]


@pytest.fixture(scope="module")
def example() -> ModuleType:
    path = ROOT / "examples" / "teach_a_vlm_to_read.py"
    spec = importlib.util.spec_from_file_location("example_teach_a_vlm_to_read", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_question_stands_around_its_picture_and_the_answer_is_the_letter_there(example: ModuleType) -> None:
    reader = example.model()
    asked = example.batch(reader, [(2, 3), (3, 1)] * 20, np.random.default_rng(0))
    place = reader.config.image_token_id
    assert asked["image_grid_thw"][:2].tolist() == [[1, 4, 6], [1, 6, 2]]
    for row, labels in zip(asked["input_ids"].tolist(), asked["labels"].tolist(), strict=True):
        cells = row.count(place)
        question, *middle, ask, answer = row[-cells - 3 :]
        assert middle == [place] * cells
        assert ask == example.ASK
        down, right = divmod(question - example.FIRST, example.SIDE)
        named = labels[-cells - 1 : -1][down * (3 if cells == 6 else 1) + right]  # the labels begin one token later
        assert named in (answer, -100)
        assert labels[-1] == answer
        assert labels[: -cells - 1] == [-100] * (len(labels) - cells - 1)


def test_it_learns_to_read_and_its_blind_twin_does_not(example: ModuleType) -> None:
    reader = example.train(300, among=FEW, rate=4e-3)  # shapes so small are learned sooner, and faster
    blind = example.train(60, among=FEW, rate=4e-3, blind=True)
    guess = 1 / len(example.LETTERS)
    assert example.accuracy(reader, FEW) > 0.6
    assert example.accuracy(blind, FEW, pictures=50) < 2 * guess


def test_what_it_reads_depends_on_where_rows_and_columns_are(example: ModuleType) -> None:
    reader = example.model()
    torch.manual_seed(0)
    asked = example.batch(reader, [(2, 3)], np.random.default_rng(0))
    asked.pop("labels")
    ids = torch.tensor([[[0, 1, 1, 1, 1, 1, 1, 4, 5]], [[0, 1, 1, 1, 2, 2, 2, 4, 5]], [[0, 1, 2, 3, 1, 2, 3, 4, 5]]])
    with torch.no_grad():
        given, by_hand, swapped = (
            reader(**asked, **where).logits for where in ({}, {"position_ids": ids}, {"position_ids": ids[[0, 2, 1]]})
        )
    assert torch.equal(given, by_hand)
    assert not torch.allclose(given, swapped, atol=1e-5)


def test_no_steps_are_refused_in_one_line() -> None:
    command = [sys.executable, str(ROOT / "examples" / "teach_a_vlm_to_read.py"), "--steps", "0"]
    paths = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, env=paths, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr.splitlines()[1:] == ["teach_a_vlm_to_read.py: error: --steps is 0; expected at least 1"]


def test_ten_steps_of_which_one_would_warm_up_do_train(example: ModuleType) -> None:
    example.train(10, among=FEW)
