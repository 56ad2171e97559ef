"""Checks of a batch that was saved before it went into a model. Letters: A axes, B rows, N tokens, D documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mrope.checks import whole
from mrope.families import family, family_names
from mrope.hf.batch import grids_of
from mrope.hf.checkup.compare import PLUG, first_difference, ids_at
from mrope.hf.checkup.language import leaks
from mrope.hf.checkup.report import Finding
from mrope.hf.checkup.subject import Subject, model_forward
from mrope.hf.reading import layout_of, read_spans
from mrope.layouts import SpanLayout
from mrope.spans import Span, Text

_BOUNDS = ("cu_seq_lens_q", "cu_seqlens")
_GRIDS = ("image_grid_thw", "video_grid_thw", "target_sizes", "target_sizes_videos")


@dataclass(eq=False)
class Batch:
    """A saved batch.

    Args:
        subject: whose batch it is.
        inputs: by name, as the model takes them; beside them, if wanted, `image_sizes` (P, 2), height and width of each
            picture before anything resized it, and `boxes` (n, 4), the corners that the text of the prompt states.
    """

    subject: Subject
    inputs: Mapping[str, Any]

    @cached_property
    def spans(self) -> list[list[Span]]:
        """Of each row."""
        return read_spans(self.inputs, self.subject.config)

    @cached_property
    def mask(self) -> Tensor:
        """(B, N) bool, where there are tokens."""
        tokens, mask = torch.as_tensor(self.inputs["input_ids"]), self.inputs.get("attention_mask")
        return torch.ones_like(tokens, dtype=torch.bool) if mask is None else torch.as_tensor(mask) != 0

    @property
    def bounds(self) -> list[int] | None:
        """Where documents begin and end, if the batch says so."""
        found = next((self.inputs[name] for name in _BOUNDS if self.inputs.get(name) is not None), None)
        return None if found is None else torch.as_tensor(found).flatten().tolist()

    @cached_property
    def ids(self) -> Tensor | None:
        """`position_ids` as (A, B, N), (A + 1, B, N) or (1, B, N)."""
        ids = self.inputs.get("position_ids")
        if ids is None:
            return None
        ids = torch.as_tensor(ids)
        return ids[None] if ids.dim() == 2 else ids

    def starts(self, row: int) -> list[int]:
        """The tokens of a row, counted without padding, at which its ids begin again."""
        assert self.ids is not None
        kept = self.ids[:, row, self.mask[row]]
        first = kept[0] if len(kept) == self.axes + 1 else kept.amax(0)
        return [place for place in (first == 0).nonzero().flatten().tolist() if place > 0]

    @property
    def axes(self) -> int:
        """Rows of ids that the model's layout has, the text row left out."""
        return layout_of(self.subject.config).axes


def placeholders(batch: Batch) -> Iterator[Finding]:
    """Placeholders and grids fit one another."""
    try:
        _ = batch.spans
    except ValueError as error:
        yield Finding(
            check="placeholders",
            level="wrong",
            rule="each grid has its placeholders, in the order of the prompts",
            seen=str(error),
            right="as many placeholders as the grids take",
            fix="truncate whole pictures with their grids (mrope.truncate), and pad all tables on one side",
        )


def token_types(batch: Batch) -> Iterator[Finding]:
    """Pictures come with mm_token_type_ids, or with position_ids."""
    inputs = batch.inputs
    pictured = next((key for key in _GRIDS if inputs.get(key) is not None), None)
    takes = "mm_token_type_ids" in model_forward(batch.subject.config)
    if pictured and takes and inputs.get("mm_token_type_ids") is None and inputs.get("position_ids") is None:
        yield Finding(
            check="token-types",
            level="wrong",
            rule="a batch with pictures says which tokens are theirs",
            seen=f"{pictured} without mm_token_type_ids",
            right="mm_token_type_ids, 0 text, 1 image, 2 video",
            fix="keep the processor's, or mrope.hf.token_kinds(input_ids, ...)",
        )


