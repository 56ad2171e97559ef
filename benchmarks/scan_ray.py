"""Scanning by the Ray engine beside the local one, on one machine: seconds, items a second, and their ratio.

Run it: python benchmarks/scan_ray.py [--json FILE] [--items N] [--quick]

Both look at the same table of small JPEG and PNG files, with a worker for each core, and take turns in each round. The
time is that of the clock, from the call to the report; what Ray takes to start is told apart.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]  # a bare checkout will do

import mrope  # noqa: E402
from mrope.cli.output import print_table, progress  # noqa: E402
from mrope.data import write_scan  # noqa: E402

ITEMS, QUICK = 100_000, 3000
PICTURES = 1000
GOAL = 1.3
"""Times the seconds of the local engine."""
LOCAL, RAY = "mrope, local", "mrope, Ray"
Row = dict[str, Any]


def table(folder: Path, items: int) -> Path:
    """A JSONL file that names the same pictures, high and wide ones, again and again."""
    names = [f"{number}.{('jpg', 'png')[number % 2]}" for number in range(PICTURES)]
    for number, name in enumerate(names):
        Image.new("RGB", (320 + number, 240 + 3 * number)).save(folder / name)
    path = folder / "train.jsonl"
    with path.open("w") as file:
        for number in range(items):
            file.write(json.dumps({"image": names[number % PICTURES]}) + "\n")
    return path


def engines(items: int = ITEMS, rounds: int = 3) -> list[Row]:
    """A row for each engine; the rows that they write are compared."""
    import ray

    cores = len(os.sched_getaffinity(0))
    contenders: dict[str, Literal["local", "ray"]] = {LOCAL: "local", RAY: "ray"}
    taken: dict[str, list[float]] = {LOCAL: [], RAY: []}
    starts = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = table(folder, items)
        for turn in range(rounds):
            found = []
            for contender, engine in contenders.items():
                if engine == "ray":
                    starts.append(_started(ray, cores))
                out = folder / f"{engine}-{turn}"
                before = time.perf_counter()
                write_scan(source, out, family="qwen3-vl", limits=(256, 1280), engine=engine)
                taken[contender].append(time.perf_counter() - before)
                found.append({path.name: path.read_bytes() for path in (out / "rows").iterdir()})
            ray.shutdown()
            if found[0] != found[1]:
                raise AssertionError("the engines wrote other rows")
    known = {"items": items, "workers": cores, "unit": "s", "rounds": rounds}
    return [
        known
        | {
            "contender": contender,
            "seconds": statistics.median(times),
            "items_per_second": items / statistics.median(times),
            "start": statistics.median(starts) if contender == RAY else 0.0,
            "ratio": statistics.median(one / other for one, other in zip(times, taken[LOCAL], strict=True)),
            "goal": GOAL if contender == RAY and items >= ITEMS else None,
        }
        for contender, times in taken.items()
    ]


def _started(ray: Any, cores: int) -> float:
    """Seconds that Ray takes to start."""
    os.environ["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    before = time.perf_counter()
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    ray.init("local", num_cpus=cores, object_store_memory=80 << 20, **quiet)
    return time.perf_counter() - before


def print_engines(rows: list[Row]) -> None:
    """The table of `engines`."""
    print_table(
        ("items", "workers", "contender", "seconds", "items a second", "times local", "start", "goal"),
        [
            (
                f"{row['items']:,}", row["workers"], row["contender"], f"{row['seconds']:.1f}",
                f"{row['items_per_second']:,.0f}", f"{row['ratio']:.2f}", f"{row['start']:.1f}", _goal(row),
            )
            for row in rows
        ],
    )  # fmt: skip


def _goal(row: Row) -> str:
    if row["goal"] is None:
        return ""
    return f"at most {row['goal']:g}: {'reached' if row['ratio'] <= row['goal'] else 'missed'}"


def facts() -> Row:
    """Machine, versions and commit."""
    import pyarrow
    import ray

    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    versions = {"mrope": mrope.__version__, "ray": ray.__version__, "pyarrow": pyarrow.__version__}
    return {"cores": os.cpu_count(), **versions, "commit": commit.stdout.strip() or "unknown"}


def main(
    target: Annotated[Path | None, typer.Option("--json", help="Write all rows there, as JSON.")] = None,
    items: Annotated[int, typer.Option(metavar="N", min=1, help="Rows of the table.")] = ITEMS,
    quick: Annotated[bool, typer.Option("--quick", help="Few items, once: does it run?")] = False,
) -> None:
    """Scan by both engines; about five minutes on two cores."""
    with progress() as bars:
        bars.add_task("scanning", total=None)
        found = engines(QUICK, 1) if quick else engines(items)
    known = facts()
    print(", ".join(f"{name} {value}" for name, value in known.items()) + "\n")
    print_engines(found)
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps({"engines": [known | row for row in found]}, indent=1))


if __name__ == "__main__":
    typer.run(main)
