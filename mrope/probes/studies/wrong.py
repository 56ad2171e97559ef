"""Study (c): how much each mistake costs, made at test time in a model that was trained right, or trained so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mrope.axes import AxisSplit
from mrope.probes.studies.model import StudyModel
from mrope.probes.studies.prompts import Form
from mrope.probes.studies.scoring import Rows, by_picture, prompts_for, score
from mrope.probes.studies.study import Claim, Study
from mrope.probes.studies.training import read_as
from mrope.probes.studies.variants import INTERLEAVED, VARIANTS, Variant, rotary

RIGHT = "as trained"
_MROPE = VARIANTS["mrope"]
_LATE = AxisSplit.by_hand(INTERLEAVED.axis.roll(1).tolist())

MISTAKES: Mapping[str, Variant] = {
    RIGHT: _MROPE,
    "h and w exchanged": replace(_MROPE, axes=(0, 2, 1)),
    "time and width exchanged": replace(_MROPE, axes=(2, 1, 0)),
    "h and w exchanged in keys": VARIANTS["crossed"],
    "values turned too": VARIANTS["values"],
    "split (11, 11, 10)": VARIANTS["odd"],
    "axes of the pairs one late": replace(_MROPE, make=lambda: rotary(_LATE)),
}
"""Made at test time, in a model trained as the first."""
TRAINED = {
    "crossed": "trained: h and w exchanged in keys",
    "values": "trained: values turned too",
    "odd": "trained: split (11, 11, 10)",
    "exchanged": "trained: time and width exchanged",
}


def evaluate(model: StudyModel, variant: str, seed: int, limit: int, device: str) -> Rows:
    """All mistakes of test time for the right model, the model itself for those that were trained wrong."""
    if variant != "mrope":
        return {TRAINED[variant]: _columns(model, seed, limit)}
    weights = model.state_dict()
    return {name: _columns(read_as(weights, mistake).to(device), seed, limit) for name, mistake in MISTAKES.items()}


def _columns(model: StudyModel, seed: int, limit: int) -> dict[str, float]:
    columns = by_picture(model, ((4, 5), (6, 5), (7, 9)), seed=seed, limit=limit)
    form = Form(((6, 5),))
    return columns | {"ask 6x5": score(model, form, seed=seed, prompts=prompts_for(form, limit, 16)).asked}


def _costs(source: str, words: str, row: str, column: str = "6x5") -> Claim:
    return Claim(source, words, (RIGHT, column), (row, column))


WRONG = Study(
    name="wrong",
    title="How much each mistake costs",
    words="M-RoPE, interleaved, split (12, 10, 10). The first rows make a mistake at test time in a model that was "
    'trained right, the last ones are trained with it. Columns are neighbours of cells and, "ask", questions.',
    variants=("mrope", *TRAINED),
    evaluate=evaluate,
    claims=(
        _costs(
            "our README, of the reader", "h and w exchanged leave nothing readable beside a cell", "h and w exchanged"
        ),
        _costs(
            "M-RoPE, arXiv:2409.12191", "each axis has its own meaning: time is no width", "time and width exchanged"
        ),
        _costs("RoFormer, arXiv:2104.09864", "queries and keys must be turned alike", "h and w exchanged in keys"),
        _costs(
            "RoFormer, arXiv:2104.09864",
            "scores need the differences of positions: trained with crossed axes they have none",
            TRAINED["crossed"],
            "7x9",
        ),
        _costs("RoFormer, arXiv:2104.09864", "values are not turned", TRAINED["values"], "7x9"),
        _costs(
            "the code of Multimodal-RoPEs",
            "an allocation that starts one pair late breaks trained weights",
            "axes of the pairs one late",
        ),
        _costs(
            "timm's clamped sections", "a split that is off by one pair breaks trained weights", "split (11, 11, 10)"
        ),
        _costs("Qwen3-VL's split", "the exact counts matter where they are trained", TRAINED["odd"], "7x9"),
    ),
)
