"""Scans into a folder: every kind of source, equal rows whoever does the work, faults, kills, other file systems."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bad_files import pdf
from pictures import encoded, exif, noise
from PIL import Image
from sources import ROOT
from test_clips import pictures as frames_of
from test_clips import video
from typer.testing import CliRunner

import mrope
from mrope.cli import app
from mrope.data import Catalogue, scan_state, write_scan
from mrope.vision import measure_clip, plan, plan_video, scan

QWEN = mrope.family("qwen2.5-vl")


def picture(height: int, width: int, kind: str = "JPEG", **options: Any) -> bytes:
    return encoded(Image.fromarray(noise(height, width)), kind, **options)


def tar_of(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as shard:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            shard.addfile(entry, io.BytesIO(data))
    return file.getvalue()


def rows_of(out: Path) -> list[dict[str, Any]]:
    return [row for batch in Catalogue(out).rows() for row in batch.to_pylist()]


def row_files(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((out / "rows").iterdir())}


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """A small data set: name -> content."""
    return {
        "a.jpg": picture(480, 640),
        "b/turned.png": picture(60, 90, "PNG", exif=exif(6)),
        "b/c.webp": picture(300, 400, "WEBP", lossless=True, exif=exif(3)),
        "clip.mp4": video(frames_of(9, 48, 64), rate=Fraction(3)),
        "deep/er/large.png": picture(700, 300, "PNG"),
        "empty.jpg": b"",
        "pages.pdf": pdf((b"", b""), box=(0, 0, 300, 200)),
        "text.jpg": b"no picture at all",
        "thin.jpg": picture(8, 3000),
    }


@pytest.fixture
def folder(files: dict[str, bytes], tmp_path: Path) -> Path:
    return put(tmp_path / "set", files)


def put(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


# ----------------------------------------------------------------------------------------------------------- what is in


def test_rows_are_what_plans_say(folder: Path, files: dict[str, bytes], tmp_path: Path) -> None:
    found = write_scan(folder, tmp_path / "out", family=QWEN, limits=(100, 5), workers=1)
    rows = {row["source"].removeprefix(f"{folder}/"): row for batch in found.rows() for row in batch.to_pylist()}
    names = ["a.jpg", "clip.mp4", "empty.jpg", "pages.pdf, page 1", "pages.pdf, page 2", "text.jpg", "thin.jpg",
             "b/c.webp", "b/turned.png", "deep/er/large.png"]  # fmt: skip
    assert list(rows) == names  # a folder's own files, then those below it, each by name
    for name in ("a.jpg", "b/c.webp", "b/turned.png", "deep/er/large.png"):
        row, planned = rows[name], plan(folder / name, QWEN, max_tokens=100)
        assert (row["height"], row["width"], row["orientation"]) == (*planned.original, planned.orientation)
        assert (row["tokens_100"], tuple(row["grid_100"])) == (planned.tokens, planned.grid)
        assert (row["bytes"], row["kind"], row["error"], row["frames"]) == (len(files[name]), "picture", None, None)
    # By hand: 480 x 640 at 100 tokens of 28 pixels: sqrt(480 * 640 / 78400) = 1.98, so 8 x 11 tokens; 5: 1 x 2.
    assert (rows["a.jpg"]["tokens_100"], rows["a.jpg"]["grid_100"]) == (88, [1, 16, 22])
    assert (rows["a.jpg"]["tokens_5"], rows["a.jpg"]["flags"]) == (2, ["downscaled"])
    assert (rows["b/turned.png"]["height"], rows["b/turned.png"]["width"]) == (90, 60)
    assert rows["b/turned.png"]["flags"] == ["turned", "downscaled"]
    # 300 x 200 points at 200 dpi.
    page = rows["pages.pdf, page 2"]
    assert (page["height"], page["width"], page["kind"], page["bytes"]) == (556, 833, "page", None)
    assert page["tokens_100"] == plan((556, 833), QWEN, max_tokens=100).tokens
    clip = rows["clip.mp4"]
    assert (clip["kind"], clip["frames"], clip["height"], clip["width"], clip["seconds"]) == ("clip", 9, 48, 64, 3.0)
    planned = plan_video(folder / "clip.mp4", QWEN, max_tokens=100, min_tokens=1)
    assert (clip["tokens_100"], tuple(clip["grid_100"])) == (planned.tokens, planned.grid)
    thin = rows["thin.jpg"]
    assert (thin["tokens_100"], thin["grid_5"], thin["reason"]) == (None, None, "does not fit")
    assert thin["flags"] == ["tiny", "extreme-ratio"]
    assert "3000 wide x 8 high is 375.0 to 1" in thin["error"]
    assert [(rows[name]["reason"], rows[name]["height"]) for name in ("empty.jpg", "text.jpg")] == [
        ("empty", None),
        ("not a picture", None),
    ]
    totals = found.summary()
    assert (totals["items"], totals["errors"]) == (10, 3)
    assert totals["reasons"] == {"does not fit": 1, "empty": 1, "not a picture": 1}
    assert totals["tokens"]["5"] == sum(row["tokens_5"] or 0 for row in rows.values())
    assert totals["planned"] == {"100": 7, "5": 7}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "parts", "report.html", "report.md", "rows", "scan.json",
    ]  # fmt: skip


def test_the_familys_own_limit_and_no_family(folder: Path, tmp_path: Path) -> None:
    own = write_scan(folder / "a.jpg", tmp_path / "own", family="qwen2.5-vl")
    assert own.limits == ("own",)
    assert rows_of(own.out)[0]["tokens_own"] == 391  # 17 x 23
    bare = write_scan(folder / "a.jpg", tmp_path / "bare")
    assert bare.limits == ()
    (row,) = rows_of(bare.out)
    assert (row["height"], row["width"], [name for name in row if "tokens" in name]) == (480, 640, [])


@pytest.mark.parametrize("name", mrope.family_names())
def test_every_family_plans_as_it_does_alone(name: str, folder: Path, tmp_path: Path) -> None:
    family = mrope.family(name)
    write_scan(folder, tmp_path / "out", family=family, workers=1)
    rows = {row["source"]: row for row in rows_of(tmp_path / "out")}
    for one in scan(str(folder / "**" / "*.*[gp]"), family, on_error="keep"):
        row = rows[one.name]
        assert row["tokens_own"] == (None if one.plan is None else one.plan.tokens)
        assert row["grid_own"] == (None if one.plan is None else list(one.plan.grid))
        assert one.error is None or row["error"] in one.error
    clip, size = rows[str(folder / "clip.mp4")], measure_clip(folder / "clip.mp4")
    assert (clip["frames"], clip["height"], clip["width"]) == (size.frames, size.height, size.width)
    if clip["reason"] is None:
        assert clip["tokens_own"] == plan_video(folder / "clip.mp4", family).tokens
        return
    with pytest.raises(ValueError, match=re.escape(clip["error"])):
        plan_video(folder / "clip.mp4", family)


def test_hashes_tell_what_is_there_twice(files: dict[str, bytes], tmp_path: Path) -> None:
    data = files["a.jpg"]
    put(tmp_path / "set", {"1.jpg": data, "2.jpg": data, "p.pdf": files["pages.pdf"], "c.mp4": files["clip.mp4"]})
    (tmp_path / "set" / "s.tar").write_bytes(tar_of({"x.jpg": data}))
    sources = [tmp_path / "set", tmp_path / "set" / "s.tar"]
    rows = rows_of(write_scan(sources, tmp_path / "out", family=QWEN, hash=True, workers=1).out)
    told = {row["source"].removeprefix(f"{tmp_path}/set/"): row["hash"] for row in rows}
    picture_hash = hashlib.sha256(data).hexdigest()
    assert [told[name] for name in ("1.jpg", "2.jpg", "s.tar/x.jpg")] == [picture_hash] * 3
    assert told["c.mp4"] == hashlib.sha256(files["clip.mp4"]).hexdigest()
    assert told["p.pdf, page 1"] == hashlib.sha256(files["pages.pdf"] + b", page 1").hexdigest()
    assert len(set(told.values())) == 4


def test_names_that_are_no_utf8(files: dict[str, bytes], tmp_path: Path) -> None:
    place = os.fsencode(tmp_path / "set")
    os.mkdir(place)
    with open(place + b"/\xff<b>\n.jpg", "wb") as file:
        file.write(files["a.jpg"])
    (row,) = rows_of(write_scan(tmp_path / "set", tmp_path / "out", family=QWEN).out)
    assert row["source"] == f"{tmp_path}/set/\\udcff<b>\n.jpg"
    assert (row["height"], row["error"]) == (480, None)


def test_relative_sources_count_from_where_the_scan_began(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    found = write_scan(["a.jpg", "b"], tmp_path / "out", family=QWEN, workers=2)
    assert [row["source"] for row in rows_of(found.out)] == ["a.jpg", "b/c.webp", "b/turned.png"]
    monkeypatch.chdir(tmp_path)
    put(tmp_path, {"a.jpg": b"x", "b/x.jpg": b""})
    with pytest.raises(ValueError, match=r"with folder .*set"):
        write_scan(["a.jpg", "b"], tmp_path / "out", family=QWEN)


# --------------------------------------------------------------------------------------------------------------- tables


def test_a_jsonl_file_in_ranges(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrope.data.scanning.sources.PART", 2)
    table = folder / "t.jsonl"
    lines = [
        b'\xef\xbb\xbf{"pic": "a.jpg"}',
        b'{"pic": ["b/c.webp", "b/turned.png"]}',
        b"",
        b"{broken",
        b'{"pic": "gone.jpg"}',
        b'{"pic": 5}',
        b'{"pic": "pages.pdf"}',
        b'{"pic": "clip.mp4"}',
    ]
    for end in (b"", b"\n", b"\r\n"):
        table.write_bytes(b"\r\n".join(lines) + end)
        out = tmp_path / f"out{len(end)}"
        rows = rows_of(write_scan(table, out, family=QWEN, column="pic", workers=1).out)
        assert [row["source"].removeprefix(f"{folder}/") for row in rows] == [
            "a.jpg", "b/c.webp", "b/turned.png", "t.jsonl:4", "gone.jpg", "t.jsonl:6", "pages.pdf, page 1",
            "pages.pdf, page 2", "clip.mp4",
        ]  # fmt: skip
        assert [row["reason"] for row in rows] == [None, None, None, "no path", "not found", "no path"] + [None] * 3
        assert len(row_files(out)) == 4
        assert "column 'pic' is 5" in rows[5]["error"]


@pytest.mark.parametrize("group", [2, 3, 100])
def test_a_parquet_file_of_paths_bytes_and_both(
    group: int, folder: Path, files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrope.data.scanning.sources.PART", 2)
    names = ["a.jpg", "b/turned.png", "pages.pdf", "gone.jpg", "clip.mp4", "thin.jpg", "deep/er/large.png"]
    data = [files.get(name) for name in names]
    columns = {
        "path": pa.array(names),
        "bytes": pa.array(data, pa.binary()),
        "both": pa.array([{"bytes": one, "path": name} for one, name in zip(data, names, strict=True)]),
        "many": pa.array([[{"bytes": one, "path": None}] * 2 if one else [] for one in data]),
    }
    table = folder / "t.parquet"
    pq.write_table(pa.table(columns), table, row_group_size=group)
    sizes = {}
    for column in columns:
        rows = rows_of(write_scan(table, tmp_path / column, family=QWEN, column=column, workers=1).out)
        sizes[column] = [(row["height"], row["width"], row["kind"]) for row in rows]
        if column == "path":
            assert [row["source"] for row in rows if row["reason"]] == [f"{folder}/gone.jpg", f"{folder}/thin.jpg"]
        if column == "bytes":
            assert next(row["source"] for row in rows if row["reason"]) == f"{table}:4"
            assert rows[2]["source"] == f"{table}:3, page 1"
            assert rows[0]["bytes"] == len(files["a.jpg"])
        if column == "many":
            assert [row["source"] for row in rows[:2]] == [f"{table}:1, 1", f"{table}:1, 2"]
    expected = [
        (480, 640, "picture"), (90, 60, "picture"), (556, 833, "page"), (556, 833, "page"), (None, None, "picture"),
        (48, 64, "clip"), (8, 3000, "picture"), (700, 300, "picture"),
    ]  # fmt: skip
    assert sizes["path"] == sizes["both"] == expected
    assert sizes["bytes"][:5] == expected[:5]  # nothing says that the fifth picture is a clip
    assert sizes["many"][::2][:2] == [(480, 640, "picture"), (90, 60, "picture")]
    with pytest.raises(ValueError, match=r"column is 'image', and .*t\.parquet has path, bytes, both, many"):
        write_scan(table, tmp_path / "other", family=QWEN)
    assert not (tmp_path / "other").exists()


def test_tables_that_shrank_or_broke_since_they_were_listed_are_errors(folder: Path, tmp_path: Path) -> None:
    from mrope.data.scanning.sources import parts_of
    from mrope.data.scanning.store import begin, write_part, write_parts

    (folder / "t.jsonl").write_text('{"image": "a.jpg"}\n{"image": "b/c.webp"}\n')
    pq.write_table(pa.table({"image": ["a.jpg", "b/c.webp"]}), folder / "t.parquet")
    (folder / "u.parquet").write_bytes((folder / "t.parquet").read_bytes())
    (folder / "s.tar").write_bytes(tar_of({"0.jpg": b"x"}))
    sources = [str(folder / name) for name in ("t.jsonl", "t.parquet", "u.parquet", "s.tar")]
    settings = {"sources": sources, "folder": None, "column": "image", "family": None, "limits": [], "hash": False}
    begin(tmp_path / "out", settings | {"done": False})
    write_parts(tmp_path / "out", parts_of(sources, "image"))
    (folder / "t.jsonl").write_text('{"image": "a.jpg"}\n')
    pq.write_table(pa.table({"image": ["a.jpg"]}), folder / "t.parquet")
    (folder / "u.parquet").write_bytes(b"PAR1 no more")
    (folder / "s.tar").unlink()
    assert [write_part(tmp_path / "out", number) for number in (0, 1)] == [4, 1]
    rows = [
        row for number in (0, 1) for row in pq.read_table(tmp_path / f"out/rows/rows-00000{number}.parquet").to_pylist()
    ]
    assert [row["reason"] for row in rows] == [None, "cut short", "cut short", "not a picture", "not found"]
    assert "ends before line 2" in rows[1]["error"]
    assert "ends at row 1" in rows[2]["error"]


def test_a_table_without_the_field_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "t.jsonl").write_text('{broken\n[3]\n\n{"pic": "a.jpg"}\n{"text": "x", "pic": null}\n')
    with pytest.raises(ValueError, match=r"column is 'image', and .*t\.jsonl has pic, text; expected one of these"):
        write_scan(folder / "t.jsonl", tmp_path / "out", family=QWEN)
    with pytest.raises(ValueError, match=r"column is 'picc', and .*t\.jsonl has pic, text"):
        write_scan(folder / "*.jsonl", tmp_path / "out", family=QWEN, column="picc")
    assert not (tmp_path / "out").exists()
    # A later row has it; the others are errors.
    rows = rows_of(write_scan(folder / "t.jsonl", tmp_path / "out", family=QWEN, column="text", workers=1).out)
    assert [row["reason"] for row in rows] == ["no path"] * 3 + ["not found"]


def test_a_column_without_a_table_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="column is 'pic', and no JSONL or Parquet file came; drop it"):
        write_scan([folder, folder / "a.jpg"], tmp_path / "out", family=QWEN, column="pic")
    assert not (tmp_path / "out").exists()


def test_a_broken_parquet_file_among_sources_is_one_error(folder: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": ["a.jpg", "b/c.webp"]}), folder / "t.parquet")
    whole = (folder / "t.parquet").read_bytes()
    broken = {"cut": whole[:-30], "few": b"PAR1", "foot": whole[:-60] + bytes(40) + whole[-20:], "none": b""}
    for name, data in broken.items():
        (folder / f"{name}.parquet").write_bytes(data)
    sources = [folder / f"{name}.parquet" for name in (*broken, "t")]
    rows = rows_of(write_scan(sources, tmp_path / "out", family=QWEN, workers=1).out)
    assert [row["source"].removeprefix(f"{folder}/") for row in rows] == [
        "cut.parquet", "few.parquet", "foot.parquet", "none.parquet", "a.jpg", "b/c.webp",
    ]  # fmt: skip
    assert [(row["height"], row["reason"] is None) for row in rows] == [(None, False)] * 4 + [(480, True), (300, True)]


# --------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize("damage", ["hole", "header", "lost bytes", "two in one"])
def test_a_damaged_shard_does_not_lose_items_without_a_word(
    damage: str, files: dict[str, bytes], tmp_path: Path
) -> None:
    whole = tar_of({"0.jpg": files["a.jpg"], "1.png": files["deep/er/large.png"], "2.jpg": files["a.jpg"]})
    at = whole.index(b"1.png")
    data, end, message = {
        "hole": (whole[:at] + bytes(512) + whole[at + 512 :], 1, f"data behind the end of the shard, .* byte {at},"),
        "header": (whole[:at] + b"\xaa" * 512 + whole[at + 512 :], 1, f"no header at byte {at},"),
        "lost bytes": (whole[:at] + whole[at + 700 :], 1, f"no header at byte {at},"),
        "two in one": (whole + whole, 3, "data behind the end of the shard"),
    }[damage]
    names = ["0.jpg", "1.png", "2.jpg"][:end]
    for name, packed in (("s.tar", data), ("s.tgz", gzip.compress(data))):
        (tmp_path / name).write_bytes(packed)
        found = write_scan(tmp_path / name, tmp_path / f"out-{name}", family=QWEN, workers=1)
        *rows, last = rows_of(found.out)
        assert [row["source"] for row in rows] == [f"{tmp_path}/{name}/{one}" for one in names]
        assert {row["error"] for row in rows} == {None}
        assert (last["source"], last["reason"]) == (f"{tmp_path}/{name}", "broken")
        assert re.search(message, last["error"])
        assert found.summary()["errors"] == 1


@pytest.mark.parametrize("kind", ["gz", "xz", "bz2"])
def test_a_packed_shard_with_a_wrong_checksum_is_told(kind: str, files: dict[str, bytes], tmp_path: Path) -> None:
    import importlib

    package = pytest.importorskip({"xz": "lzma"}.get(kind, kind)) if kind != "gz" else importlib.import_module("gzip")
    members = {"0.jpg": files["a.jpg"], "1.png": files["deep/er/large.png"]}
    packed = bytearray(package.compress(tar_of(members)))
    packed[{"gz": -6, "xz": -40, "bz2": len(packed) // 2}[kind]] ^= 1
    (tmp_path / f"s.tar.{kind}").write_bytes(packed)
    rows = rows_of(write_scan(tmp_path / f"s.tar.{kind}", tmp_path / "out", family=QWEN, workers=1).out)
    assert rows[-1]["source"] == f"{tmp_path}/s.tar.{kind}"
    assert rows[-1]["error"] is not None
    if kind == "gz":
        assert [row["height"] for row in rows] == [480, 700, None]
        assert "CRC check failed" in rows[-1]["error"]


def test_shards_and_tables_in_folders_are_counted(folder: Path, files: dict[str, bytes], tmp_path: Path) -> None:
    put(folder, {"b/s.tar": tar_of({"0.jpg": files["a.jpg"]}), "b/t.TAR": b"", "b/u.tar.gz": b"", "m.jsonl": b"{}"})
    found = write_scan(folder, tmp_path / "out", family=QWEN, workers=1)
    left = {".jsonl": 1, ".tar": 2, ".tar.gz": 1}
    assert (found.summary()["items"], found.summary()["left_out"]) == (10, left)
    line = "1 .jsonl, 2 .tar, 1 .tar.gz in folders; name or glob them"
    assert f"not looked at: {line}" in (found.out / "report.md").read_text().replace("&#39;", "'")
    told = CliRunner().invoke(app, ["scan", str(folder), "--family", QWEN.name, "--out", str(found.out)])
    assert f"not looked at: {line}\n" in told.stdout
    assert write_scan(folder / "b" / "s.tar", tmp_path / "named", family=QWEN).summary()["left_out"] == {}
    with pytest.raises(ValueError, match=r"shards is a folder without pictures, .*, with 1 \.tar to name or glob;"):
        write_scan(put(tmp_path / "shards", {"s.tar": b""}), tmp_path / "other", family=QWEN)
    assert not (tmp_path / "other").exists()


def test_shards_in_folders_of_other_file_systems_are_counted(files: dict[str, bytes], tmp_path: Path) -> None:
    system = pytest.importorskip("fsspec").filesystem("memory")
    system.pipe_file("/left/a.jpg", files["a.jpg"])
    system.pipe_file("/left/b/s.tar", tar_of({"0.jpg": files["a.jpg"]}))
    found = write_scan("memory://left", tmp_path / "out", family=QWEN, workers=1)
    assert (found.summary()["items"], found.summary()["left_out"]) == (1, {".tar": 1})


def test_errors_name_no_option_that_a_scan_lacks(folder: Path, tmp_path: Path) -> None:
    rows = rows_of(write_scan(folder / "thin.jpg", tmp_path / "thin", family=QWEN, limits=(64,)).out)
    assert rows[0]["error"].endswith("the limit is 200 to 1; crop it")
    (folder / "long.png").write_bytes(picture(28, 28 * 150, "PNG"))
    rows = rows_of(write_scan(folder / "long.png", tmp_path / "long", family=QWEN, limits=(8,)).out)
    assert (rows[0]["reason"], rows[0]["flags"]) == ("does not fit", ["over-limit"])
    assert re.search(r"max_tokens=\d+ would do$", rows[0]["error"])


def test_columns_that_a_scan_lacks_are_refused(folder: Path, tmp_path: Path) -> None:
    found = write_scan(folder / "a.jpg", tmp_path / "out", family=QWEN, limits=(64,))
    wrong: Any
    for wrong, word in ((["source", "foo"], "foo"), ("source", "source"), (["tokens_65"], "tokens_65")):
        with pytest.raises(ValueError, match=rf"columns is .*, with '{word}'; expected a list of source, kind, .*hash"):
            found.rows(wrong)
    assert [batch.schema.names for batch in found.rows(["width", "height"])] == [["width", "height"]]


def test_a_shard_that_is_cut_short_gives_what_lies_before_the_cut(files: dict[str, bytes], tmp_path: Path) -> None:
    members = {"0.jpg": files["a.jpg"], "0.json": b"{}", "1.png": files["deep/er/large.png"], "2.jpg": files["a.jpg"]}
    whole = tar_of(members)
    second = whole.index(b"1.png")
    for cut, named in ((second + 512 + 200_000, ["0.jpg", "1.png", ""]), (second + 100, ["0.jpg", ""])):
        (tmp_path / "s.tar").write_bytes(whole[:cut])
        out = tmp_path / f"out{cut}"
        rows = rows_of(write_scan(tmp_path / "s.tar", out, family=QWEN).out)
        assert [row["source"] for row in rows] == [f"{tmp_path}/s.tar/{name}".rstrip("/") for name in named]
        assert [row["reason"] for row in rows] == [None] + ["cut short"] * (len(named) - 1)
        assert "broken shard" in rows[-1]["error"]


def test_a_shard_without_pictures_and_one_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "s.tar").write_bytes(tar_of({"0.txt": b"x"}))
    (tmp_path / "t.tar").write_bytes(b"no tar")
    rows = rows_of(write_scan(str(tmp_path / "{s,t}.tar"), tmp_path / "out", family=QWEN, workers=1).out)
    assert [(row["source"], row["height"]) for row in rows] == [(f"{tmp_path}/{name}.tar", None) for name in "st"]
    assert "without pictures" in rows[0]["error"]
    assert "broken shard" in rows[1]["error"]


def test_a_compressed_shard_is_read_and_its_cut_is_told(files: dict[str, bytes], tmp_path: Path) -> None:
    members = {"0.jpg": files["a.jpg"], "1.png": files["deep/er/large.png"], "2.pdf": files["pages.pdf"]}
    packed = gzip.compress(tar_of(members | {"3.mp4": files["clip.mp4"]}), mtime=0)
    (tmp_path / "s.tgz").write_bytes(packed)
    (tmp_path / "t.tar.gz").write_bytes(packed[: len(packed) // 2])
    sources = [tmp_path / "s.tgz", tmp_path / "t.tar.gz"]
    rows = rows_of(write_scan(sources, tmp_path / "out", family=QWEN, workers=1).out)
    assert [(row["source"].removeprefix(f"{tmp_path}/"), row["height"], row["reason"]) for row in rows] == [
        ("s.tgz/0.jpg", 480, None),
        ("s.tgz/1.png", 700, None),
        ("s.tgz/2.pdf, page 1", 556, None),
        ("s.tgz/2.pdf, page 2", 556, None),
        ("s.tgz/3.mp4", 48, None),
        ("t.tar.gz/0.jpg", 480, None),
        ("t.tar.gz/1.png", None, "cut short"),
        ("t.tar.gz", None, "cut short"),
    ]


def test_two_scans_of_one_folder_at_once_are_refused(folder: Path, tmp_path: Path) -> None:
    from mrope.data.scanning.store import alone

    (tmp_path / "out").mkdir()
    with alone(tmp_path / "out"), pytest.raises(OSError, match="out is in use by another scan"):
        write_scan(folder, tmp_path / "out", family=QWEN, workers=1)
    assert write_scan(folder, tmp_path / "out", family=QWEN, workers=1).done


def test_a_scan_of_nothing_is_done(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text("")
    assert write_scan(tmp_path / "t.jsonl", tmp_path / "out", family=QWEN).summary()["items"] == 0
    (tmp_path / "u.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="holds a scan with sources"):
        write_scan(tmp_path / "u.jsonl", tmp_path / "out", family=QWEN)


def test_what_vanishes_or_never_ends_is_a_row_with_an_error(folder: Path, tmp_path: Path) -> None:
    from mrope.data.scanning.store import rows_path

    os.mkfifo(folder / "pipe.jpg")
    (folder / "z.jpg").symlink_to("nowhere")
    out = tmp_path / "out"
    write_scan(folder, out, family=QWEN)
    (folder / "a.jpg").unlink()
    rows_path(out, 0).unlink()  # as if the scan had been stopped between listing and reading
    settings = json.loads((out / "scan.json").read_text())
    (out / "scan.json").write_text(json.dumps(settings | {"done": False}))
    rows = {Path(row["source"]).name: row for row in rows_of(write_scan(folder, out, family=QWEN).out)}
    assert rows["a.jpg"]["reason"] == rows["z.jpg"]["reason"] == "not found"
    assert rows["pipe.jpg"]["reason"] == "not a picture"
    assert len(rows) == 12


@pytest.mark.parametrize(
    "source", ["none", "none/*.jpg", "none.tar", "none.parquet", "empty", "a-{0..2}.jpg", "memory://none"]
)
def test_a_source_that_never_was_is_refused_before_anything_is_written(source: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a-0.jpg").write_bytes(picture(30, 40))
    sources = [tmp_path / "a-0.jpg", source if "://" in source else tmp_path / source]
    with pytest.raises((OSError, ValueError), match=r"No such file|without pictures|none"):
        write_scan(sources, tmp_path / "out", family=QWEN)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limits": (25, 25)}, "limits are .*; expected each once"),
        ({"limits": (0,)}, "limits is 0; expected at least 1"),
        ({"limits": (3,)}, "limits has 3; expected at least 4, the least of qwen2.5-vl"),
        ({"family": "qwen9"}, "unknown family 'qwen9'"),
        ({"family": None, "limits": (5,)}, "family is None"),
        ({"workers": 0}, "workers is 0"),
        ({"address": "auto"}, "address is 'auto', and engine is 'local'"),
        ({"sources": []}, "sources is empty"),
        ({"hash": "no"}, "hash is 'no'; expected True or False|'hash'"),
        ({"out": "s3://bucket/out"}, "out is s3://bucket/out; expected a folder"),
    ],
)
def test_wrong_settings_are_told_in_one_line(settings: Any, message: str, folder: Path, tmp_path: Path) -> None:
    words = {"sources": [folder], "out": tmp_path / "out", "family": QWEN} | settings
    with pytest.raises((ValueError, TypeError), match=message):
        write_scan(words.pop("sources"), words.pop("out"), **words)
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_scan_or_of_other_files_is_refused(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_scan(folder, out, family=QWEN, limits=(64,))
    before = row_files(out)
    for settings, message in (
        ({"family": QWEN, "limits": (65,)}, r"with limits \[64\], not \[65\]"),
        ({"family": "qwen3-vl", "limits": (64,)}, r'with family "qwen2.5-vl", not "qwen3-vl"'),
        ({"family": QWEN, "limits": (64,), "hash": True}, "with hash false, not true"),
    ):
        with pytest.raises(ValueError, match=message):
            write_scan(folder, out, **settings)
    with pytest.raises(ValueError, match="with sources"):
        write_scan(folder / "a.jpg", out, family=QWEN, limits=(64,))
    write_scan(folder, out, family=QWEN, limits=(64,))
    assert row_files(out) == before
    with pytest.raises(ValueError, match="a folder with other files"):
        write_scan(folder / "a.jpg", folder, family=QWEN)
    with pytest.raises(ValueError, match="no folder of a scan"):
        Catalogue(folder)


def test_arguments_of_other_kinds_are_named(folder: Path, tmp_path: Path) -> None:
    usual: dict[str, Any] = {"sources": folder, "out": tmp_path / "out", "family": QWEN}
    cases: dict[str, Any] = {"sources": None, "out": None, "limits": 64}
    for name, value in cases.items():
        with pytest.raises(TypeError, match=rf"{name} is {value}; expected|parameter '{name}'"):
            write_scan(**(usual | {name: value}))
    assert not (tmp_path / "out").exists()


def test_rows_of_an_unfinished_scan_are_refused(folder: Path, tmp_path: Path) -> None:
    from mrope.data.scanning.sources import parts_of
    from mrope.data.scanning.store import begin, write_parts

    settings = {
        "sources": [str(folder)],
        "folder": None,
        "column": "image",
        "family": None,
        "limits": [],
        "hash": False,
    }
    begin(tmp_path / "out", settings | {"done": False})
    with pytest.raises(ValueError, match="not done, its sources not listed yet"):
        Catalogue(tmp_path / "out").rows()
    write_parts(tmp_path / "out", parts_of([str(folder)], "image"))
    assert scan_state(tmp_path / "out") == (0, 1)
    with pytest.raises(ValueError, match="not done, 0 of 1 parts done"):
        Catalogue(tmp_path / "out").summary()


# ------------------------------------------------------------------------------------------------- other file systems


@pytest.fixture(scope="module")
def bucket(files: dict[str, bytes]) -> Iterator[str]:
    """The data set on an S3-like server of its own."""
    pytest.importorskip("moto", reason="moto is not installed: pip install 'moto[server]'")
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("s3fs")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    words = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    before = {name: os.environ.get(name) for name in words}
    os.environ |= words
    try:
        for _ in range(300):
            with socket.socket() as asked:
                if asked.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert server.poll() is None
            time.sleep(0.1)
        system = fsspec.filesystem("s3")
        system.mkdir("set")
        for name, data in files.items():
            system.pipe_file(f"set/data/{name}", data)
        yield "s3://set"
    finally:
        server.kill()
        server.wait()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def facts(row: dict[str, Any], place: str) -> dict[str, Any]:
    return row | {"source": row["source"].removeprefix(place)}


def test_a_bucket_gives_the_rows_of_a_folder(bucket: str, folder: Path, tmp_path: Path) -> None:
    here = rows_of(write_scan(folder, tmp_path / "here", family=QWEN, limits=(64, 1000), hash=True, workers=1).out)
    there = rows_of(
        write_scan(f"{bucket}/data", tmp_path / "there", family=QWEN, limits=(64, 1000), hash=True, workers=1).out
    )
    assert [facts(row, f"{bucket}/data/") for row in there] == [facts(row, f"{folder}/") for row in here]
    bare = rows_of(write_scan(f"{bucket}/data", tmp_path / "bare", family=QWEN, limits=(64, 1000), workers=1).out)
    assert [row | {"hash": None} for row in there] == bare


def test_shards_tables_and_globs_of_a_bucket(bucket: str, files: dict[str, bytes], tmp_path: Path) -> None:
    import fsspec

    system = fsspec.filesystem("s3")
    large = picture(1200, 900, quality=98)
    system.pipe_file("set/more/s.tar", tar_of({"0.jpg": large, "1.png": files["deep/er/large.png"], "2.jpg": large}))
    system.pipe_file("set/more/cut.tar", tar_of({"0.jpg": large, "1.jpg": large})[:-400_000])
    system.pipe_file("set/more/t.jsonl", b'{"image": "../data/a.jpg"}\n{"image": "gone.jpg"}\n{"image": "large.jpg"}\n')
    system.pipe_file("set/more/large.jpg", large)
    table = io.BytesIO()
    pq.write_table(pa.table({"image": [f"{bucket}/data/a.jpg", "large.jpg"]}), table)
    system.pipe_file("set/more/t.parquet", table.getvalue())
    names = ("s.tar", "cut.tar", "t.jsonl", "t.parquet", "*.jpg")
    sources = [f"{bucket}/more/{name}" for name in names]
    rows = [
        facts(row, f"{bucket}/") for row in rows_of(write_scan(sources, tmp_path / "out", family=QWEN, workers=1).out)
    ]
    assert [(row["source"], row["height"], row["width"], row["reason"]) for row in rows] == [
        ("more/s.tar/0.jpg", 1200, 900, None),
        ("more/s.tar/1.png", 700, 300, None),
        ("more/s.tar/2.jpg", 1200, 900, None),
        ("more/cut.tar/0.jpg", 1200, 900, None),
        ("more/cut.tar/1.jpg", None, None, "cut short"),
        ("more/cut.tar", None, None, "cut short"),
        ("data/a.jpg", 480, 640, None),
        ("more/gone.jpg", None, None, "not found"),
        ("more/large.jpg", 1200, 900, None),
        ("data/a.jpg", 480, 640, None),
        ("more/large.jpg", 1200, 900, None),
        ("more/large.jpg", 1200, 900, None),
    ]
    assert [row["bytes"] for row in rows if row["source"] == "more/large.jpg"] == [len(large)] * 3


def test_a_server_that_is_gone_stops_the_scan_which_goes_on_later(
    tmp_path: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    system = MemoryFileSystem()
    for name in ("a.jpg", "b/c.webp"):
        system.pipe_file(f"/gone/{name}", files[name])
    monkeypatch.setattr("mrope.data.scanning.remote._PAUSES", (0.0, 0.0))
    asked = []

    def lost(self: Any, path: str, **words: Any) -> bytes:
        asked.append(path)
        raise RuntimeError("no route to host")

    with monkeypatch.context() as broken:
        broken.setattr(MemoryFileSystem, "cat_file", lost)
        with pytest.raises(OSError, match=r"memory://.*no route to host"):
            write_scan("memory://gone", tmp_path / "out", family=QWEN, workers=1)
    assert len(asked) == 2 * 3
    assert scan_state(tmp_path / "out") == (0, 1)
    assert [row["height"] for row in rows_of(write_scan("memory://gone", tmp_path / "out", family=QWEN).out)] == [
        480,
        300,
    ]


def test_only_the_header_of_a_file_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    system, fetched = MemoryFileSystem(), []
    late = picture(900, 1300, "PNG")
    data = {"large.jpg": picture(1500, 1800, quality=99), "large.png": late, "wide.bmp": picture(700, 900, "BMP")}
    assert min(map(len, data.values())) > 1_500_000
    for name, content in data.items():
        system.pipe_file(f"/set/{name}", content)
    whole = MemoryFileSystem.cat_file

    def counted(self: Any, path: str, start: int | None = None, end: int | None = None, **words: Any) -> bytes:
        found = whole(self, path, start=start, end=end, **words)
        fetched.append((path, len(found)))
        return found

    monkeypatch.setattr(MemoryFileSystem, "cat_file", counted)
    rows = rows_of(write_scan("memory://set", tmp_path / "out", family=QWEN, workers=1).out)
    assert [(row["height"], row["width"]) for row in rows] == [(1500, 1800), (900, 1300), (700, 900)]
    assert [row["bytes"] for row in rows] == [len(content) for content in data.values()]
    assert sorted(fetched) == [(f"/set/{name}", 1 << 16) for name in sorted(data)]


def test_files_of_a_web_server_without_ranges(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        lines = [{"image": f"{url}/{name}"} for name in ("a.jpg", "gone.jpg", "pages.pdf", "b/turned.png")]
        (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
        sources = [tmp_path / "t.jsonl", f"{url}/deep/er/large.png"]
        rows = rows_of(write_scan(sources, tmp_path / "out", family=QWEN, workers=1).out)
        server.shutdown()
    assert [(row["source"].removeprefix(url), row["height"], row["reason"]) for row in rows] == [
        ("/a.jpg", 480, None),
        ("/gone.jpg", None, "not found"),
        ("/pages.pdf, page 1", 556, None),
        ("/pages.pdf, page 2", 556, None),
        ("/b/turned.png", 90, None),
        ("/deep/er/large.png", 700, None),
    ]


def test_members_of_an_archive_by_url(folder: Path, files: dict[str, bytes], tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    here = rows_of(write_scan(folder, tmp_path / "here", family=QWEN, workers=1).out)
    there = rows_of(write_scan(f"zip::{tmp_path}/set.zip", tmp_path / "there", family=QWEN, workers=1).out)
    assert there[0]["source"] == f"zip://a.jpg::{tmp_path}/set.zip"
    assert [row | {"source": 0} for row in there] == [row | {"source": 0} for row in here]


# -------------------------------------------------------------------------------------------------- workers and kills

SMALL_PARTS = """
import sys
import mrope.data.scanning.sources as sources
sources.PART = 50
from mrope.cli import main
sys.argv[0] = "mrope"
main()
"""


@pytest.fixture(scope="module")
def many(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,000 names of a few files, in 40 parts for `SMALL_PARTS`."""
    folder = put(tmp_path_factory.mktemp("many"), {name: files[name] for name in ("a.jpg", "b/turned.png", "text.jpg")})
    names = sorted(path for path in folder.rglob("*") if path.is_file())
    (folder / "links").mkdir()
    for number in range(2000):
        os.link(names[number % len(names)], folder / "links" / f"{number:05d}{names[number % len(names)].suffix}")
    return folder / "links"


