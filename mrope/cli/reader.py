"""`mrope reader train`, `study` and `serve`: how the reader that ships was made, its twins, and a server of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mrope.cli.output import progress

app = typer.Typer(no_args_is_help=True, help="Train the reader, study it beside its twins, or serve it.")

Steps = Annotated[int, typer.Option(min=1, help="Optimiser steps of a run.")]


@app.command()
def train(
    seed: Annotated[int, typer.Option(help="Of the weights, the pictures and the questions.")] = 0,
    twin: Annotated[str, typer.Option(help="none, 1-d (raster positions) or blind (a neighbour's picture).")] = "none",
    steps: Steps = 900,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder for the weights, the recipe and the log.")] = Path("out/reader"),
) -> None:
    """Train one reader: minutes on two cores."""
    from mrope.devices import choose_device
    from mrope.reader import Recipe, train_to

    place = choose_device(device)
    recipe = Recipe(seed=seed, twin=twin, steps=steps)  # pyright: ignore[reportArgumentType]: Recipe checks the word
    with progress() as bars:
        task = bars.add_task("training", total=steps)
        train_to(
            out,
            recipe,
            device=place,
            on_step=lambda step, loss: bars.update(task, completed=step, description=f"loss {loss:.3f}"),
        )
    typer.echo(f"wrote {out / 'reader.safetensors'}, recipe.json and log.csv")


@app.command()
def study(
    seeds: Annotated[int, typer.Option(min=1, help="Readers to train, from seed 0.")] = 5,
    twins: Annotated[int, typer.Option(min=0, help="1-D and blind twins to train, from seed 0.")] = 1,
    steps: Steps = 900,
    pictures: Annotated[int, typer.Option(min=2, help="Grids to draw of each shape.")] = 16,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, one thread each.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder for the runs; finished ones are not trained again.")] = Path(
        "out/study"
    ),
    ship: Annotated[
        bool, typer.Option("--ship", help="Put the median reader and the figures into the package.")
    ] = False,
) -> None:
    """Train readers over several seeds and twins on the same budget, and score all on the same pictures."""
    from mrope.probes.reading import run_study
    from mrope.probes.reading import ship as ship_median
    from mrope.reader import Recipe

    recipes = [Recipe(seed=seed, steps=steps) for seed in range(seeds)]
    recipes += [Recipe(seed=seed, steps=steps, twin=twin) for seed in range(twins) for twin in ("1-d", "blind")]
    with progress() as bars:
        task = bars.add_task(f"{len(recipes)} runs", total=len(recipes))

        def show(run: dict) -> None:
            bars.advance(task)
            scores = "  ".join(f"{shape} {score['accuracy']:.3f}" for shape, score in run["scores"].items())
            bars.console.print(f"{run['twin']} seed {run['seed']} ({run['seconds']:.0f} s): {scores}")

        result = run_study(out, recipes, pictures=pictures, jobs=jobs, on_run=show)
    typer.echo(f"wrote {out / 'study.json'}; the median reader at {result['decisive']} is seed {result['shipped']}")
    if ship:
        ship_median(out, result)


@app.command()
def serve(
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes one that is free.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on; only this machine by default.")] = "127.0.0.1",
    weights: Annotated[Path | None, typer.Option(help="Of another reader than the one that ships.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Serve the reader over HTTP, like a model of OpenAI: one picture of letters and a question, until interrupted."""
    import signal

    from mrope.devices import choose_device
    from mrope.reader import WEIGHTS, Reader
    from mrope.reader.serving import MODEL, ReaderServer

    reader = Reader.load(weights or WEIGHTS, device=choose_device(device))
    with ReaderServer(reader, host, port) as server:
        try:
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # a stop is no fault
            typer.echo(f"serving {MODEL} at {server.url}")  # the line that scripts wait for
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("stopped", err=True)
