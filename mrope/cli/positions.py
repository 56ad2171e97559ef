"""`mrope positions`: where the tokens of prompts are, on each axis."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mrope.cli.options import AsJson, FamilyName
from mrope.cli.output import print_json, print_table

if TYPE_CHECKING:
    from torch import Tensor

    from mrope import Family, Positions, Span

MOST = 2**24
"""Slots that one call makes at most: what memory holds, and more than any context window has."""


def positions(
    spans: Annotated[
        list[str],
        typer.Argument(
            metavar="SPAN|/ ...",
            help="text:N, audio:N, image:1xHxW, video:TxHxW, video:TxHxW@SECONDS (per temporal step), "
            "video:TxHxW@SECONDS&AUDIO (with the tokens of its sound), video:TxHxW+STAMP (text tokens before each "
            "step), sliced:1xHxW, sliced:1xHxW/ROWSxCOLSx1xHxW or target:1xHxW, as the family takes them; grids in "
            "patches. A lone / stands between documents.",
        ),
    ],
    family: FamilyName,
    layout: Annotated[
        str, typer.Option(metavar="WORD", help="trained, or transformers-5.24: what that version computes.")
    ] = "trained",
    start: Annotated[int, typer.Option(metavar="N", help="Position of each document's first token.")] = 0,
    decode: Annotated[
        int | None, typer.Option(metavar="K", help="Print the ids of the next K tokens of each document as well.")
    ] = None,
    pack: Annotated[bool, typer.Option("--pack", help="Put all documents into one row.")] = False,
    pad: Annotated[int | None, typer.Option(metavar="N", help="Pad each row to N slots.")] = None,
    pad_multiple: Annotated[
        int | None,
        typer.Option(metavar="N", help="Pad each row, or each document of a packed one, to a multiple of N."),
    ] = None,
    side: Annotated[
        str | None, typer.Option(metavar="WORD", help="left (the default) or right: where rows are padded.")
    ] = None,
    shard: Annotated[
        str | None, typer.Option(metavar="RANK/WORLD", help="Print what one context-parallel rank holds, such as 0/4.")
    ] = None,
    scheme: Annotated[
        str | None, typer.Option(metavar="WORD", help="zigzag (the default) or contiguous: how ranks share a document.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the axes over the tokens: .png, .svg or .pdf.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Print the positions of prompts, each given as its spans in order, and where decoding goes on.

    Several documents are the rows of a batch, padded to the longest, or one row with --pack.

    Example: mrope positions text:15 image:1x24x32 / text:5 --family qwen2-vl --pack
    """
    import mrope
    from mrope.checks import one_of
    from mrope.families import VERSIONS

    one_of("--layout", layout, ("trained", *VERSIONS))
    record = mrope.family(family)
    if layout != "trained":
        record = replace(record, name=f"{family}, {layout}", layout=record.deviations.get(layout, record.layout))
    documents = [_Document.read(words, record) for words in _split(spans)]
    shape = _Shape(
        pack=pack, pad=pad, multiple=pad_multiple, side=side, shard=shard, scheme=scheme, documents=len(documents)
    )
    if decode is not None and pack:
        raise ValueError("--decode does not go with --pack: packed documents are not decoded in their row")
    more = 0 if decode is None else _count("--decode", decode)
    shape.check_size([sum(document.counts) for document in documents], more)
    first = _count("--start", start, least=0)
    rows = shape.rows([record.positions(document.spans, first) for document in documents])
    if decode is not None:
        rows[0].decode(0)  # refused by an encoder, before anything is written
    if plot is not None:
        from mrope.probes.position_plot import plot_positions

        plot_positions(rows, [document.words for document in documents], record, plot)
    held = [document for row in rows for document in row.unpack()]
    if json:
        facts = (_facts(document, part, decode) for document, part in zip(documents, held, strict=True))
        print_json([_row_facts(row, record, list(islice(facts, len(row.ends)))) for row in rows])
        return
    _print_spans(documents, held, record)
    for number, (document, part) in enumerate(zip(documents, held, strict=True)):
        heading = f"document {number}: " if len(documents) > 1 else ""
        print(heading + _ending(document, part, sharded=shard is not None))
        if decode is not None:
            ids = part.decode(decode).ids
            print(f"{heading}next tokens {' '.join(f'({_id(column)})' for column in ids.T)}")
    if described := shape.describe(rows):
        print(described)
    if plot is not None:
        print(f"wrote {plot}")


