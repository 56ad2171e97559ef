"""The doctor: what the installed library gets wrong is found, and what is right or was put right is not."""

from __future__ import annotations

import copy
import inspect
import json
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from itertools import product
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
from mrope.hf.checkup.compare import attempt
from mrope.hf.checkup.doctor import CHECKS, examine_batch
from mrope.hf.checkup.pictures import sizes
from mrope.hf.checkup.prompts import TALL, WIDE, batch, clip, has_clips
from mrope.hf.checkup.saved import Batch
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
    "packing": ALL,
    "token-types": ALL - {"cosmos3_edge", "glm_image", *OMNI},
    "next-turn": ALL - {"glm_image"},
    "processor": {"cosmos3_edge"},
    "clip-prompt": STAMPED,
    "odd-prompts": {*OMNI},
    "silent-clips": {*OMNI},
    "sound-lengths": {*OMNI},
    "clip-seconds": {*OMNI},
    "adjacent-pictures": ALL - {"glm_image", "minicpmv4_7", *OMNI},
    "truncated-picture": ALL - {"hunyuan_vl"},
    "empty-row": ALL - {"glm_image", "minicpmv4_7"},
    "stale-offset": ALL - {"hunyuan_vl"},
    "generated-pictures": {"glm_image"},
    "beams": {*GLM, "glm_image"},
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
def test_documents_that_mix_in_every_call_are_wrong_and_those_that_mix_in_some_are_risky() -> None:
    wrong = ALL - (STAMPED - HYBRID) - {"qwen3_omni_moe_thinker"}
    assert {name for name in ALL if found(report_of(name), "packing")[0].level == "wrong"} == wrong
    risky = found(report_of("qwen3_vl"), "packing")[0]
    assert "with ids (B, N) unless use_cache=False, with ids (B, N) and an attention_mask" in risky.seen
    assert risky.fix == "pass (B, N) ids, use_cache=False and no attention_mask, or mrope.hf.plug(model)"
    assert found(report_of("qwen3_5"), "packing")[0].fix.startswith("do not pack")


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
    # GLM looks for clips by a word that stands in none of its prompts, and has the first picture twice in row 0.
    beams = {each.level: each for each in found(report_of("glm4v"), "beams")}
    assert re.fullmatch(r"the logits of row 0 are off by 0\.[1-9]\d* of their size", beams["wrong"].seen)
    assert "pictures of its own row" in beams["wrong"].rule
    assert beams["risky"].seen.startswith("generate raises ValueError: torch.cat()")
    assert "clips of its own row" in beams["risky"].rule


@this_version
def test_calls_that_processors_do_not_take() -> None:
    calls = {"qwen2_vl": ("sample_frames", "get_num_of_video_patches"), "qwen3_vl": ("one frame", "frames_indices")}
    for model_type, words in calls.items():
        rules = [each.rule for each in found(report_of(model_type), "clip-calls")]
        assert len(rules) == len(words)
        assert all(any(word in rule for rule in rules) for word in words)
    fixes = {each.rule: each.fix for each in found(report_of("qwen2_vl"), "clip-calls")}
    assert len(set(fixes.values())) == 2
    assert all(("fps" in fix) == ("sample_frames" in rule) for rule, fix in fixes.items())
    assert not any("repeat" in fix for fix in fixes.values())  # it takes a clip of one frame


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
    """What is left is not the model's: classes of processors, and packed rows in calls that hide them."""
    with plug(model_of(name)) as model:
        report = doctor(model)
    assert not report.skipped
    assert all(each.level == "risky" for each in found(report, "packing"))
    assert names(report) <= {"packing", "clip-prompt", "clip-budget", "clip-calls"}


@this_version
@pytest.mark.parametrize("model_type", [name for name in MODEL_TYPES if name != "neomme" and installed(name)])
def test_a_plugged_model_of_each_family_is_clean(model_type: str) -> None:
    """GLM-V's forward takes no picture beside a clip, and the rotary of HunYuan is plugged when it is asked for."""
    left = {"packing", "clip-prompt", "clip-budget", "clip-calls", "clip-seconds", "processor", "counts"}
    left |= {"picture-and-clip"}
    with plug(read_subject(config_of(model_type)).model, rotary=model_type == "hunyuan_vl") as model:
        report = doctor(model)
    assert names(report) <= left
    assert not report.skipped
    if model_type not in {*HYBRID, "hunyuan_vl", "cosmos3_edge"}:
        assert all(each.level == "risky" for each in found(report, "packing"))


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