def positions(batch: Batch) -> Iterator[Finding]:
    """Given ids are those of training, document by document."""
    ids, axes = batch.ids, batch.axes
    if ids is None:
        return
    if ids.shape[0] not in (1, axes, axes + 1) or ids.shape[1:] != batch.mask.shape:
        yield Finding(
            check="positions",
            level="wrong",
            rule=f"position_ids are (B, N), ({axes}, B, N) or ({axes + 1}, B, N)",
            seen=f"shape {tuple(ids.shape)} for tokens {tuple(batch.mask.shape)}",
            right=f"{(axes, *batch.mask.shape)}",
            fix="mrope.hf.read_positions(inputs, config)",
        )
        return
    given = ids[-axes:].expand(axes, -1, -1)
    right = _laid(batch, layout_of(batch.subject.config))
    place = first_difference(torch.where(batch.mask, given, 0), right)
    if place is not None:
        old = _laid(batch, layout_of(batch.subject.config, "transformers-5.24"))
        known = first_difference(torch.where(batch.mask, given, 0), old) is None
        yield Finding(
            check="positions",
            level="wrong",
            rule="a span starts at the largest position + 1, each document at 0",
            seen=f"token {place[1]} of row {place[0]} is at {ids_at(given, *place)}"
            + (", by the rule of transformers 5.24" if known else ""),
            right=ids_at(right, *place),
            fix="mrope.hf.read_positions(inputs, config), document by document",
        )


def _laid(batch: Batch, layout: SpanLayout) -> Tensor:
    """(A, B, N) the ids of each document by `layout`, 0 in padding."""
    placed = torch.zeros(layout.axes, *batch.mask.shape, dtype=torch.float64)
    for row, spans in enumerate(batch.spans):
        bounds = batch.bounds[1:-1] if batch.bounds and len(batch.mask) == 1 else batch.starts(row)
        documents = _documents(spans, bounds, layout)
        laid = [layout(document).ids.to(torch.float64) for document in documents]
        placed[:, row, batch.mask[row]] = torch.cat(laid, dim=1) if laid else placed[:, row, :0]
    return placed


def _documents(spans: Sequence[Span], bounds: Sequence[int], layout: SpanLayout) -> list[list[Span]]:
    """The spans of each document; a text is cut where one begins, a picture is not."""
    documents: list[list[Span]] = [[]]
    left, at = list(bounds), 0
    for span in spans:
        length = layout.tokens(span)
        while left and at < left[0] < at + length and isinstance(span, Text):
            documents[-1].append(Text(left[0] - at))
            documents.append([])
            at, length = left[0], length - (left.pop(0) - at)
            span = Text(length)
        if left and left[0] <= at:
            left.pop(0)
            if documents[-1]:
                documents.append([])
        documents[-1].append(span)
        at += length
    return documents


def packing(batch: Batch) -> Iterator[Finding]:
    """Documents of a packed row do not see each other."""
    axes, bounds = batch.axes, batch.bounds
    starts = [] if batch.ids is None else [batch.starts(row) for row in range(len(batch.mask))]
    if bounds is not None and starts and len(starts) == 1 and starts[0] != bounds[1:-1]:
        yield Finding(
            check="packing",
            level="wrong",
            rule="position_ids begin again where cu_seqlens say",
            seen=f"they begin again at {starts[0]}",
            right=f"{bounds[1:-1]}",
            fix="mrope.pack(rows), whose ids and cu_seqlens fit",
        )
    if bounds is not None and len(bounds) > 2 and not starts:
        yield Finding(
            check="packing",
            level="wrong",
            rule="each packed document begins at position 0",
            seen=f"cu_seqlens say {len(bounds) - 1} documents, and no position_ids came: the model's own run on",
            right=f"position_ids that begin again at {bounds[1:-1]}",
            fix="mrope.pack(rows), whose ids and cu_seqlens fit",
        )
    if bounds is not None or not any(starts):
        return
    assert batch.ids is not None
    mask = batch.inputs.get("attention_mask")
    if mask is not None and torch.as_tensor(mask).dim() > 2:
        return
    seen = "3-axis ids carry no bounds" if len(batch.ids) == axes > 1 else leaks(batch.subject, len(batch.ids) - 1)
    if seen is not None:
        row = next(number for number, each in enumerate(starts) if each)
        yield Finding(
            check="packing",
            level="wrong",
            rule="a packed document is computed as alone",
            seen=f"row {row} begins again at {starts[row]} in ids {tuple(batch.inputs['position_ids'].shape)}: {seen}",
            right=f"({axes + 1}, B, N) with the text row first, or cu_seq_lens with FlashAttention",
            fix="mrope.pack(rows): Positions.text is the first row, Positions.cu_seqlens the bounds",
        )


