"""The loader counts what the training loop received, whatever workers have read ahead."""

from __future__ import annotations

import json
import multiprocessing
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data

from bucket_data import BucketData
from feedline.errors import CursorFormatError, FeedlineError, InvalidValueError
from feedline.torch import DataLoader, DistributedSampler, MixtureSampler, SequentialBucketSampler
from loader_data import Ids, WholeBatches
from states import history_of

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

WORKERS = [0, 2, 4]


def make_sampler(kind: str, **options: Any) -> dict[str, Any]:
    """The loader's arguments for one kind of sampler, as rank 1 of 2."""
    if kind == "distributed":
        sampler = DistributedSampler(range(103), 2, 1, seed=5, **options)
        return {"dataset": Ids(103), "sampler": sampler, "batch_size": 4}
    if kind == "mixture":
        sampler = MixtureSampler([0, 60, 103], [2, 3], 2, 1, seed=5, **options)
        return {"dataset": Ids(103), "sampler": sampler, "batch_size": 4}
    data = BucketData([60, 43])
    sampler = SequentialBucketSampler(data, 4, num_replicas=2, rank=1, seed=5, **options)
    return {"dataset": data, "batch_sampler": sampler}


KINDS = ["distributed", "mixture", "buckets"]


def make(kind: str, num_workers: int = 0, **options: Any) -> DataLoader[Any]:
    if num_workers:
        options = {"prefetch_factor": 3, **options}
    return DataLoader(**make_sampler(kind), num_workers=num_workers, **options)


