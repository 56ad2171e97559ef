"""The command `mrope positions`, with ids that were worked out by hand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy
import pytest
from matplotlib.figure import Figure
from sources import ROOT
from typer.testing import CliRunner

import mrope.cli
from mrope.probes.position_plot import plot_positions


def positions(*arguments: str | Path) -> str:
    """What the command prints when it succeeds, run in this process."""
    result = CliRunner().invoke(mrope.cli.app, ["positions", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def as_json(*arguments: str) -> list[dict[str, Any]]:
    return json.loads(positions(*arguments, "--json"))


def real_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "mrope", "positions", *arguments)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def cells(line: str) -> list[str]:
    return re.split("  +", line.rstrip())


def test_a_table_has_a_line_for_each_span() -> None:
    table = positions("text:15", "image:1x24x32", "text:5", "--family", "qwen2-vl").splitlines()
    assert [cells(line) for line in table] == [
        ["span", "tokens", "first (t, h, w)", "last (t, h, w)"],
        ["text:15", "15", "0, 0, 0", "14, 14, 14"],
        ["image:1x24x32", "192", "15, 15, 15", "15, 26, 30"],
        ["text:5", "5", "31, 31, 31", "35, 35, 35"],
        ["length 212, next 36, offset -176"],
    ]


def test_json_has_all_numbers() -> None:
    (row,) = as_json("text:1", "video:2x2x4@1.0", "text:1", "--family", "qwen2.5-vl", "--decode", "2")
    assert row == {
        "axes": ["t", "h", "w"],
        "length": 6,
        "ids": [[0, 1, 1, 3, 3, 4], [0, 1, 1, 1, 1, 4], [0, 1, 2, 1, 2, 4]],
        "text": [0, 1, 2, 3, 4, 5],
        "segments": [0] * 6,
        "cu_seqlens": [0, 6],
        "documents": [
            {
                "spans": ["text:1", "video:2x2x4@1.0", "text:1"],
                "length": 6,
                "next": 5,
                "offset": -1,
                "planned": None,
                "decode": [[5, 6], [5, 6], [5, 6]],
            }
        ],
    }


def test_the_first_and_last_step_of_a_clip_with_stamps_are_told() -> None:
    # 9 x 16 tokens a step behind 8 of text; a step takes 8 + 16 positions, so that the last begins at 19 * 24 + 8.
    table = positions("video:20x18x32+8", "--family", "qwen3-vl").splitlines()
    assert [cells(line.strip()) for line in table[1:]] == [
        ["video:20x18x32+8", "3040", "0, 0, 0", "464, 472, 479"],
        ["step 1 of 20", "144", "8, 8, 8", "8, 16, 23"],
        ["step 20 of 20", "144", "464, 464, 464", "464, 472, 479"],
        ["length 3040, next 480, offset -2560"],
    ]


def test_steps_with_stamps_of_their_own() -> None:
    table = positions("video:2x2x4+1,3", "--family", "qwen3-vl").splitlines()  # 1 | 1 2 | 3 4 5 | 6 7
    assert [cells(line.strip()) for line in table[2:4]] == [
        ["step 1 of 2", "2", "1, 1, 1", "1, 1, 2"],
        ["step 2 of 2", "2", "6, 6, 6", "6, 6, 7"],
    ]
    single = positions("video:1x2x4+1", "--family", "qwen3-vl")
    assert single.count("step ") == 1


def test_real_ids_are_written_shortly() -> None:
    # Half a second at 13 ids a second: the second step lies at 1 + 6.5, and text goes on one further.
    table = positions("text:1", "video:2x2x2@.5", "text:1", "--family", "qwen3-omni").splitlines()
    assert cells(table[2]) == ["video:2x2x2@.5", "2", "1, 1, 1", "7.5, 1, 1"]
    assert table[4] == "length 4, next 9.5, offset 5.5"


def test_other_axes_have_their_names() -> None:
    table = positions("text:2", "image:1x2x4", "--family", "hunyuan-vl").splitlines()
    assert cells(table[0])[2:] == ["first (sequence, w, h, image)", "last (sequence, w, h, image)"]
    assert cells(table[2]) == ["image:1x2x4", "5", "2, 2, 2, 2", "6, 6, 6, 6"]  # start, 2 tokens, newline, end


def test_the_sound_of_a_clip() -> None:
    (row,) = as_json("video:1x2x2@1&3", "audio:2", "--family", "qwen2.5-omni")
    # Two start tokens, the clip's one token, three of sound, two end tokens; then a sound by itself.
    assert row["ids"][0] == [0, 0, 1, 1, 2, 3, 4, 4, 5, 6]


def test_what_is_to_be_generated_comes_first_in_decoding() -> None:
    arguments = ("text:1", "target:1x2x2", "--family", "glm-image", "--decode", "5")
    table = positions(*arguments).splitlines()
    assert [cells(line) for line in table[2:]] == [
        ["target:1x2x2", "4 planned", "1, 1, 1", "1, 2, 2"],
        ["length 1, next 3, offset -2, planned 4"],
        ["next tokens (1, 1, 1) (1, 1, 2) (1, 2, 1) (1, 2, 2) (3, 3, 3)"],
    ]
    (row,) = as_json(*arguments)
    (document,) = row["documents"]
    assert (row["length"], document["length"], document["next"]) == (1, 1, 3)
    assert document["planned"] == [[1, 1, 1, 1], [1, 1, 2, 2], [1, 2, 1, 2]]
    assert document["decode"] == [[1, 1, 1, 1, 3], [1, 1, 2, 2, 3], [1, 2, 1, 2, 3]]


def test_start_and_decode() -> None:
    table = positions("text:2", "--family", "qwen2-vl", "--start", "10", "--decode", "2").splitlines()
    assert cells(table[1]) == ["text:2", "2", "10, 10, 10", "11, 11, 11"]
    assert table[2:] == ["length 2, next 12, offset 10", "next tokens (12, 12, 12) (13, 13, 13)"]


@pytest.mark.parametrize(("layout", "following"), [("trained", 41), ("transformers-5.24", 5)])
def test_layout_of_a_library_version(layout: str, following: int) -> None:
    (row,) = as_json("video:40x8x8", "text:1", "--family", "qwen2-vl", "--layout", layout)
    assert row["documents"][0]["next"] == following


def test_a_layout_of_a_library_version_takes_its_own_spans() -> None:
    (row,) = as_json("video:3x2x2", "--family", "paddleocr-vl", "--layout", "transformers-5.24")
    assert row["ids"][0] == [0, 1, 2]


MEDIA = ("image:1x32x64", "sliced:1x32x64", "video:2x32x64", "video:2x32x64@2", "video:2x32x64+3")


@pytest.mark.parametrize("name", mrope.family_names())
def test_every_family(name: str) -> None:
    family = mrope.family(name)
    taken = [span for span in MEDIA if CliRunner().invoke(mrope.cli.app, ["positions", span, "--family", name]).stdout]
    assert taken
    for span in ["text:4", *taken]:
        (row,) = as_json(span, "--family", name)
        assert row["axes"] == list(family.axes)
        assert row["ids"] == family.positions([span]).ids.tolist()


PACK = ("text:3", "image:1x4x8", "/", "text:5", "--family", "qwen2-vl", "--pack")


def test_packed_documents() -> None:
    (row,) = as_json(*PACK)
    assert row["ids"] == [
        [0, 1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 0, 1, 2, 3, 4],
        [0, 1, 2, 3, 3, 3, 3, 4, 4, 4, 4, 0, 1, 2, 3, 4],
        [0, 1, 2, 3, 4, 5, 6, 3, 4, 5, 6, 0, 1, 2, 3, 4],
    ]
    assert row["text"] == [*range(11), *range(5)]
    assert row["segments"] == [0] * 11 + [1] * 5
    assert row["cu_seqlens"] == [0, 11, 16]
    assert [(each["length"], each["next"], each["offset"]) for each in row["documents"]] == [(11, 7, -4), (5, 5, 0)]
    table = positions(*PACK).splitlines()
    assert [cells(line) for line in table] == [
        ["document", "span", "tokens", "first (t, h, w)", "last (t, h, w)"],
        ["0", "text:3", "3", "0, 0, 0", "2, 2, 2"],
        ["0", "image:1x4x8", "8", "3, 3, 3", "3, 4, 6"],
        ["1", "text:5", "5", "0, 0, 0", "4, 4, 4"],
        ["document 0: length 11, next 7, offset -4"],
        ["document 1: length 5, next 5, offset 0"],
        ["1 row of 16 slots, cu_seqlens 0, 11, 16"],
    ]


def test_packed_documents_are_padded_one_by_one_or_together() -> None:
    (row,) = as_json(*PACK, "--pad-multiple", "4")
    assert row["segments"] == [0] * 11 + [-1] + [1] * 5 + [-1] * 3
    (row,) = as_json(*PACK, "--pad", "20")
    assert row["segments"] == [0] * 11 + [1] * 5 + [-1] * 4
    assert row["cu_seqlens"] == [0, 11, 16, 20]
    last = positions(*PACK, "--pad", "20").splitlines()[-1]
    assert last == "1 row of 20 slots, 4 of them padding, cu_seqlens 0, 11, 16, 20"


ROWS = ("text:3", "/", "image:1x2x4", "--family", "qwen2-vl")


@pytest.mark.parametrize(
    ("arguments", "segments"),
    [
        ((), [[0, 0, 0], [-1, 0, 0]]),
        (("--side", "right"), [[0, 0, 0], [0, 0, -1]]),
        (("--pad", "4"), [[-1, 0, 0, 0], [-1, -1, 0, 0]]),
        (("--pad", "4", "--side", "right"), [[0, 0, 0, -1], [0, 0, -1, -1]]),
        (("--pad-multiple", "4"), [[-1, 0, 0, 0], [-1, -1, 0, 0]]),
        (("--pad-multiple", "3"), [[0, 0, 0], [-1, 0, 0]]),
    ],
    ids=str,
)
def test_rows_of_a_batch_are_padded(arguments: tuple[str, ...], segments: list[list[int]]) -> None:
    rows = as_json(*ROWS, *arguments)
    assert [row["segments"] for row in rows] == segments
    assert [[w for w, s in zip(row["ids"][2], row["segments"], strict=True) if s == 0] for row in rows] == [
        [0, 1, 2],
        [0, 1],
    ]
    assert [row["documents"][0]["offset"] for row in rows] == [0, 0]
    assert [row["length"] for row in rows] == [3, 2]


def test_the_table_of_a_batch_ends_with_its_rows() -> None:
    assert positions(*ROWS).splitlines()[-3:] == [
        "document 0: length 3, next 3, offset 0",
        "document 1: length 2, next 2, offset 0",
        "2 rows of 3 slots, 1 of them padding",
    ]


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        (("--shard", "0/2"), [0, 1, 6, 7]),
        (("--shard", "1/2"), [2, 3, 4, 5]),
        (("--shard", "1/2", "--scheme", "zigzag"), [2, 3, 4, 5]),
        (("--shard", "1/2", "--scheme", "contiguous"), [4, 5, 6, 7]),
        (("--shard", "3/4"), [3, 4]),
    ],
    ids=str,
)
def test_what_a_rank_holds(arguments: tuple[str, ...], ids: list[int]) -> None:
    (row,) = as_json("text:8", "--family", "qwen2-vl", *arguments)
    assert row["ids"] == [ids] * 3
    assert row["text"] == ids
    assert row["documents"][0]["next"] == 8  # where decoding goes on stays the whole row's


def test_a_rank_of_packed_documents() -> None:
    # 3 tokens in 4 slots and 5 in 8: in four pieces each, rank 1 holds slots 1, 2 and slots 2 to 5.
    arguments = ("text:3", "/", "text:5", "--family", "qwen2-vl", "--pack", "--pad-multiple", "4", "--shard", "1/2")
    (row,) = as_json(*arguments)
    assert row["ids"][0] == [1, 2, 2, 3, 4, 0]
    assert row["segments"] == [0, 0, 1, 1, 1, -1]
    table = positions(*arguments).splitlines()
    assert [cells(line) for line in table[1:]] == [
        ["0", "text:3", "2 of 3", "1, 1, 1", "2, 2, 2"],
        ["1", "text:5", "3 of 5", "2, 2, 2", "4, 4, 4"],
        ["document 0: length 3, next 3, offset 0, tokens here 1 to 2"],
        ["document 1: length 5, next 5, offset 0, tokens here 2 to 4"],
        ["rank 1 of 2, zigzag: 1 row of 6 slots, 1 of them padding, cu_seqlens 0, 2, 5, 6"],
    ]


def test_a_rank_that_holds_nothing_of_a_span() -> None:
    table = positions("text:2", "image:1x4x6", "--family", "qwen2-vl", "--shard", "1/2").splitlines()
    assert [cells(line) for line in table[1:]] == [
        ["text:2", "0 of 2", "-", "-"],
        ["image:1x4x6", "4 of 6", "2, 2, 2", "2, 3, 2"],
        ["length 8, next 5, offset -3, tokens here 2 to 5"],
        ["rank 1 of 2, zigzag: 1 row of 4 slots"],
    ]


def test_a_rank_that_holds_two_ends() -> None:
    table = positions("text:8", "--family", "qwen2-vl", "--shard", "0/2").splitlines()
    assert table[2] == "length 8, next 8, offset 0, tokens here 0 to 1, 6 to 7"


FAMILY = ("--family", "qwen2-vl")
BAD_INPUT = {
    "not divisible by the merge": (("text:3", "image:1x5x7", *FAMILY), ("1x5x7", "merge 2")),
    "seconds out of place": (("video:2x4x4@1.0", *FAMILY), ("@SECONDS", "index")),
    "stamp out of place": (("video:2x4x4+3", *FAMILY), ("+TOKENS", "index")),
    "sound out of place": (("audio:3", *FAMILY), ("audio of 3 tokens",)),
    "empty span": (("", *FAMILY), ("span ''", "text:N")),
    "negative span": (("text:-3", *FAMILY), ("text:-3", "text:N")),
    "no such family": (("text:3", "--family", "qwen9"), ("'qwen9'", "qwen2-vl")),
    "no such layout": (("text:3", *FAMILY, "--layout", "mine"), ("--layout is 'mine'", "transformers-5.24")),
    "a document of nothing": (("text:3", "/", "/", "text:3", *FAMILY), ("document 1 has no spans",)),
    "nothing behind the last slash": (("text:3", "/", *FAMILY), ("document 1 has no spans",)),
    "padded to less": (("text:3", *FAMILY, "--pad", "2"), ("padded length is 2", "3 slots")),
    "padded to nothing": (("text:3", *FAMILY, "--pad", "0"), ("--pad is 0",)),
    "two paddings": (("text:3", *FAMILY, "--pad", "8", "--pad-multiple", "8"), ("one of them",)),
    "side of no padding": (("text:3", *FAMILY, "--side", "left"), ("--side goes with",)),
    "side of a packed row": ((*PACK, "--side", "left"), ("--side does not go with --pack",)),
    "no such side": ((*ROWS, "--side", "up"), ("--side is 'up'", "left, right")),
    "scheme without shard": (("text:8", *FAMILY, "--scheme", "zigzag"), ("--scheme goes with --shard",)),
    "no such scheme": (("text:8", *FAMILY, "--shard", "0/2", "--scheme", "zag"), ("'zag'", "contiguous")),
    "no such rank": (("text:8", *FAMILY, "--shard", "2/2"), ("rank is 2", "0 to 1")),
    "no ranks": (("text:8", *FAMILY, "--shard", "0/0"), ("--shard is 0",)),
    "no shard": (("text:8", *FAMILY, "--shard", "half"), ("'half'", "RANK/WORLD")),
    "does not divide": (("text:5", *FAMILY, "--shard", "0/2"), ("5 slots", "multiple of 4")),
    "decoding a packed row": ((*PACK, "--decode", "3"), ("--decode does not go with --pack",)),
    "decoding nothing": (("text:3", *FAMILY, "--decode", "0"), ("--decode is 0",)),
    "starting before 0": (("text:3", *FAMILY, "--start", "-1"), ("--start is -1",)),
    "packing what is to be generated": (
        ("target:1x2x2", "/", "text:1", "--family", "glm-image", "--pack"),
        ("planned tokens",),
    ),
    "plot of no format": (("text:3", *FAMILY, "--plot", "plot.jpeg"), ("plot.jpeg", ".png, .svg or .pdf")),
    "plot without a suffix": (("text:3", *FAMILY, "--plot", "plot"), (".png, .svg or .pdf",)),
    "plot in no folder": (("text:3", *FAMILY, "--plot", "no/plot.png"), ("no is no folder",)),
    "plot over a folder": (("text:3", *FAMILY, "--plot", "folder.png"), ("folder.png is in the way",)),
}
HUGE = {
    "text": ("text:99999999999", *FAMILY),
    "text beyond any integer": (f"text:{10**30}", *FAMILY),
    "text that a system may promise": ("text:2000000000", *FAMILY),
    "texts": (*["text:10000000"] * 2, *FAMILY),
    "picture": ("image:1x999999999998x999999999998", *FAMILY),
    "picture with small sides": ("image:1x100000x100000", *FAMILY),
    "clip": ("video:9999999999999x2x2", *FAMILY),
    "clip with stamps": ("video:9999999999999x2x2+8", "--family", "qwen3-vl"),
    "stamps": (f"video:2x2x2+{10**30}", "--family", "qwen3-vl"),
    "sum of stamps": ("video:2x2x2+9999999,9999999", "--family", "qwen3-vl"),
    "seconds": (f"video:2x2x2@{10**30}", "--family", "qwen2.5-vl"),
    "seconds beyond any float": (f"video:2x2x2@{10**400}", "--family", "qwen2.5-vl"),
    "sound": (f"video:2x2x2@1&{10**12}", "--family", "qwen2.5-omni"),
    "slices": ("sliced:1x4x4/100000x100000x1x4x4", "--family", "minicpm-v4.7"),
    "target": ("target:1x9999999x9999999", "--family", "glm-image"),
    "start": ("text:3", *FAMILY, "--start", str(10**30)),
    "pad": ("text:3", *FAMILY, "--pad", str(10**12)),
    "rows": ("text:9000000", "/", "text:1", *FAMILY),
    "multiple": ("text:3", *FAMILY, "--pad-multiple", str(10**12)),
    "decode": ("text:3", *FAMILY, "--decode", str(10**12)),
    "ranks": ("text:3", *FAMILY, "--shard", f"0/{10**30}"),
}
BAD_INPUT |= {f"huge {name}": (arguments, ()) for name, arguments in HUGE.items()}


@pytest.mark.parametrize(("arguments", "words"), BAD_INPUT.values(), ids=list(BAD_INPUT))
def test_bad_input_is_one_line(
    arguments: tuple[str, ...], words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder.png").mkdir()
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(mrope.cli.app, ["positions", *arguments])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    assert result.stderr.startswith("mrope positions: ")
    assert [word for word in words if word not in result.stderr] == []
    assert list(tmp_path.iterdir()) == [tmp_path / "folder.png"]


@pytest.mark.parametrize("name", ["huge text", "huge seconds", "not divisible by the merge"])
def test_bad_input_to_the_real_command_is_one_line(name: str) -> None:
    done = real_command(*BAD_INPUT[name][0])
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr


def test_a_warning_is_one_line() -> None:
    done = real_command("video:40x4x4@0.1", "--family", "qwen2.5-vl")
    assert done.returncode == 0
    assert done.stderr.startswith("mrope: warning: ")
    assert done.stderr.count("\n") == 1


def test_the_example_of_the_help_runs() -> None:
    told = CliRunner().invoke(mrope.cli.app, ["positions", "--help"], env={"COLUMNS": "200"}).stdout
    example = re.search(r"Example: mrope positions (.*)", told)
    assert example is not None
    assert "cu_seqlens 0, 207, 212" in positions(*example[1].split())


MAGIC = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf", "PNG"])
def test_a_plot_is_written_in_the_format_of_its_name(suffix: str, tmp_path: Path) -> None:
    plot = tmp_path / f"prompt.{suffix}"
    plot.write_text("an older plot")
    printed = positions("text:3", "image:1x4x8", *FAMILY, "--plot", plot)
    assert printed.splitlines()[-1] == f"wrote {plot}"
    assert plot.read_bytes().startswith(MAGIC[suffix.lower()])
    assert list(tmp_path.iterdir()) == [plot]


def test_json_stays_json_beside_a_plot(tmp_path: Path) -> None:
    (row,) = as_json("text:3", *FAMILY, "--plot", str(tmp_path / "prompt.svg"))
    assert row["length"] == 3


def test_a_plot_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plot = tmp_path / "prompt.svg"
    plot.write_text("an older plot")

    def fail(self: Path, target: Path) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(Path, "replace", fail)
    result = CliRunner().invoke(mrope.cli.app, ["positions", "text:3", *FAMILY, "--plot", str(plot)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert plot.read_text() == "an older plot"
    assert list(tmp_path.iterdir()) == [plot]


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = CliRunner().invoke(mrope.cli.app, ["positions", "text:3", *FAMILY, "--plot", str(tmp_path / "plot.png")])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "mrope[plot]" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved while a test runs."""
    figures: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *arguments: Any, **options: Any) -> None:
        figures.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def lines(figure: Figure) -> list[numpy.ndarray]:
    """The corners (x, y) of the last step line of each panel."""
    return [numpy.asarray(panel.collections[-1].get_paths()[0].vertices) for panel in figure.axes]


