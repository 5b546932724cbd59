"""A process that imports libraries once, and forks processes that would each import them.

It is started by `forked.py` and asked by messages, each with the descriptors of stdin, stdout,
stderr and a pipe for the id and the exit code of the new process. It ends, with all that it has
started, when the one who asks closes the socket or is gone. If it is killed itself, the kernel
ends what it has started. Nothing may start a thread here.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from types import ModuleType
from typing import Any

Job = dict[str, Any]

_PR_SET_PDEATHSIG = 1

#: How often it looks whether the one who asks is still there.
SECONDS_BETWEEN_LOOKS = 5.0


def main() -> None:
    """Serve; in a process that was forked, return from it as whatever was asked for."""
    with socket.socket(fileno=int(sys.argv[1])) as control:
        job = serve(control, int(sys.argv[2]))
    if job is not None:
        become(job)


def serve(control: socket.socket, parent: int) -> Job | None:
    """Fork processes until the end; return what to do in each of them, and None in the end."""
    is_woken, wake = os.pipe()
    for end in (is_woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    pipes: dict[int, int] = {}
    server = os.getpid()
    # Not `select`, which fails where a process has more than 1,024 files open.
    poll = select.poll()
    for file in (control.fileno(), is_woken):
        poll.register(file, select.POLLIN)
    while os.getppid() == parent:
        ready = {file for file, _ in poll.poll(1000 * SECONDS_BETWEEN_LOOKS)}
        if is_woken in ready:
            os.read(is_woken, 4096)
        tell_ended(pipes)
        if control.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(control, 2**20, 4)
        if not message:
            break
        job = json.loads(message)
        for name in job["preload"]:
            importlib.import_module(name)
        # What is there now is not looked at by the collector, which would copy its pages.
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            end_with(server)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            *streams, pipe = descriptors
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            for unused in (*descriptors, is_woken, wake, *pipes.values()):
                os.close(unused)
            return dict(job)
        *streams, pipe = descriptors
        for stream in streams:
            os.close(stream)
        tell(pipe, pid)
        pipes[pid] = pipe
    for pid in pipes:
        os.kill(pid, signal.SIGKILL)
    return None


def end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # It may have ended before the kernel was asked.
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)


def tell_ended(pipes: dict[int, int]) -> None:
    """Tell the exit codes of processes that have ended, as subprocess has them."""
    for pid in list(pipes):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            pipe = pipes.pop(pid)
            tell(pipe, os.waitstatus_to_exitcode(status))
            os.close(pipe)


def tell(pipe: int, number: int) -> None:
    """Write a number; whoever asked may have lost interest."""
    try:
        os.write(pipe, f"{number}\n".encode())
    except BrokenPipeError:
        return


def become(job: Job) -> None:
    """Be the process that was asked for: a script or a module, alone or as a rank."""
    if job["is_leader"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["folder"])
    open_streams()
    if job["num_ranks"]:
        launch(job["num_ranks"])
    sys.argv = job["arguments"]
    script = job["script"]
    # As the interpreter has it for a script, and for a module or a command.
    sys.path.insert(0, os.path.dirname(script) if script else os.getcwd())
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__dict__["__builtins__"] = __builtins__
    if script:
        module.__file__ = script
        with open(script, encoding="utf-8") as file:
            job["code"] = file.read()
    exec(compile(job["code"], script or "<string>", "exec"), module.__dict__)


def open_streams() -> None:
    """Make the streams anew, since those of the server may have known another kind of file."""
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", buffering=1, closefd=False)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = os.fdopen(  # type: ignore[misc]
        2, "w", buffering=1, errors="backslashreplace", closefd=False
    )


def launch(num_ranks: int) -> None:
    """Fork ranks, wait for them and exit, as torchrun does; return in each of the ranks."""
    from torch.distributed import TCPStore

    running: list[int] = []
    tells: list[int] = []
    for rank in range(num_ranks):
        heard, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            for unused in (*tells, tell):
                os.close(unused)
            port = os.read(heard, 16).decode()
            os.close(heard)
            if not port:
                os._exit(1)
            os.setsid()
            os.environ.update(
                {
                    **{"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"},
                    **{"WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks)},
                    **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
                    # The store is there already.
                    "TORCHELASTIC_USE_AGENT_STORE": "True",
                }
            )
            return
        os.close(heard)
        running.append(pid)
        tells.append(tell)
    # Not before the forks: it has a thread.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for tell in tells:
        os.write(tell, str(store.port).encode())
        os.close(tell)
    code = 0
    while running:
        pid, status = os.wait()
        running.remove(pid)
        if status and not code:
            code = 1
            print(f"rank process {pid} ended with {os.waitstatus_to_exitcode(status)}", flush=True)
            for other in running:
                os.kill(other, signal.SIGKILL)
    os._exit(code)
