"""The demo: pictures to their places, a reader to its exam, and a report of both."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import torch

import mrope
from mrope.data import ASSETS, RELATIONS, asset
from mrope.devices import choose_device
from mrope.families import Family
from mrope.probes.reading.exam import SYLLABUS, Exam, Syllabus, read_study, take_exam
from mrope.probes.reading.findings import findings, percent, shape_words
from mrope.probes.reading.grid import CHANCE
from mrope.probes.reading.look import Look, look
from mrope.probes.reading.report import Run, check_target, write_report
from mrope.probes.reading.report_exam import question_words
from mrope.probes.reading.report_looks import size_words, span_words
from mrope.reader import WEIGHTS, Reader, Recipe

T = TypeVar("T")
ONLY_GRIDS = (
    "The reader reads glyph grids only, one letter a block of 32 x 32 pixels, so it is not asked about these "
    "pictures; `mrope demo` without files shows what it can do."
)


@runtime_checkable
class Screen(Protocol):
    """Where a run tells how it goes."""

    def track(self, items: Iterable[T], what: str) -> Iterator[T]:
        """Go through items that take time."""
        ...

    def say(self, words: str) -> None:
        """Print a line."""
        ...

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print a table."""
        ...


def run_demo(
    files: Sequence[Path],
    *,
    out: Path,
    screen: Screen,
    family: str = "qwen2.5-vl",
    device: str = "auto",
    seed: int = 0,
    syllabus: Syllabus = SYLLABUS,
    reader: Reader | None = None,
) -> Path:
    """Look at `files`, or at the pictures that ship with the project and then ask the reader; write a report.

    Args:
        files: pictures and clips of the user's; the reader is not asked about them.
        out: folder of the report.
        screen: where to tell how it goes.
        family: for whom pictures are cut.
        device: "auto", "cpu" or "cuda", where the reader computes.
        seed: of the glyph grids.
        syllabus: what the reader is asked.
        reader: who is asked; by default the one that ships.

    Returns:
        The report's path.

    Raises:
        OSError, ValueError: something is in the report's way, a file cannot be read, there are no weights or no such
            device; nothing is written then.
    """
    started = time.monotonic()
    check_target(out)
    record, device = mrope.family(family), choose_device(device)
    paths = list(files) or [asset(name) for name in ASSETS]
    exam, twins, trained = None, (), Recipe()
    if not files:
        reader = (reader or Reader.load(device=device)).to(device)
    looks = [_named_look(path, record) for path in screen.track(paths, "looking at pictures")]
    _tell_looks(looks, screen)
    if files:
        screen.say(ONLY_GRIDS)
    elif reader is not None:
        trained, twins = _recipe(), read_study(WEIGHTS.parent / "study.json")
        exam = take_exam(reader, syllabus, seed=seed, track=screen.track)
        _tell_exam(exam, screen)
        for what, words in findings(exam, twins):
            screen.say(f"{what}: {words}")
    facts = _facts(family, device, seed, None if exam is None else trained) | {
        "run": f"{time.monotonic() - started:.0f} seconds, {time.strftime('%Y-%m-%d')}"
    }
    cells = [rows * cols for rows, cols in trained.shapes()]
    report = write_report(Run(family, looks, exam, twins, (min(cells), max(cells)), facts), out)
    screen.say(f"{report}: {report.stat().st_size / 1e6:.1f} MB, {time.monotonic() - started:.0f} s")
    return report


def _named_look(path: Path, family: Family) -> Look:
    """`look`, whose refusals name the file."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name the pictures in it")
    try:
        return look(path, family)
    except ValueError as error:
        raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def _tell_looks(looks: Sequence[Look], screen: Screen) -> None:
    screen.table(
        ("picture", "original", "resized", "patches t x h x w", "tokens", "scale h, w", "EXIF", "patches undone"),
        [
            (
                look.name,
                size_words(look.plan.original),
                size_words(look.plan.resized),
                " x ".join(map(str, look.plan.grid)),
                look.plan.tokens,
                "{:.4f}, {:.4f}".format(*look.plan.scale),
                look.plan.orientation,
                "exact" if look.exact else "NOT EXACT",
            )
            for look in looks
        ],
    )
    for one in looks:
        for note in one.notes:
            screen.say(f"{one.name}: {note}")
    screen.table(
        ("picture", "span", "tokens", "first t, h, w", "last t, h, w"),
        [
            (
                look.name if index == 0 else "",
                span_words(span),
                last - first + 1,
                _place(look, first),
                _place(look, last),
            )
            for look in looks
            for index, (span, (first, last)) in enumerate(zip(look.spans, look.span_ends(), strict=True))
        ],
    )


def _place(look: Look, token: int) -> str:
    return ", ".join(map(str, look.positions.ids[:, token].tolist()))


def _tell_exam(exam: Exam, screen: Screen) -> None:
    columns = ("rows x columns", "cells", "to the reader", "accuracy", "std. error", *RELATIONS, "all of a cell")
    rows = []
    for kind, score in exam.scores:
        by_relation = score.by_relation()
        shares = [percent(by_relation[name]) if name in by_relation else "-" for name in RELATIONS]
        rows.append(
            (
                shape_words(score.shape), score.cells, kind, percent(score.accuracy), percent(score.error), *shares,
                percent(score.sets),
            )
        )  # fmt: skip
    screen.table(columns, rows)
    screen.say(f"A guess gets {percent(CHANCE)}.")
    screen.table(
        ("grid", "what stands", "says", "is", "sure"),
        [
            (
                shape_words(example.shape) if index == 0 else "",
                question_words(said.relation, said.cell),
                said.said,
                said.right if said.said == said.right else f"{said.right}, wrong",
                percent(said.probability),
            )
            for example in exam.examples
            for index, said in enumerate(example.said)
        ],
    )


def _recipe() -> Recipe:
    """How the reader that ships was trained."""
    import json

    stated = WEIGHTS.parent / "recipe.json"
    return Recipe(**json.loads(stated.read_text())) if stated.is_file() else Recipe()


def _facts(family: str, device: str, seed: int, recipe: Recipe | None) -> dict[str, str]:
    from importlib.metadata import version

    where = torch.cuda.get_device_name() if device == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    facts = {
        "mrope": mrope.__version__,
        "family": family,
        "device": where,
        "seed": f"{seed}, of the glyph grids",
        "versions": f"Python {platform.python_version()}, torch {torch.__version__}, Pillow {version('pillow')}",
    }
    if recipe is not None:
        facts["reader"] = f"trained with seed {recipe.seed}, {recipe.steps} steps of about {recipe.cells} cells"
    return facts
