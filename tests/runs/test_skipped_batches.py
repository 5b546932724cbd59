"""Batches that a run was told to skip, in its log, in an audit and in `feedline inspect`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli_runs import run, run_json
from feedline.chunks import RandomSampler
from feedline.errors import DamagedDataError, InvalidValueError
from feedline.feed import ChunkLoader, Feed
from feedline.plan import Mixture, Plan, SamplePlan, Shuffled, WindowPlan
from feedline.runs import ConsumptionLog, LoggedLoader, audit_logs, read_log
from feedline.runs.log_records import LoggedBatch, LoggedEvent
from feedline.store import FolderStore, MemoryMatrix, pack

NUM_SAMPLES = 60


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FolderStore:
    folder = tmp_path_factory.mktemp("skips") / "data"
    pack({"x": np.arange(NUM_SAMPLES)}, folder, chunk_samples=7)
    return FolderStore(folder)


def plans(store: FolderStore) -> dict[str, Plan]:
    from feedline.feed import chunking_of

    return {
        "samples": SamplePlan(order=Shuffled(num_samples=NUM_SAMPLES), tail="even"),
        "windows": WindowPlan(chunks=chunking_of(store), preload=2, tail="even"),
        "mixture": SamplePlan(order=Mixture(sizes=[40, 20], weights=[1, 2]), tail="even"),
    }


def feed(store: FolderStore, kind: str, log: Any, batch_size: int = 4) -> Feed:
    plan = plans(store)[kind]
    return Feed(store, plan, batch_size=batch_size, world_size=1, rank=0, log=log)


def take(feed: Feed, count: int | None = None) -> list[list[int]]:
    """Take batches, and end the run."""
    found = []
    for batch in feed:
        found.append(batch.indices.tolist())
        if len(found) == count:
            break
    return found


@pytest.mark.parametrize("kind", ["samples", "windows", "mixture"])
def test_skipped_samples_are_neither_lost_nor_received(
    kind: str, store: FolderStore, tmp_path: Path
) -> None:
    first = feed(store, kind, tmp_path)
    whole = take(first, 5)
    state = first.state_dict()
    whole += take(feed(store, kind, None))[5:]
    first.close()
    # Back at the checkpoint: one batch, and three are left out; resized before it gets there.
    second = feed(store, kind, tmp_path)
    second.load_state_dict(state)
    second.skip_batches(3, after=2)
    take(second, 1)
    second.close()
    third = feed(store, kind, tmp_path, batch_size=6)
    third.load_state_dict(second.state_dict())
    take(third)
    third.close()
    result = audit_logs([tmp_path], plan=plans(store)[kind])
    (epoch,) = result.epochs
    assert result.ok, epoch
    spike = sorted(index for batch in whole[7:10] for index in batch)
    assert epoch.in_skipped_batches == tuple(spike)
    assert epoch.num_in_skipped_batches == 12
    assert epoch.num_skipped == 0
    assert epoch.num_expected == NUM_SAMPLES
    if kind != "mixture":
        assert epoch.num_once == NUM_SAMPLES - 12
        assert audit_logs([tmp_path]).ok, "without the plan, too"


def test_a_skip_that_was_undone_is_forgotten(store: FolderStore, tmp_path: Path) -> None:
    first = feed(store, "samples", tmp_path)
    take(first, 3)
    state = first.state_dict()
    first.close()
    second = feed(store, "samples", tmp_path)
    second.load_state_dict(state)
    second.skip_batches(2)
    take(second, 4)
    second.close()
    third = feed(store, "samples", tmp_path)
    third.load_state_dict(state)
    take(third)
    third.close()
    (epoch,) = audit_logs([tmp_path]).epochs
    assert epoch.ok
    assert (epoch.num_once, epoch.num_in_skipped_batches) == (NUM_SAMPLES, 0)


def test_an_epoch_whose_rest_is_skipped_is_finished(store: FolderStore, tmp_path: Path) -> None:
    first = feed(store, "samples", tmp_path)
    take(first, 10)
    first.skip_batches(5)
    take(first)
    first.close()
    zeroth, following = audit_logs([tmp_path]).epochs
    assert (zeroth.epoch, following.epoch) == (0, 1)
    assert zeroth.ok
    assert zeroth.is_finished
    assert (zeroth.num_once, zeroth.num_in_skipped_batches) == (40, 20)
    assert following.num_once == NUM_SAMPLES


def test_an_epoch_that_is_skipped_whole_is_listed(store: FolderStore, tmp_path: Path) -> None:
    first = feed(store, "samples", tmp_path)
    first.skip_batches(15)
    take(first)
    first.close()
    zeroth, following = audit_logs([tmp_path]).epochs
    assert (zeroth.num_once, zeroth.num_in_skipped_batches) == (0, NUM_SAMPLES)
    assert zeroth.is_finished
    assert following.num_once == NUM_SAMPLES


def test_a_log_of_your_own_and_rows_with_a_mask_are_told_of_skips_too(tmp_path: Path) -> None:
    matrix = MemoryMatrix(np.arange(50)[:, None])
    inner = ChunkLoader(matrix, RandomSampler(4, 2, 4, mask=slice(10, 50), rng=5))
    whole = [batch.rows.tolist() for batch in inner]
    inner.set_epoch(1)
    inner.set_epoch(0)
    inner.skip_batches(2, after=3)
    with ConsumptionLog(tmp_path / "rank0.log", rank=0, world_size=1) as log:
        received = [batch.rows.tolist() for batch in LoggedLoader(inner, log)]
    assert received == whole[:3] + whole[5:]
    entries = read_log(tmp_path / "rank0.log").entries
    (event,) = [one for one in entries if isinstance(one, LoggedEvent) and "ids" in one.fields]
    assert event.name == "skipped_batches"
    assert event.fields["ids"] == [row for batch in whole[3:5] for row in batch]
    assert sum(isinstance(one, LoggedBatch) for one in entries) == 8


@pytest.mark.parametrize("field", ["ids", "history", "epoch"])
def test_a_damaged_event_is_refused(field: str, tmp_path: Path) -> None:
    sound: dict[str, Any] = {"epoch": 0, "step": 0, "ids": [1], "history": [[1, 4, 0, [[0, 1]]]]}
    for bad in (None, "text", [["a"]], -1):
        path = tmp_path / f"{bad!r}.log"
        with ConsumptionLog(path, rank=0, world_size=1, info={"num_samples": 4}) as log:
            log.event("resume", step=0)
            log.event("skipped_batches", **{**sound, field: bad})
            log.record(epoch=0, step=0, batch=0, ids=[0])
        with pytest.raises((InvalidValueError, DamagedDataError), match=field):
            audit_logs([path])


def test_the_audit_and_inspect_say_it_in_plain_english(store: FolderStore, tmp_path: Path) -> None:
    first = feed(store, "samples", tmp_path / "logs")
    first.skip_batches(2)
    first.skip_batches(1, after=3)
    state = first.state_dict()
    take(first)
    first.close()
    done = run("audit", "logs", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "12 samples in batches that the run was told to skip: " in done.stdout
    assert "audit: 48 samples, each exactly once, and 12 skipped" in done.stdout
    told = run_json("audit", "logs", cwd=tmp_path)
    assert told["epochs"][0]["num_in_skipped_batches"] == 12
    (tmp_path / "state.json").write_text(json.dumps({"model": 1, "data": state}))
    lines = run("inspect", "state.json", cwd=tmp_path).stdout.splitlines()
    shown = [line.strip() for line in lines if "skipped" in line]
    assert shown == [
        "skipped: batches 0 to 1 of the epoch, at most 8 samples on 1 rank, behind the run",
        "skipped: batch 5 of the epoch, at most 4 samples on 1 rank, ahead of the run",
    ]
    found = run_json("inspect", "state.json", cwd=tmp_path)["cursor"]
    assert found["history"] == [{"world_size": 1, "batch_size": 4, "num_batches": 0}]
    assert [skip["num_batches"] for skip in found["skipped"]] == [2, 1]
