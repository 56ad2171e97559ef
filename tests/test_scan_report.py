"""The report of a scan: its figures are those of a recount, names do no harm, and a real browser can use it."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_probe_page import PHONE, WIDE, Parsed, Visit, chromium, needs_chromium

import mrope
from mrope.data import Catalogue, asset, write_scan
from mrope.probes.markup import DARK, LIGHT
from mrope.vision import plan, plan_video

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet")

from mrope.data.scanning.page import histograms  # noqa: E402
from mrope.data.scanning.report import Report, as_markdown, render_report  # noqa: E402
from mrope.data.scanning.tally import PERCENTS, LimitTally, tally  # noqa: E402

__all__ = ["chromium"]  # a fixture

FAMILY, LIMITS = "qwen2.5-vl", (96, 640)
EVIL = "in/<script>document.title='owned'</script>\n| `x` |\t_a_ & \"b\" <img src=x onerror=alert(1)>.png"
BYTES = b"in/caf\xe9.png"
Row = dict[str, Any]


def schema(limits: tuple[Any, ...]) -> Any:
    """The columns of the rows of a scan."""
    pairs = [("source", pa.string()), ("kind", pa.string()), ("bytes", pa.int64()), ("height", pa.int32())]
    pairs += [("width", pa.int32()), ("orientation", pa.int8()), ("frames", pa.int32()), ("seconds", pa.float64())]
    for limit in limits:
        pairs += [(f"tokens_{limit}", pa.int32()), (f"grid_{limit}", pa.list_(pa.int32(), 3))]
    words = [("error", pa.string()), ("reason", pa.string()), ("hash", pa.string())]
    return pa.schema([*pairs, ("flags", pa.list_(pa.string())), *words])


def write(folder: Path, rows: list[Row], *, limits: tuple[Any, ...] = LIMITS, files: int = 3, **more: Any) -> Catalogue:
    """A scan's folder with these rows."""
    for name in ("parts", "rows"):
        (folder / name).mkdir(parents=True)
    known = {"sources": ["photos", "s3://bucket/<b>.tar", "c", "d"], "family": FAMILY, "limits": list(limits)}
    known |= {"hash": True, "version": mrope.__version__, "done": True}
    (folder / "scan.json").write_text(json.dumps(known | more))
    size = max(1, math.ceil(len(rows) / files))
    for number in range(files):
        table = pa.Table.from_pylist(rows[number * size : (number + 1) * size], schema=schema(limits or ("own",)))
        pq.write_table(table, folder / "rows" / f"rows-{number:06d}.parquet", row_group_size=130)
        (folder / "parts" / f"part-{number:06d}.parquet").touch()
    return Catalogue(folder)


def planned(row: Row) -> Row:
    """The row with its plan at each limit, as the planner of single items says."""
    family = mrope.family(FAMILY)
    for limit in LIMITS:
        try:
            if row["kind"] == "clip":
                one = plan_video((row["frames"], row["height"], row["width"]), family, fps=2.0, max_tokens=limit)
            else:
                one = plan((row["height"], row["width"]), family, max_tokens=limit)
        except ValueError as error:
            row |= {"error": " ".join(str(error).split()), "reason": "does not fit"}
            continue
        row |= {f"tokens_{limit}": one.tokens, f"grid_{limit}": list(one.grid)}
    return row


