"""One budget of LLM tokens for many pictures, and the pictures that cost most within given limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Int64

from mrope.checks import Number, one_of, positive, whole
from mrope.families import Family

from ..loading.files import is_file, naming
from ..loading.load import measure
from ..loading.pictures import Picture, check_kind, check_several, name_of
from .fitting import check_family, check_side, picture_limits
from .plan import Plan, Size
from .planning import plan, plan_sizes

Counted = Literal["tokens", "prompt"]
"""What a budget counts: the LLM tokens that show the pictures, or these with the newlines and markers around them."""
Dtype = Literal["float32", "bfloat16", "uint8"]

_BYTES = {"float32": 4, "bfloat16": 2, "uint8": 1}
_NEVER = 1 << 40
"""Tokens of a picture that does not fit: more than any budget."""


def plan_many(
    sources: Iterable[Picture | Size],
    family: Family,
    *,
    budget: int,
    floors: int | Sequence[int] | np.ndarray | None = None,
    priorities: Sequence[Number] | np.ndarray | None = None,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    count: Counted = "tokens",
) -> list[Plan]:
    """Plans of pictures that share one budget of tokens, such as those of one request.

    All pictures get the same limit, times their priority, as high as the budget allows; what a small picture does not
    need raises the limit of the others. The sum never exceeds the budget, and what is left of it is less than the next
    larger size of any picture would take: about one row or column of tokens.

    Args:
        sources: each (height, width) in pixels, or a picture of a kind that `load` takes; of files only the header is
            read. Clips have limits of another kind: plan them with `plan_video`, and take their tokens off the budget.
        budget: most LLM tokens of all pictures together.
        floors: least LLM tokens that the budget leaves to each picture, one number or one a picture; a picture that
            needs less at its own limit gets that. By default the least that the family's rule gives.
        priorities: by what factor each picture's limit is higher than the others', where the budget binds; 1 each by
            default.
        min_tokens: least LLM tokens of one picture, as in `plan`; the budget does not go below it.
        max_tokens: most LLM tokens of one picture, by default the family's.
        count: "tokens" or "prompt": whether newlines and markers around the pictures count too.

    Raises:
        OSError: a path cannot be opened.
        TypeError: one picture instead of several, or what is no picture, such as a clip.
        ValueError: the budget is below the floors; the message says what would do. A picture does not fit on its own.
            Or there are not as many floors or priorities as pictures.

    >>> import mrope
    >>> plans = plan_many([(3024, 4032), (3024, 4032), (200, 300)], mrope.family("qwen2.5-vl"), budget=2000)
    >>> [one.tokens for one in plans]
    [999, 910, 77]
    """
    one_of("count", count, get_args(Counted))
    budget = whole("budget", budget, 1)
    check_several("sources", sources)
    check_family(family)
    sources = list(sources)
    weights = np.array([positive(name, one) for name, one in _each("priorities", priorities, len(sources))])
    least = np.array([whole(name, one, 1) for name, one in _each("floors", floors, len(sources))])
    picture_limits(family, min_tokens, max_tokens)
    if not sources:
        return []
    sizes = np.array([_size(number, one) for number, one in enumerate(sources)])
    shared = _Shared(sizes, family, min_tokens, max_tokens, count)
    for misfit in np.flatnonzero(shared.needed == 0).tolist():  # which is refused in words of its own
        with naming(name_of(sources[misfit]) or f"picture {misfit}"):
            plan(tuple(sizes[misfit].tolist()), family, min_tokens=min_tokens, max_tokens=max_tokens)
    limits = shared.share(budget, least, weights / weights.max())
    return [
        plan(one, family, min_tokens=min_tokens, max_tokens=max_tokens if own else limit)
        for one, limit, own in zip(sources, limits.tolist(), shared.own(limits).tolist(), strict=True)
    ]


class _Shared:
    """Pictures, and what they cost at a limit each; from what a picture takes at its own limit on, it takes that."""

    def __init__(
        self, sizes: np.ndarray, family: Family, min_tokens: int | None, max_tokens: int | None, count: Counted
    ) -> None:
        self.sizes, self.family, self.min_tokens, self.count = sizes, family, min_tokens, count
        full = plan_sizes(sizes, family, min_tokens=min_tokens, max_tokens=max_tokens, conflict="skip")
        self.needed = full.tokens
        self.full = np.stack([full.tokens, full.prompt_tokens])
        self.bottom = 1 if family.image_tokens is None else family.image_tokens[0]
        self.bottom = self.bottom if min_tokens is None else min_tokens

    def own(self, limits: np.ndarray) -> np.ndarray:
        """Which pictures have the size of their own limit."""
        return limits >= self.needed

    def costs(self, limits: np.ndarray, among: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Tokens, and what the budget counts, of the pictures `among` at so many tokens each."""
        among = np.arange(len(self.sizes)) if among is None else among
        both = self.full[:, among]
        lower = limits < self.needed[among]
        for limit in np.unique(limits[lower]).tolist():
            here = np.flatnonzero(lower & (limits == limit))
            found = plan_sizes(
                self.sizes[among[here]], self.family, min_tokens=self.min_tokens, max_tokens=limit, conflict="skip"
            )
            both[:, here] = np.where(found.fits, np.stack([found.tokens, found.prompt_tokens]), _NEVER)
        return both[0], both[1 if self.count == "prompt" else 0]

    def _next(self, low: int, tokens: int, one: int) -> tuple[int, int]:
        """The lowest limit above `low` at which a picture has more than `tokens`, and what the budget counts there."""
        high = int(self.needed[one])
        while high - low > 1:
            middle = (low + high) // 2
            found, _ = self.costs(np.array([middle]), np.array([one]))
            low, high = (low, middle) if found[0] > tokens else (middle, high)
        return high, int(self.costs(np.array([high]), np.array([one]))[1][0])

    def floors(self, least: np.ndarray) -> np.ndarray:
        """The lowest limits at which each picture fits and has `least` tokens, or all that it needs."""
        least = np.minimum(least, self.needed)

        def short(limits: np.ndarray, among: np.ndarray) -> np.ndarray:
            tokens, _ = self.costs(limits[among], among)
            return (tokens < least[among]) | (tokens == _NEVER)

        low = np.minimum(np.maximum(least, self.bottom), self.needed)
        high = np.where(short(low, np.arange(len(low))), self.needed, low)
        while (open_ := np.flatnonzero(high - low > 1)).size:
            middle = (low + high) // 2
            above = short(middle, open_)
            low[open_[above]], high[open_[~above]] = middle[open_[above]], middle[open_[~above]]
        return high

    def share(self, budget: int, least: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """The limits of all pictures under one budget; `weights` are at most 1."""
        floors = self.floors(least)
        if (fewest := int(self.costs(floors)[1].sum())) > budget:
            raise ValueError(
                f"budget is {budget}, but the floors of {len(floors)} pictures take {fewest}; budget={fewest} would do"
            )

        def limits_at(level: float) -> np.ndarray:
            return np.maximum(floors, np.floor(weights * level).astype(np.int64))

        low, high = 0.0, float(self.needed.max() / weights.min())
        if self.costs(limits_at(high))[1].sum() <= budget:
            return limits_at(high)
        while high - low > 1:
            level = (low + high) / 2
            low, high = (level, high) if self.costs(limits_at(level))[1].sum() <= budget else (low, level)
        return self._spend(budget, limits_at(low), limits_at(high), weights)

    def _spend(self, budget: int, limits: np.ndarray, higher: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Give out what is left, those with least for their weight first: each its next level, then each all it can."""
        tokens, counted = self.costs(limits)
        rest = budget - int(counted.sum())
        order = np.argsort(tokens / weights, kind="stable")
        more, dearer = self.costs(higher)
        for one in order.tolist():
            if 0 <= dearer[one] - counted[one] <= rest:
                rest -= int(dearer[one] - counted[one])
                limits[one], tokens[one], counted[one] = higher[one], more[one], dearer[one]
        for one in order[~self.own(limits)[order]].tolist():
            while rest:
                high, cost = self._next(int(limits[one]), int(tokens[one]), one)
                if cost - counted[one] > rest or high == limits[one]:
                    break
                rest -= int(cost - counted[one])
                limits[one], counted[one] = high, cost
                tokens[one] = self.costs(limits[[one]], np.array([one]))[0][0]
        return limits


def _size(number: int, source: Any) -> Size:
    """The (height, width) of one picture."""
    if isinstance(source, tuple):
        if len(source) != 2:
            raise TypeError(
                f"picture {number} is {source}; expected (height, width): plan clips with plan_video, and take their "
                "tokens off the budget"
            )
        return check_side(f"height of picture {number}", source[0]), check_side(f"width of picture {number}", source[1])
    check_kind(source, f"picture {number}")
    with naming(None if is_file(source) else f"picture {number}"):
        return measure(source)[0]


def _each(name: str, given: Any, count: int) -> list[tuple[str, Any]]:
    """One value a picture, each with its name; 1 where none is given."""
    if given is None or isinstance(given, str) or not isinstance(given, (Sequence, np.ndarray)) or np.ndim(given) == 0:
        return [(name, 1 if given is None else given)] * count
    if len(given) != count:
        raise ValueError(f"{name} has {len(given)} values for {count} pictures; expected one each")
    return [(f"{name}[{number}]", one) for number, one in enumerate(given)]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstCase:
    """The pictures that cost most within the limits; all numbers are of all pictures together.

    Args:
        plan: of one of them; its `original` is the (height, width) to profile with.
        pictures: how many there are.
        tokens: LLM tokens that show them.
        prompt_tokens: the same with newlines and markers.
        patches: patches that the vision encoder sees.
        values_bytes: of `Patches.values`.
    """

    plan: Plan
    pictures: int
    tokens: int
    prompt_tokens: int
    patches: int
    values_bytes: int


def worst_case(
    family: Family,
    *,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    pictures: int = 1,
    count: Counted = "tokens",
    dtype: Dtype = "float32",
) -> WorstCase:
    """The size whose plan costs most within the limits, over all ratios: to profile memory with, before it is needed.

    A square is rarely the worst: under 4,200 tokens it gets 64 x 64 = 4,096 of them, and 84 x 50 gets all.

    Args:
        min_tokens: as in `plan`.
        max_tokens: as in `plan`; a family whose pictures have no limit of their own ("slices", "padded") needs it.
        pictures: how many such pictures come together.
        count: "tokens" or "prompt": what must be largest.
        dtype: of the values, as in `patchify`.

    Raises:
        ValueError: limits as in `plan`; or none, in a family that has none.

    With the resize rule "slices", which has no limit of its own for ratios, pictures up to 200 to 1 are searched, in
    steps of an eighth of a per cent, at the areas between which the number of slices changes; with the others it is
    exact.

    >>> import mrope
    >>> worst = worst_case(mrope.family("qwen2.5-vl"), max_tokens=4200, pictures=2)
    >>> worst.plan.original, worst.tokens, worst.values_bytes
    ((1680, 1960), 8400, 158054400)
    """
    one_of("count", count, get_args(Counted))
    one_of("dtype", dtype, get_args(Dtype))
    check_family(family)
    pictures = whole("pictures", pictures, 1)
    if family.image_tokens is None and max_tokens is None:
        raise ValueError(
            f"max_tokens is None, and pictures of {family.name} have no limit of their own; give max_tokens"
        )
    sizes = _candidates(family, max_tokens)
    found = plan_sizes(sizes, family, min_tokens=min_tokens, max_tokens=max_tokens, conflict="skip")
    costs = np.where(found.fits, found.prompt_tokens if count == "prompt" else found.tokens, 0)
    stretch, odd = np.abs(np.log(sizes[:, 0] / sizes[:, 1])), (sizes % family.factor).any(axis=1)
    best = int(np.lexsort((stretch, odd, -costs))[0])  # of several, the plainest
    if not costs[best]:
        raise ValueError(f"max_tokens is {max_tokens}; no picture of {family.name} fits it")
    one = plan((int(sizes[best, 0]), int(sizes[best, 1])), family, min_tokens=min_tokens, max_tokens=max_tokens)
    frames = 1 if dtype == "uint8" else family.temporal_patch
    return WorstCase(
        plan=one,
        pictures=pictures,
        tokens=pictures * one.tokens,
        prompt_tokens=pictures * (one.prompt_tokens or 0),
        patches=pictures * one.patches,
        values_bytes=pictures * one.patches * prod((3, frames, family.patch, family.patch, _BYTES[dtype])),
    )


def _candidates(family: Family, max_tokens: int | None) -> Int64[np.ndarray, "n 2"]:
    """Sizes, one of which costs most."""
    factor = family.factor
    if family.slices is not None:
        side, number = family.slices
        areas = side**2 * np.concatenate([np.arange(1, 10) / 10, np.arange(2, 2 * number + 3) / 2])
        roots = np.exp(np.arange(-np.log(200), np.log(200), 1 / 800) / 2)
        height, width = (np.maximum(1, np.rint(np.outer(np.sqrt(areas), each))).ravel() for each in (roots, 1 / roots))
        return np.unique(np.stack([height, width], axis=1).astype(np.int64), axis=0)
    if family.resize == "two-sided":  # whole ranges of sizes become one: half tokens tell them apart
        side = round(family.pixel_limits[1] ** 0.5)
        sides = np.arange(1, 4 * side // factor + 3) * (factor // 2)
        height, width = np.meshgrid(sides, sides, indexing="ij")
        return np.stack([height.ravel(), width.ravel()], axis=1)
    # A grid within the limit is what its own size gets; in pixels, a side may be half a token off, which counts
    # where only the ratio of the grid is too large.
    most = (family.image_tokens or (1, 1))[1] if max_tokens is None else whole("max_tokens", max_tokens, 1)
    rows = np.arange(1, most + 1)
    pairs = [
        np.stack([side, np.maximum(1, np.minimum(most // rows, side * 200 // factor + less)) * factor], axis=1)
        for side in (rows * factor, (2 * rows + 1) * factor // 2 - 1)
        for less in (0, 1)
    ]
    return np.concatenate([*pairs, *(pair[:, ::-1] for pair in pairs)])
