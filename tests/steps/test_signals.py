"""Signals are recorded while somebody waits for them, and given back whoever leaves when."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from clock_runs import scheduler_for
from feedline.errors import InvalidValueError
from feedline.steps import DistributedSignalHandler, StepScheduler

USR1, USR2 = signal.SIGUSR1, signal.SIGUSR2


def own_handler(number: int, frame: Any) -> None:
    """The handler of somebody else."""


@pytest.fixture(params=[own_handler, signal.SIG_DFL, signal.SIG_IGN])
def original(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Each kind of handler that may be there before, for two signals."""
    before = {number: signal.signal(number, request.param) for number in (USR1, USR2)}
    yield request.param
    for number, handler in before.items():
        signal.signal(number, handler)


def is_back(original: Any) -> bool:
    return all(signal.getsignal(number) == original for number in (USR1, USR2))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (signal.SIGUSR1, [USR1]),
        (int(USR1), [USR1]),
        ("SIGUSR1", [USR1]),
        ("usr1", [USR1]),
        (" SigUsr1 ", [USR1]),
        (["usr1", USR2], [USR1, USR2]),
        ((int(USR2), "SIGUSR2", USR2), [USR2]),
        ([], []),
        (None, []),
    ],
)
def test_signals_are_given_by_number_or_name(
    given: Any, expected: list[signal.Signals], original: Any
) -> None:
    with DistributedSignalHandler(given) as handler:
        assert list(handler.signals) == expected
        for number in (USR1, USR2):
            is_ours = signal.getsignal(number) != original
            assert is_ours == (number in expected)
        assert handler.received is None
        assert handler.signals_received() == [False]
        for number in expected[-1:]:
            signal.raise_signal(number)
            assert handler.received == number
            assert handler.signals_received() == [True]
    assert is_back(original)


@pytest.mark.parametrize(
    "given", ["SIGNOPE", "", 0, -1, 9999, True, 1.5, b"TERM", ["TERM", "nope"], {"a": 1}, "15"]
)
def test_what_is_no_signal_is_refused_with_its_value(given: Any) -> None:
    shown = given[1] if isinstance(given, list) else "a" if isinstance(given, dict) else given
    with pytest.raises(InvalidValueError, match="preemption_signal=") as caught:
        DistributedSignalHandler(given)
    assert f"preemption_signal={shown!r} must be" in str(caught.value)


@pytest.mark.parametrize("name", ["KILL", "SIGSTOP"])
def test_signals_that_cannot_be_handled_are_refused(name: str) -> None:
    with pytest.raises(InvalidValueError, match="cannot be handled by any process"):
        scheduler_for([1], preemption_signal=name)


def in_order(first: Any, second: Any) -> None:
    first.release()
    second.release()


def in_reverse(first: Any, second: Any) -> None:
    in_order(second, first)


@pytest.mark.parametrize("leave", [in_order, in_reverse])
def test_two_at_once_both_hear_and_leave_in_any_order(
    leave: Callable[[Any, Any], None], original: Any
) -> None:
    first = DistributedSignalHandler([USR1, USR2]).__enter__()
    second = DistributedSignalHandler(USR1).__enter__()
    signal.raise_signal(USR1)
    assert first.received == second.received == USR1
    leave(first, second)
    assert is_back(original)


def test_entered_twice_it_listens_until_it_is_left_twice(original: Any) -> None:
    handler = DistributedSignalHandler(USR1)
    with handler:
        with handler:
            pass
        assert signal.getsignal(USR1) != original
        signal.raise_signal(USR1)
        assert handler.received == USR1
    assert is_back(original)
    handler.release()
    assert is_back(original), "leaving once more does nothing"


def test_it_can_be_entered_again_after_it_was_left(original: Any) -> None:
    handler = DistributedSignalHandler(USR1)
    for _ in range(2):
        with handler:
            assert signal.getsignal(USR1) != original
        assert is_back(original)


def test_one_that_is_dropped_gives_its_signals_back(original: Any) -> None:
    handler = DistributedSignalHandler(USR1).__enter__()
    kept = DistributedSignalHandler(USR2).__enter__()
    del handler
    gc.collect()
    assert signal.getsignal(USR1) == original
    assert signal.getsignal(USR2) != original
    kept.release()
    assert is_back(original)


