"""The processes of a run, as the clock sees them."""

from __future__ import annotations

import os
from typing import Protocol

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
    """Return the peers of a process that is alone, or raise if a launcher says it is not."""
    for name in _SIZES:
        size = os.environ.get(name, "1")
        if size.isdigit() and int(size) > 1:
            raise InvalidValueError(
                f"peers=None must not be left out where {name}={size}: the ranks would not stop "
                "together; use feedline.torch.StepScheduler or feedline.jax.StepScheduler, or pass "
                "peers=Alone() if these processes do not train together"
            )
    return Alone()
