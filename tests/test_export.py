"""Exported shards hold what `patchify` makes, whoever reads them; stopped exports end with the same bytes."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import webdataset
from bad_files import pdf
from every_family import config_of
from pictures import exif
from sources import ROOT
from test_clips import pictures as frames_of
from test_clips import video
from test_data_scan import picture, put, row_files, rows_of, tar_of
from torch.utils.data import DataLoader

import mrope
from mrope.cli import app
from mrope.data import Catalogue, Exported, ExportedItems, exported_item, pack_scan, write_export, write_scan
from mrope.hf import Collator
from mrope.vision import Patches, normalize, patchify, patchify_video, pdf_pages, unpatchify

QWEN = mrope.family("qwen2.5-vl")
MOST = 64


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """A small data set: name -> content."""
    whole = picture(480, 640)
    return {
        "a.jpg": picture(300, 420),
        "cut.jpg": whole[: len(whole) // 2],  # its header says all, its pixels end
        "clip.mp4": video(frames_of(9, 48, 64), rate=Fraction(3)),
        "pages.pdf": pdf((b"", b"0 0 1 rg 20 40 200 90 re f"), box=(0, 0, 300, 200)),
        "text.jpg": b"no picture at all",
        "turned.png": picture(60, 200, "PNG", exif=exif(6)),
    }


@pytest.fixture
def folder(files: dict[str, bytes], tmp_path: Path) -> Path:
    return put(tmp_path / "set", files)


def shard_files(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((out / "shards").iterdir())}


def all_files(out: Path) -> dict[str, bytes]:
    return {**row_files(out), **shard_files(out)}


def by_name(items: ExportedItems, folder: Path) -> dict[str, Exported]:
    made = [items[number] for number in items.numbers.tolist()]
    return {item.source.removeprefix(f"{folder}/"): item for item in made}


def clip_of(path: Path, family: mrope.Family, most: int | None, **options: Any) -> Patches:
    """The patches of a clip; a limit below the least of the family lowers that."""
    try:
        return patchify_video(path, family, max_tokens=most, **options)
    except ValueError:
        return patchify_video(path, family, max_tokens=most, min_tokens=1, **options)


def assert_equal(got: Patches, wanted: Patches) -> None:
    assert got.values.dtype == torch.uint8
    assert torch.equal(got.values, wanted.values)
    assert torch.equal(got.grids, wanted.grids)
    assert got.plans == wanted.plans
    assert (got.mean, got.std, got.order) == (wanted.mean, wanted.std, wanted.order)


# ------------------------------------------------------------------------------------------------------ what is written


@pytest.mark.parametrize("name", ["qwen2.5-vl", "qwen3-vl", "minicpm-v4.7", "cohere-compass", "hunyuan-vl"])
def test_what_is_read_back_is_what_patchify_makes(name: str, folder: Path, tmp_path: Path) -> None:
    family = mrope.family(name)
    (folder / "large.png").write_bytes(picture(700, 1500, "PNG"))
    most = None if name == "minicpm-v4.7" else 300
    out = write_export(folder, tmp_path / "out", family=family, max_tokens=most, workers=1).out
    items = ExportedItems(out)
    found = by_name(items, folder)
    wanted = {
        name: patchify(folder / name, family, max_tokens=most, dtype="uint8")
        for name in ("a.jpg", "large.png", "turned.png")
    }
    for page in pdf_pages(folder / "pages.pdf"):
        wanted[f"pages.pdf, page {page.number}"] = patchify(page, family, max_tokens=most, dtype="uint8")
    if family.sampling is not None:
        wanted["clip.mp4"] = clip_of(folder / "clip.mp4", family, most, dtype="uint8")
    assert found.keys() == wanted.keys()
    for one, patches in wanted.items():
        assert_equal(found[one].patches, patches)
        assert items.tokens[items.numbers].tolist()[list(found).index(one)] == patches.plans[0].tokens
    (page,) = unpatchify(found["pages.pdf, page 2"].patches)[:1]
    assert page.shape[1] != page.shape[2]
    assert (page[2] > page[0]).any()  # the blue rectangle


def test_what_cannot_be_decoded_is_a_row_with_an_error(folder: Path, tmp_path: Path) -> None:
    found = write_export(folder, tmp_path / "out", family=QWEN, max_tokens=MOST, workers=1)
    rows = {row["source"].removeprefix(f"{folder}/"): row for row in rows_of(found.out)}
    assert list(rows) == ["a.jpg", "clip.mp4", "cut.jpg", "pages.pdf, page 1", "pages.pdf, page 2", "text.jpg",
                          "turned.png"]  # fmt: skip
    cut, text, good = rows["cut.jpg"], rows["text.jpg"], rows["a.jpg"]
    assert (cut["reason"], cut["height"], cut["width"]) == ("cut short", 480, 640)
    assert [cut[name] for name in (f"tokens_{MOST}", f"grid_{MOST}", "shard", "offset")] == [None] * 4
    assert (text["reason"], text["shard"]) == ("not a picture", None)
    assert (good["error"], good["shard"], good["offset"]) == (None, "shard-000000-000.tar", 0)
    totals = found.summary()
    assert (totals["items"], totals["errors"], totals["reasons"]) == (7, 2, {"cut short": 1, "not a picture": 1})
    assert totals["tokens"][str(MOST)] == sum(row[f"tokens_{MOST}"] or 0 for row in rows.values())
    items = ExportedItems(found.out)
    assert (len(items), items.numbers.tolist(), items.tokens[[2, 5]].tolist()) == (7, [0, 1, 3, 4, 6], [0, 0])
    with pytest.raises(ValueError, match=r"item 2 has no patches: its row in .*rows says why"):
        items[2]
    with pytest.raises(IndexError, match="number is 7; expected 0 to 6"):
        items[7]
    packed = pack_scan(found.out, 200)
    assert sorted(packed.packed.items.tolist()) == [0, 1, 3, 4, 6]


def test_shards_are_plain_tars_of_no_time_and_no_owner(folder: Path, tmp_path: Path) -> None:
    out = write_export(folder / "turned.png", tmp_path / "out", family=QWEN, max_tokens=MOST, workers=1).out
    with tarfile.open(out / "shards" / "shard-000000-000.tar") as shard:
        values, words = shard.getmembers()
        assert [values.name, words.name] == ["000000-000000.patches.npy", "000000-000000.json"]
        assert {(one.mtime, one.uid, one.gid, one.uname, one.mode) for one in (values, words)} == {(0, 0, 0, "", 0o644)}
        array, told = (cast(Any, shard.extractfile(one)).read() for one in (values, words))
    array, told = np.load(io.BytesIO(array)), json.loads(told)
    # 200 x 60 upright at 64 tokens of 28: 7 x 2 tokens of 2 x 2 patches of 3 * 14 * 14 bytes.
    assert (array.dtype, array.shape) == (np.uint8, (56, 588))
    assert (told["source"], told["kind"], told["labels"]) == (str(folder / "turned.png"), "picture", None)
    assert (told["plan"]["original"], told["plan"]["orientation"]) == ([200, 60], 6)
    assert told["plan"]["parts"][0]["grid"] == [1, 14, 4]


def test_a_part_goes_on_in_another_shard_where_one_is_full(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = write_export(folder, tmp_path / "one", family=QWEN, max_tokens=MOST, workers=1).out
    monkeypatch.setattr("mrope.data.feeding.export.SHARD", 40_000)
    several = write_export(folder, tmp_path / "several", family=QWEN, max_tokens=MOST, workers=1).out
    names = list(shard_files(several))
    assert names[:2] == ["shard-000000-000.tar", "shard-000000-001.tar"]
    assert len(names) > 2
    whole, parts = ExportedItems(one), ExportedItems(several)
    for number in whole.numbers.tolist():
        assert_equal(parts[number].patches, whole[number].patches)
        assert parts[number].key == whole[number].key == f"000000-{number:06d}"


# --------------------------------------------------------------------------------------------------------- who reads it


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("decoded", [True, False])
def test_the_package_webdataset_reads_the_same(folder: Path, tmp_path: Path, decoded: bool) -> None:
    put(tmp_path, {"s.tar": tar_of({"x.png": picture(90, 200, "PNG"), "x.json": b'{"text": "x"}'})})
    sources = [folder / "a.jpg", folder / "turned.png", tmp_path / "s.tar"]
    out = write_export(sources, tmp_path / "out", family=QWEN, max_tokens=MOST, workers=1).out
    urls = [str(path) for path in sorted((out / "shards").glob("*.tar"))]
    assert len(urls) == 2  # a shard is a part of its own
    package: Any = webdataset
    samples = package.WebDataset(urls, shardshuffle=False)
    samples = samples.decode() if decoded else samples
    got, items = list(samples.map(exported_item)), ExportedItems(out)
    assert [one.key for one in got] == ["000000-000000", "000000-000001", "000001-000000"]
    assert [one.labels for one in got] == [None, None, {"json": {"text": "x"}}]
    for number, one in enumerate(got):
        assert_equal(one.patches, items[number].patches)
        assert (one.source, one.kind) == (items[number].source, items[number].kind)


def test_a_sample_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the sample holds __key__, jpg; expected patches.npy"):
        exported_item({"__key__": "x", "jpg": b""})


@pytest.mark.parametrize("name", ["qwen2.5-vl", "qwen3-vl"])
def test_records_of_shards_make_the_batch_of_patchify(name: str, folder: Path, tmp_path: Path) -> None:
    family, config = mrope.family(name), config_of(name.replace("-", "_").replace(".", "_"))
    out = write_export(folder, tmp_path / "out", family=family, max_tokens=100, workers=1).out
    found = by_name(ExportedItems(out), folder)

    def record(given: dict[str, Any], plan: Any, word: int) -> dict[str, Any]:
        spans = plan.spans if plan.frames is not None and plan.spans else (mrope.Text(1), mrope.Image(plan.grid))
        ids = [7]
        for span in spans:
            layout: Any = family.layout
            ids += [7] * span.length if isinstance(span, mrope.Text) else [word] * layout.tokens(span)
        return {"input_ids": [*ids, 8], **given}

    wholes = [patchify(folder / one, family, max_tokens=100) for one in ("a.jpg", "turned.png")]
    byte_records = [
        record(found[one].record(), found[one].plan, config.image_token_id) for one in ("a.jpg", "turned.png")
    ]
    records = [
        record({"pixel_values": one.values, "image_grid_thw": one.grids}, one.plans[0], config.image_token_id)
        for one in wholes
    ]
    got, wanted = (Collator(config, pack=True)(some) for some in (byte_records, records))
    assert got["pixel_values"].dtype == torch.uint8
    got["pixel_values"] = normalize(got["pixel_values"], family)
    assert got.keys() == wanted.keys()
    for key in wanted:
        assert got[key] is wanted[key] or torch.equal(got[key], wanted[key]), key


def test_a_clip_of_shards_is_a_record_with_its_times(folder: Path, tmp_path: Path) -> None:
    out = write_export(folder / "clip.mp4", tmp_path / "out", family=QWEN, max_tokens=MOST, workers=1).out
    clip = ExportedItems(out)[0]
    made = clip_of(folder / "clip.mp4", QWEN, MOST)
    seconds = made.plans[0].seconds
    config = config_of("qwen2_5_vl")
    ids = [7, *[config.video_token_id] * clip.plan.tokens, 8]
    whole = {"pixel_values_videos": made.values, "video_grid_thw": made.grids, "second_per_grid_ts": [seconds]}
    got, wanted = (Collator(config)([{"input_ids": ids, **one}]) for one in (clip.record(), whole))
    assert clip.plan.grid[0] > 1
    assert torch.equal(got["position_ids"], wanted["position_ids"])
    assert torch.equal(normalize(got["pixel_values_videos"], QWEN, kind="clip"), wanted["pixel_values_videos"])
    assert got["second_per_grid_ts"].tolist() == [pytest.approx(seconds)]


def test_workers_of_a_data_loader_read_items_by_number(folder: Path, tmp_path: Path) -> None:
    items = ExportedItems(write_export(folder, tmp_path / "out", family=QWEN, max_tokens=MOST, workers=1).out)
    rows = [[6, 0], [3], [4, 1]]
    loader: Any = DataLoader(items, batch_sampler=rows, num_workers=2, collate_fn=list)
    got = list(loader)
    assert [[one.key for one in some] for some in got] == [[f"000000-{number:06d}" for number in row] for row in rows]
    assert_equal(got[0][1].patches, items[0].patches)
    wrong: Any
    for wrong in ("a", 1.0):
        with pytest.raises(TypeError, match=f"number is {wrong!r}; expected a whole number|'number'"):
            items[wrong]


# --------------------------------------------------------------------------------------------------------------- labels


def labels_of(out: Path) -> dict[str, Any]:
    items = ExportedItems(out)
    return {Path(items[number].source).name: items[number].labels for number in items.numbers.tolist()}


def test_rows_of_a_table_are_the_labels(tmp_path: Path) -> None:
    names = ["a.png", "b.png", "c.png", "d.png"]
    put(tmp_path, {name: picture(56, 84 + 28 * place, "PNG") for place, name in enumerate(names)})
    lines = [
        {"image": "a.png", "text": "ä", "boxes": [[1, 2, 3, 4]]},
        {"image": 3, "text": "no path"},
        {"image": ["b.png", "gone.png", "c.png"], "text": "three"},
        {"image": "d.png"},
    ]
    table = "\n\n".join([*map(json.dumps, lines[:3]), "{broken", json.dumps(lines[3])])
    (tmp_path / "t.jsonl").write_text(table)
    out = write_export(tmp_path / "t.jsonl", tmp_path / "out", family=QWEN, workers=1).out
    assert labels_of(out) == {
        "a.png": {"text": "ä", "boxes": [[1, 2, 3, 4]]},
        "b.png": {"text": "three"},
        "c.png": {"text": "three"},
        "d.png": None,
    }
    assert [row["reason"] for row in rows_of(out)] == [None, "no path", None, "not found", None, "no path", None]


@pytest.mark.parametrize("listed", [True, False])
def test_other_fields_of_a_parquet_table_are_the_labels(tmp_path: Path, listed: bool) -> None:
    data = [picture(56, 84 + 28 * place, "PNG") for place in range(4)]
    images: list[Any] = [[data[0], data[1]], [data[2]], [data[3]]] if listed else data[1:]
    table = pa.table({"text": ["x", "y", "z"], "image": images, "mask": [b"1", b"2", b"3"], "box": [[1, 2], [], None]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    items = ExportedItems(write_export(tmp_path / "t.parquet", tmp_path / "out", family=QWEN, workers=1).out)
    rows = [{"text": "x", "box": [1, 2]}, {"text": "y", "box": []}, {"text": "z", "box": None}]
    assert [items[number].labels for number in range(len(items))] == ([rows[0], *rows] if listed else rows)
    widths = [items[number].plan.original[1] for number in range(len(items))]
    assert widths == ([84, 112, 140, 168] if listed else [112, 140, 168])


def test_words_of_the_same_key_in_a_shard_are_the_labels(tmp_path: Path) -> None:
    members = {
        "d/one.txt": b"ein Bild",
        "d/one.png": picture(56, 84, "PNG"),
        "d/one.json": b'{"boxes": [[1, 2, 3, 4]]}',
        "two.png": picture(56, 112, "PNG"),
        "d/two.cls": b"7",
        "d/two.seg.png": picture(84, 56, "PNG"),
    }
    (tmp_path / "s.tar").write_bytes(tar_of(members))
    out = write_export(tmp_path / "s.tar", tmp_path / "out", family=QWEN, workers=1).out
    assert labels_of(out) == {
        "one.png": {"txt": "ein Bild", "json": {"boxes": [[1, 2, 3, 4]]}},
        "two.png": None,
        "two.seg.png": {"cls": "7"},
    }


def test_labels_that_cannot_be_read_are_errors(tmp_path: Path) -> None:
    members = {
        "one.json": b"broken {",
        "one.txt": b"fine",
        "one.png": picture(56, 140, "PNG"),
        "two.txt": b"\xff\xfe",
        "two.png": picture(56, 112, "PNG"),
        "three.cls": b"3",
        "three.png": picture(56, 84, "PNG"),
    }
    (tmp_path / "s.tar").write_bytes(tar_of(members))
    found = write_export(tmp_path / "s.tar", tmp_path / "out", family=QWEN, workers=1)
    rows = rows_of(found.out)
    assert [row["error"] and row["error"].partition(";")[0] for row in rows] == [
        "label one.json is no JSON", "label two.txt is no UTF-8", None,
    ]  # fmt: skip
    assert [(row["height"], row["width"], row["shard"] is None) for row in rows] == [
        (56, 140, True), (56, 112, True), (56, 84, False),
    ]  # fmt: skip
    assert found.summary()["reasons"] == {"broken label": 2}
    assert labels_of(found.out) == {"three.png": {"cls": "3"}}


@pytest.mark.parametrize("label", ["json", "txt", "cls"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_shard_that_is_cut_inside_a_label_is_one_error(label: str, packed: bool, tmp_path: Path) -> None:
    noise = json.dumps([[one] for one in np.random.default_rng(2).integers(0, 1 << 40, 2000).tolist()]).encode()
    whole = tar_of(
        {"0.cls": b"0", "0.png": picture(56, 84, "PNG"), "1.png": picture(84, 56, "PNG"), f"1.{label}": noise}
    )
    cut = whole[: whole.index(noise) + 9000]
    path = tmp_path / ("s.tar.gz" if packed else "s.tar")
    path.write_bytes(gzip.compress(whole)[:-12000] if packed else cut)
    found = write_export(path, tmp_path / "out", family=QWEN, workers=1)
    assert [(row["source"], row["height"], row["reason"]) for row in rows_of(found.out)] == [
        (f"{path}/0.png", 56, None), (f"{path}/1.png", 84, None), (str(path), None, "cut short"),
    ]  # fmt: skip
    assert labels_of(found.out) == {"0.png": {"cls": "0"}, "1.png": None}  # what lies behind the cut is missing


def test_a_broken_parquet_file_is_one_error_of_an_export(tmp_path: Path) -> None:
    table = pa.table({"text": ["x", "y"], "image": [picture(56, 84, "PNG"), picture(84, 56, "PNG")]})
    pq.write_table(table, tmp_path / "good.parquet")
    (tmp_path / "bad.parquet").write_bytes((tmp_path / "good.parquet").read_bytes()[:-30])
    found = write_export(str(tmp_path / "*.parquet"), tmp_path / "out", family=QWEN, workers=1)
    assert [row["error"] is None for row in rows_of(found.out)] == [False, True, True]
    assert labels_of(found.out) == {"good.parquet:1": {"text": "x"}, "good.parquet:2": {"text": "y"}}


def test_numbers_of_no_item_have_no_source(folder: Path, tmp_path: Path) -> None:
    packed = pack_scan(write_scan(folder, tmp_path / "out", family=QWEN, limits=(MOST,), workers=1).out, 200)
    assert packed.sources([0, 6]) == packed.sources(np.array([0, 6])) == [f"{folder}/a.jpg", f"{folder}/turned.png"]
    assert packed.sources([]) == []
    with pytest.raises(IndexError, match="numbers has 7; expected 0 to 6"):
        packed.sources([1, 7])
    with pytest.raises(ValueError, match="numbers is -1; expected at least 0"):
        packed.sources([-1])
    with pytest.raises(ValueError, match="expected ascending ones"):
        packed.sources([3, 1])


# --------------------------------------------------------------------------------------------------- scans as a source


def test_a_scan_is_exported_at_its_limit(folder: Path, tmp_path: Path) -> None:
    scan = write_scan(folder, tmp_path / "scan", family=QWEN, limits=(MOST,), workers=1)
    before = row_files(scan.out)
    one = write_export(scan.out, tmp_path / "one", workers=1)
    other = write_export(folder, tmp_path / "other", family="qwen2.5-vl", max_tokens=MOST, workers=1)
    assert (one.limits, one.settings["family"]) == ((str(MOST),), "qwen2.5-vl")
    assert all_files(one.out) == all_files(other.out)
    assert row_files(scan.out) == before
    with pytest.raises(ValueError, match="holds a scan; expected the folder that `mrope export` wrote"):
        ExportedItems(scan.out)


def test_a_scan_of_several_limits_or_none_needs_what_is_missing(folder: Path, tmp_path: Path) -> None:
    scan = write_scan(folder / "a.jpg", tmp_path / "scan", family=QWEN, limits=(MOST, 90), workers=1).out
    with pytest.raises(ValueError, match=r"max_tokens is None, and .*scan has limits \[64, 90\]; expected one of them"):
        write_export(scan, tmp_path / "out")
    assert write_export(scan, tmp_path / "out", max_tokens=90).limits == ("90",)
    with pytest.raises(ValueError, match=r"column is 'pic', and .*scan was scanned with 'image'; drop it"):
        write_export(scan, tmp_path / "out1", max_tokens=90, column="pic")
    bare = write_scan(folder / "a.jpg", tmp_path / "bare", workers=1).out
    with pytest.raises(ValueError, match=r"family is None, and .*bare was scanned without one"):
        write_export(bare, tmp_path / "out2")
    with pytest.raises(ValueError, match="family is None; expected one, whose patches are cut"):
        write_export(folder, tmp_path / "out3")


def test_an_export_does_not_go_on_in_a_scan_nor_the_other_way(folder: Path, tmp_path: Path) -> None:
    write_scan(folder / "a.jpg", tmp_path / "scan", family=QWEN, limits=(MOST,), workers=1)
    with pytest.raises(ValueError, match="holds a scan with shards false, not true"):
        write_export(folder / "a.jpg", tmp_path / "scan", family=QWEN, max_tokens=MOST)
    write_export(folder / "a.jpg", tmp_path / "out", family=QWEN, max_tokens=MOST, workers=1)
    with pytest.raises(ValueError, match="holds a scan with shards true, not false"):
        write_scan(folder / "a.jpg", tmp_path / "out", family=QWEN, limits=(MOST,))
    with pytest.raises(ValueError, match="holds a scan with limits"):
        write_export(folder / "a.jpg", tmp_path / "out", family=QWEN, max_tokens=90)


# ---------------------------------------------------------------------------------------------------- engines and kills


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Six shards of eight pictures, each a part."""
    for number in range(6):
        members = {f"{row}.png": picture(100 + row, 200 + 10 * number, "PNG") for row in range(8)}
        (tmp_path / f"s{number}.tar").write_bytes(tar_of(members))
    return tmp_path