def made() -> list[Row]:
    """1,000 items: pictures, pages and clips of many sizes, broken, thin, turned and repeated ones."""
    noise = np.random.default_rng(5)
    rows: list[Row] = []
    for number in range(1000):
        height, width = (int(side) for side in noise.lognormal((6, 6.4), (0.9, 0.7)).clip(2, 9000))
        kind = "clip" if number % 17 == 3 else "page" if number % 11 == 5 else "picture"
        name = {40: EVIL, 41: BYTES.decode("utf-8", "backslashreplace")}.get(number, f"in/{number:04d}.jpg")
        row: Row = {"source": name, "kind": kind, "bytes": 1000 + number, "orientation": 1, "flags": []}
        row["hash"] = hashlib.sha256(str(number % 940 if number % 3 else number).encode()).hexdigest()
        if number in (40, 500) or number % 50 == 7:
            row |= {"error": f"{name}: broken <b>", "reason": "truncated" if number % 100 == 7 else "not a picture"}
            row |= {"hash": None, "bytes": None}
        else:
            height, width = {41: (8000, 9000), 31: (20, 31), 62: (40, 21)}.get(number, (height, width))
            row |= {"height": height, "width": width}
            if number % 9 == 2:
                row |= {"orientation": 6, "flags": ["turned"]}
            if kind == "clip":
                row |= {"frames": 2 + number % 7, "seconds": 0.25 * (number % 7)}
            if height < 40 or width < 40:
                row["flags"] = [*row["flags"], "tiny"]
            planned(row)
        rows.append(row)
    rows[77] |= {"height": 4, "width": 900}
    for limit in LIMITS:
        rows[77] |= {f"tokens_{limit}": None, f"grid_{limit}": None}
    planned(rows[77])
    return rows


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return made()


