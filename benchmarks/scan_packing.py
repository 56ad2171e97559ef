"""Packing and sampling: rows, fill, time and memory beside first-fit of the usual kind, and tokens of ranks by step.

Run it: python benchmarks/scan_packing.py [--json FILE] [--peers FOLDER] [--quick]

Items are those of the realistic mix: lognormal tokens with median 600 and sigma 1, clipped to 16..16384; rows have
32768. A time is that of one thread's processor; the contenders take turns in each round, and a ratio is of one round.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]  # a bare checkout will do

from mrope.cli.output import print_table, progress  # noqa: E402
from mrope.data import TokenBudgetSampler, pack_items  # noqa: E402

ROW, BATCH = 32768, 64
CASES = ((20_000, ROW), (1_000_000, ROW), (1_000_000, ROW // 2))
OPEN = 20
"""Rows that stay open in first-fit of the usual kind."""
QUADRATIC = 20_000
"""Items that peers get whose time grows with their square."""
BEST, FIRST, NEXT = "mrope best-fit", "mrope first-fit", "mrope next-fit"
STREAM, PEER, LOOP = f"first-fit, {OPEN} open rows", "binpacking", "plain best-fit decreasing"
BALANCED, BUDGET, RANDOM = "mrope, batch_size", "mrope, budget", "random sampler"
FILL, SECONDS, GAP = 0.97, 20.0, 0.03
"""What is demanded: the fill of a million items, their time, and by how much two ranks differ at most."""
Row = dict[str, Any]


def mix(items: int, seed: int = 0) -> np.ndarray:
    """(items,) int64, the tokens of the realistic mix."""
    return np.random.default_rng(seed).lognormal(np.log(600), 1, items).round().clip(16, 16384).astype(np.int64)


# ------------------------------------------------------------------------------------------------------------- packing


def streamed(tokens: list[int], capacity: int) -> int:
    """First-fit as packers of streams do it: into the first open row with room; without one, the fullest row leaves."""
    rooms: list[int] = []
    rows = 0
    for length in tokens:
        for place, room in enumerate(rooms):
            if room >= length:
                rooms[place] -= length
                break
        else:
            if len(rooms) == OPEN:
                rooms.remove(min(rooms))
            rooms.append(capacity - length)
            rows += 1
    return rows


def plain(tokens: list[int], capacity: int) -> int:
    """Best-fit decreasing as it is written down: the longest first, each looks at all rows."""
    rooms: list[int] = []
    for length in sorted(tokens, reverse=True):
        fits = [room for room in rooms if room >= length]
        if fits:
            rooms[rooms.index(min(fits))] -= length
        else:
            rooms.append(capacity - length)
    return len(rooms)


def peer(tokens: list[int], capacity: int) -> int:
    """The package `binpacking`: the longest first, each into the fullest row that has room."""
    import binpacking  # pyright: ignore[reportMissingImports]

    return len(binpacking.to_constant_volume(tokens, capacity))


def packing(items: int, capacity: int, rounds: int) -> list[Row]:
    """A row for each contender: rows, fill, seconds, and rows saved and times as fast beside first-fit of streams."""
    tokens = mix(items)
    listed, found = tokens.tolist(), []
    calls: dict[str, Callable[[], int]] = {
        BEST: lambda: len(pack_items(tokens, capacity)),
        FIRST: lambda: len(pack_items(tokens, capacity, "first-fit")),
        NEXT: lambda: len(pack_items(tokens, capacity, "next-fit")),
        STREAM: lambda: streamed(listed, capacity),
    }
    if items <= QUADRATIC:
        calls[LOOP] = lambda: plain(listed, capacity)
        if find_spec("binpacking"):
            calls[PEER] = lambda: peer(listed, capacity)
        else:
            found.append({"items": items, "contender": PEER, "skipped": "not installed; see --peers"})
    made: dict[str, int] = {}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begun = time.process_time()
            made[name] = call()
            seconds[name].append(time.process_time() - begun)
    for name in calls:
        ratios = [usual / own for usual, own in zip(seconds[STREAM], seconds[name], strict=True)]
        found.append(
            {
                "items": items, "row_tokens": capacity, "contender": name, "rows": made[name], "unit": "s",
                "fill": int(tokens.sum()) / (made[name] * capacity), "saved": 1 - made[name] / made[STREAM],
                "seconds": statistics.median(seconds[name]), "ratio": statistics.median(ratios),
            }
        )  # fmt: skip
    return found


def growth(quick: bool = False) -> Row:
    """The slope of the logarithm of time over that of items, from a hundred thousand to a million; 1 is linear."""
    few, many = (2000, 8000) if quick else (100_000, 1_000_000)
    seconds = []
    for items in (few, many):
        tokens = mix(items)
        times = []
        for _ in range(3):
            begun = time.process_time()
            pack_items(tokens, ROW)
            times.append(time.process_time() - begun)
        seconds.append(min(times))
    return {
        "contender": BEST,
        "items": [few, many],
        "slope": float(np.log(seconds[1] / seconds[0]) / np.log(many / few)),
    }


def memory(quick: bool = False) -> list[Row]:
    """Peak bytes an item of packing, and of an epoch of the sampler, beyond the tokens that came."""
    found, items = [], 2000 if quick else 1_000_000
    tokens = mix(items)
    calls: dict[str, Callable[[], object]] = {
        BEST: lambda: pack_items(tokens, ROW),
        BALANCED: lambda: next(iter(TokenBudgetSampler(tokens, batch_size=BATCH, rank=0, world=2))),
        BUDGET: lambda: next(iter(TokenBudgetSampler(tokens, budget=ROW, rank=0, world=2))),
    }
    for name, call in calls.items():
        tracemalloc.start()
        call()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        found.append({"items": items, "contender": name, "peak": peak / items, "unit": "bytes an item"})
    return found


# ------------------------------------------------------------------------------------------------------------ sampling


def balance(quick: bool = False) -> list[Row]:
    """By how much two ranks differ at a step: the larger sum less the smaller, over their mean."""
    items = 2000 if quick else 1_000_000
    tokens = mix(items)
    found = []
    samplers: dict[str, dict[str, Any]] = {BALANCED: {"batch_size": BATCH}, BUDGET: {"budget": ROW}, RANDOM: {}}
    for name, words in samplers.items():
        begun = time.process_time()
        if name == RANDOM:
            order = np.random.default_rng(0).permutation(items)[: items // (2 * BATCH) * 2 * BATCH]
            sums = tokens[order].reshape(-1, 2, BATCH).sum(2).T
        else:
            ranks = [TokenBudgetSampler(tokens, rank=rank, world=2, **words) for rank in (0, 1)]
            sums = np.array([[int(tokens[batch].sum()) for batch in rank] for rank in ranks])
        seconds = (time.process_time() - begun) / (1 if name == RANDOM else 2)
        gaps = (sums.max(0) - sums.min(0)) / sums.mean(0)
        found.append(
            {
                "items": items, "contender": name, "steps": sums.shape[1], "seconds": seconds,
                "unit": "share of the mean",
                "mean": float(gaps.mean()), "p95": float(np.quantile(gaps, 0.95)), "worst": float(gaps.max()),
                "tokens": float(sums.mean()),
                "fill": float(sums.mean() / ROW) if name == BUDGET else None,
            }
        )  # fmt: skip
    return found


# -------------------------------------------------------------------------------------------------------------- output


def measured(quick: bool = False) -> dict[str, list[Row]]:
    """All rows, by what they measure."""
    cases = [(2000, ROW)] if quick else CASES
    return {
        "packing": [row for case in cases for row in packing(*case, rounds=1 if quick else 3)],
        "growth": [growth(quick)],
        "packing memory": memory(quick),
        "balance": balance(quick),
    }


def print_measured(found: dict[str, list[Row]]) -> None:
    """The tables of `measured`."""
    print(f"packing; rows saved and times as fast beside {STREAM}")
    print_table(
        ("items", "row", "contender", "rows", "full", "rows saved", "seconds", "as fast", "goal"),
        [
            (
                f"{row['items']:,}", row["row_tokens"], row["contender"], row["rows"], f"{100 * row['fill']:.2f} %",
                f"{100 * row['saved']:.2f} %", f"{row['seconds']:.3f}", f"{row['ratio']:.2f}", _goal(row),
            )
            for row in found["packing"] if "skipped" not in row
        ],
    )  # fmt: skip
    for row in found["packing"]:
        if "skipped" in row:
            print(f"skipped: {row['contender']}: {row['skipped']}")
    for row in found["growth"]:
        few, many = row["items"]
        print(f"\n{row['contender']}, {few:,} to {many:,} items: time grows with them to the {row['slope']:.2f}")
    for row in found["packing memory"]:
        print(f"{row['contender']}, {row['items']:,} items: at most {row['peak']:.0f} {row['unit']}")
    print(f"\ntokens of two ranks at a step; {BATCH} items a rank, or a budget of {ROW}")
    print_table(
        ("items", "contender", "steps", "differ by", "p95", "worst", "tokens a rank", "seconds an epoch", "goal"),
        [
            (
                f"{row['items']:,}", row["contender"], row["steps"],
                *(f"{100 * row[part]:.2f} %" for part in ("mean", "p95", "worst")),
                f"{row['tokens']:.0f}", f"{row['seconds']:.2f}",
                f"worst below {100 * GAP:g} %: {_reached(row['worst'] < GAP)}" if row["contender"] == BALANCED else "",
            )
            for row in found["balance"]
        ],
    )  # fmt: skip


def _goal(row: Row) -> str:
    if row["contender"] != BEST or (row["items"], row["row_tokens"]) != CASES[1]:
        return ""
    return (
        f"{100 * FILL:g} % full: {_reached(row['fill'] >= FILL)}, "
        f"below {SECONDS:g} s: {_reached(row['seconds'] < SECONDS)}"
    )


def _reached(reached: bool) -> str:
    return "reached" if reached else "missed"


def facts() -> Row:
    """Machine, versions and commit."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    versions = {"torch": torch.__version__, "numpy": np.__version__}
    return {"cores": os.cpu_count(), **versions, "commit": commit.stdout.strip() or "unknown"}


def main(
    target: Annotated[Path | None, typer.Option("--json", help="Write all rows there, as JSON.")] = None,
    peers: Annotated[
        Path | None, typer.Option(help="A folder with packages of peers, from pip install --target.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few items: does it run?")] = False,
) -> None:
    """Pack and sample a million items; about two minutes on one core."""
    if peers is not None and not peers.is_dir():
        raise typer.BadParameter(f"peers is {str(peers)!r}; expected a folder")
    if peers is not None:
        sys.path.append(str(peers.resolve()))
    with progress() as bars:
        bars.add_task("packing and sampling", total=None)
        found = measured(quick)
    print(", ".join(f"{name} {value}" for name, value in facts().items()) + "\n")
    print_measured(found)
    if target is not None:
        known = facts()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps({part: [known | row for row in rows] for part, rows in found.items()}, indent=1))


if __name__ == "__main__":
    typer.run(main)
