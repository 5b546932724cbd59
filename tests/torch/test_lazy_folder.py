"""A folder of chunks becomes the documented batches, as many on every rank as the document says."""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from examples import few_examples
from feedline.errors import DamagedDataError, FeedlineError, InvalidValueError, PlanMismatchError
from feedline.torch import FolderConfig, LazyFolderDataset, SequifierDatasetFromFolderLazy
from lazy_data import (
    KINDS,
    STEPS,
    check_batches,
    columns_for,
    documented_config,
    file_name,
    flat,
    write_chunk,
    write_folder,
    write_metadata,
)
from states import cursor_of

SIZES = [10, 7, 0, 13, 5]
FILE_STRATEGIES = ["exact", "oversampling", "undersampling"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("lazy") / "data", SIZES)


def make(folder: Path, shuffle: bool = True, **changes: Any) -> LazyFolderDataset:
    ranks = {name: changes.pop(name) for name in ("num_replicas", "rank") if name in changes}
    config = FolderConfig(**{"batch_size": 4, "seed": 5, **changes})
    return LazyFolderDataset(folder, config, shuffle, **ranks)


def of_ranks(folder: Path, world_size: int, **changes: Any) -> list[LazyFolderDataset]:
    return [
        make(folder, num_replicas=world_size, rank=rank, **changes) for rank in range(world_size)
    ]


def documented_counts(sizes: list[int], world_size: int) -> list[int]:
    """How many samples the files of each rank have: rank r reads files r, r + W, r + 2W, …"""
    return [sum(sizes[rank::world_size]) for rank in range(world_size)]


def documented_stream(
    sizes: list[int], rank: int, world_size: int, strategy: str
) -> tuple[list[int], int]:
    """The samples of a rank without shuffling, and their number, as documented."""
    counts = documented_counts(sizes, world_size)
    target = min(counts) if strategy == "undersampling" else max(counts)
    files = list(range(rank, len(sizes), world_size))
    if not files:
        assert strategy == "oversampling"
        files = [rank % len(sizes)]
    starts = np.cumsum([0, *sizes])
    stream: list[int] = []
    number = 0
    while len(stream) < target:
        file = files[number % len(files)]
        stream += range(starts[file], starts[file] + sizes[file])
        number += 1
    return stream[:target], target


# What a batch is.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seq_length", [1, STEPS - 1, STEPS, STEPS + 3])
def test_batches_hold_the_last_steps_of_each_column(
    kind: str, seq_length: int, tmp_path: Path
) -> None:
    write_folder(tmp_path / "data", SIZES, kind)
    config = documented_config(seq_length=seq_length)
    dataset = SequifierDatasetFromFolderLazy(str(tmp_path / "data"), config)
    batches = list(dataset)
    steps = min(seq_length, STEPS)
    for sequences, targets, *nothing in batches:
        assert nothing == [None, None, None]
        assert sequences["item"].shape == (len(sequences["item"]), steps)
        assert sequences["item"].dtype == targets["item"].dtype == torch.int64
        assert sequences["price"].dtype == torch.float32
    ids = check_batches(batches, steps)
    assert sorted(flat(ids)) == list(range(35))
    assert [len(batch) for batch in ids] == [4] * 8 + [3]


def test_a_batch_is_a_tuple_of_two_dicts_and_three_nones(folder: Path) -> None:
    batch = next(iter(make(folder)))
    assert type(batch) is tuple
    assert len(batch) == 5
    assert all(isinstance(part, dict) for part in batch[:2])


def test_without_a_length_all_steps_are_read(folder: Path) -> None:
    assert make(folder, seq_length=None)
    check_batches(make(folder, seq_length=None), STEPS)


def test_the_documented_attributes_are_there(folder: Path) -> None:
    config = documented_config(sampling_strategy="oversampling")
    dataset = SequifierDatasetFromFolderLazy(
        str(folder), config, shuffle=False, num_replicas=2, rank=1
    )
    metadata = json.loads((folder / "metadata.json").read_text())
    assert isinstance(dataset, LazyFolderDataset)
    assert isinstance(dataset, torch.utils.data.IterableDataset)
    assert dataset.data_dir == str(folder)
    assert dataset.config is config
    assert dataset.batch_size == 4
    assert dataset.shuffle is False
    assert dataset.epoch == 0
    assert dataset.total_samples == metadata["total_samples"] == 35
    assert list(dataset.batch_files_info) == metadata["batch_files"]
    assert dataset.sampling_strategy == "oversampling"
    assert dataset.target_samples == 20
    assert dataset.total_batches == len(dataset) == 5
    dataset.set_epoch(3)
    assert dataset.epoch == 3


