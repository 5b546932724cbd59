"""Signals by number or by name."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import Any

from feedline.errors import InvalidValueError

__all__ = ["signals_of"]


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
