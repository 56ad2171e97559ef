"""Prompts for any family, as its processor would make them: words, token types, grids and random pixels.

Letters: B rows, N tokens, P patches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from mrope.hf.batch import IMAGE, TEXT, VIDEO
from mrope.hf.checkup.shrink import words_of
from mrope.hf.checkup.subject import Subject
from mrope.layouts import CanvasLayout, GenerationLayout, OmniLayout
from mrope.spans import Image, Span, Text, Video

AnySpan = TypeVar("AnySpan", bound=Span)

_AROUND_PICTURES = (
    ("im_start_id", "im_end_id"),
    ("image_start_id", "image_end_id"),
    ("image_start_token_id", "image_end_token_id"),
    ("vision_start_token_id", "vision_end_token_id"),
)
_AROUND_CLIPS = (("video_start_token_id", "video_end_token_id"), *_AROUND_PICTURES)
# Grids are written for the merge of the family's record: `fitted` makes them those of another.
WIDE, TALL = Image((1, 4, 8)), Image((1, 8, 4))
STAMP = 2  # tokens of a time stamp
_TARGET = (1, 4, 6)  # the picture that GLM-Image is to generate


def has_clips(subject: Subject) -> bool:
    """Whether the model lays out clips that a prompt can be made of here."""
    return getattr(subject.small, "video_token_id", None) is not None and not isinstance(subject.layout, CanvasLayout)


def clip(subject: Subject, grid: tuple[int, int, int]) -> Video:
    """A clip as the family declares it; by the clock each temporal step takes as many seconds as one position."""
    time = getattr(subject.layout, "time", None)
    if isinstance(subject.layout, OmniLayout) or time == "seconds":
        return Video(grid, seconds=1 / float(subject.layout.ids_per_second))  # pyright: ignore[reportAttributeAccessIssue]
    return Video(grid, stamp=STAMP) if time == "stamps" else Video(grid)


def fitted(subject: Subject, span: AnySpan) -> AnySpan:
    """`span` with as many tokens where the configuration states another merge than the family's."""
    if not isinstance(span, (Image, Video)):
        return span
    t, h, w = span.grid
    merge, own = subject.layout.merge, subject.family.merge
    return replace(span, grid=(t, h * merge // own, w * merge // own))


def batch(
    subject: Subject, rows: Sequence[Sequence[Span]], *, pixels: bool = False, bare: bool = False
) -> dict[str, Any]:
    """What the model takes of a batch, padded on the left.

    Args:
        subject: whose configuration names the words.
        rows: texts, pictures and clips of each row, in the patches of the family's record.
        pixels: add random pixels.
        bare: leave the words around pictures out.
    """
    generates = isinstance(subject.layout, GenerationLayout)
    rows = [[fitted(subject, span) for span in row] for row in rows]
    made = [_row(subject, row, bare) for row in rows]
    if generates:  # a prompt of this family ends where a picture is to be generated
        made = [([*words, subject.small.image_start_token_id], [*kinds, TEXT]) for words, kinds in made]
    padded = {"batch_first": True, "padding_side": "left"}

    def padded_rows(each: list[list[int]]) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in each], **padded)

    tokens = padded_rows([words for words, _ in made])
    inputs: dict[str, Any] = {
        "input_ids": tokens,
        "attention_mask": padded_rows([[1] * len(words) for words, _ in made]),
    }
    if subject.takes("mm_token_type_ids"):
        inputs["mm_token_type_ids"] = padded_rows([kinds for _, kinds in made]).int()
    spans = [span for row in rows for span in row]
    for kind, grid_key, pixel_key in (
        (Image, "image_grid_thw", "pixel_values"),
        (Video, "video_grid_thw", "pixel_values_videos"),
    ):
        grids = torch.tensor([span.grid for span in spans if isinstance(span, kind)])
        if not len(grids):
            continue
        if isinstance(subject.layout, CanvasLayout):
            inputs["target_sizes"] = grids[:, 1:]
        elif not generates:
            inputs[grid_key] = grids
        if pixels:
            generator = torch.Generator().manual_seed(0)
            inputs[pixel_key] = torch.randn(pixels_shape(subject, int(grids.prod(-1).sum())), generator=generator)
    seconds = [float(span.seconds) for span in spans if isinstance(span, Video) and span.seconds is not None]
    if seconds:
        name = "second_per_grids" if isinstance(subject.layout, OmniLayout) else "second_per_grid_ts"
        inputs[name] = torch.tensor(seconds)
    if generates:
        each = [[*(span.grid for span in row if isinstance(span, Image)), _TARGET] for row in rows]
        inputs["image_grid_thw"] = torch.tensor([grid for grids in each for grid in grids])
        inputs["images_per_sample"] = torch.tensor([len(grids) for grids in each])
    return {name: value.to(subject.device) for name, value in inputs.items()}


