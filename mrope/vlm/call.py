"""Reads the arguments of one forward: which tokens are pictures and clips, and where all of them are.

Letters: B batch, N new tokens of this forward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mrope.hf.batch import IMAGE, TEXT, VIDEO, batch_positions, batch_spans, check_kinds, token_kinds
from mrope.hf.cache import cache_of, next_starts
from mrope.layouts import GridLayout
from mrope.spans import Image, Text, Video

GRIDS = {IMAGE: "image_grid_thw", VIDEO: "video_grid_thw"}
PIXELS = {IMAGE: "pixel_values", VIDEO: "pixel_values_videos"}
NAMES = {IMAGE: "image", VIDEO: "video"}
SECONDS = "second_per_grid_ts"
PLACED = (*GRIDS.values(), SECONDS)  # what positions are read from, beside the tokens
CALL = ("input_ids", "inputs_embeds", "attention_mask", "mm_token_type_ids", *PIXELS.values(), *PLACED)
MARK = "_mrope_pictures"
"""On a cache whose positions are others than those of plain text."""


@dataclass(frozen=True, slots=True)
class Border:
    """What a built model's configuration says about its batches."""

    layout: GridLayout
    image_token_id: int
    video_token_id: int

    def kinds(self, call: Mapping[str, Any]) -> Tensor | None:
        """(B, N) the kind of each new token; None where all are text."""
        tokens, types = call["input_ids"], call["mm_token_type_ids"]
        media = any(call[name] is not None for name in PIXELS.values())
        if tokens is None:
            if not media:
                return None
            if types is None:
                raise ValueError("inputs_embeds do not show which tokens are a picture's: pass mm_token_type_ids too")
            return types[:, -call["inputs_embeds"].shape[1] :]
        image, video = self.image_token_id, self.video_token_id
        seen = token_kinds(tokens, image_token_id=image, video_token_id=video)
        if not torch.compiler.is_compiling() and not media and bool((seen != TEXT).any()):
            row, column = (seen != TEXT).nonzero()[0].tolist()
            raise ValueError(
                f"token {column} of row {row} is the placeholder {int(tokens[row, column])} of a picture or clip, but "
                "no pixel_values came"
            )
        if not media:
            return None
        if types is not None:
            types = types[:, -tokens.shape[1] :]
            check_kinds(types, seen, torch.ones_like(seen, dtype=torch.bool))
        return seen

    def mask(self, call: Mapping[str, Any], like: Tensor) -> Tensor:
        """(B, N) bool, which of the new tokens are no padding."""
        mask = call["attention_mask"]
        if mask is None:
            return torch.ones(like.shape[:2], dtype=torch.bool, device=like.device)
        if not isinstance(mask, Tensor) or mask.dim() != 2 or mask.shape[1] < like.shape[1]:
            shape = f"shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else f"type {type(mask).__name__}"
            raise ValueError(
                f"attention_mask has {shape}, which does not show the padding of {tuple(like.shape[:2])} tokens: "
                "pass a (B, N) mask, or position_ids"
            )
        return mask[:, -like.shape[1] :].to(like.device) != 0

    def positions(self, call: Mapping[str, Any], kinds: Tensor | None, past: int) -> Tensor | None:
        """(3, B, N) of new tokens among which are pictures, (B, N) of text behind such; None: the language model's."""
        tokens = call["input_ids"] if call["input_ids"] is not None else call["inputs_embeds"]
        cache = cache_of(call)
        if kinds is None and (not past or not _has_pictures(cache)):
            return None
        starts = next_starts(cache, past, len(tokens))
        mask = self.mask(call, tokens)
        if kinds is None:
            text = [[Text(count)] if count else [] for count in mask.sum(-1).tolist()]
            return batch_positions(text, mask, layout=self.layout, starts=starts)[0]
        media = {name: call[name] for name in PLACED}
        rows = batch_spans(kinds, mask, layout=self.layout, **media)
        return batch_positions(rows, mask, layout=self.layout, starts=starts)

    def repeated(self, call: Mapping[str, Any], media: Mapping[str, Any], times: int) -> dict[str, Any]:
        """`media`, the patches, grids and seconds of `call`, with those of each row `times` times in a row."""
        tokens = call["input_ids"] if call["input_ids"] is not None else call["inputs_embeds"]
        kinds = self.kinds(call)
        assert kinds is not None  # there are pixels
        grids = {name: call[name] for name in PLACED}
        rows = batch_spans(kinds, self.mask(call, tokens), layout=self.layout, **grids)
        made = dict(media)
        for kind, span in ((IMAGE, Image), (VIDEO, Video)):
            if call[PIXELS[kind]] is None:
                continue
            table = call[GRIDS[kind]]
            # A clip with time stamps is a span for each step, and one grid: both are counted in steps.
            steps = [sum(one.grid[0] for one in row if isinstance(one, span)) for row in rows]
            owner = torch.searchsorted(torch.tensor(steps).cumsum(0), table[:, 0].cpu().cumsum(0))
            chosen = [grid for row in range(len(rows)) for _ in range(times) for grid in _where(owner == row)]
            patches = call[PIXELS[kind]].split(table.prod(-1).tolist())
            made[PIXELS[kind]] = torch.cat([patches[grid] for grid in chosen])
            made[GRIDS[kind]] = table[chosen]
            if kind == VIDEO and media[SECONDS] is not None:
                made[SECONDS] = torch.as_tensor(media[SECONDS])[chosen]
        return made


def _has_pictures(cache: Any) -> bool:
    """Whether positions on a cache are others than those of plain text."""
    return getattr(cache, MARK, False)


def _where(rows: Tensor) -> list[int]:
    return rows.nonzero()[:, 0].tolist()
