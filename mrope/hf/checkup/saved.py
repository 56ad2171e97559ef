"""A batch that was saved before it went into a model. Letters: A axes, B rows, N tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mrope.families import Family
from mrope.hf.checkup.compare import attempt
from mrope.hf.checkup.subject import Subject
from mrope.hf.reading import layout_of, read_spans
from mrope.spans import Span

_BOUNDS = ("cu_seq_lens_q", "cu_seqlens")


@dataclass(eq=False)
class Batch:
    """A saved batch.

    Args:
        subject: whose batch it is.
        inputs: by name, as the model takes them; beside them, if wanted, `image_sizes` (P, 2), height and width of each
            picture before anything resized it, and `boxes` (n, 4), the corners that the text of the prompt states.
    """

    subject: Subject
    inputs: Mapping[str, Any]

    @cached_property
    def spans(self) -> list[list[Span]]:
        """Of each row."""
        return read_spans(self.inputs, self.subject.config)

    @cached_property
    def mask(self) -> Tensor:
        """(B, N) bool, where there are tokens."""
        tokens, mask = torch.as_tensor(self.inputs["input_ids"]), self.inputs.get("attention_mask")
        return torch.ones_like(tokens, dtype=torch.bool) if mask is None else torch.as_tensor(mask) != 0

    @property
    def bounds(self) -> list[int] | None:
        """Where documents begin and end, if the batch says so."""
        found = next((self.inputs[name] for name in _BOUNDS if self.inputs.get(name) is not None), None)
        return None if found is None else torch.as_tensor(found).flatten().tolist()

    @cached_property
    def ids(self) -> Tensor | None:
        """`position_ids` as (A, B, N), (A + 1, B, N) or (1, B, N)."""
        ids = self.inputs.get("position_ids")
        if ids is None:
            return None
        ids = torch.as_tensor(ids)
        return ids[None] if ids.dim() == 2 else ids

    def starts(self, row: int) -> list[int]:
        """The tokens of a row, counted without padding, at which its ids begin again."""
        assert self.ids is not None
        kept = self.ids[:, row, self.mask[row]]
        first = kept[0] if len(kept) == self.axes + 1 else kept.amax(0)
        return [place for place in (first == 0).nonzero().flatten().tolist() if place > 0]

    @cached_property
    def family(self) -> Family:
        """The record of the family, with the sizes and limits that the checkpoint states where they can be read."""
        subject = self.subject
        return attempt(lambda: Family.from_config(subject.folder or subject.config))[0] or subject.family

    @property
    def axes(self) -> int:
        """Rows of ids that the model's layout has, the text row left out."""
        return layout_of(self.subject.config).axes
