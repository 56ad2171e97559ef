"""The layout of GLM-Image: pictures in the prompt, and pictures that are to be generated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from mrope.checks import Number
from mrope.layouts.layout import SpanLayout, Traits, fill_cells, name_of
from mrope.positions import End, Positions
from mrope.spans import MOST, Image, Span, Target


@dataclass(frozen=True, slots=True)
class GenerationLayout(SpanLayout):
    """A picture that starts at s gets (s, s + row, s + col) and takes max(h, w) positions, in the prompt or generated.

    The targets come behind the prompt, in the order in which they are generated; their positions are
    `Positions.planned`, which `decode` hands out before it goes on with text (the end token first). Source:
    transformers 5.24, glm_image, which reads the target grids from the last to the first.

    >>> prompt = GenerationLayout()([Image((1, 1, 2)), Target((1, 2, 2))])
    >>> prompt.decode(5).ids.tolist(), prompt.next
    ([[2, 2, 2, 2, 4], [2, 2, 3, 3, 4], [2, 3, 2, 3, 4]], 4)
    """

    merge: int = 1

    @property
    def traits(self) -> Traits:
        """What the layout promises."""
        return Traits()

    def growth(self, t: int, h: int, w: int) -> Number:
        """See `SpanLayout.growth`."""
        return max(h, w)

    def __call__(self, spans: Sequence[Span], start: Number | Positions = 0) -> Positions:
        """See `Layout`.

        Raises:
            ValueError: a span does not fit the layout, or comes behind a target.
        """
        targets = [span for span in spans if isinstance(span, Target)]
        prompt = spans[: len(spans) - len(targets)]
        if misplaced := [span for span in prompt if isinstance(span, Target)]:
            raise ValueError(f"{name_of(misplaced[0])} stands in front of other spans; targets come last")
        positions = SpanLayout.__call__(self, prompt, start)
        if not targets:
            return positions
        end = positions.end
        if sum(target.grid[1] * target.grid[2] for target in targets) > MOST:
            raise ValueError(f"the targets take more than {MOST} tokens")
        blocks = []
        for target in targets:
            _, rows, cols = target.grid
            block = np.empty((3, rows * cols), dtype=np.int64)
            following = _place(block, end.next, rows, cols)
            end = End(following, end.slot + rows * cols, end.pictures + 1, following)
            blocks.append(block)
        planned = torch.from_numpy(np.concatenate(blocks, axis=1))
        return replace(positions, ends=(end,), planned=planned)

    def media_tokens(self, span: Any) -> int:
        """See `tokens`."""
        if isinstance(span, Target):
            return 0
        if not isinstance(span, Image):
            raise self.refuse(span)
        _, rows, cols = self.grid(span)
        return rows * cols

    def place(self, block: np.ndarray, span: Any, end: End) -> Number:
        """See `SpanLayout.place`."""
        _, rows, cols = self.grid(span)
        return _place(block, end.next, rows, cols)


def _place(block: np.ndarray, start: Number, rows: int, cols: int) -> Number:
    fill_cells(block, np.full(1, start), start + np.arange(rows), start + np.arange(cols))
    return start + max(rows, cols)
