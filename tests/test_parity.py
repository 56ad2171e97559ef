"""The parity command, on tiny random checkpoints of every family that are saved here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from every_family import config_of
from safetensors.torch import load_file, save_file
from test_processor import ALL, MODELS, small, tokenizer
from tiny_models import FAMILIES
from transformers.utils.logging import disable_progress_bar
from typer.testing import CliRunner, Result

import mrope
from mrope.cli import app
from mrope.hf import build_vlm, processor
from mrope.hf.checkup.subject import read_subject
from mrope.hf.parity import Check, check

this_version = pytest.mark.skipif(
    not transformers.__version__.startswith("5.24."), reason="what the library itself computes is compared on 5.24 only"
)
pytestmark = pytest.mark.filterwarnings("ignore:__array:DeprecationWarning")  # transformers hands tensors to numpy
TYPES = {**MODELS, "neomme": "neomme"}
CLIPS = "positions of a clip that lasts longer than it is wide"
CLIP_NOTES = {
    # 4 words, a word before the clip, 12 steps that are 2 rows high and 4 columns wide: the next word is at 5 + 12, and
    # at 5 + 4 by the library's rule. Ernie's model merges two steps.
    **dict.fromkeys(("qwen2-vl", "qwen2.5-vl"), "token 101 of row 0 at (9, 9, 9), trained at (17, 17, 17)"),
    "ernie4.5-vl": "token 53 of row 0 at (9, 9, 9), trained at (11, 11, 11)",
}
WRONG = {
    # Its angles are no rotation, and each logit shows it.
    "hunyuan-vl": {"rotary cos and sin", "logits of pictures", "logits of the processor's prompt with pictures"},
    # It leaves the token types out, and does not take clips.
    "cosmos3-edge": {"a prompt with pictures", "a prompt with a clip"},
}
"""Family -> the checks that fail, since transformers 5.24 is wrong there."""


def save(name: str, folder: Path) -> Path:
    """A checkpoint of a family: a small model with random weights, its processor, and a tokenizer of a few words."""
    disable_progress_bar()
    config = config_of(TYPES[name])
    read_subject(config).model.save_pretrained(folder)
    patch = getattr(config, "vision_config", config).patch_size
    family = replace(small(name), patch=patch, image_pixels=None)
    processor(family, tokenizer=tokenizer(name)).save_pretrained(folder)
    return folder


def edit(folder: Path, file: str, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the JSON of a file of a folder."""
    stated = json.loads((folder / file).read_text())
    change(stated)
    (folder / file).write_text(json.dumps(stated))


def failed(folder: Path) -> dict[str, str]:
    """The checks that fail, each with what it says."""
    return {one.name: one.detail for one in check(folder, device="cpu") if not one.passed}


def by_name(folder: Path) -> dict[str, Check]:
    return {one.name: one for one in check(folder, device="cpu")}


def parity(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["parity", str(folder), "--device", "cpu", *options])


# ------------------------------------------------------------------------------------------------------ every family


@this_version
@pytest.mark.parametrize("name", [name for name in ALL if name in TYPES])
def test_a_checkpoint_of_any_family_passes_but_for_known_faults_of_the_library(name: str, tmp_path: Path) -> None:
    checks, family = by_name(save(name, tmp_path)), mrope.family(name)
    assert {name for name, one in checks.items() if not one.passed} == WRONG.get(name, set())
    expected = {"configuration", "weights", "patches of pictures", "a prompt with pictures", "limits of pictures"}
    expected |= {"split as released", "colours of pictures as released"}
    expected.add("positions of the processor's prompt with pictures")
    if name != "neomme":  # an encoder, whose processor makes the ids
        layer = " of full_attention" if name == "cohere-compass" else ""
        expected |= {f"rotary cos and sin{layer}", "positions of pictures", "logits of pictures", "8 generated tokens"}
    if family.sampling is not None:
        expected |= {"patches of a clip", "a prompt with a clip", "limits of clips", "colours of clips as released"}
    if family.sampling is not None and name != "minicpm-v4.7":  # whose clips are pictures
        expected |= {CLIPS, "positions of a short clip", "logits of a short clip"}
    assert expected <= set(checks)
    noted = {name for name, one in checks.items() if "transformers' own" in one.detail}
    row_by_row = "positions of the processor's prompt with pictures"  # where the library numbers through the batch
    assert noted == ({CLIPS} if name in CLIP_NOTES else {row_by_row} if name == "hunyuan-vl" else set())
    assert CLIP_NOTES.get(name, "") in checks.get(CLIPS, Check("", True, "")).detail


@this_version
@pytest.mark.parametrize("name", ["qwen2.5-vl", "glm4v", "minicpm-v4.7", "neomme"])
def test_without_a_tokenizer_pictures_and_clips_are_compared_alone(name: str, tmp_path: Path) -> None:
    save(name, tmp_path)
    for file in tmp_path.glob("tokenizer*"):
        file.unlink()
    checks = by_name(tmp_path)
    assert all(one.passed for one in checks.values())
    assert "patches of pictures" in checks
    assert ("patches of a clip" in checks) == (mrope.family(name).sampling is not None)
    assert not [name for name in checks if "prompt" in name]
    assert ("positions of pictures" in checks) == (name != "neomme")


