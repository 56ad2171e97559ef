"""What the models of the studies read: pictures of noisy glyphs, one a cell, with text around them and questions.

Letters: B prompts, C cells of all pictures of a prompt, Q questions, G glyphs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from mrope.checks import whole
from mrope.spans import Image, Span, Text

GLYPHS = 64
SIDE = 8
WORDS = 16
NOISE = 0.4
DIRECTIONS = ("right", "left", "down", "up")
STEPS = ((0, 1), (0, -1), (1, 0), (-1, 0))  # rows and columns of each direction

Kind = Literal["word", "cell", "question"]


def bitmaps() -> Float32[Tensor, "g p"]:
    """(G, 64) the glyphs: 8 x 8 dots each, -1 or 1, the same on every machine."""
    dots = np.random.default_rng([7, GLYPHS]).integers(2, size=(GLYPHS, SIDE * SIDE))
    return torch.from_numpy((2 * dots - 1).astype(np.float32))


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a prompt: text, then pictures, each with text behind it, then questions.

    A question is one token that names a glyph, and asks for its four neighbours.

    Args:
        pictures: (rows, columns) of each.
        before: tokens of text before the first picture.
        between: tokens of text behind each picture.
        after: tokens of text behind the questions.
        questions: Q, each about another cell.
        asked: the picture that all questions are about; None for any.
    """

    pictures: tuple[tuple[int, int], ...]
    before: int = 4
    between: int = 2
    after: int = 0
    questions: int = 8
    asked: int | None = None

    def __post_init__(self) -> None:
        for name in ("before", "between", "after", "questions"):
            whole(name, getattr(self, name), 0)
        if not self.pictures or min(side for picture in self.pictures for side in picture) < 2:
            raise ValueError(f"pictures is {self.pictures}; expected at least one, of two rows and columns or more")
        if self.questions > min(len(self.askable), GLYPHS - 1):
            raise ValueError(f"questions is {self.questions}; expected at most a question a cell, and {GLYPHS - 1}")

    @property
    def cells(self) -> int:
        """C, of all pictures."""
        return sum(math.prod(picture) for picture in self.pictures)

    @property
    def askable(self) -> range:
        """The cells that questions are about, by their number in the prompt."""
        if self.asked is None:
            return range(self.cells)
        first = sum(math.prod(picture) for picture in self.pictures[: self.asked])
        return range(first, first + math.prod(self.pictures[self.asked]))

    @property
    def parts(self) -> tuple[tuple[Kind, int], ...]:
        """The tokens of a prompt in their order, as runs of one kind."""
        runs: list[tuple[Kind, int]] = [("word", self.before)]
        for picture in self.pictures:
            runs.append(("cell", math.prod(picture)))
            runs.append(("word", self.between))
        runs.append(("question", self.questions))
        runs.append(("word", self.after))
        return tuple(run for run in runs if run[1])

    @property
    def spans(self) -> list[Span]:
        """The spans of a prompt, a cell being a token."""
        spans: list[Span] = [Text(self.before)] if self.before else []
        for rows, cols in self.pictures:
            spans += [Image((1, rows, cols)), *([Text(self.between)] if self.between else [])]
        return spans + [Text(length) for length in (self.questions, self.after) if length]

    def neighbours(self) -> Int64[Tensor, "c 4"]:
        """(C, 4) the cell right of, left of, below and above each, by its number in the prompt; -1 for none."""
        tables, first = [], 0
        for rows, cols in self.pictures:
            row, col = np.divmod(np.arange(rows * cols), cols)
            table = np.empty((rows * cols, 4), np.int64)
            for direction, (down, right) in enumerate(STEPS):
                inside = (row + down >= 0) & (row + down < rows) & (col + right >= 0) & (col + right < cols)
                table[:, direction] = np.where(inside, first + (row + down) * cols + col + right, -1)
            tables.append(table)
            first += rows * cols
        return torch.from_numpy(np.concatenate(tables))


@dataclass(frozen=True, slots=True)
class Batch:
    """B prompts of one form, and the right answers."""

    form: Form
    patches: Float32[Tensor, "b c p"]  # each cell's dots with noise
    words: Int64[Tensor, "b n"]  # all text, in order
    asked: Int64[Tensor, "b q"]  # the glyph that a question names, which occurs once in its prompt
    beside: Int64[Tensor, "b c 4"]  # the glyph in each direction of each cell; -1 for none
    answers: Int64[Tensor, "b q 4"]  # the same of the cells that are asked about

    def to(self, device: str) -> Batch:
        """The same prompts on another device."""
        tensors = (self.patches, self.words, self.asked, self.beside, self.answers)
        return Batch(self.form, *(each.to(device) for each in tensors))


def draw(form: Form, prompts: int, rng: np.random.Generator) -> Batch:
    """Draw prompts of one form. A glyph that is asked about stands in one cell; the others may repeat.

    Args:
        form: of all of them.
        prompts: B.
        rng: all chance comes from it.
    """
    neighbours = form.neighbours()
    glyphs = np.empty((prompts, form.cells), np.int64)
    cells, asked = np.empty((2, prompts, form.questions), np.int64)
    for row in range(prompts):
        order = rng.permutation(GLYPHS)
        asked[row], others = order[: form.questions], order[form.questions :]
        glyphs[row] = rng.choice(others, form.cells)
        cells[row] = rng.choice(np.asarray(form.askable), form.questions, replace=False)
        glyphs[row, cells[row]] = asked[row]
    noise = rng.standard_normal((prompts, form.cells, SIDE * SIDE), dtype=np.float32)
    shown = torch.from_numpy(glyphs)
    beside = torch.where(neighbours >= 0, shown[:, neighbours.clamp(min=0)], -1)
    words = rng.integers(WORDS, size=(prompts, form.before + len(form.pictures) * form.between + form.after))
    return Batch(
        form,
        bitmaps()[shown] + NOISE * torch.from_numpy(noise),
        torch.from_numpy(words),
        torch.from_numpy(asked),
        beside,
        beside[torch.arange(prompts)[:, None], torch.from_numpy(cells)],
    )


def answerable(directions: Sequence[str]) -> Bool[Tensor, "4"]:
    """(4,) True for the named directions."""
    return torch.tensor([name in directions for name in DIRECTIONS])
