"""The run's clock: steps, epochs, what is due when, and when to stop."""

from feedline.feed import Alone, Peers
from feedline.steps.cadence import Cadence
from feedline.steps.config import StepSchedulerConfig
from feedline.steps.signal_handler import DistributedSignalHandler
from feedline.steps.step_scheduler import (
    StepScheduler,
    _calculate_max_steps,
    _calculate_num_epochs,
)

__all__ = [
    "Alone",
    "Cadence",
    "DistributedSignalHandler",
    "Peers",
    "StepScheduler",
    "StepSchedulerConfig",
    "_calculate_max_steps",
    "_calculate_num_epochs",
]
