"""The command `mrope frequencies`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import mrope
import mrope.cli


def frequencies(*arguments: str | Path) -> str:
    """What the command prints when it succeeds, run in this process."""
    result = CliRunner().invoke(mrope.cli.app, ["frequencies", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def as_json(*arguments: str | Path) -> dict[str, Any]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(frequencies(*arguments, "--json"), parse_constant=refuse)


def cells(line: str) -> list[str]:
    return re.split("  +", line.rstrip())


QWEN2 = ("--family", "qwen2-vl")
HEADINGS = [
    *("axis", "pairs", "wavelengths", "turn in L0", "1 - K(1)", "bf16 tables tell apart"),
    *("kept", "partly", "fully", "times slower"),
]


def test_a_table_has_a_line_for_each_axis() -> None:
    told = frequencies("--family", "qwen2.5-vl", "--extend", "yarn:4").splitlines()
    assert told[:4] == [
        "qwen2.5-vl: T*16 H*24 W*24, base 1000000",
        "trained length 32768 positions (the model card of Qwen2.5-VL)",
        "grid of 128 rows x 128 columns of tokens",
        "the extension multiplies cos and sin with 1.139",
    ]
    assert [cells(line) for line in told[4:8]] == [
        HEADINGS,
        ["t", "16", "6.283 .. 160.1", "16 (100%)", "0.085", "64, 64", "16", "0", "0", "1 .. 1"],
        ["h", "24", "198.7 .. 9.681e+04", "20 (83%)", "5.9e-05", "64, 64", "8", "16", "0", "1 .. 3.4"],
        ["w", "24", "1.413e+05 .. 2.025e+07", "0 (0%)", "1.2e-10", "45, 19", "0", "0", "24", "4 .. 4"],
    ]
    assert [line.partition(":")[0] for line in told[8:17]] == [f"  {heading}" for heading in HEADINGS[1:]]
    assert [line.partition(":")[0] for line in told[17:]] == ["warning"] * 4
    assert "cast to bf16, as transformers does, tell 45 of 64 neighbouring cells apart at 4000, 19 of 64" in told[19]
    assert max(len(line.rstrip()) for line in told[:17]) <= 120


def test_a_column_that_differs_is_one_and_one_that_tells_nothing_is_none() -> None:
    told = frequencies("--family", "qwen2.5-vl", "--extend", "t=zero", "--extend", "w=yarn:4").splitlines()
    assert not any("multiplies cos and sin" in line for line in told)
    assert cells(told[3]) == [*HEADINGS, "stopped", "cos, sin times"]
    assert [cells(line)[-3:] for line in told[4:7]] == [
        ["-", "16", "1"],
        ["1 .. 1", "0", "1"],
        ["4 .. 4", "0", "1.139"],
    ]
    assert {"  stopped", "  cos, sin times"} <= {line.partition(":")[0] for line in told}
    still = frequencies(*QWEN2, "--extend", "zero").splitlines()
    assert cells(still[3]) == [
        heading for heading in (*HEADINGS, "stopped") if heading not in ("wavelengths", "times slower")
    ]


def test_json_has_all_numbers() -> None:
    told = as_json(*QWEN2, "--grid", "24x32", "--target", "65536", "--decay")
    warnings = told.pop("warnings")
    assert [line[:2] for line in warnings] == ["t:", "h:", "w:", "w:"]
    h = told["axes"][1]
    assert h.pop("shortest") == pytest.approx(198.69, rel=1e-4)
    assert h.pop("longest") == pytest.approx(28473, rel=1e-4)
    assert h.pop("drop") == pytest.approx(5.9e-5, rel=0.01)
    assert h == {
        "name": "h",
        "pairs": 24,
        "turned": 24,
        "distinct": [64, 64],
        "searched": 23,
        "falls_to": None,
        "looks_same": None,
        "stretch": None,
        "unseen": 0,
    }
    assert [axis["unseen"] for axis in told.pop("axes")] == [0, 0, 24]
    decay = told.pop("decay")
    assert decay["distances"] == [1, 8, 32, 128, 512, 2048]
    assert decay["kernels"]["h"] == pytest.approx([1.00, 0.996, 0.942, 0.559, 0.313, -0.055], abs=6e-4)
    assert told.pop("trained")["length"] == 32768
    assert told == {"family": "qwen2-vl", "pattern": "T*16 H*24 W*24", "base": 1e6, "target": 65536, "grid": [24, 32]}


def test_the_kernels_are_printed_where_asked() -> None:
    told = frequencies(*QWEN2, "--decay").splitlines()
    heading = next(number for number, line in enumerate(told) if line.startswith("mean cos at"))
    assert cells(told[heading + 1]) == ["t", "0.915", "0.227", "-0.046", "-0.188", "-0.117", "-0.108"]
    assert "mean cos at" not in frequencies(*QWEN2)


@pytest.mark.parametrize("name", mrope.family_names())
def test_every_family(name: str) -> None:
    told = as_json("--family", name)
    record = mrope.family(name)
    assert [axis["name"] for axis in told["axes"]] == list(record.axes)
    assert [axis["pairs"] for axis in told["axes"]] == list(record.split.counts)
    assert (told["grid"] is None) == (record.image_tokens is None)
    assert frequencies("--family", name).startswith(f"{name}: ")


def test_a_split_and_a_base_of_ones_own() -> None:
    told = as_json("--family", "qwen3-vl", "--split", "HW*24 T*16", "--base", "1e6", "--trained", "200000")
    assert (told["pattern"], told["base"]) == ("HW*24 T*16", 1e6)
    assert told["axes"][0]["falls_to"] == 167229
    swapped = as_json("--family", "qwen3-vl", "--split", "wh*24 t*16", "--base", "1e6", "--trained", "200000")
    assert swapped["axes"][1]["shortest"] == told["axes"][2]["shortest"] != told["axes"][1]["shortest"]


@pytest.mark.parametrize(
    ("arguments", "length", "source"),
    [
        (QWEN2, 32768, "max_position_embeddings of Qwen2-VL"),
        ((*QWEN2, "--trained", "16384"), 16384, "--trained"),
        (("--family", "qwen3-vl"), 262144, "the model card of Qwen3-VL"),
        (("--family", "glm4v", "--extend", "yarn:2,8192"), 8192, "the extension"),
        (("--family", "glm4v", "--extend", "w=linear:2", "--extend", "t=yarn:2,8192"), 8192, "the extension"),
        (("--family", "glm4v", "--trained", "9", "--extend", "yarn:2,8192"), 9, "--trained"),
    ],
    ids=str,
)
def test_it_is_told_where_the_trained_length_is_from(arguments: tuple[str, ...], length: int, source: str) -> None:
    told = as_json(*arguments)["trained"]
    assert told["length"] == length
    assert told["source"].startswith(source)
    assert f"trained length {length} positions ({source}" in frequencies(*arguments)


def test_what_is_not_known_is_said() -> None:
    told = frequencies("--family", "minicpm-v4.7")
    assert "trained length not known; --trained tells it" in told
    assert "grid not known; --grid tells it" in told
    assert cells(told.splitlines()[3]) == ["axis", "pairs", "wavelengths", "1 - K(1)", "bf16 tables tell apart"]


def test_an_extension_of_each_axis() -> None:
    told = as_json(*QWEN2, "--extend", "t=ntk:4", "--extend", "hw=linear:2")
    t, h, w = (axis["stretch"] for axis in told["axes"])
    assert (h["full"], h["most"], w["full"], w["most"]) == (24, 2, 24, 2)
    assert (t["kept"], t["partly"]) == (1, 15)
    part = as_json(*QWEN2, "--extend", "w=yarn:4")
    assert [axis["stretch"] and axis["stretch"]["full"] for axis in part["axes"]] == [None, None, 24]
    assert cells(frequencies(*QWEN2, "--extend", "w=yarn:4").splitlines()[4])[-5:] == [
        "16",
        "0",
        "0",
        "1 .. 1",
        "1",
    ]


def test_axes_that_no_word_names_keep_the_extension_of_the_family() -> None:
    told = as_json("--family", "hunyuan-vl", "--extend", "w=zero")
    stretches = {axis["name"]: axis["stretch"] for axis in told["axes"]}
    assert stretches["w"]["stopped"] == 16
    assert stretches["image"]["most"] == pytest.approx(1000)


def test_another_type_of_layer() -> None:
    told = as_json("--family", "neomme", "--layer", "full_attention", "--grid", "20x30")
    assert [(axis["name"], axis["pairs"], axis["searched"]) for axis in told["axes"]] == [
        ("row", 4, 19),
        ("col", 4, 29),
    ]


CONFIG = {
    "model_type": "qwen2_5_vl",
    "rope_theta": 1e6,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "rope_scaling": {"type": "yarn", "mrope_section": [16, 24, 24], "factor": 4}
    | {"original_max_position_embeddings": 16384},
}


def test_a_checkpoint_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    told = as_json("--config", tmp_path)
    assert told["family"] == "qwen2.5-vl"
    assert told["trained"]["length"] == 16384
    assert told["axes"][2]["stretch"]["full"] == 24
    assert "none of t" in told["warnings"][-1]


def test_advice_is_the_word_and_its_table() -> None:
    told = frequencies(*QWEN2, "--advise", "32768", "131072").splitlines()
    assert "advice: --extend yarn:4,32768" in told
    assert ["w", "0 of 24", "0 of 24", "2.025e+07"] in [cells(line)[:4] for line in told]
    chosen = as_json(*QWEN2, "--advise", "32768", "131072")
    same = as_json(*QWEN2, "--trained", "32768", "--target", "131072", "--extend", chosen["advice"]["extend"])
    assert chosen["axes"] == same["axes"]
    assert chosen["trained"] == {"length": 32768, "source": "--advise", "most_factor": None}
    assert [axis["name"] for axis in chosen["advice"]["left"]] == ["t", "h", "w"]
    assert "advice: no extension" in frequencies(*QWEN2, "--advise", "32768", "9000")


def test_advice_on_an_ntk_goes_from_its_base() -> None:
    told = frequencies("--family", "hunyuan-vl", "--advise", "32768", "131072").splitlines()
    line = next(line for line in told if line.startswith("advice: "))
    assert line == f"advice: --base {10000 * 1000 ** (128 / 126):.10g} --extend yarn:4,32768"
    assert "its own Ntk(factor=1000) is the same as the base 11158839.93" in told[told.index(line) + 1]
    chosen = as_json("--family", "hunyuan-vl", "--advise", "32768", "131072")
    same = as_json("--family", "hunyuan-vl", "--trained", "32768", "--target", "131072", *line.split()[1:])
    assert [axis["longest"] for axis in chosen["axes"]] == pytest.approx([axis["longest"] for axis in same["axes"]])
    assert [axis["stretch"]["full"] for axis in chosen["axes"]] == [axis["stretch"]["full"] for axis in same["axes"]]
    near = frequencies("--family", "hunyuan-vl", "--advise", "32768", "9000")
    assert "advice: no extension" in near
    kept = as_json("--family", "hunyuan-vl", "--decay")
    assert as_json("--family", "hunyuan-vl", "--advise", "32768", "9000", "--decay")["decay"] == kept["decay"]


def test_advice_on_another_extension_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    result = CliRunner().invoke(mrope.cli.app, ["frequencies", "--config", str(tmp_path), "--advise", "9", "99"])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "has an extension, Yarn(factor=4" in result.stderr
    assert "the configuration without it (on the command line --family, with --base" in result.stderr


def test_a_plot_and_json(tmp_path: Path) -> None:
    plot = tmp_path / "decay.svg"
    assert frequencies(*QWEN2, "--plot", plot).splitlines()[-1] == f"wrote {plot}"
    assert plot.read_bytes().startswith(b"<?xml")
    assert as_json(*QWEN2, "--plot", tmp_path / "decay.png")["family"] == "qwen2-vl"


def test_the_example_of_the_help_runs() -> None:
    told = CliRunner().invoke(mrope.cli.app, ["frequencies", "--help"], env={"COLUMNS": "200"}).stdout
    example = re.search(r"Example: mrope frequencies (.*)", told)
    assert example is not None
    assert "times slower" in frequencies(*example[1].split())


BAD_INPUT = {
    "neither": ((), ("--family", "--config")),
    "both": ((*QWEN2, "--config", "here"), ("--family", "--config")),
    "no such family": (("--family", "qwen9"), ("'qwen9'", "qwen2-vl")),
    "no such layer": (("--family", "neomme", "--layer", "mine"), ("'mine'", "full_attention")),
    "layers that are alike": ((*QWEN2, "--layer", "mine"), ("'mine'", "all layers are alike")),
    "no checkpoint": (("--config", "here"), ("here has no config.json",)),
    "a split that does not add up": ((*QWEN2, "--split", "THW*20"), ("sums to 60", "needs 64")),
    "a split of other axes": ((*QWEN2, "--split", "HW*32"), ("'HW*32'", "'THW'")),
    "no pattern": ((*QWEN2, "--split", "T**2"), ("'T**2'", "THW*20 T*4")),
    "no base": ((*QWEN2, "--base", "1", "--extend", "yarn:4"), ("--base is 1", "more than 1")),
    "a base that is no number": ((*QWEN2, "--base", "nan"), ("--base is nan",)),
    "an endless base": ((*QWEN2, "--base", "inf"), ("rope base", "finite")),
    "no such extension": ((*QWEN2, "--extend", "yearn:4"), ("'yearn'", "yarn")),
    "a huge factor": ((*QWEN2, "--extend", "ntk:1e308"), ("factor is 1e+308", "from 1 to 1e30")),
    "a huge factor of an axis": ((*QWEN2, "--extend", "w=linear:1e31"), ("factor is 1e+31", "from 1 to 1e30")),
    "no factor": ((*QWEN2, "--extend", "yarn"), ("no factor", "yarn:4,32768")),
    "no length": (("--family", "glm4v", "--extend", "yarn:4"), ("no trained", "yarn:4,32768")),
    "no such axis": ((*QWEN2, "--extend", "x=yarn:4"), ("the axis 'x'", "t, h, w")),
    "no axis": ((*QWEN2, "--extend", "=yarn:4"), ("the axis '?'",)),
    "an axis twice": ((*QWEN2, "--extend", "t=ntk:4", "--extend", "th=ntk:2"), ("'t' again",)),
    "an axis twice in a word": ((*QWEN2, "--extend", "hh=ntk:4"), ("'h' again",)),
    "plain beside axes": ((*QWEN2, "--extend", "t=ntk:4", "--extend", "yarn:4"), ("'yarn:4' names no axes",)),
    "plain twice": ((*QWEN2, "--extend", "ntk:4", "--extend", "yarn:4"), ("'ntk:4' names no axes",)),
    "a length that is needed": ((*QWEN2, "--extend", "dynamic:4"), ("target is not given",)),
    "trained for nothing": ((*QWEN2, "--trained", "0"), ("trained is 0",)),
    "target without trained": (("--family", "glm4v", "--target", "9"), ("--trained is not given", "glm4v")),
    "huge target": ((*QWEN2, "--target", str(10**30)), ("at most",)),
    "huge advice": ((*QWEN2, "--advise", "9", str(10**30)), ("at most",)),
    "advice from nothing": ((*QWEN2, "--advise", "0", "9"), ("trained is 0",)),
    "advice beside a choice": ((*QWEN2, "--advise", "9", "99", "--extend", "ntk:2"), ("--extend does not go with",)),
    "advice beside a target": ((*QWEN2, "--advise", "9", "99", "--target", "3"), ("--target does not go with",)),
    "no grid": ((*QWEN2, "--grid", "24"), ("'24'", "HxW")),
    "an empty grid": ((*QWEN2, "--grid", "0x4"), ("'0x4'", "HxW")),
    "plot of no format": ((*QWEN2, "--plot", "decay.gif"), (".png, .svg or .pdf",)),
}


@pytest.mark.parametrize(("arguments", "words"), BAD_INPUT.values(), ids=list(BAD_INPUT))
def test_bad_input_is_one_line(
    arguments: tuple[str, ...], words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(mrope.cli.app, ["frequencies", *arguments])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    assert result.stderr.startswith("mrope frequencies: ")
    assert [word for word in words if word not in result.stderr] == []
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = CliRunner().invoke(mrope.cli.app, ["frequencies", *QWEN2, "--plot", str(tmp_path / "decay.png")])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "mrope[plot]" in result.stderr
