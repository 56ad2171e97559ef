"""Whole data sets, planned from headers: folders, globs, JSONL, shards; errors raised, skipped or kept."""

from __future__ import annotations

import glob
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from bad_files import pdf
from pictures import chunk, encoded, exif, noise
from PIL import Image

from mrope import family
from mrope.vision import Scanned, plan, plan_video, scan, summarize

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


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("qwen2.5-vl", {"max_tokens": 0}, "max_tokens is 0"),
        ("qwen2.5-vl", {"max_tokens": 1.5}, "max_tokens"),
        ("qwen2.5-vl", {"max_tokens": "9"}, "max_tokens"),
        ("qwen2.5-vl", {"max_tokens": True}, "max_tokens"),
        ("qwen2.5-vl", {"min_tokens": 9, "max_tokens": 4}, "min_tokens is 9, above max_tokens 4"),
        ("neomme", {"min_tokens": 9}, "min_tokens is 9; the resize rule 'padded' of neomme has no least"),
        ("qwen2.5-vl", {"conflict": "drop"}, "conflict"),
    ],
)
@pytest.mark.parametrize("on_error", ["raise", "skip", "keep"])
def test_wrong_settings_are_no_skipped_files(name: str, settings: Any, message: str, on_error: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        scan([(480, 640)], family(name), on_error=on_error, **settings)


@pytest.mark.parametrize(
    "missing", ["a.jpg", "folder", "*.jpg", "rows.jsonl", "shard.tar", "shard-{0..1}.tar", "a.pdf", ""]
)
def test_a_missing_source_is_no_skipped_file_and_a_missing_entry_is(missing: str, folder: Path) -> None:
    path = str(folder / "c" / missing) if missing else ""
    with pytest.raises((FileNotFoundError, ValueError), match=r"No such file|without pictures"):
        list(scan(path, QWEN2, on_error="skip"))
    found = scan([path, folder / "a.jpg"], QWEN2, on_error="skip")
    assert [one.size for one in found] == [(60, 90)]
    assert len(found.skipped) == (2 if "{" in missing else 1)
    with pytest.raises((FileNotFoundError, ValueError), match=r"No such file|without pictures"):
        list(scan([path, folder / "a.jpg"], QWEN2))
    (kept,) = scan([path], QWEN2, on_error="keep") if "{" not in missing else [None]
    assert kept is None or (kept.plan is None and kept.error is not None)


def test_a_missing_picture_of_a_row_is_skipped(folder: Path) -> None:
    rows = folder / "rows.jsonl"
    rows.write_text('{"image": ["a.jpg", "gone.jpg"]}\n{"image": "b/c.webp"}\n')
    found = scan(rows, QWEN2, on_error="skip")
    assert [one.size for one in found] == [(60, 90), (100, 40)]
    assert found.skipped == [(str(folder / "gone.jpg"), "No such file or directory")]


def test_what_is_no_source_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="source is a int; expected a path, "):
        scan(5, QWEN2, on_error="skip")
    with pytest.raises(ValueError, match="width is 0"):
        scan((480, 0), QWEN2, on_error="skip")


@pytest.mark.parametrize("pattern", ["", "**/*.jpg"])
def test_links_that_go_round_give_each_picture_once(pattern: str, tmp_path: Path) -> None:
    (tmp_path / "set" / "one").mkdir(parents=True)
    (tmp_path / "set" / "one" / "a.jpg").write_bytes(picture(60, 90))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b.jpg").write_bytes(picture(100, 40))
    (tmp_path / "set" / "one" / "up").symlink_to(tmp_path / "set")
    (tmp_path / "set" / "two").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "set" / "one")
    (tmp_path / "set" / "itself.d").symlink_to("itself.d")
    names = [Path(one.name).relative_to(tmp_path / "set") for one in scan(tmp_path / "set" / pattern, QWEN2)]
    assert [str(name) for name in names] == ["one/a.jpg", "two/b.jpg", "two/back/a.jpg"]
    assert len(list(scan(tmp_path / "set" / "one" / "up" / pattern, QWEN2))) == 3  # the caller's own way round


