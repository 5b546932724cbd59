"""A process that reads for a device ends a pass only when nobody writes for it any more."""

from __future__ import annotations

import os
import pickle
from multiprocessing import Pipe
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np

import feedline
from feedline.feed.reader_process import (
    BEGIN,
    ENDED,
    SLAB,
    Reader,
    ReaderPass,
    ReaderSetup,
    SlabCut,
)
from feedline.plan import SamplePlan, Sequential
from feedline.store import FolderStore


class Gated(FolderStore):
    """A store whose second chunk cannot be read, and whose third one is read until told."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.is_read, self.gate = Event(), Event()

    def read(self, chunk: int, rows: Any, out: Any = None) -> Any:
        if chunk == 1:
            self.is_read.wait()
            raise ValueError("it cannot be read")
        if chunk == 2:
            self.is_read.set()
            self.gate.wait()
        return super().read(chunk, rows, out)


def test_a_pass_ends_after_the_last_thread_has_written(tmp_path: Path) -> None:

    feedline.pack({"x": np.arange(40)}, tmp_path / "data", chunk_samples=8, format="npy")
    store = Gated(tmp_path / "data")
    memory = os.memfd_create("pieces")
    os.ftruncate(memory, 4 * 64)
    ours, theirs = Pipe()
    setup = ReaderSetup(-1, memory, 64, range(4), 2)
    reader = Reader(setup, store, theirs)

    def run() -> None:
        try:
            reader.run()
        except (EOFError, OSError):
            return

    thread = Thread(target=run)
    thread.start()
    try:
        plan = SamplePlan(order=Sequential(num_samples=40))
        cut = SlabCut(first=0, end=5, num_most=1, num_processes=1)

        asked = ReaderPass(plan.segment(world_size=1, batch_size=8), 0, cut, 0)
        ours.send_bytes(BEGIN + pickle.dumps(asked))
        assert ours.recv_bytes()[:1] == SLAB
        store.is_read.wait()
        assert not ours.poll(0.5), "the pass has ended although a thread still writes"
        store.gate.set()
        last = ours.recv_bytes()
        assert last[:1] == ENDED
        assert b"it cannot be read" in last
    finally:
        store.gate.set()
        ours.close()
        theirs.close()
        thread.join()
        os.close(memory)
