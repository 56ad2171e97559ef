"""The reader that ships, asked by the structured form of a sample.

Letters: N vision tokens.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch

from mrope.data import GLYPHS, RELATIONS, Clip, Sample
from mrope.positions import Positions
from mrope.probes.reading import Move
from mrope.probes.spatial.reply import Reply
from mrope.probes.spatial.respondents.messages import failed
from mrope.reader import FAMILY, PROMPT, WEIGHTS, Reader
from mrope.vision import plan


def _stay(positions: Positions) -> Positions:
    return positions


class ReaderRespondent:
    """The shipped reader, or another `mrope.reader.Reader`: it takes `ask`, and no words.

    Args:
        reader: None loads the one that ships.
        device: for that one: "auto", "cpu" or "cuda".
        move: changes the positions before the model sees them, such as `mrope.probes.swap_axes`; what is wrong on
            purpose must score worse.
        name: what reports call it; by default "reader", and the name of `move` if there is one.
    """

    def __init__(
        self, reader: Reader | None = None, *, device: str = "auto", move: Move | None = None, name: str | None = None
    ) -> None:
        from mrope.devices import choose_device

        self.reader = Reader.load(device=choose_device(device)) if reader is None else reader
        self.move = _stay if move is None else move
        moved = "" if move is None else getattr(move, "__name__", "moved")
        self.name = name or ", ".join(filter(None, ("reader", moved)))
        facts = {"family": FAMILY.name, "device": self.reader.device.type, "dtype": "float32"}
        facts["checkpoint"] = WEIGHTS.name if reader is None else "given by the caller"
        self.facts: Mapping[str, str] = facts | ({"positions": moved} if moved else {})

    def refuses(self, sample: Sample) -> str:
        """Why the reader cannot be asked: it takes one picture of a glyph grid, a relation and a cell."""
        if sample.ask is None:
            return "the reader takes no words, and the sample has no `ask`"
        if len(sample.pictures) != 1 or isinstance(sample.pictures[0], Clip):
            return "the reader takes one picture"
        if unknown := [choice for choice in sample.choices if len(choice) != 1 or choice not in GLYPHS]:
            return f"the reader knows the glyphs {GLYPHS}, and a choice is {unknown[0]!r}"
        try:
            relation, (row, col) = sample.ask["relation"], sample.ask["cell"]
            down, right = RELATIONS[relation]
        except (KeyError, TypeError, ValueError):
            known = ", ".join(RELATIONS)
            return f'`ask` is {dict(sample.ask)}; expected {{"relation": one of {known}, "cell": [row, column]}}'
        try:
            planned = plan(sample.pictures[0], FAMILY)
        except ValueError as error:
            return str(error)
        if sample.max_tokens is not None and planned.tokens > sample.max_tokens:
            return (
                f"the reader sees a cell as a token, {planned.tokens} of them, and the sample wants {sample.max_tokens}"
            )
        rows, cols = (side // FAMILY.merge for side in planned.grid[1:])
        cells = ((row, col), (row + down, col + right))
        if not all(0 <= r < rows and 0 <= c < cols for r, c in cells):
            return f"{relation!r} of ({row}, {col}) is outside of the {rows} rows x {cols} columns that the reader sees"
        return ""

    def answer(self, samples: Sequence[Sample]) -> Iterator[Reply]:
        """One reply for each sample, in order: a logit for each choice, or the likeliest glyph where there are none."""
        for _, group in groupby(samples, key=lambda sample: [id(picture) for picture in sample.pictures]):
            yield from self._about_one(list(group))

    def _about_one(self, samples: list[Sample]) -> list[Reply]:
        """Replies to questions about the same picture, in one forward."""
        refused = [self.refuses(sample) for sample in samples]
        asked = [sample for sample, why in zip(samples, refused, strict=True) if not why]
        if asked:
            start = time.perf_counter()
            try:
                logits = self._logits(asked)
            except Exception as error:
                logits = [failed(error)] * len(asked)
            seconds = (time.perf_counter() - start) / len(asked)
            answers = iter(_reply(sample, row, seconds) for sample, row in zip(asked, logits, strict=True))
        return [Reply(failure=why) if why else next(answers) for why in refused]

    @torch.no_grad()
    def _logits(self, samples: Sequence[Sample]) -> list[list[float]]:
        """For each sample a logit for each glyph."""
        reader = self.reader
        patches = FAMILY.patchify(samples[0].pictures[0])
        cols = patches.plans[0].grid[2] // FAMILY.merge
        names = list(RELATIONS)
        cells = torch.tensor([[row * cols + col for row, col in map(_cell, samples)]])
        relations = torch.tensor([[names.index(_ask(sample)["relation"]) for sample in samples]])
        ids = self.move(reader.positions(len(PROMPT), patches.plans[0].grid)).ids
        inputs = (patches.values, torch.tensor(PROMPT), ids, cells, relations)
        return reader(*(each.to(reader.device) for each in inputs))[0, -len(samples) :].tolist()


def _ask(sample: Sample) -> Mapping[str, Any]:
    assert sample.ask is not None
    return sample.ask


def _cell(sample: Sample) -> tuple[int, int]:
    row, col = _ask(sample)["cell"]
    return int(row), int(col)


def _reply(sample: Sample, logits: list[float] | Reply, seconds: float) -> Reply:
    if isinstance(logits, Reply):
        return logits
    scores = dict(zip(GLYPHS, logits, strict=True))
    if not sample.choices:
        return Reply(max(scores, key=lambda glyph: scores[glyph]), seconds=seconds)
    return Reply(scores={choice: scores[choice] for choice in sample.choices}, seconds=seconds)
