"""The clock of a run: steps, epochs, checkpoint and validation intervals, and when to stop."""

from __future__ import annotations

import gc
import logging
import signal
from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import Any

from feedline.errors import InvalidValueError, check_flag, check_integer
from feedline.feed import Loader, Peers, as_loader, as_peers
from feedline.feed.delegation import asked_of
from feedline.feed.shown import ranks_shown
from feedline.steps.agreement import Agreement, Verdict
from feedline.steps.cadence import Cadence
from feedline.steps.deadline import Deadline
from feedline.steps.limits import epoch_length, run_limits, step_sizes
from feedline.steps.meters import LossAverage, WaitMeter
from feedline.steps.progress import open_progress
from feedline.steps.run_state import RunState, StepCount
from feedline.steps.signal_handler import DistributedSignalHandler
from feedline.steps.step_data import StepData
from feedline.steps.walk import DataWalk
from feedline.words import several

logger = logging.getLogger(__name__)


class StepScheduler(StepData):
    """Yields the batches of each optimizer step, and knows when to checkpoint, validate and stop.

    Each pass of `for batches in scheduler` is the rest of one epoch, in lists of `grad_acc_steps`
    batches; the last list of an epoch may be shorter. During a step, `step` is its number, counted
    from zero. Training ends at `max_steps` or after `num_epochs`, whichever comes first, or when
    any rank must stop; then all ranks stop after the same step.

    Ranks communicate once per step: when `is_ckpt_step`, `is_val_step` or `sigterm_received` is
    first read, or else when the step ends.

    Args:
        global_batch_size: The number of samples in a step, over all ranks; by default one batch of
            each rank.
        local_batch_size: The number of samples in a batch on one rank; by default the loader's.
        dp_size: The number of data-parallel ranks; by default those that share the loader's data.
        dataloader: One of Feedline's loaders, or any iterable of batches. The state of a loader
            that has one, as Feedline's do, is saved in this scheduler's state; from others, batches
            already used are read again and dropped.
        ckpt_every_steps: The checkpoint interval, in steps; by default once an epoch, or at half of
            `max_steps` if the loader has no length.
        save_checkpoint_every_epoch: Save a checkpoint at the end of each epoch.
        val_every_steps: The validation interval, in steps, in addition to checkpoints.
        log_remote_every_steps: The interval of remote logging, in steps.
        loss_average_window_steps: The window of the averages of loss and waiting, in steps.
        gc_every_steps: The interval of garbage collection, in steps.
        start_step: The number of the first step.
        start_epoch: The number of the first epoch.
        num_epochs: The number of epochs; by default enough for `max_steps`, or 10.
        max_steps: The number of steps; by default those of `num_epochs`. Required when the loader
            has no length.
        preemption_signal: The signal that stops the run: a number, a name with or without `SIG`, a
            list of them, or `None`. Workers of a torch DataLoader ignore it.
        process_group: The process group of torch, if not the default one.
        max_duration: Stop before this time has passed: seconds, `"H:MM:SS"`, a `timedelta`, or
            `"slurm"` for the end of the Slurm job.
        deadline_margin: Seconds before that, reserved for the last checkpoint.
        peers: The processes of the run, which stop together; by default those of the process group
            of torch or JAX, else this process alone.
        progress: Show a progress bar on rank 0, on a terminal.
        validate_on_checkpoint: Validate at checkpoints, too.

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
        global_batch_size: int | None = None,
        local_batch_size: int | None = None,
        dp_size: int | None = None,
        dataloader: Any = None,
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
        preemption_signal: Any = signal.SIGTERM,
        process_group: Any | None = None,
        *,
        max_duration: Any = None,
        deadline_margin: float = 60.0,
        peers: Peers | str = "auto",
        progress: bool = False,
        validate_on_checkpoint: bool = True,
    ) -> None:
        found = as_peers(peers, process_group=process_group)
        # Looked up once: at every step it would cost more than the step.
        self.peers: Peers = getattr(found, "reached", found)
        self.sig_handler = DistributedSignalHandler(preemption_signal, peers=self.peers)
        self._given_loader = dataloader
        loader = self._adapted(dataloader)
        sizes = step_sizes(loader, self.peers, global_batch_size, local_batch_size, dp_size)
        self._sizes = sizes
        self._are_epochs_given = num_epochs is not None
        self._step_limit = None if max_steps is None else check_integer("max_steps", max_steps, 1)
        self._limits = run_limits(epoch_length(loader, sizes), num_epochs, max_steps)
        self.num_epochs = self._limits.num_epochs
        self.save_checkpoint_every_epoch = check_flag(
            "save_checkpoint_every_epoch", save_checkpoint_every_epoch
        )
        self.validate_on_checkpoint = check_flag("validate_on_checkpoint", validate_on_checkpoint)
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
        self._walk = DataWalk(loader, sizes, check_integer("start_epoch", start_epoch, 0))
        self._count = StepCount(check_integer("start_step", start_step, 0))
        self._deadline = Deadline(max_duration, margin=deadline_margin)
        self._agreement = Agreement(self.sig_handler, self._deadline)
        # Whether a state or an epoch was asked for in the loop.
        self._is_moved = False
        # Whether the latest step was a checkpoint; None before the first step.
        self._was_checkpoint: bool | None = None
        self._progress = open_progress(progress and self.peers.rank == 0)
        self._count.tell(loader)
        self.sig_handler.__enter__()

    def __repr__(self) -> str:
        end = "" if self._step_limit is None else f" of {self._step_limit:,}"
        step = f"step {self.step:,}{end}, epoch {self.epoch} of {self.num_epochs}"
        sizes = f"{several(self.grad_acc_steps, 'batch', 'batches')} a step"
        return f"<StepScheduler: {step}, {sizes}; {ranks_shown(self.peers)}>"

    ckpt_every_steps = asked_of("cadence", "ckpt_every_steps", "The checkpoint interval, in steps.")
    val_every_steps = asked_of("cadence", "val_every_steps", "The validation interval, in steps.")
    log_remote_every_steps = asked_of(
        "cadence", "log_remote_every_steps", ("The interval of remote logging, in steps.")
    )
    gc_every_steps = asked_of(
        "cadence", "gc_every_steps", ("The interval of garbage collection, in steps.")
    )

    # The walk through the data.

    @property
    def dataloader(self) -> Any:
        """The given dataloader."""
        return self._given_loader

    @dataloader.setter
    def dataloader(self, dataloader: Any) -> None:
        loader = self._adapted(dataloader)
        sizes = step_sizes(loader, self.peers, *self._sizes)
        num_epochs = self.num_epochs if self._are_epochs_given else None
        limits = run_limits(epoch_length(loader, sizes), num_epochs, self._step_limit)
        self._settle()
        self._walk = DataWalk(loader, sizes, self.epoch)
        self._limits, self.num_epochs = limits, limits.num_epochs
        self._allow_epochs()
        self._count.tell(loader)
        self._given_loader = dataloader

    def _adapted(self, dataloader: Any) -> Loader[Any] | None:
        if dataloader is None:
            return None
        return as_loader(dataloader, peers=self.peers, signals=tuple(self.sig_handler.signals))

    epoch: int = asked_of("_walk", "epoch", can_set=True)
    """The current epoch."""
    step: int = asked_of("_count", "step")
    """The number of the current step, or else of the next one."""

    @property
    def epochs(self) -> Iterator[int]:
        """The epochs that are left, one after another, until the run ends or stops."""
        epoch = self.epoch
        while epoch < self.num_epochs and not self._has_ended:
            # Where steps are not saved yet, a signal waits for the checkpoint of the next one.
            if self._was_checkpoint is not False and self.sigterm_received:
                return
            self.set_epoch(epoch)
            self._is_moved = False
            yield epoch
            self._settle()
            epoch = self.epoch if self._is_moved else max(epoch + 1, self.epoch)

    def set_epoch(self, epoch: int) -> None:
        """Move to the start of an epoch; the current epoch is not restarted.

        In a loop over the steps, this ends the loop, and `epochs` continues with that epoch.
        """
        epoch = check_integer("epoch", epoch, 0)
        self._settle()
        self._is_moved = self._is_moved or epoch != self.epoch
        self._walk.go_to(epoch)

    def __iter__(self) -> Iterator[list[Any]]:
        if self._walk.loader is None:
            raise InvalidValueError("dataloader=None has no batches to iterate over; pass a loader")
        self._settle()
        if self._has_ended or self.epoch >= self.num_epochs:
            return
        self._agreement.compare_once(max_steps=self._step_limit, num_epochs=self.num_epochs)
        self._walk.begin_pass()
        while self.epoch < self.num_epochs:
            before, start = self._walk.waits.now(), perf_counter()
            group = self._next_group()
            handed_out = perf_counter()
            if group is None:
                return
            waited = self._walk.waits.seconds_since(before, handed_out - start)
            yield group
            done = perf_counter()
            self._verdict_now()
            self.waiting.add(waited=waited, worked=done - start - waited[0])
            self._deadline.note_step(perf_counter() - start)
            if self._progress is not None:
                self._progress.update(self)
            self._settle()

    def _next_group(self) -> list[Any] | None:
        """Return the batches of the next step, or `None` if this epoch or the run has ended."""
        if self._has_ended or not self._walk.take_group():
            return None
        was_checkpoint = bool(self._was_checkpoint)
        if self._agreement.stops_before(self._count.step, self._walk, was_checkpoint):
            self._walk.put_back_group()
            return None
        return self._walk.group

    def _settle(self) -> None:
        """End the current step."""
        if self._is_out:
            self._verdict_now()
            self._was_checkpoint = self._is_planned_checkpoint
            self._walk.leave_group()
            self._count.step += 1

    @property
    def _has_ended(self) -> bool:
        return self._is_over(self._count.step) or self._agreement.verdict.is_stop

    def _is_over(self, num_steps: int) -> bool:
        return self._step_limit is not None and num_steps >= self._step_limit

    @property
    def _is_out(self) -> bool:
        return self._walk.group is not None

    # What is due at the step that is out.

    @property
    def is_last_step(self) -> bool:
        """Whether this step is the last of the run: at `max_steps`, or of the last epoch.

        It stays true after the run has ended there.
        """
        # Asked for several times a step, so it goes to the walk itself.
        walk = self._walk
        is_over = self._is_over(self._count.step + (walk.group is not None))
        return is_over or walk.epoch + walk.is_last_group >= self.num_epochs

    @property
    def is_ckpt_step(self) -> bool:
        """Whether to save a checkpoint: at its interval, at the end of an epoch or the run, or to
        stop."""
        # All ranks communicate at every step, so that no signal is missed.
        return self._verdict_now().is_stop or self._is_planned_checkpoint

    @property
    def _is_planned_checkpoint(self) -> bool:
        is_due = self._is_out and self.cadence.is_checkpoint_due(self._count.step)
        is_epoch_end = self.save_checkpoint_every_epoch and self.is_last_batch
        return is_due or is_epoch_end or self.is_last_step

    @property
    def is_val_step(self) -> bool:
        """Whether to validate: at its interval or a checkpoint, but not when stopping."""
        if self._verdict_now().is_stop:
            return False
        is_due = self._is_out and self.cadence.is_validation_due(self._count.step)
        return is_due or (self.validate_on_checkpoint and self._is_planned_checkpoint)

    @property
    def is_remote_logging_step(self) -> bool:
        """Whether to send metrics at this step."""
        return self._is_out and self.cadence.is_logging_due(self._count.step)

    @property
    def is_gc_step(self) -> bool:
        """Whether to collect garbage at this step."""
        return self._is_out and self.cadence.is_collection_due(self._count.step)

    def collect_garbage(self) -> bool:
        """Collect garbage if it is due, on all ranks at the same step; return whether it was.

        Call `gc.disable()` before training, so that no rank collects at another time.
        """
        if not self.is_gc_step:
            return False
        gc.collect()
        return True

    def record_loss(self, loss: Any) -> None:
        """Record the loss of this step, for `loss_average`."""
        self.losses.add(loss)

    loss_average: float | None = asked_of("losses", "value")
    """The mean loss of this rank over `loss_average_window_steps` steps."""

    # Stopping.

    @property
    def sigterm_received(self) -> bool:
        """Whether any rank got a signal to stop; read it on all ranks, also outside of steps."""
        # After the end one rank may ask alone.
        if self._is_out or (self.is_last_step and self.peers.world_size > 1):
            return bool(self._verdict_now().signal)
        return bool(self._agreement.between(self._count.step, self._walk).signal)

    @property
    def stop_reason(self) -> str | None:
        """The reason why the run stops early, or None."""
        return self._verdict_now().reason

    def request_stop(self) -> None:
        """Stop all ranks after this step; a call on one rank is enough."""
        self._agreement.is_asked = True

    def _verdict_now(self) -> Verdict:
        """Return what the ranks agree on at this step; the first call communicates."""
        return self._agreement.at(self._count.step, self._walk)

    # The state.

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the current step: the next step, its epoch and its data."""
        return self._walk.state(self._count.step + self._is_out).to_dict()

    def load_state_dict(self, s: Mapping[str, Any]) -> None:
        """Resume at the step after the saved one.

        In a loop over the steps, this ends the loop, and `epochs` continues at the loaded step.

        Args:
            s: What `state_dict` returned, or a mapping with `step` and `epoch`.
        """
        state = RunState.from_dict(s)
        # The loader may have been sent to the same checkpoint already.
        self._walk.is_compared = False
        self._verdict_now()
        self._walk.is_compared = True
        self._walk.load(state)
        self._is_moved = True
        self._count.step = state.step
        self._agreement.reset()
        self._was_checkpoint = None
        self._allow_epochs()

    # Opening and closing.

    def close(self) -> None:
        """Restore the signal handlers, and end the progress bar and the loader's pass."""
        self._walk.close()
        end_log = getattr(self._walk.loader, "end_log", None)
        if end_log is not None:
            end_log()
        if self._progress is not None:
            self._progress.close()
        self.sig_handler.release()

    def __enter__(self) -> StepScheduler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
