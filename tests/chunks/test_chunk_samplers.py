"""Sequential and random samplers: every row once, in requests that read whole chunks."""

from __future__ import annotations

import json

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from chunk_requests import batches_of, joined, rows_of, sampled
from feedline.chunks import RandomSampler, SequentialSampler
from feedline.errors import (
    CursorFormatError,
    EmptyEpochError,
    InvalidValueError,
    PlanMismatchError,
)


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int, int]:
    """A chunk size, a number of chunks and a batch size that go together."""
    batch_size = draw(st.integers(1, 12))
    chunk_size = draw(st.integers(1, 12))
    step = batch_size // np.gcd(chunk_size, batch_size)
    return chunk_size, int(step) * draw(st.integers(1, 3)), batch_size


@st.composite
def masks(draw: st.DrawFn) -> tuple[int, slice | None]:
    """A number of rows and a mask of at least one of them."""
    n_obs = draw(st.integers(1, 300))
    if draw(st.booleans()):
        return n_obs, None
    start = draw(st.integers(0, n_obs - 1))
    return n_obs, slice(start, draw(st.one_of(st.none(), st.integers(start + 1, n_obs))))


def range_of(n_obs: int, mask: slice | None) -> list[int]:
    return list(range(n_obs))[mask or slice(None)]


@given(sizes(), masks())
def test_rows_come_in_order_without_shuffle(
    size: tuple[int, int, int], rows: tuple[int, slice | None]
) -> None:
    n_obs, mask = rows
    sampler = SequentialSampler(*size, mask=mask)
    assert joined(sampled(sampler, n_obs)) == range_of(n_obs, mask)


@given(sizes(), masks(), st.integers(0, 2**40))
def test_every_row_comes_once_with_shuffle(
    size: tuple[int, int, int], rows: tuple[int, slice | None], seed: int
) -> None:
    n_obs, mask = rows
    batches = sampled(RandomSampler(*size, mask=mask, rng=seed), n_obs)
    assert sorted(joined(batches)) == range_of(n_obs, mask)


@given(sizes(), masks(), st.booleans(), st.booleans())
def test_batches_are_full_but_for_the_last_and_counted_right(
    size: tuple[int, int, int], rows: tuple[int, slice | None], drop_last: bool, shuffle: bool
) -> None:
    n_obs, mask = rows
    kind = RandomSampler if shuffle else SequentialSampler
    sampler = kind(*size, mask=mask, drop_last=drop_last)
    num_rows = len(range_of(n_obs, mask))
    if drop_last and num_rows < size[2]:
        with pytest.raises(EmptyEpochError, match="num_batches=0"):
            sampler.n_batches(n_obs)
        return
    counted = sampler.n_batches(n_obs), sampler.n_iters(n_obs)
    lengths = [len(batch) for batch in sampled(sampler, n_obs)]
    assert counted == (len(lengths), len(lengths))
    assert all(length == size[2] for length in lengths[:-1])
    assert sum(lengths) == (num_rows - num_rows % size[2] if drop_last else num_rows)


@given(sizes(), masks())
def test_requests_are_slices_of_chunks_and_the_short_chunk_comes_last(
    size: tuple[int, int, int], rows: tuple[int, slice | None]
) -> None:
    n_obs, mask = rows
    chunk_size, preload, _ = size
    first = 0 if mask is None else mask.start
    requests = list(RandomSampler(*size, mask=mask).sample(n_obs))
    num_short = len(range_of(n_obs, mask)) % chunk_size
    for number, request in enumerate(requests):
        assert isinstance(request["requests"], list)
        assert len(request["requests"]) <= preload
        for part in request["requests"]:
            assert (part.start - first) % chunk_size == 0
            is_short = part.stop - part.start < chunk_size
            assert not is_short or (num_short and number == len(requests) - 1)
        places = np.concatenate(request["splits"])
        assert sorted(places.tolist()) == list(range(len(rows_of(request))))


def test_asking_for_the_number_of_batches_changes_nothing() -> None:
    asked, other = RandomSampler(4, 5, 10, rng=1), RandomSampler(4, 5, 10, rng=1)
    asked.n_batches(1000), asked.n_batches(70)
    assert joined(sampled(asked, 500)) == joined(sampled(other, 500))
    assert asked.mask == slice(0, None)


