"""Every layout: against its oracle token by token, and in every shape that a row of positions is brought into."""

from __future__ import annotations

import pytest
import torch
from cases_research import CASES as RESEARCH_CASES
from cases_rings import CASES as RING_CASES
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from layout_cases import CASES as MODEL_CASES
from layout_cases import Case, assert_as_oracle

import mrope
from mrope import Positions, Text
from mrope.probes.audits.layout import audit

CASES: dict[str, Case] = {**MODEL_CASES, **RESEARCH_CASES, **RING_CASES}
every_layout = pytest.mark.parametrize("name", CASES)
quick = settings(max_examples=25, deadline=None)
TENSORS = ("ids", "text", "segments", "query", "members", "pictures", "planned")


def assert_same(one: Positions, other: Positions) -> None:
    """Equal in everything, to the bit."""
    for name in TENSORS:
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None), name
        assert a is None or (a.dtype == b.dtype and torch.equal(a, b)), name
    assert one.ends == other.ends
    assert (one.attend, one.layers) == (other.attend, other.layers)
    for a, b in zip(one.variants, other.variants, strict=True):
        assert_same(a, b)


@pytest.mark.evidence("oracle")
@every_layout
@settings(max_examples=100, deadline=None)
@given(data=st.data(), start=st.integers(0, 100))
def test_ids_are_the_oracles(name: str, data: st.DataObject, start: int) -> None:
    case = CASES[name]
    spans = data.draw(case.prompts())
    positions = case.layout(spans)
    assert_as_oracle(case, spans, positions)
    assert_as_oracle(case, spans, case.layout(spans, start), start)
    count = positions.length
    assert positions.ids.shape == (case.axes, count)
    assert positions.ids.is_floating_point() != case.exact
    assert [case.layout.tokens(span) for span in spans] == [case.layout([span]).length for span in spans]
    assert positions.text.tolist() == list(range(count))
    assert positions.segments.tolist() == [0] * count
    assert positions.end.slot == count + (0 if positions.planned is None else positions.planned.shape[1])


@pytest.mark.evidence("swap")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.swapped])
@quick
@given(data=st.data())
def test_swapped_rows_and_columns_are_noticed(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    spans = data.draw(case.prompts())
    positions = case.layout(spans)
    one, other = case.swapped or (0, 0)
    assume(not torch.equal(positions.ids[one], positions.ids[other]))
    order = list(range(case.axes))
    order[one], order[other] = other, one
    swapped = Positions(positions.ids[order], positions.text, positions.segments, positions.ends)
    with pytest.raises(AssertionError):
        assert_as_oracle(case, spans, swapped)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.swapped])
@quick
@given(data=st.data())
def test_layouts_without_rows_and_columns_have_one_value_on_all_axes(name: str, data: st.DataObject) -> None:
    ids = CASES[name].layout(data.draw(CASES[name].prompts())).ids
    assert torch.equal(ids, ids[:1].expand_as(ids))


@pytest.mark.evidence("shapes")
@every_layout
@quick
@given(data=st.data(), size=st.integers(1, 9))
def test_chunks_are_the_whole(name: str, data: st.DataObject, size: int) -> None:
    case = CASES[name]
    whole = case.layout(data.draw(case.prompts()))
    chunks = whole.chunks(size)
    assert torch.equal(torch.cat([whole.ids[:, :0], *(chunk.ids for chunk in chunks)], dim=1), whole.ids)
    assert all(chunk.ends == whole.ends for chunk in chunks)
    index = torch.arange(whole.length)
    for number, chunk in enumerate(chunks):
        assert_same(chunk, whole.take(index[number * size : (number + 1) * size]))