@dataclass(frozen=True, slots=True)
class _Document:
    """One prompt.

    Args:
        words: its spans as they were written.
        spans: the same, read.
        counts: the tokens of each, those that are to be generated included.
    """

    words: tuple[str, ...]
    spans: tuple[Span, ...]
    counts: tuple[int, ...]

    @classmethod
    def read(cls, words: Sequence[str], family: Family) -> _Document:
        from mrope import Target, parse_span

        spans, counts = [], []
        for word in words:
            span = parse_span(word)
            if _largest(astuple(span)) > MOST:  # before anything is made or counted that is as large
                raise ValueError(f"span {word!r} has a number above {MOST}, the most that this command takes")
            count = family.layout.tokens(span)
            spans.append(span)
            counts.append(math.prod(span.grid) if isinstance(span, Target) else count)
        return cls(tuple(words), tuple(spans), tuple(counts))

    @property
    def length(self) -> int:
        """The tokens of the prompt itself."""
        return sum(self.counts) - self.planned

    @property
    def planned(self) -> int:
        """The tokens that are to be generated."""
        from mrope import Target

        return sum(count for span, count in zip(self.spans, self.counts, strict=True) if isinstance(span, Target))

    def parts(self) -> Iterator[tuple[str, int, int]]:
        """(name, first token, token behind it) of each span, and of the first and last step of one with stamps."""
        from mrope import Video

        firsts = accumulate(self.counts, initial=0)
        for word, span, count, first in zip(self.words, self.spans, self.counts, firsts, strict=False):
            end = first + count
            yield word, first, end
            if isinstance(span, Video) and span.stamp is not None:
                steps = span.grid[0]
                stamps = (span.stamp,) * steps if isinstance(span.stamp, int) else span.stamp
                cells = (count - sum(stamps)) // steps
                yield f"  step 1 of {steps}", first + stamps[0], first + stamps[0] + cells
                if steps > 1:
                    yield f"  step {steps} of {steps}", end - cells, end


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """What the options make of the documents' positions; an option that would do nothing is refused."""

    documents: int
    pack: bool
    pad: int | None
    multiple: int | None
    side: str | None
    shard: str | None
    scheme: str | None

    def __post_init__(self) -> None:
        from mrope.checks import one_of

        for option, value in (("--pad", self.pad), ("--pad-multiple", self.multiple)):
            if value is not None:
                _count(option, value)
        if self.pad is not None and self.multiple is not None:
            raise ValueError(f"--pad is {self.pad} and --pad-multiple is {self.multiple}; expected one of them")
        if self.side is not None:
            one_of("--side", self.side, ("left", "right"))
            if self.pack:
                raise ValueError("--side does not go with --pack: packed documents are padded on the right")
            if self.documents == 1 and self.pad is None and self.multiple is None:
                raise ValueError("--side goes with --pad, --pad-multiple or several documents: nothing is padded here")
        if self.scheme is not None:
            one_of("--scheme", self.scheme, ("zigzag", "contiguous"))
            if self.shard is None:
                raise ValueError("--scheme goes with --shard: nothing is shared between ranks here")

    def check_size(self, lengths: Sequence[int], more: int) -> None:
        """Refuse documents of these lengths, and `more` tokens behind each, that take more slots than `MOST`."""
        padded = [length + -length % (self.multiple or 1) for length in lengths]
        slots = max(sum(padded), self.pad or 0) if self.pack else len(padded) * max(*padded, self.pad or 0)
        slots += more * len(lengths)
        if slots > MOST:
            raise ValueError(f"what is asked for takes {slots} slots; this command makes at most {MOST}")

    def rows(self, documents: Sequence[Positions]) -> Sequence[Positions]:
        """The rows: packed or each by itself, padded, and cut to what one rank holds."""
        from mrope import batch, pack

        side: Any = "right" if self.pack else self.side or "left"
        multiple = self.multiple or 1
        if self.pack:
            rows = (pack([document.pad(multiple=multiple, side=side) for document in documents]),)
        else:
            rows = batch(documents, side, multiple=multiple).rows
        if self.pad is not None:
            rows = [row.pad(self.pad, side) for row in rows]
        if self.shard is None:
            return rows
        rank, world = self._rank()
        scheme: Any = self.scheme or "zigzag"
        return [row.shard(rank, world, scheme) for row in rows]

    def describe(self, rows: Sequence[Positions]) -> str:
        """The rows in a line; nothing about a document that is as it was."""
        slots = rows[0].ids.shape[1]
        padding = sum(slots - row.length for row in rows)
        words = f"{len(rows)} row{'s' * (len(rows) > 1)} of {slots} slots"
        words += f", {padding} of them padding" if padding else ""
        words += f", cu_seqlens {', '.join(map(str, rows[0].cu_seqlens.tolist()))}" if self.pack else ""
        if self.shard is None:
            return words if padding or self.documents > 1 or self.pack else ""
        rank, world = self._rank()
        return f"rank {rank} of {world}, {self.scheme or 'zigzag'}: {words}"

    def _rank(self) -> tuple[int, int]:
        match = re.fullmatch(r"([0-9]+)/([0-9]+)", self.shard or "")
        if match is None:
            raise ValueError(f"--shard is {self.shard!r}; expected RANK/WORLD, such as 0/4")
        return int(match[1]), _count("WORLD of --shard", int(match[2]))


