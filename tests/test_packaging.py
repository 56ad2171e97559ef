"""What gets installed: one top-level name, complete, usable far from the checkout, polite to its users' own folders."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy
import pytest
from sources import IMPORT_NAMES, ROOT, packages

from mrope.data import draw_grid, fonts, sample_key

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Standard output of `command`, which must succeed."""
    done = subprocess.run(command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True)
class Installed:
    """The wheel, installed into `site`; its commands run in the empty folder `home`."""

    site: Path
    home: Path

    def python(self, code: str) -> str:
        return run(sys.executable, "-c", code, cwd=self.home, PYTHONPATH=str(self.site))

    def mrope(self, *arguments: str | Path) -> str:
        return run(self.site / "bin" / "mrope", *arguments, cwd=self.home, PYTHONPATH=str(self.site))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist, which was built from a copy of the sources (no leftovers of earlier builds)."""
    work = tmp_path_factory.mktemp("build")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, work)
    for name in IMPORT_NAMES:
        shutil.copytree(ROOT / name, work / name, ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", work / "dist", cwd=work)
    (built,) = (work / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="session")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", folder, wheel, cwd=wheel.parent)
    return folder


@pytest.fixture
def installed(site: Path, tmp_path: Path) -> Installed:
    return Installed(site, tmp_path)


def test_every_package_is_listed() -> None:
    assert sorted(SETUPTOOLS["packages"]) == packages()


def test_mrope_is_the_only_top_level_name(site: Path) -> None:
    names = {path.name for path in site.iterdir()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"mrope", "bin"}
    assert {path.name for path in (site / "bin").iterdir()} == {"mrope"}


def test_every_file_of_the_sources_arrives(site: Path) -> None:
    for folder, name in IMPORT_NAMES.items():
        there = site / name.replace(".", "/")
        sources = [path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*") if path.is_file()]
        missing = [str(path) for path in sources if "__pycache__" not in path.parts and not (there / path).is_file()]
        assert not missing, f"{folder}/ loses {missing}"


def test_the_licence_arrives(site: Path) -> None:
    (licence,) = site.glob("mrope-*.dist-info/licenses/LICENSE")
    assert licence.read_text() == (ROOT / "LICENSE").read_text()


def test_all_of_it_comes_from_the_installed_place(installed: Installed) -> None:
    code = f"import {', '.join(packages())}, sys; print(*(sys.modules[name].__file__ for name in {packages()}))"
    assert all(Path(file).is_relative_to(installed.site / "mrope") for file in installed.python(code).split())


def test_plan_runs_from_the_installed_place(installed: Installed) -> None:
    (plan,) = json.loads(installed.mrope("plan", "640x480", "--family", "qwen2.5-vl", "--json"))["pictures"]
    assert plan["original"] == {"height": 480, "width": 640}
    assert plan["resized"] == {"height": 476, "width": 644}  # multiples of 28
    assert plan["grid"] == {"t": 1, "h": 34, "w": 46}
    assert plan["tokens"] == 17 * 23


def test_positions_runs_from_the_installed_place(installed: Installed) -> None:
    spans = ("text:2", "image:1x4x6", "text:1")
    (row,) = json.loads(installed.mrope("positions", *spans, "--family", "qwen2-vl", "--json"))
    assert row["ids"] == [[0, 1, 2, 2, 2, 2, 2, 2, 5], [0, 1, 2, 2, 2, 3, 3, 3, 5], [0, 1, 2, 3, 4, 2, 3, 4, 5]]
    (document,) = row["documents"]
    assert (document["length"], document["next"], document["offset"]) == (9, 6, -3)


def test_read_runs_from_the_installed_place(installed: Installed) -> None:
    rng = numpy.random.default_rng(0)
    grid = draw_grid(sample_key(3, 5, rng), fonts("held-out"), rng)
    grid.picture.save(installed.home / "grid.png")
    read = json.loads(installed.mrope("read", "grid.png", "--json"))
    assert read["rows"] == grid.text().splitlines()


def test_a_users_own_data_and_vision_keep_working(installed: Installed) -> None:
    (installed.home / "data").mkdir()  # a plain folder, without __init__.py
    (installed.home / "data" / "mine.py").write_text("WORD = 'mine'\n")
    (installed.home / "vision").mkdir()
    (installed.home / "vision" / "__init__.py").write_text("WORD = 'yours'\n")
    code = """
import data.mine, vision
import mrope.data, mrope.vision
print(data.mine.WORD, vision.WORD, mrope.vision.plan.__module__.split(".")[0], bool(mrope.data.fonts()))
"""
    assert installed.python(code).split() == ["mine", "yours", "mrope", "True"]
