"""Built models: text is the language model's own, pictures of any size stand where Qwen2-VL and Qwen3-VL put them."""

from __future__ import annotations

import copy
import importlib.util
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from sources import ROOT
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

import mrope
from mrope import AxisSplit
from mrope.encodings import Alibi, MixedRope, QwenVisionRope, ShawBias
from mrope.hf import build_vlm
from mrope.hf.cache import cache_of
from mrope.vision import VisionEncoder, VitConfig
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


@torch.no_grad()
def test_packed_rows_equal_their_documents_alone() -> None:
    model = built()
    (one, ids_one), (two, ids_two) = (batch([row]) for row in ROWS[:2])
    text = torch.cat([torch.arange(ids.shape[-1]) for ids in (ids_one, ids_two)])[None, None]
    packed = {
        "input_ids": torch.cat([one["input_ids"], two["input_ids"]], dim=1),
        "pixel_values": torch.cat([one["pixel_values"], two["pixel_values"]]),
        "image_grid_thw": torch.cat([one["image_grid_thw"], two["image_grid_thw"]]),
        "position_ids": torch.cat([text, torch.cat([ids_one, ids_two], dim=-1)]),
    }
    wanted = torch.cat([model(**each).logits for each in (one, two)], dim=1)
    torch.testing.assert_close(model(**packed, use_cache=False).logits, wanted, **ROUNDING)


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
    for loader in (Vlm, AutoModelForImageTextToText, AutoModelForCausalLM):
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


def test_recomputed_layers_give_equal_gradients() -> None:
    model = built(deepstack=(0, 1)).train()
    inputs, _ = batch(ROWS)
    gradients = []
    for again in (False, True):
        if again:
            getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
        model.zero_grad()
        model(**inputs, labels=inputs["input_ids"], use_cache=False).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
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
    return inputs | {"labels": inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)}


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
