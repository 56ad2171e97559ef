"""What a plugged model, or a built one, does not guess: caches, masks and ids that say otherwise are refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from plug_cases import CACHE, TYPES, batch, by_hand, by_name, columns, model_of, pictures
from plug_families import batch as family_batch
from plug_families import model_of as family_model
from plug_families import of_families, picture
from test_build_vlm import batch as built_batch
from test_build_vlm import built
from test_plug_decoding import generate, prefill, step
from torch import Tensor
from transformers import DynamicCache, StaticCache

import mrope
from mrope import Image, Text
from mrope.hf import Collator, plug, unplug
from mrope.hf.cache import cache_of
from mrope.hf.reading import layout_of
from mrope.layouts import VideoRopeLayout

ROUNDING: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
WORDS = torch.tensor([[77, 78, 79], [87, 88, 89]])


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def with_ones(mask: Tensor, count: int) -> Tensor:
    return torch.cat([mask, mask.new_ones(len(mask), count)], dim=1)


# ------------------------------------------------------------------------------------------------- foreign tokens


@by_name
@pytest.mark.parametrize("cropped", [0, 3], ids=["behind all", "in place of others"])
def test_tokens_that_came_through_the_unplugged_model_have_no_known_positions(name: str, cropped: int) -> None:
    model, made = model_of(name), batch(name, pictures(name))
    mask = made.inputs["attention_mask"]
    with plug(model):
        memory = prefill(model, made.inputs)
        if cropped:
            step(model, memory, mask, WORDS)
            memory.crop(-cropped)
    step(model, memory, mask, WORDS, position_ids=torch.full((3, 2, 3), 50))
    whole = with_ones(mask, 3)
    with plug(model):
        with pytest.raises(ValueError, match="on the cache the last 3 did not come through this model as it is"):
            step(model, memory, whole, WORDS)
        given = step(model, copy.deepcopy(memory), whole, WORDS, position_ids=torch.full((3, 2, 3), 53))
        memory.crop(-3)
        again = step(model, memory, mask, WORDS)
        assert torch.equal(again, step(model, prefill(model, made.inputs), mask, WORDS))
    assert given.isfinite().all()


@by_name
def test_tokens_that_are_taken_out_of_the_layers_leave_no_known_positions(name: str) -> None:
    model, made = model_of(name), batch(name, [[Text(4), Image((1, 4, 8)), Text(3)]])
    message = r"the cache holds 14 tokens, and 15 came: some were taken out .* such as crop, or pass position_ids"
    with plug(model):
        memory = prefill(model, made.inputs)
        for layer in memory.layers:
            layer.keys, layer.values = (each[:, :, [0, *range(2, 15)]] for each in (layer.keys, layer.values))
        with pytest.raises(ValueError, match=message):
            model(input_ids=WORDS[:1], **{CACHE: memory})
        model(input_ids=WORDS[:1], position_ids=torch.tensor([[11, 12, 13]]), **{CACHE: memory})


def test_a_built_model_does_not_go_on_from_a_cache_that_it_did_not_fill() -> None:
    model, (inputs, _) = built(), built_batch([[3, (1, 4, 6), 4, 5]])
    layers = [(layer.keys, layer.values) for layer in cache_of(model(**inputs)).layers]
    with pytest.raises(ValueError, match=r"of 9 tokens on the cache the last 9 did not come through this model"):
        model(WORDS[:1], **{CACHE: DynamicCache(layers)})


def test_a_cache_that_was_reset_begins_anew() -> None:
    model, made = model_of("qwen2-vl"), batch("qwen2-vl", pictures("qwen2-vl"))
    other = batch("qwen2-vl", [[Text(2), Image((1, 8, 4)), Text(3)], [Text(4)]])
    with plug(model):
        memory = prefill(model, made.inputs)
        memory.reset()
        wanted = model(**other.inputs).logits
        torch.testing.assert_close(model(**other.inputs, **{CACHE: memory}).logits, wanted, **ROUNDING)


# ---------------------------------------------------------------------------------------- masks that contradict a cache

MASKS: dict[str, tuple[Callable[[Tensor], Tensor | None], str]] = {
    "the order before": (lambda mask: with_ones(mask.flip(0), 1), "attention_mask is [01] for token 0 of row [01] on"),
    "all ones": (lambda mask: torch.ones_like(with_ones(mask, 1)), "is 1 for token 0 of row 1 .* was padding when"),
    "none": (lambda mask: None, "attention_mask is None for token 0 of row 1 on the cache, which was padding"),
    "new tokens alone": (lambda mask: torch.ones(2, 1), r"has shape \(2, 1\).* behind \d+ on the cache: pass a mask"),
    "one column too many": (lambda mask: with_ones(mask, 2), r"which does not show the padding of 2 rows of 1 tokens"),
    "one column too few": (lambda mask: mask, r"which does not show the padding of 2 rows of 1 tokens behind"),
}
by_mask = pytest.mark.parametrize("kind", MASKS)


@by_name
@by_mask
def test_a_mask_that_contradicts_the_cache_is_refused(name: str, kind: str) -> None:
    model, made = model_of(name), batch(name, [[Text(4), Image((1, 4, 16)), Text(2)], [Text(3)]])
    mask, (changed, message) = made.inputs["attention_mask"], MASKS[kind]
    with plug(model):
        memory = prefill(model, made.inputs)
        with pytest.raises(ValueError, match=message):
            model(input_ids=WORDS[:, :1], attention_mask=changed(mask), **{CACHE: memory})
        memory.reorder_cache(torch.tensor([1, 0]))
        with pytest.raises(ValueError, match="attention_mask is"):
            model(input_ids=WORDS[:, :1], attention_mask=with_ones(mask, 1), **{CACHE: memory})
        model(input_ids=WORDS[:, :1], attention_mask=with_ones(mask.flip(0), 1), **{CACHE: memory})


@by_mask
def test_a_mask_that_contradicts_the_cache_of_a_built_model_is_refused(kind: str) -> None:
    model, (inputs, _) = built(), built_batch([[3, (1, 4, 6), 4, 5], [3, 4, 5]])
    changed, message = MASKS[kind]
    memory = cache_of(model(**inputs))
    with pytest.raises(ValueError, match=message):
        model(WORDS[:, :1], attention_mask=changed(inputs["attention_mask"]), **{CACHE: memory})


def test_layers_that_are_reordered_one_by_one_show_by_their_padding() -> None:
    model, made = model_of("qwen2-vl"), batch("qwen2-vl", [[Text(4), Image((1, 4, 16)), Text(2)], [Text(3)]])
    with plug(model):
        memory = prefill(model, made.inputs)
        for layer in memory.layers:
            layer.reorder_cache(torch.tensor([1, 0]))
        with pytest.raises(ValueError, match="with its rows as the cache has them"):
            step(model, memory, made.inputs["attention_mask"].flip(0), WORDS)


@pytest.mark.parametrize("value", [0.5, -1, 2])
def test_a_mask_of_other_values_is_refused(value: float) -> None:
    model, mask = model_of("qwen2-vl"), torch.tensor([[1, 1, 1, value, value, value]])
    ids = torch.tensor([[0, 1, 2, 0, 1, 2]])
    with plug(model):
        for given in ({}, {"position_ids": ids}):
            with pytest.raises(ValueError, match=r"other values than 0 and 1; .* position_ids that start again"):
                model(input_ids=torch.cat([WORDS[:1], WORDS[1:]], dim=1), attention_mask=mask, **given)


@by_name
def test_a_mask_as_long_as_a_static_cache_is_read_up_to_its_tokens(name: str) -> None:
    model, made = model_of(name), batch(name, [[Text(4), Image((1, 4, 16)), Text(2)], [Text(3)]])
    mask, length = made.inputs["attention_mask"], made.inputs["input_ids"].shape[1]
    logits = []
    with plug(model):
        for most in (0, 40):
            memory = StaticCache(config=model.config.text_config, max_cache_len=40)
            for words, part in ((made.inputs["input_ids"], mask), (WORDS, with_ones(mask, 3))):
                long = torch.nn.functional.pad(part, (0, max(0, most - part.shape[1])))
                inputs = {**(made.inputs if part is mask else {}), "input_ids": words, "attention_mask": long}
                logits.append(model(**inputs, **{CACHE: memory}).logits)
    assert length < 40
    assert all(map(torch.equal, logits[:2], logits[2:]))


@by_name
def test_drafts_that_a_loop_masks_go_on_with_the_mask_that_came_with_ids(name: str) -> None:
    model, made = model_of(name), batch(name, pictures(name))
    mask, ids = made.inputs["attention_mask"], by_hand(name, made)
    place = ids.amax((0, 2)) + 1
    with plug(model):
        memory = prefill(model, made.inputs)
        step(model, memory, mask, WORDS)
        mask = with_ones(mask, 3)
        mask[0, -2:], mask[1, -1:] = 0, 0  # one draft of the first row stays, two of the second
        with pytest.raises(ValueError, match="or pass position_ids"):
            step(model, memory, mask, WORDS[:, :1])
        following = (place + torch.tensor([1, 2]))[None, :, None]
        step(model, memory, mask, WORDS[:, :1], position_ids=following.expand(3, -1, -1))
        mask = with_ones(mask, 1)
        given = (following + 1).expand(3, -1, -1)
        wanted = step(model, copy.deepcopy(memory), mask, WORDS[:, 1:2], position_ids=given)
        assert torch.equal(step(model, memory, mask, WORDS[:, 1:2]), wanted)


# ------------------------------------------------------------------------------------------------- forgotten pictures


@by_name
@pytest.mark.parametrize("types", [True, False], ids=["token types", "placeholders"])
def test_a_further_turn_without_its_picture_is_refused(name: str, types: bool) -> None:
    model = model_of(name)
    first, second = (batch(name, [[Text(2), Image(grid), Text(3)]]) for grid in ((1, 4, 8), (1, 6, 4)))
    mask = torch.cat([first.inputs["attention_mask"], second.inputs["attention_mask"]], dim=1)
    turn = {"input_ids": second.inputs["input_ids"]}
    if types and TYPES in second.inputs:
        turn[TYPES] = second.inputs[TYPES]
    words = torch.cat([first.inputs["input_ids"], turn["input_ids"]], dim=1)
    message = "row 0 has 6 image tokens, but no image_grid_thw came with them; on a cache come the grids and pixels of"
    with plug(model):
        memory = prefill(model, first.inputs)
        with pytest.raises(ValueError, match=message):
            model(**turn, attention_mask=mask, **{CACHE: memory})
        with pytest.raises(ValueError, match=message):
            model.generate(words, attention_mask=mask, max_new_tokens=2, **{CACHE: memory})


@of_families(["qwen2_5_omni_thinker", "glm4v", "hunyuan_vl", "minicpmv4_7", "cosmos3_edge"])
def test_a_further_turn_without_its_picture_is_refused_in_other_families(model_type: str) -> None:
    model, made = family_model(model_type), family_batch(model_type, [[Text(3), picture(model_type), Text(2)]])
    turn = {"input_ids": made.inputs["input_ids"]}
    whole = torch.ones(1, 2 * turn["input_ids"].shape[1], dtype=torch.int64)
    with plug(model):
        memory = cache_of(model(**made.inputs, use_cache=True))
        with pytest.raises(ValueError, match="on a cache come the grids and pixels of new tokens alone"):
            model(**turn, attention_mask=whole, **{CACHE: memory})


@by_name
def test_new_tokens_alone_go_on_in_generate_with_a_mask_of_all(name: str) -> None:
    model, made = model_of(name), batch(name, [[Text(2), Image((1, 4, 8)), Text(9)]])
    inputs = made.inputs
    with plug(model):
        wanted = generate(model, inputs, 4)
        first = prefill(model, columns(inputs, slice(0, -6)))
        new = inputs["input_ids"][:, -6:]
        with pytest.raises(ValueError, match=r"6 tokens came and the cache holds 13; .* with an attention_mask of all"):
            generate(model, {"input_ids": new}, 4, **{CACHE: copy.deepcopy(first)})
        got = generate(model, {"input_ids": new, "attention_mask": inputs["attention_mask"]}, 4, **{CACHE: first})
    assert torch.equal(got[0], wanted[0])
    torch.testing.assert_close(got[1], wanted[1], **ROUNDING)


@of_families(["qwen3_5", "qwen3_5_moe", "qwen4_exp", "minicpmv4_7"])
@pytest.mark.parametrize("way", [{"num_beams": 2}, {"num_return_sequences": 2, "do_sample": True, "top_k": 1}])
def test_rows_of_a_hybrid_are_repeated_on_a_cache(model_type: str, way: dict[str, Any]) -> None:
    model, made = family_model(model_type), family_batch(model_type, [[Text(3), picture(model_type), Text(9)]])
    before = columns(made.inputs, slice(0, -6))
    new = {key: made.inputs[key] for key in ("input_ids", "attention_mask")}
    with plug(model):
        wanted = written(model, made.inputs, way)
        memory = cache_of(model(**before, use_cache=True))
        assert torch.equal(written(model, new | {CACHE: memory}, way), wanted)


def written(model: Any, inputs: dict[str, Any], way: dict[str, Any]) -> Tensor:
    """The words that `generate` writes behind a prompt."""
    settings: dict[str, Any] = {"do_sample": False, "max_new_tokens": 4, "min_new_tokens": 4}
    return model.generate(**inputs, **(settings | way))


@by_name
def test_pixels_of_cached_pictures_are_refused_where_words_go_on(name: str) -> None:
    model, made = model_of(name), batch(name, [[Text(2), Image((1, 4, 8)), Text(3)]])
    inputs = made.inputs | {"pixel_values": torch.zeros(32, 3 * 2 * 14 * 14)}
    with plug(model):
        memory = prefill(model, columns(made.inputs, slice(0, -1)))
        with pytest.raises(
            ValueError, match=r"1 more than .* on a cache come the grids and pixels of new tokens alone"
        ):
            generate(model, inputs, 1, **{CACHE: memory})


def test_a_built_model_says_when_no_new_tokens_came() -> None:
    model, (inputs, _) = built(), built_batch([[3, (1, 4, 6), 4, 5]])
    with pytest.raises(ValueError, match=r"2 tokens came and the cache holds 9; expected all tokens of the conversat"):
        model.generate(torch.tensor([[7, 8]]), max_new_tokens=1, **{CACHE: cache_of(model(**inputs))})


# -------------------------------------------------------------------------------------------------- ids of the caller

IDS: dict[str, tuple[Any, type[Exception], str]] = {
    "too few": (torch.arange(4)[None], ValueError, r"shape \(1, 4\); expected \(3, 2, 3\), \(4, 2, 3\) with those of"),
    "too many rows": (torch.zeros(5, 2, 3, dtype=torch.int64), ValueError, r"have shape \(5, 2, 3\); expected"),
    "another batch": (torch.zeros(3, 3, dtype=torch.int64), ValueError, r"have shape \(3, 3\); expected .* \(2, 3\)"),
    "without rows": (torch.arange(3), ValueError, r"have shape \(3,\); expected"),
    "fractions": (torch.arange(3)[None] + 0.5, TypeError, "position_ids are torch.float32; expected a tensor of integ"),
    "truths": (
        torch.ones(2, 3, dtype=torch.bool),
        TypeError,
        "position_ids are torch.bool; expected a tensor",
    ),
    "a list": ([[0, 1, 2]], TypeError, "position_ids is a list; expected a tensor of integers"),
}


@by_name
@pytest.mark.parametrize("kind", IDS)
def test_ids_of_another_form_are_refused(name: str, kind: str) -> None:
    given, error, message = IDS[kind]
    with plug(model_of(name)) as model, pytest.raises(error, match=message):
        model(input_ids=WORDS, position_ids=given)


@by_name
def test_plain_ids_of_a_prompt_with_pictures_are_refused(name: str) -> None:
    made = batch(name, [[Text(4), Image((1, 4, 8)), Text(3)]])
    message = r"token 4 of row 0 is a picture's; expected \(4, 1, 15\), or none"
    with plug(model_of(name)) as model, pytest.raises(ValueError, match=message):
        model(**made.inputs, position_ids=torch.arange(15)[None])


def test_plain_ids_of_a_prompt_with_pictures_are_refused_by_a_built_model() -> None:
    model, (inputs, _) = built(), built_batch([[3, (1, 4, 6), 4, 5]])
    with pytest.raises(ValueError, match=r"token 1 of row 0 is a picture's; expected \(4, 1, 9\), or none"):
        model(**inputs, position_ids=torch.arange(9)[None])


@by_name
@pytest.mark.parametrize("rows", [1, 3, 4])
def test_ids_of_one_row_are_those_of_all(name: str, rows: int) -> None:
    ids = torch.arange(3).expand(rows, 1, -1) if rows > 1 else torch.arange(3)[None]
    mask = torch.ones_like(WORDS)
    with plug(model_of(name)) as model:
        wanted = model(input_ids=WORDS).logits
        out = model(input_ids=WORDS, attention_mask=mask, position_ids=ids, use_cache=True)
        assert torch.equal(out.logits, wanted)
        model(input_ids=WORDS[:, :1], **{CACHE: cache_of(out)})


@of_families(["hunyuan_vl", "neomme"])
def test_a_model_without_a_text_row_is_not_told_to_take_one(model_type: str) -> None:
    axes = 4 if model_type == "hunyuan_vl" else 2
    for rows in (axes + 1, 1):
        message = rf"expected \({axes}, 2, 3\), or \(2, 3\) for text"
        with plug(family_model(model_type)) as model, pytest.raises(ValueError, match=message):
            model(input_ids=WORDS, position_ids=torch.zeros(rows, 2, 3, dtype=torch.int64))


@pytest.mark.parametrize("kind", ["plugged", "built"])
def test_boundaries_of_documents_without_ids_are_refused(kind: str) -> None:
    ends = torch.tensor([0, 2, 3], dtype=torch.int32)
    lengths = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 2, "max_length_k": 2}
    model = model_of("qwen2-vl") if kind == "plugged" else built()
    message = "cu_seq_lens_q came without position_ids"
    with plug(model) if kind == "plugged" else nullcontext(), pytest.raises(ValueError, match=message):
        model(input_ids=WORDS[:1], **lengths, use_cache=False)


def test_fractions_are_ids_of_a_layout_that_has_them() -> None:
    layout = VideoRopeLayout(delta=1.5)
    ids = layout([Text(2)]).ids[:, None]
    with plug(model_of("qwen2-vl"), layout=layout) as model:
        assert model(input_ids=WORDS[:1, :2], position_ids=ids.float()).logits.isfinite().all()


def documents(model_type: str) -> tuple[dict[str, Tensor], Tensor, list[dict[str, Any]]]:
    """Two documents with a picture in one row, its ids (A, 1, N) without a text row, and each document alone."""
    rows = [[Text(4), Image((1, 4, 8)), Text(3)], [Text(2), Image((1, 6, 4)), Text(6)]]
    parts = [family_batch(model_type, [row]).inputs for row in rows]
    layout: Any = layout_of(family_model(model_type).config)
    words = {"input_ids": torch.cat([part["input_ids"] for part in parts], dim=1)}
    return words, mrope.pack([layout(row) for row in rows]).ids[:, None], parts


@of_families(["qwen2_vl", "qwen3_vl", "glm4v", "cosmos3_edge", "ernie4_5_vl_moe", "paddleocr_vl"])
def test_packed_documents_without_a_text_row_are_refused(model_type: str) -> None:
    model, (words, ids, parts) = family_model(model_type), documents(model_type)
    length = words["input_ids"].shape[1]
    kept = torch.ones(length, length, dtype=torch.bool).tril()
    kept[-14:, :-14] = False  # the second document has 14 tokens
    with plug(model):
        for options in ({}, {"use_cache": False}, {"attention_mask": torch.ones(1, length)}):
            with pytest.raises(ValueError, match=r"again at token 15 of row 0, .* 3 rows, .* those of the text first"):
                model(**words, position_ids=ids, **({"use_cache": False} | options))
        wanted = torch.cat([model(**part, use_cache=False).logits for part in parts], dim=1)
        pairs = torch.zeros(1, 1, length, length).masked_fill(~kept, torch.finfo(torch.float32).min)
        got = model(**words, position_ids=ids, attention_mask=pairs, use_cache=False).logits
        torch.testing.assert_close(got, wanted, **ROUNDING)


def test_packed_documents_without_a_text_row_are_refused_by_a_built_model() -> None:
    model, words = built(), torch.tensor([[7, 8, 9, 7, 8]])
    ids = torch.tensor([0, 1, 2, 0, 1]).expand(3, 1, -1)
    with pytest.raises(ValueError, match=r"start again at token 3 of row 0, .* but have 3 rows"):
        model(words, position_ids=ids, use_cache=False)


@by_name
def test_ids_with_zeros_in_padding_are_no_documents(name: str) -> None:
    model, made = model_of(name), batch(name, [[Text(2), Image((1, 4, 8)), Text(9)], [Text(3)]], "right")
    ids = by_hand(name, made)
    inputs = {key: value for key, value in made.inputs.items() if key != "attention_mask"}
    wanted = model(**inputs, position_ids=ids).logits
    with plug(model):
        assert torch.equal(model(**inputs, position_ids=ids).logits, wanted)


def test_a_plug_is_shown_in_a_line() -> None:
    model = model_of("qwen2-vl")
    assert repr(plug(model)) == "Plugged(Qwen2VLForConditionalGeneration)"
    unplug(model)


def test_masks_of_a_collator_are_taken() -> None:
    """Padded batches have a mask of 0 and 1, packed ones none, or pairs."""
    model = model_of("qwen2-vl")
    records = [{"input_ids": [5, 6, 7]}, {"input_ids": [5, 6, 7, 8, 9]}]
    with plug(model):
        for pack in (True, False):
            made = Collator(model, pack=pack)(records)
            assert model(**made).loss.isfinite()
