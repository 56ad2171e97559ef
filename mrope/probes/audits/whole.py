"""The whole audit of a rule of positions, a rule of turning, both, or an attention: every check that has a meaning."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mrope.checks import Number, one_of, whole
from mrope.devices import choose_device
from mrope.extensions import Zero
from mrope.layouts import GridLayout
from mrope.probes.audits.attention import audit_attention
from mrope.probes.audits.frequencies import extensions_of_axes, frequency_report
from mrope.probes.audits.ids import id_checks, ids_run, looks_of
from mrope.probes.audits.kernel import Waves, frequency_checks, prompt_checks
from mrope.probes.audits.named import read_target
from mrope.probes.audits.pictures import NothingToDrawError, draw_audit, picture_file
from mrope.probes.audits.report import AuditCheck, AuditReport, outcome
from mrope.probes.audits.target import Laid, Target, laid_like, of_object
from mrope.probes.audits.turning import Bench, bare_checks, turn_checks, waves_of
from mrope.spans import Grid

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
FRAMES = 8
SIDES = {"cpu": (24, 32), "cuda": (96, 128)}
"""The grid that is looked at where none is given, in tokens."""

_ATTENTION = {
    "shift": "the output stays when all positions move together; not so where values are turned",
    "rows": "a row of a batch comes out as it does alone",
    "padding": "padding on the left changes no token, and gives no NaN",
    "documents": "documents packed in one row come out as they do alone",
    "causal": "no token feels a later one",
    "reference": "the output is that of the encoding that is meant",
}


def full_audit(
    target: Any,
    *,
    like: Any = None,
    grid: tuple[int, int] | None = None,
    frames: int = FRAMES,
    dtype: str = "float32",
    device: str = "auto",
    base: Number | None = None,
    extend: Sequence[str] = (),
    trained: int | None = None,
    length: int | None = None,
    plot: str | os.PathLike[str] | None = None,
) -> AuditReport:
    """Measure a rule of positions or of turning, and hold it against what it promises; no weights are needed.

    A check fails where a promise is broken: what a layout or an encoding declares; of all else that turns are
    rotations, that scores depend on differences of positions, that ids of text and pictures are apart, that a token is
    decoded as it is prefilled and packed as it is alone, and that a cell is told from the next at the given grid.
    What a rule knowingly gives up, and what nobody promises, is information.

    Args:
        target: a name, as `read_target` takes it; a layout or an encoding; or a callable: of spans, which returns ids
            (A, N), or these and the position of the first decoded token, or `Positions`; of ids (A, N), which returns
            cos and sin (N, F) or (N, 2F); of q (1, H, N, D), k (1, K, N, D) and ids (A, N), which returns both turned,
            where H is 4 and K 2 unless what is meant has heads of its own; or of q, k, v and positions, an attention
            for `audit_attention`. Its attributes `axes` (how many), `head_dim` and `merge` (patches a token and side,
            of the spans that it gets) are read where it has them.
        like: what it is meant to be, a name or an object: then ids and turns must be equal, and one of them be
            compared. Clips are declared as it wants them, with seconds or stamps.
        grid: (height, width) in tokens of the picture that is looked at; by default 24 x 32, and 96 x 128 on a GPU.
        frames: temporal steps of the clip.
        dtype: of queries, keys and tables: "float32", "bfloat16" or "float16". By default queries and keys are float64
            beside float32 tables, so that what is found is no rounding.
        device: "auto", "cpu" or "cuda", where queries and keys are turned.
        base: see `read_target`, and likewise `extend`, `trained` and `length`, which go with names alone.
        plot: a .png, .svg or .pdf file, or a folder for audit.png: ids, wavelengths and kernels, drawn. `skipped` says
            where there is nothing to draw.

    Raises:
        TypeError: `target` is nothing of that, or another argument is of another type.
        ValueError: nothing has this name, a number is out of range, or an option does not go with the target.
        ImportError: a plot was asked for, and matplotlib is not installed.

    >>> report = full_audit("qwen2-vl", grid=(6, 10), frames=4)
    >>> report.ok, report["monotone-range"].value, report["growth"].figure
    (True, 5, 'picture 6 x 10: 10 for 60 tokens; clip 4 x 6 x 10: 10 for 240 tokens')
    """
    one_of("dtype", dtype, tuple(DTYPES))
    where = choose_device(device)
    sides = SIDES[where] if grid is None else grid
    if not isinstance(sides, Sequence) or len(sides) != 2:
        raise TypeError(f"grid is {grid!r}; expected (height, width) in tokens")
    sides = whole("height of grid", sides[0], 1), whole("width of grid", sides[1], 1)
    whole("frames", frames, 1)
    if isinstance(extend, str) or not isinstance(extend, Sequence) or not all(isinstance(each, str) for each in extend):
        raise TypeError(f"extend is {extend!r}; expected several words, such as ('yarn:4',)")
    if plot is not None and not isinstance(plot, (str, os.PathLike)):
        raise TypeError(f"plot is {plot!r}; expected a file or a folder")
    drawn = None if plot is None else picture_file(Path(plot))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of ids that some prompts share on purpose
        meant = None if like is None else _target("like", like, None)
        options = {"base": base, "extend": extend, "trained": trained, "length": length}
        found = _target("target", target, meant, **options)
        bench = Bench(torch.float64 if dtype == "float32" and where == "cpu" else DTYPES[dtype], where)
        audit = _Audit(found if meant is None else _meant(found, meant), bench, sides, frames)
        audit.run()
        if meant is not None:
            audit.compared(meant)
    if drawn is not None:
        share = found.extent if found.extent < 4 else None
        try:
            draw_audit(drawn, found.name, found.axes, audit.looks, audit.waves, sides, frames, share)
        except NothingToDrawError as error:
            audit.skipped.append(("plot", str(error)))
    return AuditReport(
        subject=found.name, machine=_machine(where), checks=tuple(audit.checks), skipped=tuple(audit.skipped)
    )


def _target(said: str, thing: Any, like: Target | None, **options: Any) -> Target:
    """What an argument called `said` names or is; refusals say that name."""
    if isinstance(thing, (str, os.PathLike)):
        return read_target(os.fspath(thing), like, said=said, **options)
    if given := [name for name, value in options.items() if value not in (None, ())]:
        raise ValueError(f"{given[0]} is {options[given[0]]!r} for an object; expected a target by its name")
    if isinstance(thing, Target):
        return thing
    return of_object(thing, getattr(thing, "__name__", type(thing).__name__), like, said)


def _meant(found: Target, meant: Target) -> Target:
    if found.trained is not None and found.trained.name == meant.name:
        return found  # a model knows its family's rule for the prompts that it is shown, with its words around them
    if meant.prompted is not None and found.layout is not None:
        found = laid_like(found.layout, found, meant, getattr(found.layout, "merge", 1))
    return replace(found, trained=meant, traits=meant.traits if found.layout is None else found.traits)


def _machine(device: str) -> str:
    name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return f"{name}, torch {torch.__version__}"


class _Audit:
    """The checks of one target, as they come."""

    def __init__(self, target: Target, bench: Bench, sides: tuple[int, int], frames: int) -> None:
        self.target, self.bench, self.sides, self.frames = target, bench, sides, frames
        self.checks: list[AuditCheck] = []
        self.skipped: list[tuple[str, str]] = []
        self.looks: dict[Grid, Laid] = {}
        self.waves: Waves | None = None

    def run(self) -> None:
        target = self.target
        shown = ((1, *self.sides), (self.frames, *self.sides))
        if target.lay is None:
            self.skipped.append(("ids", "it has no rule of positions"))
        else:
            self.looks, refused, broken = looks_of(target, shown)
            self.skipped += refused[:2]
            if broken or not self.looks:
                self.checks.append(ids_run(broken or refused))
            if self.looks:
                self._group("ids", lambda: id_checks(target, self.looks, shown))
        if target.turn is None and target.attend is None:
            self.skipped.append(("turns", "it does not turn queries and keys"))
            self._group("properties", lambda: bare_checks(target))
        if target.turn is not None:
            self._group("turns", lambda: turn_checks(target, self.bench))
            self._frequencies(shown)
        if target.attend is not None:
            self._group("attention", lambda: _attention(target))

    def compared(self, meant: Target) -> None:
        """What is beside nothing of what is meant is not right."""
        names = ("ids-as-trained", "turns-as-trained", "attention-reference")
        if not any(check.name in names or check.outcome == "fail" for check in self.checks):
            self.checks.append(
                AuditCheck(
                    name="compared",
                    means=f"ids, turns or an attention are compared with those of {meant.name}",
                    figure="nothing of both could be compared",
                    limit="something",
                    outcome="fail",
                )
            )

    def _frequencies(self, shown: tuple[Grid, ...]) -> None:
        target = self.target
        if any(check.name in ("rotation", "pairs") and check.outcome == "fail" for check in self.checks):
            self.skipped.append(("frequencies", "it is no rotation"))
            return
        if any(check.name == "turns-run" for check in self.checks):
            return
        seen = waves_of(target, self.bench)
        if seen is None:
            self.skipped.append(("frequencies", "its channels do not turn in pairs"))
            return
        waves = self.waves = Waves(target.axes, *seen, stopped=_stopped(target))
        looks, dtype = self.looks, self.bench.dtype
        self._group("frequencies", lambda: frequency_checks(waves, self.sides, self.frames, dtype, target.extent < 4))
        told = [grid for grid in shown if grid in looks] or list(looks)[:1]
        if told:
            self._group("kernel", lambda: prompt_checks(waves, looks, told))
        if target.rotary is not None and target.rotary.frequencies.extension is not None:
            self._group("extension", lambda: _extension(target, self.sides))

    def _group(self, name: str, checks: Callable[[], Iterator[AuditCheck]]) -> None:
        """Run some checks; what raises in the code under audit is told of, and fails."""
        try:
            self.checks += checks()
        except Exception as error:  # of whatever code is audited
            self.checks.append(
                AuditCheck(
                    name=f"{name}-run",
                    means="the checks run to their end",
                    figure=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",
                    limit="no error",
                    outcome="fail",
                )
            )


def _stopped(target: Target) -> tuple[str, ...]:
    """Axes whose pairs an extension makes stand still: HoPE's time."""
    if target.rotary is None:
        return ()
    each = zip(target.axes, extensions_of_axes(target.rotary), strict=True)
    names = tuple(name for name, extension in each if isinstance(extension, Zero))
    return names if len(names) < len(target.axes) else ()  # to stop them all is no encoding


