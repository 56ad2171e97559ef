"""Assisted decoding: where drafted tokens go, and what a text model that drafts them is told.

Letters: A axes, B batch, N tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from mrope.hf.cache import cache_of, new_tokens, next_ids

_BEHIND = "_mrope_behind_prompt"


def expect_drafts(arguments: Mapping[str, Any], axes: int) -> dict[str, Any]:
    """The `arguments` of `_get_candidate_generator`, for a model whose ids are (A, B, N) or (1 + A, B, N).

    Where text behind the prompt goes on is noted on the cache, for `place_drafts`. An assistant that takes no grids is
    a text model: it gets the words and their mask, and counts its own positions.

    Raises:
        ValueError: such an assistant has fewer words than the prompt, whose placeholders may lie behind them.
    """
    call, assistant = arguments["model_kwargs"], arguments.get("assistant_model")
    ids, cache = call.get("position_ids"), cache_of(call)
    if ids is not None and ids.dim() == 3 and cache is not None:
        setattr(cache, _BEHIND, (ids.shape[-1], next_ids(ids, axes)))
    takes = () if assistant is None else inspect.signature(assistant.forward).parameters
    if assistant is None or "image_grid_thw" in takes:
        return dict(arguments)
    words = len(assistant.get_input_embeddings().weight)
    largest = int(arguments["input_ids"].max())
    if arguments.get("assistant_tokenizer") is None and largest >= words:
        raise ValueError(
            f"assistant_model is a {type(assistant).__name__} of {words} words and the prompt holds token {largest}; "
            "expected one that reads the same pictures, or whose words include the placeholders"
        )
    own = {name: value for name, value in call.items() if name in takes and name not in ("position_ids", "cache")}
    return {**arguments, "model_kwargs": own}


def place_drafts(call: Mapping[str, Any], given: int, axes: int) -> Mapping[str, Any]:
    """`call`, the arguments of `prepare_inputs_for_generation`, with the ids of tokens that are drafted with a prompt.

    Transformers gives them the last id of the prompt plus 1 on each axis, which is another one where it ends on a
    picture. Of the `given` tokens it hands on those that the caller's cache holds, too; here they are left out.
    """
    if "next_sequence_length" in call and call["next_sequence_length"] is None:
        new = new_tokens(call, given)
        call = {**call, "next_sequence_length": new if new < given else None}
    length, following = getattr(cache_of(call), "__dict__", {}).pop(_BEHIND, (None, None))
    ids = call.get("position_ids")
    if following is None or ids is None or ids.shape[-1] == length:
        return call
    ids = ids.clone()
    ids[-axes:, :, length:] = following[:, None] + torch.arange(ids.shape[-1] - length, device=ids.device)
    return {**call, "position_ids": ids}
