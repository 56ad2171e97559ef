"""`mrope read`: what the reader sees in a picture of a glyph grid."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mrope.cli.options import AsJson
from mrope.cli.output import print_json, print_table

if TYPE_CHECKING:
    from mrope.reader import Question

_ASK = re.compile(r"\s*([a-z]+)(?:\s+of)?\s+([0-9]+)\s*,\s*([0-9]+)\s*")


def read(
    picture: Annotated[Path, typer.Argument(metavar="PICTURE", help="One letter a block of 32 x 32 pixels.")],
    ask: Annotated[
        list[str] | None,
        typer.Option(
            metavar="QUESTION",
            help='in, right of, left of, above or below a cell, as row,column from 0: --ask "right of 2,3". '
            "Can be given several times; without it the whole grid is read.",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Read a picture of a glyph grid, or answer questions about its cells.

    The reader is small and was trained on glyph grids of 24 capitals (no I, no O); it will see such glyphs
    in any picture.
    """
    from mrope.reader import Reader

    questions = [parse_question(question) for question in ask or ()]
    reader = Reader.load()
    if not questions:
        rows = reader.read(str(picture))
        if json:
            print_json({"picture": str(picture), "rows": rows})
        else:
            typer.echo("\n".join(rows))
        return
    answers = reader.ask(str(picture), questions)
    if json:
        print_json(
            {
                "picture": str(picture),
                "answers": [
                    {
                        "relation": relation,
                        "row": row,
                        "column": col,
                        "glyph": answer.glyph,
                        "probability": answer.probability,
                    }
                    for (relation, (row, col)), answer in zip(questions, answers, strict=True)
                ],
            }
        )
        return
    print_table(
        ("question", "answer", "sure"),
        [
            (question.strip(), answer.glyph, f"{100 * answer.probability:.2f} %")
            for question, answer in zip(ask or (), answers, strict=True)
        ],
    )


def parse_question(words: str) -> Question:
    """A question from its words: "right of 2,3" -> ("right", (2, 3)).

    Raises:
        ValueError: the words have another form, or the relation is unknown.
    """
    from mrope.data import RELATIONS

    match = _ASK.fullmatch(words.lower())
    if match is None or match[1] not in RELATIONS:
        known = ", ".join(RELATIONS)
        raise ValueError(
            f'question {words!r} cannot be read; expected one of {known} and a cell, such as "right of 2,3"'
        )
    return match[1], (int(match[2]), int(match[3]))
