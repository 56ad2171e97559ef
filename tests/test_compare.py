"""Where two models part ways: the stage, the token and the numbers, held against what was changed by hand."""

from __future__ import annotations

import copy
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import timm
import torch
import transformers
from every_family import MODEL_TYPES
from plug_cases import batch as tiny_batch
from plug_cases import long_clip, pictures
from plug_cases import model_of as sharp_model
from plug_families import batch, by_hand, of_families, pixels_of, still
from plug_families import model_of as family_model
from sources import ROOT
from tiny_models import tiny_config, tiny_model
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

import mrope
import mrope.cli
from mrope.hf import Comparison, Stage, build_vlm, compare, plug
from mrope.hf.reading import record_of

this_version = pytest.mark.skipif(
    not transformers.__version__.startswith("5.24."), reason="what the library itself computes is compared on 5.24 only"
)
NAME = "qwen2.5-vl"
# Where the tests' prompts have no pixels, or the tower of their small model is not as wide as its language model.
WITHOUT_PIXELS = ("neomme", "minicpmv4_7", "glm_image", "qwen2_vl")
PADDING = 7  # of the first row of `inputs`, on the left


def model() -> Any:
    """One model for all tests, which leave it as it was; its attention is sharp, so that positions show."""
    return sharp_model(NAME)


@pytest.fixture
def other() -> Any:
    """Another one with the same weights, which a test may change."""
    return copy.deepcopy(model())


def inputs() -> dict[str, Tensor]:
    """Rows of 4 words, a picture of 2 x 3 cells, 3 words, one of 3 x 2, 5 words; and 3 words, a clip, 4 words."""
    return tiny_batch(NAME, pictures(NAME)).inputs


def stage(comparison: Comparison, name: str) -> Stage:
    return next(each for each in comparison.stages if each.name == name)


def first(comparison: Comparison) -> Stage:
    assert comparison.first is not None
    return comparison.first


def parting(comparison: Comparison) -> list[str]:
    return [each.name for each in comparison.stages if each.parts]


def test_equal_models_part_nowhere(other: Any) -> None:
    result = compare(model(), other, inputs())
    assert result.first is None
    assert [each.name for each in result.stages] == [
        "input_ids",
        "positions",
        "pixel_values",
        "pixel_values_videos",
        "vision cos/sin",
        "vision layer 0",
        "vision output",
        "cos/sin",
        "embeddings",
        "layer 0",
        "layer 1",
        "output",
        "logits",
    ]
    assert all(each.largest == 0 and not each.differences.any() for each in result.stages)
    assert "nowhere apart" in str(result)
    # two pictures of 24 patches and a clip of 2 x 48, one after the other; a token has four of them
    assert stage(result, "vision layer 0").differences.shape == (1, 144)
    assert stage(result, "vision output").differences.shape == (1, 36)
    assert stage(result, "logits").differences.shape == result.mask.shape == (2, 31)
    assert result.kinds[0].tolist() == [0] * (PADDING + 4) + [1] * 6 + [0] * 3 + [1] * 6 + [0] * 5
    assert result.mask[:, 0].tolist() == [False, True]


