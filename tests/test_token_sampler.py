"""Batches of equally many tokens on all ranks: balance, order, exactly once, and going on from a state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from mrope.data import TokenBudgetSampler, pack_items


def mix(items: int, seed: int = 0) -> np.ndarray:
    """Tokens of the realistic mix: lognormal with median 600 and sigma 1, clipped to 16..16384."""
    return np.random.default_rng(seed).lognormal(np.log(600), 1, items).round().clip(16, 16384).astype(np.int64)


def samplers(tokens: Any, world: int, **words: Any) -> list[TokenBudgetSampler]:
    return [TokenBudgetSampler(tokens, rank=rank, world=world, **words) for rank in range(world)]


def epoch_of(ranks: list[TokenBudgetSampler]) -> list[tuple[list[int], ...]]:
    """The batches of all ranks, step by step."""
    return list(zip(*ranks, strict=True))


def gaps(steps: list[tuple[list[int], ...]], tokens: np.ndarray) -> np.ndarray:
    """By how much the sums of the ranks differ at each step, as a share of their mean."""
    sums = np.array([[tokens[batch].sum() for batch in step] for step in steps])
    return (sums.max(1) - sums.min(1)) / sums.mean(1)


@st.composite
def settings(draw: st.DrawFn) -> dict[str, Any]:
    """Settings that can be had: items enough for all ranks, and batches that can share the last step."""
    world = draw(st.integers(1, 4))
    size = draw(st.integers(2, 4))
    tokens = draw(st.lists(st.integers(0, 30), min_size=world * size, max_size=60))
    words = {"seed": draw(st.integers(0, 3)), "shuffle": draw(st.booleans()), "drop_last": draw(st.booleans())}
    return {"tokens": tokens, "world": world, "batch_size": size, **words}


@st.composite
def budgets(draw: st.DrawFn) -> dict[str, Any]:
    """The same under a budget: a row holds four items or more, so that rows can be split where there are too few."""
    world = draw(st.integers(1, 4))
    tokens = draw(st.lists(st.integers(1, 10), min_size=4 * world, max_size=60))
    words = {"seed": draw(st.integers(0, 3)), "shuffle": draw(st.booleans())}
    return {"tokens": tokens, "world": world, "budget": draw(st.integers(40, 60)), **words}


# ------------------------------------------------------------------------------------------------------------- balance


def test_batches_worked_by_hand() -> None:
    tokens = [5, 1, 4, 2, 7, 1, 3, 4, 9, 2, 1]
    ranks = samplers(tokens, 2, batch_size=2, shuffle=False)
    # 5+1 and 4+2; 7+1 and 3+4; of three items the first rank has two, and these are the small ones
    assert epoch_of(ranks) == [([0, 1], [2, 3]), ([4, 5], [6, 7]), ([9, 10], [8])]
    assert [len(rank) for rank in ranks] == [3, 3]


def test_one_large_picture_is_weighed_up_by_many_small_ones() -> None:
    tokens = [100, *[10] * 7, *[20] * 5, *[1] * 3]  # by pairs of like size, sums are 80 apart or more
    ((one, other),) = epoch_of(samplers(tokens, 2, batch_size=8, shuffle=False))
    sums = sorted(sum(tokens[item] for item in batch) for batch in (one, other))
    assert (len(one), len(other)) == (8, 8)
    assert sums == [130, 143]  # the seven smallest go with 100: no way to share is better


def test_two_ranks_of_64_items_differ_by_less_than_three_percent() -> None:
    tokens = mix(100_000)
    balanced = gaps(epoch_of(samplers(tokens, 2, batch_size=64)), tokens)
    assert balanced.max() < 0.03
    order = np.random.default_rng(0).permutation(len(tokens))[: len(balanced) * 128 - 128].reshape(-1, 2, 64)
    chance = gaps([(one.tolist(), other.tolist()) for one, other in order], tokens)
    assert chance.mean() > 0.1  # a random sampler's


def test_a_budget_fills_the_rows_of_all_ranks() -> None:
    tokens = mix(40_000)
    steps = epoch_of(samplers(tokens, 2, budget=32768))
    sums = np.array([[tokens[batch].sum() for batch in step] for step in steps])
    assert sums.max() <= 32768
    assert sums.mean() > 0.97 * 32768
    assert gaps(steps, tokens).max() < 0.03
    assert sorted(item for step in steps for batch in step for item in batch) == list(range(len(tokens)))


@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("items", [400, 3000])
def test_ranks_stay_together_under_a_budget_where_rows_do_not_divide(items: int, world: int) -> None:
    tokens = mix(items)
    steps = epoch_of(samplers(tokens, world, budget=32768))
    assert gaps(steps, tokens).max() < 0.03
    assert max(tokens[batch].sum() for step in steps for batch in step) <= 32768


@given(words=settings())
def test_each_item_comes_once_on_one_rank(words: dict[str, Any]) -> None:
    tokens, world, size = words["tokens"], words["world"], words["batch_size"]
    ranks = samplers(**words)
    steps = epoch_of(ranks)
    assert {len(rank) for rank in ranks} == {len(steps)}
    items = [item for step in steps for batch in step for item in batch]
    assert len(set(items)) == len(items)
    for step in steps:
        lengths = [len(batch) for batch in step]
        assert 1 <= min(lengths) <= max(lengths) <= size
        assert max(lengths) - min(lengths) <= 1
    whole = len(tokens) // (world * size)
    if words["drop_last"]:
        assert len(steps) == whole
        assert {len(batch) for step in steps for batch in step} == {size}
    else:
        assert sorted(items) == list(range(len(tokens)))
        assert len(steps) == -(-len(tokens) // (world * size))
    if not words["shuffle"]:
        firsts = [sorted(item for batch in step for item in batch) for step in steps]
        assert [item for first in firsts for item in first] == list(range(len(items)))


@given(words=settings())
def test_no_swap_of_two_items_would_help(words: dict[str, Any]) -> None:
    """The rank that has most and the one that has least; what is within half a percent is left as it is."""
    tokens = words["tokens"]
    for step in epoch_of(samplers(**words)):
        sums = [sum(tokens[item] for item in batch) for batch in step]
        gap = max(sums) - min(sums)
        if gap <= 0.005 * np.mean(sums) or sums.count(max(sums)) + sums.count(min(sums)) > 2:
            continue
        most, least = step[sums.index(max(sums))], step[sums.index(min(sums))]
        assert not any(0 < tokens[one] - tokens[other] < gap for one in most for other in least)


@given(words=budgets(), drop_last=st.booleans())
def test_each_item_comes_once_under_a_budget(words: dict[str, Any], drop_last: bool) -> None:
    tokens, world = words["tokens"], words["world"]
    if drop_last and len(pack_items(tokens, words["budget"])) < world:
        return
    ranks = samplers(**words, drop_last=drop_last)
    steps = epoch_of(ranks)
    assert {len(rank) for rank in ranks} == {len(steps)}
    items = [item for step in steps for batch in step for item in batch]
    assert len(set(items)) == len(items)
    assert all(batch and sum(tokens[item] for item in batch) <= words["budget"] for step in steps for batch in step)
    if not drop_last:
        assert sorted(items) == list(range(len(tokens)))


# ---------------------------------------------------------------------------------------------------- seeds and epochs


def test_the_order_is_that_of_seed_and_epoch() -> None:
    tokens = mix(500)
    kinds: list[dict[str, Any]] = [{"batch_size": 8}, {"budget": 16384}]
    for words in kinds:
        sampler, again, other = (TokenBudgetSampler(tokens, rank=0, world=2, seed=seed, **words) for seed in (3, 3, 4))
        first = list(sampler)
        assert first == list(sampler) == list(again)
        assert first != list(other)
        sampler.set_epoch(1)
        second = list(sampler)
        assert second != first
        again.set_epoch(1)
        assert list(again) == second
        sampler.set_epoch(0)
        assert list(sampler) == first


def test_the_order_stays_that_of_the_releases_before() -> None:
    """What a state goes on with must not hang on a release of NumPy: the numbers of PCG64 are fixed."""
    sampler = TokenBudgetSampler([1] * 12, batch_size=4, rank=0, world=1, seed=5)
    sampler.set_epoch(2)
    assert [item for batch in sampler for item in batch] == [4, 7, 9, 6, 0, 8, 1, 11, 5, 10, 2, 3]


def test_items_keep_their_order_without_shuffling() -> None:
    assert list(TokenBudgetSampler([4, 1, 3, 2, 5], batch_size=2, rank=0, world=1, shuffle=False)) == [
        [0, 1],
        [2, 3],
        [4],
    ]
    under = list(TokenBudgetSampler([4, 1, 3, 2, 5, 5], budget=10, rank=0, world=1, shuffle=False))
    assert under == [[0, 1, 2, 3], [4, 5]]


def test_no_rank_goes_without_an_item_at_the_last_step() -> None:
    for world, size, items in ((4, 2, 9), (3, 4, 13), (4, 3, 26)):
        steps = epoch_of(samplers([1] * items, world, batch_size=size))
        assert all(batch for step in steps for batch in step)
        assert sum(len(batch) for step in steps for batch in step) == items


def test_rank_and_world_are_those_of_torch_distributed() -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    assert (TokenBudgetSampler([1] * 8, batch_size=2).rank, TokenBudgetSampler([1] * 8, batch_size=2).world) == (0, 1)
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=2, world_size=3)
    try:
        found = TokenBudgetSampler([1] * 8, batch_size=2)
        assert (found.rank, found.world) == (2, 3)
        given_ones = TokenBudgetSampler([1] * 8, batch_size=2, rank=1, world=2)
        assert (given_ones.rank, given_ones.world) == (1, 2)
    finally:
        torch.distributed.destroy_process_group()


def test_packed_rows_are_items_too() -> None:
    packed = pack_items(mix(3000), 32768)
    ranks = samplers(packed.tokens, 2, batch_size=2)
    rows = [row for step in epoch_of(ranks) for batch in step for row in batch]
    assert sorted(rows) == list(range(len(packed)))


# ---------------------------------------------------------------------------------------------------------- going on


@given(words=st.one_of(settings(), budgets()), epoch=st.integers(0, 2), data=st.data())
def test_a_state_goes_on_to_the_item(words: dict[str, Any], epoch: int, data: st.DataObject) -> None:
    ranks, fresh = samplers(**words), samplers(**words)
    for sampler in ranks:
        sampler.set_epoch(epoch)
    whole = [list(sampler) for sampler in ranks]
    stop = data.draw(st.integers(0, len(whole[0])))
    for sampler, batches in zip(ranks, whole, strict=True):
        assert list(islice(sampler, stop)) == batches[:stop]
    states = [json.loads(json.dumps(sampler.state_dict())) for sampler in ranks]
    assert all(state == states[0] for state in states)  # one state serves all ranks
    for sampler, batches in zip(fresh, whole, strict=True):
        sampler.load_state_dict(states[0])
        assert sampler.epoch == epoch
        sampler.set_epoch(epoch)  # as training loops do at the head of an epoch
        assert sampler.state_dict() == states[0]
        assert len(sampler) == len(batches)
        assert list(sampler) == batches[stop:]
        assert list(sampler) == batches  # the epoch once more
    for sampler in fresh:
        sampler.load_state_dict(states[0])
        sampler.set_epoch(epoch + 1)
    for sampler in ranks:
        sampler.set_epoch(epoch + 1)
    assert [list(sampler) for sampler in fresh] == [list(sampler) for sampler in ranks]


class Numbers(Dataset[int]):
    """Items that are their own numbers."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


