"""Study (a): which encoding reads pictures of sizes that training never showed."""

from __future__ import annotations

from mrope.probes.studies.model import StudyModel
from mrope.probes.studies.prompts import Form
from mrope.probes.studies.scoring import Rows, by_picture, prompts_for, score
from mrope.probes.studies.study import Claim, Study

PICTURES = ((4, 5), (6, 5), (7, 9), (12, 11), (6, 24), (24, 6))


def evaluate(model: StudyModel, variant: str, seed: int, limit: int, device: str) -> Rows:
    """Neighbours at six sizes, the first two trained, and questions at three."""
    columns = by_picture(model, PICTURES, seed=seed, limit=limit)
    for rows, cols in ((6, 5), (7, 9), (12, 11)):
        form = Form(((rows, cols),))
        columns[f"ask {rows}x{cols}"] = score(model, form, seed=seed, prompts=prompts_for(form, limit, 16)).asked
    return {variant: columns}


ENCODINGS = Study(
    name="encodings",
    title="Which encoding reads pictures of unseen sizes",
    words="Pictures of training have 3 to 6 rows and columns. A column says rows x columns and the share of cells' "
    'neighbours named right; "ask" is the share of questions answered from the text behind the picture.',
    variants=(
        *("nope", "sinusoidal", "learned", "shaw", "t5", "continuous", "alibi", "1-d", "mrope-chunked", "mrope"),
        *("mrope-heads", "videorope", "reset", "vrope", "circle"),
    ),
    evaluate=evaluate,
    claims=(
        Claim(
            "M-RoPE, arXiv:2409.12191",
            "three axes read larger pictures better than one",
            ("mrope-chunked", "7x9"),
            ("1-d", "7x9"),
        ),
        Claim(
            "Revisiting Multimodal Positional Encoding, arXiv:2510.23095",
            "pairs dealt in turn are better than pairs in runs",
            ("mrope", "7x9"),
            ("mrope-chunked", "7x9"),
        ),
        Claim(
            "Revisiting Multimodal Positional Encoding, arXiv:2510.23095",
            "an axis for each head is better than pairs in runs",
            ("mrope-heads", "7x9"),
            ("mrope-chunked", "7x9"),
        ),
        Claim(
            "Revisiting Multimodal Positional Encoding, arXiv:2510.23095",
            "rows and columns that start at 0 in each picture are better",
            ("reset", "12x11"),
            ("mrope", "12x11"),
        ),
        Claim(
            "VideoRoPE, arXiv:2502.05173",
            "fast pairs for rows and columns, slow ones for time, are better than runs",
            ("videorope", "7x9"),
            ("mrope-chunked", "7x9"),
        ),
        Claim(
            "VRoPE, arXiv:2502.11664",
            "symmetric diagonals are better than three axes",
            ("vrope", "7x9"),
            ("mrope-chunked", "7x9"),
        ),
        Claim(
            "Circle-RoPE, arXiv:2505.16416",
            "a circle around the text answers questions about pictures better than M-RoPE",
            ("circle", "ask 6x5"),
            ("mrope-chunked", "ask 6x5"),
        ),
        Claim(
            "RoPE-ViT, arXiv:2403.13298",
            "rotary positions read larger pictures better than a resampled table",
            ("mrope", "12x11"),
            ("learned", "12x11"),
        ),
        Claim(
            "CROMA, arXiv:2311.00566",
            "ALiBi in two dimensions extrapolates to larger pictures better than sinusoids",
            ("alibi", "12x11"),
            ("sinusoidal", "12x11"),
        ),
        Claim(
            "Swin v2, arXiv:2111.09883",
            "a continuous bias on a logarithmic scale goes to larger windows better than a resampled table",
            ("continuous", "12x11"),
            ("learned", "12x11"),
        ),
        Claim(
            "Shaw et al., arXiv:1803.02155",
            "clipped offsets generalise to lengths that training never showed, unlike sinusoids",
            ("shaw", "12x11"),
            ("sinusoidal", "12x11"),
        ),
    ),
)
