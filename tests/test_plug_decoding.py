"""Plugged models that go on: generate, forwards on a KV cache, several requests in turn."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Iterator
from typing import Any

import plug_families
import pytest
import torch
from plug_cases import CACHE, TYPES, batch, by_hand, by_name, by_side, columns, long_clip, model_of, pictures
from plug_families import DECODERS, fresh_model, of_families, prompt
from test_build_vlm import batch as built_batch
from test_build_vlm import built
from tiny_models import IMAGE, VOCABULARY, Sample, clip, tiny_model
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM

from mrope import Image, Span, Text
from mrope.hf import plug
from mrope.hf.cache import cache_of
from mrope.layouts import CircleLayout

# A forward on a cache has products of other shapes than one long forward, so that its sums round otherwise.
ROUNDING: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
# Transformers refuses drafts for states that cannot be taken back, and GLM-Image throws the ids of the loop away.
ASSISTED = [
    name for name in DECODERS if name not in ("qwen3_5", "qwen3_5_moe", "qwen4_exp", "minicpmv4_7", "glm_image")
]


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
    with plug(model), pytest.raises(ValueError, match="did not come through this model as it is"):
        step(model, memory, made.inputs["attention_mask"], tokens)
    with plug(model), pytest.raises(ValueError, match="holds 2 rows, and 3 rows of new tokens came"):
        step(model, prefill(model, made.inputs), torch.ones(3, 27, dtype=torch.int64), torch.full((3, 1), 77))


# ------------------------------------------------------------------------------------- rows of a cache change places

MOVES: dict[str, tuple[Any, list[int]]] = {
    "reordered": (lambda memory: memory.reorder_cache(torch.tensor([1, 0, 2])), [1, 0, 2]),
    "reordered by name": (lambda memory: memory.reorder_cache(beam_idx=torch.tensor([2, 0, 1])), [2, 0, 1]),
    "selected": (lambda memory: memory.batch_select_indices(torch.tensor([2, 0, 0])), [2, 0, 0]),
    "fewer": (lambda memory: memory.batch_select_indices(torch.tensor([False, True, True])), [1, 2]),
    "repeated": (lambda memory: memory.batch_repeat_interleave(2), [0, 0, 1, 1, 2, 2]),
}
COPIES: dict[str, Any] = {
    "itself": lambda memory: memory,
    "a copy": copy.deepcopy,
    "a copy with the same layers": copy.copy,
    "a saved one": lambda memory: pickle.loads(pickle.dumps(memory)),
}
by_move = pytest.mark.parametrize("move", MOVES)


@by_name
@by_move
@pytest.mark.parametrize("masked", [True, False], ids=["mask", "no mask"])
def test_rows_of_a_cache_that_change_places_take_their_positions_along(name: str, move: str, masked: bool) -> None:
    spans = [[Text(4), Image((1, 4, 16)), Text(2)], [Text(3)], long_clip(name)[0]]
    model, made = model_of(name), batch(name, spans)
    if not masked:  # rows of one length, since attention would look at padding
        padding = (made.inputs["attention_mask"] == 0).sum(-1).tolist()
        rows_and_padding = zip(padding, spans, strict=True)
        made = batch(name, [[Text(count), *row] if count else row for count, row in rows_and_padding])
    ids, (moved, rows) = by_hand(name, made), MOVES[move]
    tokens = torch.randint(10, 490, (2, len(rows), 2))
    mask = made.inputs["attention_mask"][rows]
    whole = [torch.cat([mask, mask.new_ones(len(rows), count)], dim=1) if masked else None for count in (2, 4)]

    def steps(memory: Any, *places: torch.Tensor) -> list[torch.Tensor]:
        options = [{"position_ids": place} for place in places] or [{}, {}]
        calls = zip(tokens, whole, options, strict=True)
        return [model(input_ids=new, attention_mask=m, **{CACHE: memory}, **more).logits for new, m, more in calls]

    memory = new_cache(model)
    model(**made.inputs, position_ids=ids, **{CACHE: memory})
    moved(memory)
    following = (ids.amax((0, 2)) + 1)[rows, None] + torch.arange(4)
    wanted = steps(memory, *following.expand(3, -1, -1).split(2, dim=-1))
    with plug(model):
        for copied in COPIES.values():
            memory = copied(prefill(model, made.inputs))
            moved(memory)
            assert all(map(torch.equal, steps(memory), wanted))


def test_rows_of_a_cache_change_places_again_and_are_cropped() -> None:
    model, made = model_of("qwen2-vl"), batch("qwen2-vl", [[Text(2), Image((1, 4, 16)), Text(6)], [Text(24)]])
    tokens, place = torch.tensor([[77], [78], [79]]), torch.tensor([2 + 8 + 2, 20, 20])  # 4 tokens before the end
    memory = new_cache(model)
    model(**made.inputs, position_ids=by_hand("qwen2-vl", made), **{CACHE: memory})
    memory.batch_select_indices(torch.tensor([0, 1, 1]))
    memory.crop(-4)
    wanted = model(input_ids=tokens, position_ids=place[None, :, None].expand(3, -1, -1), **{CACHE: memory}).logits
    with plug(model):
        memory = prefill(model, made.inputs)
        memory.batch_repeat_interleave(2)
        memory.reorder_cache(torch.tensor([2, 0, 1, 3]))
        memory.crop(-4)
        memory.batch_select_indices([1, 0, 3])
        assert torch.equal(model(input_ids=tokens, **{CACHE: memory}).logits, wanted)


def test_a_cache_is_let_go_with_its_last_name() -> None:
    """Without a collection of cycles, which comes late for so much memory."""
    model = model_of("qwen2-vl")
    with plug(model):
        memory = prefill(model, batch("qwen2-vl", pictures("qwen2-vl")).inputs)
        gone = weakref.ref(memory.layers[0])
        gc.disable()
        try:
            del memory
            assert gone() is None
        finally:
            gc.enable()


@by_move
def test_rows_of_a_cache_of_a_built_model_take_their_positions_along(move: str) -> None:
    model = built()
    inputs, ids = built_batch([[3, (1, 4, 6), 4, 5], [3, 4, 5], [(1, 8, 2), 7]], "right")
    moved, rows = MOVES[move]
    tokens, mask = torch.full((len(rows), 1), 20), inputs["attention_mask"][rows]
    whole = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
    memory = cache_of(model(**inputs))
    moved(memory)
    place = (ids.amax((0, 2)) + 1)[None, rows, None].expand(3, -1, -1)
    wanted = model(tokens, attention_mask=whole, position_ids=place, **{CACHE: copy.deepcopy(memory)}).logits
    assert torch.equal(model(tokens, attention_mask=whole, **{CACHE: memory}).logits, wanted)


def test_a_cache_of_a_built_model_with_padding_behind_its_rows_is_cropped() -> None:
    model = built()
    inputs, _ = built_batch([[3, (1, 4, 6), 4, 5], [3, 4, 5]], "right")  # 9 and 3 tokens
    memory, tokens = cache_of(model(**inputs)), torch.full((2, 1), 20)
    memory.crop(-1)
    mask = torch.cat([inputs["attention_mask"][:, :-1], torch.ones(2, 1, dtype=torch.int64)], dim=1)
    place = torch.tensor([1 + 3 + 1, 3])[None, :, None].expand(3, -1, -1)
    wanted = model(tokens, attention_mask=mask, position_ids=place, **{CACHE: copy.deepcopy(memory)}).logits
    assert torch.equal(model(tokens, attention_mask=mask, **{CACHE: memory}).logits, wanted)


# ------------------------------------------------------------------------------------- a new turn, generated in any way

TURN_WAYS: dict[str, dict[str, Any]] = {
    "beams": {"num_beams": 3, "do_sample": False},
    "several sequences": {"num_return_sequences": 2, "do_sample": True},
    "lookup": {"prompt_lookup_num_tokens": 2, "do_sample": False},
    "assisted": {"do_sample": False},
}
by_way = pytest.mark.parametrize("way", TURN_WAYS)


def written(model: Any, way: str, inputs: dict[str, Any], **cache: Any) -> torch.Tensor:
    torch.manual_seed(1)
    options = {"max_new_tokens": 5, **TURN_WAYS[way]}
    if way == "assisted":
        options["assistant_model"] = text_model()
    return model.generate(**inputs, **options, **cache)


@by_name
@by_way
@pytest.mark.parametrize("second", [[Text(12)], [Text(4), Image((1, 6, 4)), Text(2)]], ids=["text", "picture"])
def test_a_turn_on_a_cache_is_written_in_any_way_as_without_the_cache(name: str, way: str, second: list[Span]) -> None:
    model = model_of(name)
    made = batch(name, [[Text(4), clip(name, (9, 4, 6)), Text(3), *second]])
    image = {key: made.inputs[key] for key in ("pixel_values", "image_grid_thw") if key in made.inputs}
    new = {key: value for key, value in made.inputs.items() if key in ("input_ids", "attention_mask", TYPES)} | image
    before = {key: value for key, value in columns(made.inputs, slice(0, -12)).items() if key not in image}
    with plug(model):
        wanted = written(model, way, made.inputs)
        assert torch.equal(written(model, way, new, **{CACHE: prefill(model, before)}), wanted)


@pytest.mark.parametrize("way", ["beams", "several sequences", "lookup"])
def test_a_turn_on_a_cache_of_a_built_model_is_written_in_any_way(way: str) -> None:
    model = built()
    model.generation_config.eos_token_id = None
    inputs, _ = built_batch([[3, (1, 4, 6), 4, 5, 6, (1, 6, 2), 7]])
    first = {"input_ids": inputs["input_ids"][:, :9], "image_grid_thw": inputs["image_grid_thw"][:1]}
    new = inputs | {"image_grid_thw": inputs["image_grid_thw"][1:], "pixel_values": inputs["pixel_values"][24:]}
    memory = cache_of(model(**first, pixel_values=inputs["pixel_values"][:24]))
    assert torch.equal(written(model, way, new, **{CACHE: memory}), written(model, way, inputs))


@by_name
def test_grids_of_earlier_turns_on_a_cache_are_refused_with_what_would_do(name: str) -> None:
    model, made = model_of(name), batch(name, [[Text(4), Image((1, 8, 12)), Text(3), Image((1, 4, 8)), Text(2)]])
    first = columns(made.inputs, slice(0, 4 + 24 + 3))
    first |= {"image_grid_thw": first["image_grid_thw"][:1], "pixel_values": first["pixel_values"][:96]}
    with plug(model), pytest.raises(ValueError, match="on a cache come the grids and pixels of new tokens alone"):
        generate(model, made.inputs, 1, **{CACHE: prefill(model, first)})


def test_a_chunk_that_ends_inside_a_picture_is_refused_with_what_would_do() -> None:
    model, made = model_of("qwen2-vl"), batch("qwen2-vl", [[Text(4), Image((1, 8, 12)), Text(3)]])
    with plug(model), pytest.raises(ValueError, match=r"was truncated.* or a chunk of it ends inside a picture"):
        prefill(model, columns(made.inputs, slice(0, 9)))


# ------------------------------------------------------------------------------------------------- assisted decoding


def drafting(assistant: Any) -> Any:
    """`assistant`, which drafts three tokens each time, however sure it is."""
    assistant.generation_config.num_assistant_tokens = 3
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    assistant.generation_config.assistant_confidence_threshold = 0
    return assistant


def text_model(vocabulary: int = VOCABULARY) -> Any:
    """A small model of text alone with random weights."""
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "eos_token_id": 2, "pad_token_id": 0}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        made = Qwen2ForCausalLM(Qwen2Config(vocab_size=vocabulary, **sizes))
    return drafting(made.eval())


@by_name
@pytest.mark.parametrize("assistant", ["text", "vlm", "plugged vlm"])
def test_assisted_decoding_equals_a_loop_by_hand(name: str, assistant: str) -> None:
    model, made = model_of(name), batch(name, long_clip(name)[:1])
    wanted = greedy(model, made, by_hand(name, made), 8)
    drafts = text_model() if assistant == "text" else drafting(tiny_model(name))
    if assistant == "plugged vlm":
        plug(drafts)
    with plug(model):
        tokens, logits = generate(model, made.inputs, assistant_model=drafts)
    assert torch.equal(tokens, wanted[0])
    torch.testing.assert_close(logits, wanted[1], **ROUNDING)


@by_name
def test_drafts_of_an_equal_model_are_taken(name: str) -> None:
    model, made = model_of(name), batch(name, [[Text(9)]])
    wanted, forwards, drafts = greedy(model, made, by_hand(name, made), 8), [], drafting(copy.deepcopy(model))
    hook = model.model.register_forward_hook(lambda *_: forwards.append(1))
    with plug(model):
        tokens, logits = generate(model, made.inputs, assistant_model=drafts)
    hook.remove()
    assert torch.equal(tokens, wanted[0])
    torch.testing.assert_close(logits, wanted[1], **ROUNDING)
    assert len(forwards) == 2  # three drafts and one more token each time


@by_name
@pytest.mark.parametrize("layout", [None, CircleLayout(radius=2.5)], ids=["trained", "circle"])
@pytest.mark.parametrize("bias", [None, {(77,): 1e6}], ids=["refused", "taken"])
def test_tokens_drafted_behind_a_picture_that_ends_the_prompt(name: str, layout: Any, bias: Any) -> None:
    """With the bias all tokens are 77, drafts among them; without it random drafts are refused."""
    model, made = model_of(name), batch(name, [[Text(3), Image((1, 4, 12))]])
    mask, ids, following = made.inputs["attention_mask"], by_hand(name, made), 3 + 6  # behind 2 x 6 cells
    if layout is not None:
        placed = layout([Text(3), Image((1, 4, 12))])
        ids, following = placed.ids[:, None], placed.next
    memory = new_cache(model)
    wanted = [model(**made.inputs, position_ids=ids, **{CACHE: memory}, logits_to_keep=1).logits]
    for i in range(7):
        token = torch.tensor([[77]]) if bias else wanted[-1].argmax(-1)
        place = torch.full((3, 1, 1), following + i, dtype=ids.dtype)
        wanted.append(step(model, memory, mask, token, position_ids=place))
        mask = torch.cat([mask, mask.new_ones(1, 1)], dim=1)
    with plug(model, layout=layout):
        tokens, logits = generate(model, made.inputs, assistant_model=text_model(), sequence_bias=bias)
    torch.testing.assert_close(logits, torch.cat(wanted, dim=1), **ROUNDING)
    assert torch.equal(tokens, torch.full((1, 8), 77) if bias else logits.argmax(-1))


@of_families(ASSISTED)
@pytest.mark.parametrize("assistant", ["text", "vlm"])
def test_assisted_decoding_of_every_family(model_type: str, assistant: str) -> None:
    model, made = plug_families.model_of(model_type), plug_families.batch(model_type, prompt(model_type)[:1])
    ids, ends = plug_families.by_hand(model_type, made)
    assert (ids[:, 0, -1] + 1 == ends).all()  # the loop goes on from the last id of each axis
    if model_type != "hunyuan_vl":
        ids = torch.cat([torch.arange(ids.shape[-1]).to(ids.dtype)[None, None], ids])
    wanted = generate(model, {**made.inputs, "position_ids": ids}, 5)
    words = model.config.get_text_config().vocab_size
    drafts = text_model(words) if assistant == "text" else drafting(fresh_model(model_type))
    with plug(model):
        tokens, logits = generate(model, made.inputs, 5, assistant_model=drafts)
    assert torch.equal(tokens, wanted[0])
    torch.testing.assert_close(logits, wanted[1], **ROUNDING)