def test_a_glob_of_any_depth_finds_what_glob_does(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "b" / "d").mkdir()
    (folder / "b" / "d" / "a.jpg").write_bytes(picture(30, 70))
    monkeypatch.chdir(folder)
    for pattern in ("**/*.jpg", "b/**/*.*[gpG]", "**/d/**/*.jpg", "*/**/d/*", "b/**", "**/b/*.webp", "./**/a.jpg"):
        files = sorted({os.path.normpath(one) for one in glob.glob(pattern, recursive=True) if os.path.isfile(one)})
        assert [one.name for one in scan(pattern)] == files != []
        absolute = [one.name for one in scan(folder / pattern)]
        assert absolute == [str(folder / one) for one in files]


def test_hidden_files_are_left_out_of_folders_and_shards(folder: Path) -> None:
    (folder / ".cache").mkdir()
    for name in (".DS_Store", "._a.jpg", ".thumb.png", ".cache/c.jpg"):
        (folder / name).write_bytes(b"no picture")
    assert len(list(scan(folder, QWEN2))) == 3
    members = {"./0.jpg": picture(60, 90), "./._0.jpg": b"x", "a/.b/1.jpg": b"x", "a/b/2.jpg": picture(100, 40)}
    assert [one.size for one in scan(shard(folder / "s.tar", members), QWEN2)] == [(60, 90), (100, 40)]
    (named,) = scan([folder / "._a.jpg"], QWEN2, on_error="keep")
    assert "not a picture" in str(named.error)


def test_braces_stand_for_several_shards(tmp_path: Path) -> None:
    for number, size in enumerate([(60, 90), (100, 40), (30, 70)], 8):
        shard(tmp_path / f"train-{number:03d}.tar", {"0.jpg": picture(*size)})
        shard(tmp_path / f"{number}.tar", {"0.jpg": picture(*size)})
    pattern = str(tmp_path / "train-{008..010}.tar")
    assert [one.size for one in scan(pattern)] == [(60, 90), (100, 40), (30, 70)]
    assert [one.size for one in scan([pattern])] == [(60, 90), (100, 40), (30, 70)]
    assert [one.size for one in scan(tmp_path / "{10..8}.tar")] == [(30, 70), (100, 40), (60, 90)]
    assert [one.size for one in scan(str(tmp_path / "{train-009,8}.t{ar,ar}"))] == [(100, 40)] * 2 + [(60, 90)] * 2
    (tmp_path / "{0..9}.jpg").write_bytes(picture(33, 44))
    assert [one.size for one in scan(tmp_path / "{0..9}.jpg")] == [(33, 44)]
    with pytest.raises(FileNotFoundError, match=r"train-011\.tar"):
        list(scan(str(tmp_path / "train-{010..011}.tar"), QWEN2, on_error="skip"))


def test_jsonl_of_windows(folder: Path) -> None:
    path = folder / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"images": ["a.jpg", "b/c.webp"]}\r\n\r\n{"images": "b/turned.PNG"}\r\n')
    assert [one.size for one in scan(path, column="images")] == [(60, 90), (100, 40), (90, 60)]
    with pytest.raises(ValueError, match=r"rows\.jsonl:1: column 'image' is None; .* with the fields images"):
        list(scan(path))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may read all folders")
def test_a_folder_that_may_not_be_read_is_told(folder: Path) -> None:
    (folder / "b").chmod(0)
    try:
        found = scan(folder, QWEN2, on_error="skip")
        assert [one.size for one in found] == [(60, 90)]
        assert found.skipped == [(str(folder / "b"), "Permission denied")]
    finally:
        (folder / "b").chmod(0o755)


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


def test_a_summary_of_clips_by_hand() -> None:
    # 4 frames of 64 x 96 pixels are 2 steps of 2 x 3 tokens of 32 pixels; at 5 tokens both sides shrink by 1.55, to 2
    # steps of 1 x 1.
    record = family("qwen3-vl")
    plans = [
        plan_video((4, 64, 96), record, fps=2, min_tokens=1),
        plan_video((4, 64, 96), record, fps=2, min_tokens=1, max_tokens=5),
    ]
    clips = [Scanned(name=str(number), size=None, plan=one) for number, one in enumerate(plans)]
    found = summarize(clips, cutoffs=[10])
    assert (found.tokens, found.shrunk, found.enlarged) == (12 + 2, 1, 0)
    assert found.prompt_tokens == sum(one.prompt_tokens or 0 for one in plans)
    untimed = Scanned(name="c", size=None, plan=plan_video((4, 64, 96), record))
    assert summarize([*clips, untimed]).prompt_tokens is None
    with pytest.raises(ValueError, match="c: its prompt tokens are unknown"):
        summarize([untimed], cutoffs=[10])


