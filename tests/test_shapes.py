"""Shapes of positions worked out by hand: cuts, packs, shards, devices, graphs and truncation."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from sources import ROOT
from torch.utils._python_dispatch import TorchDispatchMode

import mrope
from mrope import Audio, GridLayout, Image, Span, Target, Text, Video, truncate
from mrope.hf import batch_positions, batch_spans
from mrope.layouts import AnchoredLayout, CircleLayout, RingLayout, V2peLayout
from mrope.tracing import decode_ids, run_ids, runs_of

QWEN = mrope.family("qwen2-vl")


class Calls(TorchDispatchMode):
    """Counts the operators that run inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket._qualified_op_name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))

    def count(self, *names: str) -> int:
        return sum(self.names.count(name) for name in names)


# ---------------------------------------------------------------------------------------------------------- masks


def test_the_mask_of_a_packed_row_is_causal_inside_each_document() -> None:
    packed = mrope.pack([QWEN.positions(["text:2"]), QWEN.positions(["image:1x2x4"])]).pad(5, "right")
    assert packed.mask().int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 0, 0, 1],
    ]


def test_the_mask_of_a_decoded_token_sees_the_whole_row() -> None:
    row = QWEN.positions(["text:1", "image:1x2x4"]).pad(5, "left")
    assert row.decode(1).mask(row).int().tolist() == [[0, 0, 1, 1, 1]]


def test_rings_look_outwards_and_never_into_another_picture() -> None:
    row = RingLayout(merge=1)([Text(1), Image((1, 1, 3)), Image((1, 3, 1))])
    assert row.mask().int().tolist()[1] == [1, 1, 1, 1, 0, 0, 0]


# ------------------------------------------------------------------------------------------------ packs and shards


def test_packing_twice_is_packing_at_once() -> None:
    rows = [QWEN.positions([f"text:{n}"]) for n in (2, 3, 1)]
    twice = mrope.pack([mrope.pack(rows[:2]), rows[2]])
    assert twice.segments.tolist() == [0, 0, 1, 1, 1, 2]
    assert [row.length for row in twice.unpack()] == [2, 3, 1]


def test_shards_of_padded_documents() -> None:
    rows = [QWEN.positions([f"text:{n}"]).pad(multiple=4, side="right") for n in (5, 1)]
    packed = mrope.pack(rows)
    index = mrope.shard_index(packed.segments, 2)
    assert index.tolist() == [[0, 1, 6, 7, 8, 11], [2, 3, 4, 5, 9, 10]]
    labels = torch.arange(12)
    assert torch.equal(mrope.unshard([labels[slots] for slots in index], index), labels)


def test_shards_that_do_not_divide_are_refused() -> None:
    packed = mrope.pack([QWEN.positions(["text:4"]), QWEN.positions(["text:3"])])
    with pytest.raises(ValueError, match="document 1 has 3 slots with its padding, which 4 zigzag pieces for 2 ranks"):
        packed.shard(0, 2)
    with pytest.raises(ValueError, match="rank is 2; expected 0 to 1"):
        packed.shard(2, 2)
    index = mrope.shard_index(torch.zeros(8, dtype=torch.int64), 2)
    with pytest.raises(ValueError, match=r"shards have \[3, 4\] slots; expected 2 shards of 4"):
        mrope.unshard([torch.zeros(3), torch.zeros(4)], index)


def test_a_packed_row_does_not_decode_in_place() -> None:
    packed = mrope.pack([QWEN.positions(["text:2"]), QWEN.positions(["text:3"])])
    with pytest.raises(ValueError, match="packed from 2 documents that go on one by one: unpack it first"):
        packed.decode(1)
    assert mrope.batch([packed]).offsets is None
    assert [row.next for row in packed.unpack()] == [2, 3]


def test_rows_that_cannot_stand_together_are_refused() -> None:
    with pytest.raises(ValueError, match="pack got no rows"):
        mrope.pack([])
    hunyuan = mrope.family("hunyuan-vl").positions(["text:2"])
    with pytest.raises(ValueError, match="pack got rows of 3 and 4 axes"):
        mrope.pack([QWEN.positions(["text:2"]), hunyuan])
    omni = mrope.family("qwen3-omni").positions(["text:2"])
    with pytest.raises(ValueError, match="batch got rows of different layouts"):
        mrope.batch([QWEN.positions(["text:2"]), omni])
    planned = mrope.family("glm-image").positions(["text:2", "target:1x2x2"])
    with pytest.raises(ValueError, match="a row with planned tokens"):
        mrope.pack([planned, planned])


