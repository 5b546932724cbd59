"""Logs from strangers: nothing is allocated, counted or waited for because a header says so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.errors import FeedlineError, InvalidValueError, UnsafeDataError
from feedline.report import report_logs
from feedline.runs import ConsumptionLog, audit_logs
from feedline.runs.audit import audit_config
from feedline.runs.inspection import inspect_path
from feedline.runs.run_config import RunConfig
from limited import run_limited

_AUDIT = "from feedline.runs import audit_logs\nfrom feedline.report import report_logs\n"


def write_log(path: Path, *, world_size: int = 1, rank: int = 0, **info: Any) -> Path:
    with ConsumptionLog(path, rank=rank, world_size=world_size, info=info) as log:
        log.event("start")
        log.record(epoch=0, step=0, batch=0, ids=[3, 0, 3, 5])
        log.event("epoch_end", epoch=0, step=0)
    return path


@pytest.mark.parametrize("call", ["audit_logs([path]).epochs[0].num_lost", "report_logs([path])"])
@pytest.mark.parametrize(
    "header",
    [{"num_samples": 2**47}, {"num_samples": 2**27}, {"world_size": 2**40, "num_samples": 6}],
    ids=["2**47 samples", "2**27 samples", "2**40 ranks"],
)
def test_nothing_is_allocated_from_a_header(
    header: dict[str, Any], call: str, tmp_path: Path
) -> None:
    path = write_log(tmp_path / "rank0.log", **header)
    printed = run_limited(call, path, imports=_AUDIT, megabytes=400)
    assert "result:" in printed


@pytest.mark.parametrize("num_samples", [7, 2**40])
def test_few_samples_of_many_are_counted_as_few_of_few(num_samples: int, tmp_path: Path) -> None:
    path = write_log(tmp_path / "rank0.log", num_samples=num_samples)
    epoch = audit_logs([path]).epochs[0]
    assert (epoch.num_expected, epoch.num_once, epoch.num_repeated) == (num_samples, 2, 1)
    assert epoch.repeated == (3,)
    assert epoch.num_lost == num_samples - 3
    first = [1, 2, 4, 6, *range(7, 30)]
    assert epoch.lost == tuple(first[: min(20, num_samples - 3)])


def test_sparse_and_dense_counts_agree(tmp_path: Path) -> None:
    from feedline.runs.sample_counts import _Dense, _Sparse

    rng = np.random.default_rng(3)
    for _ in range(50):
        num_samples = int(rng.integers(1, 60))
        batches = [rng.integers(0, num_samples, rng.integers(0, 20)) for _ in range(3)]
        counts = [
            kind(batches, num_samples, *rest) for kind, rest in ((_Dense, [None]), (_Sparse, []))
        ]
        from feedline.runs.run_config_data import SourceInfo

        found = [
            (c.missing(20), c.repeated(20), c.of_source(SourceInfo("s", num_samples // 2, 1)))
            for c in counts
        ]
        assert found[0] == found[1]


def test_the_ranks_of_a_plan_are_not_counted_to_a_header_without_logs(tmp_path: Path) -> None:
    path = write_log(tmp_path / "rank0.log", world_size=2**40, num_samples=6)
    config = RunConfig.from_dict({"batch_size": 4, "tail": "pad", "data": {"samples": 6}})
    with pytest.raises(InvalidValueError, match=r"world_size=1099511627776 must be at most"):
        audit_config([path], config)


def test_a_batch_size_of_a_header_is_not_padded_to(tmp_path: Path) -> None:
    path = write_log(tmp_path / "rank0.log", num_samples=6, batch_size=2**50)
    config = RunConfig.from_dict({"batch_size": 4, "tail": "pad", "data": {"samples": 6}})
    with pytest.raises(InvalidValueError, match=r"batch_size=1125899906842624 must be at most"):
        audit_config([path], config)


def test_epochs_that_take_turns_are_read_once_each(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    num_epochs = 3000
    with ConsumptionLog(path, rank=0, world_size=1, info={"num_samples": 2**40}) as log:
        for turn in range(2):
            for epoch in range(num_epochs):
                log.record(epoch=epoch, step=turn * num_epochs + epoch, batch=turn, ids=[turn])
    printed = run_limited("len(audit_logs([path]).epochs)", path, imports=_AUDIT, seconds=120)
    assert f"result: {num_epochs}" in printed


def test_a_missing_rank_is_still_named(tmp_path: Path) -> None:
    write_log(tmp_path / "rank0.log", world_size=3, num_samples=6)
    assert audit_logs([tmp_path]).runs[0].missing_ranks == (1, 2)


def test_sources_that_sum_to_too_much_are_refused(tmp_path: Path) -> None:
    sources = {f"s{number}": 2**48 for number in range(2**15)}
    with pytest.raises(InvalidValueError, match="num_samples="):
        audit_logs([write_log(tmp_path / "rank0.log", sources=sources)])


@pytest.mark.parametrize("call", [audit_logs, report_logs])
def test_pipes_and_devices_are_no_logs(call: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UnsafeDataError, match="must be a file"):
            call([path])
        with pytest.raises(FeedlineError, match="must be a file"):
            inspect_path(path)


@pytest.mark.parametrize("epoch", [-1, 2**63 - 1])
def test_epochs_that_no_run_reaches_are_damage(epoch: int, tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    with ConsumptionLog(path, rank=0, world_size=1, info={"num_samples": 4}) as log:
        log.record(epoch=epoch, step=0, batch=0, ids=[0])
    with pytest.raises(FeedlineError, match="neither a batch nor an event"):
        audit_logs([path])


@pytest.mark.parametrize(
    "fields",
    [{"epoch": 2**60, "step": 3}, {"epoch": 2**22, "step": 2**62}],
    ids=["2**60 epochs", "2**22 epochs"],
)
def test_epochs_that_have_no_place_are_refused(fields: dict[str, int], tmp_path: Path) -> None:
    # Found by fuzzing: the places of a loader without a clock overflowed.
    for number, has_clock in enumerate((True, False)):
        info = {"num_samples": 4}
        path = tmp_path / f"run{number}" / "rank0.log"
        with ConsumptionLog(path, rank=0, world_size=1, run=f"r{number}", info=info) as log:
            log.event("start", has_clock=has_clock, place=0, places_per_batch=1)
            log.record(epoch=0, step=0, batch=0, ids=[0])
            log.event("epoch_end", **fields)
    with pytest.raises(InvalidValueError, match="remove this log"):
        audit_logs([tmp_path])


@pytest.mark.parametrize(
    "fields",
    [
        {"ids": [2**64]},
        {"ids": "3"},
        {"ids": [[1]]},
        {"ids": None},
        {"ids": [True]},
        {"ids": [1], "epoch": -1},
        {"ids": [1], "step": "x"},
    ],
)
def test_an_event_of_skipped_samples_that_makes_no_sense_is_refused(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "rank0.log"
    with ConsumptionLog(path, rank=0, world_size=1, info={"num_samples": 6}) as log:
        log.record(epoch=0, step=0, batch=0, ids=[3, 0])
        log.event("skipped", **{"epoch": 0, "step": 0, "batch": 0, **fields})
    with pytest.raises(InvalidValueError, match=r"rank0.log: in event 'skipped', "):
        audit_logs([path])


def test_skipped_samples_that_are_not_in_the_data_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    with ConsumptionLog(path, rank=0, world_size=1, info={"num_samples": 2**40}) as log:
        log.record(epoch=0, step=0, batch=0, ids=[3, 0])
        log.event("skipped", epoch=0, step=0, batch=0, ids=[-4, 2**50, 7, 3])
    (epoch,) = audit_logs([path]).epochs
    assert epoch.unknown == (-4, 2**50)
    assert (epoch.num_skipped, epoch.num_once, epoch.repeated) == (2, 1, (3,))
