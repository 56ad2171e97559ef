"""Positions against transformers, against a slow oracle in plain Python, and against values worked out by hand."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import FAMILIES, clip, sample, tiny_model

import mrope
from mrope import GridLayout, Image, Span, Text, Video
from mrope.layouts import RasterLayout

# ------------------------------------------------------------------------------------------------ against transformers

STILL = {
    "one": [[Text(4), Image((1, 8, 12)), Text(5)]],
    "starts with an image": [[Image((1, 12, 8)), Text(2)]],
    "ends with an image": [[Text(3), Image((1, 2, 14))]],
    "several, and rows of many lengths": [
        [Text(4), Image((1, 8, 12)), Text(1), Image((1, 12, 8)), Text(2), Image((1, 2, 2)), Text(5)],
        [Text(3)],
        [Text(2), Image((1, 4, 20)), Text(3)],
    ],
}


def assert_as_transformers(name: str, rows: list[list[Span]], side: str) -> None:
    batch = sample(name, rows, side=side)
    ids, offsets = tiny_model(name).model.get_rope_index(**batch.index_inputs)
    ours = mrope.batch([mrope.family(name).positions(row) for row in rows], side=side)  # pyright: ignore[reportArgumentType]
    assert ours.ids.dtype == torch.int64
    assert torch.equal(ours.ids, ids)
    assert ours.offsets is not None
    assert torch.equal(ours.offsets, offsets[:, 0])
    assert torch.equal(ours.mask, batch.inputs["attention_mask"].bool())


@pytest.mark.evidence("parity")
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("rows", STILL.values(), ids=STILL.keys())
@pytest.mark.parametrize("name", FAMILIES)
def test_images_are_placed_as_transformers_does(name: str, rows: list[list[Span]], side: str) -> None:
    assert_as_transformers(name, rows, side)


@pytest.mark.evidence("parity")
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", FAMILIES)
def test_clips_shorter_than_wide_are_placed_as_transformers_does(name: str, side: str) -> None:
    clips = clip(name, (3, 4, 12), seconds=0.75), clip(name, (2, 8, 4), seconds=1.5)
    rows: list[list[Span]] = [
        [Text(4), clips[0], Text(2), Image((1, 6, 4)), Text(2), clips[1], Text(3)],
        [Text(2), Image((1, 4, 6)), Text(1), clips[1], Text(9)],
    ]
    assert_as_transformers(name, rows, side)


@pytest.mark.evidence("parity", "qwen3-vl")
def test_long_clips_of_qwen3_are_placed_as_transformers_does() -> None:
    rows: list[list[Span]] = [
        [Text(3), Video((20, 4, 6), stamp=8), Text(3)],
        [Text(1), Video((9, 8, 2), stamp=1), Text(1)],
    ]
    assert_as_transformers("qwen3-vl", rows, "left")


@pytest.mark.evidence("parity", "qwen2.5-vl")
@pytest.mark.filterwarnings("ignore:.*temporal steps share")
@pytest.mark.parametrize("fps", [0.5, 1, 1.3, 1.5, 2, 2.3, 3, 3.7, 5, 23.976, 29.97, 30])
def test_times_are_truncated_to_the_bit_as_transformers_does(fps: float) -> None:
    assert_as_transformers("qwen2.5-vl", [[Text(5), Video((300, 2, 4), seconds=2 / fps)]], "left")


@pytest.mark.evidence("parity", "RasterLayout")
def test_a_model_without_axes_counts_tokens_as_the_raster_does() -> None:
    sizes: dict[str, Any] = dict.fromkeys(("hidden_size", "intermediate_size"), 16)
    sizes |= dict.fromkeys(("num_hidden_layers", "num_attention_heads"), 2)
    words: dict[str, Any] = {"image_token_id": 60}
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**sizes, image_size=42, patch_size=14),
        text_config=transformers.LlamaConfig(**sizes, vocab_size=64),
        **words,
    )
    model: Any = transformers.LlavaModel(config)
    seen: list[torch.Tensor] = []
    model.language_model.rotary_emb.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["position_ids"]), with_kwargs=True
    )
    model(input_ids=torch.tensor([[1, 2, *[60] * 9, 3]]), pixel_values=torch.zeros(1, 3, 42, 42))
    ours = RasterLayout(merge=1)([Text(2), Image((1, 3, 3)), Text(1)])
    assert torch.equal(seen[0].expand(3, -1), ours.ids)


# ---------------------------------------------------------------------------------------------------- worked by hand


@pytest.mark.evidence("worked", "qwen2-vl", "qwen2.5-vl")
def test_the_image_advances_text_by_its_longer_side() -> None:
    # 640 x 480 becomes 23 wide x 17 high = 391 tokens: text 0..3, rows 4..20, columns 4..26, next text 27.
    for name in ("qwen2-vl", "qwen2.5-vl"):
        ids = mrope.family(name).positions(["text:4", "image:1x34x46", "text:1"]).ids
        assert ids.shape[1] == 4 + 391 + 1
        assert ids[:, 4].tolist() == [4, 4, 4]
        assert ids[:, 5].tolist() == [4, 4, 5]
        assert ids[:, 4 + 23].tolist() == [4, 5, 4]
        assert ids[:, -2].tolist() == [4, 20, 26]
        assert ids[:, -1].tolist() == [27, 27, 27]


@pytest.mark.evidence("worked", "qwen2.5-vl")
def test_the_time_of_a_still_image_is_never_scaled() -> None:
    assert mrope.family("qwen2.5-vl").positions(["text:4", "image:1x8x12"]).ids[0, 4:].unique().tolist() == [4]


@pytest.mark.evidence("worked")
@pytest.mark.parametrize(
    ("name", "video", "following"),
    [
        ("qwen2-vl", "video:40x8x8", 46),  # t 6..45
        ("qwen2.5-vl", "video:20x8x8@1", 45),  # t 6, 8 .. 44
    ],
)
def test_text_follows_a_long_clip_at_the_largest_position_plus_one(name: str, video: str, following: int) -> None:
    positions = mrope.family(name).positions(["text:6", video, "text:2"])
    assert positions.ids[:, -2:].tolist() == [[following, following + 1]] * 3
    assert positions.ids[0, 6:-2].max() == following - 1


@pytest.mark.evidence("worked", "qwen2.5-vl")
def test_a_long_clip_of_qwen25() -> None:
    positions = mrope.family("qwen2.5-vl").positions(["text:15", "video:84x24x32@2.0", "text:1"])
    assert positions.ids[0, 15:-1].unique().tolist() == list(range(15, 348, 4))
    assert positions.ids[:, -1].tolist() == [348, 348, 348]
    assert positions.offset == 349 - (15 + 84 * 12 * 16 + 1)


@pytest.mark.evidence("worked", "qwen2.5-vl")
def test_fractional_seconds_are_truncated_after_the_product() -> None:
    ids = mrope.family("qwen2.5-vl").positions([Video((4, 2, 2), seconds=2 / 1.5)]).ids
    assert ids[0].tolist() == [0, 2, 5, 8]


@pytest.mark.evidence("worked", "qwen2.5-vl")
def test_steps_that_share_ids_warn() -> None:
    with pytest.warns(UserWarning, match=r"12 temporal steps share 9 ids"):
        ids = mrope.family("qwen2.5-vl").positions([Video((12, 2, 2), seconds=2 / 5)]).ids
    assert ids[0].tolist() == [0, 0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 8]


@pytest.mark.evidence("worked", "qwen3-vl")
def test_each_stamped_step_is_text_and_an_image() -> None:
    positions = mrope.family("qwen3-vl").positions(["text:1", "video:2x4x6+2", "text:1"])
    assert positions.ids.tolist() == [
        [0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7, 8, 8, 8, 8, 8, 8, 11],
        [0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7, 8, 8, 8, 9, 9, 9, 11],
        [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8, 9, 10, 8, 9, 10, 11],
    ]


@pytest.mark.evidence("worked", "qwen3-vl")
def test_a_clip_of_twenty_steps_is_twenty_images() -> None:
    family = mrope.family("qwen3-vl")
    apart = family.positions([span for _ in range(20) for span in ("text:8", "image:1x18x32")])
    assert torch.equal(family.positions(["video:20x18x32+8"]).ids, apart.ids)
    assert apart.length == 20 * (8 + 144)


@pytest.mark.evidence("worked", "qwen2.5-vl")
def test_slot_and_position_are_two_counters() -> None:
    positions = mrope.family("qwen2.5-vl").positions(["text:15", "image:1x32x32"])  # 448 x 448 pixels
    assert (positions.length, positions.next) == (271, 31)


# -------------------------------------------------------------------------------------------------- against an oracle


def oracle(spans: list[Span], layout: GridLayout) -> tuple[list[tuple[int, int, int]], int]:
    """The ids one token at a time, and the next position."""
    ids: list[tuple[int, int, int]] = []
    following = 0

    def block(steps: list[int], h: int, w: int) -> int:
        cells = [
            (following + step, following + i, following + j)
            for step in steps
            for i in range(h // layout.merge)
            for j in range(w // layout.merge)
        ]
        ids.extend(cells)
        return max(max(cell) for cell in cells) + 1

    def text(length: int) -> int:
        ids.extend((following + n, following + n, following + n) for n in range(length))
        return following + length

    for span in spans:
        if isinstance(span, Text):
            following = text(span.length)
            continue
        assert isinstance(span, (Image, Video))
        t, h, w = span.grid
        if isinstance(span, Video) and isinstance(span.stamp, int):
            for _ in range(t):
                following = text(span.stamp)
                following = block([0], h, w)
        elif isinstance(span, Video) and span.seconds is not None and layout.ids_per_second is not None:
            following = block([int(f * span.seconds * layout.ids_per_second) for f in range(t)], h, w)
        else:
            following = block(list(range(t)), h, w)
    return ids, following


LAYOUTS = {
    "index": GridLayout(merge=2),
    "seconds": GridLayout(merge=2, time="seconds", ids_per_second=2),
    "stamps": GridLayout(merge=2, time="stamps"),
    "merge 3": GridLayout(merge=3),
}


@st.composite
def prompts(draw: st.DrawFn, layout: GridLayout) -> list[Span]:
    side = st.integers(1, 5).map(lambda n: n * layout.merge)
    grids = st.tuples(st.integers(1, 7), side, side)
    # Eighths of a second are exact in any float, so that the oracle's arithmetic cannot differ by rounding.
    videos = {
        "index": st.builds(Video, grids),
        "seconds": st.builds(Video, grids, seconds=st.integers(4, 40).map(lambda n: n / 8)),
        "stamps": st.builds(Video, grids, stamp=st.integers(0, 5)),
    }
    images = st.tuples(st.just(1), side, side).map(Image)
    return draw(st.lists(st.one_of(st.builds(Text, st.integers(1, 6)), images, videos[layout.time]), max_size=6))


@pytest.mark.evidence("oracle")
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@settings(max_examples=60, deadline=None)
@given(data=st.data(), start=st.integers(-5, 100), k=st.integers(0, 4))
def test_any_prompt(layout: GridLayout, data: st.DataObject, start: int, k: int) -> None:
    spans = data.draw(prompts(layout))
    ids, following = oracle(spans, layout)
    positions = layout(spans)
    assert positions.ids.T.tolist() == [list(token) for token in ids]
    assert (positions.next, positions.length) == (following, len(ids))
    assert [layout.tokens(span) for span in spans] == [layout([span]).length for span in spans]
    assert positions.text.tolist() == list(range(len(ids)))

    moved = layout(spans, start=start)
    assert torch.equal(moved.ids, positions.shift(start).ids)
    assert moved.next == positions.shift(start).next

    longer = layout([*spans, Text(k)]) if k else positions
    assert torch.equal(longer.ids, torch.cat((positions.ids, positions.decode(k).ids), dim=1))
    assert longer.offset == positions.offset

    for side in ("left", "right"):
        padded = positions.pad(len(ids) + 3, side)
        kept = padded.segments >= 0
        assert kept.tolist() == ([False] * 3 + [True] * len(ids) if side == "left" else [True] * len(ids) + [False] * 3)
        assert torch.equal(padded.ids[:, kept], positions.ids)
        assert not padded.ids[:, ~kept].any()
        assert not padded.text[~kept].any()
        assert (padded.length, padded.offset, padded.next) == (len(ids), positions.offset, positions.next)
        assert torch.equal(padded.shift(start).ids[:, kept], moved.ids)
        assert not padded.shift(start).ids[:, ~kept].any()


@pytest.mark.evidence("shapes", "qwen2-vl")
def test_a_batch_decodes_each_row_from_its_own_offset() -> None:
    family = mrope.family("qwen2-vl")
    rows = [family.positions(spans) for spans in (["text:3", "image:1x4x12", "text:2"], ["text:4"])]
    for side in ("left", "right"):
        batch = mrope.batch(rows, side=side)
        assert batch.ids.shape == (3, 2, 17)
        assert batch.text[1][batch.mask[1]].tolist() == [0, 1, 2, 3]
        assert torch.equal(batch.decode(2).ids, torch.stack([row.decode(2).ids for row in rows], dim=1))
        assert batch.offsets is not None
        assert batch.offsets.tolist() == [11 - 17, 0]


def test_an_empty_prompt_has_no_positions() -> None:
    positions = mrope.family("qwen2-vl").positions([])
    assert (positions.ids.shape, positions.next, positions.offset) == ((3, 0), 0, 0)


def test_a_thousand_images_take_no_time() -> None:
    spans = [span for _ in range(1000) for span in (Text(3), Image((1, 34, 46)))]
    layout = GridLayout(merge=2)
    began = time.process_time()
    positions = layout(spans)
    assert time.process_time() - began < 1.0  # 0.05 s of one core; a loop over tokens takes several
    assert positions.length == 1000 * (3 + 391)


# ----------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("name", "span", "why"),
    [
        (
            "qwen2-vl",
            "image:1x5x8",
            r"image grid 1x5x8 is not divisible: h and w must be multiples of the spatial merge 2",
        ),
        ("qwen3-vl", "image:1x8x7", "image grid 1x8x7 is not divisible"),
        ("qwen2-vl", "video:2x4x7", "video grid 2x4x7 is not divisible"),
        ("qwen2-vl", "video:2x4x6@2", r"has seconds \(@SECONDS\), but this layout's time is 'index': leave it away"),
        ("qwen3-vl", "video:2x4x6@2", r"has seconds \(@SECONDS\), but this layout's time is 'stamps'"),
        ("qwen2-vl", "video:2x4x6+7", r"has stamp \(\+TOKENS\), but this layout's time is 'index'"),
        ("qwen2.5-vl", "video:2x4x6+7", "has no seconds|has stamp"),
        ("qwen2.5-vl", "video:2x4x6", "has no seconds; this layout's time is 'seconds': write @SECONDS after the grid"),
        ("qwen3-vl", "video:2x4x6", r"has no stamp; this layout's time is 'stamps': write \+TOKENS after the grid"),
    ],
)
def test_a_span_that_does_not_fit_the_family_is_refused(name: str, span: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as error:
        mrope.family(name).positions([span])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"merge": 0}, "merge is 0; expected at least 1"),
        ({"time": "seconds"}, "ids_per_second is None with time='seconds'"),
        ({"ids_per_second": 2}, "ids_per_second is 2 with time='index'; it goes with 'seconds'"),
        ({"time": "seconds", "ids_per_second": -1.0}, "ids_per_second is -1; expected a finite number above 0"),
    ],
)
def test_a_layout_that_makes_no_sense_is_refused(arguments: dict, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        GridLayout(**arguments)


def test_padding_and_batching_refuse_what_they_cannot_do() -> None:
    positions = mrope.family("qwen2-vl").positions(["text:4"])
    with pytest.raises(ValueError, match="padded length is 3; there are 4 slots already"):
        positions.pad(3)
    with pytest.raises(ValueError, match="number of new tokens is -1; expected at least 0"):
        positions.decode(-1)
    with pytest.raises(ValueError, match="batch got no rows"):
        mrope.batch([])
    flat = replace(positions, ids=positions.ids[:1])
    with pytest.raises(ValueError, match="batch got rows of 1 and 3 axes"):
        mrope.batch([positions, flat])
    with pytest.raises(TypeError, match=r"spans is 'text:4'; expected a list of spans"):
        mrope.family("qwen2-vl").positions("text:4")
