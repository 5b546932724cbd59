"""The processes of a run, as the clock sees them."""

from __future__ import annotations

import os
import sys
from typing import Any, Protocol

from feedline.errors import InvalidValueError

__all__ = ["Alone", "Peers", "check_alone"]

#: What launchers tell each process about the number of processes.
_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "JAX_NUM_PROCESSES")


class Peers(Protocol):
    """How the clock talks to the other processes."""

    @property
    def rank(self) -> int:
        """The rank of this process."""

    @property
    def world_size(self) -> int:
        """The number of processes."""

    def maximum(self, value: int) -> int:
        """Return the largest value, of 63 bits, of all processes; all must call this together."""


class Alone:
    """A run of one process."""

    rank = 0
    world_size = 1

    def maximum(self, value: int) -> int:
        """Return the value as it is."""
        return value


def check_alone() -> Alone:
    """Return the peers of a process that is alone, or raise if something says that it is not."""
    sizes = {name: os.environ.get(name, "1") for name in _SIZES}
    # Processes that were started without a launcher may have joined a group of torch's.
    group: Any = sys.modules.get("torch.distributed")
    if group is not None and group.is_available() and group.is_initialized():
        sizes["torch.distributed.get_world_size()"] = str(group.get_world_size())
    for name, size in sizes.items():
        if size.isdigit() and int(size) > 1:
            raise InvalidValueError(
                f"peers=None must not be left out where {name}={size}: the ranks would not stop "
                "together; use feedline.torch.StepScheduler or feedline.jax.StepScheduler, or pass "
                "peers=Alone() if these processes do not train together"
            )
    return Alone()
