"""Whole data sets planned from headers: folders, globs, JSONL files, tar shards, PDFs; nothing is decoded."""

from __future__ import annotations

import glob
import gzip
import json
import os
import re
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Literal, get_args

import numpy as np

from mrope.checks import one_of, whole
from mrope.families import Family

from ..loading.files import File, is_file
from ..loading.load import measure
from ..loading.pdf import pdf_pages
from ..loading.pictures import OnError, check_kind, name_of
from .fitting import Conflict, check_family, picture_limits
from .plan import Plan, Size
from .planning import plan

Progress = Literal["none", "bar"]

PICTURES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".tif", ".tiff", ".bmp", ".avif", ".ppm", ".pgm")
"""How files in folders and shards end that are taken for pictures; those named one by one may end in anything."""

_PREFIX = 1 << 16
"""Bytes of a JPEG, GIF or BMP that are read first, of what is no file; they nearly always hold the header."""
_HEAD_FIRST = (b"\xff\xd8\xff", b"GIF8", b"BM")
_PNG = b"\x89PNG\r\n\x1a\n"
BROKEN_SHARD: tuple[type[Exception], ...] = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile)
"""What reading a broken shard raises."""
with suppress(ImportError):  # of a Python without it, which opens no .tar.xz
    from lzma import LZMAError

    BROKEN_SHARD += (LZMAError,)