def test_cuts_and_pads_that_make_no_sense_are_refused() -> None:
    row = QWEN.positions(["text:4"])
    with pytest.raises(ValueError, match=r"chunk 2\.\.5 does not lie inside the 4 slots"):
        row.chunk(2, 5)
    with pytest.raises(ValueError, match="expected one of them"):
        row.pad(8, multiple=4)
    with pytest.raises(ValueError, match=r"keep has shape \(3,\); expected \(4,\)"):
        row.prune(torch.ones(3).bool())
    with pytest.raises(ValueError, match="members must be of one document"):
        row.merge(torch.tensor([[1, 0]]))
    with pytest.raises(ValueError, match="skip has 2 entries for 1 rows"):
        mrope.batch([row]).decode(1, [0, 0])


# ------------------------------------------------------------------------------------------------------- decoding


def test_generated_pictures_come_before_text() -> None:
    row = mrope.family("glm-image").positions(["text:2", "target:1x2x3", "target:1x1x2"])
    decoded = row.decode(10)
    assert decoded.ids.tolist() == [
        [2, 2, 2, 2, 2, 2, 5, 5, 7, 8],
        [2, 2, 2, 3, 3, 3, 5, 5, 7, 8],
        [2, 3, 4, 2, 3, 4, 5, 6, 7, 8],
    ]
    assert decoded.text.tolist() == list(range(2, 12))
    again = row.decode(4).decode(6)  # step by step is at once
    assert torch.equal(again.ids, decoded.ids[:, 4:])
    assert torch.equal(row.decode(3, skip=5).ids, decoded.ids[:, 5:8])
    batch = mrope.batch([row, mrope.family("glm-image").positions(["text:4"])])
    assert batch.decode(2, [5, 0]).ids[:, 0].T.tolist() == [[2, 3, 4], [5, 5, 5]]


def test_an_earlier_turn_may_end_in_a_picture_and_a_new_one_begin_with_one() -> None:
    first = QWEN.positions(["text:3", "image:1x4x8"])
    second = QWEN.positions(["image:1x8x4", "text:2"], first)
    whole = QWEN.positions(["text:3", "image:1x4x8", "image:1x8x4", "text:2"])
    assert torch.equal(torch.cat((first.ids, second.ids), dim=1), whole.ids)
    assert second.text.tolist() == list(range(11, 21))
    assert second.ends == whole.ends


# ----------------------------------------------------------------------------------------------- devices and graphs


def test_a_row_and_a_batch_go_to_a_device_in_one_copy() -> None:
    rows = [QWEN.positions([span for _ in range(n) for span in ("text:2", "image:1x4x8")]) for n in (1, 50)]
    for moving in (rows[1], mrope.batch(rows)):
        with Calls() as calls:
            moved = moving.to("meta")
        assert calls.count("_to_copy", "copy_") == 1
        assert calls.count("_local_scalar_dense") == 0
        assert moved.ids.device.type == "meta"
        assert moved.ids.shape == moving.ids.shape


@pytest.mark.parametrize("pictures", [1, 100])
def test_a_batch_is_read_once_whatever_it_holds(pictures: int) -> None:
    kinds = torch.tensor([[0, *[1] * 8] * pictures])
    grids = torch.tensor([[1, 4, 8]] * pictures)
    with Calls() as calls:
        spans = batch_spans(kinds, kinds >= 0, layout=GridLayout(), image_grid_thw=grids)
        batch_positions(spans, kinds >= 0, layout=GridLayout())
    assert calls.count("_local_scalar_dense") == 0
    assert len(calls.names) < 16  # whatever the number of pictures


SPANS: dict[str, tuple[GridLayout, list[Span]]] = {
    "index": (GridLayout(), [Text(3), Video((5, 4, 8)), Image((1, 6, 4)), Text(2)]),
    "seconds": (
        GridLayout(time="seconds", ids_per_second=2),
        [Video((3, 4, 8), seconds=1.5), Text(2), Image((1, 2, 4))],
    ),
    "stamps": (
        GridLayout(time="stamps"),
        [Text(1), Video((3, 4, 6), stamp=2), Video((2, 2, 2), stamp=(0, 3)), Text(1)],
    ),
    "side": (GridLayout(advance="side"), [Video((9, 4, 8)), Text(2)]),
    "temporal merge": (GridLayout(temporal_merge=2), [Text(1), Video((6, 4, 8)), Text(2)]),
    "text": (GridLayout(), [Text(3), Text(4)]),
    "nothing": (GridLayout(), []),
}


