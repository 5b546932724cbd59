"""The clock of a run, wired to torch.distributed."""

from __future__ import annotations

import signal
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader as TorchDataLoader

from feedline.steps import Peers as StepPeers
from feedline.steps import StepScheduler as PlainScheduler
from feedline.steps import StepSchedulerConfig as PlainConfig
from feedline.steps.peers import check_alone
from feedline.steps.signal_names import signals_of
from feedline.torch.peers import TorchPeers
from feedline.torch.shield import Shielded, born_shielded

__all__ = ["StepScheduler", "StepSchedulerConfig", "TorchPeers"]


class StepScheduler(PlainScheduler):
    """`feedline.steps.StepScheduler` for ranks of torch.distributed.

    Workers of its loader, if that is one of torch's, do not hear the signals that stop the run.

    Args:
        process_group: The ranks that stop together; by default all.
        **options: What `feedline.steps.StepScheduler` takes.

    Examples:
        >>> scheduler = StepScheduler(4, 2, 1, range(6), num_epochs=1, preemption_signal=None)
        >>> [batches for batches in scheduler]
        [[0, 1], [2, 3], [4, 5]]
    """

    def __init__(
        self,
        global_batch_size: int,
        local_batch_size: int,
        dp_size: int,
        dataloader: Any,
        *args: Any,
        process_group: Any | None = None,
        peers: StepPeers | None = None,
        **options: Any,
    ) -> None:
        if isinstance(dataloader, TorchDataLoader):
            signals = signals_of(options.get("preemption_signal", signal.SIGTERM))
            dataloader.worker_init_fn = Shielded.around(
                dataloader.worker_init_fn, tuple(map(int, signals))
            )
        super().__init__(
            global_batch_size,
            local_batch_size,
            dp_size,
            dataloader,
            *args,
            peers=_peers(process_group) if peers is None else peers,
            **options,
        )

    def _begin_pass(self) -> None:
        with born_shielded(self.dataloader):
            super()._begin_pass()


class StepSchedulerConfig(PlainConfig):
    """`feedline.steps.StepSchedulerConfig` whose schedulers know the ranks of torch.distributed.

    Examples:
        >>> config = StepSchedulerConfig(global_batch_size=4, num_epochs=2)
        >>> config.build(range(6), dp_group_size=1, local_batch_size=2).grad_acc_steps
        2
    """

    _made = StepScheduler


def _peers(process_group: Any | None) -> StepPeers:
    if dist.is_available() and dist.is_initialized():
        return TorchPeers(process_group)
    return check_alone()
