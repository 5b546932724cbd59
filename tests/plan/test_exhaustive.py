"""All small n, W and B: equal counts, exact accounting, the closed forms, and every resume."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
import pytest

from feedline.errors import EmptyEpochError, TailError
from feedline.plan import BucketPlan, EqualChunks, Plan, SamplePlan, Segment, Shuffled, WindowPlan
from feedline.plan.shares import TAILS
from plan_kinds import Account, same_batches, through_json

UP_TO_12 = range(1, 13)
SIZES = [(w, b) for w in UP_TO_12 for b in UP_TO_12]
# (chunk_size, preload); each n takes one of them, so that all tails see all of them.
CHUNKINGS = ((1, 1), (2, 2), (3, 1), (5, 3), (4, 2))


def shuffled(n: int, tail: str) -> Plan:
    return SamplePlan(order=Shuffled(num_samples=n, seed=n), tail=tail)


def windows(n: int, tail: str) -> Plan:
    chunk_size, preload = CHUNKINGS[n % len(CHUNKINGS)]
    chunks = EqualChunks(num_samples=n, chunk_size=chunk_size)
    return WindowPlan(chunks=chunks, preload=preload, tail=tail, seed=n)


def bucket_sizes(n: int) -> list[int]:
    """Two or three buckets, the sizes of which add up to n; one bucket for n = 1."""
    first, second = n // 2, n // 3
    return [size for size in (first, second, n - first - second) if size]


def buckets(n: int, tail: str) -> Plan:
    ends = [0, *np.cumsum(bucket_sizes(n)).tolist()]
    groups = {i: range(*ends[i : i + 2]) for i in range(len(ends) - 1)}
    mode = "interleaved" if n % 2 else "sequential"
    return BucketPlan.from_groups(groups, mode=mode, tail=tail, seed=n)


KINDS: dict[str, tuple[Callable[[int, str], Plan], Callable[[int], list[int]]]] = {
    "shuffled": (shuffled, lambda n: [n]),
    "windows": (windows, lambda n: [n]),
    "buckets": (buckets, bucket_sizes),
}


def kinds_and_tails(*tails: str) -> pytest.MarkDecorator:
    """Every kind of plan with every tail; those that are much like others are slow tests."""
    return pytest.mark.parametrize(
        ("kind", "tail"),
        [
            pytest.param(kind, tail, marks=[] if tail == "even" else [pytest.mark.slow])
            for kind in KINDS
            for tail in tails
        ],
    )


every_kind_and_tail = kinds_and_tails(*TAILS)


def counts(n: int, w: int, b: int, tail: str) -> tuple[int, int, int]:
    """The number of batches, of dropped samples and of padded entries, worked out by hand."""
    step = w * b
    match tail:
        case "drop":
            return n // step, n % step, 0
        case "exact":
            return n // step, 0, 0
        case "pad":
            return -(-n // step), 0, -n % step
        case "even":
            in_last = (n - 1) % step + 1
            return -(-n // step), 0, max(0, w - in_last)
        case "pad_ranks":
            per_rank = -(-n // w)
            return -(-per_rank // b), 0, per_rank * w - n
        case "pad_ranks_drop":
            full = -(-n // w) // b
            return full, max(0, n - full * step), max(0, full * step - n)
    raise AssertionError(tail)


def expected(sizes: list[int], w: int, b: int, tail: str) -> tuple[int, int, int]:
    """The same over all buckets: each has a tail of its own."""
    columns = zip(*(counts(n, w, b, tail) for n in sizes), strict=True)
    batches, dropped, padded = map(sum, columns)
    return batches, dropped, padded


def fresh_segments(
    kind: str, tail: str, sizes: Sequence[tuple[int, int]] = SIZES
) -> Iterator[tuple[int, Segment]]:
    """Every epoch that has a batch, for all n up to 12 and the given W and B."""
    make, sizes_of = KINDS[kind]
    for n in UP_TO_12:
        plan = make(n, tail)
        for w, b in sizes:
            fits = tail != "exact" or not any(size % (w * b) for size in sizes_of(n))
            if fits and expected(sizes_of(n), w, b, tail)[0]:
                yield n, plan.segment(world_size=w, batch_size=b)


@every_kind_and_tail
def test_counts_equal_their_closed_forms(kind: str, tail: str) -> None:
    for n, segment in fresh_segments(kind, tail):
        w, b = segment.world_size, segment.batch_size
        found = (segment.num_batches, segment.num_dropped, segment.num_padded)
        assert found == expected(KINDS[kind][1](n), w, b, tail), (n, w, b)


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_cover_every_sample_once(kind: str) -> None:
    check_cover(kind, "even", list(product((1, 2, 3, 5, 7, 12), repeat=2)))


@pytest.mark.slow
@every_kind_and_tail
def test_ranks_cover_every_sample_once_less_what_is_reported(kind: str, tail: str) -> None:
    check_cover(kind, tail, SIZES)


def check_cover(kind: str, tail: str, sizes: Sequence[tuple[int, int]]) -> None:
    for n, segment in fresh_segments(kind, tail, sizes):
        where = (n, segment.world_size, segment.batch_size)
        real: list[int] = []
        num_padded = 0
        for rank in range(segment.world_size):
            block = segment.block(rank, 0, segment.num_batches)
            marks = np.ones(len(block.indices), bool) if block.is_real is None else block.is_real
            real += block.indices[marks].tolist()
            num_padded += int((~marks).sum())
            assert set(block.indices.tolist()) <= set(range(n)), where
        assert len(set(real)) == len(real) == n - segment.num_dropped, where
        assert num_padded == segment.num_padded, where


@every_kind_and_tail
def test_every_rank_gets_as_many_batches_of_the_promised_length(kind: str, tail: str) -> None:
    for n, segment in fresh_segments(kind, tail, list(product((1, 2, 3, 5), repeat=2))):
        ranks = range(segment.world_size)
        blocks = [segment.block(rank, 0, segment.num_batches) for rank in ranks]
        lengths = np.array([np.diff(block.bounds) for block in blocks])
        where = (n, segment.world_size, segment.batch_size)
        assert lengths.shape == (segment.world_size, segment.num_batches), where
        assert lengths.min() >= 1, where
        assert lengths.max() <= segment.batch_size, where
        if tail in ("drop", "pad", "exact", "pad_ranks_drop"):
            assert (lengths == segment.batch_size).all(), where
        spread = 1 if tail == "even" else 0
        assert np.ptp(lengths, axis=0).max() <= spread, where


@pytest.mark.parametrize("kind", KINDS)
def test_exact_is_refused_exactly_when_something_is_left_over(kind: str) -> None:
    make, sizes_of = KINDS[kind]
    for n, (w, b) in product(UP_TO_12, SIZES):
        fits = not any(size % (w * b) for size in sizes_of(n))
        try:
            make(n, "exact").segment(world_size=w, batch_size=b)
            accepted = True
        except TailError:
            accepted = False
        assert accepted == fits, (n, w, b)


@kinds_and_tails(*(tail for tail in TAILS if tail != "exact"))
def test_a_fresh_epoch_is_refused_exactly_when_it_has_no_batch(kind: str, tail: str) -> None:
    make, sizes_of = KINDS[kind]
    for n, (w, b) in product(UP_TO_12, SIZES):
        try:
            make(n, tail).segment(world_size=w, batch_size=b)
            is_empty = False
        except EmptyEpochError:
            is_empty = True
        assert is_empty == (expected(sizes_of(n), w, b, tail)[0] == 0), (n, w, b)


@every_kind_and_tail
def test_resuming_after_any_batch_on_the_same_ranks_changes_nothing(kind: str, tail: str) -> None:
    segments = list(fresh_segments(kind, tail))
    for _, segment in random.Random(kind + tail).sample(segments, min(80, len(segments))):
        w, b = segment.world_size, segment.batch_size
        for done in range(segment.num_batches + 1):
            cursor = through_json(segment.cursor(done))
            resumed = segment.plan.resume(cursor, world_size=w, batch_size=b)
            assert resumed.num_done == done
            same_batches(segment, resumed, done)


@kinds_and_tails(*(tail for tail in TAILS if tail != "exact"))
def test_resuming_after_any_batch_on_other_ranks_accounts_for_every_sample(
    kind: str, tail: str
) -> None:
    chance = random.Random(kind + tail)
    segments = list(fresh_segments(kind, tail))
    for _, segment in chance.sample(segments, min(80, len(segments))):
        for done in range(segment.num_batches + 1):
            account = Account(segment.plan, 0)
            account.receive(segment, 0, done)
            w, b = chance.choice(SIZES)
            cursor = through_json(segment.cursor(done))
            resumed = segment.plan.resume(cursor, world_size=w, batch_size=b)
            account.receive(resumed, resumed.num_done, resumed.num_batches)
            account.close(resumed)
