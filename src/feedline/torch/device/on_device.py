"""Any loader with its batches on a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from feedline.feed import Delivered, LoaderWrapper, PlannedLoader, as_loader
from feedline.feed.loader import return_to
from feedline.torch.device.link import Link
from feedline.torch.device.moving import MovedAhead, Progress


def to_device(loader: Any, device: torch.device | str | int = "cuda") -> OnDevice:
    """Return a loader whose batches are on a device, ready for the current stream.

    One batch is copied while the one before is in use. The state counts what the loop received. For
    a store, `DataLoader(store, device="cuda")` is much faster: it copies many batches at once.

    Args:
        loader: A loader of Feedline, or of torch, or anything that yields batches.
        device: The device, such as `"cuda"`, `"cuda:1"` or `"cpu"`.

    Examples:
        >>> from feedline.torch import DataLoader
        >>> loader = to_device(DataLoader(list(range(6)), batch_size=2), "cpu")
        >>> [batch.tolist() for batch in loader]
        [[0, 1], [2, 3], [4, 5]]
    """
    return OnDevice(loader, device)


class OnDevice(LoaderWrapper):
    """A loader whose batches are on a device.

    Args:
        loader: A loader of Feedline, or of torch, or anything that yields batches.
        device: The device.

    Examples:
        >>> [batch.tolist() for batch in OnDevice([torch.ones(2)], "cpu")]
        [[1.0, 1.0]]
    """

    def __init__(self, loader: Any, device: torch.device | str | int) -> None:
        super().__init__(as_loader(loader))
        self.link = Link(device)
        self._progress = Progress()

    @property
    def device(self) -> torch.device:
        """The device."""
        return self.link.device

    def __iter__(self) -> Iterator[Any]:
        # A foreign loader cannot say an earlier state, and a log must not be ahead of the loop.
        is_planned = isinstance(self.loader, PlannedLoader) and self.loader.log is None
        # Once a pass has begun, this is the length of the one after it.
        num_batches = self.loader.num_batches_left() if is_planned else None
        batches = iter(self.loader)
        self._leave_pass()
        return MovedAhead(
            batches,
            self.link,
            ahead=int(is_planned),
            num_batches=num_batches,
            record=lambda: self.loader.delivered,
            progress=self._progress,
            waits=self.waits,
        )

    def _leave_pass(self) -> None:
        self._progress.is_stale = True
        self._progress = Progress()

    @property
    def _num_waiting(self) -> int:
        # Nothing waits in a loader that was moved by itself.
        return 0 if self.loader.delivered is None else self._progress.num_waiting

    @property
    def delivered(self) -> Delivered | None:
        """The record of the latest batch of this pass; None before the first batch."""
        latest: Delivered | None = self._progress.latest
        found: Delivered | None = self.loader.delivered
        return latest if found and (latest or self._num_waiting) else found

    @property
    def next_epoch(self) -> int:
        """The epoch of the next pass."""
        held: Any = self.loader
        return self.epoch if self._num_waiting else int(held.next_epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the training loop."""
        return self.state_before(0) if self._num_waiting else self.loader.state_dict()

    def state_before(self, num_batches: int) -> dict[str, Any]:
        """Return the state before the latest batches that the training loop received."""
        return self.loader.state_before(num_batches + self._num_waiting)

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Resume from a saved state; an error changes nothing."""
        self.loader.load_state_dict(state_dict)
        self._leave_pass()

    def return_to(self, state_dict: Mapping[str, Any], /) -> None:
        """Go to a state of this run; skips that wait for a saved one continue to wait."""
        return_to(self.loader, state_dict)
        self._leave_pass()

    def skip_batches(self, num_batches: int, after: int = 0, *, on_load: bool = False) -> None:
        """Skip batches that follow, on every rank alike; the state contains the skip.

        Args:
            num_batches: How many batches each rank skips; all must be in the current epoch.
            after: How many batches come before these.
            on_load: Skip them when the next state is loaded, and count from there.
        """
        if not on_load and self._num_waiting:
            # The loader has delivered these, and the training loop has not received them.
            self.return_to(self.state_dict())
        self.loader.skip_batches(num_batches, after, on_load=on_load)
        if not on_load:
            self._leave_pass()

    def set_epoch(self, epoch: int) -> None:
        """Move to the start of `epoch`; the current epoch is not restarted."""
        before = self.loader.epoch
        self.loader.set_epoch(epoch)
        if epoch != before:
            self._leave_pass()

    def close(self) -> None:
        """Release threads, workers and files; the state stays as it is."""
        self.loader.close()

    def __getstate__(self) -> dict[str, Any]:
        # A copy has not received what waits here, so it begins before that.
        place = self.state_dict() if self._num_waiting else None
        return {"loader": self.loader, "device": self.device, "place": place}

    def __setstate__(self, state: dict[str, Any]) -> None:
        OnDevice.__init__(self, state["loader"], state["device"])
        if state["place"] is not None:
            return_to(self.loader, state["place"])
