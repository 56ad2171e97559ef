"""Cutting a prompt to a number of tokens, never through a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mrope.checks import one_of, whole
from mrope.layouts import Layout
from mrope.layouts.layout import name_of
from mrope.positions import Side
from mrope.spans import Span, Text

Cut = Literal["refuse", "drop"]


@dataclass(frozen=True, slots=True)
class Truncation:
    """What is left of a prompt, and what is not.

    Args:
        spans: what is left, in order.
        dropped: the pictures, clips and sounds that are gone as a whole: their pixels must not be passed on.
        tokens: how many tokens are left.
    """

    spans: tuple[Span, ...]
    dropped: tuple[Span, ...]
    tokens: int


def truncate(
    spans: Sequence[Span], most: int, layout: Layout, *, side: Side = "right", cut: Cut = "refuse"
) -> Truncation:
    """`spans` cut to at most `most` tokens: text anywhere, a picture, clip or sound as a whole or not at all.

    Args:
        spans: the prompt.
        most: tokens that may stay.
        layout: how many tokens each span takes.
        side: where tokens are cut off: "right" keeps the beginning, "left" the end.
        cut: what to do with a picture that the limit falls on or that lies behind it. "refuse": raise, since dropping
            it changes what the prompt means; "drop": leave it away, with all that lies behind, and say so in `dropped`.

    Raises:
        TypeError: `layout` is no layout.
        ValueError: a picture would have to go, and cut="refuse".

    >>> from mrope.layouts import GridLayout
    >>> from mrope.spans import Image
    >>> truncate([Text(4), Image((1, 4, 8)), Text(9)], 15, GridLayout()).spans
    (Text(length=4), Image(grid=(1, 4, 8)), Text(length=3))
    """
    if not isinstance(layout, Layout):
        raise TypeError(f"layout is a {type(layout).__name__}; expected a layout, such as family.layout")
    one_of("side", side, ("left", "right"))
    one_of("cut", cut, ("refuse", "drop"))
    room = whole("most", most, 0)
    kept: list[Span] = []
    dropped: list[Span] = []
    whole_so_far = True
    for span in spans if side == "right" else reversed(spans):
        size = layout.tokens(span)
        if size == 0 or (whole_so_far and size <= room):  # what is to be generated takes no token
            kept.append(span)
            room -= size
            continue
        if isinstance(span, Text):
            kept += [Text(room)] if whole_so_far and room else []
        elif cut == "drop":
            dropped.append(span)
        else:
            raise ValueError(
                f"a limit of {most} tokens cuts off {name_of(span)}, which takes {size}; the whole prompt takes "
                f"{sum(map(layout.tokens, spans))}: raise the limit, shrink the picture, or drop it with cut='drop'"
            )
        whole_so_far = False
    if side == "left":
        kept.reverse()
        dropped.reverse()
    return Truncation(tuple(kept), tuple(dropped), sum(map(layout.tokens, kept)))