def test_a_plain_loader_takes_the_batches() -> None:
    tokens = mix(70)
    sampler = TokenBudgetSampler(tokens, batch_size=4, rank=1, world=2)
    loader: Any = DataLoader(Numbers(70), batch_sampler=sampler)
    assert len(loader) == 9
    assert [batch.tolist() for batch in loader] == list(sampler)


# Python warns of forks beside threads of torch; such is a DataLoader on Linux.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # which torchdata 0.11 calls
@pytest.mark.parametrize(
    ("words", "workers", "stop", "snapshots"),
    [
        *(({"batch_size": 4}, 0, stop, 1) for stop in (0, 5, None)),
        *(({"batch_size": 4}, 2, stop, 1) for stop in (5, None)),
        ({"batch_size": 4}, 2, 7, 3),
        ({"budget": 8000}, 0, 3, 1),
        ({"budget": 8000}, 2, 3, 1),
    ],
)
def test_a_stateful_loader_goes_on_with_what_the_loop_has_not_seen(
    words: dict[str, Any], workers: int, stop: int | None, snapshots: int
) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    tokens = mix(100).clip(max=8000)

    def loader() -> tuple[TokenBudgetSampler, Any]:
        sampler = TokenBudgetSampler(tokens, rank=1, world=2, seed=1, **words)
        more: dict[str, Any] = {"prefetch_factor": 3} if workers else {}
        more |= {"num_workers": workers, "snapshot_every_n_steps": snapshots}
        return sampler, stateful.StatefulDataLoader(Numbers(100), batch_sampler=sampler, collate_fn=list, **more)

    def batches(source: Iterator[list[int]]) -> list[list[int]]:
        return [list(map(int, batch)) for batch in source]

    expected_of = TokenBudgetSampler(tokens, rank=1, world=2, seed=1, **words)
    expected_of.set_epoch(1)
    expected = list(expected_of)
    expected_of.set_epoch(2)
    following = list(expected_of)

    sampler, first = loader()
    sampler.set_epoch(1)
    running = iter(first)
    assert batches(islice(running, stop)) == expected[:stop]
    state = first.state_dict()
    del running

    sampler, second = loader()
    second.load_state_dict(state)
    rest = batches(iter(second))
    if stop is None:  # a state of the end: the next time round begins anew
        assert rest == expected
    else:
        assert rest == expected[stop:]
    assert sampler.epoch == 1
    sampler.set_epoch(2)
    assert batches(iter(second)) == following


