"""A feed hands out exactly the samples of its plan, in its order, whatever reads them ahead."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given

import feedline
from examples import few_examples
from feedline.errors import (
    CursorFormatError,
    DamagedDataError,
    InvalidValueError,
    PlanMismatchError,
    StoreError,
)
from feedline.feed import FedBatch, Feed, chunking_of
from feedline.feed.gathering import bytes_for
from feedline.plan import (
    BucketPlan,
    EqualChunks,
    FileSharesPlan,
    Mixture,
    Plan,
    SamplePlan,
    Sequential,
    Shuffled,
    UnequalChunks,
    WindowPlan,
)
from feedline.store import FolderStore, Lists, MemoryMatrix
from lazy_data import (
    WatchedStore,
    check_arrays,
    columns_for,
    file_name,
    flat,
    write_chunk,
    write_folder,
)
from reader_threads import Readers, readers_since_now, wait_until
from states import history_of

SIZES = [13, 40, 1, 0, 26, 33]
KINDS = ["shuffled", "window 1", "window 3", "mixture", "buckets", "file shares"]
ELASTIC = KINDS[:-1]


def make_plan(kind: str, sizes: list[int]) -> Plan:
    """A plan of one kind for a folder with such files; nothing is dropped by any."""
    total = sum(sizes)
    if kind == "shuffled":
        return SamplePlan(order=Shuffled(num_samples=total, seed=3), tail="even")
    if kind == "mixture":
        parts = [total - total // 3, total // 3] if total >= 3 else [total]
        order = Mixture(sizes=parts, weights=parts, seed=3)
        return SamplePlan(order=order, tail="even")
    if kind == "buckets":
        groups = {0: range(0, total - total // 2), 1: range(total - total // 2, total)}
        filled = {key: members for key, members in groups.items() if len(members)}
        return BucketPlan.from_groups(filled, mode="interleaved", tail="even", seed=3)
    if kind == "file shares":
        return FileSharesPlan(sizes=sizes, strategy="oversampling", seed=3)
    preload = int(kind.removeprefix("window "))
    return WindowPlan(chunks=UnequalChunks(sizes), preload=preload, tail="even", seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("feed") / "data", SIZES)


def make(folder: Path, kind: str = "window 1", **options: Any) -> Feed:
    store = FolderStore(folder)
    plan = make_plan(kind, store.chunk_sizes.tolist())
    return Feed(store, plan, **{"batch_size": 8, **options})


def ids_of(batch: FedBatch) -> list[int]:
    """The samples of a batch, all that they hold checked."""
    ids = check_arrays(batch.arrays)
    assert batch.indices.tolist() == ids
    assert len(batch.is_real) == len(ids)
    return ids


def batches_of(batches: Any) -> list[list[int]]:
    return [ids_of(batch) for batch in batches]


@pytest.fixture
def new_readers() -> Readers:
    """The threads that this test has started; a test that failed may have left others."""
    return readers_since_now()


# What comes.


@pytest.mark.parametrize("num_threads", [0, 1, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_the_plan_in_its_order(
    kind: str, num_threads: int, folder: Path
) -> None:
    plan = make_plan(kind, SIZES)
    one_batch = bytes_for(FolderStore(folder).columns, 8)
    for world_size, rank in [(1, 0), (3, 2)]:
        segment = plan.segment(world_size=world_size, batch_size=8)
        expected = list(segment.batches(rank))
        for budget in (one_batch, 2 * one_batch + 1, 7 * one_batch, 2**25):
            feed = make(
                folder,
                kind,
                world_size=world_size,
                rank=rank,
                num_threads=num_threads,
                memory_budget=budget,
            )
            assert len(feed) == len(expected)
            for batch, planned in zip(feed, expected, strict=True):
                assert ids_of(batch) == planned.indices.tolist()
                assert batch.is_real.tolist() == planned.is_real.tolist()
                assert (batch.number, batch.bucket) == (planned.number, planned.bucket)


@given(data=st.data())
def test_threads_and_budgets_change_nothing(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 15), min_size=1, max_size=6).filter(any))
    kind = data.draw(st.sampled_from(ELASTIC))
    batch_size = data.draw(st.integers(1, 40))
    with tempfile.TemporaryDirectory() as parent:
        folder = write_folder(Path(parent) / "data", sizes, "npy")
        one_batch = bytes_for(FolderStore(folder).columns, batch_size)
        feed = make(
            folder,
            kind,
            batch_size=batch_size,
            num_threads=data.draw(st.integers(0, 5)),
            memory_budget=data.draw(st.integers(one_batch, 20 * one_batch)),
        )
        segment = make_plan(kind, sizes).segment(world_size=1, batch_size=batch_size)
        assert batches_of(feed) == [batch.indices.tolist() for batch in segment.batches(0)]


@pytest.mark.parametrize("kind", ["shuffled", "window 1", "window 3", "mixture"])
@pytest.mark.parametrize("batch_size", [1, 7, 64, 200])
def test_all_but_the_last_batch_are_full_across_files(
    kind: str, batch_size: int, folder: Path
) -> None:
    sizes = [len(ids) for ids in batches_of(make(folder, kind, batch_size=batch_size))]
    assert sum(sizes) == sum(SIZES)
    assert set(sizes[:-1]) <= {batch_size}
    assert 1 <= sizes[-1] <= batch_size


def test_equal_files_are_looked_up_without_a_search_and_others_with_one(tmp_path: Path) -> None:
    for number, (sizes, kind) in enumerate(
        [
            ([4, 4, 4], EqualChunks),
            ([4, 4, 2], EqualChunks),
            ([5], EqualChunks),
            ([4, 2, 4], UnequalChunks),
            ([4, 4, 5], UnequalChunks),
            ([4, 4, 0], UnequalChunks),
            ([0, 4], UnequalChunks),
        ]
    ):
        store = FolderStore(write_folder(tmp_path / str(number), sizes, "npy"))
        chunking = chunking_of(store)
        assert isinstance(chunking, kind)
        chunks, rows = chunking.rows_of(np.arange(sum(sizes)))
        assert [(c, r) for c, size in enumerate(sizes) for r in range(size)] == list(
            zip(chunks.tolist(), rows.tolist(), strict=True)
        )


# Epochs and states.


def test_after_the_last_batch_the_state_stays_and_the_next_pass_is_the_next_epoch(
    folder: Path,
) -> None:
    feed = make(folder)
    first = batches_of(feed)
    state = feed.state_dict()
    assert (feed.epoch, state["epoch"]) == (0, 0)
    feed.set_epoch(0)
    assert feed.state_dict() == state
    second = batches_of(feed)
    assert feed.epoch == 1
    assert first != second
    assert sorted(flat(second)) == sorted(flat(first))
    resumed = make(folder)
    resumed.load_state_dict(state)
    assert batches_of(resumed) == second
    assert resumed.epoch == 1


def test_a_pass_that_is_broken_off_is_begun_again(folder: Path) -> None:
    feed = make(folder)
    first = batches_of(islice(feed, 3))
    again = batches_of(feed)
    assert again[:3] == first
    assert again == batches_of(make(folder))
    assert feed.epoch == 0


def test_setting_the_epoch_moves_only_to_another_one(folder: Path) -> None:
    feed = make(folder)
    list(islice(feed, 3))
    state = feed.state_dict()
    feed.set_epoch(0)
    assert feed.state_dict() == state
    feed.set_epoch(4)
    assert feed.epoch == feed.state_dict()["epoch"] == 4
    assert history_of(feed.state_dict()) == []
    fourth = batches_of(feed)
    other = make(folder)
    other.set_epoch(4)
    assert batches_of(other) == fourth
    feed.set_epoch(0)
    assert batches_of(feed) == batches_of(make(folder))


def test_an_older_pass_is_refused_once_the_feed_has_gone_on(folder: Path) -> None:
    feed = make(folder)
    older = iter(feed)
    next(older)
    newer = iter(feed)
    next(newer)
    next(newer)
    state = feed.state_dict()
    with pytest.raises(InvalidValueError, match="belongs to an earlier pass"):
        next(older)
    assert feed.state_dict() == state


@pytest.mark.parametrize("num_threads", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_state_counts_what_was_handed_out_and_not_what_was_read_ahead(
    kind: str, num_threads: int, folder: Path
) -> None:
    store = WatchedStore(FolderStore(folder))
    feed = Feed(store, make_plan(kind, SIZES), batch_size=4, num_threads=num_threads)
    passing = iter(feed)
    assert history_of(feed.state_dict()) == []
    for number, _ in enumerate(passing, start=1):
        assert history_of(feed.state_dict()) == [[1, 4, number]]
    assert store.num_reads


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_saved_at_any_batch_goes_on_there_with_other_sizes(kind: str, folder: Path) -> None:
    feed = make(folder, kind, world_size=2, rank=0)
    states = [feed.state_dict()]
    for _ in feed:
        states.append(json.loads(json.dumps(feed.state_dict())))
    ranks = [batches_of(make(folder, kind, world_size=2, rank=rank)) for rank in range(2)]
    masks = [
        [batch.is_real.tolist() for batch in make(folder, kind, world_size=2, rank=rank)]
        for rank in range(2)
    ]
    world_size = 2 if kind == "file shares" else 3
    for number, state in enumerate(states[:-1]):
        real = Counter(
            sample
            for ids, marks in zip(ranks, masks, strict=True)
            for batch, mask in zip(ids[:number], marks[:number], strict=True)
            for sample, is_real in zip(batch, mask, strict=True)
            if is_real
        )
        for rank in range(world_size):
            resumed = make(
                folder, kind, world_size=world_size, rank=rank, batch_size=5, num_threads=number % 3
            )
            resumed.load_state_dict(state)
            assert resumed.state_dict() == state
            for batch in resumed:
                ids_of(batch)
                real.update(batch.indices[batch.is_real].tolist())
            assert resumed.epoch == 0
        assert real == Counter(range(sum(SIZES))), f"after {number} batches"


folders = st.one_of(
    st.lists(st.integers(0, 12), min_size=1, max_size=7).filter(any),
    st.integers(1, 40).map(lambda size: [size]),
)
lives = st.tuples(
    st.integers(1, 5),  # ranks
    st.integers(1, 17),  # batch size
    st.integers(0, 2),  # threads
    st.integers(0, 6),  # batches up to the checkpoint
    st.integers(0, 3),  # batches after it, which a kill loses
)


@few_examples(1 / 2)
@given(folders, st.sampled_from(KINDS), st.lists(lives, max_size=5))
def test_killed_and_resized_runs_consume_every_sample_once(
    sizes: list[int], kind: str, runs: list[tuple[int, int, int, int, int]]
) -> None:
    real: Counter[int] = Counter()
    state: dict[str, Any] | None = None
    last = (runs[0][0] if kind == "file shares" and runs else 2, 3, 1, 10**6, 0)
    with tempfile.TemporaryDirectory() as parent:
        folder = write_folder(Path(parent) / "data", sizes, "npy")
        for world_size, batch_size, num_threads, num_batches, num_lost in [*runs, last]:
            if kind == "file shares":
                world_size = last[0]
            saved = []
            for rank in range(world_size):
                try:
                    feed = make(
                        folder,
                        kind,
                        world_size=world_size,
                        rank=rank,
                        batch_size=batch_size,
                        num_threads=num_threads,
                    )
                    if state is not None:
                        feed.load_state_dict(state)
                    passing = iter(feed)
                except InvalidValueError as error:
                    # Empty files alone cannot be repeated.
                    assume("no samples to repeat" not in str(error))
                    raise
                if feed.epoch:
                    # The epoch was over when the state was saved.
                    saved.append(state)
                    continue
                for batch in islice(passing, num_batches):
                    ids_of(batch)
                    real.update(batch.indices[batch.is_real].tolist())
                saved.append(json.loads(json.dumps(feed.state_dict())))
                list(islice(passing, num_lost))
                passing.close()
            assert all(other == saved[0] for other in saved), "the state is the same on every rank"
            state = saved[0]
        assert real == Counter(range(sum(sizes)))


@pytest.mark.parametrize(("batch_size", "world_size"), [(100, 1), (3, 9), (1, 12), (50, 7)])
@pytest.mark.parametrize("kind", ["shuffled", "window 1", "window 3"])
def test_more_ranks_than_files_and_batches_larger_than_files_lose_nothing(
    kind: str, batch_size: int, world_size: int, tmp_path: Path
) -> None:
    write_folder(tmp_path / "data", [7, 2, 0, 5])
    real: list[int] = []
    counts = set()
    for rank in range(world_size):
        feed = make(
            tmp_path / "data", kind, batch_size=batch_size, world_size=world_size, rank=rank
        )
        batches = list(feed)
        counts.add(len(batches))
        for batch in batches:
            ids_of(batch)
            real += batch.indices[batch.is_real].tolist()
    assert sorted(real) == list(range(14))
    assert len(counts) == 1


def test_a_state_of_other_data_is_refused_by_the_name_of_the_file(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", [9, 9, 9])
    feed = make(tmp_path / "data")
    list(islice(feed, 2))
    state = feed.state_dict()
    changed = columns_for(range(9, 18))
    changed["sequences/item"][4, 2] += 1
    write_chunk(tmp_path / "data" / file_name(1), changed)
    other = make(tmp_path / "data")
    before = other.state_dict()
    with pytest.raises(PlanMismatchError) as caught:
        other.load_state_dict(state)
    assert file_name(1) in str(caught.value)
    assert file_name(0) not in str(caught.value)
    assert file_name(2) not in str(caught.value)
    assert "data" in caught.value.differences
    assert other.state_dict() == before
    write_chunk(tmp_path / "data" / file_name(1), columns_for(range(9, 18)))
    restored = make(tmp_path / "data")
    restored.load_state_dict(state)


def test_a_state_of_another_plan_or_number_of_files_is_refused(tmp_path: Path) -> None:
    state = make(write_folder(tmp_path / "one", [9, 9, 9])).state_dict()
    with pytest.raises(PlanMismatchError, match="number of files"):
        make(write_folder(tmp_path / "two", [9, 9, 8, 1])).load_state_dict(state)
    with pytest.raises(PlanMismatchError, match="kind"):
        make(tmp_path / "one", "shuffled").load_state_dict(state)
    for wrong in (None, {}, {"cursor": 1}, {"cursor": {}}, [state]):
        with pytest.raises(CursorFormatError):
            make(tmp_path / "one").load_state_dict(wrong)  # type: ignore[arg-type]


def test_a_plan_for_more_samples_than_there_are_is_refused(folder: Path) -> None:
    plan = SamplePlan(order=Sequential(num_samples=sum(SIZES) + 1))
    with pytest.raises(InvalidValueError, match="make the plan for this store"):
        Feed(FolderStore(folder), plan, batch_size=2)


# Memory.


@pytest.mark.parametrize("num_threads", [0, 2, 5])
@pytest.mark.parametrize("kind", ["shuffled", "window 1"])
def test_batches_stay_as_they_are_while_they_are_held(
    kind: str, num_threads: int, folder: Path, new_readers: Readers
) -> None:
    feed = make(folder, kind, batch_size=4, num_threads=num_threads)
    held = [list(feed) for _ in range(3)]
    wait_until(lambda: not new_readers())
    for epoch, batches in enumerate(held):
        segment = make_plan(kind, SIZES).segment(world_size=1, batch_size=4, epoch=epoch)
        assert batches_of(batches) == [batch.indices.tolist() for batch in segment.batches(0)]


@pytest.mark.parametrize("num_threads", [0, 3])
@pytest.mark.parametrize("column", ["sequences/item", "sequences/price", "targets/item"])
def test_a_view_of_one_column_keeps_its_memory(column: str, num_threads: int, folder: Path) -> None:
    one_batch = bytes_for(FolderStore(folder).columns, 4)
    feed = make(folder, batch_size=4, num_threads=num_threads, memory_budget=6 * one_batch)
    views = []
    expected = []
    for _ in range(4):
        for batch in feed:
            if batch.number % 3 == 1:
                views.append(batch.arrays[column][1:3, ::2].T)
                expected.append(columns_for(batch.indices.tolist())[column][1:3, ::2].T)
            del batch
    for view, values in zip(views, expected, strict=True):
        np.testing.assert_array_equal(view, values)


def test_writing_to_a_batch_changes_no_other(folder: Path) -> None:
    feed = make(folder, batch_size=4)
    whole = batches_of(feed)
    feed.set_epoch(1)
    feed.set_epoch(0)
    for batch, ids in zip(feed, whole, strict=True):
        assert ids_of(batch) == ids
        for array in batch.arrays.values():
            array[:] = 0


def test_a_budget_below_one_batch_is_refused_with_both_numbers(folder: Path) -> None:
    needed = bytes_for(FolderStore(folder).columns, 8)
    with pytest.raises(InvalidValueError, match=f"memory_budget={needed - 1} .*{needed}"):
        next(iter(make(folder, memory_budget=needed - 1)))
    for wrong in ({"num_threads": -1}, {"memory_budget": 0}, {"num_threads": 1.5}):
        with pytest.raises(InvalidValueError, match=next(iter(wrong))):
            make(folder, **wrong)


@pytest.mark.parametrize("num_threads", [0, 1, 2, 5])
@pytest.mark.parametrize("num_batches", [1, 2, 3, 5, 12, 100])
def test_slabs_in_memory_stay_within_the_budget(
    num_threads: int, num_batches: int, tmp_path: Path
) -> None:
    store = WatchedStore(FolderStore(write_folder(tmp_path / "data", [300, 300], "npy")))
    plan = SamplePlan(order=Sequential(num_samples=600))
    one_batch = bytes_for(store.columns, 6)
    feed = Feed(
        store, plan, batch_size=6, num_threads=num_threads, memory_budget=num_batches * one_batch
    )
    count = 0
    for _ in feed:
        # The loop holds the batch before while the next is read.
        count += 1
        if num_threads and num_batches > 5 and count % 20 == 0:
            time.sleep(0.005)
    assert count == 100
    assert 0 < store.peak_bytes <= max(num_batches, 2) * one_batch


def test_batches_larger_than_the_batch_size_count_in_the_budget_too(tmp_path: Path) -> None:
    """A cost below the base cost makes batches larger than `batch_size`."""
    store = WatchedStore(FolderStore(write_folder(tmp_path / "data", [300, 300], "npy")))
    plan = BucketPlan.from_groups(
        {1: range(600)}, cost=lambda key: 1, base_cost=10.0, shuffle_within=False, tail="even"
    )
    one_batch = bytes_for(store.columns, 6)
    feed = Feed(store, plan, batch_size=6, num_threads=2, memory_budget=12 * one_batch)
    try:
        sizes = [len(batch.indices) for batch in feed]
    except InvalidValueError:
        # To refuse it, as with a batch size that is too large, would be as good.
        return
    assert sum(sizes) == 600
    # Two batches of 60 are the least that a loop can hold.
    assert store.peak_bytes <= max(12 * one_batch, 2 * bytes_for(store.columns, max(sizes)))


# Errors and ends.


@pytest.mark.parametrize("num_threads", [0, 1, 4])
@pytest.mark.parametrize("kind", ["shuffled", "window 1", "mixture"])
@pytest.mark.parametrize(
    "failure", [OSError(5, "bad sector"), ValueError("bad value"), DamagedDataError("bad file")]
)
def test_an_unreadable_chunk_fails_at_the_batch_that_needs_it(
    kind: str, num_threads: int, failure: Exception, folder: Path, new_readers: Readers
) -> None:
    store = WatchedStore(FolderStore(folder))
    bad, first = 4, sum(SIZES[:4])
    store.failures[bad] = [failure]
    plan = make_plan(kind, SIZES)
    feed = Feed(store, plan, batch_size=2, num_threads=num_threads)
    expected = [batch.indices for batch in plan.segment(world_size=1, batch_size=2).batches(0)]
    needs = [bool(np.any((ids >= first) & (ids < first + SIZES[bad]))) for ids in expected]
    num_good = needs.index(True)
    passing = iter(feed)
    received = batches_of(islice(passing, num_good))
    assert received == [ids.tolist() for ids in expected[:num_good]]
    for _ in range(3):
        with pytest.raises(StoreError, match="bad") as caught:
            next(passing)
        rows = [int(i) - first for i in expected[num_good] if first <= i < first + SIZES[bad]]
        assert f"{file_name(bad)}, row {rows[0]}" in str(caught.value)
    assert type(caught.value) is (type(failure) if isinstance(failure, StoreError) else StoreError)
    wait_until(lambda: not new_readers())
    assert history_of(feed.state_dict()) == ([[1, 2, num_good]] if num_good else [])
    store.failures.clear()
    feed.load_state_dict(feed.state_dict())
    assert batches_of(feed) == [ids.tolist() for ids in expected[num_good:]]


@pytest.mark.parametrize("num_threads", [0, 2])
def test_a_damaged_file_is_named_and_all_before_it_is_delivered(
    num_threads: int, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "data", [10, 10, 10])
    path = folder / file_name(2)
    path.write_bytes(path.read_bytes()[:-100])
    plan = SamplePlan(order=Sequential(num_samples=30))
    passing = iter(Feed(FolderStore(folder), plan, batch_size=3, num_threads=num_threads))
    assert batches_of(islice(passing, 6)) == [list(range(i, i + 3)) for i in range(0, 18, 3)]
    with pytest.raises(DamagedDataError, match=file_name(2)):
        next(passing)


@pytest.mark.parametrize("num_threads", [0, 2])
def test_an_interrupted_read_does_not_pass_over_batches(
    num_threads: int, folder: Path, new_readers: Readers
) -> None:
    store = WatchedStore(FolderStore(folder))
    store.failures[1] = [KeyboardInterrupt(), ...]  # type: ignore[list-item]
    plan = SamplePlan(order=Sequential(num_samples=sum(SIZES)))
    passing = iter(Feed(store, plan, batch_size=2, num_threads=num_threads))
    received: list[int] = []
    try:
        for batch in passing:
            received += ids_of(batch)
    except KeyboardInterrupt:
        try:
            for batch in passing:
                received += ids_of(batch)
        except KeyboardInterrupt:
            pass
    assert received == list(range(len(received))), "batches were passed over"
    passing.close()
    wait_until(lambda: not new_readers())


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_an_error_in_the_loop_ends_the_threads(
    error: type[BaseException], folder: Path, new_readers: Readers
) -> None:
    feed = make(folder, batch_size=1, num_threads=3)

    def loop() -> None:
        for batch in feed:
            if batch.number == 3:
                raise error

    with pytest.raises(error):
        loop()
    wait_until(lambda: not new_readers())
    assert history_of(feed.state_dict()) == [[1, 1, 4]]


def test_break_del_and_close_end_the_threads(folder: Path, new_readers: Readers) -> None:
    feed = make(folder, batch_size=1, num_threads=3)
    for batch in feed:
        if batch.number == 3:
            assert new_readers()
            break
    wait_until(lambda: not new_readers())
    passing = iter(feed)
    next(passing), next(passing)
    assert new_readers()
    del passing
    wait_until(lambda: not new_readers())
    passing = iter(feed)
    next(passing), next(passing)
    passing.close()
    wait_until(lambda: not new_readers())
    assert next(passing, None) is None
    with feed:
        pass
    assert batches_of(feed)[0] == batches_of(make(folder, batch_size=1))[0]


SCRIPT = """
import os, signal, sys
from feedline.feed import Feed
from feedline.plan import SamplePlan, Shuffled
from feedline.store import FolderStore, Lists, MemoryMatrix

