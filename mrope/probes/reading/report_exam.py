"""The second half of the report: what the reader was asked, and what it answered."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mrope.data import GLYPHS, RELATIONS
from mrope.probes.heat import heat_colour
from mrope.probes.markup import element, inlined, table
from mrope.probes.overlay import Mark, draw_questions
from mrope.probes.reading.charts import accuracy_curve, heat_map
from mrope.probes.reading.exam import Exam, Example, Kind, Twin
from mrope.probes.reading.findings import TWINS, percent, relations, shape_words
from mrope.probes.reading.grid import CHANCE, GridScore
from mrope.reader import FAMILY

HEAT_SHAPES = ((6, 6), (3, 12), (8, 9), (6, 12), (12, 6), (12, 12), (16, 16), (24, 24))
"""The grids whose heat maps are shown, where the exam has them."""
EXAMPLE_SIDE = 800
"""About how many pixels the longer side of an example has."""


def exam_sections(exam: Exam, twins: Sequence[Twin], trained_cells: tuple[int, int]) -> list[str]:
    """The sections of the exam, in reading order."""
    return [_curve(exam, twins, trained_cells), _heat(exam), _examples(exam), _moved(exam)]


def question_words(relation: str, cell: tuple[int, int]) -> str:
    """A question as people ask it.

    >>> question_words("right", (2, 3))
    'right of row 2, column 3'
    """
    words = {"in": "in", "right": "right of", "left": "left of", "above": "above", "below": "below"}[relation]
    return f"{words} row {cell[0]}, column {cell[1]}"


def _curve(exam: Exam, twins: Sequence[Twin], trained_cells: tuple[int, int]) -> str:
    words = (
        "A small model with a native-resolution encoder and three-axis rotary positions, trained here on pictures "
        f"of glyph grids with {trained_cells[0]} to {trained_cells[1]} cells. It is asked, for every cell, which of "
        f"{len(GLYPHS)} glyphs stands in it, right of it, left of it, above and below, in fonts that training never "
        "showed."
    )
    figure = element("div", accuracy_curve(exam.scores, twins, trained_cells), class_="wide chart") + _key(twins)
    caption = (
        "Share of questions answered right by the cells of the grid. Bars: one standard error over pictures. The "
        "line runs through the mean of the shapes with as many cells."
    )
    body = element("figure", figure + element("figcaption", caption)) + element("figure", _scores(exam))
    return element("section", element("h2", "A reader that must know where") + element("p", words) + body)


def _key(twins: Sequence[Twin]) -> str:
    def sign(shape: str) -> str:
        return element("svg", shape, viewBox="0 0 26 14", width=26, height=14, aria_hidden="true")

    signs = [
        (element("circle", cx=13, cy=7, r=5, class_=f"point {name.replace(' ', '-')}"), words)
        for name, words in (
            ("trained", "trained size"),
            ("unseen shape", "shape held out of training"),
            ("larger", "larger than any of training"),
        )
    ]
    signs += [
        (
            element("path", d="M1 7H25", class_=f"twin twin-{index}"),
            f"study: {TWINS.get(twin.name, twin.name)}, mean of {twin.seeds} seed{'s' if twin.seeds > 1 else ''}",
        )
        for index, twin in enumerate(twins, 1)
    ]
    return element("div", "".join(element("span", sign(shape) + escape(words)) for shape, words in signs), class_="key")


def _scores(exam: Exam) -> str:
    columns = (
        "rows x columns",
        "cells",
        "to the reader",
        "accuracy",
        "std. error",
        *RELATIONS,
        "all of a cell",
        "held-out pairs",
    )
    rows = [_score_row(kind, score) for kind, score in exam.scores]
    caption = (
        f"Accuracy by size and by relation; a guess gets {percent(CHANCE)}. All of a cell: every question about it "
        "right at once, where a guess gets next to nothing. Held-out pairs: neighbours that training never shows "
        "side by side."
    )
    body = table(columns, rows, numeric=(1, *range(3, len(columns))), class_="score")
    return element("div", body, class_="wide") + element("figcaption", caption)


def _score_row(kind: Kind, score: GridScore) -> tuple[str, ...]:
    by_relation = score.by_relation()
    shares = [by_relation.get(name) for name in RELATIONS]
    return (
        shape_words(score.shape),
        str(score.cells),
        kind,
        element("b", percent(score.accuracy)),
        _or_dash(score.error),
        *(_or_dash(share) for share in shares),
        _or_dash(score.sets),
        _or_dash(score.on_held_out_pairs),
    )


def _or_dash(share: float | None) -> str:
    return "-" if share is None or share != share else percent(share)


def _heat(exam: Exam) -> str:
    by_shape = {score.shape: score for _, score in exam.scores}
    chosen = [by_shape[shape] for shape in HEAT_SHAPES if shape in by_shape] or [score for _, score in exam.scores]
    maps = [
        element(
            "figure",
            heat_map(score, cell=max(9, min(20, 216 // max(score.shape))))
            + element("figcaption", f"{shape_words(score.shape)}<br>{percent(score.accuracy)}"),
        )
        for score in chosen
    ]
    stops = ",".join(heat_colour(value / 8) for value in range(9))
    scale = element("div", "", class_="scale", style=f"background:linear-gradient(90deg,{stops})")
    key = element("div", element("span", "never right") + scale + element("span", "always right"), class_="key")
    words = (
        "The same answers by the cell they are about, averaged over pictures and questions. Where a reader begins "
        "to lose its way, it shows here before it shows in the mean."
    )
    body = element("div", "".join(maps), class_="heat") + key
    return element("section", element("h2", "Cell by cell") + element("p", words) + body)


def _examples(exam: Exam) -> str:
    words = (
        "One picture each, as the reader sees it. Rows and columns count from 0. One question of each kind was "
        "drawn by lot; where the reader was wrong anywhere in the picture, up to two of its mistakes follow."
    )
    body = "".join(_example(example) for example in exam.examples)
    return element("section", element("h2", "Questions and answers") + element("p", words) + body)


def _example(example: Example) -> str:
    side = max(24, min(96, EXAMPLE_SIDE // max(example.shape)))
    marks = [Mark(*said.cell, RELATIONS[said.relation], said.said == said.right) for said in example.said]
    picture = inlined(
        draw_questions(example.picture, FAMILY.factor, marks, side=side), f"a glyph grid, {shape_words(example.shape)}"
    )
    rows = [
        (
            element("span", str(number), class_="badge" if mark.right else "badge wrong"),
            question_words(said.relation, said.cell),
            element("code", said.said),
            element("code", said.right),
            percent(said.probability),
        )
        for number, (said, mark) in enumerate(zip(example.said, marks, strict=True), 1)
    ]
    answers = table(("", "what stands", "says", "is", "sure"), rows, numeric=(4,))
    height, width = example.picture.shape[1:]
    head = element("h3", f"{example.shape[0]} rows, {example.shape[1]} columns")
    whole = f"{example.correct:,} of {example.asked:,} questions about this picture are answered right; "
    whole += f"{width} wide x {height} high."
    return element(
        "article",
        element("div", picture) + element("div", head + element("p", whole, class_="muted") + answers),
        class_="example",
    )


def _moved(exam: Exam) -> str:
    shifts = table(
        ("all positions", "answers changed", "logits change by", "in float64"),
        [
            (
                f"+ {shift.delta:,}",
                f"{shift.changed:,} of {shift.asked:,}",
                f"{shift.largest:.1e}",
                f"{shift.largest_exact:.1e}",
            )
            for shift in exam.shifts
        ],
        numeric=(1, 2, 3),
    )
    swaps = table(
        ("grid", "in", "swapped", "neighbours", "swapped", "mirrored"),
        [
            (
                shape_words(swap.before.shape),
                *(
                    percent(value)
                    for pair in zip(relations([swap.before]), relations([swap.after]), strict=True)
                    for value in pair
                ),
                _or_dash(swap.mirrored),
            )
            for swap in exam.swaps
        ],
        numeric=(1, 2, 3, 4, 5),
    )
    left = (
        element("h3", "The shift test")
        + element("p", "Every position of the prompt, words and picture, moved by a constant. Answers must not change.")
        + element("div", shifts, class_="wide")
        + element(
            "p",
            "The largest change of any logit. What is left are roundings: far out, a float32 product of position and "
            "frequency loses digits. The last column is the same test with angles built in float64.",
            class_="muted",
        )
    )
    right = (
        element("h3", "The swap test")
        + element("p", "h and w exchanged when the reader is asked. Only the cell itself can still be found.")
        + element("div", swaps, class_="wide")
        + element(
            "p",
            "If neighbours were still read, the reader would not be using its positions. Mirrored: asked for the "
            "glyph on the right it names the one below, for left the one above, and the other way round, as "
            "swapped positions say.",
            class_="muted",
        )
    )
    body = element("div", element("div", left) + element("div", right), class_="two")
    return element("section", element("h2", "Moved and swapped") + body)