def test_a_handler_that_was_replaced_meanwhile_is_left_alone(original: Any) -> None:
    def later(number: int, frame: Any) -> None:
        """Installed by somebody else while we listen."""

    with DistributedSignalHandler(USR1):
        signal.signal(USR1, later)
    assert signal.getsignal(USR1) is later


def test_one_that_is_entered_after_a_replacement_hears_its_signal(original: Any) -> None:
    def later(number: int, frame: Any) -> None:
        """Installed by somebody else while the first one listens."""

    with DistributedSignalHandler(USR1):
        signal.signal(USR1, later)
        with DistributedSignalHandler(USR1) as second:
            signal.raise_signal(USR1)
            assert second.received == USR1


def test_a_handler_that_calls_ours_reaches_the_one_before_when_we_have_left() -> None:
    heard: list[str] = []
    signal.signal(USR1, lambda *_: heard.append("before"))
    try:
        with DistributedSignalHandler(USR1):
            ours: Any = signal.getsignal(USR1)

            def around(number: int, frame: Any) -> None:
                heard.append("around")
                if len(heard) < 10:
                    ours(number, frame)

            signal.signal(USR1, around)
        signal.raise_signal(USR1)
        assert heard == ["around", "before"]
    finally:
        signal.signal(USR1, signal.SIG_DFL)


def in_thread(work: Callable[[], Any]) -> Any:
    """Do something in another thread, and return or raise what comes of it."""
    done: list[Any] = []

    def run() -> None:
        try:
            done.append((work(), None))
        except BaseException as error:
            done.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(timeout=30)
    result, error = done[0]
    if error is not None:
        raise error
    return result


def test_in_another_thread_it_warns_and_the_run_goes_on(original: Any) -> None:
    def run() -> list[Any]:
        with (
            pytest.warns(RuntimeWarning, match="SIGUSR1 cannot be handled"),
            scheduler_for([1, 2, 3], num_epochs=1, preemption_signal="USR1") as scheduler,
        ):
            return [(scheduler.step, scheduler.is_ckpt_step) for _ in scheduler]

    assert in_thread(run) == [(0, False), (1, False), (2, True)]
    assert is_back(original)


def test_one_that_is_left_in_another_thread_passes_signals_on() -> None:
    heard: list[int] = []

    def heed(number: int, frame: Any) -> None:
        heard.append(number)

    before = signal.signal(USR1, heed)
    try:
        handler = DistributedSignalHandler(USR1).__enter__()
        in_thread(handler.release)
        signal.raise_signal(USR1)
        assert heard == [USR1]
        assert handler.received is None
        assert signal.getsignal(USR1) is heed
    finally:
        signal.signal(USR1, before)


def test_repeats_within_the_grace_period_count_once(original: Any) -> None:
    with DistributedSignalHandler([USR1, USR2]) as handler:
        for number in (USR1, USR1, USR2, USR1):
            os.kill(os.getpid(), number)
        assert handler.received == USR1


@pytest.mark.parametrize("how", ["close", "with", "drop", "drop in an epoch"])
def test_a_clock_that_is_gone_leaves_no_handler(how: str, original: Any) -> None:
    def make() -> StepScheduler:
        return scheduler_for([[1], [2]], num_epochs=2, preemption_signal=[USR1, USR2])

    if how == "with":
        with make():
            assert not is_back(original)
    else:
        scheduler = make()
        assert not is_back(original)
        if how == "drop in an epoch":
            next(iter(scheduler.epochs))
            next(iter(scheduler))
        if how == "close":
            scheduler.close()
            scheduler.close()
        del scheduler
        gc.collect()
    assert is_back(original)


def test_a_clock_without_signals_touches_none(original: Any) -> None:
    with scheduler_for([1], preemption_signal=None) as scheduler:
        assert is_back(original)
        assert scheduler.sig_handler.signals == ()


def test_the_default_is_sigterm_and_a_failed_clock_leaves_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StepScheduler(1, 1, 1, [1]):
        assert signal.getsignal(signal.SIGTERM) != before
    with pytest.raises(InvalidValueError):
        StepScheduler(1, 1, 1, [1], loss_average_window_steps=0)
    assert signal.getsignal(signal.SIGTERM) == before