@pytest.fixture(scope="module")
def folder(rows: list[Row], tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    kept = write(tmp_path_factory.mktemp("scan"), rows)
    html, markdown = render_report(kept)
    (kept.out / "report.html").write_text(html, encoding="utf-8")
    (kept.out / "report.md").write_text(markdown, encoding="utf-8")
    return kept


def parsed(folder: Catalogue) -> Parsed:
    return Parsed((folder.out / "report.html").read_text(encoding="utf-8"))


# --------------------------------------------------------------------------------------------------------- the recount


def test_totals_and_costs_are_those_of_a_recount(folder: Catalogue, rows: list[Row]) -> None:
    found = tally(folder)
    assert found.items == 1000
    assert found.kinds == Counter(row["kind"] for row in rows)
    assert found.measured == sum(row.get("height") is not None for row in rows)
    assert found.failed == sum(row.get("error") is not None for row in rows)
    assert found.bytes == sum(row["bytes"] or 0 for row in rows)
    assert found.seconds == pytest.approx(sum(row.get("seconds") or 0 for row in rows))
    for limit, one in zip(LIMITS, found.limits, strict=True):
        tokens = sorted(row[f"tokens_{limit}"] for row in rows if row.get(f"tokens_{limit}"))
        assert (one.limit, one.planned, one.tokens) == (str(limit), len(tokens), sum(tokens))
        assert one.unfit == sum(bool(row.get("height")) and not row.get(f"tokens_{limit}") for row in rows) > 0
        for percent, value in one.percentiles:
            assert value in tokens
            share = 100 * sum(each <= value for each in tokens), 100 * sum(each < value for each in tokens)
            assert share[0] >= percent * len(tokens) >= share[1] or percent == 0
        assert [percent for percent, _ in one.percentiles] == list(PERCENTS)
        assert one.worst is not None
        worst = max(rows, key=lambda row: row.get(f"tokens_{limit}") or 0)
        assert (one.worst.name, one.worst.tokens[LIMITS.index(limit)]) == (worst["source"], tokens[-1])
        assert one.bins[0][2] > 0
        assert one.bins[-1][2] > 0
        for (first, end, count, cost), after in zip(one.bins, [*one.bins[1:], None], strict=True):
            within = [each for each in tokens if first <= each < end]
            assert (count, cost) == (len(within), sum(within))
            assert after is None or after[0] == end
            assert end / first in (2, 1.5, 4 / 3)
        assert sum(count for _, _, count, _ in one.bins) == len(tokens)


def test_what_is_downscaled_and_what_is_kept_are_those_of_a_recount(folder: Catalogue, rows: list[Row]) -> None:
    for limit, one in zip(LIMITS, tally(folder).limits, strict=True):
        downscaled = upscaled = shown = whole = 0
        for row in rows:
            if not row.get(f"tokens_{limit}"):
                continue
            height, width = row["height"], row["width"]
            steps, high, wide = row[f"grid_{limit}"]
            own = max(1, round(height / 28)) * max(1, round(width / 28))
            assert steps == (1 if row["kind"] != "clip" else math.ceil(row["frames"] / 2))
            downscaled += row[f"tokens_{limit}"] < own * steps
            upscaled += row[f"tokens_{limit}"] > own * steps
            shown += min(height * width, high * 14 * wide * 14)
            whole += height * width
        assert (one.downscaled, one.upscaled) == (downscaled, upscaled)
        assert min(downscaled, upscaled) > 0
        assert one.kept == pytest.approx(shown / whole, rel=1e-12)


def test_the_oddest_items_are_those_of_a_sort(folder: Catalogue, rows: list[Row]) -> None:
    found = tally(folder)
    sized = [row for row in rows if row.get("height")]

    def first(key: Any) -> list[str]:
        return [row["source"] for row in sorted(sized, key=key)[:10]]  # a sort keeps the order of equals

    assert [one.name for one in found.largest] == first(lambda row: -row["height"] * row["width"])
    assert [one.name for one in found.smallest] == first(lambda row: row["height"] * row["width"])
    thin = first(lambda row: -max(row["height"], row["width"]) / min(row["height"], row["width"]))
    assert [one.name for one in found.thinnest] == thin
    assert (found.thinnest[0].height, found.thinnest[0].width) == (4, 900), "height and width keep their places"
    for kind, classes in (("flags", found.flags), ("reason", found.reasons)):
        words = Counter(word for row in rows for word in (row["flags"] if kind == "flags" else [row.get("reason")]))
        words.pop(None, 0)
        assert {one.word: one.count for one in classes} == words
        for one in classes:
            its = [row for row in rows if one.word in (row["flags"] if kind == "flags" else [row.get("reason")])]
            assert [item.name for item in one.examples] == [row["source"] for row in its[:5]]
            assert [item.error for item in one.examples] == [row.get("error") for row in its[:5]]


def test_copies_are_those_of_a_recount(folder: Catalogue, rows: list[Row]) -> None:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row["hash"] is not None:
            groups.setdefault(row["hash"], []).append(row)
    found = tally(folder).duplicates
    assert found is not None
    twice = [its for its in groups.values() if len(its) > 1]
    assert (found.groups, found.copies) == (len(twice), sum(len(its) - 1 for its in twice))
    assert found.copies > 30
    extra = [row for its in twice for row in its[1:]]
    assert found.tokens == tuple(sum(row.get(f"tokens_{limit}") or 0 for row in extra) for limit in LIMITS)
    shown = sorted(twice, key=lambda its: (-len(its), rows.index(its[0])))[:10]
    assert [one.names for one in found.largest] == [tuple(row["source"] for row in its[:5]) for its in shown]


def test_copies_across_files_and_more_than_a_bucket_are_found(tmp_path: Path) -> None:
    digest = [hashlib.sha256(str(number % 400).encode()).hexdigest() for number in range(1200)]
    rows = [{"source": f"{number}", "kind": "picture", "flags": [], "hash": one} for number, one in enumerate(digest)]
    found = tally(write(tmp_path / "scan", rows, files=7)).duplicates
    assert found is not None
    assert (found.groups, found.copies) == (400, 800)
    assert [one.names for one in found.largest[:2]] == [("0", "400", "800"), ("1", "401", "801")]


def test_figures_do_not_depend_on_how_rows_are_cut_into_files(
    folder: Catalogue, rows: list[Row], tmp_path: Path
) -> None:
    assert (
        tally(write(tmp_path / "one", rows, files=1)) == tally(write(tmp_path / "many", rows, files=9)) == tally(folder)
    )


def test_a_scan_without_limits_family_or_items_has_a_report(tmp_path: Path, rows: list[Row]) -> None:
    bare = write(tmp_path / "bare", [dict(row, hash=None) for row in rows], limits=(), family=None, hash=False)
    html, markdown = render_report(bare)
    assert "measured" in markdown
    assert "What it costs" not in html + markdown
    assert "What is there twice" not in html + markdown
    html, markdown = render_report(write(tmp_path / "empty", []))
    assert "No items" in markdown
    Parsed(html)


def test_the_family_s_own_limit_is_called_so(tmp_path: Path) -> None:
    row = {"source": "a.png", "kind": "picture", "height": 480, "width": 640, "flags": []}
    own = row | {"tokens_own": 391, "grid_own": [1, 34, 46]}
    html, markdown = render_report(write(tmp_path / "own", [own], limits=(), hash=False))
    assert "At the family's own limit" in html
    assert "391 tokens" in html
    assert "640 wide x 480 high" in markdown


def test_a_scan_writes_its_report_and_both_count_alike(tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for name in ("page.png", "chart.png", "photo.jpg"):
        shutil.copy(asset(name), pictures)
    shutil.copy(asset("photo.jpg"), pictures / "same.jpg")
    (pictures / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    found = write_scan(pictures, tmp_path / "scan", family=FAMILY, limits=(640,), hash=True, workers=1)
    told, counted = found.summary(), tally(found)
    (limit,) = counted.limits
    assert (counted.items, counted.failed, dict(counted.kinds)) == (5, 1, told["kinds"])
    assert (limit.planned, limit.tokens) == (told["planned"]["640"], told["tokens"]["640"])
    assert (limit.planned, limit.downscaled) == (4, told["flags"]["downscaled"])
    assert {one.word: one.count for one in counted.flags} == told["flags"]
    assert {one.word: one.count for one in counted.reasons} == told["reasons"]
    assert counted.duplicates is not None
    twice = tuple(str(pictures / name) for name in ("photo.jpg", "same.jpg"))
    assert [one.names for one in counted.duplicates.largest] == [twice]
    html, markdown = render_report(found)
    assert (found.out / "report.html").read_text(encoding="utf-8") == html
    assert (found.out / "report.md").read_text(encoding="utf-8") == markdown


# ---------------------------------------------------------------------------------------------------------- the pages


def test_both_reports_show_the_same_tables(folder: Catalogue) -> None:
    tables = parsed(folder).tables
    text = (folder.out / "report.md").read_text(encoding="utf-8")
    head, *its = tables["Tokens at each limit"]
    assert its[1][:3] == ["640", f"{tally(folder).limits[1].planned:,}", f"{tally(folder).limits[1].tokens:,}"]
    for name, wanted in tables.items():
        if name == "facts":
            continue
        block = text.split(f"{name}:\n\n")[1].split("\n\n")[0].split("\n")
        cells = [re.split(r" \| ", line.removeprefix("| ").removesuffix(" |")) for line in block]
        decoded = [[re.sub(r"&#(\d+);", lambda one: chr(int(one[1])), cell) for cell in row] for row in cells]
        assert [decoded[0], *decoded[2:]] == wanted, name
        assert set(cells[1]) <= {"---", "---:"}
        assert len(head) == len(set(head))


def test_names_do_no_harm(folder: Catalogue) -> None:
    page = parsed(folder)
    assert len(page.scripts) == 1, "the page's own"
    assert not [one for one in page.attributes if one[1].startswith("on")]
    assert {value for tag, name, value in page.attributes if name in ("src", "href")} == {"#cost"}
    text = (folder.out / "report.md").read_text(encoding="utf-8")
    assert "<script" not in text
    assert "<b>" not in text
    name = EVIL.replace("\n", "\\n").replace("\t", "\\t")
    for one in (BYTES.decode("utf-8", "backslashreplace"), name):
        assert any(one in cell for table in page.tables.values() for row in table for cell in row), one


def test_bytes_that_are_no_text_are_shown_as_escapes(tmp_path: Path) -> None:
    """A writer other than ours may have put them into a column of strings."""
    source = pa.StringArray.from_buffers(
        1, pa.py_buffer(np.array([0, len(BYTES)], np.int32).tobytes()), pa.py_buffer(BYTES)
    )
    row = {"kind": "picture", "height": 480, "width": 640, "flags": [], "tokens_own": 391, "grid_own": [1, 34, 46]}
    kept = write(tmp_path / "odd", [{"source": "", **row}], limits=(), files=1, hash=False)
    table = pq.read_table(kept.out / "rows/rows-000000.parquet")
    pq.write_table(table.set_column(0, "source", source), kept.out / "rows/rows-000000.parquet")
    assert tally(kept).largest[0].name == "in/caf\\xe9.png"
    assert "in/caf\\xe9.png" in render_report(kept)[0]


def test_words_that_are_markdown_are_shown_as_they_are() -> None:
    words = "1. *a* _b_ [c](d) | `e` # f\\g IMG_0001.jpg"
    said = as_markdown(Report(title=words, lead="", figures=(), sections=(), facts={}, notes=()))
    first = said.split("\n")[0].removeprefix("# ")
    assert not re.search(r"[*|`\[\]\\<>]", first)
    assert "IMG_0001.jpg" in first


@pytest.mark.parametrize("end", [2, 3, 4096])
def test_one_bin_can_be_drawn(end: int) -> None:
    known: dict[str, Any] = {"limit": "own", "planned": 4, "tokens": 4, "unfit": 0, "downscaled": 0, "upscaled": 0}
    one = LimitTally(**known, kept=None, percentiles=(), bins=((end - 1, end, 4, 4),), worst=None)
    assert "100 %" in histograms([one])


# ------------------------------------------------------------------------------------------------- in a real browser


@needs_chromium
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_any_screen_in_either_light(chromium: Any, folder: Catalogue, size: Any, scheme: str) -> None:
    with Visit(chromium, folder.out, size=size, scheme=scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        paper = "rgb({}, {}, {})".format(*bytes.fromhex((DARK if scheme == "dark" else LIGHT)["paper"][1:]))
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
        assert page.title().startswith("Scan of photos")
        page.click("#theme")
        paper = "rgb({}, {}, {})".format(*bytes.fromhex((LIGHT if scheme == "dark" else DARK)["paper"][1:]))
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper


@needs_chromium
def test_the_bars_are_as_high_as_their_shares(chromium: Any, folder: Catalogue) -> None:
    with Visit(chromium, folder.out) as page:
        for place, limit in enumerate(tally(folder).limits):
            chart = page.locator(".histograms figure").nth(place)
            bars = chart.locator("rect.count")
            heights = bars.evaluate_all("all => all.map(one => one.height.baseVal.value)")
            counts = [count for *_, count, _ in limit.bins]
            assert len(heights) == len(counts)
            scale = max(heights) / max(counts)
            assert heights == pytest.approx([scale * count for count in counts], abs=0.02)
            assert f" {counts[0]:,} items" in (bars.first.locator("title").text_content() or "")


@needs_chromium
def test_the_page_is_used_by_keys(chromium: Any, folder: Catalogue) -> None:
    with Visit(chromium, folder.out, size=PHONE) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("location.hash") == "#cost"
        reached = set()
        for _ in range(20):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.tagName") == "SUMMARY" and "SUMMARY" not in reached:
                page.keyboard.press("Enter")
                assert page.locator("details").get_attribute("open") is not None
            reached.add(page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.tagName"))
        assert {"Tokens at each limit", "Items by their tokens", "Errors by reason"} <= reached


@needs_chromium
def test_without_javascript_all_figures_are_there(chromium: Any, folder: Catalogue) -> None:
    with Visit(chromium, folder.out, java_script_enabled=False) as page:
        assert page.locator("#theme").is_hidden()
        assert page.locator(".histograms svg").first.is_visible()
        assert page.locator("#twice table").is_visible()
