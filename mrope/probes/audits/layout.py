"""What a layout does to a prompt of text, one picture or clip, and text, measured on its ids, without any weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mrope.checks import Number
from mrope.layouts import Layout, PageLayout, Traits
from mrope.spans import Grid, Image, Sliced, Span, Text, Video

GRIDS = ((1, 3, 5), (1, 5, 3), (1, 2, 4), (1, 4, 4), (1, 1, 7), (2, 3, 5), (7, 2, 3), (3, 5, 2), (4, 4, 4))
"""Merged grids of the pictures and clips that are measured."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What was measured.

    Args:
        traits: each holds for all measured pictures and clips.
        growth: merged grid (t, h, w) -> the positions that it takes.
    """

    traits: Traits
    growth: Mapping[Grid, Number]


def audit(layout: Layout, *, merge: int | None = None) -> Audit:
    """Measure the traits of `layout` on pictures and, where it takes such, clips of one second a step.

    Args:
        layout: the layout.
        merge: patches per token and side; by default the layout's own.

    Raises:
        ValueError: the layout takes neither pictures nor clips.

    >>> from mrope.layouts import GridLayout
    >>> audit(GridLayout(advance="side")).traits.clears_after
    False
    """
    side = getattr(layout, "merge", 1) if merge is None else merge
    spans = {grid: fitting(layout, grid, side) for grid in GRIDS}
    measured = {grid: _measure(layout, span) for grid, span in spans.items() if span is not None}
    if not measured:
        raise ValueError(f"{layout} takes no picture and no clip that an audit knows")
    traits = traits_of([look for look, _ in measured.values()], layout([Text(5)]).ids)
    return Audit(traits, {grid: growth for grid, (_, growth) in measured.items()})


def traits_of(looks: Sequence[tuple[Tensor, Tensor, Tensor]], alone: Tensor) -> Traits:
    """The traits that hold for all of some prompts.

    Args:
        looks: (A, n) each, the ids of the text before a picture or clip, of it, and of the text behind it.
        alone: (A, n) the ids of text alone.
    """
    return Traits(
        text_is_1d=torch.equal(alone.double(), torch.arange(alone.shape[1]).expand_as(alone).double()),
        clears_before=all(bool(block.min() > before.max()) for before, block, _ in looks),
        clears_after=all(bool(block.max() < after.min()) for _, block, after in looks),
        distinct=all(torch.unique(block, dim=1).shape == block.shape for _, block, _ in looks),
        monotone=all(bool((torch.cat(look, dim=1)[0].diff() >= 0).all()) for look in looks),
        symmetric=all(_symmetric(*look) for look in looks),
    )


def _measure(layout: Layout, span: Span) -> tuple[tuple[Tensor, Tensor, Tensor], Number]:
    """The ids of the text before a span, of the span, and of the text behind it; and the positions that it takes."""
    start, count = 3, layout.tokens(span)
    if isinstance(layout, PageLayout):  # a page has no text beside it: its own numbers go on around it
        page = layout([span], start)
        return (page.ids[:, :1] - 1, page.ids, torch.full_like(page.ids[:, :1], page.next)), page.next - start
    prompt = layout([Text(start), span, Text(4)])
    before, block, after = prompt.ids.split((start, count, 4), dim=1)
    return (before, block, after), layout([span], start).next - start


def _symmetric(before: Tensor, block: Tensor, after: Tensor) -> bool:
    centre = (block.amin(1) + block.amax(1)).double() / 2
    between = (before[:, -1] + after[:, 0]).double() / 2
    return torch.allclose(centre, between, atol=1e-4)


def fitting(layout: Layout, grid: Grid, merge: int, seconds: Number = 1.0, stamp: int = 0) -> Span | None:
    """The span of a merged grid (t, h, w) as the layout wants it declared; None where it does not take such.

    Args:
        layout: the layout.
        grid: in tokens.
        merge: patches per token and side.
        seconds: of a step of a clip, where the layout goes by the clock.
        stamp: tokens of text before each step, where it wants such.
    """
    t, h, w = grid
    sides = h * merge, w * merge
    image, clip = (1, *sides), (t * getattr(layout, "temporal_merge", 1), *sides)
    kinds: list[Span] = [Image(image), Sliced(image)] if t == 1 else [Video(clip), Video(clip, seconds=seconds)]
    kinds += [Video(clip, stamp=stamp)] if t > 1 else []
    return next((span for span in kinds if _takes(layout, span)), None)


def _takes(layout: Layout, span: Span) -> bool:
    try:
        layout.tokens(span)
    except ValueError:
        return False
    return True
