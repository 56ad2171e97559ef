"""The report of a scan, as Markdown and as one HTML file: what it costs, and what is odd, broken or twice there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .store import Catalogue
from .tally import PERCENTS, SHOWN, Class, Item, LimitTally, Tally, tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of plain text.

    Args:
        words: what it shows.
        columns: their heads.
        rows: of one cell a column.
        numeric: numbers of the columns that hold figures.
        names: numbers of the columns that hold names of items.
        folded: shown in HTML when it is asked for.
    """

    words: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[int] = ()
    names: Sequence[int] = ()
    folded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the report; in HTML the limits are `drawn` as histograms."""

    name: str
    title: str
    words: tuple[str, ...]
    tables: tuple[Table, ...]
    drawn: tuple[LimitTally, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the report says, before it is HTML or Markdown.

    Args:
        title: what was scanned.
        lead: what was found, in a sentence.
        figures: (figure, words): the few that one should see first.
        sections: in reading order.
        facts: name -> value: how it was scanned.
        notes: what the words mean.
    """

    title: str
    lead: str
    figures: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]
    facts: Mapping[str, str]
    notes: tuple[str, ...]


def render_report(catalogue: Catalogue) -> tuple[str, str]:
    """The report of a scan as HTML and as Markdown; it reads the rows as `tally` does."""
    from .page import as_html  # which stands on the probes' pages, and is loaded at the end of a scan alone

    report = _report(catalogue.settings, tally(catalogue))
    return as_html(report), as_markdown(report)


def as_markdown(report: Report) -> str:
    """The report as Markdown."""
    parts = [f"# {_marked(report.title)}", _marked(report.lead)]
    for section in report.sections:
        parts += [f"## {section.title}", *map(_marked, section.words)]
        for table in section.tables:
            rules = ["---:" if place in table.numeric else "---" for place in range(len(table.columns))]
            rows = [[_marked(cell) for cell in row] for row in (table.columns, *table.rows)]
            lines = ["| " + " | ".join(row) + " |" for row in (rows[0], rules, *rows[1:])]
            parts += [f"{_marked(table.words)}:", "\n".join(lines)]
    facts = [f"- {_marked(name)}: {_marked(value)}" for name, value in report.facts.items()]
    notes = [f"- {_marked(note)}" for note in report.notes]
    return "\n\n".join((*parts, "## How it was scanned", "\n".join(facts), "\n".join(notes))) + "\n"


def _marked(words: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"[^\w\s./,:;=()%+-]|\b_|_\b", lambda one: f"&#{ord(one[0])};", words)


def _report(settings: Mapping[str, Any], found: Tally) -> Report:
    sources, family = [shown(one) for one in settings["sources"]], settings["family"]
    first = sources if len(sources) < 4 else [*sources[:2], f"{len(sources) - 2:,} more"]
    kinds = [counted(count, kind) for kind, count in sorted(found.kinds.items(), key=lambda one: -one[1])]
    limits = [limit.limit for limit in found.limits]
    left_out = settings.get("totals", {}).get("left_out", {})
    left = ", ".join(f"{count:,} {ending}" for ending, count in left_out.items())
    asked = "measured"
    if limits:
        most = "its own limit" if limits == ["own"] else f"{_listed([_at(one) for one in limits])} tokens"
        asked = f"planned for {family} at {most}"
    figures = [
        (f"{found.items:,}", "items"),
        *((short(limit.tokens), f"tokens at {_at(limit.limit)}") for limit in found.limits),
        (f"{found.failed:,}", "cannot be read, or do not fit"),
    ]
    if found.duplicates is not None:
        figures.append((f"{found.duplicates.copies:,}", "copies of other items"))
    return Report(
        title=f"Scan of {_listed(first)}",
        lead=f"{_listed(kinds or ['No items'])}, {asked}. {found.failed:,} cannot be read, or do not fit.",
        figures=tuple(figures),
        sections=tuple(filter(None, (_costs(found), _spread(found), _odd(found), _amiss(found), _twice(found)))),
        facts={
            "sources": ", ".join(sources),
            "family": family or "none",
            "limits": ", ".join(limits) or "none",
            "content hashes": "yes" if settings["hash"] else "no",
            "bytes of the files": f"{found.bytes:,}",
            "seconds of the clips": f"{found.seconds:,.0f}",
            **({"not looked at": f"{left} in folders; name or glob them"} if left else {}),
            "mrope": str(settings["version"]),
        },
        notes=(
            "Tokens are those of the language model that show an item, without the markers around it.",
            "So many per cent of the planned items have at most the tokens of their column.",
            "Downscaled, upscaled: with fewer or more tokens than their own size would take; of clips, in each step. "
            "Pixels kept: the share of the pixels that are left after that; an upscaled item keeps all.",
            "Without a plan: the size is known, but does not fit into the limit, or the sides are too unequal.",
        ),
    )