def test_rows_and_columns_in_each_others_place_part_at_positions(other: Any) -> None:
    def swapped(base: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        ids, deltas = type(base).get_rope_index(base, *args, **kwargs)
        return ids[[0, 2, 1]], deltas

    other.model.get_rope_index = MethodType(swapped, other.model)
    result = compare(model(), other, inputs())
    # The second cell of the first picture is in row 0 and column 1: (4, 4, 5), and (4, 5, 4) when swapped.
    assert first(result).name == "positions"
    assert first(result).place == (0, PADDING + 4 + 1, 1)
    assert first(result).values == (4, 5)
    assert "apart from positions on, row 0, token 12, axis h: 4 against 5" in str(result)
    assert parting(result) == ["positions", "cos/sin", "layer 0", "layer 1", "output", "logits"]


def test_a_weight_of_a_layer_parts_at_that_layer_and_no_earlier(other: Any) -> None:
    other.model.language_model.layers[1].mlp.down_proj.weight.data[5] += 1
    result = compare(model(), other, inputs())
    assert parting(result) == ["layer 1", "output", "logits"]
    assert first(result).place == (0, PADDING, 5)
    assert all(each.largest == 0 for each in result.stages[:10])


def test_a_weight_of_the_tower_parts_there_and_at_the_pictures_alone(other: Any) -> None:
    other.model.visual.blocks[0].mlp.down_proj.weight.data[3] += 1
    result = compare(model(), other, inputs())
    assert parting(result)[:3] == ["vision layer 0", "vision output", "embeddings"]
    assert first(result).place == (0, 0, 3)
    assert "patch 0, channel 3" in str(result)
    seen = stage(result, "embeddings").differences > 0
    assert torch.equal(seen, result.kinds != 0)


def test_another_base_parts_at_cos_and_sin() -> None:
    config = copy.deepcopy(model().config)
    config.text_config.rope_parameters["rope_theta"] = 5e5
    other = type(model())(config).eval()
    other.load_state_dict(model().state_dict())
    result = compare(model(), other, inputs())
    assert first(result).name == "cos/sin"
    # Token 0 has angles of 0, and the first pair turns by one radian whatever the base.
    assert first(result).place == (0, PADDING + 1, 1)
    assert first(result).values == pytest.approx((math.cos(1e6 ** (-1 / 64)), math.cos(5e5 ** (-1 / 64))), abs=1e-6)
    assert not stage(result, "embeddings").parts


def test_bfloat16_is_allowed_its_rounding_and_no_more() -> None:
    whole, rounded = tiny_model(NAME), tiny_model(NAME)
    for weight in rounded.parameters():
        weight.data = weight.data.bfloat16()
    result = compare(whole, rounded, inputs())
    assert result.first is None
    assert (stage(result, "positions").tolerance, stage(result, "logits").tolerance) == (1e-4, 8 * 2**-7)
    strict = compare(whole, rounded, inputs(), tolerance=1e-4)
    assert first(strict).name.startswith("vision")
    assert stage(strict, "logits").parts
    rounded.model.language_model.layers[1].mlp.down_proj.weight.data[5] += 1
    assert first(compare(whole, rounded, inputs())).name == "layer 1"


@this_version
def test_a_model_cast_as_a_whole_is_found_at_its_rounded_frequencies() -> None:
    result = compare(tiny_model(NAME), tiny_model(NAME).bfloat16(), inputs())
    assert first(result).name == "vision cos/sin"
    assert stage(result, "cos/sin").parts


def test_another_kernel_rounds_otherwise_and_parts_nowhere(other: Any) -> None:
    other.set_attn_implementation("sdpa")
    result = compare(model(), other, inputs())
    assert result.first is None
    assert stage(result, "logits").largest > 0


@this_version
@pytest.mark.parametrize(("name", "following"), [("qwen2-vl", 13), ("qwen2.5-vl", 29), ("qwen3-vl", None)])
def test_behind_a_long_clip_the_library_parts_from_the_trained_rule(name: str, following: int | None) -> None:
    # 4 words, 9 steps of 2 x 3 cells: the library goes on at 4 + 3, the trained rule behind the last step, which is
    # at 4 + 8, or at 2 positions a second and 1.5 seconds a step at 4 + 24. Stamped frames take 3 positions each.
    result = compare(sharp_model(name), name, tiny_batch(name, long_clip(name)).inputs)
    assert result.names[1] == f"{name} plugged"
    if following is None:
        assert result.first is None
    else:
        assert (first(result).name, first(result).place) == ("positions", (0, 4 + 54, 0))
        assert first(result).values == (7, following)
        behind = stage(result, "logits").place
        assert behind is not None
        assert behind[:2] == (0, 4 + 54)


@pytest.mark.parametrize("name", ["qwen2-vl", "qwen2.5-vl", "qwen3-vl"])
def test_our_positions_and_rotary_part_nowhere_where_the_library_is_right(name: str) -> None:
    assert compare(tiny_model(name), mrope.family(name), tiny_batch(name, pictures(name)).inputs).first is None


@this_version
@of_families(MODEL_TYPES)
def test_every_family_against_ours(model_type: str) -> None:
    made, of_type = batch(model_type, still(model_type)), family_model(model_type)
    given = dict(made.inputs)
    if model_type == "neomme":  # whose processor makes the ids
        given["position_ids"] = by_hand(model_type, made)[0]
    stages = {"input_ids", "positions", "embeddings", "layer 0", "output", "logits"}
    if model_type not in WITHOUT_PIXELS:
        given |= pixels_of(model_type, made)
        stages |= {"pixel_values", "vision layer 0", "vision output"}
    result = compare(of_type, record_of(of_type.config), given)
    assert stages <= {each.name for each in result.stages}
    # HunyuanVL of the library turns the two channels of a pair by angles of different axes.
    assert parting(result)[:1] == (["cos/sin"] if model_type == "hunyuan_vl" else [])


def test_a_plugged_model_against_another_split(other: Any) -> None:
    split = mrope.AxisSplit((24, 20, 20), "interleaved")
    with plug(other, split=split):
        result = compare(model(), other, inputs())
    assert first(result).name == "cos/sin"
    # In the text before the picture all axes are equal; the first picture's second cell is the first that is not.
    place = first(result).place
    assert place is not None
    assert place[:2] == (0, PADDING + 4 + 1)


def test_pixels_of_two_processors_part_at_the_patch(other: Any) -> None:
    given = inputs()
    pixels = given["pixel_values"].clone()
    pixels[30, 7] += 1
    result = compare(model(), other, (given, given | {"pixel_values": pixels}))
    assert first(result).name == "pixel_values"
    assert first(result).place == (0, 30, 7)
    assert first(result).largest == pytest.approx(1, abs=1e-5)
    # Patches 24 to 47 are those of the second picture, behind 4 words, 6 cells and 3 words.
    changed = stage(result, "embeddings").differences > 0
    assert set(changed.nonzero()[:, 1].tolist()) <= set(range(PADDING + 13, PADDING + 19))
    assert changed.any()


@of_families(["minicpmv4_7"])
def test_pixels_in_a_strip_part_at_the_patch(model_type: str) -> None:
    given = batch(model_type, still(model_type)).inputs
    sizes = [given[name] for name in ("target_sizes", "target_sizes_videos") if name in given]
    strips = [torch.randn(1, 3, 16, 16 * int(size.prod(-1).sum())) for size in sizes]
    given |= dict(zip(("pixel_values", "pixel_values_videos"), strips, strict=False))
    changed = strips[0].clone()
    changed[0, 1, 2, 16 * 30 + 5] += 1  # channel 1, row 2 and column 5 of patch 30
    of_type = family_model(model_type)
    result = compare(of_type, of_type, (given, given | {"pixel_values": changed}))
    assert (first(result).name, first(result).place) == ("pixel_values", (0, 30, (1 * 16 + 2) * 16 + 5))
    assert stage(result, "vision output").parts


def test_words_of_two_processors_part_at_the_token(other: Any) -> None:
    given = inputs()
    words = given["input_ids"].clone()
    words[1, 29] = 77
    result = compare(model(), other, (given, given | {"input_ids": words}))
    assert (first(result).name, first(result).place) == ("input_ids", (1, 29, 0))
    assert first(result).values == (given["input_ids"][1, 29], 77)
    assert not stage(result, "positions").parts
    assert not stage(result, "logits").differences[0].any()


def test_prompts_of_different_lengths_part_at_their_shapes(other: Any) -> None:
    text = torch.tensor([[11, 12, 13, 14]])
    result = compare(model(), other, ({"input_ids": text}, {"input_ids": text[:, :3]}))
    assert first(result).note == "shape (1, 4, 1) against (1, 3, 1)"
    assert "shape (1, 4, 1) against (1, 3, 1)" in str(result)
    assert first(result).largest == math.inf


def test_the_layers_of_a_deeper_model_come_before_the_output() -> None:
    """The further layer adds nothing to what goes through it, so that all else is equal."""
    config = tiny_config(NAME)
    config.text_config.num_hidden_layers, config.text_config.layer_types = 3, ["full_attention"] * 3
    deeper = type(model())(config).eval()
    deeper.load_state_dict(model().state_dict(), strict=False)
    extra = deeper.model.language_model.layers[2]
    for part in (extra.self_attn.o_proj, extra.mlp.down_proj):
        part.weight.data.zero_()
    result = compare(model(), deeper, inputs())
    assert [each.name for each in result.stages][-4:] == ["layer 1", "layer 2", "output", "logits"]
    assert parting(result) == ["layer 2"]
    assert first(result).note == "only model_b has it"
    assert parting(compare(deeper, model(), inputs())) == ["layer 2"]


def test_rows_that_are_padded_otherwise_are_compared_by_their_tokens(other: Any) -> None:
    left, right = inputs(), tiny_batch(NAME, pictures(NAME), "right").inputs
    right |= {name: left[name] for name in ("pixel_values", "pixel_values_videos")}
    kept = [each["attention_mask"].bool() for each in (left, right)]
    right["input_ids"][kept[1]] = left["input_ids"][kept[0]]
    wider = {name: torch.nn.functional.pad(right[name], (0, 3)) for name in right if right[name].shape == kept[1].shape}
    with plug(other):
        for pair in ((left, right), (right, left), (left, right | wider)):
            result = compare(other, other, pair)
            assert result.first is None
            assert result.mask[0].tolist() == [True] * 24 + [False] * 7
            assert result.kinds[0, :24].tolist() == [0] * 4 + [1] * 6 + [0] * 3 + [1] * 6 + [0] * 5
        right["input_ids"][0, 12] = 77
        changed = compare(other, other, (left, right))
    assert (first(changed).name, first(changed).place) == ("input_ids", (0, 12, 0))
    assert first(changed).values == (left["input_ids"][0, PADDING + 12], 77)
    assert not stage(changed, "positions").parts


def test_a_token_that_only_one_mask_keeps_is_compared(other: Any) -> None:
    given = {"input_ids": torch.tensor([[11, 12, 13, 14]]), "attention_mask": torch.tensor([[0, 1, 1, 1]])}
    whole = {"input_ids": torch.tensor([[10, 12, 13, 14]]), "attention_mask": torch.tensor([[1, 1, 1, 1]])}
    for pair in ((given, whole), (whole, given)):
        assert first(compare(model(), other, pair)).place == (0, 0, 0)


def test_a_layer_that_only_one_has(other: Any) -> None:
    other.model.language_model.layers = other.model.language_model.layers[:1]
    result = compare(model(), other, inputs())
    assert parting(result) == ["layer 1", "output", "logits"]
    assert first(result).note == "only model_a has it"


def test_what_only_padding_has_is_no_difference(other: Any) -> None:
    given = inputs()
    words = given["input_ids"].clone()
    words[0, :PADDING] = 77
    assert compare(model(), other, (given, given | {"input_ids": words})).first is None


def test_nan_is_found(other: Any) -> None:
    other.lm_head.weight.data[9] = torch.nan
    result = compare(model(), other, inputs())
    assert parting(result) == ["logits"]
    assert first(result).place == (0, PADDING, 9)
    assert first(result).largest == math.inf


def test_nan_that_both_have_is_no_agreement(other: Any) -> None:
    other.model.language_model.layers[1].mlp.down_proj.weight.data[5] = torch.nan
    result = compare(other, copy.deepcopy(other), inputs())
    assert parting(result) == ["layer 1", "output", "logits"]
    assert first(result).place == (0, PADDING, 5)
    assert "row 0, token 7, channel 5: nan against nan" in str(result)


def test_the_table_says_exact_of_words_and_positions(other: Any) -> None:
    tolerances = {line.split("  ")[0]: line.split()[-1] for line in str(compare(model(), other, inputs())).splitlines()}
    assert [tolerances[name] for name in ("input_ids", "positions", "embeddings")] == ["exact", "exact", "0.0001"]


def test_models_are_left_as_they_were(other: Any) -> None:
    other.train()
    other.model.rope_deltas = before = torch.tensor([[5]])
    weights = {name: weight.clone() for name, weight in other.state_dict().items()}
    compare(other, NAME, inputs())
    assert other.training
    assert all(module.training for module in other.modules())
    assert other.model.rope_deltas is before
    assert all(torch.equal(weight, weights[name]) for name, weight in other.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in other.modules())
    assert "get_rope_index" not in other.model.__dict__
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        compare(other, NAME, inputs() | {"pixel_values": torch.zeros(4, 1176)})
    assert other.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in other.modules())


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks for it
def test_inside_an_adapter(other: Any) -> None:
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(other, peft.LoraConfig(target_modules=r".*layers\.1\.mlp\.down_proj"))
    assert compare(model(), adapted, inputs()).first is None
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            weight.data += 1
    assert first(compare(model(), adapted, inputs())).name == "layer 1"


