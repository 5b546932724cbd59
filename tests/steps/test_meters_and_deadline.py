"""What a run measures of itself, and when it stops because time runs out."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data

from clock_loaders import MemoryStore, Sized, bucket_loader, chunk_loader, feed, torch_loader
from clock_runs import scheduler_for
from fake_clock import FakeClock
from feedline.feed import DataLoader, Wait
from feedline.steps import Alone, StepScheduler
from feedline.steps.meters import WaitMeter
from feedline.steps.progress import RunProgress
from loader_data import Ids
from refusals import refusal


@pytest.mark.parametrize("make", [float, torch.tensor, np.float32, lambda x: torch.tensor([x])])
def test_the_loss_is_averaged_over_the_window(make: Any) -> None:
    scheduler = scheduler_for(Sized(9), num_epochs=1, loss_average_window_steps=3)
    assert scheduler.loss_average is None
    found = []
    for _ in scheduler:
        scheduler.record_loss(make(float(scheduler.step**2)))
        found.append(scheduler.loss_average)
    squares = [step**2 for step in range(9)]
    expected = [np.mean(squares[max(0, step - 2) : step + 1]) for step in range(9)]
    assert found == pytest.approx(expected)
    assert type(found[-1]) is float


def test_a_loss_with_a_gradient_lets_go_of_its_graph() -> None:
    scheduler = scheduler_for(Sized(2), num_epochs=1)
    weight = torch.tensor(2.0, requires_grad=True)
    loss = weight * 3
    scheduler.record_loss(loss)
    loss.backward()
    assert scheduler.loss_average == 6.0
    assert weight.grad == 3.0


@pytest.mark.parametrize("total", [torch.zeros(()), np.zeros(())])
def test_a_total_that_is_used_again_does_not_change_what_was_recorded(total: Any) -> None:
    scheduler = scheduler_for(Sized(3), num_epochs=1)
    for _ in scheduler:
        total += 2.0
        scheduler.record_loss(total)
        total *= 0
    assert scheduler.loss_average == 2.0


def test_waiting_for_data_is_measured_apart_from_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("feedline.steps.step_scheduler.perf_counter", lambda: now[0])

    class Slow(Sized):
        def __iter__(self) -> Any:
            for batch in super().__iter__():
                now[0] += 2.0
                yield batch

    scheduler = scheduler_for(Slow(8), grad_acc=2, num_epochs=1, loss_average_window_steps=2)
    for _ in scheduler:
        now[0] += 12.0 if scheduler.step < 3 else 4.0
    assert scheduler.waiting.latest == (4.0, 4.0)
    assert scheduler.waiting.share == 8 / 24
    assert scheduler.waiting.seconds_per_step == 12.0


def test_waiting_is_split_into_reading_and_handing_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(monkeypatch)

    class Slow(MemoryStore):
        def read(self, chunk: int, rows: Any, out: Any = None) -> Any:
            clock.spend(8.0)
            return super().read(chunk, rows, out)

    def transform(batch: Any) -> Any:
        clock.spend(0.5)
        return batch

    store: Any = Slow(24)
    loader = DataLoader(store, 4, transform=transform, num_threads=0)
    scheduler = scheduler_for(loader, grad_acc=2, num_epochs=1)
    for _ in scheduler:
        clock.spend(3.0)
    waited, worked = scheduler.waiting.latest or (Wait(0.0), 0.0)
    assert (worked, waited.handing_over, waited.copying) == (3.0, 1.0, 0.0)
    shares, total = scheduler.waiting.shares, clock.now
    assert shares["handing_over"] == 3.0 / total
    assert shares["reading"] == loader.waits.reading / total > 0
    assert sum(shares.values()) == pytest.approx(scheduler.waiting.share)
    assert scheduler.waiting.share == pytest.approx((total - 9.0) / total)


def test_all_waiting_for_a_loader_of_another_library_is_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock(monkeypatch)

    class Slow(Sized):
        def __iter__(self) -> Any:
            for batch in super().__iter__():
                clock.spend(2.0)
                yield batch

    scheduler = scheduler_for(Slow(8), grad_acc=2, num_epochs=1)
    for _ in scheduler:
        clock.spend(4.0)
    assert scheduler.waiting.shares == {"reading": 0.5, "copying": 0.0, "handing_over": 0.0}
    assert scheduler.waiting.latest == (4.0, 4.0)


def test_what_a_device_waited_and_was_known_late_makes_no_share_above_one() -> None:
    meter = WaitMeter(window=2)
    # In a step of a second, it becomes known that the device has waited for three.
    meter.add(waited=(3.0, 0.0, 3.0), worked=1.0 - 3.0)
    assert (meter.share, meter.latest, meter.seconds_per_step) == (1.0, (3.0, 0.0), 1.0)
    meter.add(waited=(0.0, 0.0, 0.0), worked=5.0)
    assert meter.share == meter.shares["copying"] == 0.5


def test_the_progress_bar_says_what_is_waited_for_most() -> None:
    notes: list[str] = []

    class Bar:
        def update(self, task: Any, *, completed: int, note: str) -> None:
            notes.append(note)

        def add_task(self, name: str, **_: Any) -> int:
            return 1

        def start(self) -> None:
            pass

    scheduler = scheduler_for(Sized(2), num_epochs=1)
    progress = RunProgress(Bar())
    scheduler.waiting.add(waited=(0.001, 0.001, 0.0), worked=0.999)
    progress.update(scheduler)
    scheduler.waiting.add(waited=(1.0, 0.25, 0.5), worked=0.0)
    progress.update(scheduler)
    assert [note.split("  ")[-1] for note in notes] == ["waiting 0%", "waiting 50%, mostly copying"]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(
    ("size", "local", "grad_acc"), [(2, 3, 1), (2, 3, 2), (3, 2, 3), (1, 4, 4)]
)
def test_padding_is_no_sample_with_our_loader(
    size: int, local: int, grad_acc: int, shuffle: bool
) -> None:
    by_rank = []
    for rank in range(size):
        loader = torch_loader(rank=rank, world_size=size, batch_size=local, shuffle=shuffle)
        scheduler = StepScheduler(
            *(size * local * grad_acc, local, size, loader),
            num_epochs=2,
            preemption_signal=None,
            peers=Alone(),
        )
        assert scheduler.num_samples is None, "no step is out"
        counts = [
            (scheduler.num_samples, scheduler.num_samples_of_all_ranks)
            for _ in scheduler.epochs
            for _ in scheduler
        ]
        by_rank.append(counts)
    for together in zip(*by_rank, strict=True):
        everywhere = sum(mine for mine, _ in together)
        assert {of_all for _, of_all in together} == {everywhere}
    assert sum(mine for counts in by_rank for mine, _ in counts) == 2 * 23


def test_samples_are_counted_after_a_resume_too() -> None:
    def make() -> StepScheduler:
        loader = torch_loader(rank=1, world_size=2)
        options: dict[str, Any] = {"preemption_signal": None, "peers": Alone(), "num_epochs": 1}
        return StepScheduler(12, 3, 2, loader, **options)

    whole = make()
    counts = [whole.num_samples for _ in whole]
    assert counts[-1] < counts[0], "the last step is not full"  # type: ignore[operator]
    first = make()
    next(iter(first))
    second = make()
    second.load_state_dict(first.state_dict())
    assert [second.num_samples for _ in second] == counts[1:]


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("buckets", lambda rank: bucket_loader(rank=rank, num_replicas=2)),
        pytest.param("feed", lambda rank: feed(rank=rank, world_size=2)),
    ],
)
def test_padding_is_no_sample_with_other_loaders_of_ours(kind: str, make: Any) -> None:
    total = 0
    for rank in range(2):
        scheduler = scheduler_for(make(rank), num_epochs=1)
        total += sum(scheduler.num_samples or 0 for _ in scheduler)
    assert total == 23


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        (torch.zeros(5, 2), 5),
        (np.zeros((4, 3)), 4),
        ([1, 2, 3], 3),
        (["a", "b"], 2),
        ((torch.zeros(6, 2), torch.zeros(6)), 6),
        ([torch.zeros(6, 2), torch.zeros(6)], 6),
        ({"x": torch.zeros(7, 2), "y": [1] * 7}, 7),
        ({"inputs": {"x": np.zeros((3, 2))}}, 3),
        (3, None),
        (object(), None),
        (None, None),
        pytest.param([{"x": [1, 2, 3]}, {"x": [4, 5, 6]}], 2),
        pytest.param([{"x": np.zeros(9)}], 1),
    ],
)
def test_samples_of_other_batches_are_counted_where_they_show(batch: Any, count: Any) -> None:
    scheduler = scheduler_for([batch, batch], grad_acc=2, num_epochs=1)
    for _ in scheduler:
        assert scheduler.num_samples == (None if count is None else 2 * count)


def test_ragged_groups_of_plain_loaders_are_counted() -> None:
    data: Any = Ids(23)
    plain = torch.utils.data.DataLoader(data, batch_size=4)
    scheduler = scheduler_for(plain, grad_acc=2, num_epochs=1)
    assert [scheduler.num_samples for _ in scheduler] == [8, 8, 7]
    scheduler = scheduler_for(chunk_loader(), grad_acc=2, num_epochs=1)
    assert sum(scheduler.num_samples or 0 for _ in scheduler) == 23


FORMS = [
    (90, 90),
    (1.5, 1.5),
    ("1:30", 90),
    ("1:00:00", 3600),
    (" 0:01:30 ", 90),
    ("2-01:00:00", 49 * 3600),
    (timedelta(minutes=2), 120),
    (np.int64(7), 7),
]


def stops_at_once(monkeypatch: pytest.MonkeyPatch, passed: float, **options: Any) -> bool:
    """Whether a clock stops with its first step when so many seconds have passed by then."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    scheduler = scheduler_for(Sized(5), num_epochs=1, deadline_margin=0, **options)
    for _ in scheduler:
        now[0] += passed
        stops = scheduler.is_ckpt_step
        assert (scheduler.stop_reason == "the deadline is near") == stops
        assert not scheduler.is_val_step
        assert not scheduler.sigterm_received
        break
    return stops