@pytest.mark.parametrize("type_name", ["bfloat16", "uint16", "float16", "bool", "uint8", "int32"])
@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_columns_keep_their_types(type_name: str, kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    values = torch.arange(20 * STEPS).reshape(20, STEPS) % (2 if type_name == "bool" else 97)
    typed = values.to(getattr(torch, type_name))
    write_chunk(
        folder / file_name(0, kind),
        {"sequences/x": typed, "sequences/item": values, "targets/x": typed.clone()},
    )
    write_metadata(folder, [{"path": file_name(0, kind), "samples": 20}])
    for sequences, targets, *_ in make(folder, seq_length=4):
        assert sequences["x"].dtype == targets["x"].dtype == getattr(torch, type_name)
        expected = sequences["item"].to(getattr(torch, type_name))
        assert torch.equal(sequences["x"].double(), expected.double())
        assert torch.equal(targets["x"].double(), expected.double())


def test_columns_without_steps_are_read_whole(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    columns = {**columns_for(range(9)), "targets/label": np.arange(9) * 10}
    write_chunk(folder / "chunk", columns)
    write_metadata(folder, [{"path": "chunk", "samples": 9}])
    for sequences, targets, *_ in make(folder, seq_length=2):
        assert torch.equal(targets["label"], sequences["item"][:, -1] * 10)
        assert sequences["item"].shape[1] == 2


@pytest.mark.parametrize("missing", ["sequences", "targets"])
def test_a_folder_without_sequences_or_targets_is_refused(missing: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    columns = {k: v for k, v in columns_for(range(9)).items() if not k.startswith(missing)}
    write_chunk(folder / "chunk", {**columns, "other": np.arange(9)})
    write_metadata(folder, [{"path": "chunk", "samples": 9}])
    with pytest.raises(DamagedDataError, match=f"begins with '{missing}/'.*other") as caught:
        next(iter(make(folder)))
    assert str(folder) in str(caught.value)


def listed_only(folder: Path, sizes: list[int], kind: str = "pt") -> Path:
    """A folder whose files are not there yet."""
    folder.mkdir()
    files = [
        {"path": file_name(number, kind), "samples": size} for number, size in enumerate(sizes)
    ]
    write_metadata(folder, files)
    return folder


@pytest.mark.parametrize("strategy", ["oversampling", "undersampling", "balanced"])
def test_the_constructor_needs_no_file_but_metadata(strategy: str, tmp_path: Path) -> None:
    folder = listed_only(tmp_path / "data", [10, 7, 13])
    dataset = make(folder, num_replicas=2, rank=1, sampling_strategy=strategy)
    expected = {"oversampling": 23, "undersampling": 7, "balanced": 15}[strategy]
    assert (dataset.total_samples, dataset.target_samples) == (30, expected)
    assert len(dataset) == dataset.total_batches == -(-expected // 4)
    with pytest.raises(FileNotFoundError):
        next(iter(dataset))


def test_counts_are_checked_before_a_table_is_opened(tmp_path: Path) -> None:
    folder = listed_only(tmp_path / "data", [10, 7, 13], "parquet")
    strategy: dict[str, Any] = {"sampling_strategy": "oversampling"}
    assert make(folder, num_replicas=2, rank=1, **strategy).target_samples == 23
    with pytest.raises(InvalidValueError, match="23"):
        make(folder, num_replicas=2, rank=1, sampling_strategy="exact")


def test_counts_are_checked_before_any_file_is_opened(tmp_path: Path) -> None:
    folder = listed_only(tmp_path / "data", [10, 7, 13])
    with pytest.raises(InvalidValueError, match="23"):
        make(folder, num_replicas=2, rank=1, sampling_strategy="exact")
    with pytest.raises(InvalidValueError, match="without samples"):
        make(folder, num_replicas=4, rank=1, sampling_strategy="undersampling")


def test_a_folder_without_metadata_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"metadata\.json"):
        make(tmp_path)


def test_batches_stay_as_they_are_while_they_are_held(folder: Path) -> None:
    dataset = make(folder)
    held = [list(dataset) for _ in range(5)]
    for batches in held:
        assert check_batches(batches) == check_batches(make(folder))
    views = [batch[1]["item"][1:, -1] for batch in dataset]
    expected = [batch[1]["item"][1:, -1].clone() for batch in make(folder)]
    list(dataset)
    assert all(torch.equal(a, b) for a, b in zip(views, expected, strict=True))


# How it is configured.


def test_our_configuration_and_the_documented_one_mean_the_same(folder: Path) -> None:
    documented = LazyFolderDataset(folder, documented_config(sampling_strategy="undersampling"))
    ours = make(folder, seq_length=STEPS, sampling_strategy="undersampling")
    assert check_batches(documented) == check_batches(ours)


@pytest.mark.parametrize("name", ["project_root", "seed", "seq_length", "training_spec"])
def test_a_configuration_that_lacks_something_is_told_so(name: str, folder: Path) -> None:
    config = documented_config()
    delattr(config, name)
    with pytest.raises(InvalidValueError, match=f"lacks '{name}'"):
        LazyFolderDataset(folder, config)


def test_a_training_spec_without_a_batch_size_is_told_so(folder: Path) -> None:
    config = documented_config()
    del config.training_spec.batch_size
    with pytest.raises(InvalidValueError, match="lacks 'batch_size'"):
        LazyFolderDataset(folder, config)
    with pytest.raises(InvalidValueError, match="lacks 'training_spec'"):
        LazyFolderDataset(folder, SimpleNamespace())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("batch_size", 2.5),
        ("seq_length", 0),
        ("sampling_strategy", "weighted"),
        ("preload", 0),
        ("num_threads", -1),
        ("memory_budget", 0),
    ],
)
def test_values_out_of_bounds_are_named(name: str, value: Any, folder: Path) -> None:
    with pytest.raises(InvalidValueError, match=f"^{name}={value!r}"):
        make(folder, **{name: value})


def test_a_relative_path_lies_in_the_projects_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path / "project" / "data", SIZES)
    config = documented_config(project_root=str(tmp_path / "project"))
    dataset = LazyFolderDataset("data", config)
    assert dataset.data_dir == str(tmp_path / "project" / "data")
    monkeypatch.chdir(tmp_path)
    for path in ("data", "project/data", Path("project") / "data", tmp_path / "project" / "data"):
        dataset = LazyFolderDataset(path, documented_config(project_root="project"))
        assert Path(dataset.data_dir).resolve() == tmp_path / "project" / "data"
        assert len(check_batches(dataset)) == 9
    monkeypatch.chdir(tmp_path / "project")
    assert len(LazyFolderDataset("data", documented_config())) == 9


