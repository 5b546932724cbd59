"""Signals that stop a run: recorded here, and shared with all peers.

Handlers that replace each other can only be removed in reverse order. So there is one handler per
signal, installed for the first user. The previous handler is restored when the last user leaves, in
any order.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Iterable
from types import FrameType
from typing import Any

from feedline.errors import InvalidValueError
from feedline.feed import Peers, as_peers
from feedline.feed.delegation import asked_of

#: A launcher may deliver one stop twice, to a process and to its group.
GRACE_SECONDS = 5.0
# Another rank may be saving a checkpoint; this is how long torch waits, too.
_GATHER_SECONDS = 1800.0


class DistributedSignalHandler:
    """Records signals while it is entered, and asks all peers whether any of them got one.

    It may be entered several times, and several may be active at once: the previous handlers are
    restored when the last one is left, in any order. One that is deleted without being left
    restores them too.

    A repeated signal within five seconds counts as the first one; a later one ends the process at
    once.

    Args:
        sig: A number, a name with or without `SIG`, a list of them, or `None`.
        group: The process group of torch, if not the default one.
        peers: The processes of the run; by default those of the process group, else this one alone.

    Examples:
        >>> with DistributedSignalHandler("SIGUSR1") as handler:
        ...     signal.raise_signal(signal.SIGUSR1)
        ...     handler.signals_received()
        [True]
    """

    def __init__(
        self,
        sig: Any = signal.SIGTERM,
        group: Any | None = None,
        *,
        peers: Peers | str = "auto",
    ) -> None:
        self.signals = signals_of(sig)
        self.peers = as_peers(peers, process_group=group)
        self._record = _Record(self.signals)
        self._num_entered = 0
        self._finalizer: Any = None

    received: int | None = asked_of("_record", "received")
    """The signal that this process got, if any."""

    def __repr__(self) -> str:
        names = ", ".join(sign.name for sign in self.signals) or "no signal"
        received = "not received" if self.received is None else "received"
        return f"<DistributedSignalHandler: {names}, {received}>"

    def signals_received(self) -> list[bool]:
        """Return whether each process got a signal, by rank; all must call this together."""
        return self.peers.gather(self.received is not None, _GATHER_SECONDS)

    def __enter__(self) -> DistributedSignalHandler:
        self._num_entered += 1
        if self._num_entered == 1 and self.signals:
            if threading.current_thread() is not threading.main_thread():
                warnings.warn(
                    f"{', '.join(s.name for s in self.signals)} cannot be handled, because this is "
                    "not the main thread; create the scheduler in the main thread, or pass "
                    "preemption_signal=None",
                    RuntimeWarning,
                    stacklevel=2,
                )
                return self
            _start_recording(self._record)
            self._finalizer = weakref.finalize(self, _stop_recording, self._record)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Leave once; after the last time the previous handlers are restored."""
        if self._num_entered:
            self._num_entered -= 1
        if not self._num_entered and self._finalizer is not None:
            self._finalizer()
            self._finalizer = None


def signals_of(given: Any) -> tuple[signal.Signals, ...]:
    """Return the given signals, each once.

    Args:
        given: A number, a name with or without `SIG`, a list of them, or `None` for no signal.

    Examples:
        >>> [found.name for found in signals_of(["term", 10])]
        ['SIGTERM', 'SIGUSR1']
    """
    if given is None:
        return ()
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        return tuple(dict.fromkeys(_signal_of(one) for one in given))
    return (_signal_of(given),)


def _signal_of(given: Any) -> signal.Signals:
    try:
        if isinstance(given, str):
            name = given.strip().upper()
            found = signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
        elif isinstance(given, int) and not isinstance(given, bool):
            found = signal.Signals(given)
        else:
            raise KeyError
    except (KeyError, ValueError):
        raise InvalidValueError(
            f"preemption_signal={given!r:.80} must be the number or the name of a signal, such as "
            "'SIGTERM', a list of them, or None"
        ) from None
    if found in (signal.SIGKILL, signal.SIGSTOP):
        raise InvalidValueError(
            f"preemption_signal={found.name} cannot be handled by any process; use SIGTERM or "
            "SIGUSR1"
        )
    return found


class _Record:
    """The first signal, and its time."""

    def __init__(self, signals: tuple[signal.Signals, ...]) -> None:
        self.signals = signals
        self.received: int | None = None
        self._since = 0.0

    def note(self, number: int) -> bool:
        """Record a signal; return whether to exit at once."""
        now = time.monotonic()
        if self.received is None:
            self.received, self._since = number, now
            return False
        return now - self._since > GRACE_SECONDS


_records: dict[int, list[_Record]] = {}
# The handlers that ours replaced: several if another one was put around ours in between.
_before: dict[int, list[Any]] = {}


def _start_recording(record: _Record) -> None:
    """Start recording signals. Only the main thread may do this."""
    for number in record.signals:
        if signal.getsignal(number) is not _handle:
            _before.setdefault(number, []).append(signal.signal(number, _handle))
        _records.setdefault(number, []).append(record)


def _stop_recording(record: _Record) -> None:
    """Stop recording; after the last record the previous handler is restored."""
    for number in record.signals:
        listening = _records.get(number, [])
        if record in listening:
            listening.remove(record)
        if not listening:
            _restore(number)


def _restore(number: int) -> None:
    if not _before.get(number):
        return
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread can; until it does, signals are passed on.
        return
    if signal.getsignal(number) is _handle:
        before = _before[number].pop()
        # None stands for a handler that was not installed from Python.
        signal.signal(number, signal.SIG_DFL if before is None else before)


def _handle(number: int, frame: FrameType | None) -> None:
    listening = list(_records.get(number, ()))
    if not listening:
        return _pass_on(number, frame)
    # All of them record it, not only the first.
    wishes = [record.note(number) for record in listening]
    if any(wishes):
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _pass_on(number: int, frame: FrameType | None) -> None:
    """Do what the previous handler would have done."""
    before = _before[number][-1] if _before.get(number) else None
    _restore(number)
    if callable(before):
        before(number, frame)
    elif before != signal.SIG_IGN:
        # A handler that was put around ours may be the one that is installed.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _forget_in_child() -> None:
    """Restore the previous handlers in a forked child."""
    for number in list(_before):
        _records.pop(number, None)
        _restore(number)


os.register_at_fork(after_in_child=_forget_in_child)
