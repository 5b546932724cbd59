"""An audit finds every sample that was lost or repeated, over all ranks and runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.errors import DamagedDataError, InvalidValueError, MissingDataError
from feedline.plan import Cursor, Mixture, SamplePlan, Shuffled
from feedline.runs import AuditResult, ConsumptionLog, audit_logs

Batch = tuple[int, list[int]]


def write(
    folder: Path,
    run: str,
    ranks: list[list[Batch]],
    *,
    resume: int | None = None,
    time: float = 0,
    is_end: bool = False,
    epoch: int = 0,
    **info: Any,
) -> None:
    """Write the logs of a run: for each rank the step and the samples of each batch."""
    for rank, batches in enumerate(ranks):
        path = folder / f"{run}-{rank}.log"
        with ConsumptionLog(path, rank=rank, world_size=len(ranks), run=run, info=info) as log:
            began = {} if resume is None else {"step": resume}
            log.event("start" if resume is None else "resume", time=time, **began)
            for number, (step, ids) in enumerate(batches):
                log.record(epoch=epoch, step=step, batch=number, ids=ids)
            if is_end:
                log.event("epoch_end", epoch=epoch, step=batches[-1][0])
            log.event("stop")


def only_epoch(folder: Path, num_samples: int | None = None) -> Any:
    (epoch,) = audit_logs([folder], num_samples=num_samples).epochs
    return epoch


def test_a_clean_epoch_has_each_sample_once(tmp_path: Path) -> None:
    write(tmp_path, "a", [[(0, [4, 0]), (1, [1])], [(0, [3, 5]), (1, [2])]], is_end=True)
    result = audit_logs([tmp_path], num_samples=6)
    assert result.ok
    assert result.is_finished
    assert result.epochs[0].num_once == 6
    assert result.runs[0].num_batches == (2, 2)


def test_lost_repeated_and_unknown_samples_are_listed(tmp_path: Path) -> None:
    write(tmp_path, "a", [[(0, [0, 1])], [(0, [1, 7, -1])]], is_end=True)
    epoch = only_epoch(tmp_path, 4)
    assert not epoch.ok
    assert (epoch.lost, epoch.repeated, epoch.unknown) == ((2, 3), (1,), (7, -1))
    assert (epoch.num_lost, epoch.num_repeated, epoch.num_unknown) == (2, 1, 2)


def test_long_lists_are_cut_and_counted(tmp_path: Path) -> None:
    write(tmp_path, "a", [[(0, [0])]], is_end=True)
    epoch = only_epoch(tmp_path, 100)
    assert epoch.lost == tuple(range(1, 21))
    assert epoch.num_lost == 99


def test_a_killed_run_counts_up_to_the_checkpoint_that_was_loaded(tmp_path: Path) -> None:
    write(tmp_path, "a", [[(0, [0]), (1, [2]), (2, [4])], [(0, [1]), (1, [3])]], time=1)
    write(tmp_path, "b", [[(1, [2, 3]), (2, [4, 5])]], time=2, resume=1, is_end=True)
    result = audit_logs([tmp_path], num_samples=6)
    assert result.ok
    assert result.runs[0].num_discarded_batches == 3
    assert result.runs[0].num_discarded_samples == 3
    assert result.runs[0].num_batches == (1, 1)


def test_a_later_run_may_go_back_behind_an_earlier_one(tmp_path: Path) -> None:
    write(tmp_path, "a", [[(0, [0]), (1, [1]), (2, [2])]], time=1)
    write(tmp_path, "b", [[(2, [2]), (3, [3])]], time=2, resume=2)
    write(tmp_path, "c", [[(1, [1, 2, 3])]], time=3, resume=1, is_end=True)
    result = audit_logs([tmp_path], num_samples=4)
    assert result.ok
    assert [run.num_discarded_batches for run in result.runs] == [2, 2, 0]


def test_runs_are_ordered_by_the_time_they_began_and_not_by_name(tmp_path: Path) -> None:
    write(tmp_path, "b", [[(0, [0]), (1, [9])]], time=1)
    write(tmp_path, "a", [[(1, [1])]], time=2, resume=1, is_end=True)
    assert audit_logs([tmp_path], num_samples=2).ok


def test_a_log_that_was_gone_on_with_holds_several_runs(tmp_path: Path) -> None:
    for began, steps in (({}, range(5)), ({"step": 3}, range(3, 6))):
        with ConsumptionLog(tmp_path / "a", rank=0, world_size=1) as log:
            log.event("resume" if began else "start", **began)
            for step in steps:
                log.record(epoch=0, step=step, batch=step, ids=[step])
    with ConsumptionLog(tmp_path / "a", rank=0, world_size=1) as log:
        log.event("epoch_end", epoch=0, step=5)
    result = audit_logs([tmp_path], num_samples=6)
    assert result.ok
    assert [run.num_discarded_batches for run in result.runs] == [2, 0]


def test_an_epoch_without_an_end_is_unfinished_and_nothing_is_lost_yet(tmp_path: Path) -> None:
    write(tmp_path, "a", [[(0, [0, 1])]])
    result = audit_logs([tmp_path], num_samples=6)
    assert result.ok
    assert not result.is_finished
    assert result.epochs[0].num_to_come == 4


def test_an_end_that_was_discarded_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, "a", [[(0, [0]), (1, [1])]], time=1, is_end=True)
    write(tmp_path, "b", [[(1, [1])]], time=2, resume=1)
    assert not audit_logs([tmp_path], num_samples=2).is_finished


def test_an_epoch_that_is_followed_by_another_is_finished(tmp_path: Path) -> None:
    write(tmp_path, "a", [[(0, [0, 1])]], time=1)
    write(tmp_path, "b", [[(1, [0])]], time=2, resume=1, epoch=1)
    first, second = audit_logs([tmp_path], num_samples=3).epochs
    assert (first.is_finished, first.lost) == (True, (2,))
    assert (second.is_finished, second.num_to_come) == (False, 2)


def test_padding_does_not_count(tmp_path: Path) -> None:
    with ConsumptionLog(tmp_path / "a", rank=0, world_size=1) as log:
        log.record(epoch=0, step=0, batch=0, ids=[0, 1, 0], is_real=[True, True, False])
        log.event("epoch_end", epoch=0, step=0)
    epoch = only_epoch(tmp_path, 2)
    assert epoch.ok
    assert epoch.num_padded == 1


@pytest.mark.parametrize(
    ("second", "step"),
    [
        ([(0, [1])], 1),
        ([(0, [1]), (2, [3])], 1),
        ([(1, [1]), (1, [3])], 0),
        ([(0, [1]), (1, [3]), (2, [5])], 2),
    ],
)
def test_the_step_where_ranks_parted_is_named(
    tmp_path: Path, second: list[Batch], step: int
) -> None:
    write(tmp_path, "a", [[(0, [0]), (1, [2])], second])
    (run,) = audit_logs([tmp_path], num_samples=6).runs
    assert not run.ok
    assert run.parted_step == step


def test_ranks_of_a_run_that_still_runs_need_not_be_at_the_same_step(tmp_path: Path) -> None:
    for rank, num_steps in enumerate([3, 2]):
        with ConsumptionLog(tmp_path / f"{rank}", rank=rank, world_size=2) as log:
            for step in range(num_steps):
                log.record(epoch=0, step=step, batch=step, ids=[2 * step + rank])
    assert audit_logs([tmp_path], num_samples=10).ok


def test_logs_that_are_not_there_are_told(tmp_path: Path) -> None:
    write(tmp_path, "a", [[(0, [0])], [(0, [1])], [(0, [2])]], is_end=True)
    (tmp_path / "a-1.log").unlink()
    result = audit_logs([tmp_path], num_samples=3)
    assert not result.ok
    assert result.runs[0].missing_ranks == (1,)


def test_sources_are_told_apart(tmp_path: Path) -> None:
    sources = {"web": 3, "books": 2}
    write(tmp_path, "a", [[(0, [0, 1, 2, 4, 4])]], is_end=True, sources=sources)
    web, books = only_epoch(tmp_path).sources
    assert (web.name, web.first, web.num_once, web.num_missing) == ("web", 0, 3, 0)
    assert (books.name, books.first, books.num_missing, books.num_repeated) == ("books", 3, 1, 1)


@pytest.mark.parametrize(
    ("entry_size", "num_samples", "is_ok"),
    [(None, 11, True), (None, 12, False), (1, 9, True), (1, 10, False)],
)
def test_what_the_tail_drops_is_not_lost(
    tmp_path: Path, entry_size: int | None, num_samples: int, is_ok: bool
) -> None:
    # One run of four samples, then two ranks with batches of two for the rest.
    info: dict[str, Any] = {"tail": "drop", "batch_size": 2}
    if entry_size:
        info["entry_size"] = entry_size
    write(tmp_path, "a", [[(0, [0, 1])], [(0, [2, 3])]], time=1, **info)
    rest = [[(1, [4, 5])], [(1, [6, 7])]]
    write(tmp_path, "b", rest, time=2, resume=1, is_end=True, **info)
    epoch = only_epoch(tmp_path, num_samples)
    assert epoch.ok == is_ok
    assert epoch.num_dropped == (num_samples - 8 if is_ok else 0)


def test_a_loss_in_an_early_run_does_not_hide_among_the_dropped(tmp_path: Path) -> None:
    info = {"tail": "drop", "batch_size": 2}
    write(tmp_path, "a", [[(0, [0, 1])], [(0, [2])]], time=1, **info)
    rest = [[(1, [4, 5])], [(1, [6, 7])]]
    write(tmp_path, "b", rest, time=2, resume=1, is_end=True, **info)
    epoch = only_epoch(tmp_path, 9)
    assert not epoch.ok
    assert epoch.lost == (3, 8)


def log_segments(
    folder: Path,
    plan: SamplePlan,
    sizes: Iterable[tuple[int, int, int | None]],
    *,
    fault: str = "none",
) -> None:
    """Log what ranks receive of an epoch: for each run its ranks, batch size and batches.

    With a fault, the first sample of all is lost or repeated.
    """
    cursor, step = None, 0
    for number, (world_size, batch_size, num_batches) in enumerate(sizes):
        ways = {"world_size": world_size, "batch_size": batch_size}
        segment = plan.resume(cursor, **ways) if cursor else plan.segment(**ways)
        start = segment.num_done
        stop = segment.num_batches
        if num_batches is not None:
            stop = min(start + num_batches, stop)
        for rank in range(world_size):
            path = folder / f"{number}-{rank}"
            run = {"run": str(number), "info": {"batch_size": batch_size, "tail": plan.tail}}
            with ConsumptionLog(path, rank=rank, world_size=world_size, **run) as log:
                log.event("resume", step=step, time=number)
                for batch in segment.block(rank, start, stop):
                    places = list(range(len(batch.indices)))
                    if (number, rank, batch.number) == (0, 0, 0):
                        places = {"none": places, "lost": places[1:], "repeated": [0, *places]}[
                            fault
                        ]
                    log.record(
                        epoch=0,
                        step=step + batch.number - start,
                        batch=batch.number,
                        ids=batch.indices[places],
                        is_real=batch.is_real[places],
                    )
                if num_batches is None:
                    log.event("epoch_end", epoch=0, step=step + stop - start - 1)
        cursor = Cursor.from_dict(segment.cursor(stop).to_dict())
        step += stop - start


@given(
    num_samples=st.integers(60, 200),
    sizes=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3)), max_size=3),
    last=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    tail=st.sampled_from(["drop", "even", "pad"]),
    fault=st.sampled_from(["none", "lost", "repeated"]),
)
@settings(max_examples=30)
def test_audits_of_plans_on_any_ranks_find_one_fault_and_no_other(
    tmp_path_factory: pytest.TempPathFactory,
    num_samples: int,
    sizes: list[tuple[int, int, int]],
    last: tuple[int, int],
    tail: str,
    fault: str,
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    plan = SamplePlan(order=Shuffled(num_samples=num_samples), tail=tail)
    log_segments(folder, plan, [*sizes, (*last, None)], fault=fault)
    for result in (audit_logs([folder], num_samples=num_samples), audit_logs([folder], plan=plan)):
        (epoch,) = result.epochs
        assert result.is_finished
        assert epoch.ok == (fault == "none")
        assert (epoch.num_lost > 0) == (fault == "lost")
        assert epoch.num_repeated == (fault == "repeated")


def test_a_plan_says_how_often_samples_of_a_mixture_come(tmp_path: Path) -> None:
    mixture = Mixture(sizes=(60, 7), weights=(1, 1))
    plan = SamplePlan(order=mixture, tail="drop")
    log_segments(tmp_path, plan, [(2, 4, 3), (3, 2, None)])
    assert not audit_logs([tmp_path], num_samples=67).ok
    result: AuditResult = audit_logs([tmp_path], plan=plan)
    assert result.ok
    assert result.epochs[0].num_expected == 66
    assert not audit_logs([tmp_path], plan=SamplePlan(order=mixture, tail="even")).ok


def test_bad_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="does not exist"):
        audit_logs([tmp_path / "none"])
    with pytest.raises(MissingDataError, match="contains no log"):
        audit_logs([tmp_path])
    with pytest.raises(InvalidValueError, match="at least one log"):
        audit_logs([])
    write(tmp_path, "a", [[(0, [0])]])
    with pytest.raises(InvalidValueError, match="num_samples is required"):
        audit_logs([tmp_path])
    with pytest.raises(InvalidValueError, match="num_samples=0"):
        audit_logs([tmp_path], num_samples=0)
    (tmp_path / "other").write_bytes(b"something else")
    audit_logs([tmp_path], num_samples=1)
    with pytest.raises(DamagedDataError, match="not begin like a log"):
        audit_logs([tmp_path / "other"], num_samples=1)


def test_logs_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "1", "a", [[(0, [0])]], num_samples=3)
    write(tmp_path / "2", "a", [[(0, [0])]], num_samples=3)
    with pytest.raises(InvalidValueError, match=r"rank 0 of run 'a' is logged in .* too"):
        audit_logs([tmp_path])
    write(tmp_path / "3", "b", [[(0, [0])]], num_samples=4)
    with pytest.raises(InvalidValueError, match="each training separately"):
        audit_logs([tmp_path / "1", tmp_path / "3"])
    with ConsumptionLog(tmp_path / "4", rank=1, world_size=2, run="a") as log:
        log.event("start")
    with pytest.raises(InvalidValueError, match="world_size=2 must be 1"):
        audit_logs([tmp_path / "1", tmp_path / "4"])


def test_logs_in_which_nothing_counts_are_no_success(tmp_path: Path) -> None:
    write(tmp_path, "a", [[(0, [0])]], time=1)
    with ConsumptionLog(tmp_path / "b", rank=0, world_size=1, run="b") as log:
        log.event("resume", step=0, time=2)
    with pytest.raises(InvalidValueError, match="0 batches that count"):
        audit_logs([tmp_path], num_samples=1)


def test_a_resume_without_its_step_is_refused(tmp_path: Path) -> None:
    with ConsumptionLog(tmp_path / "a", rank=0, world_size=1) as log:
        log.event("resume")
    with pytest.raises(InvalidValueError, match="in event 'resume', step=None"):
        audit_logs([tmp_path], num_samples=1)


def test_many_epochs_are_counted_one_by_one(tmp_path: Path) -> None:
    with ConsumptionLog(tmp_path / "a", rank=0, world_size=1) as log:
        for step in range(20):
            ids = np.arange(10) if step != 13 else np.arange(9)
            log.record(epoch=step, step=step, batch=0, ids=ids)
        log.event("epoch_end", epoch=19, step=19)
    epochs = audit_logs([tmp_path], num_samples=10).epochs
    assert [epoch.epoch for epoch in epochs if not epoch.ok] == [13]
