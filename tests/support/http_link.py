"""One side of an HTTP connection; `fault_proxy.py` has one to the client, one to the server."""

from __future__ import annotations

import select
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass

PIECE = 2**18
LONGEST_HEAD = 2**16


@dataclass
class Head:
    """The first line and the headers of a request or an answer."""

    line: str
    fields: list[tuple[str, str]]

    def get(self, name: str) -> str | None:
        """Return the value of a header, or None."""
        return next((value for key, value in self.fields if key.lower() == name), None)

    def replace(self, name: str, value: str) -> None:
        """Give a header another value."""
        self.fields = [(k, value if k.lower() == name else v) for k, v in self.fields]

    def to_bytes(self) -> bytes:
        """Return the head as it goes over the wire."""
        lines = [self.line, *(f"{key}: {value}" for key, value in self.fields), "", ""]
        return "\r\n".join(lines).encode("latin-1")


class Ended(Exception):
    """The connection is closed, by either side or on purpose."""


class Link:
    """A socket to one side, with what has been received and not been read."""

    def __init__(self, link: socket.socket) -> None:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = link
        self.buffer = b""

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self.socket.sendall(data)

    def is_closed(self) -> bool:
        """Whether the other side has closed it."""
        if self.buffer or not select.select([self.socket], [], [], 0)[0]:
            return False
        return not self.socket.recv(1, socket.MSG_PEEK)

    def read(self, most: int) -> bytes:
        """Return the next bytes, at most this many."""
        data = self.buffer or self.socket.recv(min(most, PIECE))
        if not data:
            raise Ended
        data, self.buffer = data[:most], data[most:]
        return data

    def read_until(self, mark: bytes) -> bytes:
        """Return all until a mark, which is included."""
        while mark not in self.buffer:
            if len(self.buffer) > LONGEST_HEAD or not (more := self.socket.recv(PIECE)):
                raise Ended
            self.buffer += more
        found, _, self.buffer = self.buffer.partition(mark)
        return found + mark

    def read_head(self) -> Head:
        """Return the head of a request or an answer."""
        line, *rest = self.read_until(b"\r\n\r\n").decode("latin-1").split("\r\n")[:-2]
        pairs = (entry.partition(":") for entry in rest)
        return Head(line, [(key, value.strip()) for key, _, value in pairs])

    def read_body(self, head: Head, take: Callable[[bytes], None], *, is_request: bool) -> None:
        """Read a body in pieces, as its head says how long it is."""
        if (head.get("transfer-encoding") or "").lower() == "chunked":
            num_bytes = -1
            while num_bytes:
                line = self.read_until(b"\r\n")
                num_bytes = int(line.split(b";")[0], 16)
                take(line)
                self._read_bytes(num_bytes + 2, take)
            return
        length = head.get("content-length")
        self._read_bytes(int(length) if length else 0 if is_request else sys.maxsize, take)

    def _read_bytes(self, left: int, take: Callable[[bytes], None]) -> None:
        while left:
            piece = self.read(left)
            take(piece)
            left -= len(piece)
