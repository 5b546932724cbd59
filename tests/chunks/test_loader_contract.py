"""What a chunk loader promises, over matrices in zarr, for any sizes and any interruptions."""

from __future__ import annotations

import json
from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given

from chunk_runs import SIZES, Run, State, Store, place_of, take, write_stores
from examples import few_examples
from feedline.errors import PlanMismatchError

Stores = dict[tuple[str, int], Store]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return write_stores(tmp_path_factory.mktemp("stores"))


def draw_run(data: st.DataObject, stores: Stores, shards: str, world_size: int) -> Run:
    """A run that has a batch for each of so many ranks, even without incomplete ones."""
    kind = data.draw(st.sampled_from(["csr", "dense"]))
    chunk_size, preload = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 4))
    together = chunk_size * preload
    divisors = [size for size in range(1, together + 1) if together % size == 0]
    num_rows = data.draw(st.sampled_from(SIZES))
    batch_size = data.draw(st.sampled_from(divisors[-4:]))
    return Run(
        store=stores[kind, num_rows],
        chunk_size=chunk_size,
        preload=preload,
        batch_size=batch_size,
        shards=shards,
        shuffle=data.draw(st.booleans()),
        drop_last=data.draw(st.booleans()) and num_rows >= world_size * batch_size,
        equal=data.draw(st.booleans()),
    )


def go_through(
    data: st.DataObject, run: Run, world_sizes: list[int]
) -> list[tuple[int, list[list[int]]]]:
    """Go through epoch 0, on another number of ranks after each interruption.

    Returns the number of ranks and the rows of each, for every part of the way.
    """
    parts: list[tuple[int, list[list[int]]]] = []
    state: State | None = None
    for number, world_size in enumerate(world_sizes):
        loaders = run.loaders(world_size, data.draw(st.integers(0, 3)), state)
        places = {place_of(loader) for loader in loaders}
        assert len(places) == 1, "all ranks must have as many batches left"
        epoch, num_left = places.pop()
        if epoch > 0:
            # It had ended on the ranks before, and what these dropped does not come back.
            break
        is_last = number == len(world_sizes) - 1
        num_batches = num_left if is_last else data.draw(st.integers(0, num_left))
        num_lost = 0 if is_last else data.draw(st.integers(0, 3))
        taken = [take(run, loader, num_batches, num_lost) for loader in loaders]
        state = taken[0][1]
        assert all(other == state for _, other in taken)
        parts.append((world_size, [rows for rows, _ in taken]))
    return parts


