"""The border to transformers: what a batch says about its tokens is read once, checked, and becomes spans.

Letters: B batch, N tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int, Int64
from torch import Tensor

from mrope.layouts import GridLayout
from mrope.spans import Image, Span, Text, Video

TEXT, IMAGE, VIDEO = 0, 1, 2  # the words of transformers' mm_token_type_ids
_NAMES = {IMAGE: ("image", "image_grid_thw"), VIDEO: ("video", "video_grid_thw")}


def token_kinds(input_ids: Int[Tensor, "b n"], *, image_token_id: int, video_token_id: int) -> Int64[Tensor, "b n"]:
    """The kind of each token (0 text, 1 image, 2 video) by the placeholders of a checkpoint: its mm_token_type_ids.

    >>> token_kinds(torch.tensor([[7, 500, 500, 501]]), image_token_id=500, video_token_id=501)
    tensor([[0, 1, 1, 2]])
    """
    return IMAGE * (input_ids == image_token_id).long() + VIDEO * (input_ids == video_token_id).long()


def batch_spans(
    kinds: Int[Tensor, "b n"],
    mask: Bool[Tensor, "b n"],
    *,
    layout: GridLayout,
    image_grid_thw: Any = None,
    video_grid_thw: Any = None,
    second_per_grid_ts: Any = None,
) -> list[list[Span]]:
    """The spans of each row of a transformers batch, in the order of the prompt, without its padding.

    Pictures and clips take their grids in order, row after row, as transformers hands them out. A run of placeholders
    may hold several pictures. A clip of a layout with time stamps comes as one `Video` of a single step per frame, as
    its stamps are text of the prompt.

    Args:
        kinds: (B, N), 0 text, 1 image, 2 video: transformers' mm_token_type_ids, or `token_kinds`.
        mask: (B, N), True where there is a token; a picture is kept or masked as a whole.
        layout: how the family lays out clips.
        image_grid_thw: (n, 3) grids in patches, of all images of the batch.
        video_grid_thw: (n, 3) grids in patches, of all clips of the batch.
        second_per_grid_ts: (n,) seconds per temporal step of each clip, where the layout scales time; 1.0 if missing.

    Raises:
        ValueError: placeholders and grids do not match one another.

    >>> kinds = torch.tensor([[0, 0, 0, 1, 1], [0, 1, 1, 1, 1]])
    >>> mask = torch.tensor([[False, True, True, True, True], [True] * 5])
    >>> batch_spans(kinds, mask, layout=GridLayout(), image_grid_thw=[(1, 2, 4), (1, 2, 4), (1, 4, 2)])[1]
    [Text(length=1), Image(grid=(1, 2, 4)), Image(grid=(1, 4, 2))]
    """
    if mask.shape != kinds.shape:
        raise ValueError(f"mask has shape {tuple(mask.shape)}, token kinds {tuple(kinds.shape)}; expected one shape")
    clips = _clips(_grids("video_grid_thw", video_grid_thw), second_per_grid_ts, layout)
    images: list[Span] = [Image(grid) for grid in _grids("image_grid_thw", image_grid_thw)]
    supply = {IMAGE: _Supply(IMAGE, images, layout), VIDEO: _Supply(VIDEO, clips, layout)}
    rows: list[list[Span]] = []
    for row, (row_kinds, row_mask) in enumerate(zip(kinds.cpu(), mask.cpu(), strict=True)):
        spans: list[Span] = []
        for kind, kept, length in _runs(row_kinds, row_mask):
            if kind not in (TEXT, IMAGE, VIDEO):
                raise ValueError(f"mm_token_type_ids of row {row} hold {kind}; expected 0 text, 1 image or 2 video")
            # A picture that is masked as a whole has a grid, too, and no positions.
            run = [Text(length)] if kind == TEXT else supply[kind].take(row, length)
            spans += run if kept else []
        rows.append(spans)
    for source in supply.values():
        source.check_empty()
    return rows


def batch_positions(
    rows: Sequence[Sequence[Span]],
    mask: Bool[Tensor, "b n"],
    *,
    layout: GridLayout,
    starts: Sequence[int] | None = None,
) -> Int64[Tensor, "3 b n"]:
    """The positions (3, B, N) of `rows` of spans, placed where `mask` has tokens; 0 elsewhere, as transformers has it.

    Args:
        rows: the spans of each row.
        mask: (B, N), True where there is a token.
        layout: the rule.
        starts: the position at which each row begins; 0 if missing.

    >>> mask = torch.tensor([[False, True, True], [True, True, True]])
    >>> batch_positions([[Text(2)], [Text(1), Image((1, 2, 4))]], mask, layout=GridLayout())[2]
    tensor([[0, 0, 1],
            [0, 1, 2]])
    """
    ids = torch.zeros(3, *mask.shape, dtype=torch.int64)
    kept = mask.cpu()
    for row, (spans, start) in enumerate(zip(rows, starts or [0] * len(rows), strict=True)):
        ids[:, row, kept[row]] = layout(spans, start).ids
    return ids.to(mask.device)


class _Supply:
    """The pictures of one kind that a batch still has to hand out."""

    def __init__(self, kind: int, spans: list[Span], layout: GridLayout) -> None:
        self.name, self.argument = _NAMES[kind]
        self.spans, self.layout, self.taken = spans, layout, 0

    def take(self, row: int, tokens: int) -> list[Span]:
        """The next spans, which must fill a run of `tokens` placeholders exactly."""
        first, left = self.taken, tokens
        while left > 0:
            if self.taken == len(self.spans):
                raise ValueError(
                    f"row {row} has {tokens} {self.name} tokens in a run, {left} of them without a grid: "
                    f"{self.argument} accounts for {len(self.spans)} of them in the whole batch"
                    if self.spans
                    else f"row {row} has {tokens} {self.name} tokens, but no {self.argument} came with them"
                )
            span = self.spans[self.taken]
            size = self.layout.tokens(span)
            if size > left:
                raise ValueError(
                    f"row {row} has room for {left} {self.name} tokens where the next grid {_grid(span)} takes {size}: "
                    "the prompt was truncated, or its pictures and grids come in different orders"
                )
            left -= size
            self.taken += 1
        return self.spans[first : self.taken]

    def check_empty(self) -> None:
        left = len(self.spans) - self.taken
        if left:
            raise ValueError(
                f"{self.argument} has {left} grid{'s' * (left > 1)} more than the prompts have pictures, the next is "
                f"{_grid(self.spans[self.taken])}: a picture was cut off a prompt's end, or has no placeholders"
            )


def _grid(span: Span) -> str:
    assert not isinstance(span, Text)  # a supply holds pictures alone
    return "x".join(map(str, span.grid))


def _grids(argument: str, grids: Any) -> list[tuple[int, int, int]]:
    if grids is None:
        return []
    table = torch.as_tensor(grids)
    if table.dim() != 2 or table.shape[1] != 3:
        raise ValueError(f"{argument} has shape {tuple(table.shape)}; expected (n, 3): t, h, w in patches")
    return [(int(t), int(h), int(w)) for t, h, w in table.tolist()]


def _clips(grids: list[tuple[int, int, int]], seconds: Any, layout: GridLayout) -> list[Span]:
    if seconds is not None and layout.time != "seconds":
        raise ValueError(f"second_per_grid_ts came, but the time of this family's layout is {layout.time!r}")
    if layout.time == "stamps":
        return [Video((1, h, w), stamp=0) for t, h, w in grids for _ in range(t)]
    if layout.time == "index":
        return [Video(grid) for grid in grids]
    each = [1.0] * len(grids) if seconds is None else torch.as_tensor(seconds).tolist()
    if len(each) != len(grids):
        raise ValueError(f"second_per_grid_ts has {len(each)} entries for {len(grids)} clips; expected one a clip")
    return [Video(grid, seconds=second) for grid, second in zip(grids, each, strict=True)]


def _runs(kinds: Tensor, mask: Tensor) -> list[tuple[int, bool, int]]:
    """(kind, kept, length) of the maximal runs of one row."""
    pairs, counts = torch.unique_consecutive(torch.stack([kinds, mask.to(kinds.dtype)]), dim=1, return_counts=True)
    return [(kind, bool(kept), count) for (kind, kept), count in zip(pairs.T.tolist(), counts.tolist(), strict=True)]
