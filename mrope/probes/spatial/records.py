"""The records of runs on disk: a line of JSON a sample.

A folder holds ``run.json`` (who was asked what), ``samples.jsonl`` (a line a sample, in the order of the tasks and
seeds once the run has ended), ``pictures/`` (PNG, named by content), and what is made of them: ``summary.json`` and
``report.html``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from mrope.probes.words import counted

SAMPLES, FACTS, PICTURES = "samples.jsonl", "run.json", "pictures"
Record: TypeAlias = Mapping[str, Any]
"""A line of ``samples.jsonl``."""


def read_records(folder: Path) -> list[Record]:
    """The records of a run's folder; a last line that a kill cut short is left out.

    Raises:
        ValueError: a line in the middle is no record.
    """
    path = folder / SAMPLES
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    records = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            records.append(json.loads(line))
        except ValueError:
            raise ValueError(f"line {number} of {path} is no JSON; expected one record a line") from None
    return records


def read_run(folder: Path) -> dict[str, Any]:
    """What ``run.json`` says.

    Raises:
        ValueError: there is no run in the folder.
    """
    try:
        return json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise ValueError(f"{folder} holds no run; expected a folder that `mrope probe run --out` wrote") from None


def unfinished(run: Mapping[str, Any], records: Sequence[Record]) -> str:
    """What a run lacks, in words; "" where all samples were asked, or where ``run.json`` does not say how many.

    >>> unfinished({"samples": 1200}, [{}])
    '1 of 1,200 samples asked; `mrope probe run` goes on with the rest'
    """
    count = run.get("samples", 0)
    if len(records) >= count:
        return ""
    return f"{len(records):,} of {counted(count, 'sample')} asked; `mrope probe run` goes on with the rest"


def limited(run: Mapping[str, Any]) -> str:
    """What a run was limited to, in words; "" where all samples are asked.

    >>> limited({"limit": 4})
    'at most 4 samples of each task and seed, sets kept whole'
    """
    if run["limit"] is None:
        return ""
    return f"at most {counted(run['limit'], 'sample')} of each task and seed, sets kept whole"


def key_of(record: Record) -> tuple[str, int, str]:
    """What names a record in its run: task, seed, id."""
    return record["task"], record["seed"], record["id"]


def lines(records: Iterable[Record]) -> str:
    """Records as they stand in the file."""
    return "".join(map(line, records))


def line(record: Record) -> str:
    """A record as it stands in the file."""
    return json.dumps(record, ensure_ascii=False) + "\n"
