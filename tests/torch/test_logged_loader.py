"""Loaders say which samples they handed out, and a logged one writes it down."""

from __future__ import annotations

from itertools import chain
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


@pytest.mark.parametrize("kind", KINDS)
def test_the_delivered_record_is_that_of_the_batch(kind: str, tmp_path: Path) -> None:
    loader = make_loader(kind, tmp_path)
    assert loader.delivered is None
    for number, batch in enumerate(loader):
        record = loader.delivered
        assert record.number == number
        assert record.ids.dtype == np.int64
        assert record.ids.tolist() == ids_of(batch)
        assert record.num_real == record.num_real_of_all_ranks
        real = len(record.ids) if record.is_real is None else record.is_real.sum()
        assert record.num_real == real
    assert number == len(loader) - 1


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
            record = loader.delivered
            assert record is not None
            assert record.is_real is not None
            assert record.is_real.tolist() == masks[-1]
            assert (record.num_real, record.num_real_of_all_ranks) == (0, 2)
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
        logged.set_epoch(3)
        assert logged.num_batches_left() == 7
        assert logged.batch_size == 8
        assert logged.peers.world_size == 1
        batches = iter(logged)
        next(batches)
        assert logged.delivered is not None
        assert logged.delivered.num_real == 8
        assert logged.epoch == 3
        resumed = DataLoader(range(NUM_SAMPLES), 8, shuffle=True)
        resumed.load_state_dict(logged.state_dict())
        assert resumed.num_batches_left() == 6
        resumed.load_state_dict(logged.state_before(1))
        assert resumed.num_batches_left() == 7


def runs_of_training(logs: Path, **options: Any) -> None:
    """Two launches without a clock: the second goes on at a checkpoint before the first's end."""
    loader = DataLoader(range(NUM_SAMPLES), 8, shuffle=True, log=logs, **options)
    states = []
    for _ in loader:
        states.append(loader.state_dict())
        if len(states) == 5:
            break
    loader.close()
    resumed = DataLoader(range(NUM_SAMPLES), 4, shuffle=True, log=str(logs), **options)
    resumed.load_state_dict(states[2])
    assert sum(len(batch) for batch in resumed) == NUM_SAMPLES - 24
    assert len(list(resumed)) == len(resumed)
    resumed.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_one_argument_logs_a_run_for_an_audit(num_workers: int, tmp_path: Path) -> None:
    runs_of_training(tmp_path / "logs", num_workers=num_workers)
    result = audit_logs([tmp_path / "logs"])
    assert result.ok
    assert result.is_finished
    assert [epoch.num_once for epoch in result.epochs] == [NUM_SAMPLES] * 2
    assert [run.num_discarded_batches for run in result.runs] == [2, 0]
    assert len(list((tmp_path / "logs").iterdir())) == 2, "each launch is a run of its own"


def test_what_a_tail_drops_is_told_and_not_taken_for_lost(tmp_path: Path) -> None:
    lengths = [1] * 5 + [9] * 7
    sampler = BucketBatchSampler(lengths, batch_size=4, edges=[1, 9], tail="drop")
    loader = DataLoader(range(12), batch_sampler=sampler, log=tmp_path / "buckets")
    list(loader)
    loader.close()
    result = audit_logs([tmp_path / "buckets"])
    assert result.ok
    assert result.epochs[0].num_dropped == 4


def test_an_epoch_whose_rest_makes_no_batch_ends_in_the_log_too(tmp_path: Path) -> None:
    options = {"drop_last": True, "shuffle": True, "log": tmp_path / "logs"}
    loader = DataLoader(range(50), 3, **options)
    for _ in loader:
        if loader.delivered is not None and loader.delivered.number == 14:
            break
    state = loader.state_dict()
    loader.close()
    resumed = DataLoader(range(50), 6, **options)
    resumed.load_state_dict(state)
    assert list(resumed) == []
    list(resumed)
    resumed.close()
    result = audit_logs([tmp_path / "logs"])
    assert result.ok
    assert [epoch.num_dropped for epoch in result.epochs] == [5, 2]


def test_a_clock_that_goes_back_to_the_end_of_an_epoch_says_so_in_the_log(tmp_path: Path) -> None:
    loader = DataLoader(range(16), 4, shuffle=True, log=tmp_path / "logs")
    with StepScheduler(4, 4, 1, loader, num_epochs=2, preemption_signal=None) as clock:
        saved: dict[str, Any] = {}
        for _ in clock.epochs:
            for _ in clock:
                if clock.is_last_batch and not saved:
                    saved = clock.state_dict()
                if clock.step == 5:
                    break
            if clock.step >= 5:
                break
        clock.load_state_dict(saved)
        for _ in clock.epochs:
            for _ in clock:
                pass
    result = audit_logs([tmp_path / "logs"])
    assert result.ok
    assert [epoch.num_once for epoch in result.epochs] == [16, 16]


