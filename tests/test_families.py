"""The records of the released checkpoints, and what is read from a checkpoint's own files."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from every_family import MODEL_TYPES, config_of, installed
from tiny_models import FAMILIES, tiny_config

import mrope
from mrope import AxisSplit, Family, Frequencies, GridLayout, Rotary
from mrope.extensions import Ntk, Zero
from mrope.families import VERSIONS
from mrope.hf.reading import layout_of, record_of
from mrope.layouts import CanvasLayout, OmniLayout
from mrope.vision import Plan

ALL = mrope.family_names()
every_family = pytest.mark.parametrize("name", ALL)
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)

# The JSON of the released checkpoints in the parts that matter here, as found in public copies.
QWEN2_CONFIG = {
    "model_type": "qwen2_vl",
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "rope_theta": 1000000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vision_config": {"in_chans": 3, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2},
}
QWEN25_CONFIG = {
    "model_type": "qwen2_5_vl",
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "rope_theta": 1000000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vision_config": {"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "tokens_per_second": 2},
}
QWEN3_CONFIG = {
    "model_type": "qwen3_vl",
    "text_config": {
        "model_type": "qwen3_vl_text",
        "head_dim": 128,
        "hidden_size": 2560,
        "num_attention_heads": 32,
        "rope_theta": 5000000,
        "rope_scaling": {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True},
    },
    "vision_config": {"patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2},
}
QWEN2_PROCESSOR = {
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": list(CLIP_MEAN),
    "image_std": list(CLIP_STD),
    "image_processor_type": "Qwen2VLImageProcessor",
}
QWEN3_PROCESSOR = {
    "size": {"longest_edge": 16777216, "shortest_edge": 65536},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
QWEN3_VIDEO = QWEN3_PROCESSOR | {"size": {"longest_edge": 25165824, "shortest_edge": 4096}}
RELEASED = {
    "qwen2-vl": {"config.json": QWEN2_CONFIG, "preprocessor_config.json": QWEN2_PROCESSOR},
    "qwen2.5-vl": {"config.json": QWEN25_CONFIG, "preprocessor_config.json": QWEN2_PROCESSOR},
    "qwen3-vl": {
        "config.json": QWEN3_CONFIG,
        "preprocessor_config.json": QWEN3_PROCESSOR,
        "video_preprocessor_config.json": QWEN3_VIDEO,
    },
}


def write(folder: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def changed(config: dict, **values: Any) -> dict:
    """A copy of `config` with `values`; "a__b" reaches into the object a, None takes a key away."""
    copy = json.loads(json.dumps(config))
    for path, value in values.items():
        *parents, key = path.split("__")
        place = copy
        for parent in parents:
            place = place.setdefault(parent, {})
        if value is None:
            place.pop(key, None)
        else:
            place[key] = value
    return copy


# ------------------------------------------------------------------------------------------------------------ records


def test_the_records() -> None:
    assert mrope.family_names()[:3] == FAMILIES
    expected: dict[str, Any] = {
        "qwen2-vl": (28, 1176, (3136, 12845056), GridLayout(2, "index"), (16, 24, 24), "chunked", 1e6, "0-1000"),
        "qwen2.5-vl": (
            *(28, 1176, (3136, 12845056), GridLayout(2, "seconds", 2)),
            *((16, 24, 24), "chunked", 1e6, "processed-pixels"),
        ),
        "qwen3-vl": (32, 1536, (65536, 16777216), GridLayout(2, "stamps"), (24, 20, 20), "interleaved", 5e6, "0-1000"),
    }
    for name, (factor, patch_dim, pixels, layout, counts, allocation, base, boxes) in expected.items():
        family = mrope.family(name)
        assert (family.name, family.factor, family.patch_dim, family.pixel_limits) == (name, factor, patch_dim, pixels)
        assert (family.layout, family.split, family.boxes) == (layout, AxisSplit(counts, allocation), boxes)
        assert family.rotary() == Rotary(AxisSplit(counts, allocation), Frequencies(base), "half")
        assert (family.temporal_patch, family.head_dim) == (2, 128)
        assert (family.mean, family.std) == (((0.5,) * 3,) * 2 if name == "qwen3-vl" else (CLIP_MEAN, CLIP_STD))
    assert [mrope.family(name).image_tokens for name in FAMILIES] == [(4, 16384), (4, 16384), (64, 16384)]
    assert [mrope.family(name).video_pixels for name in FAMILIES] == [(3136, 12845056)] * 2 + [(4096, 25165824)]
    assert [mrope.family(name).video_budget for name in FAMILIES] == ["frame", "frame", "clip"]


@every_family
def test_every_recorded_value_names_its_source(name: str) -> None:
    family = mrope.family(name)
    unsourced = {"name", "model_types", "image_pixels", "axes", "deviations", "other_layers", "sources"}
    assert set(family.sources) == {field.name for field in fields(Family)} - unsourced
    kinds = ("default", "code", "public copies", "a guess", "not found", "in public", "vendor", "transformers 5.24")
    for source in family.sources.values():  # no checkpoint was opened, and none says so
        assert any(kind in source for kind in kinds)
    if family.boxes == "unknown":
        assert "not found" in family.sources["boxes"]


def test_records_hash_pickle_and_copy() -> None:
    records = {mrope.family(name) for name in ALL}
    assert len(records) == len(ALL)
    for again in (pickle.loads(pickle.dumps(records)), copy.deepcopy(records)):
        assert again == records
        assert {record.name: dict(record.sources) for record in again} == {
            record.name: dict(record.sources) for record in records
        }
        assert {record.name: record.deviations for record in again} == {
            record.name: record.deviations for record in records
        }


def test_nobody_changes_a_record() -> None:
    given = {"patch": "here"}
    family = replace(mrope.family("qwen2-vl"), sources=given)
    given["patch"] = "there"
    assert family.sources == {"patch": "here"}
    for mapping in (family.sources, family.deviations):
        with pytest.raises(TypeError, match="does not support item assignment"):
            mapping["patch"] = "elsewhere"  # pyright: ignore[reportIndexIssue]


def test_a_model_type_is_of_one_family_and_transformers_has_it() -> None:
    model_types = [model_type for name in ALL for model_type in mrope.family(name).model_types]
    assert len(set(model_types)) == len(model_types)
    assert set(model_types) <= set(transformers.CONFIG_MAPPING.keys())


@every_family
def test_a_record_fits_together(name: str) -> None:
    family = mrope.family(name)
    positions = family.positions(["text:3"])
    assert positions.ids.tolist() == [[0, 1, 2]] * len(family.axes)
    cos, _ = family.rotary().cos_sin(positions)
    assert 2 * cos.shape[1] == family.head_dim * family.partial_rotary
    assert family.split.axis.bincount().tolist() == list(family.split.counts)


def test_an_unknown_family_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"unknown family 'qwen9'; known are qwen2-vl, qwen2\.5-vl, qwen3-vl, .*neomme"
    ):
        mrope.family("qwen9")


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"patch": 0}, "patch is 0; expected at least 1"),
        ({"merge": 4}, "merge is 4, but the layout merges 2"),
        ({"head_dim": 72}, r"mrope_section \(16, 24, 24\) sums to 64; rotary_dim 72 needs 36"),
        ({"head_dim": 127}, "rotary_dim 127 is odd"),
        ({"image_tokens": (9, 4)}, r"image_tokens \(9, 4\): the most is below the least"),
        ({"image_tokens": (0, 4)}, "least of image_tokens is 0"),
        ({"image_pixels": (784, 1000)}, r"image_pixels \(784, 1000\) hold \(1, 1\) tokens of 28x28 pixels"),
        ({"std": (0.5, 0.0, 0.5)}, "std is 0; expected a finite number above 0"),
        ({"partial_rotary": 0.5}, r"mrope_section \(16, 24, 24\) sums to 64; rotary_dim 64 needs 32"),
        ({"partial_rotary": 2}, "partial_rotary is 2; expected a share of the 128 channels"),
        ({"partial_rotary": 0.3}, "partial_rotary is 0.3; expected a share of the 128 channels"),
        ({"partial_rotary": -1}, "partial_rotary is -1; expected a finite number above 0"),
        ({"axes": ("row", "col")}, "axes are row, col, but the layout has 3"),
        ({"split": AxisSplit((32, 32))}, r"axes are t, h, w, but mrope_section is \(32, 32\)"),
        ({"image_tokens": None}, "image_tokens is None with resize='area'"),
        ({"resize": "padded"}, r"image_tokens is \(4, 16384\) with resize='padded'"),
        ({"video_pixels": None}, "video_pixels is None and video_budget is frame; expected both or neither"),
        ({"video_budget": None}, "and video_budget is None; expected both or neither"),
        ({"deviations": {"transformers-9": GridLayout()}}, "deviations is 'transformers-9'; expected one of transf"),
        ({"deviations": {VERSIONS[0]: GridLayout(merge=4)}}, "merge is 2, but the layout merges 4"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(values: dict, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        replace(mrope.family("qwen2-vl"), **values)


@pytest.mark.parametrize("field", ["resize", "patch_order", "rule", "boxes", "video_budget"])
def test_a_word_that_no_rule_has_is_refused_with_those_that_do(field: str) -> None:
    # The run-time check of annotations refuses it as well, where it is on: here in tests.
    with pytest.raises((ValueError, TypeError), match=r"Literal|expected one of"):
        replace(mrope.family("qwen2-vl"), **{field: "sideways"})


# ---------------------------------------------------------------------------------------------------------- positions


@pytest.mark.evidence("worked")
@pytest.mark.parametrize(
    ("name", "clip", "trained", "transformers_5"),
    [
        ("qwen2-vl", "video:40x8x8", 46, 10),
        ("qwen2.5-vl", "video:20x8x8@1", 45, 10),
        ("ernie4.5-vl", "video:40x8x8", 26, 10),
        ("qwen3-vl", "video:40x8x8+0", 166, 166),
        ("hy-v4-vl", "video:40x8x8", 206, 206),
    ],
)
def test_text_behind_a_long_clip_by_both_rules(name: str, clip: str, trained: int, transformers_5: int) -> None:
    family, spans = mrope.family(name), ["text:6", clip, "text:1"]
    assert family.positions(spans).ids[:, -1].tolist() == [trained] * 3
    assert family.positions(spans, layout="transformers-5.24").ids[:, -1].tolist() == [transformers_5] * 3


@pytest.mark.evidence("worked", "paddleocr-vl")
def test_a_clip_of_paddleocr_vl_follows_the_clock_and_in_transformers_its_steps() -> None:
    family = mrope.family("paddleocr-vl")
    assert family.positions(["text:6", "video:40x8x8@1"]).next == 6 + 39 * 2 + 1
    assert family.positions(["text:6", "video:40x8x8"], layout="transformers-5.24").next == 10


def test_only_these_deviate() -> None:
    deviating = {name for name in ALL if mrope.family(name).deviations}
    assert deviating == {"qwen2-vl", "qwen2.5-vl", "ernie4.5-vl", "paddleocr-vl"}
    unconfirmed = {name for name in ALL if mrope.family(name).rule == "unconfirmed"}
    assert unconfirmed == {
        *("glmga", "glm-image", "paddleocr-vl", "hy-v4-vl", "minicpm-v4.7"),
        *("cohere-compass", "cosmos3-edge", "neomme"),
    }


@pytest.mark.evidence("worked")
@pytest.mark.parametrize(
    ("name", "spans", "last"),
    [
        ("qwen2.5-omni", ["text:2", "video:2x4x4@1&60"], [[63], [63], [63]]),
        ("qwen3-omni", ["text:2", "video:2x4x4@0.25"], [[5.25], [3], [3]]),
        ("glm-image", ["text:2", "image:1x3x5"], [[2], [4], [6]]),
        ("hunyuan-vl", ["image:1x4x4", "text:1", "image:1x2x4"], [[13], [13], [13], [13]]),
        ("hy-v4-vl", ["text:2", "image:1x4x4"], [[2], [3], [4]]),
        ("minicpm-v4.7", ["text:2", "sliced:1x8x12"], [[2], [4], [5]]),
        ("neomme", ["image:1x2x3"], [[3], [5]]),
    ],
)
def test_each_layout_is_the_familys(name: str, spans: list[str], last: list[list[float]]) -> None:
    assert mrope.family(name).positions(spans).ids[:, -1:].tolist() == last


@every_family
def test_the_layouts_of_a_prompt_have_names(name: str) -> None:
    family = mrope.family(name)
    assert family.positions(["text:4"], layout=VERSIONS[0]).next == family.positions(["text:4"]).next == 4
    assert family.layout_named("trained") == family.layout
    for ask in (family.layout_named, lambda layout: family.positions(["text:4"], layout=layout)):
        with pytest.raises(ValueError, match=r"layout is 'vllm-1'; expected one of trained, transformers-5\.24"):
            ask("vllm-1")


@pytest.mark.evidence("shapes", "qwen3-vl")
def test_a_turn_goes_on_from_the_one_before() -> None:
    family, spans = mrope.family("qwen3-vl"), ["text:4", "image:1x4x8", "text:3", "video:2x4x4+5", "text:1"]
    whole, first = family.positions(spans), family.positions(spans[:3])
    second = family.positions(spans[3:], first)
    assert torch.equal(torch.cat((first.ids, second.ids), dim=1), whole.ids)
    assert second.ends == whole.ends
    assert family.positions(["text:2"], 7).ids[0].tolist() == [7, 8]


def test_a_family_without_limits_says_so() -> None:
    with pytest.raises(ValueError, match="the resize rule 'padded' of neomme has no limits in pixels"):
        _ = mrope.family("neomme").pixel_limits


@pytest.mark.parametrize(("boxes", "why"), [("none", "reads and writes none"), ("unknown", "was not found")])
def test_boxes_of_an_unknown_kind_are_refused(boxes: Any, why: str) -> None:
    planned: Plan = replace(mrope.family("qwen3-vl"), boxes=boxes).plan((480, 640))
    corners = torch.tensor([0.0, 0.0, 10.0, 10.0])
    for convert in (planned.encode_boxes, planned.decode_boxes):
        with pytest.raises(ValueError, match=f"boxes is '{boxes}': .*{why}"):
            convert(corners)
    assert planned.to_resized(corners)[2] == 10


# -------------------------------------------------------------------------------------------------- what is not stated


@pytest.mark.parametrize("name", FAMILIES)
def test_the_released_files_give_the_record(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path, RELEASED[name])
    assert Family.from_config(folder) == Family.from_config(str(folder)) == mrope.family(name)
    assert Family.from_config(RELEASED[name]["config.json"]) == mrope.family(name)
    loaded = transformers.AutoConfig.from_pretrained(folder)
    assert Family.from_config(loaded) == mrope.family(name)


@pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"])
def test_a_checkpoint_that_states_nothing_gives_the_record(model_type: str, tmp_path: Path) -> None:
    folder = write(tmp_path, {"config.json": {"model_type": model_type}})
    record = next(mrope.family(name) for name in FAMILIES if model_type in mrope.family(name).model_types)
    assert Family.from_config(folder) == record
    # The object has the class defaults, such as 4 ids a second; the file behind it does not state them.
    assert Family.from_config(transformers.AutoConfig.from_pretrained(folder)) == record


def test_class_defaults_of_an_object_without_a_file_are_its_word() -> None:
    config: Any = transformers.Qwen2_5_VLConfig()
    assert Family.from_config(config).layout == GridLayout(2, "seconds", config.vision_config.tokens_per_second)
    assert config.vision_config.tokens_per_second != 2


def test_deviations_follow_what_a_checkpoint_states() -> None:
    config = changed(QWEN25_CONFIG, vision_config__spatial_merge_size=4, vision_config__tokens_per_second=5)
    side = GridLayout(4, "seconds", 5, advance="side")
    assert Family.from_config(config).deviations == {"transformers-5.24": side}


@every_family
def test_a_configuration_of_any_family_that_states_nothing_gives_the_record(name: str, tmp_path: Path) -> None:
    record = mrope.family(name)
    for model_type in record.model_types:
        config: dict[str, Any] = {"model_type": model_type}
        assert Family.from_config(config) == record
        assert Family.from_config(write(tmp_path, {"config.json": config})) == record
        assert Family.from_config(config | {"text_config": {}, "vision_config": {}}) == record
    assert dict(Family.from_config(config).sources).keys() == record.sources.keys()


@pytest.mark.parametrize("model_type", [name for name in MODEL_TYPES if installed(name)])
def test_an_object_is_read_as_its_model_computes(model_type: str, tmp_path: Path) -> None:
    config = config_of(model_type)
    family, vision = Family.from_config(config), getattr(config, "vision_config", config)
    assert family.name == record_of(config).name
    assert family.layout == layout_of(config)
    assert (family.patch, family.head_dim) == (vision.patch_size, config.get_text_config().head_dim)
    assert family.rotary() == Rotary.from_config(config, "sliding_attention" if model_type == "neomme" else None)
    config.save_pretrained(tmp_path)
    assert Family.from_config(tmp_path) == Family.from_config(transformers.AutoConfig.from_pretrained(tmp_path))
    assert Family.from_config(tmp_path) == family


@pytest.mark.parametrize("name", FAMILIES)
def test_the_tiny_models_are_of_their_family(name: str) -> None:
    assert Family.from_config(tiny_config(name)) == mrope.family(name)


# ------------------------------------------------------------------------------------------------------ what is stated

NESTED = changed(QWEN2_CONFIG, hidden_size=None, num_attention_heads=None, rope_theta=None, rope_scaling=None) | {
    "text_config": {
        "hidden_size": 3584,
        "num_attention_heads": 28,
        "rope_parameters": {"rope_type": "default", "rope_theta": 2e6, "mrope_section": [24, 20, 20]},
    }
}


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        (changed(QWEN2_CONFIG, rope_theta=5e5), "frequencies", Frequencies(5e5)),
        (changed(QWEN2_CONFIG, rope_scaling__rope_theta=7e5), "frequencies", Frequencies(7e5)),
        (changed(QWEN3_CONFIG, text_config__rope_theta=1e7), "frequencies", Frequencies(1e7)),
        (NESTED, "frequencies", Frequencies(2e6)),
        (NESTED, "split", AxisSplit((24, 20, 20))),
        (
            changed(NESTED, text_config__rope_parameters__rope_theta=None, rope_theta=3e6),
            "frequencies",
            Frequencies(3e6),
        ),
        (
            changed(NESTED, text_config__rope_parameters__mrope_interleaved=True),
            *("split", AxisSplit((24, 20, 20), "interleaved")),
        ),
        (changed(QWEN25_CONFIG, vision_config__tokens_per_second=4), "layout", GridLayout(2, "seconds", 4)),
        (changed(QWEN3_CONFIG, vision_config__spatial_merge_size=4), "layout", GridLayout(4, "stamps")),
        (changed(QWEN3_CONFIG, vision_config__patch_size=[20, 20]), "patch", 20),
        (changed(QWEN3_CONFIG, vision_config__temporal_patch_size=1), "temporal_patch", 1),
        (
            changed(QWEN3_CONFIG, text_config__head_dim=64, text_config__rope_scaling__mrope_section=[12, 10, 10]),
            *("head_dim", 64),
        ),
    ],
)
def test_a_stated_value_wins(config: dict, field: str, value: Any, tmp_path: Path) -> None:
    family = Family.from_config(config)
    assert getattr(family, field) == value
    assert "config" in family.sources[field]
    folder = write(tmp_path, {"config.json": config})
    assert Family.from_config(folder) == family
    assert str(folder / "config.json") in Family.from_config(folder).sources[field]
    assert Family.from_config(transformers.AutoConfig.from_pretrained(folder)) == family


# Families of other makers, in the style of their released JSON; each value is another one than the record's.
ROPE = {"rope_type": "default"}
OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "glm4v": (
        {
            "text_config": {"hidden_size": 512, "num_attention_heads": 8, "partial_rotary_factor": 0.75}
            | {"rope_theta": 5e4, "rope_scaling": ROPE | {"mrope_section": [4, 8, 12]}},
            "vision_config": {"patch_size": 16, "spatial_merge_size": 4, "temporal_patch_size": 1},
        },
        {
            "head_dim": 64,
            "partial_rotary": 0.75,
            "split": AxisSplit((4, 8, 12)),
            "frequencies": Frequencies(5e4),
            "patch": 16,
            "merge": 4,
            "temporal_patch": 1,
            "layout": GridLayout(4, "stamps"),
        },
    ),
    "glm46v": ({"text_config": {"model_type": "glm4v_moe_text"}}, {"pairing": "half", "head_dim": 128}),
    "ernie4.5-vl": (  # whose order of sections is h, w, t
        {"text_config": {"rope_scaling": ROPE | {"mrope_section": [18, 18, 28]}}},
        {"split": AxisSplit((28, 18, 18), "alternating"), "layout": GridLayout(2, temporal_merge=2)},
    ),
    "paddleocr-vl": (
        {"vision_config": {"tokens_per_second": 25, "num_channels": 3, "spatial_merge_size": 2}},
        {"layout": GridLayout(2, "seconds", 25)},
    ),
    "hunyuan-vl": (
        {"rope_scaling": {"rope_type": "xdrope", "alpha": 50.0, "xdrope_section": [10, 18, 14, 22]}, "rope_theta": 2e4},
        {"split": AxisSplit((10, 18, 14, 22)), "frequencies": Frequencies(2e4, Ntk(50.0))},
    ),
    "hy-v4-vl": (  # of a head a slice turns
        {"text_config": {"qk_rope_head_dim": 32, "head_dim": 192, "rope_scaling": ROPE | {"mrope_section": [6, 5, 5]}}},
        {"head_dim": 32, "partial_rotary": 1, "split": AxisSplit((6, 5, 5), "interleaved")},
    ),
    "minicpm-v4.7": (
        {"downsample_mode": "4x", "vision_config": {"patch_size": 16}, "text_config": {"model_type": "qwen3_5_text"}},
        {"merge": 2, "layout": CanvasLayout(merge=2), "patch": 16, "frequencies": Frequencies(1e7)},
    ),
    "cohere-compass": (  # full attention does not turn, and knows no order
        {
            "text_config": {
                "layer_types": ["sliding_attention", "full_attention"],
                "rope_parameters": {
                    "sliding_attention": ROPE | {"rope_theta": 2e4, "mrope_section": [24, 20, 20]},
                    "full_attention": None,
                },
            }
        },
        {
            "frequencies": Frequencies(2e4),
            "other_layers": {
                "full_attention": Rotary(AxisSplit((24, 20, 20), "interleaved"), Frequencies(1e4, Zero()))
            },
        },
    ),
    "neomme": (
        {
            "patch_size": 16,
            "head_dim": 32,
            "layer_types": ["full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": ROPE | {"rope_theta": 3e6, "partial_rotary_factor": 0.25},
                "sliding_attention": ROPE | {"rope_theta": 3e4, "partial_rotary_factor": 0.5},
            },
        },
        {
            "patch": 16,
            "head_dim": 32,
            "partial_rotary": 0.5,
            "split": AxisSplit((4, 4), "alternating"),
            "frequencies": Frequencies(3e4),
            "other_layers": {"full_attention": Rotary(AxisSplit((2, 2), "alternating"), Frequencies(3e6))},
        },
    ),
    "qwen2.5-omni": (
        {"thinker_config": {"position_id_per_seconds": 50, "seconds_per_chunk": 3, "text_config": {"rope_theta": 7e5}}},
        {"layout": OmniLayout(2, 50, "chunks", 3), "frequencies": Frequencies(7e5)},
    ),
    "qwen3-omni": (
        {"thinker_config": {"position_id_per_seconds": 25, "vision_config": {"patch_size": 14}}},
        {"layout": OmniLayout(2, 25, "time"), "patch": 14},
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_other_makers_state_wins(name: str, tmp_path: Path) -> None:
    stated, wanted = OTHERS[name]
    config = {"model_type": mrope.family(name).model_types[0], **stated}
    for family in (Family.from_config(config), Family.from_config(write(tmp_path, {"config.json": config}))):
        assert {field: getattr(family, field) for field in wanted} == wanted
        # What is not stated is the record's; limits in tokens hold for patches of any size.
        kept = {"mean", "std", "image_tokens", "slices", "video_pixels", "resize", "stamp", "boxes", "pairing"}
        for field in kept - set(wanted):
            assert getattr(family, field) == getattr(mrope.family(name), field)
    said = [field for field, source in family.sources.items() if str(tmp_path / "config.json") in source]
    assert name == "glm46v" or set(said) & set(wanted)


# Family -> what its image and its video processor state, and what the record becomes.
PROCESSORS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "glm4v": (  # limits of pictures count two frames: 25088 = 16 x 784 x 2
        {"size": {"shortest_edge": 25088, "longest_edge": 1568000}},
        {"size": {"shortest_edge": 12544, "longest_edge": 4704000}, "image_mean": [0.5, 0.5, 0.5]},
        {
            "image_tokens": (16, 1000),
            "image_pixels": None,
            "video_pixels": (12544, 4704000),
            "mean": CLIP_MEAN,
            "video_colours": ((0.5, 0.5, 0.5), CLIP_STD),
        },
    ),
    "hy-v4-vl": (
        {"min_pixels": 1024 * 30, "max_pixels": 1024 * 300},
        {
            "size": {"longest_edge": 1024 * 5000},
            "max_image_size": {"longest_edge": 1024 * 500},
            "image_mean": [0.1, 0.2, 0.3],
            "image_std": [0.4, 0.5, 0.6],
        },
        {
            "image_tokens": (30, 300),
            "video_pixels": (1, 1024 * 5000),
            "frame_pixels": 1024 * 500,
            "video_colours": ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6)),
        },
    ),
    "minicpm-v4.7": (
        {"scale_resolution": 336, "max_slice_nums": 4, "downsample_mode": "4x"},
        {"max_slice_nums": 1},
        {"slices": (336, 4), "merge": 2, "layout": CanvasLayout(merge=2)},
    ),
    "ernie4.5-vl": (  # the temporal patches of its video processor are merged by the model
        {"temporal_patch_size": 1, "size": {"shortest_edge": 7840, "longest_edge": 78400}},
        {"temporal_patch_size": 2},
        {"temporal_patch": 1, "image_tokens": (10, 100)},
    ),
    "qwen2.5-omni": (  # the processors of omni models state the limits of clips in each call
        {"min_pixels": 7840, "max_pixels": 78400},
        {"min_pixels": 7840, "max_pixels": 78400},
        {"image_tokens": (10, 100), "video_pixels": (100352, 602112)},
    ),
    "paddleocr-vl": ({"min_pixels": 80_000, "max_pixels": 90_000}, {}, {"image_pixels": (80_000, 90_000)}),
    "neomme": ({"image_mean": [0.1, 0.2, 0.3]}, {}, {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.5, 0.5)}),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_what_the_processors_of_other_makers_state_wins(name: str, tmp_path: Path) -> None:
    image, video, wanted = PROCESSORS[name]
    config = {"model_type": mrope.family(name).model_types[0]}
    files = {"config.json": config, "preprocessor_config.json": image, "video_preprocessor_config.json": video}
    family = Family.from_config(write(tmp_path, files))
    assert {field: getattr(family, field) for field in wanted} == wanted
    assert any("preprocessor_config.json" in source for source in family.sources.values())
    nested = tmp_path / "nested"
    nested.mkdir()
    files = {"config.json": config, "processor_config.json": {"image_processor": image, "video_processor": video}}
    assert Family.from_config(write(nested, files)) == family


def test_what_was_changed_on_a_loaded_object_counts(tmp_path: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(write(tmp_path, {"config.json": {"model_type": "qwen2_5_vl"}}))
    config.vision_config.tokens_per_second = 25
    config.text_config.rope_parameters["mrope_section"] = [24, 20, 20]
    family = Family.from_config(config)
    assert (family.layout, family.split) == (GridLayout(2, "seconds", 25), AxisSplit((24, 20, 20)))
    assert family.frequencies == Frequencies(1e6)  # which nobody changed


def test_the_file_behind_an_object_from_the_hub_is_found_in_its_cache(tmp_path: Path, monkeypatch: Any) -> None:
    snapshot = tmp_path / "models--maker--checkpoint" / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    write(snapshot, {"config.json": {"model_type": "qwen2_5_vl"}, "preprocessor_config.json": {"max_pixels": 784 * 50}})
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    config = transformers.AutoConfig.from_pretrained(snapshot)
    config._name_or_path, config._commit_hash = "maker/checkpoint", "0123abcd"
    family = Family.from_config(config)
    assert (family.layout, family.image_tokens) == (GridLayout(2, "seconds", 2), (4, 50))
    for gone in ("maker/another", str(tmp_path / "a" / "folder that is gone")):
        config._name_or_path = gone
        assert Family.from_config(config).layout == GridLayout(2, "seconds", 4)  # the class default: its word


@pytest.mark.parametrize(
    ("processor", "tokens", "pixels"),
    [
        ({"min_pixels": 200704, "max_pixels": 1003520}, (256, 1280), (200704, 1003520)),
        ({"size": {"shortest_edge": 200704, "longest_edge": 1003520}}, (256, 1280), (200704, 1003520)),
        ({"size": {"min_pixels": 200704, "max_pixels": 1003520}}, (256, 1280), (200704, 1003520)),
        ({"max_pixels": 1003520, "size": {"longest_edge": 5, "shortest_edge": 3136}}, (4, 1280), (3136, 1003520)),
        ({"max_pixels": 1003520}, (4, 1280), (3136, 1003520)),
        ({"min_pixels": 100_000, "max_pixels": 1_000_000}, (128, 1275), (100_000, 1_000_000)),
    ],
)
def test_pixel_limits_of_any_style(processor: dict, tokens: tuple, pixels: tuple, tmp_path: Path) -> None:
    folder = write(tmp_path, {"config.json": QWEN25_CONFIG, "preprocessor_config.json": processor})
    family = Family.from_config(folder)
    assert (family.image_tokens, family.pixel_limits) == (tokens, pixels)
    assert family.video_pixels == pixels  # without a file of their own, frames have the limits of images


def test_the_nested_processor_file_of_transformers_5_comes_first(tmp_path: Path) -> None:
    size = {"shortest_edge": 1024 * 70, "longest_edge": 1024 * 700}
    nested = {
        "image_processor": QWEN3_PROCESSOR | {"size": size},
        "video_processor": QWEN3_VIDEO | {"size": {"shortest_edge": 5000, "longest_edge": 6000}},
    }
    folder = write(tmp_path, RELEASED["qwen3-vl"] | {"processor_config.json": nested})
    family = Family.from_config(folder)
    assert (family.image_tokens, family.video_pixels) == ((70, 700), (5000, 6000))


def test_the_limits_of_pictures_are_no_limits_of_clips(tmp_path: Path) -> None:
    files = {name: RELEASED["qwen3-vl"][name] for name in ("config.json", "preprocessor_config.json")}
    assert Family.from_config(write(tmp_path, files)).video_pixels == (4096, 25165824)


@pytest.mark.parametrize(
    ("name", "image", "video"),
    [
        ("qwen2.5-vl", transformers.Qwen2VLImageProcessor, "Qwen2VLVideoProcessor"),
        ("qwen3-vl", transformers.Qwen2VLImageProcessor, "Qwen3VLVideoProcessor"),
    ],
)
def test_files_that_transformers_saves_are_read(name: str, image: Any, video: str, tmp_path: Path) -> None:
    tiny_config(name).save_pretrained(tmp_path)
    patch = 16 if name == "qwen3-vl" else 14
    arguments = {"patch_size": patch, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    image(**arguments, size={"shortest_edge": 9 * 1024, "longest_edge": 90 * 1024}).save_pretrained(tmp_path)
    getattr(transformers, video)(**arguments, size={"shortest_edge": 8192, "longest_edge": 81920}).save_pretrained(
        tmp_path
    )
    family = Family.from_config(tmp_path)
    assert (family.mean, family.std, family.patch) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), patch)
    assert (family.pixel_limits, family.video_pixels) == ((9 * 1024, 90 * 1024), (8192, 81920))


# ----------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'; known are qwen2_vl, qwen2_5_vl, qwen3_vl, qwen3_vl_moe"),
        ({}, "model_type is None"),
        (
            changed(QWEN2_CONFIG, rope_scaling__mrope_section=[8, 12, 12]),
            r"\(8, 12, 12\) sums to 32; rotary_dim 128 needs 64",
        ),
        (changed(QWEN2_CONFIG, rope_scaling__mrope_interleaved=True), r"\(16, 24, 24\) does not fit interleaved"),
        (changed(QWEN2_CONFIG, rope_scaling__type="yarn"), "rope parameters of type 'yarn' have no factor"),
        (changed(QWEN3_CONFIG, text_config__rope_scaling__rope_type="spiral"), "rope_type is 'spiral'"),
        (
            changed(QWEN3_CONFIG, text_config__rope_scaling__partial_rotary_factor=0.5),
            r"config: mrope_section \(24, 20, 20\) sums to 64; rotary_dim 64 needs 32",
        ),
        (changed(QWEN3_CONFIG, text_config__rope_theta=-1), r"config: rope base \(rope_theta\) is -1; expected"),
        (changed(QWEN3_CONFIG, vision_config__patch_size=0), "patch in config is 0; expected at least 1"),
        (changed(QWEN3_CONFIG, vision_config__in_channels=4), "in_channels is 4"),
        (changed(QWEN3_CONFIG, vision_config=7), "vision_config in config is 7; expected an object"),
        ({"model_type": "ernie4_5_vl_moe", "vision_config": {"temporal_merge_size": 4}}, "temporal_merge_size is 4 in"),
        (
            {"model_type": "paddleocr_vl", "vision_config": {"num_channels": 1}},
            "in_channels is 1 in config; expected 3",
        ),
        ({"model_type": "minicpmv4_7", "downsample_mode": "8x"}, "downsample_mode in config is '8x'; expected one of"),
        ({"model_type": "glm4v", "text_config": {"partial_rotary_factor": 1}}, r"\(8, 12, 12\) sums to 32"),
        (
            changed(QWEN3_CONFIG, text_config__rope_scaling=[1]),
            r"rope_scaling in config is \[1\]; expected an object",
        ),
    ],
)
def test_a_config_that_cannot_be_honoured_is_refused(config: dict, why: str) -> None:
    with pytest.raises(ValueError, match=why) as error:
        Family.from_config(config)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("processor", "why"),
    [
        ({"patch_size": 16}, r"patch is 14 in .*config.json, but 16 in .*preprocessor_config.json; expected one value"),
        ({"min_pixels": 0}, "min_pixels in .*preprocessor_config.json is 0; expected at least 1"),
        ({"min_pixels": 9000, "max_pixels": 8000}, "the most is below the least"),
        ({"size": {"height": 3, "width": 4}}, "expected shortest_edge and longest_edge"),
        ({"do_resize": False}, "preprocessor_config.json: do_resize is False; only True is built for qwen2.5-vl"),
        ({"resample": 2}, "preprocessor_config.json: resample is 2; only 3 is built for qwen2.5-vl"),
        ({"image_mean": 0.5}, "preprocessor_config.json: image_mean is 0.5; expected 3 numbers"),
    ],
)
def test_a_processor_that_cannot_be_honoured_is_refused(processor: dict, why: str, tmp_path: Path) -> None:
    folder = write(tmp_path, {"config.json": QWEN25_CONFIG, "preprocessor_config.json": processor})
    with pytest.raises(ValueError, match=why) as error:
        Family.from_config(folder)
    assert "\n" not in str(error.value)


def test_a_folder_that_holds_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Qwen2-VL-7B is not a folder; expected a checkpoint folder"):
        Family.from_config("Qwen/Qwen2-VL-7B")
    with pytest.raises(ValueError, match=r"has no config.json; expected a checkpoint folder"):
        Family.from_config(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": ')
    with pytest.raises(ValueError, match=r"config.json is not valid JSON: "):
        Family.from_config(tmp_path)
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"config.json is not valid JSON: "):
        Family.from_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"config.json holds a JSON list; expected an object"):
        Family.from_config(tmp_path)
    with pytest.raises(TypeError, match="config is a int; expected a checkpoint folder, a dict or a transformers"):
        Family.from_config(7)
