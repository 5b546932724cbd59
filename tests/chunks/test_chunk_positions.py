"""One position for a chunk sampler and its loader: breaks, masks, ranks, empty rests, records."""

from __future__ import annotations

import copy
import json
import pickle
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from chunk_requests import joined, sampled
from feedline.chunks import DistributedSampler, LoadRequest, RandomSampler, SequentialSampler
from feedline.errors import CursorFormatError, DesyncError, InvalidValueError, PlanMismatchError
from feedline.feed import Alone, ChunkBatch, ChunkLoader, Loader
from feedline.store import MemoryMatrix
from thread_peers import Room, ThreadPeers, on_ranks

NUM_ROWS = 103


def matrix(num_rows: int = NUM_ROWS, first: int = 0) -> MemoryMatrix:
    return MemoryMatrix(np.arange(first, first + 2 * num_rows).reshape(num_rows, 2))


def random_loader(num_ahead: int = 1, **options: Any) -> ChunkLoader:
    return ChunkLoader(matrix(), RandomSampler(4, 3, 6, rng=3, **options), num_ahead=num_ahead)


def shared_loader(rank: int, world_size: int, **options: Any) -> ChunkLoader:
    options = {"chunk_size": 4, "preload_nchunks": 3, "batch_size": 6, "rng": 3, **options}
    sampler = DistributedSampler(
        RandomSampler(**options), dist_info=lambda: (rank, world_size), shards="windows"
    )
    return ChunkLoader(matrix(), sampler)


def rows_of(batches: Any) -> list[list[int]]:
    return [batch.rows.tolist() for batch in batches]


# Breaking off and beginning again.


@pytest.mark.parametrize("num_ahead", [0, 1, 4, 50])
@pytest.mark.parametrize("num_taken", [0, 1, 5, 17])
def test_a_pass_that_is_broken_off_is_begun_again(num_ahead: int, num_taken: int) -> None:
    whole = rows_of(random_loader())
    loader = random_loader(num_ahead)
    assert rows_of(islice(loader, num_taken)) == whole[:num_taken]
    assert loader.num_batches_left() == len(whole) == 18
    assert rows_of(loader) == whole
    assert loader.epoch == 0
    assert rows_of(loader) != whole
    assert loader.epoch == 1


def test_after_its_last_batch_a_pass_has_ended_even_if_nobody_asks_for_one_more() -> None:
    loader = random_loader()
    batches = iter(loader)
    seen = rows_of(islice(batches, len(loader)))
    assert sorted(row for rows in seen for row in rows) == list(range(NUM_ROWS))
    assert next(iter(loader)).rows.tolist() != seen[0]
    assert loader.epoch == 1


def test_only_a_loaded_state_goes_on_in_the_middle_and_only_once() -> None:
    whole = rows_of(random_loader())
    loader = random_loader()
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    assert loader.num_batches_left() == len(whole) - 1
    assert rows_of(islice(loader, 2)) == whole[1:3]
    assert rows_of(loader) == whole


# One position.


def test_a_state_or_an_epoch_may_be_given_to_the_sampler_or_to_the_loader() -> None:
    whole = rows_of(random_loader())
    saved = random_loader()
    list(islice(saved, 4))
    for state in (saved.state_dict(), saved.sampler.state_dict()):
        for give_to in ("loader", "sampler", "sampler before"):
            sampler = RandomSampler(4, 3, 6, rng=3)
            if give_to == "sampler before":
                sampler.load_state_dict(state)
            loader = ChunkLoader(matrix(), sampler)
            if give_to != "sampler before":
                {"loader": loader, "sampler": sampler}[give_to].load_state_dict(state)
            assert rows_of(loader) == whole[4:]
    loader = random_loader()
    loader.sampler.set_epoch(3)
    assert loader.epoch == 3
    loader.set_epoch(5)
    assert loader.sampler.epoch == 5


