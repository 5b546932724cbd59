"""The way to a device: memory to send from, a stream for copies, and events."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from threading import current_thread, local
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.errors import FeedlineError, InvalidValueError
from feedline.feed.waits import Stretch
from feedline.torch.device.stream_waits import StreamWaits


class Link:
    """Copies to one device, on a stream of their own.

    On a GPU, copies run beside the training, and what uses a copy waits for its event. On other
    devices a copy is over when it returns; the rest is the same.

    Args:
        device: The device, such as `"cuda"`, `"cuda:1"` or `"cpu"`.
    """

    def __init__(self, device: torch.device | str | int) -> None:
        self.device = device_named(device)
        #: Whether the device is a GPU with streams and events.
        self.is_cuda = self.device.type == "cuda"
        self._stream = torch.cuda.Stream(self.device) if self.is_cuda else None
        # Making one costs more than using it; only the thread of the loop uses this.
        self._sending = torch.cuda.stream(self._stream) if self.is_cuda else nullcontext()
        self._of_thread = local()
        self._waits = StreamWaits()

    def __reduce__(self) -> tuple[type[Link], tuple[torch.device]]:
        # Streams stay with their process.
        return Link, (self.device,)

    def host_memory(self, num_bytes: int) -> torch.Tensor:
        """Return memory of this process from which copies run beside other work."""
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=self.is_cuda)

    def device_memory(self, num_bytes: int) -> torch.Tensor:
        """Return memory of the device; call it while `sending`."""
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    def sending(self) -> AbstractContextManager[Any]:
        """Return a context in which work goes to the stream of copies."""
        if self._stream is None or not in_reader():
            return self._sending
        # Our own threads do nothing else, and changing the stream each time would cost them much.
        if not getattr(self._of_thread, "is_sending", False):
            torch.cuda.set_stream(self._stream)
            self._of_thread.is_sending = True
        return nullcontext()

    def finish(self) -> None:
        """Wait until all copies are over."""
        if self._stream is not None:
            self._stream.synchronize()

    def mark(self) -> Any:
        """Return an event after all copies that were begun; None if they are over."""
        if self._stream is None:
            return None
        return self._stream.record_event(torch.cuda.Event(enable_timing=True))

    def current_stream(self) -> Any:
        """Return the stream that the caller works on; None without streams."""
        return torch.cuda.current_stream(self.device) if self.is_cuda else None

    def stream_number(self) -> int:
        """Return a number that tells streams apart, faster than a stream itself."""
        return _stream_number(self.device.index) if self.is_cuda else 0

    def hand_over(self, stream: Any, event: Any, tensors: Iterable[torch.Tensor]) -> float:
        """Let a stream use tensors after `event`; their memory is kept until it has used them.

        Return the seconds that streams have waited for earlier copies, as far as that is known now.
        """
        if stream is None:
            return 0.0
        self._waits.before(stream, event)
        stream.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(stream)
        return self._waits.collected()


def in_reader() -> bool:
    """Whether the caller is one of our own threads, and not the training loop."""
    return current_thread().name.startswith("feedline-reader")


def _stream_number(device: int) -> int:
    number: int = torch.cuda.current_stream(device).cuda_stream
    return number


# The same without the stream around it, where torch has it.
_stream_number = getattr(torch._C, "_cuda_getCurrentRawStream", _stream_number)


class _Waited(local):
    """A stretch of time of each thread."""

    stretch: Stretch = (0.0, 0.0)


class Ring:
    """Pinned memory in pieces of one size, each used again when its copy is over.

    Args:
        link: The device that copies go to.
        num_bytes: The size of a piece.
        count: How many pieces there are.
        shared: Where the pieces lie, at its end; by default the ring takes memory of its own.
    """

    def __init__(
        self, link: Link, num_bytes: int, count: int, shared: SharedMemory | None = None
    ) -> None:
        self.num_bytes = num_bytes
        self.count = count
        #: When the calling thread last waited for the copy from a piece.
        self.waited = _Waited()
        # Pinning rounds up to a power of two, so all pieces are pinned together.
        # Held as long as pieces are in use: without it, the memory is no longer pinned.
        self._shared = shared
        if shared is None:
            memory = link.host_memory(num_bytes * count)
        else:
            memory = shared.bytes[-num_bytes * count :]
        pieces = memory.numpy().reshape(count, num_bytes)
        self._free: SimpleQueue[tuple[NDArray[np.uint8], Any]] = SimpleQueue()
        for piece in pieces:
            self._free.put((piece, None))

    def take(self) -> NDArray[np.uint8]:
        """Return a piece that nobody uses, and wait for it if need be."""
        piece, event = self._free.get()
        start = perf_counter()
        if event is not None:
            event.synchronize()
        self.waited.stretch = start, perf_counter()
        return piece

    def give_back(self, piece: NDArray[np.uint8], event: Any = None) -> None:
        """Make a piece free after `event`."""
        self._free.put((piece, event))


class SharedMemory:
    """Memory in a file without a name, which other processes map too; pinned for a GPU.

    Args:
        link: The device that copies go to.
        num_bytes: The size.
    """

    def __init__(self, link: Link, num_bytes: int) -> None:
        self.file = os.memfd_create("feedline-slabs", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self.file)
        os.ftruncate(self.file, num_bytes)
        #: All of it.
        self.bytes = torch.from_numpy(np.frombuffer(mmap.mmap(self.file, num_bytes), np.uint8))
        if link.is_cuda:
            _check_pinned(torch.cuda.cudart().cudaHostRegister(self.bytes.data_ptr(), num_bytes, 0))
            weakref.finalize(self, _unpin, link, self.bytes.data_ptr()).atexit = False


def _check_pinned(error: Any) -> None:
    if int(error):
        raise FeedlineError(
            f"memory cannot be pinned for a GPU (CUDA error {int(error)}); use a smaller "
            "memory_budget"
        )


def _unpin(link: Link, address: int) -> None:
    link.finish()
    torch.cuda.cudart().cudaHostUnregister(address)


def device_named(device: torch.device | str | int) -> torch.device:
    """Return a device that this process can use, with its number; or raise."""
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidValueError(
            f"device={device!r:.80} must be a torch device, such as 'cuda' or 'cpu' ({error})"
        ) from None
    if found.type != "cuda":
        return found
    num_devices = torch.cuda.device_count()
    if not num_devices:
        raise InvalidValueError(
            f"device={str(found)!r} needs a GPU, but torch finds none; use device='cpu', or "
            "install a torch built for this GPU"
        )
    number = torch.cuda.current_device() if found.index is None else found.index
    if not 0 <= number < num_devices:
        raise InvalidValueError(
            f"device={str(found)!r} must be one of the {num_devices} GPUs, 'cuda:0' to "
            f"'cuda:{num_devices - 1}'"
        )
    return torch.device("cuda", number)
