"""The ids of a whole batch of a grid layout at once, without an object a span: what training loops want.

Letters: B rows, N slots, K kept tokens of all rows, R runs of one kind (text, a picture, a frame).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mrope.hf.batch import IMAGE, TEXT, VIDEO, grids_of
from mrope.layouts import GridLayout
from mrope.layouts.grid import write_still

_LARGE = 150  # tokens a run, from which on it is faster to write run by run


@dataclass(frozen=True, slots=True, eq=False)
class _Runs:
    """Runs in the order of the batch: their first token among the kept ones, kind, tokens, and positions taken."""

    begins: np.ndarray
    kinds: np.ndarray
    lengths: np.ndarray
    rows: np.ndarray


def grid_ids(kinds: np.ndarray, mask: np.ndarray, layout: GridLayout, inputs: Mapping[str, Any]) -> np.ndarray | None:
    """The ids (3, B, N) of a batch where each run of placeholders is one picture or frame; None where one is not.

    What it returns None for goes through spans, which read runs of several pictures and say what does not fit.

    Args:
        kinds: (B, N), 0 text, 1 image, 2 video.
        mask: (B, N) bool, True where there is a token.
        layout: the rule.
        inputs: the grids and seconds of the batch.
    """
    runs = _runs(kinds, mask)
    images = np.array(grids_of("image_grid_thw", inputs.get("image_grid_thw")), dtype=np.int64).reshape(-1, 3)
    videos = np.array(grids_of("video_grid_thw", inputs.get("video_grid_thw")), dtype=np.int64).reshape(-1, 3)
    seconds = inputs.get("second_per_grid_ts")
    if layout.time == "stamps":
        videos = videos.repeat(videos[:, 0], axis=0)
        videos[:, 0] = 1
    elif len(videos) and (layout.time == "seconds" or layout.temporal_merge > 1):
        return None
    if (seconds is not None and not len(videos)) or (runs.kinds > VIDEO).any() or (runs.kinds < TEXT).any():
        return None
    # (T, H, W) of each run; text is a column of its tokens
    grids = np.stack((np.ones_like(runs.lengths), runs.lengths, np.ones_like(runs.lengths)), axis=1)
    for kind, given in ((IMAGE, images), (VIDEO, videos)):
        of_kind = runs.kinds == kind
        if of_kind.sum() != len(given) or (given < 1).any() or (given[:, 1:] % layout.merge).any():
            return None
        grids[of_kind] = given // (1, layout.merge, layout.merge)
    if (images[:, 0] != 1).any() or (grids.prod(axis=1) != runs.lengths).any():
        return None
    takes = grids[:, 1:].max(axis=1)
    if layout.advance == "largest":
        takes = np.maximum(takes, grids[:, 0])
    return _placed(runs, grids, takes, mask)


def _runs(kinds: np.ndarray, mask: np.ndarray) -> _Runs:
    kept, counts = kinds.reshape(-1) if mask.all() else kinds[mask], mask.sum(axis=1)
    edges = np.ones(len(kept), dtype=bool)
    edges[1:] = kept[1:] != kept[:-1]
    starts = np.cumsum(counts) - counts
    edges[starts[counts > 0]] = True
    begins = np.flatnonzero(edges)
    lengths = np.diff(begins, append=len(kept))
    rows = np.searchsorted(starts, begins, side="right") - 1
    return _Runs(begins, kept[begins], lengths, rows)


def _placed(runs: _Runs, grids: np.ndarray, takes: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """(3, B, N) the ids, each row from 0; 0 in padding."""
    placed = np.zeros((3, *mask.shape), dtype=np.int64)
    if (
        (grids[:, 0] == 1).all()
        and (takes == grids[:, 1:].max(axis=1)).all()
        and len(runs.lengths) * _LARGE < mask.size
    ):
        sizes = np.where(runs.kinds[:, None] == TEXT, (1, 0), 1) * grids[:, 1:]
        bounds = np.searchsorted(runs.rows, np.arange(len(mask) + 1))
        for row, kept in enumerate(mask):
            own = [(rows, cols) for rows, cols in sizes[bounds[row] : bounds[row + 1]].tolist()]
            if kept.all():
                write_still(placed[:, row], own, 0)
            else:
                ids = np.empty((3, int(kept.sum())), dtype=np.int64)
                write_still(ids, own, 0)
                placed[:, row, kept] = ids
        return placed
    ends = takes.cumsum()
    first = np.searchsorted(runs.rows, runs.rows)  # the first run of each run's row
    origins = ends - takes - (ends - takes)[first]

    def each(values: np.ndarray) -> np.ndarray:
        """(K,) int32, which divides faster and counts as far as spans do: the value of each token's run."""
        return values.astype(np.int32).repeat(runs.lengths)

    local = np.arange(runs.lengths.sum(), dtype=np.int32) - each(runs.begins)
    diagonal = local * each(runs.kinds == TEXT)
    origin = each(origins)
    ids = np.empty((3, len(local)), dtype=np.int64)
    np.add(origin, diagonal, out=ids[0])
    if (grids[:, 0] > 1).any():
        cells = each(grids[:, 1] * grids[:, 2])
        step = local // cells
        local -= step * cells
        ids[0] += step
    cols = each(grids[:, 2])
    row = local // cols
    np.add(origin, row, out=ids[1])
    np.add(origin, local - row * cols + diagonal, out=ids[2])
    if mask.all():
        return ids.reshape(placed.shape)
    placed[:, mask] = ids
    return placed
