"""What is trained and compared: a layout, an encoding, and who may look at whom. One head has 32 rotary pairs.

The splits are the published ones of 64 pairs, halved. The base is 30, so that the slowest pair turns once in 170
positions, about four times the longest prompt of training; in runs ("chunked") the columns get the slowest pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from mrope.axes import AxisSplit, HeadSplit
from mrope.checks import one_of
from mrope.encoding import Encoding, Where, read_ids
from mrope.encodings import Alibi, ContinuousBias, LearnedTable, NoPe, Rotary, ShawBias, Sinusoidal, T5Bias
from mrope.extensions import Extension
from mrope.frequencies import Frequencies
from mrope.layouts import (
    CircleLayout,
    GridLayout,
    Layout,
    RasterLayout,
    ResetLayout,
    VideoRopeLayout,
    VropeLayout,
)
from mrope.positions import NO_PICTURE, Positions

DIM, HEADS, HEAD_DIM = 96, 4, 64
BASE = 30.0
CHUNKED = AxisSplit((8, 12, 12))
INTERLEAVED = AxisSplit((12, 10, 10), "interleaved")
ALTERNATING = AxisSplit((8, 12, 12), "alternating")
ODD = AxisSplit((11, 11, 10), "interleaved")

Looks = Literal["pictures", "causal"]


class CrossedAxes(Encoding):
    """Turns queries by (t, h, w) and keys by (t, w, h): wrong on purpose."""

    axes = 3

    def __init__(self, rotary: Rotary):
        self.rotary = rotary

    def rotate(self, q: Tensor, k: Tensor, positions: Where) -> tuple[Tensor, Tensor]:
        """See `Encoding.rotate`."""
        ids = read_ids(positions, 3)
        return self.rotary.rotate(q, q, ids)[0], self.rotary.rotate(k, k, ids[[0, 2, 1]])[1]


class LearnedCells(nn.Module, Encoding):
    """Adds a learned row for each cell of a picture, resampled where the picture is larger; and for each text token.

    The table of cells is 6 x 6, the largest picture of training, and goes by rows and columns from 0, as in ViT.

    Args:
        dim: channels of the tokens.
        longest: text positions with a row of their own; later ones share the last.
    """

    axes = 3

    def __init__(self, dim: int, longest: int = 64):
        super().__init__()
        self.cells, self.text = LearnedTable(dim, (6, 6)), LearnedTable(dim, (longest,))
        for table in (self.cells, self.text):
            nn.init.normal_(table.weight, std=0.5)  # about the size of the tokens; a small table is learnt too late

    def embed(self, x: Tensor, positions: Where) -> Tensor:
        """See `Encoding.embed`; takes `Positions` of one row that number their pictures."""
        assert isinstance(positions, Positions)
        assert positions.pictures is not None
        ids, shown = positions.ids, positions.pictures != NO_PICTURE
        sides = [max(size, int(axis[shown].max()) + 1) for axis, size in zip(ids[1:], self.cells.shape, strict=True)]
        table = self.cells if tuple(sides) == self.cells.shape else self.cells.resampled(tuple(sides))
        rows = self.text.weight[ids[0].clamp(max=len(self.text.weight) - 1)]
        inside = table.weight[tuple(torch.where(shown, ids[1:], 0))]
        return x + torch.where(shown[:, None], inside, rows)


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to tell a model where its tokens are.

    Args:
        words: what it is, for people.
        layout: positions of the tokens.
        make: makes the encoding; what learns is made for each layer that needs it.
        looks: "pictures": causal, and each picture sees itself whole; "causal": never ahead.
        axes: which axes of the ids the encoding reads, in which order; None for all.
        per_layer: the encoding learns, and each layer has its own.
        turns_values: values are turned like keys.
    """

    words: str
    layout: Layout
    make: Callable[[], Encoding]
    looks: Looks = "pictures"
    axes: tuple[int, ...] | None = None
    per_layer: bool = False
    turns_values: bool = False


def rotary(split: AxisSplit | HeadSplit, extension: Extension | tuple[Extension | None, ...] | None = None) -> Rotary:
    """The rotary of the studies: base 30, eager, so that no machine rounds otherwise than another."""
    return Rotary(split, Frequencies(BASE, extension), impl="eager")


def _turned(words: str, layout: Layout, split: AxisSplit | HeadSplit, looks: Looks = "pictures") -> Variant:
    return Variant(words, layout, lambda: rotary(split), looks)


_GRID = GridLayout(merge=1)
_MROPE = _turned("M-RoPE, interleaved (Qwen3-VL)", _GRID, INTERLEAVED)

VARIANTS: Mapping[str, Variant] = {
    "nope": Variant("no encoding (NoPE)", _GRID, NoPe),
    "sinusoidal": Variant(
        "sinusoidal, rows and columns", _GRID, lambda: Sinusoidal(DIM, axes=2, base=BASE), axes=(1, 2)
    ),
    "learned": Variant("learned table, resampled", ResetLayout(merge=1), lambda: LearnedCells(DIM)),
    "shaw": Variant(
        "relative vectors, clipped (Shaw)", _GRID, lambda: ShawBias(HEAD_DIM, 16, axes=2), axes=(1, 2), per_layer=True
    ),
    "t5": Variant("relative buckets (T5)", _GRID, lambda: T5Bias(HEADS, axes=2), axes=(1, 2), per_layer=True),
    "continuous": Variant(
        "continuous relative bias (Swin v2)",
        _GRID,
        lambda: ContinuousBias(HEADS, (44, 44), hidden=64),
        axes=(1, 2),
        per_layer=True,
    ),
    "alibi": Variant("ALiBi in two dimensions (CROMA)", _GRID, lambda: Alibi(HEADS, axes=2), axes=(1, 2)),
    "1-d": _turned("1-D RoPE in raster order", RasterLayout(merge=1), INTERLEAVED),
    "mrope-chunked": _turned("M-RoPE, chunked (Qwen2-VL)", _GRID, CHUNKED),
    "mrope": _MROPE,
    "mrope-heads": _turned("M-RoPE, an axis a head (MHRoPE)", _GRID, HeadSplit((1, 1, 2), 32)),
    "videorope": _turned("VideoRoPE", VideoRopeLayout(merge=1), ALTERNATING),
    "reset": _turned("M-RoPE, interleaved, spatial reset", ResetLayout(merge=1), INTERLEAVED),
    "vrope": _turned("VRoPE", VropeLayout(merge=1), AxisSplit.parse("0123*8")),
    "circle": _turned("Circle-RoPE", CircleLayout(merge=1), CHUNKED),
    "crossed": replace(
        _MROPE, words="keys turned by (t, w, h), queries by (t, h, w)", make=lambda: CrossedAxes(rotary(INTERLEAVED))
    ),
    "values": replace(_MROPE, words="values turned too", turns_values=True),
    "odd": _turned("M-RoPE, split (11, 11, 10) for (12, 10, 10)", _GRID, ODD),
    "exchanged": replace(_MROPE, words="time and width exchanged", axes=(2, 1, 0)),
    "nope-causal": Variant("no encoding, causal mask", _GRID, NoPe, "causal"),
    "1-d-causal": _turned("1-D RoPE, causal mask", RasterLayout(merge=1), INTERLEAVED, "causal"),
    "mrope-causal": _turned("M-RoPE, causal mask", _GRID, INTERLEAVED, "causal"),
}
"""What can be trained, by name."""


def variant(name: str) -> Variant:
    """The variant of this name.

    Raises:
        ValueError: there is none.
    """
    one_of("variant", name, tuple(VARIANTS))
    return VARIANTS[name]