store = FolderStore(sys.argv[1])
plan = SamplePlan(order=Shuffled(num_samples=store.num_samples), tail="even")
feed = Feed(store, plan, batch_size=2, num_threads=int(sys.argv[2]))
passing = iter(feed)
held = [next(passing) for _ in range(3)]
if sys.argv[3] == "in a function":
    def use():
        inner = iter(feed)
        next(inner), next(inner)
        sys.exit(0)
    use()
if sys.argv[3] == "in a cycle":
    cycle = [iter(feed)]
    cycle.append(cycle)
    next(cycle[0]), next(cycle[0])
    del cycle
"""


@pytest.mark.parametrize("num_threads", [pytest.param(0, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("how", ["in the module", "in a function", "in a cycle"])
def test_a_process_ends_quietly_with_an_unfinished_pass(
    how: str, num_threads: int, folder: Path
) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, str(folder), str(num_threads), how],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        ([1, 2], "feedline.pack"),
        (None, "feedline.pack"),
        (np.arange(5), "feedline.pack"),
        ({"x": np.arange(5)}, "feedline.pack"),
        ("data", r"feedline\.open\('data'\)"),
        (MemoryMatrix(np.zeros((4, 2))), "feedline.store.MatrixSamples"),
    ],
)
def test_what_is_not_a_store_is_refused_with_what_to_do(value: Any, remedy: str) -> None:
    with pytest.raises(InvalidValueError, match=rf"store=.* must be a store.*; .*{remedy}"):
        feedline.DataLoader(value)
    plan = SamplePlan(order=Sequential(num_samples=2))
    with pytest.raises(InvalidValueError, match=rf"store=.* must be a store.*; .*{remedy}"):
        Feed(value, plan, batch_size=1)


def test_lists_that_the_loop_keeps_are_never_overwritten(tmp_path: Path) -> None:
    # Large enough that their memory is used again.
    numbers = np.arange(400)
    lists = Lists.of([[number] * (500 + number % 7) for number in range(400)], dtype=np.int64)
    feedline.pack({"id": numbers, "x": lists}, tmp_path / "data", chunk_samples=50, format="npy")
    loader = feedline.DataLoader(feedline.open(tmp_path / "data"), 20, shuffle=True)
    kept = [batch for number, batch in enumerate(loader) if number % 3]
    for batch in kept:
        for number, values in zip(batch["id"].tolist(), batch["x"], strict=True):
            assert values.tolist() == [number] * (500 + number % 7)
