"""What a rule of positions does to prompts of text, one picture or clip, and text.

Letters: A axes, N tokens, T temporal steps, H and W the grid in tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import TypeAlias

import torch
from torch import Tensor

from mrope.checks import Number
from mrope.layouts import Layout, SpanLayout, Traits
from mrope.positions import pack
from mrope.probes.audits.layout import GRIDS, fitting, traits_of
from mrope.probes.audits.report import AuditCheck, outcome
from mrope.probes.audits.target import Laid, Prompt, Target
from mrope.probes.words import counted
from mrope.spans import Grid, Text

BEFORE, AFTER = 3, 4
"""Tokens of text around the picture or clip."""

LONG = (20, 2, 3)
"""A clip that lasts far longer than it is wide, so that text behind it can land inside it, decoded or not."""

PROMPTS: Mapping[str, Prompt] = {
    "two pictures": (3, (1, 3, 5), 2, (1, 5, 3), 4),
    "a clip": (3, (2, 3, 5), 4),
    "a picture and a clip": (3, (1, 3, 5), 2, (2, 3, 5), 4),
    "a picture first": ((1, 3, 5), 4),
    "a picture last": (3, (1, 5, 3)),
    "long text": (4097,),
    "a picture behind long text": (4097, (1, 3, 5), 4),
}
"""Other prompts; of long text, since float16 counts to 2048 only."""

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


Reasons: TypeAlias = list[tuple[str, str]]
"""(picture or clip, why) in words."""


def looks_of(target: Target, grids: tuple[Grid, ...]) -> tuple[dict[Grid, Laid], Reasons, Reasons]:
    """Prompts around each grid that the target has a rule for, and why it refused the others, or broke down on them.

    A rule refuses by ValueError or NotImplementedError.
    """
    assert target.lay is not None
    looks: dict[Grid, Laid] = {}
    refused: Reasons = []
    broken: Reasons = []
    for grid in dict.fromkeys((*grids, *GRIDS, LONG)):
        try:
            looks[grid] = target.lay(grid, BEFORE, AFTER)
        except (ValueError, NotImplementedError) as error:
            refused.append((_words(grid), _why(error)))
        except Exception as error:  # of whatever code lays tokens out
            broken.append((_words(grid), _why(error)))
    return looks, refused, broken


def ids_run(reasons: Reasons) -> AuditCheck:
    """A rule of positions that broke down, or laid out nothing at all."""
    grid, why = reasons[0]
    others = f"; and {counted(len(reasons) - 1, 'other')}" if len(reasons) > 1 else ""
    return AuditCheck(
        name="ids-run",
        means="text around pictures and clips is laid out; a rule refuses some by ValueError, but not all",
        figure=f"{grid}: {why}{others}",
        value=len(reasons),
        limit="no error",
        outcome="fail",
    )


def _why(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


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
    if target.rule is not None:
        yield _prompts(target, looks)
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
        yield _as_trained(target, target.trained, list(dict.fromkeys((*looks, *shown, *GRIDS, LONG))), looks)
    yield from _directions(target, looks, grids)
    yield from _boundary(target.axes, looks, grids)
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


def _prompts(target: Target, looks: Mapping[Grid, Laid]) -> AuditCheck:
    """Prompts whose pictures and clips are laid out one by one are laid out together, and text in them goes on."""
    off, ran = [], 0
    for words, prompt in PROMPTS.items():
        if all(isinstance(part, int) or part in looks for part in prompt):
            wrong = _wrong(target, prompt)
            off += [f"{words}: {wrong}"] if wrong else []
            ran += 1
    return AuditCheck(
        name="prompts",
        means="several pictures, one at an end, and long text are laid out, and text goes on by one, past what it saw",
        figure="; ".join(off) or f"as they should be, {ran} prompts",
        value=len(off),
        limit="no error",
        outcome=outcome(not off),
    )


def _wrong(target: Target, prompt: Prompt) -> str:
    """What is wrong with the ids of a prompt, as far as the rule makes promises; empty: nothing."""
    assert target.rule is not None
    try:
        ids = target.rule(prompt).double()
    except Exception as error:  # of whatever code lays tokens out
        return _why(error)
    last = prompt[-1]
    if not isinstance(last, int) or not target.traits.text_is_1d:
        return ""
    seen, text = ids.split((ids.shape[1] - last, last), dim=1)
    if len(prompt) == 1:
        seen, text = ids[:, :0], ids
    steps = (text.diff(dim=1) - 1).abs().amax(0)
    if len(steps) and not float(steps.max()) < 1e-3:
        place = int((~(steps < 1e-3)).nonzero()[0])
        there, here = (_number(text[0, at]) for at in (place, place + 1))
        return f"word {place + 1} of the last text is at {here}, the one before it at {there}"
    if len(prompt) == 1 and bool((text[:, 0] != 0).any()):
        return f"the first word is at {_number(text[0, 0])}"
    if target.traits.clears_after and seen.numel() and not float(seen.max()) < float(text.min()):
        return f"the last text is at {_number(text.min())}, what is before it up to {_number(seen.max())}"
    return ""


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
            figure=f"{counted(len(layers), 'kind')} in {counted(len(begin.layers), 'layer')}",
            value=len(layers),
        )


def _as_trained(target: Target, trained: Target, grids: list[Grid], looks: Mapping[Grid, Laid]) -> AuditCheck:
    """The ids are those of the rule that it is meant to be, for all that this one lays out."""
    off = ""
    alike = 0
    for grid in grids:
        right = _tried(trained, grid)
        if right is not None:
            off = _apart(looks[grid], right) if grid in looks else f"it has no ids, and {trained.name} has"
            alike += 1
        if off:
            off = f"{_words(grid)}: {off}"
            break
    if not off and target.rule is not None and trained.rule is not None:
        each = dict(_compared(target.rule, trained.rule))
        alike += len(each)
        off = next((f"{words}: {wrong}" for words, wrong in each.items() if wrong), "")
    return AuditCheck(
        name="ids-as-trained",
        means=f"the ids are those of {trained.name}",
        figure=off or f"equal for {counted(alike, 'prompt')}",
        limit="equal",
        outcome=outcome(not off and alike > 0),
    )


def _compared(rule: Callable[[Prompt], Tensor], right: Callable[[Prompt], Tensor]) -> Iterator[tuple[str, str]]:
    """Each of `PROMPTS` that the right rule lays out, and what is wrong with it; empty: nothing."""
    for words, prompt in PROMPTS.items():
        try:
            wanted = right(prompt)
        except (ValueError, NotImplementedError):
            continue
        try:
            yield words, _differs(rule(prompt), wanted, "")
        except Exception as error:  # of whatever code lays tokens out
            yield words, _why(error)


def _tried(target: Target, grid: Grid) -> Laid | None:
    assert target.lay is not None
    try:
        return target.lay(grid, BEFORE, AFTER)
    except (ValueError, NotImplementedError):
        return None


def _apart(ours: Laid, right: Laid) -> str:
    """Where the ids of two prompts differ first; empty: nowhere."""
    pairs = (
        (ours.before, right.before, " of the text before"),
        (ours.block, right.block, " of the block"),
        (ours.after, right.after, " of the text behind"),
    )
    return next(filter(None, (_differs(*pair) for pair in pairs)), "")


def _differs(ours: Tensor, right: Tensor, where: str) -> str:
    """The first token whose ids (A, N) are others; empty: none."""
    if ours.shape != right.shape:
        return f"ids of shape {tuple(ours.shape)}{where}, not {tuple(right.shape)}"
    apart = ~torch.isclose(ours.double(), right.double(), atol=1e-4, rtol=0).all(0)
    if not bool(apart.any()):
        return ""
    place = int(apart.nonzero()[0])
    seen, wanted = (", ".join(map(_number, ids[:, place].tolist())) for ids in (ours, right))
    return f"token {place}{where} is at ({seen}), not ({wanted})"


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


def _boundary(axes: tuple[str, ...], looks: Mapping[Grid, Laid], grids: list[Grid]) -> Iterator[AuditCheck]:
    told, values = [], {}
    for grid in grids:
        look = looks[grid]
        into = (look.block[:, 0] - look.before[:, -1]).tolist()
        out = (look.after[:, 0] - look.block[:, -1]).tolist()
        told.append(f"{_words(grid)}: {', '.join(map(_number, into))} in, {', '.join(map(_number, out))} out")
        for way, jumps in (("in", into), ("out", out)):
            values |= {f"{_words(grid)} {way} {name}": jump for name, jump in zip(axes, jumps, strict=True)}
    yield AuditCheck(
        name="boundary",
        means="by how much each axis jumps from text into the first cell, and from the last cell into text",
        figure="; ".join(told),
        values=values,
        source="arXiv:2502.11664",
    )


def distance_spread(look: Laid) -> float:
    """PTD: over tokens of text and of the picture, the mean of how far a distance is from the mean one of its text.

    Distances are Euclidean over all axes, divided by the root of their number: one position of text is 1.
    """
    text = look.after[:, :1].double() + torch.arange(SUBJECTS, dtype=torch.float64)
    distance = torch.cdist(text.T, look.block.double().T) / len(text) ** 0.5
    return float((distance - distance.mean(1, keepdim=True)).abs().mean())
