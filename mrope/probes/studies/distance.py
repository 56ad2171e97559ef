"""Study (d): what text before a picture, between it and the question, and behind the question does to the answer."""

from __future__ import annotations

from dataclasses import replace

from mrope.positions import Positions
from mrope.probes.studies.model import StudyModel
from mrope.probes.studies.prompts import Form
from mrope.probes.studies.scoring import Rows, score
from mrope.probes.studies.study import Claim, Study

FAR = (0, 8, 32, 128, 512)
FORM = Form(((6, 5),))
QUESTIONS = FORM.before + FORM.cells + FORM.between  # the slot of the first one


def moved(positions: Positions, far: int, first: int = 0) -> Positions:
    """The same with all tokens from slot `first` on `far` positions further, on all axes."""
    ids = positions.ids.clone()
    ids[:, first:] += far
    return replace(positions, ids=ids)


def evaluate(model: StudyModel, variant: str, seed: int, limit: int, device: str) -> Rows:
    """Questions about a 6x5 picture, by distance: of positions alone, and of real tokens."""
    whole = {str(far): _asked(model, seed, limit, far, 0) for far in FAR}
    apart = {str(far): _asked(model, seed, limit, far, QUESTIONS) for far in FAR}
    rows = {"all positions moved": whole, "question's positions moved": apart}
    for where in ("before", "between", "after"):
        forms = {far: replace(FORM, **{where: getattr(FORM, where) + far}) for far in FAR}
        rows[f"text {where}"] = {
            str(far): score(model, form, seed=seed, prompts=max(2, limit // 2)).asked for far, form in forms.items()
        }
    return {f"{variant}, {row}": columns for row, columns in rows.items()}


def _asked(model: StudyModel, seed: int, limit: int, far: int, first: int) -> float:
    return score(
        model, FORM, seed=seed, prompts=max(2, limit // 2), move=lambda positions: moved(positions, far, first)
    ).asked


def _fades(source: str, words: str, row: str, column: str = "128") -> Claim:
    return Claim(source, words, (row, "0"), (row, column))


DISTANCE = Study(
    name="distance",
    title="Text before the picture, between it and the question, and behind",
    words="Questions about a picture of 6x5, by how many positions or tokens more than in training (1 to 12 before "
    'the picture, 1 to 4 behind it). "Moved" moves positions and adds no token, "text" adds tokens of text.',
    variants=("sinusoidal", "1-d", "mrope", "videorope", "reset"),
    evaluate=evaluate,
    claims=(
        Claim(
            "RoFormer, arXiv:2104.09864",
            "all positions moved alike change nothing",
            ("mrope, all positions moved", "0"),
            ("mrope, all positions moved", "512"),
            rule="same",
        ),
        _fades(
            "Attention Is All You Need, arXiv:1706.03762",
            "sinusoids do depend on where a prompt starts",
            "sinusoidal, all positions moved",
        ),
        _fades(
            "DIPE, arXiv:2603.10863",
            "a question far behind the picture fades, by its positions alone",
            "mrope, question's positions moved",
        ),
        _fades("DIPE, arXiv:2603.10863", "text between picture and question makes it fade", "mrope, text between"),
        Claim(
            "DIPE, arXiv:2603.10863",
            "tokens between picture and question cost more than their positions do",
            ("mrope, question's positions moved", "128"),
            ("mrope, text between", "128"),
        ),
        _fades("our probes' notes", "text before the picture costs by its tokens", "mrope, text before"),
        Claim(
            "causal attention",
            "text behind the question changes nothing",
            ("mrope, text after", "0"),
            ("mrope, text after", "512"),
            rule="same",
        ),
    ),
)
