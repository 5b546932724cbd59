"""The settings of a step scheduler, for a config file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from feedline.steps.step_scheduler import StepScheduler


@dataclass
class StepSchedulerConfig:
    """The settings of a `StepScheduler` that do not depend on the process.

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

    def build(
        self, dataloader: Any, dp_group_size: int, local_batch_size: int, **options: Any
    ) -> StepScheduler:
        """Return the scheduler.

        Args:
            dataloader: The training dataloader.
            dp_group_size: The number of data-parallel ranks.
            local_batch_size: The number of samples in a batch of one rank.
            **options: More arguments of `StepScheduler`, such as `peers`.
        """
        return StepScheduler(
            dataloader=dataloader,
            dp_size=dp_group_size,
            local_batch_size=local_batch_size,
            **asdict(self),
            **options,
        )
