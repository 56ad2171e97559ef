"""The border to transformers: what a batch says about its tokens is read once, checked, and becomes spans.

Letters: A axes, B batch, N tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from mrope.checks import Number
from mrope.layouts import GridLayout, SpanLayout
from mrope.layouts.layout import name_of
from mrope.positions import Positions
from mrope.spans import Image, Span, Text, Video

TEXT, IMAGE, VIDEO, AUDIO = 0, 1, 2, 3  # the words of transformers' mm_token_type_ids
_NAMES = {IMAGE: ("image", "image_grid_thw"), VIDEO: ("video", "video_grid_thw")}


def token_kinds(
    input_ids: Int[Tensor, "b n"],
    *,
    image_token_id: int,
    video_token_id: int | None = None,
    audio_token_id: int | None = None,
    video_brackets: tuple[int, int] | None = None,
) -> Int64[Tensor, "b n"]:
    """The kind of each token (0 text, 1 image, 2 video, 3 audio) by a checkpoint's placeholders: its mm_token_type_ids.

    Args:
        input_ids: (B, N) tokens.
        image_token_id: the placeholder of pictures.
        video_token_id: the placeholder of clips.
        audio_token_id: the placeholder of sounds.
        video_brackets: the words around a clip, for models that use the picture's placeholder in between (GLM-V).

    >>> token_kinds(torch.tensor([[7, 500, 500, 501]]), image_token_id=500, video_token_id=501)
    tensor([[0, 1, 1, 2]])
    """
    kinds = torch.zeros_like(input_ids, dtype=torch.int64)
    for kind, word in ((IMAGE, image_token_id), (VIDEO, video_token_id), (AUDIO, audio_token_id)):
        if word is not None:
            kinds += kind * (input_ids == word)
    if video_brackets is not None:
        begin, end = video_brackets
        inside = ((input_ids == begin).long() - (input_ids == end).long()).cumsum(-1) > 0
        kinds = torch.where(inside & (kinds == IMAGE), VIDEO, kinds)
    return kinds


def check_kinds(kinds: Int[Tensor, "b n"], seen: Int[Tensor, "b n"], mask: Bool[Tensor, "b n"]) -> None:
    """Refuse token types that say otherwise than the placeholders of `input_ids` (`seen`).

    Raises:
        ValueError: they differ at a token that is no padding.
    """
    wrong = ((seen != kinds.to(seen.device)) & mask).nonzero().tolist()
    if wrong:
        row, column = wrong[0]
        raise ValueError(
            f"mm_token_type_ids say {int(kinds[row, column])} for token {column} of row {row}, input_ids say "
            f"{int(seen[row, column])} (0 text, 1 image, 2 video, 3 audio): were they padded on different sides?"
        )


def batch_spans(
    kinds: Int[Tensor, "b n"],
    mask: Bool[Tensor, "b n"],
    *,
    layout: SpanLayout,
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
        layout: how the family lays out pictures and clips.
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
    check_mask(mask, kinds)
    clips = _clips(grids_of("video_grid_thw", video_grid_thw), second_per_grid_ts, layout)
    images = [Image((t, h, w)) for t, h, w in grids_of("image_grid_thw", image_grid_thw)]
    supply = {IMAGE: Supply(*_NAMES[IMAGE], images, layout), VIDEO: Supply(*_NAMES[VIDEO], clips, layout)}
    rows: list[list[Span]] = []
    for row, runs in enumerate(runs_of(kinds, mask)):
        spans: list[Span] = []
        for kind, kept, length in runs:
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
    layout: SpanLayout,
    starts: Sequence[Number | Positions] | None = None,
) -> Int64[Tensor, "a b n"] | Float[Tensor, "a b n"]:
    """The positions (A, B, N) of `rows` of spans, placed where `mask` has tokens; 0 elsewhere, as transformers has it.

    Pictures that are to be generated are no tokens of a prompt: `Positions.planned` of a single row has theirs.

    Args:
        rows: the spans of each row.
        mask: (B, N), True where there is a token.
        layout: the rule.
        starts: where each row begins, or what it goes on from; 0 if missing.

    >>> mask = torch.tensor([[False, True, True], [True, True, True]])
    >>> batch_positions([[Text(2)], [Text(1), Image((1, 2, 4))]], mask, layout=GridLayout())[2]
    tensor([[0, 0, 1],
            [0, 1, 2]])
    """
    if len(rows) != len(mask):
        raise ValueError(f"rows has {len(rows)} entries; the mask has {len(mask)} rows")
    kept = mask.cpu().numpy()
    placed = np.zeros((layout.axes, *kept.shape), dtype=layout.dtype)
    for row, (spans, start) in enumerate(zip(rows, [0] * len(rows) if starts is None else starts, strict=True)):
        placed[:, row, kept[row]] = layout(spans, start).ids.numpy()
    return torch.from_numpy(placed).to(mask.device)


class Supply:
    """The pictures of one kind that a batch still has to hand out.

    Args:
        name: what the pictures are called.
        argument: the argument that their grids came in.
        spans: the pictures.
        layout: how many tokens each takes.
    """

    def __init__(self, name: str, argument: str, spans: Sequence[Span], layout: SpanLayout) -> None:
        self.name, self.argument = name, argument
        self.spans, self.layout, self.taken = spans, layout, 0

    def take(self, row: int, tokens: int) -> list[Span]:
        """The next spans, which must fill a run of `tokens` placeholders exactly."""
        first, left = self.taken, tokens
        while left > 0:
            if self.taken == len(self.spans):
                raise ValueError(
                    f"row {row} has {tokens} {self.name} tokens in a run, {left} of them beyond what came: "
                    f"{self.argument} accounts for {len(self.spans)} of them in the whole batch"
                    if self.spans
                    else f"row {row} has {tokens} {self.name} tokens, but no {self.argument} came with them"
                )
            span = self.spans[self.taken]
            size = self._size(row, span)
            if size > left:
                raise ValueError(
                    f"row {row} has room for {left} {self.name} tokens where the next {name_of(span)} takes {size}: "
                    "the prompt was truncated, or its pictures and grids come in different orders, or a chunk of it "
                    "ends inside a picture"
                )
            left -= size
            self.taken += 1
        return list(self.spans[first : self.taken])

    def _size(self, row: int, span: Span) -> int:
        try:
            return self.layout.tokens(span)
        except ValueError as error:
            raise ValueError(f"row {row}, entry {self.taken} of {self.argument}: {error}") from None

    def check_empty(self) -> None:
        """Refuse pictures that are left over."""
        left = len(self.spans) - self.taken
        if left:
            raise ValueError(
                f"{self.argument} has {left} more than the prompts have {self.name} placeholders for, the next is "
                f"{name_of(self.spans[self.taken])}: it was cut off a prompt's end, or has no placeholders"
            )


def check_mask(mask: Tensor, kinds: Tensor) -> None:
    """Refuse a mask of another shape than the tokens."""
    if mask.shape != kinds.shape:
        raise ValueError(f"mask has shape {tuple(mask.shape)}, token kinds {tuple(kinds.shape)}; expected one shape")


def grids_of(argument: str, grids: Any, sides: int = 3) -> list[tuple[int, ...]]:
    """The rows of a table of grids, read from its device at once."""
    if grids is None:
        return []
    table = torch.as_tensor(grids).reshape(-1, sides) if len(grids) == 0 else torch.as_tensor(grids)
    if table.dim() != 2 or table.shape[1] != sides:
        names = "t, h, w" if sides == 3 else "h, w"
        raise ValueError(f"{argument} has shape {tuple(table.shape)}; expected (n, {sides}): {names} in patches")
    return [tuple(row) for row in table.tolist()]


def runs_of(kinds: Tensor, mask: Tensor) -> list[list[tuple[int, bool, int]]]:
    """(kind, kept, length) of the maximal runs of each row; kinds and mask are read from their device once."""
    rows = []
    for row_kinds, row_mask in zip(kinds.cpu().numpy(), mask.cpu().numpy(), strict=True):
        changes = np.flatnonzero((row_kinds[1:] != row_kinds[:-1]) | (row_mask[1:] != row_mask[:-1])) + 1
        begins = np.concatenate(([0], changes)) if len(row_kinds) else changes
        lengths = np.diff(np.concatenate((begins, [len(row_kinds)])))
        rows.append(
            list(zip(row_kinds[begins].tolist(), row_mask[begins].astype(bool).tolist(), lengths.tolist(), strict=True))
        )
    return rows


def _clips(grids: list[tuple[int, ...]], seconds: Any, layout: SpanLayout) -> list[Span]:
    time = layout.time if isinstance(layout, GridLayout) else "index"
    if seconds is not None and time != "seconds":
        raise ValueError(f"second_per_grid_ts came, but the time of this family's layout is {time!r}")
    if time == "stamps":
        return [Video((1, h, w), stamp=0) for t, h, w in grids for _ in range(t)]
    if time == "index":
        return [Video((t, h, w)) for t, h, w in grids]
    each = [1.0] * len(grids) if seconds is None else torch.as_tensor(seconds).tolist()
    if len(each) != len(grids):
        raise ValueError(f"second_per_grid_ts has {len(each)} entries for {len(grids)} clips; expected one a clip")
    return [Video((t, h, w), seconds=second) for (t, h, w), second in zip(grids, each, strict=True)]


def grids_of_rows(
    name: str, grids: Tensor, spans: Sequence[Sequence[Span]], kind: type[Image] | type[Video], rows: Sequence[int]
) -> list[int]:
    """The numbers of the grids that belong to these rows of a batch, row by row, repeats allowed.

    Args:
        name: of the grids in the batch.
        grids: (n, 3) of all rows.
        spans: of each row.
        kind: Image or Video, whose grids they are.
        rows: numbers of rows.

    Raises:
        ValueError: the rows have fewer pictures than there are grids.
    """
    # A clip with time stamps is many spans and one grid: rows and grids are matched by their temporal steps.
    row_ends = np.cumsum([sum(span.grid[0] for span in row if isinstance(span, kind)) for row in spans])
    grid_ends = grids[:, 0].cpu().cumsum(0).numpy()
    if row_ends[-1] != grid_ends[-1]:
        raise ValueError(f"{name} has a picture that is masked as a whole; take it out before taking rows")
    owner = np.searchsorted(row_ends, grid_ends)
    return [grid for row in rows for grid in np.flatnonzero(owner == row).tolist()]