# -------------------------------------------------------------------------------------------------------- wrong input


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"batch_size": None}, "budget is None and batch_size is None; expected one of them"),
        ({"budget": 50}, "budget is 50 and batch_size is 2; expected one of them"),
        ({"batch_size": 0}, "batch_size is 0; expected at least 1"),
        ({"batch_size": None, "budget": 0}, "budget is 0; expected at least 1"),
        ({"batch_size": None, "budget": 8}, r"tokens\[2\] is 9; expected at most the budget, 8"),
        ({"batch_size": None, "budget": 20, "tokens": [3, 0, 2]}, r"tokens\[1\] is 0; expected at least 1"),
        ({"tokens": [3, -1, 2]}, r"tokens\[1\] is -1; expected at least 0"),
        ({"tokens": [[3, 1], [2, 2]]}, r"tokens are int64 of shape \(2, 2\); expected whole numbers|tokens"),
        ({"tokens": []}, "tokens are those of 0 items; expected at least 2, for a step"),
        ({"tokens": [3]}, "tokens are those of 1 items; expected at least 2, for a step"),
        ({"tokens": [3, 1, 1], "drop_last": True}, "tokens are those of 3 items; expected at least 4, for a step"),
        (
            {"batch_size": 1},
            r"5 items leave some of 2 ranks without one at the last step; expected a larger batch_size",
        ),
        ({"rank": 2}, "rank is 2; expected 0 to 1"),
        ({"rank": -1}, "rank is -1; expected at least 0"),
        ({"world": 0}, "world is 0; expected at least 1"),
        ({"rank": None}, "rank is None and world is 2; expected both or neither"),
        ({"world": None}, "rank is 0 and world is None; expected both or neither"),
        ({"seed": -1}, "seed is -1; expected at least 0"),
        ({"shuffle": "no"}, "shuffle is 'no'; expected True or False|shuffle"),
        ({"drop_last": "no"}, "drop_last is 'no'; expected True or False|drop_last"),
        ({"tokens": np.array([3, 1 << 63, 2], np.uint64)}, r"tokens\[1\] is 9223372036854775808; expected less than"),
    ],
)
def test_wrong_settings_are_refused(words: dict[str, Any], told: str) -> None:
    usual: dict[str, Any] = {"tokens": [4, 1, 9, 2, 3], "batch_size": 2, "rank": 0, "world": 2}
    with pytest.raises((TypeError, ValueError), match=told):
        TokenBudgetSampler(**(usual | words))