@pytest.mark.parametrize(("given", "seconds"), FORMS)
def test_a_duration_has_many_forms(
    given: Any, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stops_at_once(monkeypatch, seconds + 0.01, max_duration=given)
    assert not stops_at_once(monkeypatch, seconds - 0.01, max_duration=given)


@pytest.mark.parametrize("given", [0, -1, "0:00", "soon", "90", "1:2:3:4", "", float("inf"), [1]])
def test_what_is_no_duration_is_refused(given: Any) -> None:
    assert "max_duration=" in refusal(lambda: scheduler_for([1], max_duration=given))


def test_the_end_of_a_slurm_job_is_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    message = refusal(lambda: scheduler_for([1], max_duration="slurm"))
    assert "SLURM_JOB_END_TIME" in message
    monkeypatch.setattr(time, "time", lambda: 5000.0)
    monkeypatch.setenv("SLURM_JOB_END_TIME", "5100")
    assert stops_at_once(monkeypatch, 100, max_duration="slurm")
    assert not stops_at_once(monkeypatch, 99, max_duration="slurm")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "4000")
    assert stops_at_once(monkeypatch, 0, max_duration="slurm"), "it has ended already"


def test_a_run_stops_while_another_step_and_the_checkpoint_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr("feedline.steps.step_scheduler.perf_counter", lambda: now[0])
    scheduler = scheduler_for(
        Sized(100), num_epochs=1, ckpt_every_steps=1000, max_duration=100, deadline_margin=25
    )
    saves = []
    for _ in scheduler.epochs:
        for _ in scheduler:
            now[0] += 10.0
            if scheduler.is_ckpt_step:
                saves.append(scheduler.step)
    # Seven steps end at 70 s; an eighth would end at 80 s, within the margin before 100 s.
    assert saves == [6]
    assert now[0] == 70.0
    assert scheduler.stop_reason == "the deadline is near"


def test_a_request_stops_the_run_after_this_step_with_a_checkpoint() -> None:
    scheduler = scheduler_for(Sized(10), num_epochs=2, ckpt_every_steps=100)
    steps = []
    for _ in scheduler.epochs:
        for _ in scheduler:
            if scheduler.step == 3:
                scheduler.request_stop()
            steps.append((scheduler.step, scheduler.is_ckpt_step, scheduler.is_val_step))
    assert steps == [(step, step == 3, False) for step in range(4)]
    assert scheduler.stop_reason == "a rank requested a stop"
    assert not scheduler.sigterm_received


def test_garbage_is_collected_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[int] = []
    scheduler = scheduler_for(Sized(7), num_epochs=1, gc_every_steps=3)
    monkeypatch.setattr("gc.collect", lambda: collected.append(scheduler.step))
    assert [scheduler.collect_garbage() for _ in scheduler] == [step % 3 == 0 for step in range(7)]
    assert collected == [0, 3, 6]
