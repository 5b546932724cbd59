"""The state of a run: its clock, and its position in the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from feedline.errors import CursorFormatError, check_integer


class StepCount:
    """The number of a run's step; calling it returns the number, for the log of a loader.

    It is separate from the clock, because a loader must not keep the clock alive.
    """

    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self) -> int:
        return self.step

    def tell(self, loader: Any) -> None:
        """Make a loader log its batches under this number, unless it has another one."""
        if isinstance(getattr(loader, "log_step", ""), StepCount | None):
            loader.log_step = self


@dataclass(frozen=True, kw_only=True)
class RunState:
    """The next step, its epoch, and the number of batches of that epoch before it.

    `dp_size` and `local_batch_size` are the ranks and the batch size of that count, if known.
    """

    step: int
    epoch: int
    num_batches: int = 0
    dp_size: int | None = None
    local_batch_size: int | None = None
    dataloader: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, state: Any) -> RunState:
        """Return the saved state; from other systems, `step` and `epoch` are enough."""
        if not isinstance(state, Mapping) or not {"step", "epoch"} <= state.keys():
            raise CursorFormatError(
                f"state={state!r:.80} must be a mapping with the keys 'step' and 'epoch'; pass "
                "what state_dict() returned"
            )
        counts = {
            name: check_integer(name, state.get(name, 0), 0)
            for name in ("step", "epoch", "num_batches")
        }
        sizes = {
            name: check_integer(name, state[name], 1)
            for name in ("dp_size", "local_batch_size")
            if state.get(name) is not None
        }
        data = state.get("dataloader")
        if data is not None and not isinstance(data, Mapping):
            raise CursorFormatError(
                f"dataloader={data!r:.80} must be the state of a loader; the state is damaged; use "
                "an earlier checkpoint"
            )
        return cls(**counts, **sizes, dataloader=None if data is None else dict(data))
