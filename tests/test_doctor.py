"""The doctor: what the installed library gets wrong is found, and what is right or was put right is not."""

from __future__ import annotations

import copy
import inspect
import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
import transformers
from every_family import MODEL_TYPES, OMNI, config_of, installed
from plug_cases import TYPES, by_name, model_of, pictures
from test_parity import save
from tiny_models import Sample, sample, tiny_config
from typer.testing import CliRunner, Result

import mrope
from mrope import Image, Span, Text
from mrope.cli import app
from mrope.hf import Finding, Report, doctor, plug, read_positions
from mrope.hf.checkup.doctor import CHECKS, examine_batch
from mrope.hf.checkup.subject import Subject, model_class, read_subject
from mrope.layouts import GridLayout

this_version = pytest.mark.skipif(
    not transformers.__version__.startswith("5.24."), reason="the faults are those of transformers 5.24"
)
GLM = {"glm4v", "glm46v", "glmga", "glm4v_moe", "glm_ocr"}
STAMPED = {"qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen4_exp", "cosmos3_omni", "cohere_compass"}
HYBRID = {"qwen3_5", "qwen3_5_moe", "qwen4_exp", "minicpmv4_7"}
ALL = set(MODEL_TYPES) - {"neomme"}  # whose processor makes the ids

# Check -> the model types in which the facts about transformers 5.24, read and run by hand, have the fault.
FAULTS: dict[str, set[str]] = {
    "positions": {"qwen2_vl", "qwen2_5_vl", "paddleocr_vl", "ernie4_5_vl_moe"},
    "decode": ALL - {"hunyuan_vl", "glm_image"},
    "rotation": {"hunyuan_vl"},
    "batch-order": {"hunyuan_vl"},
    "picture-and-clip": GLM,
    "packing": ALL - (STAMPED - HYBRID) - {"qwen3_omni_moe_thinker"},
    "token-types": ALL - {"cosmos3_edge", "glm_image", *OMNI},
    "next-turn": ALL - {"glm_image"},
    "processor": {"cosmos3_edge"},
    "clip-prompt": STAMPED,
    "odd-prompts": {*OMNI},
    "silent-clips": {*OMNI},
    "sound-lengths": {*OMNI},
    "adjacent-pictures": ALL - {"glm_image", "minicpmv4_7", *OMNI},
    "truncated-picture": ALL - {"hunyuan_vl"},
    "empty-row": ALL - {"glm_image", "minicpmv4_7"},
    "stale-offset": ALL - {"hunyuan_vl"},
    "generated-pictures": {"glm_image"},
    "clip-budget": GLM | STAMPED,
    "counts": {"glmga"},
}


@cache
def report_of(model_type: str) -> Report:
    return doctor(config_of(model_type))


def names(report: Report) -> set[str]:
    return {finding.check for finding in report.findings}


def found(report: Report, check: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.check == check]


@this_version
@pytest.mark.parametrize("check", FAULTS)
def test_a_fault_of_the_library_is_found_where_it_is_and_nowhere_else(check: str) -> None:
    assert {name for name in MODEL_TYPES if check in names(report_of(name))} == FAULTS[check]


@this_version
def test_the_numbers_of_findings() -> None:
    clip = found(report_of("qwen2_vl"), "positions")[0]
    # 4 words, a vision start, 12 frames of 2 x 4 cells from 5 on: t up to 16, h and w up to 8
    assert clip.level == "wrong"
    assert clip.seen == "token 101 of 105 is at (9, 9, 9)"
    assert clip.right == "(17, 17, 17)"
    assert "clip that lasts longer than it is wide" in clip.rule
    ended = found(report_of("qwen3_vl"), "ends-on-picture")[0]
    assert (ended.seen, ended.right) == ("generate puts it at (6, 7, 9)", "(9, 9, 9)")
    # qwen4_exp goes on without a word
    assert [each.level for each in found(report_of("qwen4_exp"), "decode")] == ["wrong"]
    assert [each.level for each in found(report_of("qwen3_5"), "decode")] == ["risky"]
    assert found(report_of("paddleocr_vl"), "positions")[0].level == "risky"  # a rule that is unconfirmed
    assert "(5, B, N)" in found(report_of("hunyuan_vl"), "packing")[0].seen
    assert "plans" not in found(report_of("glm_image"), "generated-pictures")[0].seen
    assert "49 ids" in found(report_of("glm_image"), "generated-pictures")[0].seen  # 2 x 24 + 1


