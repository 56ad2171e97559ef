"""`mrope plan` for many sources, budgets, summaries and clips, and `mrope worst-case`."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy
import pytest
from PIL import Image
from typer.testing import CliRunner

import mrope.cli
from mrope.vision import explain, plan_many, settings, worst_case

QWEN2 = mrope.family("qwen2.5-vl")


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(mrope.cli.app, arguments)
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def planned(*arguments: str) -> list[dict[str, object]]:
    return json.loads(run("plan", "--family", "qwen2.5-vl", "--json", *arguments)[0])["pictures"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures that are 90 wide and 60 high, in a folder, a JSONL file and a shard; and a bad one beside."""
    top = tmp_path_factory.mktemp("data")
    (top / "good").mkdir()
    pixels = numpy.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=numpy.uint8)
    frames = [Image.fromarray(pixels), Image.fromarray(255 - pixels)]
    frames[0].save(top / "good" / "1.png")
    frames[0].save(top / "good" / "2.webp", save_all=True, append_images=frames[1:], duration=500)
    (top / "bad.jpg").write_text("no picture")
    (top / "rows.jsonl").write_text('{"picture": ["good/1.png", "good/2.webp"]}\n')
    with tarfile.open(top / "shard.tar", "w") as shard:
        shard.add(top / "good" / "1.png", "1.png")
    return top


def test_folders_globs_jsonl_and_shards(folder: Path) -> None:
    good = folder / "good"
    rows = planned(
        str(good), str(good / "*.png"), str(folder / "rows.jsonl"), str(folder / "shard.tar"), "--column", "picture"
    )
    names = [good / "1.png", good / "2.webp", good / "1.png", folder / "good/1.png", folder / "good/2.webp"]
    assert [row["picture"] for row in rows] == [*map(str, names), f"{folder / 'shard.tar'}/1.png"]
    assert {(row["original"]["height"], row["original"]["width"]) for row in rows} == {(60, 90)}  # type: ignore[index]
    assert all(row["prompt_tokens"] == row["tokens"] + 2 for row in rows)  # type: ignore[operator]


def test_errors_are_skipped_or_kept(folder: Path) -> None:
    arguments = ("plan", "--family", "qwen2.5-vl", "640x480", str(folder / "bad.jpg"), "10000x20", "640x0x5")
    out, err = run(*arguments, "--on-error", "skip", "--json")
    assert [row["picture"] for row in json.loads(out)["pictures"]] == ["640x480"]
    assert [line.split(": ")[1] for line in err.splitlines()] == [
        f"skipped {folder / 'bad.jpg'}",
        "skipped 10000x20",
        "skipped 640x0x5",
    ]
    out, err = run(*arguments, "--on-error", "keep", "--json")
    assert ["error" in row for row in json.loads(out)["pictures"]] == [False, True, True, True]
    assert err == ""
    told = run(*arguments, "--on-error", "keep")[0]
    assert "500.0 to 1" in told
    assert "--conflict pad or --conflict tile" in told
    out, err = run(*arguments, code=2)
    assert (out, "bad.jpg" in err) == ("", True)
    (left,) = planned("10000x20", "--conflict", "skip")
    assert left["original"] == {"height": 20, "width": 10000}
    (tiled,) = planned("10000x20", "--conflict", "tile")
    assert len(tiled["parts"]) == 2  # type: ignore[arg-type]


def test_a_budget() -> None:
    rows = planned("4032x3024", "300x200", "1080x1920", "--budget", "1000")
    expected = plan_many([(3024, 4032), (200, 300), (1920, 1080)], QWEN2, budget=1000)
    assert [row["tokens"] for row in rows] == [one.tokens for one in expected]
    assert "1000 tokens in all" in run("plan", "4032x3024", "--family", "qwen2.5-vl", "--budget", "1000")[0]
    _, err = run("plan", "640x480", "--family", "qwen3-vl", "--budget", "10", code=2)
    assert "--budget 54 would do" in err
    _, err = run("plan", "clip.mp4", "--family", "qwen3-vl", "--budget", "10", "--clips", code=2)
    assert "drop --clips" in err


