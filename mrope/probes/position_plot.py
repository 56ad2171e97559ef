"""Positions drawn over the tokens of a row: a panel for each axis, and each span as a coloured band.

Letters: A axes, N slots, R runs of slots that one span holds.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mrope.families import Family
from mrope.layouts.layout import name_of
from mrope.positions import Positions, pack
from mrope.spans import Audio, Image, Sliced, Span, Target, Text, Video, parse_span

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Kind -> its word and the look of its bands: the palette of Okabe and Ito, which colour-blind readers can tell apart.
_STYLES: dict[type, tuple[str, dict[str, Any]]] = {
    Text: ("text", {"facecolor": "#999999", "alpha": 0.45}),
    Image: ("image", {"facecolor": "#56b4e9", "alpha": 0.45}),
    Video: ("clip", {"facecolor": "#e69f00", "alpha": 0.45}),
    Audio: ("audio", {"facecolor": "#009e73", "alpha": 0.45}),
    Sliced: ("sliced picture", {"facecolor": "#cc79a7", "alpha": 0.45}),
    Target: ("to be generated", {"facecolor": "#f0e442", "alpha": 0.45}),
    type(None): ("padding", {"facecolor": "none", "edgecolor": "#cccccc", "hatch": "////"}),
}
_INK, _PALE = "#1a1a1a", "#888888"
_COLUMNS = 2000  # drawn columns of a panel: one a slot, or the lowest and highest position of several slots
_GAP, _REACH = 0.023, 0.06  # between names above the bands, and from one to its band at most; in widths of a panel
_TRIED, _LETTERS = 200, 24  # how many of the widest bands are tried for a name; letters of one


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring slots from `begin` up to `end` that one span holds; padding has no span and no name."""

    begin: int
    end: int
    span: Span | None = None
    name: str = ""


def plot_positions(
    positions: Positions | Sequence[Positions],
    spans: Sequence[Sequence[Span | str]],
    family: Family,
    path: str | os.PathLike[str],
) -> None:
    """Draw the positions of a row, or of several behind one another, into a .png, .svg or .pdf file.

    Each axis is a panel with the position over the slot. Where slots are narrower than the drawing can show, it fills
    the range from the lowest to the highest position: the rows and columns of a large picture become a solid shape.
    What is planned stands behind the row. The file is written whole or not at all; one that exists is replaced.

    Args:
        positions: what is drawn: plain, padded, packed, or the share of a rank.
        spans: of each document, in order; strings are read by `parse_span`.
        family: whose layout placed the tokens, and whose axes name the panels.
        path: the file; its suffix says the format.

    Raises:
        ValueError: the suffix is none of these, or the spans are not those of the positions.
        ImportError: matplotlib is not installed.

    >>> import mrope, tempfile
    >>> family, spans = mrope.family("qwen2-vl"), ["text:2", "image:1x4x8"]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plot_positions(family.positions(spans), [spans], family, f"{folder}/prompt.svg")
    """
    target = Path(path)
    kind = target.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg", "pdf"):
        raise ValueError(f"plot {str(target)!r} ends in {target.suffix!r}; expected .png, .svg or .pdf")
    rows = [positions] if isinstance(positions, Positions) else positions
    rows = [_with_planned(row.to("cpu")) for row in rows]
    joined = pack(rows)
    runs = list(_runs(joined, [[_read(span) for span in document] for document in spans], family))
    figure = _draw(joined, runs, list(_begins(rows)), family)
    picture = BytesIO()
    figure.savefig(picture, format=kind, dpi=150)
    write_plot(target, picture.getvalue())


def _with_planned(row: Positions) -> Positions:
    """`row` with its planned tokens behind it, as they will stand once they are generated."""
    if row.planned is None:
        return row
    planned = row.decode(row.planned.shape[1])
    joined = {
        name: torch.cat((getattr(row, name), getattr(planned, name)), dim=-1) for name in ("ids", "text", "segments")
    }
    return replace(row, planned=None, **joined)


def _read(span: Span | str) -> tuple[Span, str]:
    """A span, and what it is called: as it was written, or by its size."""
    return (parse_span(span), span) if isinstance(span, str) else (span, name_of(span))


