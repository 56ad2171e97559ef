"""What an exam showed, in sentences; every number in them comes from the exam."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mrope.probes.reading.exam import Exam, Kind, Shape, Twin
from mrope.probes.reading.grid import CHANCE, GridScore, effective_resolution
from mrope.probes.reading.study import DECISIVE

ENOUGH = 0.95
"""The accuracy from which a grid counts as read."""

TWINS = {"none": "the reader's recipe", "1-d": "1-D positions", "blind": "blind, shown another picture"}
"""How the readers of a study are called."""

_INSIDE: tuple[tuple[Kind, str], ...] = (
    ("trained", "Sizes of training, fonts it never saw"),
    ("unseen shape", "Shapes it never saw, inside that range"),
)


def percent(value: float) -> str:
    """A share as the report writes it.

    >>> percent(0.98765)
    '98.77 %'
    """
    return f"{100 * value:.2f} %"


def shape_words(shape: Shape) -> str:
    """A grid as the report writes it: rows x columns."""
    return f"{shape[0]} x {shape[1]}"


def right_of_asked(scores: Iterable[GridScore]) -> tuple[int, int]:
    """How many questions were answered right, and how many there were."""
    counts = [(int(score.correct.sum()), score.correct.numel()) for score in scores]
    return sum(right for right, _ in counts), sum(asked for _, asked in counts)


def by_kind(exam: Exam, kind: Kind) -> tuple[int, int]:
    """The same for all grids of one kind; (0, 0) if there were none."""
    return right_of_asked(score for each, score in exam.scores if each == kind)


def relations(scores: Sequence[GridScore]) -> tuple[float, float]:
    """Accuracy of "in", and the mean of the four neighbours, over several grids."""
    each = [score.by_relation() for score in scores]
    neighbours = [value for names in each for name, value in names.items() if name != "in"]
    return sum(names["in"] for names in each) / len(each), sum(neighbours) / max(1, len(neighbours))


def findings(exam: Exam, twins: Sequence[Twin]) -> list[tuple[str, str]]:
    """(a few words, a sentence or two) each."""
    found = []
    for kind, words in _INSIDE:
        right, asked = by_kind(exam, kind)
        if asked:
            guess = f"a guess among the glyphs gets {percent(CHANCE)}"
            found.append((words, f"{percent(right / asked)} of {asked:,} questions right; {guess}."))
    twice = [score for _, score in exam.scores if score.cells == DECISIVE[0] * DECISIVE[1]]
    if twice:
        each = ", ".join(f"{shape_words(score.shape)}: {percent(score.accuracy)}" for score in twice)
        found.append(("Twice the cells of the largest trained grid", f"{each}."))
    found.append(("Effective resolution", _effective([score for _, score in exam.scores])))
    for shift in exam.shifts:
        found.append(
            (
                f"All positions + {shift.delta:,}",
                f"{shift.changed:,} of {shift.asked:,} answers changed; "
                f"the largest change of a logit is {shift.largest:.1e}.",
            )
        )
    before, after = (relations([getattr(swap, name) for swap in exam.swaps]) for name in ("before", "after"))
    found.append(
        (
            "h and w swapped at test time",
            f"what stands in a cell is read at {percent(after[0])} (before: {percent(before[0])}), "
            f"its neighbours at {percent(after[1])} (before: {percent(before[1])}).",
        )
    )
    return found + [_twin(twin) for twin in twins if DECISIVE in twin.accuracy]


def _effective(scores: Sequence[GridScore]) -> str:
    best = effective_resolution(scores, ENOUGH)
    if best is None:
        return f"no grid was read at {percent(ENOUGH)} or better."
    words = f"{shape_words(best.shape)}, {best.cells} cells, is the largest grid read at {percent(ENOUGH)} or better"
    missed = [score for score in scores if score.cells <= best.cells and score.accuracy < ENOUGH]
    if missed:
        words += "; not larger, but missed: " + ", ".join(
            f"{shape_words(score.shape)} {percent(score.accuracy)}" for score in missed
        )
    return words + f" ({percent(best.accuracy)})." if not missed else words + "."


def _twin(twin: Twin) -> tuple[str, str]:
    values = twin.accuracy[DECISIVE]
    seeds = f"{len(values)} training seed{'s' if len(values) > 1 else ''}"
    spread = percent(min(values)) if len(values) == 1 else f"{percent(min(values))} to {percent(max(values))}"
    return f"Study: {TWINS.get(twin.name, twin.name)}", f"{shape_words(DECISIVE)} read at {spread} over {seeds}."
