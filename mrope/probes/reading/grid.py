"""The grid probe: does a reader know what stands in, right of, left of, above and below each cell, at any size?

Letters: B pictures, Q questions a picture, N vision tokens a picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mrope.data import GLYPHS, HELD_OUT_PAIRS, RELATIONS, Font, GlyphGrid, draw_grid, questions, sample_key
from mrope.positions import Positions
from mrope.reader import FAMILY, PROMPT, Reader

CHANCE = 1 / len(GLYPHS)
"""Accuracy of a guess among the 24 glyphs."""

Move = Callable[[Positions], Positions]
"""What to do to the positions of a prompt before the model sees them: shift them, swap two axes, nothing."""


@dataclass(frozen=True, slots=True)
class GridScore:
    """How well one shape was read, over all its questions of all its pictures.

    Args:
        shape: (rows, columns).
        correct: (B, Q) bool, question by question; the questions are those of `mrope.data.questions`, in that order.
        predicted: (B, Q) int64, the glyph answered, an index into `GLYPHS`.
        held_out: (B, Q) bool, True where the cell and its answer are a pair of neighbours that training never shows.
    """

    shape: tuple[int, int]
    correct: Tensor
    predicted: Tensor
    held_out: Tensor

    @property
    def cells(self) -> int:
        """Cells of the grid, which is tokens of the picture."""
        return self.shape[0] * self.shape[1]

    @property
    def accuracy(self) -> float:
        """Share of questions answered right."""
        return self.correct.double().mean().item()

    @property
    def error(self) -> float:
        """Standard error of the accuracy, from its spread over pictures (questions of one picture share a font)."""
        by_picture = self.correct.double().mean(1)
        return (by_picture.std() / len(by_picture) ** 0.5).item() if len(by_picture) > 1 else float("nan")

    @property
    def on_held_out_pairs(self) -> float:
        """Accuracy on the pairs of neighbours that training never shows."""
        return self.correct[self.held_out].double().mean().item()

    def by_relation(self) -> dict[str, float]:
        """Accuracy of each relation that the grid allows: a single row has nothing above or below."""
        _, relation = self._asked()
        return {
            name: self.correct[:, relation == index].double().mean().item()
            for index, name in enumerate(RELATIONS)
            if (relation == index).any()
        }

    def heat(self) -> Tensor:
        """(rows, columns) float64: accuracy of all questions that point at each cell."""
        return self._by_cell(self.correct.double().mean(0), "mean").unflatten(0, self.shape)

    @property
    def sets(self) -> float:
        """Share of cells whose questions were all answered right, in one picture."""
        return torch.stack([self._by_cell(row, "amin") for row in self.correct.double()]).mean().item()

    def _asked(self) -> tuple[Tensor, Tensor]:
        cells, relation, _ = questions(np.zeros(self.shape, dtype=np.int64))
        return torch.from_numpy(cells), torch.from_numpy(relation)

    def _by_cell(self, values: Tensor, reduce: str) -> Tensor:
        cells, _ = self._asked()
        return torch.zeros(self.cells, dtype=values.dtype).scatter_reduce(0, cells, values, reduce, include_self=False)


def swap_axes(positions: Positions) -> Positions:
    """The prompt with its h and w positions swapped: a reader that uses them must now fail on neighbours."""
    return replace(positions, ids=positions.ids[[0, 2, 1]])


def draw_grids(shape: tuple[int, int], fonts: Sequence[Font], *, pictures: int = 8, seed: int = 0) -> list[GlyphGrid]:
    """The pictures that `score_grid` asks about: the same for every reader.

    Args:
        shape: (rows, columns) of the grids.
        fonts: the faces to draw with, one a picture, in turn.
        pictures: how many grids.
        seed: of the keys and the drawing.
    """
    rng = np.random.default_rng([seed, *shape])
    keys = [sample_key(*shape, rng) for _ in range(pictures)]
    return [draw_grid(key, [fonts[index % len(fonts)]], rng) for index, key in enumerate(keys)]


@torch.no_grad()
def ask_everything(
    reader: Reader, grid: GlyphGrid, *, move: Move = lambda positions: positions
) -> Float[Tensor, "q g"]:
    """Logits over the glyphs for each question of `mrope.data.questions`, in that order, on the CPU.

    Args:
        reader: the model to probe.
        grid: the picture, and its key, whose shape says which questions there are.
        move: changes the positions before the model sees them.
    """
    patches = FAMILY.patchify(grid.picture)
    cells, relations, _ = (torch.from_numpy(each)[None] for each in questions(grid.glyphs))
    ids = move(reader.positions(len(PROMPT), patches.plans[0].grid)).ids
    words = torch.tensor(PROMPT)
    inputs = (each.to(reader.device) for each in (patches.values, words, ids, cells, relations))
    return reader(*inputs)[0, grid.glyphs.size :].cpu()


def score_grid(
    reader: Reader,
    shape: tuple[int, int],
    fonts: Sequence[Font],
    *,
    pictures: int = 8,
    seed: int = 0,
    move: Move = lambda positions: positions,
) -> GridScore:
    """Draw grids of one shape and ask every question about each; arguments as in `draw_grids` and `ask_everything`."""
    predicted, correct, held_out = [], [], []
    # One picture a forward: its questions are many, and a large grid would otherwise need gigabytes.
    for grid in draw_grids(shape, fonts, pictures=pictures, seed=seed):
        predicted.append(ask_everything(reader, grid, move=move).argmax(-1))
        correct.append(predicted[-1] == torch.from_numpy(questions(grid.glyphs)[2]))
        held_out.append(torch.from_numpy(_held_out(grid.glyphs)))
    return GridScore(shape, torch.stack(correct), torch.stack(predicted), torch.stack(held_out))


def effective_resolution(scores: Iterable[GridScore], threshold: float = 0.95) -> GridScore | None:
    """The largest grid (most cells) that was read at `threshold` or better, or None."""
    return max((s for s in scores if s.accuracy >= threshold), key=lambda s: s.cells, default=None)


def _held_out(key: np.ndarray) -> np.ndarray:
    """(Q,) bool for `questions(key)`: do the cell and its answer form a held-out pair, read left to right or down?"""
    cells, relation, answers = questions(key)
    here = key.ravel()[cells]
    names = np.array(list(RELATIONS))[relation]
    forward, backward = np.isin(names, ("right", "below")), np.isin(names, ("left", "above"))
    return (forward & HELD_OUT_PAIRS[here, answers]) | (backward & HELD_OUT_PAIRS[answers, here])