def test_shards_are_the_same_whatever_the_engine(many: Path) -> None:
    sources = sorted(many.glob("*.tar"))
    wanted = all_files(write_export(sources, many / "one", family=QWEN, max_tokens=MOST, workers=1).out)
    assert len(wanted) == 12
    two = write_export(sources, many / "two", family=QWEN, max_tokens=MOST, workers=2).out
    assert all_files(two) == wanted
    pytest.importorskip("ray")
    ray = write_export(sources, many / "ray", family=QWEN, max_tokens=MOST, engine="ray").out
    assert all_files(ray) == wanted


def test_an_export_that_is_killed_goes_on_to_the_same_bytes(many: Path) -> None:
    out, sources = many / "out", list(map(str, sorted(many.glob("*.tar"))))
    command = [sys.executable, "-m", "mrope", "export", *sources, "--family", "qwen2.5-vl"]
    command += ["--max-tokens", str(MOST), "--out", str(out), "--workers", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    until = time.monotonic() + 240
    while not (out / "rows").is_dir() or not any(out.glob("rows/*.parquet")):
        assert process.poll() is None, process.stdout and process.stdout.read()
        assert time.monotonic() < until
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not json.loads((out / "scan.json").read_text())["done"]
    with pytest.raises(ValueError, match="holds a scan that is not done"):
        ExportedItems(out)
    done = row_files(out)
    (out / "shards" / "shard-000005-000.tar.1.tmp").write_bytes(b"left by somebody")
    write_export(sources, out, family=QWEN, max_tokens=MOST, workers=1)
    wanted = all_files(write_export(sources, many / "whole", family=QWEN, max_tokens=MOST, workers=1).out)
    assert all_files(out) == wanted
    assert {name: wanted[name] for name in done if name.endswith(".parquet")} == {
        name: data for name, data in done.items() if name.endswith(".parquet")
    }


def test_a_shard_that_cannot_be_written_stops_the_export_cleanly(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "scan.json").write_text("{}")
    (out / "shards").write_text("a file where a folder should be")
    with pytest.raises(OSError, match="shards"):
        write_export(folder / "a.jpg", out, family=QWEN, max_tokens=MOST, workers=1)
    assert list((out / "rows").iterdir()) == []
    (out / "shards").unlink()
    assert len(ExportedItems(write_export(folder / "a.jpg", out, family=QWEN, max_tokens=MOST, workers=1).out)) == 1


# --------------------------------------------------------------------------------------------------------- command line


def run(arguments: list[str]) -> Any:
    from typer.testing import CliRunner

    return CliRunner().invoke(app, ["export", *arguments])


def test_the_command_counts_and_lists_what_was_not_exported(folder: Path, tmp_path: Path) -> None:
    options = ["--family", "qwen2.5-vl", "--max-tokens", str(MOST), "--out", str(tmp_path / "out"), "--workers", "1"]
    result = run([str(folder), *options])
    assert result.exit_code == 0, result.output
    tokens = sum(ExportedItems(tmp_path / "out").tokens)
    lines = result.stdout.splitlines()
    assert lines[:3] == [f"5 of 7 items exported, {tokens} tokens at limit {MOST}", "not exported: 1 cut short",
                         "not exported: 1 not a picture"]  # fmt: skip
    assert re.match(f"  {re.escape(str(folder))}/cut.jpg: .*truncated", lines[3])
    assert lines[4].startswith(f"  {folder}/text.jpg: ")
    assert re.fullmatch(rf"wrote 1 shards, \d+\.\d MB, in {re.escape(str(tmp_path))}/out/shards", lines[5])
    again = json.loads(run([str(folder), *options, "--json"]).stdout)
    assert (again["exported"], again["items"], again["errors"], again["shards"]) == (5, 7, 2, 1)
    assert again["bytes"] == sum(map(len, shard_files(tmp_path / "out").values()))


def test_wrong_input_of_the_command_is_one_line(folder: Path, tmp_path: Path) -> None:
    for arguments, message in (
        ([str(folder)], "family is None; expected one"),
        ([str(tmp_path / "gone"), "--family", "qwen2.5-vl"], "gone: No such file or directory"),
        ([str(folder), "--family", "qwen2.5-vl", "--max-tokens", "0"], "max_tokens is 0; expected at least 1"),
    ):
        result = run([*arguments, "--out", str(tmp_path / "out")])
        assert result.exit_code == 2
        assert message in result.stderr
        assert len(result.stderr.splitlines()) == 1
        assert not (tmp_path / "out").exists()


def test_a_catalogue_reads_an_export(folder: Path, tmp_path: Path) -> None:
    found = Catalogue(write_export(folder / "a.jpg", tmp_path / "out", family=QWEN, max_tokens=MOST, workers=1).out)
    (batch,) = found.rows(["source", "shard"])
    assert batch.to_pylist() == [{"source": str(folder / "a.jpg"), "shard": "shard-000000-000.tar"}]
