"""The studies: prompts with right answers, variants that differ where they must, runs that survive, and a report."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sources import ROOT
from typer.testing import CliRunner

import mrope.cli
from mrope import AxisSplit, Frequencies, Rotary
from mrope.probes.studies import (
    STUDIES,
    VARIANTS,
    Recipe,
    Results,
    Settings,
    Step,
    recipes_of,
    run_study,
    train,
    variant,
)
from mrope.probes.studies.distance import moved
from mrope.probes.studies.extension import Reading, columns, needle_form, read, readings
from mrope.probes.studies.model import StudyModel
from mrope.probes.studies.page import PAGE, figure, page, table, verdicts, write_page
from mrope.probes.studies.prompts import GLYPHS, Batch, Form, bitmaps, draw
from mrope.probes.studies.results import RESULTS, mean_of
from mrope.probes.studies.scoring import score
from mrope.probes.studies.study import Claim, Study
from mrope.probes.studies.training import LONGEST, fit, read_as, trained, training_form
from mrope.probes.studies.variants import BASE, DIM, INTERLEAVED, LearnedCells

TALL = Form(((5, 3),), before=2, between=3, questions=4)


def model(name: str, seed: int = 0) -> StudyModel:
    torch.manual_seed(seed)
    return StudyModel(variant(name)).eval()


def drawn(form: Form, prompts: int = 3, seed: int = 0) -> Batch:
    return draw(form, prompts, np.random.default_rng(seed))


@torch.no_grad()
def cells_of(name: str, batch: Batch) -> torch.Tensor:
    return model(name)(batch)[0]


# Prompts


def seen_glyphs(batch: Batch) -> np.ndarray:
    """(B, C) which glyph each noisy patch is nearest to."""
    return torch.cdist(batch.patches, bitmaps()).argmin(-1).numpy()


def test_neighbours_are_those_that_the_picture_shows() -> None:
    form = Form(((5, 3), (2, 4)), questions=6)
    batch = drawn(form)
    for row, glyphs in enumerate(seen_glyphs(batch)):
        for first, (rows, cols) in ((0, (5, 3)), (15, (2, 4))):
            shown = np.pad(glyphs[first : first + rows * cols].reshape(rows, cols), 1, constant_values=-1)
            beside = batch.beside[row, first : first + rows * cols].numpy().reshape(rows, cols, 4)
            around = (shown[1:-1, 2:], shown[1:-1, :-2], shown[2:, 1:-1], shown[:-2, 1:-1])  # right, left, down, up
            for direction, wanted in enumerate(around):
                np.testing.assert_array_equal(beside[..., direction], wanted)


def test_a_glyph_that_is_asked_about_stands_once_and_its_answers_are_its_neighbours() -> None:
    batch = drawn(Form(((4, 7), (3, 5), (4, 5)), asked=1), prompts=8)
    for row, glyphs in enumerate(seen_glyphs(batch)):
        for question, glyph in enumerate(batch.asked[row].tolist()):
            (cell,) = np.flatnonzero(glyphs == glyph)
            assert 28 <= cell < 43  # the second picture
            assert batch.answers[row, question].tolist() == batch.beside[row, cell].tolist()


def test_prompts_depend_on_their_seed_alone() -> None:
    one, same, other = drawn(TALL), drawn(TALL), drawn(TALL, seed=1)
    assert torch.equal(one.patches, same.patches)
    assert torch.equal(one.words, same.words)
    assert not torch.equal(one.answers, other.answers)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pictures": ()}, r"pictures is \(\); expected at least one"),
        ({"pictures": ((1, 5),)}, r"pictures is \(\(1, 5\),\); expected at least one, of two rows"),
        ({"pictures": ((2, 3),), "questions": 7}, "questions is 7; expected at most a question a cell, and 63"),
        ({"pictures": ((9, 8),), "questions": 64}, "questions is 64; expected at most"),
        ({"pictures": ((2, 3),), "before": -1}, "before is -1; expected at least 0"),
    ],
)
def test_forms_that_cannot_be_are_refused(values: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Form(**values)


# Variants


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_learns_and_is_scored(name: str) -> None:
    reader, losses = model(name), []
    before = {key: value.clone() for key, value in reader.state_dict().items()}
    fit(reader, 2, np.random.default_rng(0), lambda rng: TALL, on_step=lambda step, loss: losses.append(loss))
    assert len(losses) == 2
    assert all(0 < loss < 2 * math.log(GLYPHS) + 1 for loss in losses)
    assert not [key for key, value in reader.state_dict().items() if torch.equal(value, before[key])]
    seen = score(reader.eval(), Form(((8, 7),), questions=5), seed=0, prompts=2)
    assert 0 <= seen.beside <= 1
    assert 0 <= seen.asked <= 1
    assert seen.answers.shape == (2, 5, 4)
    assert set(seen.by_direction) == {"left", "up"} | (set() if "causal" in name else {"right", "down"})


def test_all_variants_of_a_seed_start_from_the_same_weights_but_for_those_of_the_encoding() -> None:
    plain = model("nope").state_dict()
    added = {
        "learned": (36 + 64) * DIM,  # cells of 6 x 6, and 64 of text
        "shaw": 3 * 2 * 33 * 64,  # layers, axes, offsets of -16 to 16, head dim
        "t5": 3 * 2 * 32 * 4,  # layers, axes, buckets, heads
        "continuous": 3 * (64 * 2 + 64 + 64 * 4),
    }
    for name in VARIANTS:
        weights = model(name).state_dict()
        assert all(torch.equal(weights[key], value) for key, value in plain.items()), name
        assert sum(value.numel() for key, value in weights.items() if key not in plain) == added.get(name, 0), name


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_tells_rows_from_columns_unless_it_cannot(name: str) -> None:
    """The same cells in a picture of 5 x 3 and of 3 x 5, in the same order of tokens: only rows and columns differ."""
    batch = drawn(TALL)
    wide = replace(batch, form=replace(TALL, pictures=((3, 5),)))
    same = torch.equal(cells_of(name, batch), cells_of(name, wide))
    assert same == (name in ("nope", "nope-causal", "1-d", "1-d-causal"))


def transposed(batch: Batch) -> Batch:
    """The prompts with rows and columns of their picture exchanged; answers are left as they are."""
    rows, cols = batch.form.pictures[0]
    patches = batch.patches.unflatten(1, (rows, cols)).transpose(1, 2).flatten(1, 2)
    return replace(batch, form=replace(batch.form, pictures=((cols, rows),)), patches=patches)


@pytest.mark.parametrize("name", ["mrope", "mrope-chunked", "videorope", "sinusoidal", "shaw", "t5", "alibi", "nope"])
def test_only_what_knows_no_axis_reads_a_transposed_picture_as_the_picture(name: str) -> None:
    batch = drawn(TALL)
    there = cells_of(name, transposed(batch)).unflatten(1, (3, 5)).transpose(1, 2).flatten(1, 2)
    change = (there - cells_of(name, batch)).abs().max().item()
    assert (change < 1e-4) == (name in ("alibi", "nope")), change


def test_the_one_dimensional_twin_is_rope_over_the_index() -> None:
    batch = drawn(Form(((5, 3), (2, 4)), questions=6))
    twin = model("1-d")
    length = sum(count for _, count in batch.form.parts)
    assert torch.equal(twin.positions(batch.form).ids, torch.arange(length).expand(3, -1))
    plain = replace(variant("1-d"), axes=(1,), make=lambda: Rotary(AxisSplit((32,)), Frequencies(BASE), impl="eager"))
    with torch.no_grad():
        torch.testing.assert_close(read_as(twin.state_dict(), plain)(batch), twin(batch))


def test_m_rope_numbers_a_prompt_as_worked_by_hand() -> None:
    ids = model("mrope").positions(Form(((3, 2), (2, 2)), before=1, between=1, questions=1)).ids
    assert ids.tolist() == [
        [0, 1, 1, 1, 1, 1, 1, 4, 5, 5, 5, 5, 7, 8],
        [0, 1, 1, 2, 2, 3, 3, 4, 5, 5, 6, 6, 7, 8],
        [0, 1, 2, 1, 2, 1, 2, 4, 5, 6, 5, 6, 7, 8],
    ]


@pytest.mark.parametrize(("name", "sees"), [("mrope", True), ("mrope-causal", False), ("nope-causal", False)])
def test_a_cell_sees_those_behind_it_in_its_picture_unless_the_mask_is_causal(name: str, sees: bool) -> None:
    batch = drawn(Form(((5, 3), (2, 4)), questions=6))
    patches = batch.patches.clone()
    patches[:, 14] += 1  # the last cell of the first picture
    change = (cells_of(name, replace(batch, patches=patches)) - cells_of(name, batch)).abs().amax((0, 2, 3))
    assert bool((change[:14] > 0).all()) == sees
    assert bool((change[:14] == 0).all()) != sees
    patches = batch.patches.clone()
    patches[:, 20] += 1  # in the second picture, which the first never sees
    change = (cells_of(name, replace(batch, patches=patches)) - cells_of(name, batch)).abs().amax((0, 2, 3))
    assert bool((change[:15] == 0).all())


def test_the_learned_table_is_read_by_row_and_column_and_resampled_for_larger_pictures() -> None:
    reader = model("learned")
    table = reader.first
    assert isinstance(table, LearnedCells)
    with torch.no_grad():
        for form, cells in (
            (TALL, table.cells.weight[:5, :3]),
            (Form(((9, 7),)), table.cells.resampled((9, 7)).weight),
        ):
            positions = reader.positions(form)
            added = table.embed(torch.zeros(positions.length, DIM), positions)
            rows, cols = form.pictures[0]
            first = form.before
            torch.testing.assert_close(added[first : first + rows * cols].view(rows, cols, DIM), cells)
            torch.testing.assert_close(added[:first], table.text.weight[:first])


@pytest.mark.parametrize("name", ["mrope", "1-d", "videorope", "reset", "alibi", "shaw"])
def test_moving_all_positions_alike_changes_nothing(name: str) -> None:
    reader, batch = model(name), drawn(TALL)
    positions = reader.positions(TALL)
    with torch.no_grad():
        here, there = reader(batch, positions), reader(batch, moved(positions, 512))
        apart = reader(batch, moved(positions, 512, first=TALL.before + TALL.cells))
    for one, other in zip(here, there, strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=0)
    torch.testing.assert_close(apart[0], here[0], atol=1e-4, rtol=0)  # cells do not look at what comes
    assert (apart[1] - here[1]).abs().max() > 1e-4


def test_text_behind_the_questions_changes_no_answer() -> None:
    reader, form = model("mrope"), replace(TALL, after=7)
    batch = drawn(form)
    short = replace(batch, form=TALL, words=batch.words[:, :-7])
    with torch.no_grad():
        for one, other in zip(reader(batch), reader(short), strict=True):
            torch.testing.assert_close(one, other)


# Extensions


def test_every_reading_turns_the_frequencies_that_its_name_says() -> None:
    reader, plain, spatial = model("mrope"), Frequencies(BASE).inv_freq(64), INTERLEAVED.axis > 0

    def turns(row: str) -> torch.Tensor:
        rotary = read(reader, "mrope", replace(readings()[row], tuned=False), 0, "cpu").first
        assert isinstance(rotary, Rotary)
        return rotary.frequencies.inv_freq(64, rotary.split.axis, length=88)

    assert torch.equal(turns("x4 none"), plain)
    torch.testing.assert_close(turns("x4 PI, all axes"), plain / 4)
    torch.testing.assert_close(turns("x8 PI, h and w"), torch.where(spatial, plain / 8, plain))
    ntk = turns("x2 NTK, all axes") / plain
    assert (ntk[0], round(ntk[-1].item(), 4)) == (1, 0.5)
    # At twice the trained 44 positions dynamic NTK needs twice the factor, whatever it is read for.
    torch.testing.assert_close(turns("x8 dynamic NTK, all axes"), turns("x2 NTK, all axes"))
    assert turns("x4 YaRN, all axes")[-1] == plain[-1] / 4
    assert len(readings()) == 3 * (1 + 4 * 2) + 4


def test_a_needle_lies_at_its_depth_and_the_prompt_is_as_long_as_the_factor_says() -> None:
    for factor in (2, 4, 8):
        depths = [needle_form(factor, depth) for depth in (0.0, 0.5, 1.0)]
        count = len(depths[0].pictures)
        assert [form.asked for form in depths] == [0, round((count - 1) / 2), count - 1]
        assert factor * 44 - 8 < model("mrope").positions(depths[0]).next <= factor * 44


def test_an_extension_leaves_the_model_as_it_was_and_tuning_too() -> None:
    reader = model("mrope")
    before = {name: value.clone() for name, value in reader.state_dict().items()}
    further = read(reader, "mrope", Reading(2, readings()["x2 PI, all axes"].extension), 0, "cpu")
    here, there = (columns(each, 2, seed=0, limit=4) for each in (reader, further))
    assert list(here) == ["trained size", "ask", "larger", "needle first", "needle middle", "needle last"]
    assert set(here) == set(there)
    assert all(torch.equal(before[name], value) for name, value in reader.state_dict().items())


# Studies


def measured(study: Study, name: str) -> dict[str, dict[str, float]]:
    return study.evaluate(model(name), name, 0, 1, "cpu")


@pytest.mark.parametrize("name", STUDIES)
def test_every_claim_is_about_cells_that_the_study_measures(name: str) -> None:
    study = STUDIES[name]
    first = study.variants[0]
    if name == "extension":
        rows = dict.fromkeys(readings(), columns(model("mrope"), 2, seed=0, limit=2))
    elif name == "wrong":
        rows = {row: columns for each in study.variants for row, columns in measured(study, each).items()}
    else:  # where all variants are scored alike, and rows begin with their names
        found = measured(study, first)
        rows = {each + row.removeprefix(first): found[row] for each in study.variants for row in found}
    for claim in study.claims:
        for row, column in (claim.one, claim.other):
            assert column in rows[row], claim


def test_mistakes_are_other_models_with_the_same_weights() -> None:
    from mrope.probes.studies.wrong import MISTAKES

    reader, batch = model("mrope"), drawn(TALL)
    with torch.no_grad():
        said = {name: read_as(reader.state_dict(), mistake)(batch)[0] for name, mistake in MISTAKES.items()}
        right = reader(batch)[0]
    assert torch.equal(said.pop("as trained"), right)
    for name, logits in said.items():
        assert (logits - right).abs().max() > 1e-4, name


# Runs

FEW = ("--seeds", "2", "--steps", "4", "--limit", "2", "--jobs", "1", "--only", "nope-causal", "--only", "1-d-causal")


def files(folder: Path) -> dict[str, bytes]:
    """All that must not depend on when a study was killed: everything but the seconds that it took."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix not in (".seconds", ".part") and path.name != "nope.json"
    }


