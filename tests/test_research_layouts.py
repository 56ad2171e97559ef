"""Research layouts, first part: published and worked examples of each, and what they refuse.

Their general properties are tested with those of all layouts, in test_layouts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mrope import Audio, Image, Layout, Sliced, Span, Target, Text, Video
from mrope.layouts.centred import HopeLayout, VideoRopeLayout
from mrope.layouts.idalign import IdAlignLayout
from mrope.layouts.layout import SpanLayout
from mrope.layouts.reset import ResetLayout
from mrope.layouts.tie import TieLayout
from mrope.layouts.v2pe import V2peLayout
from mrope.layouts.vrope import VropeLayout

IMAGE = Image((1, 4, 6))  # 2 x 3 tokens
CLIP = Video((2, 4, 6))
SQUARE_CLIP = Video((2, 4, 4))
TALL_CLIP = Video((3, 6, 4))
EVERY_LAYOUT = (
    ResetLayout,
    VideoRopeLayout,
    HopeLayout,
    VropeLayout,
    TieLayout,
    V2peLayout,
    IdAlignLayout,
)


def block(layout: Layout, span: Span) -> list[tuple[float, ...]]:
    """The ids of a span behind three tokens of text, token by token."""
    return [tuple(token) for token in layout([Text(3), span]).ids.T.tolist()[3:]]


def grid(times: list[float], rows: list[float], cols: list[float]) -> list[tuple[float, ...]]:
    """All tokens of a block whose axes do not depend on one another."""
    return [(t, h, w) for t in times for h in rows for w in cols]


# From the catalogue of published layouts; the rest of a line is the position of the text behind the span.
PUBLISHED: dict[str, tuple[Layout, Span, list[tuple[float, ...]], float]] = {
    "reset": (ResetLayout(), IMAGE, [(3, 0, 0), (3, 0, 1), (3, 0, 2), (3, 1, 0), (3, 1, 1), (3, 1, 2)], 6),
    "videorope, image": (
        VideoRopeLayout(),
        IMAGE,
        [(3, 3, 2), (3, 3, 3), (3, 3, 4), (3, 4, 2), (3, 4, 3), (3, 4, 4)],
        4,
    ),
    "videorope, clip": (
        VideoRopeLayout(),
        SQUARE_CLIP,
        [(3, 3, 3), (3, 3, 4), (3, 4, 3), (3, 4, 4), (5, 5, 5), (5, 5, 6), (5, 6, 5), (5, 6, 6)],
        6,
    ),
    "videorope, clip, paper's advance": (
        VideoRopeLayout(advance="paper"),
        SQUARE_CLIP,
        [(3, 3, 3), (3, 3, 4), (3, 4, 3), (3, 4, 4), (5, 5, 5), (5, 5, 6), (5, 6, 5), (5, 6, 6)],
        7,
    ),
    "vrope": (
        VropeLayout(),
        IMAGE,
        [(3, 4, 6, 5), (4, 5, 5, 4), (5, 6, 4, 3), (4, 3, 5, 6), (5, 4, 4, 5), (6, 5, 3, 4)],
        7,
    ),
    "tie": (TieLayout(), IMAGE, [(6, 5), (6, 8), (6, 11), (10, 5), (10, 8), (10, 11)], 14),
}

# Worked by hand.
WORKED: dict[str, tuple[Layout, Span, list[tuple[float, ...]], float]] = {
    "reset, clip": (ResetLayout(), CLIP, grid([3, 4], [0, 1], [0, 1, 2]), 6),
    "reset, long clip": (ResetLayout(), Video((5, 2, 4)), grid([3, 4, 5, 6, 7], [0], [0, 1]), 8),
    "reset, scale": (ResetLayout(scale=(4, 8, 3)), CLIP, grid([3, 7], [0, 8], [0, 3, 6]), 12),
    "reset, short steps": (ResetLayout(scale=(0.5, 1, 1)), CLIP, grid([3, 3.5], [0, 1], [0, 1, 2]), 6),
    "reset, long steps": (ResetLayout(scale=(2.5, 1, 1)), CLIP, grid([3, 5.5], [0, 1], [0, 1, 2]), 6.5),
    "mm": (ResetLayout(scale=(4, 8, 8), origin="start"), CLIP, grid([3, 7], [3, 11], [3, 11, 19]), 20),
    "videorope": (
        VideoRopeLayout(),
        TALL_CLIP,
        grid([3], [2, 3, 4], [3, 4]) + grid([5], [4, 5, 6], [5, 6]) + grid([7], [6, 7, 8], [7, 8]),
        8,
    ),
    "videorope, paper's advance": (
        VideoRopeLayout(delta=3, advance="paper"),
        TALL_CLIP,
        grid([3], [2, 3, 4], [3, 4]) + grid([6], [5, 6, 7], [6, 7]) + grid([9], [8, 9, 10], [9, 10]),
        12,
    ),
    "videorope, paper's centre": (
        VideoRopeLayout(centre="paper"),
        CLIP,
        grid([3], [2, 3], [1.5, 2.5, 3.5]) + grid([5], [4, 5], [3.5, 4.5, 5.5]),
        6,
    ),
    "videorope, half steps": (
        VideoRopeLayout(delta=0.5, advance="paper"),
        SQUARE_CLIP,
        grid([3], [3, 4], [3, 4]) + grid([3.5], [3.5, 4.5], [3.5, 4.5]),
        4,
    ),
    "hope": (HopeLayout(), CLIP, grid([3], [3, 4], [2, 3, 4]) + grid([4.5], [4.5, 5.5], [3.5, 4.5, 5.5]), 5.5),
    "hope, 1": (HopeLayout(gamma=1), CLIP, grid([3], [3, 4], [2, 3, 4]) + grid([4], [4, 5], [3, 4, 5]), 5),
    "vrope, clip": (
        VropeLayout(),
        Video((2, 2, 4)),
        [(3, 3, 4, 4), (4, 4, 3, 3), (5, 5, 6, 6), (6, 6, 5, 5)],
        7,
    ),
    "vrope, code": (
        VropeLayout(order="code"),
        IMAGE,
        [(3, 5, 4, 6), (4, 4, 5, 5), (5, 3, 6, 4), (4, 6, 3, 5), (5, 5, 4, 4), (6, 4, 5, 3)],
        7,
    ),
    "tie, real": (
        TieLayout(steps="real"),
        IMAGE,
        [(2 + 7 * i / 3, 2 + 7 * j / 4) for i in (1, 2) for j in (1, 2, 3)],
        9,
    ),
    "tie, unit": (
        TieLayout(steps="unit"),
        IMAGE,
        [(5, 4.5), (5, 5.5), (5, 6.5), (6, 4.5), (6, 5.5), (6, 6.5)],
        9,
    ),
    "tie, unit, clip": (TieLayout(steps="unit", axes=3), CLIP, grid([8, 9], [8, 9], [7.5, 8.5, 9.5]), 15),
    "v2pe": (V2peLayout(stride=64), IMAGE, [(n,) * 3 for n in (2.25, 2.5, 2.75, 3, 3.25, 3.5)], 5),
    "v2pe, whole end": (V2peLayout(stride=64), Image((1, 4, 4)), [(n,) * 3 for n in (2.25, 2.5, 2.75, 3)], 4),
    "v2pe, clip": (V2peLayout(stride=128), Video((2, 2, 4)), [(n,) * 3 for n in (2.5, 3, 3.5, 4)], 5),
    "v2pe, as text": (V2peLayout(stride=256), IMAGE, [(n,) * 3 for n in range(3, 9)], 9),
    "idalign, image": (IdAlignLayout(), IMAGE, [(n,) * 3 for n in range(3, 9)], 9),
    "idalign, thumbnail alone": (IdAlignLayout(), Sliced((1, 4, 6)), [(n,) * 3 for n in range(3, 9)], 9),
    "idalign": (
        IdAlignLayout(),
        Sliced((1, 4, 6), (1, 2), (1, 4, 6)),
        [(n,) * 3 for n in (3, 4, 5, 6, 7, 8, 3, 3, 4, 6, 6, 7, 4, 5, 5, 7, 8, 8)],
        9,
    ),
    "idalign, uneven": (
        IdAlignLayout(),
        Sliced((1, 4, 4), (3, 1), (1, 2, 6)),
        [(n,) * 3 for n in (3, 4, 5, 6, 3, 3, 4, 3, 3, 4, 5, 5, 6)],
        7,
    ),
}


@pytest.mark.evidence("worked")
@pytest.mark.parametrize(
    ("layout", "span", "tokens", "following"),
    [*PUBLISHED.values(), *WORKED.values()],
    ids=[*(f"published {name}" for name in PUBLISHED), *WORKED],
)
def test_examples(layout: SpanLayout, span: Span, tokens: list[tuple[float, ...]], following: float) -> None:
    dtype = layout([]).ids.dtype
    torch.testing.assert_close(torch.tensor(block(layout, span), dtype=dtype), torch.tensor(tokens, dtype=dtype))
    positions = layout([Text(3), span, Text(2)])
    assert positions.ids[:, :3].tolist() == [[0, 1, 2]] * positions.ids.shape[0]
    assert positions.ids[:, -2:].tolist() == [[following, following + 1]] * positions.ids.shape[0]
    assert positions.next == following + 2


@pytest.mark.evidence("worked", "ResetLayout")
def test_the_token_that_closes_a_picture_clears_it_on_all_axes_and_text_goes_on_behind() -> None:
    closing, text = ResetLayout()([Text(3), IMAGE, Text(2)]).ids[:, -2:].T.tolist()
    assert closing == [6, 6, 6]
    assert text == [7, 7, 7]


def test_whole_steps_give_whole_ids_however_they_are_written() -> None:
    for layout in (VideoRopeLayout(delta=2.0), HopeLayout(gamma=1.0), ResetLayout(scale=(4.0, 8.0, 8.0))):
        positions = layout([CLIP])
        assert positions.ids.dtype == torch.int64
        assert isinstance(positions.next, int)
        assert positions.decode(2).ids.dtype == torch.int64


@pytest.mark.parametrize(
    "layout", [HopeLayout(gamma=0.3), VideoRopeLayout(delta=0.7), ResetLayout(scale=(1.7, 0.1, 0.3))], ids=repr
)
def test_steps_that_no_float_holds_exactly_decode_as_they_prefill(layout: SpanLayout) -> None:
    prompt = [Text(3), CLIP, CLIP, Text(40), CLIP]
    short, long = layout(prompt), layout([*prompt, Text(50)])
    assert torch.equal(short.decode(50).ids, long.ids[:, short.length :])
    halves = layout(prompt[:3]), layout(prompt[3:], layout(prompt[:3]))
    assert torch.equal(torch.cat([half.ids for half in halves], dim=1), short.ids)


def test_hope_tells_frames_apart_by_the_temporal_axis_alone() -> None:
    first, second = HopeLayout(gamma=1)([Video((2, 4, 4))]).ids.split(4, dim=1)
    assert torch.equal(first[1:, 3], second[1:, 0])
    assert first[0, 3] != second[0, 0]


def refusal(change: Callable[[], Any]) -> str:
    with pytest.raises((ValueError, TypeError)) as raised:
        change()
    return str(raised.value)


def made_with(layout: SpanLayout, **parameters: Any) -> Callable[[], None]:
    """The layout's own check of parameters, past the run-time checker of these tests, which users do not have."""

    def make() -> None:
        for name, value in parameters.items():
            object.__setattr__(layout, name, value)
        layout.__post_init__()

    return make


