"""What a mixture promises: exact shares, zero stays zero, weights that survive, fresh passes."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import pytest

from feedline.errors import InvalidValueError
from feedline.plan import Phase
from feedline.torch import MixtureSampler

EDGES = [0, 100, 110, 150]


def sources(indices: list[int]) -> list[int]:
    return [sum(index >= edge for edge in EDGES[1:-1]) for index in indices]


def all_ranks(world_size: int, weights: list[float], **options: object) -> list[int]:
    parts = [
        list(MixtureSampler(EDGES, weights, world_size, rank, **options))
        for rank in range(world_size)
    ]
    return [index for part in parts for index in part]


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_shares_are_exact_over_all_ranks(world_size: int) -> None:
    drawn = Counter(sources(all_ranks(world_size, [3, 1, 2])))
    assert drawn == {0: 75, 1: 25, 2: 50}


@pytest.mark.parametrize("temperature", [0.2, 1.0, 3.0, 1000.0])
def test_a_zero_weight_draws_nothing_at_any_temperature(temperature: float) -> None:
    assert 1 not in sources(all_ranks(2, [3, 0, 2], temperature=temperature))


def test_a_higher_temperature_makes_shares_more_alike() -> None:
    cold = Counter(sources(all_ranks(1, [8, 1, 1])))
    hot = Counter(sources(all_ranks(1, [8, 1, 1], temperature=3.0)))
    assert hot[0] < cold[0]
    assert hot[1] > cold[1]


def test_an_oversampled_source_comes_in_a_new_order_on_each_pass() -> None:
    drawn = [i - 100 for i in all_ranks(1, [1, 2, 0], seed=5) if 100 <= i < 110]
    passes = [tuple(drawn[start : start + 10]) for start in range(0, 100, 10)]
    assert all(sorted(one) == list(range(10)) for one in passes)
    assert len(set(passes)) == 10


def test_no_sample_is_on_two_ranks_unless_its_source_is_oversampled() -> None:
    drawn = Counter(all_ranks(3, [1, 1, 1]))
    twice = {index for index, count in drawn.items() if count > 1}
    assert twice
    assert twice <= set(range(100, 150)), "only the two small sources are oversampled"


def test_updated_weights_survive_save_and_load_and_begin_at_the_next_pass() -> None:
    sampler = MixtureSampler(EDGES, [1, 0, 0], 2, 0)
    before = list(islice(sampler, 30))
    sampler.update_weights([0, 0, 1])
    state = sampler.state_dict()
    resumed = MixtureSampler(EDGES, [1, 0, 0], 2, 0)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert resumed.weights == [0, 0, 1]
    after = list(resumed)
    assert set(sources(before)) == {0}
    assert set(sources(after)) == {2}
    resumed.set_epoch(1)
    assert set(sources(list(resumed))) == {2}


def test_updated_weights_do_not_reach_a_pass_that_is_running() -> None:
    sampler = MixtureSampler(EDGES, [1, 0, 0], 2, 0)
    running = iter(sampler)
    first = [next(running) for _ in range(5)]
    sampler.update_weights([0, 1, 0])
    assert set(sources(first + list(running))) == {0}
    assert set(sources(list(sampler))) == {1}


def test_a_change_while_running_repeats_nothing_of_a_source_that_is_not_used_up() -> None:
    sampler = MixtureSampler(EDGES, [3, 1, 1], 1, 0)
    drawn = list(islice(sampler, 40))
    sampler.update_weights([1, 0, 0])
    state = sampler.state_dict()
    sampler = MixtureSampler(EDGES, [3, 1, 1], 1, 0)
    sampler.load_state_dict(state)
    drawn += islice(sampler, 70)
    large = [index for index in drawn if index < 100]
    assert len(large) == len(set(large))


@pytest.mark.parametrize("save_at", [0, 1, 9, 10, 11, 40, 73])
def test_phases_by_step_resume_on_either_side_of_the_change(save_at: int) -> None:
    def make(world_size: int, rank: int) -> MixtureSampler:
        phases = [(5, [0, 0, 1]), (9, [0, 1, 0])]
        return MixtureSampler(
            EDGES, [1, 0, 0], world_size, rank, phases=phases, global_batch_size=4
        )

    whole = list(make(2, 0))
    assert [sources(whole)[i] for i in (0, 9, 10, 17, 18, 74)] == [0, 0, 2, 2, 1, 1]
    sampler = make(2, 0)
    first = list(islice(sampler, save_at))
    resumed = make(2, 0)
    resumed.load_state_dict(sampler.state_dict())
    assert first + list(resumed) == whole


def test_phases_may_be_given_by_position() -> None:
    sampler = MixtureSampler(EDGES, [1, 0, 0], phases=[Phase(weights=[0, 0, 1], position=60)])
    drawn = sources(list(sampler))
    assert (set(drawn[:60]), set(drawn[60:])) == ({0}, {2})


@pytest.mark.parametrize(
    ("edges", "weights", "message"),
    [
        (EDGES, [1, 2], r"weights has 2 entries"),
        (EDGES, [1, 2, 3, 4], r"weights has 4 entries"),
        (EDGES, [], r"weights=\[\] must contain"),
        (EDGES, [0, 0, 0], r"all zero"),
        (EDGES, [1, -1, 1], r"weights\[1\]=-1\.0"),
        (EDGES, [1, float("nan"), 1], r"weights\[1\]=nan"),
        (EDGES, [1, float("inf"), 1], r"weights\[1\]=inf"),
        (EDGES, 3, r"weights=3"),
        ([0, 5, 5], [1, 1], r"sizes\[1\]=0"),
        ([0], [], r"cumulative_sizes=\[0\]"),
        ([1, 5], [1], r"cumulative_sizes=\[1, 5\]"),
        ([0, 5, 3], [1, 1], r"cumulative_sizes=\[0, 5, 3\]"),
        ([0, 2.5], [1], r"cumulative_sizes\[1\]=2\.5"),
    ],
)
def test_bad_weights_and_sizes_are_errors_that_say_so(
    edges: list[int], weights: list[float], message: str
) -> None:
    with pytest.raises(InvalidValueError, match=message):
        MixtureSampler(edges, weights)


def test_a_bad_update_leaves_the_weights_as_they_were() -> None:
    sampler = MixtureSampler(EDGES, [1, 2, 3])
    with pytest.raises(InvalidValueError, match="weights has 2 entries"):
        sampler.update_weights([1, 2])
    with pytest.raises(InvalidValueError, match="temperature=0"):
        sampler.update_weights([1, 2, 3], temperature=0)
    assert sampler.weights == [1, 2, 3]


@pytest.mark.parametrize("drop_last", [True, False])
def test_sources_smaller_than_the_world_are_fine(drop_last: bool) -> None:
    samplers = [
        MixtureSampler([0, 2, 43], [1, 4], 7, rank, drop_last=drop_last) for rank in range(7)
    ]
    lengths = {len(list(sampler)) for sampler in samplers}
    assert lengths == {len(sampler) for sampler in samplers} == {6 if drop_last else 7}


def test_a_low_temperature_favours_the_heaviest_source() -> None:
    drawn = Counter(sources(all_ranks(1, [9e6, 1e6, 1e6], temperature=0.005)))
    assert drawn == {0: 150}


def test_steps_of_phases_count_on_through_the_epochs() -> None:
    """105 samples in steps of 10 make 11 steps, the last one short."""
    sampler = MixtureSampler([0, 50, 105], [1, 0], phases=[(11, [0, 1])], global_batch_size=10)
    assert all(index < 50 for index in sampler)
    sampler.set_epoch(1)
    assert all(index >= 50 for index in sampler)


def test_an_empty_source_in_torch_order_draws_nothing_and_is_not_counted() -> None:
    sampler = MixtureSampler([0, 0, 10], [1, 1], order="torch")
    assert len(list(sampler)) == len(sampler) == 5


@pytest.mark.parametrize(("phases", "named"), [("x", "phases='x' "), ([5], r"phases\[0\]=5 ")])
def test_phases_that_are_not_pairs_are_named(phases: Any, named: str) -> None:
    with pytest.raises(InvalidValueError, match=f"{named}must be a"):
        MixtureSampler([0, 5, 10], [1, 1], 1, 0, phases=phases, global_batch_size=2)


def test_a_global_batch_size_is_checked_without_phases_too() -> None:
    with pytest.raises(InvalidValueError, match="global_batch_size=0 must be"):
        MixtureSampler([0, 5, 10], [1, 1], 1, 0, global_batch_size=0)
