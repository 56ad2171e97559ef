"""Study (e): what a model knows of positions from its causal mask alone."""

from __future__ import annotations

from mrope.probes.studies.model import StudyModel
from mrope.probes.studies.prompts import Form
from mrope.probes.studies.scoring import Rows, name_of, prompts_for, score
from mrope.probes.studies.study import Claim, Study

PICTURES = ((4, 5), (6, 5), (7, 9), (12, 11))


def evaluate(model: StudyModel, variant: str, seed: int, limit: int, device: str) -> Rows:
    """What lies left of and above each cell, by size; and questions."""
    columns: dict[str, float] = {}
    for picture in PICTURES:
        form = Form((picture,))
        seen = score(model, form, seed=seed, prompts=prompts_for(form, limit)).by_direction
        columns |= {f"{direction} {name_of(picture)}": seen[direction] for direction in ("left", "up")}
    form = Form(((6, 5),))
    return {variant: columns | {"ask 6x5": score(model, form, seed=seed, prompts=prompts_for(form, limit, 16)).asked}}


NOPE = Study(
    name="nope",
    title="Positions from the causal mask alone",
    words="Under a causal mask a cell sees those to its left in the row, and the rows above. A column says the share "
    'of left or upper neighbours named right, by size; "ask" is questions in all four directions. The last row sees '
    "the whole picture, and has nothing to tell its cells apart.",
    variants=("nope-causal", "1-d-causal", "mrope-causal", "nope"),
    evaluate=evaluate,
    claims=(
        Claim(
            "Haviv et al., arXiv:2203.16634",
            "a causal mask alone tells positions: the cell before is found",
            ("nope-causal", "left 6x5"),
            ("nope", "left 6x5"),
        ),
        Claim(
            "Kazemnejad et al., arXiv:2305.19466",
            "without encoding, unseen lengths are read better than with 1-D RoPE",
            ("nope-causal", "left 12x11"),
            ("1-d-causal", "left 12x11"),
        ),
        Claim(
            "M-RoPE, arXiv:2409.12191",
            "what lies above needs an axis of rows",
            ("mrope-causal", "up 6x5"),
            ("nope-causal", "up 6x5"),
        ),
    ),
)
