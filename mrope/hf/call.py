"""The positions of one forward of a transformers model, from its arguments and its cache.

Letters: B batch, N new tokens of this forward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from mrope.hf.batch import TEXT, batch_positions, batch_spans, check_kinds, token_kinds
from mrope.hf.cache import cache_of, cached_tokens, next_starts
from mrope.layouts import GridLayout

_MEDIA = ("image_grid_thw", "video_grid_thw", "second_per_grid_ts")


@dataclass(frozen=True, slots=True)
class Border:
    """What one model's configuration says about its batches."""

    layout: GridLayout
    image_token_id: int
    video_token_id: int

    def positions(self, call: Mapping[str, Any]) -> Int64[Tensor, "3 b n"]:
        """The positions (3, B, N) of the tokens that a forward with the arguments `call` adds.

        They go on where the cache ends. Pictures and clips are those among the new tokens, and the grids are theirs.

        Raises:
            ValueError: placeholders and grids do not match, the mask is no (B, N) mask, or the cache is not ours.
        """
        tokens = call.get("input_ids")
        carriers = (tokens, call.get("inputs_embeds"), call.get("attention_mask"))
        carrier = next((value for value in carriers if value is not None), None)
        if carrier is None:
            raise ValueError("there are no input_ids and no inputs_embeds: nothing to give positions to")
        batch, length = carrier.shape[:2]
        past = cached_tokens(call)
        starts = next_starts(cache_of(call), past, batch)
        mask = _mask(call.get("attention_mask"), batch, length, carrier.device)
        kinds = self._kinds(call, tokens, past, batch, length)
        # A loop that keeps handing over the prompt's grids while it decodes text means no new pictures.
        media = {} if past and not _any(kinds) else {key: call.get(key) for key in _MEDIA}
        if kinds is None:
            kinds = torch.full((batch, length), TEXT)
        elif tokens is not None and _any(kinds):
            check_kinds(kinds, self._seen(tokens), mask)
        rows = batch_spans(kinds, mask, layout=self.layout, **media)
        return batch_positions(rows, mask, layout=self.layout, starts=starts)

    def _kinds(
        self, call: Mapping[str, Any], tokens: Tensor | None, past: int, batch: int, length: int
    ) -> Tensor | None:
        """(B, N) kinds of the new tokens; None if nothing says that some of them are a picture's."""
        types = call.get("mm_token_type_ids")
        if types is not None and types.shape in ((batch, length), (batch, past + length)):
            return types[:, -length:]
        if types is not None and not past:
            raise ValueError(
                f"mm_token_type_ids have shape {tuple(types.shape)}; expected {(batch, length)}, one for each token"
            )
        if past and call.get("pixel_values") is None and call.get("pixel_values_videos") is None:
            return None
        if tokens is not None:
            return self._seen(tokens)
        if any(call.get(key) is not None for key in _MEDIA):
            raise ValueError("inputs_embeds do not show which tokens are a picture's: pass mm_token_type_ids as well")
        return None

    def _seen(self, tokens: Tensor) -> Tensor:
        return token_kinds(tokens, image_token_id=self.image_token_id, video_token_id=self.video_token_id)


def _any(kinds: Tensor | None) -> bool:
    return kinds is not None and bool((kinds != TEXT).any())


def _mask(mask: Any, batch: int, length: int, device: torch.device) -> Tensor:
    """(B, N) bool, which of the new tokens are tokens and no padding."""
    if mask is None:
        return torch.ones(batch, length, dtype=torch.bool, device=device)
    if not isinstance(mask, Tensor) or mask.dim() != 2 or mask.shape[0] != batch or mask.shape[1] < length:
        shape = f"shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else f"type {type(mask).__name__}"
        raise ValueError(
            f"attention_mask has {shape}, which does not show the padding of {batch} rows of {length} tokens: "
            "pass a (B, N) mask, or position_ids"
        )
    return mask[:, -length:].to(device) != 0
