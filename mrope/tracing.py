"""Positions inside a graph: from small tables that the host makes to the ids, without a branch or a host read.

`torch.compile` takes these functions without a break, and `torch.export` with any number of spans. Letters: R runs,
B rows, N slots, K new tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from mrope.layouts import GridLayout, SpanLayout
from mrope.layouts.grid import stamps_of
from mrope.positions import moved_together
from mrope.spans import Image, Span, Text, Video


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """A row cut into runs, each a text or one frame of a picture or clip.

    Args:
        begins: (R,) int64, the first slot of each run.
        origins: (R, 3) int64, the position of its first token on each axis.
        columns: (R,) int64, the merged columns of a frame; 0 for text.
    """

    begins: Int64[Tensor, " r"]
    origins: Int64[Tensor, "r 3"]
    columns: Int64[Tensor, " r"]

    def to(self, device: torch.device | str) -> Runs:
        """On `device`, in one copy."""
        return Runs(*moved_together([self.begins, self.origins, self.columns], device))


def runs_of(spans: Sequence[Span], layout: SpanLayout, start: int = 0) -> Runs:
    """The runs of a prompt, and where each begins: what depends on what came before, worked out on the host.

    Its cost grows with spans and frames, not with tokens.

    Args:
        spans: of text, pictures and clips, in the order of the prompt.
        layout: the rule; the grid layout alone has runs of this form.
        start: the position of the first token.

    Raises:
        TypeError: another layout.
        ValueError: a span does not fit the layout.

    >>> runs = runs_of([Text(2), Image((1, 4, 6))], GridLayout())
    >>> run_ids(runs.begins, runs.origins, runs.columns, 8)[2].tolist()
    [0, 1, 2, 3, 4, 2, 3, 4]
    """
    if not isinstance(layout, GridLayout):
        raise TypeError(
            f"layout is a {type(layout).__name__}; only the runs of a GridLayout can be computed in a graph"
        )
    runs: list[tuple[int, int, int, int]] = []  # first slot, time, corner, columns
    slot, position = 0, int(layout.start_of(start).next)
    for span in spans:
        if isinstance(span, Text):
            runs.append((slot, position, position, 0))
            slot, position = slot + span.length, position + span.length
            continue
        slot_after = slot + layout.tokens(span)
        assert isinstance(span, (Image, Video))  # the layout takes no other
        _, rows, cols = layout.grid(span)
        if isinstance(span, Video) and layout.time == "stamps":
            for stamp in stamps_of(span).tolist():
                runs += [(slot, position, position, 0)] if stamp else []
                slot, position = slot + stamp, position + stamp
                runs.append((slot, position, position, cols))
                slot, position = slot + rows * cols, position + max(rows, cols)
        else:
            times = layout.times(span).tolist()
            runs += [(slot + f * rows * cols, position + time, position, cols) for f, time in enumerate(times)]
            position += max(rows, cols) if layout.advance == "side" else max(times[-1] + 1, rows, cols)
        slot = slot_after
    begins, times, corners, columns = torch.from_numpy(np.array(runs, dtype=np.int64).reshape(-1, 4).T.copy())
    return Runs(begins, torch.stack((times, corners, corners), dim=1), columns)


def run_ids(
    begins: Int64[Tensor, " r"], origins: Int64[Tensor, "r 3"], columns: Int64[Tensor, " r"], length: int
) -> Int64[Tensor, "3 n"]:
    """The ids (3, N) of the `length` slots of a row of runs: see `Runs`; there must be no more slots than tokens."""
    slots = torch.arange(length, device=begins.device)
    run = torch.searchsorted(begins, slots, right=True) - 1
    local, cols = slots - begins[run], columns[run]
    text = cols == 0
    row = torch.where(text, local, local // cols.clamp(min=1))
    col = torch.where(text, local, local % cols.clamp(min=1))
    return origins[run].T + torch.stack((torch.where(text, local, 0), row, col))


def decode_ids(
    offsets: Int64[Tensor, " b"] | Float[Tensor, " b"], slots: Int64[Tensor, "b k"], axes: int = 3
) -> Int64[Tensor, "a b k"] | Float[Tensor, "a b k"]:
    """The ids (A, B, K) of generated text in these slots: one offset for each request (`BatchPositions.offsets`).

    They have the dtype of the offsets, float64 where ids are real-valued.

    Raises:
        ValueError: the slots have no row for each offset.

    >>> decode_ids(torch.tensor([-4, 0]), torch.tensor([[8, 9], [5, 6]]))[0].tolist()
    [[4, 5], [5, 6]]
    """
    if slots.dim() != 2 or len(slots) != len(offsets):
        raise ValueError(f"slots have shape {tuple(slots.shape)}; expected ({len(offsets)}, K), a row for each offset")
    ids = slots + offsets[:, None]
    return ids.repeat(axes, 1, 1)