def test_threads_and_budget_change_nothing(folder: Path) -> None:
    whole = check_batches(make(folder))
    for options in (
        {"num_threads": 0},
        {"num_threads": 5},
        {"num_threads": 1, "memory_budget": 1000},
        {"num_workers": 3},
        {"verify": True},
    ):
        assert check_batches(make(folder, **options)) == whole


# How many come, and which.


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=9).filter(any),
    strategy=st.sampled_from(FILE_STRATEGIES),
    batch_size=st.integers(1, 12),
)
@few_examples(1 / 5)
def test_counts_and_files_are_the_documented_ones(
    sizes: list[int], strategy: str, batch_size: int
) -> None:
    with tempfile.TemporaryDirectory() as parent:
        folder = write_folder(Path(parent) / "data", sizes, "npy")
        for world_size in range(1, 7):
            counts = documented_counts(sizes, world_size)
            options = {"sampling_strategy": strategy, "batch_size": batch_size, "shuffle": False}
            alone = strategy == "oversampling" and world_size > len(sizes)
            is_possible = {
                "exact": len(set(counts)) == 1,
                "undersampling": min(counts) > 0,
                # A rank with nothing but empty files has no samples to repeat.
                "oversampling": all(
                    count or (alone and rank >= len(sizes) and sizes[rank % len(sizes)])
                    for rank, count in enumerate(counts)
                ),
            }[strategy]
            if not is_possible:
                with pytest.raises(InvalidValueError):
                    of_ranks(folder, world_size, **options)
                continue
            for rank, dataset in enumerate(of_ranks(folder, world_size, **options)):
                stream, target = documented_stream(sizes, rank, world_size, strategy)
                assert dataset.target_samples == target
                assert len(dataset) == dataset.total_batches == math.ceil(target / batch_size)
                ids = check_batches(dataset)
                assert flat(ids) == stream
                assert {len(batch) for batch in ids[:-1]} <= {batch_size}
                shuffled = make(
                    folder, **{**options, "shuffle": True}, num_replicas=world_size, rank=rank
                )
                if strategy != "undersampling":
                    # Each pass over the files has all of them, however they are shuffled.
                    again = flat(check_batches(shuffled))
                    num_own = len(set(stream))
                    assert Counter(again[:num_own]) == Counter(stream[:num_own])
                assert len(shuffled) == len(dataset)