def _costs(found: Tally) -> Section | None:
    if not found.limits:
        return None
    heads = ("least", *(f"{per} %" for per in PERCENTS[1:-1]), "most")
    columns = ("limit", "planned", "tokens", "mean", *heads, "without a plan", "downscaled", "upscaled", "pixels kept")
    rows = [
        (
            _at(limit.limit),
            f"{limit.planned:,}",
            f"{limit.tokens:,}",
            f"{limit.tokens / limit.planned:,.1f}" if limit.planned else "-",
            *([f"{tokens:,}" for _, tokens in limit.percentiles] or ["-"] * len(PERCENTS)),
            f"{limit.unfit:,}",
            _part(limit.downscaled, limit.planned),
            _part(limit.upscaled, limit.planned),
            "-" if limit.kept is None else f"{100 * limit.kept:.1f} %",
        )
        for limit in found.limits
    ]
    worst = [
        (_at(limit.limit), limit.worst.name, _size(limit.worst), _tokens(limit.worst.tokens[place]))
        for place, limit in enumerate(found.limits)
        if limit.worst is not None
    ]
    return Section(
        name="cost",
        title="What it costs",
        words=(),
        tables=(
            Table(words="Tokens at each limit", columns=columns, rows=rows, numeric=range(1, len(columns))),
            _named_table(
                "The item of most tokens", ("limit", "item", "size", "tokens"), worst, numeric=(3,), names=(1,)
            ),
        ),
    )


def _spread(found: Tally) -> Section | None:
    edges = sorted({bins[:2] for limit in found.limits for bins in limit.bins})
    if not edges:
        return None
    by_edge = [{bins[:2]: bins for bins in limit.bins} for limit in found.limits]
    rows = []
    for first, end in edges:
        row = [f"{first:,}" if end == first + 1 else f"{first:,} to {end - 1:,}"]
        for bins in by_edge:
            row += [f"{count:,}" for count in bins.get((first, end), (0, 0, 0, 0))[2:]]
        rows.append(row)
    heads = [f"{what} at {_at(limit.limit)}" for limit in found.limits for what in ("items", "their tokens")]

    return Section(
        name="spread",
        title="How many tokens items have",
        words=(),
        tables=(
            Table(
                words="Items by their tokens",
                columns=("tokens of an item", *heads),
                rows=rows,
                numeric=range(1, len(heads) + 1),
                folded=True,
            ),
        ),
        drawn=found.limits,
    )