def batches_of(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_workers", WORKERS)
def test_state_after_k_received_batches_says_k_and_resumes_there(
    kind: str, num_workers: int
) -> None:
    whole = batches_of(make(kind))
    loader = make(kind, num_workers)
    received = []
    states = []
    for batch in loader:
        received.append(batch.tolist())
        states.append(json.loads(json.dumps(loader.state_dict())))
    assert received == whole, "batches and their order do not depend on workers"
    entries = 1 if kind == "buckets" else 4
    for number, state in enumerate(states[:-1], start=1):
        assert history_of(state)[0][2] == number * entries
    for number in (1, 5, len(whole) - 1):
        resumed = make(kind, 0)
        resumed.load_state_dict(states[number - 1])
        assert resumed.state_dict() == states[number - 1]
        assert batches_of(resumed) == whole[number:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_ten_resumes_in_one_epoch_go_on_at_the_right_batch(num_workers: int) -> None:
    whole = batches_of(make("distributed"))
    received: list[list[int]] = []
    loader = make("distributed", num_workers)
    for count in (1, 1, 0, 2, 1, 0, 1, 1, 1, 1):
        received += [batch.tolist() for batch in islice(loader, count)]
        state = loader.state_dict()
        loader = make("distributed", num_workers)
        loader.load_state_dict(state)
    assert received + batches_of(loader) == whole


def test_the_epoch_advances_by_itself_when_a_pass_ends() -> None:
    loader = make("distributed")
    first, second = batches_of(loader), batches_of(loader)
    assert loader.epoch == 1
    assert first != second
    expected = make("distributed")
    expected.set_epoch(1)
    assert batches_of(expected) == second


def test_after_the_last_batch_the_state_stays_in_its_epoch_until_the_next_pass() -> None:
    loader = make("distributed")
    first = batches_of(loader)
    state = loader.state_dict()
    assert state["epoch"] == 0
    loader.set_epoch(0)
    assert loader.state_dict() == state, "the epoch that it is in does not move it"
    resumed = make("distributed")
    resumed.load_state_dict(state)
    second = batches_of(resumed)
    assert resumed.epoch == 1
    assert second == batches_of(loader) != first


def test_a_dropped_last_batch_does_not_make_an_empty_pass_after_a_resume() -> None:
    loader = make("distributed", drop_last=True)
    first = batches_of(loader)
    assert len(first) == len(loader) == 12
    resumed = make("distributed", drop_last=True)
    resumed.load_state_dict(loader.state_dict())
    assert len(batches_of(resumed)) == 12
    assert resumed.epoch == 1


def test_after_a_break_a_new_pass_restarts_the_epoch() -> None:
    loader = make("distributed")
    whole = batches_of(make("distributed"))
    for _ in loader:
        break
    assert batches_of(loader) == whole


def test_set_epoch_still_works() -> None:
    loader = make("distributed")
    list(islice(loader, 3))
    loader.set_epoch(7)
    assert loader.state_dict()["epoch"] == 7
    expected = make("distributed")
    expected.set_epoch(7)
    assert batches_of(loader) == batches_of(expected)


def test_an_iterator_that_was_dropped_ends_its_workers_while_the_loader_lives_on() -> None:
    before = set(multiprocessing.active_children())
    loader = make("distributed", 2)
    batches = iter(loader)
    next(batches)
    assert len(set(multiprocessing.active_children()) - before) == 2
    del batches
    assert set(multiprocessing.active_children()) <= before
    assert history_of(loader.state_dict()) == [[2, 1, 4]]


@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_persistent_workers_follow_epochs_and_states(start_method: str) -> None:
    plain = make("distributed")
    expected = [batches_of(plain) for _ in range(3)]
    loader = make("distributed", 2, persistent_workers=True, multiprocessing_context=start_method)
    assert batches_of(loader) == expected[0]
    assert batches_of(loader) == expected[1]
    list(islice(loader, 3))
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert batches_of(loader) == expected[2][3:]
    del loader


def test_another_batch_size_and_worker_count_continue_the_epoch() -> None:
    loader = make("distributed", 2)
    received = [i for batch in islice(loader, 6) for i in batch.tolist()]
    sampler = DistributedSampler(range(103), 2, 1, seed=5)
    resumed = DataLoader(Ids(103), batch_size=7, sampler=sampler)
    resumed.load_state_dict(loader.state_dict())
    received += [i for batch in resumed for i in batch.tolist()]
    assert received == list(DistributedSampler(range(103), 2, 1, seed=5))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_mask_marks_padding_so_that_an_evaluation_counts_each_sample_once(
    num_workers: int,
) -> None:
    counted: list[int] = []
    for rank in range(4):
        sampler = DistributedSampler(range(50), 4, rank, shuffle=False, drop_last=False)
        loader = DataLoader(
            Ids(50), batch_size=3, sampler=sampler, num_workers=num_workers, with_mask=True
        )
        for batch, is_real in loader:
            assert is_real.dtype == torch.bool
            assert len(is_real) == len(batch)
            counted += batch[is_real].tolist()
    assert sorted(counted) == list(range(50))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_whole_batches_are_fetched_at_once(num_workers: int) -> None:
    data = WholeBatches(np.arange(400, dtype=np.float32).reshape(100, 4))
    loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=num_workers)
    rows = torch.cat(list(loader))
    assert rows.shape == (100, 4)
    assert sorted(rows[:, 0].tolist()) == [4.0 * i for i in range(100)]
    if not num_workers:
        assert data.num_calls == 13


def test_pinning_is_passed_on() -> None:
    loader = make("distributed", pin_memory=torch.cuda.is_available())
    assert loader.pin_memory == torch.cuda.is_available()
    assert isinstance(loader, torch.utils.data.DataLoader)


def test_a_loader_without_a_sampler_makes_its_own() -> None:
    loader = DataLoader(Ids(20), batch_size=6, shuffle=True, seed=4)
    assert sorted(i for batch in loader for i in batch.tolist()) == list(range(20))
    in_order = DataLoader(Ids(20), batch_size=6)
    assert [i for batch in in_order for i in batch.tolist()] == list(range(20))


def test_a_plain_torch_loader_makes_the_samplers_state_run_ahead() -> None:
    """Documented: with workers, a sampler knows what was asked for, not what was received."""
    sampler = DistributedSampler(range(103), 2, 1, seed=5)
    loader = torch.utils.data.DataLoader(
        Ids(103), batch_size=4, sampler=sampler, num_workers=2, prefetch_factor=2
    )
    batches = iter(loader)
    next(batches)
    asked = history_of(sampler.state_dict())[0][2]
    assert asked > 4
    del batches


def test_what_cannot_work_is_refused() -> None:
    class Endless(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            yield 0

    with pytest.raises(InvalidValueError, match="Endless"):
        DataLoader(Endless())
    with pytest.raises(InvalidValueError, match="RandomSampler"):
        DataLoader(Ids(5), sampler=torch.utils.data.RandomSampler(Ids(5)))
    with pytest.raises(InvalidValueError, match="SequentialSampler"):
        DataLoader(
            Ids(5),
            batch_sampler=torch.utils.data.BatchSampler(
                torch.utils.data.SequentialSampler(Ids(5)), 2, False
            ),
        )
    loader = make("distributed")
    with pytest.raises(CursorFormatError):
        loader.load_state_dict(None)  # type: ignore[arg-type]
    with pytest.raises(FeedlineError):
        make("buckets").load_state_dict(loader.state_dict())


def test_torchs_batch_sampler_around_ours_is_fine() -> None:
    sampler = DistributedSampler(range(103), 2, 1, seed=5)
    batch_sampler = torch.utils.data.BatchSampler(sampler, 4, False)
    loader = DataLoader(Ids(103), batch_sampler=batch_sampler)
    first = [batch.tolist() for batch in islice(loader, 3)]
    resumed = make("distributed")
    resumed.load_state_dict(loader.state_dict())
    assert first + batches_of(resumed) == batches_of(make("distributed"))