def test_a_study_that_is_killed_goes_on_and_ends_with_the_same_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mrope", "study", "run", "nope", *FEW, "--out", str(tmp_path / "killed")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    first = tmp_path / "killed" / "nope" / "nope-causal-0.json"
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not first.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    settled = files(tmp_path / "killed")
    time.sleep(1.5)  # a worker that lived on would write more
    assert files(tmp_path / "killed").keys() - settled.keys() <= {"weights/1-d-causal-0.csv"}
    assert first.exists()
    assert not (tmp_path / "killed" / "nope.json").exists()
    written = first.stat().st_mtime_ns

    settings = Settings(seeds=2, steps=4, limit=2)
    told: list[str] = []
    for folder in ("killed", "whole"):
        path = run_study(
            "nope",
            tmp_path / folder,
            settings,
            only=("nope-causal", "1-d-causal"),
            jobs=1,
            on_run=lambda recipe, seconds: told.append(recipe.name),
        )
    assert first.stat().st_mtime_ns == written  # not trained twice
    assert sorted(told) == sorted(2 * [f"{name}-{seed}" for name in ("nope-causal", "1-d-causal") for seed in (0, 1)])
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
    assert Results.read(path).rows == ["nope-causal", "1-d-causal"]
    assert len(files(tmp_path / "whole")) == 4 * 3  # weights, log, figures


