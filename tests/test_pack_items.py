"""Items in rows: by hand, beside textbook algorithms and the optimum, a million at once, and from a scan's folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sources import ROOT
from typer.testing import CliRunner

import mrope.cli
from mrope import Image, Video
from mrope.data import PackedItems, pack_items, pack_scan, write_scan
from mrope.vision import plan

ALGORITHMS = ("best-fit", "first-fit", "next-fit")
SOME = st.lists(st.integers(1, 20), max_size=40)


def mix(items: int, seed: int = 0) -> np.ndarray:
    """Tokens of the realistic mix: lognormal with median 600 and sigma 1, clipped to 16..16384."""
    return np.random.default_rng(seed).lognormal(np.log(600), 1, items).round().clip(16, 16384).astype(np.int64)


def rows_of(packed: PackedItems) -> list[list[int]]:
    return [packed.row(number).tolist() for number in range(len(packed))]


def textbook(tokens: Sequence[int], capacity: int, algo: str) -> list[list[int]]:
    """The plain loops: each item looks at all rows."""
    rows: list[list[int]] = []
    items = sorted(range(len(tokens)), key=lambda item: -tokens[item]) if algo == "best-fit" else range(len(tokens))
    for item in items:
        room = [capacity - sum(tokens[each] for each in row) for row in rows]
        fits = [row for row in range(len(rows)) if room[row] >= tokens[item]]
        if algo == "next-fit":
            fits = [row for row in fits if row == len(rows) - 1]
        if not fits:
            rows.append([item])
        elif algo == "best-fit":
            rows[min(fits, key=lambda row: room[row])].append(item)
        else:
            rows[fits[0]].append(item)
    return rows


def fewest(tokens: Sequence[int], capacity: int) -> int:
    """The optimum, over all ways to put items into rows."""

    def least(item: int, rooms: tuple[int, ...]) -> int:
        if item == len(tokens):
            return len(rooms)
        length, found = tokens[item], least(item + 1, tuple(sorted((*rooms, capacity - tokens[item]))))
        for place in range(len(rooms)):
            if rooms[place] >= length:
                left = tuple(sorted((*rooms[:place], rooms[place] - length, *rooms[place + 1 :])))
                found = min(found, least(item + 1, left))
        return found

    return least(0, ())


# ---------------------------------------------------------------------------------------------------------- the rows


def test_rows_worked_by_hand() -> None:
    tokens = [2, 9, 4, 6, 3, 6, 1]  # of 10
    assert rows_of(pack_items(tokens, 10)) == [[0], [1], [2, 5], [3, 4, 6]]  # 9, 6, 6+4, 6+3, then 2 finds no room
    assert rows_of(pack_items(tokens, 10, "first-fit")) == [[0, 2, 4, 6], [1], [3], [5]]
    assert rows_of(pack_items(tokens, 10, "next-fit")) == [[0], [1], [2, 3], [4, 5, 6]]


def test_facts_of_rows() -> None:
    packed = pack_items(np.array([3, 12, 6, 5, 4, 2, 11], np.int32), 10, too_long="skip")
    assert rows_of(packed) == [[0, 3, 5], [2, 4]]
    assert (len(packed), packed.fill, packed.left_out.tolist()) == (2, 1.0, [1, 6])
    assert (packed.bounds.tolist(), packed.lengths.tolist()) == ([0, 3, 5], [3, 5, 2, 6, 4])
    assert packed.tokens.tolist() == [10, 10]
    with pytest.raises(IndexError, match="row is 2; expected 0 to 1"):
        packed.row(2)


def test_nothing_makes_no_rows() -> None:
    for tokens, left in (([], []), ([11, 12], [0, 1])):
        for algo in ALGORITHMS:
            packed = pack_items(tokens, 10, algo, too_long="skip")
            assert (len(packed), packed.fill, packed.tokens.tolist()) == (0, 0.0, [])
            assert packed.left_out.tolist() == left


@pytest.mark.parametrize("algo", ALGORITHMS)
@given(tokens=SOME, capacity=st.integers(1, 24))
def test_each_item_comes_once_and_no_row_runs_over(algo: Any, tokens: list[int], capacity: int) -> None:
    packed = pack_items(tokens, capacity, algo, too_long="skip")
    assert sorted([*packed.items.tolist(), *packed.left_out.tolist()]) == list(range(len(tokens)))
    assert packed.left_out.tolist() == [item for item, length in enumerate(tokens) if length > capacity]
    rows = rows_of(packed)
    assert packed.tokens.tolist() == [sum(tokens[item] for item in row) for row in rows]
    assert all(0 < total <= capacity for total in packed.tokens)
    assert packed.lengths.tolist() == [tokens[item] for row in rows for item in row]
    assert all(row == sorted(row) for row in rows)
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    again = pack_items(np.array(tokens, np.int32), capacity, algo, too_long="skip")
    assert rows_of(again) == rows


@pytest.mark.parametrize("algo", ALGORITHMS)
@given(tokens=st.lists(st.integers(1, 12), max_size=40), capacity=st.integers(12, 30))
def test_rows_are_those_of_the_textbook(algo: Any, tokens: list[int], capacity: int) -> None:
    expected, rows = textbook(tokens, capacity, algo), rows_of(pack_items(tokens, capacity, algo))
    if algo == "best-fit":  # rows with the same room are as good as one another, and so are items of one length
        totals = [[sum(tokens[item] for item in row) for row in each] for each in (rows, expected)]
        assert sorted(totals[0]) == sorted(totals[1])
    else:
        assert rows == expected


@given(tokens=st.lists(st.integers(1, 12), max_size=7), capacity=st.integers(12, 20))
def test_rows_are_few_beside_the_optimum(tokens: list[int], capacity: int) -> None:
    best = fewest(tokens, capacity)
    assert best <= len(pack_items(tokens, capacity)) <= 11 / 9 * best + 1
    assert best <= len(pack_items(tokens, capacity, "first-fit")) <= 1.7 * best
    assert best <= len(pack_items(tokens, capacity, "next-fit")) <= max(2 * best - 1, 0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("items", [100, 10_000])
def test_best_fit_needs_no_more_rows_than_the_others_on_a_mix(items: int, seed: int) -> None:
    best, first, following = (len(pack_items(mix(items, seed), 32768, algo)) for algo in ALGORITHMS)
    assert best <= first <= following


def test_an_order_can_be_better_than_best_fit() -> None:
    """No rule that looks at lengths alone is the best for all: next-fit is, where the order is that of an optimum."""
    assert rows_of(pack_items([2, 2, 4, 2, 3, 3], 8, "next-fit")) == [[0, 1, 2], [3, 4, 5]]
    assert len(pack_items([2, 2, 4, 2, 3, 3], 8)) == 3


def test_a_million_items_fill_their_rows() -> None:
    tokens = mix(1_000_000)
    packed = pack_items(tokens, 32768)
    assert packed.fill > 0.97
    assert len(packed) == -(-int(tokens.sum()) // 32768)  # as many rows as the tokens alone need
    assert np.array_equal(np.sort(packed.items), np.arange(1_000_000))
    assert packed.tokens.max() <= 32768


def calls(work: Callable[[], object]) -> int:
    """How many functions `work` calls, those written in C included."""
    number = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return number


@pytest.mark.parametrize("spread", ["mix", "all different"])
def test_work_grows_with_the_items(spread: str) -> None:
    def work(items: int) -> int:
        tokens = mix(items) if spread == "mix" else np.random.default_rng(0).permutation(items) + 1
        return calls(lambda: pack_items(tokens, 32768))

    few, many = work(8_000), work(32_000)
    assert many < 4.4 * few
    assert many < 6 * 32_000  # for each item, a row found, taken and put back at most


# -------------------------------------------------------------------------------------------------------- wrong input


@pytest.mark.parametrize(
    ("tokens", "row_tokens", "words", "told"),
    [
        (
            [3, 11, 12],
            10,
            {},
            r"tokens\[1\] is 11, and 2 of 3 items are longer than row_tokens 10; expected longer rows",
        ),
        ([3, 0, -1], 10, {}, r"tokens\[2\] is -1; expected at least 1"),
        ([3, 0], 10, {}, r"tokens\[1\] is 0; expected at least 1"),
        (np.array([1.0, 2.0]), 10, {}, "tokens are float64 of shape|tokens"),
        (np.ones((2, 3), np.int64), 10, {}, r"tokens are int64 of shape \(2, 3\)|tokens"),
        ([True, False], 10, {}, "tokens are bool of shape"),
        (["3"], 10, {}, "tokens are <U1 of shape|tokens"),
        ([1 << 70], 10, {}, "tokens are object of shape"),
        (np.array([3, 1 << 63], np.uint64), 10, {}, r"tokens\[1\] is 9223372036854775808; expected less than 2\*\*63"),
        ([3], 0, {}, "row_tokens is 0; expected at least 1"),
        ([3], 1.5, {}, "row_tokens is 1.5; expected a whole number|row_tokens"),
        ([3], 10, {"algo": "worst-fit"}, "algo is 'worst-fit'; expected one of best-fit, first-fit, next-fit|algo"),
        ([3], 10, {"too_long": "cut"}, "too_long is 'cut'; expected one of error, skip|too_long"),
    ],
)
def test_wrong_input_is_refused(tokens: Any, row_tokens: Any, words: dict[str, Any], told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=told):
        pack_items(tokens, row_tokens, **words)


# ------------------------------------------------------------------------------------------------- a scan in its folder

QWEN = mrope.family("qwen2-vl")
GRIDS = [(1, 4, 6), (3, 2, 8), (1, 8, 2), (1, 2, 2), (2, 6, 4), (1, 2, 20)]  # patches; 6, 12, 4, 1, 12 and 10 tokens
SPANS = [Image(grid) if grid[0] == 1 else Video(grid) for grid in GRIDS]
COLUMNS = {"source": "string", "tokens_64": "int32", "tokens_own": "int32", "error": "string", "reason": "string"}


def scan_of(
    out: Path, rows: Sequence[dict[str, Any]], *, limits: Sequence[str] = ("64", "own"), part: int = 2, **settings: Any
) -> Path:
    """A folder as a scan leaves it, with `part` rows a part."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    for name in ("parts", "rows"):
        (out / name).mkdir(parents=True)
    for number, first in enumerate(range(0, len(rows), part)):
        table = pa.Table.from_pylist(rows[first : first + part], pa.schema(list(COLUMNS.items())))
        pyarrow.parquet.write_table(table, out / "rows" / f"rows-{number:06d}.parquet")
        (out / "parts" / f"part-{number:06d}.parquet").touch()
    facts = {"family": "qwen2-vl", "limits": list(limits), "done": True, "totals": {}, **settings}
    (out / "scan.json").write_text(json.dumps(facts))
    return out


