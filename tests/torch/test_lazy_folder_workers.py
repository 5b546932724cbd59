"""Workers change neither the batches nor their order, nor where the training loop is."""

from __future__ import annotations

import functools
import gc
import json
import os
import pickle
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data

import lazy_data
from feedline.errors import FeedlineError, InvalidValueError
from feedline.store import pack
from feedline.torch import DataLoader, FolderConfig, LazyFolderDataset
from feedline.torch.regions import Regions, SharedColumns
from forked import forked_run
from lazy_data import STEPS, check_batch, check_batches, file_name, write_chunk, write_folder
from states import history_of

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SIZES = [20, 7, 0, 33, 11, 30]
NUM_BATCHES = 26


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("workers") / "data", SIZES)


def make_data(folder: Path, **changes: Any) -> LazyFolderDataset:
    names = ("num_replicas", "rank", "shuffle")
    options = {name: changes.pop(name) for name in names if name in changes}
    return LazyFolderDataset(
        folder, FolderConfig(**{"batch_size": 4, "seed": 5, **changes}), **options
    )


def load(kind: str, dataset: LazyFolderDataset, num_workers: int = 0, **options: Any) -> Any:
    """A loader of ours, or of torch."""
    if num_workers:
        options = {"prefetch_factor": 3, **options}
    if kind == "ours":
        return DataLoader(dataset, num_workers=num_workers, **options)
    return torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=num_workers, **options)


@functools.cache
def epoch_of(folder: Path, epoch: int, **changes: Any) -> list[list[int]]:
    """The batches of an epoch, read in this process."""
    dataset = make_data(folder, **changes)
    dataset.set_epoch(epoch)
    return check_batches(dataset)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "waited a minute in vain"
        time.sleep(0.01)


def children() -> set[int]:
    """The processes that this one has started and that still run."""
    found = set()
    for task in Path("/proc/self/task").glob("*/children"):
        found |= {int(child) for child in task.read_text().split()}
    return found


def num_regions_mapped() -> int:
    return Path("/proc/self/maps").read_text().count("feedline-batches")


# Batches.


