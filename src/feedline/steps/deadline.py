"""Stopping before time runs out."""

from __future__ import annotations

import math
import os
import re
import time
from datetime import timedelta
from typing import Any

from feedline.errors import InvalidValueError, check_positive


class Deadline:
    """The time by which the run must stop, with a margin for one more step and a checkpoint.

    Args:
        max_duration: Seconds, `"H:MM:SS"`, `"D-HH:MM:SS"`, a `timedelta`, or `"slurm"` for the end
            of the Slurm job that this process is in; `None` for no limit.
        margin: Seconds reserved for the last checkpoint.

    Examples:
        >>> Deadline("1:30:00", margin=60).seconds_left() > 5000
        True
    """

    def __init__(self, max_duration: Any, *, margin: float) -> None:
        if not isinstance(margin, int | float) or not margin >= 0:
            raise InvalidValueError(f"deadline_margin={margin!r:.80} must be at least 0 seconds")
        self._margin = float(margin)
        self._end = time.monotonic() + _seconds(max_duration)
        self._longest_step = 0.0

    def seconds_left(self) -> float:
        """Return the seconds left for training."""
        return self._end - self._margin - time.monotonic()

    def note_step(self, seconds: float) -> None:
        """Record the duration of a step."""
        # Slow steps, such as the first one, are forgotten in time.
        self._longest_step = max(seconds, self._longest_step * 0.95)

    def is_near(self) -> bool:
        """Return whether another step might end too late."""
        return self.seconds_left() <= self._longest_step


def _seconds(given: Any) -> float:
    if given is None:
        return math.inf
    if given == "slurm":
        end = os.environ.get("SLURM_JOB_END_TIME", "")
        if not end.isdigit():
            raise InvalidValueError(
                "max_duration='slurm' needs SLURM_JOB_END_TIME, which newer releases of Slurm set "
                "in their jobs; set it to the seconds since 1970, or pass a duration instead"
            )
        return int(end) - time.time()
    if isinstance(given, timedelta):
        given = given.total_seconds()
    if isinstance(given, str):
        match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", given.strip())
        if match is None:
            raise InvalidValueError(
                f"max_duration={given!r:.80} must be seconds, 'H:MM:SS', 'D-HH:MM:SS' or 'slurm'"
            )
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        given = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return check_positive("max_duration", given)
