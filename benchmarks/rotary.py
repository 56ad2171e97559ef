"""Turning queries and keys: time, bandwidth, accuracy and memory, beside transformers and a plain copy.

Run it: python benchmarks/rotary.py [--json FILE] [--device cuda] [--quick]

Letters: B batch, H heads, N tokens, D head dim, F rotary pairs.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]  # a bare checkout will do; the tests know the models

import mrope  # noqa: E402
from mrope.cli.output import print_table, progress  # noqa: E402
from mrope.ops import choose, rotate, rotate_qk, rotate_qk_  # noqa: E402

HEADS, CHANNELS = (28, 4), 128
FAMILIES = {"qwen2-vl": "qwen2_vl", "qwen3-vl": "qwen3_vl"}
DTYPES = ("float32", "bfloat16")
PEER, COPY = "transformers", "copy of the same bytes"
EAGER, COMPILED, FUSED, PLACE = "mrope eager", "mrope compiled", "mrope fused", "mrope fused, in place"
PEER_BACK, BACK = "transformers, backward", "mrope fused, backward"
PEER_ANGLES, ANGLES = "transformers, cos and sin", "mrope, cos and sin"
MALLOC = {
    "default": {},
    # glibc keeps what is freed, so that no call pays for fresh pages.
    "tuned": {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184"},
}
FLUSH = 1 << 28  # bytes written between calls on a GPU, more than its L2 holds
Row = dict[str, Any]


# -------------------------------------------------------------------------------------------------------------- calls


class Case:
    """Queries and keys of one family, length and dtype, and all who turn them; speed and memory are those of one setup.

    Args:
        family: how `mrope.family` calls it.
        tokens: N.
        dtype: "float32" or "bfloat16".
        device: where the tensors are.
    """

    def __init__(self, family: str, tokens: int, dtype: str, device: str) -> None:
        torch.manual_seed(0)
        kind = getattr(torch, dtype)
        # As projections give them: transposed views of (B, N, H, D).
        self.q = torch.randn(1, tokens, HEADS[0], CHANNELS, device=device).to(kind).transpose(1, 2)
        self.k = torch.randn(1, tokens, HEADS[1], CHANNELS, device=device).to(kind).transpose(1, 2)
        self.rotary = mrope.family(family).rotary()
        self.ids = torch.arange(tokens, device=device).repeat(3, 1, 1)
        self.ids[1] //= 3
        self.ids[2] %= 37
        self.cos, self.sin = self.rotary.cos_sin(self.ids)
        self.family = family

    @property
    def moved(self) -> int:
        """Bytes of q and k, read once and written once."""
        return 2 * (self.q.nbytes + self.k.nbytes)

    @property
    def fused(self) -> str:
        """What "auto" takes."""
        return choose(self.q, self.k, self.cos, self.sin)

    def calls(self, *, compiled: bool) -> dict[str, Callable[[], Any]]:
        """Contender -> its call, made ready."""
        from tiny_models import tiny_model

        name = FAMILIES[self.family]
        theirs = import_module(f"transformers.models.{name}.modeling_{name}").apply_rotary_pos_emb
        module = tiny_model(self.family).model.language_model.rotary_emb.to(self.q.device)
        tables = module(self.q, self.ids)
        both = self.q, self.k
        source = torch.cat([x.transpose(1, 2).flatten() for x in both])
        target = torch.empty_like(source)
        placed = self.q.clone(), self.k.clone()
        grads = [torch.randn_like(x) for x in both]
        learned = self.q.detach().requires_grad_(), self.k.detach().requires_grad_()
        backward = partial(torch.autograd.grad, inputs=learned, grad_outputs=grads, retain_graph=True)
        calls: dict[str, Callable[[], Any]] = {
            PEER: lambda: theirs(*both, *tables),
            COPY: lambda: target.copy_(source),
            EAGER: lambda: rotate_qk(*both, self.cos, self.sin, impl="eager"),
            FUSED: lambda: rotate_qk(*both, self.cos, self.sin),
            PLACE: lambda: rotate_qk_(*placed, self.cos, self.sin),
            PEER_BACK: partial(backward, theirs(*learned, *tables)),
            BACK: partial(backward, rotate_qk(*learned, self.cos, self.sin)),
            PEER_ANGLES: lambda: module(self.q, self.ids),
            ANGLES: lambda: self.rotary.cos_sin(self.ids),
        }
        if compiled:
            turn = torch.compile(rotate_qk)
            calls[COMPILED] = lambda: turn(*both, self.cos, self.sin)
        return calls


def goals(name: str, tokens: int, device: str, malloc: str) -> Row:
    """What a contender shall reach: times as fast as its peer, share of the copy's speed, time over the forward's."""
    if name == (FUSED if device == "cuda" else PLACE) and malloc != "default":
        return {"ratio": 8.0} | ({"share": 0.7} if device == "cuda" and tokens >= 16384 else {})
    return {ANGLES: {"ratio": 3.0}, BACK: {"over": 1.5}}.get(name, {})


# -------------------------------------------------------------------------------------------------------------- speed


def work(device: str, malloc: str, *, quick: bool) -> None:
    """Print, as JSON, a row for each case and contender; in a process whose malloc was set up."""
    torch.set_num_threads(1)
    lengths, rounds = ((67,), 2) if quick else ((4096, 16384), 7)
    compiled = not quick and _compiles(device)
    print(json.dumps([
        row for family, tokens, dtype in product(FAMILIES, lengths, DTYPES)
        for row in speed(Case(family, tokens, dtype, device), malloc, rounds, compiled=compiled)
    ]))  # fmt: skip


def _compiles(device: str) -> bool:
    """Whether `torch.compile` finds what it needs here."""
    from torch._inductor.exc import InductorError

    try:
        torch.compile(lambda x: x + 1)(torch.ones(2, device=device))
    except (InductorError, RuntimeError):
        return False
    return True


def speed(case: Case, malloc: str, rounds: int, *, compiled: bool) -> list[Row]:
    """A row for each contender: its time, and how many times as fast as its peer it was, round by round."""
    calls = case.calls(compiled=compiled)
    device, tokens = case.q.device.type, case.q.shape[2]
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(-2, rounds):  # a round has all of them, so that a busy machine slows all alike
        for name, call in calls.items():
            spent = _milliseconds(call, device)
            if turn >= 0:  # the first calls compile
                taken[name].append(spent)
    peers = {BACK: PEER_BACK, PEER_BACK: PEER_BACK, ANGLES: PEER_ANGLES, PEER_ANGLES: PEER_ANGLES}
    rows = []
    for name, times in taken.items():
        peer = peers.get(name, PEER)
        turns = name not in (PEER_ANGLES, ANGLES)
        rows.append(
            {
                "family": case.family,
                "shape": [1, sum(HEADS), tokens, CHANNELS],
                "dtype": str(case.q.dtype).removeprefix("torch."),
                "device": device,
                "malloc": malloc,
                "contender": f"{name} ({case.fused})" if name in (FUSED, PLACE, BACK) else name,
                "unit": "ms",
                **dict(zip(("p20", "p50", "p80"), np.percentile(times, (20, 50, 80)).tolist(), strict=True)),
                "rounds": rounds,
                "bandwidth": case.moved / statistics.median(times) / 1e6 if turns else None,  # GB/s
                "ratio": _median_ratio(taken[peer], times),
                "share": _median_ratio(taken[COPY], times) if turns else None,
                "over": _median_ratio(times, taken[FUSED]) if name == BACK else None,
                "goals": goals(name, tokens, device, malloc),
            }
        )
    return rows


def _median_ratio(times: list[float], others: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(times, others, strict=True))


def _milliseconds(call: Callable[[], Any], device: str) -> float:
    """Of the processor in this thread, which other programs do not lengthen; on a GPU between two events."""
    if device == "cpu":
        begin = time.thread_time()
        call()
        return (time.thread_time() - begin) * 1e3
    torch.empty(FLUSH, dtype=torch.uint8, device=device).zero_()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


# --------------------------------------------------------------------------------------------------- accuracy, memory


def accuracy() -> list[Row]:
    """How far exact cos and sin are from float64 far out, and whether bfloat16 is float32 rounded once."""
    rows: list[Row] = []
    for family, position in product(FAMILIES, (1_000_000, 10_000_000)):
        exact = replace(mrope.family(family).rotary(), angles="exact")
        ids = torch.arange(position - 500, position + 500).repeat(3, 1)
        powers = np.arange(0, CHANNELS, 2) / CHANNELS
        angle = ids[0].numpy()[:, None] * exact.frequencies.base**-powers
        error = max(
            np.abs(ours.double().numpy() - true).max()
            for ours, true in zip(exact.cos_sin(ids), (np.cos(angle), np.sin(angle)), strict=True)
        )
        rows.append(
            {
                "what": f"{family}: exact cos and sin at {position:,}",
                "value": float(error),
                "reached": bool(error <= 1e-6),
            }
        )
    case = Case("qwen2-vl", 512, "bfloat16", "cpu")
    for impl in dict.fromkeys(("eager", case.fused)):
        found = rotate_qk(case.q, case.k, case.cos, case.sin, impl=impl)  # pyright: ignore[reportArgumentType]
        once = [rotate(x.float(), case.cos, case.sin).bfloat16() for x in (case.q, case.k)]
        same = all(map(torch.equal, found, once))
        rows.append({"what": f"bfloat16 is float32 rounded once, {impl}", "value": same, "reached": same})
    return rows


def memory(tokens: int, device: str) -> Row:
    """What angles and a turn out of place take at their peak, and what tables and result take; in its own process."""
    command = [sys.executable, "-c", f"import rotary; rotary.print_memory({tokens}, {device!r})"]
    # Blocks from 64 KiB on go back to the system when they are freed: none is left in which a call could hide.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    return json.loads(_run(command, environment))


def print_memory(tokens: int, device: str) -> None:
    """Measure and print what `memory` returns."""
    torch.set_num_threads(1)
    case = Case("qwen2-vl", tokens, "bfloat16", device)
    del case.cos, case.sin

    def call() -> list[Tensor]:
        tables = case.rotary.cos_sin(case.ids)
        return [*tables, *rotate_qk(case.q, case.k, *tables)]

    call()  # what is loaded and kept on a first call is no cost of the result
    gc.collect()
    if device == "cpu":
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
        before = _kilobytes("VmRSS")
        result = call()
        peak = (_kilobytes("VmHWM") - before) * 1024
    else:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = call()
        peak = torch.cuda.max_memory_allocated() - before
    held = sum(tensor.nbytes for tensor in result)
    print(json.dumps({"tokens": tokens, "unit": "bytes", "peak": peak, "result": held, "ratio": peak / held}))


def _kilobytes(name: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])


def _run(command: list[str], environment: dict[str, str]) -> str:
    """The last line that a process of this folder prints."""
    folder = ROOT / "benchmarks"
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"a measuring process ended with {done.returncode}:\n{done.stderr}")
    return done.stdout.splitlines()[-1]


# ------------------------------------------------------------------------------------------------------------- report


def main(
    target: Annotated[Path | None, typer.Option("--json", help="Write all rows there, as JSON.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="A few tokens: does it run?")] = False,
) -> None:
    """Compare mrope's rotation with that of transformers; 5 to 10 minutes on one core."""
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise typer.BadParameter(f"device is {device!r}; expected cpu, or cuda where there is one")
    found: dict[str, list[Row]] = {"speed": [], "memory": []}
    modes = MALLOC if device == "cpu" else {"CUDA's": {}}
    with progress() as bars:
        task = bars.add_task("", total=len(modes) + 2)
        for malloc, settings in modes.items():
            bars.update(task, description=f"speed, malloc {malloc}")
            command = [sys.executable, "-c", f"import rotary; rotary.work({device!r}, {malloc!r}, quick={quick})"]
            found["speed"] += json.loads(_run(command, os.environ | settings))
            bars.update(task, advance=1)
        bars.update(task, description="accuracy")
        found["accuracy"] = accuracy()
        bars.update(task, description="memory", advance=1)
        if device == "cuda" or Path("/proc/self/clear_refs").exists():
            found["memory"].append(memory(4096 if quick else 16384, device))
        bars.update(task, advance=1)
    _print(found, device)
    if target is not None:
        facts = _facts(device)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps({part: [facts | row for row in rows] for part, rows in found.items()}, indent=1))


