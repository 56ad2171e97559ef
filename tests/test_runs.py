"""Runs on disk: what is written, and what becomes of it when a run is stopped, repeated or mixed up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

import mrope.cli
from mrope.data import Sample, task
from mrope.probes.spatial.comparing import compare_runs
from mrope.probes.spatial.records import key_of, read_records, read_run, unfinished
from mrope.probes.spatial.reply import Reply
from mrope.probes.spatial.respondents import Blind, CallableRespondent
from mrope.probes.spatial.runs import Settings, ask
from mrope.probes.spatial.summary import summarise

ROOT = Path(__file__).parent.parent
SETTINGS = Settings({"cell": {"shapes": ((2, 3), (3, 2))}}, seeds=(0, 1), limit=5)


class Known:
    """Answers right, but for the calls that are to fail; counts what it was asked."""

    name = "known"
    facts: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, failing: Sequence[int] = (), refused: str = "") -> None:
        self.asked: list[str] = []
        self.failing, self.refused = failing, refused

    def refuses(self, sample: Sample) -> str:
        return self.refused

    def answer(self, samples: Sequence[Sample]) -> Iterator[Reply]:
        for sample in samples:
            self.asked.append(sample.id)
            yield Reply(failure="HTTP 500") if len(self.asked) in self.failing else Reply(sample.answer)


def test_every_sample_is_kept_in_order_with_its_pictures(tmp_path: Path) -> None:
    records = ask(Known(), SETTINGS, tmp_path)
    on_disk = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert on_disk == json.loads(json.dumps(records))
    wanted = [(seed, one) for seed in (0, 1) for one in list(task("cell", shapes=((2, 3), (3, 2))).samples(seed))[:5]]
    assert [(one["seed"], one["id"], one["answer"]) for one in records] == [
        (seed, sample.id, sample.answer) for seed, sample in wanted
    ]
    for (_, sample), record in zip(wanted, records, strict=True):
        with Image.open(tmp_path / record["pictures"][0]) as saved:
            assert saved.tobytes() == sample.pictures[0].tobytes()  # pyright: ignore[reportAttributeAccessIssue]
    assert {record["outcome"] for record in records} == {"right"}
    assert not list(tmp_path.rglob("*.part"))


def test_a_run_that_was_stopped_is_said_to_be_unfinished(tmp_path: Path) -> None:
    whole = ask(Known(), SETTINGS, tmp_path)
    run = read_run(tmp_path)
    assert run["samples"] == len(whole) == 10
    assert unfinished(run, read_records(tmp_path)) == ""
    lines = (tmp_path / "samples.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "samples.jsonl").write_text("".join(lines[:7]) + lines[7][:20])  # killed within the eighth
    assert unfinished(run, read_records(tmp_path)) == "7 of 10 samples asked; `mrope probe run` goes on with the rest"
    told = CliRunner().invoke(mrope.cli.app, ["probe", "report", str(tmp_path)])
    assert told.exit_code == 0
    assert "\nnot finished: 7 of 10 samples asked; `mrope probe run` goes on with the rest\n" in told.stdout
    page = (tmp_path / "report.html").read_text()
    assert "<strong>Not finished</strong> 7 of 10 samples asked; `mrope probe run` goes on with the rest." in page
    assert ask(Known(), SETTINGS, tmp_path) == whole
    told = CliRunner().invoke(mrope.cli.app, ["probe", "report", str(tmp_path)])
    assert "not finished" not in told.stdout + (tmp_path / "report.html").read_text().lower()


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        ask(Known(), SETTINGS, tmp_path / name)
    files = [
        sorted(path.relative_to(tmp_path / name) for path in (tmp_path / name).rglob("*.*")) for name in ("one", "two")
    ]
    assert files[0] == files[1]
    for name in files[0]:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_nothing_is_asked_twice(tmp_path: Path) -> None:
    ask(Known(), SETTINGS, tmp_path)
    again = Known()
    told: list[Any] = []
    ask(again, SETTINGS, tmp_path, on_record=told.append)
    assert again.asked == []
    assert len(told) == 10


def test_failures_are_asked_again_in_their_place(tmp_path: Path) -> None:
    first = ask(Known(failing=(2, 7)), SETTINGS, tmp_path)
    assert [number for number, one in enumerate(first, 1) if one["outcome"] == "failed"] == [2, 7]
    assert first[1]["failure"] == "HTTP 500"
    again = Known()
    records = ask(again, SETTINGS, tmp_path)
    assert again.asked == [first[1]["id"], first[6]["id"]]
    assert [one["id"] for one in records] == [one["id"] for one in first]
    assert {one["outcome"] for one in records} == {"right"}


def test_a_model_that_answers_nothing_any_more_ends_the_run(tmp_path: Path) -> None:
    long = Settings({"cell": {"shapes": ((2, 3),), "each": 100}})
    away = Known(failing=range(41, 1000))
    with pytest.raises(ConnectionError, match="known answered none of 32 samples, the last one: HTTP 500"):
        ask(away, long, tmp_path)
    assert len(away.asked) == 96  # in the second batch of 32 some were answered, in the third none
    again = Known()
    assert {one["outcome"] for one in ask(again, long, tmp_path)} == {"right"}
    assert len(again.asked) == 60


def test_half_a_character_ends_no_run(tmp_path: Path) -> None:
    class Rubbish(Known):
        def answer(self, samples: Sequence[Sample]) -> Iterator[Reply]:
            return (Reply("S\ud800\0") for _ in samples)

    records = ask(Rubbish(), SETTINGS, tmp_path)
    assert {one["reply"] for one in records} == {"S\\ud800\0"}
    assert len(read_records(tmp_path)) == 10


def test_refused_samples_are_counted_apart(tmp_path: Path) -> None:
    records = ask(Known(refused="it knows no cells"), SETTINGS, tmp_path)
    assert {(one["outcome"], one["reason"]) for one in records} == {("refused", "it knows no cells")}
    (summary,) = summarise(records)
    assert (summary.asked, summary.refused) == (0, 10)


def across_alone(sample: Sample) -> str:
    """Right where it is asked what lies to the left or right, and wrong above and below."""
    across = sample.tags["relation"] in ("left", "right")
    return sample.answer if across else next(choice for choice in sample.choices if choice != sample.answer)


@pytest.mark.parametrize(("limit", "counts"), [(4, [8]), (8, [8]), (13, [8]), (19, [8, 6]), (99, [8, 6, 8, 6])])
def test_a_function_that_answers_half_of_a_set_answers_no_set_at_any_limit(
    tmp_path: Path, limit: int, counts: list[int]
) -> None:
    """A cell of 3 x 5 has four neighbours, asked about there and back; one of 2 x 4 has three."""
    settings = Settings({"neighbour": {"shapes": ((3, 5), (2, 4)), "each": 2}}, seeds=(0, 1), limit=limit)
    assert len(settings) == 2 * sum(counts)
    records = ask(CallableRespondent(across_alone), settings, tmp_path)
    sizes = Counter((one["seed"], one["group"]) for one in records)
    assert list(sizes.values()) == counts * 2
    (summary,) = summarise(records)
    assert summary.sets is not None
    assert (summary.sets.value, summary.sets.count) == (0.0, 2 * len(counts))
    assert unfinished(read_run(tmp_path), records) == ""
    everything = ask(CallableRespondent(across_alone), replace(settings, limit=None), tmp_path / "all")
    assert [key_of(one) for one in everything if one["group"] in {one["group"] for one in records}] == [
        key_of(one) for one in records
    ]
    (compared,) = compare_runs(everything, records)
    assert (compared.difference.count, compared.won, compared.lost) == (2 * sum(counts), 0, 0)


@pytest.mark.parametrize(
    ("name", "more", "size", "odd"), [("moved", {}, 6, "padded"), ("distance", {"words": (0, 8)}, 3, "8-after")]
)
def test_agreement_is_of_whole_groups_at_any_limit(
    tmp_path: Path, name: str, more: dict[str, Any], size: int, odd: str
) -> None:
    def strays(sample: Sample) -> str:
        return "other" if sample.id.endswith(odd) else sample.answer

    settings = Settings({name: {"shapes": ((3, 5),), "each": 3, **more}}, limit=2)
    records = ask(CallableRespondent(strays), settings, tmp_path)
    assert len(settings) == len(records) == size
    (summary,) = summarise(records)
    assert summary.agreement is not None
    assert (summary.agreement.value, summary.agreement.count) == (0.0, 1)


def test_a_limit_of_samples_without_sets_is_kept_to_the_sample() -> None:
    settings = Settings({"cell": {"shapes": ((2, 3), (3, 2)), "each": 4}, "neighbour": {"shapes": ((2, 4),)}}, limit=7)
    assert [sample.task for _, sample in settings.samples()] == ["cell"] * 7 + ["neighbour"] * 6
    assert len(settings) == 13


@pytest.mark.parametrize("kept", [1, 5, 30, 36, 41])
def test_a_blind_run_that_was_stopped_ends_as_the_one_that_was_not(tmp_path: Path, kept: int) -> None:
    """The answers tell which picture was shown, in batches of 32, to tasks and seeds that use the same ids."""

    def sees(sample: Sample) -> str:
        return sha256(b"".join(picture.tobytes() for picture in sample.pictures)).hexdigest()  # pyright: ignore

    tasks = {"cell": {"shapes": ((2, 3), (3, 2)), "each": 4}, "neighbour": {"shapes": ((2, 4),), "each": 1}}
    settings = Settings(tasks, seeds=(0, 1, 2), limit=9)
    ask(Blind(CallableRespondent(sees)), settings, tmp_path)
    whole = (tmp_path / "samples.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 3 * (8 + 6)
    shown = {json.loads(line)["reply"] for line in lines}
    assert len(shown) > 24
    (tmp_path / "samples.jsonl").write_bytes(b"".join(lines[:kept]))
    ask(Blind(CallableRespondent(sees)), settings, tmp_path)
    assert (tmp_path / "samples.jsonl").read_bytes() == whole
    seeing = ask(CallableRespondent(sees), settings, tmp_path / "seeing")
    assert shown.isdisjoint(one["reply"] for one in seeing)


def test_a_blind_run_asks_failures_again_beside_the_same_pictures(tmp_path: Path) -> None:
    class Seen(Known):
        def answer(self, samples: Sequence[Sample]) -> Iterator[Reply]:
            for sample, reply in zip(samples, super().answer(samples), strict=True):
                yield reply if reply.failure else Reply(sha256(sample.pictures[0].tobytes()).hexdigest())  # pyright: ignore

    ask(Blind(Seen()), SETTINGS, tmp_path / "whole")
    ask(Blind(Seen(failing=(2, 7, 8))), SETTINGS, tmp_path / "failed")
    assert (tmp_path / "failed" / "samples.jsonl").read_bytes() != (tmp_path / "whole" / "samples.jsonl").read_bytes()
    ask(Blind(Seen()), SETTINGS, tmp_path / "failed")
    assert (tmp_path / "failed" / "samples.jsonl").read_bytes() == (tmp_path / "whole" / "samples.jsonl").read_bytes()


def test_a_line_cut_short_is_asked_again(tmp_path: Path) -> None:
    ask(Known(), SETTINGS, tmp_path)
    whole = (tmp_path / "samples.jsonl").read_bytes()
    (tmp_path / "samples.jsonl").write_bytes(whole[:-40])
    again = Known()
    ask(again, SETTINGS, tmp_path)
    assert len(again.asked) == 1
    assert (tmp_path / "samples.jsonl").read_bytes() == whole


def test_rubbish_in_the_middle_is_told(tmp_path: Path) -> None:
    ask(Known(), SETTINGS, tmp_path)
    lines = (tmp_path / "samples.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "samples.jsonl").write_text("".join([lines[0], "{no\n", *lines[2:]]))
    with pytest.raises(ValueError, match=r"line 2 of .* is no JSON"):
        read_records(tmp_path)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (Settings({"cell": {"shapes": ((2, 4),)}}, seeds=(0, 1), limit=5), "tasks"),
        (Settings(SETTINGS.tasks, seeds=(0,), limit=5), "seeds"),
        (Settings(SETTINGS.tasks, seeds=(0, 1), limit=4), "limit"),
    ],
)
def test_another_run_is_not_mixed_in(tmp_path: Path, settings: Settings, word: str) -> None:
    ask(Known(), SETTINGS, tmp_path)
    before = (tmp_path / "samples.jsonl").read_bytes()
    with pytest.raises(ValueError, match=f"holds a run with other {word}"):
        ask(Known(), settings, tmp_path)
    assert (tmp_path / "samples.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tasks": {}}, "tasks are empty"),
        ({"tasks": {"cells": {}}}, "cells"),
        ({"tasks": {"cell": {"side": 3}}}, "side"),
        ({"tasks": {"cell": {}}, "seeds": ()}, "seeds are"),
        ({"tasks": {"cell": {}}, "seeds": (1, 1)}, "seeds are"),
        ({"tasks": {"cell": {}}, "seeds": (-1,)}, "seed is -1"),
        ({"tasks": {"cell": {}}, "limit": 0}, "limit is 0"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_asked(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Settings(**wrong)


SLOW = """
import sys, time
from pathlib import Path
from mrope.probes.spatial.reply import Reply
from mrope.probes.spatial.runs import Settings, ask

class Slow:
    name, facts = "slow", {}
    def refuses(self, sample): return ""
    def answer(self, samples):
        for sample in samples:
            time.sleep(float(sys.argv[2]))
            yield Reply(sample.answer)

ask(Slow(), Settings({"cell": {"shapes": ((2, 3), (3, 2))}}, seeds=(0, 1), limit=5), Path(sys.argv[1]))
"""


def test_a_killed_run_goes_on_and_ends_as_if_nothing_had_been(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOW]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([*command, whole, "0"], cwd=ROOT, check=True, timeout=240)
    running = subprocess.Popen([*command, killed, "0.5"], cwd=ROOT)
    deadline = time.monotonic() + 200
    while not (killed / "samples.jsonl").exists() or (killed / "samples.jsonl").read_text().count("\n") < 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    kept = (killed / "samples.jsonl").read_text()
    assert 3 <= kept.count("\n") < 10
    subprocess.run([*command, killed, "0"], cwd=ROOT, check=True, timeout=240)
    assert (killed / "samples.jsonl").read_bytes() == (whole / "samples.jsonl").read_bytes()
    assert (killed / "samples.jsonl").read_text().startswith(kept)
