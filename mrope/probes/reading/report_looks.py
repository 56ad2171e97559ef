"""The first half of the report: the position space, and each picture with its plan, token grid and positions."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import mrope
from mrope.probes.markup import element, ids, inlined, table
from mrope.probes.overlay import busiest, draw_token_grid, draw_tokens
from mrope.probes.reading.look import Look
from mrope.probes.space import Panel, position_space
from mrope.spans import Image, Span, Text, Video

WINDOW = (3, 4)
"""Rows and columns of the tokens that are shown up close."""
MOST_FRAMES = 4
"""Temporal steps of a clip that are shown."""


def size_words(size: tuple[int, int]) -> str:
    """A (height, width) as people say it."""
    return f"{size[1]} wide x {size[0]} high"


def span_words(span: Span) -> str:
    """A span as the command line writes it.

    >>> span_words(Video((4, 22, 30), seconds=0.5))
    'video:4x22x30@0.5'
    """
    if isinstance(span, Text):
        return f"text:{span.length}"
    assert isinstance(span, (Image, Video))  # what a look at a picture or clip is made of
    grid = "x".join(map(str, span.grid))
    if isinstance(span, Video):
        time = f"@{span.seconds:g}" if span.seconds is not None else f"+{span.stamp}" if span.stamp is not None else ""
        return f"video:{grid}{time}"
    return f"image:{grid}"


def space_section() -> str:
    """How positions work, on two prompts that are small enough to draw."""
    family = mrope.family("qwen2.5-vl")
    drawing = position_space(
        [
            Panel(family, ("text:3", "image:1x6x8", "text:2"), "Text, a picture, text: seen along t"),
            Panel(family, ("text:2", "video:3x4x6@1.0", "text:2"), "Text, a clip, text: seen along w", across="t"),
        ]
    )
    words = (
        f"A token has three positions: {_axis('t', 'time')}, {_axis('h', 'height')} and {_axis('w', 'width')}. A "
        "word moves all three by one, so text runs down the diagonal. A picture is a block: its rows count in h, "
        "its columns in w, and t stands still. A clip is a stack of such blocks. Text goes on after the largest "
        "position of the block, whichever axis that was: a picture of hundreds of tokens moves the text by its "
        "longer side alone."
    )
    caption = (
        "Family qwen2.5-vl: one token is 2 x 2 patches, so 6 x 8 patches are 3 rows of 4 tokens; "
        "2 ids of t are a second."
    )
    figure = element("figure", element("div", drawing, class_="wide prompts") + element("figcaption", caption))
    return element("section", element("h2", "Where tokens stand") + element("p", words) + figure)


def looks_section(looks: Sequence[Look], family: str) -> str:
    """Every picture with its plan, its token grid and a few of its tokens up close."""
    words = (
        f"Each picture keeps its own size, rounded to whole tokens as {escape(family)} does it, and is cut into "
        "patches. The lines are where tokens begin; up close, every token carries its position in a prompt of 15 "
        "text tokens, the picture, and 12 text tokens more."
    )
    return element(
        "section",
        element("h2", "Pictures at their own size") + element("p", words) + "".join(_picture(look) for look in looks),
    )


def _axis(axis: str, words: str) -> str:
    return element("b", f"{axis}, {words}", class_=axis)


def _picture(look: Look) -> str:
    factor, pictures = look.plan.factor, look.pictures
    window = busiest(pictures[0], factor, *WINDOW)
    grids = [
        inlined(draw_token_grid(pictures[step], factor, window=window), f"{look.name} with its token grid")
        for step in _shown(len(pictures))
    ]
    every = look.vision_ids()
    closer = [
        inlined(
            draw_tokens(pictures[step], factor, every[:, step], window)[0],
            f"tokens of {look.name} with their positions",
        )
        for step in sorted({0, len(pictures) - 1})
    ]
    where = (
        f"rows {window.row} to {window.row + window.rows - 1}, columns {window.col} to {window.col + window.cols - 1}"
    )
    which = "" if len(closer) == 1 else "; the first and the last temporal step, which differ in t alone"
    caption = element("figcaption", f"The framed tokens, {where}, with their {ids_key()}{which}.")
    left = grids[0] if len(grids) == 1 else element("div", "".join(grids), class_="frames")
    right = element("div", "".join(closer), class_="pair") + caption
    tall = look.plan.resized[0] > look.plan.resized[1]
    left, right = (left, right + _facts(look)) if tall else (left + _facts(look), right)
    body = element("h3", escape(look.name)) + element("div", left) + element("div", right + _spans(look))
    return element("article", body, class_="picture tall" if tall else "picture")


def ids_key() -> str:
    """The letters t, h, w in their colours."""
    return element("span", " ".join(element("span", axis, class_=axis) for axis in "thw"), class_="ids")


def _shown(steps: int) -> list[int]:
    """At most `MOST_FRAMES` of the steps, the first and the last among them."""
    count = min(steps, MOST_FRAMES)
    return sorted({round(index * (steps - 1) / max(1, count - 1)) for index in range(count)})


def _facts(look: Look) -> str:
    plan = look.plan
    t, h, w = plan.grid
    turned = "" if plan.orientation == 1 else f", turned upright (EXIF orientation {plan.orientation})"
    frames = "" if plan.frames is None else f", {plan.frames} frames of it"
    facts = [
        ("original", size_words(plan.original) + turned + frames),
        ("resized", f"{size_words(plan.resized)}, scale h {plan.scale[0]:.4f}, w {plan.scale[1]:.4f}"),
        ("grid", f"{t} x {h} x {w} patches of {plan.patch} pixels"),
        (
            "tokens",
            f"{plan.tokens:,}: {t // plan.temporal_merge} x {h // plan.merge} x {w // plan.merge} of "
            f"{plan.factor} x {plan.factor} pixels",
        ),
        ("patches", "put together and cut again: equal to the bit" if look.exact else "do not give the picture back"),
    ]
    rows = "".join(
        element("tr", element("th", name, scope="row") + element("td", escape(value))) for name, value in facts
    )
    return element("table", rows, class_="facts")


def _spans(look: Look) -> str:
    positions = look.positions
    spans = table(
        ("span", "tokens", "first", "last"),
        [
            (
                element("code", span_words(span)),
                f"{last - first + 1:,}",
                ids(positions.ids[:, first].tolist()),
                ids(positions.ids[:, last].tolist()),
            )
            for span, (first, last) in zip(look.spans, look.span_ends(), strict=True)
        ],
        numeric=(1,),
        class_="facts",
    )
    after = f"{positions.length:,} tokens; the next one stands at {positions.next}, decode offset {positions.offset:,}."
    notes = "".join(element("p", escape(note), class_="muted") for note in (after, *look.notes))
    return element("div", spans, class_="wide") + notes