def _runs(row: Positions, documents: Sequence[Sequence[tuple[Span, str]]], family: Family) -> Iterator[_Run]:
    """The runs of `row`, in order."""
    if len(documents) != len(row.ends):
        raise ValueError(f"spans are those of {len(documents)} documents; the positions hold {len(row.ends)}")
    segments, text = row.segments.numpy(), row.text.numpy()
    number = np.full(len(segments), -1)  # of the span that each slot belongs to
    named: list[tuple[Span, str]] = []
    for document, spans in enumerate(documents):
        counts = [math.prod(span.grid) if isinstance(span, Target) else family.layout.tokens(span) for span, _ in spans]
        inside = segments == document
        token = text[inside] - (row.ends[document].slot - sum(counts))  # an earlier turn may lie before its first
        if ((token < 0) | (token >= sum(counts))).any():
            raise ValueError(f"the spans of document {document} take {sum(counts)} tokens; its positions are others")
        number[inside] = len(named) + np.searchsorted(np.cumsum(counts), token, side="right")
        named += spans
    edges = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(number)]
    for begin, end in pairwise(edges):
        if begin < end:
            span, name = named[number[begin]] if number[begin] >= 0 else (None, "")
            yield _Run(begin, end, span, name)


def _begins(rows: Sequence[Positions]) -> Iterator[int]:
    """The slot in which each document begins: its first token, or the padding in front of its row.

    A document of which a rank holds padding alone begins behind the tokens of the one before.
    """
    done = 0
    for row in rows:
        behind = 0
        for number in range(len(row.ends)):
            inside = (row.segments == number).nonzero()[:, 0].tolist()
            yield done + (inside[0] if number and inside else behind)
            behind = inside[-1] + 1 if inside else behind
        done += len(row.segments)


def _draw(row: Positions, runs: Sequence[_Run], begins: Sequence[int], family: Family) -> Figure:
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise ImportError("a plot needs matplotlib, which is not installed; the extra mrope[plot] brings it") from None
    slots, axes = row.ids.shape[1], len(family.axes)
    named = _named(runs, slots)
    above = 0.75 + 0.05 * max((len(_short(run.name)) for run in named), default=0)  # inches, for title and names
    height = above + 1.7 * axes + 1.1
    figure = Figure(figsize=(12, height))
    panels: list[Axes] = list(figure.subplots(axes, 1, sharex=True, squeeze=False)[:, 0])
    figure.subplots_adjust(left=0.085, right=0.885, top=1 - above / height, bottom=1.1 / height, hspace=0.12)
    figure.suptitle(
        f"{family.name}: positions of {row.length:,} tokens",
        x=0.085,
        y=1 - 0.12 / height,
        ha="left",
        va="top",
        fontsize=14,
    )
    for panel, name, ids in zip(panels, family.axes, row.ids.double().numpy(), strict=True):
        _bands(panel, runs)
        _line(panel, np.where(row.segments.numpy() >= 0, ids, np.nan))
        panel.set_ylabel(f"position on {name}", fontsize=11)
        panel.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        panel.yaxis.set_major_formatter("{x:,.0f}")
        panel.spines[["top", "right"]].set_visible(False)
    note = "" if slots <= _COLUMNS else f"; a column shows the lowest to the highest of {slots / _COLUMNS:.3g} tokens"
    panels[-1].set_xlabel(f"token (slot of the row){note}", fontsize=11, labelpad=4 if len(row.ends) == 1 else 18)
    panels[-1].set_xlim(0, max(slots, 1))
    panels[-1].xaxis.set_major_locator(MaxNLocator(10, integer=True))
    panels[-1].xaxis.set_major_formatter("{x:,.0f}")
    _name_runs(panels[0], named, slots)
    _divide(panels, begins, slots)
    _legend(figure, runs)
    return figure


def _bands(panel: Axes, runs: Sequence[_Run]) -> None:
    for kind, (_, style) in _STYLES.items():
        bands = [(run.begin, run.end - run.begin) for run in runs if type(run.span) is kind]
        if bands:
            panel.broken_barh(bands, (0, 1), transform=panel.get_xaxis_transform(), linewidth=0, **style)