def test_a_family_that_is_none_is_no_fault_of_the_files() -> None:
    with pytest.raises(TypeError, match="family"):
        scan([(480, 640)], "qwen3-vl", on_error="skip")  # pyright: ignore


def test_shards_that_are_cut_are_told(tmp_path: Path) -> None:
    members = {"a.jpg": picture(60, 90), "b.png": picture(400, 500, "PNG"), "c.jpg": picture(30, 40)}
    whole = shard(tmp_path / "whole.tar", members).read_bytes()
    begins = [whole.index(name.encode()) for name in members]
    for cut, seen in (
        (begins[1] + 200_000, ["a.jpg"]),
        (begins[2] + 300, ["a.jpg", "b.png"]),
        (begins[1] + 100, ["a.jpg"]),
    ):
        path = tmp_path / "cut.tar"
        path.write_bytes(whole[:cut])
        found = list(scan(path, QWEN2, on_error="keep"))
        assert [Path(one.name).name for one in found if one.plan is not None] == seen
        assert any("cut.tar" in one.name and one.error for one in found)
        with pytest.raises(ValueError, match=r"cut\.tar"):
            list(scan(path, QWEN2))


def test_pdfs_in_folders_and_rows_are_pages(tmp_path: Path) -> None:
    pytest.importorskip("pypdfium2")
    (tmp_path / "a.jpg").write_bytes(picture(60, 90))
    (tmp_path / "b.pdf").write_bytes(pdf(box=(0, 0, 300, 200)))
    names = [str(tmp_path / "a.jpg"), f"{tmp_path / 'b.pdf'}, page 1"]
    assert [one.name for one in scan(tmp_path, QWEN2)] == names
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"image": ["a.jpg", "b.pdf"]}\n{"image": ""}\n')
    found = list(scan(rows, QWEN2, on_error="keep"))
    assert [one.name for one in found] == [*names, f"{rows}:2"]
    assert "column 'image' is ''; expected a path" in str(found[2].error)
    with pytest.raises(TypeError, match="column"):
        scan(tmp_path, QWEN2, column=3)  # pyright: ignore[reportArgumentType]


def test_a_shard_that_is_cut_between_members_is_told(tmp_path: Path) -> None:
    whole = shard(tmp_path / "whole.tar", {"a.jpg": picture(60, 90), "b.jpg": picture(30, 40)}).read_bytes()
    path = tmp_path / "cut.tar"
    path.write_bytes(whole[: whole.index(b"b.jpg")])
    first, cut = scan(path, QWEN2, on_error="keep")
    assert first.size == (60, 90)
    assert "it ends without the blocks that end a shard" in str(cut.error)


def test_pdfs_in_shards_are_pages(tmp_path: Path) -> None:
    pytest.importorskip("pypdfium2")
    path = shard(
        tmp_path / "s.tar", {"doc.pdf": pdf(box=(0, 0, 72, 144)), "bad.pdf": b"%PDF-1.7", "a.jpg": picture(60, 90)}
    )
    found = list(scan(path, QWEN2, on_error="keep"))
    assert [one.name.rsplit("/")[-1] for one in found] == ["doc.pdf, page 1", "bad.pdf", "a.jpg"]
    assert [one.size for one in found] == [(400, 200), None, (60, 90)]


def test_ranges_without_leading_zeros_have_none(tmp_path: Path) -> None:
    for number in range(8, 12):
        (tmp_path / f"t-{number}.jpg").write_bytes(picture(30 + number, 40))
    assert [one.size for one in scan(tmp_path / "t-{8..11}.jpg")] == [(38, 40), (39, 40), (40, 40), (41, 40)]
    (tmp_path / "t-0.jpg").write_bytes(picture(30, 40))
    assert [one.size for one in scan(tmp_path / "t-{0..0}.jpg")] == [(30, 40)]
    with pytest.raises(FileNotFoundError, match=r"t-1\.jpg"):
        list(scan(tmp_path / "t-{0..12}.jpg"))
