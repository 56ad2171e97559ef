"""Where each token of a batch is in its own picture or clip, counted in tokens, whatever the positions of the model.

Letters: B rows of a batch, N tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from mrope.hf import layout_of, read_spans
from mrope.hf.batch import grids_of
from mrope.layouts import GridLayout, NewlineLayout, OmniLayout, PageLayout, SpanLayout, XdLayout
from mrope.spans import Audio, Grid, Image, Sliced, Span, Target, Text, Video

_BEFORE = {NewlineLayout: 0, XdLayout: 1, PageLayout: 2}  # tokens before the first line, of layouts with newlines


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where the tokens of a batch are in its pictures and clips.

    A cell is a token of a picture, a step all cells of a clip with one time. Newlines and tokens around pictures are no
    cells. The thumbnail and the slices of a sliced picture (MiniCPM-V) are on one canvas, where slices are one cell a
    token, and may share cells.

    Args:
        picture: (B, N) the number of the picture or clip in the batch, row after row; -1 where there is none.
        cells: (3, B, N) step, row and column in it, from 0; -1 where there is none.
        grids: of each picture or clip: steps, rows and columns.
        rows: of each picture or clip: the row of the batch.
        tokens: (B, N) the number of the token in its row without padding, from 0; -1 in padding.
        behind: (B, N) of words behind the last cell of a row: how many words of the row are between it and that cell,
            itself included; 0 for all other tokens.
    """

    picture: Int64[Tensor, "b n"]
    cells: Int64[Tensor, "3 b n"]
    grids: tuple[Grid, ...]
    rows: tuple[int, ...]
    tokens: Int64[Tensor, "b n"]
    behind: Int64[Tensor, "b n"]


def places_of(inputs: Mapping[str, Any], config: Any) -> Places:
    """Where the tokens of a batch of a transformers model are in their pictures and clips.

    Args:
        inputs: as `mrope.hf.read_spans` takes them.
        config: the model's configuration.

    Raises:
        TypeError: the model is none of ours.
        ValueError: placeholders do not fit what came with them.

    >>> from transformers import Qwen2VLConfig
    >>> words = torch.tensor([[1, 6, 6, 2, 3]])
    >>> inputs = {"input_ids": words, "image_grid_thw": torch.tensor([[1, 2, 4]])}
    >>> places = places_of(inputs, Qwen2VLConfig(image_token_id=6, video_token_id=7))
    >>> places.cells[2].tolist(), places.behind.tolist()
    ([[-1, 0, 1, -1, -1]], [[0, 0, 0, 1, 2]])
    """
    spans, config = read_spans(inputs, config), getattr(config, "thinker_config", config)
    layout = layout_of(config)
    words = torch.as_tensor(inputs["input_ids"])
    given = inputs.get("attention_mask")
    mask = (torch.ones_like(words) if given is None else torch.as_tensor(given)).cpu().numpy() != 0
    whole = np.full((5, *mask.shape), -1)  # picture, step, row, column, token
    behind = np.zeros(mask.shape, dtype=np.int64)
    grids: list[Grid] = []
    owners: list[int] = []
    steps = _steps(spans, inputs, layout)
    for row, own in enumerate(spans):
        columns, texts = [], []
        for span in own:
            cells = _cells(span, layout)
            step = next(steps) if _stamped(span, layout) else 0
            seen = cells[0] >= 0
            if seen.any() and not step:  # a later frame of a clip belongs to the picture before
                grids.append((0, 0, 0))
                owners.append(row)
            if seen.any():
                cells[0, seen] += step
                t, h, w = (int(side) + 1 for side in cells.max(1))
                before = grids[-1]
                grids[-1] = (max(before[0], t), max(before[1], h), max(before[2], w))
            columns.append(np.concatenate([np.where(seen, len(grids) - 1, -1)[None], cells]))
            texts.append(np.full(cells.shape[1], isinstance(span, Text)))
        if not own:
            continue
        block, text = np.concatenate(columns, axis=1), np.concatenate(texts)
        whole[:4, row, mask[row]] = block
        whole[4, row, mask[row]] = np.arange(block.shape[1])
        last = np.flatnonzero(block[0] >= 0)
        if len(last):
            text[: last[-1]] = False
            behind[row, mask[row]] = text.cumsum() * text
    made = torch.from_numpy(whole).to(torch.int64)
    return Places(made[0], made[1:4], tuple(grids), tuple(owners), made[4], torch.from_numpy(behind))


def _stamped(span: Span, layout: SpanLayout) -> bool:
    """Whether the span is a frame of a clip, which has others in spans of their own."""
    return isinstance(span, Video) and isinstance(layout, GridLayout) and layout.time == "stamps"


def _steps(spans: Sequence[Sequence[Span]], inputs: Mapping[str, Any], layout: SpanLayout) -> Iterator[int]:
    """The number of each frame that has a span of its own in its clip."""
    clips = grids_of("video_grid_thw", inputs.get("video_grid_thw"))
    counted = [step for t, *_ in clips for step in range(t)]
    frames = sum(_stamped(span, layout) for row in spans for span in row)
    if frames and frames != len(counted):
        raise ValueError(
            f"video_grid_thw has {len(counted)} frames, and {frames} are no padding; take out a clip that is masked as "
            "a whole"
        )
    return iter(counted)


def _cells(span: Span, layout: SpanLayout) -> np.ndarray:
    """(3, tokens) step, row and column of each token of a span; -1 for one that is no cell."""
    if isinstance(span, (Text, Audio)):
        return np.full((3, span.length), -1)
    if isinstance(span, Target):
        return np.full((3, 0), -1)
    if isinstance(span, Sliced):
        thumbnail, slices, piece = layout.sliced(span)
        inner = [False, *[True] * (thumbnail[0] * thumbnail[1]), False]
        line = [False, *[True] * (piece[0] * piece[1]), False] * slices[1]
        inner += [each for number in range(slices[0]) for each in ([False] * bool(number) + line)]
        seen = np.array(inner + [False] * span.newlines)
        return np.where(seen, layout([span]).ids.numpy(), -1)  # on the canvas, which begins at 0
    assert isinstance(span, (Image, Video))
    t, rows, cols = layout.grid(span)
    before = next((count for kind, count in _BEFORE.items() if isinstance(layout, kind)), None)
    wide = cols + (before is not None)
    cells = np.indices((t, rows, wide)).reshape(3, -1)
    cells[:, cells[2] == cols] = -1  # newlines
    if isinstance(span, Video) and span.audio:
        assert isinstance(layout, OmniLayout)  # no other takes sound in a clip
        made = np.full((3, layout.tokens(span)), -1)
        made[:, 2:-2][:, ~layout.sound_of(span)] = cells
        return made
    made = np.full((3, layout.tokens(span)), -1)
    made[:, before or 0 :][:, : cells.shape[1]] = cells
    return made
