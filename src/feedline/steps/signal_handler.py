"""Signals that stop a run: recorded here, and told to all peers."""

from __future__ import annotations

import signal
import threading
import warnings
import weakref
from collections.abc import Iterable
from typing import Any

from feedline.errors import InvalidValueError
from feedline.feed import Alone, Peers
from feedline.steps.signal_records import SignalRecord, start_recording, stop_recording


class DistributedSignalHandler:
    """Records signals while it is entered, and asks all peers whether any of them got one.

    It may be entered several times, and several may be active at once: the handlers that were there
    before come back when the last one is left, in whatever order. One that is dropped without being
    left gives its signals back too.

    A repeated signal within five seconds counts as the first one; a later one ends the process at
    once.

    Args:
        signals: A number, a name with or without `SIG`, a list of them, or `None`.
        peers: The processes of the run.

    Examples:
        >>> with DistributedSignalHandler("SIGUSR1") as handler:
        ...     signal.raise_signal(signal.SIGUSR1)
        ...     handler.signals_received()
        True
    """

    def __init__(self, signals: Any = signal.SIGTERM, *, peers: Peers | None = None) -> None:
        self.signals = signals_of(signals)
        self.peers = peers or Alone()
        self._record = SignalRecord(self.signals)
        self._num_entered = 0
        self._finalizer: Any = None

    @property
    def received(self) -> int | None:
        """The signal that this process got, if any."""
        return self._record.received

    def signals_received(self) -> bool:
        """Return whether any process got a signal; all processes must ask together."""
        return bool(self.peers.maximum(int(self.received or 0)))

    def __enter__(self) -> DistributedSignalHandler:
        self._num_entered += 1
        if self._num_entered == 1 and self.signals:
            if threading.current_thread() is not threading.main_thread():
                warnings.warn(
                    f"{', '.join(s.name for s in self.signals)} cannot be handled, because this is "
                    "not the main thread; make the scheduler there, or pass preemption_signal=None",
                    RuntimeWarning,
                    stacklevel=2,
                )
                return self
            start_recording(self._record)
            self._finalizer = weakref.finalize(self, stop_recording, self._record)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Leave once; after the last time the handlers from before are back."""
        if self._num_entered:
            self._num_entered -= 1
        if not self._num_entered and self._finalizer is not None:
            self._finalizer()
            self._finalizer = None


def signals_of(given: Any) -> tuple[signal.Signals, ...]:
    """Return the signals that were named, each once.

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
