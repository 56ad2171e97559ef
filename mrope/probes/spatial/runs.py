"""Runs: samples asked, replies marked, every one kept in a folder, so that a killed run goes on where it was."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from io import BytesIO
from itertools import groupby, islice
from pathlib import Path
from typing import Any, TypeAlias

import torch

from mrope.checks import whole
from mrope.data import Clip, Sample, Task, task
from mrope.probes.files import write_whole
from mrope.probes.spatial.marking import mark
from mrope.probes.spatial.records import (
    FACTS,
    PICTURES,
    SAMPLES,
    Record,
    key_of,
    line,
    lines,
    read_records,
    read_run,
)
from mrope.probes.spatial.reply import Reply, Respondent
from mrope.probes.spatial.respondents.blind import Blind

OnRecord: TypeAlias = Callable[[Record], None]
BATCH = 32
"""Samples that are drawn, and handed over, together."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is asked.

    Args:
        tasks: name -> settings of the task, where they are others than its own.
        seeds: each draws its own samples.
        limit: most samples of each task and seed; None for all. Samples of one group are all asked or none, so that no
            set counts as answered by half; of the first group all are asked, whatever the limit.
        large: start from the settings for a machine with a GPU.
    """

    tasks: Mapping[str, Mapping[str, Any]]
    seeds: tuple[int, ...] = (0,)
    limit: int | None = None
    large: bool = False

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ValueError("tasks are empty; expected at least one, `mrope probe ls` lists them")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds are {self.seeds}; expected at least one, and each once")
        for seed in self.seeds:
            whole("seed", seed, 0)
        if self.limit is not None:
            whole("limit", self.limit, 1)
        self.made()  # refuses a name or a setting before anything is asked

    def made(self) -> dict[str, Task]:
        """The tasks, by name."""
        return {name: task(name, large=self.large, **settings) for name, settings in self.tasks.items()}

    def samples(self) -> Iterator[tuple[int, Sample]]:
        """The seed and the sample, one after the other; each group is drawn as it is asked for."""
        for one in self.made().values():
            for seed in self.seeds:
                for sample in _first(one, seed, self.limit):
                    yield seed, sample

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.seeds) * sum(_count(one, self.limit) for one in self.made().values())


def _first(one: Task, seed: int, limit: int | None) -> Iterator[Sample]:
    """The samples of a task up to the limit; those of a group, which follow one another, all or none."""
    count = 0
    for _, group in groupby(one.samples(seed), key=lambda sample: sample.group or sample.id):
        members = list(group)
        if limit is not None and 0 < count > limit - len(members):
            return
        yield from members
        count += len(members)


def _count(one: Task, limit: int | None) -> int:
    """How many samples `_first` gives, of any seed: only groups have to be drawn to know."""
    if limit is None or limit >= len(one):
        return len(one)
    return sum(1 for _ in _first(one, 0, limit)) if next(one.samples(0)).group else limit


def ask(
    respondent: Respondent, settings: Settings, folder: Path, *, on_record: OnRecord = lambda record: None
) -> list[Record]:
    """Ask what is not yet in the folder, and give back all records, in order.

    A reply is on disk before the next one is waited for. What had failed (a server that was away) is asked again.

    Args:
        respondent: the model.
        settings: what to ask.
        folder: of the run; made where it is missing.
        on_record: told of each new record, and of each that was there.

    Raises:
        ValueError: the folder holds another run, or two samples have one id.
        OSError: the folder cannot be written to; or the model answers nothing any more.
    """
    folder.mkdir(parents=True, exist_ok=True)
    asked = _asked(respondent, settings)
    _begin(folder, asked)
    known = {key_of(record): record for record in read_records(folder) if record["outcome"] != "failed"}
    write_whole(folder / SAMPLES, lines(known.values()))
    for record in known.values():
        on_record(record)
    order: dict[tuple[str, int, str], None] = {}
    with (folder / SAMPLES).open("a", encoding="utf-8") as file:
        samples = settings.samples()
        while batch := list(islice(samples, BATCH)):
            fresh = []
            for seed, sample in batch:
                key = (sample.task, seed, sample.id)
                if key in order:
                    raise ValueError(f"task {sample.task!r} gives two samples the id {sample.id!r}; expected each once")
                order[key] = None
                if key not in known:
                    fresh.append((seed, sample))
            failures = []
            for record in _records(respondent, fresh, folder, [sample for _, sample in batch]):
                known[key_of(record)] = record
                file.write(line(record))
                file.flush()
                on_record(record)
                if record["outcome"] == "failed":
                    failures.append(record["failure"])
            if len(failures) == len(fresh) == BATCH:
                raise ConnectionError(
                    f"{respondent.name} answered none of {BATCH} samples, the last one: {failures[-1]}; what came "
                    "before is kept, and the same run goes on from there"
                )
    records = [known[key] for key in order]
    write_whole(folder / SAMPLES, lines(records))
    return records


def _records(
    respondent: Respondent, samples: Sequence[tuple[int, Sample]], folder: Path, batch: Sequence[Sample]
) -> Iterator[Record]:
    """One record for each sample, which are all or some of `batch`; first those that the respondent refuses."""
    willing = []
    for seed, sample in samples:
        if reason := respondent.refuses(sample):
            yield _record(seed, sample, _save(sample, folder)) | {"outcome": "refused", "reason": reason}
        else:
            willing.append((seed, sample))
    asked = [sample for _, sample in willing]
    if not asked:
        replies = iter(())
    elif isinstance(respondent, Blind):  # what it shows must not depend on what was asked before a run was stopped
        replies = respondent.answer(asked, among=batch)
    else:
        replies = respondent.answer(asked)
    for (seed, sample), reply in zip(willing, replies, strict=True):
        yield _record(seed, sample, _save(sample, folder)) | _judged(sample, reply)


def _record(seed: int, sample: Sample, pictures: list[Any]) -> dict[str, Any]:
    return {
        "task": sample.task,
        "seed": seed,
        "id": sample.id,
        "kind": sample.kind,
        "prompt": list(sample.prompt),
        "pictures": pictures,
        "choices": list(sample.choices),
        "answer": sample.answer,
        "box": sample.box,
        "where": sample.where,
        "group": sample.group,
        "tags": dict(sample.tags),
        "chance": sample.chance,
    }


def _judged(sample: Sample, reply: Reply) -> dict[str, Any]:
    if reply.refused:
        return {"outcome": "refused", "reason": _writable(reply.failure)}
    marked = mark(sample, reply)
    scores = {key: round(float(x), 6) for key, x in (reply.scores or {}).items() if math.isfinite(x)} or None
    return {
        "reply": _writable(reply.text),
        "scores": scores,
        "failure": _writable(reply.failure),
        "outcome": marked.outcome,
        "share": round(marked.share, 6),
        "read": _writable(marked.read),
    }


def _writable(text: str) -> str:
    """Text with half characters, which no file takes, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _save(sample: Sample, folder: Path) -> list[Any]:
    """The names of the saved pictures; of a clip, those of its frames, and when each is seen."""
    saved = []
    for picture in sample.pictures:
        if isinstance(picture, Clip):
            names = [_png(frame, folder) for frame in picture.frames]
            saved.append({"frames": names, "seconds": list(picture.seconds)})
        else:
            saved.append(_png(picture, folder))
    return saved


