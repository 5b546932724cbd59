"""Loaders say which samples they handed out, and a logged one writes it down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from feedline.chunks import RandomSampler
from feedline.errors import InvalidValueError
from feedline.feed import ChunkLoader, Feed
from feedline.plan import SamplePlan, Shuffled
from feedline.runs import (
    ConsumptionLog,
    LoggedBatch,
    LoggedEvent,
    LoggedLoader,
    audit_logs,
    read_log,
)
from feedline.store import FolderStore, MemoryMatrix, pack
from feedline.torch import (
    BucketBatchSampler,
    DataLoader,
    DistributedSampler,
    FolderConfig,
    LazyFolderDataset,
    StepScheduler,
)
from feedline.torch import ChunkLoader as TorchChunkLoader

NUM_SAMPLES = 50


def ids_of(batch: Any) -> list[int]:
    """The samples that a batch itself says it has."""
    if isinstance(batch, tuple) and hasattr(batch, "rows"):
        return [int(row) for row in batch.rows]
    if hasattr(batch, "arrays"):
        return list(batch.arrays["x"].tolist())
    if isinstance(batch, tuple):
        return [int(value) for value in batch[0]["item"][:, 0]]
    return [int(value) for value in np.atleast_1d(batch)]


def make_loader(kind: str, folder: Path) -> Any:
    if kind == "torch":
        return DataLoader(range(NUM_SAMPLES), 8, shuffle=True)
    if kind == "torch, workers":
        return DataLoader(range(NUM_SAMPLES), 8, shuffle=True, num_workers=2)
    if kind == "torch, single samples":
        return DataLoader(range(NUM_SAMPLES), None, shuffle=True)
    if kind == "torch, buckets":
        lengths = [1 + index % 7 for index in range(NUM_SAMPLES)]
        sampler = BucketBatchSampler(lengths, edges=[3, 7], batch_size=8, tail="pad")
        return DataLoader(range(NUM_SAMPLES), batch_sampler=sampler)
    if kind == "torch, folder":
        rows = np.arange(NUM_SAMPLES)[:, None] + np.zeros(4, dtype=np.int64)
        pack({"sequences/item": rows, "targets/item": rows}, folder / "data", chunk_samples=16)
        return DataLoader(LazyFolderDataset(folder / "data", FolderConfig(batch_size=8)))
    if kind == "feed":
        pack({"x": np.arange(NUM_SAMPLES)}, folder / "data", chunk_samples=16)
        plan = SamplePlan(order=Shuffled(num_samples=NUM_SAMPLES), tail="pad")
        return Feed(FolderStore(folder / "data"), plan, batch_size=8)
    store = MemoryMatrix(np.arange(NUM_SAMPLES)[:, None])
    kinds = {"chunks": ChunkLoader, "torch, chunks": TorchChunkLoader}
    return kinds[kind](store, RandomSampler(4, 4, 8))


KINDS = [
    *("torch", "torch, workers", "torch, single samples", "torch, buckets", "torch, folder"),
    *("feed", "chunks", "torch, chunks"),
]


@pytest.mark.parametrize("tracks_ids", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_latest_ids_are_those_in_the_batch(kind: str, tracks_ids: bool, tmp_path: Path) -> None:
    loader = make_loader(kind, tmp_path)
    with pytest.raises(InvalidValueError, match="0 batches"):
        loader.latest_ids()
    loader.tracks_ids = tracks_ids
    for batch in loader:
        found = loader.latest_ids()
        assert found.dtype == np.int64
        assert found.tolist() == ids_of(batch)
    assert loader.agrees_with_plan()


@pytest.mark.parametrize("kind", KINDS)
def test_two_epochs_through_a_log_are_exactly_once(kind: str, tmp_path: Path) -> None:
    with ConsumptionLog(tmp_path / "log", rank=0, world_size=1) as log:
        logged = LoggedLoader(make_loader(kind, tmp_path), log)
        delivered = [[ids_of(batch) for batch in logged] for _ in range(2)]
        assert len(logged) == len(delivered[0])
    entries = read_log(tmp_path / "log").entries
    batches = [entry for entry in entries if isinstance(entry, LoggedBatch)]
    for epoch in range(2):
        of_epoch = [batch for batch in batches if batch.epoch == epoch]
        assert [batch.batch for batch in of_epoch] == list(range(len(logged)))
        assert [batch.ids.tolist() for batch in of_epoch] == delivered[epoch]
    ends = [entry.fields["epoch"] for entry in entries if isinstance(entry, LoggedEvent)]
    assert ends == [0, 1]
    result = audit_logs([tmp_path / "log"], num_samples=NUM_SAMPLES)
    assert result.ok
    assert result.is_finished


def test_padding_is_marked_in_the_log(tmp_path: Path) -> None:
    for rank in range(3):
        sampler = DistributedSampler(range(10), 3, rank, drop_last=False)
        with ConsumptionLog(tmp_path / f"{rank}", rank=rank, world_size=3) as log:
            list(LoggedLoader(DataLoader(range(10), 2, sampler=sampler), log))
    result = audit_logs([tmp_path], num_samples=10)
    assert result.ok
    assert result.epochs[0].num_padded == 2


def test_marks_can_be_asked_for_at_any_batch() -> None:
    loader = DataLoader(
        range(10), 2, sampler=DistributedSampler(range(10), 4, 3, drop_last=False), with_mask=True
    )
    masks = []
    for number, (_, mask) in enumerate(loader):
        masks.append(mask.tolist())
        if number:
            is_real = loader.latest_is_real()
            assert is_real is not None
            assert is_real.tolist() == masks[-1]
            assert loader.latest_is_real() is is_real
    assert masks == [[True, True], [False]]


@pytest.mark.parametrize("kind", ["torch", "torch, workers", "feed", "chunks"])
def test_a_clock_drives_a_logged_loader_and_resumes_it(kind: str, tmp_path: Path) -> None:
    def make(name: str) -> tuple[ConsumptionLog, StepScheduler]:
        log = ConsumptionLog(tmp_path / name / "log", rank=0, world_size=1, run=name)
        logged = LoggedLoader(make_loader(kind, tmp_path / name), log)
        clock = StepScheduler(16, 8, 1, logged, num_epochs=2, preemption_signal=None)
        logged.log_step = lambda: clock.step
        return log, clock

    log, clock = make("a")
    log.event("start")
    state: dict[str, Any] = {}
    for batches in clock:
        if clock.step == 1:
            state = clock.state_dict()
        assert len(batches) == (2 if clock.step < 3 else 1)
        if clock.step == 2:
            break
    log.close()
    log, clock = make("b")
    clock.load_state_dict(state)
    log.event("resume", step=clock.step)
    steps = [clock.step for _ in clock.epochs for _ in clock]
    log.close()
    assert steps == [2, 3, 4, 5, 6, 7]
    result = audit_logs([tmp_path / "a", tmp_path / "b"], num_samples=NUM_SAMPLES)
    assert result.ok
    assert result.is_finished
    assert len(result.epochs) == 2
    assert result.runs[0].num_discarded_batches == 2


def test_a_logged_loader_passes_everything_on(tmp_path: Path) -> None:
    loader = DataLoader(range(NUM_SAMPLES), 8, shuffle=True)
    with ConsumptionLog(tmp_path / "a", rank=0, world_size=1) as log:
        logged = LoggedLoader(loader, log)
        logged.tracks_ids = True
        assert loader.tracks_ids
        logged.set_epoch(3)
        assert logged.num_batches_left() == 7
        batches = iter(logged)
        next(batches)
        assert logged.num_real_samples(-1) == 8
        assert logged.agrees_with_plan()
        assert logged.epoch == 3
        resumed = DataLoader(range(NUM_SAMPLES), 8, shuffle=True)
        resumed.load_state_dict(logged.state_dict())
        assert resumed.num_batches_left() == 6
        assert not hasattr(LoggedLoader(_Bare(), log), "tracks_ids")
        with pytest.raises(InvalidValueError, match="latest_ids"):
            LoggedLoader([1, 2], log)


class _Bare:
    """A loader with nothing but batches and their samples."""

    epoch = 0

    def __iter__(self) -> Any:
        return iter([1, 2])

    def latest_ids(self) -> Any:
        return [0]


def test_a_loader_that_does_not_know_its_length_ends_its_epoch_all_the_same(
    tmp_path: Path,
) -> None:
    with ConsumptionLog(tmp_path / "a", rank=0, world_size=1) as log:
        list(LoggedLoader(_Bare(), log))
    assert isinstance(read_log(tmp_path / "a").entries[-1], LoggedEvent)
