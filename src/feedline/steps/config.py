"""The settings of a step scheduler, for a config file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from feedline.feed import Peers
from feedline.steps.step_scheduler import StepScheduler
from feedline.words import one_line


@one_line
@dataclass
class StepSchedulerConfig:
    """The settings of a `StepScheduler` that do not depend on the process.

    Args:
        global_batch_size: The number of samples of a step, over all ranks.
        num_epochs: The number of epochs.
        max_steps: The number of steps; by default those of `num_epochs`.
        ckpt_every_steps: The checkpoint interval, in steps.
        save_checkpoint_every_epoch: Whether a checkpoint is due at the end of each epoch.
        val_every_steps: The validation interval, in steps, beside checkpoints.
        log_remote_every_steps: The interval of remote logging, in steps.
        loss_average_window_steps: The window of the averages of loss and waiting, in steps.
        gc_every_steps: The interval of garbage collection, in steps.
        start_step: The number of the first step.
        start_epoch: The number of the first epoch.
        preemption_signal: The signal that stops the run: a number, a name, a list of them, or
            `None`.
        validate_on_checkpoint: Whether a validation is due at checkpoints, too.

    Examples:
        >>> config = StepSchedulerConfig(global_batch_size=4, num_epochs=2)
        >>> scheduler = config.build(range(6), dp_group_size=1, local_batch_size=2)
        >>> scheduler.grad_acc_steps, scheduler.epoch_len
        (2, 3)
    """

    global_batch_size: int = 32
    num_epochs: int | None = 10
    max_steps: int | None = None
    ckpt_every_steps: int | None = 100
    save_checkpoint_every_epoch: bool = True
    val_every_steps: int | None = None
    log_remote_every_steps: int = 1
    loss_average_window_steps: int = 50
    gc_every_steps: int | None = None
    start_step: int = 0
    start_epoch: int = 0
    preemption_signal: int | str | list[int | str] | None = "SIGTERM"
    validate_on_checkpoint: bool = True

    def build(
        self,
        dataloader: Any,
        dp_group_size: int,
        local_batch_size: int,
        process_group: Any | None = None,
        *,
        max_duration: Any = None,
        deadline_margin: float = 60.0,
        peers: Peers | str = "auto",
        progress: bool = False,
    ) -> StepScheduler:
        """Return the scheduler.

        Args:
            dataloader: The training dataloader.
            dp_group_size: The number of data-parallel ranks.
            local_batch_size: The number of samples in a batch of one rank.
            process_group: The process group of torch, if not the default one.
            max_duration: Stop before so much time has passed; see `StepScheduler`.
            deadline_margin: How many seconds before that to keep for the last checkpoint.
            peers: The processes of the run, which stop together.
            progress: Whether rank 0 shows a progress bar on a terminal.
        """
        return StepScheduler(
            dataloader=dataloader,
            dp_size=dp_group_size,
            local_batch_size=local_batch_size,
            **asdict(self),
            max_duration=max_duration,
            deadline_margin=deadline_margin,
            peers=peers,
            process_group=process_group,
            progress=progress,
        )
