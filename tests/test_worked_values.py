"""Values that users, maintainers and papers worked out, each named after what goes wrong without it.

Those of single clips and stills are in test_positions, of splits in test_axes, of sizes and boxes in test_plan, and of
research layouts beside their other tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from every_family import IMG, VID, config_of

import mrope
from mrope import Frequencies, GridLayout, Image, Layout, Span, Text, Video
from mrope.hf import batch_positions, read_spans, take_rows
from mrope.layouts import OmniLayout, RasterLayout

QWEN2, QWEN25 = mrope.family("qwen2-vl"), mrope.family("qwen2.5-vl")
SQUARE = "image:1x32x32"  # 448 x 448 pixels, 256 tokens of 16 rows and 16 columns
STAMPED = [
    name
    for name in mrope.family_names()
    if isinstance(layout := mrope.family(name).layout, GridLayout) and layout.time == "stamps"
]

# ------------------------------------------------------------------------------------------------ published positions


def cells(times: Sequence[float], rows: Sequence[int], cols: Sequence[int]) -> list[tuple[float, ...]]:
    """All tokens of a block whose axes do not depend on one another."""
    return [(t, h, w) for t in times for h in rows for w in cols]


def line(*ids: float, axes: int = 3) -> list[tuple[float, ...]]:
    """Tokens with one value on all axes."""
    return [(n,) * axes for n in ids]


@pytest.mark.evidence("worked")
@pytest.mark.parametrize(
    ("layout", "span", "tokens", "following"),
    [
        pytest.param(RasterLayout(), Image((1, 4, 6)), line(*range(3, 9)), 9, id="vanilla"),
        pytest.param(GridLayout(), Image((1, 4, 6)), cells([3], [3, 4], [3, 4, 5]), 6, id="M-RoPE, picture"),
        pytest.param(GridLayout(), Video((2, 4, 4)), cells([3, 4], [3, 4], [3, 4]), 5, id="M-RoPE, clip"),
        pytest.param(
            OmniLayout(ids_per_second=25),
            Video((2, 4, 4), seconds=1.0),
            cells([3, 28], [3, 4], [3, 4]),
            29,
            id="TMRoPE, clip",
        ),
    ],
)
def test_published_positions(layout: Layout, span: Span, tokens: list[tuple[float, ...]], following: int) -> None:
    positions = layout([Text(3), span, Text(1)])
    assert [tuple(token) for token in positions.ids.T.tolist()[3:]] == [*tokens, (following,) * 3]


@pytest.mark.evidence("worked")
@pytest.mark.parametrize(
    ("name", "span", "tokens", "following"),
    [
        ("ernie4.5-vl", "video:4x4x4", cells([3, 4], [3, 4], [3, 4]), 5),  # two steps a token
        ("glm-image", "image:1x2x3", cells([3], [3, 4], [3, 4, 5]), 6),
        # a column of newlines; frame after frame
        ("hy-v4-vl", "video:2x2x4", [*cells([3], [3], [3, 4, 5]), *cells([6], [6], [6, 7, 8])], 9),
        # start; column, row and picture of two cells and a newline, beside the token index; end
        (
            "hunyuan-vl",
            "image:1x2x4",
            [*line(3, axes=4), (4, 0, 0, 0), (5, 1, 0, 0), (6, 2, 0, 0), *line(7, axes=4)],
            8,
        ),
        # the thumbnail of two cells is stretched over the canvas of four; then two slices of two cells
        (
            "minicpm-v4.7",
            "sliced:1x4x8/1x2x1x4x8",
            [
                *((3, 2, 2), (3, 3, 3), (3, 3, 6), (3, 4, 7)),
                *((3, 3, 3), (3, 3, 3), (3, 3, 4), (3, 3, 4)),
                *((3, 3, 5), (3, 3, 5), (3, 3, 6), (3, 3, 6)),
            ],
            8,
        ),
        # the chunk of two steps, then that of three tokens of sound, behind which the end tokens stand
        ("qwen2.5-omni", "video:2x2x2@1&3", [*line(3, 3), (4, 4, 4), (29, 4, 4), *line(4, 5, 6, 7, 7)], 8),
        # by time: the second step, 0.5 seconds later, comes last
        ("qwen3-omni", "video:2x2x2@.5&3", [*line(3, 4, 5, 5, 6, 7), (11.5, 5, 5), *line(12.5, 13.5)], 14.5),
    ],
)
def test_positions_by_hand(name: str, span: str, tokens: list[tuple[float, ...]], following: float) -> None:
    positions = mrope.family(name).positions(["text:3", span, "text:1"])
    wanted = [*line(0, 1, 2, axes=len(tokens[0])), *tokens, *line(following, axes=len(tokens[0]))]
    assert [tuple(token) for token in positions.ids.T.tolist()] == wanted
    assert positions.next == following + 1


@pytest.mark.evidence("worked", "neomme")
def test_a_page_by_hand() -> None:
    page = mrope.family("neomme").positions(["image:1x2x2"])
    # a word for the document, one for its picture; two rows of two cells, each with a word for its end
    assert page.ids.T.tolist() == [[0, 0], [1, 1], [2, 2], [2, 3], [2, 4], [3, 2], [3, 3], [3, 4]]
    assert page.next == 5


def test_the_period_that_distractors_of_v_niah_d_are_spaced_by() -> None:
    axis = QWEN2.split.axis.tolist()
    period = 2 * math.pi / float(Frequencies(1e6).inv_freq(128)[axis.index(1)])  # of the first pair that reads rows
    assert period == pytest.approx(198.7, abs=0.05)


# ---------------------------------------------------------------------------------------------------------------- clips


@pytest.mark.evidence("worked", "qwen2.5-vl")
@pytest.mark.parametrize(("fps", "times"), [(4, [0, 1, 2, 3]), (1.5, [0, 2, 5, 8]), (1, [0, 4, 8, 12])])
def test_steps_of_a_fast_clip_do_not_collapse_into_one_time(fps: float, times: list[int]) -> None:
    assert QWEN25.positions([Video((4, 2, 2), seconds=2 / fps)]).ids[0].tolist() == times


@pytest.mark.evidence("worked")
@pytest.mark.parametrize("name", STAMPED)
def test_the_iterator_of_grids_is_not_exhausted_by_a_clip_of_many_frames(name: str) -> None:
    # One grid of 20 steps: 20 spans of 9 x 16 tokens, 8 words of time stamp before each.
    positions = mrope.family(name).positions(["video:20x18x32+8", "text:1"])
    assert positions.length == 20 * (8 + 144) + 1
    assert positions.ids[:, 8].tolist() == [8, 8, 8]
    assert positions.ids[:, 8 + 143].tolist() == [8, 16, 23]
    assert positions.ids[:, -1].tolist() == [20 * (8 + 16)] * 3


@pytest.mark.evidence("worked", "qwen3-vl")
def test_a_clip_with_one_grid_is_read_as_one_span_for_each_frame() -> None:
    words = ([7] * 8 + [VID] * 144) * 20
    inputs = {"input_ids": torch.tensor([words]), "video_grid_thw": torch.tensor([[20, 18, 32]])}
    assert read_spans(inputs, config_of("qwen3_vl")) == [[Text(8), Video((1, 18, 32), stamp=0)] * 20]


# ------------------------------------------------------------------------------------------------- packs and padding


@pytest.mark.evidence("worked", "qwen2-vl")
def test_documents_of_a_packed_row_restart_at_0() -> None:
    packed = mrope.pack([QWEN2.positions(["text:2"]), QWEN2.positions(["text:3"])]).pad(6, "right")
    assert (packed.segments + 1).tolist() == [1, 1, 2, 2, 2, 0]
    assert packed.ids.tolist() == [[0, 1, 0, 1, 2, 0]] * 3
    assert packed.text.tolist() == [0, 1, 0, 1, 2, 0]
    numbered = {"input_ids": torch.full((1, 6), 7), "attention_mask": torch.tensor([[1, 1, 2, 2, 2, 0]])}
    with pytest.raises(ValueError, match="attention_mask holds other values than 0 and 1"):
        read_spans(numbered, config_of("qwen2_vl"))  # and not as one document


@pytest.mark.evidence("worked", "qwen2-vl")
def test_boundaries_of_varlen_attention_never_come_from_ids() -> None:
    row = QWEN2.positions(["text:16", "image:1x24x40"])
    assert row.ids.shape == (3, 256)
    assert (row.ids.diff() < 0).any()  # rows and columns go back inside the picture, and are no new document
    assert row.cu_seqlens.tolist() == [0, 256]
    assert row.cu_seqlens.dtype == torch.int32


@pytest.mark.evidence("worked", "qwen2-vl")
def test_text_behind_a_picture_of_a_packed_row_goes_on_by_its_side() -> None:
    packed = mrope.pack([QWEN2.positions(["text:5"]), QWEN2.positions(["text:3", SQUARE, "text:1"])])
    assert packed.ids[:, -1].tolist() == [3 + 16] * 3  # not 3 + 256


@pytest.mark.evidence("worked", "qwen2-vl")
def test_padding_to_a_multiple_of_8_moves_all_that_has_slots() -> None:
    row = QWEN2.positions(["text:210", "image:1x64x64"])
    assert row.length == 1234
    padded, batch = row.pad(multiple=8), mrope.batch([row], multiple=8)
    assert padded.ids.shape == (3, 1240)
    assert (padded.text.shape, padded.segments.shape) == ((1240,), (1240,))
    assert batch.ids.shape == (3, 1, 1240)
    assert (batch.mask.shape, batch.with_text.shape) == ((1, 1240), (4, 1, 1240))


@pytest.mark.evidence("worked", "qwen2-vl")
def test_prompts_of_unequal_length_are_padded_on_the_left_and_padding_is_not_counted() -> None:
    batch = mrope.batch([QWEN2.positions([f"text:{length}"]) for length in (3, 7, 1, 5, 2, 4)])
    for row, length in enumerate((3, 7, 1, 5, 2, 4)):
        assert batch.mask[row].tolist() == [False] * (7 - length) + [True] * length
        assert batch.ids[:, row, 7 - length :].tolist() == [list(range(length))] * 3
        assert batch.decode(1).ids[:, row].tolist() == [[length]] * 3


@pytest.mark.evidence("worked", "qwen2-vl")
def test_responses_of_unequal_length_are_padded_as_their_tokens_are() -> None:
    prompts = [QWEN2.positions(["text:4", SQUARE]), QWEN2.positions(["text:6"])]
    responses = mrope.batch([row.decode(length) for row, length in zip(prompts, (3, 5), strict=True)], "right")
    assert responses.ids.tolist() == [[[20, 21, 22, 0, 0], [6, 7, 8, 9, 10]]] * 3


# ----------------------------------------------------------------------------------------------- devices share a batch


@pytest.mark.evidence("worked", "qwen2-vl")
def test_a_rank_holds_the_front_and_the_back_of_each_packed_document() -> None:
    packed = mrope.pack([QWEN2.positions(["text:4"])] * 2)
    assert packed.cu_seqlens.tolist() == [0, 4, 8]
    assert mrope.shard_index(packed.segments, 2)[0].tolist() == [0, 3, 4, 7]
    assert packed.shard(0, 2).ids.tolist() == [[0, 3, 0, 3]] * 3


@pytest.mark.evidence("worked", "qwen2-vl")
def test_context_parallelism_cuts_tokens_and_pipelines_cut_rows_and_neither_cuts_axes() -> None:
    rows = [QWEN2.positions(["text:1024", "image:1x64x64"])] * 2
    assert rows[0].shard(1, 2).ids.shape == (3, 1024)
    pieces = mrope.batch(rows).micro_batches(1)
    assert [piece.ids.shape for piece in pieces] == [(3, 1, 2048)] * 2


def pixels(*grids: tuple[int, int, int]) -> dict[str, Any]:
    """A batch of one picture a row, its patches numbered through the batch."""
    counts = [t * h * w // 4 for t, h, w in grids]
    rows = [torch.tensor([7, 7, *[IMG] * count, 7]) for count in counts]
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_side="left")
    patches = torch.arange(4 * sum(counts))[:, None].expand(-1, 1536)
    return {
        "input_ids": tokens,
        "attention_mask": (tokens != 0).long(),
        "image_grid_thw": torch.tensor(grids),
        "pixel_values": patches,
    }


@pytest.mark.evidence("worked", "qwen3-vl")
@pytest.mark.parametrize(
    ("rows", "patches"),
    [
        pytest.param([1], [*range(320, 560)], id="one sample of two"),
        pytest.param([0, 0, 1, 1], [*range(320)] * 2 + [*range(320, 560)] * 2, id="beams"),
        pytest.param([1, 0], [*range(320, 560), *range(320)], id="another order"),
    ],
)
def test_rows_are_taken_with_all_their_patches(rows: list[int], patches: list[int]) -> None:
    inputs = pixels((1, 16, 20), (1, 12, 20))
    assert inputs["pixel_values"].shape == (560, 1536)
    taken = take_rows(inputs, rows, config_of("qwen3_vl"))
    assert taken["pixel_values"][:, 0].tolist() == patches
    assert taken["input_ids"].tolist() == [inputs["input_ids"][row].tolist() for row in rows]
    spans = read_spans(taken, config_of("qwen3_vl"))
    assert spans == [[Text(2), Image(((1, 16, 20), (1, 12, 20))[row]), Text(1)] for row in rows]


# ------------------------------------------------------------------------------------------------- prefill and decode


@pytest.mark.evidence("worked", "qwen2-vl")
def test_both_edges_of_a_chunk_are_cut() -> None:
    chunks = QWEN2.positions(["text:4", "image:1x8x16", "text:4"]).chunks(32)
    assert [chunk.ids.shape for chunk in chunks] == [(3, 32), (3, 8)]


@pytest.mark.evidence("worked", "qwen2-vl")
@pytest.mark.parametrize("size", [1, 512, 2047, 2048, 2164])
def test_later_chunks_of_a_long_prompt_have_positions_of_their_own(size: int) -> None:
    spans = [*["text:5", "image:1x24x32"] * 10, "image:1x24x32", "text:3"]  # 11 pictures of 448 x 336 pixels
    whole = QWEN2.positions(spans)
    assert whole.length == 2165
    chunks = whole.chunks(size)
    assert torch.equal(torch.cat([chunk.ids for chunk in chunks], dim=1), whole.ids)
    assert {chunk.offset for chunk in chunks} == {10 * (5 + 16) + 16 + 3 - 2165}


@pytest.mark.evidence("worked", "qwen2-vl")
def test_a_prompt_goes_on_from_a_cached_prefix_with_a_picture() -> None:
    prefix = QWEN2.positions(["text:4", SQUARE])
    for tail in (["text:3"], ["image:1x16x16", "text:3"]):
        whole = QWEN2.positions(["text:4", SQUARE, *tail])
        rest = QWEN2.positions(tail, prefix)
        assert torch.equal(rest.ids, whole.ids[:, 260:])
        assert rest.text[0] == 260
        assert rest.ends == whole.ends


@pytest.mark.evidence("worked", "qwen2-vl")
def test_a_decode_step_needs_no_ids_of_the_prompt() -> None:
    prompt = QWEN2.positions(["text:600", "image:1x62x66"])
    assert prompt.length == 1623
    step = prompt.decode(1)
    assert (step.ids.shape, step.text.tolist()) == ((3, 1), [1623])
    assert step.mask(prompt).shape == (1, 1623)


@pytest.mark.evidence("worked", "qwen2.5-vl")
def test_drafts_of_speculative_decoding_have_slots_of_tokens_and_positions_of_the_picture() -> None:
    pictured, text = QWEN25.positions(["text:15", SQUARE]), QWEN25.positions(["text:9"])
    for accepted in (0, 2, 5):  # three steps of four drafts, of which two and three are kept
        drafts = pictured.decode(4, accepted)
        assert drafts.ids.tolist() == [list(range(31 + accepted, 35 + accepted))] * 3
        assert drafts.text.tolist() == list(range(271 + accepted, 275 + accepted))
    mixed = mrope.batch([pictured, text]).decode(4, [2, 0])
    assert mixed.ids[1].tolist() == [[33, 34, 35, 36], [9, 10, 11, 12]]


@pytest.mark.evidence("worked", "qwen2-vl")
def test_a_mask_is_made_of_slots_and_not_of_positions() -> None:
    row = QWEN2.positions(["text:5", "image:1x4x6", "text:1"])
    assert row.ids[:, -1].tolist() == [5 + 3] * 3
    assert torch.equal(row.mask(), torch.ones(12, 12).tril().bool())
    assert not torch.equal(row.ids[0][:, None] >= row.ids[0], row.mask())  # the tokens of a picture share their time


@pytest.mark.evidence("worked", "qwen2-vl")
def test_tokens_that_survive_pruning_keep_their_coordinates_and_text_its_own() -> None:
    row = QWEN2.positions(["text:3", "video:4x4x4", "text:2"])
    keep = torch.ones(21, dtype=torch.bool)
    keep[3:19] = torch.arange(16) % 4 == 1  # a quarter of each frame
    pruned = row.prune(keep)
    assert pruned.ids[:, 3:7].T.tolist() == [[3, 3, 4], [4, 3, 4], [5, 3, 4], [6, 3, 4]]
    assert pruned.ids[:, -2:].tolist() == row.ids[:, -2:].tolist() == [[7, 8]] * 3
    assert (pruned.text.tolist(), pruned.next, pruned.end.slot) == (list(range(9)), 9, 9)


# ----------------------------------------------------------------------------------------------------- placeholders


def read(model_type: str, *rows: list[int], **tables: Any) -> list[list[Span]]:
    """The spans of rows of words, padded on the left with 0."""
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_side="left")
    return read_spans({"input_ids": tokens, "attention_mask": tokens != 0, **tables}, config_of(model_type))


@pytest.mark.evidence("worked", "qwen2-vl")
def test_pictures_without_a_token_between_them_are_two() -> None:
    (row,) = read("qwen2_vl", [7, *[IMG] * 512, 7], image_grid_thw=[(1, 32, 32), (1, 32, 32)])
    assert row == [Text(1), Image((1, 32, 32)), Image((1, 32, 32)), Text(1)]
    ids = batch_positions([row], torch.ones(1, 514, dtype=torch.bool), layout=GridLayout())
    assert ids[:, 0, 257].tolist() == [17, 17, 17]
    assert ids[:, 0, -1].tolist() == [33, 33, 33]


@pytest.mark.evidence("worked", "qwen2-vl")
@pytest.mark.parametrize(
    ("words", "grid", "run"),
    [
        pytest.param([*[7] * 20, *[IMG] * 256, *[7] * 9, IMG, 7], (1, 32, 32), 1, id="typed before the picture"),
        pytest.param([7, *[IMG] * 2641], (1, 96, 110), 2641, id="one more than features"),
        pytest.param([7, *[IMG] * 2640, 7, 7, IMG], (1, 96, 110), 1, id="generated in an earlier turn"),
    ],
)
def test_a_placeholder_that_a_user_or_a_model_wrote_is_refused(words: list[int], grid: Any, run: int) -> None:
    with pytest.raises(ValueError, match=f"row 1 has {run} image tokens in a run, 1 of them beyond what came"):
        read("qwen2_vl", [7, 7], words, image_grid_thw=[grid])


@pytest.mark.evidence("worked", "qwen2-vl")
def test_a_picture_that_a_maximal_length_cuts_is_named_with_its_row() -> None:
    words = [*[7] * 4, *[IMG] * 1290, 7][:1024]
    with pytest.raises(
        ValueError,
        match="row 1 has room for 1020 image tokens where the next image grid 1x60x86 takes 1290: the prompt was trunc",
    ):
        read("qwen2_vl", [7, 7], words, image_grid_thw=[(1, 60, 86)])


@pytest.mark.evidence("worked", "qwen2-vl")
def test_pixels_without_a_placeholder_are_refused() -> None:
    with pytest.raises(ValueError, match="image_grid_thw has 1 more than the prompts have image placeholders for"):
        read("qwen2_vl", [7, 7], image_grid_thw=[(1, 32, 32)])


# --------------------------------------------------------------------------------------------- allocation and angles


@pytest.mark.evidence("worked", "hunyuan-vl")
def test_there_are_as_many_axes_as_the_section_has_entries() -> None:
    family = mrope.family("hunyuan-vl")
    assert family.split.counts == (16, 16, 16, 16)
    positions = family.positions(["text:2", "image:1x2x4", "text:1"])
    assert positions.ids.shape == (4, 2 + 5 + 1)  # a start token, two cells, a newline and an end token
    assert mrope.batch([positions] * 2).with_text.shape == (5, 2, 8)
    assert family.rotary().cos_sin(positions)[0].shape == (8, 64)


@pytest.mark.evidence("worked", "qwen3.5")
def test_only_the_rotating_share_of_a_head_rotates() -> None:
    family = mrope.family("qwen3.5")
    assert (family.head_dim, family.partial_rotary, family.split.counts) == (256, 0.25, (11, 11, 10))
    ids = family.positions(["text:1", "image:1x4x4"]).ids[:, None]
    heads = torch.randn(1, 1, ids.shape[-1], 256)
    rotated, _ = family.rotary()(heads, heads, ids)
    changed = (rotated != heads).any(dim=2)[0, 0]
    assert changed.tolist() == [True] * 64 + [False] * 192


@pytest.mark.parametrize("first", [15_936, 65_536])
def test_positions_stay_apart_where_half_precision_folds_them(first: int) -> None:
    ids = torch.arange(first, first + 64).expand(3, -1)
    assert len(ids.bfloat16()[0].unique()) <= 2
    with torch.autocast("cpu", torch.bfloat16):
        cos, sin = QWEN2.rotary().cos_sin(ids)
    assert cos.dtype == torch.float32
    assert len(torch.stack((cos[:, 0], sin[:, 0])).unique(dim=1).T) == 64
