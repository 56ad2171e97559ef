"""Our positions and our rotary in one forward of a transformers model, and how they get in and out.

Where transformers is right the outputs are equal to its own; elsewhere to a forward with position ids by hand.
"""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from every_family import MODEL_TYPES, case_of
from plug_cases import CACHE, TYPES, batch, by_hand, by_name, by_side, long_clip, model_of, pictures
from plug_families import batch as family_batch
from plug_families import model_of as family_model
from plug_families import of_families
from tiny_models import tiny_config, tiny_model
from transformers import LlamaConfig, LlamaForCausalLM

import mrope
from mrope import Image, Text
from mrope.hf import Collator, plug, unplug
from mrope.layouts import VideoRopeLayout
from mrope.positions import Side

# Documents side by side have products of other shapes than each alone, so that their sums round otherwise.
ROUNDING: dict[str, Any] = {"rtol": 1e-4, "atol": 2e-5}


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@by_name
@by_side
def test_logits_equal_transformers_where_it_is_right(name: str, side: str) -> None:
    model, inputs = model_of(name), batch(name, pictures(name), side).inputs
    mask = inputs["attention_mask"].bool()  # outputs in padded places depend on the version
    wanted = model(**inputs).logits
    with plug(model) as plugged:
        assert plugged is model
        assert torch.equal(model(**inputs).logits[mask], wanted[mask])
    with plug(model.model):
        assert torch.equal(model(**inputs).logits[mask], wanted[mask])
    with plug(model, rotary=True):
        assert torch.equal(model(**inputs).logits[mask], wanted[mask])
    assert torch.equal(model(**inputs).logits, wanted)


@by_name
@by_side
def test_logits_equal_positions_by_hand_where_transformers_is_wrong(name: str, side: str) -> None:
    model, made = model_of(name), batch(name, long_clip(name), side)
    wanted = model(**made.inputs, position_ids=by_hand(name, made)).logits
    with plug(model):
        assert torch.equal(model(**made.inputs).logits, wanted)


@by_name
def test_positions_matter_to_the_logits(name: str) -> None:
    model, made = model_of(name), batch(name, long_clip(name))
    ids = by_hand(name, made)
    with plug(model):
        got = model(**made.inputs).logits
    for wrong in (ids[[0, 2, 1]], ids[:1].expand(3, -1, -1)):
        assert not torch.allclose(model(**made.inputs, position_ids=wrong).logits, got, rtol=0, atol=1e-2)


@by_name
def test_text_alone(name: str) -> None:
    model, inputs = tiny_model(name), batch(name, [[Text(7)], [Text(7)]]).inputs
    inputs = {"input_ids": inputs["input_ids"]}
    wanted = model(**inputs).logits
    with plug(model):
        assert torch.equal(model(**inputs).logits, wanted)


@by_name
def test_gradients(name: str) -> None:
    model, inputs = model_of(name), batch(name, pictures(name), "right").inputs
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    weight = model.model.language_model.layers[0].self_attn.q_proj.weight
    with torch.enable_grad():
        wanted = torch.autograd.grad(model(**inputs, labels=labels).loss, weight)[0]
        with plug(model):
            assert torch.equal(torch.autograd.grad(model(**inputs, labels=labels).loss, weight)[0], wanted)


def test_positions_of_the_caller_are_left_alone() -> None:
    model, made = model_of("qwen2-vl"), batch("qwen2-vl", pictures("qwen2-vl"))
    ids = by_hand("qwen2-vl", made) * 3
    wanted = model(**made.inputs, position_ids=ids).logits
    with plug(model):
        assert torch.equal(model(**made.inputs, position_ids=ids).logits, wanted)


@by_name
def test_arguments_by_place(name: str) -> None:
    base, inputs = model_of(name).model, batch(name, pictures(name)).inputs
    with plug(base):
        wanted = base(**inputs).last_hidden_state
        tokens, mask = inputs.pop("input_ids"), inputs.pop("attention_mask")
        assert torch.equal(base(tokens, mask, **inputs).last_hidden_state, wanted)


@by_name
def test_embeddings_instead_of_ids(name: str) -> None:
    model, inputs = model_of(name), batch(name, long_clip(name)).inputs
    with plug(model):
        wanted = model(**inputs).logits
        tokens = inputs.pop("input_ids")
        inputs["inputs_embeds"] = model.get_input_embeddings()(tokens)
        inputs[TYPES] = (tokens == 500).int() + 2 * (tokens == 501).int()
        assert torch.equal(model(**inputs).logits, wanted)
        del inputs[TYPES]
        with pytest.raises(ValueError, match="pass mm_token_type_ids"):
            model(**inputs)


