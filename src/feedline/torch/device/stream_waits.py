"""How long the streams of a GPU waited for copies, from events that are asked later."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

MOST_OPEN = 64


class StreamWaits:
    """The seconds that streams waited for copies; nobody waits for what this measures.

    A stream that is about to wait for a copy gets an event before that. When both events have come,
    the time between them is how long the stream waited.
    """

    def __init__(self) -> None:
        self._open: deque[tuple[Any, Any]] = deque()

    def before(self, stream: Any, arrival: Any) -> None:
        """Record that a stream is about to wait for a copy, unless this has arrived."""
        # Bounded, because a loop may be far ahead of its device; then some are not measured.
        if len(self._open) < MOST_OPEN and not arrival.query():
            start = torch.cuda.Event(enable_timing=True)
            start.record(stream)
            self._open.append((start, arrival))

    def collected(self) -> float:
        """Return the seconds that have become known since the last call."""
        milliseconds = 0.0
        while self._open and all(event.query() for event in self._open[0]):
            start, arrival = self._open.popleft()
            # Below zero if the copy was over before the stream had come to it.
            milliseconds += max(0.0, start.elapsed_time(arrival))
        return milliseconds / 1000
