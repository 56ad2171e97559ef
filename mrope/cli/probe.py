"""`mrope probe`: ask a model where things are, keep every sample, report, compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mrope.cli.options import AsJson
from mrope.cli.output import print_json, print_table, progress

app = typer.Typer(no_args_is_help=True, help="Ask any model where things are, at any resolution.")

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Of a run.")]


@app.command()
def run(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="reader, hf:FOLDER of a checkpoint, http://HOST:PORT/v1 of a server, or python:module:function.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML with model, options, tasks, seeds, limit, out, require."),
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A task, by default all; may be given several times.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="TASK.SETTING=VALUE", help="A setting of a task, such as cell.shapes=3x5,10x6."),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option of the model, such as family=qwen3-vl.")
    ] = None,
    seed: Annotated[str | None, typer.Option(metavar="N,N,...", help="Seeds of the samples, by default 0,1,2.")] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="Most samples of each task and seed; sets stay whole, one at least.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Where a local model computes: auto, cpu or cuda.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Of the run, by default out/probe.")] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK[.METRIC]=SHARE", help="Exit with 1 below it; accuracy, sets, agreement or share."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Ask a model the tasks' questions, and say how many it answers right.

    Every sample is kept in the folder, with its pictures; a run that was stopped goes on where it was. Where the model
    computes on a GPU, the tasks' defaults are larger. The exit code is 1 if a threshold of --require is not reached,
    and 2 if there was no answer at all.

    Example: mrope probe run reader --task cell --task neighbour --require cell=0.9
    """
    from collections import Counter
    from dataclasses import replace

    from mrope.probes.spatial import (
        ask,
        make_config,
        read_config,
        read_run,
        respondent,
        shortfalls,
        summarise,
        summary_table,
        write_page,
        write_summary,
    )
    from mrope.probes.spatial.records import limited
    from mrope.probes.words import counted

    told = {} if config is None else read_config(config)
    here = {"model": model, "limit": limit, "out": out, "seeds": None if seed is None else _value(f"[{seed}]")}
    told |= {name: value for name, value in here.items() if value is not None}
    told["tasks"] = _tasks(told.get("tasks"), task, _pairs(set_))
    more = _pairs(option) | ({} if device is None else {"device": device})
    for name, pairs in (("options", more), ("require", _pairs(require))):
        told[name] = (told.get(name) or {}) | pairs
    chosen = make_config(**told)
    asked = respondent(chosen.model, **chosen.options)
    settings = replace(chosen.settings, large=str(asked.facts.get("device", "")).startswith("cuda"))
    with progress() as bars:
        bar = bars.add_task("samples", total=len(settings))
        records = ask(asked, settings, chosen.out, on_record=lambda record: bars.advance(bar))
    summaries = summarise(records)
    write_summary(summaries, chosen.out)
    typer.echo("writing the report", err=True)
    page = write_page(chosen.out)
    if json:
        print((chosen.out / "summary.json").read_text(encoding="utf-8"), end="")
    else:
        print(summary_table(summaries))
        if words := limited(read_run(chosen.out)):
            print(f"\nlimit: {words}")
        print(f"\nevery sample: {chosen.out}/samples.jsonl; to look at: {page}")
    failed = Counter(record["failure"] for record in records if record["outcome"] == "failed")
    if failed:
        why, count = failed.most_common(1)[0]
        whole = counted(len(records), "sample")
        typer.echo(f"{failed.total()} of {whole} got no answer, {count} of them for: {why}", err=True)
    if failed.total() == len(records):
        raise typer.Exit(2)
    lacking = shortfalls(summaries, chosen.require)
    for line in lacking:
        typer.echo(line, err=True)
    if lacking:
        raise typer.Exit(1)


@app.command()
def ls(
    pictures: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw a sample of each task into a PNG.")
    ] = None,
    json: AsJson = False,
) -> None:
    """List the tasks, with their settings."""
    from dataclasses import asdict

    from mrope.data import TASKS, contact_sheet
    from mrope.data import task as make

    tasks = [make(name) for name in TASKS]
    if pictures is not None:
        contact_sheet([next(iter(one.samples(0))) for one in tasks]).save(pictures)
    if json:
        print_json([{"name": one.name, "summary": one.summary, "settings": asdict(one)} for one in tasks])
    else:
        rows = [
            (one.name, one.summary, ", ".join(f"{key}={_written(value)}" for key, value in asdict(one).items()))
            for one in tasks
        ]
        print_table(("task", "what it asks", "settings"), rows)


@app.command()
def report(folder: Folder) -> None:
    """Write report.html of a run again, and print its table."""
    from mrope.probes.spatial import read_records, read_run, summarise, summary_table, write_page, write_summary
    from mrope.probes.spatial.records import limited, unfinished

    run, records = read_run(folder), read_records(folder)
    summaries = summarise(records)
    write_summary(summaries, folder)
    print(summary_table(summaries))
    if words := limited(run):
        print(f"\nlimit: {words}")
    if lacking := unfinished(run, records):
        print(f"\nnot finished: {lacking}")
    print(f"\nto look at: {write_page(folder)}")


@app.command()
def compare(
    baseline: Annotated[Path, typer.Argument(metavar="BASELINE", help="Folder of the run to compare with.")],
    folder: Folder,
    json: AsJson = False,
) -> None:
    """Compare two runs on the samples that both were asked: paired differences, and whether they are chance."""
    from dataclasses import asdict

    from mrope.probes.spatial import compare_runs, comparison_table, read_records, read_run
    from mrope.probes.spatial.records import unfinished

    sides = [(read_run(one), read_records(one)) for one in (baseline, folder)]
    found = compare_runs(sides[0][1], sides[1][1])
    for one, side in zip((baseline, folder), sides, strict=True):
        if lacking := unfinished(*side):
            typer.echo(f"{one} is not finished: {lacking}", err=True)
    print_json([asdict(one) for one in found]) if json else print(comparison_table(found))


def _pairs(words: list[str] | None) -> dict[str, Any]:
    """NAME=VALUE, with values as YAML reads them."""
    read = {}
    for word in words or ():
        name, sign, value = word.partition("=")
        if not sign or not name:
            raise ValueError(f"{word!r} is no NAME=VALUE")
        read[name] = _value(value)
    return read


def _written(value: Any) -> str:
    """A setting as --set takes it."""
    import json

    return value if isinstance(value, str) else json.dumps(value)


def _value(word: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(word)
    except yaml.YAMLError:
        raise ValueError(f"{word!r} is no value; expected a number, a word, or a list such as [4, 6]") from None


def _shapes(value: Any) -> Any:
    """ROWSxCOLUMNS,... as pairs; what is no such word as it is."""
    import re

    if not isinstance(value, str) or not re.fullmatch(r"\d+x\d+(,\d+x\d+)*", value):
        return value
    return [[int(side) for side in shape.split("x")] for shape in value.split(",")]


def _tasks(stated: Any, named: list[str] | None, settings: dict[str, Any]) -> dict[str, Any]:
    """The tasks that the file states, those among them that are named, or all; with the settings TASK.SETTING."""
    from mrope.data import TASKS

    stated = [stated] if isinstance(stated, str) else stated or list(TASKS)
    stated = stated if isinstance(stated, dict) else dict.fromkeys(stated)
    tasks = {name: dict(stated.get(name) or {}) for name in named or stated}
    for name, value in settings.items():
        task, _, setting = name.partition(".")
        if task not in tasks or not setting:
            raise ValueError(f"--set {name} names no setting of a task that is asked; expected TASK.SETTING=VALUE")
        tasks[task][setting] = _shapes(value) if setting == "shapes" else value
    return tasks
