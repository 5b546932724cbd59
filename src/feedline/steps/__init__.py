"""The run's clock: steps, epochs, checkpoint and validation intervals, and when to stop."""

from typing import TYPE_CHECKING

from feedline.feed import Alone, Peers
from feedline.lazy import moved
from feedline.steps.cadence import Cadence
from feedline.steps.config import StepSchedulerConfig
from feedline.steps.signal_handler import DistributedSignalHandler
from feedline.steps.step_scheduler import StepScheduler

if TYPE_CHECKING:
    from feedline.compat.run_lengths import _calculate_max_steps, _calculate_num_epochs

# The names of another system's private functions, which its document lists.
_MOVED = {
    "_calculate_max_steps": "feedline.compat.run_lengths",
    "_calculate_num_epochs": "feedline.compat.run_lengths",
}
__getattr__ = moved(__name__, _MOVED)

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
