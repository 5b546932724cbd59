"""Progress bars on stderr, if rich is installed."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Progress:
    """A progress bar that shows nothing."""

    def begin(self, text: str, total: int | None, *, done: int = 0, unit: str = "rows") -> None:
        """Start a new bar; a total of None means unknown."""

    def advance(self, count: int) -> None:
        """Report work that was done."""

    def reach(self, done: int, total: int | None) -> None:
        """Report all work done since the bar began, and the total."""


class _RichProgress(Progress):
    def __init__(self, bars: Any) -> None:
        self._bars = bars
        self._guard = threading.Lock()
        self._task: Any = None
        self._unit = ""
        self._done = 0
        self._total: int | None = None

    def begin(self, text: str, total: int | None, *, done: int = 0, unit: str = "rows") -> None:
        self.settle()
        self._unit, self._done, self._total = unit, done, total
        self._task = self._bars.add_task(text, total=total, completed=done, shown="")

    def advance(self, count: int) -> None:
        with self._guard:  # Threads tell of what they have read.
            self.reach(self._done + count, self._total)

    def reach(self, done: int, total: int | None) -> None:
        self._done, self._total = done, total
        task = self._bars.tasks[self._task]
        rate = f", {_amount(int(task.speed), self._unit)}/s" if task.speed else ""
        # A total that was guessed too low must not end the bar early.
        end = None if total is None else max(total, done)
        shown = _amount(done, self._unit) + rate
        self._bars.update(self._task, completed=done, total=end, shown=shown)

    def settle(self) -> None:
        """Show the current bar as complete: its total may have been estimated too high."""
        if self._task is not None:
            self._bars.update(self._task, total=max(self._done, 1), completed=max(self._done, 1))


@contextmanager
def open_progress(wanted: bool | None) -> Iterator[Progress]:
    """Yield bars if they are requested, or by default on a terminal."""
    has_rich = importlib.util.find_spec("rich") is not None
    if wanted and not has_rich:
        raise ModuleNotFoundError(
            "progress=True needs rich, which is not installed; install feedline[cli]", name="rich"
        )
    is_seen = wanted is None and sys.stderr is not None and sys.stderr.isatty()
    if not has_rich or not (wanted or is_seen):
        yield Progress()
        return
    from rich import console, progress

    with progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(show_speed=False),
        progress.TextColumn("{task.fields[shown]}"),
        progress.TimeRemainingColumn(),
        console=console.Console(stderr=True),
    ) as bars:
        shown = _RichProgress(bars)
        yield shown
        shown.settle()


def _amount(count: int, unit: str) -> str:
    if unit != "bytes":
        return f"{count:,} {unit}"
    from rich.filesize import decimal

    return decimal(count)