@pytest.fixture(scope="module")
def expected(many: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The rows of `many` by one process that nobody stops."""
    out = tmp_path_factory.mktemp("expected") / "out"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("mrope.data.scanning.sources.PART", 50)
        write_scan(many, out, family=QWEN, limits=(64,), workers=1)
    found = row_files(out)
    assert len(found) == 40
    return found


def started(many: Path, out: Path) -> subprocess.Popen[str]:
    """The command, with two workers, in a session of its own."""
    command = f"scan {many} --family qwen2.5-vl --limits 64 --out {out} --workers 2".split()
    return subprocess.Popen(
        [sys.executable, "-c", SMALL_PARTS, *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_parts(process: subprocess.Popen[str], out: Path, parts: int) -> None:
    end = time.monotonic() + 120
    while not (out / "rows").is_dir() or len(list((out / "rows").glob("*.parquet"))) < parts:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.005)


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def killing(out: Path, killed: list[int], most: int, parts: int) -> Iterator[None]:
    """Kill workers of a scan of this process, once so many parts are done."""
    stop = threading.Event()

    def kill() -> None:
        while not stop.is_set() and len(killed) < most:
            for pid in children(os.getpid()):
                with suppress(OSError):
                    ours = str(out).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
                    if ours and pid not in killed and len(list((out / "rows").glob("*.parquet"))) >= parts:
                        os.kill(pid, signal.SIGKILL)
                        killed.append(pid)
                        break
            stop.wait(0.005)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        stop.set()
        killer.join()


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")


@needs_proc
def test_a_scan_whose_processes_are_killed_ends_with_the_same_bytes(
    many: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = started(many, out)
    wait_for_parts(first, out, 2)
    first.kill()  # its workers end with it
    first.communicate()
    done, parts = scan_state(out)
    assert parts == 40
    assert 2 <= done < 40
    killed: list[int] = []
    with pytest.MonkeyPatch.context() as patched, killing(out, killed, 1, done + 2):
        patched.setattr("mrope.data.scanning.sources.PART", 7)  # what is listed stays listed
        found = write_scan(many, out, family=QWEN, limits=(64,), workers=2)
    assert len(killed) == 1
    assert (found.summary()["items"], found.summary()["reasons"]) == (2000, {"not a picture": 666})
    assert row_files(out) == expected


@needs_proc
def test_a_part_that_always_ends_its_worker_stops_the_scan(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrope.data.scanning.sources.PART", 50)
    killed: list[int] = []
    told = pytest.raises(OSError, match=r"part \d+ ended its worker 3 times, at last with exit code -9")
    with killing(tmp_path / "out", killed, 1000, 0), told:
        write_scan(many, tmp_path / "out", family=QWEN, limits=(64,), workers=2)
    assert 3 <= len(killed) <= 6
    assert scan_state(tmp_path / "out") == (0, 40)


@needs_proc
def test_an_interrupt_leaves_a_folder_that_goes_on(many: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = started(many, out)
    wait_for_parts(process, out, 3)
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (130, "")
    done, parts = scan_state(out)
    assert stderr == (
        f"mrope scan: stopped; {out} holds {done} of {parts} parts, and the same command goes on from there\n"
    )
    assert list((out / "rows").glob("*.tmp")) == []
    write_scan(many, out, family=QWEN, limits=(64,), workers=1)
    assert row_files(out) == expected


def test_a_full_disk_stops_the_scan_which_goes_on_when_there_is_room(
    many: Path, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr("mrope.data.scanning.sources.PART", 50)
    out, words = tmp_path / "out", {"family": QWEN, "limits": (64,), "workers": 1}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max(map(len, expected.values())) - 1, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_scan(many, out, **words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert scan_state(out)[0] < 40
    assert list((out / "rows").glob("*.tmp")) == []
    write_scan(many, out, **words)
    assert row_files(out) == expected


def test_the_command_prints_totals(folder: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mrope",
        "scan",
        str(folder),
        "--family",
        "qwen2.5-vl",
        "--out",
        str(tmp_path / "o"),
    ]
    run = subprocess.run([*command, "--limits", "100,5", "--json"], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    told = json.loads(run.stdout)
    assert (told["items"], told["errors"], told["limits"]) == (10, 3, [100, 5])
    assert told["tokens"] == Catalogue(tmp_path / "o").summary()["tokens"]
    wrong = CliRunner().invoke(app, [*command[3:], "--limits", "9,x"])
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert wrong.stderr.endswith("scan: --limits is 'x'; expected numbers of tokens, such as 1280,4096\n")


def test_the_benchmark_runs_on_few_files(tmp_path: Path) -> None:
    target = tmp_path / "rows.json"
    command = [sys.executable, ROOT / "benchmarks" / "scan.py", "--quick", "--json", target]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(target.read_text())
    assert [(row["files"], row["contender"]) for row in found["headers"]] == [
        (kind, contender) for kind in ("JPEG", "PNG") for contender in ("Pillow + smart_resize", "mrope scan")
    ]
    assert [row["workers"] for row in found["workers"]] == [1, 2]
    assert [row["count"] for row in found["memory"]] in ([1000, 3000], [])
    for row in (row for rows in found.values() for row in rows):
        assert row["goal"] is None  # so small a run judges none
        assert row["ratio"] > 0
        assert row["commit"]
    assert "times as fast" in done.stdout
