"""Steps that are skipped: the clock counts those of the optimizer, and the loader agrees."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from clock_loaders import ids_of, torch_loader
from examples import few_examples
from feedline.errors import InvalidValueError
from feedline.runs import audit_logs, read_log
from feedline.runs.log_records import LoggedBatch
from feedline.steps import Alone, StepScheduler
from forked import forked_ranks
from processes import finish, torchrun


def clock(loader: Any, **options: Any) -> StepScheduler:
    given = {"num_epochs": 2, "preemption_signal": None, "peers": Alone(), **options}
    return StepScheduler(dataloader=loader, **given)


def loader_of(num_samples: int = 40, batch_size: int = 2) -> Any:
    return torch_loader(rank=0, world_size=1, batch_size=batch_size, num_samples=num_samples)


def taken(
    scheduler: StepScheduler, num_steps: int | None = None
) -> list[tuple[int, int, list[int]]]:
    """Epoch, step and ids of each step."""
    found: list[tuple[int, int, list[int]]] = []
    for epoch in scheduler.epochs:
        for batches in scheduler:
            found.append((epoch, scheduler.step, [i for batch in batches for i in ids_of(batch)]))
            if len(found) == num_steps:
                return found
    return found


def test_after_a_spike_a_run_goes_back_and_leaves_out_the_steps_around_it() -> None:
    with clock(loader_of(), global_batch_size=4) as scheduler:
        whole = taken(scheduler, 3)
        state = json.loads(json.dumps(scheduler.state_dict()))
        whole += taken(scheduler)
    assert len(whole) == 20
    with clock(loader_of(), global_batch_size=4) as again:
        again.load_state_dict(state)
        again.skip_steps(5, 8)
        assert again.step == 3
        found = taken(again)
    data = [ids for _, _, ids in whole]
    assert [ids for _, _, ids in found] == data[3:5] + data[8:]
    assert [step for _, step, _ in found] == list(range(3, 17))
    assert [epoch for epoch, _, _ in found] == [0] * 4 + [1] * 10


@few_examples(1 / 4)
@given(st.data())
def test_skips_at_any_time_with_any_accumulation_leave_out_whole_steps(data: st.DataObject) -> None:
    num_samples = data.draw(st.integers(10, 50))
    per_step = 2 * data.draw(st.integers(1, 3))
    with clock(loader_of(num_samples), global_batch_size=per_step) as scheduler:
        whole = taken(scheduler)
    expected = [list(ids) for _, _, ids in whole]
    epoch_len = len(whole) // 2
    state, step, ends = None, 0, [epoch_len, 2 * epoch_len]
    received: list[list[int]] = []
    for _ in range(3):
        with clock(loader_of(num_samples), global_batch_size=per_step) as scheduler:
            if state is not None:
                scheduler.load_state_dict(state)
            end = next((end for end in ends if end > step), None)
            if end is None:
                break
            start = data.draw(st.integers(step, end - 1))
            stop = data.draw(st.integers(start + 1, end))
            scheduler.skip_steps(start, stop)
            del expected[start:stop]
            ends = [end - (stop - start) * (end > start) for end in ends]
            count = data.draw(st.integers(1, 5))
            received += [ids for _, _, ids in taken(scheduler, count)]
            state, step = scheduler.state_dict(), len(received)
            assert state["step"] == step
    with clock(loader_of(num_samples), global_batch_size=per_step) as scheduler:
        scheduler.load_state_dict(state)
        received += [ids for _, _, ids in taken(scheduler)]
    assert received == expected


def test_a_run_with_max_steps_does_them_all_however_many_it_skips() -> None:
    with clock(loader_of(), num_epochs=None, max_steps=40) as scheduler:
        scheduler.skip_steps(2, 12)
        found = taken(scheduler, 30)
        state = scheduler.state_dict()
    with clock(loader_of(), num_epochs=None, max_steps=40) as again:
        again.load_state_dict(state)
        found += taken(again)
    assert [step for _, step, _ in found] == list(range(40))
    assert [epoch for epoch, _, _ in found] == [0] * 10 + [1] * 20 + [2] * 10
    with clock(loader_of(), num_epochs=2, max_steps=40) as bounded:
        bounded.skip_steps(2, 12)
        assert len(taken(bounded)) == 30, "the number of epochs was given"


def test_the_rest_of_an_epoch_may_be_skipped_and_no_more() -> None:
    with clock(loader_of()) as scheduler:
        taken(scheduler, 15)
        scheduler.load_state_dict(scheduler.state_dict())
        with pytest.raises(InvalidValueError, match="next 6 steps must be at most 5, because epo"):
            scheduler.skip_steps(16, 21)
        scheduler.skip_steps(15, 20)
        assert (scheduler.epoch, scheduler.step) == (1, 15)
        state = scheduler.state_dict()
        assert [place[:2] for place in taken(scheduler)] == [(1, 15 + n) for n in range(20)]
    with clock(loader_of()) as again:
        again.load_state_dict(state)
        assert [place[:2] for place in taken(again)] == [(1, 15 + n) for n in range(20)]


def test_what_cannot_be_skipped_is_refused() -> None:
    with clock(loader_of()) as scheduler:
        for _ in scheduler:
            with pytest.raises(InvalidValueError, match="cannot be skipped during step 0; call sk"):
                scheduler.skip_steps(3, 4)
            break
        scheduler.load_state_dict(scheduler.state_dict())
        with pytest.raises(InvalidValueError, match=r"start=0 must be at least 1; the next step"):
            scheduler.skip_steps(0, 4)
        with pytest.raises(InvalidValueError, match="stop=3 must be at least 4"):
            scheduler.skip_steps(3, 3)
        scheduler.skip_steps(2, 4)
        assert len(taken(scheduler)) == 37
    with (
        clock([[1, 2]] * 10, local_batch_size=2) as foreign,
        pytest.raises(InvalidValueError, match="has no plan, so its batches cannot be skipped"),
    ):
        foreign.skip_steps(1, 2)


@pytest.mark.parametrize("launch", [forked_ranks, pytest.param(torchrun, marks=pytest.mark.slow)])
def test_real_ranks_rewind_skip_and_resume_on_others_and_the_audit_accounts_for_it(
    launch: Any, tmp_path: Path
) -> None:
    def run(num_processes: int, **job: Any) -> None:
        defaults = {"folder": str(tmp_path), "load": None, "skip": None, "stop_before": None}
        sizes = {"batch_size": 4, "global_batch_size": 16, "num_workers": 0}
        arguments = json.dumps({**defaults, **sizes, **job})
        with launch("rewind_job.py", num_processes, arguments) as started:
            finish(started)

    run(2, stop_before=12)
    spike = ids_at(tmp_path / "logs", range(6, 9))
    assert len(spike) == 3 * 16
    # The run stops before it comes to what it skips, and goes on with three ranks.
    run(2, load=4, skip=[6, 9], stop_before=5, num_workers=2)
    run(3, load=5, batch_size=2, global_batch_size=12, num_workers=2)
    result = audit_logs([tmp_path / "logs"])
    assert result.ok
    assert result.is_finished
    first, second = result.epochs
    assert (first.num_once, first.num_in_skipped_batches) == (240 - 48, 48)
    assert first.in_skipped_batches == tuple(sorted(spike))[:20]
    assert (first.num_lost, first.num_repeated, first.num_to_come) == (0, 0, 0)
    assert (second.num_once, second.num_in_skipped_batches) == (240, 0)
    received = ids_at(tmp_path / "logs" / latest_run(tmp_path / "logs"), range(10**6), epoch=0)
    assert not set(received) & set(spike)


def ids_at(folder: Path, steps: range, epoch: int = 0) -> Counter[int]:
    found: Counter[int] = Counter()
    for path in folder.rglob("*.log"):
        for entry in read_log(path).entries:
            if isinstance(entry, LoggedBatch) and entry.step in steps and entry.epoch == epoch:
                found.update(entry.real_ids.tolist())
    return found


def latest_run(folder: Path) -> str:
    return max(path.name for path in folder.iterdir())
