"""The reader: a small VLM that says what stands in, or next to, a cell of a glyph grid.

A window encoder turns each block of 32 x 32 pixels into one token, and a decoder with 3-axis rotary positions does the
rest. A question is one word ("right") that *points*: it takes the position (t, h, w) of the cell that it asks about,
since text and vision share one position space. So an answer is right only if the model knows where its tokens are.

Letters: B pictures of one size, K words, N vision tokens a picture, Q questions a picture, P patches in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from mrope.attention import Block
from mrope.axes import AxisSplit
from mrope.data import GLYPHS, RELATIONS
from mrope.families import Family
from mrope.frequencies import Frequencies
from mrope.layouts import GridLayout, Layout
from mrope.positions import Positions
from mrope.spans import Grid, Image, Text
from mrope.vision import Patches, WindowEncoder

WEIGHTS = Path(__file__).parent / "weights" / "reader.safetensors"
WORDS = ("please", "look", "at", "this", "picture", "and", "tell", "me")
PROMPT = (0, 1, 2, 3, 4)
"""The words (indices into `WORDS`) in front of every picture, outside of training: "please look at this picture"."""

_OWN = "chosen for the reader"
FAMILY = Family(
    name="reader",
    model_types=(),
    patch=8,
    temporal_patch=1,
    merge=4,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    image_tokens=(1, 1024),
    video_pixels=(32 * 32, 32 * 32 * 1024),
    video_budget="frame",
    layout=GridLayout(merge=4),
    split=AxisSplit((6, 5, 5), "interleaved"),
    pairing="half",
    frequencies=Frequencies(100.0),
    head_dim=32,
    boxes="processed-pixels",
    sources=dict.fromkeys(("patch", "merge", "split", "frequencies"), _OWN),
)
"""The reader's own record: the same plan, patches, layout and rotary as the published families, in small."""


Question = tuple[str, tuple[int, int]]
"""A relation of `RELATIONS` and the cell (row, column) that it starts from."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the reader says to one question, and how sure it is (the softmax of its logits over the 24 glyphs)."""

    glyph: str
    probability: float


