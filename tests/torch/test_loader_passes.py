"""Which pass an iterator belongs to, and when the next epoch begins, whatever the loop does."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
import torch.utils.data

from feedline.errors import CursorFormatError, InvalidValueError, PlanMismatchError
from feedline.torch import BucketBatchSampler, DataLoader, DistributedSampler, to_device
from iterable_data import Counting
from loader_data import FailsOnce, Ids, WholeBatches
from states import history_of


def make(**options: Any) -> DataLoader[Any]:
    sampler = DistributedSampler(range(40), 2, 0, seed=5)
    return DataLoader(Ids(40), **{"batch_size": 4, "sampler": sampler, **options})


def epoch_of(number: int) -> list[list[int]]:
    loader = make()
    loader.set_epoch(number)
    return [batch.tolist() for batch in loader]


def batches_of(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("wrap", [lambda loader: loader, lambda loader: to_device(loader, "cpu")])
def test_the_next_epoch_is_that_of_the_next_pass(wrap: Any) -> None:
    loader = wrap(make())
    assert loader.next_epoch == 0
    epochs = []
    for _ in loader:
        epochs.append(loader.next_epoch)
    # The last batch ends the epoch.
    assert epochs == [0, 0, 0, 0, 1]
    resumed = wrap(make())
    resumed.load_state_dict(loader.state_dict())
    assert (resumed.epoch, resumed.next_epoch) == (0, 1)
    next(iter(resumed))
    assert (resumed.epoch, resumed.next_epoch) == (1, 1)
    resumed.set_epoch(4)
    assert resumed.next_epoch == 4


def test_the_next_epoch_of_an_iterable_dataset_is_that_of_the_next_pass() -> None:
    loader = DataLoader(Counting(6), batch_size=2)
    next(iter(loader))
    assert loader.next_epoch == 0
    list(loader)
    assert loader.next_epoch == 1


def test_setting_the_epoch_on_the_sampler_works_as_with_torch() -> None:
    loader = make()
    for epoch in range(4):
        loader.sampler.set_epoch(epoch)
        assert batches_of(loader) == epoch_of(epoch)
        assert loader.epoch == epoch


def test_a_state_or_a_skip_given_to_the_sampler_is_not_lost() -> None:
    loader = make()
    list(islice(loader, 2))
    state = loader.sampler.state_dict()
    batches_of(loader)
    loader.sampler.load_state_dict(state)
    assert loader.state_dict() == {name: state[name] for name in ("epoch", "cursor")}
    assert loader.epoch == 0
    loader.sampler.set_epoch(1)
    loader.sampler.set_skip(8)
    assert batches_of(loader) == epoch_of(1)[2:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loop_that_stops_after_the_last_batch_goes_on_with_the_next_epoch(
    num_workers: int,
) -> None:
    loader = make(num_workers=num_workers)
    for epoch in range(3):
        batches = iter(loader)
        received = [next(batches).tolist() for _ in range(len(loader))]
        assert received == epoch_of(epoch)
        assert loader.epoch == epoch


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterator_whose_loader_was_moved_is_refused_and_not_left_uncounted(
    num_workers: int,
) -> None:
    loader = make(num_workers=num_workers)
    list(islice(loader, 3))
    state = loader.state_dict()
    moves = [
        lambda: loader.load_state_dict(state),
        lambda: loader.set_epoch(5),
        lambda: iter(loader),
        lambda: list(islice(loader.sampler, 3)),
    ]
    for move in moves:
        loader.load_state_dict(state)
        older = iter(loader)
        assert next(older).tolist() == epoch_of(0)[3]
        kept = move()
        with pytest.raises(InvalidValueError, match="belongs to an earlier pass"):
            next(older)
        del kept
    loader.load_state_dict(state)
    assert batches_of(loader) == epoch_of(0)[3:]


@pytest.mark.parametrize("log", [False, True])
def test_the_loop_may_go_on_after_a_batch_that_failed_with_a_log_too(
    log: bool, tmp_path: Any
) -> None:
    options = {"log": tmp_path / "logs"} if log else {}
    loader = DataLoader(FailsOnce(40, 20), batch_size=4, num_replicas=1, rank=0, **options)
    batches, received = iter(loader), []
    while len(received) < 9:
        try:
            received.append(next(batches).tolist())
        except RuntimeError:
            assert len(received) == 5
    assert received == [[*range(n, n + 4)] for n in range(0, 40, 4) if n != 20]
    assert next(batches, None) is None
    loader.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_that_failed_counts_as_passed_over_once_the_loop_goes_on(num_workers: int) -> None:
    sampler = DistributedSampler(range(40), 2, 0, shuffle=False)
    loader = DataLoader(FailsOnce(40, 20), batch_size=4, sampler=sampler, num_workers=num_workers)
    batches = iter(loader)
    received = [next(batches).tolist() for _ in range(2)]
    with pytest.raises(RuntimeError, match="sample 20"):
        next(batches)
    assert history_of(loader.state_dict()) == [[2, 1, 8]]
    received.append(next(batches).tolist())
    assert received[-1] == [24, 26, 28, 30]
    assert history_of(loader.state_dict()) == [[2, 1, 16]]


def test_without_a_batch_size_samples_come_one_by_one() -> None:
    ours = list(DataLoader(Ids(6), batch_size=None))
    theirs = list(torch.utils.data.DataLoader(Ids(6), batch_size=None))
    assert ours == theirs == list(range(6))
    rows = torch.arange(12.0).reshape(6, 2).numpy()
    one = next(iter(DataLoader(WholeBatches(rows), batch_size=None)))
    assert one.tolist() == [0.0, 1.0]


def test_a_sampler_in_the_wrong_place_is_told_where_it_belongs() -> None:
    lengths = BucketBatchSampler([1, 2, 3], batch_size=1, num_buckets=1)
    with pytest.raises(InvalidValueError, match="pass it as batch_sampler"):
        DataLoader(Ids(3), sampler=lengths)
    with pytest.raises(InvalidValueError, match="pass it as sampler"):
        DataLoader(Ids(3), batch_sampler=DistributedSampler(range(3)))


def test_a_state_that_contradicts_itself_or_the_seed_is_refused() -> None:
    loader = make()
    state = loader.state_dict()
    with pytest.raises(CursorFormatError, match="epoch=3 must be 0, the epoch of the cursor"):
        loader.load_state_dict({**state, "epoch": 3})
    with pytest.raises(PlanMismatchError, match="seed was 6 and is 5"):
        loader.load_state_dict({"epoch": 0, "seed": 6})


def test_a_guard_needs_a_timeout_above_zero() -> None:
    with pytest.raises(InvalidValueError, match="desync_timeout=-1"):
        DistributedSampler(range(3), desync_timeout=-1)


@pytest.mark.parametrize("change", [lambda data: data.append(8), lambda data: data.pop()])
def test_a_dataset_that_grows_or_shrinks_is_refused_at_the_next_pass(change: Any) -> None:
    data = list(range(8))
    loader = DataLoader(data, 4)
    assert sum(len(batch) for batch in loader) == 8
    change(data)
    with pytest.raises(InvalidValueError, match=r"but had 8 when .* make a new loader"):
        list(loader)