def test_a_matrix_is_logged_by_the_same_argument(tmp_path: Path) -> None:
    store, sampler = MemoryMatrix(np.arange(NUM_SAMPLES)[:, None]), RandomSampler(4, 4, 8)
    for number, kind in enumerate((TorchChunkLoader, ChunkLoader)):
        loader: Any = kind(store, sampler, log=tmp_path / f"logs{number}")
        list(loader)
        loader.close()
        assert audit_logs([tmp_path / f"logs{number}"]).epochs[0].num_once == NUM_SAMPLES


def test_an_audit_of_such_logs_sees_a_batch_that_was_lost(tmp_path: Path) -> None:
    loader = DataLoader(range(NUM_SAMPLES), 8, shuffle=True, log=tmp_path)
    record = loader.log.record  # type: ignore[union-attr]

    def record_some(**fields: Any) -> None:
        if fields["batch"] != 3:
            record(**fields)

    loader.log.record = record_some  # type: ignore[method-assign, union-attr]
    list(loader)
    loader.close()
    assert audit_logs([tmp_path]).epochs[0].num_lost == 8


def test_ranks_that_cannot_reach_each_other_are_told_to_name_their_run(tmp_path: Path) -> None:
    loader = DataLoader(range(NUM_SAMPLES), 8, num_replicas=2, rank=0, log=tmp_path)
    with pytest.raises(InvalidValueError, match="needs 2 ranks that can reach each other"):
        iter(loader)


def test_a_clock_tells_the_log_its_steps(tmp_path: Path) -> None:
    loader = DataLoader(range(NUM_SAMPLES), 8, shuffle=True, log=tmp_path)
    with StepScheduler(16, 8, 1, loader, num_epochs=1, preemption_signal=None) as clock:
        steps = [clock.step for _ in clock]
    entries = [entry for path in tmp_path.rglob("*.log") for entry in read_log(path).entries]
    logged = [entry.step for entry in entries if isinstance(entry, LoggedBatch)]
    assert sorted(set(logged)) == steps
    events = [entry.name for entry in entries if isinstance(entry, LoggedEvent)]
    assert events == ["start", "epoch_end", "stop"]


def train_alone(logs: Path, num_batches: int, saved_after: int) -> dict[str, Any]:
    loader = DataLoader(range(NUM_SAMPLES), 8, shuffle=True, log=logs)
    state: dict[str, Any] = {}
    for number, _ in enumerate(chain(loader, loader), 1):
        if number == saved_after:
            state = loader.state_dict()
        if number == num_batches:
            break
    loader.close()
    return state


def train_under_a_clock(logs: Path, state: dict[str, Any], num_steps: int) -> dict[str, Any]:
    loader = DataLoader(range(NUM_SAMPLES), 8, shuffle=True, log=logs)
    if state:
        loader.load_state_dict(state)
    options = {"num_epochs": 3, "max_steps": num_steps, "preemption_signal": None}
    with StepScheduler(16, 8, 1, loader, start_epoch=loader.epoch, **options) as clock:
        for _ in clock.epochs:
            for _ in clock:
                pass
        return loader.state_dict()


@pytest.mark.parametrize(
    ("num_batches", "saved_after"), [(3, 3), (5, 3), (7, 7), (9, 7), (9, 9), (12, 9)]
)
def test_a_clock_may_go_on_after_a_loader_that_logged_alone(
    num_batches: int, saved_after: int, tmp_path: Path
) -> None:
    state = train_alone(tmp_path, num_batches, saved_after)
    train_under_a_clock(tmp_path, state, 100)
    result = audit_logs([tmp_path])
    assert result.ok
    assert result.is_finished
    assert [epoch.num_once for epoch in result.epochs] == [NUM_SAMPLES] * 3
    discarded = [run.num_discarded_batches for run in result.runs]
    assert discarded == [num_batches - saved_after, 0]


def test_a_loader_alone_may_go_on_after_a_clock(tmp_path: Path) -> None:
    state = train_under_a_clock(tmp_path, {}, 2)
    loader = DataLoader(range(NUM_SAMPLES), 8, shuffle=True, log=tmp_path)
    loader.load_state_dict(state)
    list(loader)
    loader.close()
    result = audit_logs([tmp_path])
    assert result.ok
    assert result.is_finished
    assert result.epochs[0].num_once == NUM_SAMPLES


def test_an_audit_sees_what_a_clock_after_a_loader_alone_lost(tmp_path: Path) -> None:
    train_alone(tmp_path, 3, 3)
    loader = DataLoader(range(NUM_SAMPLES), 8, shuffle=True)
    later = [loader.state_dict() for _ in loader][3]
    train_under_a_clock(tmp_path, later, 100)
    result = audit_logs([tmp_path])
    assert [epoch.num_lost for epoch in result.epochs] == [8, 0, 0]
