"""order="torch" is, bit for bit, the order of the systems that it continues."""

from __future__ import annotations

from itertools import accumulate, pairwise

import hypothesis.strategies as st
import pytest
import torch.utils.data
from hypothesis import assume, given

from bucket_data import BucketData
from feedline.errors import FeedlineError, InvalidValueError
from feedline.plan import Segment
from feedline.torch import DistributedSampler, MixtureSampler, SequentialBucketSampler
from plain_orders import plain_buckets, plain_mixture
from plan_kinds import check_num_real


@given(
    num_samples=st.integers(1, 60),
    world_size=st.integers(1, 8),
    epoch=st.integers(0, 5),
    seed=st.integers(0, 2**40),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
)
def test_distributed_order_equals_that_of_torchs_own_sampler(
    num_samples: int, world_size: int, epoch: int, seed: int, drop_last: bool, shuffle: bool
) -> None:
    assume(num_samples >= world_size or not drop_last)
    options = {"shuffle": shuffle, "seed": seed, "drop_last": drop_last}
    for rank in range(world_size):
        peer = torch.utils.data.DistributedSampler(range(num_samples), world_size, rank, **options)
        ours = DistributedSampler(range(num_samples), world_size, rank, order="torch", **options)
        peer.set_epoch(epoch)
        ours.set_epoch(epoch)
        assert list(ours) == list(peer)
        assert len(ours) == len(peer)


@given(
    sizes=st.lists(st.integers(1, 25), min_size=1, max_size=5),
    batch_size=st.integers(1, 6),
    world_size=st.integers(1, 4),
    epoch=st.integers(0, 3),
    seed=st.integers(0, 99),
    drop_last=st.booleans(),
    dynamic=st.booleans(),
    shuffle_buckets=st.booleans(),
    shuffle_within=st.booleans(),
)
def test_bucket_order_equals_the_plain_rules(
    sizes: list[int],
    batch_size: int,
    world_size: int,
    epoch: int,
    seed: int,
    drop_last: bool,
    dynamic: bool,
    shuffle_buckets: bool,
    shuffle_within: bool,
) -> None:
    data = BucketData(sizes)
    for rank in range(world_size):
        sampler = SequentialBucketSampler(
            data,
            base_batch_size=batch_size,
            base_resolution=(64, 64),
            drop_last=drop_last,
            shuffle_buckets=shuffle_buckets,
            shuffle_within_bucket=shuffle_within,
            dynamic_batch_size=dynamic,
            seed=seed,
            num_replicas=world_size,
            rank=rank,
            order="torch",
        )
        sampler.set_epoch(epoch)
        resolutions = [data.bucket_groups[key]["resolution"] for key in data.sorted_bucket_keys]
        expected = plain_buckets(
            [data.bucket_groups[key]["indices"] for key in data.sorted_bucket_keys],
            batch_size_of=lambda number, r=resolutions: (
                data.calculator.get_dynamic_batch_size(r[number], batch_size, (64, 64))
                if dynamic
                else batch_size
            ),
            rank=rank,
            world_size=world_size,
            seed=seed,
            epoch=epoch,
            drop_last=drop_last,
            shuffle_buckets=shuffle_buckets,
            shuffle_within=shuffle_within,
        )
        if not expected:
            with pytest.raises(FeedlineError):
                list(sampler)
            continue
        assert list(sampler) == expected
        assert len(sampler) == len(expected)
    segment = Segment(plan=sampler.plan, world_size=world_size, batch_size=batch_size, epoch=epoch)
    for number in range(segment.num_batches):
        check_num_real(segment, number, number + 1)


@given(st.data())
def test_mixture_order_equals_the_plain_rules(data: st.DataObject) -> None:
    world_size = data.draw(st.integers(1, 4))
    drop_last = data.draw(st.booleans())
    least = world_size if drop_last else 1
    sizes = data.draw(st.lists(st.integers(least, 30), min_size=1, max_size=4))
    weights = data.draw(
        st.lists(st.floats(0.1, 5) | st.just(0.0), min_size=len(sizes), max_size=len(sizes)).filter(
            any
        )
    )
    temperature = data.draw(st.sampled_from([1.0, 0.7, 2.0]))
    seed, epoch = data.draw(st.integers(0, 99)), data.draw(st.integers(0, 3))
    edges = [0, *accumulate(sizes)]
    for rank in range(world_size):
        sampler = MixtureSampler(
            edges,
            weights,
            world_size,
            rank,
            seed=seed,
            drop_last=drop_last,
            temperature=temperature,
            order="torch",
        )
        sampler.set_epoch(epoch)
        expected = plain_mixture(
            [high - low for low, high in pairwise(edges)],
            weights,
            rank=rank,
            world_size=world_size,
            seed=seed,
            epoch=epoch,
            drop_last=drop_last,
            temperature=temperature,
        )
        assert list(sampler) == expected
        assert len(sampler) == len(expected)
    segment = sampler.plan.segment(world_size=world_size, batch_size=3, epoch=epoch)
    rest = sampler.plan.resume(segment.cursor(1), world_size=world_size, batch_size=2)
    check_num_real(segment, 0, segment.num_batches)
    check_num_real(rest, rest.num_batches // 2, rest.num_batches)


@given(st.integers(0, 40), st.integers(0, 99))
def test_a_torch_order_resumes_in_the_middle(skip: int, seed: int) -> None:
    whole = list(DistributedSampler(range(90), 2, 1, seed=seed, order="torch"))
    sampler = DistributedSampler(range(90), 2, 1, seed=seed, order="torch")
    sampler.set_skip(skip)
    assert list(sampler) == whole[skip:]


def test_a_mixture_in_torch_order_refuses_other_ranks_in_mid_epoch() -> None:
    sampler = MixtureSampler([0, 40, 60], [1, 2], 2, 0, order="torch")
    steps = iter(sampler)
    first = [next(steps) for _ in range(7)]
    state = sampler.state_dict()
    same = MixtureSampler([0, 40, 60], [1, 2], 2, 0, order="torch")
    same.load_state_dict(state)
    assert first + list(same) == list(MixtureSampler([0, 40, 60], [1, 2], 2, 0, order="torch"))
    other = MixtureSampler([0, 40, 60], [1, 2], 3, 0, order="torch")
    with pytest.raises(InvalidValueError, match="world_size=3 must be 2"):
        other.load_state_dict(state)


def test_the_plan_of_a_mixture_in_torch_order_says_and_changes_its_weights() -> None:
    plan = MixtureSampler([0, 40, 60], [1, 2], 2, 0, temperature=2.0, order="torch").plan
    assert plan.weights_now == ((1.0, 2.0), 2.0)
    changed = plan.reweighted([3, 1], 1.0, epoch=5, position=7)
    assert changed.weights_now == ((3.0, 1.0), 1.0)
    assert changed == plan.reweighted([3, 1], 1.0, epoch=0, position=0)
    assert changed.with_changes(()) == plan


def test_a_bucket_run_of_the_other_system_goes_on_here() -> None:
    """Its state has two keys, `epoch` and `batches_yielded`."""
    data = BucketData([40, 30])
    sampler = SequentialBucketSampler(
        data, 4, drop_last=False, num_replicas=2, rank=1, seed=7, order="torch"
    )
    sampler.load_state_dict({"epoch": 2, "batches_yielded": 3})
    expected = plain_buckets(
        [data.bucket_groups[key]["indices"] for key in data.sorted_bucket_keys],
        batch_size_of=lambda number: 4,
        rank=1,
        world_size=2,
        seed=7,
        epoch=2,
        drop_last=False,
    )
    assert list(sampler) == expected[3:]
