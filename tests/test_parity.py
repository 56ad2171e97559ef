"""The parity command, on tiny random checkpoints that are saved here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_models import FAMILIES, tiny_model
from transformers import Qwen2VLImageProcessor, Qwen2VLVideoProcessor, Qwen3VLVideoProcessor
from transformers.utils.logging import disable_progress_bar

import mrope
from mrope.hf import parity


def save(name: str, folder: Path) -> Path:
    disable_progress_bar()
    family = mrope.family(name)
    own = {"patch_size": family.patch, "image_mean": list(family.mean), "image_std": list(family.std)}
    video = Qwen3VLVideoProcessor if name == "qwen3-vl" else Qwen2VLVideoProcessor
    tiny_model(name).save_pretrained(folder)
    Qwen2VLImageProcessor(**own, size={"shortest_edge": 3136, "longest_edge": 40_000}).save_pretrained(folder)
    video(**own).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_a_checkpoint_passes(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save(name, tmp_path)
    assert parity.main([str(folder), "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("pass  ") == len(printed.splitlines()) >= 11
    assert "plan of a picture 97 wide x 331 high" in printed
    assert "logits with our positions and rotary" in printed


def test_what_differs_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save("qwen2-vl", tmp_path)
    monkeypatch.setattr("mrope.Rotary.cos_sin", lambda self, ids: (torch.zeros(*ids.shape[1:], 64),) * 2)
    monkeypatch.setattr("mrope.GridLayout._fill", lambda self, block, span, start: block.fill(start) or start + 1)
    assert parity.main([str(folder), "--device", "cpu", "--json"]) == 1
    passed = {result["name"]: result["passed"] for result in json.loads(capsys.readouterr().out)}
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
def test_what_is_no_checkpoint(
    config: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert parity.main([str(tmp_path), "--device", "cpu"]) == 2
    captured = capsys.readouterr()
    assert not captured.out
    assert captured.err.startswith("mrope parity: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_a_wrong_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2_vl"}')
    assert parity.main([str(tmp_path), "--device", "tpu"]) == 2
    assert "device is 'tpu'" in capsys.readouterr().err
