"""The benchmark of the rotation runs on a few tokens: rows are printed, and goals are judged. No time is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sources import ROOT

FACTS = {"device", "threads", "torch", "transformers", "numpy", "commit"}


def test_rotations_are_compared(tmp_path: Path) -> None:
    target = tmp_path / "rows.json"
    command = [sys.executable, ROOT / "benchmarks" / "rotary.py", "--quick", "--json", target]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(target.read_text())
    assert all(set(row) >= FACTS for rows in found.values() for row in rows)
    assert len(found["speed"]) == 2 * 2 * 2 * 9  # malloc, family, dtype, contender
    for row in found["speed"]:
        assert row["contender"] in done.stdout
        assert 0 < row["p20"] <= row["p50"] <= row["p80"]
    judged = [row["goals"] for row in found["speed"] if row["contender"].startswith("mrope fused, in place")]
    assert judged == [{}] * 4 + [{"ratio": 8.0}] * 4
    assert done.stdout.count("reached") + done.stdout.count("missed") >= 4 + 8 + 8
    assert all(row["value"] is True for row in found["accuracy"] if row["what"].startswith("bfloat16"))


@pytest.mark.parametrize("device", ["tpu", "cuda"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    command = [sys.executable, ROOT / "benchmarks" / "rotary.py", "--quick", "--device", device]
    done = subprocess.run(
        command, env={"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 2
    assert f"device is '{device}'" in done.stderr
