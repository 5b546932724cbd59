"""A sampler shared out to ranks: equal counts, disjoint rows, nothing unseen with windows."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from chunk_requests import batches_of, joined, sampled
from feedline.chunks import (
    ClassSampler,
    DistributedSampler,
    LoadRequest,
    RandomSampler,
    Sampler,
    SequentialSampler,
)
from feedline.errors import FeedlineError, InvalidValueError, PlanMismatchError
from feedline.plan import Place, Segment
from plan_kinds import check_num_real


def ranks_of(sampler: Sampler, world_size: int, **options: object) -> list[DistributedSampler]:
    return [
        DistributedSampler(sampler, dist_info=lambda rank=rank: (rank, world_size), **options)  # type: ignore[misc, arg-type]
        for rank in range(world_size)
    ]


@given(
    st.integers(1, 5),
    st.integers(60, 400),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, slice(7, 55), slice(3, None)]),
)
def test_contiguous_shards_are_the_documented_ones(
    world_size: int, n_obs: int, equal: bool, shuffle: bool, mask: slice | None
) -> None:
    kind = RandomSampler if shuffle else SequentialSampler
    inner = kind(2, 6, 4, mask=mask)
    rows = list(range(n_obs))[mask or slice(None)]
    size = len(rows) // world_size
    size -= size % 4 if equal else 0
    for rank, sampler in enumerate(ranks_of(inner, world_size, enforce_equal_batches=equal)):
        batches = sampled(sampler, n_obs)
        assert sorted(joined(batches)) == rows[rank * size : (rank + 1) * size]
        assert len(batches) == sampler.n_batches(n_obs) == sampler.n_iters(n_obs)
        assert not equal or all(len(batch) == 4 for batch in batches)


@given(
    st.integers(1, 6),
    st.integers(40, 400),
    st.booleans(),
    st.sampled_from([None, slice(7, 38), slice(3, None)]),
    st.integers(0, 3),
)
def test_windows_leave_no_row_unseen_and_counts_equal(
    world_size: int, n_obs: int, shuffle: bool, mask: slice | None, epoch: int
) -> None:
    kind = RandomSampler if shuffle else SequentialSampler
    ranks = ranks_of(kind(2, 6, 4, mask=mask), world_size, shards="windows")
    rows = list(range(n_obs))[mask or slice(None)]
    batches = []
    for sampler in ranks:
        sampler.set_epoch(epoch)
        batches.append(sampled(sampler, n_obs))
    assert len({len(of_rank) for of_rank in batches}) == 1
    assert len(batches[0]) == ranks[0].n_batches(n_obs)
    seen = joined([batch for of_rank in batches for batch in of_rank])
    assert sorted(set(seen)) == rows
    # Fewer rows than ranks in the last batch are repeated, so that all ranks have it.
    assert len(seen) - len(rows) < world_size
    assert len(seen) == len(rows) or 0 < len(rows) % (4 * world_size) < world_size


def test_with_windows_ranks_get_other_rows_in_other_epochs() -> None:
    sampler = ranks_of(RandomSampler(2, 6, 4), 3, shards="windows")[0]
    first, second = (set(joined(sampled(sampler, 600))) for _ in range(2))
    assert first != second
    assert len(first | second) > 300


@given(st.data(), st.integers(30, 200))
def test_windows_go_on_with_any_number_of_ranks(data: st.DataObject, n_obs: int) -> None:
    inner = RandomSampler(2, 6, 4, rng=5)
    seen: list[int] = []
    state = None
    for _ in range(data.draw(st.integers(1, 4))):
        world_size = data.draw(st.integers(1, 5))
        ranks = ranks_of(inner, world_size, shards="windows")
        passes = []
        for sampler in ranks:
            if state is not None:
                sampler.load_state_dict(state)
            # An epoch that has ended would begin the next one.
            has_ended = sampler.position_for(n_obs).has_ended()
            passes.append([] if has_ended else sampled(copy.deepcopy(sampler), n_obs))
        num_batches = data.draw(st.integers(0, len(passes[0])))
        if num_batches == 0:
            continue
        for sampler, batches in zip(ranks, passes, strict=True):
            seen += joined(batches[:num_batches])
            next(sampler.sample(n_obs))
        states = [sampler.state_dict(num_batches) for sampler in ranks]
        assert all(other == states[0] for other in states)
        state = json.loads(json.dumps(states[0]))
    for sampler in ranks_of(inner, 2, shards="windows"):
        if state is not None:
            sampler.load_state_dict(state)
        if not sampler.position_for(n_obs).has_ended():
            seen += joined(sampled(sampler, n_obs))
    # Fewer rows left than ranks are repeated, so that all of up to five have as many.
    assert set(seen) == set(range(n_obs))
    assert len(seen) - n_obs < 5


@given(st.integers(1, 4), st.integers(80, 200), st.data())
def test_contiguous_shards_go_on_with_as_many_ranks_only(
    world_size: int, n_obs: int, data: st.DataObject
) -> None:
    for sampler in ranks_of(RandomSampler(2, 6, 4), world_size):
        whole = sampled(copy.deepcopy(sampler), n_obs)
        num_batches = data.draw(st.integers(1, len(whole) - 1))
        next(sampler.sample(n_obs))
        state = sampler.state_dict(num_batches)
        resumed = ranks_of(RandomSampler(2, 6, 4), world_size)[sampler.rank]
        resumed.load_state_dict(state)
        assert joined(sampled(resumed, n_obs)) == joined(whole[num_batches:])
        other = ranks_of(RandomSampler(2, 6, 4), world_size + 1)[0]
        other.load_state_dict(state)
        with pytest.raises(PlanMismatchError, match="shards='windows'"):
            next(other.sample(n_obs))


@given(st.integers(1, 5), st.integers(60, 300), st.booleans(), st.sampled_from("SRDC"), st.data())
def test_shards_count_real_rows_and_what_is_left_as_their_blocks_do(
    world_size: int, n_obs: int, equal: bool, kind: str, data: st.DataObject
) -> None:
    inner = {
        "S": SequentialSampler(2, 6, 4),
        "R": RandomSampler(2, 6, 4, rng=1),
        "D": RandomSampler(2, 6, 4, replacement=True, num_samples=data.draw(st.integers(1, 99))),
        "C": ClassSampler(2, 6, 4, classes=[0] * n_obs, num_samples=40),
    }[kind]
    plan = ranks_of(inner, world_size, enforce_equal_batches=equal)[0].plan(n_obs)
    segment = Segment(plan=plan, world_size=world_size, batch_size=4)
    done = data.draw(st.integers(0, segment.num_batches))
    # Batches divide what a class is drawn for.
    other_size = 2 if kind == "C" else 3
    rest = plan.resume(segment.cursor(done), world_size=world_size, batch_size=other_size)
    for part in (segment, rest):
        stop = data.draw(st.integers(0, part.num_batches))
        check_num_real(part, data.draw(st.integers(0, stop)), stop)
        num_entries = sum(
            len(part.block(r, 0, part.num_batches).indices) for r in range(world_size)
        )
        assert part.num_padded == num_entries - part.num_real(0, part.num_batches)
    if done:
        assert rest.num_left == segment.num_left_after(done)
        index = data.draw(st.integers(0, n_obs - 1))
        assert rest.find(index) == places_by_looking(rest, index)


def places_by_looking(segment: Segment, index: int) -> list[Place]:
    return sorted(
        Place(batch.number, rank, slot, bool(batch.is_real[slot]))
        for rank in range(segment.world_size)
        for batch in segment.batches(rank)
        for slot in np.flatnonzero(batch.indices == index).tolist()
    )


def test_the_wrapped_sampler_is_not_modified() -> None:
    inner = RandomSampler(2, 6, 4, rng=3)
    generator = inner.rng
    before = joined(sampled(copy.deepcopy(inner), 100))
    for shards in ("contiguous", "windows"):
        sampler = ranks_of(inner, 2, shards=shards)[1]
        sampler.n_batches(100)
        sampled(sampler, 100)
        sampler.mask = slice(10, 50)
        sampler.rng = np.random.default_rng(9)
    assert inner.mask == slice(0, None)
    assert inner.rng is generator
    assert joined(sampled(inner, 100)) == before


def test_mask_and_rng_of_the_wrapper_work() -> None:
    generator = np.random.default_rng(3)
    sampler = ranks_of(RandomSampler(2, 6, 4, mask=slice(20, 80), rng=generator), 2)[0]
    assert sampler.mask == slice(20, 80)
    assert sampler.rng is not None
    first = joined(sampled(sampler, 100))
    sampler.mask = slice(0, 60)
    assert min(joined(sampled(sampler, 100))) < 20
    sampler.mask = slice(20, 80)
    sampler.rng = np.random.default_rng(4)
    sampler.set_epoch(0)
    second = joined(sampled(sampler, 100))
    assert sorted(second) == sorted(first)
    assert second != first


def test_shards_of_two_ranks_never_share_a_stream() -> None:
    orders = set()
    for epoch in range(5):
        for sampler in ranks_of(RandomSampler(2, 6, 4), 4):
            sampler.set_epoch(epoch)
            rows = np.array(joined(sampled(sampler, 192)))
            orders.add(tuple((rows - rows.min()).tolist()))
    assert len(orders) == 20


class Backwards(Sampler):
    """A sampler from elsewhere: rows from the end to the front, in batches of two."""

    batch_size = 2  # type: ignore[assignment]
    shuffle = False  # type: ignore[assignment]

    def __init__(self) -> None:
        self._rng = np.random.default_rng(1)

    def n_batches(self, n_obs: int) -> int:
        return len(range(n_obs)[self.mask]) // 2

    def validate(self, n_obs: int) -> None:
        assert n_obs > 1

    def _sample(self, n_obs: int):  # type: ignore[no-untyped-def]
        rows = np.array(range(n_obs)[self.mask])[::-1]
        for first in range(0, len(rows) - 1, 2):
            yield LoadRequest(requests=rows[first : first + 2].copy(), splits=[np.arange(2)])


def test_samplers_from_elsewhere_are_shared_out_by_their_mask() -> None:
    inner = Backwards()
    ranks = ranks_of(inner, 2)
    assert [joined(sampled(sampler, 9)) for sampler in ranks] == [[3, 2, 1, 0], [7, 6, 5, 4]]
    assert [sampler.n_batches(9) for sampler in ranks] == [2, 2]
    assert inner.mask == slice(0, None)
    streams = [sampler.rng.random() for sampler in ranks if sampler.rng is not None]
    assert len(set(streams)) == 2
    with pytest.raises(InvalidValueError, match="shards='windows' needs one of Feedline's"):
        ranks_of(inner, 2, shards="windows")


def test_an_unknown_source_of_ranks_is_refused() -> None:
    inner = RandomSampler(2, 6, 4)
    with pytest.raises(InvalidValueError, match="dist_info='mpi' must be 'torch', 'jax' or"):
        DistributedSampler(inner, dist_info="mpi")  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match=r"rank=2 must be in \[0, 1\]"):
        DistributedSampler(inner, dist_info=lambda: (2, 2))
    with pytest.raises(InvalidValueError, match=r"must return \(rank, world_size\)"):
        DistributedSampler(inner, dist_info=lambda: 3)  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidValueError, match="shards='rows' must be one of"):
        ranks_of(inner, 2, shards="rows")


def test_an_uninitialized_framework_is_an_error_that_says_so() -> None:
    with pytest.raises(FeedlineError, match="init_process_group"):
        DistributedSampler(RandomSampler(2, 6, 4), dist_info="torch")


def test_too_many_ranks_are_refused_with_the_numbers() -> None:
    with pytest.raises(InvalidValueError, match="world_size=30 is too large to divide 100 rows"):
        ranks_of(RandomSampler(2, 6, 4), 30)[0].validate(100)


def test_no_framework_is_imported_unless_it_is_named() -> None:
    code = (
        "import sys\nfrom feedline.chunks import DistributedSampler, RandomSampler\n"
        "list(DistributedSampler(RandomSampler(2, 6, 4), dist_info=lambda: (0, 2)).sample(100))\n"
        "assert not {'torch', 'jax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@given(st.integers(1, 4), st.sampled_from(["contiguous", "windows"]))
def test_classes_are_shared_out_too(world_size: int, shards: str) -> None:
    labels = np.repeat([0, 1, 2, 1], [60, 80, 40, 60])
    inner = ClassSampler(4, 4, 8, classes=labels, num_samples=64 * world_size)
    counts = set()
    for sampler in ranks_of(inner, world_size, shards=shards):
        batches = [b for request in sampler.sample(240) for b in batches_of(request)]
        counts.add(len(batches))
        assert all(len(set(labels[batch])) == 1 for batch in batches)
    assert len(counts) == 1


def test_a_sampler_that_is_divided_already_is_refused_and_not_divided_twice() -> None:
    once = DistributedSampler(RandomSampler(2, 2, 2), dist_info=lambda: (0, 2))
    with pytest.raises(InvalidValueError, match="already divides the rows over the ranks"):
        DistributedSampler(once, dist_info=lambda: (0, 2))
    rows: Any = [1, 2]
    with pytest.raises(InvalidValueError, match=r"sampler=\[1, 2\] must be a chunk sampler"):
        DistributedSampler(rows, dist_info=lambda: (0, 2))