def _extension(target: Target, sides: tuple[int, int]) -> Iterator[AuditCheck]:
    assert target.rotary is not None
    report = frequency_report(target.rotary, axes=target.axes, grid=sides)
    words = []
    for axis in report.axes:
        did = axis.stretch
        if did is None:
            words.append(f"{axis.name} as it was")
            continue
        slower = "" if did.most is None else f", {did.most:.4g} times slower at most"
        stopped = f", {did.stopped} stopped" if did.stopped else ""
        words.append(f"{axis.name} {did.kept} kept, {did.partly} partly, {did.full} fully slowed{stopped}{slower}")
    yield AuditCheck(
        name="extension",
        means="pairs of each axis that the context extension leaves, slows in part, and slows by the whole factor",
        figure="; ".join(words),
        source="arXiv:2309.00071",
    )


def _attention(target: Target) -> Iterator[AuditCheck]:
    assert target.attend is not None
    meant = target.trained
    encoding = meant.encoding if meant is not None and len(meant.axes) == 3 else None
    measured = audit_attention(
        target.attend,
        encoding=encoding,
        layout=GridLayout(merge=1),
        head_dim=target.head_dim if encoding is not None else 16,
    )
    for name, means in _ATTENTION.items():
        holds = getattr(measured, name)
        if holds is not None:
            yield AuditCheck(
                name=f"attention-{name}",
                means=means,
                figure="holds" if holds else f"does not hold: {measured.told[name]}",
                limit="holds",
                outcome=outcome(holds),
            )
