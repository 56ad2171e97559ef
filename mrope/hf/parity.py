"""Does a real checkpoint agree with us? Plans, patches, positions, rotary tables and logits against transformers.

The command is `mrope parity FOLDER`. The prompt is made of token ids, so that a tokenizer is not needed.
Letters: B batch, N tokens, F rotary pairs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mrope.axes import AxisSplit
from mrope.devices import choose_device
from mrope.families import Family
from mrope.hf.batch import batch_positions, token_kinds
from mrope.hf.plugging import plug
from mrope.layouts import GridLayout
from mrope.spans import Image, Span, Text, Video

# (height, width): wide, tall, smaller than the least that a family takes, and sides that no patch divides.
SIZES = ((180, 260), (331, 97), (30, 41))
CLIP = (4, 90, 122)  # frames, height, width
NEW_TOKENS = 8
_RAISES = "transformers' own get_rope_index raises an error"


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one comparison."""

    name: str
    passed: bool
    detail: str


def check(folder: str | os.PathLike[str], *, device: str = "auto") -> tuple[Check, ...]:
    """Compare a checkpoint with us; nothing is downloaded.

    Args:
        folder: config.json, weights and preprocessor files of a Qwen2-VL, Qwen2.5-VL or Qwen3-VL checkpoint.
        device: "auto", "cpu" or "cuda", where the model computes, in the dtype of its weights.

    Raises:
        OSError, ValueError: the folder is no such checkpoint, or there is no such device.
    """
    family, place = Family.from_config(folder), choose_device(device)
    return tuple(_checks(Path(folder), family, place))


@torch.no_grad()
def _checks(folder: Path, family: Family, device: str) -> Iterator[Check]:
    from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoVideoProcessor

    generator = np.random.default_rng(0)
    pictures = [_texture(generator, *size) for size in SIZES]
    patches = family.patchify(pictures)
    processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True)
    theirs = processor(images=[torch.from_numpy(picture).permute(2, 0, 1) for picture in pictures], return_tensors="pt")
    for number, (height, width) in enumerate(SIZES):
        plan, grid = patches.plans[number], theirs["image_grid_thw"][number].tolist()
        name = f"plan of a picture {width} wide x {height} high"
        yield Check(name, list(plan.grid) == grid, f"grid {_by_x(plan.grid)}, transformers' {_by_x(grid)}")
    yield _equal("patches of the pictures", patches.values, theirs["pixel_values"])

    frames = torch.from_numpy(np.stack([_texture(generator, *CLIP[1:]) for _ in range(CLIP[0])])).permute(0, 3, 1, 2)
    clip = family.patchify_video(frames, fps=2.0)
    processor = AutoVideoProcessor.from_pretrained(folder, local_files_only=True)
    theirs = processor(videos=[frames], do_sample_frames=False, return_tensors="pt")
    yield _equal("patches of a clip", clip.values, theirs["pixel_values_videos"])

    model: Any = AutoModelForImageTextToText.from_pretrained(folder, local_files_only=True, dtype="auto")
    model.to(device).eval()
    grids = [tuple(grid) for grid in patches.grids.tolist()]
    prompt: list[list[Span]] = [
        [Text(5), Image(grids[0]), Text(4), Image(grids[1]), Text(6)],
        [Text(3), Image(grids[2]), Text(5)],
    ]
    inputs = {"pixel_values": patches.values, "image_grid_thw": patches.grids, **_tokens(family, model.config, prompt)}
    # Before transformers 5.3 models had no mm_token_type_ids.
    inputs = {
        key: value.to(device) for key, value in inputs.items() if key in signature(type(model).forward).parameters
    }
    yield from _position_checks(family, model, prompt, inputs)
    yield _rotary_check(family, model)
    yield from _model_checks(model, inputs)


def _position_checks(
    family: Family, model: Any, prompt: list[list[Span]], inputs: dict[str, Tensor]
) -> Iterator[Check]:
    theirs = _theirs(model, inputs)
    name = "positions of pictures in two rows"
    yield Check(name, False, _RAISES) if theirs is None else _equal(name, _ours(family, prompt), theirs)
    for name, steps in (("a short clip", 2), ("a clip that lasts longer than it is wide", 40)):
        clip = [[Text(4), *_clip(family, (steps, 8, 12)), Text(5)]]
        tokens = _tokens(family, model.config, clip)
        tokens["video_grid_thw"] = torch.tensor([[steps, 8, 12]])
        tokens = {key: value.to(model.device) for key, value in tokens.items()}
        theirs = _theirs(model, tokens)
        with plug(model):
            plugged, _ = model.model.get_rope_index(**tokens)
        outcome = _equal(f"positions of {name}", _ours(family, clip), plugged)
        if theirs is None:
            outcome = replace(outcome, detail=f"{outcome.detail}; {_RAISES}")
        elif not torch.equal(theirs, plugged):
            starts = f"at {int(theirs[0, 0, -5])} by transformers' rule, at {int(plugged[0, 0, -5])} by the trained one"
            outcome = replace(outcome, detail=f"{outcome.detail}; the text after it starts {starts}")
        yield outcome


