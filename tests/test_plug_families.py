"""Every family plugged: logits are those of positions from an oracle, in forwards, on caches and in `generate`.

The prompts have grids and no pixels: placeholders are words, and positions alone tell where they lie.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from every_family import IMAGE_END, IMAGE_START, IMG, MODEL_TYPES, OMNI, VID, Batch, case_of, config_of, installed
from plug_cases import CACHE
from plug_families import (
    DECODERS,
    TYPED,
    batch,
    by_hand,
    clip,
    columns,
    fresh_model,
    model_of,
    of_families,
    picture,
    pixels_of,
    prompt,
    still,
)
from torch import Tensor
from transformers import DynamicCache

import mrope
from mrope import AxisSplit, Image, Sliced, Text, Video
from mrope.extensions import Linear, Yarn, Zero
from mrope.hf import plug, unplug
from mrope.layouts import AnchoredLayout, GridLayout, V2peLayout, VideoRopeLayout, VropeLayout

LATEST = transformers.__version__.startswith("5.24.")
this_version = pytest.mark.skipif(not LATEST, reason="what the library itself computes is compared on 5.24 only")
# Earlier versions of Cohere Compass give pairs to other axes, and the sparse attention of Qwen4 picks other keys there
# when a cosine differs in its last bit.
OTHERWISE = () if LATEST else ("cohere_compass", "qwen4_exp")
typed = pytest.mark.skipif(not TYPED, reason="before transformers 5.3 pixels alone told that new tokens have a picture")
# A forward on a cache has products of other shapes than one long forward, so that its sums round otherwise.
ROUNDING: dict[str, Any] = {"rtol": 1e-4, "atol": 2e-5}
HYBRID = ("qwen3_5", "qwen3_5_moe", "qwen4_exp", "minicpmv4_7")  # their linear attention keeps a state for all tokens
# Linear attention goes from document to document without the varlen kernel, whatever the positions. HunyuanVL of the
# library refuses a text row, and so does Cosmos3-Edge of earlier versions; a plug gives them a mask (test_plug.py).
PACKING = tuple(name for name in DECODERS if name not in (*HYBRID, "hunyuan_vl", "cosmos3_edge"))
BY_GRIDS = tuple(name for name in DECODERS if name not in (*OMNI, "glm_image", "minicpmv4_7", "hunyuan_vl", "hy_v4_vl"))


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def logits(model: Any, **inputs: Any) -> Tensor:
    return model(**inputs).logits


def swapped(ids: Tensor) -> Tensor:
    """The ids with the axes of rows and columns in each other's place."""
    order = {2: [1, 0], 3: [0, 2, 1], 4: [0, 2, 1, 3]}
    return ids[order[len(ids)]]


def new_cache(model: Any) -> Any:
    return DynamicCache(config=model.config.text_config)


def step(model: Any, memory: Any, mask: Tensor, tokens: Tensor, **options: Any) -> Tensor:
    """Logits of `tokens` (B, K) after what is in `memory`, with the mask of all."""
    whole = torch.cat([mask, mask.new_ones(tokens.shape)], dim=1)
    return logits(model, input_ids=tokens, attention_mask=whole, **{CACHE: memory}, **options)


def generate(model: Any, inputs: dict[str, Any], steps: int, **options: Any) -> tuple[Tensor, Tensor]:
    """Tokens (B, steps) and logits (B, steps, V) of generate(), which may not stop early."""
    fixed = {"do_sample": False, "min_new_tokens": steps, "max_new_tokens": steps, **options}
    made = model.generate(**inputs, **fixed, output_logits=True, return_dict_in_generate=True)
    return made.sequences[:, -steps:], torch.stack(made.logits, 1)


def decoded(model_type: str, ids: Tensor, ends: Tensor, count: int) -> Tensor:
    """(A, B, count) what follows a prompt: text, or first the picture (2, 3) that GLM-Image is to draw in row 0."""
    text = (ends[:, None] + torch.arange(count)).to(ids.dtype).expand(len(ids), -1, -1).clone()
    if model_type == "glm_image":
        begin = int(ids.amax((0, 2))[0]) + 1
        drawn = [(begin, begin + row, begin + column) for row in range(2) for column in range(3)]
        drawn += [(begin + 3 + i,) * 3 for i in range(count)]
        text[:, 0] = torch.tensor(drawn[:count]).T
    return text