@pytest.mark.parametrize(
    ("layout", "parameters", "message"),
    [
        (ResetLayout(), {"merge": 0}, "merge is 0; expected at least 1"),
        (ResetLayout(), {"scale": (1, 1)}, "scale is (1, 1); expected three factors (t, h, w)"),
        (ResetLayout(), {"scale": 2}, "scale is 2; expected three factors (t, h, w)"),
        (ResetLayout(), {"scale": (1, 0, 1)}, "scale h is 0; expected a finite number above 0"),
        (ResetLayout(), {"scale": (1, 1, float("inf"))}, "scale w is inf; expected a finite number above 0"),
        (ResetLayout(), {"scale": ("a", 1, 1)}, "scale t is 'a'; expected a number"),
        (ResetLayout(), {"origin": "end"}, "origin is 'end'; expected one of zero, start"),
        (VideoRopeLayout(), {"merge": 1.5}, "merge is 1.5; expected a whole number"),
        (VideoRopeLayout(), {"delta": -1}, "delta is -1; expected a finite number above 0"),
        (VideoRopeLayout(), {"advance": "last"}, "advance is 'last'; expected one of code, paper"),
        (VideoRopeLayout(), {"centre": "middle"}, "centre is 'middle'; expected one of code, paper"),
        (HopeLayout(), {"gamma": 0}, "gamma is 0; expected a finite number above 0"),
        (VropeLayout(), {"order": "old"}, "order is 'old'; expected one of paper, code"),
        (TieLayout(), {"steps": "even"}, "steps is 'even'; expected one of whole, real, unit"),
        (TieLayout(), {"axes": 4}, "axes is 4; expected 2 (row, col) or 3 (t, row, col)"),
        (TieLayout(), {"axes": 1}, "axes is 1; expected at least 2"),
        (TieLayout(), {"axes": 3}, "axes is 3 with steps='whole'; a temporal axis goes with steps='unit'"),
        (TieLayout(steps="real"), {"axes": 3}, "axes is 3 with steps='real'; a temporal axis goes with steps='unit'"),
        (V2peLayout(), {"stride": 0}, "stride is 0; expected at least 1"),
        (V2peLayout(), {"stride": 257}, "stride is 257; expected at most 256, a whole position a token"),
        (V2peLayout(), {"stride": 0.5}, "stride is 0.5; expected a whole number"),
        (IdAlignLayout(), {"merge": 0}, "merge is 0; expected at least 1"),
    ],
)  # fmt: skip
def test_wrong_parameters_are_refused(layout: SpanLayout, parameters: dict[str, Any], message: str) -> None:
    assert refusal(made_with(layout, **parameters)) == message


