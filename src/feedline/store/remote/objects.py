"""Objects in storage: their sizes, their bytes, and tries until a fault has passed."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from feedline.errors import DamagedDataError, InvalidValueError, RemoteError, check_integer
from feedline.store.remote.crc32 import combine
from feedline.store.remote.forked import HelperRequests, is_helper_needed, note_use
from feedline.store.remote.meters import RemoteMeters
from feedline.store.remote.requests import (
    Head,
    Requests,
    StalledError,
    TransientError,
    server_of,
)
from feedline.store.remote.turns import Turns
from feedline.store.remote.urls import Url
from feedline.words import several

_MAX_TRIES = 8
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 10.0
# Larger objects are read in parts at the same time; a fault then costs one part.
_PART_BYTES = 2**22
_NUM_THREADS = 16
# What is read into memory at once: manifests and indexes.
_LARGEST_READ = 2**30

Result = TypeVar("Result")


class _Here:
    """What one process has: clients, threads and counts."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.pid = os.getpid()
        self.lock = Lock()
        self.meters = RemoteMeters()
        self.requests: Any = HelperRequests(options) if is_helper_needed() else Requests(options)
        self.parts = Turns(_NUM_THREADS, "feedline-objects")


class Objects:
    """Reads and writes objects by URL; can be pickled, and used after a fork and by threads.

    A request that fails is made again, after a while that grows and is partly random. Connections
    are opened when they are first needed, and never shared with another process.

    Args:
        storage_options: The keys of obstore's stores, such as `endpoint`, `region` and
            `access_key_id`, and `client_options`. What is not given comes from the usual
            environment variables.
        max_tries: The number of times that a request is made before it counts as failed.
    """

    def __init__(
        self, storage_options: Mapping[str, Any] | None = None, *, max_tries: int = _MAX_TRIES
    ) -> None:
        if storage_options is not None and not isinstance(storage_options, Mapping):
            raise InvalidValueError(f"storage_options={storage_options!r:.80} must be a dict")
        self._options = dict(storage_options or {})
        self._max_tries = check_integer("max_tries", max_tries, 1)
        self._of_process: _Here | None = None

    def __repr__(self) -> str:
        # Options hold secrets.
        return f"<Objects: {several(len(self._options), 'option')}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_of_process": None}

    def server_of(self, url: Url) -> str:
        """Return what tells the server of a bucket from others, where its URL does not."""
        return server_of(url, self._options)

    def head(self, url: Url) -> Head:
        """Return the size and the ETag of an object."""
        found: Head = self._tried(0, "head", url)
        return found

    def read(self, url: Url, limit: int = _LARGEST_READ) -> tuple[bytes, Head]:
        """Return a whole object of at most `limit` bytes, and what the server says about it."""
        data, head = self._tried(-1, "read", url, limit)
        self._count(num_bytes=len(data))
        return data, head

    def read_range(
        self,
        url: Url,
        start: int,
        end: int,
        etag: str | None = None,
        object_bytes: int | None = None,
    ) -> bytes:
        """Return some bytes of an object; one with another ETag or size is an error."""
        if start >= end:
            return b""
        arguments = (url, start, end, etag, object_bytes)
        data: bytes = self._tried(end - start, "read_range", *arguments)
        return data

    def fetch(self, url: Url, path: Path, start: int, end: int, etag: str | None = None) -> str:
        """Write some bytes of an object to a file, which is made; return their digest, a CRC-32."""
        return self.fetch_parts(url, path, [(start, end)], etag)

    def fetch_parts(
        self,
        url: Url,
        path: Path,
        parts: Sequence[tuple[int, int]],
        etag: str | None = None,
        object_bytes: int | None = None,
        *,
        turn: int = 0,
    ) -> str:
        """Write parts of an object to a file, one after another; return their digest, a CRC-32.

        Many bytes come in parallel requests.

        Args:
            url: The object.
            path: The file, which is made.
            parts: The first byte and the end of each part.
            etag: The ETag that the object must have.
            object_bytes: The bytes that the whole object must have.
            turn: Requests with a lower number come first.
        """
        places = list(_places(parts))
        with open(path, "wb") as file:
            file.truncate(sum(end - start for start, end, _ in places))

        def fetch(start: int, end: int, offset: int) -> tuple[int, int]:
            arguments = (url, start, end, etag, object_bytes, path, offset)
            return self._tried(end - start, "fetch_range", *arguments), end - start

        if len(places) < 2:
            crcs = [fetch(*place) for place in places]
            return f"crc32:{combine(crcs):08x}"
        submit = self._here().parts.submit
        futures = [submit(turn, partial(fetch, *place)) for place in places]
        try:
            crcs = [future.result() for future in futures]
        finally:
            # Nothing writes to the file once this has returned.
            for future in futures:
                future.cancel()
            for future in futures:
                if not future.cancelled():
                    future.exception()
        return f"crc32:{combine(crcs):08x}"

    def write(self, url: Url, data: bytes | Path) -> str | None:
        """Write a whole object, from memory or from a file; return its ETag, if it has one.

        It appears at once or not at all.
        """
        etag: str | None = self._tried(0, "write", url, data)
        return etag

    def remove(self, url: Url) -> None:
        """Remove an object."""
        self._tried(0, "remove", url)

    def list_heads(self, url: Url, limit: int) -> list[tuple[str, Head]]:
        """Return the objects under a folder, by names relative to it, at most about `limit`."""
        found: list[tuple[str, Head]] = self._tried(0, "list_heads", url, limit)
        return found

    @property
    def meters(self) -> RemoteMeters:
        """What this process has asked of servers so far."""
        here = self._here()
        with here.lock:
            return replace(here.meters)

    def _here(self) -> _Here:
        here = self._of_process
        if here is None or here.pid != os.getpid():
            with _making[0]:
                here = self._of_process
                if here is None or here.pid != os.getpid():
                    here = self._of_process = _Here(self._options)
        return here

    def _count(self, **more: float) -> None:
        here = self._here()
        with here.lock:
            for name, value in more.items():
                setattr(here.meters, name, getattr(here.meters, name) + value)

    def _tried(self, num_bytes: int, name: str, url: Url, *arguments: Any) -> Any:
        """Return what a request gives, which is made again if it fails for a while."""
        here = self._here()
        if isinstance(here.requests, Requests):
            note_use()
        perform: Callable[..., Any] = getattr(here.requests, name)
        for number in range(1, self._max_tries + 1):
            began = time.perf_counter()
            try:
                found = perform(url, *arguments)
            except TransientError as error:
                is_stall = isinstance(error, StalledError)
                is_last = number == self._max_tries
                self._count(
                    num_requests=1,
                    num_retries=not is_last,
                    num_stalls=is_stall,
                    seconds=time.perf_counter() - began,
                )
                if is_last:
                    raise RemoteError(
                        f"{error}, {several(number, 'time')} in a row; check the network and the "
                        "server, and try again"
                    ) from None
                time.sleep(wait_before(number))
            except Exception:
                self._count(num_requests=1, seconds=time.perf_counter() - began)
                raise
            else:
                seconds = time.perf_counter() - began
                self._count(num_requests=1, num_bytes=max(0, num_bytes), seconds=seconds)
                return found
        raise DamagedDataError(f"{url}: cannot be read")


def _places(parts: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield the first byte and the end of each request, and its place in the file."""
    offset = 0
    for start, end in parts:
        # Of equal length: a short last one would take as long as the others.
        count = max(1, round((end - start) / _PART_BYTES))
        edges = [start + (end - start) * number // count for number in range(count + 1)]
        for first, last in pairwise(edges):
            if first < last:
                yield first, last, offset + first - start
        offset += end - start


def wait_before(number: int) -> float:
    """Return the seconds to wait after the try `number`: growing, and half of it random."""
    most = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** (number - 1))
    return most * (0.5 + 0.5 * random.random())


_making = [Lock()]


def _after_fork_in_child() -> None:
    _making[0] = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