def offsets(batch: Batch) -> Iterator[Finding]:
    """A stated decode offset is that of these rows."""
    given = batch.inputs.get("rope_deltas")
    if given is None:
        return
    layout, seen = layout_of(batch.subject.config), torch.as_tensor(given).flatten().tolist()
    right = [int(layout(row).ids.amax()) + 1 - sum(map(layout.tokens, row)) if row else 0 for row in batch.spans]
    if seen != right:
        yield Finding(
            check="stale-offset",
            level="wrong",
            rule="rope_deltas are the largest position + 1 less the tokens, a row",
            seen=f"rope_deltas are {seen}",
            right=f"{right}",
            fix=f"keep one offset a request (Positions.offset), or {PLUG}, which remembers it on the cache",
        )


def boxes(batch: Batch) -> Iterator[Finding]:
    """Boxes are written as the family writes them."""
    given, record = batch.inputs.get("boxes"), batch.subject.family
    if given is None or record.boxes not in ("0-1000", "processed-pixels", "0-1"):
        return
    table = torch.as_tensor(given, dtype=torch.float64).reshape(-1, 4)
    grids = torch.tensor(grids_of("image_grid_thw", batch.inputs.get("image_grid_thw"))).reshape(-1, 3)
    sides = (grids[:, 1:].amax(0) * record.patch).tolist() if len(grids) else [0, 0]
    most = {"0-1000": (1000, 1000), "0-1": (1, 1), "processed-pixels": sides}[record.boxes]
    right = f"corners (x0, y0, x1, y1) in {record.boxes}"
    rule = f"{record.name} writes boxes as {record.boxes}"
    fix = "plan.encode_boxes(boxes) of mrope.vision, which knows the picture's own and its resized size"
    for number, box in enumerate(table.tolist()):
        words = "(" + ", ".join(f"{value:g}" for value in box) + ")"
        problem = None
        if box[0] > box[2] or box[1] > box[3]:
            problem = "its second corner lies before the first: width and height?"
        elif (record.boxes != "processed-pixels" or len(grids)) and (
            max(box[::2]) > most[1] or max(box[1::2]) > most[0]
        ):
            problem = f"it passes {most[1]:g} wide or {most[0]:g} high"
        elif record.boxes != "0-1" and max(map(max, table.tolist())) <= 1:
            problem = "all boxes are shares of a side"
        if problem:
            yield Finding(
                check="boxes",
                level="wrong",
                rule=rule,
                seen=f"box {number} is {words}: {problem}",
                right=right,
                fix=fix,
            )
            return


def resizers(batch: Batch) -> Iterator[Finding]:
    """A picture is resized once."""
    sizes, record = batch.inputs.get("image_sizes"), batch.subject.family
    grids = grids_of("image_grid_thw", batch.inputs.get("image_grid_thw"))
    if sizes is None:
        return
    rows = grids_of("image_sizes", sizes, sides=2)
    if len(rows) != len(grids):
        raise ValueError(f"image_sizes has {len(rows)} rows for {len(grids)} pictures; expected one a picture")
    for number, ((height, width), grid) in enumerate(zip(rows, grids, strict=True)):
        whole("a side in image_sizes", min(height, width), 1)
        right = _grid(record, (height, width))
        if right is None or grid == right:
            continue
        for name in family_names():
            other = family(name)
            first = None if other.factor == record.factor else _resized(other, (height, width))
            if first is not None and _grid(record, first) == grid:
                yield Finding(
                    check="two-resizers",
                    level="wrong",
                    rule="a picture is resized once, by the family's own rule",
                    seen=f"picture {number} of {height} x {width} has grid {grid}: first resized to multiples of "
                    f"{other.factor} ({first[0]} x {first[1]}), then of {record.factor}",
                    right=f"grid {right}",
                    fix="hand over the picture itself, or pass do_resize=False",
                )
                return


def _resized(record: Any, size: tuple[int, int]) -> tuple[int, int] | None:
    if record.resize != "area":
        return None
    try:
        return record.plan(size).resized
    except ValueError:
        return None


def _grid(record: Any, size: tuple[int, int]) -> tuple[int, int, int] | None:
    try:
        return record.plan(size).grid
    except ValueError:
        return None


CHECKS = {
    "placeholders": placeholders,
    "token-types": token_types,
    "positions": positions,
    "packing": packing,
    "stale-offset": offsets,
    "boxes": boxes,
    "two-resizers": resizers,
}
BY_SPANS = ("positions", "packing", "stale-offset")
"""The checks that read spans, and say nothing where placeholders do not fit."""
