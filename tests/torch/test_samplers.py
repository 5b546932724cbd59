"""The contract, for every torch sampler: random ranks, resumes and resizes."""

from __future__ import annotations

import copy
import json
import pickle
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from bucket_data import BucketData
from feedline.errors import CursorFormatError, InvalidValueError, PlanMismatchError
from feedline.plan import Phase
from feedline.torch import (
    BucketBatchSampler,
    DistributedSampler,
    MixtureSampler,
    SequentialBucketSampler,
)

LENGTHS = [1 + (7 * i) % 12 for i in range(83)]
Maker = Callable[..., Any]


def make_distributed(world_size: int, rank: int, **options: Any) -> DistributedSampler:
    return DistributedSampler(range(97), world_size, rank, **{"seed": 3, **options})


def make_mixture(world_size: int, rank: int, **options: Any) -> MixtureSampler:
    options = {"seed": 3, "phases": [Phase(weights=(1, 5, 1), position=60)], **options}
    return MixtureSampler([0, 50, 60, 90], [3, 2, 1], world_size, rank, **options)


def make_buckets(world_size: int, rank: int, **options: Any) -> SequentialBucketSampler:
    options = {"base_batch_size": 3, "dynamic_batch_size": True, "seed": 3, **options}
    data = BucketData([40, 25, 13])
    return SequentialBucketSampler(
        data, base_resolution=(128, 64), num_replicas=world_size, rank=rank, **options
    )


def make_lengths(world_size: int, rank: int, **options: Any) -> BucketBatchSampler:
    options = {"token_budget": 36, "seed": 3, **options}
    return BucketBatchSampler(LENGTHS, num_buckets=4, num_replicas=world_size, rank=rank, **options)


MAKERS: dict[str, Maker] = {
    "distributed": make_distributed,
    "mixture": make_mixture,
    "buckets": make_buckets,
    "lengths": make_lengths,
}
makers = st.sampled_from(sorted(MAKERS)).map(MAKERS.__getitem__)
each_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
ranks = st.integers(1, 5)


def flat(entries: list[Any]) -> list[int]:
    return [i for entry in entries for i in (entry if isinstance(entry, list) else [entry])]


def due(make: Maker, epoch: int) -> Counter[int]:
    """What one rank alone receives, which loses nothing."""
    options = {"tail": "even"} if make is make_lengths else {"drop_last": False}
    sampler = make(1, 0, **options)
    sampler.set_epoch(epoch)
    return Counter(flat(list(sampler)))


@given(makers, ranks, st.integers(0, 2))
def test_length_is_what_is_yielded_and_equal_on_all_ranks(
    make: Maker, world_size: int, epoch: int
) -> None:
    samplers = [make(world_size, rank) for rank in range(world_size)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    counts = {len(list(sampler)) for sampler in samplers}
    assert counts == {len(sampler) for sampler in samplers}
    assert len(counts) == 1


@given(makers, ranks, st.data())
def test_every_further_resume_in_one_epoch_goes_on_at_the_next_entry(
    make: Maker, world_size: int, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, world_size - 1))
    whole = list(make(world_size, rank))
    received: list[Any] = []
    sampler = make(world_size, rank)
    for _ in range(10):
        count = data.draw(st.integers(0, 4))
        received += islice(sampler, count)
        state = json.loads(json.dumps(sampler.state_dict()))
        sampler = make(world_size, rank)
        sampler.load_state_dict(state)
        assert sampler.state_dict() == state
        assert len(sampler) == len(whole)
    assert received + list(sampler) == whole


@given(makers, st.integers(0, 2), st.data())
def test_resizes_in_one_epoch_lose_and_repeat_nothing(
    make: Maker, epoch: int, data: st.DataObject
) -> None:
    options: dict[str, Any] = {"drop_last": True}
    if make is make_lengths:
        options = {"tail": "drop"}
    received: Counter[int] = Counter()
    padding = 0
    state: dict[str, Any] = {"epoch": epoch, "cursor": None}
    for is_last in (False, False, True):
        world_size = 1 if is_last else data.draw(ranks)
        if make is make_buckets:
            options["base_batch_size"] = 1 if is_last else data.draw(st.integers(1, 5))
        if make is make_lengths:
            options["token_budget"] = None
            options["batch_size"] = 1 if is_last else data.draw(st.integers(1, 5))
        samplers = [make(world_size, rank, **options) for rank in range(world_size)]
        for sampler in samplers:
            sampler.load_state_dict(state)
        padding += (world_size - 1) * 3
        count = data.draw(st.integers(0, 12))
        parts = [list(s) if is_last else list(islice(s, count)) for s in samplers]
        for part in parts:
            received.update(flat(part))
        state = samplers[0].state_dict()
        assert all(sampler.state_dict()["cursor"] == state["cursor"] for sampler in samplers)
    if make is make_buckets:
        # Each of its buckets may be padded to a multiple of the ranks, once in each segment.
        repeated = received - due(make, epoch)
        assert sum(repeated.values()) <= padding
        received -= repeated
    assert received == due(make, epoch)


@each_maker
def test_loading_then_setting_another_epoch_starts_that_epoch_at_its_beginning(make: Maker) -> None:
    sampler = make(2, 1)
    list(islice(sampler, 3))
    state = sampler.state_dict()
    resumed = make(2, 1)
    resumed.load_state_dict(state)
    resumed.set_epoch(1)
    expected = make(2, 1)
    expected.set_epoch(1)
    assert list(resumed) == list(expected)