@this_version
@pytest.mark.parametrize("name", ["qwen2.5-omni", "qwen3-omni"])
def test_of_a_whole_omni_checkpoint_the_thinker_is_compared(name: str, tmp_path: Path) -> None:
    save(name, tmp_path)
    weights = tmp_path / "model.safetensors"
    save_file({f"thinker.{key}": value for key, value in load_file(weights).items()}, weights, {"format": "pt"})
    stem = "Qwen2_5Omni" if name == "qwen2.5-omni" else "Qwen3OmniMoe"
    thinker = json.loads((tmp_path / "config.json").read_text())
    getattr(transformers, f"{stem}Config")(thinker_config=thinker, enable_audio_output=False).save_pretrained(tmp_path)
    checks = by_name(tmp_path)
    assert all(one.passed for one in checks.values())
    assert checks["weights"].detail == "all there"


# ------------------------------------------------------------------------------------------------ what was spoiled


def section(stated: dict[str, Any]) -> None:
    rope = stated["text_config"]["rope_parameters"]
    rope["mrope_section"] = [24, 16, 24]  # of 16, 24, 24


def base(stated: dict[str, Any]) -> None:
    del stated["text_config"]["rope_parameters"]["rope_theta"]


def rate(stated: dict[str, Any]) -> None:
    stated["vision_config"]["tokens_per_second"] = 4


def no_rate(stated: dict[str, Any]) -> None:
    del stated["vision_config"]["tokens_per_second"]  # 4 by the class default of transformers, 2 as released


def limits(stated: dict[str, Any]) -> None:
    del stated["image_processor"]["size"]


def colours(stated: dict[str, Any]) -> None:
    stated["image_processor"]["image_mean"] = [0.5, 0.5, 0.5]


def patches(stated: dict[str, Any]) -> None:
    stated["image_processor"]["patch_size"] = 14  # of 16


def raw_colours(stated: dict[str, Any]) -> None:
    stated["image_processor"]["do_normalize"] = False