def columns(inputs: dict[str, Any], part: slice) -> dict[str, Any]:
    """`inputs` with a part of the tokens of each row."""
    per_token = ("input_ids", "attention_mask", "mm_token_type_ids")
    return {key: value[:, part] if key in per_token else value for key, value in inputs.items()}


def text_ids(subject: Subject, count: int) -> Tensor:
    """(1, `count`) words that mean nothing, where the model computes."""
    return torch.tensor([text_words(subject, count)], device=subject.device)


def text_words(subject: Subject, count: int) -> list[int]:
    """`count` words that mean nothing."""
    special = words_of(subject.small)
    plain = [word for word in range(10, 200) if word not in special]
    return [plain[7 * number % len(plain)] for number in range(count)]


def _row(subject: Subject, row: Sequence[Span], bare: bool) -> tuple[list[int], list[int]]:
    words: list[int] = []
    kinds: list[int] = []
    for span in row:
        if isinstance(span, Text):
            new = text_words(subject, span.length)
            words, kinds = words + new, kinds + [TEXT] * len(new)
            continue
        assert isinstance(span, (Image, Video))
        shown, types = _shown(subject, span, bare)
        words, kinds = words + shown, kinds + types
    return words, kinds


def _shown(subject: Subject, span: Image | Video, bare: bool) -> tuple[list[int], list[int]]:
    """The words and kinds of a picture or a clip, with the words around it unless they are to be `bare`."""
    config, layout = subject.small, subject.layout
    around = ([], []) if bare else words_around(config, span)
    if isinstance(span, Image):
        cells = span.grid[1] * span.grid[2] // layout.merge**2  # a canvas lays out no `Image`
        count = cells if isinstance(layout, CanvasLayout) else layout.tokens(span)
        return _between(around, [config.image_token_id] * count, IMAGE)
    # GLM-V has brackets around a whole clip, and shows its frames as pictures; Ernie has the brackets alone.
    bracketed = getattr(config, "video_start_token_id", None) is not None
    word = config.image_token_id if bracketed and "glm" in config.model_type else config.video_token_id
    if span.stamp is None:
        return _between(around, [word] * layout.tokens(span), VIDEO)
    cells = [word] * layout.tokens(Video((1, *span.grid[1:]), stamp=0))
    frame, types = _between(([], []) if bracketed else around, cells, VIDEO)
    words, kinds = text_words(subject, STAMP) + frame, [TEXT] * STAMP + types
    words, kinds = words * span.grid[0], kinds * span.grid[0]
    if bracketed:
        return around[0] + words + around[1], [TEXT, *kinds, TEXT] if around[0] else kinds
    return words, kinds


def words_around(config: Any, span: Span) -> tuple[list[int], list[int]]:
    """The word before a picture or a clip and the one behind it, each none where the configuration names none."""
    for pair in _AROUND_CLIPS if isinstance(span, Video) else _AROUND_PICTURES:
        start, end = (getattr(config, name, None) for name in pair)
        if start is not None and end is not None:
            return [start], [end]
    return [], []


def _between(around: tuple[list[int], list[int]], words: list[int], kind: int) -> tuple[list[int], list[int]]:
    """Words of one kind between words of text."""
    before, behind = around
    return before + words + behind, [TEXT] * len(before) + [kind] * len(words) + [TEXT] * len(behind)


def pixels_shape(subject: Subject, patches: int) -> tuple[int, ...]:
    """The shape in which the family's processor hands over the pixels of `patches` patches."""
    vision = subject.config.vision_config
    side = vision.patch_size
    frames = getattr(vision, "temporal_patch_size", None) or subject.family.temporal_patch
    shapes = {
        "strip": (1, 3, side, patches * side),
        "paddleocr-vl": (patches, 3, side, side),
    }
    name = subject.family.name
    return shapes.get(name) or shapes.get(subject.family.patch_order) or (patches, 3 * frames * side * side)
