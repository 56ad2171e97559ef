"""How small a budget of tokens may be before the text of a page cannot be read any more.

Letters: h x w pixels of a page; R runs of ink in its rows, G connected pieces of ink, L letters in lines among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Bool, Float, Int64

from mrope.checks import Number, one_of, positive
from mrope.families import Family

from ..loading.load import load
from ..loading.pictures import Picture
from .fitting import check_family
from .plan import Plan
from .planning import plan

Task = Literal["ocr", "balanced", "grounding"]
"""What the page is for: to read every letter, to understand it, or to find places on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a task needs: `x_height` in patches, and at least so many `tokens` of a page that has them."""

    x_height: Number
    tokens: int = 1


NEEDS: dict[Task, Need] = {
    "ocr": Need(x_height=0.46),
    "balanced": Need(x_height=0.36, tokens=256),
    "grounding": Need(x_height=0.36, tokens=1024),
}
"""What each task needs.

The heights are those of a page of serif text (732 words, x-height 0.48 em) that was shrunk step by step and read by
Tesseract 5.3, with patches of 14 pixels: down to 13.4 pixels an em, an x-height of 0.46 patches, no letter is wrong;
at 10.6 pixels, 0.36 patches, 0.5 % are; at 8.2 pixels, 0.28 patches, 10 %. The least tokens are what model teams
recommend: 256 to 1280 a picture in general, 1024 to 2048 where boxes are asked for. No vision-language model was asked.
"""


LARGEST_PATCH = 16
"""Pixels: a patch above it counts as one of that size here, since its text need not be larger to be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The smallest budget at which a page stays legible.

    Args:
        task: for which.
        glyphs: letters whose height was measured; 0 where the height was given.
        x_height: of the text in pixels of the page: the height of an x, without ascenders and descenders.
        needed: x-height in patches that the task needs.
        reached: x-height in patches under `plan`, in the direction that is shrunk more.
        max_tokens: the budget.
        plan: of the page at that budget.
        warning: what stands in the way, in one line; None where nothing does.
    """

    task: Task
    glyphs: int
    x_height: Number
    needed: Number
    reached: Number
    max_tokens: int
    plan: Plan
    warning: str | None


def advise(
    page: Picture,
    family: Family,
    task: Task = "ocr",
    *,
    x_height: Number | None = None,
    share: Number = 0.95,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
) -> Advice:
    """The smallest `max_tokens` at which the text of a page stays legible for a task; see `NEEDS`.

    Args:
        page: a scan, a screenshot, a page of a PDF: whatever `load` takes.
        task: "ocr", "balanced" or "grounding".
        x_height: height of an x in pixels of the page, where it is known; by default it is measured.
        share: of the letters that must stay legible, from the largest on; the rest may be small print.
        min_tokens: as in `plan`.
        max_tokens: the most that the advice may be, by default the family's own limit.

    Raises:
        OSError, TypeError: as `load`.
        ValueError: as `plan`; or no lines of text are found, and `x_height` is not given.

    >>> import mrope
    >>> advice = advise(np.zeros((1754, 1240), np.uint8), mrope.family("qwen2.5-vl"), x_height=10)
    >>> advice.max_tokens, round(advice.reached, 2), advice.warning
    (1190, 0.47, None)
    """
    one_of("task", task, get_args(Task))
    check_family(family)
    if not 0 < positive("share", share) <= 1:
        raise ValueError(f"share is {share}; expected a number above 0, at most 1")
    heights = np.array([]) if x_height is not None else x_heights(page)
    if x_height is None and not len(heights):
        raise ValueError("no lines of text were found on the page; give x_height, in pixels")
    measured = (
        float(np.quantile(heights, 1 - share, method="lower")) if x_height is None else positive("x_height", x_height)
    )
    need = NEEDS[task]
    full = plan(page, family, min_tokens=min_tokens, max_tokens=max_tokens)
    own = _in_force(family, max_tokens, full.tokens)
    unit = min(family.patch, LARGEST_PATCH)
    wanted = need.x_height * unit / measured
    least = min(need.tokens, full.tokens)
    limit = _smallest(full, family, min(wanted, _scale(full)), least, min_tokens, own)
    one = plan(page, family, min_tokens=min_tokens, max_tokens=limit) if limit is not None else full
    reached = _scale(one) * measured / unit
    return Advice(
        task=task,
        glyphs=len(heights),
        x_height=measured,
        needed=need.x_height,
        reached=reached,
        max_tokens=own if limit is None else limit,
        plan=one,
        warning=_warning(wanted, full, family, task, measured, min_tokens, own),
    )


def _in_force(family: Family, max_tokens: int | None, tokens: int) -> int:
    """The limit that a plan was made with; what it took where the rule has none."""
    if max_tokens is not None or family.image_tokens is None:
        return tokens if max_tokens is None else max_tokens
    return family.pixel_limits[1] // family.factor**2


def _scale(planned: Plan) -> float:
    """Of the side that is shrunk more, in the largest version of the page that the model sees."""
    sides = max(part.resized for part in planned.parts)
    return min(side / own for side, own in zip(sides, planned.original, strict=True))


def _warning(
    wanted: float, full: Plan, family: Family, task: Task, measured: float, min_tokens: int | None, own: int
) -> str | None:
    """What keeps `full`, the page at its limit of `own` tokens, from `wanted` times the size of the page."""
    kept = _scale(full)
    if kept >= wanted or (kept >= 0.95 and wanted <= 1.05):
        return None
    sides = max(-(-side // family.factor) for side in full.original)
    enough = max(own, full.tokens, sides**2)
    free = plan(full.original, family, min_tokens=min_tokens, max_tokens=enough)  # what the rule alone makes of it
    if _scale(free) < min(wanted, 0.95):
        remedy = "cut the page into pieces" if family.resize == "slices" else "scan or render it larger"
        return (
            f"the resize rule of {family.name} shrinks the page to {_scale(free):.2f} of its size whatever the limit, "
            f"and {task} needs {wanted:.2f}; {remedy}"
        )
    if wanted > 1.05:
        return (
            f"an x of the page is {measured:.3g} pixels high, {task} needs {wanted * measured:.3g}: no budget helps, "
            "scan or render it larger"
        )
    return (
        f"the limit of {own} tokens shrinks the page to {kept:.2f} of its size, and {task} needs {wanted:.2f}; raise "
        "max_tokens, or cut the page into pieces"
    )


def _smallest(full: Plan, family: Family, wanted: float, least: int, min_tokens: int | None, own: int) -> int | None:
    """The least limit under which the page has `wanted` of its size and `least` tokens; None where only `full` has."""

    def enough(limit: int) -> bool:
        one = plan(full.original, family, min_tokens=min_tokens, max_tokens=limit, conflict="skip")
        return one is not None and one.tokens >= least and _scale(one) >= wanted - 1e-9

    floor = 1 if family.image_tokens is None else family.image_tokens[0]
    # With the rule "two-sided" a page takes fewer tokens than the limit that it needs.
    low, high = (floor if min_tokens is None else min_tokens) - 1, own if family.resize == "two-sided" else full.tokens
    if high <= low or not enough(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def x_heights(page: Picture) -> Float[np.ndarray, " L"]:
    """The x-height in pixels of the line that each letter of a page stands in, one entry a letter.

    Ink is what differs from its surroundings, be it darker or lighter; pieces of ink are letters where several of like
    height stand on one line, close to each other, which specks and photographs seldom do.
    """
    gray = load(page).float().mean(0).numpy()
    surround, spread = _surroundings(gray)
    contrast = gray - surround
    strong = np.maximum(24, 0.8 * spread)
    pieces = [_pieces(ink) for ink in (contrast < -strong, contrast > strong)]
    found = [_lines(one) for one in pieces]
    common = int(len(found[1][1]) > len(found[0][1]))
    # Lines of the rarer kind inside letters of the other, or close to them, are the holes and gaps of these.
    height = np.zeros(gray.shape, dtype=np.int64)
    for top, left, bottom, right in pieces[common].T.tolist():
        reach = (bottom - top) // 3
        height[top:bottom, max(0, left - reach) : right + reach] = bottom - top
    holes, hole_heights = found[1 - common]
    around = height[tuple((holes[:2] + holes[2:]) // 2)]
    return np.concatenate([found[common][1], hole_heights[(around == 0) | (around > 4 * (holes[2] - holes[0]))]])


def _surroundings(gray: Float[np.ndarray, "h w"]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation around each pixel, in a window of about a twentieth of the page."""
    radius = int(np.clip(min(gray.shape) // 40, 8, 48))
    height, width = gray.shape
    padded = np.pad(gray.astype(np.float64), radius, mode="edge")
    size = 2 * radius + 1

    def mean(values: np.ndarray) -> np.ndarray:
        sums = np.pad(values, ((1, 0), (1, 0))).cumsum(0).cumsum(1)
        boxes = sums[size:, size:] - sums[:-size, size:] - sums[size:, :-size] + sums[:-size, :-size]
        return boxes[:height, :width] / size**2

    first = mean(padded)
    return first, np.sqrt(np.maximum(mean(padded**2) - first**2, 0))


def _pieces(ink: Bool[np.ndarray, "h w"]) -> Int64[np.ndarray, "4 G"]:
    """The boxes of the connected pieces of ink (corners count): top, left, bottom, right, ends excluded."""
    edges = np.diff(np.pad(ink, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    row, left = np.nonzero(edges == 1)
    _, right = np.nonzero(edges == -1)
    # Runs lie in order of rows, then cols; those of neighbouring rows touch where neither ends before the other begins.
    stride = ink.shape[1] + 2
    first = np.searchsorted(row * stride + right, (row - 1) * stride + left, "left")
    last = np.searchsorted(row * stride + left, (row - 1) * stride + right, "right")
    upper, lower = _pairs(first, last)
    label = _united(len(row), upper, lower)
    _, label = np.unique(label, return_inverse=True)
    count = int(label.max(initial=-1)) + 1
    begins, ends = np.full((2, count), max(ink.shape)), np.zeros((2, count), np.int64)
    for begin, end, value, size in ((begins[0], ends[0], row, 1), (begins[1], ends[1], left, right - left)):
        np.minimum.at(begin, label, value)
        np.maximum.at(end, label, value + size)
    return np.concatenate([begins, ends])


def _pairs(first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(j, i) for each i and each j in first[i]..last[i] - 1."""
    counts = np.maximum(last - first, 0)
    owner = np.repeat(np.arange(len(first)), counts)
    start = np.repeat(np.cumsum(counts) - counts, counts)
    return np.arange(len(owner)) - start + first[owner], owner


def _united(count: int, one: np.ndarray, other: np.ndarray) -> Int64[np.ndarray, " R"]:
    """For each of `count` things the smallest that pairs connect it with."""
    label = np.arange(count)
    while True:
        least = np.minimum(label[one], label[other])
        before = label.copy()
        np.minimum.at(label, label[one], least)
        np.minimum.at(label, label[other], least)
        while (label[label] != label).any():
            label = label[label]
        if (label == before).all():
            return label


def _lines(pieces: Int64[np.ndarray, "4 G"]) -> tuple[Int64[np.ndarray, "4 L"], Float[np.ndarray, " L"]]:
    """The pieces of ink that are letters of a line, and the x-height of its line for each."""
    height, width = pieces[2:] - pieces[:2]
    boxes = pieces[:, (height >= 4) & (width >= 2) & (width <= 3 * height) & (height <= 6 * width)]
    boxes = boxes[:, np.argsort(boxes[1], kind="stable")]
    top, left, bottom, right = boxes
    height = bottom - top
    # Each letter looks to its right for others of like height, within about the width of a letter and a space.
    reach = np.searchsorted(left, right + 0.9 * height, "right")
    right_one, left_one = _pairs(np.searchsorted(left, left, "right"), reach)
    high, low = np.maximum(height[left_one], height[right_one]), np.minimum(height[left_one], height[right_one])
    on_line = np.abs(bottom[left_one] - bottom[right_one]) <= np.maximum(1, 0.12 * high)
    alike = on_line & (high <= 1.8 * low)
    line = _united(len(height), left_one[alike], right_one[alike])
    kept = np.bincount(line, minlength=len(height))[line] >= 4
    x_height = np.zeros(len(height))
    for one in np.unique(line[kept]):
        x_height[line == one] = np.quantile(height[line == one], 0.4, method="lower")
    return boxes[:, kept], x_height[kept]
