"""Processes that end with the one that started them."""

from __future__ import annotations

import ctypes
import sys

_PR_SET_PDEATHSIG = 1


def ask_for_death_signal(number: int) -> None:
    """Ask the system, where it can, for a signal to this process when its parent ends.

    It also comes when only the thread ends that has started this process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
