"""The report of a run: its figures are those of a recount, it needs nothing else, and a real browser can use it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mrope.data import Clip, Sample
from mrope.probes.heat import heat_colour
from mrope.probes.markup import DARK, LIGHT
from mrope.probes.spatial.page import write_page
from mrope.probes.spatial.page_samples import choose_samples
from mrope.probes.spatial.records import read_records
from mrope.probes.spatial.reply import Reply
from mrope.probes.spatial.runs import Settings, ask

EVIL = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> & A"
TASKS: dict[str, dict[str, Any]] = {
    "cell": {"shapes": ((2, 3), (5, 4)), "each": 6},
    "neighbour": {"shapes": ((3, 4),), "each": 2},
    "row": {"shapes": ((3, 5),), "each": 3},
    "find": {"shapes": ((3, 2),), "each": 4},
    "point": {"shapes": ((3, 2),), "each": 4},
    "moved": {"shapes": ((3, 2),), "each": 3, "guises": ("plain", "shifted")},
    "time": {"letters": (3,), "each": 1},
    "print": {"heights": (20, 8), "each": 1},
}
SETTINGS = Settings(TASKS, seeds=(3, 8))


class Odd:
    """Answers in every way there is, and cannot be asked about small print."""

    name = "odd <b>&amp;"
    facts: Mapping[str, str] = {"device": "cpu", "family": "<none>"}

    def __init__(self) -> None:
        self.turn = 0

    def refuses(self, sample: Sample) -> str:
        return "it is <short>-sighted" if sample.task == "print" else ""

    def answer(self, samples: Sequence[Sample]) -> Iterator[Reply]:
        return map(self._one, samples)

    def _one(self, sample: Sample) -> Reply:
        self.turn += 1
        right = sample.answer or "[" + ", ".join(f"{side:.0f}" for side in sample.box or ()) + "]"
        match self.turn % 11:
            case 2:
                return Reply("I cannot tell. " * 300)
            case 3:
                return Reply(EVIL)
            case 4:
                return Reply("")
            case 5:
                return Reply(failure="HTTP 500 after 4 tries")
            case 6 if sample.choices:
                return Reply(f"{sample.choices[0]} or {sample.choices[1]}")
            case 7 if sample.choices:
                return Reply(scores={choice: float(choice == sample.choices[0]) for choice in sample.choices})
            case 8 if sample.kind == "list":
                return Reply(" ".join(sample.answer.split()[:-1]))
            case 8 if sample.box:
                left, top, right_, bottom = sample.box
                return Reply(f"{left + 4:.0f} {top:.0f} {right_ + 4:.0f} {bottom:.0f}")
        return Reply(f"The answer is {right}.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("run")
    ask(Odd(), SETTINGS, made)
    write_page(made)
    return made


@pytest.fixture(scope="module")
def lines(folder: Path) -> list[dict[str, Any]]:
    """The records, read by other code than ours."""
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()]


class Parsed(HTMLParser):
    """Tables, as the text of their cells, by the id or words of what holds them; scripts; and what could be fetched."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.rows: list[list[str]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag in ("img", "input", "meta"):
            return
        self.open.append((tag, dict(attrs)))
        if tag == "table":
            self.rows = self.tables.setdefault(self._holder(), [])
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        tags = [tag for tag, _ in self.open]
        if "script" in tags:
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        elif "style" not in tags:
            self.text += data
        if {"td", "th"} & set(tags):
            self.rows[-1][-1] += data

    def _holder(self) -> str:
        words = [each.get("aria-label") for _, each in self.open if each.get("role") == "region"]
        return str(words[-1]) if words else "facts"


