"""Spans of a transformers batch, read from its token types, placeholders and grids; what does not fit is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from plug_cases import TYPES, by_hand, by_name, columns, model_of
from tiny_models import FAMILIES, Sample, clip, sample, tiny_config

import mrope
from mrope import Image, Text, Video
from mrope.hf import batch_positions, batch_spans, plug, read_positions, read_spans, token_kinds

TWO = [[Text(4), Image((1, 4, 6)), Text(3), Image((1, 6, 8)), Text(3)]]


def index(made: Sample, name: str = "qwen2-vl") -> torch.Tensor:
    """The ids (3, B, N) that a plugged model makes of a batch."""
    base = model_of(name).model
    with plug(base):
        return base.get_rope_index(**made.index_inputs)[0]


@by_name
def test_pictures_without_a_token_between_them(name: str) -> None:
    made = sample(name, [[Text(2), Image((1, 4, 6)), Image((1, 6, 4)), Text(3)]])
    assert torch.equal(index(made, name), by_hand(name, made))


@by_name
def test_a_clip_before_a_picture_and_more_in_the_next_row(name: str) -> None:
    made = sample(name, [[clip(name, (5, 4, 6)), Text(2), Image((1, 6, 4))], [Text(1), clip(name, (2, 6, 4)), Text(3)]])
    assert torch.equal(index(made, name), by_hand(name, made))


def test_spans_of_each_family() -> None:
    seconds = {"qwen2.5-vl": [0.5]}
    wanted = {
        "qwen2-vl": [Text(2), Video((3, 2, 4))],
        "qwen2.5-vl": [Text(2), Video((3, 2, 4), seconds=0.5)],
        "qwen3-vl": [Text(2), Text(3), *[Video((1, 2, 4), stamp=0), Text(3)] * 2, Video((1, 2, 4), stamp=0)],
    }
    wanted["qwen3-vl"][:2] = [Text(5)]
    for name in FAMILIES:
        inputs = sample(name, [[Text(2), clip(name, (3, 2, 4))]]).inputs
        kinds = token_kinds(inputs["input_ids"], image_token_id=500, video_token_id=501)
        layout: Any = mrope.family(name).layout
        grids = {"video_grid_thw": inputs["video_grid_thw"], "second_per_grid_ts": seconds.get(name)}
        assert batch_spans(kinds, kinds >= 0, layout=layout, **grids) == [wanted[name]]


def test_a_picture_that_is_masked_keeps_its_grid() -> None:
    kinds = torch.tensor([[1, 1, 0, 1, 1, 1]])
    mask = torch.tensor([[False, False, True, True, True, True]])
    spans = batch_spans(kinds, mask, layout=mrope.GridLayout(), image_grid_thw=[(1, 2, 4), (1, 2, 6)])
    assert spans == [[Text(1), Image((1, 2, 6))]]


def test_a_row_without_tokens() -> None:
    made = sample("qwen2-vl", [[Text(3)], [Text(3)]])
    made.inputs["attention_mask"][1] = 0
    assert index(made).tolist() == [[[0, 1, 2], [0, 0, 0]]] * 3


def cut_inside(inputs: dict[str, Any]) -> None:
    inputs.update(columns(inputs, slice(0, 15)))


def cut_off(inputs: dict[str, Any]) -> None:
    inputs.update(columns(inputs, slice(0, 13)))


def without_grids(inputs: dict[str, Any]) -> None:
    del inputs["image_grid_thw"]


def without_one_grid(inputs: dict[str, Any]) -> None:
    inputs["image_grid_thw"] = inputs["image_grid_thw"][:1]


def other_order(inputs: dict[str, Any]) -> None:
    inputs["image_grid_thw"] = inputs["image_grid_thw"].flip(0)


def flat_grids(inputs: dict[str, Any]) -> None:
    inputs["image_grid_thw"] = inputs["image_grid_thw"].flatten()


def odd_grid(inputs: dict[str, Any]) -> None:
    inputs["image_grid_thw"] = torch.tensor([[1, 3, 8], [1, 6, 8]])


def padded_otherwise(inputs: dict[str, Any]) -> None:
    inputs[TYPES] = inputs[TYPES].roll(1, dims=1)


def short_types(inputs: dict[str, Any]) -> None:
    inputs[TYPES] = inputs[TYPES][:, 1:]


def sound(inputs: dict[str, Any]) -> None:
    inputs[TYPES][0, 0] = 3


def mask_of_pairs(inputs: dict[str, Any]) -> None:
    inputs["attention_mask"] = torch.zeros(1, 1, 28, 28)


@pytest.mark.parametrize("types", [True, False], ids=["token types", "placeholders"])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            cut_inside,
            "row 0 has room for 2 image tokens where the next image grid 1x6x8 takes 12: the prompt was truncated",
        ),
        (cut_off, "image_grid_thw has 1 more than the prompts have image placeholders for, the next is image grid"),
        (without_grids, "row 0 has 6 image tokens, but no image_grid_thw came with them"),
        (without_one_grid, "row 0 has 12 image tokens in a run, 12 of them beyond what came"),
        (other_order, "row 0 has room for 6 image tokens where the next image grid 1x6x8 takes 12"),
        (flat_grids, r"image_grid_thw has shape \(6,\); expected \(n, 3\)"),
        (odd_grid, "image grid 1x3x8 is not divisible"),
        (mask_of_pairs, r"attention_mask has shape \(1, 1, 28, 28\)"),
    ],
)
def test_what_does_not_fit_is_refused(spoil: Callable[[dict[str, Any]], None], message: str, types: bool) -> None:
    made = sample("qwen2-vl", TWO)
    spoil(made.inputs)
    if not types:
        del made.inputs[TYPES]
    with pytest.raises(ValueError, match=message) as caught:
        index(made)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (padded_otherwise, "mm_token_type_ids say 0 for token 4 of row 0, input_ids say 1"),
        (short_types, r"mm_token_type_ids have shape \(1, 27\); expected \(1, 28\)"),
        (sound, "mm_token_type_ids say 3 for token 0 of row 0"),
    ],
)
def test_wrong_token_types_are_refused(spoil: Callable[[dict[str, Any]], None], message: str) -> None:
    made = sample("qwen2-vl", TWO)
    spoil(made.inputs)
    with pytest.raises(ValueError, match=message):
        index(made)


def test_a_forward_and_generate_tell_the_same() -> None:
    model, inputs = model_of("qwen3-vl"), sample("qwen3-vl", TWO).inputs
    cut_inside(inputs)
    del inputs[TYPES]
    pixels = {key: inputs.pop(key) for key in ("pixel_values", "image_grid_thw")}
    with plug(model):
        with pytest.raises(ValueError, match="room for 2 image tokens"):
            model(**inputs, image_grid_thw=pixels["image_grid_thw"])
        with pytest.raises(ValueError, match="room for 2 image tokens"):
            model.generate(**inputs, **pixels, max_new_tokens=1)


def test_seconds_default_to_one_and_ids_per_second_are_the_models() -> None:
    config = tiny_config("qwen2.5-vl")
    config.vision_config.tokens_per_second = 5
    base = type(model_of("qwen2.5-vl").model)(config)
    inputs: dict[str, Any] = dict(
        sample("qwen2.5-vl", [[Text(2), clip("qwen2.5-vl", (3, 2, 4)), Text(1)]]).index_inputs
    )
    with plug(base):
        del inputs["second_per_grid_ts"]
        assert base.get_rope_index(**inputs)[0][0, 0].tolist() == [0, 1, 2, 2, 7, 7, 12, 12, 13]
        inputs["second_per_grid_ts"] = [0.5]
        assert base.get_rope_index(**inputs)[0][0, 0].tolist() == [0, 1, 2, 2, 4, 4, 7, 7, 8]


def test_wrong_seconds_are_refused() -> None:
    made = sample("qwen2-vl", [[Text(2), clip("qwen2-vl", (2, 2, 4))]])
    made.inputs["second_per_grid_ts"] = torch.tensor([1.0])
    with pytest.raises(ValueError, match="time of this family's layout is 'index'"):
        index(made)
    made = sample("qwen2.5-vl", [[Text(2), clip("qwen2.5-vl", (2, 2, 4))]])
    made.inputs["second_per_grid_ts"] = torch.tensor([1.0, 2.0])
    with pytest.raises(ValueError, match="2 entries for 1 clips"):
        index(made, "qwen2.5-vl")


@pytest.mark.parametrize("types", [True, False], ids=["token types", "placeholders"])
def test_ids_read_at_once_are_those_read_by_spans(types: bool) -> None:
    config = tiny_config("qwen3-vl")
    beside = [Text(2), Image((1, 4, 6)), Image((1, 6, 4)), Text(1)]  # one run of two pictures: read by spans
    for rows in ([TWO[0], [Text(3)]], [beside, TWO[0]], [[Text(2), clip("qwen3-vl", (3, 2, 4)), Text(1)]]):
        for side in ("left", "right"):
            made = sample("qwen3-vl", rows, side=side)
            if not types:
                del made.inputs[TYPES]
            by_spans = batch_positions(
                read_spans(made.inputs, config),
                made.inputs["attention_mask"].bool(),
                layout=mrope.GridLayout(time="stamps"),
            )
            assert torch.equal(read_positions(made.inputs, config), by_spans)


@pytest.mark.parametrize("spoil", [cut_inside, cut_off, without_grids, without_one_grid, other_order, odd_grid])
def test_what_does_not_fit_is_refused_at_once_in_the_same_words(spoil: Callable[[dict[str, Any]], None]) -> None:
    made, config = sample("qwen2-vl", TWO), tiny_config("qwen2-vl")
    spoil(made.inputs)
    with pytest.raises(ValueError) as by_spans:  # noqa: PT011
        read_spans(made.inputs, config)
    with pytest.raises(ValueError) as at_once:  # noqa: PT011
        read_positions(made.inputs, config)
    assert str(at_once.value) == str(by_spans.value)
