"""One handler for each signal, which tells everybody in this process who waits for it.

Handlers that replace each other can only be taken back in reverse order. So there is one for each
signal, which is installed for the first who waits for it, and the handler that was there before
comes back when the last one is gone, in whatever order they go.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

#: A launcher may deliver one stop twice, to a process and to its group.
GRACE_SECONDS = 5.0


class SignalRecord:
    """The first signal that came, and when."""

    def __init__(self, signals: tuple[signal.Signals, ...]) -> None:
        self.signals = signals
        self.received: int | None = None
        self._since = 0.0

    def note(self, number: int) -> bool:
        """Take note of a signal; return whether it asks to exit at once."""
        now = time.monotonic()
        if self.received is None:
            self.received, self._since = number, now
            return False
        return now - self._since > GRACE_SECONDS


_records: dict[int, list[SignalRecord]] = {}
# What ours replaced. More than one where somebody put a handler around ours, and we came again.
_before: dict[int, list[Any]] = {}


def start_recording(record: SignalRecord) -> None:
    """Let a record take note of its signals. Only the main thread may ask for that."""
    for number in record.signals:
        if signal.getsignal(number) is not _handle:
            _before.setdefault(number, []).append(signal.signal(number, _handle))
        _records.setdefault(number, []).append(record)


def stop_recording(record: SignalRecord) -> None:
    """End that; when nobody is left, the handler that was there before is back."""
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
        # Only the main thread can; until somebody asks there, signals are passed on.
        return
    if signal.getsignal(number) is _handle:
        before = _before[number].pop()
        # None stands for a handler that was not installed from Python.
        signal.signal(number, signal.SIG_DFL if before is None else before)


def _handle(number: int, frame: FrameType | None) -> None:
    listening = list(_records.get(number, ()))
    if not listening:
        return _pass_on(number, frame)
    # All of them take note, whatever the first one says.
    wishes = [record.note(number) for record in listening]
    if any(wishes):
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _pass_on(number: int, frame: FrameType | None) -> None:
    """Do what would have been done if we were not here."""
    before = _before[number][-1] if _before.get(number) else None
    _restore(number)
    if callable(before):
        before(number, frame)
    elif before != signal.SIG_IGN:
        # A handler that was put around ours may be the one that is installed.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _forget_in_child() -> None:
    """Let a forked child do with signals what it would have done without us."""
    for number in list(_before):
        _records.pop(number, None)
        _restore(number)


os.register_at_fork(after_in_child=_forget_in_child)
