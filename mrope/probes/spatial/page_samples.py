"""The samples of a run's report: which are shown, their pictures, scaled down, and the browser around them."""

from __future__ import annotations

import base64
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from PIL import Image, features

from mrope.probes.markup import element
from mrope.probes.spatial.records import Record
from mrope.probes.spatial.summary import OUTCOMES

BUDGET = 12_000_000
"""About how many bytes of the page samples may take, with their pictures."""
SIDE, SMALL_SIDE = 480, 176
"""Most pixels of the longer side of a picture, and of one among many."""
MOST_PICTURES = 12
"""Pictures, or frames of a clip, of one sample that are shown, evenly from its first to its last."""
MOST_LETTERS = 2000
"""Letters of a question or a reply that are shown."""
_MOST_SCORES = 6
_FEW = 2

Thumbnail = tuple[str, int, int, str]
"""A data URL, width and height of the picture as it was drawn, and words for it."""


@dataclass(slots=True)
class Chosen:
    """The samples that are shown.

    Args:
        folder: of the run.
        samples: as the page's script reads them, in the order of the run.
        shown: task -> how many of its samples are shown.
        pictures: (file name, most pixels of a side) -> its number, data URL, width and height.
    """

    folder: Path
    samples: list[dict[str, Any]] = field(default_factory=list)
    shown: Counter[str] = field(default_factory=Counter)
    pictures: dict[tuple[str, int], tuple[int, str, int, int]] = field(default_factory=dict)


def choose_samples(records: Sequence[Record], folder: Path, *, budget: int = BUDGET) -> Chosen:
    """As many samples as `budget` bytes hold: wrong ones first, and each task as many bytes as the others.

    What was refused is left out.
    """
    chosen = Chosen(folder)
    waiting: dict[str, list[tuple[int, Record]]] = {}
    for place, record in enumerate(records):
        if record["outcome"] != "refused":
            waiting.setdefault(record["task"], []).append((place, record))
    for its in waiting.values():
        its.sort(key=lambda one: (one[1]["outcome"] == "right", one[0]), reverse=True)  # the last one is taken first
    spent = dict.fromkeys(waiting, 0)
    left, kept = budget, []
    while spent:
        task = min(spent, key=spent.__getitem__)
        if not waiting[task]:
            del spent[task]
            continue
        place, record = waiting[task].pop()
        before = len(chosen.pictures)
        sample = _sample(record, chosen)
        fresh = list(chosen.pictures)[before:]
        cost = len(_script(sample)) + sum(len(chosen.pictures[key][1]) for key in fresh)
        if cost > left:
            for key in fresh:
                del chosen.pictures[key]
            del spent[task]
            continue
        left -= cost
        spent[task] += cost
        kept.append((place, sample))
        chosen.shown[task] += 1
    chosen.samples = [sample for _, sample in sorted(kept, key=lambda one: one[0])]
    return chosen


def thumbnails(record: Record, chosen: Chosen, *, most: int = MOST_PICTURES) -> Iterator[Thumbnail]:
    """The pictures of a sample, small, and what each is: evenly from the first to the last where there are many."""
    names = picture_names(record)
    side = SIDE if len(names) <= _FEW else SMALL_SIDE
    for place in _evenly(len(names), most):
        name, words = names[place]
        made = _picture(name, side, chosen)
        if made is not None:
            yield made[1], made[2], made[3], words


def prompt_words(record: Record) -> str:
    """The question, with marks where pictures stand, but for one that stands first.

    >>> prompt_words({"prompt": [0, 1, "\\nIn which is ", 2], "pictures": ["a.png", "b.png", "c.png"]})
    '[pictures 1 to 2] \\nIn which is [picture 3]'
    """
    words, parts = "", record["prompt"]
    if len(record["pictures"]) == 1 and parts[:1] == [0]:
        parts = parts[1:]
    for is_text, run in groupby(parts, key=lambda part: isinstance(part, str)):
        these = list(run)
        if is_text:
            words += "".join(these)
        elif len(these) == 1:
            words += f"[picture {these[0] + 1}] "
        else:
            words += f"[pictures {these[0] + 1} to {these[-1] + 1}] "
    return words.strip()


