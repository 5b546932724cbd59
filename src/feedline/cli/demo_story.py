"""The story of the demo: a training that is stopped, resized, killed, and audited."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feedline.cli.demo_data import GLOBAL_BATCH_SIZE, SOURCES, pack_sources
from feedline.cli.demo_processes import Job, launched
from feedline.errors import FeedlineError, MissingDataError
from feedline.runs import LoggedBatch, LoggedEvent, read_log
from feedline.runs.audit import audit_logs
from feedline.runs.audit_result import AuditResult

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_TERM_STEP, _KILL_STEP, _STEPS_AFTER_CHECKPOINT = 30, 60, 3


@dataclass(frozen=True)
class _Seen:
    """The current log of a rank."""

    step: int = -1
    events: tuple[LoggedEvent, ...] = ()

    def field(self, event: str, name: str) -> Any:
        """Return a field of the last event of a name, or None."""
        found = [entry.fields.get(name) for entry in self.events if entry.name == event]
        return found[-1] if found else None

    @property
    def checkpoint(self) -> int:
        """The step of the latest checkpoint; 0 if there is none."""
        return self.field("checkpoint", "step") or 0


@dataclass
class Story:
    """Runs the demo in a folder, and prints what happens.

    Args:
        folder: The output folder.
        console: The console to print to.
        progress: The progress bar of the steps.
        drop_one: Drop one sample in a process, for the audit to find.
    """

    folder: Path
    console: Console
    progress: Progress
    drop_one: bool = False

    def __post_init__(self) -> None:
        num_steps = -(-sum(SOURCES.values()) // GLOBAL_BATCH_SIZE)
        self._task = self.progress.add_task("training", total=num_steps, note="")

    def tell(self) -> AuditResult:
        """Run everything, and return the result of the audit."""
        pack_sources(self.folder)
        sizes = " and ".join(f"{size:,} of {name!r}" for name, size in SOURCES.items())
        self._say("packed", f"{sizes}, one epoch of {sum(SOURCES.values()):,} samples")
        self._stop_on_two()
        self._kill_on_three()
        self._finish_on_one()
        return audit_logs([self.folder / "logs"])

    def _stop_on_two(self) -> None:
        with self._launched("run 1", 2, slow_step=_TERM_STEP + 20) as job:
            job.wait_for(lambda: self._look(job).step >= _TERM_STEP)
            os.kill(self._seen(job, 1).field("start", "pid"), signal.SIGTERM)
            self._say("SIGTERM", "to rank 1 only")
            self._finish(job, 2)

    def _kill_on_three(self) -> None:
        def is_past_checkpoint() -> bool:
            seen = self._look(job)
            is_late = seen.checkpoint >= _KILL_STEP
            return is_late and seen.step >= seen.checkpoint + _STEPS_AFTER_CHECKPOINT

        with self._launched("run 2", 3, slow_step=_KILL_STEP + 20) as job:
            job.wait_for(is_past_checkpoint)
            num_processes = job.kill()
            seen = self._look(job)
            text = f"to all {num_processes} processes at step {seen.step}; the checkpoint is at "
            self._say("kill -9", f"{text}{seen.checkpoint}")

    def _finish_on_one(self) -> None:
        with self._launched("run 3", 1, slow_step=10**9) as job:
            self._finish(job, 1)

    @contextmanager
    def _launched(self, name: str, num_processes: int, *, slow_step: int) -> Iterator[Job]:
        argument = {
            "folder": str(self.folder),
            "run": name,
            "slow_step": slow_step,
            # In the run that is killed, long before: what it did then counts.
            "drop_one": self.drop_one and num_processes == 3,
        }
        processes = f"{num_processes} process" + ("es" if num_processes > 1 else "")
        self._say(name, f"starts on {processes} under torchrun")
        output = self.folder / f"{name.replace(' ', '')}.out"
        module = "feedline.cli.demo_job"
        with launched(name, module, argument, num_processes=num_processes, output=output) as job:
            job.wait_for(lambda: self._seen(job, num_processes - 1).step >= 0)
            step = self._seen(job, 0).field("resume", "step")
            begun = "from the beginning" if step is None else f"from the checkpoint, step {step}"
            self._say(name, f"trains {begun}")
            yield job

    def _look(self, job: Job) -> _Seen:
        """Return what rank 0 has logged, and show it."""
        seen = self._seen(job, 0)
        note = f"loss {seen.field('checkpoint', 'loss'):.3f}" if seen.checkpoint else ""
        self.progress.update(self._task, completed=seen.step + 1, note=note)
        return seen

    def _seen(self, job: Job, rank: int) -> _Seen:
        try:
            entries = read_log(self.folder / "logs" / job.name / f"rank{rank}.log").entries
        except MissingDataError:
            return _Seen()
        steps = [entry.step for entry in entries if isinstance(entry, LoggedBatch)]
        events = tuple(entry for entry in entries if isinstance(entry, LoggedEvent))
        return _Seen(max(steps, default=-1), events)

    def _finish(self, job: Job, num_ranks: int) -> None:
        """Wait for the end of a run, and print how it ended."""
        job.finish(lambda: self._look(job))
        ranks = [self._seen(job, rank) for rank in range(num_ranks)]
        steps = {seen.field("stop", "step") for seen in ranks}
        if len(steps) > 1:
            raise FeedlineError(f"{job.name}: ranks stopped before steps {steps}, not the same")
        step, reason = steps.pop() - 1, ranks[0].field("stop", "reason")
        if reason is None:
            self._say(job.name, f"finished the epoch with step {step}")
        else:
            who = "all ranks" if num_ranks > 1 else "the rank"
            self._say(job.name, f"{who} stopped after step {step}, with a checkpoint: {reason}")

    def _say(self, who: str, what: str) -> None:
        self.console.print(f"[bold]{who:>8}[/]  {what}")
