"""Where the positions of a request go on: remembered on its KV cache, never on the model.

A cache belongs to one request (a batch of rows that decode together), so two requests that take turns on one model
cannot mix. Remembered is, for each cached token, where text goes on behind it and whether it is padding; and the rows
of the layout, as long as all tokens came through it. Where the cache reorders, selects or repeats its rows, or is
cropped, what is remembered goes with it. What a cache holds beyond what it remembers came from elsewhere.
Letters: A axes, B batch, L cached tokens, N new tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mrope.checks import Number
from mrope.positions import Positions

_MEMORY = "_mrope_memory"
_ROWS = "_mrope_rows"


@dataclass(slots=True, eq=False)
class _Memory:
    """What a cache knows of its tokens; its shallow copies, which have the same layers, share it.

    Args:
        following: (B, L) the position of a text token that comes behind each.
        kept: (B, L) which of them are no padding; None where a mask came that does not tell.
        rows: each row up to its token number `length`; None where the ids came from elsewhere.
        length: tokens that `rows` cover.
    """

    following: Tensor
    kept: Tensor | None
    rows: tuple[Positions, ...] | None
    length: int


def cache_of(call: Mapping[str, Any]) -> Any:
    """The KV cache among the arguments of a forward, None if there is none."""
    cache = call.get("cache")  # its name from transformers 5.24 on
    return call.get("past_key_values") if cache is None else cache


def cached_tokens(call: Mapping[str, Any]) -> int:
    """How many tokens the cache holds when a forward with the arguments `call` begins."""
    slots = call.get("cache_position")  # of versions whose static cache can only count keys that are not zero
    if slots is not None:
        return int(slots[0])
    cache = cache_of(call)
    return 0 if cache is None else int(cache.get_seq_length())


def new_tokens(call: Mapping[str, Any], given: int) -> int:
    """How many of the `given` tokens of a `generate` with the arguments `call` its cache does not hold.

    It takes all tokens of a conversation, or the new ones alone; its position_ids, or else its mask, are those of all.
    """
    whole = next((call[name] for name in ("position_ids", "attention_mask") if call.get(name) is not None), None)
    return given if whole is None else min(given, whole.shape[-1] - cached_tokens(call))


def new_of(tokens: Tensor, past: int, length: int) -> Tensor:
    """Of the `tokens` that came to `generate` those that the cache, which holds `past` of `length`, does not hold.

    Raises:
        ValueError: there are none.
    """
    if length <= past:
        raise ValueError(
            f"{tokens.shape[1]} tokens came and the cache holds {past}; expected all tokens of the conversation, the "
            "cached ones too, or the new ones alone with an attention_mask of all"
        )
    return tokens[:, tokens.shape[1] - (length - past) :]


def with_rows(ids: Tensor, rows: Sequence[Positions]) -> Tensor:
    """`ids` with the rows that they were made from, which `remember` finds there as long as they are not cut."""
    setattr(ids, _ROWS, tuple(rows))
    return ids


def rows_of(ids: Tensor) -> tuple[Positions, ...]:
    """What `with_rows` put there."""
    return getattr(ids, _ROWS)


def repeat_rows(cache: Any, rows: int, times: int) -> None:
    """Let each of the `rows` of a cache stand `times` times in a row."""
    cache.reorder_cache(_repeated(rows, times))  # layers of linear attention have no other way


def next_starts(cache: Any, past: int, batch: int) -> Sequence[Number | Positions]:
    """What each of `batch` rows goes on from after the first `past` tokens of a cache.

    Raises:
        ValueError: the cache holds tokens of unknown positions, or another number of rows.
    """
    if past == 0:
        return [0] * batch
    memory: _Memory | None = getattr(cache, _MEMORY, None)
    known = 0 if memory is None else memory.following.shape[1]
    if memory is None or past > known:
        raise ValueError(
            f"of {past} tokens on the cache the last {past - known} did not come through this model as it is, or came "
            "through it compiled, so that their positions are unknown: prefill again, or pass position_ids"
        )
    if past < known:
        raise ValueError(
            f"the cache holds {past} tokens, and {known} came: some were taken out of its layers, so that positions "
            "of the rest are unknown: use the cache's own methods, such as crop, or pass position_ids"
        )
    if batch != (held := len(memory.following)):
        raise ValueError(f"the cache holds {held} rows, and {batch} rows of new tokens came")
    numbers = memory.following[:, -1].tolist()
    starts: list[Number | Positions] = list(numbers)
    if memory.rows is not None and past >= memory.length:
        rows = [row.decode(past - memory.length) if past > memory.length else row for row in memory.rows]
        # Planned ids are no text, and only the rows know them.
        if all(row.planned is not None or row.next == number for row, number in zip(rows, numbers, strict=True)):
            starts = [*rows]
    return starts


def check_mask(cache: Any, past: int, mask: Tensor | None) -> None:
    """Refuse a mask (B, L + N) that says otherwise of cached tokens than the one that they came with.

    Raises:
        ValueError: it does; the first such token is named.
    """
    memory: _Memory | None = getattr(cache, _MEMORY, None)
    if past == 0 or memory is None or memory.kept is None:
        return
    kept = memory.kept.cpu()
    said = torch.ones_like(kept) if mask is None else mask[:, :past].cpu() != 0
    if bool((wrong := kept != said).any()):
        row, column = wrong.nonzero()[0].tolist()
        came, was = ("None" if mask is None else f"{int(said[row, column])}"), ("padding", "no padding")
        raise ValueError(
            f"attention_mask is {came} for token {column} of row {row} on the cache, which was "
            f"{was[bool(kept[row, column])]} when it came: pass the mask of all tokens, cached ones too, with its rows "
            "as the cache has them, or pass position_ids"
        )


def following_of(cache: Any, length: int) -> Tensor | None:
    """(B,) the position of text behind the first `length` tokens of a cache, None if it remembers not just these."""
    memory = getattr(cache, _MEMORY, None)
    return memory.following[:, -1] if memory is not None and memory.following.shape[1] == length else None


def next_ids(ids: Tensor, axes: int) -> Tensor:
    """(B,) where text goes on behind a prompt with these ids ((1 +) A, B, N): where their rows do, if they have any."""
    rows = getattr(ids, _ROWS, None)
    if rows is None:
        return ids[-axes:, :, -1].amax(0) + 1
    return torch.tensor([row.next for row in rows], dtype=ids.dtype, device=ids.device)


def remember(cache: Any, past: int, position_ids: Tensor, axes: int, mask: Any = None) -> None:
    """Note on `cache` the positions of the tokens that it took in after its first `past` ones.

    Args:
        cache: a transformers cache.
        past: tokens that it held before.
        position_ids: (A, B, N), (1 + A, B, N) with the text row first, or (B, N) for plain text.
        axes: A.
        mask: (B, L + N), where there are tokens; None where all are. Of another shape it tells nothing.
    """
    from transformers import Cache

    ids = position_ids[None] if position_ids.dim() == 2 else position_ids[-axes:]
    rows, memory = getattr(position_ids, _ROWS, None), getattr(cache, _MEMORY, None)
    batch, length = ids.shape[1:]
    largest = ids.amax(0) + 1
    if past > 0:
        if memory is None or past > memory.following.shape[1] or batch != len(memory.following):
            return
        earlier = memory.following[:, :past].to(ids.device)
        largest = torch.cat([earlier[:, -1:], largest], dim=1).cummax(-1).values[:, 1:]
    else:
        earlier, largest = ids[0, :, :0], largest.cummax(-1).values
    # A token with one position on all axes is text, also where a clip before it reaches further.
    following = torch.where((ids == ids[:1]).all(0), ids[0] + 1, largest)
    kept = None  # of all tokens: with ids of the caller may come another mask than before
    if mask is None:
        before = torch.ones_like(ids[0, :, :0], dtype=torch.bool) if past == 0 or memory is None else memory.kept
        kept = None if before is None else torch.nn.functional.pad(before[:, :past], (0, length), value=True)
    elif isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape[1] >= past + length:
        kept = mask[:, : past + length].to(ids.device) != 0
        place = torch.where(kept[:, past:], torch.arange(length, device=ids.device), 0).cummax(-1).values
        following = following.gather(1, place)  # padding goes on from the token before it
    if rows is not None:
        following = torch.cat([following[:, :-1], following.new_tensor([[row.next] for row in rows])], dim=1)
    following = torch.cat([earlier.to(following.dtype), following], dim=1)
    if memory is None:
        memory = _Memory(following, kept, None, 0)
        setattr(cache, _MEMORY, memory)
        for name in _CHANGES:
            if getattr(type(cache), name, None) is getattr(Cache, name):
                cache.__dict__[name] = partial(_change, cache.layers, memory, name)
    memory.following, memory.kept = following, kept
    if rows is not None:
        memory.rows, memory.length = rows, past + length
    elif past < memory.length or length > 1:
        memory.rows = None  # or a token of text, which `next_starts` looks into


def remember_generated(cache: Any, position_ids: Tensor, axes: int) -> None:
    """Note the positions of tokens that `generate` handed to a compiled forward, which leaves no trace.

    Args:
        cache: a transformers cache, of which the tokens before are known.
        position_ids: ((1 +) A, B, L) or (B, L) of all its tokens; of new ones alone, as up to 5.2, it tells nothing.
        axes: A.
    """
    memory: _Memory | None = getattr(cache, _MEMORY, None)
    known = 0 if memory is None else memory.following.shape[1]
    if 0 < known < position_ids.shape[-1]:
        remember(cache, known, position_ids[..., known:], axes)


def _repeated(batch: int, repeats: int) -> Tensor:
    return torch.arange(batch).repeat_interleave(repeats)


def _selected(batch: int, indices: Any) -> Tensor:
    return torch.arange(batch)[indices.cpu() if isinstance(indices, Tensor) else indices]


_MOVES = {"reorder_cache": _selected, "batch_select_indices": _selected, "batch_repeat_interleave": _repeated}
"""Methods of a cache that move its rows; the number each row had, from how many there were and what is asked for."""
_CHANGES = (*_MOVES, "crop", "reset")


def _change(layers: Sequence[Any], memory: _Memory, name: str, *args: Any, **kwargs: Any) -> None:
    """In place of a method of a cache: change its layers, and its memory.

    Without the cache itself, which would hold on to itself; so bound it is copied and pickled with its cache.
    """
    for layer in layers:
        getattr(layer, name)(*args, **kwargs)
    if name in _MOVES:
        index = _MOVES[name](len(memory.following), *args, *kwargs.values())
        where = index.to(memory.following.device)
        memory.following = memory.following[where]
        memory.kept = None if memory.kept is None else memory.kept[where]
        if memory.rows is not None:
            memory.rows = tuple(memory.rows[number] for number in index.tolist())
    else:
        length = max((int(layer.get_seq_length()) for layer in layers if hasattr(layer, "get_seq_length")), default=0)
        memory.following = memory.following[:, :length]
        memory.kept = None if memory.kept is None else memory.kept[:, :length]
