"""The model of the studies: three small transformer blocks that read glyphs and answer questions about them.

Letters: B prompts, N tokens, C cells, Q questions, D channels, G glyphs.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu

from mrope.attention import Mask, attend, picture_numbers
from mrope.encoding import Encoding
from mrope.positions import Positions
from mrope.probes.studies.prompts import DIRECTIONS, SIDE, WORDS, Batch, Form, bitmaps
from mrope.probes.studies.variants import DIM, HEAD_DIM, HEADS, Variant

LAYERS = 3


class StudyBlock(nn.Module):
    """Pre-norm block: attention through any encoding, then a GELU MLP four times as wide."""

    encoding: Encoding

    def __init__(self, variant: Variant, encoding: Encoding):
        super().__init__()
        self.encoding, self.mask, self.turns_values = encoding, Mask(variant.looks), variant.turns_values
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * HEADS * HEAD_DIM, bias=False)
        self.out = nn.Linear(HEADS * HEAD_DIM, DIM, bias=False)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x: Float[Tensor, "b n d"], positions: Positions) -> Float[Tensor, "b n d"]:
        """One block further."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, HEAD_DIM)).permute(2, 0, 3, 1, 4)
        if self.turns_values:
            v = self.encoding.rotate(v, v, positions)[1]
        seen = attend(q, k, v, encoding=self.encoding, positions=positions, mask=self.mask)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.norm2(x))))


class StudyModel(nn.Module):
    """Reads prompts of glyphs. Weights that an encoding does not add are drawn alike for all variants of a seed.

    Args:
        variant: how it knows where its tokens are.
    """

    first: Encoding  # what embeds the tokens

    def __init__(self, variant: Variant):
        super().__init__()
        self.variant = variant
        self.patch = nn.Linear(SIDE * SIDE, DIM)
        self.word = nn.Embedding(WORDS, DIM)
        self.question = nn.Parameter(0.02 * torch.randn(DIM))  # tells the glyph of a question from that of a cell
        self.beside, self.norm = nn.Linear(DIM, len(DIRECTIONS) * DIM), nn.LayerNorm(DIM)
        self.blocks = nn.ModuleList(StudyBlock(variant, Encoding()) for _ in range(LAYERS))
        # Made last, so that what they draw leaves the other weights as they are. What learns and is no layer's own
        # embeds alone, and the blocks need none of it.
        self.first = Encoding() if variant.per_layer else variant.make()
        for block in self.blocks:
            assert isinstance(block, StudyBlock)
            if variant.per_layer:
                block.encoding = variant.make()
            elif not isinstance(self.first, nn.Module):
                block.encoding = self.first
        self.register_buffer("bitmaps", bitmaps(), persistent=False)

    def positions(self, form: Form) -> Positions:
        """Of a prompt, all axes of the layout, with its pictures numbered."""
        layout = self.variant.layout
        return replace(layout(form.spans), pictures=picture_numbers(form.spans, layout))

    def forward(
        self, batch: Batch, positions: Positions | None = None
    ) -> tuple[Float[Tensor, "b c 4 g"], Float[Tensor, "b q 4 g"]]:
        """Logits of what lies in each direction of each cell, and of each glyph that a question names.

        The first are read before the last block, so that what a question looks for is there when it looks.

        Args:
            batch: prompts of one form.
            positions: of their tokens, where they are others than those of the layout.
        """
        positions = self.positions(batch.form) if positions is None else positions
        if self.variant.axes is not None:
            positions = replace(positions, ids=positions.ids[list(self.variant.axes)])
        positions = positions.to(batch.patches.device)
        x, kinds = self._tokens(batch)
        x = self.first.embed(x, positions)
        for block in self.blocks[:-1]:
            x = block(x, positions)
        cells = self._read(x[:, kinds == _CELL])
        return cells, self._read(self.blocks[-1](x, positions)[:, kinds == _QUESTION])

    def _read(self, x: Tensor) -> Tensor:
        named = self.beside(self.norm(x)).unflatten(-1, (len(DIRECTIONS), DIM))
        return named @ self.patch(self.bitmaps).T / DIM**0.5

    def _tokens(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(B, N, D) the tokens, and (N,) the kind of each."""
        question = self.patch(self.bitmaps)[batch.asked] + self.question
        sources = {"word": self.word(batch.words), "cell": self.patch(batch.patches), "question": question}
        taken = dict.fromkeys(sources, 0)
        pieces, kinds = [], []
        for kind, count in batch.form.parts:
            pieces.append(sources[kind][:, taken[kind] : taken[kind] + count])
            taken[kind] += count
            kinds += [_KINDS.index(kind)] * count
        return torch.cat(pieces, dim=1), torch.tensor(kinds, device=batch.patches.device)


_KINDS = ("word", "cell", "question")
_CELL, _QUESTION = 1, 2
