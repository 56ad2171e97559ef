"""Built models: text is the language model's own, pictures of any size stand where Qwen2-VL and Qwen3-VL put them."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from sources import ROOT
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText, GenerationMixin

import mrope
from mrope import AxisSplit
from mrope.encodings import Alibi, MixedRope, QwenVisionRope, ShawBias
from mrope.hf import build_vlm, compare, doctor, layout_of, read_positions, read_spans, take_rows, vllm_positions
from mrope.hf.cache import cache_of
from mrope.vision import VisionEncoder, VitConfig, patchify_video
from mrope.vlm import Vlm, VlmConfig, add_lora, freeze
from mrope.vlm.encoder import describe, restore
from mrope.vlm.guide import axis_of_columns, tables

WORDS, WIDTH, PAIRS, THETA = 90, 64, 16, 1e4
IMAGE, VIDEO = 90, 91  # by default the numbers behind the vocabulary
SPLITS = {"qwen2": AxisSplit((6, 5, 5)), "qwen3": AxisSplit((6, 5, 5), "interleaved"), "llama": AxisSplit((8, 4, 4))}
TWO, TALL, CLIP = (1, 4, 6), (1, 6, 2), (2, 4, 2)  # grids in patches, 2 x 2 of which make a token
ROUNDING: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
Item = int | tuple[int, int, int]

by_language = pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
by_vl = pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
by_side = pytest.mark.parametrize("side", ["left", "right"])


def text_settings() -> dict[str, Any]:
    return {
        "vocab_size": WORDS,
        "hidden_size": WIDTH,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-6,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def text_config(kind: str, **settings: Any) -> Any:
    classes = {
        "qwen2": transformers.Qwen2Config,
        "qwen3": transformers.Qwen3Config,
        "llama": transformers.LlamaConfig,
    }
    own = {} if kind == "qwen2" else {"head_dim": 2 * PAIRS}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": THETA}}
    config = classes[kind](**(text_settings() | own | rope | settings))
    config._attn_implementation = "eager"
    return config


def lively(model: Any) -> Any:
    """With weights that all count."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model.eval()


def vit(**settings: Any) -> Any:
    options: dict[str, Any] = {"img_size": 64, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 0} | settings
    return lively(timm.create_model("vit_tiny_patch16_224", pretrained=False, **options))


def language(kind: str, **settings: Any) -> Any:
    return lively(AutoModelForCausalLM.from_config(text_config(kind, **settings)))


def built(kind: str = "qwen3", **settings: Any) -> Any:
    return lively(build_vlm(vit(), language(kind), **({"split": SPLITS[kind], "merge": 2} | settings)))


def by_hand(row: Sequence[Item]) -> Tensor:
    """(3, N) positions: text on the diagonal, a picture or clip as a block, what follows behind the largest."""
    at, ids = 0, []
    for item in row:
        if isinstance(item, int):
            ids.append((at, at, at))
            at += 1
            continue
        t, h, w = item[0], item[1] // 2, item[2] // 2
        ids += [(at + f, at + r, at + c) for f in range(t) for r in range(h) for c in range(w)]
        at += max(t, h, w)
    return torch.tensor(ids).T


def padded(rows: Sequence[Tensor], side: str, value: int = 0) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_side=side, padding_value=value)