def test_a_state_of_a_sampler_alone_goes_on_in_a_loader_and_back() -> None:
    whole = rows_of(random_loader())
    alone = RandomSampler(4, 3, 6, rng=3)
    next(alone.sample(NUM_ROWS))
    loader = random_loader()
    loader.load_state_dict(alone.state_dict())
    assert rows_of(islice(loader, 3)) == whole[2:5]
    alone.load_state_dict(loader.state_dict())
    assert joined(sampled(alone, NUM_ROWS)) == [row for rows in whole[5:] for row in rows]


def test_the_state_is_an_epoch_and_a_cursor_as_text() -> None:
    loader = random_loader()
    assert loader.sampler.state_dict() == {"epoch": 0, "cursor": None}
    next(iter(loader))
    for state in (loader.state_dict(), loader.sampler.state_dict(), loader.state_before(1)):
        assert state.keys() == {"epoch", "cursor"}
        assert json.loads(state["cursor"])["epoch"] == 0
    assert loader.state_before(1) == random_loader().state_dict()


def test_asking_for_counts_does_not_move_a_loaded_state() -> None:
    sampler = RandomSampler(4, 3, 6, rng=3)
    next(sampler.sample(NUM_ROWS))
    state = sampler.state_dict()
    other = RandomSampler(4, 3, 6, rng=3)
    other.load_state_dict(state)
    assert other.n_batches(50) == 9
    assert (other.n_batches_left(NUM_ROWS), other.n_batches(NUM_ROWS)) == (16, 18)
    with pytest.raises(PlanMismatchError, match="num_samples was 103 and is 50"):
        other.n_batches_left(50)
    assert other.state_dict() == state
    assert len(sampled(other, NUM_ROWS)) == 16


def test_a_copy_of_a_used_sampler_has_its_own_position_and_no_data() -> None:
    loader = random_loader()
    whole = rows_of(loader)
    sampler = copy.deepcopy(loader.sampler)
    assert len(pickle.dumps(loader.sampler)) < 4000
    assert pickle.loads(pickle.dumps(loader)).epoch == 0
    sampler.set_epoch(7)
    assert loader.epoch == 0
    again = pickle.loads(pickle.dumps(random_loader()))
    assert rows_of(again) == whole


# What a cursor is compared with.


@pytest.mark.parametrize("mask", [slice(0, 100), slice(3, None), slice(2, 102)])
def test_a_state_with_another_mask_is_refused(mask: slice) -> None:
    loader = random_loader(mask=slice(1, 101))
    list(islice(loader, 2))
    state = loader.state_dict()
    before = (other := random_loader(mask=mask)).state_dict()
    with pytest.raises(PlanMismatchError, match=f"mask.* was .* and is .*{mask.start or 100}"):
        other.load_state_dict(state)
    assert other.state_dict() == before
    alone = RandomSampler(4, 3, 6, rng=3, mask=mask)
    alone.load_state_dict(loader.sampler.state_dict())
    with pytest.raises(PlanMismatchError, match="mask"):
        next(alone.sample(NUM_ROWS))


def test_a_mask_that_says_the_same_in_another_way_is_the_same() -> None:
    loader = random_loader(mask=slice(3, None))
    whole = rows_of(loader)
    loader = random_loader(mask=slice(3, None))
    list(islice(loader, 2))
    other = random_loader(mask=slice(3, NUM_ROWS))
    other.load_state_dict(loader.state_dict())
    assert rows_of(other) == whole[2:]


def base_state(data: str) -> dict[str, Any]:
    """A state as loaders saved it before masks and data were part of the cursor."""
    sampler = RandomSampler(4, 3, 6, rng=3, mask=slice(1, 101))
    plan = sampler.plan(NUM_ROWS)
    cursor = plan.segment(world_size=1, batch_size=6).cursor(2).to_dict()
    return {"sampler": {"epoch": 0, "cursor": cursor}, "data": data}