def _odd(found: Tally) -> Section | None:
    heads = tuple(f"tokens at {_at(limit.limit)}" for limit in found.limits)

    def ranked(words: str, items: Sequence[Item]) -> Table:
        rows = [(one.name, one.kind, _size(one), _ratio(one), *map(_tokens, one.tokens)) for one in items]
        columns = ("item", "kind", "size", "ratio", *heads)
        return _named_table(words, columns, rows, numeric=range(3, len(columns)), names=(0,))

    if not (found.largest or found.flags):
        return None
    flags = [row[:4] for row in _examples(found.flags)]
    return Section(
        name="odd",
        title="The largest and the oddest",
        words=(f"At most {SHOWN} items in each list, the first of equals.",),
        tables=(
            ranked("Most pixels", found.largest),
            ranked("Sides that differ most", found.thinnest),
            ranked("Fewest pixels", found.smallest),
            _named_table("What was flagged", ("flag", "items", "such as", "size"), flags, numeric=(1,), names=(2,)),
        ),
    )


def _amiss(found: Tally) -> Section | None:
    rows = [(*row[:3], row[4]) for row in _examples(found.reasons)]
    if not rows:
        return None
    table = _named_table(
        "Errors by reason", ("reason", "items", "such as", "what is wrong"), rows, numeric=(1,), names=(2,)
    )
    words = f"{counted(found.items - found.measured, 'item')} without a size that could be read."
    return Section(name="amiss", title="What is amiss", words=(words,), tables=(table,))


def _twice(found: Tally) -> Section | None:
    twice = found.duplicates
    if twice is None:
        return None
    costs = [
        f"{tokens:,} tokens at {_at(limit.limit)}" for tokens, limit in zip(twice.tokens, found.limits, strict=True)
    ]
    cost = f", which cost {_listed(costs)}" if costs else ""
    words = f"{counted(twice.groups, 'content')} came more than once: {counted(twice.copies, 'duplicate')}{cost}."
    rows = []
    for one in twice.largest:
        rows += [(f"{one.count:,}" if place == 0 else "", name) for place, name in enumerate(one.names)]
    table = _named_table("Contents that came most often", ("items", "such as"), rows, numeric=(0,), names=(1,))
    return Section(name="twice", title="What is there twice", words=(words,), tables=(table,) if rows else ())


def _examples(classes: Sequence[Class]) -> list[tuple[str, str, str, str, str]]:
    """(word, items, name, size, error) of each example; word and count stand in the first of a class."""
    rows = []
    for one in classes:
        for place, item in enumerate(one.examples):
            head = (one.word, f"{one.count:,}") if place == 0 else ("", "")
            rows.append((*head, item.name, _size(item), item.error or ""))
    return rows


def _named_table(words: str, columns: tuple[str, ...], rows: Sequence[Sequence[str]], **more: Any) -> Table:
    """A table with text from files."""
    return Table(words=words, columns=columns, rows=[[shown(cell) for cell in row] for row in rows], **more)


def shown(words: str) -> str:
    """Text from a file on one line, with what cannot be seen written as an escape.

    >>> shown("a\\nb")
    'a\\\\nb'
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in words)


def counted(count: int, noun: str) -> str:
    """
    >>> counted(1, "page"), counted(1200, "clip")
    ('1 page', '1,200 clips')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def short(count: int) -> str:
    """A count of three digits.

    >>> short(999), short(1_234_567), short(56_700_000_000)
    ('999', '1.23 M', '56.7 G')
    """
    for power, unit in ((12, " T"), (9, " G"), (6, " M")):
        if count >= 10**power:
            return f"{count / 10**power:.3g}{unit}"
    return f"{count:,}"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _at(limit: str) -> str:
    return "the family's limit" if limit == "own" else f"{int(limit):,}"


def _part(count: int, whole: int) -> str:
    return f"{count:,} ({100 * count / whole:.1f} %)" if whole else f"{count:,}"


def _size(item: Item) -> str:
    return "-" if item.height is None else f"{item.width} wide x {item.height} high"


def _ratio(item: Item) -> str:
    if not (item.height and item.width):
        return "-"
    return f"{max(item.height, item.width) / min(item.height, item.width):.3g}"


def _tokens(tokens: int | None) -> str:
    return "-" if tokens is None else f"{tokens:,}"