@this_version
def test_calls_that_processors_do_not_take() -> None:
    calls = {"qwen2_vl": ("sample_frames", "get_num_of_video_patches"), "qwen3_vl": ("one frame", "frames_indices")}
    for model_type, words in calls.items():
        rules = [each.rule for each in found(report_of(model_type), "clip-calls")]
        assert len(rules) == len(words)
        assert all(any(word in rule for rule in rules) for word in words)


@this_version
@pytest.mark.parametrize(
    ("model_type", "checks"),
    [
        ("glm4v", {"model", "rotary"}),
        ("glm46v", {"model", "rotary"}),
        ("glm_image", {"model", "rotary"}),
        ("glm4v_moe", {"model", "rotary"}),
        ("cohere_compass", {"model"}),
        ("hunyuan_vl", {"model"}),
        ("qwen4_exp", {"model", "rotary"}),
        ("qwen3_omni_moe_thinker", {"model", "rotary", "words", "ids-per-second"}),
        ("qwen2_5_omni_thinker", {"words"}),
        ("qwen2_5_vl", {"ids-per-second"}),
        ("qwen2_vl", set()),
        ("qwen3_vl", set()),
        ("qwen3_5", set()),
        ("glm_ocr", set()),
        ("hy_v4_vl", set()),
        ("neomme", set()),
    ],
)
def test_class_defaults_that_cannot_run_or_are_not_those_of_training(model_type: str, checks: set[str]) -> None:
    report = doctor(transformers.CONFIG_MAPPING[model_type])
    assert names(report) & {"model", "rotary", "words", "ids-per-second"} == checks
    assert report.subject.endswith("with the defaults of its class")


# ---------------------------------------------------------------------------------------------- what was put right


@by_name
def test_a_plugged_model_is_clean(name: str) -> None:
    """What is left is not the model's: classes of processors, and ids (B, N) in packed rows."""
    with plug(model_of(name)) as model:
        report = doctor(model)
    assert not report.skipped
    assert names(report) <= {"packing", "clip-prompt", "clip-budget", "clip-calls"}


@this_version
@pytest.mark.parametrize("model_type", [name for name in MODEL_TYPES if name != "neomme" and installed(name)])
def test_a_plugged_model_of_each_family_is_clean(model_type: str) -> None:
    """GLM-V's forward takes no picture beside a clip, and the rotary of HunYuan is plugged when it is asked for."""
    left = {"packing", "clip-prompt", "clip-budget", "clip-calls", "processor", "counts", "picture-and-clip"}
    with plug(read_subject(config_of(model_type)).model, rotary=model_type == "hunyuan_vl") as model:
        report = doctor(model)
    assert names(report) <= left
    assert not report.skipped


