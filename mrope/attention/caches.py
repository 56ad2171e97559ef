"""Caches of turned keys, values, and where they are: in one piece, or in pages that requests share.

Letters: A axes, B rows, H heads of keys and values, N new tokens, M tokens held, D head dim, E head dim of the values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from mrope.attention.masks import Tokens, read_tokens
from mrope.attention.slots import check_follow, last_tokens, on_host
from mrope.batches import BatchPositions
from mrope.checks import whole
from mrope.positions import NO_PICTURE, Positions
from mrope.shards import PADDING

Slotted: TypeAlias = Positions | BatchPositions | Tokens
"""Positions that know the slots of their tokens; ids alone do not."""


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """All that a query can look at.

    Args:
        k: (B, H, M, D) keys, turned.
        v: (B, H, M, E) values.
        tokens: what they are of; what is no token of a row is padding.
    """

    k: Float[Tensor, "b h m d"]
    v: Float[Tensor, "b h m e"]
    tokens: Tokens


class KVCache:
    """Keys and values of a batch in one piece, which doubles when it is full; rows of other lengths are padded.

    Args:
        capacity: slots of a row to set aside at the start.

    >>> from mrope import Text, GridLayout
    >>> prompt, cache = GridLayout()([Text(5)]), KVCache(capacity=8)
    >>> cache.append(torch.ones(1, 2, 5, 4), torch.ones(1, 2, 5, 4), prompt).k.shape
    torch.Size([1, 2, 5, 4])
    >>> cache.append(torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 4), prompt.decode(1)).tokens.slots.tolist()
    [[0, 1, 2, 3, 4, 5]]
    """

    def __init__(self, *, capacity: int = 0):
        self.capacity = whole("capacity", capacity, 0)
        self.length = 0  # slots of a row in use, padding counted
        self._columns: dict[str, Tensor] = {}
        self._last: Tensor | None = None  # (B, 2), see `last_tokens`, on the host; None where only a device knows it
        self._attend: Literal["causal", "rings", "all"] = "causal"

    @property
    def tokens(self) -> Tokens | None:
        """What it holds; None before the first token."""
        return self._held().tokens if self.length else None

    def append(self, k: Float[Tensor, "b h n d"], v: Float[Tensor, "b h n e"], positions: Slotted) -> Held:
        """Keep the new keys, which are turned, and values, and give all so far, padding among them.

        Raises:
            ValueError: positions are of other tokens, their slots do not follow those that are held (looked at only
                where the host knows them), what comes does not fit what is held, or it requires gradients. Nothing is
                written then.
        """
        tokens = read_tokens(positions, (k.shape[0], k.shape[2]))
        new = _columns(k, v, tokens)
        stop = self.length + k.shape[2]
        if self.length:
            _check_alike(new, self._columns, rows=len(k))
        told = on_host(tokens, positions)
        before = self._last if self.length else torch.full((len(k), 2), PADDING)
        if told is not None and before is not None:
            check_follow(told, before)
        if not self.length:
            self._attend = tokens.attend
            self._columns = {name: x[:, :0] for name, x in new.items()}
            self._grow(max(self.capacity, stop))
        if stop > self.capacity:
            self._grow(max(2 * self.capacity, stop))
        for name, column in self._columns.items():
            column[:, self.length : stop] = new[name]
        self.length = stop
        self._last = None if told is None or before is None else last_tokens(*told, before)
        return self._held()

    def crop(self, length: int) -> None:
        """Forget all slots from `length` on, such as drafts that were not accepted.

        Raises:
            ValueError: there are fewer slots.
        """
        self.length = _cropped(length, self.length)
        if self._columns:
            held = self._held().tokens
            self._last = last_tokens(held.segments, held.slots).cpu()

    def saved(self) -> Callable[[], None]:
        """What brings back all that is held now, after a call that failed."""
        before = self.__dict__ | {"_columns": dict(self._columns)}
        return lambda: self.__dict__.update(before)

    def _grow(self, capacity: int) -> None:
        for name, column in self._columns.items():
            self._columns[name] = _empty(column, len(column), capacity, *column.shape[2:])
            self._columns[name][:, : self.length] = column[:, : self.length]
        self.capacity = capacity

    def _held(self) -> Held:
        return _held({name: column[:, : self.length] for name, column in self._columns.items()}, self._attend)


class PagedKVCache:
    """Keys and values of many requests in pages of one pool: a block table a request, and no padding.

    A fork shares its pages until one of the two writes into them.

    Args:
        pages: how many there are.
        page_size: tokens in each.

    >>> from mrope import Text, GridLayout
    >>> prompt, cache = GridLayout()([Text(5)]), PagedKVCache(pages=8, page_size=4)
    >>> request = cache.open()
    >>> held = cache.rows([request]).append(torch.ones(1, 2, 5, 4), torch.ones(1, 2, 5, 4), prompt)
    >>> other = cache.fork(request)
    >>> held = cache.rows([other]).append(torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 4), prompt.decode(1))
    >>> cache.length(request), cache.length(other), cache.free_pages
    (5, 6, 5)
    """

    def __init__(self, *, pages: int, page_size: int):
        self.pages, self.page_size = whole("pages", pages, 1), whole("page_size", page_size, 1)
        self._free = list(range(self.pages))[::-1]
        self._uses = [0] * self.pages
        self._tables: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}
        self._last: dict[int, Tensor] = {}  # (2,), document and slot of the last token, on the host
        self._opened = 0
        self._columns: dict[str, Tensor] = {}
        self._attend: Literal["causal", "rings", "all"] = "causal"

    @property
    def free_pages(self) -> int:
        """Pages that no request holds."""
        return len(self._free)

    def length(self, request: int) -> int:
        """How many tokens a request has."""
        return self._lengths[self._known(request)]

    def table(self, request: int) -> tuple[int, ...]:
        """The pages of a request, in the order of its tokens."""
        return tuple(self._tables[self._known(request)])

    def open(self) -> int:
        """A new request without tokens: its number."""
        request, self._opened = self._opened, self._opened + 1
        self._tables[request], self._lengths[request] = [], 0
        self._last[request] = torch.full((2,), PADDING)
        return request

    def fork(self, request: int) -> int:
        """A new request with all tokens of this one, for beams and shared prompts: its number."""
        table, length = self._tables[self._known(request)], self._lengths[request]
        twin = self.open()
        self._tables[twin], self._lengths[twin], self._last[twin] = list(table), length, self._last[request]
        for page in table:
            self._uses[page] += 1
        return twin

    def crop(self, request: int, length: int) -> None:
        """Forget the tokens of a request from `length` on, such as drafts that were not accepted.

        Raises:
            ValueError: there are fewer tokens.
        """
        self._lengths[request] = _cropped(length, self.length(request))
        if length:
            at = self._slots(request, length - 1, length).to(self._columns["slots"].device)
            self._last[request] = torch.cat([self._columns[name][at] for name in ("segments", "slots")]).cpu()
        else:
            self._last[request] = torch.full((2,), PADDING)
        table, kept = self._tables[request], -(-length // self.page_size)
        for page in table[kept:]:
            self._release(page)
        del table[kept:]

    def free(self, request: int) -> None:
        """Forget a request; its number is not given again."""
        self.crop(request, 0)
        del self._tables[request], self._lengths[request], self._last[request]

    def rows(self, requests: Sequence[int]) -> PagedRows:
        """The cache as `attend` takes it: row i of a batch is request requests[i].

        Raises:
            ValueError: there are no requests, or one is unknown or named twice.
        """
        numbers = tuple(self._known(request) for request in requests)
        if not numbers or len(set(numbers)) < len(numbers):
            raise ValueError(f"requests are {list(numbers)}; expected at least one, and each once")
        return PagedRows(self, numbers)

    def _known(self, request: int) -> int:
        if request not in self._tables:
            raise ValueError(f"request {request} is not open; open are {sorted(self._tables)}")
        return request

    def _write(self, requests: Sequence[int], new: dict[str, Tensor], tokens: Tokens) -> None:
        told = tokens.segments.cpu(), tokens.slots.cpu()  # it waits for the device in any case, to deal out pages
        before = torch.stack([self._last[request] for request in requests])
        check_follow(told, before)
        real = tokens.segments != PADDING
        lengths = [self.length(request) for request in requests]
        counts = (told[0] != PADDING).sum(dim=1).tolist()
        stops = [length + count for length, count in zip(lengths, counts, strict=True)]
        self._reserve(requests, stops, new, tokens)
        slots = [self._slots(*row) for row in zip(requests, lengths, stops, strict=True)]
        index = torch.cat(slots).to(real.device)
        for name, column in self._columns.items():
            column[index] = new[name][real]
        self._lengths.update(zip(requests, stops, strict=True))
        self._last.update(zip(requests, last_tokens(*told, before), strict=True))

    def _reserve(self, requests: Sequence[int], stops: Sequence[int], new: dict[str, Tensor], tokens: Tokens) -> None:
        """Pages for all tokens up to `stops`, or an error before anything was written."""
        size, writes = self.page_size, zip(requests, stops, strict=True)
        growing = [(r, -(-stop // size) - len(self._tables[r])) for r, stop in writes if stop > self._lengths[r]]
        # A half-full page that requests share is copied before one of them writes on; the last one may keep it.
        shared, uses = [], list(self._uses)
        for request, _ in growing:
            page = self._tables[request][-1] if self._lengths[request] % size else None
            if page is not None and uses[page] > 1:
                shared.append(request)
                uses[page] -= 1
        needed = sum(more for _, more in growing) + len(shared)
        if needed > len(self._free):
            raise ValueError(
                f"{needed} pages of {size} tokens are needed and {len(self._free)} of {self.pages} are free: free "
                "requests, or make more pages"
            )
        if self._columns:
            _check_alike(new, self._columns)
        else:
            self._attend = tokens.attend
            self._columns = {name: _empty(x, self.pages * size, *x.shape[2:]) for name, x in new.items()}
        for request in shared:
            old, fresh = self._tables[request][-1], self._take()
            for column in self._columns.values():
                column[fresh * size : (fresh + 1) * size] = column[old * size : (old + 1) * size]
            self._tables[request][-1] = fresh
            self._release(old)
        for request, more in growing:
            self._tables[request] += [self._take() for _ in range(more)]

    def _take(self) -> int:
        page = self._free.pop()
        self._uses[page] = 1
        return page

    def _release(self, page: int) -> None:
        self._uses[page] -= 1
        if not self._uses[page]:
            self._free.append(page)

    def _slots(self, request: int, start: int, stop: int) -> Tensor:
        """Where in the pool the tokens from `start` up to `stop` of a request lie."""
        at, table = torch.arange(start, stop), torch.tensor(self._tables[request], dtype=torch.int64)
        return table[at // self.page_size] * self.page_size + at % self.page_size

    def _gather(self, requests: Sequence[int], names: Sequence[str]) -> dict[str, Tensor]:
        lengths = [self.length(request) for request in requests]
        most, device = max(lengths), self._columns["segments"].device
        rows = []
        for request, length in zip(requests, lengths, strict=True):
            # Behind the end of a row its first token stands again, as padding: values of another request may be NaN.
            first = self._tables[request][0] * self.page_size if length else 0
            rows.append(pad(self._slots(request, 0, length), (0, most - length), value=first))
        index = torch.stack(rows).to(device)
        padding = torch.arange(most, device=device) >= torch.tensor(lengths, device=device)[:, None]
        gathered = {name: self._columns[name][index] for name in names}
        gathered["segments"] = gathered["segments"].masked_fill(padding, PADDING)
        return gathered


@dataclass(frozen=True, slots=True, eq=False)
class PagedRows:
    """Some requests of a paged cache, as the rows of a batch: see `PagedKVCache.rows`."""

    cache: PagedKVCache
    requests: tuple[int, ...]

    @property
    def tokens(self) -> Tokens | None:
        """What they hold; None before the first token."""
        if not any(self.cache.length(request) for request in self.requests):
            return None
        return _tokens(self.cache._gather(self.requests, _TOKENS), self.cache._attend)

    def append(self, k: Float[Tensor, "b h n d"], v: Float[Tensor, "b h n e"], positions: Slotted) -> Held:
        """Keep the new keys, which are turned, and values, without padding, and give all so far.

        Raises:
            ValueError: there are too few pages, positions are of other tokens or their slots do not follow those that
                are held, there are other rows than requests, what comes does not fit what is held, or it requires
                gradients. Nothing is written then.
        """
        for request in self.requests:
            self.cache._known(request)
        if len(k) != len(self.requests):
            raise ValueError(f"k has {len(k)} rows for {len(self.requests)} requests; expected one each")
        tokens = read_tokens(positions, (k.shape[0], k.shape[2]))
        self.cache._write(self.requests, _columns(k, v, tokens), tokens)
        return _held(self.cache._gather(self.requests, ("k", "v", *_TOKENS)), self.cache._attend)

    def saved(self) -> Callable[[], None]:
        """What brings back all that is held now, after a call that failed."""
        lengths, columns = [self.cache.length(request) for request in self.requests], self.cache._columns

        def bring_back() -> None:
            for request, length in zip(self.requests, lengths, strict=True):
                self.cache.crop(request, length)
            self.cache._columns = columns

        return bring_back


Cache: TypeAlias = KVCache | PagedRows
"""What `attend` takes; one serves one layer."""

_TOKENS = ("ids", "slots", "segments", "pictures")


def _empty(like: Tensor, *shape: int) -> Tensor:
    """Memory that may be written into both inside and outside of `torch.inference_mode`, wherever it is made."""
    with torch.inference_mode(False):
        return like.new_empty(*shape)


def _columns(k: Tensor, v: Tensor, tokens: Tokens) -> dict[str, Tensor]:
    """What a cache keeps of new tokens, each with rows and tokens in front: (B, N, ...)."""
    if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
        raise ValueError("k and v require gradients, which a cache does not keep: call under torch.no_grad()")
    if k.shape[:3] != v.shape[:3]:
        raise ValueError(f"k has shape {tuple(k.shape)}, v {tuple(v.shape)}; expected the same rows, heads and tokens")
    pictures = torch.full_like(tokens.slots, NO_PICTURE) if tokens.pictures is None else tokens.pictures
    columns = {"k": k.transpose(1, 2), "v": v.transpose(1, 2), "ids": tokens.ids.movedim(0, -1)}
    return columns | {"slots": tokens.slots, "segments": tokens.segments, "pictures": pictures}


def _held(columns: dict[str, Tensor], attend: Literal["causal", "rings", "all"]) -> Held:
    return Held(columns["k"].transpose(1, 2), columns["v"].transpose(1, 2), _tokens(columns, attend))


def _tokens(columns: dict[str, Tensor], attend: Literal["causal", "rings", "all"]) -> Tokens:
    return Tokens(columns["ids"].movedim(-1, 0), columns["slots"], columns["segments"], columns["pictures"], attend)


def _check_alike(new: dict[str, Tensor], held: dict[str, Tensor], rows: int | None = None) -> None:
    """Refuse new tokens of another make, or another number of rows, than those that are held."""
    for name, column in new.items():
        own = held[name]
        kind = (column.shape[2:], column.dtype) if rows is None else (len(column), column.shape[2:], column.dtype)
        expected = (own.shape[1:], own.dtype) if rows is None else (len(own), own.shape[2:], own.dtype)
        if kind != expected:
            raise ValueError(f"{name} has {_words(kind)}; the cache holds {_words(expected)}")


def _words(kind: tuple) -> str:
    *rows, shape, dtype = kind
    return f"{f'{rows[0]} rows of ' if rows else ''}{tuple(shape)} a token, {dtype}"


def _cropped(length: int, held: int) -> int:
    if whole("length", length, 0) > held:
        raise ValueError(f"length is {length}; the cache holds {held}")
    return length
