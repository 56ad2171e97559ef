"""Whole data sets, planned from headers: folders, globs, JSONL, shards; errors raised, skipped or kept."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from pictures import chunk, encoded, exif, noise
from PIL import Image

from mrope import family
from mrope.vision import plan, scan, summarize

QWEN2 = family("qwen2.5-vl")


def picture(height: int, width: int, kind: str = "JPEG", **options: Any) -> bytes:
    return encoded(Image.fromarray(noise(height, width)), kind, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b").mkdir()
    (tmp_path / "a.jpg").write_bytes(picture(60, 90))
    (tmp_path / "b" / "turned.PNG").write_bytes(picture(60, 90, "PNG", exif=exif(6)))
    (tmp_path / "b" / "c.webp").write_bytes(picture(100, 40, "WEBP"))
    (tmp_path / "notes.txt").write_text("no picture")
    return tmp_path


def late_exif(data: bytes, orientation: int) -> bytes:
    """A PNG whose EXIF stands behind its pixels."""
    end = data.index(b"IEND") - 4
    return data[:end] + chunk(b"eXIf", exif(orientation).tobytes().removeprefix(b"Exif\0\0")) + data[end:]


def shard(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as file:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            file.addfile(entry, io.BytesIO(data))
    return path


def test_a_folder(folder: Path) -> None:
    found = list(scan(folder, QWEN2))
    paths = [folder / "a.jpg", folder / "b" / "c.webp", folder / "b" / "turned.PNG"]
    assert [one.name for one in found] == [str(path) for path in paths]
    assert [one.plan for one in found] == [plan(path, QWEN2) for path in paths]
    assert [(one.size, one.orientation) for one in found] == [((60, 90), 1), ((100, 40), 1), ((90, 60), 6)]
    assert [one.size for one in scan(str(folder))] == [one.size for one in found]


def test_globs_lists_bytes_and_sizes(folder: Path) -> None:
    assert [one.size for one in scan(str(folder / "**" / "*.*g"))] == [(60, 90)]
    assert [one.size for one in scan(str(folder / "**" / "*.[wP]*"))] == [(100, 40), (90, 60)]
    sources = [(480, 640), folder / "a.jpg", picture(33, 44), Image.new("RGB", (5, 7)), folder / "b"]
    found = list(scan(sources, QWEN2, max_tokens=100))
    assert [one.size for one in found] == [(480, 640), (60, 90), (33, 44), (7, 5), (100, 40), (90, 60)]
    assert [one.name for one in found[:4]] == ["0", str(folder / "a.jpg"), "2", "3"]
    assert found[0].plan == plan((480, 640), QWEN2, max_tokens=100)
    assert [one.size for one in scan({"one": (3, 4), "two": (5, 6)})] == [(3, 4), (5, 6)]
    assert [one.name for one in scan((480, 640))] == ["0"]


def test_jsonl_with_several_pictures_a_line(folder: Path) -> None:
    rows = [{"images": "a.jpg"}, {"images": ["b/c.webp", "b/turned.PNG"], "text": "x"}, {"images": []}, {"text": "y"}]
    path = folder / "b.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n{broken\n")
    found = list(scan(path, QWEN2, column="images", on_error="keep"))
    assert [one.size for one in found] == [(60, 90), (100, 40), (90, 60), None, None]
    assert [one.name for one in found[3:]] == [f"{path}:4", f"{path}:6"]
    assert "column 'images' is None" in str(found[3].error)
    with pytest.raises(ValueError, match=r"b\.jsonl:1: column 'image' is None"):
        list(scan(path, QWEN2))


@pytest.mark.parametrize("suffix", ["tar", "tgz"])
def test_shards_are_read_where_they_lie(suffix: str, tmp_path: Path) -> None:
    long_header = picture(70, 50, "JPEG", icc_profile=bytes(200_000), exif=exif(8))
    members = {
        "0.jpg": picture(300, 400, quality=95),
        "0.json": b"{}",
        "1.png": late_exif(picture(200, 300, "PNG"), 6),
        "2.jpg": long_header,
        "deep/3.webp": picture(220, 260, "WEBP", lossless=True, exif=exif(3)),
        "4.tiff": picture(200, 210, "TIFF"),
    }
    assert all(len(members[name]) > 65536 for name in ("0.jpg", "1.png", "2.jpg", "deep/3.webp", "4.tiff"))
    path = shard(tmp_path / f"s.{suffix}", members)
    found = list(scan(path, QWEN2))
    assert [one.name for one in found] == [f"{path}/{name}" for name in members if name != "0.json"]
    expected = [plan(members[name], QWEN2) for name in members if name != "0.json"]
    assert [one.plan for one in found] == expected
    assert [one.orientation for one in found] == [1, 6, 8, 3, 1]
    assert found[1].size == (300, 200)


def test_errors_are_raised_skipped_or_kept(folder: Path) -> None:
    (folder / "b" / "bad.jpg").write_bytes(b"nothing")
    sources = [folder, (20, 10000), (480, 640)]
    with pytest.raises(ValueError, match=r"bad\.jpg: not a picture"):
        list(scan(sources, QWEN2))
    found = scan(sources, QWEN2, on_error="skip")
    assert [one.size for one in found] == [(60, 90), (100, 40), (90, 60), (480, 640)]
    assert found.count == 6
    assert [name for name, _ in found.skipped] == [str(folder / "b" / "bad.jpg"), "1"]
    assert "500.0 to 1" in found.skipped[1][1]
    kept = list(scan(sources, QWEN2, on_error="keep"))
    assert [one.error is None for one in kept] == [True, False, True, True, False, True]
    assert [one.size for one in kept][1::3] == [None, (20, 10000)]
    left = list(scan(sources[1:], QWEN2, conflict="skip"))
    assert [(one.plan is None, one.error) for one in left] == [(True, None), (False, None)]


def test_broken_shards(tmp_path: Path) -> None:
    path = shard(tmp_path / "s.tar", {"0.jpg": picture(30, 40), "1.jpg": picture(300, 400)})
    path.write_bytes(path.read_bytes()[:-40_000])
    found = list(scan(path, QWEN2, on_error="keep"))
    assert found[0].size == (30, 40)
    (tmp_path / "t.tar").write_bytes(b"no tar")
    with pytest.raises(ValueError, match=r"t\.tar: broken shard"):
        list(scan(tmp_path / "t.tar"))


def test_it_works_as_it_is_asked(folder: Path) -> None:
    def sources() -> Any:
        yield (480, 640)
        raise AssertionError("asked for too much")

    found = scan(sources(), QWEN2)
    assert next(found).size == (480, 640)
    assert found.count == 1
    assert [one.size for one in scan([(3, 4)], progress="bar")] == [(3, 4)]


def test_refused_sources(tmp_path: Path) -> None:
    for source, message in (
        (tmp_path, "is a folder without pictures"),
        (str(tmp_path / "*.jpg"), "is a pattern without pictures"),
        (shard(tmp_path / "s.tar", {"a.txt": b"x"}), "is a shard without pictures"),
        ([(0, 5)], "0: height is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            list(scan(source, QWEN2))
    with pytest.raises(FileNotFoundError):
        list(scan(tmp_path / "missing.jpg"))
    with pytest.raises(TypeError, match=r"tuple \(height, width\), got \(1, 2, 3\)"):
        list(scan([(1, 2, 3)]))
    with pytest.raises(ValueError, match="need a family"):
        scan([(3, 4)], max_tokens=5)


def test_a_summary_by_hand() -> None:
    # Tokens of 28 pixels: 391, 4, 16384 x 1.3 shrunk to 16,384 at most; and one too thin.
    sizes = [(480, 640), (20, 20), (480, 640), (5000, 3500), (20, 10000)]
    found = summarize(scan(sizes, QWEN2, on_error="keep"), cutoffs=(393, 392, 10**6))
    large = plan((5000, 3500), QWEN2).tokens
    assert (found.pictures, found.planned, found.shrunk, found.enlarged) == (5, 4, 1, 1)
    assert found.tokens == 391 * 2 + 4 + large
    assert found.prompt_tokens == found.tokens + 4 * 2
    assert found.percentiles == ((0, 4), (5, 4), (50, 391), (95, large), (99, large), (100, large))
    assert found.histogram[0] == (4, 1)
    assert [row for row in found.histogram if row[1]] == [(4, 1), (512, 2), (16384, 1)]
    assert found.above == ((393, 0.25), (392, 0.75), (10**6, 0.0))
    assert [name for name, _ in found.unfit] == ["4"]
    assert found.unread == ()
    nothing = summarize(scan([b"x"], QWEN2, on_error="keep"), cutoffs=(5,))
    assert (nothing.planned, nothing.percentiles, nothing.above, len(nothing.unread)) == (0, (), ((5, 0.0),), 1)


def test_a_family_that_is_none_is_no_fault_of_the_files() -> None:
    with pytest.raises(TypeError, match="family"):
        scan([(480, 640)], "qwen3-vl", on_error="skip")  # pyright: ignore