@this_version
@pytest.mark.parametrize("model_type", ["glm4v", "glm_ocr"])
def test_beams_that_were_put_right_are_clean(model_type: str) -> None:
    """All pictures of a row are repeated as one piece: as many features as the row has placeholders."""

    def repeated(model: Any, words: Any, features: dict[str, Any], expand_size: int, **_: Any) -> dict[str, Any]:
        counts = (words == model.config.image_token_id).sum(-1).tolist()
        for made in filter(None, features.values()):
            rows = torch.cat(list(made.pooler_output)).split(counts)
            made.pooler_output = [row for row in rows for _ in range(expand_size)]
        return features

    model = read_subject(config_of(model_type)).model
    assert "beams" in names(doctor(model))
    model._expand_multimodal_outputs = MethodType(repeated, model)
    report = doctor(model)
    assert "beams" not in names(report)
    assert "beams" in report.checked


@this_version
@pytest.mark.parametrize(("name", "wrong"), [("Qwen2_5Omni", "1"), ("Qwen3OmniMoe", "2")])
def test_seconds_of_clips_that_were_put_right_are_clean(name: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two frames at four a second last half a second; the two processors take them for two, and for one, a second."""
    config = getattr(transformers, f"{name}ThinkerConfig")().model_type
    ended = found(report_of(config), "clip-seconds")[0]
    assert ended.seen == f"video_second_per_grid is {wrong} for 4 frames a second"
    assert ended.right == "0.5"
    of_class = getattr(transformers, f"{name}Processor")
    library = of_class._process_videos

    def by_frames(made: Any, videos: Any, **kwargs: Any) -> Any:
        told = kwargs["videos_kwargs"]["video_metadata"][0]
        first, *_, last = told["frames_indices"]
        kwargs["videos_kwargs"]["fps"] = told["fps"] * (len(told["frames_indices"]) - 1) / (last - first)
        return library(made, videos, **kwargs)

    monkeypatch.setattr(of_class, "_process_videos", by_frames)
    report = doctor(config_of(config))
    assert "clip-seconds" not in names(report)
    assert "clip-seconds" in report.checked


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


def test_an_extension_by_lengths_that_starves_an_axis() -> None:
    longrope = {"rope_type": "longrope", "factor": 8.0, "original_max_position_embeddings": 4096}
    flat, steep = [1.0] * 64, [1.0] * 16 + [8.0] * 48
    for short, long in ((flat, steep), (steep, flat)):
        (finding,) = stated(qwen2_vl(**longrope, short_factor=short, long_factor=long))
        assert (finding.check, finding.level) == ("extension", "risky")
        assert "all 24 pairs of h turn 8 times slower, and none of t" in finding.seen
    spread = [1.0] * 16 + [2.0 + number / 8 for number in range(24)] + [1.0] * 24
    (finding,) = stated(qwen2_vl(**longrope, short_factor=flat, long_factor=spread))
    assert "all 24 pairs of h turn 2 to 4.88 times slower, and none of t" in finding.seen
    assert stated(qwen2_vl(**longrope, short_factor=flat, long_factor=[8.0] * 64)) == []
    assert stated(qwen2_vl(rope_type="dynamic", factor=8.0)) == []  # one pair of t and none of others is kept


def test_rates_of_a_clock_that_stands_still() -> None:
    config = tiny_config("qwen2.5-vl").to_dict()
    for rate in (0, -2):
        config["vision_config"]["tokens_per_second"] = rate
        report = doctor(config)
        assert "model" not in names(report)  # which runs
        assert found(report, "ids-per-second")[0].seen == f"tokens_per_second is {rate}"


@pytest.mark.parametrize(
    ("section", "changes", "check", "seen"),
    [
        (None, {"image_token_id": 501, "video_token_id": 501}, "words", "video_token_id and image_token_id are both"),
        (None, {"image_token_id": 99999}, "words", "image_token_id is 99999, and the vocabulary has 512 words"),
        (None, {"video_token_id": -1}, "words", "video_token_id is -1, and the vocabulary has 512 words"),
        ("vision_config", {"patch_size": 0}, "sizes", "patch_size is 0 in the vision_config"),
        ("vision_config", {"spatial_merge_size": 0}, "sizes", "spatial_merge_size is 0 in the vision_config"),
        ("vision_config", {"num_heads": 3}, "sizes", "embed_dim is 32 with 3 attention heads in the vision_config"),
        ("text_config", {"num_key_value_heads": 3}, "sizes", "num_key_value_heads is 3 with 2 attention heads"),
        ("text_config", {"intermediate_size": 0}, "sizes", "intermediate_size is 0 in the text_config"),
    ],
    ids=str,
)
def test_a_configuration_of_which_the_small_model_shows_nothing(
    section: str | None, changes: dict[str, Any], check: str, seen: str
) -> None:
    config = config_of("qwen2_vl").to_dict()
    (config if section is None else config[section]).update(changes)
    findings = found(doctor(config), check)
    assert len(findings) == 1
    assert findings[0].level == "wrong"
    assert findings[0].seen.startswith(seen)


def test_one_word_for_pictures_and_clips_leaves_the_other_checks_to_run() -> None:
    config = config_of("qwen2_vl").to_dict()
    config["image_token_id"] = config["video_token_id"]
    report = doctor(config)
    assert not report.skipped
    assert names(report) == names(report_of("qwen2_vl")) | {"words"}


@this_version
@pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen3_vl", "glm4v", "hy_v4_vl"])
@pytest.mark.parametrize("merge", [1, 3])
def test_prompts_for_models_that_merge_other_numbers_of_patches(model_type: str, merge: int) -> None:
    config = copy.deepcopy(config_of(model_type))
    config.vision_config.spatial_merge_size = merge
    report = doctor(config)
    assert names(report) == names(report_of(model_type))
    assert not report.skipped


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
        (torch.nn.Linear(2, 3), "target is a Linear; expected a checkpoint folder"),
        (dict, "target is the class dict; expected one of a model or configuration"),
        (
            {"model_type": "qwen2_vl", "text_config": {"hidden_size": "256"}},
            "Qwen2VLConfig of transformers refuses the",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_examined(target: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        doctor(target)


def test_a_batch_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError, match=r"no\.pt"):
        doctor(tiny_config("qwen2-vl"), "no.pt")


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
    return coloured(each.inputs)


def coloured(inputs: dict[str, Any]) -> dict[str, Any]:
    """With pixels between -1 and 1, where the colours of all families can lie."""
    return {key: value.clamp(-1, 1) if key.startswith("pixel_values") else value for key, value in inputs.items()}


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


PICTURED = made(ROW)  # 4 words, a picture of 2 x 4 cells, 3 words, one of 4 x 2, 2 words


def pixels_of(colours: torch.Tensor) -> dict[str, Any]:
    """A batch of Qwen3-VL with a picture of 4 x 8 patches, whose pixels are these at each place of a patch."""
    batch = made([[Text(4), Image((1, 4, 8)), Text(3)]], "qwen3-vl")
    return {**batch, "pixel_values": colours.repeat(batch["pixel_values"].numel() // len(colours)).reshape(32, -1)}


@pytest.mark.parametrize(
    ("level", "seen", "colours"),
    [
        # 0..255 less a mean of 0.5 and through a std of 0.5 is -1..1; less CLIP's least mean, 0.4082, and through its
        # std, 0.2758, 1 is 2.15 and 0 is -1.79 by the greatest, 0.4815 / 0.2686.
        (None, "", [-1, -0.2, 0.6, 1]),
        (None, "", [0.9, 0.95, 1, 1]),  # bright paper
        (None, "", [-1.02, 0, 0.5, 1.02]),  # a resize that overshoots
        ("wrong", "pixel_values go from 0 to 255: raw bytes?", [0, 17, 102, 255]),
        ("risky", "pixel_values go from 0 to 1: without mean and std?", [0, 0.2, 0.8, 1]),
        ("risky", "pixel_values go from -1.79 to 2.15", [-0.4815 / 0.2686, 0, 1, 0.5918 / 0.2758]),
        ("wrong", "24576 values of pixel_values are not finite", [0, 0.5, torch.nan, torch.inf]),
    ],
    ids=["right", "bright", "overshot", "bytes", "shares", "clip", "nan"],
)
def test_pixels_out_of_the_range_of_the_colours(level: str | None, seen: str, colours: list[float]) -> None:
    batch = pixels_of(torch.tensor(colours))
    assert batch["pixel_values"].shape == (32, 3 * 2 * 16 * 16)
    findings = examined(batch, "qwen3-vl")
    assert [(each.check, each.level, each.seen) for each in findings] == ([("colours", level, seen)] if level else [])
    if level:
        assert findings[0].right == "-1 to 1, of mean (0.5, 0.5, 0.5) and std (0.5, 0.5, 0.5)"


def test_one_pixel_that_is_no_number() -> None:
    pixels = PICTURED["pixel_values"].clone()
    pixels[3, 5] = torch.nan
    (finding,) = examined({**PICTURED, "pixel_values": pixels})
    assert (finding.check, finding.level, finding.seen) == (
        "colours",
        "wrong",
        "1 values of pixel_values are not finite",
    )


@pytest.mark.parametrize(
    ("change", "seen", "right"),
    [
        ({"input_ids": PICTURED["input_ids"][0]}, "input_ids of shape (25,)", "shape (B, N)"),
        ({"input_ids": PICTURED["input_ids"].float()}, "input_ids in torch.float32", "torch.int64"),
        ({"attention_mask": torch.full((1, 25), 0.5)}, "attention_mask holds 0.5", "1 for tokens and 0 for padding"),
        ({"attention_mask": torch.ones(1, 24)}, "attention_mask of shape (1, 24)", "(1, 25), as input_ids"),
        ({"input_ids": [[1, 2], [3]]}, "ValueError: expected sequence of length 2 at dim 1 (got 1)", "tensors"),
    ],
    ids=["flat", "float", "half", "short", "ragged"],
)
def test_tokens_that_cannot_be_read(change: dict[str, Any], seen: str, right: str) -> None:
    with torch.no_grad():
        report = examine_batch(subject_of("qwen2-vl"), {**PICTURED, **change})
    (finding,) = report.findings
    assert (finding.check, finding.level, finding.seen, finding.right) == ("tokens", "wrong", seen, right)
    assert {why for _, why in report.skipped} == {"its tokens cannot be read"}


def test_words_beyond_the_vocabulary() -> None:
    words = PICTURED["input_ids"].clone()
    words[0, 13] = 99999  # of a vocabulary of 512
    (finding,) = examined({**PICTURED, "input_ids": words})
    assert (finding.check, finding.level) == ("words", "wrong")
    assert (finding.seen, finding.right) == ("token 13 of row 0 is 99999, one of 1", "0 to 511")


def test_labels_of_placeholders_and_of_another_shape() -> None:
    words = PICTURED["input_ids"]
    learnt = words.masked_fill(words == 500, -100)
    assert (learnt == -100).sum() == 16  # two pictures of 8 tokens
    assert examined({**PICTURED, "labels": learnt}) == ()
    (finding,) = examined({**PICTURED, "labels": words})
    assert (finding.check, finding.level, finding.right) == ("labels", "wrong", "-100")
    assert finding.seen == "token 4 of row 0, a placeholder, has label 500, one of 16"
    (finding,) = examined({**PICTURED, "labels": learnt[:, :-1]})
    assert (finding.seen, finding.right) == ("labels of shape (1, 24)", "shape (1, 25), as input_ids")
    padded = made([*ROW, [Text(9)]])  # 16 words of padding on the left
    learnt = padded["input_ids"].masked_fill(padded["input_ids"] == 500, -100)
    (finding,) = examined({**padded, "labels": learnt})
    assert finding.seen == "token 0 of row 1, padding, has label 0, one of 16"


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
    (hidden,) = examined({**inputs, "position_ids": torch.cat([text, ids])})
    assert hidden.right == "use_cache=False and no attention_mask"
    del inputs["attention_mask"]
    inputs["use_cache"] = False
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
        inputs = {"input_ids": inputs["input_ids"], "position_ids": ids, "use_cache": False}
        assert examined(inputs, "qwen3-vl") == ()


@pytest.mark.parametrize("plugged", [False, True], ids=["alone", "plugged"])
@pytest.mark.parametrize("masked", [False, True], ids=["no-mask", "masked"])
@pytest.mark.parametrize("use_cache", [None, True, False], ids=str)
@pytest.mark.parametrize("rows", [0, 4], ids=["plain-ids", "text-row"])
def test_a_packed_batch_is_wrong_where_the_model_mixes_its_documents(
    rows: int, use_cache: bool | None, masked: bool, plugged: bool
) -> None:
    """Held against the logits of the second document alone; a plugged model refuses what it cannot keep apart."""
    tokens = torch.randint(10, 490, (1, 16))
    ids = torch.cat([torch.arange(9), torch.arange(7)])[None]
    batch: dict[str, Any] = {"input_ids": tokens, "position_ids": ids.expand(rows, -1, -1) if rows else ids}
    batch |= {"attention_mask": torch.ones_like(tokens)} if masked else {}
    batch |= {} if use_cache is None else {"use_cache": use_cache}
    model = model_of("qwen2.5-vl")
    with torch.no_grad():
        alone = model(input_ids=tokens[:, 9:]).logits
        with plug(model) if plugged else nullcontext():
            packed, refused = attempt(lambda: model(**batch).logits[:, 9:])
            mixes = refused is not None or bool((packed - alone).abs().max() > 1e-3)
            report = examine_batch(read_subject(model), batch)
    assert [each.check for each in report.findings] == (["packing"] if mixes else [])
    assert not report.skipped


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
        ("qwen2.5-vl", [[-5, 20, 100, 100]], "begins before 0"),
        ("qwen2-vl", [[10, 20, 100, 200], [float("nan"), 20, 100, 200]], "box 1 is (nan, 20, 100, 200)"),
        ("qwen2-vl", [10, 20, 100, 200], "boxes: shape (4,); expected (n, 4)"),
        ("qwen2-vl", [[10, 20, 100]], "boxes: shape (1, 3); expected (n, 4)"),
        ("qwen2-vl", [], None),
    ],
)
def test_boxes_in_another_convention(name: str, boxes: list[Any], seen: str | None) -> None:
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


def test_pixels_that_do_not_fit_grids() -> None:
    # pictures of 4 x 8 and 8 x 4 patches of 14, two frames each: 64 patches of 3 x 2 x 14 x 14 values
    batch = made(ROW)
    pixels = batch["pixel_values"]
    assert pixels.shape == (64, 1176)
    for spoilt in (pixels[:50], pixels[:, :500], pixels.reshape(32, 2352), None):
        (finding,) = examined({**batch, "pixel_values": spoilt})
        assert (finding.check, finding.level) == ("pixels", "wrong")
        assert "no pixel_values" in finding.seen if spoilt is None else f"{tuple(spoilt.shape)}" in finding.seen
        assert finding.right == "shape (64, 1176), for 2 in image_grid_thw"
    assert examined({**batch, "pixel_values": pixels[None]}) == ()  # the model looks at the patches alone
    (finding,) = examined({**made([[Text(9)]]), "pixel_values": pixels})
    assert finding.right == "none: no image_grid_thw of a picture came"


@pytest.mark.parametrize("model_type", [name for name in MODEL_TYPES if name != "neomme" and installed(name)])
def test_pixels_of_each_family_are_checked(model_type: str) -> None:
    subject = read_subject(config_of(model_type))
    rows: list[list[Span]] = [[Text(4), WIDE, Text(3)], [Text(2), TALL, Text(5)]]
    if has_clips(subject):
        rows[1] = [Text(3), clip(subject, (2, 8, 4)), Text(2)]
    inputs = coloured(batch(subject, rows, pixels=True))
    with torch.no_grad():
        assert examine_batch(subject, inputs).findings == ()
        for key in ("pixel_values", "pixel_values_videos"):
            if key in inputs:  # of a strip the patches come last
                spoilt = {**inputs, key: inputs[key][..., :-1] if len(inputs[key]) == 1 else inputs[key][:-1]}
                assert [each.check for each in examine_batch(subject, spoilt).findings] == ["pixels"]


def sized(grid: tuple[int, int, int], size: Any, name: str = "qwen2.5-vl") -> dict[str, Any]:
    """A batch of one picture with this grid, said to be of this height and width."""
    return {**made([[Text(2), Image(grid), Text(2)]], name), "image_sizes": torch.tensor([size])}


@pytest.mark.parametrize("size", [(127, 168), (60, 250)], ids=str)
def test_a_grid_that_a_picture_of_this_size_cannot_have(size: tuple[int, int]) -> None:
    """Held against all grids that transformers' resizing gives the size, with every upper and every lower limit."""
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    limits = [(1, most) for most in range(784, 40 * 784)] + [(least, 10**9) for least in range(784, 40 * 784)]
    resized = {smart_resize(*size, factor=28, min_pixels=least, max_pixels=most) for least, most in limits}
    possible = {(1, height // 14, width // 14) for height, width in resized}
    right = mrope.family("qwen2.5-vl").plan(size).grid
    for rows, columns in product(range(2, 14, 2), repeat=2):
        findings = examined(sized((1, rows, columns), size), "qwen2.5-vl")
        level = "risky" if (1, rows, columns) in possible else "wrong"
        assert [(each.check, each.level) for each in findings] == (
            [] if (1, rows, columns) == right else [("image-sizes", level)]
        )


@this_version
@pytest.mark.parametrize("model_type", ["glm4v", "paddleocr_vl", "hy_v4_vl", "qwen2_5_vl"])
def test_a_grid_that_the_processor_gives_is_never_wrong(model_type: str) -> None:
    """Within its own limits it is clean, and within others it is risky at most; a side may be below a token's."""
    subject = read_subject(transformers.CONFIG_MAPPING[model_type])
    images = subject.processor.image_processor
    for size in ((16, 626), (352, 13), (120, 300), (500, 333)):
        for limits in (None, (4096, 30_000), (80_000, 10**7)):
            options = (
                {} if limits is None else {"size": dict(zip(("shortest_edge", "longest_edge"), limits, strict=True))}
            )
            cut = images(images=[torch.zeros(3, *size, dtype=torch.uint8)], return_tensors="pt", **options)
            batch = Batch(subject, {"image_grid_thw": cut["image_grid_thw"], "image_sizes": torch.tensor([size])})
            levels = [each.level for each in sizes(batch)]
            assert levels in ([[]] if limits is None else [[], ["risky"]])
    batch = Batch(subject, {"image_grid_thw": torch.tensor([[1, 8, 12]]), "image_sizes": torch.tensor([[500, 900]])})
    assert [each.level for each in sizes(batch)] == ["wrong"]


def test_a_size_with_height_and_width_swapped() -> None:
    assert examined(sized((1, 8, 12), (112, 168)), "qwen2.5-vl") == ()
    (finding,) = examined(sized((1, 8, 12), (168, 112)), "qwen2.5-vl")
    assert finding.level == "wrong"
    assert finding.seen == "picture 0 of 168 x 112 has grid (1, 8, 12), which no limits give; 112 x 168 has it"
    assert (finding.right, finding.fix) == ("grid (1, 12, 8)", "state height before width in image_sizes")
    (finding,) = examined(sized((1, 8, 12), (20, 5000)), "qwen2.5-vl")
    assert finding.right == "another picture: qwen2.5-vl refuses sides of this ratio"


def test_a_grid_by_the_limits_of_the_folder(tmp_path: Path) -> None:
    # 112 x 168 within 40 tokens of 28 x 28 stays; within 6 tokens it is halved
    subjects = []
    for tokens in (40, 6):
        folder = tmp_path / str(tokens)
        folder.mkdir()
        subjects.append(read_subject(written(folder, max_pixels=tokens * 784)))
    for grid, checks in (((1, 8, 12), ([], ["image-sizes"])), ((1, 4, 6), (["image-sizes"], []))):
        with torch.no_grad():
            reports = [examine_batch(subject, sized(grid, (112, 168), "qwen2-vl")) for subject in subjects]
        assert tuple([each.check for each in report.findings] for report in reports) == checks
        assert all(each.level == "risky" for report in reports for each in report.findings)
        assert f"between 3136 and {6 * 784} pixels" in reports[1].findings[0].rule if checks[1] else True


@pytest.mark.parametrize(
    ("stated", "seen"),
    [
        ([[112, 168], [112, 168]], "image_sizes: 2 rows for 1 grids"),
        ([[0, 5]], "image_sizes: row 0 is 0 x 5"),
        ([[4, -1]], "image_sizes: row 0 is 4 x -1"),
        ([[112.5, 168.0]], "image_sizes: row 0 is 112.5 x 168"),
        ([[float("nan"), 168.0]], "image_sizes: row 0 is nan x 168"),
        ([112, 168], "image_sizes: shape (2,); expected (n, 2)"),
        ([[112, 168, 3]], "image_sizes: shape (1, 3); expected (n, 2)"),
    ],
    ids=str,
)
def test_sizes_that_are_none(stated: list[Any], seen: str) -> None:
    (finding,) = examined({**sized((1, 8, 12), (112, 168)), "image_sizes": torch.tensor(stated)}, "qwen2.5-vl")
    assert (finding.check, finding.level, finding.seen) == ("image-sizes", "wrong", seen)


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
@pytest.mark.parametrize(
    "text",
    [
        {"num_hidden_layers": 5, "layer_types": ["full_attention"] * 2},
        {"hidden_size": "256"},
        3,
    ],
    ids=str,
)
@pytest.mark.parametrize("model_type", ["qwen2_vl", "llama"])
def test_a_configuration_that_transformers_refuses_takes_one_line(model_type: str, text: Any, tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    stated = {"text_config": text} if model_type == "qwen2_vl" or not isinstance(text, dict) else text
    file.write_text(json.dumps({"model_type": model_type, **stated}))
    result = run(str(file))
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
    assert report.skipped == ()
    (finding,) = [one for one in found(report, "parity") if one.rule == "weights: as ours"]
    assert finding.level == "wrong"
    assert "no file named model.safetensors" in finding.seen
    assert "processor" not in names(report)  # it has no tokenizer, so that the class of the library is examined


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def cut_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])


def without_a_processor(folder: Path) -> None:
    (folder / "processor_config.json").unlink()


def with_a_processor_that_is_no_json(folder: Path) -> None:
    (folder / "processor_config.json").write_text("{")


@this_version
@pytest.mark.parametrize(
    ("spoil", "seen"),
    [
        (without_weights, "no file named model.safetensors"),
        (cut_weights, "Error while deserializing"),
        (without_a_processor, "has no preprocessor_config.json and no processor_config.json"),
        (with_a_processor_that_is_no_json, "is not a valid JSON file"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_deep_look_that_cannot_run_is_wrong_and_says_why(
    spoil: Callable[[Path], None], seen: str, tmp_path: Path
) -> None:
    spoil(save("qwen2.5-vl", tmp_path))
    report = doctor(tmp_path, deep=True)
    assert "parity" not in [name for name, _ in report.skipped]
    assert [one.level for one in found(report, "parity") if seen in one.seen] == ["wrong"]


def test_a_placeholder_that_the_tokenizer_has_at_another_id(tmp_path: Path) -> None:
    own = read_subject(save("qwen2.5-vl", tmp_path)).processor
    right = own.tokenizer.convert_tokens_to_ids(own.image_token)
    assert not found(doctor(tmp_path), "words")
    stated = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**stated, "image_token_id": right - 20}))
    (finding,) = found(doctor(tmp_path), "words")
    assert (finding.level, finding.right) == ("wrong", f"{right}")
    assert finding.seen == f"image_token_id: config {right - 20}, tokenizer {right} for {own.image_token}"


def test_the_processor_of_a_folder_is_the_one_that_is_examined(tmp_path: Path) -> None:
    folder = written(tmp_path)
    own = read_subject("qwen2_vl").processor
    own.tokenizer.add_tokens(["a word of this checkpoint"])
    own.image_processor.merge_size = 2
    own.save_pretrained(folder)
    words = read_subject(folder).processor.tokenizer.get_vocab()
    assert "a word of this checkpoint" in words
