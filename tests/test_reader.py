"""The reader: what it is built of, how it trains, and what the shipped weights can read."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest
import torch
from sources import ROOT

from mrope.data import GLYPHS, draw_grid, fonts, sample_key
from mrope.layouts import RasterLayout
from mrope.probes import CHANCE, score_grid, swap_axes
from mrope.probes.reading.study import DECISIVE, LARGER_SHAPES, TRAINED_SHAPES, name_of
from mrope.reader import HELD_OUT_SHAPES, WEIGHTS, Reader, Recipe, train, train_to
from mrope.vision import WindowEncoder

STUDY = json.loads((WEIGHTS.parent / "study.json").read_text())
OURS = [run for run in STUDY["runs"] if run["twin"] == "none"]


@pytest.fixture(scope="module")
def reader() -> Reader:
    return Reader.load()


def small_grid(rows=2, cols=3, seed=0):
    rng = np.random.default_rng(seed)
    return draw_grid(sample_key(rows, cols, rng), fonts("held-out"), rng)


# --- what it is built of


def test_a_token_depends_on_its_own_block_of_pixels_alone():
    encoder = WindowEncoder(patch_dim=12, merge=2, dim=16, depth=2, heads=2, out_dim=8)
    values = torch.randn(3 * 4, 12)
    changed = values.clone()
    changed[4:8] += 1
    moved = (encoder(values) != encoder(changed)).any(-1)
    assert moved.tolist() == [False, True, False]


def test_the_encoder_tells_rows_from_columns_inside_a_block():
    # With the merger's weights averaged over the block, only the rotary table can tell a patch from its transpose.
    encoder = WindowEncoder(patch_dim=12, merge=2, dim=16, depth=1, heads=2, out_dim=8)
    with torch.no_grad():
        encoder.merge_up.weight.copy_(encoder.merge_up.weight.unflatten(1, (4, 16)).mean(1).repeat(1, 4))
    block = torch.randn(4, 12)
    assert not torch.allclose(encoder(block), encoder(block[[0, 2, 1, 3]]), atol=1e-5)


def test_a_question_points_at_its_cell_and_is_seen_by_nobody(reader):
    grid = small_grid()
    questions = [("in", (0, 1)), ("right", (1, 0)), ("above", (1, 2)), ("below", (0, 0))]
    together = reader.ask(grid.picture, questions)
    alone = [reader.ask(grid.picture, [question])[0] for question in questions]
    assert [a.glyph for a in together] == [a.glyph for a in alone]
    torch.testing.assert_close([a.probability for a in together], [a.probability for a in alone])
    expected = [grid.glyphs[0, 1], grid.glyphs[1, 1], grid.glyphs[0, 2], grid.glyphs[1, 0]]
    assert [a.glyph for a in together] == [GLYPHS[g] for g in expected]


def test_it_reads_a_whole_picture_from_any_source(reader, tmp_path):
    grid = small_grid(3, 5)
    grid.picture.save(tmp_path / "grid.png")
    for source in (grid.picture, tmp_path / "grid.png", (tmp_path / "grid.png").read_bytes(), np.asarray(grid.picture)):
        assert "\n".join(reader.read(source)) == grid.text()


def test_a_question_outside_the_picture_is_refused(reader):
    grid = small_grid()
    with pytest.raises(
        ValueError, match=r"'right' of \(0, 2\): the cell right of it is outside the picture's 2 rows x 3"
    ):
        reader.ask(grid.picture, [("right", (0, 2))])
    with pytest.raises(ValueError, match=r"'in' of \(2, 0\): cell is outside"):
        reader.ask(grid.picture, [("in", (2, 0))])
    with pytest.raises(ValueError, match="unknown relation 'under'; known are in, right, left, above, below"):
        reader.ask(grid.picture, [("under", (0, 0))])


def test_missing_weights_are_named(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"no reader weights at .*none\.safetensors; `mrope reader train` makes some"
    ):
        Reader.load(tmp_path / "none.safetensors")


# --- how it trains


def test_the_same_seed_trains_the_same_weights(tmp_path):
    def weights(seed):
        reader = train(Recipe(seed=seed, steps=3, cells=16, most_cells=6))
        return torch.cat([p.detach().flatten() for p in reader.parameters()])

    first = weights(0)
    assert torch.equal(first, weights(0))
    assert not torch.equal(first, weights(1))


@pytest.mark.parametrize("twin", ["none", "1-d", "blind"])
def test_a_run_leaves_weights_recipe_and_log(tmp_path, twin):
    recipe = Recipe(steps=2, cells=16, most_cells=6, twin=twin)
    seen = []
    reader = train_to(tmp_path / "run", recipe, on_step=lambda step, loss: seen.append((step, round(loss, 4))))
    assert Recipe(**json.loads((tmp_path / "run" / "recipe.json").read_text())) == recipe
    with (tmp_path / "run" / "log.csv").open() as file:
        assert [(int(row["step"]), float(row["loss"])) for row in csv.DictReader(file)] == seen
    loaded = Reader.load(tmp_path / "run" / WEIGHTS.name, layout=reader.layout)
    assert all(torch.equal(a, b) for a, b in zip(reader.parameters(), loaded.parameters(), strict=True))
    assert isinstance(reader.layout, RasterLayout) == (twin == "1-d")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "log.csv",
        "reader.safetensors",
        "recipe.json",
    ]


def test_a_file_in_the_way_is_found_before_the_training(tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(FileExistsError):
        train_to(tmp_path / "out", Recipe(steps=1, cells=16, most_cells=6), on_step=lambda *_: pytest.fail("trained"))


def test_training_never_shows_what_is_held_out():
    shapes = Recipe().shapes()
    assert set(shapes).isdisjoint(HELD_OUT_SHAPES)
    assert set(TRAINED_SHAPES) <= set(shapes)
    largest = max(rows * cols for rows, cols in shapes)
    assert DECISIVE[0] * DECISIVE[1] == 2 * largest
    assert all(rows * cols > largest for rows, cols in LARGER_SHAPES)
    assert {font.family for font in fonts("train")}.isdisjoint(font.family for font in fonts("held-out"))


def test_an_unknown_twin_is_refused(tmp_path):
    # As a process, because the type checks of tests would refuse the word before we do.
    command = (sys.executable, "-m", "mrope", "reader", "train", "--twin", "2-d", "--out", tmp_path / "out")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "mrope reader: twin is '2-d'; expected one of none, 1-d, blind\n"
    assert not (tmp_path / "out").exists()


# --- what the shipped weights can read, with fonts that training never showed


def test_the_shipped_weights_are_small_and_have_their_recipe_and_log_beside_them():
    assert WEIGHTS.stat().st_size <= 4_000_000
    recipe = json.loads((WEIGHTS.parent / "recipe.json").read_text())
    assert recipe == next(run["recipe"] for run in OURS if run["seed"] == STUDY["shipped"])
    steps = (WEIGHTS.parent / "log.csv").read_text().splitlines()
    assert len(steps) == 1 + recipe["steps"]


def test_trained_sizes_are_read_to_99_percent(reader):
    scores = [score_grid(reader, shape, fonts("held-out"), pictures=16, seed=1) for shape in TRAINED_SHAPES]
    correct = torch.cat([score.correct.flatten() for score in scores]).double()
    assert correct.mean() >= 0.99


@pytest.mark.parametrize("shape", [DECISIVE, (9, 8), (6, 12), (12, 6)], ids=name_of)
def test_twice_the_cells_are_read_to_95_percent(reader, shape):
    score = score_grid(reader, shape, fonts("held-out"), pictures=8, seed=1)
    assert score.accuracy >= 0.95
    assert score.on_held_out_pairs >= 0.93
    assert min(score.by_relation().values()) >= 0.93


@pytest.mark.parametrize("delta", [1, 1000, 100_000])
def test_moving_all_positions_changes_no_answer(reader, delta):
    still, moved = (
        score_grid(reader, (5, 7), fonts("held-out"), pictures=4, move=move)
        for move in (lambda positions: positions, lambda positions: positions.shift(delta))
    )
    assert torch.equal(still.predicted, moved.predicted)


def test_swapping_h_and_w_breaks_the_neighbours_and_nothing_else(reader):
    swapped = score_grid(reader, (5, 7), fonts("held-out"), pictures=4, move=swap_axes).by_relation()
    assert swapped["in"] >= 0.97
    assert max(swapped[name] for name in ("right", "left", "above", "below")) < 3 * CHANCE


# --- the study beside the weights


def test_the_study_holds_at_every_seed():
    assert len(OURS) >= 5
    for run in OURS:
        trained = [run["scores"][name_of(shape)]["accuracy"] for shape in TRAINED_SHAPES]
        assert min(trained) >= 0.98
        assert np.mean(trained) >= 0.99
        assert run["scores"][name_of(DECISIVE)]["accuracy"] >= 0.95


def test_the_shipped_seed_is_the_median():
    accuracies = {run["seed"]: run["scores"][name_of(DECISIVE)]["accuracy"] for run in OURS}
    assert accuracies[STUDY["shipped"]] == sorted(accuracies.values())[(len(accuracies) - 1) // 2]


def test_the_study_is_of_these_weights(reader):
    run = next(run for run in OURS if run["seed"] == STUDY["shipped"])
    score = score_grid(reader, DECISIVE, fonts("held-out"), pictures=STUDY["pictures"])
    # Another processor may round a close call the other way.
    assert abs(score.accuracy - run["scores"][name_of(DECISIVE)]["accuracy"]) <= 0.002
    assert run["recipe"] == asdict(Recipe(**run["recipe"]))


def test_twins_fail_where_they_should():
    for run in STUDY["runs"]:
        scores = run["scores"]
        if run["twin"] == "1-d":  # below and above are a row's length away, and the row is a new one
            assert scores["12x12"]["by_relation"]["below"] < 0.5
            assert scores["12x12"]["by_relation"]["above"] < 0.5
        if run["twin"] == "blind":
            assert all(abs(score["accuracy"] - CHANCE) < 0.02 for score in scores.values())
