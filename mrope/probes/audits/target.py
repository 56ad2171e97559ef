"""What an audit looks at: a rule of positions, a rule of turning, or both, however they came.

Letters: A axes, H heads, F rotary pairs, N tokens, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from mrope.axes import HeadSplit
from mrope.checks import Number, whole
from mrope.encoding import Encoding, Properties
from mrope.encodings import LinearRope
from mrope.layouts import Layout, PageLayout, Traits
from mrope.positions import Positions
from mrope.probes.audits.layout import fitting
from mrope.rotary import Rotary
from mrope.spans import Grid, Image, Sliced, Span, Text, Video

Turn: TypeAlias = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""q (1, H, N, D), k (1, K, N, D) and ids (A, N) -> both, turned."""

CALLED_HEADS = 4, 2
"""Heads of the queries and of the keys that a callable gets: as in grouped-query attention."""

_TRAITS, _ROTATION = Traits(), Properties(norm=True, shift=True, commutes=True)
"""What is promised where nobody says it."""

AXES: dict[int, tuple[str, ...]] = {1: ("t",), 2: ("h", "w"), 3: ("t", "h", "w")}
"""What axes are called where nobody says it."""


@dataclass(frozen=True, slots=True, eq=False)
class Laid:
    """A prompt of text, one picture or clip, and text.

    Args:
        before: (A, n) the ids of the text before.
        block: (A, n) of the picture or clip; in raster order where it has a token for each cell.
        after: (A, n) of the text behind.
        next: the position of the first token that is decoded; None where nobody says it.
    """

    before: Tensor
    block: Tensor
    after: Tensor
    next: Number | None


Lay: TypeAlias = Callable[[Grid, int, int], Laid]
"""A grid (t, h, w) in tokens, and how many tokens of text stand before and behind it; ValueError: there is no rule."""

Prompt: TypeAlias = tuple[int | Grid, ...]
"""Tokens of text, and grids (t, h, w) in tokens of pictures and clips."""