@pytest.mark.parametrize("how", ["worker killed", "interrupt"])
def test_a_study_that_breaks_says_so_and_leaves_no_worker(how: str, tmp_path: Path) -> None:
    """A stop in the middle of a run: the pool's worker dies from outside, or the caller is interrupted."""
    workers: list[Any] = []

    def on_step(step: Step) -> None:
        if not workers:
            workers.extend(multiprocessing.active_children())
            if how == "interrupt":
                raise KeyboardInterrupt
            workers[0].kill()

    settings = Settings(seeds=1, steps=2000, limit=2)
    with pytest.raises(OSError if how == "worker killed" else KeyboardInterrupt, match=r"a run was killed|^$"):
        run_study("nope", tmp_path, settings, only=("nope",), jobs=1, on_step=on_step)
    workers[0].join(5)
    assert workers[0].exitcode is not None
    assert not files(tmp_path)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_study_that_is_stopped_with_its_workers_has_nothing_to_say(how: signal.Signals, tmp_path: Path) -> None:
    """As Ctrl-C does in a terminal: all of its processes get the signal, while workers still begin."""
    command = [sys.executable, "-m", "mrope", "study", "run", "nope", *FEW, "--out", str(tmp_path / "out")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=said, stdout=said, start_new_session=True)
        began = f"/proc/{process.pid}/task/{process.pid}/children"
        deadline = time.monotonic() + 120
        while len(Path(began).read_text().split()) < 2 and time.monotonic() < deadline:  # the tracker, and a worker
            time.sleep(0.02)
        os.killpg(process.pid, how)
        assert process.wait(60) == (130 if how == signal.SIGINT else -how)
        while time.monotonic() < deadline and _lives(process.pid):
            time.sleep(0.05)
    assert not _lives(process.pid), "a worker ends with who started it"
    words = (tmp_path / "said").read_text()
    assert not re.search("Traceback|semaphore|Warning", words), words


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_no_prompt_of_training_is_longer_than_what_extensions_take_for_trained() -> None:
    rng = np.random.default_rng(0)
    layout = variant("mrope").layout
    assert max(layout(training_form(rng).spans).next for _ in range(2000)) <= LONGEST
    assert layout(Form(((4, 3), (3, 4), (4, 4)), before=12, between=4).spans).next == LONGEST