def _split(words: Sequence[str]) -> list[list[str]]:
    """The words of each document."""
    documents: list[list[str]] = [[]]
    for word in words:
        if word == "/":
            documents.append([])
        else:
            documents[-1].append(word)
    if [] in documents:
        raise ValueError(f"document {documents.index([])} has no spans; a lone / stands between two documents")
    return documents


def _count(name: str, value: int, least: int = 1) -> int:
    from mrope.checks import whole

    if whole(name, value, least) > MOST:
        raise ValueError(f"{name} is {value}; expected at most {MOST}")
    return value


def _largest(value: Any) -> float:
    """The largest of the numbers in nested tuples; 0 for what is not there."""
    return max(map(_largest, value), default=0) if isinstance(value, tuple) else value or 0


def _with_planned(part: Positions) -> tuple[Tensor, Tensor]:
    """The ids and slots of a document's tokens, with those that are to be generated behind them."""
    import torch

    if part.planned is None:
        return part.ids, part.text
    planned = part.decode(part.planned.shape[1])
    return torch.cat((part.ids, planned.ids), dim=1), torch.cat((part.text, planned.text))


def _print_spans(documents: Sequence[_Document], held: Sequence[Positions], family: Family) -> None:
    """A line a span, with the first and the last of those of its tokens that are held."""
    import torch

    axes = ", ".join(family.axes)
    columns = ("document", "span", "tokens", f"first ({axes})", f"last ({axes})")
    skip = 0 if len(documents) > 1 else 1
    rows = []
    for number, (document, part) in enumerate(zip(documents, held, strict=True)):
        ids, slots = _with_planned(part)
        for name, first, end in document.parts():
            begin, behind = torch.searchsorted(slots, torch.tensor((first, end))).tolist()  # slots ascend
            inside, count = ids[:, begin:behind], behind - begin
            tokens = f"{count}" if count == end - first else f"{count} of {end - first}"
            ends = (_id(inside[:, 0]), _id(inside[:, -1])) if count else ("-", "-")
            rows.append((number, name, f"{tokens} planned" if first >= document.length else tokens, *ends)[skip:])
    print_table(columns[skip:], rows)


def _ending(document: _Document, part: Positions, *, sharded: bool) -> str:
    """A line on one document: its length, where it goes on, and the tokens that a rank holds of it."""
    words = f"length {document.length}, next {_number(part.next)}, offset {_number(part.offset)}"
    words += f", planned {document.planned}" if document.planned else ""
    return f"{words}, tokens here {_runs(part.text)}" if sharded else words


def _runs(slots: Tensor) -> str:
    """Ascending whole numbers as runs: 0 to 3, 12 to 15."""
    import torch

    breaks = (slots.diff() != 1).nonzero()[:, 0] + 1
    runs = [run for run in torch.tensor_split(slots, breaks.tolist()) if len(run)]
    return ", ".join(f"{int(run[0])} to {int(run[-1])}" for run in runs) or "none"


def _row_facts(row: Positions, family: Family, documents: list[dict[str, object]]) -> dict[str, object]:
    return {
        "axes": family.axes,
        "length": row.length,
        "ids": row.ids.tolist(),
        "text": row.text.tolist(),
        "segments": row.segments.tolist(),
        "cu_seqlens": row.cu_seqlens.tolist(),
        "documents": documents,
    }


def _facts(document: _Document, part: Positions, decode: int | None) -> dict[str, object]:
    return {
        "spans": document.words,
        "length": document.length,
        "next": part.next,
        "offset": part.offset,
        "planned": None if part.planned is None else part.planned.tolist(),
        "decode": None if decode is None else part.decode(decode).ids.tolist(),
    }


def _id(column: Tensor) -> str:
    return ", ".join(map(_number, column.tolist()))


def _number(value: float) -> str:
    """A whole number as it is, a real one with three decimals at most."""
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