@pytest.fixture(scope="module")
def html(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def parsed(html: str) -> Parsed:
    return Parsed(html)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def interval(values: dict[int, list[float]]) -> str:
    """The wider of two intervals: Student's of two seeds, half their distance times 12.706 around the mean; and
    Wilson's, the shares that lie 1.96 of their own standard errors from it.
    """
    one, two = (sum(its) / len(its) for its in values.values())
    count = sum(map(len, values.values()))
    middle, wide = (one + two) / 2, 12.706 * abs(one - two) / 2
    z2 = 1.959964**2 / count  # (middle - x)^2 = z2 x (1 - x)
    low, high = sorted(np.roots([1 + z2, -2 * middle - z2, middle**2]).real)
    return f"{100 * max(0, min(low, middle - wide)):.1f} to {100 * min(1, max(high, middle + wide)):.1f} %"


# ------------------------------------------------------------------------------------------------------ the figures


def guess(record: dict[str, Any], folder: Path) -> float:
    """How often a guess is right: one of the choices, or a point anywhere in the picture."""
    if record["kind"] == "point":
        left, top, right, bottom = record["box"]
        with Image.open(folder / record["pictures"][record["where"]]) as picture:
            return (right - left) * (bottom - top) / (picture.width * picture.height)
    return 1 / len(record["choices"]) if record["choices"] else 0


def test_the_scores_of_the_page_are_those_of_a_recount(
    parsed: Parsed, lines: list[dict[str, Any]], folder: Path
) -> None:
    head, *rows = parsed.tables["accuracy by task"]
    assert head == [
        "task",
        "0 to 100 %",
        "accuracy",
        "95 % interval",
        "asked",
        "chance",
        "sets",
        "agreement",
        "in part",
    ]
    expected = list(dict.fromkeys(one["task"] for one in lines if one["outcome"] != "refused"))
    assert len(rows) == len(expected) == 7
    for task, row in zip(expected, rows, strict=True):
        assert row[0].startswith(task)
        its = [one for one in lines if one["task"] == task and one["outcome"] != "refused"]
        right = sum(one["outcome"] == "right" for one in its)
        assert row[2] == percent(right / len(its)), task
        assert row[4] == str(len(its))
        chance = sum(guess(one, folder) for one in its) / len(its)
        assert row[5] == (percent(chance) if chance else "-")
        by_seed = {seed: [float(o["outcome"] == "right") for o in its if o["seed"] == seed] for seed in (3, 8)}
        assert row[3] == interval(by_seed), task
        partial = task in ("row", "find")
        assert row[8] == (percent(sum(one["share"] for one in its) / len(its)) if partial else "-")


def test_sets_and_agreement_are_those_of_a_recount(parsed: Parsed, lines: list[dict[str, Any]]) -> None:
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for one in lines:
        if one["group"] and one["outcome"] != "refused":
            groups.setdefault((one["task"], one["seed"], one["group"]), []).append(one)
    sets = [all(o["outcome"] == "right" for o in its) for (task, _, _), its in groups.items() if task == "neighbour"]
    same = [
        len({o["read"] for o in its}) == 1 and its[0]["read"] != ""
        for (task, _, _), its in groups.items()
        if task == "moved"
    ]
    assert len(sets) == 4
    assert len(same) == 6
    rows = parsed.tables["accuracy by task"]
    (neighbour,) = (row for row in rows if row[0].startswith("neighbour"))
    (moved,) = (row for row in rows if row[0].startswith("moved"))
    assert (neighbour[6], neighbour[7]) == (percent(sum(sets) / len(sets)), "-")
    assert (moved[6], moved[7]) == ("-", percent(sum(same) / len(same)))


def test_outcomes_are_those_of_a_recount(parsed: Parsed, lines: list[dict[str, Any]]) -> None:
    (_, _, *names), *rows = parsed.tables["outcomes"]
    assert names == ["right", "wrong", "empty", "unread", "several", "failed"]
    for row in rows:
        counted = Counter(one["outcome"] for one in lines if one["task"] == row[0])
        assert [int(cell) for cell in row[2:]] == [counted[name] for name in names], row[0]
    unread = sum(one["outcome"] in ("empty", "unread", "several", "failed") for one in lines)
    asked = sum(one["outcome"] != "refused" for one in lines)
    assert unread > 10
    assert f"{unread} of {asked} replies could not be read" in parsed.text
    assert parsed.tables["what was not asked"][1] == [
        "print",
        "a word in letters from large to illegible",
        "4",
        "it is <short>-sighted",
    ]


def test_the_head_counts_everything_once(parsed: Parsed, lines: list[dict[str, Any]]) -> None:
    marked = [one for one in lines if one["outcome"] != "refused"]
    right = sum(one["outcome"] == "right" for one in marked)
    luck = sum(one["chance"] for one in marked) / len(marked)
    words = f"{percent(right / len(marked))}of {len(marked)} questions answered right; a guess gets {percent(luck)}"
    assert words in parsed.text
    assert "4samples that this model cannot be asked" in parsed.text
    assert f"{len(marked)} questions of 7 tasks" in parsed.text
    assert "seeds 3, 8" in parsed.text


def test_curves_and_parts_are_those_of_a_recount(parsed: Parsed, html: str, lines: list[dict[str, Any]]) -> None:
    def share(its: list[dict[str, Any]]) -> float:
        return sum(one["outcome"] == "right" for one in its) / len(its)

    cells = {6: (2, 3), 20: (5, 4)}
    told = {(row[0], row[1]): (row[2], row[4]) for row in parsed.tables["curves of cell in figures"] if row[0] != "by"}
    for count, (rows, cols) in cells.items():
        its = [
            one for one in lines if one["task"] == "cell" and (one["tags"]["rows"], one["tags"]["cols"]) == (rows, cols)
        ]
        assert told["cells of the grid", str(count)] == (percent(share(its)), str(len(its)))
        assert told["rows", str(rows)] == told["columns", str(cols)] == told["cells of the grid", str(count)]
    (section,) = re.findall(r'<article id="task-cell".*?</article>', html, re.DOTALL)
    (chart,) = re.findall(r'<svg viewBox="0 0 330 226".*?</svg>', section, re.DOTALL)
    tops = [float(top) for top in re.findall(r'cy="([\d.]+)" r="5"', chart)]
    ticks = {
        int(word): float(base) - 4
        for base, word in re.findall(r'y="([\d.]+)" class="tick" text-anchor="end">(\d+) %', chart)
    }
    drawn = [(ticks[0] - top) / (ticks[0] - ticks[100]) for top in tops]
    by_cells = [
        share([one for one in lines if one["task"] == "cell" and one["tags"]["rows"] == rows])
        for rows, _ in cells.values()
    ]
    assert drawn == pytest.approx(by_cells, abs=1e-3)
    relations = {row[0]: row[2] for row in parsed.tables["accuracy by relation"]}
    for relation in ("left", "right", "above", "below"):
        its = [one for one in lines if one["task"] == "neighbour" and one["tags"]["relation"] == relation]
        assert relations[relation] == percent(share(its))


def test_each_cell_of_a_heat_map_has_the_colour_of_its_accuracy(html: str, lines: list[dict[str, Any]]) -> None:
    (section,) = re.findall(r'<article id="task-cell".*?</article>', html, re.DOTALL)
    drawn = re.findall(r'<svg [^>]*aria-label="accuracy by cell, (\d) rows, (\d) columns">(.*?)</svg>', section)
    assert [(int(rows), int(cols)) for rows, cols, _ in drawn] == [(2, 3), (5, 4)]
    for rows, cols, inner in drawn:
        rect = r'<rect x="(\d+)" y="(\d+)" width="(\d+)" height="\d+" style="fill:([^"]+)">'
        rects = re.findall(rect + r"<title>row (\d+), column (\d+): ([^<]+)<", inner)
        assert len(rects) == int(rows) * int(cols)
        for left, top, width, colour, row, col, words in rects:
            side = int(width) + 1
            assert (int(top) // side + 1, int(left) // side + 1) == (int(row), int(col)), "counted from 1"
            place = [int(rows), int(cols), int(row) - 1, int(col) - 1]
            its = [
                float(one["outcome"] == "right")
                for one in lines
                if one["task"] == "cell" and [one["tags"][tag] for tag in ("rows", "cols", "row", "col")] == place
            ]
            share = sum(its) / len(its) if its else None
            assert words == ("not asked" if share is None else percent(share))
            assert colour.startswith("none") if share is None else colour == heat_colour(share)


def test_a_run_with_random_weights_says_so_at_the_top_beside_chance(tmp_path: Path) -> None:
    who = Odd()
    who.facts = {"random weights": "yes", "blind": "pictures exchanged, seed 0"}
    ask(who, Settings({"cell": {"shapes": ((2, 3),), "each": 2}}), tmp_path)
    text = write_page(tmp_path).read_text(encoding="utf-8")
    head = Parsed(text).text
    assert "Random weights This model has not been trained. Whatever it gets right is luck: a guess gets 4.2 %" in head
    assert "Blind Each question was asked beside the pictures of another one" in head
    assert text.index("Random weights") < text.index("</header>")
    who.facts = {"random weights": "no"}
    ask(who, Settings({"cell": {"shapes": ((2, 3),), "each": 2}}), tmp_path / "trained")
    assert "Random weights" not in write_page(tmp_path / "trained").read_text(encoding="utf-8")


# ----------------------------------------------------------------------------------------------- what the file needs


def test_the_page_fetches_nothing(parsed: Parsed, html: str) -> None:
    assert parsed.open == []
    for tag, name, value in parsed.attributes:
        if name in ("src", "href", "xlink:href", "srcset", "data", "action", "poster"):
            assert value.startswith(("data:image/", "#")), (tag, name, value)
        assert not name.startswith("on"), (tag, name)
    bare = re.sub(r"data:[^\")']*", "", html).replace(json.dumps(EVIL)[1:-1], "")
    assert not re.findall(r"https?:|//|@import", bare)
    links = {value[1:] for _, name, value in parsed.attributes if name == "href"}
    assert links <= {value for _, name, value in parsed.attributes if name == "id"}, "each link leads somewhere"


def test_only_our_script_may_run(parsed: Parsed) -> None:
    (data, held), (ours, script) = parsed.scripts
    assert data == {"type": "application/json", "id": "data"}
    assert ours == {}
    (policy,) = (value for tag, name, value in parsed.attributes if tag == "meta" and value.startswith("default-src"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy
    assert "innerHTML" not in script
    assert "<" not in held


def test_what_a_model_says_stays_text(parsed: Parsed, html: str, lines: list[dict[str, Any]]) -> None:
    samples = json.loads(parsed.scripts[0][1])["samples"]
    assert EVIL in {one["reply"] for one in samples}
    assert "<script>document" not in html
    assert "<img src=x" not in html
    assert "odd <b>&amp;" in parsed.text
    long = next(one for one in samples if one["reply"].startswith("I cannot tell"))["reply"]
    assert "[... 2,500 characters ...]" in long, "what is left out is said"
    asked = [one for one in lines if one["outcome"] != "refused"]
    assert [(one["task"], one["seed"], one["id"]) for one in samples] == [
        (o["task"], o["seed"], o["id"]) for o in asked
    ]


def test_pictures_are_those_of_the_samples(parsed: Parsed, folder: Path, lines: list[dict[str, Any]]) -> None:
    held = json.loads(parsed.scripts[0][1])
    by_id = {(one["task"], one["seed"], one["id"]): one for one in lines}
    for sample in held["samples"]:
        record = by_id[sample["task"], sample["seed"], sample["id"]]
        names = [name for one in record["pictures"] for name in (one["frames"] if isinstance(one, dict) else [one])]
        assert len(names) == len(sample["pictures"]) + sample["left"]
        for name, (number, words) in zip(names, sample["pictures"], strict=False):
            source, width, height = held["pictures"][number]
            with Image.open(folder / name) as drawn, _opened(source) as shown:
                assert drawn.size == (width, height)
                small = np.asarray(drawn.convert("RGB").resize(shown.size), dtype=float)
                assert np.abs(small - np.asarray(shown.convert("RGB"), dtype=float)).mean() < 12, name
            assert words.startswith("picture") or re.fullmatch(r"[\d.]+ s", words)


def _opened(source: str) -> Image.Image:
    return Image.open(BytesIO(base64.b64decode(source.partition(",")[2])))


def test_a_run_of_3000_samples_stays_small_and_shows_wrong_answers_first(tmp_path: Path) -> None:
    folder = _large_run(tmp_path)
    text = write_page(folder).read_text(encoding="utf-8")
    assert 8_000_000 < len(text.encode()) < 15_000_000
    samples = json.loads(Parsed(text).scripts[0][1])["samples"]
    shown = Counter(one["task"] for one in samples)
    assert len(samples) < 3000
    for task in ("cell", "row"):
        outcomes = [one["outcome"] for one in samples if one["task"] == task]
        assert outcomes.count("wrong") == min(100, len(outcomes)), "wrong ones before right ones"
    assert abs(shown["cell"] - shown["row"]) < 0.2 * shown["cell"], "no task crowds out another"
    said = f"{len(samples):,} of 3,000 samples, so that the page stays small"
    assert said in text
    assert f"{shown['cell']:,} of 1,500 of cell, {shown['row']:,} of 1,500 of row" in text
    assert [one["id"] for one in samples] == sorted(one["id"] for one in samples), "in the order of the run"


def _large_run(tmp_path: Path) -> Path:
    """3,000 samples with pictures of their own, which are hard to pack: a few, under many names."""
    who = Odd()
    ask(who, Settings({"cell": {"shapes": ((2, 3),), "each": 1}, "row": {"shapes": ((2, 3),), "each": 1}}), tmp_path)
    noise = np.random.default_rng(0)
    for number in range(4):
        picture = Image.fromarray(noise.integers(0, 256, (90, 160, 3), dtype=np.uint8)).resize((400, 225))
        picture.save(tmp_path / f"pictures/{number}.png", compress_level=1)
    records = {one["task"]: dict(one) for one in read_records(tmp_path)}
    made = []
    for task in ("cell", "row"):
        for number in range(1500):
            name = f"pictures/{task}-{number}.png"
            os.link(tmp_path / f"pictures/{number % 4}.png", tmp_path / name)
            outcome = "wrong" if number % 15 == 7 else "right"
            made.append(
                records[task]
                | {"id": f"{task}/{number:04d}", "pictures": [name], "outcome": outcome, "seed": number % 2}
            )
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(one) + "\n" for one in made), encoding="utf-8")
    return tmp_path


def test_a_budget_of_nothing_shows_nothing_and_says_so(folder: Path) -> None:
    chosen = choose_samples(read_records(folder), folder, budget=0)
    assert (chosen.samples, chosen.pictures, dict(chosen.shown)) == ([], {}, {})


def test_of_a_long_clip_frames_are_shown_from_the_first_to_the_last(tmp_path: Path) -> None:
    frames = tuple(Image.new("RGB", (60, 40), (level * 5, 0, 0)) for level in range(40))

    class Films(Odd):
        def refuses(self, sample: Sample) -> str:
            return ""

    ask(Films(), Settings({"time": {"letters": (3,), "each": 1}}), tmp_path)
    (record, *_) = read_records(tmp_path)
    for number, frame in enumerate(frames):
        frame.save(tmp_path / f"pictures/{number}.png")
    clip = Clip(frames, tuple(number / 2 for number in range(40)))
    film = {"frames": [f"pictures/{number}.png" for number in range(40)], "seconds": list(clip.seconds)}
    (sample,) = choose_samples([{**record, "pictures": [film]}], tmp_path).samples
    assert [words for _, words in sample["pictures"]] == [f"{round(place * 39 / 11) / 2:g} s" for place in range(12)]
    assert sample["left"] == 28


def test_pictures_that_are_gone_are_said_to_be(tmp_path: Path) -> None:
    ask(Odd(), Settings({"cell": {"shapes": ((2, 3),), "each": 2}}), tmp_path)
    shutil.rmtree(tmp_path / "pictures")
    parsed = Parsed(write_page(tmp_path).read_text(encoding="utf-8"))
    held = json.loads(parsed.scripts[0][1])
    assert held["pictures"] == []
    assert [one["pictures"] for one in held["samples"]] == [[[None, "picture 1"]]] * 2


def test_a_run_without_samples_still_has_a_page(tmp_path: Path) -> None:
    ask(Odd(), Settings({"print": {"heights": (9,), "each": 1}}), tmp_path)
    assert "What it was not asked" in write_page(tmp_path).read_text(encoding="utf-8")
    (tmp_path / "samples.jsonl").write_text("", encoding="utf-8")
    assert "Nothing has been asked yet" in write_page(tmp_path).read_text(encoding="utf-8")


def test_the_same_run_gives_the_same_page(folder: Path, html: str) -> None:
    assert write_page(folder).read_text(encoding="utf-8") == html
    with pytest.raises(ValueError, match="holds no run"):
        write_page(folder / "pictures")


# ------------------------------------------------------------------------------------------------- in a real browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome here")
WIDE, PHONE = (1360, 900), (390, 844)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """A page in the browser, without a network; whatever it complains about or asks for is kept."""

    def __init__(
        self, chromium: Any, folder: Path, *, size: tuple[int, int] = WIDE, scheme: str = "light", **more: Any
    ):
        self.complaints: list[str] = []
        self.asked: list[str] = []
        viewport = {"width": size[0], "height": size[1]}
        self.context = chromium.new_context(viewport=viewport, color_scheme=scheme, offline=True, **more)
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto((folder / "report.html").as_uri())

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, kind: object, *_: object) -> None:
        self.context.close()
        if kind is None:
            assert self.complaints == []
            assert {url.partition(":")[0] for url in self.asked} <= {"file", "data"}


def visible(page: Any) -> list[str]:
    """What the options of the list that are there are called."""
    return page.eval_on_selector_all(
        "#list .option:not([hidden])",
        "all => all.map(one => one.children[1].textContent + ' ' + one.children[2].textContent)",
    )


def names(lines: list[dict[str, Any]], **fixed: Any) -> list[str]:
    return [
        f"{one['id']} seed {one['seed']}"
        for one in lines
        if one["outcome"] != "refused" and all(one[key] == value for key, value in fixed.items())
    ]


def heading(page: Any) -> str:
    return page.inner_text("#sample .title code")


@needs_chromium
@pytest.mark.parametrize("size", [WIDE, PHONE, (820, 1100)], ids=["wide", "phone", "tablet"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_any_screen_in_either_light(chromium: Any, folder: Path, size: Any, scheme: str) -> None:
    with Visit(chromium, folder, size=size, scheme=scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        paper = (DARK if scheme == "dark" else LIGHT)["paper"]
        wanted = "rgb({}, {}, {})".format(*bytes.fromhex(paper[1:]))
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == wanted
        assert page.inner_text("#theme") == ("Light" if scheme == "dark" else "Dark")
        page.evaluate(
            "() => document.fonts.ready.then(() => new Promise(requestAnimationFrame))"
            ".then(() => new Promise(requestAnimationFrame))"
        )
        shown = page.locator(".wide:visible").all()
        stops = [one.evaluate("one => [one.scrollWidth > one.clientWidth, one.tabIndex]") for one in shown]
        assert stops
        assert all(tab == (0 if wide else -1) for wide, tab in stops), (
            "keys reach what can be scrolled, and nothing else"
        )
        page.click("#theme")
        paper = (LIGHT if scheme == "dark" else DARK)["paper"]
        wanted = "rgb({}, {}, {})".format(*bytes.fromhex(paper[1:]))
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == wanted
        assert page.get_attribute("#theme", "aria-pressed") == ("false" if scheme == "dark" else "true")
        broken = "[...document.images].filter(one => !one.complete || !one.naturalWidth).length"
        assert page.evaluate(broken) == 0


@needs_chromium
def test_the_chosen_colours_are_those_of_the_next_load(chromium: Any, folder: Path) -> None:
    with Visit(chromium, folder, scheme="light") as page:
        page.click("#theme")
        page.reload()
        assert page.get_attribute("html", "data-theme") == "dark"
        wanted = "rgb({}, {}, {})".format(*bytes.fromhex(DARK["paper"][1:]))
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == wanted
        assert (page.inner_text("#theme"), page.get_attribute("#theme", "aria-pressed")) == ("Light", "true")
        page.click("#theme")
        page.reload()
        assert page.get_attribute("html", "data-theme") == "light"
        page.evaluate("localStorage.setItem('mrope-theme', 'plaid')")
        page.reload()
        assert page.get_attribute("html", "data-theme") is None, "the system's"


@needs_chromium
def test_a_browser_that_refuses_storage_shows_the_page_all_the_same(
    chromium: Any, folder: Path, lines: list[dict[str, Any]]
) -> None:
    refusing = (
        "Object.defineProperty(window, 'localStorage', {get() { throw new DOMException('no', 'SecurityError') }})"
    )
    with Visit(chromium, folder) as page:
        page.add_init_script(refusing)
        page.reload()
        assert page.evaluate("(() => { try { localStorage; return false } catch { return true } })()")
        page.click("#theme")
        assert page.get_attribute("html", "data-theme") == "dark"
        assert visible(page) == names(lines)
        page.reload()
        assert page.get_attribute("html", "data-theme") is None


def test_one_of_a_kind_is_no_plural(tmp_path: Path) -> None:
    ask(Odd(), Settings({"cell": {"shapes": ((2, 3),), "each": 1}}, limit=1), tmp_path)
    text = Parsed(write_page(tmp_path).read_text(encoding="utf-8")).text
    assert "1 question of 1 task" in text
    assert "seed 0, at most 1 sample of each task and seed" in text
    assert "of 1 question answered right" in text
    assert "The one sample that was asked." in text
    assert "Show 1 sample" in text
    assert not re.search(r"\b1 (questions|samples|tasks|seeds|replies|pictures)\b", text)


@needs_chromium
def test_filters_show_what_they_say(chromium: Any, folder: Path, lines: list[dict[str, Any]]) -> None:
    everything = names(lines)
    with Visit(chromium, folder) as page:
        assert visible(page) == everything
        page.select_option("[name=task]", "neighbour")
        assert visible(page) == names(lines, task="neighbour")
        page.check("[name=outcome][value=right]", force=True)
        assert visible(page) == names(lines, task="neighbour", outcome="right")
        page.check("[name=outcome][value=several]", force=True)
        several, right = (names(lines, task="neighbour", outcome=each) for each in ("several", "right"))
        assert sorted(visible(page)) == sorted(several + right)
        page.select_option("[name=seed]", "8")
        assert visible(page) == [
            one for one in names(lines, task="neighbour") if one in several + right and "seed 8" in one
        ]
        assert page.inner_text("#count") == f"{len(visible(page))} of {len(everything)} samples"
        page.click("text=Clear")
        page.locator("#list .option:not([hidden])").nth(len(everything) - 1).wait_for(state="attached")
        page.fill("[name=words]", "CANNOT tell")
        prose = [f"{o['id']} seed {o['seed']}" for o in lines if "cannot tell" in o.get("reply", "")]
        assert visible(page) == prose
        page.fill("[name=words]", "no such words anywhere")
        assert visible(page) == []
        assert page.inner_text("#sample") == "No sample fits."
        page.keyboard.press("ArrowDown")


@needs_chromium
def test_the_counts_of_outcomes_lead_to_their_samples(chromium: Any, folder: Path, lines: list[dict[str, Any]]) -> None:
    with Visit(chromium, folder) as page:
        page.click("#outcomes a[data-task=cell][data-outcome=wrong]")
        assert visible(page) == names(lines, task="cell", outcome="wrong")
        page.click("#task-find a[data-task=find]")
        assert visible(page) == names(lines, task="find")
        assert page.evaluate("document.activeElement.id") == "list"


@needs_chromium
def test_samples_are_gone_through_by_keys(chromium: Any, folder: Path, lines: list[dict[str, Any]]) -> None:
    ids = [one["id"] for one in lines if one["outcome"] != "refused"]
    with Visit(chromium, folder) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("location.hash") == "#samples"
        for _ in range(12):
            if page.evaluate("document.activeElement.id") == "list":
                break
            page.keyboard.press("Tab")
            style = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            ring = "getComputedStyle(document.activeElement.nextElementSibling ?? document.body).outlineStyle"
            assert "solid" in (style, page.evaluate(ring)), "focus can be seen"
        assert page.evaluate("document.activeElement.id") == "list", "the list is a few tabs behind the skip link"
        for key, place in (
            *(("ArrowDown", 1), ("ArrowRight", 2), ("ArrowUp", 1), ("ArrowLeft", 0), ("ArrowUp", 0)),
            *(("PageDown", 10), ("End", len(ids) - 1), ("ArrowDown", len(ids) - 1), ("Home", 0)),
        ):
            page.keyboard.press(key)
            assert heading(page) == ids[place], key
            selected = page.eval_on_selector_all("[aria-selected]", "all => all.map(one => one.id)")
            assert selected == [f"option-{place}"]
            assert page.get_attribute("#list", "aria-activedescendant") == f"option-{place}"
        page.keyboard.press("End")
        inside = "one => one.offsetTop >= list.scrollTop && one.offsetTop < list.scrollTop + list.clientHeight"
        assert page.eval_on_selector("[aria-selected]", inside), "the list follows"
        page.click("text=Previous")
        assert heading(page) == ids[-2]
        page.keyboard.press("ArrowLeft")
        assert heading(page) == ids[-3]
        page.focus("[name=outcome][value=wrong]")
        page.keyboard.press("Space")
        assert visible(page) == names(lines, outcome="wrong")


@needs_chromium
def test_a_sample_is_shown_whole(chromium: Any, folder: Path, lines: list[dict[str, Any]]) -> None:
    with Visit(chromium, folder) as page:
        page.select_option("[name=task]", "find")
        record = next(one for one in lines if one["task"] == "find")
        first = page.inner_text("#sample")
        assert "".join(part for part in record["prompt"] if isinstance(part, str)).strip() in first
        assert ", ".join(f"{side:.0f}" for side in record["box"]) in first
        with Image.open(folder / record["pictures"][0]) as picture:
            assert page.get_attribute(".over", "viewBox") == f"0 0 {picture.width} {picture.height}"
        image, over = (page.locator(f"#sample {each}").bounding_box() for each in ("img", ".over"))
        assert image == pytest.approx(over, abs=0.5), "boxes lie on the picture"
        left, top, *_ = record["box"]
        drawn = page.locator(".over rect").first.bounding_box()
        assert drawn["x"] == pytest.approx(image["x"] + left * image["width"] / picture.width, abs=2)
        assert drawn["y"] == pytest.approx(image["y"] + top * image["height"] / picture.height, abs=2)
        page.select_option("[name=task]", "time")
        clip = next(one for one in lines if one["task"] == "time")
        assert page.eval_on_selector_all("#sample img", "all => all.length") == len(clip["pictures"][0]["frames"])
        page.select_option("[name=task]", "moved")
        page.click("#sample dd button")
        group = next(one for one in lines if one["task"] == "moved")
        assert visible(page)[:2] == names(lines, task="moved", group=group["group"])[:2]


@needs_chromium
def test_a_script_in_a_reply_does_not_run(chromium: Any, folder: Path) -> None:
    with Visit(chromium, folder) as page:
        page.fill("[name=words]", "onerror")
        assert visible(page)
        for _ in visible(page):
            assert page.inner_text("#sample .said") == EVIL
            page.press("#list", "ArrowDown")
        assert page.title().startswith("odd <b>&amp;")
        assert page.evaluate("document.scripts.length") == 2
        assert page.eval_on_selector_all("#sample script, #sample [onerror]", "all => all.length") == 0


@needs_chromium
def test_without_javascript_all_figures_are_there(chromium: Any, folder: Path, parsed: Parsed) -> None:
    with Visit(chromium, folder, java_script_enabled=False) as page:
        assert page.locator("#filters").is_hidden()
        assert page.locator("#theme").is_hidden()
        assert page.locator("noscript").inner_text() == "To go through them here needs JavaScript."
        for row in parsed.tables["accuracy by task"][1:]:
            assert page.locator(f"#scores tr:has-text('{row[2]}')").first.is_visible()
        assert page.locator("#task-cell svg").first.is_visible()
        assert page.locator("#task-cell .shown img").first.is_visible()