def test_clips(folder: Path) -> None:
    arguments = ("plan", "--family", "qwen3-vl", "--clips", "--json")
    (file,) = json.loads(run(*arguments, str(folder / "good" / "2.webp"))[0])["pictures"]
    assert (file["frames"], file["grid"]["t"]) == (2, 1)
    frames, sampled = json.loads(run(*arguments, "1280x720x60", "1280x720x1800@30", "--fps", "1")[0])["pictures"]
    assert frames["tokens"] == sampled["tokens"] == 11700
    assert frames["grid"] == {"t": 30, "h": 30, "w": 52}
    assert frames["prompt_tokens"] == 11965
    assert "60 frames, 1280 wide x 720 high" in run("plan", "--family", "qwen3-vl", "1280x720x60")[0]


def test_explain_and_settings() -> None:
    out, _ = run("plan", "640x480", "--family", "qwen2.5-vl", "--explain", "--max-tokens", "300")
    assert out == f"640x480: {explain((480, 640), QWEN2, max_tokens=300)}\n"
    out, _ = run("plan", "640x480", "--family", "qwen2.5-vl", "--max-tokens", "300")
    assert out.splitlines()[-1].startswith("qwen2.5-vl, 4 to 300 tokens a picture = 3136 to 235200 pixels; area: ")
    assert out.splitlines()[-1].endswith("; blocks; conflict error")


def test_a_summary(folder: Path) -> None:
    arguments = ("plan", "640x480", "300x200", str(folder / "bad.jpg"), "--family", "qwen2.5-vl")
    options = ("--summary", "--on-error", "keep", "--cutoff", "100")
    facts = json.loads(run(*arguments, *options, "--json")[0])
    assert (facts["pictures"], facts["planned"], facts["tokens"]) == (3, 2, 391 + 77)
    assert facts["above"] == [[100, 0.5]]
    assert facts["settings"]["pictures"]["family"] == "qwen2.5-vl"
    out, _ = run(*arguments, *options)
    assert "3 pictures, 2 planned: 468 tokens, 472 in prompts" in out
    assert "above 100 prompt tokens: 50.00 %" in out
    assert "cannot be read: " in out
    assert "--cutoff is part of the summary" in run("plan", "9x9", "--family", "qwen2-vl", "--cutoff", "3", code=2)[1]


def test_the_settings_are_those_of_what_came() -> None:
    qwen3 = mrope.family("qwen3-vl")
    pictures, clips = settings(qwen3, max_tokens=900), settings(qwen3, max_tokens=900, clips=True)
    assert pictures["limits"] != clips["limits"]
    for arguments, kinds in (
        (("640x480",), {"pictures": pictures}),
        (("640x480x8",), {"clips": clips}),
        (("640x480x8", "640x480"), {"pictures": pictures, "clips": clips}),
    ):
        command = ("plan", *arguments, "--family", "qwen3-vl", "--max-tokens", "900")
        assert json.loads(run(*command, "--json")[0])["settings"] == kinds
        assert json.loads(run(*command, "--json", "--summary")[0])["settings"] == kinds
        lines = run(*command)[0].splitlines()[-len(kinds) :]
        for line, words in zip(lines, kinds.values(), strict=True):
            assert line.startswith(f"qwen3-vl, {words['limits']}; ")
            assert ("sampling even, 2 frames a second, at most 768" in line) == (words is clips)
    asked = run("plan", "640x480x9", "--family", "qwen3-vl", "--fps", "1")[0]
    assert "sampling even, 1 frames a second, at most 768; " in asked
    budget = json.loads(run("plan", "640x480", "--family", "qwen3-vl", "--budget", "100", "--json")[0])
    assert budget["settings"] == {"pictures": settings(qwen3) | {"budget": "100 tokens in all"}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("640x480", "--fps", "2"), "--fps is for clips, and none came"),
        (("640x480", "--clips"), "--clips is for clips, and none came"),
        (("640x480x9", "--fps", "0"), "--fps is 0; expected a finite number above 0"),
        (("640x480", "--column", "image"), "--column is image, and no JSONL file came"),
        (("640x480x9", "--conflict", "skip"), "--conflict is skip; expected error, pad or family for clips"),
        (("640x480", "640x480x9", "--conflict", "tile"), "--conflict is tile; expected error, pad or family for clips"),
        (("640x480", "--explain", "--json"), "--explain tells"),
        (("640x480", "--explain", "--summary"), "--explain tells"),
        (("640x480", "--explain", "--budget", "99"), "--explain tells"),
        (("640x480", "--budget", "99", "--conflict", "pad"), "--conflict is pad; expected error or skip with --budget"),
        (("640x480x9", "--budget", "99"), "--budget shares tokens between pictures"),
        (("640x480", "--max-tokens", "0", "--on-error", "skip"), "max_tokens is 0"),
    ],
)
def test_options_that_nothing_takes_are_refused(arguments: tuple[str, ...], message: str) -> None:
    out, err = run("plan", *arguments, "--family", "qwen3-vl", code=2)
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"mrope plan: {message}")