@pytest.mark.parametrize(("layout", "spans"), SPANS.values(), ids=SPANS)
def test_ids_of_a_graph_are_the_hosts(layout: GridLayout, spans: list[Span]) -> None:
    wanted = layout(spans, 7)
    runs = runs_of(spans, layout, 7).to("cpu")
    assert torch.equal(run_ids(runs.begins, runs.origins, runs.columns, wanted.length), wanted.ids)


def test_random_prompts_give_the_same_in_a_graph() -> None:
    rng = Random(0)
    for _ in range(300):
        spans: list[Span] = []
        for _ in range(rng.randint(0, 5)):
            grid = (rng.randint(1, 5), 2 * rng.randint(1, 5), 2 * rng.randint(1, 5))
            spans.append(rng.choice((Text(rng.randint(1, 6)), Image((1, *grid[1:])), Video(grid))))
        wanted, runs = GridLayout()(spans), runs_of(spans, GridLayout())
        assert torch.equal(run_ids(runs.begins, runs.origins, runs.columns, wanted.length), wanted.ids)


def test_compiled_without_a_break_and_exported() -> None:
    # In a process of its own, as run-time checks of shapes cannot be traced.
    script = ROOT / "tests" / "graphs.py"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stdout) == (0, "compiled\nexported\n"), done.stderr


def test_only_a_grid_layout_has_runs() -> None:
    with pytest.raises(TypeError, match="layout is a RingLayout"):
        runs_of([], RingLayout())


# ----------------------------------------------------------------------------------------------------- truncation

PROMPT: list[Span] = [Text(4), Image((1, 4, 8)), Text(5), Video((2, 4, 4)), Text(3)]  # 4 + 8 + 5 + 8 + 3 tokens


def test_text_is_cut_anywhere() -> None:
    cut = truncate(PROMPT, 27, GridLayout())
    assert (cut.spans, cut.dropped, cut.tokens) == ((*PROMPT[:4], Text(2)), (), 27)
    assert truncate(PROMPT, 28, GridLayout()).spans == tuple(PROMPT)


def test_a_picture_is_never_cut() -> None:
    for most in (3, 4, 11, 16, 20, 24):
        with pytest.raises(ValueError, match=rf"a limit of {most} tokens cuts off (image grid 1x4x8|video grid 2x4x4)"):
            truncate(PROMPT, most, GridLayout())


@pytest.mark.parametrize(
    ("most", "side", "spans", "dropped"),
    [
        (20, "right", PROMPT[:3], [PROMPT[3]]),
        (11, "right", PROMPT[:1], [PROMPT[1], PROMPT[3]]),
        (2, "right", [Text(2)], [PROMPT[1], PROMPT[3]]),
        (0, "right", [], [PROMPT[1], PROMPT[3]]),
        (20, "left", PROMPT[2:], [PROMPT[1]]),
        (14, "left", [Text(3), *PROMPT[3:]], [PROMPT[1]]),
        (10, "left", PROMPT[4:], [PROMPT[1], PROMPT[3]]),
    ],
)
def test_what_is_dropped_is_said(most: int, side: Any, spans: list[Span], dropped: list[Span]) -> None:
    cut = truncate(PROMPT, most, GridLayout(), side=side, cut="drop")
    assert (list(cut.spans), list(cut.dropped)) == (spans, dropped)
    assert cut.tokens == GridLayout()(spans).length <= most