def test_requests_share_no_memory() -> None:
    requests = list(RandomSampler(4, 5, 10).sample(300))
    splits = [split for request in requests for split in request["splits"]]
    for number, split in enumerate(splits):
        assert split.base is None
        assert not any(np.shares_memory(split, other) for other in splits[number + 1 :])


def test_the_order_depends_on_the_seed_and_the_epoch_alone() -> None:
    np.random.seed(1)
    first = joined(sampled(RandomSampler(4, 5, 10, rng=3), 200))
    np.random.seed(2)
    sampler = RandomSampler(4, 5, 10, rng=3)
    assert joined(sampled(sampler, 200)) == first
    second = joined(sampled(sampler, 200))
    assert second != first
    assert sampler.epoch == 1
    again = RandomSampler(4, 5, 10, rng=3)
    again.set_epoch(1)
    assert joined(sampled(again, 200)) == second
    assert joined(sampled(RandomSampler(4, 5, 10, rng=4), 200)) != first


def test_a_generator_gives_one_seed() -> None:
    given_to_both = [np.random.default_rng(5), np.random.default_rng(5)]
    first, second = (RandomSampler(4, 5, 10, rng=rng) for rng in given_to_both)
    assert first.rng is given_to_both[0]
    given_to_both[0].random(100)  # what happens to it later does not matter
    assert joined(sampled(first, 200)) == joined(sampled(second, 200))
    first.rng = np.random.default_rng(6)
    assert joined(sampled(first, 200)) != joined(sampled(second, 200))


