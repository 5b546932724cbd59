"""Progress bars on stderr, if rich is installed."""

from __future__ import annotations

import importlib.util
import sys
import threading
from types import TracebackType
from typing import Any

__all__ = ["Progress", "open_progress"]


class Progress:
    """Shows nothing; the bar below shows what it is told."""

    def begin(self, text: str, total: int | None, *, done: int = 0, unit: str = "rows") -> None:
        """Start a new bar; a total of None is not known."""

    def advance(self, count: int) -> None:
        """Tell of work that was done."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the bars as they are."""


class _RichProgress(Progress):
    def __init__(self) -> None:
        rich: Any = importlib.import_module("rich.progress")
        console: Any = importlib.import_module("rich.console").Console(stderr=True)
        self._bars = rich.Progress(
            rich.TextColumn("{task.description}"),
            rich.BarColumn(),
            rich.TaskProgressColumn(show_speed=False),
            rich.TextColumn("{task.fields[shown]}"),
            rich.TimeRemainingColumn(),
            console=console,
        )
        self._guard = threading.Lock()
        self._task: Any = None
        self._unit = ""
        self._done = 0
        self._total: int | None = None

    def begin(self, text: str, total: int | None, *, done: int = 0, unit: str = "rows") -> None:
        self._settle()
        self._unit, self._done, self._total = unit, done, total
        self._task = self._bars.add_task(text, total=total, completed=done, shown="")

    def advance(self, count: int) -> None:
        with self._guard:  # Threads tell of what they have read.
            self._show(count)

    def _show(self, count: int) -> None:
        self._done += count
        task = self._bars.tasks[self._task]
        rate = f", {_amount(int(task.speed), self._unit)}/s" if task.speed else ""
        # A total that was guessed too low must not end the bar early.
        total = None if self._total is None else max(self._total, self._done)
        shown = _amount(self._done, self._unit) + rate
        self._bars.update(self._task, completed=self._done, total=total, shown=shown)

    def _settle(self) -> None:
        if self._task is not None:
            self._bars.update(self._task, total=max(self._done, 1), completed=max(self._done, 1))

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._settle()
        self._bars.stop()


def open_progress(wanted: bool | None) -> Progress:
    """Return bars if they are wanted, or by default if someone is looking."""
    has_rich = importlib.util.find_spec("rich") is not None
    if wanted and not has_rich:
        raise ModuleNotFoundError(
            "progress=True needs rich, which is not installed; install feedline[cli]", name="rich"
        )
    is_seen = wanted is None and sys.stderr is not None and sys.stderr.isatty()
    return _RichProgress() if has_rich and (wanted or is_seen) else Progress()


def _amount(count: int, unit: str) -> str:
    if unit != "bytes":
        return f"{count:,} {unit}"
    size = float(count)
    for name in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {name}"
        size /= 1024
    return f"{size:.1f} TiB"