def test_states_from_before_load_without_a_mask_and_refuse_other_data() -> None:
    whole = rows_of(random_loader(mask=slice(1, 101)))
    loader = random_loader(mask=slice(1, 101))
    loader.load_state_dict(base_state(matrix().fingerprint))
    assert rows_of(loader) == whole[2:]
    # They do not know their mask, so another one of as many rows is taken for it.
    random_loader(mask=slice(2, 102)).load_state_dict(base_state(matrix().fingerprint))
    with pytest.raises(PlanMismatchError, match="num_samples was 100 and is 99"):
        random_loader(mask=slice(1, 100)).load_state_dict(base_state(matrix().fingerprint))
    with pytest.raises(PlanMismatchError, match="the data has changed"):
        loader.load_state_dict(base_state(matrix(first=1).fingerprint))


def test_a_state_for_other_data_is_refused() -> None:
    loader = random_loader()
    next(iter(loader))
    other = ChunkLoader(matrix(first=1), RandomSampler(4, 3, 6, rng=3))
    with pytest.raises(PlanMismatchError, match="the data has changed"):
        other.load_state_dict(loader.state_dict())


@pytest.mark.parametrize("state", [{}, None, {"epoch": 0}, {"sampler": 3, "data": None}])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises((CursorFormatError, PlanMismatchError)):
        random_loader().load_state_dict(state)


# Counts.


def test_a_rest_without_a_batch_is_an_empty_pass_on_every_rank() -> None:
    # 103 rows of 1 rank: after 16 batches of 6, 7 rows are left; 2 ranks drop them.
    loader = ChunkLoader(matrix(), RandomSampler(4, 3, 6, rng=3, drop_last=True))
    list(islice(loader, 16))
    for rank in range(2):
        resumed = shared_loader(rank, 2, drop_last=True)
        resumed.load_state_dict(loader.state_dict())
        assert resumed.num_batches_left() == resumed.sampler.n_batches_left(NUM_ROWS) == 0
        assert rows_of(resumed) == []
        assert resumed.epoch == 0
        assert resumed.num_batches_left() == len(resumed) == 8
        assert len(rows_of(resumed)) == 8
        assert resumed.epoch == 1


def test_counts_are_right_after_loading_a_finished_epoch_on_other_sizes() -> None:
    loader = shared_loader(0, 2)
    for _ in loader:
        pass
    for world_size, batch_size in ((2, 6), (1, 6), (3, 4)):
        resumed = shared_loader(0, world_size, batch_size=batch_size)
        whole = len(resumed)
        resumed.load_state_dict(loader.state_dict())
        assert resumed.num_batches_left() == len(resumed) == whole
        assert len(rows_of(resumed)) == whole
        assert resumed.epoch == 1


# Ranks.


def test_ranks_that_would_all_get_all_rows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = RandomSampler(4, 3, 6)
    two = ThreadPeers(Room(2), 0)
    loader = ChunkLoader(matrix(), sampler, peers=two)
    for use in (iter, len, ChunkLoader.state_dict, ChunkLoader.num_batches_left):
        with pytest.raises(InvalidValueError, match="world_size=2 must be 1 for sampler=RandomSa"):
            use(loader)
    with pytest.raises(InvalidValueError, match=r"DistributedSampler.*num_replicas=1 and rank=0"):
        ChunkLoader(matrix(), sampler, num_replicas=2, rank=1).load_state_dict({})
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidValueError, match="WORLD_SIZE=2 means that 2 processes"):
        iter(ChunkLoader(matrix(), sampler))
    for options in ({"num_replicas": 1, "rank": 0}, {"peers": Alone()}):
        alone = ChunkLoader(matrix(), RandomSampler(4, 3, 6, rng=3), **options)
        assert sum(len(rows) for rows in rows_of(alone)) == NUM_ROWS
        assert alone.peers.world_size == 1
    assert shared_loader(1, 2).peers.world_size == 2
    with pytest.raises(InvalidValueError, match="DistributedSampler already knows the ranks"):
        ChunkLoader(matrix(), shared_loader(0, 2).sampler, peers=Alone())