@pytest.mark.evidence("shapes")
@every_layout
@quick
@given(data=st.data())
def test_going_on_from_an_earlier_turn_is_the_whole(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    spans = data.draw(case.prompts())
    cut = data.draw(st.integers(0, len(spans)))
    whole, first = case.layout(spans), case.layout(spans[:cut])
    second = case.layout(spans[cut:], first)
    assert second.ends == whole.ends
    begin = first.length
    for name_of in ("ids", "text", "segments", "query", "members", "pictures"):
        wanted, got = getattr(whole, name_of), getattr(second, name_of)
        assert (wanted is None) == (got is None)
        assert wanted is None or torch.equal(got, wanted[..., begin:]), name_of
    for a, b in zip(second.variants, whole.variants, strict=True):
        assert torch.equal(a.ids, b.ids[:, begin:])
        assert a.ends == b.ends


@pytest.mark.evidence("shapes")
@every_layout
@quick
@given(data=st.data(), k=st.integers(0, 5), skip=st.integers(0, 3))
def test_decoding_is_prefilling(name: str, data: st.DataObject, k: int, skip: int) -> None:
    case = CASES[name]
    spans = data.draw(case.prompts())
    short = case.layout(spans)
    if case.alone:
        with pytest.raises(ValueError, match="an encoder generates no tokens"):
            short.decode(k, skip)
        return
    decoded = short.decode(k, skip)
    assert decoded.text.tolist() == list(range(short.length + skip, short.length + skip + k))
    if skip + k == 0 or short.planned is not None:
        return
    long = case.layout([*spans, Text(skip + k)])
    assert_same(decoded, long.chunk(short.length + skip, long.length))
    assert long.offset == (short.offset if case.exact else pytest.approx(short.offset))
    assert_same(short.decode(skip + k).chunk(skip, skip + k), decoded)


@pytest.mark.evidence("shapes")
@every_layout
@quick
@given(data=st.data(), side=st.sampled_from(("left", "right")), more=st.integers(0, 5), multiple=st.integers(1, 8))
def test_padding_changes_nothing_that_is_kept(
    name: str, data: st.DataObject, side: str, more: int, multiple: int
) -> None:
    case = CASES[name]
    positions = case.layout(data.draw(case.prompts()))
    padded = positions.pad(positions.length + more, side)  # pyright: ignore[reportArgumentType]
    kept = padded.segments >= 0
    assert kept.tolist() == ([False] * more if side == "left" else []) + [True] * positions.length + (
        [False] * more if side == "right" else []
    )
    assert_same(padded.take(kept.nonzero()[:, 0]), positions)
    assert not padded.ids[:, ~kept].any()
    assert not padded.text[~kept].any()
    assert (padded.length, padded.offset) == (positions.length, positions.offset)
    assert_same(padded.unpack()[0], positions) if positions.planned is None else None
    rounded = positions.pad(multiple=multiple)
    assert rounded.ids.shape[1] % multiple == 0
    assert rounded.ids.shape[1] - positions.length < multiple
    moved = padded.shift(7)
    assert not moved.ids[:, ~kept].any()
    assert torch.equal(moved.ids[:, kept], positions.ids + 7)


@pytest.mark.evidence("shapes")
@every_layout
@quick
@given(data=st.data(), world=st.integers(1, 4), scheme=st.sampled_from(("zigzag", "contiguous")))
def test_packed_is_single_and_shards_go_back_together(name: str, data: st.DataObject, world: int, scheme: str) -> None:
    case = CASES[name]
    rows = [case.layout(data.draw(case.prompts(targets=False))) for _ in range(data.draw(st.integers(1, 3)))]
    assume(all(row.length for row in rows))
    packed = mrope.pack(rows)
    for document, row in zip(packed.unpack(), rows, strict=True):
        assert_same(document, row)
    lengths = torch.tensor([row.length for row in rows])
    assert packed.cu_seqlens.tolist() == [0, *lengths.cumsum(0).tolist()]

    even = mrope.pack([row.pad(multiple=2 * world, side="right") for row in rows])
    index = mrope.shard_index(even.segments, world, scheme)  # pyright: ignore[reportArgumentType]
    shards = [even.shard(rank, world, scheme) for rank in range(world)]  # pyright: ignore[reportArgumentType]
    assert sorted(index.flatten().tolist()) == list(range(even.ids.shape[1]))
    assert torch.equal(mrope.unshard([shard.ids for shard in shards], index), even.ids)
    for document, row in zip(even.unpack(), rows, strict=True):
        assert_same(document, row)


@pytest.mark.evidence("shapes")
@every_layout
@quick
@given(data=st.data(), side=st.sampled_from(("left", "right")), n=st.integers(1, 3))
def test_a_batch_is_its_rows(name: str, data: st.DataObject, side: str, n: int) -> None:
    case = CASES[name]
    rows = [case.layout(data.draw(case.prompts())) for _ in range(data.draw(st.integers(1, 3)))]
    batch = mrope.batch(rows, side)  # pyright: ignore[reportArgumentType]
    assert batch.offsets is not None
    for number, row in enumerate(rows):
        assert torch.equal(batch.ids[:, number][:, batch.mask[number]], row.ids)
        assert batch.text[number][batch.mask[number]].tolist() == row.text.tolist()
        assert batch.offsets[number] == row.offset
        if not case.alone:  # an encoder decodes nothing
            decoded = batch.decode(2, [1] * len(rows))
            assert torch.equal(decoded.ids[:, number], row.decode(2, 1).ids)
    beams = batch.expand(n)
    assert torch.equal(beams.ids, batch.ids.repeat_interleave(n, dim=1))
    pieces = batch.micro_batches(2)
    assert torch.equal(torch.cat([piece.ids for piece in pieces], dim=1), batch.ids)
    assert batch.with_text.shape == (case.axes + 1, len(rows), batch.ids.shape[2])
    assert torch.equal(batch.with_text[0], batch.text.to(batch.ids.dtype))


@pytest.mark.evidence("shapes")
@every_layout
@quick
@given(data=st.data())
def test_pruned_tokens_keep_their_coordinates(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    positions = case.layout(data.draw(case.prompts()))
    keep = torch.tensor(data.draw(st.lists(st.booleans(), min_size=positions.length, max_size=positions.length))).bool()
    pruned = positions.prune(keep)
    assert torch.equal(pruned.ids, positions.ids[:, keep])
    assert pruned.text.tolist() == list(range(int(keep.sum())))
    assert pruned.next == positions.next
    assert pruned.end.slot == positions.end.slot - int((~keep).sum())


@every_layout
@pytest.mark.parametrize("length", [1, 2, 17])
def test_text_alone_is_as_declared(name: str, length: int) -> None:
    case = CASES[name]
    positions = case.layout([Text(length)])
    one_d = torch.arange(length).expand(case.axes, -1).to(positions.ids.dtype)
    one_token = length == 1  # which stands at 0 on all axes, whatever the layout
    assert torch.equal(positions.ids, one_d) == (case.layout.traits.text_is_1d or one_token)


@every_layout
def test_what_a_layout_declares_is_what_an_audit_measures(name: str) -> None:
    layout = CASES[name].layout
    found = audit(layout)
    assert found.traits == layout.traits
    for (t, h, w), growth in found.growth.items():
        assert growth == pytest.approx(layout.growth(t, h, w)), (t, h, w)
