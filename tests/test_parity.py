"""The parity command, on tiny random checkpoints that are saved here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_models import FAMILIES, tiny_model
from transformers import Qwen2VLImageProcessor, Qwen2VLVideoProcessor, Qwen3VLVideoProcessor
from transformers.utils.logging import disable_progress_bar
from typer.testing import CliRunner, Result

import mrope
from mrope.cli import app


def save(name: str, folder: Path) -> Path:
    disable_progress_bar()
    family = mrope.family(name)
    own = {"patch_size": family.patch, "image_mean": list(family.mean), "image_std": list(family.std)}
    video = Qwen3VLVideoProcessor if name == "qwen3-vl" else Qwen2VLVideoProcessor
    tiny_model(name).save_pretrained(folder)
    Qwen2VLImageProcessor(**own, size={"shortest_edge": 3136, "longest_edge": 40_000}).save_pretrained(folder)
    video(**own).save_pretrained(folder)
    return folder


def parity(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["parity", str(folder), "--device", "cpu", *options])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_checkpoint_passes(name: str, tmp_path: Path) -> None:
    result = parity(save(name, tmp_path))
    assert result.exit_code == 0, result.output
    head, *printed = result.stdout.splitlines()
    assert head.split() == ["check", "detail"]
    assert len(printed) >= 11
    assert all(" pass " in line for line in printed)
    assert "plan of a picture 97 wide x 331 high" in result.stdout
    assert "logits with our positions and rotary" in result.stdout


def test_what_differs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save("qwen2-vl", tmp_path)
    monkeypatch.setattr("mrope.Rotary.cos_sin", lambda self, ids, length=None: (torch.zeros(*ids.shape[1:], 64),) * 2)
    all_at_one = lambda ids, sizes, start: ids.fill(start) or (start + 1, start + 1, 1)  # noqa: E731
    monkeypatch.setattr("mrope.layouts.grid.write_still", all_at_one)
    result = parity(folder, "--json")
    assert result.exit_code == 1
    passed = {check["name"]: check["passed"] for check in json.loads(result.stdout)}
    assert passed["patches of the pictures"]
    assert not passed["positions of pictures in two rows"]
    assert not passed["rotary cos and sin"]
    assert not passed["logits with our positions"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "no config.json"),
        ("{", "not valid JSON"),
        ('{"model_type": "llama"}', "model_type is 'llama'"),
        ('{"model_type": "qwen2_vl"}', "preprocessor"),
    ],
)
def test_what_is_no_checkpoint(config: str | None, message: str, tmp_path: Path) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    result = parity(tmp_path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("mrope parity: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_a_wrong_device(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2_vl"}')
    result = parity(tmp_path, "--device", "tpu")
    assert result.exit_code == 2
    assert "device is 'tpu'" in result.stderr
