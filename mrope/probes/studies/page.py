"""STUDIES.md and its figures, made from the files of results alone."""

from __future__ import annotations

from pathlib import Path

from mrope.probes.markup import element, number, palette, text
from mrope.probes.studies.catalogue import STUDIES
from mrope.probes.studies.results import RESULTS, Results, Tested
from mrope.probes.studies.study import Study
from mrope.probes.words import counted, plural

PAGE = Path(__file__).parents[3] / "STUDIES.md"
"""Where the page lies in a checkout."""

_INTRODUCTION = """# Studies

Small models, trained from nothing on one budget, several seeds each, hold published claims against what this size
shows. `make study` runs all of this again; `python -m mrope study report --write` writes this page from
`mrope/probes/studies/results`.

The model has three blocks of 96 channels and four heads of 32 rotary pairs, base 30. It sees pictures of noisy 8 x 8
glyphs, one of 64 a cell, with text around them. After two blocks it names the four neighbours of each cell; after the
third, those of glyphs that the text behind the pictures names ("ask"). A blind guess is right in 1.6 %. Sizes are rows
x columns.

Figures are percentages, means over seeds with 95 % intervals (Student's). A claim *held* if the interval of the
difference between two cells of the table, paired by seed, lies above 0; it was *reversed* if the interval lies below
0, and is *not shown* if 0 is inside. A claim that two cells are the same held if no seed differs by more than 0.2
points. Claims, rule and sizes were fixed before the runs; base, rate, steps and the scale of the learned table on
single seeds of five variants. All this says what holds at this size, not what holds in a large model.
"""


def page(folder: Path = RESULTS) -> str:
    """STUDIES.md, of the files of results in `folder`."""
    parts = [_INTRODUCTION]
    for study in STUDIES.values():
        path = folder / f"{study.name}.json"
        parts.append(section(study, Results.read(path) if path.exists() else None))
    return "\n".join(parts)


def section(study: Study, results: Results | None) -> str:
    """One study as Markdown: its question, table, figure and claims."""
    head = f"## {study.title}\n\n{study.words}\n"
    if results is None:
        return f"{head}\nNot run yet: `mrope study run {study.name}`.\n"
    figure = f"![{study.title}](mrope/probes/studies/results/{study.name}.svg)\n"
    return "\n".join((head, table(results), figure, verdicts(study, results), _circumstances(results)))


def table(results: Results) -> str:
    """The cells of the study as a Markdown table, in per cent."""
    lines = ["| | " + " | ".join(results.columns) + " |", "|---" * (len(results.columns) + 1) + "|"]
    lines += [
        f"| {row} | " + " | ".join(_cell(results, row, column) for column in results.columns) + " |"
        for row in results.rows
    ]
    return "\n".join(lines) + "\n"


def verdicts(study: Study, results: Results) -> str:
    """The claims as a Markdown table: source, claim, the two cells, their difference, and what became of it."""
    lines = ["| claim | source | cells | difference, points | |", "|---|---|---|---|---|"]
    for claim in study.claims:
        tested = results.tested(claim)
        sign = "is" if claim.rule == "same" else "above"
        cells = f"{_name(claim.one)} {sign} {_name(claim.other)}"
        lines.append(f"| {claim.words} | {claim.source} | {cells} | {_outcome(tested)} |")
    return "\n".join(lines) + "\n"