@each_maker
def test_setting_the_epoch_that_it_is_in_does_not_lose_the_place(make: Maker) -> None:
    sampler = make(2, 1)
    first = list(islice(sampler, 3))
    resumed = make(2, 1)
    resumed.load_state_dict(sampler.state_dict())
    resumed.set_epoch(0)
    assert first + list(resumed) == list(make(2, 1))


@each_maker
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
def test_a_copy_goes_on_where_a_state_was_loaded_and_leaves_the_sampler_alone(
    make: Maker, copied: Callable[[Any], Any]
) -> None:
    sampler = make(2, 1)
    first = list(islice(sampler, 3))
    resumed = make(2, 1)
    resumed.load_state_dict(sampler.state_dict())
    other = copied(resumed)
    assert first + list(other) == list(make(2, 1))
    assert first + list(resumed) == list(make(2, 1))


@each_maker
def test_epochs_and_seeds_differ_and_never_add_up(make: Maker) -> None:
    def order(seed: int, epoch: int) -> list[int]:
        sampler = make(1, 0, seed=seed)
        sampler.set_epoch(epoch)
        return flat(list(sampler))

    orders = [order(seed, epoch) for seed in (0, 1, 2) for epoch in (0, 1, 2)]
    assert len({tuple(found) for found in orders}) == len(orders)


@pytest.mark.parametrize("make", [make_distributed, make_mixture, make_buckets])
def test_a_state_with_only_the_documented_keys_loads(make: Maker) -> None:
    sampler = make(2, 0)
    sampler.load_state_dict({"epoch": 4, "seed": 3, "num_replicas": 2, "rank": 1})
    expected = make(2, 0)
    expected.set_epoch(4)
    assert sampler.epoch == 4
    assert list(sampler) == list(expected)


def test_a_state_without_a_place_is_refused_where_no_other_system_has_such_states() -> None:
    with pytest.raises(CursorFormatError, match="must be a mapping with the key 'cursor'"):
        make_lengths(2, 0).load_state_dict({"epoch": 4, "seed": 3, "num_replicas": 2, "rank": 1})


@each_maker
@pytest.mark.parametrize("bad", [None, 3, [], {}, {"epoch": -1}, {"epoch": 0, "cursor": {}}])
def test_a_bad_state_is_one_clear_error_and_changes_nothing(make: Maker, bad: Any) -> None:
    sampler = make(2, 0)
    sampler.set_epoch(1)
    list(islice(sampler, 2))
    before = sampler.state_dict()
    with pytest.raises((CursorFormatError, InvalidValueError)):
        sampler.load_state_dict(bad)
    assert sampler.state_dict() == before


@each_maker
def test_a_state_of_another_seed_is_refused_and_names_the_field(make: Maker) -> None:
    state = make(2, 0, seed=4).state_dict()
    with pytest.raises(PlanMismatchError, match="seed was 4 and is 3"):
        make(2, 0).load_state_dict(state)


@pytest.mark.parametrize("make", [make_distributed, make_mixture])
def test_set_skip_counts_samples_of_this_rank(make: Maker) -> None:
    sampler = make(3, 1)
    sampler.set_skip(10)
    assert list(sampler) == list(make(3, 1))[10:]
    assert list(sampler) == list(make(3, 1)), "only the next pass skips"
    with pytest.raises(InvalidValueError, match="skip=1000"):
        sampler.set_skip(1000)


@pytest.mark.parametrize("drop_last", [True, False])
def test_datasets_smaller_than_the_world(drop_last: bool) -> None:
    samplers = [DistributedSampler(range(3), 5, rank, drop_last=drop_last) for rank in range(5)]
    if drop_last:
        for sampler in samplers:
            with pytest.raises(InvalidValueError, match="3 samples cannot fill a batch"):
                len(sampler)
            with pytest.raises(InvalidValueError, match="3 samples cannot fill a batch"):
                list(sampler)
    else:
        assert [len(list(sampler)) for sampler in samplers] == [1] * 5


def test_no_sample_is_on_two_ranks() -> None:
    parts = [list(make_distributed(4, rank)) for rank in range(4)]
    assert max(Counter(i for part in parts for i in part).values()) == 1


@pytest.mark.parametrize("make", [make_distributed, make_mixture])
def test_a_skip_waits_for_its_pass_whatever_epoch_is_set_meanwhile(make: Maker) -> None:
    whole = make(2, 1)
    whole.set_epoch(3)
    expected = list(whole)[10:]
    moved = make(2, 1)
    moved.set_skip(10)
    moved.set_epoch(3)
    assert list(moved) == expected
    loaded = make(2, 1)
    loaded.set_skip(10)
    loaded.load_state_dict({"epoch": 3, "seed": loaded.seed, "num_replicas": 2, "rank": 1})
    assert list(loaded) == expected
    # It holds for one pass, and a state that knows its own place takes its place.
    loaded.set_epoch(4)
    assert len(list(loaded)) == len(whole)
    loaded.set_skip(10)
    loaded.load_state_dict(make(2, 1).state_dict())
    assert len(list(loaded)) == len(whole)


@pytest.mark.parametrize("make", [make_distributed, make_mixture, make_buckets])
def test_a_seed_of_numpy_is_saved_as_a_plain_number(make: Maker) -> None:
    state = make(2, 0, seed=np.int64(3)).state_dict()
    assert json.loads(json.dumps(state)) == make(2, 0, seed=3).state_dict()
    assert type(state.get("seed", 3)) is int