def test_rows_that_ranks_cannot_share_are_refused_before_the_first_epoch() -> None:
    with pytest.raises(ValueError, match="budget 9 makes 3 rows of one item each, which 2 ranks cannot share"):
        TokenBudgetSampler([7, 8, 9], budget=9, rank=0, world=2)
    told = "the number of rows is 1; expected one for each of 2 ranks: a smaller budget, or drop_last=False"
    with pytest.raises(ValueError, match=f"budget is 200 and drop_last True, and {told}"):
        TokenBudgetSampler([60] * 3, budget=200, rank=0, world=2, drop_last=True)
    assert epoch_of(samplers([60] * 3, 2, budget=200, shuffle=False)) in ([([0, 1], [2])], [([0, 2], [1])])
    assert epoch_of(samplers([7, 8, 9], 2, budget=9, drop_last=True, shuffle=False)) == [([2], [1])]


def test_states_of_other_samplers_are_refused() -> None:
    tokens = [4, 1, 9, 2, 3, 5, 6, 2]
    usual: dict[str, Any] = {"batch_size": 2, "rank": 0, "world": 2, "seed": 1}
    sampler = TokenBudgetSampler(tokens, **usual)
    next(iter(sampler))
    state = sampler.state_dict()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"world": 4}, "the state is of world 2, not 4; expected the sampler that it was taken from"),
        ({"batch_size": 4}, "the state is of batch_size 2, not 4"),
        ({"batch_size": None, "budget": 50}, "the state is of budget None, not 50"),
        ({"seed": 2}, "the state is of seed 1, not 2"),
        ({"shuffle": False}, "the state is of shuffle True, not False"),
        ({"drop_last": True}, "the state is of drop_last False, not True"),
    ]
    for words, told in cases:
        with pytest.raises(ValueError, match=told):
            TokenBudgetSampler(tokens, **(usual | words)).load_state_dict(state)
    with pytest.raises(ValueError, match="the state is of tokens"):
        TokenBudgetSampler([*tokens[:-1], 3], **usual).load_state_dict(state)
    with pytest.raises(
        ValueError, match="the state has no epoch; expected what state_dict of a TokenBudgetSampler gave"
    ):
        sampler.load_state_dict({"step": 3})
    nothing: Any = None
    with pytest.raises(TypeError, match=r"state_dict is None; expected what state_dict of a Tok|state_dict"):
        sampler.load_state_dict(nothing)
    with pytest.raises(ValueError, match="step of the state is 3; expected at most 2, the steps of the epoch"):
        sampler.load_state_dict({**state, "epoch": 4, "step": 3})
    with pytest.raises(ValueError, match="epoch is -1; expected at least 0"):
        sampler.set_epoch(-1)
    assert sampler.state_dict() == state