@by_name
def test_get_rope_index_keeps_its_form(name: str) -> None:
    base, inputs = model_of(name).model, batch(name, pictures(name)).index_inputs
    accepted = inspect.signature(base.get_rope_index).parameters
    inputs = {key: value for key, value in inputs.items() if key in accepted}
    mask = inputs["attention_mask"].bool()
    ids, deltas = base.get_rope_index(**inputs)
    with plug(base):
        our_ids, our_deltas = base.get_rope_index(**inputs)
    assert torch.equal(our_ids[:, mask], ids[:, mask])
    assert torch.equal(our_deltas, deltas)


@by_name
@by_side
def test_the_model_gets_the_positions_of_the_family(name: str, side: Side) -> None:
    base, made = model_of(name).model, batch(name, long_clip(name), side)
    with plug(base):
        ids, _ = base.get_rope_index(**made.index_inputs)
    assert torch.equal(ids, mrope.batch([mrope.family(name).positions(row) for row in made.rows], side).ids)


@by_name
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotary_tables_are_equal(name: str, dtype: torch.dtype) -> None:
    model, x, ids = model_of(name), torch.zeros(1, dtype=dtype), torch.randint(0, 30_000, (3, 2, 50))
    module = model.model.language_model.rotary_emb
    wanted = module(x, ids)
    with plug(model, positions=False, rotary=True):
        got = module(x, ids)
    for ours, theirs in zip(got, wanted, strict=True):
        assert ours.dtype == dtype
        if theirs.dim() == 4:  # one table per axis, from which attention takes the channels of that axis
            ours, theirs = ([table[axis, ..., i] for i, axis in enumerate(_axes(name))] for table in (ours, theirs))
            assert all(map(torch.equal, ours, theirs))
        else:
            assert torch.equal(ours, theirs)


def _axes(name: str) -> list[int]:
    return mrope.family(name).split.axis.repeat(2).tolist()


@pytest.mark.parametrize("kind", ["yarn", "dynamic"])
def test_context_extensions_are_those_of_transformers(kind: str) -> None:
    config = tiny_config("qwen2-vl")
    stated = {"rope_type": kind, "factor": 2.0, "original_max_position_embeddings": 8}
    config.text_config.rope_parameters = {**config.text_config.rope_parameters, **stated}
    config.text_config.max_position_embeddings = 8
    model = type(model_of("qwen2-vl"))(config).eval()
    if kind == "dynamic" and not hasattr(model.model.language_model.rotary_emb.forward, "__wrapped__"):
        pytest.skip("this transformers leaves dynamic NTK out of Qwen2-VL")
    inputs = batch("qwen2-vl", pictures("qwen2-vl")).inputs
    wanted = model(**inputs).logits
    with plug(model, rotary=True):
        assert torch.equal(model(**inputs).logits, wanted)
    slowest = model.model.language_model.rotary_emb.inv_freq[-1]
    assert slowest < 0.9 * mrope.Frequencies(1e6).inv_freq(128)[-1]  # the prompt is long enough to be extended


def test_a_rope_type_that_we_do_not_have_is_refused_for_rotary_alone() -> None:
    model = model_of("qwen2-vl")
    model.config.text_config.rope_parameters["rope_type"] = "spiral"
    try:
        with pytest.raises(ValueError, match="rope_type is 'spiral'; expected one of default"):
            plug(model, rotary=True)
        with plug(model):
            pass
    finally:
        model.config.text_config.rope_parameters["rope_type"] = "default"


def _state(model: Any) -> list[dict[str, Any]]:
    """What is in the __dict__ of each module, hooks included."""
    return [
        {key: dict(value) if isinstance(value, dict) else value for key, value in module.__dict__.items()}
        for module in model.modules()
    ]


def _classes(model: Any) -> list[dict[str, Any]]:
    return [dict(base.__dict__) for module in model.modules() for base in type(module).__mro__]


@by_name
def test_unplug_restores_this_instance_and_no_other_was_touched(name: str) -> None:
    model, other = tiny_model(name), tiny_model(name)
    inputs = batch(name, long_clip(name)).inputs
    wanted = other(**inputs).logits
    before, classes = _state(model), _classes(model)
    plug(model, rotary=True)
    model.generate(**inputs, max_new_tokens=2)
    model(**inputs)
    assert torch.equal(other(**inputs).logits, wanted)
    unplug(model)
    assert _state(model) == before
    assert _classes(model) == classes
    assert torch.equal(model(**inputs).logits, wanted)


def test_attributes_that_were_shadowed_before_come_back() -> None:
    model = tiny_model("qwen2-vl")
    own = model.model.get_rope_index
    model.model.get_rope_index = own
    model.model.rope_deltas = torch.tensor([[5]])
    with pytest.raises(RuntimeError, match="inside"), plug(model):
        raise RuntimeError("inside")
    assert model.model.__dict__["get_rope_index"] is own
    assert model.model.rope_deltas.tolist() == [[5]]


