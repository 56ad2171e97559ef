"""How a trained model is scored: the share of right answers, over prompts that all models of a seed share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mrope.positions import Positions
from mrope.probes.studies.model import StudyModel
from mrope.probes.studies.prompts import DIRECTIONS, Form, draw
from mrope.probes.studies.training import known

AT_ONCE = 1 << 22
"""Scores (prompts x tokens x tokens) that a model takes at once."""

Rows = dict[str, dict[str, float]]
"""Of each row of a study's table, the share of right answers by column."""


@dataclass(frozen=True, slots=True)
class Score:
    """Shares of right answers.

    Args:
        beside: of the neighbours of all cells.
        by_direction: the same, of each direction that the cells can see.
        asked: of the questions; NaN without any.
        answers: (B, Q, 4) what was said to each question.
    """

    beside: float
    by_direction: dict[str, float]
    asked: float
    answers: Tensor


def prompts_for(form: Form, limit: int, least: int = 2) -> int:
    """How many prompts are scored: `limit` of 32 cells, fewer of more cells, but `least`."""
    return max(least, limit * 32 // form.cells)


@torch.no_grad()
def score(
    model: StudyModel,
    form: Form,
    *,
    seed: int,
    prompts: int,
    move: Callable[[Positions], Positions] = lambda positions: positions,
) -> Score:
    """Score `model` on prompts of one form, which depend on the form, the seed and their number alone.

    Args:
        model: what is scored.
        form: of the prompts.
        seed: of the prompts, other ones than those of training.
        prompts: how many.
        move: what is done to the positions first.
    """
    numbers = [side for picture in form.pictures[:3] for side in picture]
    rng = np.random.default_rng([seed, 1, len(form.pictures), *numbers, form.before, form.between, form.asked or 0])
    device = str(model.bitmaps.device)
    tokens = sum(count for _, count in form.parts)
    positions = move(model.positions(form))
    right, there, asked, answers = torch.zeros(4), torch.zeros(4), [], []
    size = max(1, AT_ONCE // tokens**2)
    for start in range(0, prompts, size):
        batch = draw(form, min(size, prompts - start), rng).to(device)
        cells, said = model(batch, positions)
        seen, wanted = (known(right, model.variant.looks) for right in (batch.beside, batch.answers))
        right += ((cells.argmax(-1) == batch.beside) & seen).flatten(0, 1).sum(0).cpu()
        there += seen.flatten(0, 1).sum(0).cpu()
        asked.append((said.argmax(-1) == batch.answers)[wanted].float().cpu())
        answers.append(said.argmax(-1).cpu())
    shares = (right / there).tolist()
    return Score(
        (right.sum() / there.sum()).item(),
        {name: share for name, share, n in zip(DIRECTIONS, shares, there.tolist(), strict=True) if n},
        torch.cat(asked).mean().item(),
        torch.cat(answers),
    )


def by_picture(model: StudyModel, pictures: tuple[tuple[int, int], ...], *, seed: int, limit: int) -> dict[str, float]:
    """Accuracy beside the cells of prompts with one picture, a column for each of its sizes."""
    forms = {name_of(picture): Form((picture,)) for picture in pictures}
    return {
        name: score(model, form, seed=seed, prompts=prompts_for(form, limit)).beside for name, form in forms.items()
    }


def name_of(picture: tuple[int, int]) -> str:
    """A picture's size as tables write it, rows first: "7x9"."""
    return f"{picture[0]}x{picture[1]}"


def rounded(rows: Rows) -> Rows:
    """The same to five decimals, as files hold them."""
    return {row: {column: round(value, 5) for column, value in columns.items()} for row, columns in rows.items()}
