"""Batches of any kind, moved to a device while the one before is in use."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.feed.waits import WaitCounter
from feedline.torch.device.link import Link
from feedline.torch.lists import TensorLists


class _Moved(NamedTuple):
    """A batch on its way, or the error that came instead; and what is known of it."""

    batch: Any
    event: Any
    tensors: list[torch.Tensor]
    error: Exception | None
    record: Any


@dataclass(eq=False)
class Progress:
    """How far a loop is behind the batches that are moved for it.

    A loader holds this, and not the iterator: one that the loop drops must be free to end its
    threads and workers.
    """

    #: The number of batches that were fetched and not asked for.
    num_waiting: int = 0
    #: What is known of the latest batch that was asked for.
    latest: Any = None
    #: Whether the loader was moved since, so that nothing that waits is counted.
    is_stale: bool = False


class MovedAhead(Iterator[Any]):
    """Batches on a device; up to `ahead` are moved before they are asked for.

    Tensors and arrays in dicts, lists and tuples are moved; anything else stays as it is. An error
    comes when its batch would have come.

    Args:
        batches: The batches.
        link: The device.
        ahead: The number of batches that are moved ahead.
        num_batches: How many there are; the last one is not fetched before it is asked for. None
            if they may all be fetched.
        record: Is called when a batch was fetched, and returns what is to be known of it.
        progress: Where it is noted how far the loop is.
        waits: Where the time of copying is counted, if anywhere.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        link: Link,
        *,
        ahead: int,
        num_batches: int | None = None,
        record: Callable[[], Any] = lambda: None,
        progress: Progress | None = None,
        waits: WaitCounter | None = None,
    ) -> None:
        self._batches = batches
        self._link = link
        self._ahead = ahead
        self._left = num_batches
        self._record = record
        self._waits = waits or WaitCounter()
        self._waiting: deque[_Moved] = deque()
        self._has_ended = False
        self._copied: Any = None
        self._progress = progress or Progress()

    @property
    def _workers(self) -> Any:
        # Where torch's own iterator has them: an error may be that of a killed worker.
        return getattr(self._batches, "_workers", ())

    def __next__(self) -> Any:
        if self._progress.is_stale:
            # Whoever makes the batches says that they belong to an earlier pass.
            self._waiting.clear()
        if not self._waiting:
            self._fetch()
        if not self._waiting:
            raise StopIteration
        moved = self._waiting.popleft()
        if moved.error is not None:
            raise moved.error
        start, stream = perf_counter(), self._link.current_stream()
        waited = self._link.hand_over(stream, moved.event, moved.tensors)
        self._waits.add_copying(start, hidden=waited)
        self._progress.num_waiting -= 1
        try:
            # The last one is fetched when it is asked for: until then, the epoch has not ended.
            while len(self._waiting) < self._ahead and (self._left is None or self._left > 1):
                if not self._fetch():
                    break
        except BaseException:
            # An interrupt must not lose the batch that is due.
            self._waiting.appendleft(moved)
            self._progress.num_waiting += 1
            raise
        self._progress.latest = moved.record
        return moved.batch

    def _fetch(self) -> bool:
        """Fetch a batch and begin to move it; return whether there may be more."""
        if self._has_ended or (self._waiting and self._waiting[-1].error is not None):
            return False
        # Whoever makes the batches may use their memory again; a copy must have read it by then.
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None
        try:
            batch = next(self._batches)
        except StopIteration:
            self._has_ended = True
            return False
        except Exception as error:
            self._waiting.append(_Moved(None, None, [], error, None))
            return False
        if self._left is not None:
            self._left -= 1
        tensors: list[torch.Tensor] = []
        start = perf_counter()
        with self._link.sending():
            moved = move(batch, self._link, tensors)
            event = self._link.mark()
        self._copied = event
        self._waits.add_copying(start)
        self._waiting.append(_Moved(moved, event, tensors, None, self._record()))
        self._progress.num_waiting += 1
        return True


def move(value: Any, link: Link, moved: list[torch.Tensor]) -> Any:
    """Return a batch with all its tensors and arrays on a device; `moved` lists them."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        value = torch.from_numpy(_readable(value))
    if isinstance(value, torch.Tensor):
        if link.is_cuda and value.device.type == "cpu" and not value.is_pinned():
            value = value.pin_memory()
        # Always a copy in this memory too: whoever made it may use its own again.
        found = value.to(link.device, non_blocking=True, copy=link.device.type == "cpu")
        moved.append(found)
        return found
    if isinstance(value, TensorLists):
        # Where lists begin is needed here, to make batches of them.
        return value.moved(lambda values: move(values, link, moved))
    if isinstance(value, Mapping):
        return {name: move(part, link, moved) for name, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(move(part, link, moved) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(move(part, link, moved) for part in value)
    return value


def _readable(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array as torch can read it: not backwards, and with the bytes of this machine."""
    is_readable = (
        array.flags.writeable and array.dtype.isnative and min(array.strides, default=0) >= 0
    )
    return array if is_readable else np.array(array, array.dtype.newbyteorder("="))
