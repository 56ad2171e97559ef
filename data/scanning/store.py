"""The folder of a scan: what to look at in parts, what was found in rows, and nothing that is half written.

    OUT/scan.json                     the settings, written first; at the end with totals and "done": true
    OUT/parts/part-000000.parquet     what part 0 looks at; the folder is put there in one step, once all is listed
    OUT/rows/rows-000000.parquet      what was found there; it is put there in one step, and then part 0 is done
    OUT/shards/shard-000000-000.tar   of an export (`feeding/export.py`): the patches; they are there before the rows

So a scan that was stopped, by whatever, goes on with the parts that have no rows. The folder is one of a file system
that all workers share.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow

    from .sources import Entry
else:
    pyarrow = Entry = Any

Settings = Mapping[str, Any]
"""What `scan.json` holds."""

_ASKED: dict[str, Any] = {
    "sources": [],
    "folder": None,
    "column": None,
    "family": None,
    "limits": [],
    "hash": False,
    "shards": False,
    "format": None,
}
"""What two scans of one folder must have in common, and what it is where it is not told."""


def arrow() -> Any:
    """pyarrow, with its Parquet part, or one line that names the extra."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ImportError(
            "scans are Parquet files of pyarrow, which is not installed: pip install 'mrope[scale]'"
        ) from None
    return pyarrow


def labels(settings: Settings) -> list[str]:
    """The limits that columns are called by: numbers of tokens, "own" for the family's own, none without a family."""
    return [str(limit) for limit in settings["limits"]] or ([] if settings["family"] is None else ["own"])


