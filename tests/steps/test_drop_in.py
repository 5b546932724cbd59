"""The clock answers as NeMo AutoModel's does, where a loop that was written for that one asks."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from clock_loaders import Sized, Unsized
from clock_runs import scheduler_for
from feedline.errors import DesyncError
from feedline.feed import Alone
from feedline.steps import DistributedSignalHandler, StepScheduler, StepSchedulerConfig
from thread_peers import ThreadPeers, on_ranks

USR1 = signal.SIGUSR1


@pytest.fixture(autouse=True)
def _ignored() -> Iterator[None]:
    """A signal that comes when nobody listens does not end the tests."""
    before = signal.signal(USR1, signal.SIG_IGN)
    yield
    signal.signal(USR1, before)


@pytest.mark.parametrize("kind", [Sized, Unsized])
@pytest.mark.parametrize(
    "limits",
    [{"max_steps": 5}, {"num_epochs": 2, "max_steps": 100}, {"num_epochs": 2, "max_steps": 8}],
)
def test_a_loop_that_asks_after_the_end_is_told_to_save(limits: Any, kind: Any) -> None:
    options = {"ckpt_every_steps": 1000, "save_checkpoint_every_epoch": False, **limits}
    scheduler = scheduler_for(kind(4), **options)
    asked = [(scheduler.is_ckpt_step, scheduler.is_last_step)]
    for _ in scheduler.epochs:
        asked += [(scheduler.is_ckpt_step, scheduler.is_last_step) for _ in scheduler]
    assert asked == [(False, False)] * (len(asked) - 1) + [(True, True)]
    assert scheduler.is_ckpt_step
    assert scheduler.is_last_step
    resumed = scheduler_for(kind(4), **options)
    resumed.load_state_dict(scheduler.state_dict())
    assert list(resumed) == []
    assert resumed.is_last_step


def test_between_epochs_the_run_has_not_ended() -> None:
    scheduler = scheduler_for(Sized(4), num_epochs=2)
    list(scheduler)
    assert (scheduler.is_ckpt_step, scheduler.is_last_step) == (False, False)


class Lengthless(Unsized):
    """A stream with a `__len__` that only says that it has none."""

    error: type[Exception] = NotImplementedError

    def __len__(self) -> int:
        raise self.error("a stream has no length")


@pytest.mark.parametrize("error", [TypeError, NotImplementedError, RuntimeError])
def test_a_length_that_raises_is_no_length(error: type[Exception]) -> None:
    loader = Lengthless(4)
    loader.error = error
    scheduler = scheduler_for(loader, grad_acc=2, max_steps=6, num_epochs=3)
    assert scheduler.epoch_len is None
    assert [len(list(scheduler)) for _ in scheduler.epochs] == [2, 2, 2]


def test_ranks_that_disagree_are_not_taken_for_a_loader_without_a_length() -> None:
    loader = Lengthless(4)
    loader.error = DesyncError
    with pytest.raises(DesyncError, match="a stream"):
        scheduler_for(loader, max_steps=6)


@pytest.mark.parametrize("every", [1, 3, 4])
def test_logging_and_collection_fall_on_multiples_of_their_interval(every: int) -> None:
    scheduler = scheduler_for(
        Sized(10), num_epochs=1, gc_every_steps=every, log_remote_every_steps=every
    )
    asked = [(scheduler.is_gc_step, scheduler.is_remote_logging_step) for _ in scheduler]
    assert asked == [(step % every == 0,) * 2 for step in range(10)]


def test_the_signal_is_a_setting_and_follows_max_steps_by_position() -> None:
    assert StepSchedulerConfig().preemption_signal == "SIGTERM"
    config = StepSchedulerConfig(global_batch_size=2, preemption_signal=["USR1", "TERM"])
    with config.build(range(4), 1, 2) as scheduler:
        assert list(scheduler.sig_handler.signals) == [USR1, signal.SIGTERM]
    defaults = (None, True, None, 1, 50, None, 0, 0, None)
    with StepScheduler(2, 2, 1, range(4), *defaults, 7, "SIGUSR1", None) as scheduler:
        assert scheduler.max_steps == 7
        assert list(scheduler.sig_handler.signals) == [USR1]


def test_checkpoints_need_not_validate() -> None:
    config = StepSchedulerConfig(
        global_batch_size=1,
        num_epochs=1,
        ckpt_every_steps=2,
        val_every_steps=3,
        validate_on_checkpoint=False,
    )
    with config.build(range(8), 1, 1) as scheduler:
        asked = [scheduler.step for _ in scheduler if scheduler.is_val_step]
        assert asked == [2, 5]
        assert not scheduler.is_val_step


def test_the_collate_function_is_told_the_epoch() -> None:
    class Collate:
        epochs: ClassVar[list[int]] = []

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    loader: Any = Sized(2)
    # The loader itself has no `set_epoch`, as torch's has none.
    stream = SimpleNamespace(collate_fn=Collate(), dataset=loader)
    plain: Any = type("Plain", (), {"__iter__": lambda _: iter(loader), **vars(stream)})()
    scheduler = scheduler_for(plain, num_epochs=3, max_steps=100)
    for _ in scheduler.epochs:
        list(scheduler)
    assert list(dict.fromkeys(Collate.epochs)) == [0, 1, 2]


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_signal_before_the_first_step_ends_the_run_before_it(is_asked: bool) -> None:
    with scheduler_for(Sized(4), num_epochs=2, preemption_signal=USR1) as scheduler:
        assert not scheduler.sigterm_received
        signal.raise_signal(USR1)
        if is_asked:
            assert scheduler.sigterm_received
        assert list(scheduler.epochs) == []
        assert scheduler.sigterm_received
        assert (scheduler.step, scheduler.stop_reason) == (0, "rank 0 got SIGUSR1")


def test_a_signal_after_steps_that_are_not_saved_waits_for_their_checkpoint() -> None:
    options = {"save_checkpoint_every_epoch": False, "ckpt_every_steps": 1000}
    asked = []
    with scheduler_for(Sized(3), num_epochs=3, preemption_signal=USR1, **options) as scheduler:
        for _ in scheduler.epochs:
            asked += [(scheduler.step, scheduler.is_ckpt_step) for _ in scheduler]
            signal.raise_signal(USR1)
    assert asked == [(0, False), (1, False), (2, False), (3, True)]


class Heard(DistributedSignalHandler):
    """A handler of one rank among threads, which cannot get signals of their own."""

    def __init__(self, peers: Any, number: int | None) -> None:
        super().__init__(USR1, peers=peers)
        if number is not None:
            self._record.note(number)


def test_all_ranks_hear_of_a_signal_outside_of_steps() -> None:
    def run(peers: ThreadPeers) -> Any:
        scheduler = StepScheduler(3, 1, 3, range(4), num_epochs=2, peers=peers)
        scheduler.sig_handler = handler = Heard(peers, USR1 if peers.rank == 1 else None)
        scheduler._agreement._handler = handler
        before = scheduler.sigterm_received
        return before, list(scheduler), scheduler.stop_reason, handler.signals_received()

    with pytest.warns(RuntimeWarning, match="not the main thread"):
        results = on_ranks(3, run)
    assert results == [(True, [], "rank 1 got SIGUSR1", [False, True, False])] * 3


def test_a_rank_that_asks_between_steps_while_others_are_in_one_is_found() -> None:
    def run(peers: ThreadPeers) -> Any:
        scheduler = StepScheduler(2, 1, 2, range(4), num_epochs=2, peers=peers)
        list(scheduler)
        try:
            if peers.rank == 1:
                # Only one of the two asks before it takes its next step.
                _ = scheduler.sigterm_received
            list(scheduler)
        except DesyncError as error:
            return str(error)
        return "ended"

    with pytest.warns(RuntimeWarning, match="not the main thread"):
        said = on_ranks(2, run, timeout=2.0)
    assert any("step 4, but others are not" in str(found) for found in said)


def test_after_the_end_one_rank_may_ask_alone() -> None:
    def run(peers: ThreadPeers) -> Any:
        scheduler = StepScheduler(2, 1, 2, range(2), num_epochs=1, peers=peers)
        list(scheduler)
        return scheduler.sigterm_received if peers.rank == 0 else None

    with pytest.warns(RuntimeWarning, match="not the main thread"):
        assert on_ranks(2, run) == [False, None]


def test_a_handler_takes_its_signal_and_group_by_name() -> None:
    with DistributedSignalHandler(sig="SIGUSR1", group=None) as handler:
        assert handler.signals_received() == [False]
        signal.raise_signal(USR1)
        assert handler.signals_received() == [True]
    assert DistributedSignalHandler(sig=USR1, peers=Alone()).signals_received() == [False]