def right_index(base: Any, *args: Any, **inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A get_rope_index as it should be."""
    ids = read_positions({name: value for name, value in inputs.items() if name != "use_audio_in_video"}, base.config)
    return ids, torch.zeros(ids.shape[1], 1, dtype=torch.int64)


INDEX = {"positions", "batch-order", "adjacent-pictures", "truncated-picture", "empty-row", "odd-prompts"}


@pytest.mark.parametrize("model_type", [name for name in MODEL_TYPES if name != "neomme" and installed(name)])
def test_an_index_that_was_put_right_is_clean(model_type: str) -> None:
    model = copy.deepcopy(read_subject(config_of(model_type)).model)
    owner = next(
        each for each in model.modules() if hasattr(each, "get_rope_index") and hasattr(each, "language_model")
    )
    owner.get_rope_index = MethodType(right_index, owner)
    report = doctor(model)
    assert not names(report) & {*INDEX, "silent-clips"}
    assert {*INDEX, "silent-clips"} <= set(report.checked)


@this_version
def test_a_rotary_that_was_put_right_is_clean() -> None:
    model = read_subject(config_of("hunyuan_vl")).model
    module = model.model.language_model.rotary_emb
    rotary = mrope.Rotary.from_config(model.config)

    def tables(x: Any, position_ids: Any) -> tuple[torch.Tensor, ...]:
        return tuple(torch.cat([table, table], dim=-1) for table in rotary.cos_sin(position_ids))

    assert "rotation" in names(doctor(model))
    module.forward = tables
    report = doctor(model)
    assert "rotation" not in names(report)
    assert "rotation" in report.checked


@this_version
def test_a_picture_beside_a_clip_that_were_put_right_are_clean() -> None:
    model = read_subject(config_of("glm4v")).model

    def masks(base: Any, input_ids: Any, inputs_embeds: Any, **features: Any) -> tuple[torch.Tensor, torch.Tensor]:
        config = base.config
        inside = (input_ids == config.video_start_token_id).cumsum(-1) > (
            input_ids == config.video_end_token_id
        ).cumsum(-1)
        shown = input_ids == config.image_token_id
        return (shown & ~inside)[..., None], (shown & inside)[..., None]

    assert "picture-and-clip" in names(doctor(model))
    model.model.get_placeholder_mask = MethodType(masks, model.model)
    report = doctor(model)
    assert "picture-and-clip" not in names(report)
    assert "picture-and-clip" in report.checked


def test_a_given_model_is_left_as_it_was() -> None:
    model = copy.deepcopy(model_of("qwen2-vl"))
    model.train()
    model.model.rope_deltas = torch.tensor([[7]])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    doctor(model)
    assert model.training
    assert model.model.language_model.training
    assert torch.equal(model.model.rope_deltas, torch.tensor([[7]]))
    assert not model.model.language_model._forward_pre_hooks
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# -------------------------------------------------------------------------------------------- configurations, files


def qwen2_vl(**rope: Any) -> dict[str, Any]:
    """The JSON of a configuration with these rope parameters."""
    config = tiny_config("qwen2-vl").to_dict()
    config["text_config"]["rope_parameters"] |= rope
    return config


def stated(target: Any) -> list[Finding]:
    """What is found in what a configuration and its files state, without a model."""
    subject = read_subject(target)
    checks = ("rotary", "words", "ids-per-second", "extension", "patches", "budget")
    return [finding for check in CHECKS if check.name in checks for finding in check.run(subject)]


def test_a_split_that_does_not_add_up() -> None:
    report = doctor(qwen2_vl(mrope_section=[16, 24, 16]))
    finding = found(report, "rotary")[0]
    assert finding.level == "wrong"
    assert "(16, 24, 16) sums to 56; rotary_dim 128 needs 64" in finding.seen
    assert "(16, 24, 24)" in finding.right
    assert not report.ok
    assert stated(qwen2_vl()) == []


def test_ids_per_second_that_are_not_those_of_training() -> None:
    config = tiny_config("qwen2.5-vl")
    assert stated(config) == []
    config.vision_config.tokens_per_second = 4
    (finding,) = stated(config)
    assert finding.check == "ids-per-second"
    assert (finding.seen, finding.right) == ("tokens_per_second is 4", "2, as released for qwen2.5-vl")


def test_an_extension_that_starves_an_axis() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    (finding,) = stated(qwen2_vl(**yarn))
    assert (finding.check, finding.level) == ("extension", "risky")
    assert "all 24 pairs of w turn 4 times slower, and none of t" in finding.seen
    assert stated(qwen2_vl(rope_type="linear", factor=4.0)) == []  # all axes alike


def written(folder: Path, **processor: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(qwen2_vl()))
    (folder / "preprocessor_config.json").write_text(json.dumps({"patch_size": 14, "merge_size": 2, **processor}))
    return folder


@pytest.mark.parametrize(
    ("processor", "check", "seen"),
    [
        ({"max_pixels": 1280}, "budget", "max_pixels in preprocessor_config.json is 1280: 1.63 tokens"),
        ({"size": {"shortest_edge": 56, "longest_edge": 1260}}, "budget", "size.longest_edge in .* is 1260: 1.61"),
        ({"min_pixels": 200_000, "max_pixels": 100_000}, "budget", "min_pixels in .* is 200000, max_pixels 100000"),
        (
            {"max_pixels": 1_003_520, "size": {"shortest_edge": 3136, "longest_edge": 12_845_056}},
            "budget",
            "max_pixels 1003520 and size.longest_edge 12845056",
        ),
        ({"patch_size": 16}, "patches", "patch_size in preprocessor_config.json is 16"),
        ({"merge_size": 4}, "patches", "merge_size in preprocessor_config.json is 4"),
        ({"size": {"shortest_edge": 3136, "longest_edge": 1_003_520}}, None, None),
        ({"min_pixels": 3136, "max_pixels": 12_845_056}, None, None),
    ],
    ids=str,
)
def test_budgets_in_the_wrong_unit_and_other_patches(
    processor: dict[str, Any], check: str | None, seen: str | None, tmp_path: Path
) -> None:
    findings = stated(written(tmp_path, **processor))
    assert [finding.check for finding in findings] == ([] if check is None else [check])
    assert seen is None or re.search(seen, findings[0].seen)


def test_what_may_be_examined(tmp_path: Path) -> None:
    config = tiny_config("qwen2-vl")
    file = tmp_path / "qwen.json"
    file.write_text(json.dumps(config.to_dict()))
    whole = names(doctor(config))
    for target in (file, config.to_dict(), model_class(config)(config)):
        assert names(doctor(target)) == whole
    for target in (transformers.Qwen2VLModel, "Qwen2VLModel"):
        assert read_subject(target).name == "Qwen2VLModel with the defaults of its class"
    for target in (transformers.Qwen2VLConfig, "qwen2_vl"):
        assert read_subject(target).name == "Qwen2VLConfig with the defaults of its class"
    assert read_subject(transformers.Qwen2_5OmniConfig).config.model_type == "qwen2_5_omni_thinker"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_thing", "target is 'no_such_thing'; expected a folder, a JSON file, or the name of a class"),
        ({"model_type": "nothing"}, "model_type in the configuration is 'nothing'"),
        ({"model_type": "llama"}, "model_type is 'llama', which is no family of ours"),
        (3, "target is a int; expected a checkpoint folder"),
        (dict, "target is the class dict; expected one of a model or configuration"),
    ],
    ids=str,
)
def test_what_cannot_be_examined(target: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        doctor(target)


def test_deep_needs_a_folder() -> None:
    with pytest.raises(ValueError, match="deep is True for this Qwen2VLConfig; expected a checkpoint folder"):
        doctor(tiny_config("qwen2-vl"), deep=True)


# --------------------------------------------------------------------------------------------------------- batches


@cache
def subject_of(name: str) -> Subject:
    return read_subject(tiny_config(name))


def examined(inputs: dict[str, Any], name: str = "qwen2-vl") -> tuple[Finding, ...]:
    """What is found in a batch."""
    with torch.no_grad():
        report = examine_batch(subject_of(name), inputs)
    assert not [why for _, why in report.skipped if "placeholders" not in why]
    return report.findings


def made(rows: Sequence[Sequence[Span]] | None = None, name: str = "qwen2-vl") -> dict[str, Any]:
    each: Sample = sample(name, pictures(name) if rows is None else rows)
    return dict(each.inputs)


takes_types = TYPES in inspect.signature(transformers.Qwen2VLForConditionalGeneration.forward).parameters
ROW = [[Text(4), Image((1, 4, 8)), Text(3), Image((1, 8, 4)), Text(2)]]


@by_name
def test_a_batch_that_is_right(name: str) -> None:
    inputs = made(name=name)
    assert examined(inputs, name) == ()
    ids = read_positions(inputs, tiny_config(name))
    text = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    for given in (ids, torch.cat([text[None], ids])):
        assert examined({**inputs, "position_ids": given}, name) == ()


def without_types(batch: dict[str, Any]) -> None:
    del batch[TYPES]


def without_a_grid(batch: dict[str, Any]) -> None:
    batch["image_grid_thw"] = batch["image_grid_thw"][:1]


def in_another_order(batch: dict[str, Any]) -> None:
    batch["image_grid_thw"] = torch.tensor([[1, 8, 8], [1, 8, 4]])


def with_a_stale_offset(batch: dict[str, Any]) -> None:
    batch["rope_deltas"] = torch.tensor([[0]])


@pytest.mark.parametrize(
    ("spoil", "check", "seen"),
    [
        pytest.param(
            without_types,
            "token-types",
            "image_grid_thw without mm_token_type_ids",
            marks=pytest.mark.skipif(not takes_types, reason="models take token types from transformers 5.3 on"),
        ),
        (without_a_grid, "placeholders", "row 0 has 8 image tokens in a run, 8 of them beyond what came"),
        (
            in_another_order,
            "placeholders",
            "row 0 has room for 8 image tokens where the next image grid 1x8x8 takes 16",
        ),
        (with_a_stale_offset, "stale-offset", "rope_deltas are [0]"),
    ],
)
def test_a_batch_that_is_wrong(spoil: Callable[[dict[str, Any]], None], check: str, seen: str) -> None:
    batch = made(ROW)
    spoil(batch)
    finding, *others = examined(batch)
    assert not others
    assert (finding.check, finding.level) == (check, "wrong")
    assert seen in finding.seen


def test_an_offset_of_these_rows_is_clean() -> None:
    # 9 words, 4 + 4 positions for two pictures of 8 tokens each
    assert examined({**made(ROW), "rope_deltas": torch.tensor([[17 - 25]])}) == ()


def test_position_ids_by_the_rule_of_transformers() -> None:
    rows = [[Text(4), mrope.Video((9, 4, 6)), Text(3)]]
    inputs = made(rows)
    right = mrope.family("qwen2-vl").positions(rows[0])
    old = mrope.family("qwen2-vl").positions(rows[0], layout="transformers-5.24")
    assert examined({**inputs, "position_ids": right.ids[:, None]}) == ()
    finding = examined({**inputs, "position_ids": old.ids[:, None]})[0]
    assert finding.check == "positions"
    # 4 words, 54 tokens of the clip; the next word behind 9 frames from 4 on, or behind 3 columns
    assert finding.seen == "token 58 of row 0 is at (7, 7, 7), by the rule of transformers 5.24"
    assert finding.right == "(13, 13, 13)"
    swapped = right.ids[[0, 2, 1]][:, None]
    finding = examined({**inputs, "position_ids": swapped})[0]
    assert "5.24" not in finding.seen
    finding = examined({**inputs, "position_ids": right.ids[:2, None]})[0]
    assert finding.seen == "shape (2, 1, 61) for tokens (1, 61)"


def packed(first: list[Span], second: list[Span]) -> tuple[dict[str, Any], Any]:
    inputs = made([[*first, *second]])
    layout = GridLayout()
    return inputs, mrope.pack([layout(first), layout(second)])


def test_packed_rows_that_attend_across_documents() -> None:
    inputs, row = packed([Text(4), Image((1, 4, 8)), Text(3)], [Text(2), Image((1, 8, 4)), Text(5)])
    ids = row.ids[:, None]
    text = torch.cat([torch.arange(15), torch.arange(15)])[None, None]
    findings = examined({**inputs, "position_ids": ids})
    assert [each.check for each in findings] == ["packing"]
    assert "row 0 begins again at [15]" in findings[0].seen
    assert examined({**inputs, "position_ids": torch.cat([text, ids])}) == ()
    bounds = torch.tensor([0, 15, 30])
    assert examined({**inputs, "position_ids": ids, "cu_seq_lens_q": bounds}) == ()
    assert row.cu_seqlens.tolist() == bounds.tolist()
    wrong = examined({**inputs, "position_ids": ids, "cu_seq_lens_q": torch.tensor([0, 12, 30])})
    assert "packing" in [each.check for each in wrong]
    (alone,) = examined({**inputs, "cu_seq_lens_q": bounds})
    assert alone.right == "position_ids that begin again at [15]"


def test_packed_text_with_plain_ids() -> None:
    inputs = made([[Text(9)]])
    ids = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    assert [each.check for each in examined({**inputs, "position_ids": ids})] == ["packing"]
    if transformers.__version__.startswith("5.24."):
        assert examined({**made([[Text(9)]], "qwen3-vl"), "position_ids": ids}, "qwen3-vl") == ()


@pytest.mark.parametrize(
    ("name", "boxes", "seen"),
    [
        ("qwen2-vl", [[100, 200, 900, 1000]], None),
        ("qwen2-vl", [[100, 200, 1100, 1000]], "passes 1000 wide"),
        ("qwen2-vl", [[0.1, 0.2, 0.5, 0.9]], "shares of a side"),
        ("qwen2-vl", [[500, 200, 100, 300]], "lies before the first"),
        # pictures of 4 x 8 and 8 x 4 patches of 14: at most 112 wide and high
        ("qwen2.5-vl", [[10, 20, 110, 100]], None),
        ("qwen2.5-vl", [[10, 20, 500, 100]], "passes 112 wide"),
        ("qwen2.5-vl", [[0.1, 0.2, 0.5, 0.9]], "shares of a side"),
    ],
)
def test_boxes_in_another_convention(name: str, boxes: list[list[float]], seen: str | None) -> None:
    findings = examined({**made(ROW, name), "boxes": torch.tensor(boxes)}, name)
    assert [each.check for each in findings] == ([] if seen is None else ["boxes"])
    assert seen is None or seen in findings[0].seen


def test_two_resizers_in_series() -> None:
    # 1000 high: 31.25 x 32 is 31 x 32; by way of 28 it is 36 x 28 = 1008, which is 31.5 x 32 and goes to 32 x 32
    once, twice = (1, 62, 30), (1, 64, 30)
    assert mrope.family("qwen3-vl").plan((1000, 480)).grid == once
    sizes = {"image_sizes": torch.tensor([[1000, 480]])}
    assert examined({**made([[Text(2), Image(once), Text(2)]], "qwen3-vl"), **sizes}, "qwen3-vl") == ()
    (finding,) = examined({**made([[Text(2), Image(twice), Text(2)]], "qwen3-vl"), **sizes}, "qwen3-vl")
    assert finding.check == "two-resizers"
    assert "first resized to multiples of 28 (1008 x 476), then of 32" in finding.seen
    assert finding.right == f"grid {once}"


# ----------------------------------------------------------------------------------------------- the command line


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *words])


def test_the_command_line(tmp_path: Path) -> None:
    written(tmp_path, max_pixels=1280)
    result = run(str(tmp_path))
    assert result.exit_code == 1
    head, *lines = result.stdout.splitlines()
    assert head.startswith(f"{tmp_path}: ")
    assert any(line.startswith("wrong budget: max_pixels is an area in pixels") for line in lines)
    at = next(number for number, line in enumerate(lines) if line.startswith("wrong budget"))
    assert lines[at + 1].startswith("  seen: max_pixels in preprocessor_config.json is 1280")
    assert lines[at + 2].startswith("  fix: ")
    printed = json.loads(run(str(tmp_path), "--json").stdout)
    assert printed["ok"] is False
    assert {"check", "level", "rule", "seen", "right", "fix"} == set(printed["findings"][0])


@pytest.mark.skipif(not installed("neomme"), reason="this version of transformers has no NeoMME")
def test_the_exit_code_is_0_where_nothing_is_wrong() -> None:
    result = run("neomme")
    assert result.exit_code == 0, result.output
    assert "0 wrong" in result.stdout
    assert "not checked: positions, " in result.stdout
    assert result.stdout.count("has no get_rope_index") == 1  # one reason, told once


def test_a_saved_batch(tmp_path: Path) -> None:
    written(tmp_path)
    file = tmp_path / "batch.pt"
    batch = made(ROW)
    torch.save(batch, file)
    assert "stale" not in run(str(tmp_path), "--inputs", str(file)).stdout.replace("stale-offset: a request", "")
    batch["image_grid_thw"] = batch["image_grid_thw"][:1]
    torch.save(batch, file)
    result = run(str(tmp_path), "--inputs", str(file))
    assert result.exit_code == 1
    assert "wrong placeholders: each grid has its placeholders" in result.stdout


@pytest.mark.parametrize("content", ["text", "list", "words"])
def test_a_file_that_is_no_batch(content: str, tmp_path: Path) -> None:
    written(tmp_path)
    file = tmp_path / "batch.pt"
    if content == "text":
        file.write_text("no batch")
    else:
        torch.save([1] if content == "list" else {"pixel_values": torch.zeros(1)}, file)
    result = run(str(tmp_path), "--inputs", str(file))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert "batch" in result.stderr or "expected" in result.stderr


@pytest.mark.parametrize("words", [["nothing"], ["LlamaForCausalLM"], ["qwen2_vl", "--inputs", "no.pt"]])
def test_what_is_refused_takes_one_line(words: list[str]) -> None:
    result = run(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("mrope doctor: ")
    assert result.stderr.count("\n") == 1


@this_version
def test_a_deep_look_at_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save("qwen2-vl", tmp_path)
    report = doctor(folder, deep=True)
    assert "parity" in report.checked
    assert not found(report, "parity")
    monkeypatch.setattr("mrope.Rotary.cos_sin", lambda self, ids, length=None: (torch.zeros(*ids.shape[1:], 64),) * 2)
    result = run(str(folder), "--deep")
    assert result.exit_code == 1
    assert "wrong parity: rotary cos and sin: as ours" in result.stdout


def test_a_deep_look_at_a_checkpoint_without_weights(tmp_path: Path) -> None:
    report = doctor(written(tmp_path), deep=True)
    assert [name for name, _ in report.skipped] == ["parity"]
    assert "processor" not in names(report)  # it has no tokenizer, so that the class of the library is examined


def test_the_processor_of_a_folder_is_the_one_that_is_examined(tmp_path: Path) -> None:
    folder = written(tmp_path)
    own = read_subject("qwen2_vl").processor
    own.tokenizer.add_tokens(["a word of this checkpoint"])
    own.image_processor.merge_size = 2
    own.save_pretrained(folder)
    words = read_subject(folder).processor.tokenizer.get_vocab()
    assert "a word of this checkpoint" in words
