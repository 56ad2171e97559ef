"""Whether tokens follow those before them: the next slot of the same document, or the first one of a later document.

Letters: B rows, N tokens.
"""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn.functional import pad

from mrope.attention.masks import Tokens
from mrope.batches import BatchPositions
from mrope.encoding import Where
from mrope.shards import PADDING


def on_host(tokens: Tokens, positions: Where | Tokens) -> tuple[Tensor, Tensor] | None:
    """Segments and slots (B, N) where the host can read them without waiting; None where it cannot, or is compiling.

    Args:
        tokens: those of `positions`.
        positions: a batch keeps its rows on the CPU, wherever it lies itself.
    """
    if torch.compiler.is_compiling():
        return None
    segments, slots = tokens.segments, tokens.slots
    if segments.device.type != "cpu" and isinstance(positions, BatchPositions):
        segments, slots = (torch.stack([getattr(row, name) for row in positions.rows]) for name in ("segments", "text"))
        segments, slots = (each.expand(len(tokens.segments), -1) for each in (segments, slots))
    return (segments, slots) if segments.device.type == "cpu" else None


def last_tokens(
    segments: Int64[Tensor, "b n"], slots: Int64[Tensor, "b n"], before: Int64[Tensor, "b 2"] | None = None
) -> Int64[Tensor, "b 2"]:
    """(B, 2): document and slot of the last token of each row; where there is none that of `before`, or -1 and -1."""
    start = segments.new_full((len(segments), 1, 2), PADDING) if before is None else before[:, None]
    every = torch.cat((start, torch.stack((segments, slots), dim=-1)), dim=1)
    count = torch.arange(1, segments.shape[1] + 1, device=segments.device)
    last = pad((segments != PADDING) * count, (1, 0)).amax(dim=1)
    return every[torch.arange(len(every), device=every.device), last]


def check_follow(told: tuple[Tensor, Tensor], before: Int64[Tensor, "b 2"]) -> None:
    """Refuse tokens of which one came before, or one is left out.

    Args:
        told: segments and slots of the new ones; see `on_host`.
        before: document and slot of the last token of each row; see `last_tokens`.
    """
    padded = told[0] == PADDING
    order = padded.int().argsort(dim=1, stable=True)  # the tokens of each row behind one another, padding behind them
    segments, slots = (
        torch.cat((start[:, None], each.gather(1, order)), dim=1)
        for start, each in zip(before.unbind(1), told, strict=True)
    )
    goes_on = (segments.diff() == 0) & (slots.diff() == 1)
    begins = (segments.diff() > 0) & (slots[:, 1:] == 0)
    wrong = ~(goes_on | begins | padded.gather(1, order))
    if wrong.any():
        row, n = wrong.nonzero()[0].tolist()
        document, slot = segments[row, n + 1].item(), slots[row, n + 1].item()
        held = f"slot {slots[row, n]} of document {segments[row, n]}" if segments[row, n] != PADDING else "nothing"
        raise ValueError(
            f"positions of row {row} have slot {slot} of document {document} behind {held}; expected slots that "
            "follow what is held, each token once and none left out, such as those of positions.decode(k, skip)"
        )