def figure(study: Study, results: Results) -> str:
    """The table as an SVG: a panel a column, a line a row, and each mean with its interval and its seeds."""
    rows, columns = results.rows, results.columns
    left, panel, gap, line, top = 14 + 6.4 * max(map(len, rows)), 104.0, 24.0, 17.0, 44.0
    width, height = left + len(columns) * (panel + gap) + 6, top + len(rows) * line + 26
    parts = [text(study.title, 8, 16, class_="title")]
    for index, row in enumerate(rows):
        parts.append(text(row, left - 8, top + index * line + 12.5, text_anchor="end"))
    for place, column in enumerate(columns):
        start = left + place * (panel + gap)
        parts.append(text(column, start + panel / 2, 36.0, text_anchor="middle", class_="head"))
        for percent in (0, 50, 100):
            at = number(start + panel * percent / 100)
            parts.append(element("path", d=f"M{at} {number(top)}V{number(height - 24)}", class_="rule"))
            parts.append(text(str(percent), start + panel * percent / 100, height - 10, text_anchor="middle"))
        for index, row in enumerate(rows):
            parts.append(_mark(results, row, column, start, panel, top + index * line + 8.5))
    style = (
        f"{palette()}text{{font:11px sans-serif;fill:var(--ink)}}.title{{font-size:13px;font-weight:600}}"
        ".head{font-weight:600}.rule{stroke:var(--rule)}.bar{stroke:var(--w);stroke-width:2}"
        ".mean{fill:var(--w)}.seed{fill:var(--muted);opacity:.5}.paper{fill:var(--paper)}"
    )
    paper = element("rect", width=width, height=height, class_="paper")
    return element(
        "svg", element("style", style) + paper + "".join(parts), xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {number(width)} {number(height)}", width=width, height=height, role="img",
        aria_label=study.title,
    ) + "\n"  # fmt: skip


def write_page(results: Path, target: Path = RESULTS, page_at: Path = PAGE) -> None:
    """Put the files of results of `results` into `target`, draw their figures there, and write the page."""
    target.mkdir(parents=True, exist_ok=True)
    for study in STUDIES.values():
        source, path = results / f"{study.name}.json", target / f"{study.name}.json"
        if source.exists() and source.resolve() != path.resolve():
            path.write_text(source.read_text("utf-8"), "utf-8")
        if path.exists():
            path.with_suffix(".svg").write_text(figure(study, Results.read(path)), "utf-8")
    page_at.write_text(page(target), "utf-8")


def _cell(results: Results, row: str, column: str) -> str:
    mean = results.mean(row, column)
    if mean is None:
        return ""
    return f"{100 * mean.value:.1f}" + ("" if mean.seeds == 1 else f" ± {100 * mean.half:.1f}")


def _mark(results: Results, row: str, column: str, start: float, panel: float, middle: float) -> str:
    mean = results.mean(row, column)
    if mean is None:
        return ""

    def across(share: float) -> float:
        return start + panel * min(1.0, max(0.0, share))

    seeds = "".join(
        element("circle", cx=across(value), cy=middle, r=2, class_="seed")
        for value in results.by_seed(row, column).values()
    )
    bar = element(
        "path",
        d=f"M{number(across(mean.value - mean.half))} {number(middle)}H{number(across(mean.value + mean.half))}",
        class_="bar",
    )
    words = element("title", f"{row}, {column}: {_cell(results, row, column)} %")
    dot = element("circle", words, cx=across(mean.value), cy=middle, r=3.5, class_="mean")
    return seeds + (bar if mean.seeds > 1 else "") + dot


def _outcome(tested: Tested | None) -> str:
    if tested is None:
        return " | not measured"
    interval = "" if tested.difference.seeds == 1 else f" ± {100 * tested.difference.half:.1f}"
    return f"{100 * tested.difference.value:+.1f}{interval} | **{tested.verdict}**"


def _name(cell: tuple[str, str]) -> str:
    return f"{cell[0]} at {cell[1]}"


def _circumstances(results: Results) -> str:
    entry = results.entry
    settings, seeds = entry["settings"], {run["seed"] for run in results.runs}
    minutes = sum(run["seconds"] for run in results.runs) / 60
    return (
        f"{counted(len(results.runs), 'run')} of {settings['steps']} {plural(settings['steps'], 'step')}, "
        f"{counted(len(seeds), 'seed')}, {counted(round(minutes), 'minute')} of one thread in all; limit "
        f"{settings['limit']}; {entry['machine']}; torch {entry['versions']['torch']}.\n"
    )