def test_exact_lists_the_odd_ranks_with_their_files_and_counts(tmp_path: Path) -> None:
    sizes = [5, 5, 5, 5, 5, 5, 4, 5, 5, 5, 5, 7]
    write_folder(tmp_path / "data", sizes, "npy")
    with pytest.raises(InvalidValueError) as caught:
        make(tmp_path / "data", sampling_strategy="exact", num_replicas=6, rank=3)
    message = str(caught.value)
    assert "3 different numbers: 9, 10, 12" in message
    assert "Most ranks have 10" in message
    assert (
        f"rank 0: 9 samples, files: {file_name(0, 'npy')}: 5, {file_name(6, 'npy')}: 4" in message
    )
    assert (
        f"rank 5: 12 samples, files: {file_name(5, 'npy')}: 5, {file_name(11, 'npy')}: 7" in message
    )
    for rank in (1, 2, 3, 4):
        assert f"rank {rank}:" not in message


@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=7).filter(any),
    batch_size=st.integers(1, 9),
    preload=st.integers(1, 3),
    shuffle=st.booleans(),
    epoch=st.integers(0, 5),
)
@few_examples(1 / 5)
def test_balanced_ranks_together_get_every_sample_once_in_equally_many_batches(
    sizes: list[int], batch_size: int, preload: int, shuffle: bool, epoch: int
) -> None:
    with tempfile.TemporaryDirectory() as parent:
        folder = write_folder(Path(parent) / "data", sizes, "npy")
        for world_size in range(1, 7):
            datasets = of_ranks(
                folder, world_size, batch_size=batch_size, preload=preload, shuffle=shuffle
            )
            streams = []
            for dataset in datasets:
                dataset.set_epoch(epoch)
                ids = check_batches(dataset)
                streams.append(flat(ids))
                assert len(ids) == len(dataset) == dataset.total_batches
                assert {len(batch) for batch in ids[:-1]} <= {batch_size}
                assert len(streams[-1]) <= dataset.target_samples
            counts = [len(stream) for stream in streams]
            assert max(counts) - min(counts) <= 1
            everything = Counter(flat(streams))
            assert set(everything) == set(range(sum(sizes)))
            # Padding is only for ranks that would have no sample in the last batch.
            assert sum(everything.values()) - sum(sizes) < world_size


