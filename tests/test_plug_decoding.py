"""Plugged models that go on: generate, forwards on a KV cache, several requests in turn."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from plug_cases import CACHE, TYPES, batch, by_hand, by_name, by_side, columns, long_clip, model_of, pictures
from tiny_models import IMAGE, Sample, clip
from transformers import DynamicCache

from mrope import Image, Span, Text
from mrope.hf import plug

# A forward on a cache has products of other shapes than one long forward, so that its sums round otherwise.
ROUNDING: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def new_cache(model: Any) -> Any:
    return DynamicCache(config=model.config.text_config)


def prefill(model: Any, inputs: dict[str, Any]) -> Any:
    """The cache of a forward with `inputs`."""
    memory = new_cache(model)
    model(**inputs, **{CACHE: memory})
    return memory


def step(model: Any, memory: Any, mask: torch.Tensor, tokens: torch.Tensor, **options: Any) -> torch.Tensor:
    """Logits of `tokens` (B, K) after what is in `memory`, with the mask of all, and no positions unless given."""
    whole_mask = torch.cat([mask, mask.new_ones(tokens.shape)], dim=1)
    return model(input_ids=tokens, attention_mask=whole_mask, **{CACHE: memory}, **options).logits


def greedy(model: Any, made: Sample, ids: torch.Tensor, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (B, steps) and logits (B, steps, V) of a greedy loop that passes positions by hand."""
    memory, mask, following = new_cache(model), made.inputs["attention_mask"], ids.amax((0, 2)) + 1
    first = model(**made.inputs, position_ids=ids, **{CACHE: memory}, logits_to_keep=1)
    logits = [first.logits[:, -1]]
    for i in range(steps - 1):
        place = (following + i)[None, :, None].expand(3, -1, 1)
        tokens = logits[-1].argmax(-1, keepdim=True)
        logits.append(step(model, memory, mask, tokens, position_ids=place)[:, -1])
        mask = torch.cat([mask, mask.new_ones(tokens.shape)], dim=1)
    stacked = torch.stack(logits, 1)
    return stacked.argmax(-1), stacked


