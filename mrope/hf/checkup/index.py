"""Checks of get_rope_index: what the installed library does with prompts whose positions are known.

Its ids are held against the trained rule (`mrope.hf.read_positions`), so that a library that does right is found clean,
whatever its version. Letters: A axes, B rows, N tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mrope.hf.checkup.compare import PLUG, attempt, finding, first_difference, ids_at
from mrope.hf.checkup.prompts import TALL, WIDE, batch, clip, columns, fitted, has_clips
from mrope.hf.checkup.report import Finding
from mrope.hf.checkup.subject import Subject
from mrope.layouts import CanvasLayout, GenerationLayout
from mrope.spans import Image, Text


def positions(subject: Subject) -> Iterator[Finding]:
    """Pictures and clips get the ids of training, and so does the text behind them."""
    cases = {"pictures": [[Text(4), WIDE, Text(3), TALL, Text(3)], [Text(5)]]}
    if has_clips(subject):
        cases["a short clip"] = [[Text(4), clip(subject, (2, 4, 8)), Text(3)]]
        cases["a clip that lasts longer than it is wide"] = [[Text(4), clip(subject, (12, 4, 8)), Text(3)]]
    for what, rows in cases.items():
        inputs = batch(subject, rows)
        right = subject.trained(inputs)
        ids, error = attempt(lambda inputs=inputs: subject.index(inputs))
        if error is not None:
            yield finding(
                "positions",
                "wrong",
                rule=f"{what} get positions",
                seen=f"get_rope_index raises {error}",
                right=f"{ids_at(right, 0, -1)} for the last token",
            )
            continue
        ids = ids * inputs["attention_mask"].cpu()  # what stands in padding is never read
        place = first_difference(ids, right)
        if place is not None:
            yield finding(
                "positions",
                "wrong" if subject.family.rule == "confirmed" else "risky",
                rule=f"{what}: the next token starts at the largest position + 1, as in training"
                if "clip" in what
                else f"{what}: ids as in training",
                seen=f"token {place[1]} of {ids.shape[-1]} is at {ids_at(ids, *place)}",
                right=ids_at(right, *place),
            )


def batch_order(subject: Subject) -> Iterator[Finding]:
    """A row's ids are the same in whatever company."""
    row = [Text(3), WIDE, Text(2)]
    alone, together = subject.index(batch(subject, [row])), subject.index(batch(subject, [row, row]))
    place = first_difference(together[:, 1:], alone)
    if place is not None:
        yield finding(
            "batch-order",
            "wrong",
            rule="a row has the same ids alone and as the second of a batch",
            seen=f"token {place[1]} of the second row is at {ids_at(together, 1, place[1])}",
            right=ids_at(alone, 0, place[1]),
            fix="pass position_ids, made row by row",
        )


def adjacent(subject: Subject) -> Iterator[Finding]:
    """Two pictures may touch."""
    inputs = batch(subject, [[Text(3), WIDE, TALL, Text(2)]], bare=True)
    right, refused = attempt(lambda: subject.trained(inputs))
    one = batch(subject, [[Text(3), WIDE, Text(2)]], bare=True)
    alone = attempt(lambda: first_difference(subject.index(one), subject.trained(one)))
    if refused is not None or alone != (None, None):
        return  # a family whose pictures need words around them
    ids, error = attempt(lambda: subject.index(inputs))
    seen = f"get_rope_index raises {error}" if error else f"the last token is at {ids_at(ids, 0, -1)}"
    if error or first_difference(ids, right) is not None:
        yield finding(
            "adjacent-pictures",
            "risky" if error else "wrong",
            rule="two pictures without a token between them",
            seen=seen,
            right=f"{ids_at(right, 0, -1)} for the last token",
            fix=f"put a token between them, {PLUG}, or pass position_ids",
        )


def truncation(subject: Subject) -> Iterator[Finding]:
    """A picture that was cut, or cut off a prompt, is noticed, and does not hand its grid to the next row."""
    ordinary = batch(subject, [[Text(3), WIDE, Text(2)]])
    last = int((ordinary["input_ids"][0] == subject.small.image_token_id).nonzero()[-1])
    inside = columns(ordinary, slice(0, last))
    ids, error = attempt(lambda: subject.index(inside))
    if error is None:
        yield finding(
            "truncated-picture",
            "wrong",
            rule="a picture that was cut is refused",
            seen=f"a picture without its last token is laid out up to {ids_at(ids, 0, -1)}",
            right="an error",
            fix=f"truncate whole pictures with their grids (mrope.truncate), or {PLUG}",
        )
    if isinstance(subject.layout, GenerationLayout):
        return  # each row is told its own number of pictures
    cut, kept, canvas = WIDE, TALL, isinstance(subject.layout, CanvasLayout)
    if not canvas and len({subject.layout.tokens(fitted(subject, span)) for span in (WIDE, TALL)}) > 1:
        # Newlines count: 2 rows of 9, 3 rows of 6.
        cut, kept = Image((1, 4, 16)), Image((1, 6, 10))
    whole = batch(subject, [[Text(9)], [Text(3), kept, Text(2)]])
    lent = batch(subject, [[Text(3), cut, Text(2)]])
    key = "target_sizes" if canvas else "image_grid_thw"
    inputs = {**whole, key: torch.cat([lent[key], whole[key]])}
    ids, error = attempt(lambda: subject.index(inputs))
    if error is not None:
        return  # it was noticed
    right = subject.trained(whole)
    place = first_difference(ids * whole["attention_mask"].cpu(), right)
    if place is not None:
        yield finding(
            "truncated-picture",
            "wrong",
            rule="a grid without placeholders is refused",
            seen=f"the picture of row {place[0]} is laid out by the grid of one that was cut off another row: token "
            f"{place[1]} is at {ids_at(ids, *place)}",
            right=f"an error, or {ids_at(right, *place)}",
            fix=f"truncate whole pictures with their grids (mrope.truncate), or {PLUG}, which refuses such batches",
        )


def empty_row(subject: Subject) -> Iterator[Finding]:
    """A row may be padding alone."""
    inputs = batch(subject, [[Text(3), WIDE, Text(2)], [Text(4)]])
    inputs["attention_mask"][1] = 0
    _, error = attempt(lambda: subject.index(inputs))
    if error is not None:
        yield finding(
            "empty-row",
            "risky",
            rule="a row that is padding alone has no positions",
            seen=f"get_rope_index raises {error}",
            right="no error",
        )
