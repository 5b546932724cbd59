"""Meters of a run: its loss, and the time it waits for data."""

from __future__ import annotations

from collections import deque
from typing import Any


class LossAverage:
    """The mean loss of the latest steps.

    Examples:
        >>> losses = LossAverage(window=2)
        >>> for loss in (4.0, 2.0, 1.0):
        ...     losses.add(loss)
        >>> losses.value
        1.5
    """

    def __init__(self, window: int) -> None:
        self._losses: deque[Any] = deque(maxlen=window)

    def add(self, loss: Any) -> None:
        """Record the loss of a step: a number, or a tensor with one element."""
        # A tensor is read when the mean is asked for: reading it waits for the device.
        self._losses.append(loss.detach().clone() if hasattr(loss, "detach") else float(loss))

    @property
    def value(self) -> float | None:
        """The mean, or `None` before the first step."""
        if not self._losses:
            return None
        self._losses = deque(map(float, self._losses), self._losses.maxlen)
        return float(sum(self._losses)) / len(self._losses)


class WaitMeter:
    """Seconds of waiting for data and seconds in the step, for the latest steps.

    Examples:
        >>> meter = WaitMeter(window=10)
        >>> meter.add(waited=1.0, worked=3.0)
        >>> meter.share
        0.25
    """

    def __init__(self, window: int) -> None:
        self._steps: deque[tuple[float, float]] = deque(maxlen=window)

    def add(self, *, waited: float, worked: float) -> None:
        """Record a step."""
        self._steps.append((waited, worked))

    @property
    def latest(self) -> tuple[float, float] | None:
        """The seconds of the latest step: waiting, and in the step."""
        return self._steps[-1] if self._steps else None

    @property
    def share(self) -> float:
        """The share of time spent waiting, over the window."""
        waited = sum(step[0] for step in self._steps)
        total = waited + sum(step[1] for step in self._steps)
        return waited / total if total else 0.0

    @property
    def seconds_per_step(self) -> float:
        """The mean duration of a step with its waiting, over the window."""
        return sum(map(sum, self._steps)) / len(self._steps) if self._steps else 0.0