@this_version
@pytest.mark.parametrize(
    ("name", "file", "spoil", "check", "seen"),
    [
        ("qwen2-vl", "config.json", section, "split as released", "24, 16, 24.*; .*16, 24, 24.* was released"),
        ("qwen3-vl", "config.json", base, "rotary parameters", "base 5e[+]06; transformers reads .*base=500000"),
        ("qwen2.5-vl", "config.json", rate, "ids a second as released", "4.*; 2.* was released"),
        # The second of 12 steps of a quarter second is at half a position, which is cut off, and not at 1.
        ("qwen2.5-vl", "config.json", no_rate, CLIPS, "row 0, token 13, axis t: 5 against 6, plugged"),
        ("qwen3-vl", "processor_config.json", limits, "limits of pictures", "65536 to 16777216 .*; 3136 to 1003520"),
        (
            "qwen2-vl",
            "processor_config.json",
            colours,
            "colours of pictures as released",
            "0.5, 0.5, 0.5.*; .*0.48.* was released",
        ),
        ("qwen2.5-vl", "processor_config.json", patches, "configuration", "patch is 16 in .*, but 14 in"),
        ("glm4v", "processor_config.json", patches, "configuration", "patch is 16 in .*, but 14 in"),
        (
            "paddleocr-vl",
            "processor_config.json",
            raw_colours,
            "patches of pictures",
            "do_normalize is False; only True",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_spoiled_folder_fails_in_its_line(
    name: str, file: str, spoil: Callable[[dict[str, Any]], None], check: str, seen: str, tmp_path: Path
) -> None:
    edit(save(name, tmp_path), file, spoil)
    found = failed(tmp_path)
    assert re.search(seen, found.pop(check))
    if "released" in check or check == "rotary parameters":  # two readers of one folder agree on the rest
        assert not found


def test_a_weight_that_is_missing(tmp_path: Path) -> None:
    weights = save("qwen2-vl", tmp_path) / "model.safetensors"
    kept = {name: value for name, value in load_file(weights).items() if "layers.1.self_attn.q_proj" not in name}
    save_file(kept, weights, {"format": "pt"})
    found = failed(tmp_path)
    assert found == {"weights": "model.language_model.layers.1.self_attn.q_proj.bias is missing, one of 2"}


def respoil(folder: Path, ending: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Put another weight in the place of the one of the language model whose name ends so."""
    stored = load_file(folder / "model.safetensors")
    (name,) = [name for name in stored if name.endswith(ending) and "visual" not in name]
    save_file({**stored, name: change(stored[name])}, folder / "model.safetensors", {"format": "pt"})


def with_nan(weight: torch.Tensor) -> torch.Tensor:
    weight[5, 3] = torch.nan
    return weight


@this_version
def test_weights_that_are_not_finite(tmp_path: Path) -> None:
    respoil(save("qwen2.5-vl", tmp_path), "layers.1.mlp.down_proj.weight", with_nan)
    found = failed(tmp_path)
    assert found.pop("weights").endswith("layers.1.mlp.down_proj.weight is not finite, one of 1")
    assert "logits of pictures" in found
    assert all(check.startswith("logits") and "nan against nan" in detail for check, detail in found.items())


def test_a_weight_of_another_shape(tmp_path: Path) -> None:
    respoil(save("qwen2.5-vl", tmp_path), "model.norm.weight", lambda weight: torch.ones(7))
    width = config_of("qwen2_5_vl").text_config.hidden_size
    seen = failed(tmp_path)["weights"]
    assert seen.endswith(f"norm.weight has shape (7,), and ({width},) in the model, one of 1")


def test_weights_that_are_not_there_fail_behind_what_the_files_say(tmp_path: Path) -> None:
    (save("qwen2.5-vl", tmp_path) / "model.safetensors").unlink()
    checks = by_name(tmp_path)
    assert checks["patches of pictures"].passed
    assert "no file named model.safetensors" in checks["weights"].detail
    assert list(checks)[-1] == "weights"


def test_a_placeholder_that_the_tokenizer_has_at_another_id(tmp_path: Path) -> None:
    own = read_subject(save("qwen2.5-vl", tmp_path)).processor
    right = own.tokenizer.convert_tokens_to_ids(own.image_token)
    assert by_name(tmp_path)["the word of images"].detail == f"{own.image_token} is {right}"
    edit(tmp_path, "config.json", lambda stated: stated.update(image_token_id=right - 20))
    found = failed(tmp_path)
    assert found["the word of images"] == f"config {right - 20}, tokenizer {right}"
    assert "mm_token_type_ids say 1" in found["positions of the processor's prompt with pictures"]


def test_a_number_that_is_text_is_refused(tmp_path: Path) -> None:
    edit(save("qwen2.5-vl", tmp_path), "config.json", lambda stated: stated["vision_config"].update(patch_size="14"))
    with pytest.raises(TypeError, match="'14'"):
        mrope.Family.from_config(json.loads((tmp_path / "config.json").read_text()))


@pytest.mark.parametrize("name", FAMILIES)
def test_what_differs_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(name, tmp_path)
    zeros = lambda self, ids, length=None: (torch.zeros(*ids.shape[1:], 64),) * 2  # noqa: E731
    monkeypatch.setattr("mrope.Rotary.cos_sin", zeros)
    result = parity(folder, "--json")
    assert result.exit_code == 1
    wrong = {check["name"] for check in json.loads(result.stdout) if not check["passed"]}
    assert {"rotary cos and sin", "logits of pictures"} <= wrong
    assert not {name for name in wrong if "positions" in name or "patches" in name or "prompt with" in name[:14]}
    monkeypatch.undo()
    all_at_one = lambda ids, sizes, start: ids.fill(start) or (start + 1, start + 1, 1)  # noqa: E731
    monkeypatch.setattr("mrope.layouts.grid.write_still", all_at_one)
    wrong = set(failed(folder))
    assert {"positions of pictures", "logits of pictures"} & wrong
    assert "rotary cos and sin" not in wrong


# ---------------------------------------------------------------------------------------------------- the commands


@pytest.mark.parametrize("name", FAMILIES)
def test_the_command_prints_a_table(name: str, tmp_path: Path) -> None:
    result = parity(save(name, tmp_path))
    assert result.exit_code == 0, result.output
    head, *printed = result.stdout.splitlines()
    assert head.split() == ["check", "detail"]
    assert len(printed) >= 21
    assert all(" pass " in line for line in printed)


@this_version
def test_a_deep_look_by_the_command_runs_plug_processor_and_doctor(tmp_path: Path) -> None:
    folder = save("glm4v", tmp_path)
    deep = CliRunner().invoke(app, ["doctor", str(folder), "--deep", "--json"])
    report = json.loads(deep.stdout)
    assert "parity" in report["checked"]
    assert not [one for one in report["findings"] if one["check"] == "parity"]
    edit(folder, "processor_config.json", colours)
    edit(folder, "config.json", lambda stated: stated["text_config"].update(partial_rotary_factor=0.25))
    deep = CliRunner().invoke(app, ["doctor", str(folder), "--deep"])
    assert deep.exit_code == 1
    assert "wrong parity: colours of pictures as released" in deep.stdout


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


def test_a_built_model_is_refused_by_name(tmp_path: Path) -> None:
    text = {"vocab_size": 512, "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    config = transformers.Qwen3Config(**text, num_hidden_layers=1, intermediate_size=16)  # pyright: ignore
    encoder = timm.create_model("vit_tiny_patch16_224", depth=1)
    build_vlm(encoder, config, family="qwen3-vl", image_token_id=500).save_pretrained(tmp_path)
    result = parity(tmp_path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "is of `build_vlm`, whose positions and rotary are ours" in result.stderr


def test_a_wrong_device_or_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2_vl"}')
    result = parity(tmp_path, "--device", "tpu")
    assert result.exit_code == 2
    assert "device is 'tpu'" in result.stderr
    result = parity(tmp_path / "none")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "none is not a folder; expected a checkpoint folder with config.json" in result.stderr