def test_a_copy_of_a_plugged_model_is_plugged_on_its_own() -> None:
    model, made = tiny_model("qwen2-vl"), batch("qwen2-vl", long_clip("qwen2-vl"))
    plug(model)
    wanted = model(**made.inputs).logits
    twin = copy.deepcopy(model)
    unplug(model)
    assert torch.equal(twin(**made.inputs).logits, wanted)
    twin.generate(**made.inputs, max_new_tokens=1)
    unplug(twin)
    assert not twin.model._forward_pre_hooks
    assert "generate" not in str(twin.__dict__.keys() - model.__dict__.keys())


def test_plugging_is_refused() -> None:
    model = tiny_model("qwen2-vl")
    with pytest.raises(ValueError, match="not plugged"):
        unplug(model)
    with pytest.raises(ValueError, match="expected at least one"):
        plug(model, positions=False)
    with plug(model):
        for again in (model, model.model):
            with pytest.raises(ValueError, match="plugged already"):
                plug(again)
        unplug(model.model)
    config = LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    for wrong in (LlamaForCausalLM(config), model.model.language_model, "qwen2-vl"):
        with pytest.raises(TypeError, match="expected a transformers model with pictures"):
            plug(wrong)
    model.config.model_type = "another"
    with pytest.raises(TypeError, match="model_type is 'another'"):
        plug(model)
    assert not model.model._forward_pre_hooks


@by_name
@pytest.mark.parametrize("way", ["pickle", "torch.save"])
def test_a_saved_model_comes_back_plugged(name: str, way: str) -> None:
    model, made = tiny_model(name), batch(name, long_clip(name))
    plain = model(**made.inputs).logits
    with plug(model, rotary=True):
        wanted = model(**made.inputs).logits
        if way == "pickle":
            twin = pickle.loads(pickle.dumps(model))
        else:
            memory = io.BytesIO()
            torch.save(model, memory)
            memory.seek(0)
            twin = torch.load(memory, weights_only=False)
        assert torch.equal(twin(**made.inputs).logits, wanted)
        twin.generate(**made.inputs, max_new_tokens=2)
        unplug(twin)
        assert torch.equal(model(**made.inputs).logits, wanted)
    assert torch.equal(twin(**made.inputs).logits, plain)
    assert [sorted(module.__dict__) for module in twin.modules()] == [
        sorted(module.__dict__) for module in model.modules()
    ]


# ------------------------------------------------------------------------------------------ packed rows, in any call

MIXING = ("qwen3_5", "qwen3_5_moe", "qwen4_exp", "minicpmv4_7", "neomme")
CALLS: dict[str, dict[str, Any]] = {
    "by default": {},
    "without a cache": {"use_cache": False},
    "a mask of ones": {"attention_mask": torch.ones(1, 16, dtype=torch.int64)},
    "both": {"attention_mask": torch.ones(1, 16, dtype=torch.int64), "use_cache": False},
}


def packed() -> tuple[torch.Tensor, torch.Tensor]:
    """Words of documents of 9 and 7 tokens (1, 16), and their ids."""
    return torch.randint(10, 490, (1, 16)), torch.cat([torch.arange(9), torch.arange(7)])[None]


def alone(model: Any, words: torch.Tensor) -> torch.Tensor:
    """The logits of each document of `packed`, run on its own."""
    return torch.cat([model(input_ids=part).logits for part in words.split([9, 7], dim=1)], dim=1)


@of_families([name for name in MODEL_TYPES if name not in MIXING])
@pytest.mark.parametrize("call", CALLS)
def test_packed_documents_do_not_mix_in_any_call(model_type: str, call: str) -> None:
    model, (words, ids) = family_model(model_type), packed()
    given = [ids]
    if model_type != "cosmos3_edge":  # whose three rows do not show where documents begin
        given.append(ids.expand(4, -1, -1))  # the text row and three axes; or four, of which the first counts tokens
    with plug(model):
        for each in given:
            got = model(input_ids=words, position_ids=each, **CALLS[call]).logits
            torch.testing.assert_close(got, alone(model, words), **ROUNDING)


@of_families(["qwen2_5_vl", "hunyuan_vl", "cosmos3_edge"])
@by_side
def test_packed_documents_with_padding_do_not_mix(model_type: str, side: str) -> None:
    model, (words, ids) = copy.deepcopy(family_model(model_type)), packed()
    width, kept = ((3, 0), slice(3, None)) if side == "left" else ((0, 3), slice(0, -3))
    whole, places = (torch.nn.functional.pad(each, width) for each in (words, ids))
    mask = torch.nn.functional.pad(torch.ones_like(words), width)
    with plug(model):
        for attention in ("eager", "sdpa"):
            model.set_attn_implementation(attention)
            got = model(input_ids=whole, position_ids=places, attention_mask=mask).logits[:, kept]
            torch.testing.assert_close(got, alone(model, words), **ROUNDING)


