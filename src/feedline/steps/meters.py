"""Meters of a run: its loss, and the time it waits for data."""

from __future__ import annotations

from collections import deque
from typing import Any

from feedline.feed.waits import PARTS, Seconds, Wait


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
        >>> meter.add(waited=(1.0, 0.75, 0.0), worked=3.0)
        >>> meter.share
        0.25
        >>> meter.shares
        {'reading': 0.1875, 'copying': 0.0, 'handing_over': 0.0625}
    """

    def __init__(self, window: int) -> None:
        self._steps: deque[tuple[Seconds, float]] = deque(maxlen=window)

    def add(self, *, waited: Seconds, worked: float) -> None:
        """Record a step: the seconds of waiting, of its reading and its copying, and in the step.

        What a device waited for copies is known some steps later, so it may be more than a step.
        """
        self._steps.append((waited, worked))

    @property
    def latest(self) -> tuple[Wait, float] | None:
        """The seconds of the latest step: waiting, with its parts, and in the step."""
        if not self._steps:
            return None
        waited, worked = self._steps[-1]
        return Wait(*waited), max(0.0, worked)

    @property
    def share(self) -> float:
        """The share of time spent waiting, over the window."""
        waited, total = sum(waited for (waited, *_), _ in self._steps), self._seconds
        return min(1.0, waited / total) if total else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """The share of time spent on each part of waiting, over the window."""
        total, waits = self._seconds, [Wait(*waited) for waited, _ in self._steps]
        parts = {name: sum(getattr(wait, name) for wait in waits) for name in PARTS}
        return {name: seconds / total if total else 0.0 for name, seconds in parts.items()}

    @property
    def seconds_per_step(self) -> float:
        """The mean duration of a step with its waiting, over the window."""
        return self._seconds / len(self._steps) if self._steps else 0.0

    @property
    def _seconds(self) -> float:
        """The seconds of all steps of the window, with their waiting."""
        return sum(waited + worked for (waited, *_), worked in self._steps)