@few_examples(1 / 2)
@given(st.data(), st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_windows_deliver_every_row_once_whatever_happens(
    stores: Stores, data: st.DataObject, world_sizes: list[int]
) -> None:
    run = draw_run(data, stores, "windows", max(world_sizes))
    parts = go_through(data, run, world_sizes)
    seen = Counter(row for _, ranks in parts for rows in ranks for row in rows)
    ended_on = parts[-1][0]
    if run.drop_last:
        assert set(seen.values()) <= {1}
        assert run.num_rows - len(seen) < ended_on * run.batch_size
    else:
        assert set(seen) == set(range(run.num_rows))
        # Fewer rows left than ranks are repeated, so that all ranks have a last batch.
        assert seen.total() - run.num_rows < max(world_size for world_size, _ in parts)


@few_examples(1 / 2)
@given(st.data(), st.integers(1, 5), st.integers(1, 4))
def test_contiguous_shards_are_delivered_once_whatever_happens(
    stores: Stores, data: st.DataObject, world_size: int, num_parts: int
) -> None:
    run = draw_run(data, stores, "contiguous", world_size)
    size = run.num_rows // world_size
    size -= size % run.batch_size if run.equal else 0
    assume(size > 0)
    parts = go_through(data, run, [world_size] * num_parts)
    num_dropped = size % run.batch_size if run.drop_last else 0
    for rank in range(world_size):
        rows = [row for _, ranks in parts for row in ranks[rank]]
        assert len(rows) == len(set(rows)) == size - num_dropped
        assert set(rows) <= set(range(rank * size, (rank + 1) * size))


def history_of(state: State) -> list[list[int]]:
    return list(json.loads(state["cursor"])["history"])


@few_examples(1 / 3)
@given(st.data(), st.integers(1, 3), st.sampled_from(["contiguous", "windows"]))
def test_the_state_counts_what_was_delivered_however_much_is_read_ahead(
    stores: Stores, data: st.DataObject, world_size: int, shards: str
) -> None:
    run = draw_run(data, stores, shards, world_size)
    assume(run.num_rows >= world_size * run.batch_size)
    num_left = place_of(run.loaders(world_size)[-1])[1]
    num_batches = data.draw(st.integers(0, num_left))
    taken = [
        take(run, run.loaders(world_size, num_ahead)[-1], num_batches, 0) for num_ahead in range(4)
    ]
    assert all(other == taken[0] for other in taken)
    counted = run.loaders(world_size)[-1].sampler
    next(counted.sample(run.num_rows))
    assert history_of(taken[0][1]) == history_of(counted.state_dict(num_batches))


@few_examples(1 / 3)
@given(st.data(), st.integers(1, 3), st.sampled_from(["contiguous", "windows"]))
def test_a_resumed_run_goes_on_as_if_it_had_not_been_interrupted(
    stores: Stores, data: st.DataObject, world_size: int, shards: str
) -> None:
    run = draw_run(data, stores, shards, world_size)
    assume(run.num_rows >= world_size * run.batch_size)
    whole = run.loaders(world_size)[-1]
    epochs = [[run.check(batch) for batch in whole] for _ in range(2)]
    assert len(whole) == len(epochs[0])
    num_batches = data.draw(st.integers(0, len(epochs[0])))
    _, state = take(run, run.loaders(world_size)[-1], num_batches, 0)
    resumed = run.loaders(world_size, state=state)[-1]
    # Where it was saved does not change until a batch has been delivered.
    assert resumed.state_dict() == state
    rest = epochs[0][num_batches:]
    if rest:
        assert [run.check(batch) for batch in resumed] == rest
    # At the end of an epoch the next one follows.
    assert [run.check(batch) for batch in resumed] == epochs[1]
    assert resumed.sampler.epoch == 1


@few_examples(1 / 2)
@given(st.data())
def test_a_used_loader_goes_back_to_a_state(stores: Stores, data: st.DataObject) -> None:
    run = draw_run(data, stores, "windows", 1)
    loader = run.loaders(1)[0]
    num_left = place_of(loader)[1]
    first, second = sorted(data.draw(st.tuples(*[st.integers(0, num_left)] * 2)))
    _, state = take(run, loader, first, 0)
    loader.load_state_dict(state)
    rest, _ = take(run, loader, second - first, 2)
    loader.load_state_dict(state)
    assert take(run, loader, second - first, 0)[0] == rest


def test_contiguous_shards_refuse_another_number_of_ranks(stores: Stores) -> None:
    run = Run(store=stores["csr", 83], chunk_size=4, preload=3, batch_size=6, shards="contiguous")
    _, state = take(run, run.loaders(3)[0], 2, 0)
    with pytest.raises(PlanMismatchError, match="world_size=2 must be 3"):
        run.loaders(2, state=state)


def test_a_state_can_be_saved_between_set_epoch_and_the_pass(stores: Stores) -> None:
    run = Run(store=stores["csr", 47], chunk_size=4, preload=3, batch_size=6, shards="windows")
    loader = run.loaders(1)[0]
    for _ in loader:
        pass
    loader.set_epoch(5)
    resumed = run.loaders(1, state=loader.state_dict())[0]
    assert [b.rows.tolist() for b in resumed] == [b.rows.tolist() for b in loader]
    assert resumed.sampler.epoch == 5


def test_an_epoch_that_could_not_begin_is_not_counted_as_seen(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(store=stores["csr", 47], chunk_size=4, preload=3, batch_size=6, shards="windows")
    loader = run.loaders(1)[0]
    for _ in loader:
        pass

    def fail(_: object) -> None:
        raise OSError("the disk is away")

    with monkeypatch.context() as patch:
        patch.setattr(loader.store, "fetch", fail)
        with pytest.raises(OSError, match="the disk is away"):
            next(iter(loader))
    resumed = run.loaders(1, state=loader.state_dict())[0]
    assert sorted(row for b in resumed for row in run.check(b)) == list(range(47))
    assert resumed.sampler.epoch == 1
