"""Skips where something else happens to a loader, and what cannot be skipped."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from clock_loaders import ids_of
from feedline.errors import DesyncError, InvalidValueError, PlanMismatchError
from feedline.feed import Alone, Position, as_loader
from feedline.plan import Mixture, SamplePlan, Sequential
from feedline.steps import StepScheduler
from feedline.store import pack
from feedline.torch import DataLoader, FolderConfig, LazyFolderDataset, to_device
from loader_data import Ids
from thread_peers import ThreadPeers, on_ranks


def test_a_rank_that_was_not_told_of_a_skip_is_found_before_the_first_batch() -> None:
    def begin(peers: ThreadPeers) -> Any:
        position = Position(SamplePlan(order=Sequential(num_samples=40)), batch_size=2, peers=peers)
        position.load_state_dict(position.state_dict())
        if peers.rank == 1:
            position.skip_batches(2, after=3)
        return position.begin()

    for error in on_ranks(2, begin):
        assert isinstance(error, DesyncError)
        assert "skipped" in str(error)


def mixture() -> Position:
    plan = SamplePlan(order=Mixture(sizes=[30, 30], weights=[1, 1]), tail="even")
    return Position(plan, batch_size=4, peers=Alone())


def test_weights_may_change_before_and_behind_a_skip_but_not_before_one_ahead() -> None:
    position = mixture()
    position.skip_batches(2, after=3)
    with pytest.raises(InvalidValueError, match="before the batches that the run skips ahead"):
        position.reweight([3, 1], 1.0)
    # Also where the run has other sizes by now.
    resized = mixture()
    resized.batch_size = 5
    resized.load_state_dict(position.state_dict())
    with pytest.raises(InvalidValueError, match="before the batches that the run skips ahead"):
        resized.reweight([3, 1], 1.0)
    running = resized.begin()
    running.deliver(3)
    resized.load_state_dict(resized.state_dict())
    resized.reweight([3, 1], 1.0)
    with pytest.raises(InvalidValueError, match="while new weights wait for the next pass"):
        resized.skip_batches(1)
    left = resized.begin()
    # 15 samples came and 8 were skipped, so that the new weights begin at position 23.
    (change,) = left.segment.plan.changes
    assert change["position"] == 23
    assert left.segment.num_left_after(left.start) == 60 - 23


@pytest.mark.parametrize("strategy", ["exact", "oversampling", "undersampling"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_files_that_are_tied_to_ranks_are_skipped_on_the_same_ranks(
    strategy: str, num_workers: int, tmp_path: Any
) -> None:
    rows = np.arange(48)[:, None] + np.zeros(3, dtype=np.int64)
    pack({"sequences/item": rows, "targets/item": rows}, tmp_path / "data", chunk_samples=12)

    def make(batch_size: int = 4) -> DataLoader[Any]:
        config = FolderConfig(batch_size=batch_size, seed=5, sampling_strategy=strategy)
        dataset = LazyFolderDataset(tmp_path / "data", config, num_replicas=2, rank=1)
        return DataLoader(dataset, num_workers=num_workers)

    def ids(loader: DataLoader[Any]) -> list[Any]:
        return [batch[0]["item"][:, 0].tolist() for batch in loader]

    whole = ids(make())
    loader = make()
    loader.skip_batches(2, after=1)
    state = loader.state_dict()
    assert ids(loader) == whole[:1] + whole[3:]
    with pytest.raises(PlanMismatchError, match="skips some of the next 3 batches"):
        make(batch_size=2).load_state_dict(state)


def test_persistent_workers_learn_of_a_skip() -> None:
    options: dict[str, Any] = {"batch_size": 2, "shuffle": True, "seed": 3}
    whole = [ids_of(batch) for batch in DataLoader(Ids(40), **options)]
    workers = {"num_workers": 2, "persistent_workers": True}
    with DataLoader(Ids(40), **options, **workers) as loader:
        for number, _ in enumerate(loader):
            if number == 4:
                break
        loader.skip_batches(3, after=2)
        assert [ids_of(batch) for batch in loader] == whole[5:7] + whole[10:]
        assert len(list(loader)) == 20


def test_a_clock_may_load_the_state_that_a_skip_waits_for() -> None:
    def clock(loader: Any) -> StepScheduler:
        options: dict[str, Any] = {"num_epochs": 1, "preemption_signal": None, "peers": Alone()}
        return StepScheduler(dataloader=loader, **options)

    with clock(DataLoader(Ids(20), batch_size=2)) as first:
        for _ in first:
            if first.step == 2:
                state = first.state_dict()
    loader = DataLoader(Ids(20), batch_size=2)
    loader.skip_batches(4, after=1, on_load=True)
    with clock(loader) as again:
        again.load_state_dict(state)
        found = [(again.step, ids_of(batches[0])) for batches in again]
    assert found == [(3, [6, 7]), (4, [16, 17]), (5, [18, 19])]


def received(num_batches: int) -> Any:
    """The state of a loop that has received this many of ten batches."""
    loader = DataLoader(Ids(20), batch_size=2)
    loader.load_state_dict(loader.state_dict())
    batches = iter(loader)
    for _ in range(num_batches):
        next(batches)
    return loader.state_dict()


def test_every_skip_that_waits_for_a_state_is_done_when_it_is_loaded() -> None:
    expected = DataLoader(Ids(20), batch_size=2)
    expected.load_state_dict(received(2))
    waiting = DataLoader(Ids(20), batch_size=2)
    for num_batches, after in [(1, 5), (2, 1), (1, 2)]:
        expected.skip_batches(num_batches, after)
        waiting.skip_batches(num_batches, after, on_load=True)
    waiting.load_state_dict(received(2))
    assert waiting.state_dict() == expected.state_dict()
    assert [ids_of(batch)[0] for batch in waiting] == [4, 10, 16, 18]


def test_a_skip_that_does_not_fit_the_loaded_state_changes_nothing_and_waits_on() -> None:
    loader = DataLoader(Ids(20), batch_size=2)
    batches = iter(loader)
    next(batches)
    loader.skip_batches(1, on_load=True)
    loader.skip_batches(3, after=1, on_load=True)
    before = loader.state_dict()
    with pytest.raises(InvalidValueError, match="must be at most 0"):
        loader.load_state_dict(received(8))
    assert loader.state_dict() == before
    assert ids_of(next(batches)) == [2, 3]
    loader.load_state_dict(received(2))
    assert [ids_of(batch)[0] for batch in loader] == [6, 14, 16, 18]


def test_a_skip_here_leaves_the_one_that_waits_for_a_state() -> None:
    loader = DataLoader(Ids(20), batch_size=2)
    loader.skip_batches(4, on_load=True)
    loader.skip_batches(1)
    assert loader.num_batches_left() == 9
    loader.load_state_dict(received(2))
    assert [ids_of(batch)[0] for batch in loader] == [12, 14, 16, 18]


def test_a_skip_waits_for_a_saved_state_where_batches_were_copied_ahead() -> None:
    loader = to_device(DataLoader(Ids(20), batch_size=2), "cpu")
    batches = iter(loader)
    assert [ids_of(next(batches)) for _ in range(2)] == [[0, 1], [2, 3]]
    loader.skip_batches(4, on_load=True)
    loader.skip_batches(1)
    assert loader.num_batches_left() == 7
    assert copy.deepcopy(loader).num_batches_left() == 7
    loader.load_state_dict(received(2))
    assert [ids_of(batch)[0] for batch in loader] == [12, 14, 16, 18]


def test_a_skip_waits_for_a_saved_state_while_a_clock_continues_its_epoch() -> None:
    loader = DataLoader(Ids(20), batch_size=2)
    with StepScheduler(dataloader=loader, num_epochs=1, peers=Alone()) as clock:
        found = [ids_of(batches[0])[0] for _, batches in zip(range(2), clock, strict=False)]
        loader.skip_batches(4, on_load=True)
        found += [ids_of(batches[0])[0] for batches in clock]
    assert found == list(range(0, 20, 2))
    loader.load_state_dict(received(2))
    assert [ids_of(batch)[0] for batch in loader] == [12, 14, 16, 18]


def test_loaders_without_a_plan_refuse_to_skip() -> None:
    for loader in (as_loader([[1, 2], [3, 4]]), DataLoader(iterable(), batch_size=2)):
        with pytest.raises(InvalidValueError, match="has no plan, so nobody knows which samples"):
            loader.skip_batches(1)


def iterable() -> Any:
    from iterable_data import Counting

    return Counting(20)