_ERRORS = (OSError, ValueError, TypeError, ImportError, MemoryError, *BROKEN_SHARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """What a scan found out about one picture.

    Args:
        name: its path; of a picture in a shard "shard.tar/member", of a page "file.pdf, page 1", of one without a name
            its number.
        size: (height, width) in pixels, upright; None if it could not be read.
        orientation: EXIF, 1..8 (1: none).
        plan: None without a family, and where there is none.
        error: why there is no size or no plan, in one line; None where all is well.
    """

    name: str
    size: Size | None
    orientation: int = 1
    plan: Plan | None = None
    error: str | None = None


@dataclass(slots=True, eq=False)
class Scan:
    """An iterator over `Scanned` pictures, read one after the other as they are asked for.

    Args:
        found: those to come.
        count: pictures seen so far, those left out too.
        skipped: (name, error) of those that were left out so far.
    """

    found: Iterator[Scanned]
    count: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def __iter__(self) -> Scan:
        return self

    def __next__(self) -> Scanned:
        return next(self.found)


def scan(
    source: Any,
    family: Family | None = None,
    *,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    conflict: Conflict = "error",
    on_error: OnError = "raise",
    column: str = "image",
    progress: Progress = "none",
) -> Scan:
    """Sizes and plans of many pictures, from their headers alone.

    Args:
        source: a folder, with all below it; a glob; a JSONL file; a tar shard, as WebDataset has them, compressed or
            not, whose members are read where they lie; a PDF with its pages; a picture: path, bytes or what else `plan`
            takes; (height, width); a list or any iterable of those; or a dict with a name for each of those that are
            pictures or sizes. Folders and globs are gone through in the order of names, shards in their own. Braces
            stand for several paths: "shard-{000..137}.tar", "{train,test}.jsonl". In folders and shards what is hidden,
            its name or a folder's beginning with a dot, is left out; links to folders are followed, but never round.
        family: for whom pictures are planned; None measures them only.
        min_tokens: as in `plan`.
        max_tokens: as in `plan`.
        conflict: as in `plan`; with "skip" a picture that does not fit comes without plan and without error.
        on_error: "raise", "skip" or "keep".
        column: of a JSONL file: the field that holds the path of a picture, relative to the file, or a list of them.
        progress: "bar" shows one on stderr.

    Returns:
        An iterator that works as it is asked; what it left out is in its `skipped`.

    Raises:
        OSError, ValueError: as `plan`, for the first picture that fails with `on_error="raise"`; and, whatever
            `on_error` says, settings that `plan` refuses, at once, and a source that does not exist, is no source, or
            is a glob, folder or shard without pictures. What a list or a JSONL file names counts as a picture there.

    >>> import mrope
    >>> found = scan([(480, 640), (10, 4000)], mrope.family("qwen2.5-vl"), on_error="skip")
    >>> [one.plan.tokens for one in found], found.count, found.skipped[0][0]
    ([391], 2, '1')
    """
    one_of("conflict", conflict, get_args(Conflict))
    one_of("on_error", on_error, get_args(OnError))
    one_of("progress", progress, get_args(Progress))
    if not isinstance(column, str):
        raise TypeError(f"column is {column!r}; expected the name of a field")
    if family is not None:
        check_family(family)
        picture_limits(family, min_tokens, max_tokens)
    elif (min_tokens, max_tokens) != (None, None):
        raise ValueError("min_tokens and max_tokens need a family; give it, or drop them")
    if isinstance(source, tuple):
        _sides(source)
    elif not isinstance(source, Iterable):
        check_kind(source, "source")

    @lru_cache(maxsize=4096)
    def planned(size: Size) -> Plan | None:
        assert family is not None
        return plan(size, family, min_tokens=min_tokens, max_tokens=max_tokens, conflict=conflict)

    def look(name: str, picture: Any) -> Scanned:
        size, orientation = None, 1
        try:
            picture = picture() if callable(picture) else picture
            size, orientation = (_sides(picture), 1) if isinstance(picture, tuple) else measure(picture)
            one = None if family is None else planned(size)
        except _ERRORS as error:
            if on_error == "raise":
                raise _named(error, name) from None
            return Scanned(name=name, size=size, orientation=orientation, error=_line(error))
        if one is not None and (orientation != 1 or isinstance(picture, str)):
            one = replace(one, source=picture if isinstance(picture, str) else None, orientation=orientation)
        return Scanned(name=name, size=size, orientation=orientation, plan=one)

    def work() -> Iterator[Scanned]:
        items = _pictures(source, column, lenient=on_error != "raise")
        for name, picture in _bar(items, source) if progress == "bar" else items:
            one = look(name, picture)
            result.count += 1
            if one.error is not None and on_error == "skip":
                result.skipped.append((name, one.error))
            else:
                yield one

    result = Scan(work())
    return result


Named = tuple[str, Any]
"""A picture, or a function that reads one, and how errors call it."""


def _pictures(source: Any, column: str, *, lenient: bool) -> Iterator[Named]:
    """All pictures of a source, with their names; a `lenient` list takes a path that leads nowhere for a picture."""
    if isinstance(source, Mapping):
        yield from source.items()
    elif isinstance(source, (str, os.PathLike)):
        for path in unbraced(os.fspath(source)):
            if not glob.has_magic(path):
                os.stat(path)  # which raises where there is nothing
            yield from _of_path(path, column)
    elif is_file(source) or isinstance(source, tuple) or not isinstance(source, Iterable) or hasattr(source, "shape"):
        yield name_of(source) or "0", source
    else:
        for number, one in enumerate(source):
            if not isinstance(one, (str, os.PathLike)):
                yield str(number), one
                continue
            for path in unbraced(os.fspath(one)):
                try:
                    yield from _of_path(path, column)
                except (OSError, ValueError) as error:
                    if not lenient:
                        raise
                    yield path, _raising(error)


_BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")
"""A range of numbers or a list of words."""


def unbraced(path: str) -> Iterator[str]:
    """The paths that one with braces stands for; a path that exists stands for itself."""
    found = None if os.path.exists(path) else _BRACES.search(path)
    if found is None:
        yield path
        return
    first, last, words = found.groups()
    if words is None:
        step = 1 if int(first) <= int(last) else -1
        padded = any(bound[0] == "0" and len(bound) > 1 for bound in (first, last))
        digits = max(len(first), len(last)) if padded else 0
        words = (f"{number:0{digits}d}" for number in range(int(first), int(last) + step, step))
    else:
        words = words.split(",")
    for word in words:
        yield from unbraced(path[: found.start()] + word + path[found.end() :])


def _of_path(path: str, column: str) -> Iterator[Named]:
    suffix = os.path.splitext(path)[1].lower()
    if os.path.isdir(path):
        yield from _some(_of_folder(path), f"{path}: is a folder")
    elif not os.path.exists(path) and glob.has_magic(path):
        names = (one for one in sorted(set(matching(path))) if not os.path.isdir(one))
        yield from _some((item for name in names for item in _of_path(name, column)), f"{path}: is a pattern")
    elif suffix in (".jsonl", ".ndjson"):
        yield from _of_jsonl(path, column)
    elif suffix == ".tar" or path.lower().endswith((".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")):
        yield from _some(_of_tar(path), f"{path}: is a shard")
    elif _is_pdf(path):
        yield from _pages(path, path)
    else:
        yield path, path


def _of_folder(path: str) -> Iterator[Named]:
    unread: list[OSError] = []
    for folder, names in walk(path, unread.append):
        shown = (os.path.join(folder, one) for one in names if one[0] != ".")
        for one in shown:
            if _is_pdf(one):
                yield from _pages(one, one)
            elif one.lower().endswith(PICTURES):
                yield one, one
    yield from ((str(error.filename), _raising(error)) for error in unread)


def walk(path: str, onerror: Callable[[OSError], object] | None = None) -> Iterator[tuple[str, list[str]]]:
    """The folders below a path, itself first, but hidden ones, with the names of what else is in each."""
    for folder, below, names in os.walk(path, followlinks=True, onerror=onerror):
        below[:] = [one for one in sorted(below) if one[0] != "." and not _goes_round(path, os.path.join(folder, one))]
        yield folder, sorted(names)


def _goes_round(top: str, folder: str) -> bool:
    """Whether the way from `top` down to a folder comes twice to the same one, by a link."""
    way = [top]
    for name in os.path.relpath(folder, top).split(os.sep):
        way.append(os.path.join(way[-1], name))
    places = [os.path.realpath(one) for one in way]
    return len(set(places)) < len(places)


def matching(pattern: str) -> Iterator[str]:
    """What a glob finds; "**" is gone through as a folder, since that of the standard library follows links round."""
    parts = os.path.normpath(pattern).split(os.sep)
    if "**" not in parts:
        yield from glob.iglob(pattern)
        return
    at = parts.index("**")
    head, tail = os.sep.join(parts[:at]) or (os.curdir if at == 0 else os.sep), parts[at + 1 :] or ["*"]
    for top in glob.iglob(head):
        for folder, _ in walk(top):
            below = glob.escape(os.path.normpath(folder)) if at or folder != os.curdir else ""
            yield from matching(os.path.join(below, *tail))


def _some(items: Iterator[Named], what: str) -> Iterator[Named]:
    """The items, of which there must be one."""
    first = next(items, None)
    if first is None:
        raise ValueError(f"{what} without pictures, whose names end in {' '.join(PICTURES)}")
    yield first
    yield from items


def _is_pdf(path: str) -> bool:
    return path.lower().endswith(".pdf")


def _pages(name: str, source: File | Callable[[], bytes]) -> Iterator[Named]:
    """The pages of a PDF, or of what a function reads."""
    try:
        pages = pdf_pages(source() if callable(source) else source)
    except _ERRORS as error:
        yield name, _raising(error)
        return
    yield from ((f"{name}, page {page.number}", page) for page in pages)


def _of_jsonl(path: str, column: str) -> Iterator[Named]:
    folder = os.path.dirname(path)
    with open(path, encoding="utf-8-sig", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            name = f"{path}:{number}"
            try:
                paths = row_paths(json.loads(line), column)
            except ValueError as error:
                yield name, _raising(ValueError(str(error)))
                continue
            for one in paths:
                whole_path = os.path.join(folder, one)
                yield from _pages(whole_path, whole_path) if _is_pdf(whole_path) else ((whole_path, whole_path),)


def row_paths(row: Any, column: str) -> list[str]:
    """The path, or the paths, in a field of a row.

    Raises:
        ValueError: there is none, or something else.
    """
    value = row.get(column) if isinstance(row, dict) else None
    paths: list[Any] = value if isinstance(value, list) else [value]
    if not all(isinstance(one, str) and one for one in paths):
        fields = f", in a row with the fields {', '.join(map(str, row))}" if isinstance(row, dict) and row else ""
        raise ValueError(f"column {column!r} is {value!r:.60}; expected a path or a list of paths{fields}")
    return paths


def _of_tar(path: str) -> Iterator[Named]:
    try:
        for shard, member in shard_members(path):
            name = f"{path}/{member.name}"
            if _is_pdf(member.name):
                yield from _pages(name, partial(_whole, shard, member))
            elif member.name.lower().endswith(PICTURES):
                assert shard.fileobj is not None  # as long as the shard is open
                yield name, partial(header_of, shard.fileobj, member.offset_data, member.size)
    except ValueError as error:
        yield path, _raising(error)


def shard_members(path: str, file: Any = None) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """The files in a tar shard that are not hidden, one after the other, each with the open shard.

    Args:
        path: of the shard, compressed or not.
        file: it, open for reading and seeking, where the system cannot open the path.

    Raises:
        OSError: the path cannot be opened.
        ValueError: at the place where the shard is broken.
    """
    try:
        with tarfile.open(path, fileobj=file) as shard:
            for member in shard:
                hidden = any(one[:1] == "." and one != "." for one in member.name.split("/"))
                if member.isfile() and not hidden:
                    yield shard, member
            _check_end(shard)
    except (*BROKEN_SHARD, RuntimeError) as error:  # that of bz2, when it is read on behind an error
        raise ValueError(f"broken shard ({_line(error)})") from None


def _check_end(shard: tarfile.TarFile) -> None:
    """Refuse what `tarfile` takes for the end: a header that is cut off, broken or zeros, with more data behind it.

    Only zeros lie behind the last member of a whole shard. Reading them all also has a packed one check its sum.
    """
    file, end = shard.fileobj, shard.offset
    assert file is not None
    file.seek(end)
    block = file.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE:
        raise tarfile.ReadError("it ends without the blocks that end a shard")
    if any(block):
        raise tarfile.ReadError(f"no header at byte {end}, and what lies behind is not read")
    while block:
        if any(block):
            raise tarfile.ReadError(f"data behind the end of the shard, which is at byte {end}, is not read")
        block = file.read(_PREFIX)


def _whole(shard: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = shard.extractfile(member)
    assert file is not None  # of a regular file
    return file.read()


def header_of(file: Any, start: int, size: int) -> bytes:
    """As much of a picture as says its size and orientation, as a file of its own.

    Args:
        file: open for reading and seeking.
        start: where the picture begins in it.
        size: bytes of the picture.
    """
    file.seek(start)
    prefix = file.read(min(size, _PREFIX))
    if size <= _PREFIX:
        return prefix
    if prefix.startswith(_PNG):
        return _without_pixels(file, start, start + size)
    if prefix.startswith(_HEAD_FIRST):
        try:
            measure(prefix)
            return prefix
        except ValueError:
            pass  # a profile or a preview fills the prefix
    return prefix + file.read(size - len(prefix))


def _without_pixels(file: Any, start: int, end: int) -> bytes:
    """A PNG with one empty chunk of pixels: its orientation may stand behind them."""
    kept, place, has_pixels = [_PNG], start + len(_PNG), False
    while place + 8 <= end:
        file.seek(place)
        if len(head := file.read(8)) < 8:
            raise ValueError("the shard ends inside of it")
        length, kind = struct.unpack(">I4s", head)
        if kind != b"IDAT":
            file.seek(place)
            kept.append(file.read(min(length + 12, end - place)))
        elif not has_pixels:
            kept.append(struct.pack(">I4sI", 0, b"IDAT", zlib.crc32(b"IDAT")))
            has_pixels = True
        place += length + 12
    return b"".join(kept)


def _raising(error: Exception) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


def _sides(size: tuple[Any, ...]) -> Size:
    if len(size) != 2:
        raise TypeError(f"the size of a picture is a tuple (height, width), got {size!r}")
    return whole("height", size[0], 1), whole("width", size[1], 1)


def _named(error: Exception, name: str) -> Exception:
    """The error, with the picture's name in front where it does not say it."""
    if isinstance(error, OSError) or str(error).startswith(name):
        return error
    kind = next((kind for kind in (TypeError, ImportError, MemoryError) if isinstance(error, kind)), ValueError)
    return kind(f"{name}: {error}")


def _line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def _bar(items: Iterator[Named], source: Any) -> Iterable[Named]:
    """The items, under a bar on stderr, which counts where nobody knows how many there are."""
    from rich.console import Console
    from rich.progress import track

    total = len(source) if isinstance(source, Sequence) and not is_file(source) else None
    return track(items, "scanning", total=total, console=Console(stderr=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What many planned pictures come to.

    Args:
        pictures: how many there are.
        planned: how many of them have a plan.
        tokens: LLM tokens that show them, all together.
        prompt_tokens: the same with newlines and markers; None where that of a clip is unknown.
        percentiles: (per cent, tokens): so many per cent of the planned pictures have at most so many tokens.
        histogram: (tokens, pictures): how many have at most so many tokens, and more than the row before says.
        above: (cutoff, share): what share of the planned pictures has more prompt tokens than a cutoff, 0..1.
        shrunk: pictures with fewer tokens than their own size would take, of a clip in each of its steps.
        enlarged: pictures with more.
        unfit: (name, why) of those that were read, but have no plan: too thin, or too large for the limits.
        unread: (name, why) of those without a size.
    """

    pictures: int
    planned: int
    tokens: int
    prompt_tokens: int | None
    percentiles: tuple[tuple[int, int], ...]
    histogram: tuple[tuple[int, int], ...]
    above: tuple[tuple[int, float], ...]
    shrunk: int
    enlarged: int
    unfit: tuple[tuple[str, str], ...]
    unread: tuple[tuple[str, str], ...]


def summarize(scanned: Iterable[Scanned], *, cutoffs: Sequence[int] = ()) -> Summary:
    """Count up what a scan yields; of each picture only two numbers are kept.

    Args:
        scanned: by a scan with a family.
        cutoffs: prompt tokens of interest, such as the length that training cuts off at.

    Raises:
        ValueError: there are cutoffs, and a clip whose prompt tokens are unknown.

    >>> import mrope
    >>> sizes = [(480, 640), (480, 640), (3024, 4032)]
    >>> summary = summarize(scan(sizes, mrope.family("qwen3-vl")), cutoffs=(1000,))
    >>> summary.tokens, summary.percentiles[2], summary.histogram[0]
    (12444, (50, 300), (512, 2))
    >>> summary.above
    ((1000, 0.3333333333333333),)
    """
    limits = [whole("cutoffs", cutoff, 0) for cutoff in cutoffs]
    costs: list[tuple[int, int]] = []
    grown: list[int] = []
    unfit, unread, count, unknown = [], [], 0, None
    for one in scanned:
        count += 1
        if one.plan is not None:
            costs.append((one.plan.tokens, one.plan.prompt_tokens or 0))
            unknown = one.name if one.plan.prompt_tokens is None else unknown
            own = [max(1, round(side / one.plan.factor)) for side in one.plan.original]
            shown = len({part.frame for part in one.plan.parts}) * one.plan.grid[0] // one.plan.temporal_merge
            grown.append(one.plan.tokens - shown * own[0] * own[1])
        elif one.size is None:
            unread.append((one.name, one.error or ""))
        else:
            unfit.append((one.name, one.error or "left out by conflict"))
    if limits and unknown is not None:
        raise ValueError(f"{unknown}: its prompt tokens are unknown, and cutoffs need them; give fps, or no cutoffs")
    tokens, prompts = np.array(costs, dtype=np.int64).reshape(-1, 2).T
    percents = (0, 5, 50, 95, 99, 100) if len(tokens) else ()
    return Summary(
        pictures=count,
        planned=len(tokens),
        tokens=int(tokens.sum()),
        prompt_tokens=int(prompts.sum()) if unknown is None else None,
        percentiles=tuple((per, int(np.percentile(tokens, per, method="inverted_cdf"))) for per in percents),
        histogram=_histogram(tokens),
        above=tuple((limit, float((prompts > limit).mean()) if len(prompts) else 0.0) for limit in limits),
        shrunk=sum(more < 0 for more in grown),
        enlarged=sum(more > 0 for more in grown),
        unfit=tuple(unfit),
        unread=tuple(unread),
    )


def _histogram(tokens: np.ndarray) -> tuple[tuple[int, int], ...]:
    """By powers of two, from the first to the last that has pictures."""
    if not len(tokens):
        return ()
    powers = np.ceil(np.log2(tokens)).astype(int)
    return tuple((2 ** int(power), int((powers == power).sum())) for power in range(powers.min(), powers.max() + 1))
