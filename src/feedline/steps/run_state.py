"""The state of a run: its clock, and its place in the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from feedline.errors import CursorFormatError, check_integer


class StepCount:
    """The number of a run's step; called, it returns it, as the log of a loader wants it.

    It stands apart from the clock, which a loader must not keep alive.
    """

    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self) -> int:
        return self.step

    def tell(self, loader: Any) -> None:
        """Let a loader log its batches under this number, unless it has another one."""
        if isinstance(getattr(loader, "log_step", ""), StepCount | None):
            loader.log_step = self


@dataclass(frozen=True, kw_only=True)
class RunState:
    """Which step comes next, in which epoch, after how many batches of it.

    `dp_size` and `local_batch_size` say on how many ranks and in which batches these were counted,
    where that is known.
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
        """Return the state that was saved; of other systems, `step` and `epoch` are enough."""
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
                f"dataloader={data!r:.80} must be the state of a loader; the state is damaged, use "
                "an earlier checkpoint"
            )
        return cls(**counts, **sizes, dataloader=None if data is None else dict(data))
