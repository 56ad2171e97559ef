"""The Ray engine, on a real Ray: the rows of the local engine to the byte, whoever is killed."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from sources import ROOT

from mrope.data import write_scan

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
ray = pytest.importorskip("ray", reason="Ray is not installed")

from mrope.data.scanning.on_ray import unseen  # noqa: E402
from mrope.data.scanning.store import pending  # noqa: E402

ITEMS, PART = 600, 50
WORDS: dict[str, Any] = {"family": "qwen3-vl", "limits": (64, 640), "hash": True}
# Ray leaves files of its own open when it stops, and says so when they are collected.
pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed file:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of pictures, high and wide, among them one that is broken and one that is not there."""
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(6):
        kind = ("jpg", "png")[number % 2]
        Image.new("L", (200 + 90 * number, 700 - 80 * number)).save(folder / f"{number}.{kind}")
    (folder / "6.jpg").write_bytes(b"\xff\xd8\xff broken")
    names = [f"{number % 8}.{('jpg', 'png')[number % 8 % 2]}" for number in range(ITEMS)]
    path = folder / "train.jsonl"
    path.write_text("".join(json.dumps({"image": name}) + "\n" for name in names))
    return path


@pytest.fixture(scope="module", autouse=True)
def _small_parts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mrope.data.scanning.sources.PART", PART)
        yield


@pytest.fixture(scope="module")
def expected(table: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of rows of the local engine."""
    out = tmp_path_factory.mktemp("local") / "scan"
    assert write_scan(table, out, **WORDS, workers=1).summary()["items"] == ITEMS
    return files(out)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a Ray of two workers."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        words = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 80 << 20}
        started = Cluster(initialize_head=True, head_node_args=words)
    yield str(started.address)
    started.shutdown()


def files(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "rows").iterdir()}


def test_rows_are_those_of_the_local_engine(cluster: str, table: Path, tmp_path: Path, expected: Any) -> None:
    scanned = write_scan(table, tmp_path / "scan", **WORDS, engine="ray", address=cluster)
    assert files(scanned.out) == expected
    assert len(expected) == ITEMS // PART
    assert not ray.is_initialized(), "what it connected, it disconnects"
    sizes = [row for batch in scanned.rows(["height", "width"]) for row in batch.to_pylist()]
    assert sizes[1] == {"height": 620, "width": 290}
    assert scanned.summary()["errors"] == sum(number % 8 > 5 for number in range(ITEMS))


def test_killed_workers_cost_nothing(cluster: str, table: Path, tmp_path: Path, expected: Any) -> None:
    import psutil

    out, killed = tmp_path / "scan", set[int]()
    with ThreadPoolExecutor(1) as pool:
        scanning = pool.submit(write_scan, table, out, **WORDS, engine="ray", address=cluster)
        while not scanning.done() and len(killed) < 2:
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    if process.cmdline()[:1] == ["ray::_answer"] and process.pid not in killed:
                        process.kill()
                        killed.add(process.pid)
                        break
            time.sleep(0.005)
        assert scanning.result(timeout=120).summary()["items"] == ITEMS
    assert len(killed) == 2
    assert files(out) == expected


def test_a_killed_driver_is_gone_on_with(cluster: str, table: Path, tmp_path: Path, expected: Any) -> None:
    """Its Ray is its own, and ends with it."""
    out = tmp_path / "scan"
    code = (
        "import sys; from mrope.data.scanning import sources; from mrope.data import write_scan\n"
        f"sources.PART = {PART}; write_scan(sys.argv[1], sys.argv[2], engine='ray', **{WORDS!r})"
    )
    command = [sys.executable, "-c", code, table, out]
    with subprocess.Popen(command, cwd=ROOT) as driver:
        while len(list((out / "rows").glob("*.parquet"))) < 2:
            assert driver.poll() is None, "it was done before it was killed"
            time.sleep(0.01)
        driver.kill()
    assert 0 < len(pending(out)) < ITEMS // PART
    before = {path: path.stat().st_ino for path in (out / "rows").glob("*.parquet")}
    assert files(write_scan(table, out, **WORDS, engine="ray", address=cluster).out) == expected
    done = {path: path.stat().st_ino for path in before}
    assert sum(done[path] != before[path] for path in before) == 0, "what is done is not done twice"


def test_what_goes_wrong_in_a_part_is_told_in_one_line(cluster: str, table: Path, tmp_path: Path) -> None:
    """The process is connected to Ray before, and stays so."""
    out = tmp_path / "scan"
    ray.init(cluster, log_to_driver=False, logging_level="error")
    try:
        write_scan(table, out, **WORDS, engine="ray")
        assert ray.is_initialized()
        (out / "rows" / "rows-000003.parquet").unlink()
        (out / "parts" / "part-000003.parquet").write_bytes(b"no table")
        settings = json.loads((out / "scan.json").read_text())
        (out / "scan.json").write_text(json.dumps({**settings, "done": False}))
        with pytest.raises(OSError, match=r"^ArrowInvalid: .*Parquet") as caught:
            write_scan(table, out, **WORDS, engine="ray")
        assert "\n" not in str(caught.value)
        assert len(files(out)) == ITEMS // PART - 1
        with pytest.raises(ValueError, match=r"^address is 'auto', and this process is connected to Ray already"):
            write_scan(table, out, **WORDS, engine="ray", address="auto")
    finally:
        ray.shutdown()


def test_a_wrong_address_is_told_at_once(table: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConnectionError, match=r"^address is '127.0.0.1:1', where nothing answers \(Connection refused\); "
    ):
        write_scan(table, tmp_path / "scan", **WORDS, engine="ray", address="127.0.0.1:1")
    assert not ray.is_initialized()
    with pytest.raises(ValueError, match=r"^address is 'auto', and engine is 'local'"):
        write_scan(table, tmp_path / "other", **WORDS, address="auto")


def test_a_machine_that_does_not_see_the_files_says_so(tmp_path: Path) -> None:
    assert unseen("another-machine", [str(tmp_path)]) == ""
    missing = str(tmp_path / "photos")
    line = unseen("another-machine", [str(tmp_path), missing])
    assert line.startswith(f"{missing} is on another-machine and not on ")
    assert line.endswith("; expected storage that all machines of the cluster share")


def test_the_benchmark_judges_a_hundred_thousand_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    bench = importlib.import_module("scan_ray")
    monkeypatch.setattr(bench, "PICTURES", 3)
    lines = bench.table(tmp_path, 5).read_text().splitlines()
    named = [json.loads(line)["image"] for line in lines]
    assert named == ["0.jpg", "1.png", "2.jpg", "0.jpg", "1.png"]
    assert {name: Image.open(tmp_path / name).size for name in named}["2.jpg"] == (322, 246)
    rows = [
        {"items": 100_000, "workers": 2, "seconds": 40.0, "items_per_second": 2500.0, "start": 4.0}
        | {"contender": contender, "ratio": ratio, "goal": goal}
        for contender, ratio, goal in ((bench.LOCAL, 1.0, None), (bench.RAY, 1.2, 1.3), (bench.RAY, 1.4, 1.3))
    ]
    bench.print_engines(rows)
    assert [word for word in capsys.readouterr().out.split() if word in ("reached", "missed")] == ["reached", "missed"]
