"""What `import mrope` loads, seen in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest
from sources import ROOT

HEAVY = ("transformers", "timm", "torchvision", "PIL", "triton", "numba", "matplotlib", "ray")


def heavy_after(statement: str) -> set[str]:
    """The heavy packages that `statement` loads in a fresh interpreter."""
    probe = f"{statement}\nimport sys\nprint(*({set(HEAVY)} & sys.modules.keys()))"
    run = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import mrope",
        "import mrope; mrope.family('qwen2-vl').positions(['text:2', 'image:1x4x6'])",
        "import mrope; mrope.family('qwen3-vl').plan((480, 640))",
        "import mrope.cli",
    ],
)
def test_nothing_heavy_is_loaded(statement: str) -> None:
    assert heavy_after(statement) == set()


@pytest.mark.parametrize("name", ["data", "hf", "probes", "vision", "vlm"])
def test_packages_need_no_import_of_their_own(name: str) -> None:
    subprocess.run([sys.executable, "-c", f"import mrope; mrope.{name}.__all__"], cwd=ROOT, check=True)


@pytest.mark.parametrize("name", ["PIL", "torchvision"])
def test_the_probe_sees_what_is_loaded(name: str) -> None:
    assert name in heavy_after(f"import {name}")