def test_a_base_model_has_no_logits(other: Any) -> None:
    result = compare(model().model, other.model, inputs())
    assert result.first is None
    assert result.stages[-1].name == "output"


def test_the_picture(other: Any, tmp_path: Path) -> None:
    other.model.language_model.layers[1].mlp.down_proj.weight.data[5] += 1
    result = compare(model(), other, inputs())
    result.plot(tmp_path / "apart.svg")
    drawn = (tmp_path / "apart.svg").read_text()
    for words in ("apart from layer 1 on; row 0, token 7, channel 5", "vision layer 0", "logits", "image", "clip"):
        assert f"<!-- {words}" in drawn
    assert "<!-- audio" not in drawn
    compare(model(), other, {"input_ids": torch.tensor([[11, 12, 13]])}).plot(tmp_path / "text.png")
    assert (tmp_path / "text.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_more_tokens_than_columns(other: Any, tmp_path: Path) -> None:
    given = {"input_ids": torch.arange(2500)[None] % 400 + 20}
    compare(model(), other, given).plot(tmp_path / "long.png")
    assert [each.name for each in tmp_path.iterdir()] == ["long.png"]


def test_without_matplotlib_the_extra_is_named(other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = compare(model(), other, {"input_ids": torch.tensor([[11, 12, 13]])})
    with pytest.raises(ValueError, match=r"ends in '\.jpg'; expected \.png, \.svg or \.pdf"):
        result.plot(tmp_path / "apart.jpg")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"mrope\[plot\]"):
        result.plot(tmp_path / "apart.png")


def test_what_is_refused(other: Any) -> None:
    given = inputs()
    with pytest.raises(ValueError, match=r"model_b is 'qwen3-vl'; expected a model, or 'qwen2\.5-vl'"):
        compare(model(), "qwen3-vl", given)
    with pytest.raises((TypeError, ValueError), match="model_b"):
        compare(model(), 5, given)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="model is a Linear"):
        compare(model(), nn.Linear(2, 2), given)
    with pytest.raises(ValueError, match="tolerance is 0"):
        compare(model(), other, given, tolerance=0)
    with pytest.raises(ValueError, match=r"inputs hold \['attention_mask'\]; expected input_ids or inputs_embeds"):
        compare(model(), other, {"attention_mask": given["attention_mask"]})
    with pytest.raises(TypeError, match=r"image_grid_thw is a list; expected a tensor \(n, 3\)"):
        compare(model(), other, (given, given | {"image_grid_thw": [[1, 4, 6], [1, 6, 4]]}))
    beyond = given["input_ids"].clone()
    beyond[1, 25] = 99999
    with pytest.raises(ValueError, match=r"input_ids hold 99999; expected 0 to 511, the words of the Qwen2_5_VL"):
        compare(model(), other, given | {"input_ids": beyond})
    with pytest.raises(ValueError, match=r"inputs do not run through the Qwen3VL.*, for each its own"):
        compare(model(), sharp_model("qwen3-vl"), given)  # patches of 14 pixels for patches of 16
    with pytest.raises(ValueError, match="is plugged already"), plug(other):
        compare(other, NAME, given)