def _png(picture: Any, folder: Path) -> str:
    content = BytesIO()
    picture.save(content, "PNG")
    name = f"{PICTURES}/{sha256(content.getvalue()).hexdigest()[:20]}.png"
    path = folder / name
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(content.getvalue())
        os.replace(part, path)
    return name


def _asked(respondent: Respondent, settings: Settings) -> dict[str, Any]:
    """What ``run.json`` holds."""
    import mrope

    device = str(respondent.facts.get("device", "cpu"))
    return {
        "model": respondent.name,
        # In full, so that a run never goes on with other defaults than it began with.
        "tasks": {name: json.loads(json.dumps(asdict(one))) for name, one in settings.made().items()},
        "seeds": list(settings.seeds),
        "limit": settings.limit,
        "samples": len(settings),
        "facts": dict(respondent.facts),
        "machine": {
            "mrope": mrope.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "system": platform.platform(),
            "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU",
        },
    }


def _begin(folder: Path, asked: dict[str, Any]) -> None:
    """Write ``run.json``, or go on with the run that is there.

    Raises:
        ValueError: it is another one.
    """
    if (folder / FACTS).exists():
        there = read_run(folder)
        for name in ("model", "tasks", "seeds", "limit", "facts"):
            if _essential(there[name]) != _essential(asked[name]):
                raise ValueError(
                    f"{folder} holds a run with other {name} ({_brief(there[name])} instead of {_brief(asked[name])}); "
                    "expected the same run, which then goes on, or another folder"
                )
        return
    if (folder / SAMPLES).exists():
        raise ValueError(f"{folder} holds {SAMPLES} and no {FACTS}; expected an empty folder or a run")
    write_whole(folder / FACTS, json.dumps(asked, indent=1) + "\n")


def _essential(value: Any) -> Any:
    """Without the address of a server, which may come back at another port."""
    return {key: each for key, each in value.items() if key != "server"} if isinstance(value, dict) else value


def _brief(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