@pytest.mark.parametrize("kind", ["ours", pytest.param("torch", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("num_workers", "persistent"),
    [(0, False), (1, False), (3, False), (3, True)],
)
def test_workers_change_neither_the_batches_nor_their_order(
    kind: str, num_workers: int, persistent: bool, folder: Path
) -> None:
    dataset = make_data(folder)
    loader = load(kind, dataset, num_workers, persistent_workers=persistent)
    for epoch in (0, 7, 0):
        dataset.set_epoch(epoch)
        assert len(loader) == NUM_BATCHES
        assert check_batches(loader) == epoch_of(folder, epoch)
        assert dataset.epoch == epoch


def test_our_loader_yields_the_tuples_of_the_dataset(folder: Path) -> None:
    for num_workers in (0, 1):
        for batch in load("ours", make_data(folder), num_workers):
            assert type(batch) is tuple
            assert type(batch[0]) is type(batch[1]) is dict


@pytest.mark.parametrize("num_workers", [0, 2])
def test_our_loader_goes_to_the_next_epoch_by_itself(num_workers: int, folder: Path) -> None:
    loader = load("ours", make_data(folder), num_workers)
    for epoch in range(3):
        assert check_batches(loader) == epoch_of(folder, epoch)
        assert loader.epoch == epoch
    loader.set_epoch(9)
    assert check_batches(loader) == epoch_of(folder, 9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ours", "torch"])
def test_spawned_workers_follow_epochs_and_states_too(kind: str, folder: Path) -> None:
    dataset = make_data(folder)
    loader = load(kind, dataset, 2, multiprocessing_context="spawn", persistent_workers=True)
    assert check_batches(loader) == epoch_of(folder, 0)
    dataset.set_epoch(3)
    assert check_batches(loader) == epoch_of(folder, 3)
    other = make_data(folder)
    list(islice(other, 5))
    (loader if kind == "ours" else dataset).load_state_dict(other.state_dict())
    assert check_batches(loader) == epoch_of(folder, 0)[5:]


@pytest.mark.parametrize("kind", ["ours", pytest.param("torch", marks=pytest.mark.slow)])
@pytest.mark.parametrize("persistent", [False, True])
def test_more_workers_than_batches_is_fine(kind: str, persistent: bool, tmp_path: Path) -> None:
    write_folder(tmp_path / "data", [3, 2])
    dataset = make_data(tmp_path / "data")
    loader = load(kind, dataset, 5, persistent_workers=persistent)
    for epoch in range(3):
        dataset.set_epoch(epoch)
        assert check_batches(loader) == epoch_of(tmp_path / "data", epoch)


@pytest.mark.parametrize("strategy", ["exact", "oversampling", "undersampling"])
def test_documented_strategies_are_the_same_with_workers(strategy: str, tmp_path: Path) -> None:
    sizes = [9, 9, 9, 9] if strategy == "exact" else [9, 4, 2, 7]
    write_folder(tmp_path / "data", sizes)
    options = {"sampling_strategy": strategy, "num_replicas": 2, "rank": 1, "seq_length": 3}
    whole = check_batches(make_data(tmp_path / "data", **options), steps=3)
    for num_workers in (1, 3):
        loader = load("ours", make_data(tmp_path / "data", **options), num_workers)
        assert check_batches(loader, steps=3) == whole


@pytest.mark.parametrize("kind", ["safetensors", "npy"])
def test_other_formats_come_through_workers_too(kind: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "data", SIZES, kind)
    loader = load("ours", make_data(tmp_path / "data"), 2)
    assert check_batches(loader) == epoch_of(tmp_path / "data", 0)


@pytest.mark.parametrize("type_name", ["bfloat16", "uint16", "bool", "float16"])
def test_types_come_through_workers(type_name: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    values = torch.arange(20 * STEPS).reshape(20, STEPS) % 2
    typed = values.to(getattr(torch, type_name))
    write_chunk(
        folder / file_name(0), {"sequences/item": values, "sequences/x": typed, "targets/x": typed}
    )
    lazy_data.write_metadata(folder, [{"path": file_name(0), "samples": 20}])
    for sequences, targets, *_ in load("ours", make_data(folder), 1):
        assert sequences["x"].dtype == targets["x"].dtype == getattr(torch, type_name)
        assert torch.equal(sequences["x"].double(), sequences["item"].double())
        assert torch.equal(targets["x"].double(), sequences["item"].double())


# Where the loop is.


@pytest.mark.parametrize(
    ("num_workers", "persistent"), [(0, False), (2, False), (3, False), (2, True)]
)
def test_the_state_of_our_loader_counts_what_was_delivered(
    num_workers: int, persistent: bool, folder: Path
) -> None:
    options = {"prefetch_factor": 8, "persistent_workers": persistent} if num_workers else {}
    loader = load("ours", make_data(folder), num_workers, **options)
    for epoch in range(2):
        for number, _ in enumerate(loader, start=1):
            state = loader.state_dict()
            assert state["epoch"] == epoch
            assert history_of(state) == [[1, 4, number]]
        assert number == NUM_BATCHES


@pytest.mark.parametrize(
    ("num_workers", "persistent"), [(0, False), (1, False), (2, False), (2, True)]
)
def test_our_loader_goes_on_where_a_state_was_saved(
    num_workers: int, persistent: bool, folder: Path
) -> None:
    whole = epoch_of(folder, 1)
    loader = load("ours", make_data(folder), num_workers, persistent_workers=persistent)
    for number in (6, NUM_BATCHES - 1):
        loader.set_epoch(1)
        batches = iter(loader)
        received = check_batches(islice(batches, number))
        state = json.loads(json.dumps(loader.state_dict()))
        del batches
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        received += check_batches(loader)
        assert received == whole
        assert check_batches(loader) == epoch_of(folder, 2), "the next pass is the next epoch"


def test_a_state_saved_after_the_last_batch_goes_on_with_the_next_epoch(folder: Path) -> None:
    loader = load("ours", make_data(folder), 1)
    list(loader)
    resumed = load("ours", make_data(folder), 2)
    resumed.load_state_dict(loader.state_dict())
    assert check_batches(resumed) == epoch_of(folder, 1)
    assert resumed.epoch == 1


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_state_loaded_into_the_dataset_reaches_torchs_loader_for_one_pass(
    num_workers: int, persistent: bool, folder: Path
) -> None:
    source = make_data(folder)
    source.set_epoch(1)
    list(islice(source, 10))
    state = source.state_dict()
    dataset = make_data(folder)
    loader = load("torch", dataset, num_workers, persistent_workers=persistent)
    for _ in range(2):
        dataset.load_state_dict(state)
        assert dataset.epoch == 1
        assert check_batches(loader) == epoch_of(folder, 1)[10:]
        assert check_batches(loader) == epoch_of(folder, 1)
        dataset.set_epoch(2)
        assert check_batches(loader) == epoch_of(folder, 2)


def test_a_loaded_state_is_used_once_although_torch_is_seeded_again(folder: Path) -> None:
    source = make_data(folder)
    list(islice(source, 10))
    dataset = make_data(folder)
    loader = load("torch", dataset, 2)
    dataset.load_state_dict(source.state_dict())
    torch.manual_seed(7)
    assert check_batches(loader) == epoch_of(folder, 0)[10:]
    torch.manual_seed(7)
    assert check_batches(loader) == epoch_of(folder, 0)


def test_a_state_used_without_workers_is_not_used_again_with_them(folder: Path) -> None:
    source = make_data(folder)
    list(islice(source, 10))
    dataset = make_data(folder)
    dataset.load_state_dict(source.state_dict())
    assert check_batches(load("torch", dataset, 0)) == epoch_of(folder, 0)[10:]
    assert check_batches(load("torch", dataset, 2)) == epoch_of(folder, 0)


def test_a_state_used_with_workers_is_not_used_again_without_them(folder: Path) -> None:
    source = make_data(folder)
    list(islice(source, 10))
    dataset = make_data(folder)
    dataset.load_state_dict(source.state_dict())
    assert check_batches(load("torch", dataset, 2)) == epoch_of(folder, 0)[10:]
    assert check_batches(load("torch", dataset, 0)) == epoch_of(folder, 0)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_workers_of_torchs_loader_are_in_the_epoch_that_ours_has_reached(
    num_workers: int, folder: Path
) -> None:
    dataset = make_data(folder)
    ours = load("ours", dataset, num_workers)
    list(ours)
    list(ours)
    assert dataset.epoch == 1
    assert check_batches(load("torch", dataset, 2)) == epoch_of(folder, 1)


def test_the_dataset_says_that_only_the_loader_knows_when_there_are_workers(folder: Path) -> None:
    dataset = make_data(folder)
    batches = iter(load("torch", dataset, 2))
    next(batches)
    with pytest.raises(FeedlineError, match=r"feedline\.torch\.DataLoader.*num_workers=0"):
        dataset.state_dict()
    del batches
    dataset.set_epoch(4)
    assert dataset.state_dict()["epoch"] == 4


def test_the_dataset_knows_again_when_it_is_read_without_workers(folder: Path) -> None:
    dataset = make_data(folder)
    list(load("torch", dataset, 1))
    list(islice(dataset, 3))
    assert history_of(dataset.state_dict()) == [[1, 4, 3]]


Life = tuple[int, int, int, int]
SERIES: list[list[Life]] = [
    # Ranks, batch size, workers, batches up to the checkpoint.
    [(2, 4, 2, 3), (3, 2, 1, 4), (1, 7, 0, 2), (2, 5, 3, 99)],
    [(1, 1, 1, 30), (4, 3, 2, 2), (4, 3, 0, 2), (3, 9, 1, 99)],
    [(5, 2, 1, 1), (1, 50, 2, 1), (2, 2, 2, 5), (7, 1, 1, 99)],
]


@pytest.mark.parametrize(
    "lives",
    [
        pytest.param(SERIES[0], id="down"),
        pytest.param(SERIES[1], id="many", marks=pytest.mark.slow),
        pytest.param(SERIES[2], id="up", marks=pytest.mark.slow),
    ],
)
def test_resumed_with_other_workers_batch_sizes_and_ranks_every_sample_comes_once(
    lives: list[Life], folder: Path
) -> None:
    real: Counter[int] = Counter()
    state: dict[str, Any] | None = None
    for world_size, batch_size, num_workers, num_batches in lives:
        states = []
        for rank in range(world_size):
            dataset = make_data(folder, num_replicas=world_size, rank=rank, batch_size=batch_size)
            loader = load("ours", dataset, num_workers, with_mask=True)
            if state is not None:
                loader.load_state_dict(state)
            for batch, is_real in islice(loader, num_batches):
                ids = torch.tensor(check_batch(batch))
                real.update(ids[is_real].tolist())
            assert loader.epoch == 0
            states.append(json.loads(json.dumps(loader.state_dict())))
        cursors = [other["cursor"] for other in states]
        assert all(cursor == cursors[0] for cursor in cursors)
        state = states[-1]
    assert real == Counter(range(sum(SIZES)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_mask_marks_padding_on_more_ranks_than_samples_are_left(
    num_workers: int, tmp_path: Path
) -> None:
    write_folder(tmp_path / "data", [6, 5], "npy")
    real: list[int] = []
    num_padded = 0
    for rank in range(4):
        dataset = make_data(tmp_path / "data", num_replicas=4, rank=rank, batch_size=1)
        for batch, is_real in load("ours", dataset, num_workers, with_mask=True):
            ids = torch.tensor(check_batch(batch))
            assert is_real.dtype == torch.bool
            assert is_real.shape == ids.shape
            real += ids[is_real].tolist()
            num_padded += int((~is_real).sum())
    assert sorted(real) == list(range(11))
    assert num_padded == 1


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_mask_marks_what_oversampling_repeats(num_workers: int, tmp_path: Path) -> None:
    write_folder(tmp_path / "data", [6, 9, 2], "npy")
    real: list[int] = []
    num_entries = 0
    for rank in range(4):
        dataset = make_data(
            tmp_path / "data", num_replicas=4, rank=rank, sampling_strategy="oversampling"
        )
        for batch, is_real in load("ours", dataset, num_workers, with_mask=True):
            ids = torch.tensor(check_batch(batch))
            real += ids[is_real].tolist()
            num_entries += len(ids)
    assert sorted(real) == list(range(17))
    assert num_entries == 4 * 9


def test_what_the_dataset_decides_cannot_be_given_to_the_loader(folder: Path) -> None:
    for wrong in ({"batch_size": 8}, {"shuffle": True}, {"sampler": range(3)}):
        with pytest.raises(InvalidValueError, match="configure the dataset"):
            DataLoader(make_data(folder), **wrong)
    assert len(list(DataLoader(make_data(folder), batch_size=None, shuffle=False))) == NUM_BATCHES


# Memory.


@pytest.mark.parametrize("kind", ["ours", pytest.param("torch", marks=pytest.mark.slow)])
@pytest.mark.parametrize("persistent", [False, True])
def test_batches_stay_valid_while_all_are_held_and_after_the_workers_have_gone(
    kind: str, persistent: bool, folder: Path
) -> None:
    before = children()
    dataset = make_data(folder)
    loader = load(kind, dataset, 2, persistent_workers=persistent)
    held = []
    for epoch in range(3):
        dataset.set_epoch(epoch)
        held.append(list(loader))
    del loader, dataset
    gc.collect()
    wait_until(lambda: children() <= before)
    for epoch, batches in enumerate(held):
        assert check_batches(batches) == epoch_of(folder, epoch)
        for batch in batches:
            batch[0]["item"].zero_()
            assert batch[1]["item"].sum()


def test_a_view_that_is_held_keeps_its_memory(folder: Path) -> None:
    loader = load("ours", make_data(folder), 1)
    views = []
    for _ in range(6):
        views += [batch[0]["item"][1:, -1] for batch in loader]
    expected = [ids[1:] for epoch in range(6) for ids in epoch_of(folder, epoch)]
    assert [view.tolist() for view in views] == expected


def test_all_memory_of_workers_is_let_go(folder: Path) -> None:
    gc.collect()
    before = num_regions_mapped()
    loader = load("ours", make_data(folder), 2, persistent_workers=True)
    held = list(loader)
    assert num_regions_mapped() > before, "batches did not come in regions"
    del held
    gc.collect()
    assert num_regions_mapped() == before
    num_open = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        held = list(loader)
        del held
    gc.collect()
    assert num_regions_mapped() == before
    assert len(os.listdir("/proc/self/fd")) == num_open


@pytest.mark.parametrize("num_held", [pytest.param(1, marks=pytest.mark.slow), 10])
def test_regions_are_used_again(num_held: int, tmp_path: Path) -> None:
    write_folder(tmp_path / "data", [500, 400], "npy")
    loader = load(
        "ours",
        make_data(tmp_path / "data", batch_size=9),
        1,
        collate_fn=lazy_data.count_descriptors,
        persistent_workers=True,
    )
    counts = []
    held: deque[Any] = deque(maxlen=num_held)
    ids: list[int] = []
    expected = []
    for _ in range(6):
        for batch, num_open in loader:
            counts.append(num_open)
            held.append(batch)
            ids += check_batch(batch)
            expected.append(batch[0]["item"][:, -1].tolist())
            if len(counts) % 7 == 0:
                assert check_batches(held) == expected[-len(held) :]
    assert len(counts) == 600
    assert sorted(ids) == sorted([*range(900)] * 6)
    # Two for each region, itself and its mapping; about 80 if none were used again.
    assert max(counts) - counts[0] <= 24


def test_a_consumer_that_holds_a_batch_of_each_region_gets_right_ones_still(
    tmp_path: Path,
) -> None:
    write_folder(tmp_path / "data", [1000, 1000], "npy")
    loader = load("ours", make_data(tmp_path / "data", batch_size=8), 2)
    held = []
    whole = epoch_of(tmp_path / "data", 0, batch_size=8)
    for number, batch in enumerate(loader):
        assert check_batch(batch) == whole[number]
        if number % 17 == 0:
            held.append((number, batch))
    for number, batch in held:
        assert check_batch(batch) == whole[number]


def shifted(batch: Any) -> Any:
    """Take back what `change_in_place` and `replace_tensor` add."""
    batch[0]["item"] = batch[0]["item"] - 1
    return batch


@pytest.mark.parametrize("collate", [lazy_data.change_in_place, lazy_data.replace_tensor])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_a_collate_function_changes_arrives(
    collate: Any, num_workers: int, folder: Path
) -> None:
    loader = load("ours", make_data(folder), num_workers, collate_fn=collate)
    received = list(loader)
    assert check_batches(map(shifted, received)) == epoch_of(folder, 0)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_a_collate_function_adds_arrives(num_workers: int, folder: Path) -> None:
    loader = load("ours", make_data(folder), num_workers, collate_fn=lazy_data.add_tensor)
    received = list(loader)
    for batch in received:
        assert torch.equal(batch[0].pop("double"), 2 * batch[0]["item"])
    assert check_batches(received) == epoch_of(folder, 0)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_a_collate_function_takes_out_stays_out(num_workers: int, folder: Path) -> None:
    loader = load("ours", make_data(folder), num_workers, collate_fn=lazy_data.leave_out_tensor)
    for batch, ids in zip(loader, epoch_of(folder, 0), strict=True):
        assert list(batch[0]) == ["item"]
        assert batch[0]["item"][:, -1].tolist() == ids


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_shallow_copy_in_a_collate_function_has_its_changes(
    num_workers: int, folder: Path
) -> None:
    loader = load("ours", make_data(folder), num_workers, collate_fn=lazy_data.copy_after_change)
    received = [sequences["item"][:, -1].tolist() for sequences in loader]
    assert received == [[i + 1 for i in ids] for ids in epoch_of(folder, 0)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_deep_copy_in_a_collate_function_is_a_copy(num_workers: int, folder: Path) -> None:
    loader = load("ours", make_data(folder), num_workers, collate_fn=lazy_data.change_deep_copy)
    for (first, second), ids in zip(loader, epoch_of(folder, 0), strict=True):
        assert first["item"][:, -1].tolist() == ids
        assert second["item"][:, -1].tolist() == [i + 1 for i in ids]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_collate_function_may_return_a_view_of_one_tensor(num_workers: int, folder: Path) -> None:
    loader = load("ours", make_data(folder), num_workers, collate_fn=lazy_data.last_step)
    received = list(loader) + list(loader)
    expected = epoch_of(folder, 0) + epoch_of(folder, 1)
    assert [ids.tolist() for ids in received] == expected
    loader = load("ours", make_data(folder), num_workers, collate_fn=lazy_data.rows_of_one_column)
    received = list(loader)
    for rows, batch in zip(received, make_data(folder), strict=True):
        assert torch.equal(rows, batch[1]["item"][1:])


def test_more_dicts_than_a_region_has_marks_for_arrive(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", [300], "npy")
    loader = load(
        "ours", make_data(tmp_path / "data", batch_size=1), 1, collate_fn=lazy_data.many_times
    )
    whole = epoch_of(tmp_path / "data", 0, batch_size=1)
    for (batch, copies), ids in zip(loader, whole, strict=True):
        assert check_batch(batch) == ids
        assert all(torch.equal(other["item"], batch[0]["item"]) for other in copies)


@pytest.mark.parametrize("kind", ["ours", pytest.param("torch", marks=pytest.mark.slow)])
def test_without_memfd_batches_are_the_same(
    kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedline.torch.feed_dataset.can_share", lambda: False)
    dataset = make_data(folder)
    loader = load(kind, dataset, 2, persistent_workers=True)
    before = num_regions_mapped()
    held = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        held.append(list(loader))
    assert num_regions_mapped() == before
    for epoch, batches in enumerate(held):
        assert check_batches(batches) == epoch_of(folder, epoch)


def test_a_new_process_with_the_number_of_one_that_ended_sends_its_own_batches() -> None:
    """Numbers of processes come round, and a batch of a worker that ended may be held for long."""

    def send(value: int) -> bytes:
        # Regions end with their worker; another in this process has the same process number, and
        # gets the same descriptor, as if the system had given a new worker an old number.
        region = Regions().lend(4 * 8)
        values = torch.from_numpy(region.lend().view(np.int64))
        batch = SharedColumns({"x": values.fill_(value)}, region)
        sent.append(batch)
        return pickle.dumps(batch)

    sent: list[Any] = []
    gc.collect()
    for _ in range(3):
        first = pickle.loads(send(1))
        assert first["x"].tolist() == [1] * 4
        sent.clear()
        gc.collect()
        second = pickle.loads(send(2))
        assert first["x"].tolist() == [1] * 4
        assert second["x"].tolist() == [2] * 4
        del first, second
        sent.clear()


# Errors and ends.


@pytest.mark.parametrize(
    ("kind", "num_workers"),
    [
        ("ours", 0),
        ("torch", 0),
        ("ours", 1),
        # After an error torch waits five seconds for each worker.
        pytest.param("torch", 1, marks=pytest.mark.slow),
        pytest.param("ours", 2, marks=pytest.mark.slow),
        pytest.param("torch", 2, marks=pytest.mark.slow),
    ],
)
def test_an_error_in_a_worker_names_the_file(kind: str, num_workers: int, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "data", [20, 20, 20])
    dataset = make_data(folder, shuffle=False)
    dataset.state_dict()
    loader = load(kind, dataset, num_workers)
    (folder / file_name(1)).unlink()
    received: list[list[int]] = []

    def loop() -> None:
        received.extend(map(check_batch, loader))

    with pytest.raises(FileNotFoundError, match=file_name(1)):
        loop()
    assert received == [list(range(i, i + 4)) for i in range(0, 20, 4)][: len(received)]
    if kind == "ours":
        history = history_of(loader.state_dict())
        assert history == ([[1, 4, len(received)]] if received else [])


def test_a_state_can_be_saved_when_a_file_was_lost(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "data", [20, 20, 20])
    loader = load("ours", make_data(folder, shuffle=False))
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    (folder / file_name(1)).unlink()
    assert history_of(loader.state_dict()) == [[1, 4, 3]]


@pytest.mark.parametrize(
    "num_workers",
    [0, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 2, 3))],
)
def test_a_loop_that_goes_on_after_an_error_gets_nothing_that_the_state_denies(
    num_workers: int, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "data", [20, 20, 60])
    loader = load("ours", make_data(folder, shuffle=False, batch_size=2), num_workers)
    loader.state_dict()
    (folder / file_name(1)).unlink()
    batches = iter(loader)
    for _ in range(200):
        try:
            ids = check_batch(next(batches))
        except StopIteration:
            break
        except FileNotFoundError:
            continue
        num_done = history_of(loader.state_dict())[0][2]
        assert ids == [2 * num_done - 2, 2 * num_done - 1], "the state tells of another batch"


@pytest.mark.parametrize("kind", ["ours", pytest.param("torch", marks=pytest.mark.slow)])
@pytest.mark.parametrize("persistent", [False, True])
def test_break_leaves_no_worker_behind(kind: str, persistent: bool, folder: Path) -> None:
    before = children()
    loader = load(
        kind,
        make_data(folder),
        2,
        persistent_workers=persistent,
        collate_fn=lazy_data.with_worker,
    )
    for batch, worker in loader:
        assert worker in children()
        check_batch(batch)
        break
    del loader
    gc.collect()
    wait_until(lambda: children() <= before)
    check_batch(batch)


SCRIPT = """
import sys
from feedline.torch import DataLoader, FolderConfig, LazyFolderDataset

if __name__ == "__main__":
    dataset = LazyFolderDataset(sys.argv[1], FolderConfig(batch_size=4))
    loader = DataLoader(dataset, num_workers=int(sys.argv[2]))
    whole = list(loader)
    batches = iter(loader)
    held = [next(batches), next(batches)]
    if sys.argv[3] == "cycle":
        held.append(held)
        del batches, loader
"""


@pytest.mark.parametrize(
    ("num_workers", "how"),
    [
        (1, "module"),
        *(pytest.param(0, how, marks=pytest.mark.slow) for how in ("module", "cycle")),
        pytest.param(1, "cycle", marks=pytest.mark.slow),
    ],
)
def test_a_process_ends_quietly_with_batches_and_an_unfinished_pass(
    num_workers: int, how: str, folder: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    arguments = [str(script), str(folder), str(num_workers), how]
    if num_workers and how == "module":
        run = forked_run(*arguments, server="torch", timeout=120)
    else:
        command = [sys.executable, *arguments]
        run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stderr) == (0, "")


def test_a_dataset_travels_by_pickle(folder: Path) -> None:
    dataset = make_data(folder, num_replicas=2, rank=1)
    whole = check_batches(make_data(folder, num_replicas=2, rank=1))
    fresh = pickle.loads(pickle.dumps(dataset))
    assert isinstance(fresh, LazyFolderDataset)
    assert np.array_equal(fresh.store.chunk_sizes, SIZES)
    assert check_batches(fresh) == whole
    assert check_batches(islice(dataset, 2)) == whole[:2]
    assert check_batches(pickle.loads(pickle.dumps(dataset))) == whole[2:], "it keeps its place"


def test_the_memory_budget_holds_in_workers_too(tmp_path: Path) -> None:
    wide = np.zeros((400, 8192), dtype=np.int64)  # 128 KiB a sample, 50 MiB in all
    pack({"sequences/x": wide, "targets/x": wide}, tmp_path / "data", chunk_samples=100)
    budget = 4 * 2**20
    config = FolderConfig(batch_size=4, memory_budget=budget)
    most = 0
    for _ in DataLoader(LazyFolderDataset(tmp_path / "data", config), num_workers=1):
        most = max([most, *map(shared_memory_of, children())])
    assert 0 < most <= 2 * budget


def shared_memory_of(pid: int) -> int:
    """The bytes of shared memory that a process uses; 0 when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("RssShmem:")]
    return 1024 * int(found[0]) if found else 0
