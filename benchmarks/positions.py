"""Building positions: time, growth with length, memory and host reads, beside transformers and a plain loop.

Run it: python benchmarks/positions.py [--json FILE] [--quick]

Letters: A axes, N tokens.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]  # a bare checkout will do; the tests know the batches of each family

from mrope import Image, Positions, Span, Text, Video, family  # noqa: E402
from mrope.cli.output import print_table, progress  # noqa: E402

PEER, LOOP, SPANS, TYPES = "transformers", "plain loop of vLLM's kind", "mrope, from spans", "mrope, from token types"
CONTENDERS = (PEER, LOOP, SPANS, TYPES)
VERSION = "transformers-5.24"
SAMPLE = 20  # ms that a contender has in each round, at least
PICTURE = (1, 54, 74)  # patches of 1024 x 768 pixels: 27 x 37 tokens
Row = dict[str, Any]
Call = Callable[[], list[Tensor]]


@dataclass(frozen=True)
class Prompt:
    """One prompt, and all who lay it out: speed, memory and reads are those of the same calls.

    Args:
        name: what the tables call it.
        family: how `mrope.family` calls its family.
        model_type: how transformers does.
        spans: the prompt.
        goals: contender -> how many times as fast as transformers it shall be.
    """

    name: str
    family: str
    model_type: str
    spans: Sequence[Span]
    goals: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def model(self) -> Any:
        """The transformers model, without weights."""
        from every_family import model_of

        return model_of(self.model_type)

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """What a processor returns."""
        from every_family import encode

        return encode(self.model_type, [self.spans]).inputs

    @cached_property
    def features(self) -> list[tuple[int, tuple[int, int, int]]]:
        """(first token, merged grid) of each picture or frame: what vLLM knows of a prompt."""
        from every_family import declared

        record, found, at = family(self.family), [], 0
        for span in declared(self.model_type, [self.spans])[0]:
            if isinstance(span, (Image, Video)):
                t, h, w = span.grid
                found.append((at, (t, h // record.merge, w // record.merge)))
            at += record.layout.tokens(span)
        return found

    def calls(self) -> dict[str, Call]:
        """Contender -> its call; the plain loop weaves no sound."""
        return {name: self.call(name) for name in CONTENDERS if name != LOOP or "omni" not in self.model_type}

    def call(self, contender: str) -> Call:
        """What one contender does, made ready: it returns the ids (A, N) or (A, 1, N), and what comes with them."""
        if contender == SPANS:
            record = family(self.family)
            return lambda: _tensors(record.positions(self.spans, layout=VERSION))
        model, inputs = self.model, self.inputs
        if contender == TYPES:
            from mrope.hf import layout_of, read_positions

            layout = layout_of(model.config, VERSION)
            return lambda: [read_positions(inputs, model.config, layout=layout)]
        if contender == LOOP:
            features, length = self.features, inputs["input_ids"].shape[1]
            return lambda: [plain_loop(features, length)]
        woven = {"use_audio_in_video": True} if "omni" in self.model_type else {}
        return lambda: list(model.get_rope_index(**inputs, **woven))


def plain_loop(features: Sequence[tuple[int, tuple[int, int, int]]], length: int) -> Tensor:
    """The ids of a prompt of `length` tokens, as vLLM makes those of Qwen-VL: in pieces, each behind the largest id."""
    pieces: list[np.ndarray] = []
    done = 0
    for first, grid in [*features, (length, None)]:
        start = pieces[-1].max() + 1 if pieces else 0
        pieces.append(np.broadcast_to(np.arange(first - done), (3, first - done)) + start)
        done = first
        if grid is not None:
            pieces.append(np.indices(grid).reshape(3, -1) + (start + pieces[-1].shape[1]))
            done += pieces[-1].shape[1]
    ids = np.concatenate(pieces, axis=1)
    _ = ids.max() + 1 - length  # the offset for decoding, which all contenders give
    return torch.from_numpy(ids)


def _tensors(positions: Positions) -> list[Tensor]:
    """What takes memory, as in the others the ids alone: slots and segments are made when they are first read."""
    return [positions.ids]


# ------------------------------------------------------------------------------------------------------------ prompts


def pictures(count: int, tokens: int | None = None) -> list[Span]:
    """`count` pictures with 5 to 30 words before each; with `tokens`, text up to that length behind them."""
    rng = Random(0)
    spans: list[Span] = [span for _ in range(count) for span in (Text(rng.randint(5, 30)), Image(PICTURE))]
    length = sum(map(family("qwen2-vl").layout.tokens, spans))
    return [*spans, Text(20 if tokens is None else tokens - length)]


def of_length(tokens: int) -> Prompt:
    """A prompt of so many tokens, with as many pictures as surely fit."""
    return Prompt(f"{tokens:,} tokens", "qwen2-vl", "qwen2_vl", pictures((tokens - 1) // 1029, tokens))


def prompts(*, quick: bool) -> list[Prompt]:
    """The prompts whose speed has a goal."""
    words, counts, steps, seconds = (200, (1, 3), 4, 8) if quick else (64_000, (1, 100, 1000), 384, 120)
    book: list[Span] = [Text(words), Image(PICTURE), Text(words)]
    clip: list[Span] = [Text(20), Video((steps, 24, 32), stamp=9), Text(20)]
    found = [
        Prompt(f"1 picture in {2 * words:,} words", "qwen2-vl", "qwen2_vl", book, {SPANS: 100}),
        *(Prompt(f"pictures: {n:,}", "qwen2-vl", "qwen2_vl", pictures(n), {SPANS: 30, TYPES: 10}) for n in counts),
        Prompt(f"frames: {2 * steps}", "qwen3-vl", "qwen3_vl", clip, {SPANS: 30, TYPES: 20}),
        _clip_with_sound("qwen2.5-omni", "qwen2_5_omni_thinker", seconds, 25),
        _clip_with_sound("qwen3-omni", "qwen3_omni_moe_thinker", seconds, 13),
    ]
    return [replace(prompt, goals={}) for prompt in found] if quick else found


def _clip_with_sound(name: str, model_type: str, seconds: int, rate: int) -> Prompt:
    """A clip at one frame a second, two frames and 240 tokens a step, with `rate` tokens of sound a second."""
    clip = Video((seconds // 2, 24, 40), seconds=2.0, audio=rate * seconds)
    return Prompt(f"{seconds} s with sound, {name}", name, model_type, [Text(20), clip, Text(20)], {SPANS: 200})


# -------------------------------------------------------------------------------------------------------------- speed


def speed(prompt: Prompt, seconds: float) -> list[Row]:
    """A row for each contender: its time, and how many times as fast as transformers it was, round by round."""
    calls = prompt.calls()
    expected = calls[PEER]()[0].flatten(1)
    equal = {name: torch.equal(call()[0].flatten(1), expected) for name, call in calls.items()}
    taken = interleaved(calls, seconds)
    return [
        {
            "prompt": prompt.name,
            "contender": name,
            "unit": "ms",
            **dict(zip(("p20", "p50", "p80"), np.percentile(times, (20, 50, 80)).tolist(), strict=True)),
            "rounds": len(times),
            "ratio": statistics.median(peer / own for peer, own in zip(taken[PEER], times, strict=True)),
            "goal": prompt.goals.get(name),
            "equal": equal[name],
            "shape": list(expected.shape),
            "dtype": str(expected.dtype).removeprefix("torch."),
        }
        for name, times in taken.items()
    ]


def interleaved(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, list[float]]:
    """Milliseconds of each call in each round; a round has all of them, so that a busy machine slows all alike.

    Short calls are repeated until they take `SAMPLE` milliseconds. The garbage collector runs, as it does for users.
    """
    repeats = {name: max(1, int(SAMPLE / _milliseconds(call, 3))) for name, call in calls.items()}
    taken: dict[str, list[float]] = {name: [] for name in calls}
    begin = time.perf_counter()
    while len(taken[PEER]) < 3 or time.perf_counter() - begin < seconds:
        for name, call in calls.items():
            taken[name].append(_milliseconds(call, repeats[name]))
    return taken


def _milliseconds(call: Callable[[], Any], repeats: int) -> float:
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - begin) / repeats * 1e3


def growth(rows: Sequence[Row]) -> list[Row]:
    """For each contender the exponent of time over tokens, from its speed on prompts of several lengths."""
    found = []
    for name in CONTENDERS:
        own = [row for row in rows if row["contender"] == name]
        lengths, times = ([row["shape"][1] for row in own], [row["p50"] for row in own])
        exponent = np.polyfit(np.log(lengths), np.log(times), 1)[0].item()
        found.append({"contender": name, "unit": "exponent", "exponent": exponent, "tokens": lengths, "p50": times})
    return found


# ------------------------------------------------------------------------------------------------- memory, host reads


def memory(tokens: int, contender: str) -> Row:
    """What one call takes at its peak, as the kernel counts it, and what its result takes; in a process of its own."""
    command = [sys.executable, "-c", f"import positions; positions.print_memory({tokens}, {contender!r})"]
    # Blocks from 64 KiB on go back to the system when they are freed: none is left in which a call could hide.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    folder = ROOT / "benchmarks"
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the process that measures memory ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def print_memory(tokens: int, contender: str) -> None:
    """Measure and print what `memory` returns."""
    torch.set_num_threads(1)
    call = of_length(tokens).call(contender)
    call()  # what is loaded and kept on a first call is no cost of the result
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = _kilobytes("VmRSS")
    result = call()
    peak = (_kilobytes("VmHWM") - before) * 1024
    held = sum(tensor.untyped_storage().nbytes() for tensor in result)
    print(
        json.dumps(
            {
                "contender": contender,
                "unit": "bytes",
                "peak": peak,
                "result": held,
                "ratio": peak / held,
                "goal": None if contender == PEER else 2,
                "shape": list(result[0].flatten(1).shape),
            }
        )
    )


def _kilobytes(name: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])


class _Values(TorchDispatchMode):
    """Counts what reads a value or a size from a device: item, bool, int, an arange up to a tensor, nonzero."""

    read = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.read += func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return func(*args, **(kwargs or {}))


class _Tables(TorchFunctionMode):
    """Counts what reads a whole tensor from a device; on the host these calls never come to a dispatch mode."""

    read = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.read += func in (Tensor.cpu, Tensor.tolist)
        return func(*args, **(kwargs or {}))


def host_reads(counts: Sequence[int]) -> list[Row]:
    """How often each contender reads from the device that its inputs are on, with so many pictures."""
    found: dict[str, list[int]] = {}
    for count in counts:
        for name, call in Prompt("", "qwen2-vl", "qwen2_vl", pictures(count)).calls().items():
            with _Values() as values, _Tables() as tables:
                call()
            found.setdefault(name, []).append(values.read + tables.read)
    return [
        {"contender": name, "unit": "reads", "pictures": list(counts), "reads": reads} for name, reads in found.items()
    ]


# ------------------------------------------------------------------------------------------------------------- report


def main(
    target: Annotated[Path | None, typer.Option("--json", help="Write all rows there, as JSON.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny prompts: does it run?")] = False,
) -> None:
    """Compare mrope's positions with those of transformers and of a plain loop; 2 minutes on one core."""
    torch.set_num_threads(1)
    lengths = [1050 * 4**power for power in range(2 if quick else 6)]
    seconds, many, counts = (0.02, 50_000, (1, 3)) if quick else (5, 8_000_000, (1, 100, 1000))
    found: dict[str, list[Row]] = {"speed": [], "growth": [], "memory": [], "reads": []}
    compared, grown = prompts(quick=quick), [of_length(tokens) for tokens in lengths]
    weighed = [SPANS] if quick else [SPANS, TYPES, PEER]
    if not Path("/proc/self/clear_refs").exists():
        weighed = []
    with progress() as bars:
        task = bars.add_task("", total=len(compared) + len(grown) + len(weighed) + 1)

        def step(name: str) -> None:
            bars.update(task, description=name, advance=1)

        for prompt in compared:
            step(prompt.name)
            found["speed"] += speed(prompt, seconds)
        rows: list[Row] = []
        for prompt in grown:
            step(prompt.name)
            rows += speed(prompt, seconds / 3)
        found["growth"] = growth(rows)
        step("host reads")
        found["reads"] = host_reads(counts)
        for name in weighed:
            step(f"memory of {name}")
            found["memory"].append(memory(many, name))
    _print(found)
    if target is not None:
        facts = _facts()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps({part: [row | facts for row in rows] for part, rows in found.items()}, indent=1))
    if not all(row["equal"] for row in (*found["speed"], *rows)):
        raise SystemExit("the ids differ: see the column 'same ids'")


