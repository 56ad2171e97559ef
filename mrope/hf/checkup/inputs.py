"""Checks of a batch that was saved before it went into a model: its tokens, ids and documents.

Letters: A axes, B rows, N tokens, D documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from mrope.hf.batch import TEXT
from mrope.hf.checkup import pictures
from mrope.hf.checkup.compare import PLUG, attempt, first_difference, ids_at
from mrope.hf.checkup.language import BARE, leaks
from mrope.hf.checkup.report import Finding
from mrope.hf.checkup.saved import Batch
from mrope.hf.checkup.static import vocabulary_of
from mrope.hf.checkup.subject import model_forward
from mrope.hf.reading import layout_of
from mrope.hf.reading import placeholders as placeholder_kinds
from mrope.layouts import GenerationLayout, SpanLayout
from mrope.spans import Span, Text

_GRIDS = ("image_grid_thw", "video_grid_thw", "target_sizes", "target_sizes_videos")
_UNLEARNT = -100  # the label that transformers' losses leave out


def tokens(batch: Batch) -> Iterator[Finding]:
    """Tokens and their mask are tables of whole numbers of one shape, without which nothing else can be asked."""
    given, mask = batch.inputs["input_ids"], batch.inputs.get("attention_mask")
    ids, error = attempt(lambda: torch.as_tensor(given))
    if error is None and mask is not None:
        mask, error = attempt(lambda: torch.as_tensor(mask))
    seen, right = error, "tensors"
    if error is None and ids.dim() != 2:
        seen, right = f"input_ids of shape {tuple(ids.shape)}", "shape (B, N)"
    elif error is None and (ids.is_floating_point() or ids.dtype == torch.bool):
        seen, right = f"input_ids in {ids.dtype}", "torch.int64"
    elif mask is not None and error is None and mask.dim() <= 2:  # others go to attention as they are
        if mask.shape != ids.shape:
            seen, right = f"attention_mask of shape {tuple(mask.shape)}", f"{tuple(ids.shape)}, as input_ids"
        elif others := mask[(mask != 0) & (mask != 1)].tolist():
            seen, right = f"attention_mask holds {others[0]:g}", "1 for tokens and 0 for padding"
    if seen is not None:
        yield Finding(
            check="tokens",
            level="wrong",
            rule="input_ids (B, N) are whole numbers, and attention_mask (B, N) is 0 or 1",
            seen=seen,
            right=right,
            fix="pass both as the processor makes them with return_tensors='pt'",
        )


def words(batch: Batch) -> Iterator[Finding]:
    """Tokens are words of the vocabulary, or placeholders."""
    config, ids = batch.subject.config, torch.as_tensor(batch.inputs["input_ids"])
    count = vocabulary_of(config)
    if count is None:
        return
    beyond = ((ids < 0) | (ids >= count)) & ~_placeholders(batch)
    for row, token in beyond.nonzero().tolist()[:1]:
        yield Finding(
            check="words",
            level="wrong",
            rule="input_ids are words of the vocabulary",
            seen=f"token {token} of row {row} is {ids[row, token]}, one of {int(beyond.sum())}",
            right=f"0 to {count - 1}",
            fix="use the tokenizer of the checkpoint, or resize the model's embeddings to it",
        )


def labels(batch: Batch) -> Iterator[Finding]:
    """Labels are a table like the tokens, and none is learnt in padding, nor in pictures."""
    ids, given = torch.as_tensor(batch.inputs["input_ids"]), batch.inputs.get("labels")
    if given is None:
        return
    given = torch.as_tensor(given)
    seen, right = None, f"shape {tuple(ids.shape)}, as input_ids"
    if given.shape != ids.shape:
        seen = f"labels of shape {tuple(given.shape)}"
    else:
        shown, padding = _placeholders(batch), torch.zeros_like(ids, dtype=torch.bool)
        if hasattr(batch.subject.config, "record") or isinstance(batch.subject.family.layout, GenerationLayout):
            shown = padding  # a built model leaves placeholders out by itself, and this family writes pictures
        if batch.mask.shape == ids.shape:
            padding = ~batch.mask
        learnt = (given != _UNLEARNT) & (shown | padding)
        for row, token in learnt.nonzero().tolist()[:1]:
            what = "padding" if padding[row, token] else "a placeholder"
            seen = f"token {token} of row {row}, {what}, has label {given[row, token]}, one of {int(learnt.sum())}"
            right = f"{_UNLEARNT}"
    if seen is not None:
        yield Finding(
            check="labels",
            level="wrong",
            rule="each token has a label, which is -100 in pictures, clips, sounds and padding",
            seen=seen,
            right=right,
            fix="mrope.hf.Collator makes them, or labels[mm_token_type_ids != 0] = -100, and so with padding",
        )


def _placeholders(batch: Batch) -> Tensor:
    """(B, N) bool, where pictures, clips and sounds are."""
    return placeholder_kinds(torch.as_tensor(batch.inputs["input_ids"]), batch.subject.config) != TEXT


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
    config = batch.subject.config
    # A built model knows its placeholders by their words.
    takes = "mm_token_type_ids" in model_forward(config) and not hasattr(config, "record")
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
    rows, subject = len(batch.ids) - 1, batch.subject
    seen = leaks(subject, rows, masked=mask is not None, use_cache=batch.inputs.get("use_cache"))
    if seen is None:
        return
    row = next(number for number, each in enumerate(starts) if each)
    right, fix = "computed as alone", "do not pack, or use FlashAttention with cu_seq_lens"
    if leaks(subject, rows) is None:
        seen += f" with {'an attention_mask' if mask is not None else 'a cache'}"
        right = BARE
        fix = "pass use_cache=False and leave the mask out, as mrope.hf.Collator(model, processor, pack=True) does"
    elif leaks(subject, axes) is None:
        right = f"({axes + 1}, B, N) with the text row first, {BARE}; or cu_seq_lens with FlashAttention"
        fix = "mrope.pack(rows): Positions.text is the first row, Positions.cu_seqlens the bounds"
    yield Finding(
        check="packing",
        level="wrong",
        rule="a packed document is computed as alone",
        seen=f"row {row} begins again at {starts[row]} in ids {tuple(batch.inputs['position_ids'].shape)}: {seen}",
        right=right,
        fix=fix,
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


CHECKS = {
    "tokens": tokens,
    "words": words,
    "labels": labels,
    "placeholders": placeholders,
    "pixels": pictures.pixels,
    "colours": pictures.colours,
    "token-types": token_types,
    "positions": positions,
    "packing": packing,
    "stale-offset": offsets,
    "boxes": pictures.boxes,
    "image-sizes": pictures.sizes,
}
BY_SPANS = ("pixels", "positions", "packing", "stale-offset")
"""The checks that say nothing where placeholders do not fit; where "tokens" finds something, none of them does."""
