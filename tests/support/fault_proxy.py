"""A proxy between a client and an HTTP server that adds latency and faults, and counts.

`object_server.fault_proxy` starts it as a process of its own. It is told what to do by lines of
JSON on stdin, answers each on stdout, and ends when stdin is closed: it never outlives the tests.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from http_link import PIECE, Ended, Head, Link


@dataclass(kw_only=True)
class Fault:
    """What goes wrong with requests that match, and how often.

    Args:
        kind: `"status"` answers with `status`, `headers` and `body` itself; `"drop"` closes the
            connection without an answer. The rest passes the server's answer on: `"cut"` closes
            the connection after `after` bytes of the body; `"short"` ends the body there and says
            that this is all; `"corrupt"` flips a bit of the byte at `after`; `"stall"` falls silent
            for `seconds` after `after` bytes (`after=-1`: before the answer).
        times: How many requests it is for; None for all.
        share: The part of matching requests that it is for, drawn by chance.
        method: The requests that match: those of this method, or all.
        path: The requests that match: those with this in path or query.
    """

    kind: str
    times: int | None = 1
    share: float = 1.0
    method: str | None = None
    path: str = ""
    status: int = 503
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    after: int = 0
    seconds: float = 3600.0

    def __post_init__(self) -> None:
        kinds = ("status", "drop", "cut", "short", "corrupt", "stall")
        if self.kind not in kinds:
            raise ValueError(f"kind={self.kind!r} must be one of {kinds}")

    def takes(self, method: str, target: str, chance: random.Random) -> bool:
        """Whether this request is hit; it is counted if so."""
        if self.times == 0 or self.method not in (None, method) or self.path not in target:
            return False
        if self.share < 1 and chance.random() >= self.share:
            return False
        if self.times is not None:
            self.times -= 1
        return True


@dataclass(kw_only=True)
class Seen:
    """A request that the proxy has seen: what was asked, and what was answered.

    `num_bytes` counts the body's bytes that were passed to the client, and `num_received` those
    that the client sent; `status` is 0 where no answer was given. `num_open` is the number of
    requests that were open when it came, itself included.
    """

    method: str
    target: str
    byte_range: str | None = None
    status: int = 0
    num_bytes: int = 0
    num_received: int = 0
    num_open: int = 1
    fault: str | None = None


class Proxy:
    """What holds for all connections: the faults to make, and what was seen."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.latency = 0.0
        self.bytes_per_second = 0.0
        self.faults: list[Fault] = []
        self.chance = random.Random(0)
        self.seen: list[Seen] = []
        self.num_open = 0
        self._next_free = 0.0
        self._lock = threading.Lock()

    def command(self, message: dict[str, Any]) -> object:
        """Do what the tests ask for, and return the answer."""
        with self._lock:
            for name in ("latency", "bytes_per_second"):
                if name in message:
                    setattr(self, name, float(message[name]))
            if "seed" in message:
                self.chance = random.Random(message["seed"])
            if "inject" in message:
                self.faults += [Fault(**fault) for fault in message["inject"]]
            if message.get("clear"):
                self.faults = []
            if message.get("forget"):
                self.seen = []
            return [dataclasses.asdict(seen) for seen in self.seen] if message.get("seen") else None

    def see(self, head: Head) -> tuple[Seen, Fault | None]:
        """Note a request that comes, and return what goes wrong with it."""
        method, target = head.line.split(" ")[:2]
        seen = Seen(method=method, target=target, byte_range=head.get("range"))
        with self._lock:
            fault = next((f for f in self.faults if f.takes(method, target, self.chance)), None)
            seen.fault = fault.kind if fault else None
            self.num_open += 1
            seen.num_open = self.num_open
            self.seen.append(seen)
        return seen, fault

    def end(self) -> None:
        """Note that a request has been answered."""
        with self._lock:
            self.num_open -= 1

    def wait_for_turn(self, num_bytes: int) -> None:
        """Keep all connections together below the rate."""
        if not self.bytes_per_second:
            return
        now = time.monotonic()
        with self._lock:
            # A little may be caught up on, since sleeps are late.
            free = max(self._next_free, now - 0.005) + num_bytes / self.bytes_per_second
            self._next_free = free
        if free > now:
            time.sleep(free - now)

    def serve(self, link: socket.socket) -> None:
        """Pass the requests of one connection on, until either side closes it."""
        connection = Connection(self, Link(link))
        try:
            while connection.exchange():
                pass
        except (Ended, OSError):
            pass
        finally:
            connection.close()


