"""Work that threads repeat until a time is over."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import NamedTuple


class Done(NamedTuple):
    """How much was done, and how long it took."""

    amount: int
    seconds: float

    @property
    def rate(self) -> float:
        """The amount of a second."""
        return self.amount / max(self.seconds, 1e-9)

    def __add__(self, other: object) -> Done:
        if not isinstance(other, Done):
            return NotImplemented
        return Done(self.amount + other.amount, self.seconds + other.seconds)


def repeated(work: Callable[[int], int], num_threads: int, seconds: float) -> Done:
    """Let threads work until a time is over; each works at least once.

    Args:
        work: Is called with the number of a thread, and returns how much it did; 0 if nothing is
            left to do.
        num_threads: The number of threads.
        seconds: The time.

    Examples:
        >>> left = [3, 2, 1]
        >>> repeated(lambda thread: left.pop() if left else 0, 2, 60.0).amount
        6
    """
    start = perf_counter()

    def run(thread: int) -> int:
        amount = 0
        while done := work(thread):
            amount += done
            if perf_counter() - start >= seconds:
                break
        return amount

    with ThreadPoolExecutor(num_threads) as threads:
        amount = sum(threads.map(run, range(num_threads)))
    return Done(amount, perf_counter() - start)