def _rotary_check(family: Family, model: Any) -> Check:
    ids = torch.randint(0, 20_000, (3, 1, 500), generator=torch.Generator().manual_seed(0)).to(model.device)
    rotary = family.rotary()
    module = model.model.language_model.rotary_emb
    theirs = [_by_pair(table, family.split) for table in module(torch.zeros(1, device=model.device), ids)]
    ours = [torch.cat([table, table], dim=-1) for table in rotary.cos_sin(ids)]
    return _equal("rotary cos and sin", torch.stack(ours), torch.stack(theirs))


def _model_checks(model: Any, inputs: dict[str, Tensor]) -> Iterator[Check]:
    wanted = model(**inputs).logits
    with plug(model):
        yield _equal("logits with our positions", model(**inputs).logits, wanted)
    with plug(model, rotary=True):
        yield _equal("logits with our positions and rotary", model(**inputs).logits, wanted)
    options = {"do_sample": False, "min_new_tokens": NEW_TOKENS, "max_new_tokens": NEW_TOKENS}
    wanted = model.generate(**inputs, **options)
    with plug(model):
        yield _equal(f"{NEW_TOKENS} generated tokens", model.generate(**inputs, **options), wanted)


def _ours(family: Family, rows: list[list[Span]]) -> Tensor:
    assert isinstance(family.layout, GridLayout)  # all families here
    lengths = [family.positions(row).ids.shape[1] for row in rows]
    mask = torch.tensor([[column >= max(lengths) - length for column in range(max(lengths))] for length in lengths])
    return batch_positions(rows, mask, layout=family.layout)


def _theirs(model: Any, inputs: dict[str, Tensor]) -> Tensor | None:
    """(3, B, N) ids of the model's own get_rope_index, 0 in padded places; None if it breaks down."""
    accepted = signature(type(model.model).get_rope_index).parameters
    try:
        ids, _ = model.model.get_rope_index(**{key: value for key, value in inputs.items() if key in accepted})
    except (RuntimeError, StopIteration):
        return None
    return ids * inputs["attention_mask"]


def _tokens(family: Family, config: Any, rows: list[list[Span]]) -> dict[str, Tensor]:
    """input_ids, attention_mask and mm_token_type_ids (B, N), left-padded; each picture follows a <vision_start>."""
    assert isinstance(family.layout, GridLayout)  # all families here
    placeholders = (config.image_token_id, config.video_token_id)
    plain = [
        i for i in range(10, config.text_config.vocab_size) if i not in (*placeholders, config.vision_start_token_id)
    ]
    made = []
    for row in rows:
        ids: list[int] = []
        for number, span in enumerate(row):
            if isinstance(span, Text):
                ids += [plain[7 * (len(ids) + i) % len(plain)] for i in range(span.length)]
                if number + 1 < len(row):
                    ids[-1] = config.vision_start_token_id
            else:
                ids += [placeholders[isinstance(span, Video)]] * family.layout.tokens(span)
        made.append(torch.tensor(ids))
    padded = {"batch_first": True, "padding_side": "left"}
    tokens = torch.nn.utils.rnn.pad_sequence(made, **padded)
    return {
        "input_ids": tokens,
        "attention_mask": torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in made], **padded),
        "mm_token_type_ids": token_kinds(tokens, image_token_id=placeholders[0], video_token_id=placeholders[1]).int(),
    }


def _clip(family: Family, grid: tuple[int, int, int]) -> list[Span]:
    """The spans of one clip; in a family with time stamps, of its frames with a stamp of 3 tokens between them."""
    assert isinstance(family.layout, GridLayout)  # all families here
    if family.layout.time == "stamps":
        frame = Video((1, *grid[1:]), stamp=0)
        return [frame, *(span for _ in range(grid[0] - 1) for span in (Text(3), frame))]
    return [Video(grid, seconds=1.0 if family.layout.time == "seconds" else None)]


def _by_pair(table: Tensor, split: AxisSplit) -> Tensor:
    """(B, N, 2F): old versions hand out (3, B, N, 2F), and attention takes each pair from its axis."""
    if table.dim() == 3:
        return table
    axis = split.axis.repeat(2).to(table.device)
    return table.movedim(0, -1).gather(-1, axis[:, None].expand(*table.shape[1:3], -1, 1)).squeeze(-1)


def _equal(name: str, ours: Tensor, theirs: Tensor) -> Check:
    ours, theirs = ours.cpu(), theirs.cpu()
    if ours.shape != theirs.shape:
        return Check(name, False, f"shape {tuple(ours.shape)}, transformers' {tuple(theirs.shape)}")
    same = torch.equal(ours, theirs)
    most = (ours.double() - theirs.double()).abs().max().item()
    return Check(name, same, f"{ours.numel()} values equal" if same else f"differ by up to {most:.3g}")


def _texture(generator: np.random.Generator, height: int, width: int) -> np.ndarray:
    """(height, width, 3) uint8: waves with noise, so that a resize has something to get wrong."""
    rows, cols = np.mgrid[:height, :width]
    waves = np.stack([np.sin(rows / 9), np.cos(cols / 7), np.sin((rows + 2 * cols) / 11)], axis=-1)
    return (127.5 + 90 * waves + generator.uniform(-37, 37, waves.shape)).astype(np.uint8)


def _by_x(grid: Sequence[int]) -> str:
    return "x".join(map(str, grid))
