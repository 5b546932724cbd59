"""The optimizer steps of a run: how many an epoch has, and which epoch a step is in."""

from __future__ import annotations

from feedline.errors import InvalidValueError, check_integer
from feedline.plan import Segment
from feedline.runs.run_config import RunConfig

__all__ = ["find_step", "num_steps_in", "num_steps_of_run", "segment_of"]


def segment_of(config: RunConfig, epoch: int) -> Segment:
    """Return one epoch of the run, dealt to its ranks."""
    return config.plan.segment(
        world_size=config.ranks,
        batch_size=config.batch_size,
        epoch=check_integer("epoch", epoch, 0),
    )


def num_steps_in(config: RunConfig, epoch: int) -> int:
    """Return the number of steps of an epoch; the last one may have fewer batches."""
    return -(-segment_of(config, epoch).num_batches // config.grad_acc_steps)


def num_steps_of_run(config: RunConfig) -> int:
    """Return the number of steps of all epochs.

    Examples:
        >>> data = {"samples": 1000}
        >>> num_steps_of_run(RunConfig.from_dict({"batch_size": 10, "epochs": 3, "data": data}))
        300
    """
    num_uneven = min(_num_uneven_epochs(config), config.epochs)
    uneven = sum(num_steps_in(config, epoch) for epoch in range(num_uneven))
    num_even = config.epochs - num_uneven
    return uneven + (num_even * num_steps_in(config, num_uneven) if num_even else 0)


def find_step(config: RunConfig, step: int) -> tuple[int, int]:
    """Return the epoch of a step of the run, and its number in that epoch."""
    step = check_integer("step", step, 0)
    left = step
    num_uneven = min(_num_uneven_epochs(config), config.epochs)
    for epoch in range(num_uneven):
        num_steps = num_steps_in(config, epoch)
        if left < num_steps:
            return epoch, left
        left -= num_steps
    if num_uneven < config.epochs:
        more, left = divmod(left, num_steps_in(config, num_uneven))
        if num_uneven + more < config.epochs:
            return num_uneven + more, left
    raise InvalidValueError(
        f"step={step} must be in [0, {num_steps_of_run(config) - 1}], the steps of the run's "
        f"{config.epochs} epochs; name the epoch to count from its start"
    )


def _num_uneven_epochs(config: RunConfig) -> int:
    """Return how many epochs may differ in length; those after them are all alike."""
    mixture = config.mixture
    phases = () if mixture is None else mixture.phases
    return max((phase.epoch + 1 for phase in phases), default=0)
