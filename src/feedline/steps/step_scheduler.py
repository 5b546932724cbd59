"""The clock of a run: steps and epochs, what is due when, and when to stop."""

from __future__ import annotations

import gc
import logging
import signal
from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import Any

from feedline.errors import InvalidValueError, check_integer
from feedline.steps.agreement import Agreement, Verdict
from feedline.steps.cadence import Cadence
from feedline.steps.deadline import Deadline
from feedline.steps.limits import (
    _calculate_max_steps,
    _calculate_num_epochs,
    num_batches_of_step,
    run_limits,
)
from feedline.steps.loaders import agrees_with_plan, length_of, set_epoch_of, track_ids_of
from feedline.steps.meters import LossAverage, WaitMeter
from feedline.steps.peers import Peers, check_alone
from feedline.steps.progress import NoProgress, RunProgress, open_progress
from feedline.steps.run_state import RunState
from feedline.steps.sample_counts import count_samples
from feedline.steps.signal_handler import DistributedSignalHandler
from feedline.steps.walk import DataWalk

__all__ = ["StepScheduler", "_calculate_max_steps", "_calculate_num_epochs"]

logger = logging.getLogger(__name__)


class StepScheduler:
    """Yields the batches of each optimizer step, and says what is due at it.

    Each pass of `for batches in scheduler` is the rest of one epoch, in lists of `grad_acc_steps`
    batches; the last list of an epoch may be shorter. While a list is out, `step` is its number,
    counted from zero. Training ends at `max_steps` or after `num_epochs`, whichever comes first, or
    when any rank is told to stop; then all of them stop after the same step.

    Ranks talk to each other once a step: when `is_ckpt_step`, `is_val_step` or `sigterm_received`
    is first asked for, or else when the step ends.

    Args:
        global_batch_size: The number of samples of a step, over all ranks.
        local_batch_size: The number of samples of a batch on one rank.
        dp_size: The number of data-parallel ranks.
        dataloader: What yields batches. If it saves its own place, as Feedline's loaders do, that
            is part of this clock's state; else batches that were used are read again and dropped.
        ckpt_every_steps: Every how many steps a checkpoint is due; by default once an epoch, or at
            half of `max_steps` if the loader has no length.
        save_checkpoint_every_epoch: Whether a checkpoint is due at the end of each epoch.
        val_every_steps: Every how many steps a validation is due, beside checkpoints.
        log_remote_every_steps: Every how many steps metrics are sent away.
        loss_average_window_steps: Over how many steps the loss and the waiting are averaged.
        gc_every_steps: Every how many steps garbage is collected.
        start_step: The number of the first step.
        start_epoch: The number of the first epoch.
        num_epochs: The number of epochs; by default as many as `max_steps` take, or 10.
        max_steps: The number of steps; by default those of `num_epochs`.
        preemption_signal: The signal that stops the run: a number, a name with or without `SIG`, a
            list of them, or `None`.
        max_duration: Stop before so much time has passed: seconds, `"H:MM:SS"`, a `timedelta`, or
            `"slurm"` for the end of the Slurm job.
        deadline_margin: How many seconds before that to keep for the last checkpoint.
        peers: The processes of the run; by default none, which is an error where a launcher says
            that there are several.
        progress: Whether rank 0 shows a progress bar on a terminal.

    Examples:
        >>> scheduler = StepScheduler(8, 2, 1, range(10), num_epochs=2, preemption_signal=None)
        >>> for epoch in scheduler.epochs:
        ...     for batches in scheduler:
        ...         print(epoch, scheduler.step, batches, scheduler.is_ckpt_step)
        0 0 [0, 1, 2, 3] False
        0 1 [4, 5, 6, 7] False
        0 2 [8, 9] True
        1 3 [0, 1, 2, 3] False
        1 4 [4, 5, 6, 7] False
        1 5 [8, 9] True
    """

    def __init__(
        self,
        global_batch_size: int,
        local_batch_size: int,
        dp_size: int,
        dataloader: Any,
        ckpt_every_steps: int | None = None,
        save_checkpoint_every_epoch: bool = True,
        val_every_steps: int | None = None,
        log_remote_every_steps: int = 1,
        loss_average_window_steps: int = 50,
        gc_every_steps: int | None = None,
        start_step: int = 0,
        start_epoch: int = 0,
        num_epochs: int | None = None,
        max_steps: int | None = None,
        *,
        preemption_signal: Any = signal.SIGTERM,
        max_duration: Any = None,
        deadline_margin: float = 60.0,
        peers: Peers | None = None,
        progress: bool = False,
    ) -> None:
        self.global_batch_size = check_integer("global_batch_size", global_batch_size, 1)
        self.local_batch_size = check_integer("local_batch_size", local_batch_size, 1)
        self.dp_size = check_integer("dp_size", dp_size, 1)
        self.grad_acc_steps = num_batches_of_step(global_batch_size, local_batch_size, dp_size)
        track_ids_of(dataloader)
        length = length_of(dataloader)
        self.epoch_len = None if length is None else -(-length // self.grad_acc_steps)
        self._step_limit = None if max_steps is None else check_integer("max_steps", max_steps, 1)
        self.max_steps, self.num_epochs = run_limits(self.epoch_len, num_epochs, max_steps)
        self.save_checkpoint_every_epoch = bool(save_checkpoint_every_epoch)
        if ckpt_every_steps is None:
            ckpt_every_steps = max(1, self.epoch_len or self.max_steps // 2)
        self.cadence = Cadence(
            ckpt_every_steps=ckpt_every_steps,
            val_every_steps=val_every_steps,
            log_remote_every_steps=log_remote_every_steps,
            gc_every_steps=gc_every_steps,
        )
        window = check_integer("loss_average_window_steps", loss_average_window_steps, 1)
        self.losses = LossAverage(window)
        self.waiting = WaitMeter(window)
        self._walk = DataWalk(dataloader, epoch=check_integer("start_epoch", start_epoch, 0))
        self._step = check_integer("start_step", start_step, 0)
        self.peers = check_alone() if peers is None else peers
        self._agreement = Agreement(self.peers)
        self._deadline = Deadline(max_duration, margin=deadline_margin)
        self._verdict = Verdict()
        self._agreed_step = -1
        self._is_asked = False
        self._was_checkpoint = False
        self._progress: RunProgress | NoProgress = open_progress(progress and self.peers.rank == 0)
        self.sig_handler = DistributedSignalHandler(preemption_signal, peers=self.peers).__enter__()

    @property
    def ckpt_every_steps(self) -> int:
        """Every how many steps a checkpoint is due."""
        return self.cadence.ckpt_every_steps

    @property
    def val_every_steps(self) -> int | None:
        """Every how many steps a validation is due."""
        return self.cadence.val_every_steps

    @property
    def log_remote_every_steps(self) -> int:
        """Every how many steps metrics are sent away."""
        return self.cadence.log_remote_every_steps

    @property
    def gc_every_steps(self) -> int | None:
        """Every how many steps garbage is collected."""
        return self.cadence.gc_every_steps

    # The walk through the data.

    @property
    def dataloader(self) -> Any:
        """What yields batches."""
        return self._walk.loader

    @dataloader.setter
    def dataloader(self, loader: Any) -> None:
        self._walk.loader = loader

    @property
    def epoch(self) -> int:
        """The number of the epoch that the run is in."""
        return self._walk.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._walk.epoch = epoch

    @property
    def step(self) -> int:
        """The number of the step that is out, or else of the next one."""
        return self._step

    @property
    def epochs(self) -> Iterator[int]:
        """The epochs that are left, one after another, until the run ends or stops."""
        epoch = self.epoch
        while epoch < self.num_epochs and not self._has_ended:
            self.set_epoch(epoch)
            yield epoch
            self._settle()
            epoch = max(epoch + 1, self.epoch)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; the one that the clock is in is not restarted."""
        epoch = check_integer("epoch", epoch, 0)
        self._settle()
        self._walk.go_to(epoch)

    def __iter__(self) -> Iterator[list[Any]]:
        if self.dataloader is None:
            raise InvalidValueError("dataloader=None must be a loader to iterate over its batches")
        self._settle()
        if self._has_ended or self.epoch >= self.num_epochs:
            return
        set_epoch_of(self.dataloader, self.epoch)
        self._begin_pass()
        while True:
            start = perf_counter()
            group = self._next_group()
            handed_out = perf_counter()
            if group is None:
                return
            yield group
            done = perf_counter()
            self._verdict_now()
            self.waiting.add(waited=handed_out - start, worked=done - handed_out)
            self._deadline.note_step(perf_counter() - start)
            self._progress.update(self)
            self._settle()

    def _begin_pass(self) -> None:
        self._walk.begin_pass(group_size=self.grad_acc_steps)

    def _next_group(self) -> list[Any] | None:
        """Return the batches of the next step, or `None` if this epoch or the run has ended."""
        if self._has_ended or not self._walk.take_group():
            return None
        if self._stops_before_step():
            self._walk.put_back_group()
            return None
        return self._walk.use_group()

    def _settle(self) -> None:
        """End the step that is out: from now on the next one counts."""
        if self._is_out:
            self._verdict_now()
            self._was_checkpoint = self._is_planned_checkpoint
            self._walk.leave_group()
            self._step += 1

    @property
    def _has_ended(self) -> bool:
        is_over = self._step_limit is not None and self._step >= self._step_limit
        return is_over or self._verdict.is_stop

    @property
    def _is_out(self) -> bool:
        return self._walk.group is not None

    # What is due at the step that is out.

    @property
    def is_last_batch(self) -> bool:
        """Whether this step is the last one of its epoch."""
        return self._walk.is_last_group

    @property
    def is_last_step(self) -> bool:
        """Whether this step is the last one of the run: at `max_steps`, or of the last epoch."""
        if not self._is_out:
            return False
        is_at_limit = self._step_limit is not None and self._step + 1 >= self._step_limit
        return is_at_limit or (self.is_last_batch and self.epoch + 1 >= self.num_epochs)

    @property
    def is_ckpt_step(self) -> bool:
        """Whether a checkpoint is due: by cadence, at the end of an epoch or of the run, or to
        stop."""
        # All ranks ask together whatever the cadence says, so that no signal is missed.
        is_stop = self._verdict_now().is_stop
        return is_stop or self._is_planned_checkpoint

    @property
    def _is_planned_checkpoint(self) -> bool:
        if not self._is_out:
            return False
        is_epoch_end = self.save_checkpoint_every_epoch and self.is_last_batch
        return is_epoch_end or self.is_last_step or self.cadence.is_checkpoint_due(self._step)

    @property
    def is_val_step(self) -> bool:
        """Whether a validation is due: by cadence and at checkpoints, but not when stopping."""
        if self._verdict_now().is_stop or not self._is_out:
            return False
        return self._is_planned_checkpoint or self.cadence.is_validation_due(self._step)

    @property
    def is_remote_logging_step(self) -> bool:
        """Whether metrics should be sent away: by cadence, and at the last step."""
        return self._is_out and (self.cadence.is_logging_due(self._step) or self.is_last_step)

    @property
    def is_gc_step(self) -> bool:
        """Whether garbage should be collected."""
        return self._is_out and self.cadence.is_collection_due(self._step)

    def collect_garbage(self) -> bool:
        """Collect garbage if it is due, on all ranks at the same step; return whether it was.

        Call `gc.disable()` before training, so that no rank collects at a time of its own.
        """
        if not self.is_gc_step:
            return False
        gc.collect()
        return True

    def record_loss(self, loss: Any) -> None:
        """Take note of the loss of this step, for `loss_average`."""
        self.losses.add(loss)

    @property
    def loss_average(self) -> float | None:
        """The mean loss of this rank over `loss_average_window_steps` steps."""
        return self.losses.value

    @property
    def num_samples(self) -> int | None:
        """The number of samples of this step on this rank, to scale its loss by.

        A step at the end of an epoch may have fewer than the others. Padding does not count where
        the loader says what is padding. `None` if the batches do not show how many they have.
        """
        group = self._walk.group
        return None if group is None else count_samples(self.dataloader, group)

    @property
    def num_samples_of_all_ranks(self) -> int | None:
        """The number of samples of this step on all ranks, where the loader's plan knows.

        With gradients that are averaged over ranks, `loss.sum() * dp_size` divided by this weighs
        every sample alike, also in a last step that is not full on all ranks.
        """
        group, several = self._walk.group, self.dp_size > 1
        return None if group is None else count_samples(self.dataloader, group, everywhere=several)

    # Stopping.

    @property
    def sigterm_received(self) -> bool:
        """Whether any rank got a signal to stop."""
        return bool(self._verdict_now().signal)

    @property
    def stop_reason(self) -> str | None:
        """Why the run stops before its end, if it does."""
        return self._verdict_now().reason

    def request_stop(self) -> None:
        """Ask all ranks to stop after this step; one of them is enough."""
        self._is_asked = True

    def _verdict_now(self) -> Verdict:
        """Return what the ranks agree on at this step; the first to ask makes them talk."""
        if self._is_out and self._agreed_step != self._step:
            self._agree()
        return self._verdict

    def _stops_before_step(self) -> bool:
        """Return whether the run stops before a step that could be handed out.

        Right after a checkpoint, ranks talk now instead of later in the step. If a signal came
        while it was saved, the run stops with that one, and not with another after one more step.
        """
        if self._was_checkpoint and self._agreed_step != self._step:
            self._agree()
        return self._verdict.is_stop

    def _agree(self) -> None:
        self._agreed_step = self._step
        self._verdict = self._agreement.reach(
            self._step,
            self.epoch,
            is_last_batch=self.is_last_batch,
            signal=int(self.sig_handler.received or 0),
            is_deadline=self._deadline.is_near(),
            is_asked=self._is_asked,
            has_diverged=not agrees_with_plan(self.dataloader),
        )
        if self._verdict.is_stop:
            logger.info("stopping at step %d: %s", self._step, self._verdict.reason)

    # The state.

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the step that is out: the next step, its epoch and its data."""
        state = self._walk.state_after_group(
            step=self._step + self._is_out,
            dp_size=self.dp_size,
            local_batch_size=self.local_batch_size,
        )
        return state.to_dict()

    def load_state_dict(self, s: Mapping[str, Any]) -> None:
        """Go on at the step after the one at which a state was saved.

        Args:
            s: What `state_dict` returned, or a mapping with `step` and `epoch`.
        """
        state = RunState.from_dict(s)
        self._verdict_now()
        self._walk.load(state, dp_size=self.dp_size, local_batch_size=self.local_batch_size)
        self._step = state.step
        self._verdict, self._agreed_step = Verdict(), -1
        self._was_checkpoint = False

    # Opening and closing.

    def close(self) -> None:
        """Give the signals back, and end the progress bar and the loader's pass."""
        self._walk.close()
        self._progress.close()
        self.sig_handler.release()

    def __enter__(self) -> StepScheduler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
