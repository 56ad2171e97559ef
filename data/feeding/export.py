"""Patches cut once, and read by every epoch: the items of a scan as WebDataset shards, beside the rows of the scan.

    OUT/scan.json, OUT/parts, OUT/report.html   as of a scan at one limit (`scanning/store.py`)
    OUT/rows/rows-000000.parquet                its rows, with the shard of each item, and the place in it
    OUT/shards/shard-000000-000.tar             of part 0: of each item PPPPPP-NNNNNN.patches.npy, its bytes (P, V), and
                                                PPPPPP-NNNNNN.json, all else; by the numbers of its part and of its row
                                                there, both from 0

So an export is a scan: `Catalogue` reads it and `mrope pack` packs it. What cannot be decoded is a row with an error.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

import mrope
from mrope.checks import whole
from mrope.families import Family
from mrope.vision import Patches, Plan, patchify, patchify_video, pdf_pages

from ..scanning import store
from ..scanning.rows import scan_part, told, writable
from ..scanning.scan import Engine, Progress, carry_out, listed, settings_of
from ..scanning.store import Catalogue, Settings
from .texts import with_labels

SHARD = 1 << 30
"""Bytes from which on a part goes on in another shard."""


def write_export(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    family: Family | str | None = None,
    max_tokens: int | None = None,
    engine: Engine = "local",
    workers: int | None = None,
    address: str | None = None,
    column: str | None = None,
    progress: Progress = "none",
) -> Catalogue:
    """Cut every picture, page and clip that the sources name into patches of bytes, and write these as shards.

    Shards and rows are the same to the byte, whatever the engine and the number of workers, and however often the
    export was stopped: called again with the same arguments, it goes on where it was. `ExportedItems` reads them by
    number, `exported_item` reads a sample that the package webdataset made of one.

    Args:
        sources: as in `write_scan`; or the folder of a scan, whose items are exported.
        out: a folder of this export alone, on a file system that all workers share.
        family: for whom patches are cut, a recorded one or its name; of a scan by default the scan's.
        max_tokens: most tokens of a picture or clip; of a scan by default its limit if it has one, else the family's.
        engine: as in `write_scan`, as all that follow; `column` is not for a scan, which has one.

    The labels of an item are what stands beside it in its source, see `Exported`. A json beside it in a shard that is
    no JSON, and a txt or cls that is no UTF-8, make it a row with an error. Of a shard that is broken, labels that lie
    behind the break are missing; its row tells so.

    Raises:
        OSError, ValueError, ImportError: as `write_scan`; `family` is missing, or a scan is not done or has several
            limits and `max_tokens` is missing.
    """
    limits = () if max_tokens is None else (whole("max_tokens", max_tokens, 1),)
    store.arrow()
    scan = _scan_of(sources)
    if scan is None:
        if family is None:
            raise ValueError("family is None; expected one, whose patches are cut, or the folder of a scan with one")
        settings = settings_of(sources, family, limits, column, False)
        parts = listed(out, settings)
    else:
        there = scan.settings
        if column is not None:
            raise ValueError(f"column is {column!r}, and {scan.out} was scanned with {there['column']!r}; drop it")
        if len(there["limits"]) > 1 and max_tokens is None:
            raise ValueError(f"max_tokens is None, and {scan.out} has limits {there['limits']}; expected one of them")
        if family is None and there["family"] is None:
            raise ValueError(f"family is None, and {scan.out} was scanned without one; expected a family")
        settings = settings_of(
            there["sources"], family or there["family"], limits or there["limits"], None, there["hash"]
        )
        settings |= {"folder": there["folder"], "column": there["column"]}
        parts = (store.read_part(scan.out, number) for number in range(store.count_parts(scan.out)))
    settings["shards"] = True
    return carry_out(out, settings, parts, engine=engine, workers=workers, address=address, progress=progress)


def _scan_of(sources: Any) -> Catalogue | None:
    """The scan whose folder is the only source."""
    named = sources if isinstance(sources, (list, tuple)) else [sources]
    if len(named) != 1 or not isinstance(named[0], (str, os.PathLike)) or not (Path(named[0]) / "scan.json").is_file():
        return None
    scan = Catalogue(named[0])
    scan.summary()  # which refuses one that is not done
    return scan


def export_part(out: Path, number: int, settings: Settings) -> Any:
    """Write the shards of one part, and return its rows as a `pyarrow.Table`."""
    part = store.read_part(out, number)
    table = scan_part(part, settings)
    rows = table.to_pylist()
    family, most = mrope.family(settings["family"]), next(iter(settings["limits"]), None)
    items = chain.from_iterable(_single(entry, settings) for entry in part)
    (label,) = store.labels(settings)
    (out / "shards").mkdir(exist_ok=True)
    with _Shards(out / "shards", number) as shards:
        for row, facts in enumerate(rows):
            facts["shard"] = facts["offset"] = None
            found = next(items, None)
            if facts["error"] is not None:
                continue
            try:
                if found is None or writable(found[0]) != facts["source"]:
                    raise ValueError("it was another one, or none, when it was read again")
                _, labels, picture = found
                if isinstance(labels, ValueError):
                    raise labels
                patches = _cut(picture(), facts["kind"], family, most)
                planned = patches.plans[0]
                if planned.tokens != facts[f"tokens_{label}"]:
                    raise ValueError(f"it takes {planned.tokens} tokens, and {facts[f'tokens_{label}']} by its header")
            except ImportError:
                raise
            except Exception as error:  # whatever a broken file does to a decoder
                facts["error"], facts["reason"] = told(error, facts["source"])
                facts[f"tokens_{label}"] = facts[f"grid_{label}"] = None
                continue
            words = {"source": facts["source"], "kind": facts["kind"], "plan": _plan_words(planned), "labels": labels}
            facts["shard"], facts["offset"] = shards.add(f"{number:06d}-{row:06d}", patches, words)
    pa = store.arrow()
    schema = table.schema.append(pa.field("shard", pa.string())).append(pa.field("offset", pa.int64()))
    return pa.Table.from_pylist(rows, schema)


def _single(entry: Any, settings: Settings) -> Iterator[tuple[str, Any, Any]]:
    """Name, labels and what reads it, of each picture, page and clip of an entry, as a scan has them."""
    for item, labels in with_labels(entry, settings):
        if item.kind == "page":
            try:
                pages = pdf_pages(item.whole())
            except Exception:  # the scan tells why
                yield item.source, labels, item.whole
                continue
            for page in pages:
                yield f"{item.source}, page {page.number}", labels, partial(_same, page)
        else:
            yield item.source, labels, item.whole


def _same(value: Any) -> Any:
    return value


def _cut(picture: Any, kind: str, family: Family, most: int | None) -> Patches:
    if kind != "clip":
        return patchify(picture, family, max_tokens=most, dtype="uint8")
    try:
        return patchify_video(picture, family, max_tokens=most, dtype="uint8")
    except ValueError as error:
        if "give min_tokens too" not in str(error):
            raise
    return patchify_video(picture, family, min_tokens=1, max_tokens=most, dtype="uint8")  # as the scan plans it


def _plan_words(planned: Plan) -> dict[str, Any]:
    """A plan as JSON; its spans with their kinds."""
    spans = None if planned.spans is None else [[type(span).__name__, asdict(span)] for span in planned.spans]
    return {**asdict(planned), "spans": spans}


class _Shards:
    """The shards of one part, each put into its place in one step once it is whole."""

    def __init__(self, folder: Path, part: int) -> None:
        self.folder, self.part, self.count = folder, part, 0
        self.shard: tarfile.TarFile | None = None
        self.open = ExitStack()

    def __enter__(self) -> _Shards:
        return self

    def __exit__(self, *error: Any) -> None:
        self.open.__exit__(*error)

    def add(self, key: str, patches: Patches, words: dict[str, Any]) -> tuple[str, int]:
        """The shard that the patches and the words of an item went to, and the byte at which they begin."""
        if self.shard is not None and self.shard.offset >= SHARD:
            self.open.close()
            self.shard = None
        if self.shard is None:
            self.name = f"shard-{self.part:06d}-{self.count:03d}.tar"
            self.count += 1
            path = self.open.enter_context(store.in_place(self.folder / self.name))
            self.shard = self.open.enter_context(tarfile.open(path, "w", format=tarfile.USTAR_FORMAT))  # noqa: SIM115
        begin = self.shard.offset
        about = {"mean": patches.mean, "std": patches.std, "order": patches.order}
        file = io.BytesIO()
        np.save(file, patches.values.numpy())
        text = json.dumps({**words, **about}, default=str)
        for extension, data in (("patches.npy", file.getvalue()), ("json", text.encode())):
            member = tarfile.TarInfo(f"{key}.{extension}")  # of no owner, and of no time
            member.size = len(data)
            self.shard.addfile(member, io.BytesIO(data))
        return self.name, begin
