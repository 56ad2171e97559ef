"""The 1-D layout: every token one step further, whatever it is; what a VLM had before M-RoPE, kept as a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mrope.layouts.grid import GridLayout
from mrope.positions import Positions
from mrope.spans import Span


@dataclass(frozen=True, slots=True)
class RasterLayout:
    """All axes carry the index of the token, in raster order (t, then row, then column).

    Equal axes make any rotary split the 1-D RoPE of RoFormer (arXiv:2104.09864).

    >>> from mrope.spans import Image, Text
    >>> RasterLayout(merge=2)([Text(2), Image((1, 4, 4))]).ids[2].tolist()
    [0, 1, 2, 3, 4, 5]
    """

    merge: int = 2

    def __call__(self, spans: Sequence[Span], start: int = 0) -> Positions:
        """The positions of `spans`, in the order of the prompt, the first token at `start`."""
        tokens = GridLayout(self.merge).tokens
        length = sum(tokens(span) for span in spans)
        index = torch.arange(length)
        return Positions(
            ids=(index + start).repeat(3, 1), text=index, segments=torch.zeros_like(index), next=start + length
        )
