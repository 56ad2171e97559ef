"""What a rule of positions does to prompts of text, one picture or clip, and text.

Letters: A axes, N tokens, T temporal steps, H and W the grid in tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields

import torch
from torch import Tensor

from mrope.checks import Number
from mrope.layouts import Layout, SpanLayout, Traits
from mrope.positions import pack
from mrope.probes.audits.layout import GRIDS, fitting, traits_of
from mrope.probes.audits.report import AuditCheck, outcome
from mrope.probes.audits.target import Laid, Target
from mrope.spans import Grid, Text

BEFORE, AFTER = 3, 4
"""Tokens of text around the picture or clip."""

LONG = (20, 2, 3)
"""A clip that lasts far longer than it is wide, so that text behind it can land inside it, decoded or not."""

SUBJECTS = 5  # tokens of text whose distances to a picture are compared
ROWS, COLS = ("h", "row", "height"), ("w", "col", "width")
"""What axes of rows and of columns are called."""

_MEANS = {
    "text_is_1d": ("text alone gets 0, 1, 2, ... on every axis", "arXiv:2409.12191; Su's compatibility"),
    "clears_before": ("no axis of a picture or clip goes back into the text before it", "arXiv:2510.23095"),
    "clears_after": ("no axis of a picture or clip reaches into the text behind it", "arXiv:2510.23095"),
    "distinct": ("no two tokens of a picture or clip share their ids", "arXiv:2510.23095"),
    "monotone": ("the first axis never goes back along a prompt", ""),
    "symmetric": ("on every axis a picture lies half-way between the text on its sides", "kexue.fm 10352"),
}


def looks_of(target: Target, grids: tuple[Grid, ...]) -> tuple[dict[Grid, Laid], list[tuple[str, str]]]:
    """Prompts around each grid that the target has a rule for, and why it refused the others."""
    assert target.lay is not None
    looks: dict[Grid, Laid] = {}
    refused = []
    for grid in dict.fromkeys((*grids, *GRIDS, LONG)):
        try:
            looks[grid] = target.lay(grid, BEFORE, AFTER)
        except Exception as error:  # of whatever code lays tokens out
            refused.append((f"{_words(grid)}", " ".join(str(error).split())[:160] or type(error).__name__))
    return looks, refused


def id_checks(target: Target, looks: Mapping[Grid, Laid], shown: tuple[Grid, ...]) -> Iterator[AuditCheck]:
    """Every check of the ids.

    Args:
        target: what is audited.
        looks: prompts around grids.
        shown: of them, those whose figures are told where no promise is broken.
    """
    grids = [grid for grid in shown if grid in looks] or list(looks)[:1]
    yield from _traits(target, looks, grids)
    yield from _growth(target, looks, grids)
    yield from _decode(target, looks)
    if target.layout is not None:
        yield from _turns(target.layout, list(looks))
    if target.batch_order is not None:
        alike = target.batch_order()
        yield AuditCheck(
            name="batch-order",
            means="a row has the same ids alone and in a batch",
            figure="the same" if alike else "they differ",
            limit="the same",
            outcome=outcome(alike),
        )
    if target.trained is not None and target.trained.lay is not None:
        yield _as_trained(target, target.trained, looks)
    yield from _directions(target, looks, grids)
    yield from _boundary(looks, grids)
    spread = ", ".join(f"{_words(grid)} {distance_spread(looks[grid]):.3g}" for grid in grids)
    yield AuditCheck(
        name="distance-spread",
        means="how differently far the tokens of a picture are from a token of the text behind it, in positions (PTD)",
        figure=spread,
        value=distance_spread(looks[grids[0]]),
        source="arXiv:2505.16416; distances divided by the root of the number of axes",
    )


def _words(grid: Grid) -> str:
    t, h, w = grid
    return f"picture {h} x {w}" if t == 1 else f"clip {t} x {h} x {w}"


def _number(value: float | Tensor) -> str:
    return f"{float(value):.6g}"


def _traits(target: Target, looks: Mapping[Grid, Laid], grids: list[Grid]) -> Iterator[AuditCheck]:
    """The traits, each with the prompt that breaks it, or with what it is in the shown ones."""
    first = next(iter(looks.values()))
    triples = {grid: (look.before, look.block, look.after) for grid, look in looks.items()}
    alone = first.before
    measured = traits_of(list(triples.values()), alone)
    for field in fields(Traits):
        holds, promised = getattr(measured, field.name), getattr(target.traits, field.name)
        broken = [grid for grid, look in triples.items() if not getattr(traits_of([look], alone), field.name)]
        means, source = _MEANS[field.name]
        told = (broken[:1] if promised else [grid for grid in grids if grid in broken] or broken[:1]) or grids[:1]
        figures = [_TELLS[field.name](looks[grid], grid) for grid in told]
        yield AuditCheck(
            name=field.name.replace("_", "-"),
            means=means,
            figure="; ".join(figures),
            value=None,
            limit="holds" if promised else "",
            outcome=outcome(holds, promised),
            source=source,
        )


def _tell_text(look: Laid, grid: Grid) -> str:
    return ", ".join(f"({', '.join(map(_number, token))})" for token in look.before.T.tolist())


def _tell_before(look: Laid, grid: Grid) -> str:
    return f"{_words(grid)}: text up to {_number(look.before.max())}, the block from {_number(look.block.min())}"


def _tell_after(look: Laid, grid: Grid) -> str:
    return f"{_words(grid)}: the block up to {_number(look.block.max())}, text from {_number(look.after.min())}"


def _tell_distinct(look: Laid, grid: Grid) -> str:
    return f"{_words(grid)}: {torch.unique(look.block, dim=1).shape[1]} ids of {look.block.shape[1]} tokens"


def _tell_monotone(look: Laid, grid: Grid) -> str:
    steps = torch.cat((look.before, look.block, look.after), dim=1)[0].diff()
    return f"{_words(grid)}: the first axis steps by {_number(steps.min())} to {_number(steps.max())}"


def _tell_symmetric(look: Laid, grid: Grid) -> str:
    block = (look.block.amin(1) + look.block.amax(1)).double() / 2
    off = (block - (look.before[:, -1] + look.after[:, 0]).double() / 2).tolist()
    return f"{_words(grid)}: off the middle by {', '.join(map(_number, off))}"


_TELLS = {
    "text_is_1d": _tell_text,
    "clears_before": _tell_before,
    "clears_after": _tell_after,
    "distinct": _tell_distinct,
    "monotone": _tell_monotone,
    "symmetric": _tell_symmetric,
}


def taken(look: Laid) -> Number:
    """The positions that a picture or clip takes: from the first of the text behind to where it would be without."""
    return look.after[0, 0].item() - look.before[0, -1].item() - 1


def _growth(target: Target, looks: Mapping[Grid, Laid], grids: list[Grid]) -> Iterator[AuditCheck]:
    told = [f"{_words(grid)}: {_number(taken(looks[grid]))} for {looks[grid].block.shape[1]} tokens" for grid in grids]
    promised, right = isinstance(target.layout, SpanLayout) and getattr(target.layout, "time", None) != "stamps", True
    if promised:
        assert isinstance(target.layout, SpanLayout)
        wrong = [
            (grid, target.layout.growth(*grid))
            for grid, look in looks.items()
            if not math.isclose(taken(look), target.layout.growth(*grid), abs_tol=1e-4)
        ]
        right = not wrong
        told = [
            f"{_words(grid)}: {_number(taken(looks[grid]))}, stated {_number(size)}" for grid, size in wrong
        ] or told
    yield AuditCheck(
        name="growth",
        means="how many positions a picture or clip takes",
        figure="; ".join(told),
        value=taken(looks[grids[0]]),
        limit="as the layout states" if promised else "",
        outcome=outcome(right, promised),
        source="arXiv:2409.12191",
    )
    equal = all(math.isclose(taken(look), look.block.shape[1], abs_tol=1e-4) for look in looks.values())
    yield AuditCheck(
        name="span-is-tokens",
        means="a picture takes as many positions as tokens (Su's equivalence)",
        figure="yes" if equal else "no",
        source="kexue.fm 10352",
    )


def _decode(target: Target, looks: Mapping[Grid, Laid]) -> Iterator[AuditCheck]:
    """The first decoded token lies where it would in a longer prompt."""
    assert target.lay is not None
    known = {grid: look for grid, look in looks.items() if look.next is not None}
    if not known:
        return
    off = []
    for grid, look in known.items():
        right = target.lay(grid, BEFORE, AFTER + 1).after[:, -1].tolist()
        if any(abs(each - float(look.next or 0)) > 1e-4 for each in right):
            off.append(f"{_words(grid)}: decoded at {_number(look.next or 0)}, prefilled at {_number(right[0])}")
    yield AuditCheck(
        name="decode",
        means="a token has the same position decoded and prefilled",
        figure=off[0] if off else f"the same behind {len(known)} pictures and clips",
        value=len(off),
        limit="the same",
        outcome=outcome(not off),
    )


def _turns(layout: Layout, grids: list[Grid]) -> Iterator[AuditCheck]:
    """A prompt in two turns is the prompt in one."""
    spans = [fitting(layout, grid, getattr(layout, "merge", 1)) for grid in grids[:2]]
    if getattr(layout, "axes", 3) == 2 or None in spans:  # a page stands alone
        return
    first, second = ([span, Text(2)] for span in spans if span is not None)
    begin = layout(first)
    turn = layout(second, begin)
    one = layout([*first, *second]).ids
    same = torch.allclose(torch.cat((begin.ids, turn.ids), dim=1).double(), one.double(), atol=1e-4)
    yield AuditCheck(
        name="turns",
        means="a second turn on top of a cache has the ids of one long prompt",
        figure="the same" if same else "they differ",
        limit="the same",
        outcome=outcome(same),
    )
    alone = layout(second)
    row = pack([begin, alone])
    same = torch.equal(row.ids[:, begin.ids.shape[1] :], alone.ids) and row.ends == (begin.end, alone.end)
    yield AuditCheck(
        name="packed",
        means="a document packed behind another has the ids that it has alone, and goes on where it would",
        figure="the same" if same else "they differ",
        limit="the same",
        outcome=outcome(same),
    )
    layers = sorted({*begin.layers})
    if layers:
        yield AuditCheck(
            name="layers",
            means="layers have positions of their own; those of layer 0 are measured here",
            figure=f"{len(layers)} kinds in {len(begin.layers)} layers",
            value=len(layers),
        )


def _as_trained(target: Target, trained: Target, looks: Mapping[Grid, Laid]) -> AuditCheck:
    """The ids are those of the rule that it is meant to be."""
    assert trained.lay is not None
    off = ""
    for grid, look in looks.items():
        right = trained.lay(grid, BEFORE, AFTER)
        for name in ("before", "block", "after"):
            ours, theirs = getattr(right, name).double(), getattr(look, name).double()
            if ours.shape != theirs.shape:
                off = f"{_words(grid)}: {theirs.shape[1]} tokens, not {ours.shape[1]}"
            elif not torch.allclose(ours, theirs, atol=1e-4):
                place = int((ours != theirs).any(0).nonzero()[0])
                seen, wanted = (", ".join(map(_number, ids[:, place].tolist())) for ids in (theirs, ours))
                where = {"before": "of the text before", "block": "of the block", "after": "of the text behind"}[name]
                off = f"{_words(grid)}: token {place} {where} is at ({seen}), not ({wanted})"
            if off:
                break
        if off:
            break
    return AuditCheck(
        name="ids-as-trained",
        means=f"the ids are those of {trained.name}",
        figure=off or f"equal for {len(looks)} pictures and clips",
        limit="equal",
        outcome=outcome(not off),
    )


def named(axes: tuple[str, ...]) -> tuple[int, int] | None:
    """The axes of rows and of columns, where both are named."""
    row = next((place for place, name in enumerate(axes) if name in ROWS), None)
    col = next((place for place, name in enumerate(axes) if name in COLS), None)
    return None if row is None or col is None else (row, col)


def cells_of(look: Laid, grid: Grid) -> Tensor | None:
    """(A, T, H, W) the ids of the cells; None where the block has other tokens as well."""
    return look.block.double().unflatten(1, grid) if look.block.shape[1] == math.prod(grid) else None


def _directions(target: Target, looks: Mapping[Grid, Laid], grids: list[Grid]) -> Iterator[AuditCheck]:
    """One row further moves the axis of rows and no other, and likewise one column."""
    axes = named(target.axes)
    if axes is None:
        return
    cells = cells_of(looks[grids[0]], grids[0])
    if cells is None or min(cells.shape[2:]) < 2:
        return
    row, col = axes
    down, right = cells[:, 0].diff(dim=1).flatten(1), cells[:, 0].diff(dim=2).flatten(1)
    moves = {
        "a row": [axis for axis in axes if down[axis].abs().max() > 1e-6],
        "a column": [axis for axis in axes if right[axis].abs().max() > 1e-6],
    }
    swapped = moves == {"a row": [col], "a column": [row]}
    one = "; ".join(
        f"{name} moves {' and '.join(target.axes[axis] for axis in moved) or 'neither'}"
        for name, moved in moves.items()
    )
    plain = moves == {"a row": [row], "a column": [col]}
    yield AuditCheck(
        name="rows-and-columns",
        means="one row further moves the axis of rows alone, one column further that of columns",
        figure=one,
        limit="each its own" if plain or swapped else "",
        outcome=outcome(not swapped, plain or swapped),
    )


def _boundary(looks: Mapping[Grid, Laid], grids: list[Grid]) -> Iterator[AuditCheck]:
    told = []
    for grid in grids:
        look = looks[grid]
        into = (look.block[:, 0] - look.before[:, -1]).tolist()
        out = (look.after[:, 0] - look.block[:, -1]).tolist()
        told.append(f"{_words(grid)}: {', '.join(map(_number, into))} in, {', '.join(map(_number, out))} out")
    yield AuditCheck(
        name="boundary",
        means="by how much each axis jumps from text into the first cell, and from the last cell into text",
        figure="; ".join(told),
        source="arXiv:2502.11664",
    )


def distance_spread(look: Laid) -> float:
    """PTD: over tokens of text and of the picture, the mean of how far a distance is from the mean one of its text.

    Distances are Euclidean over all axes, divided by the root of their number: one position of text is 1.
    """
    text = look.after[:, :1].double() + torch.arange(SUBJECTS, dtype=torch.float64)
    distance = torch.cdist(text.T, look.block.double().T) / len(text) ** 0.5
    return float((distance - distance.mean(1, keepdim=True)).abs().mean())
