"""The rules by which a reply is read and judged.

A reply that cannot be read counts as wrong, and its outcome says why: "empty", "unread" (prose that names no answer),
"several" or "failed". Wherever a sample has choices and the reply has scores of them, the largest score is the answer.
Otherwise the text is read, without what stands in <think>...</think>:

- choice: the reply that is a choice, but for case, punctuation and markup; else the one choice among its words. What
  follows the last "answer is", "answer:", "word is", "reads" and the like is looked at first, its first line before all
  of it. A choice of one letter is a word of prose only as it is written, and not where it is an article ("A cat"), or
  behind "not".
- number: the one whole number, in digits or a word up to twenty, found in the same way.
- text: the reply, but for case, white space, and punctuation around it; the share is 1 - edits / letters. More words
  than the answer has, by three, are prose.
- list: its words in order. Letters are looked for among longer words, and may be run together. Right if all are; the
  share is 1 - edits / words. Words of which none is in the answer are prose.
- point, box: two or four numbers, in the convention of the family, or in pixels of the picture where no plan came. A
  point is right inside the box; of a box for a point, its middle counts. A box is right from an intersection over
  union of a half, which is the share.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mrope.checks import Number
from mrope.data import Sample
from mrope.probes.spatial.reply import Mark, Reply

LEAST_OVERLAP = 0.5
_NUMBERS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
)
_FINAL = re.compile(
    r"\b(?:answer|words?|letters?|numbers?|text)\s+(?:is|are|reads?|says)\b(?!\s+not\b)\s*:?\s*"
    r"|\banswer\s*:\s*|\breads?\s*:?\s+(?=\S)",
    re.IGNORECASE,
)
_THOUGHT = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)|\A.*</think(?:ing)?>", re.IGNORECASE | re.DOTALL)
_ARTICLE = re.compile(r"\bA(?=\s+(?!(?:is|was|and|or|stands|appears|in|at)\b)[a-z])")
# A letter of a word; signs of Chinese, Japanese and Korean are not, which stand beside words without a space.
_LETTER = r"[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
_WHOLE = re.compile(rf"(?<![\w.])[-\u2212]?\d+(?:\.\d+)?(?!\w)|{_LETTER}+")
_WORD = re.compile(r"\w+(?:[-'.]\w+)*")
# Digits of a word, such as those in "bbox_2d", are no coordinates; those of "<loc_12>" and "12px" are.
_COORDINATE = re.compile(r"(?:(?<![\w.])|(?<=<loc_)|(?<=<loc))-?\d+(?:\.\d+)?(?:px)?(?!\w)")


class _UnreadError(Exception):
    """No answer can be read; the first argument is the outcome."""


def mark(sample: Sample, reply: Reply) -> Mark:
    """Judge a reply by the rules above."""
    if reply.failure:
        return Mark("failed")
    text = _THOUGHT.sub("", reply.text).strip()
    try:
        if sample.choices and reply.scores is not None and not (text and _has_nan(reply.scores)):
            return _same(_best(sample, reply.scores), sample.answer)
        if not reply.text.strip():
            raise _UnreadError("empty")
        if not text:
            raise _UnreadError("unread")
        match sample.kind:
            case "choice":
                return _same(_choice(text, sample.choices), sample.answer)
            case "number":
                return _same(_number(text), sample.answer)
            case "text":
                return _text(text, sample.answer)
            case "list":
                return _list(text, sample.answer.split())
            case _:
                return _place(sample, text, reply)
    except _UnreadError as unread:
        return Mark(unread.args[0])


def _has_nan(scores: Mapping[str, Number]) -> bool:
    return any(math.isnan(score) for score in scores.values())


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


def _ends(text: str) -> Iterator[str]:
    """Where to look for an answer, in turn: the first line behind the last "answer is", all behind it, and all."""
    end = _FINAL.split(text)[-1]
    yield from dict.fromkeys((end.strip().partition("\n")[0], end, text))


def _choice(text: str, choices: Sequence[str]) -> str:
    by_plain = {_plain(choice): choice for choice in choices}
    # Longer ones first, so that "light blue" is not "blue" as well.
    ordered = sorted(choices, key=len, reverse=True)
    either = "|".join(re.escape(one) if len(one) == 1 else f"(?i:{re.escape(one)})" for one in ordered)
    pattern = re.compile(rf"(?<!{_LETTER})(?<!\bnot )(?:{either})(?!{_LETTER})")
    if _plain(text) in by_plain:
        return by_plain[_plain(text)]
    for part in _ends(text):
        if _plain(part) in by_plain:
            return by_plain[_plain(part)]
        if found := pattern.findall(_ARTICLE.sub("", part)):
            return _one([by_plain[_plain(word)] for word in found])
    raise _UnreadError("unread")


def _number(text: str) -> str:
    for part in _ends(text):
        found = [number for word in _WHOLE.findall(part) if (number := _as_number(word)) is not None]
        if found:
            return _one(found)
    raise _UnreadError("unread")


def _as_number(word: str) -> str | None:
    """A whole number in digits; None for what is none."""
    if word.casefold() in _NUMBERS:
        return str(_NUMBERS.index(word.casefold()))
    try:
        value = float(word.replace("\u2212", "-"))
    except ValueError:
        return None
    return str(int(value)) if value.is_integer() else None


def _one(found: Sequence[str]) -> str:
    """The only answer among those found."""
    if len(set(found)) > 1:
        raise _UnreadError("several")
    return found[0]


def _text(text: str, answer: str) -> Mark:
    wanted = _plain(answer)
    read = wanted if _plain(text) == wanted else _plain(next(_ends(text)))
    if len(read.split()) >= len(wanted.split()) + 3:
        raise _UnreadError("unread")
    share = max(0.0, 1 - edits(read, wanted) / max(1, len(wanted)))
    return Mark("right" if read == wanted else "wrong", share, read)


def _list(text: str, answer: Sequence[str]) -> Mark:
    wanted = [_plain(word) for word in answer]
    find = _letters if all(len(word) == 1 for word in wanted) else _words
    best: list[str] = []
    for part in _ends(text):
        read = find(part)
        if not best or edits(read, wanted) < edits(best, wanted):
            best = read
    if not set(best) & set(wanted):
        raise _UnreadError("unread")
    share = max(0.0, 1 - edits(best, wanted) / max(1, len(wanted)))
    return Mark("right" if best == wanted else "wrong", share, " ".join(best))


def _words(text: str) -> list[str]:
    return [_plain(word) for word in _WORD.findall(text)]


def _letters(text: str) -> list[str]:
    """The letters of a list, which stand alone or are one word; not articles and pronouns of prose."""
    words = [word for word in re.findall(rf"{_LETTER}+", _ARTICLE.sub("", text)) if word.isalpha()]
    if len(words) == 1:
        return [_plain(letter) for letter in words[0]]
    prose = any(len(word) > 1 for word in words)
    return [_plain(word) for word in words if len(word) == 1 and not (prose and word in ("I", "a"))]


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


def _place(sample: Sample, text: str, reply: Reply) -> Mark:
    assert sample.box is not None  # of the kinds that are left
    numbers = next(filter(None, ([*map(_side, _COORDINATE.findall(part))] for part in _ends(text))), [])
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


def _side(word: str) -> float:
    return float(word.removesuffix("px"))


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
