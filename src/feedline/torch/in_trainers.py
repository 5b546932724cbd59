"""What trainers look for on a loader of torch, so that they pass it on instead of wrapping it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, Self

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from feedline.errors import InvalidValueError
from feedline.feed.adapters import trainer
from feedline.torch.device.link import Link, device_named

# What has Ray's `prepare_data_loader`.
_RAY = "ray.train.torch"
_CONTEXT: Any = TorchDataLoader.multiprocessing_context

#: Wraps the batches of a pass of a loader.
Around = Callable[[Any, Iterator[Any]], Iterator[Any]]


class InTrainers(TorchDataLoader[Any]):
    """A loader of torch that trainers know for one that needs no wrapping."""

    #: What a trainer does with the batches of each pass; None outside of one.
    around: Around | None = None
    #: The way to the device that batches are delivered on, if there is one.
    _link: Link | None = None
    #: accelerate saves and loads the state of loaders that have this.
    use_stateful_dataloader = True

    @property
    def _is_accelerate_prepared(self) -> bool:
        # accelerate asks for this, and else divides the batches among the ranks once more.
        if "accelerate" in sys.modules:
            trainer("accelerate").admit(self, sys._getframe(1).f_locals)
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, is_prepared: bool) -> None:
        pass

    @property
    def multiprocessing_context(self) -> Any:
        """How workers are started."""
        # Of what this function copies from a loader, nothing else tells that it does.
        if "skip_first_batches" in _names_of_callers():
            raise InvalidValueError(
                "skip_first_batches would copy this loader without its state; load_state, or "
                "load_state_dict of the loader, resumes at any batch without replay"
            )
        return _CONTEXT.fget(self)

    @multiprocessing_context.setter
    def multiprocessing_context(self, context: Any) -> None:
        _CONTEXT.fset(self, context)

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        if _RAY in sys.modules:
            trainer("ray").fit()
        return super().__new__(cls)

    def deliver_on(self, device: torch.device) -> None:
        """Deliver batches on a device, from the next pass on; one that was given stays.

        Args:
            device: The device, which a trainer has chosen.
        """
        chosen = self._link
        found = getattr(self, "_device", None if chosen is None else chosen.device)
        if found is None and device.type != "cpu":
            self._link = Link(device)
        elif found is not None and found != device_named(device):
            raise InvalidValueError(
                f"device={str(found)!r} must be {str(device)!r}, the one that the trainer has "
                "chosen; omit device, or let the trainer leave batches where they are"
            )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        # Its wrapper reads a batch ahead, so the state would be wrong by a batch.
        if sys._getframe(1).f_globals.get("__name__", "").startswith("ray.train."):
            raise InvalidValueError(
                "ray.train.torch.prepare_data_loader has wrapped this loader, because it was made "
                "before ray.train.torch was imported; import that first"
            )
        batches: Iterator[Any] = super().__iter__()
        return batches if self.around is None else self.around(self, batches)


def _names_of_callers() -> list[str]:
    """Return the names of the function that reads a property, and of the one that called it."""
    frame = sys._getframe(2)
    return [one.f_code.co_name for one in (frame, frame.f_back) if one is not None]