def begin(out: Path, settings: Settings) -> None:
    """Make the folder of a scan, or find the scan that was begun there.

    Raises:
        ValueError: the folder holds something else, or a scan of other settings.
    """
    if (out / "parts").is_dir():
        there = read_settings(out)
        for name, missing in _ASKED.items():
            old, new = there.get(name, missing), settings.get(name, missing)
            if old != new:
                raise ValueError(
                    f"out is {out}, which holds a scan with {name} {_short(old)}, not {_short(new)}; "
                    "expected the same settings, or another folder"
                )
        return
    if out.is_dir() and any(out.iterdir()) and not (out / "scan.json").exists():
        raise ValueError(f"out is {out}, a folder with other files; expected a new one, an empty one or one of a scan")
    out.mkdir(parents=True, exist_ok=True)
    write_settings(out, settings)


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Keep other scans out of a folder, as far as its file system can.

    Raises:
        OSError: another process is at it.
    """
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    folder = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(f"{out} is in use by another scan; wait for it, or stop it") from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(folder)  # as the end of the process does, whatever ends it


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else text[:117] + "..."


def read_settings(out: str | os.PathLike[str]) -> dict[str, Any]:
    """What `scan.json` holds.

    Raises:
        ValueError: the folder is none of a scan.
    """
    path = Path(out) / "scan.json"
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{out} is no folder of a scan; expected one that `mrope scan` wrote") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}; expected the JSON that `mrope scan` wrote") from None


def write_settings(out: Path, settings: Settings) -> None:
    """Put `scan.json` into its place in one step."""
    write_text(out / "scan.json", json.dumps(settings, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Put a file of text into its place in one step."""
    with in_place(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_parts(out: Path, parts: Iterable[Sequence[Entry]]) -> None:
    """Write the parts one after the other, and put all of them into their place in one step; nothing if they are."""
    if (out / "parts").is_dir():
        return
    pa = arrow()
    for old in out.glob("parts.*.tmp"):
        shutil.rmtree(old)
    schema = pa.schema(_PART)
    listing = out / f"parts.{os.getpid()}.tmp"
    listing.mkdir()
    try:
        for number, part in enumerate(parts):
            _write_table(pa.table(list(zip(*part, strict=True)), schema=schema), listing / f"part-{number:06d}.parquet")
        (out / "rows").mkdir(exist_ok=True)
        listing.rename(out / "parts")
    except BaseException:
        shutil.rmtree(listing, ignore_errors=True)
        raise


_PART = [
    ("what", "string"),
    ("path", "binary"),
    ("size", "int64"),
    ("start", "int64"),
    ("stop", "int64"),
    ("first", "int64"),
]


def part_path(out: str | os.PathLike[str], number: int) -> Path:
    """What a part looks at."""
    return Path(out) / "parts" / f"part-{number:06d}.parquet"


def read_part(out: str | os.PathLike[str], number: int) -> list[Entry]:
    """What a part looks at, in order."""
    from .sources import Entry

    return [Entry(**each) for each in arrow().parquet.read_table(part_path(out, number)).to_pylist()]


def rows_path(out: str | os.PathLike[str], number: int) -> Path:
    """What was found in a part."""
    return Path(out) / "rows" / f"rows-{number:06d}.parquet"


def count_parts(out: str | os.PathLike[str]) -> int:
    """How many parts there are; 0 as long as they are being listed."""
    folder = Path(out) / "parts"
    return len(os.listdir(folder)) if folder.is_dir() else 0


def pending(out: str | os.PathLike[str]) -> list[int]:
    """The numbers of the parts that are not done, ascending."""
    done = {name for name in os.listdir(Path(out) / "rows") if name.endswith(".parquet")}
    return [number for number in range(count_parts(out)) if rows_path(out, number).name not in done]


def scan_state(out: str | os.PathLike[str]) -> tuple[int, int]:
    """How many parts of a scan are done, and how many there are; (0, 0) as long as they are being listed."""
    parts = count_parts(out)
    return (parts - len(pending(out)), parts) if parts else (0, 0)


def write_part(out: str | os.PathLike[str], number: int) -> int:
    """Look at a part and put its rows into their place in one step; at once where they are there.

    Any number of processes may do this at once, and for one part too: all come to the same bytes.

    Returns:
        How many rows there are.

    Raises:
        OSError: the rows cannot be written, or nothing of the part can be reached.
    """
    pa, path = arrow(), rows_path(out, number)
    if path.exists():
        return pa.parquet.read_metadata(path).num_rows
    settings = read_settings(out)
    if settings.get("shards"):
        from ..feeding.export import export_part

        table = export_part(Path(out), number, settings)
    else:
        from .rows import scan_part

        table = scan_part(read_part(out, number), settings)
    _write_table(table, path)
    return table.num_rows


def drop_temporary(out: str | os.PathLike[str], pid: int | None = None) -> None:
    """Remove what a stopped process, or any, left of files that it did not finish."""
    for folder in ("rows", "shards"):
        for path in (Path(out) / folder).glob("*.tmp" if pid is None else f"*.{pid}.tmp"):
            path.unlink(missing_ok=True)


def finish(out: Path) -> None:
    """Count all rows, and say in `scan.json` that the scan is done."""
    drop_temporary(out)
    settings = read_settings(out)
    if not settings["done"]:
        write_settings(out, {**settings, "done": True, "totals": _totals(out, labels(settings))})


def _totals(out: Path, limits: Sequence[str]) -> dict[str, Any]:
    items = errors = 0
    kinds, reasons, flags = Counter[str](), Counter[str](), Counter[str]()
    tokens, planned = dict.fromkeys(limits, 0), dict.fromkeys(limits, 0)
    columns = ["kind", "reason", "flags", *(f"tokens_{limit}" for limit in limits)]
    for batch in _batches(out, columns):
        items += len(batch)
        kinds.update(_counts(batch["kind"]))
        reasons.update(_counts(batch["reason"]))
        flags.update(_counts(batch["flags"].flatten()))
        errors += len(batch) - batch["reason"].null_count
        for limit in limits:
            column = batch[f"tokens_{limit}"]
            planned[limit] += len(column) - column.null_count
            tokens[limit] += int(column.fill_null(0).to_numpy(zero_copy_only=False).sum(dtype="int64"))
    return {
        "items": items,
        "errors": errors,
        "kinds": dict(sorted(kinds.items())),
        "reasons": dict(sorted(reasons.items())),
        "flags": dict(sorted(flags.items())),
        "planned": planned,
        "tokens": tokens,
        "left_out": _left_out(out),
    }


def _left_out(out: Path) -> dict[str, int]:
    """How many shards and tables of each ending lie in folders, where they are not read."""
    from .sources import left_out

    read = arrow().parquet.read_table
    paths = (
        read(part_path(out, number), columns=["path"], filters=[("what", "==", "left")])["path"].to_pylist()
        for number in range(count_parts(out))
    )
    return left_out(chain.from_iterable(paths))


def _counts(column: Any) -> dict[str, int]:
    return {str(each["values"]): each["counts"] for each in column.drop_null().value_counts().to_pylist()}


def _batches(out: str | os.PathLike[str], columns: Sequence[str] | None) -> Iterator[pyarrow.RecordBatch]:
    pa = arrow()
    for number in range(count_parts(out)):
        with pa.parquet.ParquetFile(rows_path(out, number)) as file:
            yield from file.iter_batches(columns=columns)


class Catalogue:
    """What a scan found, read from its folder in bounded memory.

    Args:
        out: the folder.

    Raises:
        ValueError: it is none of a scan.
        ImportError: pyarrow is not installed.
    """

    def __init__(self, out: str | os.PathLike[str]) -> None:
        arrow()
        self.out = Path(out)
        self.settings: dict[str, Any] = read_settings(out)

    @property
    def done(self) -> bool:
        """Whether the scan is complete."""
        return bool(self.settings["done"])

    @property
    def limits(self) -> tuple[str, ...]:
        """What the columns `tokens_...` and `grid_...` are called by."""
        return tuple(labels(self.settings))

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[pyarrow.RecordBatch]:
        """The rows in order, item 0 first, as record batches of these columns, by default all (see `rows.py`).

        Raises:
            ValueError: the scan is not done, or has no such column.
        """
        self._check_done()
        if columns is not None and count_parts(self.out):
            there = arrow().parquet.read_schema(rows_path(self.out, 0)).names
            wrong = columns if isinstance(columns, str) else next((one for one in columns if one not in there), None)
            if wrong is not None:
                raise ValueError(f"columns is {columns!r}, with {wrong!r}; expected a list of {', '.join(there)}")
        return _batches(self.out, columns)

    def summary(self) -> dict[str, Any]:
        """Totals: items, errors, kinds, reasons of errors, flags; at each limit the tokens, and the items with a plan.

        Its `left_out` tells by ending how many shards and tables lie in folders: these are read where they are named.

        Raises:
            ValueError: the scan is not done.
        """
        self._check_done()
        return dict(self.settings["totals"])

    def _check_done(self) -> None:
        if not self.done:
            done, parts = scan_state(self.out)
            state = f"{done} of {parts} parts done" if parts else "its sources not listed yet"
            raise ValueError(f"{self.out} holds a scan that is not done, {state}; run the same `mrope scan` to go on")


@contextmanager
def in_place(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of `path` in one step, or leaves nothing behind."""
    temporary = path.with_name(f"{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _write_table(table: Any, path: Path) -> None:
    with in_place(path) as temporary:
        arrow().parquet.write_table(table, temporary, compression="zstd")