@pytest.fixture
def scan(tmp_path: Path) -> Path:
    """Six pictures and clips; a seventh cannot be read, an eighth has no plan at one limit, a ninth is long."""
    tokens = [QWEN.positions([span]).length for span in SPANS]
    rows = [
        {"source": f"{number}.jpg", "tokens_64": each, "tokens_own": 2 * each} for number, each in enumerate(tokens)
    ]
    rows[3:3] = [{"source": "bad.jpg", "error": "bad.jpg: no picture", "reason": "not a picture"}]
    rows += [{"source": "thin.jpg", "tokens_own": 7}, {"source": "long.mp4", "tokens_64": 40, "tokens_own": 50}]
    return scan_of(tmp_path / "scan", rows)


def run(*arguments: object, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(mrope.cli.app, ["pack", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def test_items_of_a_scan_are_packed(scan: Path) -> None:
    found = pack_scan(scan, 17, limit="64", overhead=2)
    assert found.items == 9
    # 8, 14, 6, none, 3, 14 and 12 tokens, with two more each; 3 fit beside 14, beside 12, and beside 8 and 6
    assert rows_of(found.packed) == [[0, 2, 4], [1], [5], [6]]
    assert found.packed.left_out.tolist() == [8]
    assert found.left_out == {"no tokens": 1, "not a picture": 1, "longer than a row": 1}
    assert found.sources(found.packed.left_out) == ["long.mp4"]
    assert found.sources(np.array([0, 3, 4])) == ["0.jpg", "bad.jpg", "3.jpg"]
    own = pack_scan(str(scan), 50, limit="own")
    assert len(own.packed.items) == 8
    assert own.left_out == {"not a picture": 1}


def test_the_file_holds_what_the_positions_engine_makes(scan: Path, tmp_path: Path) -> None:
    import pyarrow.parquet

    spans = dict(zip((0, 1, 2, 4, 5, 6), SPANS, strict=True))
    pack_scan(scan, 27, limit=64, overhead=2).write(tmp_path / "new" / "rows.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "new" / "rows.parquet")
    rows = table.to_pylist()
    assert [row["row"] for row in rows] == list(range(len(rows)))
    assert len(rows) == 3
    for row in rows:
        documents = [QWEN.positions(["text:1", spans[item], "text:1"]) for item in row["items"]]
        packed = mrope.pack(documents)
        assert packed.cu_seqlens.tolist() == row["cu_seqlens"]
        assert [each.length for each in documents] == np.diff(row["cu_seqlens"]).tolist()
        assert packed.ids.shape == (3, row["tokens"])
    facts = json.loads(table.schema.metadata[b"mrope.pack"])
    assert facts["left_out"] == {"no tokens": 1, "not a picture": 1, "longer than a row": 1}
    assert {name: facts[name] for name in ("row_tokens", "algo", "limit", "overhead", "items")} == {
        "row_tokens": 27, "algo": "best-fit", "limit": "64", "overhead": 2, "items": 9,
    }  # fmt: skip
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["rows.parquet"]


def test_a_scan_of_pictures_becomes_rows(tmp_path: Path) -> None:
    import pyarrow.parquet

    pictures = tmp_path / "pictures"
    pictures.mkdir()
    sizes = [(60, 90), (200, 120), (500, 300), (64, 512), (90, 60), (333, 222)]  # height, width
    for number, (height, width) in enumerate(sizes):
        PIL.Image.new("RGB", (width, height)).save(pictures / f"{number}.png")
    (pictures / "4b.png").write_text("no picture")
    write_scan(pictures, tmp_path / "scan", family="qwen2-vl", limits=(16, 64), workers=1)
    run(tmp_path / "scan", "--row-tokens", 90, "--limit", 64, "--out", tmp_path / "rows.parquet")
    seen: list[int] = []
    for row in pyarrow.parquet.read_table(tmp_path / "rows.parquet").to_pylist():
        plans = [plan(sizes[item - (item > 5)], QWEN, max_tokens=64) for item in row["items"]]
        packed = mrope.pack([QWEN.positions([Image(each.grid)]) for each in plans])
        assert packed.cu_seqlens.tolist() == row["cu_seqlens"]
        assert packed.ids.shape[1] == row["tokens"] <= 90
        seen += row["items"]
    assert sorted(seen) == [0, 1, 2, 3, 4, 6]  # the sixth is no picture


def test_many_rows_are_written_in_pieces(tmp_path: Path) -> None:
    import pyarrow.parquet

    tokens = mix(20_000).tolist()
    rows = [{"source": str(number), "tokens_64": each} for number, each in enumerate(tokens)]
    pack_scan(scan_of(tmp_path / "scan", rows, part=7000), 2500, limit=64).write(tmp_path / "rows.parquet")
    written = pyarrow.parquet.ParquetFile(tmp_path / "rows.parquet")
    assert written.num_row_groups > 1
    found = written.read().to_pylist()
    assert [row["row"] for row in found] == list(range(len(found)))
    for row in found:
        lengths = [tokens[item] for item in row["items"]]
        assert row["cu_seqlens"] == [0, *accumulate(lengths)]
        assert row["tokens"] == sum(lengths) <= 2500
    packed = sorted(item for row in found for item in row["items"])
    assert packed == [number for number, each in enumerate(tokens) if each <= 2500]


def test_the_command_says_what_the_rows_come_to(scan: Path, tmp_path: Path) -> None:
    arguments = (scan, "--row-tokens", 17, "--limit", 64, "--overhead", 2)
    out, _ = run(*arguments, "--out", tmp_path / "rows.parquet")
    assert out.splitlines() == [
        "6 of 9 items in 4 rows of 17 tokens",
        f"{100 * 57 / 68:.2f} % full, 1.5 items a row; best-fit, limit 64",
        "left out: 1 no tokens",
        "left out: 1 not a picture",
        "left out: 1 longer than a row",
        "  item 8: long.mp4",
        f"wrote {tmp_path / 'rows.parquet'}",
    ]
    told = json.loads(run(*arguments, "--algo", "next-fit", "--json")[0])
    assert told["left_out"] == {"no tokens": 1, "not a picture": 1, "longer than a row": 1}
    assert (told["rows"], told["packed"], told["too_long"], told["tokens"]) == (5, 6, [8], 57)
    assert told["fill"] == pytest.approx(57 / 85)


def test_long_items_beyond_ten_are_counted(tmp_path: Path) -> None:
    rows = [{"source": f"{number}.jpg", "tokens_64": 5 + number} for number in range(15)]
    out, _ = run(scan_of(tmp_path / "scan", rows, limits=["64"]), "--row-tokens", 5)
    assert out.splitlines()[0] == "1 of 15 items in 1 row of 5 tokens"
    assert out.splitlines()[-2:] == ["  item 10: 10.jpg", "  and 4 more; --json lists all"]


def test_what_cannot_be_packed_is_refused(scan: Path, tmp_path: Path) -> None:
    for arguments, told in (
        ((scan, "--row-tokens", 50, "--limit", 64, "--out", tmp_path), f"{tmp_path} is a folder; expected the path"),
        ((tmp_path, "--row-tokens", 50), "is no folder of a scan; expected one that `mrope scan` wrote"),
        ((scan, "--row-tokens", 50), "limit is not given, and"),
        ((scan, "--row-tokens", 50), "expected one of 64, own"),
        ((scan, "--row-tokens", 50, "--limit", 128), "limit is 128;"),
        ((scan, "--row-tokens", 50, "--limit", 128), "has 64, own"),
        ((scan, "--row-tokens", 0, "--limit", 64), "row_tokens is 0; expected at least 1"),
        ((scan, "--row-tokens", 50, "--limit", 64, "--overhead", -1), "overhead is -1; expected at least 0"),
        (
            (scan, "--row-tokens", 3, "--limit", 64, "--overhead", 3),
            "row_tokens is 3; the shortest of 7 items takes 4, 3 of them overhead",
        ),
    ):
        out, err = run(*arguments, code=2)
        assert out == ""
        assert err.startswith("mrope pack: ")
        assert told in err
        assert len(err.splitlines()) == 1


def test_scans_without_anything_to_pack_are_refused(tmp_path: Path) -> None:
    rows = [{"source": "a.jpg", "error": "a.jpg: no such file", "reason": "not found"}]
    scan = scan_of(tmp_path / "bad", rows)
    with pytest.raises(ValueError, match="has nothing to pack at limit own: 1 not found"):
        pack_scan(scan, 10, limit="own")
    with pytest.raises(ValueError, match="has nothing to pack at limit own: no items at all"):
        pack_scan(scan_of(tmp_path / "empty", []), 10, limit="own")
    with pytest.raises(ValueError, match="is not done, 1 of 1 parts done; run the same `mrope scan` to go on"):
        pack_scan(scan_of(tmp_path / "begun", rows, done=False), 10, limit="own")
    with pytest.raises(ValueError, match="has no tokens to pack by; scan with a family"):
        pack_scan(scan_of(tmp_path / "plain", rows, limits=[], family=None), 10)


def test_the_benchmark_compares_rows_and_ranks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    import scan_packing

    found = scan_packing.measured(quick=True)
    scan_packing.print_measured(found)
    printed = capsys.readouterr().out
    rows = {row["contender"]: row["rows"] for row in found["packing"] if "skipped" not in row}
    assert rows[scan_packing.BEST] == rows[scan_packing.LOOP] <= rows[scan_packing.STREAM] <= rows[scan_packing.NEXT]
    assert all(name in printed for name in rows)
    worst = {row["contender"]: row["worst"] for row in found["balance"]}
    assert worst[scan_packing.BALANCED] < 0.03 < worst[scan_packing.RANDOM]