# ------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("name", "span", "why"),
    [
        ("qwen2-vl", Audio(3), "audio of 3 tokens has no place in GridLayout"),
        ("qwen2.5-omni", Video((2, 2, 2)), "write @SECONDS, and no stamp"),
        ("minicpm-v4.7", Image((1, 4, 4)), "declare a picture as Sliced"),
        ("hunyuan-vl", Video((2, 2, 2)), "video grid 2x2x2 has no place in XdLayout"),
        ("hy-v4-vl", Video((2, 2, 2), stamp=3), "has no place in NewlineLayout: it has stamp"),
        ("glm-image", Video((2, 2, 2)), "video grid 2x2x2 has no place in GenerationLayout"),
    ],
)
def test_a_span_of_another_kind_is_refused(name: str, span: Span, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        mrope.family(name).positions([span])


def test_what_stands_in_a_wrong_place_is_refused() -> None:
    with pytest.raises(ValueError, match="target grid 1x2x2 stands in front of other spans"):
        mrope.family("glm-image").positions(["target:1x2x2", "text:1"])
    with pytest.raises(ValueError, match="a page stands beside 1 other spans"):
        mrope.family("neomme").positions(["text:1", "image:1x2x2"])


@pytest.mark.parametrize(
    "span",
    ["text:99999999999", "image:1x9999999999x2", "video:2x4x4@1e30", "video:99999999999x2x2+8", "audio:3000000000"],
)
def test_numbers_that_nothing_could_count_are_refused(span: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        mrope.parse_span(span)
    with pytest.raises(ValueError, match="expected at most 2147483647"):
        QWEN.positions(["text:2000000000", "text:2000000000"])


def test_layers_that_were_not_made_are_refused() -> None:
    rows = CircleLayout(layers=3)([Text(1)])
    assert rows.layer(2) is rows.variants[0]
    with pytest.raises(ValueError, match="layer is 3; these positions were made for 3 layers"):
        rows.layer(3)
    row = QWEN.positions(["text:1"])
    assert row.layer(17) is row


# ------------------------------------------------------------------------------------- what results share, and not


def test_what_is_written_into_a_result_stays_in_it() -> None:
    row = AnchoredLayout(GridLayout())([Text(3), Image((1, 4, 8))])
    for tensor in (row.segments, row.query, row.text):
        assert tensor is not None
        tensor[..., 0] = 99
        assert int((tensor == 99).sum()) == tensor[..., 0].numel()
    assert GridLayout()([Text(3)]).segments.tolist() == [0, 0, 0]


def test_a_shard_that_is_pruned_keeps_the_slots_of_the_whole() -> None:
    row = QWEN.positions(["text:8"])
    shard = row.shard(0, 2)
    assert shard.prune(torch.ones(4).bool()).text.tolist() == [0, 1, 6, 7]
    assert shard.prune(torch.tensor([True, False, True, True])).text.tolist() == [0, 5, 6]
    later = row.chunk(4, 8).prune(torch.tensor([False, True, True, True]))
    assert (later.text.tolist(), later.end.slot) == ([4, 5, 6], 7)


@pytest.mark.parametrize("segments", [[1, 1, 0, 0], [0, 1, 0, 1], [-2, 0]])
def test_segments_that_are_no_packed_row_are_refused(segments: Any) -> None:
    with pytest.raises(ValueError, match="no packed row; expected"):
        mrope.shard_index(torch.tensor(segments), 1)


# What a static checker would refuse as well; in a process without run-time checks, as users have it.
WRONG_TYPES = {
    "GridLayout()([Text(1)], None)": "TypeError: start is None; expected a finite number, or the Positions",
    "GridLayout()([Text(1)], float('nan'))": "TypeError: start is nan; expected a finite number",
    "GridLayout()([Text(1)], 0.5)": "ValueError: start is 0.5; the positions of GridLayout are whole numbers",
    "GridLayout()([3])": "TypeError: span is 3; expected one of Text, Audio, Image",
    "Image(5)": "TypeError: image grid is 5; expected (t, h, w) in patches",
    "Video((2, 2, 2), seconds='1.0')": "TypeError: video seconds per temporal step is '1.0'; expected a number",
    "Sliced((1, 4, 4), (2, 2, 2), (1, 4, 4))": "ValueError: slices is (2, 2, 2); expected (rows, cols)",
    "batch(['text:2'])": "TypeError: batch got 'text:2' among its rows; expected Positions",
    "family('qwen2-vl').positions(None)": "TypeError: spans is None; expected a list of spans",
    "parse_span(None)": "TypeError: span is None; expected a string such as 'text:15'",
    "truncate([Text(1)], 1, family('qwen2-vl'))": "TypeError: layout is a Family; expected a layout, such as",
    "decode_ids(torch.zeros(2), torch.zeros(4))": "ValueError: slots have shape (4,); expected (2, K), a row for each",
    "shard_index(torch.zeros(2, 2), 1)": "ValueError: segments of shape (2, 2) are no packed row; expected (N,)",
    "CircleLayout(alpha='x')": "ValueError: alpha is 'x'; expected a number from 0 to 1",
    "OmniLayout(weave='time', seconds_per_chunk=2)": "ValueError: seconds_per_chunk is 2 with weave='time'",
    "OmniLayout(ids_per_second=0.1)": "ValueError: a chunk of 2 seconds holds no id at 0.1 ids a second",
    "GridLayout(time='stamps', temporal_merge=2)": "ValueError: temporal_merge is 2 with time='stamps'",
}


def test_wrong_types_are_refused_in_words() -> None:
    script = "import sys, torch\nfrom mrope import *\nfrom mrope.layouts import *\nfrom mrope.tracing import *\n"
    script += (
        "for line in sys.argv[1:]:\n try: eval(line)\n except Exception as e: print(type(e).__name__, e, sep=': ')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *WRONG_TYPES], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    for said, wanted in zip(done.stdout.splitlines(), WRONG_TYPES.values(), strict=True):
        assert said.startswith(wanted)


def test_an_encoder_sees_all_of_its_document_and_decodes_nothing() -> None:
    page = mrope.family("neomme").positions(["image:1x1x2"])
    assert page.mask().all()
    assert mrope.pack([page, page]).mask()[0].tolist() == [True] * 5 + [False] * 5
    with pytest.raises(ValueError, match="an encoder generates no tokens"):
        page.decode(1)


def test_real_offsets_give_the_decoded_ids_in_a_graph() -> None:
    rows = [mrope.family("qwen3-omni").positions([f"video:3x4x4@{s}", "text:3"]) for s in (0.37, 1.21)]
    batch = mrope.batch(rows)
    assert batch.offsets is not None
    decoded = batch.decode(4)
    assert torch.equal(decode_ids(batch.offsets, decoded.text).to(decoded.ids.dtype), decoded.ids)
    assert torch.equal(batch.decode(4, torch.tensor([0, 2])).ids[:, 1], batch.rows[1].decode(4, 2).ids)


def test_what_is_to_be_generated_is_never_truncated() -> None:
    layout = mrope.family("glm-image").layout
    cut = truncate([Text(10), Target((1, 2, 2))], 5, layout)
    assert (cut.spans, cut.dropped, cut.tokens) == ((Text(5), Target((1, 2, 2))), (), 5)


def test_far_out_real_positions_stay_apart_through_decoding_and_an_exact_rotary() -> None:
    row = V2peLayout(stride=1)([Text(1_000_000), Image((1, 32, 32))]).chunk(1_000_000, 1_000_256)
    assert len(row.ids[0].unique()) == 256
    exact = replace(QWEN.rotary(), angles="exact")
    assert len(exact.cos_sin(row)[1].unique(dim=0)) == 256
    half = V2peLayout(stride=1)([Text(1)], 2**24 + 0.5)
    assert half.decode(2).ids[0].tolist() == [2**24 + 1.5, 2**24 + 2.5]


def test_all_that_a_row_holds_is_padded_and_moved() -> None:
    ring = RingLayout()([Text(1), Image((1, 2, 4))]).pad(5, "left")
    assert ring.pictures is not None
    assert ring.pictures.tolist() == [-1, -1, -1, 0, 0]
    batched = mrope.batch([ring, ring]).pictures
    assert batched is not None
    assert batched.tolist() == [ring.pictures.tolist()] * 2
    planned = mrope.family("glm-image").positions(["text:2", "target:1x1x2"]).shift(10)
    assert planned.decode(3).ids.tolist() == [[12, 12, 14], [12, 12, 14], [12, 13, 14]]


def test_each_row_of_a_batch_skips_its_own() -> None:
    batch = mrope.batch([QWEN.positions(["image:1x4x8"]), QWEN.positions(["text:3"])])
    assert batch.decode(2, [0, 3]).ids[0].tolist() == [[4, 5], [6, 7]]
    assert batch.decode(2, torch.tensor([0, 3])).text.tolist() == [[8, 9], [6, 7]]
    with pytest.raises(ValueError, match="row 2 is not among the 2 rows"):
        batch.select([2])


def test_positions_of_another_layout_are_no_start() -> None:
    with pytest.raises(ValueError, match="start has 4 axes; GridLayout has 3"):
        GridLayout()([Text(1)], mrope.family("hunyuan-vl").positions(["text:1"]))
    with pytest.raises(ValueError, match="expected at most 2147483647 on either side of 0"):
        GridLayout()([Text(1)], 2**70)
    assert isinstance(GridLayout()([Text(1)], 5.0).next, int)