class Reader(nn.Module):
    """Window encoder, two decoder blocks, and a head over the glyphs: 0.8 M parameters.

    Args:
        layout: the rule that places the tokens. The default is the family's grid; twins are trained with others.
    """

    def __init__(self, layout: Layout = FAMILY.layout):
        super().__init__()
        dim = 128
        self.layout = layout
        self.rotary = FAMILY.rotary()
        self.encoder = WindowEncoder(
            patch_dim=FAMILY.patch_dim, merge=FAMILY.merge, dim=64, depth=2, heads=2, out_dim=dim
        )
        self.words = nn.Embedding(len(WORDS), dim)
        self.questions = nn.Embedding(len(RELATIONS), dim)
        self.blocks = nn.ModuleList(Block(dim, dim // FAMILY.head_dim) for _ in range(2))
        self.norm = nn.LayerNorm(dim)
        self.answer = nn.Linear(dim, len(GLYPHS))

    @classmethod
    def load(cls, weights: str | Path = WEIGHTS, *, layout: Layout = FAMILY.layout, device: str = "cpu") -> Reader:
        """The trained reader, ready to answer.

        Raises:
            FileNotFoundError: there are no weights at that path.
        """
        from safetensors.torch import load_file

        if not Path(weights).is_file():
            raise FileNotFoundError(f"no reader weights at {weights}; `mrope reader train` makes some")
        reader = cls(layout)
        reader.load_state_dict(load_file(weights))
        return reader.to(device).eval()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.answer.weight.device

    def positions(self, words: int, grid: Grid) -> Positions:
        """The positions of `words` words and a picture of `grid` patches behind them."""
        return self.layout([Text(words), Image(grid)])

    def forward(
        self,
        values: Float[Tensor, "p v"],
        words: Int64[Tensor, " k"],
        ids: Int64[Tensor, "3 l"],
        cells: Int64[Tensor, "b q"],
        relations: Int64[Tensor, "b q"],
    ) -> Float[Tensor, "b n_plus_q g"]:
        """Logits over the glyphs: for each vision token what it shows, before the decoder, then for each question.

        Args:
            values: the patches of B pictures of one grid, as `Patches.values` has them.
            words: the words in front of the picture, indices into `WORDS`.
            ids: positions (t, h, w) of the words and of the N vision tokens, L = K + N.
            cells: which vision token (raster index) each question points at.
            relations: what it asks, an index into `RELATIONS`.
        """
        pictures, before = cells.shape[0], len(words)
        pointed = ids[:, before:][:, cells]
        ids = torch.cat([ids.unsqueeze(1).expand(-1, pictures, -1), pointed], dim=2)
        table = self.rotary.cos_sin(ids)
        mask = _mask(before, ids.shape[2] - cells.shape[1], ids.shape[2], ids.device)
        vision = self.encoder(values).unflatten(0, (pictures, -1))
        x = torch.cat([self.words(words).expand(pictures, -1, -1), vision, self.questions(relations)], dim=1)
        for block in self.blocks:
            x = block(x, table, mask)
        return self.answer(self.norm(torch.cat([vision, x[:, -cells.shape[1] :]], dim=1)))

    def ask(self, picture: Any, questions: Sequence[Question]) -> list[Answer]:
        """Answer questions about one picture (path, bytes, PIL image, array or tensor) of a glyph grid.

        Args:
            picture: one glyph a block of 32 x 32 pixels, as `mrope.data.draw_grid` draws them.
            questions: each a relation of `RELATIONS` and a cell (row, column), from 0.

        Raises:
            ValueError: a relation is unknown, or a cell or its neighbour lies outside the picture.
        """
        return self._answer(FAMILY.patchify(picture), questions)

    def read(self, picture: Any) -> list[str]:
        """Read a whole glyph grid: its rows from the top, each a string of glyphs."""
        patches = FAMILY.patchify(picture)
        rows, cols = _cells(patches)
        answers = self._answer(patches, [("in", (row, col)) for row in range(rows) for col in range(cols)])
        return ["".join(answer.glyph for answer in answers[row * cols : (row + 1) * cols]) for row in range(rows)]

    @torch.no_grad()
    def _answer(self, patches: Patches, questions: Sequence[Question]) -> list[Answer]:
        rows, cols = _cells(patches)
        for relation, cell in questions:
            _check_question(relation, cell, rows, cols)
        names = list(RELATIONS)
        cells = torch.tensor([[row * cols + col for _, (row, col) in questions]], device=self.device)
        relations = torch.tensor([[names.index(relation) for relation, _ in questions]], device=self.device)
        words = torch.tensor(PROMPT, device=self.device)
        ids = self.positions(len(PROMPT), patches.plans[0].grid).ids.to(self.device)
        logits = self(patches.values.to(self.device), words, ids, cells, relations)[0, rows * cols :]
        sure, glyph = logits.softmax(-1).max(-1)
        return [Answer(GLYPHS[g], p) for g, p in zip(glyph.tolist(), sure.tolist(), strict=True)]


def _cells(patches: Patches) -> tuple[int, int]:
    _, h, w = patches.plans[0].grid
    return h // FAMILY.merge, w // FAMILY.merge


def _check_question(relation: str, cell: tuple[int, int], rows: int, cols: int) -> None:
    if relation not in RELATIONS:
        raise ValueError(f"unknown relation {relation!r}; known are {', '.join(RELATIONS)}")
    target = tuple(a + b for a, b in zip(cell, RELATIONS[relation], strict=True))
    for (row, col), what in ((cell, "cell"), (target, f"the cell {relation} of it")):
        if not (0 <= row < rows and 0 <= col < cols):
            raise ValueError(f"{relation!r} of {cell}: {what} is outside the picture's {rows} rows x {cols} columns")


def _mask(before: int, context: int, length: int, device: torch.device) -> Tensor:
    """(length, length), True where a token may look: words backwards, vision at all words and vision, questions too.

    A question is seen by nobody but itself, so any number can be asked at once.
    """
    index = torch.arange(length, device=device)
    visible = (index < context).expand(length, -1) & ((index[:, None] >= before) | (index <= index[:, None]))
    return visible | torch.eye(length, dtype=torch.bool, device=device)
