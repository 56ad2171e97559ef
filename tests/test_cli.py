"""The command `mrope`, started as a user starts it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from PIL import Image
from sources import ROOT
from typer.testing import CliRunner

import mrope.cli

COMMAND = (sys.executable, "-m", "mrope")
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


def mrope_command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run((*COMMAND, *arguments), cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def output(*arguments: str) -> str:
    """What a command that succeeds prints, run in this process."""
    result = CliRunner().invoke(mrope.cli.app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of good and bad pictures; the good ones are 90 wide and 60 high as stored."""
    folder = tmp_path_factory.mktemp("pictures")
    pixels = numpy.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=numpy.uint8)
    picture = Image.fromarray(pixels)
    picture.save(folder / "good.jpg")
    exif = picture.getexif()
    exif[0x0112] = 6
    picture.save(folder / "turned [red].jpg", exif=exif)
    whole = (folder / "good.jpg").read_bytes()
    (folder / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.png").touch()
    (folder / "text.png").write_text("no picture\n")
    (folder / "folder").mkdir()
    return folder


PLAN = ("plan", "--family", "qwen2.5-vl")
BAD_INPUT = {
    "missing file": ((*PLAN, "missing.png"), ("missing.png: No such file",)),
    "zero bytes": ((*PLAN, "empty.png"), ("empty.png", "empty")),
    "text file": ((*PLAN, "text.png"), ("text.png", "not a picture")),
    "folder": ((*PLAN, "folder"), ("folder", "is a folder")),
    "no name": ((*PLAN, ""), ("No such file",)),
    "thin": ((*PLAN, "10000x20"), ("10000x20", "200 to 1")),
    "no width": ((*PLAN, "0x10"), ("0x10", "width is 0")),
    "good and bad": ((*PLAN, "good.jpg", "640x480", "empty.png"), ("empty.png",)),
    "negative limit": ((*PLAN, "--min-tokens", "-1", "good.jpg"), ("min_tokens is -1",)),
    "crossed limits": ((*PLAN, "--min-tokens", "9", "--max-tokens", "4", "640x480"), ("min_tokens is 9", "4")),
    "unknown family": (("plan", "640x480", "--family", "qwen9"), ("'qwen9'", "qwen2-vl, qwen2.5-vl, qwen3-vl")),
    "training on no device": (("reader", "train", "--device", "abacus"), ("abacus", "cuda")),
}


ON_THE_REAL_COMMAND = ("missing file", "text file", "thin", "unknown family")


@pytest.mark.parametrize(("arguments", "words"), BAD_INPUT.values(), ids=list(BAD_INPUT))
def test_bad_input_is_one_line(
    arguments: tuple[str, ...], words: tuple[str, ...], pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pictures)
    before = sorted(pictures.rglob("*"))
    result = CliRunner().invoke(mrope.cli.app, arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    assert result.stderr.startswith(f"mrope {arguments[0]}: ")
    assert [word for word in words if word not in result.stderr] == []
    assert sorted(pictures.rglob("*")) == before


@pytest.mark.parametrize("name", ON_THE_REAL_COMMAND)
def test_bad_input_to_the_real_command_is_one_line(name: str, pictures: Path) -> None:
    arguments, words = BAD_INPUT[name]
    done = mrope_command(*arguments, cwd=pictures)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert [word for word in words if word not in done.stderr] == []


@pytest.mark.parametrize(
    "arguments", [("plan", "640x480"), ("plan", "--family", "qwen2-vl"), ("fly",), ("plan", "-5x9")]
)
def test_wrong_usage_is_told(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(mrope.cli.app, arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Usage: " in result.stderr


def test_json_and_nothing_else_on_stdout(pictures: Path) -> None:
    done = mrope_command(*PLAN, "--json", "truncated.jpg", "turned [red].jpg", "5x300", cwd=pictures)
    assert (done.returncode, done.stderr) == (0, "")
    truncated, turned, size = json.loads(done.stdout)["pictures"]
    assert truncated == {
        "picture": "truncated.jpg",
        "original": {"height": 60, "width": 90},
        "orientation": 1,
        "resized": {"height": 56, "width": 84},
        "grid": {"t": 1, "h": 4, "w": 6},
        "tokens": 6,
        "prompt_tokens": 8,
        "scale": {"height": 56 / 60, "width": 84 / 90},
    }
    assert (turned["original"], turned["orientation"]) == ({"height": 90, "width": 60}, 6)
    assert turned["grid"] == {"t": 1, "h": 6, "w": 4}
    assert size["original"] == {"height": 300, "width": 5}


def test_plan_says_wide_and_high(pictures: Path) -> None:
    table = output(*PLAN, "640x480", str(pictures / "turned [red].jpg"))
    rows = [re.split("  +", line) for line in table.splitlines()]
    assert rows[1][:6] == ["640x480", "640 wide x 480 high", "644 wide x 476 high", "1x34x46", "391", "393"]
    assert rows[2][0].endswith("turned [red].jpg")
    assert rows[2][1:3] == ["60 wide x 90 high (turned, EXIF 6)", "56 wide x 84 high"]


def test_token_limits_reach_the_plan() -> None:
    (least,) = json.loads(output(*PLAN, "280x280", "--min-tokens", "400", "--json"))["pictures"]
    (most,) = json.loads(output(*PLAN, "2800x2800", "--max-tokens", "50", "--json"))["pictures"]
    assert least["tokens"] >= 400
    assert most["tokens"] == 49


def test_families() -> None:
    records = {record["family"]: record for record in json.loads(output("families", "--json"))}
    assert list(records) == list(mrope.family_names())
    assert records["qwen3-vl"]["factor"] == 32
    assert records["qwen2.5-vl"]["ids_per_second"] == 2
    assert all(name in output("families") for name in records)


def test_version() -> None:
    assert output("--version") == f"mrope {mrope.__version__}\n"


@pytest.mark.parametrize("columns", [40, 200], ids=["narrow", "wide"])
def test_a_terminal_cuts_nothing_off(columns: int, tmp_path: Path) -> None:
    terminal, end = pty.openpty()
    environment = ENVIRONMENT | {"COLUMNS": str(columns), "TERM": "xterm", "NO_COLOR": "1"}
    with subprocess.Popen((*COMMAND, "families"), cwd=tmp_path, env=environment, stdout=end, stdin=end):
        os.close(end)
        shown = b""
        with contextlib.suppress(OSError):  # a terminal that its program has left cannot be read
            while part := os.read(terminal, 1 << 16):
                shown += part
    os.close(terminal)
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode())  # bold headings
    assert all(word in text for word in ("qwen2.5-vl", "interleaved", "processed-pixels", "5000000"))
    assert max(map(len, text.splitlines())) <= columns
