"""Batches whose tokens are about the same on all ranks. Letters: M items, W ranks, S steps, R rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from heapq import heappop, heappush
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, Integer

from mrope.checks import whole

from .packing import counts, pack_items

_WINDOW = 256
"""Rows whose items are packed together under a budget: enough to fill them, few enough to mix an epoch well."""
_FULL = 0.97
"""Of the budget: what rows hold less is packed once more, from all windows."""
_NEAR = 0.005
"""Of the mean of a rank: ranks that are nearer to one another are left as they are."""


class TokenBudgetSampler(torch.utils.data.Sampler[list[int]]):
    """A batch sampler for `DataLoader(batch_sampler=...)` that gives all ranks equally many tokens at each step.

    With `batch_size`, a step takes the next W x batch_size items of the shuffled order, and deals them so that each
    rank gets equally many items, and sums as near to one another as that allows. With `budget`, the items are packed
    into full rows of at most so many tokens, and a step gives each rank a row: sums are nearly equal and nearly the
    budget, and numbers of items differ.

    All ranks take the same number of steps, and each item comes once an epoch, on one rank. The last step is smaller
    where the items do not divide (under a budget, some rows are split in two): with `drop_last` it is left out. Order
    depends on seed, epoch, world and tokens alone. As in torch's `DistributedSampler`, `set_epoch` comes before each
    epoch; without it all epochs are the first.

    `state_dict` counts the batches that were taken from the sampler. A plain `DataLoader` with workers takes them ahead
    of the training loop; torchdata's `StatefulDataLoader` keeps the state of the batch that the loop got: take and load
    the loader's state there. It is the same on all ranks, and holds for the same items, world and settings alone.

    Args:
        tokens: (M,) the tokens of each item, at least 0, under a budget at least 1; the index of an item is its index
            here. Rows that `pack_items` made are items too: `TokenBudgetSampler(packed.tokens, batch_size=1)`.
        budget: the most tokens of a rank and step.
        batch_size: the items of a rank and step; expected instead of `budget`.
        rank: this rank, from 0. By default that of `torch.distributed` where it is initialised, else 0 of 1.
        world: W, the number of ranks; goes with `rank`.
        seed: of the order, at least 0.
        shuffle: False keeps the order of the items from step to step; under a budget, about.
        drop_last: whether items are left out that would make the last step smaller.

    Raises:
        TypeError, ValueError: what is asked makes no sense, or there are too few items or rows for all ranks.

    >>> tokens = [5, 1, 4, 2, 7, 1, 3, 4]
    >>> [list(TokenBudgetSampler(tokens, batch_size=2, rank=rank, world=2, shuffle=False)) for rank in (0, 1)]
    [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    """

    def __init__(
        self,
        tokens: Sequence[int] | Integer[np.ndarray, " m"],
        *,
        budget: int | None = None,
        batch_size: int | None = None,
        rank: int | None = None,
        world: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        for name, value in (("shuffle", shuffle), ("drop_last", drop_last)):
            if not isinstance(value, bool):
                raise TypeError(f"{name} is {value!r}; expected True or False")
        if (budget is None) == (batch_size is None):
            raise ValueError(f"budget is {budget} and batch_size is {batch_size}; expected one of them")
        self.budget = None if budget is None else whole("budget", budget, 1)
        self.batch_size = None if batch_size is None else whole("batch_size", batch_size, 1)
        self.tokens = counts("tokens", tokens, 0 if budget is None else 1)
        self.rank, self.world = _ranks(rank, world)
        self.seed, self.shuffle, self.drop_last = whole("seed", seed, 0), shuffle, drop_last
        self.epoch = 0
        self._digest = sha256(self.tokens.astype("<i8").tobytes()).hexdigest()
        self._taken = self._resume = 0
        self._rows: tuple[int, np.ndarray, np.ndarray] | None = None
        if budget is not None and len(self.tokens) and self.tokens.max() > budget:
            longest = int(self.tokens.argmax())
            raise ValueError(f"tokens[{longest}] is {self.tokens[longest]}; expected at most the budget, {budget}")
        least = self.world * (self.batch_size or 1) if drop_last else self.world
        if len(self.tokens) < least:
            raise ValueError(f"tokens are those of {len(self.tokens)} items; expected at least {least}, for a step")
        if self.batch_size == 1 and len(self.tokens) % self.world and not drop_last:
            raise ValueError(
                f"{len(self.tokens)} items leave some of {self.world} ranks without one at the last step; expected a "
                "larger batch_size, or drop_last=True"
            )
        if budget is not None:
            self._packed()  # which refuses rows that the ranks cannot share

    def __len__(self) -> int:
        """S, the steps of this epoch; under a budget, epochs may differ."""
        return len(self._bounds()) - 1 if self.budget is None else (len(self._packed()[1]) - 1) // self.world

    def __iter__(self) -> Iterator[list[int]]:
        """The batches of this rank, from where a state that was loaded stopped, else from the first."""
        first, self._resume = self._resume, 0
        self._taken = first
        return self._batches(first)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, from 0; where a state of this same epoch was loaded, the epoch goes on."""
        if whole("epoch", epoch, 0) != self.epoch:
            self.epoch, self._taken, self._resume = epoch, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """The epoch, the steps taken from it, and what the order depends on; as JSON can have it."""
        return {"epoch": self.epoch, "step": self._taken, **self._settings()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` stopped.

        Raises:
            TypeError: it is no dict.
            ValueError: it is no state of a sampler with these items, world and settings.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"state_dict is {state_dict!r:.80}; expected what state_dict of a TokenBudgetSampler gave")
        settings = self._settings()
        if missing := [name for name in ("epoch", "step", *settings) if name not in state_dict]:
            raise ValueError(f"the state has no {missing[0]}; expected what state_dict of a TokenBudgetSampler gave")
        for name, value in settings.items():
            if state_dict[name] != value:
                raise ValueError(
                    f"the state is of {name} {state_dict[name]}, not {value}; expected the sampler that it was taken "
                    "from: an epoch that was begun is finished with the same items, ranks and settings"
                )
        step = whole("step of the state", state_dict["step"], 0)
        before, self.epoch = self.epoch, whole("epoch of the state", state_dict["epoch"], 0)
        if step > (steps := len(self)):
            self.epoch = before
            raise ValueError(f"step of the state is {step}; expected at most {steps}, the steps of the epoch")
        self._taken = self._resume = step

    def _settings(self) -> dict[str, Any]:
        names = ("budget", "batch_size", "world", "seed", "shuffle", "drop_last")
        return {**{name: getattr(self, name) for name in names}, "tokens": self._digest}

    def _batches(self, first: int) -> Iterator[list[int]]:
        if self.budget is None:
            order, bounds = self._order(), self._bounds()
            for step in range(first, len(bounds) - 1):
                items = order[bounds[step] : bounds[step + 1]]
                mine = items[_dealt(self.tokens[items], self.world) == self.rank]
                self._taken = step + 1
                yield mine.tolist()
            return
        items, bounds = self._packed()
        for step, row in enumerate(range(first * self.world + self.rank, len(bounds) - 1, self.world), first):
            self._taken = step + 1
            yield items[bounds[row] : bounds[row + 1]].tolist()

    def _order(self) -> Int64[np.ndarray, " m"]:
        if not self.shuffle:
            return np.arange(len(self.tokens))
        return _raw(len(self.tokens), self.seed, self.epoch).argsort(kind="stable")

    def _bounds(self) -> Int64[np.ndarray, " s1"]:
        """Where each step begins in the order, and where the last ends."""
        items, size = len(self.tokens), self.world * (self.batch_size or 1)
        if self.drop_last:
            return np.arange(0, items + 1, size)
        bounds = np.append(np.arange(0, items, size), items)
        if len(bounds) > 2:
            bounds[-2] = min(bounds[-2], items - self.world)  # no rank goes without an item
        return bounds

    def _packed(self) -> tuple[Int64[np.ndarray, " m"], Int64[np.ndarray, " r1"]]:
        """The items of this epoch, and where each row begins among them; row s * W + r is that of rank r at step s."""
        if self._rows is None or self._rows[0] != self.epoch:
            self._rows = self.epoch, *self._pack()
        return self._rows[1:]

    def _pack(self) -> tuple[np.ndarray, np.ndarray]:
        order, capacity = self._order(), self.budget or 1
        ends = self.tokens[order].cumsum()
        windows = max(1, round(int(ends[-1]) / (_WINDOW * capacity)))
        cuts = ends.searchsorted(ends[-1] * np.arange(1, windows) // windows)
        rows = [row for window in np.split(order, cuts) for row in self._rows_of(window)]
        totals = self._totals(rows)
        poor = totals < _FULL * capacity  # the last rows of a window: together they fill some more
        if windows > 1 and poor.any():
            left = np.concatenate([row for row, again in zip(rows, poor, strict=True) if again])
            rows = [row for row, again in zip(rows, poor, strict=True) if not again] + self._rows_of(left)
        if not self.drop_last:
            rows = self._split(rows)
        # Rows of one step are about equally full; what is left over are the emptiest.
        fullest = (-self._totals(rows)).argsort(kind="stable")
        fullest = fullest[: len(rows) // self.world * self.world].reshape(-1, self.world)
        if not len(fullest):
            raise ValueError(
                f"budget is {capacity} and drop_last True, and the number of rows is {len(rows)}; expected one for "
                f"each of {self.world} ranks: a smaller budget, or drop_last=False"
            )
        self._even_out(rows, fullest[-1].tolist())
        if self.shuffle:
            steps = _raw(len(fullest), self.seed, self.epoch, 1).argsort(kind="stable")
        else:
            steps = np.array([min(rows[row].min() for row in step) for step in fullest]).argsort()
        ordered = [rows[row] for row in fullest[steps].flatten()]
        return np.concatenate(ordered), np.append(0, np.cumsum([len(row) for row in ordered]))

    def _rows_of(self, items: np.ndarray) -> list[np.ndarray]:
        """These items, of which there are some, in rows."""
        packed = pack_items(self.tokens[items], self.budget or 1)
        return np.split(items[packed.items], packed.bounds[1:-1])

    def _totals(self, rows: list[np.ndarray]) -> Int64[np.ndarray, " r"]:
        """The tokens of each row."""
        return np.array([self.tokens[row].sum() for row in rows])

    def _even_out(self, rows: list[np.ndarray], last: list[int]) -> None:
        """Deal the items of the emptiest step anew, where that leaves no rank above the budget."""
        items = np.concatenate([rows[row] for row in last])
        ranks = _dealt(self.tokens[items], self.world)
        dealt = [items[ranks == rank] for rank in range(self.world)]
        if self._totals(dealt).max() <= (self.budget or 1):
            for row, mine in zip(last, dealt, strict=True):
                rows[row] = mine

    def _split(self, rows: list[np.ndarray]) -> list[np.ndarray]:
        """As many rows as all ranks can share: the emptiest with more than one item are split in two."""
        while missing := -len(rows) % self.world:
            emptiest = self._totals(rows).argsort(kind="stable").tolist()
            halved = [row for row in emptiest if len(rows[row]) > 1][:missing]
            if not halved:
                raise ValueError(
                    f"budget {self.budget} makes {len(rows)} rows of one item each, which {self.world} ranks cannot "
                    "share; expected a larger budget, or drop_last=True"
                )
            for row in halved:
                items = rows[row]
                half = _dealt(self.tokens[items], 2) == 0
                rows[row] = items[half]
                rows.append(items[~half])
        return rows


def _ranks(rank: int | None, world: int | None) -> tuple[int, int]:
    """This rank, and how many there are."""
    if rank is None and world is None:
        group = torch.distributed
        if group.is_available() and group.is_initialized():
            return group.get_rank(), group.get_world_size()
        return 0, 1
    if rank is None or world is None:
        raise ValueError(f"rank is {rank} and world is {world}; expected both or neither")
    if whole("rank", rank, 0) >= whole("world", world, 1):
        raise ValueError(f"rank is {rank}; expected 0 to {world - 1}")
    return rank, world


def _raw(count: int, *seed: int) -> np.ndarray:
    """Random numbers, which are the same in all releases of NumPy; those of its distributions may change."""
    return np.random.PCG64(seed).random_raw(count)


def _dealt(tokens: np.ndarray, world: int) -> Int64[np.ndarray, " n"]:
    """The rank of each item: equally many for each, or one more for the first ranks, with sums that are nearly equal.

    The largest first, each goes to the rank that has least and takes more; then the rank that has most and the one
    that has least swap two items, as long as that brings them together.
    """
    ranks = np.zeros(len(tokens), np.int64)
    if world == 1:
        return ranks
    room = [len(tokens) // world + (rank < len(tokens) % world) for rank in range(world)]
    waiting = [(0, rank) for rank in range(world)]
    for item in (-tokens).argsort(kind="stable").tolist():
        total, rank = heappop(waiting)
        ranks[item] = rank
        room[rank] -= 1
        if room[rank]:
            heappush(waiting, (total + int(tokens[item]), rank))
    sums = np.zeros(world, np.int64)
    np.add.at(sums, ranks, tokens)
    while True:
        most, least = int(sums.argmax()), int(sums.argmin())
        gap = sums[most] - sums[least]
        if gap <= _NEAR * sums.mean():
            return ranks
        give, take = np.flatnonzero(ranks == most), np.flatnonzero(ranks == least)
        give = give[tokens[give].argsort(kind="stable")]
        # For each that the poorer has, the two of the richer that are next to half the gap above it.
        above = tokens[give].searchsorted(tokens[take] + gap // 2)
        near = give[np.stack((above - 1, above)).clip(0, len(give) - 1)]
        left = np.abs(gap - 2 * (tokens[near] - tokens[take]))
        side, place = divmod(int(left.argmin()), len(take))
        if left[side, place] >= gap:
            return ranks
        one, other = near[side, place], take[place]
        ranks[one], ranks[other] = least, most
        moved = tokens[one] - tokens[other]
        sums[most] -= moved
        sums[least] += moved