def greedy(model: Any, inputs: dict[str, Any], ids: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
    """What a greedy loop generates that passes positions by hand: those of the prompt, and of each new token."""
    memory, mask = new_cache(model), inputs["attention_mask"]
    made = [logits(model, **inputs, position_ids=ids, **{CACHE: memory})[:, -1]]
    for i in range(following.shape[-1]):
        tokens = made[-1].argmax(-1, keepdim=True)
        made.append(step(model, memory, mask, tokens, position_ids=following[:, :, i : i + 1])[:, -1])
        mask = torch.cat([mask, mask.new_ones(tokens.shape)], dim=1)
    stacked = torch.stack(made, 1)
    return stacked.argmax(-1), stacked


# ------------------------------------------------------------------------------------------------------------ forwards


@of_families(MODEL_TYPES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_logits_are_those_of_positions_by_hand(model_type: str, side: str) -> None:
    model, made = model_of(model_type), batch(model_type, prompt(model_type), side)
    ids, _ = by_hand(model_type, made)
    mask = made.inputs["attention_mask"].bool()
    wanted = logits(model, **made.inputs, position_ids=ids)
    with plug(model):
        assert torch.equal(logits(model, **made.inputs)[mask], wanted[mask])
    turned = logits(model, **made.inputs, position_ids=swapped(ids))
    assert (turned - wanted)[mask].abs().max() > 5e-4  # rows and columns are told apart


@this_version
@of_families(DECODERS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_logits_of_pictures_are_those_of_transformers(model_type: str, side: str) -> None:
    model, inputs = model_of(model_type), batch(model_type, still(model_type), side).inputs
    mask = inputs["attention_mask"].bool()
    wanted = logits(model, **inputs)
    with plug(model):
        assert torch.equal(logits(model, **inputs)[mask], wanted[mask])
    assert torch.equal(logits(model, **inputs), wanted)


@of_families([name for name in MODEL_TYPES if name not in OTHERWISE])
def test_our_rotary_computes_what_theirs_does(model_type: str) -> None:
    model, made = model_of(model_type), batch(model_type, prompt(model_type))
    with plug(model):
        wanted = logits(model, **made.inputs)
    with plug(model, rotary=True):
        got = logits(model, **made.inputs)
    text = made.inputs["attention_mask"][1].bool()
    assert torch.equal(got[1, text], wanted[1, text])
    if model_type == "hunyuan_vl":  # the library mixes the angles of two axes in one pair: no rotation
        assert (got[0] - wanted[0]).abs().max() > 1e-2
    else:
        assert torch.equal(got, wanted)


@this_version
@of_families(("cohere_compass", "ernie4_5_vl_moe", "hy_v4_vl", "glm4v", "qwen3_5", "neomme"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tables_of_the_rotary_module_are_equal_to_the_bit(model_type: str, dtype: torch.dtype) -> None:
    model = model_of(model_type)
    module = model.model.rotary_emb if model_type == "neomme" else model.model.language_model.rotary_emb
    layers = sorted({*module.config.layer_types}) if model_type in ("cohere_compass", "neomme") else []
    ids = torch.randint(0, 30_000, (case_of(model_type).axes, 2, 40))
    for arguments in [(layer,) for layer in layers] or [()]:
        wanted = module(torch.zeros(1, dtype=dtype), ids, *arguments)
        with plug(model, positions=False, rotary=True):
            got = module(torch.zeros(1, dtype=dtype), ids, *arguments)
        for ours, theirs in zip(got, wanted, strict=True):
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs)


# Qwen2-VL with pixels is in test_plug; the others here have towers of their own, or take other patches.
TOWERS = tuple(name for name in DECODERS if name not in ("qwen2_vl", "glm_image", "minicpmv4_7"))
WITHOUT_ROTARY = ("cosmos3_edge", "hunyuan_vl", "hy_v4_vl")


@this_version
@of_families(TOWERS)
def test_pictures_with_pixels(model_type: str) -> None:
    model, made = model_of(model_type), batch(model_type, still(model_type))
    inputs, mask = {**made.inputs, **pixels_of(model_type, made)}, made.inputs["attention_mask"].bool()
    wanted, tokens = logits(model, **inputs)[mask], generate(model, inputs, 3)[0]
    rotary = model_type != "hunyuan_vl"
    with plug(model, rotary=rotary):
        assert torch.equal(logits(model, **inputs)[mask], wanted)
        assert torch.equal(generate(model, inputs, 3)[0], tokens)


@this_version
@of_families([name for name in (*TOWERS, "qwen2_vl") if name not in WITHOUT_ROTARY])
def test_tables_of_the_vision_tower_are_equal_to_the_bit(model_type: str) -> None:
    model = model_of(model_type)
    (module,) = (each for name, each in model.named_modules() if name.endswith("rotary_pos_emb"))
    places, x = torch.randint(0, 500, (60, 2)), torch.zeros(1, dtype=torch.bfloat16)
    wanted = module(x, places)
    with plug(model, positions=False, rotary=True):
        got, turned = module(x, places), module(x, places.flip(1))
    for ours, theirs, other in zip(got, wanted, turned, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
        assert not torch.equal(ours, other)


@of_families(PACKING)
def test_training_on_packed_documents(model_type: str) -> None:
    model, case = model_of(model_type), case_of(model_type)
    first, second = [Text(4), picture(model_type), Text(3)], [Text(2), picture(model_type), Text(6)]
    alone = [batch(model_type, [row]) for row in (first, second)]
    packed = mrope.pack([case.layout(row) for row in (first, second)])
    ids = torch.cat([packed.text[None], packed.ids])[:, None]
    inputs = {"input_ids": torch.cat([made.inputs["input_ids"] for made in alone], dim=1)}
    with plug(model):
        wanted = torch.cat([logits(model, **made.inputs) for made in alone], dim=1)
        got = logits(model, **inputs, position_ids=ids, use_cache=False)
    torch.testing.assert_close(got, wanted, **ROUNDING)


@of_families(PACKING)
def test_plain_ids_of_packed_text_keep_documents_apart(model_type: str) -> None:
    model, tokens = model_of(model_type), torch.randint(10, 490, (1, 12))
    ids = torch.cat([torch.arange(5), torch.arange(7)])[None]
    wanted = torch.cat([logits(model, input_ids=part) for part in tokens.split([5, 7], dim=1)], dim=1)
    with plug(model):
        got = logits(model, input_ids=tokens, position_ids=ids, use_cache=False)
    torch.testing.assert_close(got, wanted, **ROUNDING)


@of_families(("qwen3_5", "glm4v", "ernie4_5_vl_moe", "hunyuan_vl"))
def test_gradients_are_those_of_positions_by_hand(model_type: str) -> None:
    model, made = model_of(model_type), batch(model_type, prompt(model_type), "right")
    ids, _ = by_hand(model_type, made)
    labels = made.inputs["input_ids"].masked_fill(made.inputs["attention_mask"] == 0, -100)
    weight = model.model.language_model.layers[-1].self_attn.k_proj.weight
    with torch.enable_grad():
        loss = model(**made.inputs, position_ids=ids, labels=labels).loss
        wanted = torch.autograd.grad(loss, weight)[0]
        with plug(model, rotary=model_type != "hunyuan_vl"):
            assert torch.equal(torch.autograd.grad(model(**made.inputs, labels=labels).loss, weight)[0], wanted)


# ---------------------------------------------------------------------------------------------- caches and generation


@of_families(DECODERS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_decoding_goes_on_from_a_cache(model_type: str, side: str) -> None:
    model, made = model_of(model_type), batch(model_type, prompt(model_type), side)
    mask, (ids, ends) = made.inputs["attention_mask"], by_hand(model_type, made)
    tokens, following = torch.randint(10, 490, (2, 9)), decoded(model_type, ids, ends, 9)
    memory = new_cache(model)
    logits(model, **made.inputs, position_ids=ids, **{CACHE: memory})
    wanted = step(model, copy.deepcopy(memory), mask, tokens, position_ids=following)
    with plug(model):
        memory = new_cache(model)
        logits(model, **made.inputs, **{CACHE: memory})
        assert torch.equal(step(model, copy.deepcopy(memory), mask, tokens), wanted)
        for begin, end in ((0, 1), (1, 4), (4, 9)):
            got = step(model, memory, mask, tokens[:, begin:end])
            mask = torch.cat([mask, mask.new_ones(2, end - begin)], dim=1)
            torch.testing.assert_close(got, wanted[:, begin:end], **ROUNDING)


@of_families(DECODERS)
def test_generate_equals_a_loop_by_hand(model_type: str) -> None:
    model, made = model_of(model_type), batch(model_type, prompt(model_type))
    ids, ends = by_hand(model_type, made)
    wanted = greedy(model, made.inputs, ids, decoded(model_type, ids, ends, 8))
    with plug(model):
        tokens, got = generate(model, made.inputs, 9)
    assert torch.equal(tokens, wanted[0])
    torch.testing.assert_close(got, wanted[1], **ROUNDING)


# GLM-Image throws the positions of the loop away, and drafts cannot be taken back from the state of linear attention.
WAYS = {
    "beams": {"num_beams": 2},
    "sampling": {"do_sample": True, "num_return_sequences": 2},
    "assisted": {"prompt_lookup_num_tokens": 2},
    "no cache": {"use_cache": False},
}


@of_families([name for name in DECODERS if name != "glm_image"])
def test_generate_after_a_prompt_that_ends_on_a_picture(model_type: str) -> None:
    model = model_of(model_type)
    last = Sliced((1, 8, 12), newlines=2) if model_type == "minicpmv4_7" else clip(model_type)
    made = batch(model_type, [[Text(4), last]])
    ids, ends = by_hand(model_type, made)
    wanted = greedy(model, made.inputs, ids, decoded(model_type, ids, ends, 3))
    with plug(model):
        tokens, got = generate(model, made.inputs, 4)
    assert torch.equal(tokens, wanted[0])
    torch.testing.assert_close(got, wanted[1], **ROUNDING)


@this_version
@of_families(["minicpmv4_7"])
def test_finer_tokens_that_a_call_asks_for(model_type: str) -> None:
    """With downsample_mode="4x" a token is 2 x 2 patches: a thumbnail of 4 x 8 patches has 8 tokens."""
    model = model_of(model_type)
    kinds = torch.tensor([[0] * 4 + [1] * 8 + [0] * 6])
    tokens = torch.where(kinds == 1, IMG, torch.randint(10, 490, kinds.shape))
    tokens[0, 3], tokens[0, 12] = IMAGE_START, IMAGE_END
    inputs = {"input_ids": tokens, "mm_token_type_ids": kinds, "attention_mask": torch.ones_like(kinds)}
    inputs |= {"target_sizes": torch.tensor([[4, 8]]), "downsample_mode": "4x"}
    wanted = logits(model, **inputs)
    with plug(model):
        assert torch.equal(logits(model, **inputs), wanted)
        with pytest.raises(ValueError, match="has a crop of 8 tokens where target_sizes has 4x8 patches, which take 2"):
            logits(model, **{**inputs, "downsample_mode": None})


@this_version
@of_families(BY_GRIDS)
@pytest.mark.parametrize("kind", ["pictures", "clips"])
def test_each_beam_sees_the_pictures_of_its_row_in_order(model_type: str, kind: str) -> None:
    """GLM of transformers 5.24 repeats each picture for itself, so that rows get the first one twice."""
    model = model_of(model_type)
    first, second = [Text(3), picture(model_type, (1, 8, 12)), Text(3)], [picture(model_type), Text(4)]
    if kind == "clips":
        second = [clip(model_type), Text(3), *second]
    made = batch(model_type, [[*first, *second], [Text(2), picture(model_type), Text(6)]])
    options = {"return_dict_in_generate": True, "output_logits": True, "max_new_tokens": 2, "do_sample": False}
    with plug(model), torch.no_grad():
        wanted = model(**made.inputs).logits[:, -1]
        beams = model.generate(**made.inputs, **options, num_beams=3).logits[0]
    torch.testing.assert_close(beams, wanted.repeat_interleave(3, dim=0), **ROUNDING)


@this_version
@of_families([name for name in DECODERS if name != "glm_image"])
@pytest.mark.parametrize("way", WAYS)
def test_other_ways_to_generate(model_type: str, way: str) -> None:
    """Each way on its own is as by hand: the ids are handed to the same call as `position_ids`."""
    if model_type in HYBRID and way == "assisted":
        return
    model, made, options = model_of(model_type), batch(model_type, prompt(model_type)[:1]), WAYS[way]
    ids, ends = by_hand(model_type, made)
    # The loop goes on from the last id of each axis: the prompt ends on text, where they are equal.
    assert (ids[:, 0, -1] + 1 == ends).all()
    prompts = {**made.inputs, "position_ids": ids}
    if model_type != "hunyuan_vl":
        text = torch.arange(ids.shape[-1]).to(ids.dtype)[None, None]
        prompts["position_ids"] = torch.cat([text, ids])

    def tokens(inputs: dict[str, Any]) -> Tensor:
        torch.manual_seed(1)
        return model.generate(**inputs, **{"do_sample": False, "max_new_tokens": 5, "min_new_tokens": 5, **options})

    wanted = tokens(prompts)
    with plug(model):
        assert torch.equal(tokens(made.inputs), wanted)


@of_families(DECODERS)
def test_requests_take_turns(model_type: str) -> None:
    model, token = model_of(model_type), torch.tensor([[77]])
    one = batch(model_type, [[Text(2), picture(model_type), Text(4)]]).inputs
    other = batch(model_type, [prompt(model_type)[0]]).inputs
    with plug(model):
        alone, memories = [], []
        for inputs in (one, other):
            memory = new_cache(model)
            logits(model, **inputs, **{CACHE: memory})
            alone.append(step(model, memory, inputs["attention_mask"], token))
        for inputs in (one, other):
            memories.append(new_cache(model))
            logits(model, **inputs, **{CACHE: memories[-1]})
        generate(model, other, 2)
        for inputs, memory, wanted in zip((one, other), memories, alone, strict=True):
            assert torch.equal(step(model, memory, inputs["attention_mask"], token), wanted)


# The others have no token types: there pixels alone tell that new tokens have a picture.
@typed
@of_families([name for name in DECODERS if name not in ("glm_image", *OMNI)])
@pytest.mark.parametrize("by_generate", [False, True], ids=["forward", "generate"])
def test_a_new_picture_on_top_of_a_cache(model_type: str, by_generate: bool) -> None:
    model = model_of(model_type)
    first, second = [Text(4), clip(model_type), Text(5)], [Text(2), picture(model_type), Text(3)]
    whole = batch(model_type, [[*first[:-1], Text(7), *second[1:]]])
    ids, _ = by_hand(model_type, whole)
    turn = batch(model_type, [first])
    old = turn.inputs["input_ids"].shape[1]
    turn.inputs["input_ids"] = whole.inputs["input_ids"][:, :old]
    new = batch(model_type, [second]).inputs
    new = {**columns(whole.inputs, slice(old, None)), **{key: new[key] for key in new if key not in whole.inputs}}
    for key in ("image_grid_thw", "video_grid_thw", "second_per_grid_ts", "target_sizes", "target_sizes_videos"):
        new.pop(key, None)
        sizes = batch(model_type, [second]).inputs.get(key)
        if sizes is not None:
            new[key] = sizes
    if model_type == "minicpmv4_7":  # pictures take turns in its two tables
        new["target_sizes_videos"] = new.pop("target_sizes")
    new["attention_mask"] = whole.inputs["attention_mask"]
    wanted = logits(model, **whole.inputs, position_ids=ids)[:, old:]
    with plug(model):
        memory = new_cache(model)
        logits(model, **turn.inputs, **{CACHE: memory})
        if by_generate:
            tokens = {**new, **{key: whole.inputs[key] for key in ("input_ids", "mm_token_type_ids")}}
            got = generate(model, tokens, 1, **{CACHE: memory})[1]
            torch.testing.assert_close(got[:, -1], wanted[:, -1], **ROUNDING)
        else:
            got = logits(model, **new, **{CACHE: memory})
            torch.testing.assert_close(got, wanted, **ROUNDING)


@typed
@of_families([name for name in DECODERS if name not in ("glm_image", *OMNI)])
def test_a_conversation_with_a_picture_in_each_turn(model_type: str) -> None:
    """Each turn is a call of `generate` that goes on from the cache; what was generated is text."""
    model = model_of(model_type)
    turns = [batch(model_type, [[Text(4), picture(model_type), Text(3)]]).inputs for _ in range(2)]
    if model_type == "minicpmv4_7":  # pictures take turns in its two tables
        turns[1]["target_sizes_videos"] = turns[1].pop("target_sizes")
    with plug(model):
        memory = new_cache(model)
        said, _ = generate(model, turns[0], 4, **{CACHE: memory})
        whole = {key: torch.cat([turns[0][key], turns[1][key]], dim=1) for key in ("attention_mask", "input_ids")}
        whole["input_ids"] = torch.cat([turns[0]["input_ids"], said, turns[1]["input_ids"]], dim=1)
        whole["attention_mask"] = torch.ones_like(whole["input_ids"])
        kinds = [turns[0]["mm_token_type_ids"], torch.zeros_like(said), turns[1]["mm_token_type_ids"]]
        whole["mm_token_type_ids"] = torch.cat(kinds, dim=1)
        sizes = {key: value for key, value in turns[1].items() if key not in whole}
        if model_type == "minicpmv4_7":
            whole["mm_token_type_ids"][:, -turns[1]["input_ids"].shape[1] :] *= 2
            whole["input_ids"][whole["mm_token_type_ids"] == 2] = VID
        got = generate(model, {**whole, **sizes}, 4, **{CACHE: memory})
    spans = [Text(4), picture(model_type), Text(3 + 4 + 4), picture(model_type), Text(3)]
    made = Batch({**whole}, (tuple(spans),))
    ids, ends = by_hand(model_type, made)
    wanted = greedy(model, whole, ids, (ends[:, None] + torch.arange(3)).expand(len(ids), -1, -1))
    assert torch.equal(got[0], wanted[0])
    torch.testing.assert_close(got[1], wanted[1], **ROUNDING)


@of_families(["hunyuan_vl"])
def test_a_cache_that_does_not_know_its_pictures_is_refused(model_type: str) -> None:
    model = model_of(model_type)
    inputs = batch(model_type, [[Text(4), picture(model_type), Text(3)]]).inputs
    whole = {key: torch.cat([inputs[key]] * 2, dim=1) for key in ("input_ids", "attention_mask", "mm_token_type_ids")}
    ids, _ = by_hand(model_type, batch(model_type, [[Text(4), picture(model_type), Text(3)]]))
    with plug(model):
        memory = new_cache(model)
        logits(model, **inputs, position_ids=ids, **{CACHE: memory})
        with pytest.raises(ValueError, match="the cache does not know how many pictures it holds"):
            generate(model, {**whole, "image_grid_thw": inputs["image_grid_thw"]}, 1, **{CACHE: memory})


@of_families(("neomme", "hunyuan_vl"))
def test_plain_ids_of_a_model_without_a_text_row_are_left_alone(model_type: str) -> None:
    model, tokens = model_of(model_type), torch.randint(10, 490, (2, 6))
    ids = torch.arange(6).expand(2, -1) * 3
    wanted = logits(model, input_ids=tokens, position_ids=ids)
    with plug(model):
        assert torch.equal(logits(model, input_ids=tokens, position_ids=ids), wanted)


# ------------------------------------------------------------------------------------------ other layouts and rotaries


def placed(layout: Any, made: Any, rows: Any) -> Tensor:
    """(A, B, N) the ids that `layout` gives to `rows`, 0 in padding."""
    mask = made.inputs["attention_mask"].bool()
    parts = [layout(row).ids for row in rows]
    ids = torch.zeros(len(parts[0]), *mask.shape, dtype=parts[0].dtype)
    for row, part in enumerate(parts):
        ids[:, row, mask[row]] = part
    return ids


def plainly(rows: Any) -> list[list[Any]]:
    """`rows` for layouts that know no clock and no stamps: a frame behind its stamp is a picture."""
    plain: list[list[Any]] = []
    for row in rows:
        plain.append([])
        for span in row:
            if isinstance(span, Video) and isinstance(span.stamp, int):
                plain[-1] += [
                    part for _ in range(span.grid[0]) for part in (Text(span.stamp), Image((1, *span.grid[1:])))
                ]
            else:
                plain[-1].append(Video(span.grid) if isinstance(span, Video) else span)
    return plain


@of_families([name for name in BY_GRIDS if name != "ernie4_5_vl_moe"])
@pytest.mark.parametrize("layout", [VideoRopeLayout(delta=3), V2peLayout(stride=64)], ids=["whole ids", "real ids"])
def test_another_layout_in_one_line(model_type: str, layout: Any) -> None:
    model, made = model_of(model_type), batch(model_type, prompt(model_type))
    ids, mask = placed(layout, made, plainly(made.rows)), made.inputs["attention_mask"].bool()
    ends = torch.tensor([layout(row).next for row in plainly(made.rows)])
    following = (ends[:, None] + torch.arange(4)).expand(3, -1, -1).to(ids.dtype)
    wanted = logits(model, **made.inputs, position_ids=ids)
    by_loop = greedy(model, made.inputs, ids, following)
    trained = logits(model, **made.inputs)
    with plug(model, layout=layout):
        got = logits(model, **made.inputs)
        tokens, steps = generate(model, made.inputs, 5)
    assert torch.equal(got[mask], wanted[mask])
    assert torch.equal(got[1, mask[1]], trained[1, mask[1]])  # text alone
    assert (got - trained)[0].abs().max() > 1e-3
    assert torch.equal(tokens, by_loop[0])
    torch.testing.assert_close(steps, by_loop[1], **ROUNDING)


@this_version
@of_families(("qwen2_vl", "qwen2_5_vl", "ernie4_5_vl_moe"))
def test_the_rule_of_a_library_version(model_type: str) -> None:
    model, inputs = model_of(model_type), batch(model_type, prompt(model_type)).inputs
    mask, tokens = inputs["attention_mask"], torch.randint(10, 490, (2, 3))
    wanted = logits(model, **inputs)
    with plug(model):
        assert (logits(model, **inputs) - wanted).abs().max() > 1e-3
    with plug(model, layout="transformers-5.24"):
        assert torch.equal(logits(model, **inputs), wanted)
        # Text goes on behind the last text, which lies inside the clip.
        memory = new_cache(model)
        logits(model, **inputs, **{CACHE: memory})
        got = step(model, memory, mask, tokens)
    ids, _ = model.model.get_rope_index(**inputs)
    following = (ids[:, :, -1:] + 1 + torch.arange(3)).clone()
    memory = new_cache(model)
    logits(model, **inputs, position_ids=ids, **{CACHE: memory})
    assert torch.equal(got, step(model, memory, mask, tokens, position_ids=following))
    with plug(model, layout="transformers-5.24"):
        memory = new_cache(model)
        logits(model, **inputs, **{CACHE: memory})
        memory.crop(-3)
        got = step(model, memory, mask[:, :-3], inputs["input_ids"][:, -3:])
    torch.testing.assert_close(got, wanted[:, -3:], **ROUNDING)


@of_families(("qwen2_vl", "qwen2_5_vl"))
def test_generate_behind_a_clip_by_the_rule_of_a_library_version(model_type: str) -> None:
    model, made = model_of(model_type), batch(model_type, [[Text(4), clip(model_type)]])
    ids, _ = by_hand(model_type, made)  # this prompt has no text that one rule puts elsewhere
    wanted = greedy(model, made.inputs, ids, (4 + 3 + torch.arange(3)).expand(3, 1, -1))  # the clip is 2 by 3 tokens
    with plug(model, layout="transformers-5.24"):
        tokens, got = generate(model, made.inputs, 4)
    assert torch.equal(tokens, wanted[0])
    torch.testing.assert_close(got, wanted[1], **ROUNDING)


def with_rope(model_type: str, **rope: Any) -> Any:
    """The model with other rope parameters in its configuration, and the same weights."""
    model = fresh_model(model_type)
    text = model.config.text_config
    if model_type == "cohere_compass":
        text.rope_parameters["full_attention"].update(rope)
    else:
        text.rope_parameters.update(rope)
    module = model.model.language_model.rotary_emb
    model.model.language_model.rotary_emb = type(module)(config=text)
    model.load_state_dict(model_of(model_type).state_dict())
    return model


SECTIONS = {"chunked": (20, 12, 32), "interleaved": (22, 21, 21), "alternating": (24, 20, 20)}
PARTIAL = {"chunked": (8, 8, 16), "interleaved": (12, 10, 10)}


@of_families([name for name in DECODERS if name not in ("hunyuan_vl", *OTHERWISE)])
def test_another_split_is_that_of_a_changed_configuration(model_type: str) -> None:
    model, made = model_of(model_type), batch(model_type, prompt(model_type))
    trained = mrope.Rotary.from_config(config_of(model_type)).split
    assert isinstance(trained, AxisSplit)
    allocation = trained.allocation
    counts = SECTIONS[allocation] if trained.pairs == 64 else PARTIAL[allocation]
    stated = (*counts[1:], counts[0]) if allocation == "alternating" else counts  # Ernie's order is h, w, t
    mask = made.inputs["attention_mask"].bool()
    with plug(model):
        before = logits(model, **made.inputs)
    with plug(model, split=AxisSplit(counts, allocation)):
        got = logits(model, **made.inputs)
    changed = with_rope(model_type, mrope_section=list(stated))
    with plug(changed):
        wanted = logits(changed, **made.inputs)
    assert torch.equal(got[1, mask[1]], before[1, mask[1]])  # text alone has one position on all axes
    assert torch.equal(got[mask], wanted[mask])
    if counts != trained.counts:
        assert not torch.equal(got, before)


# Of Ernie 4.5 VL the library knows no extension.
@of_families([name for name in DECODERS if name not in ("ernie4_5_vl_moe", *OTHERWISE)])
@pytest.mark.parametrize(
    ("extension", "rope"),
    [
        (Linear(3), {"rope_type": "linear", "factor": 3.0}),
        (Yarn(4, 16), {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}),
    ],
    ids=["linear", "yarn"],
)
def test_another_extension_is_that_of_a_changed_configuration(model_type: str, extension: Any, rope: Any) -> None:
    model, inputs = model_of(model_type), batch(model_type, prompt(model_type)).inputs
    with plug(model):
        before = logits(model, **inputs)
    with plug(model, extend=extension):
        got = logits(model, **inputs)
    changed = with_rope(model_type, **rope)
    with plug(changed, rotary=model_type == "hunyuan_vl"):
        assert torch.equal(got, logits(changed, **inputs))
    assert not torch.equal(got, before)


@of_families(("qwen2_vl", "qwen3_vl", "glm4v", "qwen3_5", "ernie4_5_vl_moe"))
def test_an_extension_of_each_axis(model_type: str) -> None:
    model, made = model_of(model_type), batch(model_type, prompt(model_type))
    ids, _ = by_hand(model_type, made)
    ids[1:] = 0  # what rows and columns do not turn, they do not see
    wanted = logits(model, **made.inputs, position_ids=ids)
    with plug(model, extend=(None, Zero(), Zero())):
        assert torch.equal(logits(model, **made.inputs), wanted)


@this_version  # earlier ones take a table for each axis, which the model of the loop would have to hand out as well
@of_families(("qwen2_vl", "qwen3_vl", "glm4v", "cosmos3_edge", "paddleocr_vl"))
def test_a_layout_of_four_axes_with_a_split_for_it(model_type: str) -> None:
    """Against a table that is written down token by token, in a model of its own."""
    layout = VropeLayout()
    model, made = model_of(model_type), batch(model_type, still(model_type))
    trained, mask = mrope.Rotary.from_config(config_of(model_type)), made.inputs["attention_mask"].bool()
    pairs, base = trained.split.pairs, trained.frequencies.base
    ids = placed(layout, made, made.rows)
    angle = torch.stack([ids[pair % 4] * base ** (-pair / pairs) for pair in range(pairs)], dim=-1)
    angle = angle.repeat_interleave(2, dim=-1) if trained.pairing == "adjacent" else torch.cat([angle, angle], dim=-1)
    split = AxisSplit.by_hand([pair % 4 for pair in range(pairs)])
    by_loop = fresh_model(model_type)
    by_loop.load_state_dict(model.state_dict())
    by_loop.model.language_model.rotary_emb.forward = lambda x, position_ids: (angle.cos(), angle.sin())
    wanted = logits(by_loop, **made.inputs)
    text = torch.randint(10, 490, (2, 7))
    before = logits(model, input_ids=text)
    with plug(model, layout=layout, split=split):
        torch.testing.assert_close(logits(model, **made.inputs)[mask], wanted[mask], **ROUNDING)
        assert torch.equal(logits(model, input_ids=text), before)
        tokens, steps = generate(model, made.inputs, 3)
        memory = new_cache(model)
        logits(model, **made.inputs, **{CACHE: memory})
        got = step(model, memory, made.inputs["attention_mask"], tokens[:, :2])
        torch.testing.assert_close(got, steps[:, 1:], **ROUNDING)
        with pytest.raises(ValueError, match=r"position_ids have shape \(3, 2, \d+\); expected \(4, 2, \d+\)"):
            logits(model, **made.inputs, position_ids=ids[:3])


def test_what_does_not_go_together_is_refused() -> None:
    model = model_of("qwen2_vl")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"layout": "transformers-4"}, "layout is 'transformers-4'; expected one of trained, transformers-5.24"),
        ({"layout": GridLayout(merge=4)}, "layout merges 4 patches a side; the model merges 2"),
        ({"layout": GridLayout(), "positions": False, "rotary": True}, "layout was given with positions=False"),
        ({"layout": VropeLayout()}, r"split \(16, 24, 24\) has 3 axes; the positions have 4"),
        ({"split": AxisSplit((16, 16, 16, 16))}, "has 4 axes; the positions have 3"),
        ({"split": AxisSplit((8, 12, 12))}, r"split \(8, 12, 12\) has 32 pairs; the model rotates 64"),
        ({"extend": (Zero(), None)}, "there are extensions of 2 axes; the split has 3"),
    ]
    for arguments, message in wrong:
        with pytest.raises(ValueError, match=message) as caught:
            plug(model, **arguments)
        assert "\n" not in str(caught.value)
    with pytest.raises(TypeError):
        plug(model, layout=AnchoredLayout(GridLayout()))
    with pytest.raises(TypeError):
        plug(model, split=mrope.HeadSplit((1, 1, 1), pairs=64))  # pyright: ignore[reportArgumentType]
    assert not model.model._forward_pre_hooks


@of_families(("hy_v4_vl", "minicpmv4_7", "qwen2_5_omni_thinker"))
def test_a_layout_that_does_not_fit_the_prompt_is_refused(model_type: str) -> None:
    why = {"hy_v4_vl": "takes 8 tokens for image grid 1x4x8; the prompt has 10", "minicpmv4_7": "layout merges 2"}
    rows = prompt(model_type) if model_type in OMNI else still(model_type)
    model, inputs = model_of(model_type), batch(model_type, rows).inputs
    with pytest.raises(ValueError, match=why.get(model_type, "audio of 7 tokens has no place in GridLayout")):  # noqa: SIM117
        with plug(model, layout=GridLayout()):
            logits(model, **inputs)
    assert not model.model._forward_pre_hooks


# ------------------------------------------------------------------------------------------------- in and out of models


def state(model: Any) -> list[dict[str, Any]]:
    """What is in the __dict__ of each module, hooks included."""
    return [
        {key: dict(value) if isinstance(value, dict) else value for key, value in module.__dict__.items()}
        for module in model.modules()
    ]


@of_families(MODEL_TYPES)
def test_unplugging_restores_the_model_to_the_bit(model_type: str) -> None:
    model = fresh_model(model_type)
    before, classes = state(model), [dict(kind.__dict__) for m in model.modules() for kind in type(m).__mro__]
    inputs = batch(model_type, still(model_type)).inputs
    plug(model, rotary=True)
    logits(model, **inputs)
    if model_type != "neomme":
        generate(model, inputs, 2)
    unplug(model)
    assert state(model) == before
    assert [dict(kind.__dict__) for m in model.modules() for kind in type(m).__mro__] == classes


@of_families(("qwen3_5", "glm4v_moe", "hunyuan_vl", "minicpmv4_7"))
def test_a_plugged_model_is_saved_as_an_unplugged_one(model_type: str, tmp_path: Path) -> None:
    model = fresh_model(model_type)
    model.save_pretrained(tmp_path / "plain")
    with plug(model, rotary=True):
        model.save_pretrained(tmp_path / "plugged")
        for file in (tmp_path / "plain").iterdir():
            assert file.read_bytes() == (tmp_path / "plugged" / file.name).read_bytes()
        again = type(model).from_pretrained(tmp_path / "plugged", attn_implementation="eager")
        inputs = batch(model_type, prompt(model_type)).inputs
        with plug(again, rotary=True):
            assert torch.equal(logits(again, **inputs), logits(model, **inputs))


class Wrapper(torch.nn.Module):
    """A module around a model, as adapters and parallel training put it there."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, **inputs: Any) -> Any:
        return self.inner(**inputs)


@of_families(("qwen3_vl_moe", "minicpmv4_7", "qwen2_5_omni_thinker"))
def test_a_model_in_a_wrapper(model_type: str) -> None:
    model = model_of(model_type)
    inputs = batch(model_type, prompt(model_type)).inputs
    with plug(model):
        wanted = logits(model, **inputs), generate(model, inputs, 3)[0]
    wrapper = Wrapper(model)
    with plug(wrapper):
        assert torch.equal(logits(wrapper, **inputs), wanted[0])
        assert torch.equal(generate(model, inputs, 3)[0], wanted[1])
    assert not model.model._forward_pre_hooks


@of_families(OMNI)
def test_of_a_whole_omni_model_the_thinker_is_plugged(model_type: str) -> None:
    thinker, inputs = model_of(model_type), batch(model_type, prompt(model_type)).inputs
    stem = "Qwen2_5Omni" if "2_5" in model_type else "Qwen3OmniMoe"
    config = getattr(transformers, f"{stem}Config")(thinker_config=thinker.config.to_dict(), enable_audio_output=False)
    with torch.device("meta"):
        whole = getattr(transformers, f"{stem}ForConditionalGeneration")(config)
    whole.thinker = thinker
    with plug(thinker):
        wanted = logits(thinker, **inputs)
    with plug(whole):
        assert torch.equal(logits(thinker, **inputs), wanted)
    assert not thinker.model._forward_pre_hooks


def test_compiled_models() -> None:
    tests = Path(__file__).parent
    names = [name for name in ("qwen3_vl", "ernie4_5_vl_moe") if installed(name)]
    run = subprocess.run(
        [sys.executable, "-W", "ignore", str(tests / "compiled_plug.py"), *names],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tests.parent), *sys.path])},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [f"{name} compiled" for name in names]


def test_plugging_is_refused_by_name() -> None:
    text = model_of("qwen3_vl").model.language_model
    for wrong in (text, "qwen3_vl", torch.nn.Linear(1, 1)):
        with pytest.raises(TypeError, match=f"model is a {type(wrong).__name__}; expected a transformers model"):
            plug(wrong)
    with pytest.raises(ValueError, match="is not plugged"):
        unplug(model_of("qwen3_vl"))
