"""Processes that share the import of their libraries, used like those of `subprocess`.

A process that imports torch costs three seconds of a processor, and one that runs a command half a
second: most of what a small test takes. These are processes of their own as well, with their own
streams, folder and signals, but they are forked from a server that has the libraries already. What
the import itself does is a matter for `subprocess`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from processes import SUPPORT, environment, kill_job

__all__ = ["Forked", "forked_python", "forked_ranks", "forked_run", "stop_servers"]

#: What the processes of a server have, by its name. Never zarrs: where it was imported before a
#: fork, stores decode without it.
PRELOADS = {
    "numpy": ("numpy", "feedline", "feedline.store", "feedline.packing", "feedline.runs"),
    "torch": ("torch", "torch.nn.parallel", "feedline.torch", "feedline.runs"),
    "jax": ("jax", "feedline.jax"),
}

_servers: dict[str, _Server] = {}


class _Server:
    """A fork server of this process; it ends with it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # A message has the whole environment.
        self.control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
        with theirs:
            command = "from fork_server import main; main()"
            self.process = subprocess.Popen(
                [sys.executable, "-c", command, str(theirs.fileno()), str(self.pid)],
                env=environment(SUPPORT),
                # Not the folder of a test, which may look for processes that are left in it.
                cwd="/",
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def stop(self) -> None:
        """Let it end, also where others have inherited the socket."""
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)
        self.control.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=30)
            raise


def _server(name: str) -> _Server:
    found = _servers.get(name)
    if found is None or found.pid != os.getpid():
        found = _servers[name] = _Server()
    return found


def stop_servers() -> None:
    """End all servers of this process, with whatever they have started."""
    while _servers:
        _, server = _servers.popitem()
        if server.pid == os.getpid():
            server.stop()


class Forked:
    """A process of a fork server; the names are those of `subprocess.Popen`.

    Parameters
    ----------
    arguments
        What comes after `python`: a script, or `-c` and code, or `-m` and a module, and then the
        arguments.
    server
        The name of the server: "numpy", "torch" or "jax".
    preload
        What to import in the server, beside what all of its processes have.
    num_ranks
        Become a launcher of so many ranks; 0 for no launcher.
    """

    def __init__(
        self,
        arguments: Sequence[object],
        *,
        server: str = "numpy",
        preload: Sequence[str] = (),
        num_ranks: int = 0,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = subprocess.PIPE,
        stderr: int | None = subprocess.PIPE,
        start_new_session: bool = False,
    ) -> None:
        self.args = [str(one) for one in arguments]
        self.returncode: int | None = None
        opened: list[int] = []
        theirs, ours = _pipes(stdin, stdout, stderr, opened)
        heard, tell = os.pipe()
        job = {
            **_program(self.args),
            **{"preload": [*PRELOADS[server], *preload], "num_ranks": num_ranks},
            **{"folder": str(cwd or os.getcwd()), "is_leader": start_new_session},
            "environment": dict(os.environ) if env is None else env,
        }
        socket.send_fds(_server(server).control, [json.dumps(job).encode()], [*theirs, tell])
        for end in (*opened, tell):
            os.close(end)
        self._status = os.fdopen(heard, encoding="ascii")
        self.stdin = os.fdopen(ours[0], "w") if ours[0] is not None else None
        self.stdout, self.stderr = (
            os.fdopen(end, errors="replace") if end is not None else None for end in ours[1:]
        )
        line = self._status.readline()
        assert line, "the fork server has ended; what it printed is on stderr"
        self.pid = int(line)

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return the exit code."""
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and _is_readable(self._status.fileno(), timeout):
            line = self._status.readline()
            self.returncode = int(line) if line else -signal.SIGKILL
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """`kill -9` it."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, input: str | None = None, timeout: float = 120) -> tuple[str, str]:
        """Send text, read what it prints until its end, and wait for that."""
        end = time.monotonic() + timeout
        if self.stdin is not None and not self.stdin.closed:
            with contextlib.suppress(BrokenPipeError), self.stdin:
                self.stdin.write(input or "")
        printed: dict[Any, bytes] = {}
        with selectors.DefaultSelector() as selector:
            for stream in (self.stdout, self.stderr):
                if stream is not None and not stream.closed:
                    printed[stream] = b""
                    selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(end - time.monotonic())
                if not ready:
                    raise subprocess.TimeoutExpired(self.args, timeout)
                for key, _ in ready:
                    part = os.read(key.fd, 65536)
                    printed[key.fileobj] += part
                    if not part:
                        selector.unregister(key.fileobj)
        for stream in printed:
            stream.close()
        self.wait(max(end - time.monotonic(), 0.1))
        texts = [printed.get(stream, b"").decode() for stream in (self.stdout, self.stderr)]
        return texts[0], texts[1]

    def close(self) -> None:
        """Close the streams; it must have ended."""
        for stream in (self.stdin, self.stdout, self.stderr, self._status):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def _program(arguments: list[str]) -> dict[str, Any]:
    kind, *others = arguments
    if kind == "-c":
        return {"script": None, "code": others[0], "arguments": ["-c", *others[1:]]}
    if kind == "-m":
        code = f"import runpy; runpy.run_module({others[0]!r}, run_name='__main__', alter_sys=True)"
        return {"script": None, "code": code, "arguments": others}
    return {"script": kind, "code": "", "arguments": arguments}