class Connection:
    """A client's connection, with one to the server behind it."""

    def __init__(self, proxy: Proxy, client: Link) -> None:
        self.proxy = proxy
        self.client = client
        self.server: Link | None = None
        self.pipe: tuple[int, int] | None = None
        self.is_open = False

    def close(self) -> None:
        """Close both sides."""
        for link in (self.client, self.server):
            if link is not None:
                link.socket.close()
        for end in self.pipe or ():
            os.close(end)

    def exchange(self) -> bool:
        """Pass one request and its answer on; return whether the connection stays open."""
        head = self.client.read_head()
        seen, fault = self.proxy.see(head)
        self.is_open = True
        try:
            return self._pass(head, seen, fault)
        finally:
            self._note_end()

    def _note_end(self) -> None:
        """Note, once, that a request is answered: before a client that has it all asks again."""
        if self.is_open:
            self.is_open = False
            self.proxy.end()

    def _pass(self, head: Head, seen: Seen, fault: Fault | None) -> bool:
        if self.proxy.latency:
            time.sleep(self.proxy.latency)
        if (head.get("expect") or "").lower() == "100-continue":
            self.client.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            head.fields = [(key, value) for key, value in head.fields if key.lower() != "expect"]
        if fault and fault.kind == "drop":
            raise Ended
        if fault and fault.kind == "status":
            self._answer(head, seen, fault)
            return True
        server = self._ask(head, seen)
        if fault and fault.kind == "stall" and fault.after < 0:
            self._stall(fault)
        answer = server.read_head()
        seen.status = int(answer.line.split(" ")[1])
        self._pass_on(server, answer, seen, fault)
        return "close" not in ((head.get("connection") or "") + (answer.get("connection") or ""))

    def _ask(self, head: Head, seen: Seen) -> Link:
        """Send a request to the server."""
        # It may have closed the connection since the last one.
        if self.server is not None and self.server.is_closed():
            self.server.socket.close()
            self.server = None
        if self.server is None:
            self.server = Link(socket.create_connection((self.proxy.host, self.proxy.port)))
        server = self.server
        server.send(head.to_bytes())

        def receive(piece: bytes) -> None:
            seen.num_received += len(piece)
            server.send(piece)

        self.client.read_body(head, receive, is_request=True)
        return server

    def _answer(self, head: Head, seen: Seen, fault: Fault) -> None:
        """Answer in place of the server."""

        def receive(piece: bytes) -> None:
            seen.num_received += len(piece)

        self.client.read_body(head, receive, is_request=True)
        body = fault.body.encode()
        fields = {"Content-Type": "application/xml", **fault.headers}
        fields["Content-Length"] = str(len(body))
        answer = Head(f"HTTP/1.1 {fault.status} Injected", list(fields.items()))
        body = b"" if seen.method == "HEAD" else body
        seen.status, seen.num_bytes = fault.status, len(body)
        self._note_end()
        self.client.send(answer.to_bytes() + body)

    def _pass_on(self, server: Link, answer: Head, seen: Seen, fault: Fault | None) -> None:
        """Send the server's answer to the client, with what goes wrong in it."""
        length = answer.get("content-length")
        if fault and fault.kind == "short" and length is not None:
            answer.replace("content-length", str(min(fault.after, int(length))))
        has_body = seen.method != "HEAD" and seen.status not in (204, 304)
        if not has_body or length == "0":
            self._note_end()
        self.client.send(answer.to_bytes())
        if not has_body:
            return

        def send(piece: bytes) -> None:
            if fault is not None:
                piece = self._spoil(piece, seen, fault)
            self.proxy.wait_for_turn(len(piece))
            # First, since a client that has all of it may ask at once.
            seen.num_bytes += len(piece)
            if str(seen.num_bytes) == length:
                self._note_end()
            self.client.send(piece)

        if fault is None and length is not None and hasattr(os, "splice"):
            self._move(server, int(length), seen, send)
        else:
            server.read_body(answer, send, is_request=False)

    def _move(self, server: Link, left: int, seen: Seen, send: Callable[[bytes], None]) -> None:
        """Let the kernel pass a body on, so that the proxy takes little of a core."""
        while server.buffer and left:
            piece = server.read(left)
            send(piece)
            left -= len(piece)
        if left and self.pipe is None:
            self.pipe = os.pipe()
            fcntl.fcntl(self.pipe[1], fcntl.F_SETPIPE_SZ, 2 * PIECE)
        while left and self.pipe is not None:
            taken = os.splice(server.socket.fileno(), self.pipe[1], min(left, PIECE))
            if not taken:
                raise Ended
            left -= taken
            self.proxy.wait_for_turn(taken)
            seen.num_bytes += taken
            if not left:
                self._note_end()
            while taken:
                taken -= os.splice(self.pipe[0], self.client.socket.fileno(), taken)

    def _spoil(self, piece: bytes, seen: Seen, fault: Fault) -> bytes:
        """Return what is sent of the next piece of the body."""
        at = fault.after - seen.num_bytes
        if fault.kind == "short":
            return piece[:at]
        if not 0 <= at < len(piece):
            return piece
        if fault.kind == "corrupt":
            return piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :]
        seen.num_bytes += at
        self.client.send(piece[:at])
        if fault.kind == "cut":
            raise Ended
        self._stall(fault)
        return piece[at:]

    def _stall(self, fault: Fault) -> None:
        """Wait until the stall is over, or the client has had enough."""
        end = time.monotonic() + fault.seconds
        while time.monotonic() < end:
            if self.client.is_closed():
                raise Ended
            time.sleep(0.02)


def main(host: str, port: int) -> None:
    """Serve until stdin is closed."""
    proxy = Proxy(host, port)
    listening = socket.create_server(("127.0.0.1", 0), backlog=256)
    print(json.dumps(listening.getsockname()[1]), flush=True)

    def accept() -> None:
        while True:
            link, _ = listening.accept()
            threading.Thread(target=proxy.serve, args=(link,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    while line := sys.stdin.readline():
        print(json.dumps(proxy.command(json.loads(line))), flush=True)
    # Connections that are open are not waited for.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