def generate(model: Any, inputs: dict[str, Any], steps: int = 8, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (B, steps) and logits (B, steps, V) of generate(), which may not stop early."""
    fixed = {"do_sample": False, "min_new_tokens": steps, "max_new_tokens": steps}
    made = model.generate(**inputs, **fixed, output_logits=True, return_dict_in_generate=True, **options)
    return made.sequences[:, -steps:], torch.stack(made.logits, 1)


def assert_same(got: tuple[torch.Tensor, torch.Tensor], wanted: tuple[torch.Tensor, torch.Tensor]) -> None:
    assert torch.equal(got[0], wanted[0])
    assert torch.equal(got[1], wanted[1])


@by_name
@pytest.mark.parametrize("rotary", [False, True], ids=["positions", "positions and rotary"])
def test_generate_equals_transformers_where_it_is_right(name: str, rotary: bool) -> None:
    model, inputs = model_of(name), batch(name, pictures(name)).inputs
    wanted = generate(model, inputs)
    with plug(model, rotary=rotary):
        assert_same(generate(model, inputs), wanted)
    assert_same(generate(model, inputs), wanted)


@by_name
def test_generate_equals_a_loop_by_hand_where_transformers_is_wrong(name: str) -> None:
    model, made = model_of(name), batch(name, long_clip(name))
    wanted = greedy(model, made, by_hand(name, made), 8)
    with plug(model):
        assert_same(generate(model, made.inputs), wanted)


@by_name
def test_generate_after_a_prompt_that_ends_on_a_picture(name: str) -> None:
    model, made = model_of(name), batch(name, [[Text(3), Image((1, 4, 12))]])
    wanted = greedy(model, made, by_hand(name, made), 3)
    with plug(model):
        assert_same(generate(model, made.inputs, 3), wanted)


@by_name
@pytest.mark.parametrize(
    "options",
    [
        {"use_cache": False},
        {"cache_implementation": "static"},
        {"num_beams": 2},
        {"num_beams": 2, "num_return_sequences": 2},
    ],
    ids=["no cache", "static cache", "beams", "several sequences"],
)
def test_other_ways_to_generate(name: str, options: dict[str, Any]) -> None:
    model, inputs = model_of(name), batch(name, pictures(name)).inputs
    wanted = generate(model, inputs, 3, **options)
    with plug(model):
        assert_same(generate(model, inputs, 3, **options), wanted)


@by_name
def test_generate_without_token_types_finds_the_pictures(name: str) -> None:
    model, made = model_of(name), batch(name, long_clip(name))
    wanted = greedy(model, made, by_hand(name, made), 3)
    made.inputs.pop(TYPES, None)
    with plug(model):
        assert_same(generate(model, made.inputs, 3), wanted)


@by_name
@by_side
@pytest.mark.parametrize("count", [1, 3])
def test_a_forward_goes_on_from_a_cache_with_the_full_mask(name: str, side: str, count: int) -> None:
    model, made = model_of(name), batch(name, long_clip(name), side)
    mask, ids = made.inputs["attention_mask"], by_hand(name, made)
    place = (ids.amax((0, 2)) + 1)[None, :, None] + torch.arange(count).expand(3, 1, -1)
    tokens = torch.randint(10, 490, (2, count))
    memory = new_cache(model)
    model(**made.inputs, position_ids=ids, **{CACHE: memory})
    wanted = step(model, memory, mask, tokens, position_ids=place)
    with plug(model):
        assert torch.equal(step(model, prefill(model, made.inputs), mask, tokens), wanted)


@by_name
def test_decoding_step_by_step_equals_generate(name: str) -> None:
    model, made = model_of(name), batch(name, long_clip(name))
    with plug(model):
        tokens, logits = generate(model, made.inputs, 4)
        memory, mask = prefill(model, made.inputs), made.inputs["attention_mask"]
        for i in range(3):
            assert torch.equal(step(model, memory, mask, tokens[:, i : i + 1])[:, -1], logits[:, i + 1])
            mask = torch.cat([mask, mask.new_ones(2, 1)], dim=1)


def test_requests_take_turns() -> None:
    name, model, token = "qwen2.5-vl", model_of("qwen2.5-vl"), torch.tensor([[77]])
    one = batch(name, [[Text(2), Image((1, 4, 16)), Text(2)]]).inputs
    other = batch(name, long_clip(name)[:1]).inputs
    with plug(model):
        alone = [step(model, prefill(model, inputs), inputs["attention_mask"], token) for inputs in (one, other)]
        first, second = prefill(model, one), prefill(model, other)
        generate(model, batch(name, pictures(name)).inputs, 2)
        assert torch.equal(step(model, first, one["attention_mask"], token), alone[0])
        assert torch.equal(step(model, second, other["attention_mask"], token), alone[1])


def test_a_cache_that_is_copied_cropped_and_shared() -> None:
    model, token = model_of("qwen2-vl"), torch.tensor([[77]])
    made = batch("qwen2-vl", [[Text(2), Image((1, 4, 16)), Text(6)]])
    mask = made.inputs["attention_mask"]
    with plug(model):
        memory = prefill(model, made.inputs)
        wanted = step(model, copy.deepcopy(memory), mask, token)
        step(model, memory, mask, token.repeat(1, 3))
        memory.crop(-3)
        assert torch.equal(step(model, memory, mask, token), wanted)

        memory.crop(-5)  # leaves 2 tokens of text, the 16 of the picture, 2 of text
        place = torch.full((3, 1, 1), 2 + 8 + 2)
        wanted = step(model, copy.deepcopy(memory), mask[:, :20], token, position_ids=place)
        assert torch.equal(step(model, copy.deepcopy(memory), mask[:, :20], token), wanted)

        memory.batch_repeat_interleave(2)
        got = step(model, memory, mask[:, :20].repeat(2, 1), token.repeat(2, 1))
        torch.testing.assert_close(got, wanted.repeat(2, 1, 1), **ROUNDING)


def test_a_cache_that_generate_filled() -> None:
    model, made = model_of("qwen2-vl"), batch("qwen2-vl", long_clip("qwen2-vl"))
    with plug(model):
        memory = new_cache(model)
        tokens, logits = generate(model, made.inputs, 5, **{CACHE: memory})
        memory.crop(-1)
        mask = torch.cat([made.inputs["attention_mask"], torch.ones(2, 3, dtype=torch.int64)], dim=1)
        assert torch.equal(step(model, memory, mask, tokens[:, 3:4])[:, -1], logits[:, 4])


@by_name
def test_a_new_picture_on_top_of_a_cache(name: str) -> None:
    model = model_of(name)
    made = batch(name, [[Text(4), clip(name, (9, 4, 6)), Text(7), Image((1, 6, 4)), Text(2)]])
    wanted = model(**made.inputs, position_ids=by_hand(name, made)).logits[:, -12:]
    image = {key: made.inputs.pop(key) for key in ("pixel_values", "image_grid_thw")}
    new = {key: value for key, value in columns(made.inputs, slice(-12, None)).items() if "video" not in key}
    new.pop("second_per_grid_ts", None)
    with plug(model):
        memory = prefill(model, columns(made.inputs, slice(0, -12)))
        got = model(**{**new, **image, "attention_mask": made.inputs["attention_mask"]}, **{CACHE: memory}).logits
    torch.testing.assert_close(got, wanted, **ROUNDING)


@by_name
@pytest.mark.parametrize("second", [[Text(12)], [Text(4), Image((1, 6, 4)), Text(2)]], ids=["text", "picture"])
def test_generate_goes_on_from_a_cache(name: str, second: list[Span]) -> None:
    model = model_of(name)
    made = batch(name, [[Text(4), clip(name, (9, 4, 6)), Text(3), *second]])
    wanted = greedy(model, made, by_hand(name, made), 4)
    image = {key: made.inputs.pop(key) for key in ("pixel_values", "image_grid_thw") if key in made.inputs}
    new = {key: value for key, value in made.inputs.items() if key in ("input_ids", "attention_mask", TYPES)}
    with plug(model):
        memory = prefill(model, columns(made.inputs, slice(0, -12)))
        generate(model, batch(name, pictures(name)).inputs, 2)
        tokens, logits = generate(model, {**new, **image}, 4, **{CACHE: memory})
    assert torch.equal(tokens, wanted[0])
    torch.testing.assert_close(logits, wanted[1], **ROUNDING)


def test_a_placeholder_that_was_generated_is_text() -> None:
    model, made = model_of("qwen2-vl"), batch("qwen2-vl", pictures("qwen2-vl"))
    mask, grids = made.inputs["attention_mask"], made.inputs["image_grid_thw"]
    place = (by_hand("qwen2-vl", made).amax((0, 2)) + 1)[None, :, None].expand(3, -1, 1)
    tokens = torch.full((2, 1), IMAGE)
    with plug(model):
        memory = prefill(model, made.inputs)
        wanted = step(model, copy.deepcopy(memory), mask, tokens, position_ids=place)
        assert torch.equal(step(model, copy.deepcopy(memory), mask, tokens), wanted)
        assert torch.equal(step(model, memory, mask, tokens, image_grid_thw=grids), wanted)


def test_a_cache_of_unknown_positions_is_refused() -> None:
    model, made = model_of("qwen2-vl"), batch("qwen2-vl", pictures("qwen2-vl"))
    memory, tokens = prefill(model, made.inputs), torch.full((2, 1), 77)
    with plug(model), pytest.raises(ValueError, match="did not come through the plugged model"):
        step(model, memory, made.inputs["attention_mask"], tokens)
    with plug(model), pytest.raises(ValueError, match="holds 2 rows, and 3 rows of new tokens came"):
        step(model, prefill(model, made.inputs), torch.ones(3, 27, dtype=torch.int64), torch.full((3, 1), 77))
