"""Caches: pieces come out as the whole, pages as one piece, and requests leave one another alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_attention import LAYOUT, LONG, ROTARY, SHORT, Slopes, batch, flex_on_cpu, random_qkv, row
from torch import Tensor

import mrope
from mrope import AxisSplit, Frequencies, Image, Positions, Rotary, Text
from mrope.attention import Cache, EncodedAttention, KVCache, Mask, PagedKVCache, PagedRows, Tokens, attend
from mrope.encoding import Encoding, Where, read_ids
from mrope.encodings.additive import Sinusoidal
from mrope.encodings.bias import Alibi, ShawBias, T5Bias
from mrope.layouts import GridLayout
from mrope.layouts.rings import RingLayout
from mrope.probes.audits.attention import audit_attention

CACHES: dict[str, Callable[[], Cache]] = {
    "contiguous": KVCache,
    "preallocated": lambda: KVCache(capacity=20),
    "paged": lambda: paged(PagedKVCache(pages=20, page_size=3)),
}


def paged(cache: PagedKVCache, rows: int = 2) -> Cache:
    return cache.rows([cache.open() for _ in range(rows)])


class Everything(Encoding):
    """Turns as M-RoPE does and biases as ALiBi does."""

    axes = 3

    def rotate(self, q: Tensor, k: Tensor, positions: Where) -> tuple[Tensor, Tensor]:
        return ROTARY(q, k, positions)

    def bias(self, q: Tensor, positions: Where, keys: Where | None = None) -> Tensor:
        return Slopes().bias(q, positions, keys)


ENCODINGS: dict[str, Callable[[], Encoding]] = {
    "rotary": lambda: Rotary(AxisSplit((1, 1, 1)), Frequencies(100.0), "adjacent"),
    "alibi": lambda: Alibi(4, axes=3),
    "shaw": lambda: ShawBias(6, 3, axes=3),
    "t5": lambda: T5Bias(4, axes=3),
    "sinusoidal": lambda: Sinusoidal(24, axes=3),
    "none": Encoding,
    "slopes": Slopes,
}


def longer(spans: list, more: int) -> list:
    """The prompt with `more` tokens of text behind it."""
    return [*spans[:-1], Text(spans[-1].length + more)]


def steps(prompt: mrope.BatchPositions, cuts: Sequence[int], decoded: int) -> list[mrope.BatchPositions]:
    """The prompt in pieces, and then one token after the other."""
    edges = [0, *cuts, prompt.ids.shape[2]]
    pieces = [mrope.batch([r.chunk(a, b) for r in prompt.rows]) for a, b in pairwise(edges)]
    return pieces + [prompt.decode(1, skip=n) for n in range(decoded)]


# --------------------------------------------------------------------------------------------------- cached = uncached


@torch.no_grad()
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("cuts", [[], [4, 9, 10]], ids=str)
def test_pieces_and_decoding_are_the_whole(encoding: str, cache: str, cuts: list[int]) -> None:
    attention = EncodedAttention(24, 4, kv_heads=2, encoding=ENCODINGS[encoding]()).double()
    whole = mrope.batch([row(longer(LONG, 3)), row(longer(SHORT, 3))])
    x = attention.encoding.embed(torch.randn(2, 17, 24, dtype=torch.float64), whole)
    store, out, start = CACHES[cache](), [], 0
    for piece in steps(batch(), cuts, 3):
        stop = start + piece.ids.shape[2]
        out.append(attention(x[:, start:stop], piece, cache=store))
        start = stop
    torch.testing.assert_close(torch.cat(out, dim=1), attention(x, whole), atol=1e-6, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("mask", [Mask("causal", 4), Mask("pictures"), Mask("pictures", 3)], ids=str)
def test_masks_hold_across_pieces(mask: Mask, cache: str) -> None:
    prompts = [[Text(2), Image((1, 2, 3)), Text(4)], [Text(1), Image((1, 3, 2)), Text(2)]]
    whole = mrope.batch([row(longer(spans, 2)) for spans in prompts])
    qkv = random_qkv(14)
    store, out, start = CACHES[cache](), [], 0
    for piece in steps(
        mrope.batch([row(spans) for spans in prompts]), [2, 3, 10] if mask.rule == "causal" else [10], 2
    ):
        stop = start + piece.ids.shape[2]
        parts = (x[:, :, start:stop] for x in qkv)
        out.append(attend(*parts, encoding=ROTARY, positions=piece, cache=store, mask=mask))
        start = stop
    full = attend(*qkv, encoding=ROTARY, positions=whole, mask=mask)
    torch.testing.assert_close(torch.cat(out, dim=2), full, atol=1e-6, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("cache", CACHES)
def test_rings_decode_from_a_cache(cache: str) -> None:
    layout = RingLayout(merge=1)
    prompts = [[Text(2), Image((1, 3, 4)), Text(1)], [Image((1, 5, 2)), Text(3)]]
    prompt = mrope.batch([layout(spans) for spans in prompts])
    whole = mrope.batch([layout(longer(spans, 2)) for spans in prompts])
    qkv, store = random_qkv(17), CACHES[cache]()
    out = [
        attend(*(x[:, :, a:b] for x in qkv), encoding=ROTARY, positions=piece, cache=store)
        for a, b, piece in ((0, 15, prompt), (15, 17, prompt.decode(2)))
    ]
    full = attend(*qkv, encoding=ROTARY, positions=whole)
    torch.testing.assert_close(torch.cat(out, dim=2), full, atol=1e-6, rtol=0)


@torch.no_grad()
@flex_on_cpu
def test_flex_reads_a_cache_as_well() -> None:
    qkv, outs = random_qkv(15), []
    for backend in ("sdpa", "flex"):
        store = KVCache()
        attend(*(x[:, :, :14] for x in qkv), encoding=Everything(), positions=batch(), cache=store)
        last = [x[:, :, 14:] for x in qkv]
        outs.append(attend(*last, encoding=Everything(), positions=batch().decode(1), cache=store, backend=backend))
    torch.testing.assert_close(*outs, atol=1e-6, rtol=0)


@torch.no_grad()
def test_packed_documents_are_single_ones() -> None:
    documents = [row(LONG), row(SHORT), row(SHORT)]
    qkv = random_qkv(26, rows=1)
    packed = attend(*qkv, encoding=Everything(), positions=mrope.pack(documents))
    start = 0
    for document in documents:
        stop = start + document.length
        single = attend(*(x[:, :, start:stop] for x in qkv), encoding=Everything(), positions=document)
        torch.testing.assert_close(packed[:, :, start:stop], single, atol=1e-6, rtol=0)
        start = stop


# ---------------------------------------------------------------------------------------------- what a cache remembers


def keep(cache: Cache, positions: Positions, value: float) -> tuple[Tensor, Tokens]:
    """Keys and values that are `value`, `value` + 1, ... kept; the values that are held, of the first row."""
    numbers = value + torch.arange(positions.ids.shape[1], dtype=torch.float32)
    x = numbers[None, None, :, None]
    held = cache.append(-x, x, positions)
    assert torch.equal(held.k, -held.v)
    return held.v[0, 0, :, 0], held.tokens


@pytest.mark.parametrize("capacity", [0, 3, 50])
def test_a_cache_grows_and_keeps_all(capacity: int) -> None:
    cache, prompt = KVCache(capacity=capacity), row(LONG)
    assert cache.tokens is None
    first, _ = keep(cache, prompt, 0)
    seen = first.clone()
    for n in range(9):
        values, tokens = keep(cache, prompt.decode(1, skip=n), 14 + n)
        assert values.tolist() == list(range(15 + n))
        assert tokens.slots[0].tolist() == list(range(15 + n))
        assert tokens.ids[:, 0, :14].tolist() == prompt.ids.tolist()
    assert torch.equal(first, seen)
    assert cache.length == 23
    assert cache.capacity == {0: 28, 3: 28, 50: 50}[capacity]


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_rejected_drafts_leave_no_trace(kind: str) -> None:
    prompt, pages = row(SHORT), PagedKVCache(pages=6, page_size=4)
    request = pages.open()
    cache = KVCache() if kind == "contiguous" else pages.rows([request])
    keep(cache, prompt, 0)
    keep(cache, prompt.decode(5), 100)
    if isinstance(cache, KVCache):
        cache.crop(8)
    else:
        pages.crop(request, 8)
        assert pages.free_pages == 4
    values, tokens = keep(cache, prompt.decode(1, skip=2), 8)
    assert values.tolist() == [0, 1, 2, 3, 4, 5, 100, 101, 8]
    assert tokens.slots[0].tolist() == list(range(9))


def test_pages_hold_no_padding_and_requests_join_in_any_order() -> None:
    cache = PagedKVCache(pages=8, page_size=4)
    long, short = cache.open(), cache.open()
    numbers = torch.arange(28.0).reshape(2, 1, 14, 1)
    held = cache.rows([long, short]).append(-numbers, numbers, batch())
    assert (cache.length(long), cache.length(short), cache.free_pages) == (14, 6, 2)
    assert [len(cache.table(each)) for each in (long, short)] == [4, 2]
    assert held.v[1, 0, :6, 0].tolist() == list(range(22, 28))
    assert held.tokens.segments[1].tolist() == [0] * 6 + [-1] * 8
    new = torch.full((2, 1, 1, 1), 50.0)
    held = cache.rows([short, long]).append(-new, new, mrope.batch([row(SHORT), row(LONG)]).decode(1))
    assert held.v[0, 0, :7, 0].tolist() == [*range(22, 28), 50]
    assert held.v[1, 0, :, 0].tolist() == [*range(14), 50]
    assert cache.rows([short]).tokens is not None
    cache.free(long)
    assert cache.free_pages == 6
    values, _ = keep(cache.rows([short]), row(SHORT).decode(1, skip=1), 60)
    assert values.tolist() == [*range(22, 28), 50, 60]


def test_values_of_another_request_do_not_leak_even_as_nan() -> None:
    cache = PagedKVCache(pages=8, page_size=4)
    bad, long, short = cache.open(), cache.open(), cache.open()
    nan = torch.full((1, 1, 4, 2), torch.nan)
    cache.rows([bad]).append(nan, nan, LAYOUT([Text(4)]))
    q = torch.randn(2, 1, 14, 2)
    out = attend(q, q, q, encoding=Encoding(), positions=batch(), cache=cache.rows([long, short]))
    assert out.isfinite().all()


def test_out_of_pages_nothing_is_written() -> None:
    cache = PagedKVCache(pages=3, page_size=4)
    request, other = cache.open(), cache.open()
    keep(cache.rows([request]), row(SHORT), 0)
    tables = cache.table(request)
    with pytest.raises(ValueError, match="4 pages of 4 tokens are needed and 1 of 3 are free"):
        keep(cache.rows([other]), row(LONG), 50)
    both, more = torch.zeros(2, 1, 3, 1), mrope.batch([row(SHORT).decode(3), row([Text(3)])])
    with pytest.raises(ValueError, match="2 pages of 4 tokens are needed and 1 of 3"):
        cache.rows([request, other]).append(both, both, more)
    assert (cache.table(request), cache.length(request), cache.length(other), cache.free_pages) == (tables, 6, 0, 1)
    values, _ = keep(cache.rows([request]), row(SHORT).decode(2), 6)
    assert values.tolist() == list(range(8))


def test_forks_share_pages_until_they_write() -> None:
    cache, prompt = PagedKVCache(pages=4, page_size=4), row(SHORT)
    first = cache.open()
    keep(cache.rows([first]), prompt, 0)
    twin = cache.fork(first)
    assert cache.free_pages == 2
    new = torch.tensor([10.0, 20.0]).reshape(2, 1, 1, 1)
    held = cache.rows([first, twin]).append(-new, new, prompt.decode(1))
    assert held.v[:, 0, :, 0].tolist() == [[0, 1, 2, 3, 4, 5, 10], [0, 1, 2, 3, 4, 5, 20]]
    assert cache.free_pages == 1  # one of the two kept the page that they shared
    assert cache.table(first)[0] == cache.table(twin)[0]
    cache.free(first)
    assert cache.free_pages == 2
    cache.free(twin)
    assert cache.free_pages == 4


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_pages_do_what_lists_do(data: st.DataObject) -> None:
    """Any run of open, append, fork, crop and free, beside one Python list a request."""
    cache = PagedKVCache(pages=7, page_size=data.draw(st.integers(1, 4), label="page size"))
    lists: dict[int, list[float]] = {}
    for number in range(data.draw(st.integers(1, 25), label="steps")):
        verb = data.draw(st.sampled_from(["open", "append", "append", "append", "fork", "crop", "free"]), label="verb")
        if verb == "open" or not lists:
            lists[cache.open()] = []
            continue
        request = data.draw(st.sampled_from(sorted(lists)), label="request")
        if verb == "append":
            count = data.draw(st.integers(1, 6), label="count")
            values = [100.0 * number + n for n in range(count)]
            x = torch.tensor(values)[None, None, :, None]
            before, table, held_before = cache.free_pages, cache.table(request), len(lists[request])
            try:
                more = LAYOUT([Text(held_before + count)]).chunk(held_before, held_before + count)
                held = cache.rows([request]).append(x, x, more)
            except ValueError as error:
                if "pages" not in str(error):
                    raise
                assert (cache.free_pages, cache.table(request)) == (before, table)
                continue
            lists[request] += values
            assert held.v[0, 0, :, 0].tolist() == lists[request]
        elif verb == "fork":
            lists[cache.fork(request)] = list(lists[request])
        elif verb == "crop":
            length = data.draw(st.integers(0, len(lists[request])), label="length")
            cache.crop(request, length)
            del lists[request][length:]
        else:
            cache.free(request)
            del lists[request]
        assert {each: cache.length(each) for each in lists} == {each: len(values) for each, values in lists.items()}
        pages = {page for each in lists for page in cache.table(each)}
        assert cache.free_pages == 7 - len(pages)


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("cache", CACHES)
def test_what_does_not_fit_is_refused(cache: str) -> None:
    store, qkv = CACHES[cache](), random_qkv(14)
    attend(*qkv, encoding=ROTARY, positions=batch(), cache=store)
    one, next_one = [x[:, :, :1] for x in qkv], batch().decode(1)
    rows = "k has 1 rows for 2 requests" if cache == "paged" else "k has 1 rows of .*; the cache holds 2 rows"
    for parts, changes, text in (
        ([x[:1] for x in one], {"positions": mrope.batch([row(LONG)]).decode(1)}, rows),
        ([x.float() for x in one], {}, "k has .*float32; the cache holds .*float64"),
        ([one[0], one[1][:, :1], one[2][:, :1]], {}, r"k has .*\(1, 8\) a token.*; the cache holds .*\(2, 8\) a token"),
        (one, {"positions": batch()}, r"2 rows of 1 tokens take \(3, 1\)"),
        (one, {"keys": next_one}, "keys and cache are both given"),
        (one, {"mask": Mask("all")}, 'mask rule "all" .* no cache'),
        ([x.requires_grad_() for x in random_qkv(1)], {}, "call under torch.no_grad"),
    ):
        with pytest.raises(ValueError, match=text):
            attend(*parts, **({"encoding": ROTARY, "positions": next_one, "cache": store} | changes))
    with pytest.raises(TypeError, match="positions are ids alone"):
        attend(*one, encoding=ROTARY, positions=next_one.ids, cache=store)
    values = attend(*one, encoding=ROTARY, positions=next_one, cache=store)
    whole = mrope.batch([row(longer(LONG, 1)), row(longer(SHORT, 1))])
    full = attend(*(torch.cat((x, y), dim=2) for x, y in zip(qkv, one, strict=True)), encoding=ROTARY, positions=whole)
    torch.testing.assert_close(values, full[:, :, -1:], atol=1e-6, rtol=0)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("rule", ["pictures", "rings"])
def test_a_picture_that_sees_itself_is_not_cut(rule, cache: str) -> None:
    store, qkv, prompt = CACHES[cache](), random_qkv(14), batch()
    for start, stop in ((0, 5), (5, 14)):
        piece = mrope.batch([each.chunk(start, stop) for each in prompt.rows])
        parts = [x[:, :, start:stop] for x in qkv]
        if not start:
            attend(*parts, encoding=ROTARY, positions=piece, cache=store, mask=Mask(rule))
            continue
        with pytest.raises(ValueError, match="a picture is cut between"):
            attend(*parts, encoding=ROTARY, positions=piece, cache=store, mask=Mask(rule))


def test_requests_and_sizes_are_checked() -> None:
    cache = PagedKVCache(pages=2, page_size=2)
    request = cache.open()
    contiguous = KVCache()
    for call, text in (
        (lambda: cache.rows([request, request]), "and each once"),
        (lambda: cache.rows([]), "at least one"),
        (lambda: cache.rows([5]), r"request 5 is not open; open are \[0\]"),
        (lambda: cache.free(5), "request 5 is not open"),
        (lambda: cache.fork(5), "request 5 is not open"),
        (lambda: cache.crop(request, 1), "length is 1; the cache holds 0"),
        (lambda: contiguous.crop(1), "length is 1; the cache holds 0"),
        (lambda: contiguous.crop(-1), "length is -1"),
        (lambda: KVCache(capacity=-1), "capacity is -1"),
        (lambda: PagedKVCache(pages=0, page_size=2), "pages is 0"),
        (lambda: PagedKVCache(pages=2, page_size=0), "page_size is 0"),
    ):
        with pytest.raises(ValueError, match=text):
            call()


@torch.no_grad()
@pytest.mark.parametrize("cache", CACHES)
def test_no_token_comes_twice_and_none_is_left_out(cache: str) -> None:
    store, prompt = CACHES[cache](), batch()
    with pytest.raises(ValueError, match="row 0 have slot 4 of document 0 behind nothing; expected slots that follow"):
        attend(*random_qkv(5), encoding=ROTARY, positions=tail(prompt, 4, 9), cache=store)
    assert store.tokens is None
    attend(*random_qkv(14), encoding=ROTARY, positions=prompt, cache=store)
    ends = [each.end.slot for each in prompt.rows]
    pairs = zip(ends, prompt.decode(2).rows, strict=True)
    repeated = mrope.batch([replace(each, text=torch.tensor([end] * 2)) for end, each in pairs])
    for again, text in (
        (prompt, "row 0 have slot 0 of document 0 behind slot 13 of document 0"),
        (prompt.decode(1, skip=1), "row 0 have slot 15 of document 0 behind slot 13"),
        (prompt.decode(1, skip=[0, 2]), "row 1 have slot 8 of document 0 behind slot 5"),
        (repeated, "row 0 have slot 14 of document 0 behind slot 14"),
    ):
        before = held_numbers(store)
        with pytest.raises(ValueError, match=text):
            attend(*random_qkv(again.ids.shape[2]), encoding=ROTARY, positions=again, cache=store)
        assert held_numbers(store) == before
    attend(*random_qkv(2), encoding=ROTARY, positions=prompt.decode(2), cache=store)
    attend(*random_qkv(1), encoding=ROTARY, positions=prompt.decode(1, skip=2), cache=store)


def tail(prompt: mrope.BatchPositions, start: int, stop: int) -> mrope.BatchPositions:
    return mrope.batch([each.chunk(start, stop) for each in prompt.rows])


def held_numbers(store: Cache) -> tuple:
    tokens = store.tokens
    return () if tokens is None else (tokens.slots.tolist(), tokens.segments.tolist())


def test_slots_follow_again_after_drafts_are_cropped() -> None:
    prompt, pages = row(SHORT), PagedKVCache(pages=6, page_size=4)
    request = pages.open()
    contiguous = KVCache()
    for cache, crop in ((contiguous, contiguous.crop), (pages.rows([request]), lambda n: pages.crop(request, n))):
        keep(cache, prompt, 0)
        keep(cache, prompt.decode(5), 6)
        crop(8)
        with pytest.raises(ValueError, match="slot 11 of document 0 behind slot 7"):
            keep(cache, prompt.decode(1, skip=5), 8)
        keep(cache, prompt.decode(1, skip=2), 8)
        crop(0)
        assert cache.tokens is None
        keep(cache, prompt, 0)
    twin = pages.rows([pages.fork(request)])
    with pytest.raises(ValueError, match="slot 0 of document 0 behind slot 5"):
        keep(twin, prompt, 0)
    keep(twin, prompt.decode(1), 6)


def test_documents_of_a_packed_row_come_in_pieces_too() -> None:
    packed = mrope.pack([row(SHORT).pad(8, "right"), row(LONG)])
    for cache in (KVCache(), paged(PagedKVCache(pages=9, page_size=4), rows=1)):
        for start, stop in ((0, 4), (4, 10), (10, 22)):
            keep(cache, packed.chunk(start, stop), start)
        with pytest.raises(ValueError, match="slot 14 of document 0 behind slot 13 of document 1"):
            keep(cache, row(LONG).decode(1), 22)


class FailsLater(Encoding):
    """Turns, and fails in `bias` from the second call on, or at once."""

    axes = 3

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def bias(self, q: Tensor, positions: Where, keys: Where | None = None) -> None:
        self.calls -= 1
        if self.calls < 0:
            raise ValueError("bias fails")


@torch.no_grad()
@pytest.mark.parametrize("cache", CACHES)
def test_a_call_that_fails_leaves_the_cache_as_it_was(cache: str) -> None:
    store, prompt, qkv = CACHES[cache](), batch(), random_qkv(15)
    first, last = ([x[:, :, part] for x in qkv] for part in (slice(14), slice(14, 15)))
    with pytest.raises(ValueError, match="bias fails"):
        attend(*(x.float() for x in first), encoding=FailsLater(0), positions=prompt, cache=store)
    assert store.tokens is None
    attend(*first, encoding=FailsLater(1), positions=prompt, cache=store)  # in another dtype: nothing was kept
    before = held_numbers(store)
    for encoding in (FailsLater(0), Alibi(3, axes=3)):
        with pytest.raises(ValueError, match=r"bias fails|q has 4 heads; this bias is one for 3"):
            attend(*last, encoding=encoding, positions=prompt.decode(1), cache=store)
        assert held_numbers(store) == before
    out = attend(*last, encoding=Encoding(), positions=prompt.decode(1), cache=store)
    whole = mrope.batch([row(longer(LONG, 1)), row(longer(SHORT, 1))])
    torch.testing.assert_close(out, attend(*qkv, encoding=Encoding(), positions=whole)[:, :, 14:], atol=1e-6, rtol=0)


@pytest.mark.parametrize("cache", CACHES)
def test_a_cache_that_inference_mode_filled_goes_on_without_it(cache: str) -> None:
    store, prompt, qkv = CACHES[cache](), batch(), random_qkv(17)
    with torch.inference_mode():
        attend(*(x[:, :, :14] for x in qkv), encoding=ROTARY, positions=prompt, cache=store)
    with torch.no_grad():
        attend(*(x[:, :, 14:15] for x in qkv), encoding=ROTARY, positions=prompt.decode(1), cache=store)
    attend(*(x[:, :, 15:16] for x in qkv), encoding=ROTARY, positions=prompt.decode(1, skip=1), cache=store)
    with torch.inference_mode():
        last = (x[:, :, 16:] for x in qkv)
        out = attend(*last, encoding=ROTARY, positions=prompt.decode(1, skip=2), cache=store)
    whole = mrope.batch([row(longer(LONG, 3)), row(longer(SHORT, 3))])
    full = attend(*qkv, encoding=ROTARY, positions=whole)
    torch.testing.assert_close(out.clone(), full[:, :, 16:], atol=1e-6, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("cache", CACHES)
def test_nan_in_padding_does_not_stay_in_a_cache(cache: str) -> None:
    prompt, outs = batch(), []
    padding = (prompt.segments < 0)[:, None, :, None]
    qkv, last = random_qkv(14), random_qkv(1)
    for parts in ([x.masked_fill(padding, torch.nan) for x in qkv], qkv):
        store = CACHES[cache]()
        attend(*parts, encoding=Everything(), positions=prompt, cache=store)
        outs.append(attend(*last, encoding=Everything(), positions=prompt.decode(1), cache=store))
    torch.testing.assert_close(*outs, atol=0, rtol=0)


# --------------------------------------------------------------------------------------------------------------- audit


def whole(q: Tensor, k: Tensor, v: Tensor, positions: Where, encoding: Encoding = ROTARY) -> Tensor:
    return attend(q, k, v, encoding=encoding, positions=positions)


def in_pieces(encoding: Encoding, kind: str = "contiguous") -> Callable:
    store = KVCache() if kind == "contiguous" else paged(PagedKVCache(pages=9, page_size=4), rows=1)
    return lambda q, k, v, positions: attend(q, k, v, encoding=encoding, positions=positions, cache=store)


@pytest.mark.parametrize("encoding", [ROTARY, Slopes(), Encoding(), Everything()], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_our_attention_is_sound(encoding: Encoding, kind: str) -> None:
    report = audit_attention(
        lambda *x: whole(*x, encoding=encoding), cached=lambda: in_pieces(encoding, kind), head_dim=8
    )
    assert report.faults == ()
    assert report.cached is True


def values_turned(q: Tensor, k: Tensor, v: Tensor, positions) -> Tensor:
    return whole(q, k, ROTARY(v, v, positions)[0], positions)


def odd_size(q: Tensor, k: Tensor, v: Tensor, positions) -> Tensor:
    """The channel that is left over when an odd head is cut into halves is scaled by a cos, and never turned."""

    class Odd(Encoding):
        def rotate(self, q: Tensor, k: Tensor, positions: Where) -> tuple[Tensor, Tensor]:
            angle = read_ids(positions)[0][:, None, :, None] * 0.5
            return tuple(
                torch.cat((ROTARY(x[..., :-1], x[..., :-1], positions)[0], x[..., -1:] * angle.cos()), -1)
                for x in (q, k)
            )  # pyright: ignore

    q, k = Odd().rotate(q, k, positions)
    return whole(q, k, v, positions, Encoding())


def wrong_rows(q: Tensor, k: Tensor, v: Tensor, positions) -> Tensor:
    return whole(q, k, v, replace(positions, ids=positions.ids.flip(1)))


def first_row_for_all(q: Tensor, k: Tensor, v: Tensor, positions) -> Tensor:
    return whole(q, k, v, replace(positions, ids=positions.ids[:, :1].expand_as(positions.ids)))


def leaking_documents(q: Tensor, k: Tensor, v: Tensor, positions) -> Tensor:
    row_order = torch.arange(positions.ids.shape[2]).expand_as(positions.text)
    return whole(q, k, v, replace(positions, text=row_order, segments=positions.segments.clamp(max=0)))


def future_seen(q: Tensor, k: Tensor, v: Tensor, positions) -> Tensor:
    return attend(q, k, v, encoding=ROTARY, positions=positions, mask=Mask("all"))


def padding_seen(q: Tensor, k: Tensor, v: Tensor, positions) -> Tensor:
    return whole(q, k, v, replace(positions, segments=positions.segments.clamp(min=0)))


def padding_is_nan(q: Tensor, k: Tensor, v: Tensor, positions) -> Tensor:
    out = whole(q, k, v, positions)
    return torch.where((positions.segments < 0).any(), torch.nan, out)


@pytest.mark.parametrize(
    ("broken", "faults", "head_dim"),
    [
        (values_turned, {"shift"}, 8),
        (odd_size, {"shift"}, 9),
        (wrong_rows, {"rows", "padding"}, 8),
        (first_row_for_all, {"rows", "padding"}, 8),
        (leaking_documents, {"documents"}, 8),
        (future_seen, {"causal"}, 8),
        (padding_seen, {"padding"}, 8),
        (padding_is_nan, {"padding"}, 8),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_a_broken_attention_is_caught(broken: Callable, faults: set[str], head_dim: int) -> None:
    report = audit_attention(broken, head_dim=head_dim)
    assert set(report.faults) == faults
    assert report.cached is None


def axes_swapped(q: Tensor, k: Tensor, v: Tensor, positions) -> Tensor:
    return whole(q, k, v, replace(positions, ids=positions.ids[[0, 2, 1]]))


def not_turned(q: Tensor, k: Tensor, v: Tensor, positions) -> Tensor:
    return whole(q, k, v, positions, Encoding())


def turned_twice(q: Tensor, k: Tensor, v: Tensor, positions) -> Tensor:
    return whole(*ROTARY(q, k, positions), v, positions)


@pytest.mark.parametrize("broken", [axes_swapped, not_turned, turned_twice], ids=lambda x: x.__name__)
def test_a_sound_attention_through_another_encoding_is_caught_by_the_reference(broken: Callable) -> None:
    assert audit_attention(broken, head_dim=8).faults == ()
    report = audit_attention(broken, encoding=ROTARY, head_dim=8)
    assert report.faults == ("reference",)
    assert audit_attention(whole, encoding=ROTARY, head_dim=8).reference is True


def test_queries_turned_otherwise_than_keys_are_caught() -> None:
    class Half(Encoding):
        def rotate(self, q: Tensor, k: Tensor, positions: Where) -> tuple[Tensor, Tensor]:
            return q, ROTARY(k, k, positions)[1]

    assert "shift" in audit_attention(lambda *x: whole(*x, encoding=Half()), head_dim=8).faults


@pytest.mark.parametrize("fault", ["turned again", "from zero"])
def test_a_broken_cache_is_caught(fault: str) -> None:
    def cached() -> Callable:
        past: list[Tensor] = []
        store = KVCache()

        def turned_again(q: Tensor, k: Tensor, v: Tensor, positions) -> Tensor:
            """All keys are turned whenever new ones come, the old ones turned already."""
            past[:] = [torch.cat(pair, dim=2) for pair in zip(past, (k, v), strict=True)] if past else [k, v]
            start = past[0].shape[2] - k.shape[2]
            keys = LAYOUT([Text(4), Image((1, 3, 5)), Text(3)]).chunk(0, past[0].shape[2])
            past[0] = ROTARY(past[0], past[0], keys)[0]
            turned_q, _ = ROTARY(q, q, positions)
            scores = turned_q @ past[0].repeat_interleave(2, dim=1).mT / q.shape[-1] ** 0.5
            allowed = torch.arange(scores.shape[-1]) <= torch.arange(start, scores.shape[-1])[:, None]
            return scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ past[1].repeat_interleave(2, dim=1)

        def from_zero(q: Tensor, k: Tensor, v: Tensor, positions) -> Tensor:
            """Each piece begins at position 0."""
            here = positions.ids - positions.ids.amin(dim=2, keepdim=True)
            return attend(q, k, v, encoding=ROTARY, positions=replace(positions, ids=here), cache=store)

        return turned_again if fault == "turned again" else from_zero

    assert audit_attention(whole, cached=cached, head_dim=8).faults == ("cached",)


def test_values_of_other_tokens_than_the_keys_are_refused_and_cost_no_page() -> None:
    positions = GridLayout(merge=1)([Text(8)])
    pages = PagedKVCache(pages=8, page_size=4)
    request = pages.open()
    for cache in (KVCache(), pages.rows([request])):
        for shape in ((1, 2, 4, 8), (1, 3, 8, 8)):
            with pytest.raises(ValueError, match=r"k has shape .*; expected the same rows, heads and tokens"):
                append_unchecked(cache, torch.randn(1, 2, 8, 8), torch.randn(shape), positions)
    assert (pages.length(request), pages.free_pages) == (0, 8)


def append_unchecked(cache: KVCache | PagedRows, k: Tensor, v: Tensor, positions: Positions) -> None:
    """Without the checks of shapes that tests put into our functions."""
    inspect.unwrap(type(cache).append)(cache, k, v, positions)


def test_a_request_that_is_gone_is_named() -> None:
    pages = PagedKVCache(pages=2, page_size=4)
    request = pages.open()
    rows = pages.rows([request])
    pages.free(request)
    with pytest.raises(ValueError, match="request 0 is not open"):
        rows.append(torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 8), GridLayout(merge=1)([Text(3)]))