def batch(rows: Sequence[Sequence[Item]], side: str = "left", *, patch_dim: int = 768) -> tuple[dict[str, Any], Tensor]:
    """What the model takes for rows of words and grids, and the positions (3, B, N) by hand."""
    words, grids = [], {IMAGE: [], VIDEO: []}
    for row in rows:
        line: list[int] = []
        for item in row:
            if isinstance(item, int):
                line.append(item)
                continue
            place = IMAGE if item[0] == 1 else VIDEO
            grids[place].append(item)
            line += [place] * (math.prod(item) // 4)
        words.append(torch.tensor(line))
    inputs: dict[str, Any] = {
        "input_ids": padded(words, side),
        "attention_mask": padded([torch.ones_like(row) for row in words], side),
    }
    for place, pixels, table in (
        (IMAGE, "pixel_values", "image_grid_thw"),
        (VIDEO, "pixel_values_videos", "video_grid_thw"),
    ):
        if grids[place]:
            inputs[table] = torch.tensor(grids[place])
            inputs[pixels] = torch.randn(int(inputs[table].prod(-1).sum()), patch_dim)
    ids = torch.stack([padded([by_hand(row)[axis] for row in rows], side) for axis in range(3)])
    return inputs, ids


ROWS: list[list[Item]] = [[3, 4, TWO, TALL, 5], [6, TALL, 7, 8, 9, 10, TWO, 11, 12], [13, 14, 15]]
MOVING: list[list[Item]] = [[3, CLIP, 4, TWO, 5], [6, 7, (5, 2, 4), 8, 9]]


def vl_text(kind: str, model: Any) -> Any:
    """The text model of Qwen2-VL or Qwen3-VL with the weights of `model`'s language model."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": THETA, "mrope_section": [6, 5, 5]}
    if kind == "qwen2":
        config: Any = transformers.Qwen2VLTextConfig(**text_settings(), rope_parameters=rope)
        made: Any = transformers.Qwen2VLTextModel
    else:
        rope["mrope_interleaved"] = True
        config = transformers.Qwen3VLTextConfig(**text_settings(), head_dim=2 * PAIRS, rope_parameters=rope)
        made = transformers.Qwen3VLTextModel
    config._attn_implementation = "eager"
    text = made(config).eval()
    text.load_state_dict(model.language_model.model.state_dict())
    return text


def expected(kind: str, model: Any, inputs: dict[str, Any], ids: Tensor) -> Tensor:
    """Logits by transformers' own text model, with features and positions put in their places by hand."""
    words = inputs["input_ids"]
    x = model.language_model.get_input_embeddings()(words.clamp(max=WORDS - 1)).clone()
    features: dict[str, Any] = {}
    deep = [torch.zeros_like(x) for _ in model.deepstack]
    for place, pixels, table in (
        (IMAGE, "pixel_values", "image_grid_thw"),
        (VIDEO, "pixel_values_videos", "video_grid_thw"),
    ):
        if pixels in inputs:
            seen, added = model.see(inputs[pixels], inputs[table])
            for number, (row, column) in enumerate((words == place).nonzero().tolist()):
                x[row, column] = seen[number]
                for layer, each in zip(deep, added, strict=True):
                    layer[row, column] = each[number]
    if deep:
        mask = words >= WORDS
        features = {"visual_pos_masks": mask, "deepstack_visual_embeds": [layer[mask] for layer in deep]}
    hidden = vl_text(kind, model)(
        inputs_embeds=x, position_ids=ids, attention_mask=inputs["attention_mask"], use_cache=False, **features
    )
    return model.language_model.lm_head(hidden.last_hidden_state)


def assert_same(given: Tensor, wanted: Tensor, mask: Tensor) -> None:
    kept = mask != 0
    torch.testing.assert_close(given[kept], wanted[kept], **ROUNDING)


# ----------------------------------------------------------------------------------------------------------------- text


@by_language
@by_side
@torch.no_grad()
def test_logits_of_text_are_the_language_models_own_to_the_bit(kind: str, side: str) -> None:
    alone = language(kind)
    model = build_vlm(vit(), copy.deepcopy(alone), split=SPLITS[kind]).eval()
    words = padded([torch.arange(3, 12), torch.arange(20, 25)], side)
    mask = (words != 0).long()
    for inputs in ({"input_ids": words}, {"input_ids": words, "attention_mask": mask}):
        wanted = alone(**inputs)
        given = model(**inputs)
        assert torch.equal(given.logits, wanted.logits)
        steps = [
            made(torch.tensor([[7], [8]]), **{_cache_name(out): cache_of(out)}).logits
            for made, out in ((alone, wanted), (model, given))
        ]
        assert torch.equal(*steps)


@by_language
@torch.no_grad()
def test_text_is_generated_as_by_the_language_model(kind: str) -> None:
    alone = language(kind)
    model = build_vlm(vit(), copy.deepcopy(alone), split=SPLITS[kind]).eval()
    words = padded([torch.arange(3, 12), torch.arange(20, 25)], "left")
    for options in ({}, {"num_beams": 2}, {"cache_implementation": "static"}):
        wanted, given = (
            made.generate(words, attention_mask=(words != 0).long(), max_new_tokens=6, do_sample=False, **options)
            for made in (alone, model)
        )
        assert torch.equal(given, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scaling", [{}, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}])
def test_equal_axes_turn_as_in_the_language_model_to_the_bit(dtype: torch.dtype, scaling: dict[str, Any]) -> None:
    rope = {"rope_type": "default", "rope_theta": THETA} | scaling
    rotary = language("qwen3", rope_parameters=rope).model.rotary_emb
    columns = axis_of_columns(rotary, SPLITS["qwen3"].axis.tolist())
    ids, x = torch.randint(0, 500, (2, 9)), torch.zeros(2, 9, WIDTH, dtype=dtype)
    for given, wanted in zip(tables(rotary, x, ids.expand(3, -1, -1), columns), rotary(x, ids), strict=True):
        assert given.dtype == dtype
        assert torch.equal(given, wanted)


def test_each_pair_turns_by_its_own_axis() -> None:
    rotary = language("llama").model.rotary_emb
    split = SPLITS["llama"]  # 8 pairs of t, then 4 of h, then 4 of w
    columns = axis_of_columns(rotary, split.axis.tolist())
    ids = torch.tensor([[[2, 30]], [[3, 20]], [[5, 10]]])
    cos, sin = tables(rotary, torch.zeros(1, 2, WIDTH), ids, columns)
    for token, places in enumerate([(2, 3, 5), (30, 20, 10)]):
        for pair in range(PAIRS):
            angle = places[0 if pair < 8 else 1 if pair < 12 else 2] * THETA ** (-pair / PAIRS)
            for column in (pair, pair + PAIRS):
                assert cos[0, token, column].item() == pytest.approx(math.cos(angle), abs=1e-5)
                assert sin[0, token, column].item() == pytest.approx(math.sin(angle), abs=1e-5)


def test_pairs_that_lie_twice_each_are_found() -> None:
    settings: dict[str, Any] = text_settings() | {"hidden_size": 2 * WIDTH}
    config = transformers.CohereConfig(**settings)
    rotary = AutoModelForCausalLM.from_config(config).model.rotary_emb
    assert axis_of_columns(rotary, [0] * 12 + [1] * 10 + [2] * 10) == (0,) * 24 + (1,) * 20 + (2,) * 20


# ------------------------------------------------------------------------------------------------------------- pictures


@by_vl
@by_side
@torch.no_grad()
def test_logits_equal_those_of_qwens_own_text_model_at_positions_by_hand(kind: str, side: str) -> None:
    model = built(kind)
    for rows in (ROWS, MOVING):
        inputs, ids = batch(rows, side)
        wanted = expected(kind, model, inputs, ids)
        given = model(**inputs).logits
        assert_same(given, wanted, inputs["attention_mask"])
        swapped = expected(kind, model, inputs, ids[[0, 2, 1]])
        assert not torch.allclose(given, swapped, atol=1e-3)


@by_language
@torch.no_grad()
def test_a_picture_and_its_transpose_are_told_apart(kind: str) -> None:
    model = built(kind)
    high, wide = (batch([[3, 4, grid, 5, 6]])[0] for grid in ((1, 6, 4), (1, 4, 6)))
    wide["pixel_values"] = high["pixel_values"]
    assert torch.equal(high["input_ids"], wide["input_ids"])
    model.encoder = _Blind(model.encoder)  # the decoder alone must see it
    assert not torch.allclose(model(**high).logits[:, -1], model(**wide).logits[:, -1], atol=5e-5)


class _Blind(nn.Module):
    """An encoder whose tokens do not depend on the grid."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.config, self.inner = encoder.config, encoder

    def forward(self, patches: tuple[Tensor, Tensor]) -> Tensor:
        return self.inner((patches[0], torch.tensor([[1, 2, 2]] * (len(patches[0]) // 4))))


@torch.no_grad()
def test_deepstack_adds_the_patches_of_its_blocks_behind_the_first_layers() -> None:
    model = built("qwen3", deepstack=(0, 2))
    inputs, ids = batch(ROWS)
    wanted = expected("qwen3", model, inputs, ids)
    assert_same(model(**inputs).logits, wanted, inputs["attention_mask"])
    patches: list[Tensor] = []
    hooks = [model.encoder.blocks[n].register_forward_hook(lambda *given: patches.append(given[2])) for n in (0, 2)]
    _, features = model.see(inputs["pixel_values"], inputs["image_grid_thw"])
    for hook in hooks:
        hook.remove()
    for merger, seen, feature in zip(model.deepstack, patches, features, strict=True):
        own = seen[: len(inputs["pixel_values"])].reshape(-1, 4 * 24)
        torch.testing.assert_close(merger(own), feature)


@torch.no_grad()
def test_rows_do_not_depend_on_their_neighbours_or_on_padding() -> None:
    model = built()
    inputs, _ = batch(ROWS)
    together = model(**inputs).logits
    first = 0
    for row, items in enumerate(ROWS):
        alone, _ = batch([items])
        count = 0 if "image_grid_thw" not in alone else int(alone["image_grid_thw"].prod(-1).sum())
        if count:
            alone["pixel_values"] = inputs["pixel_values"][first : first + count]
        first += count
        length = alone["input_ids"].shape[1]
        torch.testing.assert_close(together[row, -length:], model(**alone).logits[0], **ROUNDING)


def packed(rows: Sequence[Sequence[Sequence[Item]]], side: str) -> tuple[dict[str, Any], list[list[dict[str, Any]]]]:
    """What the model takes for rows of documents, without a mask; and for each document alone."""
    alone = [[batch([document]) for document in row] for row in rows]
    flat = [one for row in alone for one, _ in row]
    ids = [torch.cat([torch.cat([torch.arange(at.shape[-1])[None, None], at]) for _, at in row], -1) for row in alone]
    inputs = {
        "input_ids": padded([torch.cat([one["input_ids"][0] for one, _ in row]) for row in alone], side),
        "position_ids": torch.stack([padded([each[axis, 0] for each in ids], side) for axis in range(4)]),
    }
    for name in ("pixel_values", "image_grid_thw"):
        inputs[name] = torch.cat([one[name] for one in flat if name in one])
    return inputs, [[one for one, _ in row] for row in alone]


@pytest.mark.parametrize("options", [{}, {"use_cache": False}], ids=["by default", "without a cache"])
@pytest.mark.parametrize("mask", [False, True], ids=["no mask", "a mask of ones"])
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@torch.no_grad()
def test_packed_rows_do_not_attend_across_documents(options: dict[str, Any], mask: bool, train: bool) -> None:
    model = built("qwen3", deepstack=(0,)).train(train)
    inputs, alone = packed([ROWS[:2]], "right")
    if mask:
        options = options | {"attention_mask": torch.ones_like(inputs["input_ids"])}
    wanted = torch.cat([model(**each).logits for each in alone[0]], dim=1)
    torch.testing.assert_close(model(**inputs, **options).logits, wanted, **ROUNDING)


@by_side
@torch.no_grad()
def test_packed_rows_with_padding_do_not_attend_across_documents(side: str) -> None:
    model = built()
    inputs, alone = packed([ROWS[:2], [ROWS[2], [20, TALL], [21, 22]]], side)
    inputs["attention_mask"] = (inputs["input_ids"] != 0).long()
    given = model(**inputs).logits
    for row, documents in enumerate(alone):
        wanted = torch.cat([model(**each).logits[0] for each in documents])
        torch.testing.assert_close(given[row][inputs["attention_mask"][row] != 0], wanted, **ROUNDING)


@by_language
@torch.no_grad()
def test_packed_text_does_not_attend_across_documents(kind: str) -> None:
    model = built(kind)
    words, ids = torch.arange(3, 15)[None], torch.cat([torch.arange(5), torch.arange(7)])[None]
    wanted = torch.cat([model(words[:, :5]).logits, model(words[:, 5:]).logits], dim=1)
    for extra in ({}, {"attention_mask": torch.ones_like(words)}):
        torch.testing.assert_close(model(words, position_ids=ids, **extra).logits, wanted, **ROUNDING)
    with pytest.raises(ValueError, match=r"position_ids start again at token 5 of row 0.*expected use_cache=False"):
        model(words, position_ids=ids, use_cache=True)


@torch.no_grad()
def test_a_picture_that_the_mask_hides_is_not_there() -> None:
    model, (inputs, _) = built(), batch([[3, TWO, 4, 5]])
    inputs["attention_mask"][0, 1:7] = 0
    kept = inputs["attention_mask"][0] != 0
    torch.testing.assert_close(model(**inputs).logits[0, kept], model(torch.tensor([[3, 4, 5]])).logits[0], **ROUNDING)


@torch.no_grad()
def test_embeddings_in_place_of_words_need_token_types() -> None:
    model = built()
    inputs, _ = batch(ROWS)
    wanted = model(**inputs).logits
    words = inputs.pop("input_ids")
    inputs["inputs_embeds"] = model.get_input_embeddings()(words.clamp(max=WORDS - 1))
    with pytest.raises(ValueError, match="pass mm_token_type_ids"):
        model(**inputs)
    assert torch.equal(model(**inputs, mm_token_type_ids=(words == IMAGE).int()).logits, wanted)


# ----------------------------------------------------------------------------------------------------------- generation


def _cache_name(output: Any) -> str:
    return "cache" if "cache" in output else "past_key_values"


@by_vl
@pytest.mark.parametrize("rows", [ROWS, MOVING], ids=["pictures", "clips"])
@torch.no_grad()
def test_a_step_on_a_cache_equals_one_forward_over_all(kind: str, rows: list[list[Item]]) -> None:
    model = built(kind)
    inputs, _ = batch(rows)
    given = model(**inputs)
    new = torch.tensor([[20, 21, 22]] * len(rows))
    mask = torch.cat([inputs["attention_mask"], torch.ones_like(new)], dim=1)
    for step in range(3):
        until = inputs["attention_mask"].shape[1] + step + 1
        given = model(new[:, step : step + 1], attention_mask=mask[:, :until], **{_cache_name(given): cache_of(given)})
    whole = inputs | {"input_ids": torch.cat([inputs["input_ids"], new], dim=1), "attention_mask": mask}
    torch.testing.assert_close(given.logits[:, -1], model(**whole).logits[:, -1], **ROUNDING)


def by_whole_forwards(model: Any, inputs: dict[str, Any], steps: int) -> Tensor:
    """Greedy words (B, steps), each from a forward over all that was there before."""
    inputs = dict(inputs)
    for _ in range(steps):
        word = model(**inputs).logits[:, -1].argmax(-1, keepdim=True)
        inputs["input_ids"] = torch.cat([inputs["input_ids"], word], dim=1)
        inputs["attention_mask"] = torch.cat([inputs["attention_mask"], torch.ones_like(word)], dim=1)
    return inputs["input_ids"][:, -steps:]


@by_language
@pytest.mark.parametrize(
    "options",
    [{}, {"use_cache": False}, {"cache_implementation": "static"}],
    ids=["a cache", "no cache", "a static cache"],
)
@torch.no_grad()
def test_generate_equals_whole_forwards(kind: str, options: dict[str, Any]) -> None:
    model = built(kind)
    for rows in ([*ROWS[:2], [5, TWO]], MOVING):  # one prompt ends on a picture
        inputs, _ = batch(rows)
        fixed = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False} | options
        model.generation_config.eos_token_id = None
        types = (inputs["input_ids"] == IMAGE).int() + 2 * (inputs["input_ids"] == VIDEO).int()
        for extra in ({}, {"mm_token_type_ids": types}):
            written = model.generate(**inputs, **extra, **(fixed | {"min_new_tokens": None}))[:, -4:]
            assert torch.equal(written, by_whole_forwards(model, inputs, 4))


@pytest.mark.parametrize(
    ("row", "bias"), [([5, TWO, 7], None), ([5, 7, TWO], {(20,): 1e6})], ids=["drafts refused", "drafts taken"]
)
@torch.no_grad()
def test_drafts_of_another_built_model_go_on_behind_the_picture(row: list[Item], bias: Any) -> None:
    """With the bias all words are 20, drafts among them; without it random drafts are refused."""
    model, assistant = built(), built("qwen2")
    assistant.generation_config.num_assistant_tokens, assistant.generation_config.assistant_confidence_threshold = 3, 0
    inputs, _ = batch([row])
    model.generation_config.eos_token_id = None
    fixed = {"max_new_tokens": 6, "do_sample": False, "sequence_bias": bias}
    fixed |= {"suppress_tokens": [IMAGE, VIDEO], "output_logits": True, "return_dict_in_generate": True}
    given = model.generate(**inputs, **fixed, assistant_model=assistant)
    whole = {"input_ids": given.sequences, "attention_mask": torch.ones_like(given.sequences)}
    wanted = model(**(inputs | whole)).logits[:, -7:-1]
    torch.testing.assert_close(torch.stack(given.logits, 1), wanted, **ROUNDING)
    words = torch.full((1, 6), 20) if bias else wanted[..., :IMAGE].argmax(-1)
    assert torch.equal(given.sequences[:, -6:], words)


@torch.no_grad()
def test_a_text_model_assists_where_its_words_include_the_placeholders() -> None:
    """Behind its vocabulary it would look up a row of its embeddings that is not there."""
    small = language("llama")
    fixed = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    behind, inputs = built(), batch([[5, TWO, 7]])[0]
    message = (
        r"assistant_model is a LlamaForCausalLM of 90 words and the prompt holds token 90; expected one that reads"
    )
    with pytest.raises(ValueError, match=message):
        behind.generate(**inputs, **fixed, assistant_model=small)
    text = batch([[5, 9, 7]])[0]
    assert torch.equal(behind.generate(**text, **fixed, assistant_model=small), behind.generate(**text, **fixed))
    inside = built(image_token_id=50, video_token_id=51)
    inputs["input_ids"] = inputs["input_ids"].masked_fill(inputs["input_ids"] == IMAGE, 50)
    assert torch.equal(inside.generate(**inputs, **fixed, assistant_model=small), inside.generate(**inputs, **fixed))


@torch.no_grad()
def test_beams_of_a_batch_equal_those_of_its_rows_alone() -> None:
    model = built()
    model.generation_config.eos_token_id = None
    for rows in (ROWS[:2], MOVING):
        inputs, _ = batch(rows)
        options = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 4, "do_sample": False}
        together = model.generate(**inputs, **options).unflatten(0, (len(rows), 2))
        taken = {"pixel_values": 0, "pixel_values_videos": 0}
        for row, items in enumerate(rows):
            alone, _ = batch([items])
            for name, table in (("pixel_values", "image_grid_thw"), ("pixel_values_videos", "video_grid_thw")):
                if table in alone:
                    count = int(alone[table].prod(-1).sum())
                    alone[name] = inputs[name][taken[name] : taken[name] + count]
                    taken[name] += count
            assert torch.equal(together[row, :, -4:], model.generate(**alone, **options)[:, -4:])


@torch.no_grad()
def test_a_second_turn_brings_a_new_picture_on_top_of_the_cache() -> None:
    model = built()
    model.generation_config.eos_token_id = None
    first, second = [3, TWO, 4, 5], [6, TALL, 7]
    inputs, _ = batch([[*first, *second]])
    parts = [batch([part])[0] for part in (first, second)]
    for part, pixels in zip(parts, inputs["pixel_values"].split([24, 12]), strict=True):
        part["pixel_values"] = pixels
    wanted = model(**inputs).logits
    begun = model(**parts[0])
    parts[1]["attention_mask"] = inputs["attention_mask"]
    cache = {_cache_name(begun): copy.deepcopy(cache_of(begun))}
    length = parts[1]["input_ids"].shape[1]
    torch.testing.assert_close(model(**parts[1], **cache).logits, wanted[:, -length:], **ROUNDING)
    cache = {_cache_name(begun): cache_of(begun)}
    fixed = {"max_new_tokens": 3, "do_sample": False}
    written = model.generate(**(parts[1] | {"input_ids": inputs["input_ids"]}), **cache, **fixed)
    assert torch.equal(written, model.generate(**inputs, **fixed))


@torch.no_grad()
def test_a_placeholder_of_the_vocabulary_is_not_written() -> None:
    model = built(image_token_id=50, video_token_id=51)
    inputs, _ = batch([[5, TWO, 7], [9, TALL]])
    inputs["input_ids"] = inputs["input_ids"].masked_fill(inputs["input_ids"] == IMAGE, 50)
    bias = {(50,): 1e6, (51,): 1e6, (20,): 1e5}
    written = model.generate(**inputs, max_new_tokens=4, sequence_bias=bias, eos_token_id=None)
    assert written[:, -4:].tolist() == [[20] * 4] * 2


@torch.no_grad()
def test_a_written_placeholder_of_the_vocabulary_goes_on_as_a_word() -> None:
    alone = language("llama")
    model = build_vlm(vit(), copy.deepcopy(alone), split=SPLITS["llama"], image_token_id=50, video_token_id=51).eval()
    options = {"max_new_tokens": 5, "do_sample": False, "sequence_bias": {(50,): 1e6}, "eos_token_id": None}
    model.generation_config.suppress_tokens = None
    wanted, given = (
        each.generate(torch.tensor([[3, 4, 5]]), **options, output_logits=True, return_dict_in_generate=True)
        for each in (alone, model)
    )
    assert given.sequences[0, 3:].tolist() == [50] * 5
    assert torch.equal(torch.stack(given.logits), torch.stack(wanted.logits))
    with pytest.raises(ValueError, match="token 1 of row 0 is the placeholder 50"):
        model(torch.tensor([[3, 50]]))  # a prompt that lacks its picture


from_new_tokens = pytest.mark.skipif(
    "next_sequence_length"
    not in inspect.signature(GenerationMixin.__dict__["prepare_inputs_for_generation"]).parameters,
    reason="this transformers begins again with the slot of one token, and Phi-3 alone is off too",
)


def phi(most: int) -> Any:
    """A language model whose long factors begin behind `most` positions."""
    rope = {"rope_type": "longrope", "rope_theta": THETA}
    rope |= {"short_factor": [1.0] * PAIRS, "long_factor": [3.0] * PAIRS, "original_max_position_embeddings": most}
    config = transformers.Phi3Config(
        **(text_settings() | {"max_position_embeddings": 64, "eos_token_id": None}),
        original_max_position_embeddings=most,
        rope_parameters=rope,
    )
    config._attn_implementation = "eager"
    return lively(AutoModelForCausalLM.from_config(config))


@from_new_tokens
@torch.no_grad()
def test_behind_the_original_length_longrope_begins_again_as_in_the_language_model() -> None:
    alone = phi(20)
    model = build_vlm(vit(), copy.deepcopy(alone), split=SPLITS["qwen2"]).eval()
    words = padded([torch.arange(3, 20), torch.arange(40, 50)], "left")
    options = {"max_new_tokens": 8, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    wanted, given = (each.generate(words, attention_mask=(words != 0).long(), **options) for each in (alone, model))
    assert torch.equal(torch.stack(given.logits), torch.stack(wanted.logits))


@from_new_tokens
@pytest.mark.parametrize("most", [12, 17])
@torch.no_grad()
def test_longrope_begins_again_with_pictures_where_positions_pass_the_original_length(most: int) -> None:
    model = lively(build_vlm(vit(), phi(most), split=SPLITS["qwen2"]))
    inputs, _ = batch([[3, CLIP, 4, 5, 6, 7], [8, 9, TWO]])  # the next position of the first row is 8
    options = {"max_new_tokens": 10, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    given = model.generate(**inputs, **options)
    for step, logits in enumerate(given.logits):
        until = inputs["input_ids"].shape[1] + step
        mask = torch.cat([inputs["attention_mask"], torch.ones(2, step, dtype=torch.int64)], dim=1)
        whole = inputs | {"input_ids": given.sequences[:, :until], "attention_mask": mask}
        torch.testing.assert_close(logits, model(**whole).logits[:, -1], **ROUNDING)


@torch.no_grad()
def test_a_picture_on_a_cache_of_the_language_model_alone_is_refused() -> None:
    model, (inputs, _) = built(), batch([[TALL, 5]])
    begun = model.language_model(torch.tensor([[7, 8, 9]]))
    inputs["attention_mask"] = torch.ones(1, 3 + 4, dtype=torch.int64)
    with pytest.raises(ValueError, match="the last 3 did not come through this model as it is"):
        model(**inputs, **{_cache_name(begun): cache_of(begun)})


@torch.no_grad()
def test_two_requests_take_turns_on_one_model() -> None:
    model = built()
    prompts = [batch([row])[0] for row in ROWS[:2]]
    outputs = [model(**inputs) for inputs in prompts]
    word = torch.tensor([[20]])
    for inputs, output in zip(prompts, outputs, strict=True):
        step = model(word, **{_cache_name(output): cache_of(output)}).logits
        whole = {
            "input_ids": torch.cat([inputs["input_ids"], word], dim=1),
            "attention_mask": None,
            "pixel_values": inputs["pixel_values"],
            "image_grid_thw": inputs["image_grid_thw"],
        }
        torch.testing.assert_close(step[:, -1], model(**whole).logits[:, -1], **ROUNDING)


# ----------------------------------------------------------------------------------------------------- saving, training


def mixed() -> VisionEncoder:
    """An encoder of three blocks, each with an encoding of its own that it has learned."""
    config = VitConfig(
        patch_dim=768, dim=24, depth=3, heads=3, hidden=32, prefix=2, table=(2, 3), merge=2, out_dim=WIDTH
    )
    return lively(VisionEncoder(config, encoding=[MixedRope(8, heads=3) for _ in range(3)]))


def windowed() -> VisionEncoder:
    config = VitConfig(
        patch_dim=768, dim=24, depth=3, heads=3, hidden=32, window=1, full_layers=(2,), merge=2, out_dim=WIDTH
    )
    return lively(VisionEncoder(config, encoding=QwenVisionRope(8)))


@pytest.mark.parametrize("vision", [vit, mixed, windowed], ids=["timm", "learned rope", "windows"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@torch.no_grad()
def test_a_saved_model_loads_equal(vision: Any, tied: bool, tmp_path: Path) -> None:
    model = build_vlm(
        vision(), language("qwen3", tie_word_embeddings=tied), split=SPLITS["qwen3"], merge=2, deepstack=(1,)
    )
    model.generation_config.eos_token_id = 7
    inputs, _ = batch(ROWS)
    wanted = lively(model)(**inputs).logits
    model.save_pretrained(tmp_path)
    for loader in (Vlm, AutoModel, AutoModelForImageTextToText, AutoModelForCausalLM):
        again: Any = loader.from_pretrained(tmp_path, attn_implementation="eager")
        assert type(again) is Vlm
        assert torch.equal(again(**inputs).logits, wanted)
        assert again.generation_config.eos_token_id == 7
    tie = again.get_input_embeddings().weight is again.get_output_embeddings().weight
    assert tie == tied
    assert again.config.split == SPLITS["qwen3"]


def test_a_checkpoint_folder_of_a_text_model_is_taken(tmp_path: Path) -> None:
    alone = language("llama")
    alone.save_pretrained(tmp_path)
    words = torch.arange(3, 12)[None]
    for given in (tmp_path, str(tmp_path)):
        model = build_vlm(vit(), given, split=SPLITS["llama"]).eval()
        torch.testing.assert_close(model(words).logits, alone(words).logits)


def test_all_that_is_not_frozen_trains_in_a_plain_loop() -> None:
    model = built(deepstack=(0,)).train()
    inputs, _ = batch(ROWS)
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(15):
        loss = model(**inputs, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
        assert without == []
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_the_loss_is_that_of_the_next_word_and_skips_placeholders() -> None:
    model = built()
    inputs, _ = batch(ROWS[:1])
    output = model(**inputs, labels=inputs["input_ids"])
    words = inputs["input_ids"][0]
    logs = output.logits[0].log_softmax(-1)
    picked = [-logs[at - 1, words[at]] for at in range(1, len(words)) if words[at] < WORDS]
    torch.testing.assert_close(output.loss, torch.stack(picked).mean())
    assert output[0] is output.loss
    assert torch.equal(model(**inputs, labels=inputs["input_ids"], return_dict=False)[1], output.logits)


def test_placeholders_that_were_counted_among_the_labels_are_refused() -> None:
    model = built()
    inputs, _ = batch(ROWS[:1])
    labels = inputs["input_ids"]
    with pytest.raises(ValueError, match="labels hold the placeholder 90, and num_items_in_batch counts it; expected"):
        model(**inputs, labels=labels, num_items_in_batch=(labels[:, 1:] != -100).sum())
    learnt = labels.masked_fill(labels == IMAGE, -100)
    count = (learnt[:, 1:] != -100).sum()
    own = model(**inputs, labels=labels).loss
    torch.testing.assert_close(model(**inputs, labels=learnt, num_items_in_batch=count).loss, own)
    torch.testing.assert_close(model(**inputs, labels=learnt, num_items_in_batch=2 * count).loss, own / 2)


def test_words_that_are_added_push_the_placeholders_on(tmp_path: Path) -> None:
    model = built()
    model.config.video_token_id = 200
    inputs, _ = batch(ROWS)
    with torch.no_grad():
        before = model(**inputs).logits
        model.resize_token_embeddings(95)
        assert (model.config.image_token_id, model.config.video_token_id) == (95, 200)
        inputs["input_ids"] = inputs["input_ids"].masked_fill(inputs["input_ids"] == IMAGE, 95)
        assert_same(model(**inputs).logits[..., :WORDS], before, inputs["attention_mask"])
        words = torch.tensor([[3, 90, 91, 94]])
        assert torch.equal(model(words).logits, model.language_model(words).logits)
        model.save_pretrained(tmp_path)
        again: Any = Vlm.from_pretrained(tmp_path, attn_implementation="eager")
        assert torch.equal(again(**inputs).logits, model(**inputs).logits)
        assert (again.config.image_token_id, again.config.text_config.vocab_size) == (95, 95)


def test_both_placeholders_move_where_both_would_become_words_and_words_stay_words() -> None:
    model, chosen = built(), built(image_token_id=50)
    for each in (model, chosen):
        each.resize_token_embeddings(92)
    assert (model.config.image_token_id, model.config.video_token_id) == (92, 93)
    assert (chosen.config.image_token_id, chosen.config.video_token_id) == (50, 92)


def test_recomputed_layers_give_equal_gradients() -> None:
    model = built(deepstack=(0, 1)).train()
    inputs, _ = batch(ROWS)
    gradients, runs = [], []
    model.encoder.blocks[2].register_forward_hook(lambda *_: runs.append(1))
    for again in (False, True):
        if again:
            getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
        model.zero_grad()
        model(**inputs, labels=inputs["input_ids"], use_cache=False).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert len(runs) == 1 + 2  # the encoder, too, runs again
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


@pytest.mark.parametrize("part", ["vision", "merger", "language"])
def test_frozen_parts_do_not_change(part: Any) -> None:
    model = freeze(built(deepstack=(0,)), part).train()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    inputs, _ = batch(ROWS)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model(**inputs, labels=inputs["input_ids"]).loss.backward()
    optimiser.step()
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    parts = {
        "language": {name for name in before if name.startswith("language_model.")},
        "merger": {name for name in before if name.startswith(("encoder.merger.", "deepstack."))},
    }
    parts["vision"] = before.keys() - parts["language"] - parts["merger"]
    assert all(parts.values())
    assert changed == before.keys() - parts[part]


def test_unknown_parts_are_refused() -> None:
    with pytest.raises((ValueError, TypeError)):
        freeze(built(), "head")  # pyright: ignore[reportArgumentType]


def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    inputs, _ = batch([row["items"] for row in rows])
    inputs["pixel_values"] = torch.cat([row["pixels"] for row in rows])
    unlearnt = (inputs["attention_mask"] == 0) | (inputs["input_ids"] >= WORDS)
    return inputs | {"labels": inputs["input_ids"].masked_fill(unlearnt, -100)}


def test_transformers_trainer_trains_and_saves_it(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate")
    model = built()
    data = [{"items": row, "pixels": torch.randn(36, 768)} for row in ROWS[:2]] * 2
    options = transformers.TrainingArguments(
        str(tmp_path),
        max_steps=8,
        per_device_train_batch_size=2,
        learning_rate=3e-3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        save_strategy="no",
        logging_steps=1,
    )
    trainer = transformers.Trainer(model, options, train_dataset=data, data_collator=collate)  # pyright: ignore[reportArgumentType]
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert float(losses[-1]) < 0.8 * float(losses[0])
    trainer.save_model(str(tmp_path))
    inputs, _ = batch(ROWS)
    again: Any = Vlm.from_pretrained(tmp_path, attn_implementation="eager")
    with torch.no_grad():
        assert torch.equal(again.eval()(**inputs).logits, model.eval()(**inputs).logits)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks for it
def test_lora_trains_adapters_and_mergers_alone(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="LoRA needs peft")
    base = built(deepstack=(0,))
    inputs, _ = batch(ROWS)
    model = add_lora(copy.deepcopy(base), rank=4)
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, base(**inputs).logits)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert all("lora_" in name or "merger" in name or "deepstack" in name for name in trained)
    assert sum("lora_A" in name for name in trained) == 3 * 7  # the linear layers of three layers
    lively(model)
    model.save_pretrained(tmp_path)
    for name, parameter in base.named_parameters():
        own = dict(model.base_model.model.named_parameters())
        key = next(each for each in own if each.replace(".base_layer", "").replace(".original_module", "") == name)
        with torch.no_grad():
            parameter.copy_(own[key])
    again = peft.PeftModel.from_pretrained(base, tmp_path)
    with torch.no_grad():
        assert torch.equal(again(**inputs).logits, model(**inputs).logits)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks for it
def test_parts_are_frozen_under_adapters_too() -> None:
    pytest.importorskip("peft", reason="LoRA needs peft")
    model = add_lora(built(deepstack=(0,)), rank=4)

    def trained() -> set[str]:
        names = (name for name, parameter in model.named_parameters() if parameter.requires_grad)
        return {"lora" if "lora_" in name else "merger" if "merger" in name else "deepstack" for name in names}

    assert trained() == {"lora", "merger", "deepstack"}
    assert freeze(model, "vision") is model
    assert trained() == {"lora", "merger", "deepstack"}
    freeze(model, "merger")
    assert trained() == {"lora"}
    freeze(model, "language")
    assert trained() == set()
    for given in (model, model.base_model.model):
        with pytest.raises(ValueError, match="has adapters"):
            add_lora(given)


@pytest.mark.parametrize("function", [add_lora, lambda model: freeze(model, "language")], ids=["add_lora", "freeze"])
def test_parts_of_what_was_not_built_are_refused(function: Any) -> None:
    for given in (language("qwen3"), text_config("qwen3"), None):
        with pytest.raises(TypeError, match="expected what build_vlm made"):
            function(given)


@pytest.mark.skipif(importlib.util.find_spec("peft") is not None, reason="peft is installed")
def test_a_missing_peft_is_one_line_that_names_the_extra() -> None:
    with pytest.raises(ImportError, match=r"LoRA needs peft.*mrope\[train\]"):
        add_lora(built())


def compiled() -> None:
    """Compile a model, and compare; run in a process of its own, where annotations are not checked as it is traced."""
    model = built()
    inputs, _ = batch(ROWS)
    with torch.no_grad():
        wanted = model(**inputs).logits
        given: Any = torch.compile(model, backend="eager", dynamic=False)
        assert torch.equal(given(**inputs).logits, wanted)
    print("equal")


def test_a_compiled_model_gives_the_same() -> None:
    command = [sys.executable, "-c", "from test_build_vlm import compiled; compiled()"]
    paths = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    run = subprocess.run(command, env=paths, capture_output=True, text=True, check=False)
    assert run.stdout.endswith("equal\n"), run.stderr


# --------------------------------------------------------------------------------------------------- families and parts


@pytest.mark.parametrize(("name", "patch"), [("qwen2-vl", 14), ("qwen3-vl", 16), ("hunyuan-vl", 0)])
@torch.no_grad()
def test_a_family_says_how_pictures_are_cut_split_and_placed(name: str, patch: int) -> None:
    if not patch:
        with pytest.raises(ValueError, match="expected one with a GridLayout"):
            build_vlm(vit(), text_config("qwen3"), family=name)
        return
    model = build_vlm(vit(), language("qwen3"), family=name).eval()
    family = mrope.family(name)
    assert model.config.record == family
    assert sum(model.config.mrope_section) == PAIRS
    assert model.config.split == AxisSplit.by_ratio(family.split.counts, PAIRS, family.split.allocation)
    picture = torch.randint(0, 256, (3, 300, 200), dtype=torch.uint8)
    patches = family.patchify(picture, max_tokens=80)
    tokens = patches.plans[0].tokens
    inputs = {
        "input_ids": torch.tensor([[3, *[model.config.image_token_id] * tokens, 4]]),
        "pixel_values": patches.values,
        "image_grid_thw": patches.grids,
    }
    assert model.encoder.config.patch_dim == 3 * 2 * patch * patch
    own = family.positions(["text:1", mrope.Image(patches.plans[0].grid), "text:1"]).ids[:, None]
    assert torch.equal(model(**inputs).logits, model(**inputs, position_ids=own).logits)


@pytest.mark.parametrize(
    ("name", "head_dim", "counts"),
    [("qwen3.5", 128, (23, 21, 20)), ("qwen3.5", 80, (15, 13, 12)), ("qwen4-exp", 256, (45, 43, 40))],
)
def test_the_split_of_a_family_is_rounded_to_counts_that_can_be_dealt(
    name: str, head_dim: int, counts: tuple[int, ...]
) -> None:
    model = build_vlm(vit(), text_config("qwen3", head_dim=head_dim), family=name)
    assert model.config.split == AxisSplit(counts, "interleaved")


def test_the_record_of_a_family_is_taken_as_its_name() -> None:
    model = build_vlm(vit(), text_config("qwen3"), family=mrope.family("qwen3-vl"))
    assert model.config.family == "qwen3-vl"
    assert model.config.record == mrope.family("qwen3-vl")


@torch.no_grad()
def test_a_clip_is_cut_for_a_model_of_no_family() -> None:
    model = built("qwen2", merge=2)
    frames = torch.randint(0, 256, (5, 3, 64, 96), dtype=torch.uint8)
    clip = patchify_video(frames, model.config.record, fps=2.0)
    assert clip.grids.tolist() == [[5, 4, 6]]
    assert torch.equal(clip.values, model.config.record.patchify(list(frames)).values)
    inputs, ids = batch([[3, (5, 4, 6), 4]])
    inputs["pixel_values_videos"] = clip.values
    given = model(**inputs).logits
    assert_same(given, expected("qwen2", model, inputs, ids), inputs["attention_mask"])
    assert not torch.allclose(given, expected("qwen2", model, inputs, ids[[0, 2, 1]]), atol=1e-4)
    long = patchify_video(frames[:1].repeat(200, 1, 1, 1), model.config.record, fps=2.0, max_tokens=900)
    assert int(long.grids.prod()) // 4 <= 900


@by_side
def test_batches_of_a_built_model_are_read_by_its_configuration(side: str) -> None:
    config = built().config
    for rows in (ROWS, MOVING):
        inputs, ids = batch(rows, side)
        assert torch.equal(read_positions(inputs, config), ids)
    inputs, _ = batch(ROWS, side)
    assert read_spans(inputs, config)[1][1:3] == [mrope.Image(TALL), mrope.Text(4)]
    second = take_rows(inputs, [1], config)
    assert second["image_grid_thw"].tolist() == [list(TALL), list(TWO)]
    second = {name: second[name] for name in ("input_ids", "attention_mask", "image_grid_thw")}
    ids, delta = vllm_positions(second, config)
    assert torch.equal(ids, by_hand(ROWS[1]))
    assert delta == int(by_hand(ROWS[1]).max()) + 1 - ids.shape[1]
    family = build_vlm(vit(), text_config("qwen3"), family="glm4v").config
    assert layout_of(family) == mrope.family("glm4v").layout


@torch.no_grad()
def test_two_built_models_part_where_they_differ() -> None:
    model, (inputs, ids) = built(deepstack=(0,)), batch(ROWS)
    other = copy.deepcopy(model)
    assert compare(model, other, inputs).first is None
    other.language_model.model.layers[1].mlp.up_proj.weight[5] += 1
    first = compare(model, other, inputs).first
    assert first is not None
    assert (first.name, first.place and first.place[:2]) == ("layer 1", (0, 4))  # behind padding
    moved = compare(model, model, (inputs, inputs | {"position_ids": ids[[0, 2, 1]]}))
    assert moved.first is not None
    assert (moved.first.name, moved.first.values) == ("positions", (2.0, 3.0))  # of the second token of a picture
    split = built(split=AxisSplit((7, 5, 4), "interleaved"), deepstack=(0,))
    split.load_state_dict(model.state_dict())
    first = compare(model, split, inputs).first
    assert first is not None
    assert first.name == "cos/sin"
    with pytest.raises(TypeError, match="whose positions are ours; expected a model"):
        compare(model, "qwen3-vl", inputs)


def test_a_split_of_ones_own_goes_before_that_of_the_family() -> None:
    split = AxisSplit.parse("THW*4 T*4")
    model = build_vlm(vit(), text_config("qwen3"), family="qwen3-vl", split=split)
    assert model.config.split == split
    by_hand = AxisSplit.by_hand([0, 2, 1, 1, *[0] * 12])
    again = VlmConfig.from_dict(build_vlm(vit(), text_config("qwen3"), split=by_hand).config.to_dict())
    assert again.split == by_hand
    assert again.text_config.vocab_size == WORDS


def test_placeholders_may_be_words_of_the_vocabulary() -> None:
    model = build_vlm(vit(), text_config("qwen3"), split=SPLITS["qwen3"], image_token_id=80, video_token_id=81).eval()
    inputs, _ = batch(ROWS)
    inputs["input_ids"] = inputs["input_ids"].masked_fill(inputs["input_ids"] == IMAGE, 80)
    assert model(**inputs).logits.shape[-1] == WORDS


def test_the_language_model_gives_the_encoder_its_dtype() -> None:
    model = build_vlm(vit(), language("qwen3").to(torch.bfloat16), split=SPLITS["qwen3"]).eval()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model(**batch(ROWS)[0]).logits.dtype == torch.bfloat16


@pytest.mark.parametrize("given", [Alibi(heads=3, axes=2), QwenVisionRope(8), MixedRope(8, heads=3)], ids=type)
def test_an_encoder_is_told_in_words_and_made_again(given: Any) -> None:
    config = VitConfig(patch_dim=768, dim=24, depth=2, heads=3, hidden=32, table=(2, 3))
    encoder = lively(VisionEncoder(config, encoding=given))
    again = restore(describe(encoder)).eval()
    again.load_state_dict(encoder.state_dict())
    patches = torch.randn(15, 768), torch.tensor([[1, 3, 5]])
    assert again.config == config
    assert torch.equal(again(patches), encoder(patches))


# -------------------------------------------------------------------------------------------------------------- faults


def narrow() -> VisionEncoder:
    return VisionEncoder(VitConfig(patch_dim=768, dim=24, depth=2, heads=3, hidden=32, merge=2, out_dim=48))


def shaw() -> VisionEncoder:
    config = VitConfig(patch_dim=768, dim=24, depth=1, heads=3, hidden=32, merge=2, out_dim=WIDTH)
    odd = type("Odd", (ShawBias,), {})  # of no name
    return VisionEncoder(config, encoding=odd(8, 4, axes=2))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "family and split are None; expected one of"),
    ({"split": AxisSplit((4, 2, 2))}, "sums to 8; rotary_dim 32 needs 16"),
    ({"split": AxisSplit((8, 8))}, r"split \(8, 8\) has 2 axes; expected 3"),
    ({"family": "qwen3-vl", "merge": 3}, "merge is 3; family qwen3-vl merges 2"),
    ({"family": "nothing"}, "nothing"),
    ({"split": SPLITS["llama"], "deepstack": (3,)}, r"deepstack is \[3\]; expected numbers of the 3 blocks"),
    ({"split": SPLITS["llama"], "deepstack": (0, 1, 2)}, "has 3 blocks; the language model takes at most 2"),
    ({"split": SPLITS["llama"], "image_token_id": 91}, "both 91"),
    ({"split": SPLITS["llama"], "vision": "vit_tiny_patch16_224"}, "expected 'timm/' and the name"),
    ({"split": SPLITS["llama"], "vision": narrow}, "out_dim of the encoder is 48; expected 64"),
    ({"split": SPLITS["llama"], "vision": windowed, "merge": 3}, "merge of the encoder is 2; expected 3"),
    ({"family": "qwen2-vl", "vision": windowed}, "patch_dim of the encoder is 768; expected 1176"),
    ({"split": SPLITS["llama"], "vision": shaw}, "cannot be written into a configuration"),
    ({"split": SPLITS["llama"], "vision": lambda: 3}, "vision"),
    ({"split": SPLITS["llama"], "language": 3}, "expected a checkpoint's folder or name"),
    ({"split": SPLITS["llama"], "language": "/nope"}, "language is '/nope'; expected the folder of a checkpoint"),
    ({"split": SPLITS["llama"], "language": Path("nope")}, "language is 'nope'; expected the folder of a checkpoint"),
    ({"split": SPLITS["llama"], "language": transformers.Qwen2VLTextConfig()}, "Qwen2VLTextConfig, of which"),
    ({"split": (4, 2, 2)}, "split"),
    ({"split": "T*4 H*2 W*2"}, "split"),
    ({"split": SPLITS["llama"], "vision": "timm/nope_net"}, "vision is 'timm/nope_net'; expected a model of timm"),
    ({"split": SPLITS["llama"], "deepstack": 3}, "deepstack"),
    ({"split": SPLITS["llama"], "deepstack": None}, "deepstack"),
    ({"split": SPLITS["llama"], "merge": 0}, "merge is 0; expected at least 1"),
    ({"family": replace(mrope.family("qwen3-vl"), patch=8)}, "family is a changed record of qwen3-vl"),
    ({"split": SPLITS["llama"], "language": transformers.Gemma3TextConfig}, "one inv_freq for all layers"),
    ({"split": SPLITS["llama"], "language": transformers.GPT2Config}, "expected a causal model with layers"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=[message[:30] for _, message in REFUSED])
def test_what_does_not_fit_is_refused_in_one_line(settings: dict[str, Any], message: str) -> None:
    settings = dict(settings)
    vision = settings.pop("vision", vit)
    made: Any = vision() if callable(vision) else vision
    given = settings.pop("language", text_config("llama"))
    if isinstance(given, type):
        given = given(**(text_settings() | {"n_layer": 1, "n_head": 2, "n_embd": WIDTH}))
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        build_vlm(made, given, **settings)
    assert "\n" not in str(caught.value) or "jaxtyping" in type(caught.value).__module__


@pytest.mark.parametrize("place", ["image_token_id", "video_token_id"])
@pytest.mark.parametrize(("word", "number"), [("pad", 0), ("bos", 1), ("eos", 2)])
def test_a_placeholder_that_ends_begins_or_pads_rows_is_refused(place: str, word: str, number: int) -> None:
    message = rf"{place} is {number}, the {word}_token_id of the language model; expected another token"
    given: dict[str, Any] = {place: number}
    with pytest.raises(ValueError, match=message):
        built(**given)
    several, given = language("llama", eos_token_id=[7, 6]), {place: 6}
    with pytest.raises(ValueError, match=rf"{place} is 6, the eos_token_id of the language model"):
        build_vlm(vit(), several, split=SPLITS["llama"], **given)
    several.config.eos_token_id = None  # and in its generation configuration alone
    with pytest.raises(ValueError, match=rf"{place} is 6, the eos_token_id of the language model"):
        build_vlm(vit(), several, split=SPLITS["llama"], **given)


def test_a_built_model_is_no_language_model_for_another(tmp_path: Path) -> None:
    first = built()
    first.save_pretrained(tmp_path)
    for given in (first, first.config, tmp_path):
        with pytest.raises(TypeError, match="language is a Vlm; expected a causal model with layers"):
            build_vlm(vit(), given, split=SPLITS["qwen3"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"merge": 0}, "merge is 0; expected at least 1"),
        ({"merge": 1}, "merge of the encoder is 2; expected 1"),
        ({"patch": -1}, "patch is -1; expected at least 1"),
        ({"patch": 14}, "patch_dim of the encoder is 768; expected 588"),
        ({"family": "qwen2-vl"}, "patch is 16; expected 14"),
        ({"image_token_id": "a"}, "image_token_id is 'a'; expected a whole number"),
        ({"deepstack": [9]}, r"deepstack is \[9\]; expected numbers of the 3 blocks"),
    ],
)
def test_a_configuration_that_does_not_go_with_its_encoder_is_refused(changed: dict[str, Any], message: str) -> None:
    config = VlmConfig.from_dict(built().config.to_dict())
    for name, value in changed.items():
        setattr(config, name, value)
    with pytest.raises((TypeError, ValueError), match=message):
        Vlm(config)


SHORT = torch.zeros(1, 5, dtype=torch.int64)
MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "five rows of ids": (
        {"position_ids": SHORT[:, :1].expand(5, 1, 9)},
        r"\(5, 1, 9\); expected \(3, 1, 9\), \(4, 1, 9\)",
    ),
    "two rows of ids": ({"position_ids": SHORT[:, :1].expand(2, 1, 9)}, r"\(2, 1, 9\); expected"),
    "ids without a batch": ({"position_ids": SHORT[:, :1].expand(3, 9)}, r"\(3, 9\); expected"),
    "too few ids": ({"position_ids": SHORT}, r"position_ids have shape \(1, 5\); expected"),
    "too few types": ({"mm_token_type_ids": SHORT}, r"mm_token_type_ids have shape \(1, 5\); expected \(1, 9\)"),
    "embeddings too": ({"inputs_embeds": torch.zeros(1, 9, WIDTH)}, "input_ids and inputs_embeds are both there"),
    "no tokens": ({"input_ids": None}, "input_ids and inputs_embeds are both None"),
    "too few labels": ({"labels": SHORT}, r"labels have shape \(1, 5\); expected \(1, 9\), one for each token"),
    "no batch": ({"input_ids": SHORT[0]}, r"input_ids has shape \(5,\); expected \(B, N\)"),
    "a misspelt word": ({"pixel_valuez": 1}, "pixel_valuez is no argument of forward; expected pixel_values"),
    "one number of seconds": ({"second_per_grid_ts": 3.0}, "second_per_grid_ts is 3.0; expected a list"),
    "grids of two sides": ({"image_grid_thw": torch.tensor([[4, 6]])}, r"\(1, 2\); expected \(n, 3\)"),
    "grids of a list": ({"image_grid_thw": [[1, 4, 6]]}, "image_grid_thw"),
    "pixels of a list": ({"pixel_values": [[0.0]]}, "pixel_values"),
    "no pixels": ({"input_ids": SHORT, "pixel_values": None}, "image_grid_thw came without pixel_values"),
}


@pytest.mark.parametrize("case", MISFITS)
@torch.no_grad()
def test_arguments_of_another_form_are_refused_in_one_line(case: str) -> None:
    model, (inputs, _) = built(), batch([[3, TWO, 4, 5]])
    inputs.pop("attention_mask")
    changed, message = MISFITS[case]
    with pytest.raises((TypeError, ValueError), match=message):
        model(**(inputs | changed))


def test_placeholders_that_do_not_fit_the_grids_are_told() -> None:
    model = built()
    inputs, ids = batch(ROWS)
    cut = inputs | {name: inputs[name][:, 6:] for name in ("input_ids", "attention_mask")}
    few = inputs["pixel_values"][:36]
    faults: list[tuple[dict[str, Any], str]] = [
        (inputs | {"pixel_values": None}, "placeholder 90 of a picture or clip, but no pixel_values came"),
        (inputs | {"image_grid_thw": None}, "no image_grid_thw came"),
        (inputs | {"image_grid_thw": inputs["image_grid_thw"][:, [0, 2, 1]][[0, 0, 1, 2]]}, "row"),
        (cut, "row"),
        (inputs | {"input_ids": inputs["input_ids"].masked_fill(inputs["input_ids"] == 8, VIDEO)}, "video"),
        (
            inputs | {"position_ids": ids, "image_grid_thw": inputs["image_grid_thw"][:2], "pixel_values": few},
            "accounts",
        ),
    ]
    for given, message in faults:
        with pytest.raises(ValueError, match=message):
            model(**given)


def test_the_doctor_looks_at_batches_of_a_built_model_alone(tmp_path: Path) -> None:
    model = built(family="qwen3-vl", split=None)
    model.save_pretrained(tmp_path)
    inputs, _ = batch(ROWS)
    assert doctor(model, inputs).ok
    spoiled = {**inputs, "image_grid_thw": inputs["image_grid_thw"][:, [0, 2, 1]] * 2}
    assert not doctor(model, spoiled).ok
    # In a process of its own, where nobody has told transformers of built models.
    command = [sys.executable, "-m", "mrope", "doctor", str(tmp_path)]
    paths = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, env=paths, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "is of `build_vlm`" in run.stderr