def test_a_missing_file_is_not_skipped_quietly(folder: Path) -> None:
    _, err = run("plan", str(folder / "gone.jpg"), "--family", "qwen2-vl", "--on-error", "skip", code=2)
    assert "gone.jpg: No such file" in err


def test_a_budget_leaves_out_what_does_not_fit() -> None:
    thin, one, other = planned("10000x20", "640x480", "300x200", "--budget", "200", "--conflict", "skip")
    expected = plan_many([(480, 640), (200, 300)], QWEN2, budget=200)
    assert [one["tokens"], other["tokens"]] == [plan.tokens for plan in expected]
    assert thin["error"] == "does not fit, left out by --conflict skip"


def test_the_library_s_advice_is_told_in_options() -> None:
    _, err = run("plan", "10000x20", "--family", "qwen2.5-vl", code=2)
    assert err.endswith("crop it, or plan it with --conflict pad or --conflict tile\n")
    _, err = run("plan", "640x480x60", "--family", "qwen3-vl", "--max-tokens", "20", code=2)
    assert "--max-tokens 30 would do" in err
    _, err = run("worst-case", "--family", "neomme", code=2)
    assert err.endswith("give --max-tokens\n")


def test_prompts_of_clips_without_a_rate_are_unknown() -> None:
    command = ("plan", "640x480x60", "--family", "qwen3-vl", "--summary")
    assert run(*command)[0].splitlines()[0].endswith("tokens, ? in prompts")
    assert json.loads(run(*command, "--json")[0])["prompt_tokens"] is None
    assert "640x480x60: its prompt tokens are unknown" in run(*command, "--cutoff", "9", code=2)[1]


def test_worst_case() -> None:
    options = ("--family", "qwen2.5-vl", "--max-tokens", "4200", "--pictures", "3")
    facts = json.loads(run("worst-case", *options, "--json")[0])
    worst = worst_case(QWEN2, max_tokens=4200, pictures=3)
    assert (facts["tokens"], facts["values_bytes"]) == (12600, worst.values_bytes)
    assert (facts["original"]["height"], facts["original"]["width"]) == worst.plan.original
    assert "12600 tokens, 12606 in the prompt" in run("worst-case", *options)[0]


def test_what_is_asked_of_clips_leaves_the_cap_of_their_rule() -> None:
    out, _ = run("plan", "640x480x3000@30", "--fps", "30", "--family", "qwen3-vl", "--json")
    found = json.loads(out)
    assert found["settings"]["clips"]["sampling"] == "even, 30 frames a second, at most 768"
    assert found["pictures"][0]["frames"] == 768
