"""The benchmark of pictures runs on a small one: rows are printed, peers named, and goals judged. No time is."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sources import ROOT

FACTS = {"cores", "torch", "torchvision", "transformers", "pillow", "commit"}
PICTURE = {"picture", "size", "bpp", "tokens", "malloc", "threads", "unit", "contender"}


@pytest.fixture(scope="module")
def bench() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module("patchify")
    finally:
        sys.path.pop(0)


def test_pictures_are_compared(tmp_path: Path, bench: Any) -> None:
    pytest.importorskip("pypdfium2")
    target = tmp_path / "rows.json"
    command = [sys.executable, ROOT / "benchmarks" / "patchify.py", "--quick", "--json", target]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(target.read_text())
    assert all(set(row) >= FACTS for rows in found.values() for row in rows)
    measured = [row for row in found["speed"] if "skipped" not in row]
    skipped = {row["contender"] for row in found["speed"] if "skipped" in row}
    assert {row["contender"] for row in measured} | skipped == set(bench.EVERYONE)
    assert skipped <= {bench.QWEN_UTILS, bench.RUST}  # all other peers are installed
    for row in measured:
        assert set(row) >= PICTURE
        assert row["contender"] in done.stdout
        assert 0 < row["p20"] <= row["p50"] <= row["p80"]
    for peer in skipped:
        assert f"skipped: {peer}: " in done.stdout
    assert [row["goal"] for row in found["others"]] == [None] * 11  # so small a run judges none
    assert {row["contender"] for row in found["memory"]} <= {bench.PEER, bench.FRESH, bench.BYTES}
    assert done.stdout.count("reached") + done.stdout.count("missed") == len(found["memory"]) - 1  # memory alone is


def test_every_case_has_its_goals(bench: Any) -> None:
    assert set(bench.GOALS) == set(bench.CASES) - {("12MP odd", bench.NATIVE)}
    assert bench.goals("12MP", bench.NATIVE, bench.REUSED) == (3.7, 5.7)
    assert bench.goals("HD", bench.NATIVE, bench.BYTES) == (3.5, 4.4)
    assert bench.goals("HD", 1280, bench.FRESH) == (1.3, 1.3)
    assert bench.goals("HD", 1280, bench.PEER) is None


def test_its_pdf_is_one(bench: Any) -> None:
    pypdfium2 = pytest.importorskip("pypdfium2")
    document = pypdfium2.PdfDocument(bench.text_pdf())
    text = document[0].get_textpage()
    assert text.get_text_range().count("quick brown fox") == 60
    text.close()
    document.close()


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "benchmarks" / "patchify.py", "--quick", "--peers", tmp_path / "none"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert "peers is" in done.stderr