def test_the_guard_compares_ranks_that_can_talk(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(peers: ThreadPeers, seeds: list[int], **options: Any) -> int:
        sampler = DistributedSampler(
            RandomSampler(4, 3, 6, rng=seeds[peers.rank]),
            dist_info=lambda: (peers.rank, 2),
            shards="windows",
        )
        sampler.position_for(NUM_ROWS).peers = peers
        return len(list(ChunkLoader(matrix(), sampler, **options)))

    assert on_ranks(2, lambda peers: run(peers, [1, 1])) == [9, 9]
    for told in on_ranks(2, lambda peers: run(peers, [1, 2])):
        assert isinstance(told, DesyncError)
        assert "plan.plan.plan.order.seed is 2 on rank 1" in str(told)
    assert on_ranks(2, lambda peers: run(peers, [1, 2], desync_guard=False)) == [9, 9]


# What a loader is.


def test_a_chunk_loader_is_a_loader_and_knows_what_it_delivered() -> None:
    loader = shared_loader(1, 2, mask=slice(10, 94))
    assert isinstance(loader, Loader)
    assert loader.delivered is None
    assert (loader.batch_size, loader.peers.rank, loader.peers.world_size) == (6, 1, 2)
    num_real = 0
    for number, batch in enumerate(loader):
        record = loader.delivered
        assert record is not None
        assert record.number == number
        assert record.ids is not None
        assert record.ids.tolist() == batch.rows.tolist()
        assert record.num_real == len(batch.rows)
        num_real += record.num_real_of_all_ranks or 0
    assert num_real == 84
    loader.close()


class Notes:
    """What was logged."""

    def __init__(self) -> None:
        self.ids: list[list[int]] = []
        self.events: list[str] = []

    def record(self, *, ids: Any, **_: Any) -> None:
        self.ids.append(ids.tolist())

    def event(self, name: str, /, **_: Any) -> None:
        self.events.append(name)


def test_a_log_gets_the_rows_of_every_batch() -> None:
    notes = Notes()
    loader = ChunkLoader(matrix(), RandomSampler(4, 3, 6, rng=3), log=notes)
    assert rows_of(loader) == notes.ids
    loader.close()
    assert notes.events == ["start", "epoch_end", "stop"]


def test_the_output_is_an_adapter() -> None:
    def total(batch: ChunkBatch) -> int:
        return int(batch.X.sum())

    sums = list(ChunkLoader(matrix(), SequentialSampler(4, 3, 6), output=total))
    assert sum(sums) == sum(range(2 * NUM_ROWS))
    with pytest.raises(InvalidValueError, match="output='dense' must be one of"):
        ChunkLoader(matrix(), SequentialSampler(4, 3, 6), output="dense")


class Elsewhere:
    """A sampler of another library: pairs of rows, in order."""

    batch_size = 2
    mask = slice(0, None)
    rng = None

    def sample(self, n_obs: int) -> Iterator[LoadRequest]:
        for first in range(n_obs)[self.mask][:-1:2]:
            yield {"requests": [slice(first, first + 2)], "splits": [np.arange(2)]}

    def n_iters(self, n_obs: int) -> int:
        return len(range(n_obs)[self.mask]) // 2

    def validate(self, n_obs: int) -> None:
        assert n_obs > 1


def test_a_sampler_of_another_library_iterates_and_has_a_length() -> None:
    loader = ChunkLoader(matrix(), Elsewhere())
    assert (len(loader), loader.batch_size, loader.epoch) == (51, 2, 0)
    for _ in range(2):
        for number, batch in enumerate(loader):
            assert batch.rows.tolist() == [2 * number, 2 * number + 1]
            assert loader.delivered is not None
            assert loader.delivered.number == number
            assert loader.delivered.num_real == 2
    for ask in (
        loader.state_dict,
        loader.num_batches_left,
        lambda: loader.state_before(0),
        lambda: loader.set_epoch(1),
        lambda: loader.load_state_dict({"epoch": 0, "cursor": None}),
        lambda: ChunkLoader(matrix(), Elsewhere(), log=Notes()),
    ):
        with pytest.raises(InvalidValueError, match="sampler=Elsewhere has no position"):
            ask()


def test_a_sampler_of_another_library_on_several_ranks_must_be_vouched_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidValueError, match="WORLD_SIZE=2"):
        iter(ChunkLoader(matrix(), Elsewhere()))
    loader = ChunkLoader(matrix(), Elsewhere(), num_replicas=2, rank=0)
    assert (loader.peers.world_size, len(list(loader))) == (2, 51)
    sampler: Any = Elsewhere()
    rows = []
    for rank in range(2):
        shared = DistributedSampler(sampler, dist_info=lambda rank=rank: (rank, 2))  # type: ignore[misc]
        loader = ChunkLoader(matrix(), shared)
        rows.append([row for batch in rows_of(loader) for row in batch])
        assert (loader.peers.world_size, len(loader)) == (2, 25)
        with pytest.raises(InvalidValueError, match="sampler=DistributedSampler has no position"):
            loader.state_dict()
    assert rows == [list(range(50)), list(range(50, 100))]


