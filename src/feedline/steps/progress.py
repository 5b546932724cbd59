"""A progress bar for a run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feedline.steps.step_scheduler import StepScheduler

_WORTH_A_WORD = 0.01


class RunProgress:
    """Steps, epoch, loss, samples per second and waiting for data, on the terminal."""

    def __init__(self, rich_progress: Any) -> None:
        self._bar = rich_progress
        self._task: Any = None

    def update(self, scheduler: StepScheduler) -> None:
        """Show the progress of the run after a step."""
        if self._task is None:
            self._bar.start()
            total = scheduler.max_steps if scheduler.max_steps < 2**62 else None
            self._task = self._bar.add_task("training", total=total, note="")
        self._bar.update(self._task, completed=scheduler.step + 1, note=self._note(scheduler))

    def _note(self, scheduler: StepScheduler) -> str:
        parts = [f"epoch {scheduler.epoch + 1}/{scheduler.num_epochs}"]
        loss = scheduler.losses.value
        if loss is not None:
            parts.append(f"loss {loss:.4g}")
        seconds = scheduler.waiting.seconds_per_step
        if seconds:
            parts.append(f"{scheduler.global_batch_size / seconds:,.0f} samples/s")
        parts.append(f"waiting {scheduler.waiting.share:.0%}{self._mostly(scheduler)}")
        return "  ".join(parts)

    def _mostly(self, scheduler: StepScheduler) -> str:
        """Return what is waited for most, if that is worth a word."""
        part, share = max(scheduler.waiting.shares.items(), key=lambda one: one[1])
        return f", mostly {part.replace('_', ' ')}" if share >= _WORTH_A_WORD else ""

    def close(self) -> None:
        """Stop updating the bar."""
        self._bar.stop()


def open_progress(wanted: bool) -> RunProgress | None:
    """Return a bar if it is requested and the output is a terminal."""
    if not wanted or not sys.stderr.isatty():
        return None
    try:
        from rich import console, progress
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "progress=True needs rich, which is not installed; install feedline[cli]", name="rich"
        ) from None
    bar = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[note]}"),
        console=console.Console(stderr=True),
    )
    return RunProgress(bar)
