"""What several records share: colours, and where values were found."""

from __future__ import annotations

from typing import Final

CLIP_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD: Final = (0.26862954, 0.26130258, 0.27577711)
HALF: Final = (0.5, 0.5, 0.5)

CODE = "code of transformers 5.24, read and run"
DEFAULT = "class default of transformers 5.24"
TEAM = "statements of the model's team in public"
UNKNOWN = "not found"


def copies(model: str, file: str = "config.json and preprocessor_config.json") -> str:
    """The source of what stood in copies of released files."""
    return f"{file} of the released {model} checkpoints, read in public copies"


def sources(*, pictures: str, language: str, rule: str, boxes: str, **others: str) -> dict[str, str]:
    """Field -> where its value was found.

    Args:
        pictures: the source of the sizes, limits and colours of patches.
        language: the source of the rotary values.
        rule: who else has the rule of positions.
        boxes: the source of the box convention.
        others: fields that have another source than those beside them.
    """
    return {
        **dict.fromkeys(("patch", "temporal_patch", "merge", "mean", "std", "image_tokens", "video_pixels"), pictures),
        **dict.fromkeys(("video_budget", "frame_pixels", "video_colours", "slices", "sampling"), CODE),
        **dict.fromkeys(("resize", "filter", "patch_order", "layout", "pairing"), CODE),
        **dict.fromkeys(("markers", "clip_markers", "step_markers", "stamp"), CODE),
        **dict.fromkeys(("split", "frequencies", "head_dim", "partial_rotary"), language),
        "rule": rule,
        "boxes": boxes,
        **others,
    }
