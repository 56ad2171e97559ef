"""The benchmarks run on tiny prompts: rows are printed, and all contenders give the same ids. No time is judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
from sources import ROOT

FACTS = {"device", "threads", "torch", "transformers", "numpy", "commit"}


@pytest.mark.skipif(
    not transformers.__version__.startswith("5.24."), reason="the ids are compared with those of transformers 5.24 only"
)
def test_positions_are_compared(tmp_path: Path) -> None:
    target = tmp_path / "rows.json"
    command = [sys.executable, ROOT / "benchmarks" / "positions.py", "--quick", "--json", target]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(target.read_text())
    assert all(FACTS | {"contender", "unit"} <= set(row) for rows in found.values() for row in rows)
    for row in found["speed"]:
        assert row["prompt"] in done.stdout
        assert row["equal"]
        assert 0 < row["p20"] <= row["p50"] <= row["p80"]
    prompts = [row["prompt"] for row in found["speed"]]
    assert {prompts.count(prompt) for prompt in prompts} == {3, 4}  # the plain loop takes no clip with sound
    assert len(found["growth"]) == 4
    for row in found["reads"]:
        first, *_, last = row["reads"]
        assert (first < last) == (row["contender"] == "transformers")


def test_prompts_have_their_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    import positions

    for tokens in (1050, 4200, 16_800):
        prompt = positions.of_length(tokens)
        assert prompt.call(positions.SPANS)()[0].shape == (3, tokens)
    features = positions.of_length(4200).features
    assert [grid for _, grid in features] == [(1, 27, 37)] * 4
    positions_of_loop = positions.plain_loop(features, 4200)
    assert positions_of_loop.equal(positions.of_length(4200).call(positions.SPANS)()[0])