def test_one_seed_gives_one_model_and_another_seed_another() -> None:
    one, same, other = (train(Recipe("mrope", seed, 3)).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(value, same[name]) for name, value in one.items())
    assert not torch.equal(one["patch.weight"], other["patch.weight"])


def test_weights_of_one_recipe_are_trained_once(tmp_path: Path) -> None:
    steps: list[int] = []

    def again(recipe: Recipe) -> StudyModel:
        return trained(tmp_path, recipe, on_step=lambda step, loss: steps.append(step))

    first, second = again(Recipe("learned", 0, 2)), again(Recipe("learned", 0, 2))
    assert steps == [1, 2]
    assert all(torch.equal(value, second.state_dict()[name]) for name, value in first.state_dict().items())
    before = (tmp_path / "learned-0.safetensors").read_bytes()
    with pytest.raises(ValueError, match=r'"steps": 2}, not by .*"steps": 3}; expected the same, or another folder'):
        again(Recipe("learned", 0, 3))
    assert (tmp_path / "learned-0.safetensors").read_bytes() == before


@pytest.mark.parametrize(("change", "message"), [({"steps": 3}, "recipe"), ({"limit": 3}, "limit 2, not 3")])
def test_finished_runs_by_other_settings_are_kept(change: dict[str, int], message: str, tmp_path: Path) -> None:
    settings = Settings(seeds=1, steps=2, limit=2)
    run_study("nope", tmp_path, settings, only=("nope",), jobs=1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    with pytest.raises(ValueError, match=message):
        run_study("nope", tmp_path, replace(settings, **change), only=("nope",), jobs=1)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


def test_recipes_go_seed_by_seed_in_the_order_of_the_table() -> None:
    names = [recipe.name for recipe in recipes_of(STUDIES["nope"], Settings(seeds=2), ("nope", "1-d-causal"))]
    assert names == ["1-d-causal-0", "nope-0", "1-d-causal-1", "nope-1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "nothing"), "study is 'nothing'; expected one of encodings, extension, wrong, distance, nope"),
        (("run", "nope", "--only", "shaw"), "variant of nope is 'shaw'; expected one of nope-causal, 1-d-causal"),
        (("run", "nope", "--device", "abacus"), "device is 'abacus'; expected one of auto, cpu, cuda"),
        (("report", "--from", "nowhere"), "--from is nowhere; expected a folder that `mrope study run` wrote"),
        (("report", "--from", "{empty}"), "expected a folder that `mrope study run` wrote, with encodings.json, "),
        (("report", "--write", "--from", "{empty}"), "wrong.json, distance.json or nope.json in it"),
    ],
)
def test_wrong_options_are_one_clear_line(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path)) if arguments[0] == "run" else ()
    given = [word.format(empty=tmp_path) for word in arguments]
    result = CliRunner().invoke(mrope.cli.app, ["study", *given, *out])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--seeds", "--steps", "--limit", "--jobs"])
