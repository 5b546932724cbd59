"""A process that forks a child, which reads matrices; it ends well if both read what was written.

Arguments: one JSON object with `data` (a list of matrices), `before` (what happens before the fork:
nothing, open, read, elsewhere, which is reading with zarrs but without Feedline, chosen, which is
choosing zarrs for everything and reading, or nested, which is reading and then forking once more),
`fork` (os or multiprocessing) and `timeout` (seconds).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import zarr

from feedline.chunks import RandomSampler
from feedline.feed import ChunkLoader
from feedline.store import CsrStore, DenseStore, open_anndata
from zarr_data import array_of, dense_rows

ZARRS = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}


def read(store: CsrStore | DenseStore) -> None:
    """Read all rows, with a thread that reads ahead, and compare."""
    values = dense_rows(store.shape[0])
    seen = 0
    for batch in ChunkLoader(store, RandomSampler(4, 3, 6)):
        np.testing.assert_array_equal(array_of(batch.X), values[batch.rows])
        seen += len(batch.rows)
    assert seen == len(values)


def read_elsewhere(path: str) -> None:
    """Read with zarrs as any other library would."""
    with zarr.config.set(ZARRS):
        group = zarr.open_group(path, mode="r")
        matrix = group["X"]
        array = matrix["data"] if isinstance(matrix, zarr.Group) else matrix
        assert isinstance(array, zarr.Array)
        _ = array[:]


def wait_for_exit(pid: int, timeout: float) -> int:
    """Return the exit status of a child; one that takes too long is killed."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    print("the child hangs", flush=True)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_child_of_os(work: Callable[[], None], timeout: float) -> int:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return wait_for_exit(pid, timeout)


def in_child_of_multiprocessing(work: Callable[[], None], timeout: float) -> int:
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    assert child.pid is not None
    return wait_for_exit(child.pid, timeout)


FORKS = {"os": in_child_of_os, "multiprocessing": in_child_of_multiprocessing}


def main(job: dict[str, Any]) -> None:
    before, fork, timeout = job["before"], FORKS[job["fork"]], job["timeout"]
    if before == "chosen":
        zarr.config.set(ZARRS)
    stores = [] if before == "nothing" else [open_anndata(path) for path in job["data"]]
    if before in ("read", "nested", "chosen"):
        for store in stores:
            read(store)
    if before == "elsewhere":
        for path in job["data"]:
            read_elsewhere(path)

    def in_child() -> None:
        for store in stores or [open_anndata(path) for path in job["data"]]:
            read(store)
        if before == "nested":
            assert fork(lambda: [read(store) for store in stores] and None, timeout / 2) == 0

    assert fork(in_child, timeout) == 0
    # The parent goes on as before.
    for store in stores or [open_anndata(path) for path in job["data"]]:
        read(store)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