OTHER_SECONDS, OTHER_STAMP = 0.5, 2
"""Seconds of a step of the clips in a `Prompt`, and tokens of text before it, where a rule takes such."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Target:
    """What is audited; what it lacks is None.

    Args:
        name: in words.
        axes: what the axes are called; rows lie on h or row, columns on w or col, and time on t.
        head_dim: D.
        heads: H.
        kv_heads: K, where keys have fewer heads; 0: as many.
        lay: the ids of a prompt.
        rule: (A, N) the ids of any `Prompt`; ValueError: there is no rule for it.
        span: a grid in tokens, seconds a step and tokens of text before it -> the span that the rule takes.
        prompted: a `Prompt`, seconds a step, and patches a token and side -> the spans of the whole prompt, with the
            words that stand around pictures in it; of models.
        turn: queries and keys, turned.
        extent: ids are measured up to here; small where coordinates are shares of a picture.
        layout: the rule of ours behind `lay`.
        rotary: the encoding of ours behind `turn`, whose frequencies are known.
        waves: (H, A, F) radians per position, where these are known of another encoding.
        encoding: the encoding of ours behind `turn`.
        attend: an attention; see `audit_attention`.
        traits: what the rule of positions promises.
        properties: what the encoding promises.
        trained: what it should be equal to; a family, for a model or a callable that is meant to be one.
        batch_order: whether a row's ids are the same alone and in a batch; of models.
    """

    name: str
    axes: tuple[str, ...]
    head_dim: int = 128
    heads: int = 1
    kv_heads: int = 0
    lay: Lay | None = None
    rule: Callable[[Prompt], Tensor] | None = None
    span: Callable[[Grid, Number, int], Span | None] | None = None
    prompted: Callable[[Prompt, Number, int], list[Span]] | None = None
    turn: Turn | None = None
    extent: Number = 50
    layout: Layout | None = None
    rotary: Rotary | None = None
    waves: Tensor | None = None
    encoding: Encoding | None = None
    attend: Callable[..., Tensor] | None = None
    traits: Traits = _TRAITS
    properties: Properties = _ROTATION
    trained: Target | None = None
    batch_order: Callable[[], bool] | None = None


def of_layout(layout: Layout, name: str, *, axes: tuple[str, ...] = (), merge: int | None = None) -> Target:
    """A layout as a target.

    Args:
        layout: the layout.
        name: in words.
        axes: what its axes are called.
        merge: patches per token and side; by default the layout's own.
    """
    side = getattr(layout, "merge", 1) if merge is None else merge
    count = getattr(layout, "axes", 3)
    return Target(
        name=name,
        axes=axes or AXES.get(count) or tuple(map(str, range(count))),
        lay=lambda grid, before, after: _lay(layout, side, grid, before, after),
        rule=None if isinstance(layout, PageLayout) else lambda prompt: _ruled(layout, side, prompt),
        span=lambda grid, seconds, stamp: fitting(layout, grid, side, seconds, stamp),
        layout=layout,
        traits=getattr(layout, "traits", Traits()),
    )


def _ruled(layout: Layout, merge: int, prompt: Prompt) -> Tensor:
    spans = [
        Text(part) if isinstance(part, int) else fitting(layout, part, merge, OTHER_SECONDS, OTHER_STAMP)
        for part in prompt
    ]
    taken = [span for span in spans if span is not None]
    if len(taken) < len(spans):
        raise ValueError(f"{type(layout).__name__} has no rule for one of {prompt}")
    return layout(taken).ids


def _lay(layout: Layout, merge: int, grid: Grid, before: int, after: int) -> Laid:
    span = fitting(layout, grid, merge)
    if span is None:
        raise ValueError(f"{type(layout).__name__} has no rule for a grid of {'x'.join(map(str, grid))} tokens")
    count = layout.tokens(span)
    if isinstance(layout, PageLayout):  # a page has no text beside it: its own numbers go on around it
        page = layout([span], before)
        past = torch.arange(-before, 0) + page.ids[:, :1]
        return Laid(past, page.ids, torch.arange(after) + page.next + torch.zeros_like(page.ids[:, :1]), None)
    prompt = layout([Text(before), span, Text(after)])
    return Laid(*prompt.ids.split((before, count, after), dim=1), next=prompt.decode(1).ids[0, 0].item())


def of_rotary(rotary: Rotary, name: str, *, axes: tuple[str, ...] = ()) -> Target:
    """A rotary encoding as a target; one whose frequencies depend on a length was held at one, `extensions.At`.

    Args:
        rotary: the encoding.
        name: in words.
        axes: what its axes are called.
    """
    heads = (rotary.split.heads or 1) if isinstance(rotary.split, HeadSplit) else 1
    return replace(
        of_encoding(rotary, name, axes=axes, head_dim=rotary.split.rotary_dim, heads=heads, extent=50), rotary=rotary
    )


def of_encoding(
    encoding: Encoding, name: str, *, axes: tuple[str, ...], head_dim: int, heads: int = 1, extent: Number = 50
) -> Target:
    """An encoding as a target; one that does not rotate has its promises alone.

    Args:
        encoding: the encoding.
        name: in words.
        axes: what its axes are called.
        head_dim: D of queries and keys.
        heads: H.
        extent: see `Target`.
    """
    if isinstance(encoding, nn.Module):
        encoding = deepcopy(encoding)  # which is moved to where it is measured
    count = encoding.axes or len(axes) or 3
    waves = encoding.frequencies.detach() if isinstance(encoding, LinearRope) else None
    return Target(
        name=name,
        axes=axes or AXES.get(count) or tuple(map(str, range(count))),
        head_dim=head_dim,
        heads=len(waves) if waves is not None and waves.dim() == 3 else heads,
        turn=None if type(encoding).rotate is Encoding.rotate else encoding.rotate,
        extent=extent,
        waves=waves,
        encoding=encoding,
        properties=encoding.properties,
    )


def both(laid: Target, turned: Target, name: str) -> Target:
    """A rule of positions and a rule of turning together.

    Raises:
        ValueError: they have other numbers of axes.
    """
    if len(laid.axes) != len(turned.axes):
        raise ValueError(
            f"target is {name}: the layout has {len(laid.axes)} axes and the split {len(turned.axes)}; expected as many"
        )
    parts = ("head_dim", "heads", "kv_heads", "turn", "extent", "rotary", "waves", "encoding", "properties")
    return replace(laid, name=name, **{part: getattr(turned, part) for part in parts})


def of_object(thing: Any, name: str, like: Target | None, said: str = "target") -> Target:
    """A layout, an encoding, or a callable that works like one; told apart by what it takes and returns.

    Args:
        thing: see `full_audit`.
        name: in words.
        like: what it is meant to be.
        said: the name of the argument that it came by, for refusals.

    Raises:
        TypeError: it is nothing of that, or one of its attributes is no number.
        ValueError: `axes`, `head_dim` or `merge` is below 1.
    """
    if isinstance(thing, type):
        raise TypeError(f"{said} is the class {thing.__name__}; expected an object of it, or a function")
    if isinstance(thing, Rotary):
        return of_rotary(thing, name)
    wide = getattr(thing, "head_dim", getattr(thing, "rotary_dim", like.head_dim if like else 128))
    count = getattr(thing, "axes", None)
    count = (len(like.axes) if like else 3) if count is None else whole(f"axes of {name}", count, 1)
    head_dim = whole(f"head_dim of {name}", wide, 1)
    axes = like.axes if like and len(like.axes) == count else AXES.get(count) or tuple(map(str, range(count)))
    if isinstance(thing, Encoding):
        return of_encoding(thing, name, axes=axes, head_dim=head_dim, heads=getattr(thing, "heads", 1))
    if isinstance(thing, Layout):
        return of_layout(thing, name)
    if not callable(thing):
        raise TypeError(f"{said} is {thing!r}; expected a name, something to call, a layout or an encoding")
    return _of_callable(thing, Target(name=name, axes=axes, head_dim=head_dim), like)


def _of_callable(call: Callable[..., Any], bare: Target, like: Target | None) -> Target:
    """By the number of arguments without a default; of one, by whether ids give two tables."""
    import inspect

    wanted = [
        each
        for each in inspect.signature(getattr(call, "forward", call)).parameters.values()
        if each.default is each.empty and each.kind is not each.VAR_KEYWORD
    ]
    taken = [each.name for each in wanted if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    loose = [str(each) for each in wanted if each.kind is each.VAR_POSITIONAL and not taken]
    if hidden := [*loose, *(each.name for each in wanted if each.kind is each.KEYWORD_ONLY)]:
        raise TypeError(
            f"{bare.name} takes {', '.join(hidden)} by no place of its own; expected arguments that are given one "
            "behind the other: spans or ids, or q, k and ids, or q, k, v and positions"
        )
    if len(taken) == 3:
        heads, kv_heads = (like.heads, like.kv_heads) if like and like.heads > 1 else CALLED_HEADS
        return replace(bare, turn=call, heads=heads, kv_heads=kv_heads)
    if len(taken) == 4:
        return replace(bare, attend=call)
    if len(taken) != 1:
        raise TypeError(
            f"{bare.name} takes {len(taken)} arguments ({', '.join(taken)}); expected spans or ids, or q, k and ids, "
            "or q, k, v and positions"
        )
    why = ""
    if "span" not in taken[0]:
        tables = _tables(call, torch.arange(5).expand(len(bare.axes), -1))
        if isinstance(tables, tuple):
            heads = like.heads if like else 1
            return replace(bare, turn=_by_tables(call, *tables), head_dim=tables[1], heads=heads)
        why = f"; for ids ({len(bare.axes)}, 5) it {tables}"
    return laid_like(call, bare, like, whole(f"merge of {bare.name}", getattr(call, "merge", 1), 1), why)


def laid_like(call: Callable[..., Any], bare: Target, like: Target | None, merge: int, why: str = "") -> Target:
    """`bare` with the ids that `call` makes of the spans of prompts such as those of what is meant.

    Args:
        call: spans -> ids (A, N), or these and the position of the first decoded token, or `Positions`.
        bare: what is audited.
        like: what it is meant to be.
        merge: patches per token and side, of the spans.
        why: it did not work as something else, for refusals.
    """
    prompted = None if like is None else like.prompted

    def ids_of(prompt: Prompt, seconds: Number, stamp: int) -> tuple[Tensor, Number | None]:
        if prompted is not None:
            spans = prompted(prompt, seconds, merge)
        else:
            spans = [
                Text(part) if isinstance(part, int) else _declared(like, merge, part, seconds, stamp) for part in prompt
            ]
        try:
            made = call(spans)
        except (ValueError, NotImplementedError):  # how a rule says that it has none
            raise
        except Exception as error:  # of whatever code lays tokens out
            raise RuntimeError(f"for spans it raises {type(error).__name__}: {error}{why}") from error
        return _ids(made, bare, spans)

    def lay(grid: Grid, before: int, after: int) -> Laid:
        ids, following = ids_of((before, grid, after), 1.0, 0)
        if prompted is not None and like is not None and like.lay is not None:  # words around a picture are text
            right = like.lay(grid, before, after)
            before, after = right.before.shape[1], right.after.shape[1]
        return Laid(*ids.split((before, ids.shape[1] - before - after, after), dim=1), next=following)

    return replace(bare, lay=lay, rule=lambda prompt: ids_of(prompt, OTHER_SECONDS, OTHER_STAMP)[0])


def _tables(call: Callable[..., Any], ids: Tensor) -> tuple[bool, int] | str:
    """Whether both channels of a pair lie side by side in the tables, and how many channels turn; or what came."""
    try:
        made = call(ids)
    except Exception as error:  # whatever a function raises that wanted something else
        return f"raises {type(error).__name__}: {error}"
    if not isinstance(made, (tuple, list)) or len(made) != 2 or not all(isinstance(table, Tensor) for table in made):
        return f"returns {type(made).__name__}, not cos and sin"
    cos, sin = made
    if cos.dim() < 2 or sin.shape != cos.shape:
        return f"returns tables of shapes {tuple(cos.shape)} and {tuple(sin.shape)}"
    width = cos.shape[-1]
    first, second = sin[..., : width // 2], sin[..., width // 2 :]
    if width % 2 == 0 and torch.equal(first, second):  # at one position on all axes, where no split shows
        return False, width
    if width % 2 == 0 and torch.equal(sin[..., ::2], sin[..., 1::2]):
        return True, width
    return False, 2 * width


def _by_tables(call: Callable[..., Any], adjacent: bool, width: int) -> Turn:
    """Turns by tables of one or two columns a pair."""

    def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if adjacent:
            other = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
        else:
            other = torch.cat((-x[..., width // 2 :], x[..., : width // 2]), dim=-1)
        return x * cos + other * sin

    def turn(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = (table.reshape(-1, table.shape[-1]) for table in call(ids))
        if cos.shape[-1] < width:
            cos, sin = cos.repeat(1, 2), sin.repeat(1, 2)
        return turned(q, cos, sin), turned(k, cos, sin)

    return turn


def _declared(like: Target | None, merge: int, grid: Grid, seconds: Number, stamp: int) -> Span:
    """A picture or clip as what is meant wants it declared, in the patches of a callable."""
    span = None if like is None or like.span is None else like.span(grid, seconds, stamp)
    sides = grid[1] * merge, grid[2] * merge
    if isinstance(span, Video):
        return replace(span, grid=(span.grid[0], *sides))
    if isinstance(span, Sliced):
        return replace(span, thumbnail=(1, *sides))
    return Image((1, *sides)) if grid[0] == 1 else Video((grid[0], *sides))


def _ids(made: Any, bare: Target, spans: list[Span]) -> tuple[Tensor, Number | None]:
    """The ids (A, N) that a callable made of spans, and where decoding goes on, if it says so."""
    if isinstance(made, Positions):
        made = made.ids, made.decode(1).ids[0, 0].item()
    ids, following = made if isinstance(made, (tuple, list)) and len(made) == 2 else (made, None)
    count = sum(span.length if isinstance(span, Text) else isinstance(span, (Image, Video, Sliced)) for span in spans)
    if not isinstance(ids, Tensor) or ids.dim() != 2 or len(ids) != len(bare.axes) or ids.shape[1] < count:
        came = f"ids of shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
        raise TypeError(
            f"it makes {came} of {', '.join(map(str, spans))}; expected a tensor ({len(bare.axes)}, tokens)"
        )
    if following is not None and not isinstance(following, (int, float, Tensor)):
        raise TypeError(f"it says {following!r} for the position of the first decoded token; expected a number")
    return ids, None if following is None else float(following)