def _facts() -> Row:
    import transformers

    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return {
        "device": "cpu",
        "threads": 1,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
        "commit": commit.stdout.strip() or "unknown",
    }


def _print(found: dict[str, list[Row]]) -> None:
    facts = ", ".join(f"{name} {value}" for name, value in _facts().items())
    print(f"\n{facts}\n")
    columns = ("prompt", "tokens", "contender", "p20 ms", "p50 ms", "p80 ms", "times as fast", "goal", "same ids")
    print_table(
        columns,
        [
            (
                row["prompt"],
                f"{row['shape'][1]:,}",
                row["contender"],
                *(f"{row[part]:.3f}" for part in ("p20", "p50", "p80")),
                f"{row['ratio']:.1f}",
                _goal(row["goal"], row["ratio"] >= (row["goal"] or 0)),
                "yes" if row["equal"] else "NO",
            )
            for row in found["speed"]
        ],
    )
    print("\ntime grows with tokens to the power of")
    tokens = [f"{tokens:,}" for tokens in found["growth"][0]["tokens"]]
    print_table(
        ("contender", "exponent", *(f"{each} tokens, ms" for each in tokens)),
        [
            (row["contender"], f"{row['exponent']:.2f}", *(f"{each:.3f}" for each in row["p50"]))
            for row in found["growth"]
        ],
    )
    print("\nreads of a device tensor")
    print_table(
        ("contender", *(f"pictures: {count:,}" for count in found["reads"][0]["pictures"])),
        [(row["contender"], *row["reads"]) for row in found["reads"]],
    )
    print("\nmemory of one call" if found["memory"] else "\nmemory was not measured: the system has no /proc/self")
    print_table(
        ("contender", "tokens", "peak MB", "result MB", "peak / result", "goal"),
        [
            (
                row["contender"],
                f"{row['shape'][1]:,}",
                f"{row['peak'] / 1e6:.1f}",
                f"{row['result'] / 1e6:.1f}",
                f"{row['ratio']:.2f}",
                _goal(row["goal"], row["ratio"] <= (row["goal"] or 0), "at most"),
            )
            for row in found["memory"]
        ],
    )


def _goal(goal: float | None, reached: bool, words: str = "at least") -> str:
    return "" if goal is None else f"{words} {goal:g}: {'reached' if reached else 'missed'}"


if __name__ == "__main__":
    typer.run(main)
