"""The ranks of a training, forked from one process that has imported torch.

A process that imports torch and makes an optimizer costs four seconds of a processor, which is most
of what a small training takes. These ranks are processes like those of torchrun and are told the
same, but share the import.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest import mock

from processes import SUPPORT, environment

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["torch._dynamo", "torch.nn.parallel", "feedline.torch", "feedline.runs", "forked_ranks"]
)


@dataclass
class ForkedRanks:
    """The processes of one training; what they print goes to `output`."""

    processes: list[BaseProcess]
    output: Path

    def finish(self, timeout: float = 120) -> str:
        """Wait for all ranks to end well, and return what they printed."""
        for process in self.processes:
            process.join(timeout)
        codes = [process.exitcode for process in self.processes]
        printed = self.output.read_text()
        assert codes == [0] * len(codes), f"exit codes {codes}:\n{printed}"
        return printed

    def kill(self) -> None:
        """`kill -9` all ranks, and wait until they are gone."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join(30)
            assert process.exitcode is not None, f"process {process.pid} outlived SIGKILL"

    @property
    def has_ended(self) -> bool:
        """Whether any rank has ended."""
        return any(process.exitcode is not None for process in self.processes)


@contextmanager
def forked_ranks(script: Path, num_processes: int) -> Iterator[ForkedRanks]:
    """Start a script on several processes in its folder; what is left is killed at the end."""
    ranks = ForkedRanks([], script.with_suffix(".out"))
    ranks.output.write_text("")
    with mock.patch.dict(os.environ, environment(SUPPORT)):
        ensure_running()
    heard, tell = _CONTEXT.Pipe(duplex=False)
    port = 0
    try:
        for rank in range(num_processes):
            process = _CONTEXT.Process(
                target=_run, args=(script, ranks.output, rank, num_processes, port, tell)
            )
            process.start()
            ranks.processes.append(process)
            if rank == 0:
                assert heard.poll(90), "rank 0 did not start"
                port = heard.recv()
        yield ranks
    finally:
        ranks.kill()
        heard.close()
        tell.close()


def _run(
    script: Path, output: Path, rank: int, num_processes: int, port: int, tell: Connection
) -> None:
    """Run a script as a rank; rank 0 has the store where they meet, and tells its port."""
    import torch
    from torch.distributed import TCPStore

    torch.set_num_threads(1)
    os.chdir(script.parent)
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(file, stream.fileno())
    if rank == 0:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = store.port
        tell.send(port)
    os.environ |= {
        **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_processes)},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
        # The store is there, as under torchrun.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    runpy.run_path(str(script), run_name="__main__")
    sys.stdout.flush()