# Any sequence of interruptions.


@given(st.data())
def test_windows_survive_any_sequence_of_breaks_saves_and_resizes(data: st.DataObject) -> None:
    """Every row of an epoch comes once, whatever was broken off, reloaded or resized before."""
    num_rows = data.draw(st.integers(1, 90))
    chunk_size = data.draw(st.integers(1, 5))
    preload = data.draw(st.integers(1, 4))
    divisors = [n for n in range(1, chunk_size * preload + 1) if chunk_size * preload % n == 0]
    store = matrix(num_rows)
    start = data.draw(st.integers(0, num_rows - 1))

    def loaders(world_size: int, state: Any) -> list[ChunkLoader]:
        batch_size = data.draw(st.sampled_from(divisors))
        made = []
        for rank in range(world_size):
            sampler = DistributedSampler(
                RandomSampler(chunk_size, preload, batch_size, rng=1, mask=slice(start, None)),
                dist_info=lambda rank=rank: (rank, world_size),  # type: ignore[misc]
                shards="windows",
            )
            made.append(ChunkLoader(store, sampler, num_ahead=data.draw(st.integers(0, 2))))
            if state is not None:
                made[-1].load_state_dict(state)
        return made

    epoch = data.draw(st.integers(0, 3))
    ranks = loaders(data.draw(st.integers(1, 4)), None)
    for loader in ranks:
        loader.set_epoch(epoch)
    state, seen, most_ranks = ranks[0].state_dict(), Counter[int](), len(ranks)
    resumed = True
    for _ in range(data.draw(st.integers(1, 6))):
        lefts = {loader.num_batches_left() for loader in ranks}
        assert len(lefts) == 1
        num_left = lefts.pop()
        assert all(loader.epoch == epoch for loader in ranks)
        if all(loader.position.has_ended() for loader in ranks):
            break
        if not resumed:
            # What was broken off restarts: nothing of this epoch counts as seen.
            assert num_left == len(ranks[0])
            seen, most_ranks = Counter(), len(ranks)
        num_batches = data.draw(st.integers(0, num_left))
        taken = [list(islice(iter(loader), num_batches)) for loader in ranks]
        what = data.draw(st.sampled_from(["break", "save", "resize"]))
        resumed = what != "break"
        if what == "break" and num_batches < num_left:
            continue
        state = ranks[0].state_dict()
        assert all(loader.state_dict() == state for loader in ranks)
        seen.update(row for batches in taken for rows in rows_of(batches) for row in rows)
        if what != "break":
            ranks = loaders(data.draw(st.integers(1, 4)) if what == "resize" else len(ranks), state)
            most_ranks = max(most_ranks, len(ranks))
    else:
        ranks = loaders(1, state) if resumed else ranks
        if not resumed and not ranks[0].position.has_ended():
            seen, most_ranks = Counter(), len(ranks)
        if not ranks[0].position.has_ended():
            seen.update(row for loader in ranks for rows in rows_of(loader) for row in rows)
    assert set(seen) == set(range(start, num_rows))
    # Fewer rows left than ranks are repeated, so that all ranks have a last batch.
    assert seen.total() - (num_rows - start) < most_ranks
