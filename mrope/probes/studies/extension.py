"""Study (b): what context extensions do to a trained M-RoPE, beyond its length, at larger pictures and within."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mrope.extensions import DynamicNtk, Extension, Linear, Ntk, Yarn
from mrope.probes.studies.model import StudyModel
from mrope.probes.studies.prompts import Form
from mrope.probes.studies.scoring import Rows, prompts_for, score
from mrope.probes.studies.study import Claim, Study
from mrope.probes.studies.training import LONGEST, fit, read_as
from mrope.probes.studies.variants import INTERLEAVED, rotary, variant

FACTORS = (2, 4, 8)
TUNED = 4
"""The factor that is also tuned."""
TUNING = 100
"""Steps, on prompts as long as the factor reaches."""
SIZES = {2: (12, 11), 4: (24, 22), 8: (48, 44)}


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read further than training did.

    Args:
        factor: how many times as far.
        extension: of the frequencies: of all axes, or of each.
        tuned: the model is first trained a little at that length.
    """

    factor: int
    extension: Extension | tuple[Extension | None, ...] | None
    tuned: bool = False


def readings() -> dict[str, Reading]:
    """The rows of the table: each method at each factor, on all axes or on h and w alone; at one factor also tuned."""
    rows = {}
    for factor in FACTORS:
        rows[f"x{factor} none"] = Reading(factor, None)
        for method, extension in _extensions(factor).items():
            rows[f"x{factor} {method}, all axes"] = Reading(factor, extension)
            rows[f"x{factor} {method}, h and w"] = Reading(factor, (None, extension, extension))
    rows[f"x{TUNED} none, tuned"] = Reading(TUNED, None, tuned=True)
    for method in ("PI", "NTK", "YaRN"):
        rows[f"x{TUNED} {method}, tuned"] = Reading(TUNED, _extensions(TUNED)[method], tuned=True)
    return rows


def _extensions(factor: int) -> dict[str, Extension]:
    # Dynamic NTK goes by the row: a factor of 1 slows as much as the row needs.
    return {
        "PI": Linear(factor),
        "NTK": Ntk(factor),
        "dynamic NTK": DynamicNtk(1, LONGEST),
        "YaRN": Yarn(factor, LONGEST),
    }


def needle_form(factor: int, depth: float = 0.5) -> Form:
    """Pictures of 4 x 5 up to `factor` times the trained length; all questions are about the one at `depth`, 0 to 1."""
    count = (LONGEST * factor - 4 - 8) // 8  # 5 positions a picture and 3 of text behind it, 4 before, 8 asked
    return Form(((4, 5),) * count, between=3, asked=round(depth * (count - 1)))


def read(model: StudyModel, name: str, reading: Reading, seed: int, device: str) -> StudyModel:
    """The trained model of variant `name`, read in one way; the model itself stays as it is."""
    further = replace(variant(name), make=lambda: rotary(INTERLEAVED, reading.extension))
    reader = read_as(model.state_dict(), further).to(device)
    if reading.tuned:
        fit(reader, TUNING, np.random.default_rng([seed, 2]), _long_form, rate=5e-4, device=device)
    return reader.eval()


def evaluate(model: StudyModel, name: str, seed: int, limit: int, device: str) -> Rows:
    """All readings of one model."""
    return {
        row: columns(read(model, name, reading, seed, device), reading.factor, seed, limit)
        for row, reading in readings().items()
    }


def columns(model: StudyModel, factor: int, seed: int, limit: int) -> dict[str, float]:
    """What is left at a size of training, and what is read beyond."""
    trained = score(model, Form(((6, 5),)), seed=seed, prompts=limit)
    large = Form((SIZES[factor],))
    found = {
        "trained size": trained.beside,
        "ask": trained.asked,
        "larger": score(model, large, seed=seed, prompts=prompts_for(large, limit)).beside,
    }
    for word, depth in (("first", 0.0), ("middle", 0.5), ("last", 1.0)):
        found[f"needle {word}"] = score(model, needle_form(factor, depth), seed=seed, prompts=max(2, limit // 4)).asked
    return found


def _long_form(rng: np.random.Generator) -> Form:
    """One large picture, or many small ones, within the tuned factor of what training showed."""
    if rng.random() < 0.5:
        rows, cols = rng.integers(6, 6 * TUNED + 1, size=2)
        return Form(((int(rows), int(cols)),))
    count = int(rng.integers(3, len(needle_form(TUNED).pictures) + 1))
    return Form(((4, 5),) * count, between=3)


EXTENSION = Study(
    name="extension",
    title="What context extensions do, whole and by axis",
    words=f"Training showed {LONGEST} positions at most, and pictures of 3 to 6 rows and columns. A row says how many "
    'times as far it is read, by which method, and on which axes; "tuned" is 100 steps at that length. "Trained size" '
    'and "ask" are what remains at 6x5; "larger" is a picture of 12x11, 24x22 or 48x44, "needle" a question about the '
    "first, the middle or the last of as many pictures of 4x5 as the length takes.",
    variants=("mrope",),
    evaluate=evaluate,
    claims=(
        Claim(
            "Position interpolation, arXiv:2306.15595",
            "tuned for a few steps, interpolation reads further than none",
            ("x4 PI, tuned", "needle middle"),
            ("x4 none", "needle middle"),
        ),
        Claim(
            "Position interpolation, arXiv:2306.15595",
            "it tunes better than plain extrapolation does",
            ("x4 PI, tuned", "needle middle"),
            ("x4 none, tuned", "needle middle"),
        ),
        Claim(
            "NTK-aware scaling (bloc97, 2023)",
            "without tuning it keeps near distances better than interpolation",
            ("x4 NTK, all axes", "trained size"),
            ("x4 PI, all axes", "trained size"),
        ),
        Claim(
            "NTK-aware scaling (bloc97, 2023)",
            "without tuning it reads further than none",
            ("x2 NTK, all axes", "needle middle"),
            ("x2 none", "needle middle"),
        ),
        Claim(
            "Dynamic NTK (emozilla, 2023)",
            "within the trained length it changes nothing",
            ("x4 dynamic NTK, all axes", "trained size"),
            ("x4 none", "trained size"),
            rule="same",
        ),
        Claim(
            "YaRN, arXiv:2309.00071",
            "tuned, it reads further than interpolation",
            ("x4 YaRN, tuned", "needle middle"),
            ("x4 PI, tuned", "needle middle"),
        ),
        Claim(
            "YaRN, arXiv:2309.00071",
            "without tuning it reads further than none",
            ("x4 YaRN, all axes", "needle middle"),
            ("x4 none", "needle middle"),
        ),
        Claim(
            "Qwen2.5-VL's model card",
            "YaRN on all axes costs localisation",
            ("x4 none", "trained size"),
            ("x4 YaRN, all axes", "trained size"),
        ),
    ),
)
