"""Plugged models with adapters of peft and on device maps of accelerate: in, out and saved, in every order."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from plug_cases import batch, by_hand, long_clip, model_of
from test_plug_decoding import assert_same, generate, greedy
from tiny_models import Sample, tiny_model
from torch import Tensor

from mrope import AxisSplit
from mrope.hf import plug, unplug

peft: Any = pytest.importorskip("peft", reason="adapters need peft")
accelerate: Any = pytest.importorskip("accelerate", reason="device maps need accelerate")

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft's
by_name = pytest.mark.parametrize("name", ["qwen2.5-vl", "qwen3-vl"])
SPLIT = AxisSplit((20, 22, 22))  # another than trained, so that its rotary shows in the logits
DISK = {"model.visual": "cpu", "model.language_model": "disk", "lm_head": "cpu"}


def fresh(name: str) -> Any:
    return copy.deepcopy(model_of(name))


def adapted(model: Any, **settings: Any) -> Any:
    """`model` with adapters in text and tower, which change what it computes from the start, always the same ones."""
    torch.manual_seed(1)
    targets = ["q_proj", "v_proj", "qkv"]
    options = peft.LoraConfig(r=4, target_modules=targets, init_lora_weights=False, task_type="CAUSAL_LM", **settings)
    return peft.get_peft_model(model, options).eval()


@torch.no_grad()
def logits(model: Any, made: Sample, **more: Any) -> Tensor:
    return model(**made.inputs, **more).logits


def ours_in(model: Any) -> list[str]:
    """The names of all that a plug puts into modules."""
    return [key for module in model.modules() for key in module.__dict__ if key.startswith("_mrope")]


# ------------------------------------------------------------------------------------------------------------ adapters


@by_name
@pytest.mark.parametrize("first", ["adapters", "plug"])
def test_adapters_before_the_plug_and_behind_it(name: str, first: str) -> None:
    model, made = fresh(name), batch(name, long_clip(name))
    ids = by_hand(name, made)
    if first == "plug":
        plug(model, rotary=True)
        wrapper = adapted(model)
    else:
        wrapper = adapted(model)
        plug(wrapper, rotary=True)
    got = logits(wrapper, made)
    written = generate(wrapper, made.inputs)
    with wrapper.disable_adapter():
        bare = logits(wrapper, made)
    unplug(wrapper)
    assert torch.equal(got, logits(wrapper, made, position_ids=ids))
    assert not torch.allclose(got, logits(wrapper, made, position_ids=ids[[0, 2, 1]]), rtol=0, atol=1e-2)
    with torch.no_grad():
        assert_same(written, greedy(wrapper, made, ids, 8))
    assert torch.equal(bare, logits(model_of(name), made, position_ids=ids))
    assert not torch.allclose(got, bare, rtol=0, atol=1e-2)
    assert not ours_in(wrapper)


@by_name
def test_adapters_that_transformers_adds_itself(name: str) -> None:
    model, made = fresh(name), batch(name, long_clip(name))
    with plug(model):
        try:
            model.add_adapter(peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
        except ValueError as error:
            if "version of PEFT you are using is not compatible" in str(error):
                pytest.skip(f"this transformers refuses peft {peft.__version__}")
            raise
        got = logits(model, made)
        model.disable_adapters()
        bare = logits(model, made)
    assert torch.equal(bare, logits(model_of(name), made, position_ids=by_hand(name, made)))
    model.enable_adapters()
    assert torch.equal(got, logits(model, made, position_ids=by_hand(name, made)))
    assert not torch.allclose(got, bare, rtol=0, atol=1e-2)


@by_name
def test_adapters_train_as_with_positions_by_hand(name: str) -> None:
    made = batch(name, long_clip(name), "right")
    labels = made.inputs["input_ids"].masked_fill(made.inputs["attention_mask"] == 0, -100)
    wrapper = adapted(fresh(name))
    trained = [parameter for parameter in wrapper.parameters() if parameter.requires_grad]
    wanted = torch.autograd.grad(wrapper(**made.inputs, labels=labels, position_ids=by_hand(name, made)).loss, trained)
    with plug(wrapper):
        got = torch.autograd.grad(wrapper(**made.inputs, labels=labels).loss, trained)
    assert all(map(torch.equal, got, wanted))
    assert all(gradient.any() for gradient in got)


@by_name
def test_adapters_of_a_plugged_model_are_merged(name: str, tmp_path: Path) -> None:
    model, made = fresh(name), batch(name, long_clip(name))
    plug(model, rotary=True)
    wrapper = adapted(model)
    wanted = logits(wrapper, made)
    merged = wrapper.merge_and_unload()
    assert merged is model
    got = logits(merged, made)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    merged.save_pretrained(tmp_path)
    unplug(merged)
    assert torch.equal(got, logits(merged, made, position_ids=by_hand(name, made)))
    assert not ours_in(merged)
    again = type(model).from_pretrained(tmp_path, attn_implementation="eager").eval()
    with plug(again):
        assert torch.equal(logits(again, made), got)


@by_name
def test_adapters_that_are_taken_off_a_plugged_model_leave_it_as_it_was(name: str) -> None:
    model, made = fresh(name), batch(name, long_clip(name))
    plug(model, rotary=True)
    bare = adapted(model).unload()
    assert torch.equal(logits(bare, made), logits(model_of(name), made, position_ids=by_hand(name, made)))
    unplug(bare)
    assert torch.equal(logits(bare, made), logits(model_of(name), made))


@by_name
def test_adapters_of_a_plugged_model_are_saved_and_loaded(name: str, tmp_path: Path) -> None:
    model, made = fresh(name), batch(name, long_clip(name))
    wrapper = adapted(model)
    wrapper.save_pretrained(tmp_path / "plain")
    plug(wrapper, rotary=True)
    wrapper.save_pretrained(tmp_path / "plugged")
    wanted = logits(wrapper, made)
    for file in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "plain" / file).read_bytes() == (tmp_path / "plugged" / file).read_bytes()
    again = fresh(name)
    plug(again)
    again = peft.PeftModel.from_pretrained(again, tmp_path / "plugged").eval()
    assert torch.equal(logits(again, made), wanted)


@by_name
@pytest.mark.parametrize("first", ["adapters", "plug"])
def test_a_tower_that_adapters_copy_to_train_it_whole(name: str, first: str) -> None:
    model, made = fresh(name), batch(name, long_clip(name))
    if first == "plug":
        plug(model, rotary=True)
    wrapper = adapted(model, modules_to_save=["visual"])
    if first == "adapters":
        plug(wrapper, rotary=True)
    got = logits(wrapper, made)
    unplug(wrapper)
    assert torch.equal(got, logits(wrapper, made, position_ids=by_hand(name, made)))


# --------------------------------------------------------------------------------------------------------- device maps


def dispatch(model: Any, folder: Path) -> None:
    """Hooks on the modules of `model`, which load what lies in `folder` for each forward."""
    accelerate.dispatch_model(model, DISK, offload_dir=str(folder))
    assert hasattr(model.model.language_model.rotary_emb, "_hf_hook")
    assert {"cpu", "meta"} == {parameter.device.type for parameter in model.parameters()}


def remove(model: Any) -> None:
    accelerate.hooks.remove_hook_from_submodules(model)


ORDERS = ["plug dispatch unplug remove", "plug dispatch remove unplug"]
ORDERS += ["dispatch plug unplug remove", "dispatch plug remove unplug"]


@by_name
@pytest.mark.parametrize("order", ORDERS)
def test_hooks_that_load_weights_come_and_go_around_a_plug(name: str, order: str, tmp_path: Path) -> None:
    model, made = fresh(name), batch(name, long_clip(name))
    plain = logits(model, made)
    with plug(model, split=SPLIT):
        wanted = logits(model, made)
        written = generate(model, made.inputs, 4)
    assert not torch.allclose(wanted, plain, rtol=0, atol=1e-2)
    steps: dict[str, Callable[[], Any]] = {
        "plug": lambda: plug(model, split=SPLIT),
        "dispatch": lambda: dispatch(model, tmp_path),
        "unplug": lambda: unplug(model),
        "remove": lambda: remove(model),
    }
    plugged = False
    for step in order.split():
        steps[step]()
        plugged = step == "plug" or (plugged and step != "unplug")
        assert torch.equal(logits(model, made), wanted if plugged else plain), step
        if plugged:
            assert_same(generate(model, made.inputs, 4), written)
    assert not ours_in(model)


@by_name
def test_hooks_of_a_map_with_one_device(name: str) -> None:
    model, made = fresh(name), batch(name, long_clip(name))
    with plug(model, split=SPLIT):
        wanted, written = logits(model, made), generate(model, made.inputs, 4)
    accelerate.dispatch_model(model, {"": "cpu"}, force_hooks=True)
    with plug(model, split=SPLIT):
        assert torch.equal(logits(model, made), wanted)
        assert_same(generate(model, made.inputs, 4), written)
    assert not ours_in(model)


@by_name
@pytest.mark.filterwarnings("ignore:Attempting to save a model with offloaded modules:UserWarning")
@pytest.mark.parametrize("places", [{"": "cpu"}, DISK], ids=["cpu", "disk"])
def test_a_checkpoint_is_loaded_by_a_device_map_and_saved_again(name: str, places: Any, tmp_path: Path) -> None:
    model, made = tiny_model(name), batch(name, long_clip(name))
    wanted = logits(model, made, position_ids=by_hand(name, made))
    model.save_pretrained(tmp_path / "first")
    loaded = type(model).from_pretrained(
        tmp_path / "first", device_map=places, offload_folder=str(tmp_path / "disk"), attn_implementation="eager"
    )
    with plug(loaded, rotary=True):
        assert torch.equal(logits(loaded, made), wanted)
        loaded.save_pretrained(tmp_path / "second")
        assert torch.equal(logits(loaded, made), wanted)
    again = type(model).from_pretrained(tmp_path / "second", attn_implementation="eager")
    for name, parameter in again.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name


@by_name
def test_adapters_on_a_device_map(name: str, tmp_path: Path) -> None:
    model, made = fresh(name), batch(name, long_clip(name))
    plug(model, rotary=True)
    accelerate.dispatch_model(model, {"": "cpu"}, force_hooks=True)
    wrapper = adapted(model)
    got = logits(wrapper, made)
    unplug(wrapper)
    assert torch.equal(got, logits(wrapper, made, position_ids=by_hand(name, made)))
    assert torch.equal(got, logits(adapted(fresh(name)), made, position_ids=by_hand(name, made)))
