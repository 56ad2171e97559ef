"""Reads the arguments of one forward of a built model: which tokens are pictures and clips, and where all of them are.

Letters: B batch, N new tokens of this forward.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mrope.hf.batch import IMAGE, TEXT, VIDEO, batch_spans, check_kinds, grids_of_rows, token_kinds
from mrope.hf.cache import cache_of, cached_tokens, next_starts
from mrope.hf.call import SHAPES, Border, check_boundaries, check_tensors, token_mask
from mrope.spans import Image, Video
from mrope.vlm.config import VlmConfig

GRIDS = {IMAGE: "image_grid_thw", VIDEO: "video_grid_thw"}
PIXELS = {IMAGE: "pixel_values", VIDEO: "pixel_values_videos"}
NAMES = {IMAGE: "image", VIDEO: "video"}
SECONDS = "second_per_grid_ts"
PLACED = (*GRIDS.values(), SECONDS)  # what positions are read from, beside the tokens
CALL = ("input_ids", "inputs_embeds", "attention_mask", "mm_token_type_ids", *PIXELS.values(), *PLACED)
MARK = "_mrope_pictures"
"""On a cache whose positions are others than those of plain text."""


def check_call(call: Mapping[str, Any]) -> None:
    """Refuse arguments of a forward that are of another form, or do not go with one another.

    Raises:
        TypeError: one is no tensor.
        ValueError: one has another shape, or is missing or too many.
    """
    check_tensors(call)
    for name, shape in SHAPES.items():
        value = call[name]
        if value is not None and (
            value.dim() != shape.count(",") + 1 or (name in GRIDS.values() and value.shape[1] != 3)
        ):
            raise ValueError(f"{name} has shape {tuple(value.shape)}; expected {shape}")
    if (call["input_ids"] is None) == (call["inputs_embeds"] is None):
        came = "None" if call["input_ids"] is None else "there"
        raise ValueError(f"input_ids and inputs_embeds are both {came}; expected one of them")
    batch, length = _tokens(call).shape[:2]
    past, types, seconds = cached_tokens(call), call["mm_token_type_ids"], call[SECONDS]
    media = any(call[name] is not None for name in PIXELS.values())
    if media and types is not None and tuple(types.shape) not in ((batch, length), (batch, past + length)):
        raise ValueError(
            f"mm_token_type_ids have shape {tuple(types.shape)}; expected {(batch, length)}, one for each token"
        )
    if seconds is not None and torch.as_tensor(seconds).dim() != 1:
        raise ValueError(f"{SECONDS} is {seconds!r:.80}; expected a list, one number a clip")


def kinds_of(config: VlmConfig, call: Mapping[str, Any]) -> Tensor | None:
    """(B, N) the kind of each new token; None where all are text."""
    tokens, types = call["input_ids"], call["mm_token_type_ids"]
    media, past = any(call[name] is not None for name in PIXELS.values()), cached_tokens(call)
    if tokens is None:
        if media and types is None:
            raise ValueError("inputs_embeds do not show which tokens are a picture's: pass mm_token_type_ids too")
        seen = types[:, -call["inputs_embeds"].shape[1] :] if media else None
    else:
        seen = token_kinds(tokens, image_token_id=config.image_token_id, video_token_id=config.video_token_id)
        # On a cache, a placeholder that is a word of the vocabulary is one that the model wrote.
        lost = (seen != TEXT) & ((tokens >= config.text_config.vocab_size) | (not past))
        if not torch.compiler.is_compiling() and not media and bool(lost.any()):
            row, column = lost.nonzero()[0].tolist()
            raise ValueError(
                f"token {column} of row {row} is the placeholder {int(tokens[row, column])} of a picture or clip, but "
                "no pixel_values came"
            )
        if media and types is not None:
            check_kinds(types[:, -tokens.shape[1] :], seen, torch.ones_like(seen, dtype=torch.bool))
    for kind, name in PIXELS.items():
        # A loop that keeps handing over the prompt's grids while it decodes text means no new pictures.
        if not past and call[name] is None and call[GRIDS[kind]] is not None:
            raise ValueError(f"{GRIDS[kind]} came without {name}; expected both or neither")
    return seen if media else None


def positions_of(border: Border, call: Mapping[str, Any], kinds: Tensor | None) -> Tensor | None:
    """(3, B, N) of new tokens among which are pictures, (B, N) of text behind such; None: the language model's own."""
    check_boundaries(call)
    if kinds is None:
        past, cache = cached_tokens(call), cache_of(call)
        if past and not torch.compiler.is_compiling():
            next_starts(cache, past, len(_tokens(call)))  # which refuses a cache that it does not know
        if not past or not getattr(cache, MARK, False):
            return None
        # A loop that keeps handing over the prompt's pictures while it decodes text means no new ones.
        call = {**call, **dict.fromkeys((*PIXELS.values(), *PLACED))}
    # The kinds say all that is to be known of the tokens but their number.
    known = {"input_ids": None, "inputs_embeds": _tokens(call), "mm_token_type_ids": kinds}
    ids = border.positions({**call, **known})
    return ids[0] if kinds is None else ids


def repeated(border: Border, call: Mapping[str, Any], media: Mapping[str, Any], times: int) -> dict[str, Any]:
    """`media`, the patches, grids and seconds of `call`, with those of each row `times` times in a row."""
    kinds = kinds_of(border.config, call)
    assert kinds is not None  # there are pixels
    batch, length = kinds.shape
    mask = token_mask(call["attention_mask"], batch, length, kinds.device, cached_tokens(call))
    rows = batch_spans(kinds, mask, layout=border.layout, **{name: call[name] for name in PLACED})
    made = dict(media)
    for kind, span in ((IMAGE, Image), (VIDEO, Video)):
        if call[PIXELS[kind]] is None:
            continue
        table = call[GRIDS[kind]]
        each = [row for row in range(len(rows)) for _ in range(times)]
        chosen = grids_of_rows(GRIDS[kind], table, rows, span, each)
        patches = call[PIXELS[kind]].split(table.prod(-1).tolist())
        made[PIXELS[kind]] = torch.cat([patches[grid] for grid in chosen])
        made[GRIDS[kind]] = table[chosen]
        if kind == VIDEO and media[SECONDS] is not None:
            made[SECONDS] = torch.as_tensor(media[SECONDS])[chosen]
    return made


def _tokens(call: Mapping[str, Any]) -> Tensor:
    """The new tokens, (B, N) words or (B, N, C) embeddings."""
    return call["input_ids"] if call["input_ids"] is not None else call["inputs_embeds"]