def test_balanced_ranks_see_all_files_in_the_course_of_time(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", [12] * 6, "npy")
    datasets = of_ranks(tmp_path / "data", 3, batch_size=6)
    seen: list[Counter[int]] = [Counter(), Counter(), Counter()]
    for epoch in range(30):
        for dataset, files in zip(datasets, seen, strict=True):
            dataset.set_epoch(epoch)
            files.update({i // 12 for batch in check_batches(dataset) for i in batch})
    for files in seen:
        assert set(files) == set(range(6))
        # A fair share would be 10 of 30; 1 would be a chance of one in ten thousand.
        assert min(files.values()) > 1


def shuffles(folder: Path, world_size: int, **options: Any) -> Iterator[tuple[int, ...]]:
    """The order in which the samples of each file come, in each of several epochs."""
    datasets = of_ranks(folder, world_size, **options)
    for epoch in range(7):
        for dataset in datasets:
            dataset.set_epoch(epoch)
            by_file: dict[int, list[int]] = {}
            for sample in flat(check_batches(dataset)):
                by_file.setdefault(sample // 24, []).append(sample % 24)
            for rows in by_file.values():
                for first in range(0, len(rows), 24):
                    assert sorted(rows[first : first + 24]) == list(range(24))
                    yield tuple(rows[first : first + 24])


@pytest.mark.parametrize("strategy", ["balanced", "exact", "undersampling"])
@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.slow), 4])
def test_no_two_files_epochs_or_seeds_share_a_shuffle(
    strategy: str, world_size: int, tmp_path: Path
) -> None:
    write_folder(tmp_path / "data", [24] * 8, "npy")
    found = [
        shuffle
        for seed in (5, 6)
        for shuffle in shuffles(
            tmp_path / "data", world_size, sampling_strategy=strategy, seed=seed
        )
    ]
    assert len(found) == 2 * 7 * 8
    assert len(set(found)) == len(found)


def test_repeated_files_are_shuffled_anew(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", [24, 96], "npy")
    dataset = make(
        tmp_path / "data", sampling_strategy="oversampling", num_replicas=2, rank=0, batch_size=24
    )
    passes = [tuple(ids) for ids in check_batches(dataset)]
    assert len(passes) == len(set(passes)) == 4
    assert all(sorted(ids) == list(range(24)) for ids in passes)


def test_files_come_in_another_order_in_every_epoch(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", [2] * 12, "npy")
    for strategy in ("balanced", "exact"):
        dataset = make(tmp_path / "data", sampling_strategy=strategy, batch_size=2)
        orders = set()
        for epoch in range(10):
            dataset.set_epoch(epoch)
            orders.add(tuple(ids[0] // 2 for ids in check_batches(dataset)))
        assert len(orders) == 10


def test_without_shuffling_a_single_rank_reads_in_order(folder: Path) -> None:
    for strategy in ("balanced", "exact"):
        dataset = make(folder, shuffle=False, sampling_strategy=strategy)
        for epoch in (0, 3):
            dataset.set_epoch(epoch)
            assert flat(check_batches(dataset)) == list(range(35))


def test_any_seed_will_do(folder: Path) -> None:
    orders = {
        tuple(flat(check_batches(make(folder, seed=seed))))
        for seed in (0, 1, -1, 2**80, "", "a name")
    }
    assert len(orders) == 6


# Where it is.


def test_a_state_goes_on_in_a_fresh_dataset(folder: Path) -> None:
    whole = check_batches(make(folder))
    dataset = make(folder)
    for number, _ in enumerate(dataset, start=1):
        resumed = make(folder)
        resumed.load_state_dict(json.loads(json.dumps(dataset.state_dict())))
        assert check_batches(resumed) == whole[number:]
        assert check_batches(resumed) == whole, "a loaded state is used by one pass"


@pytest.mark.parametrize("strategy", FILE_STRATEGIES)
def test_strategies_that_tie_files_to_ranks_go_on_only_with_as_many(
    strategy: str, tmp_path: Path
) -> None:
    write_folder(tmp_path / "data", [9] * 6, "npy")
    dataset = make(tmp_path / "data", sampling_strategy=strategy, num_replicas=2, rank=0)
    received = flat(check_batches(islice(dataset, 3)))
    state = dataset.state_dict()
    other = make(tmp_path / "data", sampling_strategy=strategy, num_replicas=3, rank=0)
    before = other.state_dict()
    with pytest.raises(PlanMismatchError, match=r"world_size=3 must be 2.*balanced"):
        other.load_state_dict(state)
    assert other.state_dict() == before
    same = make(tmp_path / "data", sampling_strategy=strategy, num_replicas=2, rank=0, batch_size=5)
    same.load_state_dict(state)
    received += flat(check_batches(same))
    assert sorted(received) == sorted([*range(0, 9), *range(18, 27), *range(36, 45)])


def test_a_state_of_another_strategy_seed_or_shuffle_is_refused(folder: Path) -> None:
    state = make(folder).state_dict()
    for changes in (
        {"sampling_strategy": "exact"},
        {"seed": 6},
        {"preload": 2},
        {"shuffle": False},
    ):
        with pytest.raises(PlanMismatchError):
            make(folder, **changes).load_state_dict(state)


def test_a_state_with_very_many_resizes_loads_or_leaves_everything_as_it_was(
    tmp_path: Path,
) -> None:
    write_folder(tmp_path / "data", [500, 400], "npy")
    dataset = make(tmp_path / "data")
    before = dataset.state_dict()
    cursor = {**cursor_of(before), "history": [[1, 1, 1], [1, 2, 1]] * 140}
    state = {**before, "cursor": json.dumps(cursor)}
    try:
        dataset.load_state_dict(state)
    except FeedlineError:
        assert dataset.state_dict() == before, "an error must change nothing"
    else:
        assert len(flat(check_batches(dataset))) == 900 - 3 * 140