@given(sizes(), st.integers(1, 200), st.integers(1, 400), st.integers(0, 9))
def test_replacement_draws_as_many_rows_as_asked_for_in_runs(
    size: tuple[int, int, int], n_obs: int, num_samples: int, seed: int
) -> None:
    sampler = RandomSampler(*size, replacement=True, num_samples=num_samples, rng=seed)
    if n_obs < min(size[0], num_samples):
        with pytest.raises(InvalidValueError, match=f"num_samples={n_obs}"):
            sampler.validate(n_obs)
        return
    batches = sampled(sampler, n_obs)
    rows = joined(batches)
    assert len(rows) == num_samples
    assert len(batches) == sampler.n_batches(n_obs) == -(-num_samples // size[2])
    assert 0 <= min(rows) <= max(rows) < n_obs


def test_replacement_reaches_all_rows_about_equally_often() -> None:
    sampler = RandomSampler(10, 100, 1000, replacement=True, num_samples=200_000, rng=1)
    counts = np.bincount(joined(sampled(sampler, 1000)), minlength=1000)[9:-9]
    # A row is hit by a draw with probability 10 / 991; five standard deviations.
    mean = 20_000 * 10 / 991
    assert abs(counts - mean).max() < 5 * np.sqrt(mean)


@given(sizes(), st.integers(2, 300), st.data())
def test_num_samples_without_replacement_takes_that_many_rows_once(
    size: tuple[int, int, int], n_obs: int, data: st.DataObject
) -> None:
    num_samples = data.draw(st.integers(1, n_obs))
    rows = joined(sampled(RandomSampler(*size, num_samples=num_samples), n_obs))
    assert len(rows) == len(set(rows)) == num_samples


@given(sizes(), masks(), st.data(), st.booleans(), st.booleans())
def test_a_saved_pass_goes_on_after_any_number_of_batches(
    size: tuple[int, int, int],
    rows: tuple[int, slice | None],
    data: st.DataObject,
    shuffle: bool,
    replacement: bool,
) -> None:
    n_obs, mask = rows

    def make() -> RandomSampler | SequentialSampler:
        if not shuffle:
            return SequentialSampler(*size, mask=mask)
        num_rows = len(range_of(n_obs, mask))
        can_replace = replacement and num_rows >= size[0]
        return RandomSampler(*size, mask=mask, replacement=can_replace)

    whole = sampled(make(), n_obs)
    sampler = make()
    consumed: list[np.ndarray] = []
    while len(consumed) < len(whole):
        left = len(whole) - len(consumed)
        num_batches = data.draw(st.integers(1, left))
        got = []
        for request in sampler.sample(n_obs):
            got += batches_of(request)
            if len(got) >= num_batches:
                break
        consumed += got[:num_batches]
        state = json.loads(json.dumps(sampler.state_dict(num_batches)))
        sampler = make()
        sampler.load_state_dict(state)
    assert [batch.tolist() for batch in consumed] == [batch.tolist() for batch in whole]
    assert len(sampled(sampler, n_obs)) == len(whole)
    assert sampler.epoch == 1


def test_without_a_number_the_state_counts_what_was_handed_out() -> None:
    sampler = RandomSampler(4, 5, 10, rng=3)
    requests = sampler.sample(200)
    seen = batches_of(next(requests)) + batches_of(next(requests))
    other = RandomSampler(4, 5, 10, rng=3)
    other.load_state_dict(sampler.state_dict())
    assert sorted(joined(seen) + joined(sampled(other, 200))) == list(range(200))


def test_another_batch_size_may_go_on() -> None:
    sampler = RandomSampler(4, 5, 10, rng=3)
    seen = batches_of(next(sampler.sample(203)))
    other = RandomSampler(4, 5, 4, rng=3)
    other.load_state_dict(sampler.state_dict())
    assert sorted(joined(seen) + joined(sampled(other, 203))) == list(range(203))


@pytest.mark.parametrize(
    "other",
    [
        RandomSampler(4, 5, 10, rng=4),
        RandomSampler(5, 4, 10, rng=3),
        RandomSampler(4, 10, 10, rng=3),
        RandomSampler(4, 5, 10, rng=3, mask=slice(0, 100)),
        RandomSampler(4, 5, 10, rng=3, replacement=True),
    ],
)
def test_a_state_of_another_sampler_is_refused(other: RandomSampler) -> None:
    sampler = RandomSampler(4, 5, 10, rng=3)
    next(sampler.sample(200))
    other.load_state_dict(sampler.state_dict())
    with pytest.raises(PlanMismatchError):
        next(other.sample(200))


def test_a_state_for_other_data_is_refused() -> None:
    sampler = RandomSampler(4, 5, 10, rng=3)
    next(sampler.sample(200))
    sampler.load_state_dict(sampler.state_dict())
    with pytest.raises(PlanMismatchError, match="num_samples was 200 and is 201"):
        next(sampler.sample(201))


@pytest.mark.parametrize("state", [{}, None, {"epoch": 0}, {"epoch": 1, "cursor": {}}])
def test_what_is_no_state_is_refused(state: object) -> None:
    with pytest.raises(CursorFormatError):
        RandomSampler(4, 5, 10).load_state_dict(state)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((4, 5, 3), r"4 \* 5 = 20 must be a multiple of batch_size=3"),
        ((4, 5, 40), r"4 \* 5 = 20 must be a multiple of batch_size=40"),
        ((0, 5, 3), "chunk_size=0 must be at least 1"),
        ((4, 0, 3), "preload_nchunks=0 must be at least 1"),
        ((4, 5, 0), "batch_size=0 must be at least 1"),
        ((4.5, 5, 1), "chunk_size=4.5 must be an integer"),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(
    size: tuple[int, int, int], message: str
) -> None:
    with pytest.raises(InvalidValueError, match=message):
        RandomSampler(*size)
    with pytest.raises(InvalidValueError, match=message):
        SequentialSampler(*size)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (slice(0, 100, 2), "without a step"),
        (slice(-5, None), "mask.start=-5"),
        (slice(0, -1), "mask.stop=-1"),
        (slice(50, 50), "at least one of"),
        (slice(0, 201), "mask.stop=201 must be at most n_obs=200"),
        (slice(200, None), "n_obs=200"),
        ([1, 2], "must be a slice"),
    ],
)
def test_a_mask_out_of_range_is_refused(mask: object, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        RandomSampler(4, 5, 10, mask=mask).validate(200)  # type: ignore[arg-type]


def test_more_samples_than_rows_are_refused_without_replacement() -> None:
    with pytest.raises(InvalidValueError, match="num_samples=201 must be at most 200"):
        RandomSampler(4, 5, 10, num_samples=201).validate(200)


def test_a_number_of_delivered_batches_beyond_the_pass_is_refused() -> None:
    sampler = RandomSampler(4, 5, 10)
    with pytest.raises(InvalidValueError, match="num_batches=1 must be 0"):
        sampler.state_dict(1)
    next(sampler.sample(200))
    with pytest.raises(InvalidValueError, match=r"num_batches=21 must be in \[0, 20\]"):
        sampler.state_dict(21)
