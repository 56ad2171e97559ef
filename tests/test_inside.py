"""Inside models: attention recounted by plain loops, hand-made weights, planted places, and the trained reader."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from every_family import AUD, IMG, MODEL_TYPES, VID, Batch
from PIL import Image as Pictures
from plug_families import batch, fresh_model, model_of, of_families, prompt
from test_processor import this_version
from test_respondents import tiny
from tiny_models import sample, tiny_model, tiny_vlm
from torch import Tensor
from typer.testing import CliRunner

import mrope.cli
from mrope import AxisSplit, Image, Span, Text, Video
from mrope.data import RELATIONS, fonts
from mrope.hf import plug
from mrope.hf.parts import parts_of
from mrope.probes import draw_grids
from mrope.probes.inside import (
    AttentionInside,
    LinearProbe,
    Places,
    attention_inside,
    draw_attention,
    linear_probe,
    measure_attention,
    places_of,
    plot_attention,
    probe_states,
)
from mrope.reader import FAMILY, PROMPT, Reader
from mrope.rotary import apply_rotary

SIZES = ((2, 3), (4, 2), (3, 5), (5, 3), (2, 6), (4, 5))  # rows and columns of cells


def prepared(model_type: str) -> tuple[Any, Batch, Places]:
    model, made = model_of(model_type), batch(model_type, prompt(model_type))
    return model, made, places_of(made.inputs, parts_of(model).base.config)


def row_of(before: int, grid: tuple[int, int, int], after: int) -> Places:
    """Places of one row: words, a picture or clip, words."""
    t, rows, cols = grid
    cells, length = t * rows * cols, before + t * rows * cols + after
    picture = torch.full((1, length), -1)
    picture[0, before : before + cells] = 0
    where = torch.full((3, 1, length), -1)
    where[:, 0, before : before + cells] = torch.tensor(
        [(a, b, c) for a in range(t) for b in range(rows) for c in range(cols)]
    ).T
    behind = torch.zeros(1, length, dtype=torch.int64)
    behind[0, before + cells :] = torch.arange(1, after + 1)
    return Places(picture, where, (grid,), (0,), torch.arange(length)[None], behind)


# ------------------------------------------------------------------------------------------------------------- places


@of_families([name for name in MODEL_TYPES if name not in ("neomme", "minicpmv4_7", "hunyuan_vl", "hy_v4_vl")])
def test_cells_of_each_family_run_row_by_row_through_its_placeholders(model_type: str) -> None:
    _, made, places = prepared(model_type)
    assert places.grids == tuple(_grid(span, model_type) for span in made.rows[0] if isinstance(span, (Image, Video)))
    seen = torch.isin(made.inputs["input_ids"], torch.tensor([IMG, VID]))
    if model_type == "glm_image":
        seen &= places.tokens >= 0
    assert torch.equal(places.picture >= 0, seen)
    expected = [
        (number, t, row, col)
        for number, (steps, rows, cols) in enumerate(places.grids)
        for t in range(steps)
        for row in range(rows)
        for col in range(cols)
    ]
    found = torch.stack([places.picture, *places.cells])[:, seen].T.tolist()
    assert [tuple(each) for each in found] == expected
    assert (places.cells[:, ~seen] == -1).all()


def _grid(span: Image | Video, model_type: str) -> tuple[int, int, int]:
    t, h, w = span.grid
    merge = 1 if model_type == "glm_image" else 2
    return (t // 2 if model_type == "ernie4_5_vl_moe" and isinstance(span, Video) else t), h // merge, w // merge


def test_words_behind_are_counted_from_the_last_cell_and_padding_is_none() -> None:
    rows: list[list[Span]] = [[Text(2), Image((1, 4, 6)), Text(3)], [Text(4), Image((1, 6, 4)), Text(5), Text(1)]]
    made = sample("qwen2-vl", rows)
    places = places_of(made.inputs, tiny_model("qwen2-vl").config)
    assert (places.grids, places.rows) == (((1, 2, 3), (1, 3, 2)), (0, 1))
    assert places.tokens.tolist() == [[-1] * 5 + list(range(11)), list(range(16))]
    assert places.behind.tolist() == [[0] * 13 + [1, 2, 3], [0] * 10 + [1, 2, 3, 4, 5, 6]]
    assert places.picture.tolist() == [[-1] * 7 + [0] * 6 + [-1] * 3, [-1] * 4 + [1] * 6 + [-1] * 6]
    assert places.cells[1, 0].tolist() == [-1] * 7 + [0, 0, 0, 1, 1, 1] + [-1] * 3
    assert places.cells[2, 1].tolist() == [-1] * 4 + [0, 1, 0, 1, 0, 1] + [-1] * 6


@of_families(["qwen3_vl"])
def test_frames_with_stamps_between_them_are_one_clip(model_type: str) -> None:
    _, _, places = prepared(model_type)
    assert places.grids[0] == (9, 2, 3)
    # 4 words, then 9 times a stamp of 3 and 2 x 3 cells
    assert places.cells[0, 0, 7:13].tolist() == [0] * 6
    assert places.cells[0, 0, 13:16].tolist() == [-1] * 3
    assert places.cells[0, 0, 16:22].tolist() == [1] * 6
    assert places.cells[2, 0, 16:22].tolist() == [0, 1, 2, 0, 1, 2]


@of_families(["hunyuan_vl"])
def test_newlines_and_ends_of_hunyuan_are_no_cells(model_type: str) -> None:
    _, _, places = prepared(model_type)
    assert places.grids == ((1, 3, 2), (1, 2, 4))
    # 4 words, the start, 3 lines of 2 cells and a newline, the end
    assert places.cells[1, 0, :15].tolist() == [-1] * 5 + [0, 0, -1, 1, 1, -1, 2, 2, -1, -1]
    assert places.cells[2, 0, :15].tolist() == [-1] * 5 + [0, 1, -1, 0, 1, -1, 0, 1, -1, -1]


@of_families(["hy_v4_vl"])
def test_newlines_of_frames_are_no_cells(model_type: str) -> None:
    _, _, places = prepared(model_type)
    assert places.grids == ((9, 2, 3), (1, 2, 4))
    assert places.cells[:, 0, 4:14].T.tolist() == [
        *([0, 0, 0], [0, 0, 1], [0, 0, 2], [-1, -1, -1], [0, 1, 0], [0, 1, 1], [0, 1, 2], [-1, -1, -1]),
        *([1, 0, 0], [1, 0, 1]),
    ]


@of_families(["minicpmv4_7"])
def test_thumbnail_and_slices_are_on_one_canvas(model_type: str) -> None:
    _, _, places = prepared(model_type)
    # a thumbnail of 2 x 3 on a canvas of 2 x 2 cells, and two slices of 2 x 1 beside one another
    assert places.grids[0] == (1, 2, 2)
    assert places.cells[1, 0, 4:20].tolist() == [-1, 0, 0, 0, 1, 1, 1, -1, -1, 0, 1, -1, -1, 0, 1, -1]
    assert places.cells[2, 0, 4:20].tolist() == [-1, 0, 0, 1, 0, 0, 1, -1, -1, 0, 0, -1, -1, 1, 1, -1]


@of_families(["neomme"])
def test_a_page_has_two_tokens_before_it_and_a_marker_behind_each_line(model_type: str) -> None:
    _, _, places = prepared(model_type)
    assert places.grids == ((1, 3, 5),)
    assert places.cells[2, 0, :14].tolist() == [-1, -1, 0, 1, 2, 3, 4, -1, 0, 1, 2, 3, 4, -1]
    assert places.cells[1, 0, 8:13].tolist() == [1] * 5


@of_families(["qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"])
def test_sound_in_a_clip_is_no_cell(model_type: str) -> None:
    model = model_of(model_type)
    made = batch(model_type, [[Text(2), Video((3, 4, 6), seconds=1.0, audio=30), Text(4)]])
    places = places_of(made.inputs, parts_of(model).base.config)
    words = made.inputs["input_ids"]
    assert places.grids == ((3, 2, 3),)
    assert int((words == AUD).sum()) == 30
    assert torch.equal(places.picture >= 0, words == VID)
    assert places.cells[:, words == VID].T.tolist() == [[t, r, c] for t in range(3) for r in range(2) for c in range(3)]
    assert places.behind.max() == 4


def test_a_clip_that_is_masked_as_a_whole_is_refused() -> None:
    made = sample("qwen3-vl", [[Text(2), Video((2, 4, 6), stamp=2), Text(3), Video((3, 6, 4), stamp=1), Text(1)]])
    made.inputs["attention_mask"][0, 2:18] = 0
    with pytest.raises(ValueError, match="video_grid_thw has 5 frames, and 3 are no padding; take out a clip"):
        attention_inside(tiny_model("qwen3-vl"), made.inputs)


# ---------------------------------------------------------------------------------------- attention of real models


def recounted(weights: Sequence[Tensor], places: Places, reach: tuple[int, int, int]) -> dict[Any, tuple[Tensor, int]]:
    """By a plain loop over pairs of tokens: difference -> the sum (L, H) of weights and how many pairs there are."""
    sums: dict[Any, tuple[Tensor, int]] = {}
    rows, length = places.picture.shape
    for row in range(rows):
        for q in range(length):
            for k in range(length):
                picture = int(places.picture[row, q])
                if picture < 0 or int(places.picture[row, k]) != picture:
                    continue
                apart = tuple(int(places.cells[axis, row, k] - places.cells[axis, row, q]) for axis in range(3))
                if any(abs(by) > most for by, most in zip(apart, reach, strict=True)):
                    continue
                found, pairs = sums.get(apart, (torch.zeros(len(weights), weights[0].shape[1]), 0))
                sums[apart] = found + torch.stack([each[row, :, q, k] for each in weights]), pairs + 1
    return sums


@of_families(MODEL_TYPES)
def test_attention_is_that_of_output_attentions_recounted_by_hand(model_type: str) -> None:
    model, made, places = prepared(model_type)
    reach = (2, 2, 3)
    with torch.no_grad():
        output = model(**made.inputs, output_attentions=True)
    whole = [each for each in output.attentions if each is not None and each.dim() == 4]
    result = attention_inside(model, made.inputs, reach=reach)
    assert len(result.layers) == len(whole)
    sums = recounted(whole, places, reach)
    assert int(result.relative.pairs.sum()) == sum(pairs for _, pairs in sums.values())
    for (dt, dh, dw), (total, pairs) in sums.items():
        assert result.relative.pairs[dt + 2, dh + 2, dw + 3] == pairs
        torch.testing.assert_close(result.relative.at(dt, dh, dw), total / pairs, rtol=1e-5, atol=1e-7)
    for each in result.maps:
        last = int((places.tokens[each.row] >= 0).nonzero()[-1])
        at = (places.picture[each.row] == each.picture).nonzero()[:, 0]
        drawn = torch.zeros_like(each.weight)
        for token in at.tolist():
            t, r, c = places.cells[:, each.row, token].tolist()
            drawn[:, :, t, r, c] += torch.stack([one[each.row, :, last, token] for one in whole])
        torch.testing.assert_close(each.weight, drawn)
    for at, distance in enumerate(result.share.distance.tolist()):
        row, token = (places.behind == distance).nonzero()[0].tolist()
        seen = places.picture[row] >= 0
        share = torch.stack([one[row, :, token, seen].sum(-1) for one in whole])
        torch.testing.assert_close(result.share.share[:, :, at], share)


def test_a_model_under_sdpa_gives_the_same_and_keeps_sdpa() -> None:
    eager, made, _ = prepared("qwen2_5_vl")
    other = copy.deepcopy(eager)
    other.config._attn_implementation = "sdpa"
    before = {id(each.config): each.config._attn_implementation for each in other.modules() if hasattr(each, "config")}
    expected, result = (attention_inside(model, made.inputs) for model in (eager, other))
    torch.testing.assert_close(result.relative.weight, expected.relative.weight, equal_nan=True)
    torch.testing.assert_close(result.share.share, expected.share.share)
    after = {id(each.config): each.config._attn_implementation for each in other.modules() if hasattr(each, "config")}
    assert after == before
    assert set(after.values()) == {"sdpa"}


def hooks_of(model: Any) -> int:
    return sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules())


@pytest.mark.parametrize("look", [attention_inside, linear_probe])
def test_a_forward_that_raises_leaves_the_model_as_it_was(look: Any) -> None:
    model = copy.deepcopy(model_of("qwen2_vl")).train()
    model.model.rope_deltas = torch.tensor([[7]])
    model.config._attn_implementation = "sdpa"
    made, hooks = batch("qwen2_vl", prompt("qwen2_vl")), hooks_of(model)
    look(model, made.inputs)
    assert (model.training, model.model.language_model.training, hooks_of(model)) == (True, True, hooks)

    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    handle = model.model.language_model.norm.register_forward_hook(broken)
    with pytest.raises(ValueError, match=r"inputs do not run through the Qwen2VL.*: RuntimeError: broken; expected"):
        look(model, made.inputs)
    handle.remove()
    assert (model.training, hooks_of(model)) == (True, hooks)
    assert model.model.rope_deltas.tolist() == [[7]]
    assert model.config.text_config._attn_implementation == "sdpa"
    assert all(weight.grad is None for weight in model.parameters())


def test_layers_are_chosen_and_those_without_attention_are_left_out() -> None:
    model, made, _ = prepared("qwen3_5")  # layer 0 is linear
    assert attention_inside(model, made.inputs).layers == (1,)
    with pytest.raises(ValueError, match=r"layers \[0\] have no attention whose weights can be seen"):
        attention_inside(model, made.inputs, layers=[0])
    two = tiny_model("qwen2-vl")
    given = batch("qwen2_vl", prompt("qwen2_vl")).inputs
    whole, second = attention_inside(two, given), attention_inside(two, given, layers=[1])
    assert (whole.layers, second.layers) == ((0, 1), (1,))
    assert torch.equal(whole.share.share[1:], second.share.share)
    assert not torch.equal(whole.share.share[:1], second.share.share)


def test_batches_are_counted_together() -> None:
    model = tiny_model("qwen2-vl")
    rows: list[list[Span]] = [[Text(2), Image((1, 4, 6)), Text(3)], [Text(2), Image((1, 6, 4)), Text(3)]]
    inputs = sample("qwen2-vl", rows).inputs
    inputs = {name: value for name, value in inputs.items() if not name.startswith("pixel")}
    parts = [
        {name: value[row : row + 1] for name, value in inputs.items()} for row in range(2)
    ]  # of one length, with one picture each
    whole, apart = attention_inside(model, inputs), attention_inside(model, parts)
    torch.testing.assert_close(whole.relative.weight, apart.relative.weight, equal_nan=True)
    torch.testing.assert_close(whole.share.share, apart.share.share)
    torch.testing.assert_close(whole.share.even, apart.share.even)
    assert whole.share.words.tolist() == apart.share.words.tolist() == [2, 2, 2]
    assert [(each.batch, each.row, each.picture) for each in whole.maps] == [(0, 0, 0), (0, 1, 1)]
    assert [(each.batch, each.row, each.picture) for each in apart.maps] == [(0, 0, 0), (1, 0, 0)]
    for one, other in zip(whole.maps, apart.maps, strict=True):
        torch.testing.assert_close(one.weight, other.weight)


def test_queries_of_zero_look_evenly_at_all_before_them() -> None:
    model = copy.deepcopy(model_of("qwen2_5_vl"))
    for layer in model.model.language_model.layers:
        layer.self_attn.q_proj.weight.data.zero_()
        layer.self_attn.q_proj.bias.data.zero_()
    made = batch("qwen2_5_vl", [[Text(2), Image((1, 4, 6)), Text(3)], [Text(4), Image((1, 6, 4)), Text(6)]])
    result = attention_inside(model, made.inputs)
    # the k-th word behind sees 6 cells among 8 + k tokens in the first row, among 10 + k in the second
    hand = [(6 / (8 + k) + 6 / (10 + k)) / 2 for k in (1, 2, 3)] + [6 / (10 + k) for k in (4, 5, 6)]
    torch.testing.assert_close(result.share.even, torch.tensor(hand))
    torch.testing.assert_close(result.share.share, torch.tensor(hand).expand(1, 2, 6))
    assert result.share.words.tolist() == [2, 2, 2, 1, 1, 1]


def test_without_rotary_equal_cells_get_equal_attention_and_with_it_they_do_not() -> None:
    model = copy.deepcopy(model_of("qwen2_vl"))
    # Placeholders without pixels are all one word, so that only positions tell cells apart.
    made = batch("qwen2_vl", [[Text(2), Video((3, 4, 6)), Text(3)]])
    turned = attention_inside(model, made.inputs).maps[0].weight[0]

    def still(module: Any, args: Any, output: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return torch.ones_like(output[0]), torch.zeros_like(output[1])

    with_none = copy.deepcopy(model)
    with_none.model.language_model.rotary_emb.register_forward_hook(still)
    same = attention_inside(with_none, made.inputs).maps[0].weight[0]
    torch.testing.assert_close(same, same[:, :1, :1, :1].expand_as(same))
    assert (turned.amax((1, 2, 3)) > 1.5 * turned.amin((1, 2, 3))).all()


def test_a_plugged_model_with_other_positions_attends_otherwise() -> None:
    model, made, _ = prepared("qwen2_vl")
    own = attention_inside(model, made.inputs)
    with plug(model, split=AxisSplit((24, 16, 24))):
        other = attention_inside(model, made.inputs)
    assert not torch.allclose(own.share.share, other.share.share)


def test_a_built_model_is_looked_into() -> None:
    model = tiny_vlm()
    patches = model.config.record.patchify([torch.full((3, 64, 96), 90, dtype=torch.uint8)])
    place = model.config.image_token_id
    inputs = {
        "input_ids": torch.tensor([[11, 12, *[place] * 6, 13, 14]]),
        "pixel_values": patches.values,
        "image_grid_thw": patches.grids,
    }
    result = attention_inside(model, inputs)
    assert result.layers == (0, 1)
    model.language_model.config._attn_implementation = "eager"
    with torch.no_grad():
        weights = model(**inputs, output_attentions=True).attentions
    expected = torch.stack([each[0, :, -1, 2:8] for each in weights]).reshape(2, 2, 1, 2, 3)
    torch.testing.assert_close(result.maps[0].weight, expected)


# ---------------------------------------------------------------------------------------------- attention by hand


def looking(places: Places, step: tuple[int, int, int]) -> Tensor:
    """(1, 1, N, N) each cell looks at the one that is `step` from it, if there is one; all else at token 0."""
    length = places.picture.shape[1]
    weights = torch.zeros(1, 1, length, length)
    where = {tuple(places.cells[:, 0, at].tolist()): at for at in range(length) if places.picture[0, at] >= 0}
    for token in range(length):
        aim = tuple(int(by) + more for by, more in zip(places.cells[:, 0, token], step, strict=True))
        weights[0, 0, token, where.get(aim, 0) if places.picture[0, token] >= 0 else 0] = 1
    return weights


@pytest.mark.parametrize("step", [(0, 0, -1), (0, -1, 0), (-1, 0, 0), (0, 0, 0), (1, -2, 1)])
def test_cells_that_look_at_one_neighbour_show_that_one_alone(step: tuple[int, int, int]) -> None:
    places = row_of(3, (3, 4, 5), 2)
    result = measure_attention({0: looking(places, step)}, places, reach=(2, 3, 4)).relative
    assert result.at(*step).tolist() == [[1.0]]
    assert result.weight.nan_to_num().sum() == 1
    if any(step):
        assert result.strongest() == (step,)
    # of the pairs with that difference on the axis of rows, those with that difference on all axes look
    t, h, w = (size - abs(by) for size, by in zip((3, 4, 5), step, strict=True))
    pairs = {"t": t * 16 * 25, "h": 9 * h * 25, "w": 9 * 16 * w}
    for at, (axis, most) in enumerate(zip("thw", (2, 3, 4), strict=True)):
        along = result.along(axis)[0, 0]
        assert along[most + step[at]].item() == pytest.approx(t * h * w / pairs[axis])
        assert along.sum().item() == pytest.approx(t * h * w / pairs[axis])


def test_pairs_beyond_reach_are_left_out_and_a_lone_cell_has_no_neighbour() -> None:
    places = row_of(1, (1, 4, 7), 0)
    result = measure_attention({3: torch.full((1, 2, 29, 29), 1 / 29)}, places, reach=(0, 1, 2)).relative
    # rows 4 + 2 x 3 pairs, columns 7 + 2 x 6 + 2 x 5
    assert int(result.pairs.sum()) == (4 + 6) * (7 + 12 + 10)
    assert result.pairs[0].tolist() == [[3 * n for n in (5, 6, 7, 6, 5)], [20, 24, 28, 24, 20], [15, 18, 21, 18, 15]]
    torch.testing.assert_close(result.weight, torch.full((1, 2, 1, 3, 5), 1 / 29))
    with pytest.raises(ValueError, match=r"difference is \(0, 2, 0\); expected at most \(0, 1, 2\)"):
        result.at(0, 2, 0)
    lone = measure_attention({0: torch.eye(3)[None, None]}, row_of(1, (1, 1, 1), 1)).relative
    assert (lone.strongest(), lone.at(0, 0, 0).tolist(), lone.at(0, 0, 1).isnan().all()) == (
        ((0, 0, 0),),
        [[1.0]],
        True,
    )


def test_a_map_shows_the_one_cell_that_a_token_looks_at() -> None:
    places = row_of(2, (2, 3, 4), 3)
    weights = torch.zeros(1, 2, 29, 29)
    weights[0, 0, 28, 2 + 12 + 1 * 4 + 3] = 0.7  # step 1, row 1, column 3
    weights[0, 1, 26, 2 + 2 * 4 + 1] = 0.6  # step 0, row 2, column 1, from the first word behind
    last = measure_attention({5: weights}, places).maps[0]
    assert (last.layers, last.batch, last.row, last.picture) == ((5,), 0, 0, 0)
    assert last.weight.nonzero().tolist() == [[0, 0, 1, 1, 3]]
    assert last.weight[0, 0, 1, 1, 3].item() == pytest.approx(0.7)
    first = measure_attention({5: weights}, places, token=26).maps[0].weight
    assert first.nonzero().tolist() == [[0, 1, 0, 2, 1]]
    assert torch.equal(first, measure_attention({5: weights}, places, token=-3).maps[0].weight)
    mean = measure_attention({5: weights}, places, token=None).maps[0].weight
    assert mean.nonzero().tolist() == [[0, 0, 1, 1, 3], [0, 1, 0, 2, 1]]
    assert mean[0, 1, 0, 2, 1].item() == pytest.approx(0.2)


def test_tokens_of_another_picture_are_no_pairs() -> None:
    one, two = row_of(1, (1, 2, 3), 1), row_of(0, (1, 3, 2), 2)
    places = Places(
        torch.cat([one.picture, two.picture + (two.picture >= 0).long()], 1),
        torch.cat([one.cells, two.cells], 2),
        ((1, 2, 3), (1, 3, 2)),
        (0, 0),
        torch.arange(16)[None],
        torch.cat([torch.zeros(1, 8, dtype=torch.int64), two.behind], 1),
    )
    weights = torch.zeros(1, 1, 16, 16)
    weights[0, 0, 8:14, 1:7] = 1 / 6  # all cells of the second picture look at the first
    weights[0, 0, 15, 1] = weights[0, 0, 15, 9] = 0.25
    result = measure_attention({0: weights}, places)
    assert result.relative.weight.nan_to_num().sum() == 0
    assert result.share.share.flatten().tolist() == [0, 0.5]
    assert [each.weight.sum().item() for each in result.maps] == [0.25, 0.25]


# --------------------------------------------------------------------------------------------------------- the reader


@torch.no_grad()
def reader_weights(shape: tuple[int, int], relation: str) -> tuple[AttentionInside, list[tuple[int, int]]]:
    """The attention of the shipped reader's last block, of questions about all cells that have such a neighbour."""
    reader, (rows, cols) = Reader.load(), shape
    down, right = RELATIONS[relation]
    asked = [(r, c) for r in range(rows) for c in range(cols) if 0 <= r + down < rows and 0 <= c + right < cols]
    patches = FAMILY.patchify(draw_grids(shape, fonts("train"), pictures=1)[0].picture)
    seen: list[Tensor] = []

    def note(module: Any, args: Any, output: Any) -> None:
        x, table, mask = args
        q, k, _ = module.qkv(x).unflatten(-1, (3, module.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = (apply_rotary(each, *table) for each in (q, k))
        seen.append((q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~mask, -math.inf).softmax(-1))

    handle = reader.blocks[-1].attention.register_forward_hook(note)  # pyright: ignore[reportAttributeAccessIssue]
    cells = torch.tensor([[r * cols + c for r, c in asked]])
    numbers = torch.full_like(cells, list(RELATIONS).index(relation))
    ids = reader.positions(len(PROMPT), patches.plans[0].grid).ids
    reader(patches.values, torch.tensor(PROMPT), ids, cells, numbers)
    handle.remove()
    places = row_of(len(PROMPT), (1, rows, cols), len(asked))
    found = [measure_attention({1: seen[0]}, places, token=at - len(asked)) for at in range(len(asked))]
    maps = [each.maps[0].weight[0, :, 0] for each in found]
    peaks = [divmod(int(each.mean(0).argmax()), cols) for each in maps]
    assert [(r - down, c - right) for r, c in peaks] == asked
    assert min(each.mean(0).max().item() for each in maps) > 0.5
    return found[0], peaks


@pytest.mark.parametrize("relation", ["in", "right", "left", "above", "below"])
def test_the_trained_reader_attends_to_the_cell_that_is_asked_for(relation: str) -> None:
    result, peaks = reader_weights((4, 7), relation)
    assert len(peaks) == {"in": 28, "right": 24, "left": 24, "above": 21, "below": 21}[relation]
    assert result.share.share.mean() > 0.9  # far more than
    assert result.share.even.max() < 0.9


# ----------------------------------------------------------------------------------------------------- linear probes


def field(sizes: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    """(3, n) cells of pictures or clips of these sizes, and (n,) the number of the picture of each."""
    shapes = [size if len(size) == 3 else (1, *size) for size in sizes]
    cells = [np.indices(shape).reshape(3, -1) for shape in shapes]
    numbers = [np.full(each.shape[1], number) for number, each in enumerate(cells)]
    return torch.from_numpy(np.concatenate(cells, 1)), torch.from_numpy(np.concatenate(numbers))


def test_planted_places_are_found_and_their_control_finds_none() -> None:
    cells, picture = field([(3, 2, 5), (2, 4, 3), (4, 3, 2), (2, 5, 4), (3, 3, 6), (2, 6, 2), (4, 2, 3), (3, 4, 5)])
    mix = torch.randn(3, 24)
    probe = probe_states(cells.T.float() @ mix + 5, cells, picture, penalty=1e-6)
    torch.testing.assert_close(probe.r2, torch.ones(1, 3), atol=1e-4, rtol=0)
    assert (probe.error < 1e-2).all()
    assert (probe.control_r2 < 0.1).all()
    assert (probe.control_error > 0.4).all()
    assert (probe.pictures, sum(probe.cells)) == ((6, 2), len(picture))


@pytest.mark.parametrize("channels", [6, 600])
def test_noise_tells_nothing(channels: int) -> None:
    cells, picture = field([(4, 7), (6, 3), (5, 8), (3, 9), (7, 4), (8, 5), (3, 5), (9, 6)])
    probe = probe_states(torch.randn(len(picture), channels), cells, picture)
    assert (probe.r2[:, 1:] <= 0.05).all()
    assert probe.r2[:, 0].isnan().all()  # the step of a picture does not vary
    constant = probe_states(torch.ones(len(picture), channels), cells, picture)
    assert (constant.r2[:, 1:] <= 0).all()


def test_states_that_know_rows_alone_are_told_from_those_that_know_columns() -> None:
    cells, picture = field([(3, 8), (6, 4), (5, 7), (7, 3), (4, 9), (8, 5)])
    states = torch.randn(len(picture), 8)
    states[:, 2] = cells[1].float()
    rows = probe_states(states, cells, picture)
    assert rows.r2[0, 1] > 0.99 > 0.2 > rows.r2[0, 2]
    columns = probe_states(states, cells[[0, 2, 1]], picture)  # as if h and w were swapped
    assert columns.r2[0, 2] > 0.99 > 0.2 > columns.r2[0, 1]
    # the raster index of a picture of another width is no column
    wrong = torch.stack([cells[0], *(torch.arange(len(picture)) % 5 for _ in range(2))])
    assert probe_states(cells.T.float(), wrong, picture).r2[0, 1] < 0.5


def test_whole_pictures_are_held_out() -> None:
    # Each picture has a code of its own, and cells of it say where they are by that code alone.
    cells, picture = field([(4, 6)] * 8)
    codes = torch.randn(8, 12)
    states = torch.zeros(len(picture), 8 * 12)
    for at, number in enumerate(picture.tolist()):
        states[at, 12 * number : 12 * number + 12] = codes[number] * (cells[1, at] + 1)
    probe = probe_states(states, cells, picture)
    assert probe.r2[0, 1] < 0.3  # a split by cells would give 1
    assert probe.cells == (6 * 24, 2 * 24)


@pytest.mark.parametrize("channels", [3, 90], ids=["fewer channels than cells", "more channels than cells"])
def test_the_regression_is_ridge_of_standard_channels(channels: int) -> None:
    cells, picture = field([(3, 4), (2, 5)])
    states = torch.randn(len(picture), channels) * torch.linspace(0.1, 9, channels) + 3
    for seed in range(5):
        probe = probe_states(states, cells, picture, held_out=0.5, penalty=0.3, seed=seed)
        held = int(probe.cells == (10, 12))  # picture 0 has 12 cells
        x, y = states[picture == held].double().numpy(), cells[:, picture == held].T.double().numpy()
        asked, wanted = states[picture != held].double().numpy(), cells[:, picture != held].T.double().numpy()
        scale = x.std(0)
        rows = np.concatenate([(x - x.mean(0)) / scale, np.sqrt(0.3 * len(x)) * np.eye(channels)])
        targets = np.concatenate([y - y.mean(0), np.zeros((channels, 3))])
        weights = np.linalg.lstsq(rows, targets, rcond=None)[0]
        missed = (asked - x.mean(0)) / scale @ weights + y.mean(0) - wanted
        r2 = 1 - (missed**2).sum(0)[1:] / ((wanted - wanted.mean(0)) ** 2).sum(0)[1:]
        np.testing.assert_allclose(probe.r2[0, 1:], r2, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(probe.error[0], np.abs(missed).mean(0), rtol=1e-4, atol=1e-6)


@of_families(["qwen2_5_vl", "qwen3_vl", "glm4v", "hunyuan_vl", "cohere_compass", "paddleocr_vl"])
def test_states_are_those_of_output_hidden_states(model_type: str) -> None:
    model = fresh_model(model_type, num_hidden_layers=2, **_layers(model_type))
    base = parts_of(model).base
    rows = [[Text(2), Image((1, 2 * h, 2 * w)), Text(2)] for h, w in SIZES]
    inputs = batch(model_type, rows).inputs
    places = places_of(inputs, base.config)
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states
    probe = linear_probe(model, inputs, seed=3)
    assert (probe.layers, probe.pictures) == ((0, 1, 2), (4, 2))
    seen = places.picture >= 0
    for layer in (0, 1):  # the last one of transformers is behind the norm
        expected = probe_states(states[layer][seen], places.cells[:, seen], places.picture[seen], seed=3)
        for name in ("r2", "error", "control_r2", "control_error"):
            ours, theirs = getattr(probe, name)[layer], getattr(expected, name)[0]
            torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2, equal_nan=True)
    (second,) = linear_probe(model, inputs, layers=[2], seed=3).r2
    torch.testing.assert_close(second, probe.r2[2], equal_nan=True)


def _layers(model_type: str) -> dict[str, Any]:
    return {"layer_types": ["full_attention"] * 2} if model_type in ("cohere_compass", "qwen2_5_vl") else {}


def test_a_tower_with_learned_places_shows_them_in_the_states_and_one_without_does_not() -> None:
    model = tiny_model("qwen3-vl")
    rows: list[list[Span]] = [[Text(1), Image((1, 2 * h, 2 * w)), Text(1)] for h, w in ((5, 8), (8, 5), (6, 7)) * 3]
    inputs = sample("qwen3-vl", rows).inputs
    inputs["pixel_values"] = torch.zeros_like(inputs["pixel_values"])  # nothing to see: only places tell cells apart
    model.model.visual.pos_embed.weight.data.copy_(_ramp(64, 32))
    known = linear_probe(model, inputs, layers=[0])
    assert (known.r2[0, 1:] > 0.8).all()
    assert (known.control_r2[0, 1:] < 0.2).all()
    model.model.visual.pos_embed.weight.data.zero_()
    for block in model.model.visual.blocks:
        block.attn.proj.weight.data.zero_()
    unknown = linear_probe(model, inputs, layers=[0])
    assert (unknown.r2[0, 1:] <= 0.05).all()


def _ramp(places: int, channels: int) -> Tensor:
    """(places, channels) of a square of places: the row in half of the channels, the column in the others."""
    side = math.isqrt(places)
    row, col = torch.arange(places) // side, torch.arange(places) % side
    half = torch.cat([row[:, None] * torch.randn(1, channels // 2), col[:, None] * torch.randn(1, channels // 2)], 1)
    return half / side


def test_one_seed_gives_one_probe() -> None:
    cells, picture = field(SIZES)
    states = torch.randn(len(picture), 5)
    one, again, other = (probe_states(states, cells, picture, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.control_error, again.control_error)
    assert not torch.equal(one.control_error, other.control_error)


# ------------------------------------------------------------------------------------------------------- bad arguments


def test_what_cannot_be_is_refused() -> None:
    model, made, _ = prepared("qwen2_vl")
    look, given = attention_inside, made.inputs
    refused = (TypeError, ValueError)
    with pytest.raises(ValueError, match="inputs have no picture and no clip; expected at least one"):
        look(model, batch("qwen2_vl", [[Text(5)]]).inputs)
    with pytest.raises(ValueError, match="inputs are empty; expected at least one batch"):
        look(model, [])
    with pytest.raises(refused, match="inputs"):
        look(model, 5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"layers is \[1\]; expected numbers from 0 to 0"):
        look(model, given, layers=[1])
    with pytest.raises(ValueError, match=r"layers is \[\]; expected numbers from 0 to 1, at least one"):
        linear_probe(model, given, layers=[])
    with pytest.raises(ValueError, match="token is 99; expected one of the 74 tokens of row 0"):
        look(model, given, token=99)
    with pytest.raises(ValueError, match="reach is -1; expected at least 0"):
        look(model, given, reach=(1, -1, 2))
    with pytest.raises(TypeError, match="model is a Linear"):
        look(torch.nn.Linear(2, 2), given)
    with pytest.raises(ValueError, match="no image_grid_thw came with them"):
        look(model, {**given, "image_grid_thw": given["image_grid_thw"][:0]})
    places = row_of(1, (1, 2, 3), 1)
    with pytest.raises(ValueError, match=r"weights of layer 0 have shape \(1, 1, 5, 5\); expected \(1, H, 8, 8\)"):
        measure_attention({0: torch.zeros(1, 1, 5, 5)}, places)
    with pytest.raises(ValueError, match="weights are empty"):
        measure_attention({}, places)
    cells, picture = field([(2, 3)])
    with pytest.raises(ValueError, match="the number of pictures is 1; expected at least 2"):
        probe_states(torch.randn(6, 2), cells, picture)
    with pytest.raises(ValueError, match="the number of pictures and clips is 1; expected at least 2"):
        linear_probe(model, batch("qwen2_vl", [[Text(1), Image((1, 4, 6)), Text(2)]]).inputs)
    settings: list[tuple[str, Any]] = [("held_out", 1), ("held_out", 0), ("penalty", 0), ("seed", -1)]
    for name, value in settings:
        with pytest.raises(ValueError, match=f"{name} is {value}; expected"):
            linear_probe(model, given, **{name: value})


def broken_batches(name: str) -> dict[str, tuple[dict[Any, Any], str]]:
    """What is wrong -> a batch of pictures of 2 x 3 and 3 x 2 tokens, and what must be said of it."""
    rows: list[list[Span]] = [[Text(2), Image((1, 4, 6)), Text(3)], [Text(1), Image((1, 6, 4)), Text(3)]]
    given: dict[str, Any] = sample(name, rows).inputs
    pixels, words = given["pixel_values"], given["input_ids"]
    spoilt = pixels.clone()
    spoilt[3, 4], spoilt[5, 6] = math.nan, math.inf
    return {
        "too few patches": ({"pixel_values": pixels[:-4]}, "inputs do not run through the Qwen"),
        "too many patches": ({"pixel_values": torch.cat([pixels, pixels[:4]])}, "inputs do not run through the Qwen"),
        "narrow patches": ({"pixel_values": pixels[:, 1:]}, "inputs do not run through the Qwen"),
        "NaN": ({"pixel_values": spoilt}, f"2 of {pixels.numel()} numbers of pixel_values are NaN or infinite"),
        "array": ({"pixel_values": pixels.numpy()}, "pixel_values is a ndarray; expected a tensor"),
        "lists": ({"input_ids": words.tolist()}, "input_ids is a list; expected a tensor"),
        "mask": ({"attention_mask": given["attention_mask"].tolist()}, "attention_mask is a list; expected a tensor"),
        "one row": ({"input_ids": words[0]}, r"input_ids have shape \(11,\); expected \(B, N\)"),
        "unknown word": ({"input_ids": words.where(words > 400, 777)}, "input_ids hold 777; expected 0 to 511"),
        "typing error": ({"pixle_values": pixels}, "inputs hold 'pixle_values', which a Qwen.* does not take"),
        "number": ({3: pixels}, "inputs hold 3, which a Qwen"),
    }


@pytest.mark.parametrize("look", [attention_inside, linear_probe])
@pytest.mark.parametrize("wrong", broken_batches("qwen2-vl"))
def test_a_batch_that_cannot_be_run_is_one_clear_error(wrong: str, look: Any) -> None:
    name = "qwen3-vl" if look is linear_probe else "qwen2-vl"
    given = sample(name, [[Text(2), Image((1, 4, 6)), Text(3)], [Text(1), Image((1, 6, 4)), Text(3)]]).inputs
    change, message = broken_batches(name)[wrong]
    with pytest.raises((TypeError, ValueError), match=message):
        look(tiny_model(name), {**given, **change})


PLACES = row_of(1, (2, 2, 3), 2)  # 15 tokens, the cells from 1 to 12


def even(heads: int = 2) -> Tensor:
    """Weights that look evenly at all tokens up to their own."""
    return (torch.ones(15, 15).tril() / torch.arange(1, 16)[:, None]).expand(1, heads, 15, 15).clone()


def changed(query: int, key: int, value: float) -> Tensor:
    weights = even()
    weights[0, 1, query, key] = value
    return weights


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({0: torch.randn(1, 2, 15, 15, generator=torch.Generator().manual_seed(0))}, "expected those behind a softmax"),
        ({0: 2 * even()}, "weights of layer 0 sum to 2 for token 0 of row 0 in head 0"),
        ({0: changed(4, 2, math.nan)}, "weights of layer 0 sum to nan for token 4 of row 0 in head 1"),
        ({0: changed(5, 3, -0.1)}, "for token 5 of row 0 in head 1, the least is -0.1; expected those behind"),
        ({0: even().long()}, "weights of layer 0 are of torch.int64; expected a tensor in float"),
        ({0: even(0)}, r"weights of layer 0 have shape \(1, 0, 15, 15\); expected \(1, H, 15, 15\)"),
        ({0: even()[0]}, r"weights of layer 0 have shape \(2, 15, 15\); expected \(1, H, 15, 15\)"),
        ({-1: even()}, "layer is -1; expected at least 0"),
        ({"a": even()}, "layer is 'a'; expected a whole number"),
        ({0: even().tolist()}, "weights of layer 0 are a list; expected a tensor in float"),
        ({0: None}, "weights of layer 0 are a NoneType"),
        ([even()], "weights are a list; expected number of a layer"),
        (None, "weights are a NoneType"),
    ],
    ids=lambda value: "" if isinstance(value, str) else None,
)
def test_weights_that_are_none_are_refused(weights: Any, message: str) -> None:
    unchecked = getattr(measure_attention, "__wrapped__", measure_attention)
    while hasattr(unchecked, "__wrapped__"):  # jaxtyping's and beartype's, which know other words
        unchecked = unchecked.__wrapped__
    with pytest.raises((TypeError, ValueError), match=message):
        unchecked(weights, PLACES)


def test_weights_may_be_short_leave_some_to_a_sink_and_have_nan_in_padding() -> None:
    whole = measure_attention({0: even()}, PLACES)
    sunk = measure_attention({0: even().bfloat16() / 2}, PLACES)
    torch.testing.assert_close(sunk.share.share, whole.share.share / 2, rtol=1e-2, atol=0)
    padded = Places(
        torch.nn.functional.pad(PLACES.picture, (1, 0), value=-1),
        torch.nn.functional.pad(PLACES.cells, (1, 0), value=-1),
        PLACES.grids,
        PLACES.rows,
        torch.nn.functional.pad(PLACES.tokens, (1, 0), value=-1),
        torch.nn.functional.pad(PLACES.behind, (1, 0), value=0),
    )
    weights = torch.nn.functional.pad(even(), (1, 0, 1, 0))
    weights[:, :, 0] = math.nan
    beside = measure_attention({0: weights}, padded)
    torch.testing.assert_close(beside.share.share, whole.share.share)
    assert torch.equal(beside.maps[0].weight, whole.maps[0].weight)


def test_a_reach_that_no_memory_holds_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"reach is \(10000, 10000, 10000\), 8,001,200,060,001 differences; expected at"
    ):
        measure_attention({0: even()}, PLACES, reach=(10_000, 10_000, 10_000))
    assert measure_attention({0: even()}, PLACES, reach=(0, 200, 300)).relative.weight.shape == (1, 2, 1, 401, 601)


def test_states_and_places_that_do_not_fit_are_refused() -> None:
    cells, picture = field(SIZES)
    states = torch.randn(len(picture), 3, generator=torch.Generator().manual_seed(0))
    with pytest.raises((TypeError, ValueError), match=r"expected \(3, 79\) and \(79,\)|cells"):
        probe_states(states[1:], cells, picture)
    states[5, 1] = math.nan
    with pytest.raises(ValueError, match="states hold NaN or infinite numbers; expected finite ones"):
        probe_states(states, cells, picture)


# ------------------------------------------------------------------------------------------------------------- figures


def test_attention_covers_its_cells_and_the_largest_is_framed() -> None:
    picture = torch.full((3, 60, 100), 40, dtype=torch.uint8)
    weight = torch.zeros(3, 5)
    weight[2, 1], weight[0, 4] = 0.4, 0.1
    drawn = np.asarray(draw_attention(picture, 20, weight))
    assert drawn.shape == (60, 100, 3)
    # three quarters of (255, 90, 0) and a quarter of 40; a quarter of that where weight is a quarter
    assert drawn[50, 30].tolist() == [201, 78, 10]
    assert drawn[10, 90].tolist() == [80, 49, 32]
    assert drawn[10, 30].tolist() == [40, 40, 40]
    assert drawn[39, 30].tolist() == [255, 196, 0]  # the frame above row 2, column 1
    assert (np.asarray(draw_attention(picture, 20, torch.zeros(3, 5)))[30, 50] == 40).all()
    with pytest.raises(ValueError, match="picture is 60 pixels high and 100 wide; expected 100 and 60, 5 rows and 3"):
        draw_attention(picture, 20, weight.T)


def test_a_figure_for_each_layer(tmp_path: Path) -> None:
    model = tiny_model("qwen2-vl")
    result = attention_inside(model, batch("qwen2_vl", prompt("qwen2_vl")).inputs)
    files = plot_attention(result, tmp_path / "new" / "folder")
    assert [file.name for file in files] == ["layer-00.png", "layer-01.png"]
    for file in files:
        with Pictures.open(file) as figure:
            assert figure.width > 2 * figure.height > 400
    shown = [
        (torch.zeros(3, each.weight.shape[3] * 8, each.weight.shape[4] * 8, dtype=torch.uint8), 8)
        for each in result.maps
    ]
    plot_attention(result, tmp_path, pictures=shown)
    assert (tmp_path / "layer-01.png").read_bytes() != files[1].read_bytes()
    with pytest.raises(ValueError, match="pictures has 1 entries; expected 2, one for each map"):
        plot_attention(result, tmp_path, pictures=shown[:1])


def test_a_page_without_words_behind_it_is_drawn(tmp_path: Path) -> None:
    model, made, _ = prepared("neomme") if hasattr(transformers, "NeoMMEForMaskedLM") else prepared("qwen2_vl")
    assert len(plot_attention(attention_inside(model, made.inputs), tmp_path)) > 0


# --------------------------------------------------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoint "model" and pictures 0.png to 3.png."""
    folder = tmp_path_factory.mktemp("saved")
    model, made = tiny("qwen2-vl")
    made.save_pretrained(folder / "model")
    model.save_pretrained(folder / "model")
    rng = np.random.default_rng(0)
    sizes = {"0": (150, 230), "1": (260, 140), "2": (200, 310), "3": (120, 170), "thin": (20, 600)}
    for name, (high, wide) in sizes.items():
        pixels = rng.integers(0, 256, (high, wide, 3), dtype=np.uint8)
        Pictures.fromarray(pixels).save(folder / f"{name}.png")
    return folder


def run(*words: object) -> Any:
    return CliRunner().invoke(mrope.cli.app, ("inside", *map(str, words)))


@this_version
def test_the_command_shows_each_layer_and_draws_it(saved: Path, tmp_path: Path) -> None:
    pictures = [saved / f"{number}.png" for number in range(4)]
    result = run(saved / "model", *pictures, "--ask", "WHERE?", "--max-tokens", 60, "--plot", tmp_path / "figures")
    assert result.exit_code == 0, result.output
    head, *lines, behind, wrote = result.stdout.splitlines()
    assert head.split()[:4] == ["layer", "last", "words", "even"]
    assert [line.split()[0] for line in lines] == ["(input)", "0", "1"]
    assert behind == "read off hidden states: fitted to 3 pictures, asked about 1 other"
    assert wrote == f"wrote 2 figures to {tmp_path / 'figures'}"
    assert sorted(each.name for each in (tmp_path / "figures").iterdir()) == ["layer-00.png", "layer-01.png"]


@this_version
def test_json_of_the_command_is_what_the_library_says(saved: Path) -> None:
    told = json.loads(run(saved / "model", saved / "0.png", "--layer", 1, "--json").stdout, parse_constant=pytest.fail)
    assert [each["layer"] for each in told["layers"]] == [1]
    (only,) = told["layers"]
    assert 0 < only["last"] < 1
    assert len(only["by_distance"]) == len(told["distance"])
    assert only["strongest"]["dh"] in range(-16, 1)
    assert "probe" not in told
    both = json.loads(run(saved / "model", saved / "0.png", saved / "1.png", "--json", "--layer", 0).stdout)
    assert both["probe"]["states"] == [0, 1]
    assert both["probe"]["r2"][0][0] is None  # the step of a picture


@this_version
def test_what_the_command_refuses_takes_one_line(saved: Path, tmp_path: Path) -> None:
    tiny_vlm().save_pretrained(tmp_path)
    for words, message in (
        (("nowhere", saved / "0.png"), "nowhere is not a folder"),
        ((saved / "model", saved / "9.png"), "9.png"),
        ((saved / "model", saved / "0.png", "--layer", 7), r"layers is \[7\]; expected numbers from 0 to 1"),
        ((saved / "model", saved / "0.png", "--max-tokens", 0), "max_tokens is 0; expected at least 1"),
        (
            (saved / "model", saved / "thin.png", "--max-tokens", 2),
            "thin.png: max_tokens is 2, but qwen2-vl makes 7 tokens of it; give a larger --max-tokens",
        ),
        ((tmp_path, saved / "0.png"), "is a built model, which has no processor"),
    ):
        result = run(*words)
        assert (result.exit_code, result.stdout) == (2, ""), result.output
        assert re.search(message, result.stderr.splitlines()[-1])


@this_version
def test_a_picture_keeps_the_limit_in_tokens(saved: Path) -> None:
    told = json.loads(run(saved / "model", saved / "0.png", "--layer", 0, "--max-tokens", 1, "--json").stdout)
    assert told["layers"][0]["strongest"] == {"dt": 0, "dh": 0, "dw": 0, "weight": pytest.approx(0.1, abs=0.1)}
    table = run(saved / "model", saved / "0.png", "--layer", 0, "--max-tokens", 1, "--ask", "A").stdout
    assert table.splitlines()[1].split()[7] == "-", "a lone cell has no neighbour"


@this_version
def test_an_axis_that_does_not_vary_leaves_the_others_their_control(saved: Path) -> None:
    pictures = [saved / "0.png", saved / "1.png"]
    result = run(saved / "model", *pictures, "--max-tokens", 5, "--ask", "WHERE?")
    assert "nan" not in result.stdout
    for line in result.stdout.splitlines()[1:4]:  # rows of the held picture are one, its columns are not
        row, column, _, _, shuffled = line.split()[-5:]
        assert row == "-"
        assert float(column) == float(shuffled)  # the mean of a picture whose columns all others do not have
    assert "fitted to 1 picture, asked about 1 other" in result.stdout


def test_results_are_frozen() -> None:
    cells, picture = field(SIZES)
    probe = probe_states(torch.randn(len(picture), 2), cells, picture)
    assert isinstance(probe, LinearProbe)
    with pytest.raises(AttributeError):
        probe.layers = (1,)  # pyright: ignore[reportAttributeAccessIssue]


def test_states_that_differ_by_rounding_alone_say_nothing() -> None:
    rng = torch.Generator().manual_seed(0)
    picture = torch.arange(4).repeat_interleave(12)
    row, column = torch.arange(12).repeat(4) // 4, torch.arange(12).repeat(4) % 4
    states = torch.full((48, 6), 0.7) + 1e-8 * torch.randn(48, 6, generator=rng)
    probe = probe_states(states, torch.stack([row * 0, row, column]), picture)
    assert (probe.r2[0, 1:] <= 0.01).all()
    assert (probe.error[0] <= 2).all()
