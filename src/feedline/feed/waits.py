"""What a training loop waits for: reading, copying to a device, and handing over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Any

#: The parts of waiting, as reports and meters name them.
PARTS = ("reading", "copying", "handing_over")

#: When something happened, from one reading of the clock to another.
Stretch = tuple[float, float]
#: What a counter shows at one time: seconds of reading, of copying, and those hidden.
Counted = tuple[float, float, float]
#: The arguments of a `Wait`: the seconds of all parts, of reading and of copying.
Seconds = tuple[float, float, float]


class Wait(float):
    """Seconds of waiting for data, and how many of them were for what.

    It is a number like any other: the seconds of all parts together.

    Args:
        seconds: The seconds of all parts.
        reading: Those until samples were read and gathered.
        copying: Those until samples were copied to a device; on a GPU also those that its stream
            waited for a copy while the loop went on.

    Examples:
        >>> wait = Wait(2.0, reading=1.5, copying=0.25)
        >>> wait + 1, wait.reading, wait.copying, wait.handing_over
        (3.0, 1.5, 0.25, 0.25)
    """

    __slots__ = ("copying", "reading")
    reading: float
    copying: float

    def __new__(cls, seconds: float, reading: float = 0.0, copying: float = 0.0) -> Wait:
        self = float.__new__(cls, seconds)
        self.reading = reading
        self.copying = copying
        return self

    @property
    def handing_over(self) -> float:
        """The rest: what the loop's own thread spent on its way to a batch that had arrived."""
        return max(0.0, float(self) - self.reading - self.copying)

    def __repr__(self) -> str:
        return f"Wait({float(self)!r}, reading={self.reading!r}, copying={self.copying!r})"

    def __str__(self) -> str:
        return repr(float(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return Wait, (float(self), self.reading, self.copying)


class WaitCounter:
    """Counts the seconds that the loop of one loader waits; it is never set back.

    Loaders add what they know. Whoever calls `next` measures the whole, and asks `since` for the
    parts: what is neither reading nor copying is handing over.

    Args:
        is_split: Whether the loader adds its reading. If not, nobody knows, and all that is not
            copying counts as reading.

    Examples:
        >>> waits = WaitCounter()
        >>> before = waits.now()
        >>> waits.copying += 0.5
        >>> waits.since(before, 2.0)
        Wait(2.0, reading=0.0, copying=0.5)
        >>> WaitCounter(is_split=False).since(before, 2.0)
        Wait(2.0, reading=2.0, copying=0.0)
    """

    __slots__ = ("copying", "hidden", "is_split", "reading")

    def __init__(self, *, is_split: bool = True) -> None:
        self.is_split = is_split
        #: Seconds until samples were read and gathered.
        self.reading = 0.0
        #: Seconds until they were copied to a device.
        self.copying = 0.0
        #: Those of copying that a device waited while the loop went on.
        self.hidden = 0.0

    def __repr__(self) -> str:
        read = f"{self.reading:.3g} s reading" if self.is_split else "reading not split"
        return f"<WaitCounter: {read}, {self.copying:.3g} s copying>"

    def now(self) -> Counted:
        """Return what was counted so far."""
        return self.reading, self.copying, self.hidden

    def since(self, before: Counted, seconds: float) -> Wait:
        """Return the parts of the `seconds` that a loop has spent in `next` since `before`."""
        return Wait(*self.seconds_since(before, seconds))

    def seconds_since(self, before: Counted, seconds: float) -> Seconds:
        """Return the same as plain numbers, which take half as long to make."""
        reading, copying, hidden = before
        seconds += self.hidden - hidden
        copying = self.copying - copying
        reading = self.reading - reading if self.is_split else max(0.0, seconds - copying)
        return seconds, reading, copying

    def add_reading(
        self, start: float, before: float | None = None, copied: Iterable[Stretch] = ()
    ) -> None:
        """Count the time from `start` until now as reading, except for copying.

        Args:
            start: When it began.
            before: What `copying` was then: what was added since is counted already.
            copied: When other threads copied what was waited for.
        """
        end = perf_counter()
        before = self.copying if before is None else before
        for since, until in copied:
            self.copying += max(0.0, min(end, until) - max(start, since))
        self.reading += end - start - (self.copying - before)

    def add_copying(self, start: float, hidden: float = 0.0) -> None:
        """Count the time from `start` until now as copying, and what a device waited besides."""
        self.copying += perf_counter() - start + hidden
        self.hidden += hidden


def waits_of(loader: Any) -> WaitCounter:
    """Return the counter of a loader; one that has none gets a counter that splits nothing."""
    found: WaitCounter | None = getattr(loader, "waits", None)
    return WaitCounter(is_split=False) if found is None else found


class TimedReads(Iterator[Any]):
    """What an iterator yields; the time until then counts as reading.

    Args:
        found: The iterator.
        waits: The counter.
        copied: Returns when other threads copied something that was yielded: if the loop waited
            then, that counts as copying.
    """

    def __init__(
        self,
        found: Iterator[Any],
        waits: WaitCounter,
        copied: Callable[[Any], Iterable[Stretch]] | None = None,
    ) -> None:
        self._found = found
        self._waits = waits
        self._copied = copied

    @property
    def _workers(self) -> Any:
        # Where torch's own iterator has them: an error may be that of a killed worker.
        return getattr(self._found, "_workers", ())

    def __next__(self) -> Any:
        before, start = self._waits.copying, perf_counter()
        item = next(self._found)
        copied = () if self._copied is None else self._copied(item)
        self._waits.add_reading(start, before, copied)
        return item