# ---------------------------------------------------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders one and other, which differ in channel 5 behind layer 1, and batches: of pictures, and of a long clip."""
    folder = tmp_path_factory.mktemp("saved")
    changed = copy.deepcopy(model())
    changed.model.language_model.layers[1].mlp.down_proj.weight.data[5] += 1
    for name, each in (("one", model()), ("other", changed)):
        each.save_pretrained(folder / name)
    beside = {"image_sizes": torch.tensor([[56, 84], [84, 56]])}  # which `mrope doctor` reads
    torch.save(inputs() | beside, folder / "batch.pt")
    torch.save(dict(tiny_batch(NAME, long_clip(NAME)).inputs), folder / "long.pt")
    return folder


def command(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    given = (sys.executable, "-m", "mrope", "compare", *words)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(given, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def run(*words: str) -> Any:
    """The same in this process."""
    return CliRunner().invoke(mrope.cli.app, ("compare", *words))


def test_the_command_on_a_folder_and_itself(saved: Path) -> None:
    result = command(saved, "one", "one", "--inputs", "batch.pt")
    assert (result.returncode, result.stdout.splitlines()[0]) == (0, "one against one: nowhere apart")
    assert result.stdout.splitlines()[-1].split() == ["logits", "0", "0", "0.0001"]


def test_the_command_on_two_folders_that_part(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(saved)
    plot = tmp_path / "apart.svg"
    result = command(saved, "one", "other", "--inputs", "batch.pt", "--plot", str(plot))
    first, *_, last = result.stdout.splitlines()
    assert result.returncode == 1
    assert first.startswith(f"one against other: apart from layer 1 on, row 0, token {PADDING}, channel 5: ")
    assert last == f"wrote {plot}"
    assert "<!-- one against other" in plot.read_text()
    told = json.loads(run("one", "other", "--inputs", "batch.pt", "--json").stdout)
    assert (told["names"], told["ok"], told["first"]) == (["one", "other"], False, "layer 1")
    stages = {each["name"]: each for each in told["stages"]}
    assert stages["layer 1"]["place"] == [0, PADDING, 5]
    assert [name for name, each in stages.items() if each["parts"]] == ["layer 1", "output", "logits"]


@this_version
def test_the_command_on_a_folder_and_its_family(saved: Path) -> None:
    result = command(saved, "one", NAME, "--inputs", "long.pt")
    # 4 words and 9 steps of 2 x 3 cells; the library goes on at 7, the trained rule at 4 + 24 + 1
    wanted = f"one against {NAME} plugged: apart from positions on, row 0, token 58, axis t: 7 against 29"
    assert (result.returncode, result.stdout.splitlines()[0]) == (1, wanted)


def test_the_command_on_folders_of_a_built_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    vit = timm.create_model("vit_tiny_patch16_224", img_size=64, embed_dim=24, depth=1, num_heads=3, num_classes=0)
    config = copy.deepcopy(model().config.text_config)
    text = transformers.Qwen2Config(**{**config.to_dict(), "rope_parameters": {"rope_type": "default"}})
    built: Any = build_vlm(vit, AutoModelForCausalLM.from_config(text), split=mrope.AxisSplit((24, 20, 20)), merge=2)
    for name, size in (("one", 0), ("other", 1)):
        built.language_model.model.layers[1].mlp.down_proj.weight.data[5] += size
        built.save_pretrained(name)
    place = built.config.image_token_id
    words = torch.tensor([[11, 12, *[place] * 6, 13]])  # 2 x 3 cells
    given = {"input_ids": words, "pixel_values": torch.randn(24, 768), "image_grid_thw": torch.tensor([[1, 4, 6]])}
    torch.save(given, "batch.pt")
    same = run("one", "one", "--inputs", "batch.pt")
    assert same.exit_code == 0, same.stderr
    told = run("one", "other", "--inputs", "batch.pt")
    assert told.exit_code == 1
    assert told.stdout.startswith("one against other: apart from layer 1 on, row 0, token 0, channel 5: ")


def test_json_of_the_command_has_null_for_what_is_no_number(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(saved)
    spoiled = copy.deepcopy(model())
    spoiled.lm_head.weight.data[9] = torch.nan
    spoiled.save_pretrained(tmp_path)
    result = run("one", str(tmp_path), "--inputs", "batch.pt", "--json")
    assert result.exit_code == 1
    stage = json.loads(result.stdout, parse_constant=pytest.fail)["stages"][-1]
    assert (stage["name"], stage["place"], stage["largest"]) == ("logits", [0, PADDING, 9], None)
    assert stage["values"][1] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("one", "qwen9", "--inputs", "batch.pt"), "B is 'qwen9'; expected a checkpoint folder, or a family: qwen2-vl"),
        (("nowhere", "one", "--inputs", "batch.pt"), "nowhere is not a folder"),
        (("one", "qwen3-vl", "--inputs", "batch.pt"), "model_b is 'qwen3-vl'; expected a model, or 'qwen2.5-vl'"),
        (("one", "other", "--inputs", "no.pt"), "no.pt: No such file"),
        (("one", "other", "--inputs", "batch.pt", "--plot", "apart.jpg"), "ends in '.jpg'"),
    ],
    ids=["no family", "no folder", "another family", "no batch", "no picture"],
)
def test_what_the_command_refuses_takes_one_line(
    words: tuple[str, ...], message: str, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(saved)
    result = run(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    line = result.stderr.splitlines()[-1]  # behind the bars of transformers, which loads weights
    assert line.startswith("mrope compare: ")
    assert message in line