def test_a_plot_shows_each_token(drawn: list[Figure], tmp_path: Path) -> None:
    (row,) = as_json("text:3", "image:1x4x8", "text:2", *FAMILY, "--plot", str(tmp_path / "plot.svg"))
    (figure,) = drawn
    assert [panel.get_ylabel() for panel in figure.axes] == ["position on t", "position on h", "position on w"]
    assert "token" in figure.axes[-1].get_xlabel()
    assert figure.get_suptitle() == "qwen2-vl: positions of 13 tokens"
    assert [text.get_text() for text in figure.axes[0].texts] == ["text:3", "image:1x4x8", "text:2"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["text", "image"]
    for corners, ids in zip(lines(figure), row["ids"], strict=True):
        assert {(x, y) for x, y in corners.tolist()} >= {
            (slot + side, value) for slot, value in enumerate(ids) for side in (0, 1)
        }


def test_a_long_plot_shows_the_range_of_each_column(drawn: list[Figure], tmp_path: Path) -> None:
    spans = ["text:20000", "image:1x400x800", "text:1"]
    positions(*spans, *FAMILY, "--plot", tmp_path / "plot.svg")
    ids = mrope.family("qwen2-vl").positions(spans).ids.numpy()
    edges = numpy.arange(2001) * ids.shape[1] // 2000
    for corners, axis in zip(lines(drawn[0]), ids, strict=True):
        columns = [axis[begin:end] for begin, end in pairwise(edges)]
        assert {tuple(corner) for corner in corners.tolist()} >= {
            (begin, bound)
            for begin, column in zip(edges.tolist(), columns, strict=False)
            for bound in (column.min(), column.max())
        }
    assert (tmp_path / "plot.svg").stat().st_size < 2_000_000


def test_a_plot_of_documents_and_padding(drawn: list[Figure], tmp_path: Path) -> None:
    positions(*PACK, "--pad-multiple", "4", "--plot", tmp_path / "plot.svg")
    positions(*ROWS, "--plot", tmp_path / "plot.svg")
    packed, rows = drawn
    for figure, border in ((packed, 12), (rows, 3)):  # left padding belongs to the row behind it
        (line,) = figure.axes[1].lines
        assert numpy.asarray(line.get_xdata()).tolist() == [border, border]
        assert [text.get_text() for text in figure.axes[-1].texts] == ["document 0", "document 1"]
        assert "padding" in [text.get_text() for text in figure.legends[0].get_texts()]
    first, second = (numpy.asarray(each.get_paths()[0].vertices) for each in packed.axes[0].collections[-2:])
    assert (first[:, 0].min(), first[:, 0].max()) == (0, 11)  # a gap where there is padding
    assert (second[:, 0].min(), second[:, 0].max()) == (12, 17)


def test_a_plot_of_a_rank_with_nothing_of_a_document(drawn: list[Figure], tmp_path: Path) -> None:
    # In zigzag, rank 1 holds slots 2 to 5 of each document's eight: four tokens, padding alone, four tokens.
    documents = ("text:8", "/", "text:1", "/", "text:8")
    positions(*documents, *FAMILY, "--pack", "--pad-multiple", "8", "--shard", "1/2", "--plot", tmp_path / "plot.svg")
    borders = [numpy.asarray(line.get_xdata()).tolist()[0] for line in drawn[0].axes[0].lines]
    assert borders == [4, 8]
    assert len(drawn[0].axes[-1].texts) == 3


def test_a_plot_shows_what_is_planned(drawn: list[Figure], tmp_path: Path) -> None:
    positions("text:2", "target:1x2x3", "--family", "glm-image", "--plot", tmp_path / "plot.svg")
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["text", "to be generated"]
    corners = {tuple(corner) for corner in lines(drawn[0])[2].tolist()}
    assert corners >= {(2, 2), (3, 3), (4, 4), (5, 2), (6, 3), (7, 4)}


def test_a_plot_of_very_many_spans_names_some(drawn: list[Figure], tmp_path: Path) -> None:
    positions(*["text:9", "image:1x4x6"] * 300, *FAMILY, "--plot", tmp_path / "plot.svg")
    named = drawn[0].axes[0].texts
    assert 20 < len(named) < 60
    places = sorted(text.get_position()[0] for text in named)
    assert numpy.diff(places).min() > 0.02


def test_positions_of_other_spans_are_not_drawn(tmp_path: Path) -> None:
    family = mrope.family("qwen2-vl")
    row = family.positions(["text:3"])
    with pytest.raises(ValueError, match="document 0 take 2 tokens"):
        plot_positions(row, [["text:2"]], family, tmp_path / "plot.svg")
    with pytest.raises(ValueError, match="2 documents"):
        plot_positions(row, [["text:3"], ["text:3"]], family, tmp_path / "plot.svg")


def test_a_later_turn_is_drawn(drawn: list[Figure], tmp_path: Path) -> None:
    family = mrope.family("qwen2-vl")
    turn = [mrope.Text(2), mrope.Image((1, 4, 4))]
    row = family.positions(turn, family.positions(["text:5"]))
    plot_positions(row, [turn], family, tmp_path / "plot.svg")
    assert [text.get_text() for text in drawn[0].axes[0].texts] == ["text of 2 tokens", "image grid 1x4x4"]


def test_an_encoder_decodes_nothing_and_nothing_is_printed_before_it_says_so() -> None:
    done = real_command("image:1x3x4", "--family", "neomme", "--decode", "1")
    assert (done.stdout, done.returncode) == ("", 2)
    assert done.stderr.startswith("mrope positions: an encoder generates no tokens")
