"""The rules by which a reply is read and judged.

A reply that cannot be read counts as wrong, and its outcome says why: "empty", "unread", "several" or "failed".

- choice: with scores, the largest of those of the choices. With text, the reply that is a choice, but for case,
  punctuation and markup; else the one choice among its words, of what follows the last "answer is" or "answer:" where
  there is one. A choice of one letter is a word of prose only as it is written, since "a" is an article.
- number: the one whole number, in digits or a word up to twenty, found in the same way.
- text: the reply, but for case, white space, and punctuation around it; the share is 1 - edits / letters.
- list: its words in order; letters may be run together. Right if all are; the share is 1 - edits / words.
- point, box: two or four numbers, in the convention of the family, or in pixels of the picture where no plan came. A
  point is right inside the box; of a box for a point, its middle counts. A box is right from an intersection over
  union of a half, which is the share.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np

from mrope.data import Sample
from mrope.probes.spatial.reply import Mark, Reply

LEAST_OVERLAP = 0.5
_NUMBERS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
)
_FINAL = re.compile(r"\banswer\s*(?:is|:)\s*", re.IGNORECASE)
_WORD = re.compile(r"\w+(?:[-'.]\w+)*")
# Digits of a word, such as those in "bbox_2d", are no coordinates; those of "<loc_12>" and "12px" are.
_COORDINATE = re.compile(r"(?:(?<![\w.])|(?<=<loc_)|(?<=<loc))-?\d+(?:\.\d+)?(?:px)?(?!\w)")


class _UnreadError(Exception):
    """No answer can be read; the first argument is the outcome."""


def mark(sample: Sample, reply: Reply) -> Mark:
    """Judge a reply by the rules above."""
    if reply.failure:
        return Mark("failed")
    try:
        if sample.kind == "choice" and reply.scores is not None:
            return _same(_best(sample, reply.scores), sample.answer)
        if not reply.text.strip():
            raise _UnreadError("empty")
        match sample.kind:
            case "choice":
                return _same(_choice(reply.text, sample.choices), sample.answer)
            case "number":
                return _same(_number(reply.text), sample.answer)
            case "text":
                return _text(reply.text, sample.answer)
            case "list":
                return _list(reply.text, sample.answer.split())
            case _:
                return _place(sample, reply)
    except _UnreadError as unread:
        return Mark(unread.args[0])


def _same(read: str, answer: str) -> Mark:
    right = read == answer
    return Mark("right" if right else "wrong", float(right), read)


def _best(sample: Sample, scores: Any) -> str:
    """The choice with the largest score."""
    missing = [choice for choice in sample.choices if choice not in scores]
    if missing:
        raise ValueError(f"scores of sample {sample.id} miss {missing[0]!r}; expected one for each choice")
    values = [float(scores[choice]) for choice in sample.choices]
    if any(value != value for value in values):
        raise _UnreadError("unread")
    if values.count(max(values)) > 1:
        raise _UnreadError("several")
    return sample.choices[values.index(max(values))]


def _plain(text: str) -> str:
    """Without case, and without what stands around words."""
    text = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return re.sub(r"^[\W_]+|[\W_]+$", "", text)


def _end(text: str) -> str:
    """What follows the last "answer is", or all."""
    return _FINAL.split(text)[-1]


def _choice(text: str, choices: Sequence[str]) -> str:
    by_plain = {_plain(choice): choice for choice in choices}
    for part in (text, _end(text)):
        if _plain(part) in by_plain:
            return by_plain[_plain(part)]
    # Longer ones first, so that "light blue" is not "blue" as well.
    ordered = sorted(choices, key=len, reverse=True)
    either = "|".join(re.escape(one) if len(one) == 1 else f"(?i:{re.escape(one)})" for one in ordered)
    found = re.findall(rf"(?<!\w)(?:{either})(?!\w)", _end(text))
    return _one([by_plain[_plain(word)] for word in found])


def _number(text: str) -> str:
    found = []
    for word in _WORD.findall(_end(text)):
        if word.isdecimal() or word.casefold() in _NUMBERS:
            found.append(str(int(word) if word.isdecimal() else _NUMBERS.index(word.casefold())))
    return _one(found)


def _one(found: Sequence[str]) -> str:
    """The only answer among those found."""
    if not found:
        raise _UnreadError("unread")
    if len(set(found)) > 1:
        raise _UnreadError("several")
    return found[0]


def _text(text: str, answer: str) -> Mark:
    read, wanted = _plain(_end(text)), _plain(answer)
    if _plain(text) == wanted:
        read = wanted
    share = max(0.0, 1 - edits(read, wanted) / max(1, len(wanted)))
    return Mark("right" if read == wanted else "wrong", share, read)


def _list(text: str, answer: Sequence[str]) -> Mark:
    wanted = [_plain(word) for word in answer]
    for part in (text, _end(text)):
        read = [_plain(word) for word in _WORD.findall(part)]
        if all(len(word) == 1 for word in wanted) and len(read) == 1:
            read = list(read[0])
        if read == wanted:
            break
    share = max(0.0, 1 - edits(read, wanted) / max(1, len(wanted)))
    return Mark("right" if read == wanted else "wrong", share, " ".join(read))


def edits(a: Sequence[Any], b: Sequence[Any]) -> int:
    """The least number of insertions, deletions and exchanges that make `a` into `b` (Levenshtein).

    >>> edits("kitten", "sitting")
    3
    """
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, right in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (left != right))
    return row[-1]


def _place(sample: Sample, reply: Reply) -> Mark:
    assert sample.box is not None  # of the kinds that are left
    numbers = [float(word.removesuffix("px")) for word in _COORDINATE.findall(_end(reply.text))]
    if len(numbers) < 2 or (sample.kind == "box" and len(numbers) < 4):
        raise _UnreadError("unread")
    if len(numbers) not in (2, 4):
        raise _UnreadError("several")
    plan = reply.plans[sample.where] if reply.plans else None
    written = np.array(numbers)
    place = (written if plan is None else np.asarray(plan.decode_boxes(written))).tolist()
    read = " ".join(f"{side:.1f}" for side in place)
    if sample.kind == "box":
        share = overlap(place, sample.box)
        return Mark("right" if share >= LEAST_OVERLAP else "wrong", share, read)
    x, y = place if len(place) == 2 else ((place[0] + place[2]) / 2, (place[1] + place[3]) / 2)
    left, top, right, bottom = sample.box
    inside = left <= x <= right and top <= y <= bottom
    return Mark("right" if inside else "wrong", float(inside), read)


def overlap(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two boxes (left, top, right, bottom); 0 for one whose corners are the wrong way round.

    >>> overlap((0, 0, 2, 2), (1, 0, 3, 2))
    0.3333333333333333
    """
    wide = min(a[2], b[2]) - max(a[0], b[0])
    high = min(a[3], b[3]) - max(a[1], b[1])
    if wide <= 0 or high <= 0:
        return 0.0
    both = wide * high
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)