def test_numbers_below_one_are_refused(option: str) -> None:
    assert CliRunner().invoke(mrope.cli.app, ["study", "run", "nope", option, "0"]).exit_code == 2


def test_ls_lists_all_studies() -> None:
    result = CliRunner().invoke(mrope.cli.app, ["study", "ls"])
    assert result.exit_code == 0
    assert all(name in result.stdout for name in STUDIES)


# Report

CLAIMS = (
    Claim("A", "one is better", ("one", "4x5"), ("two", "4x5")),
    Claim("B", "two is better", ("two", "4x5"), ("one", "4x5")),
    Claim("C", "six rows are better", ("one", "6x5"), ("one", "4x5")),
    Claim("D", "two are the same", ("two", "4x5"), ("two", "6x5"), rule="same"),
    Claim("E", "nobody measured it", ("three", "4x5"), ("one", "4x5")),
    Claim("F", "sizes are the same", ("one", "4x5"), ("one", "6x5"), rule="same"),
)
TOY = Study("toy", "A toy", "Made by hand.", ("one", "two"), lambda *_: {}, CLAIMS)


def toy() -> Results:
    cells = {
        "one": {"4x5": (0.9, 0.8, 1.0), "6x5": (0.8, 1.0, 0.9)},
        "two": {"4x5": (0.5, 0.5, 0.5), "6x5": (0.501, 0.5, 0.499)},
    }
    runs = [
        {"variant": row, "seed": seed, "seconds": 30.0, "rows": {row: {c: v[seed] for c, v in columns.items()}}}
        for row, columns in cells.items()
        for seed in range(3)
    ]
    versions = {"python": "3.11", "torch": "2.14"}
    settings = {"seeds": 3, "steps": 9, "limit": 4, "device": "cpu"}
    return Results({"study": "toy", "settings": settings, "machine": "abacus", "versions": versions, "runs": runs})