@pytest.mark.parametrize("layout", EVERY_LAYOUT)
@pytest.mark.parametrize(
    "span",
    [
        Audio(3),
        Target((1, 4, 4)),
        Image((1, 5, 4)),
        Video((2, 4, 4), seconds=1.0),
        Video((2, 4, 4), stamp=3),
        Video((2, 4, 4), audio=5),
    ],
)
def test_spans_without_a_rule_are_refused(layout: Callable[[], SpanLayout], span: Span) -> None:
    made = layout()
    kind = type(span).__name__.lower()
    message = refusal(lambda: made.tokens(span))
    assert re.match(rf"{kind} .* (has no place in {type(made).__name__}|is not divisible)", message)
    assert refusal(lambda: made([Text(1), span])) == message


@pytest.mark.parametrize(
    ("layout", "span", "message"),
    [
        (ResetLayout(), Sliced((1, 4, 4)), "sliced grid 1x4x4 has no place in ResetLayout"),
        (
            VropeLayout(),
            Video((2, 4, 4), stamp=3),
            "video grid 2x4x4 has no place in VropeLayout: it has stamp, for which there is no rule; leave it away",
        ),
        (
            V2peLayout(),
            Video((2, 4, 4), seconds=1.0),
            "video grid 2x4x4 has no place in V2peLayout: it has seconds, for which there is no rule; leave it away",
        ),
        (
            TieLayout(steps="unit"),
            CLIP,
            "video grid 2x4x6 has no place in TieLayout: its axes are (row, col); clips need steps='unit' and axes=3",
        ),
        (
            HopeLayout(merge=3),
            CLIP,
            "video grid 2x4x6 is not divisible: h and w must be multiples of the spatial merge 3",
        ),
        (IdAlignLayout(), CLIP, "video grid 2x4x6 has no place in IdAlignLayout"),
        (
            IdAlignLayout(),
            Sliced((1, 4, 4), newlines=2),
            "sliced grid 1x4x4 has no place in IdAlignLayout: it has 2 newlines, which are text here; leave them away",
        ),
        (
            IdAlignLayout(),
            Sliced((1, 4, 4), (1, 2), (1, 4, 5)),
            "image grid 1x4x5 is not divisible: h and w must be multiples of the spatial merge 2",
        ),
    ],
)
def test_what_is_wrong_with_a_span_is_said(layout: SpanLayout, span: Span, message: str) -> None:
    assert refusal(lambda: layout([span])) == message
