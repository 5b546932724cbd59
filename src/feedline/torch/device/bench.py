"""A device as `feedline bench-data` measures it: its link, and batches that arrive on it."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch

from feedline.runs.bench.timing import Done
from feedline.store import Store
from feedline.torch.device.link import Link
from feedline.torch.loader import DataLoader

_COPY_BYTES = 2**26
# Copies that are begun before the first of them is waited for.
_NUM_AHEAD = 8


class TorchBenchDevice:
    """A device of torch.

    Args:
        device: The device, such as `"cuda"`, `"cuda:1"` or `"cpu"`.
    """

    def __init__(self, device: torch.device | str | int) -> None:
        self._link = Link(device)

    @property
    def name(self) -> str:
        """The name of the device."""
        if not self._link.is_cuda:
            return str(self._link.device)
        return f"{self._link.device}, {torch.cuda.get_device_name(self._link.device)}"

    def copied(self, seconds: float) -> Done:
        """Return the bytes of pinned memory that are copied in a loop."""
        source = self._link.host_memory(_COPY_BYTES)
        # Touched once, because fresh memory would be made while it is copied.
        source.zero_()
        with self._link.sending():
            target = self._link.device_memory(_COPY_BYTES)
            target.copy_(source, non_blocking=True)
            self.wait()
            count, start = 0, perf_counter()
            while not count or perf_counter() - start < seconds:
                for _ in range(_NUM_AHEAD):
                    target.copy_(source, non_blocking=True)
                self.wait()
                count += _NUM_AHEAD
        return Done(count * _COPY_BYTES, perf_counter() - start)

    def loader(self, store: Store, batch_size: int, **options: Any) -> DataLoader[Any]:
        """Return a loader whose batches are on the device."""
        return DataLoader(store, batch_size, device=self._link.device, **options)

    def wait(self) -> None:
        """Wait until everything has arrived."""
        if self._link.is_cuda:
            torch.cuda.synchronize(self._link.device)
            return
        module: Any = getattr(torch, self._link.device.type, None)
        if hasattr(module, "synchronize"):
            module.synchronize()
