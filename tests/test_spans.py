"""Spans: what can be declared, how it is written down, and what is refused."""

from __future__ import annotations

import pickle

import pytest

import mrope
from mrope import Image, Text, Video, __all__, parse_span

WRITTEN = {
    "text:15": Text(15),
    "image:1x24x32": Image((1, 24, 32)),
    "video:84x24x32": Video((84, 24, 32)),
    "video:84x24x32@2.0": Video((84, 24, 32), seconds=2.0),
    "video:2x4x6@.5": Video((2, 4, 6), seconds=0.5),
    "video:4x24x32+7": Video((4, 24, 32), stamp=7),
}


def test_the_public_names() -> None:
    assert __all__ == [
        "Audio",
        "AxisSplit",
        "BatchPositions",
        "Encoding",
        "End",
        "Family",
        "Frequencies",
        "GridLayout",
        "HeadSplit",
        "Image",
        "Layout",
        "Positions",
        "Rotary",
        "Sliced",
        "Span",
        "Target",
        "Text",
        "Truncation",
        "Video",
        "apply_rotary",
        "batch",
        "family",
        "family_names",
        "pack",
        "parse_span",
        "shard_index",
        "truncate",
        "unshard",
    ]
    assert all(hasattr(mrope, name) for name in __all__)


@pytest.mark.parametrize("text", WRITTEN)
def test_a_written_span_is_read(text: str) -> None:
    assert parse_span(text) == WRITTEN[text]


def test_spans_hash_and_pickle() -> None:
    spans = set(WRITTEN.values())
    assert pickle.loads(pickle.dumps(spans)) == spans


@pytest.mark.parametrize(
    "text",
    [
        "",
        "text",
        "text:",
        "text:-3",
        "text:1.5",
        "text:3 ",
        "txt:3",
        "image:24x32",
        "image:1x24x32x2",
        "image:1x24x32@2",
        "image:1x24x32+7",
        "image:axbxc",
        "video:2x4x6@",
        "video:2x4x6@fast",
        "video:2x4x6@-1",
        "video:2x4x6@nan",
        "video:2x4x6+1.5",
        "video:2x4x6@2+7",
        "text:٣",
    ],
)
def test_a_broken_span_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be read; expected text:N, audio:N, image:1xHxW") as error:
        parse_span(text)
    assert repr(text) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("text:0", "text length is 0; expected at least 1"),
        ("image:1x0x4", "image grid h is 0; expected at least 1"),
        ("image:2x4x4", "a still image has t = 1, a clip is a Video"),
        ("video:0x4x4", "video grid t is 0"),
        ("video:2x4x4@0", "video seconds per temporal step is 0; expected a finite number above 0"),
    ],
)
def test_a_span_out_of_range_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as error:
        parse_span(text)
    assert str(error.value).startswith(f"span {text!r}: ")