def samples_section(chosen: Chosen, records: Sequence[Record]) -> str:
    """The browser of samples; without JavaScript it says where they lie."""
    asked = Counter(record["task"] for record in records if record["outcome"] != "refused")
    if not asked:
        return ""
    all_shown = sum(chosen.shown.values()) == sum(asked.values())
    words = _all(sum(asked.values())) if all_shown else _cut(chosen, asked)
    words += " The lines of samples.jsonl hold them in full, its folder the pictures in full size."
    seeds = sorted({sample["seed"] for sample in chosen.samples})
    outcomes = Counter(sample["outcome"] for sample in chosen.samples)
    ticks = "".join(
        element(
            "label",
            element("input", type="checkbox", name="outcome", value=outcome)
            + element("span", f"{outcome} {element('small', f'{outcomes[outcome]:,}')}", class_=f"pill {outcome}"),
        )
        for outcome in OUTCOMES
        if outcomes[outcome]
    )
    filters = (
        element("label", "Task " + _select("task", [(task, f"{task} ({chosen.shown[task]:,})") for task in asked]))
        + element("label", "Seed " + _select("seed", [(str(seed), str(seed)) for seed in seeds]))
        + element("label", "Words " + element("input", type="search", name="words", placeholder="in question or reply"))
        + element("fieldset", element("legend", "Outcome") + ticks)
        + element("button", "Clear", type="reset")
    )
    browser = element(
        "div", "", id="list", role="listbox", tabindex=0, aria_label="samples; arrow keys go from one to the next"
    ) + element("article", "", id="sample", aria_label="the sample", tabindex=-1)
    data = {
        "samples": chosen.samples,
        "pictures": [list(picture[1:]) for picture in chosen.pictures.values()],
    }
    return element(
        "section",
        element("h2", "Every sample" if all_shown else "Samples")
        + element("p", escape(words))
        + element("noscript", element("p", "To go through them here needs JavaScript.", class_="muted"))
        + element("form", filters, id="filters", hidden="", role="search", aria_label="which samples")
        + element("p", "", id="count", role="status", class_="muted")
        + element("div", browser, id="browser", hidden="")
        + element("script", _script(data), type="application/json", id="data"),
        id="samples",
    )


def _all(count: int) -> str:
    return "The one sample that was asked." if count == 1 else f"All {count:,} samples that were asked."


def _cut(chosen: Chosen, asked: Mapping[str, int]) -> str:
    cut = ", ".join(
        f"{chosen.shown[task]:,} of {count:,} of {task}" for task, count in asked.items() if chosen.shown[task] < count
    )
    return (
        f"{sum(chosen.shown.values()):,} of {sum(asked.values()):,} samples, so that the page stays small; wrong "
        f"answers come first. Cut short: {cut}."
    )


def _select(name: str, options: Sequence[tuple[str, str]]) -> str:
    inner = "".join(element("option", escape(words), value=value) for value, words in (("", "all"), *options))
    return element("select", inner, name=name)


def _sample(record: Record, chosen: Chosen) -> dict[str, Any]:
    """A record as the script reads it."""
    names = picture_names(record)
    side = SIDE if len(names) <= _FEW else SMALL_SIDE
    places = _evenly(len(names), MOST_PICTURES)
    pictures = []
    for place in places:
        name, words = names[place]
        made = _picture(name, side, chosen)
        pictures.append([None if made is None else made[0], words])
    scores = sorted((record["scores"] or {}).items(), key=lambda one: -one[1])
    return {
        "task": record["task"],
        "seed": record["seed"],
        "id": record["id"],
        "outcome": record["outcome"],
        "share": record["share"],
        "prompt": _brief(prompt_words(record)),
        "pictures": pictures,
        "left": len(names) - len(places),
        "answer": record["answer"],
        "choices": ", ".join(record["choices"]),
        "box": record["box"],
        "where": record["where"] if len(names) == len(places) == len(record["pictures"]) else None,
        "reply": _brief(record["reply"]),
        "read": record["read"],
        "failure": record["failure"],
        "scores": scores[:_MOST_SCORES],
        "group": record["group"],
        "tags": ", ".join(f"{tag} {value}" for tag, value in record["tags"].items()),
    }


def picture_names(record: Record) -> list[tuple[str, str]]:
    """File names of all pictures and frames, and what each is."""
    names = []
    for number, picture in enumerate(record["pictures"], 1):
        if isinstance(picture, str):
            names.append((picture, f"picture {number}"))
        else:
            moments = zip(picture["frames"], picture["seconds"], strict=True)
            names += [(name, f"{seconds:g} s") for name, seconds in moments]
    return names


def _evenly(count: int, most: int) -> list[int]:
    if count <= most:
        return list(range(count))
    return [round(place * (count - 1) / (most - 1)) for place in range(most)]


def _picture(name: str, side: int, chosen: Chosen) -> tuple[int, str, int, int] | None:
    """The picture in that file, made smaller where a side has more than `side` pixels; None if it is not there."""
    if (name, side) not in chosen.pictures:
        try:
            with Image.open(chosen.folder / name) as opened:
                picture = opened.convert("RGB")
        except OSError:
            return None
        height, width = picture.height, picture.width
        picture.thumbnail((side, side))
        kind = "webp" if features.check("webp") else "jpeg"
        file = io.BytesIO()
        picture.save(file, kind, quality=60, **({"method": 2} if kind == "webp" else {}))
        source = f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
        chosen.pictures[name, side] = len(chosen.pictures), source, width, height
    return chosen.pictures[name, side]


def _brief(words: str) -> str:
    """The words, or their beginning and end, and how much lies between."""
    if len(words) <= MOST_LETTERS:
        return words
    half = MOST_LETTERS // 2
    return f"{words[:half]} [... {len(words) - 2 * half:,} characters ...] {words[-half:]}"


def _script(value: Any) -> str:
    """JSON in which nothing ends a script or opens a tag."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