def _facts(device: str) -> Row:
    import transformers

    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "threads": 1,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
        "commit": commit.stdout.strip() or "unknown",
    }


def _print(found: dict[str, list[Row]], device: str) -> None:
    facts = ", ".join(f"{name} {value}" for name, value in _facts(device).items())
    print(f"\n{facts}\n")
    columns = (
        "family",
        "tokens",
        "dtype",
        "malloc",
        "contender",
        "p20 ms",
        "p50 ms",
        "p80 ms",
        "GB/s",
        "times as fast",
    )
    print_table(
        (*columns, "of the copy", "goal"),
        [
            (
                row["family"],
                f"{row['shape'][2]:,}",
                row["dtype"],
                row["malloc"],
                row["contender"],
                *(f"{row[part]:.3f}" for part in ("p20", "p50", "p80")),
                "" if row["bandwidth"] is None else f"{row['bandwidth']:.1f}",
                f"{row['ratio']:.1f}",
                "" if row["share"] is None else f"{row['share']:.0%}",
                _goal(row),
            )
            for row in found["speed"]
        ],
    )
    print("\naccuracy")
    print_table(
        ("what", "value", "goal"),
        [(row["what"], _value(row["value"]), "reached" if row["reached"] else "missed") for row in found["accuracy"]],
    )
    print(
        "\nmemory of cos, sin and a turn out of place"
        if found["memory"]
        else "\nmemory was not measured: no /proc/self"
    )
    print_table(
        ("tokens", "peak MB", "tables and result MB", "peak / result", "goal"),
        [
            (
                f"{row['tokens']:,}",
                f"{row['peak'] / 1e6:.1f}",
                f"{row['result'] / 1e6:.1f}",
                f"{row['ratio']:.2f}",
                f"at most 1.05: {'reached' if row['ratio'] <= 1.05 else 'missed'}",
            )
            for row in found["memory"]
        ],
    )


def _value(value: float | bool) -> str:
    return ("yes" if value else "NO") if isinstance(value, bool) else f"{value:.1e}"


def _goal(row: Row) -> str:
    words = []
    for name, goal in row["goals"].items():
        reached = row[name] <= goal if name == "over" else row[name] >= goal
        text = {"ratio": "at least {:g}", "share": "at least {:.0%} of the copy", "over": "at most {:g} forward"}[name]
        words.append(f"{text.format(goal)}: {'reached' if reached else 'missed'} ({row[name]:.2f})")
    return "; ".join(words)


if __name__ == "__main__":
    typer.run(main)
