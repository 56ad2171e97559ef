"""`mrope study run`, `ls` and `report`: small models on one budget, and the published claims that they test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mrope.cli.output import print_table, progress

if TYPE_CHECKING:
    from mrope.probes.studies import Settings, Study

app = typer.Typer(no_args_is_help=True, help="Train small models on one budget, and test published claims.")


@app.command("ls")
def listed() -> None:
    """List the studies: what each trains, and how many claims it tests."""
    from mrope.probes.studies import STUDIES

    rows = [(each.name, each.title, ", ".join(each.variants), len(each.claims)) for each in STUDIES.values()]
    print_table(("study", "question", "trained", "claims"), rows)


@app.command()
def run(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[STUDY]...", help="Which; by default all. `mrope study ls` lists.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="VARIANT", help="Train this variant alone; may be repeated.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Models of each variant, from seed 0.")] = 5,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of a model.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Prompts of about 32 cells for each figure.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, one thread each.")] = 2,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder for weights and results; finished runs are not run again.")] = Path(
        "out/studies"
    ),
) -> None:
    """Train and score, some runs at a time; finished runs are kept, one that was killed begins anew."""
    from mrope.devices import choose_device
    from mrope.probes.studies import STEPS, STUDIES, Settings, study
    from mrope.probes.studies.runs import LIMIT

    settings = Settings(
        seeds=seeds,
        steps=STEPS if steps is None else steps,
        limit=LIMIT if limit is None else limit,
        device=choose_device(device),
    )
    for each in [study(name) for name in (names or STUDIES)]:
        _run(each, out, settings, only or (), jobs)


@app.command()
def report(
    results: Annotated[
        Path | None, typer.Option("--from", help="Folder of results; by default those that ship with the package.")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Put results and figures into the package, and write STUDIES.md.")
    ] = False,
) -> None:
    """Print the page of all studies, or write it."""
    from mrope.probes.studies import STUDIES
    from mrope.probes.studies.page import PAGE, page, write_page
    from mrope.probes.studies.results import RESULTS

    files = [f"{name}.json" for name in STUDIES]
    if results is not None and not any((results / name).is_file() for name in files):
        raise ValueError(
            f"--from is {results}; expected a folder that `mrope study run` wrote, with {', '.join(files[:-1])} or "
            f"{files[-1]} in it"
        )
    if write and not (PAGE.parent / "pyproject.toml").exists():
        raise ValueError(f"--write puts STUDIES.md into a checkout of mrope; {PAGE.parent} is none")
    if write:
        write_page(results or RESULTS)
        typer.echo(f"wrote {PAGE}")
    else:
        typer.echo(page(results or RESULTS), nl=False)


def _run(study: Study, out: Path, settings: Settings, only: Sequence[str], jobs: int) -> None:
    from mrope.probes.studies import Recipe, Results, Step, recipes_of, run_study
    from mrope.probes.studies.page import table, verdicts

    done: dict[str, int] = {}
    steps = len(recipes_of(study, settings, only)) * settings.steps  # which refuses wrong names before a bar is drawn
    with progress() as bars:
        task = bars.add_task(study.name, total=steps)

        def on_step(step: Step) -> None:
            done[step.run] = step.step
            words = f"{study.name} {step.run} loss {step.loss:.3f}"
            bars.update(task, completed=sum(done.values()), description=words)

        def on_run(recipe: Recipe, seconds: float) -> None:
            done[recipe.name] = recipe.steps
            bars.update(task, completed=sum(done.values()))
            bars.console.print(f"{study.name} {recipe.name}: {seconds:.0f} s")

        path = run_study(study.name, out, settings, only=only, jobs=jobs, on_step=on_step, on_run=on_run)
    results = Results.read(path)
    typer.echo(f"{study.title}\n\n{table(results)}\n{verdicts(study, results)}\nwrote {path}")