def test_means_and_intervals_are_those_worked_by_hand() -> None:
    # 0.9, 0.8, 1.0: deviation 0.1, 4.303 * 0.1 / sqrt(3) = 0.24843.
    mean = mean_of([0.9, 0.8, 1.0])
    assert (round(mean.value, 9), round(mean.half, 5), mean.seeds) == (0.9, 0.24843, 3)
    assert mean_of([0.25]).half == math.inf
    assert table(toy()).splitlines()[2:] == [
        "| one | 90.0 ± 24.8 | 90.0 ± 24.8 |",
        "| two | 50.0 ± 0.0 | 50.0 ± 0.2 |",
    ]


def test_claims_are_judged_by_the_rule_that_was_stated() -> None:
    found = [toy().tested(claim) for claim in CLAIMS]
    verdict = [None if one is None else one.verdict for one in found]
    assert verdict == ["held", "reversed", "not shown", "held", None, "differs"]
    lines = verdicts(TOY, toy()).splitlines()[2:]
    assert lines[0] == "| one is better | A | one at 4x5 above two at 4x5 | +40.0 ± 24.8 | **held** |"
    assert lines[3].endswith("| two at 4x5 is two at 6x5 | +0.0 ± 0.2 | **held** |")
    assert lines[4].endswith("|  | not measured |")


