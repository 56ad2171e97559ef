"""Scanning local files: headers a second and core beside Pillow and transformers, two workers, memory as items grow.

Run it: python benchmarks/scan.py [--json FILE] [--quick]

A rate of one core is by the time of the processor, which other programs do not lengthen; that of workers is by the
clock, once all of them have started. A ratio compares runs of one round.
"""

from __future__ import annotations

import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]  # a bare checkout will do

import mrope  # noqa: E402
from mrope.cli.output import print_table, progress  # noqa: E402
from mrope.data import write_scan  # noqa: E402

FAMILY, LIMITS, LEAST = "qwen2.5-vl", (1280, 16384), 4
FACTOR = mrope.family(FAMILY).factor
PEER, OURS = "Pillow + smart_resize", "mrope scan"
RATE, SPEEDUP, GROWTH = 3000, 1.8, 1.25
"""What is demanded: headers a second and core, two workers over one, and memory at the most over that at the fewest."""
Row = dict[str, Any]


def files(folder: Path, kind: str, count: int) -> list[Path]:
    """Files of photographs' sizes: blurred noise, of which 16 differ."""
    rng, different = np.random.default_rng(0), []
    for height, width in rng.integers(600, 2000, (16, 2)).tolist():
        small = rng.integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(small).resize((width, height)).save(file, kind)
        different.append(file.getvalue())
    paths = [folder / f"{number:06d}.{kind.lower()}" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(different[number % 16])
    return paths


# ------------------------------------------------------------------------------------------------------------- headers


def headers(*, quick: bool) -> list[Row]:
    """Files a second of one core that are planned at two limits, to a list and to a folder of Parquet."""
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    count, rounds = (200, 1) if quick else (4000, 5)
    found = []
    for kind in ("JPEG", "PNG"):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "set").mkdir()
            paths = files(folder / "set", kind, count)

            def theirs(paths: list[Path] = paths) -> list[list[int]]:
                tokens = []
                for path in paths:
                    with Image.open(path) as picture:
                        width, height = picture.size
                    each = []
                    for limit in LIMITS:
                        pixels = {"min_pixels": LEAST * FACTOR**2, "max_pixels": limit * FACTOR**2}
                        rows, cols = smart_resize(height, width, factor=FACTOR, **pixels)
                        each.append(rows * cols // FACTOR**2)
                    tokens.append(each)
                return tokens

            def ours(folder: Path = folder) -> list[list[int]]:
                with tempfile.TemporaryDirectory(dir=folder) as out:
                    found = write_scan(folder / "set", Path(out) / "o", family=FAMILY, limits=LIMITS, workers=1)
                    columns = [f"tokens_{limit}" for limit in LIMITS]
                    return [list(row.values()) for batch in found.rows(columns) for row in batch.to_pylist()]

            if theirs() != ours():
                raise AssertionError("the tokens of the scan are not those of transformers")
            taken = _rounds([theirs, ours], rounds)
        for contender, times in zip((PEER, OURS), taken, strict=True):
            rates = [count / seconds for seconds in times]
            found.append(
                {
                    "files": kind,
                    "count": count,
                    "contender": contender,
                    "per_second": statistics.median(rates),
                    "ratio": statistics.median(peer / own for peer, own in zip(taken[0], times, strict=True)),
                    "goal": RATE if contender == OURS and not quick else None,
                }
            )
    return found


def _rounds(calls: list[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """Seconds of the processor of each, in rounds that have all of them."""
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for times, call in zip(taken, calls, strict=True):
            begin = time.process_time()
            call()
            times.append(time.process_time() - begin)
    return taken


# ------------------------------------------------------------------------------------------------------------- workers


def workers(*, quick: bool) -> list[Row]:
    """Files a second of one worker and of two, behind their first parts."""
    count, rounds = (6001, 1) if quick else (40_000, 3)
    rates: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "set").mkdir()
        table = folder / "set.jsonl"
        paths = files(folder / "set", "JPEG", 1000)
        table.write_text("".join(f'{{"image": "set/{paths[number % 1000].name}"}}\n' for number in range(count)))
        for turn in range(rounds):
            for processes, found in rates.items():
                found.append(_rate(table, folder / f"{processes}-{turn}", processes))
    return [
        {
            "count": count,
            "workers": processes,
            "per_second": statistics.median(found),
            "ratio": statistics.median(two / one for one, two in zip(rates[1], found, strict=True)),
            "goal": SPEEDUP if processes == 2 and not quick else None,
        }
        for processes, found in rates.items()
    ]


def _rate(source: Path, out: Path, processes: int) -> float:
    from mrope.data.scanning.local import run_local
    from mrope.data.scanning.sources import parts_of
    from mrope.data.scanning.store import begin, pending, write_parts

    settings = {"sources": [str(source)], "folder": None, "column": "image", "family": FAMILY, "limits": LIMITS}
    begin(out, settings | {"hash": False, "done": False})
    write_parts(out, parts_of([str(source)], "image"))
    done: list[tuple[float, int]] = []
    run_local(out, pending(out), processes, lambda number, rows: done.append((time.perf_counter(), rows)))
    first = 0 if processes == 1 else 1  # by then all have begun
    return sum(rows for _, rows in done[first + 1 :]) / (done[-1][0] - done[first][0])


# -------------------------------------------------------------------------------------------------------------- memory


def memory(*, quick: bool) -> list[Row]:
    """Peak of a scan above what its process had before, for tables of more and more items."""
    found = []
    for count in (1000, 3000) if quick else (10_000, 100_000, 1_000_000):
        command = f"import scan; scan.print_peak({count})"
        run = subprocess.run(
            [sys.executable, "-c", command],
            cwd=ROOT / "benchmarks",
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(json.loads(run.stdout.splitlines()[-1]))
    for row in found:
        row |= {"ratio": row["peak"] / found[0]["peak"], "goal": None if quick or row is found[0] else GROWTH}
    return found


def print_peak(count: int) -> None:
    """What `memory` wants of a process of its own; a scan of a few files goes before, which loads what there is."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(100):
            Image.new("RGB", (30 + number, 40 + 3 * number)).save(folder / f"{number}.png")
        write_scan(folder, folder / "warm", family=FAMILY, limits=LIMITS, workers=1)
        table = folder / "set.jsonl"
        with table.open("w") as file:
            for number in range(count):
                file.write(f'{{"image": "{number % 100}.png"}}\n')
        Path("/proc/self/clear_refs").write_text("5")
        before, begin = _resident("VmRSS"), time.perf_counter()
        write_scan(table, folder / "out", family=FAMILY, limits=LIMITS, workers=1)
        row = {"count": count, "peak": _resident("VmHWM") - before, "seconds": time.perf_counter() - begin}
    print(json.dumps(row))


def _resident(what: str) -> int:
    """Bytes of memory that are resident, or were at most."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) * 1024


# -------------------------------------------------------------------------------------------------------------- report


def facts() -> Row:
    """Machine, versions and commit."""
    import PIL
    import pyarrow
    import transformers

    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return {
        "cores": os.cpu_count(),
        "pillow": PIL.__version__,
        "transformers": transformers.__version__,
        "pyarrow": pyarrow.__version__,
        "commit": commit.stdout.strip() or "unknown",
    }


def print_rows(found: dict[str, list[Row]]) -> None:
    """The tables of all parts."""
    print(f"\nheaders of one core, tokens at {LIMITS[0]} and {LIMITS[1]}")
    print_table(
        ("files", "contender", "a second", "times as fast", "goal"),
        [
            (row["files"], row["contender"], f"{row['per_second']:,.0f}", f"{row['ratio']:.2f}",
             _least(row["per_second"], row["goal"]))
            for row in found["headers"]
        ],
    )  # fmt: skip
    print(f"\nworkers, {found['workers'][0]['count']:,} JPEG headers, start apart")
    print_table(
        ("workers", "a second", "times one", "goal"),
        [
            (row["workers"], f"{row['per_second']:,.0f}", f"{row['ratio']:.2f}", _least(row["ratio"], row["goal"]))
            for row in found["workers"]
        ],
    )
    if found["memory"]:
        print("\npeak memory above that of the loaded process, headers of a table by one process")
        print_table(
            ("items", "seconds", "MB", "times the fewest", "goal"),
            [
                (f"{row['count']:,}", f"{row['seconds']:.0f}", f"{row['peak'] / 1e6:.0f}", f"{row['ratio']:.2f}",
                 "" if row["goal"] is None else f"at most {row['goal']:g}: {_word(row['ratio'] <= row['goal'])}")
                for row in found["memory"]
            ],
        )  # fmt: skip


def _least(value: float, goal: float | None) -> str:
    return "" if goal is None else f"at least {goal:g}: {_word(value >= goal)}"


def _word(reached: bool) -> str:
    return "reached" if reached else "missed"


def main(
    target: Annotated[Path | None, typer.Option("--json", help="Write all rows there, as JSON.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few files, once: does it run?")] = False,
) -> None:
    """Measure scans of local files; about ten minutes on two cores, most of them for a million headers."""
    found: dict[str, list[Row]] = {"headers": [], "workers": [], "memory": []}
    with progress() as bars:
        task = bars.add_task("", total=3)
        for name, measure in (("headers", headers), ("workers", workers), ("memory", memory)):
            bars.update(task, description=name)
            if name != "memory" or Path("/proc/self/clear_refs").exists():
                found[name] = measure(quick=quick)
            bars.update(task, advance=1)
    known = facts()
    print(", ".join(f"{name} {value}" for name, value in known.items()))
    print_rows(found)
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        rows = {part: [known | row for row in rows] for part, rows in found.items()}
        target.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    typer.run(main)