@of_families(["qwen2_5_vl", "hunyuan_vl"])
def test_packed_pictures_train_as_each_document_alone(model_type: str) -> None:
    model, layout = family_model(model_type), case_of(model_type).layout
    rows = [[Text(4), Image((1, 4, 8)), Text(3)], [Text(2), Image((1, 6, 4)), Text(6)]]
    parts = [family_batch(model_type, [row]).inputs for row in rows]
    made = mrope.pack([layout(row) for row in rows])
    ids = made.ids if model_type == "hunyuan_vl" else torch.cat([made.text[None], made.ids])
    words = torch.cat([part["input_ids"] for part in parts], dim=1)
    weight = model.model.language_model.layers[-1].self_attn.k_proj.weight
    with torch.enable_grad(), plug(model):
        wanted = torch.cat([model(**part).logits for part in parts], dim=1)
        got = model(input_ids=words, position_ids=ids[:, None], attention_mask=torch.ones_like(words)).logits
        torch.testing.assert_close(got, wanted, **ROUNDING)
        slopes = [torch.autograd.grad(each.square().mean(), weight)[0] for each in (got, wanted)]
        torch.testing.assert_close(*slopes, **ROUNDING)


@of_families(["qwen2_5_vl", "hunyuan_vl", "cosmos3_edge"])
def test_a_packed_batch_of_the_collator_computes_each_document_alone(model_type: str) -> None:
    model, (words, _) = family_model(model_type), packed()
    made = Collator(model, pack=True)([{"input_ids": part[0].tolist()} for part in words.split([9, 7], dim=1)])
    del made["labels"]
    wanted = alone(model, words)
    torch.testing.assert_close(model(**made).logits, wanted, **ROUNDING)
    with plug(model):
        torch.testing.assert_close(model(**made).logits, wanted, **ROUNDING)


@of_families(MIXING)
def test_packed_documents_that_a_model_would_mix_are_refused(model_type: str) -> None:
    model, (words, ids) = family_model(model_type), packed()
    with plug(model), pytest.raises(ValueError, match=rf"of {model_type} would mix; expected a row a document"):
        model(input_ids=words, position_ids=ids)
    with pytest.raises(ValueError, match=rf"pack is True and {model_type} has .* expected pack=False"):
        Collator(model, pack=True)


@of_families(["qwen2_5_vl", "hunyuan_vl"])
def test_a_cache_of_packed_documents_is_refused(model_type: str) -> None:
    model, (words, ids) = family_model(model_type), packed()
    with plug(model):
        with pytest.raises(ValueError, match=r"start again at token 9 of row 0, .* expected use_cache=False"):
            model(input_ids=words, position_ids=ids, use_cache=True)
        memory = getattr(model(input_ids=words, position_ids=torch.arange(16)[None], use_cache=True), CACHE)
        more = {"input_ids": words[:, :3], CACHE: memory}
        for use_cache in ({}, {"use_cache": False}):
            with pytest.raises(ValueError, match=r"start again at token 1 of row 0, .* a cache is asked for"):
                model(**more, **use_cache, position_ids=torch.tensor([[16, 0, 1]]))
        model(**more, position_ids=torch.tensor([[16, 17, 18]]))


@of_families(["glm_image"])
def test_text_alone_in_several_rows_says_nothing_of_pictures(model_type: str) -> None:
    model, words = family_model(model_type), torch.randint(10, 490, (2, 9))
    wanted = model(input_ids=words).logits
    with plug(model):
        assert torch.equal(model(input_ids=words).logits, wanted)


@by_name
@pytest.mark.parametrize("key", ["image_grid_thw", "video_grid_thw", "pixel_values", TYPES])
def test_a_list_in_place_of_a_tensor_is_told(name: str, key: str) -> None:
    model = model_of(name)
    inputs: dict[str, Any] = dict(batch(name, pictures(name)).inputs)
    if key not in inputs:
        pytest.skip("this transformers has no such argument")
    inputs[key] = inputs[key].tolist()
    with plug(model), pytest.raises(TypeError, match=rf"^{key} is a list; expected a tensor \("):
        model(**inputs)


@pytest.mark.parametrize("options", [{"positions": 1}, {"positions": None}, {"rotary": "yes"}])
def test_what_is_no_truth_is_refused(options: dict[str, Any]) -> None:
    model = tiny_model("qwen2-vl")
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        plug(model, **options)
    assert not model.model._forward_pre_hooks


def test_a_layout_without_positions_is_told() -> None:
    with pytest.raises(ValueError, match="layout was given with positions=False; expected positions=True"):
        plug(tiny_model("qwen2-vl"), positions=False, layout=VideoRopeLayout())