def test_one_seed_is_too_few_to_tell() -> None:
    entry = toy().entry
    single = Results(entry | {"runs": [run for run in entry["runs"] if run["seed"] == 0]})
    tested = single.tested(CLAIMS[0])
    assert tested is not None
    assert tested.verdict == "one seed"
    assert "| one | 90.0 | 80.0 |" in table(single)


def test_one_seed_is_too_few_for_claims_that_two_are_the_same() -> None:
    entry = toy().entry
    single = Results(entry | {"runs": [run for run in entry["runs"] if run["seed"] == 1]})
    found = [single.tested(claim) for claim in CLAIMS]  # at seed 1 claim D holds to the digit, and F is far off
    assert {one.verdict for one in found if one is not None} == {"one seed"}
    assert "| two at 4x5 is two at 6x5 | +0.0 | **one seed** |" in verdicts(TOY, single)
    assert "| one at 4x5 is one at 6x5 | -20.0 | **one seed** |" in verdicts(TOY, single)


def test_the_figure_shows_each_mean_where_it_is() -> None:
    import xml.etree.ElementTree as ElementTree

    drawing = ElementTree.fromstring(figure(TOY, toy()))
    means = [each for each in drawing.iter() if each.get("class") == "mean"]
    assert len(means) == 4
    rules = [
        float(re.findall(r"M([\d.]+) ", each.get("d", ""))[0]) for each in drawing.iter() if each.get("class") == "rule"
    ]
    start, _, end = rules[:3]
    assert float(means[0].get("cx", "")) == pytest.approx(start + 0.9 * (end - start), abs=0.01)


def test_the_page_is_made_of_its_files(tmp_path: Path) -> None:
    entry = toy().entry
    (tmp_path / "nope.json").write_text(json.dumps(entry | {"study": "nope"}))
    write_page(tmp_path, tmp_path / "results", tmp_path / "STUDIES.md")
    written = (tmp_path / "STUDIES.md").read_text()
    assert written == page(tmp_path / "results")
    assert "| one | 90.0 ± 24.8 | 90.0 ± 24.8 |" in written
    assert written.count("Not run yet") == len(STUDIES) - 1
    assert "6 runs of 9 steps, 3 seeds, 3 minutes" in written
    assert (tmp_path / "results" / "nope.svg").read_text().startswith("<svg")
    (tmp_path / "nope.json").write_text("{}")
    with pytest.raises(ValueError, match=r"nope.json is no file of results .*; expected what a study wrote"):
        page(tmp_path)


def test_the_page_and_the_figures_are_in_step_with_the_results_that_ship() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: python -m mrope study report --write"
    for path in RESULTS.glob("*.json"):
        assert path.with_suffix(".svg").read_text("utf-8") == figure(STUDIES[path.stem], Results.read(path))


def test_the_report_that_ships_equals_a_recount() -> None:
    """Every figure of STUDIES.md, counted again with numpy from the runs."""
    for name, study in STUDIES.items():
        path = RESULTS / f"{name}.json"
        if not path.exists():
            continue
        part = PAGE.read_text("utf-8").split(f"## {study.title}\n")[1].split("\n## ")[0]
        runs = json.loads(path.read_text("utf-8"))["runs"]
        table = next(block for block in part.split("\n\n") if block.startswith("|"))
        header, _, *rows = [line.strip("|").split("|") for line in table.splitlines()]
        assert rows
        for row, *cells in ([cell.strip() for cell in row] for row in rows):
            for column, cell in zip((each.strip() for each in header[1:]), cells, strict=True):
                values = [run["rows"][row][column] for run in runs if column in run["rows"].get(row, {})]
                assert cell.split(" ")[0] == (f"{100 * np.mean(values):.1f}" if values else "")