def _line(panel: Axes, ids: np.ndarray) -> None:
    """The ids as steps, one a slot or a column; a gap where there is padding (NaN)."""
    tokens = ids[~np.isnan(ids)]
    if not len(tokens):
        return
    margin = 0.08 * max(np.ptp(tokens), 1)
    panel.set_ylim(tokens.min() - margin, tokens.max() + margin)
    columns = min(len(ids), _COLUMNS)
    edges = np.arange(columns + 1) * len(ids) // columns
    low, high = (pick.reduceat(ids, edges[:-1]) for pick in (np.fmin, np.fmax))
    there = np.concatenate(([False], ~np.isnan(low), [False]))
    for begin, end in np.flatnonzero(np.diff(there)).reshape(-1, 2):
        top, bottom = (np.append(side[begin:end], side[end - 1]) for side in (high, low))
        panel.fill_between(edges[begin : end + 1], bottom, top, step="post", color=_INK, linewidth=1.1, snap=False)


def _named(runs: Sequence[_Run], slots: int) -> list[_Run]:
    """The runs that get a name, in order: the widest first, as long as each name stays near its band."""
    # Of equally wide ones, steps of the golden ratio choose some from everywhere, and not the first.
    widest = sorted(enumerate(runs), key=lambda each: (each[1].begin - each[1].end, each[0] * 0.618034 % 1))
    named: list[_Run] = []
    for _, run in [each for each in widest if each[1].name][:_TRIED]:
        tried = sorted([*named, run], key=lambda run: run.begin)
        centres = [_centre(run, slots) for run in tried]
        if all(abs(place - centre) <= _REACH for place, centre in zip(_spread(centres), centres, strict=True)):
            named = tried
    return named


def _name_runs(panel: Axes, named: Sequence[_Run], slots: int) -> None:
    """The names of the spans above `panel`, each with a line to its band."""
    centres = [_centre(run, slots) for run in named]
    for run, centre, place in zip(named, centres, _spread(centres), strict=True):
        panel.annotate(
            _short(run.name),
            xy=(centre, 1),
            xytext=(place, 1.09),
            xycoords="axes fraction",
            textcoords="axes fraction",
            rotation=40,
            rotation_mode="anchor",
            fontsize=9,
            color=_INK,
            arrowprops={"arrowstyle": "-", "color": _PALE, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0},
        )


def _centre(run: _Run, slots: int) -> float:
    return (run.begin + run.end) / 2 / slots


def _short(name: str) -> str:
    return name if len(name) <= _LETTERS else f"{name[: _LETTERS - 3]}..."


def _spread(places: Sequence[float]) -> list[float]:
    """`places` moved apart to a readable gap, in their order, the last one at most at 1."""
    spread: list[float] = []
    for place in places:
        spread.append(max(place, spread[-1] + _GAP) if spread else place)
    most = 1.0
    for index in reversed(range(len(spread))):
        spread[index] = min(spread[index], most)
        most = spread[index] - _GAP
    return spread


def _divide(panels: Sequence[Axes], begins: Sequence[int], slots: int) -> None:
    """A line before each document but the first, and their names where there is room."""
    if len(begins) == 1:
        return
    for number, (begin, end) in enumerate(zip(begins, [*begins[1:], slots], strict=True)):
        for panel in panels if number else ():
            panel.axvline(begin, color=_INK, linewidth=1.2 if len(begins) <= 20 else 0.4, linestyle=(0, (4, 3)))
        if (end - begin) / slots > 0.08:
            panels[-1].annotate(
                f"document {number}",
                xy=((begin + end) / 2, 0),
                xytext=(0, -18),
                xycoords=panels[-1].get_xaxis_transform(),
                textcoords="offset points",
                ha="center",
                va="top",
                fontsize=9,
            )


def _legend(figure: Figure, runs: Sequence[_Run]) -> None:
    from matplotlib.patches import Patch

    kinds = {type(run.span) for run in runs}
    handles = [Patch(label=word, linewidth=0, **style) for kind, (word, style) in _STYLES.items() if kind in kinds]
    figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.08, 0), ncols=max(len(handles), 1), frameon=False
    )


def write_plot(target: Path, content: bytes) -> None:
    """Write a picture, whole or not at all."""
    if target.is_dir():
        raise ValueError(f"{target} is in the way: it is a folder, and the plot is a file")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target.parent} is no folder; the plot {target.name} needs one that exists")
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
