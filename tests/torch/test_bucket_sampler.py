"""What the bucket samplers promise beyond the contract."""

from __future__ import annotations

from itertools import pairwise

import pytest

from bucket_data import BucketData
from feedline.errors import InvalidValueError
from feedline.torch import BucketBatchSampler, SequentialBucketSampler


def make(rank: int = 0, **options: object) -> SequentialBucketSampler:
    options = {"base_batch_size": 4, "base_resolution": (128, 64), **options}
    return SequentialBucketSampler(BucketData([40, 25, 13]), num_replicas=2, rank=rank, **options)


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_batch_info_describes_the_batch_that_is_really_yielded(
    dynamic: bool, drop_last: bool
) -> None:
    for epoch in range(3):
        sampler = make(dynamic_batch_size=dynamic, drop_last=drop_last)
        sampler.set_epoch(epoch)
        for number, batch in enumerate(sampler):
            info = sampler.get_batch_info(number)
            group = sampler.bucket_groups[info["bucket_key"]]
            assert set(batch) <= set(group["indices"])
            assert info["batch_size"] == len(batch)
            assert info["resolution"] == group["resolution"]
            assert info["aspect_name"] == group["aspect_name"]


def test_batch_info_after_a_resize_counts_from_the_start_of_the_epoch() -> None:
    sampler = make()
    batches = iter(sampler)
    first = [next(batches) for _ in range(4)]
    resumed = SequentialBucketSampler(
        BucketData([40, 25, 13]), 3, (128, 64), num_replicas=1, rank=0
    )
    resumed.load_state_dict(sampler.state_dict())
    everything = first + list(resumed)
    for number, batch in enumerate(everything):
        info = resumed.get_batch_info(number)
        assert set(batch) <= set(resumed.bucket_groups[info["bucket_key"]]["indices"])
        assert info["batch_size"] == len(batch)


def test_batch_info_out_of_range_is_an_error() -> None:
    sampler = make()
    with pytest.raises(InvalidValueError, match=f"batch_idx={len(sampler)}"):
        sampler.get_batch_info(len(sampler))


def test_a_bucket_is_finished_before_the_next_one_begins() -> None:
    sampler = make()
    keys = [sampler.get_batch_info(number)["bucket_key"] for number in range(len(sampler))]
    changes = sum(one != other for one, other in pairwise(keys))
    assert changes == len(set(keys)) - 1


def test_batches_are_lists_of_ints() -> None:
    batch = next(iter(make()))
    assert type(batch) is list
    assert all(type(index) is int for index in batch)


def test_the_documented_attributes_are_there() -> None:
    sampler = make()
    assert sampler.epoch == 0
    assert sampler.bucket_keys == sampler.dataset.sorted_bucket_keys
    assert sampler.bucket_groups is sampler.dataset.bucket_groups
    assert sampler.calculator is sampler.dataset.calculator
    assert sampler._total_batches == sampler._calculate_total_batches() == len(sampler)
    assert (sampler._batches_to_skip, sampler._batches_yielded) == (0, 0)
    next(iter(sampler))
    state = sampler.state_dict()
    assert (state["epoch"], state["batches_yielded"]) == (0, 1)
    sampler.load_state_dict(state)
    assert (sampler._batches_to_skip, sampler._batches_yielded) == (1, 1)
    assert sampler._get_batch_size((256, 64)) == 4


def test_fewer_samples_fit_where_images_are_larger() -> None:
    sampler = make(dynamic_batch_size=True, drop_last=False)
    infos = [sampler.get_batch_info(number) for number in range(len(sampler))]
    largest = {}
    for info in infos:
        key = info["resolution"]
        largest[key] = max(largest.get(key, 0), info["batch_size"])
    assert largest == {(64, 64): 8, (128, 64): 4, (192, 64): 2}


def test_empty_buckets_are_passed_over() -> None:
    data = BucketData([10, 6])
    data.bucket_groups["none"] = {"indices": [], "resolution": (1, 1), "aspect_name": "square"}
    data.sorted_bucket_keys.append("none")
    sampler = SequentialBucketSampler(data, 2, num_replicas=1, rank=0)
    assert len(list(sampler)) == 8


def test_a_dataset_without_buckets_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="bucket_groups"):
        SequentialBucketSampler([1, 2, 3])


@pytest.mark.parametrize("mode", ["sequential", "interleaved"])
@pytest.mark.parametrize("world_size", [1, 3])
def test_padded_tokens_never_exceed_the_budget(mode: str, world_size: int) -> None:
    lengths = [1 + (11 * i) % 50 for i in range(400)]
    seen: list[int] = []
    for rank in range(world_size):
        sampler = BucketBatchSampler(
            lengths, token_budget=200, num_buckets=6, mode=mode, num_replicas=world_size, rank=rank
        )
        for number, batch in enumerate(sampler):
            edge = sampler.get_batch_info(number)["bucket_key"]
            assert max(lengths[i] for i in batch) <= edge
            assert len(batch) * edge <= 200
            seen += batch
    assert set(seen) == set(range(400))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "pass exactly one"),
        ({"batch_size": 2, "token_budget": 9}, "pass exactly one"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 2, "num_buckets": 0}, "num_buckets=0"),
        ({"batch_size": 2, "edges": [2]}, "lengths"),
        ({"batch_size": 2, "mode": "other"}, "mode='other'"),
    ],
)
def test_bad_options_are_errors_that_say_so(options: dict[str, object], message: str) -> None:
    if "edges" not in options:
        options = {"num_buckets": 2, **options}
    with pytest.raises(InvalidValueError, match=message):
        BucketBatchSampler([3, 4, 5], **options)


def test_a_calculator_is_held_to_its_answers_for_the_batch_size_in_use_only() -> None:
    class Plain:
        def get_dynamic_batch_size(
            self, resolution: tuple[int, int], base: int, base_resolution: tuple[int, int]
        ) -> int:
            return base * 64 * 64 // (resolution[0] * resolution[1])

    data = BucketData([40, 25, 13])
    data.calculator = Plain()
    sampler = SequentialBucketSampler(
        data, 6, (64, 64), dynamic_batch_size=True, num_replicas=1, rank=0
    )
    next(iter(sampler))
    assert sampler.state_dict()["batches_yielded"] == 1
    too_small = SequentialBucketSampler(
        data, 2, (64, 64), dynamic_batch_size=True, num_replicas=1, rank=0
    )
    with pytest.raises(InvalidValueError, match=r"batch size of \(192, 64\)=0"):
        list(too_small)


def test_without_shuffling_every_epoch_is_the_same() -> None:
    sampler = BucketBatchSampler([3, 9, 4, 8] * 20, batch_size=4, num_buckets=2, shuffle=False)
    first = list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) == first


def test_keys_that_are_listed_twice_or_name_no_bucket_are_refused() -> None:
    data = BucketData([5, 4])
    first, second = data.bucket_groups
    data.sorted_bucket_keys = [first, second, first]
    with pytest.raises(InvalidValueError, match=r"lists \('square', .* twice, so its"):
        SequentialBucketSampler(data, 2, num_replicas=1, rank=0)
    data.sorted_bucket_keys = [first, ("wide", (1, 1))]
    with pytest.raises(InvalidValueError, match=r"keys\[1\]=\('wide', .* must be a key"):
        SequentialBucketSampler(data, 2, num_replicas=1, rank=0)


def test_samples_in_the_place_of_lengths_are_named() -> None:
    with pytest.raises(InvalidValueError, match="lengths holds lists of different lengths"):
        BucketBatchSampler([[1, 2], [3]], batch_size=1, num_buckets=1)
