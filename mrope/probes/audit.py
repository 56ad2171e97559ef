"""What a layout does to a prompt of text, one picture or clip, and text, measured on its ids alone: no weights needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mrope.checks import Number
from mrope.layouts import Layout, Traits
from mrope.positions import Positions
from mrope.spans import Grid, Image, Span, Text, Video

_IMAGES = ((1, 3, 5), (1, 5, 3), (1, 2, 4), (1, 4, 4), (1, 1, 7))
_CLIPS = ((2, 3, 5), (7, 2, 3), (3, 5, 2), (4, 4, 4))
_BEFORE, _AFTER = 3, 4  # text tokens


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
    merge = getattr(layout, "merge", 1) if merge is None else merge
    measured = list(_measured(layout, merge))
    if not measured:
        raise ValueError(f"{layout} takes no picture and no clip that an audit knows")
    alone = layout([Text(5)]).ids
    one_d = torch.arange(5).expand_as(alone)
    traits = Traits(
        text_is_1d=torch.equal(alone.double(), one_d.double()),
        clears_before=all(bool(block.min() > ids[:, _BEFORE - 1].max()) for ids, block in measured),
        clears_after=all(bool(block.max() < ids[:, -_AFTER].min()) for ids, block in measured),
        distinct=all(torch.unique(block, dim=1).shape == block.shape for _, block in measured),
        monotone=all(bool((ids[0, 1:] >= ids[0, :-1]).all()) for ids, _ in measured),
        symmetric=all(_symmetric(ids, block) for ids, block in measured),
    )
    growth = {grid: positions.next - _AFTER - _BEFORE for grid, positions in _prompts(layout, merge)}
    return Audit(traits, growth)


def _symmetric(ids: Tensor, block: Tensor) -> bool:
    centre = (block.amin(1) + block.amax(1)).double() / 2
    between = (ids[:, _BEFORE - 1] + ids[:, -_AFTER]).double() / 2
    return torch.allclose(centre, between, atol=1e-4)


def _measured(layout: Layout, merge: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(all ids, the ids of the block) of each prompt."""
    for _, positions in _prompts(layout, merge):
        yield positions.ids, positions.ids[:, _BEFORE:-_AFTER]


def _prompts(layout: Layout, merge: int) -> Iterator[tuple[Grid, Positions]]:
    for t, h, w in (*_IMAGES, *_CLIPS):
        span = _fitting(layout, (t, h * merge, w * merge))
        if span is not None:
            yield (t, h, w), layout([Text(_BEFORE), span, Text(_AFTER)])


def _fitting(layout: Layout, grid: Grid) -> Span | None:
    """A span of this grid as the layout wants it declared; None if it takes none."""
    temporal = getattr(layout, "temporal_merge", 1)
    clip = (grid[0] * temporal, *grid[1:])
    spans = [Image(grid)] if grid[0] == 1 else [Video(clip), Video(clip, seconds=1.0), Video(clip, stamp=0)]
    for span in spans:
        try:
            layout.tokens(span)
        except ValueError:
            continue
        return span
    return None