def _is_readable(file: int, timeout: float | None) -> bool:
    """Wait until there is something to read; not by `select`, which knows 1,024 files only."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(None if timeout is None else 1000 * timeout))


def _pipes(
    stdin: int | None, stdout: int | None, stderr: int | None, opened: list[int]
) -> tuple[list[int], list[int | None]]:
    """The descriptors of a process and our ends of them; what to close here goes to `opened`."""
    theirs: list[int] = []
    ours: list[int | None] = []
    for number, stream in enumerate((stdin, stdout, stderr)):
        end = None
        if stream == subprocess.PIPE:
            read, write = os.pipe()
            mine, end = (read, write) if number == 0 else (write, read)
            opened.append(mine)
        elif stream == subprocess.STDOUT:
            mine = theirs[1]
        elif stream == subprocess.DEVNULL:
            mine = os.open(os.devnull, os.O_RDWR)
            opened.append(mine)
        else:
            mine = number if stream is None else stream
        theirs.append(mine)
        ours.append(end)
    return theirs, ours


def forked_run(
    *arguments: object, timeout: float = 60, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments to its end, as `subprocess.run` does."""
    job = Forked(arguments, **options)
    try:
        output, errors = job.communicate(timeout=timeout)
    finally:
        job.kill()
        job.wait(30)
        job.close()
    assert job.returncode is not None
    return subprocess.CompletedProcess(job.args, job.returncode, output, errors)


@contextmanager
def forked_python(
    script: str | Path, *arguments: str, server: str = "numpy", preload: Sequence[str] = ()
) -> Iterator[Forked]:
    """Start a script as one process, as `processes.python` does."""
    with _started(
        [SUPPORT / script, *arguments],
        server=server,
        preload=preload,
        env={**environment(SUPPORT), "JAX_PLATFORMS": "cpu"},
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as job:
        yield job


@contextmanager
def forked_ranks(
    script: str | Path,
    num_processes: int,
    *arguments: str,
    folder: Path | None = None,
    preload: Sequence[str] = (),
) -> Iterator[Forked]:
    """Start a script on several processes, as `processes.torchrun` does."""
    with _started(
        [SUPPORT / script, *arguments],
        server="torch",
        preload=preload,
        num_ranks=num_processes,
        cwd=folder,
        env=environment(SUPPORT),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as job:
        yield job


@contextmanager
def _started(arguments: Sequence[object], **options: Any) -> Iterator[Forked]:
    job = Forked(arguments, **options)
    try:
        yield job
    finally:
        kill_job(job)
        job.close()
