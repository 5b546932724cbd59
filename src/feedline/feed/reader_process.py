"""A process that reads slabs into memory that it shares with the training process.

Threads that gather rows and the training loop wait for the same interpreter lock, and the loop
loses. Here the threads are in processes of their own. The training process is told only where a
slab lies; this file is all that such a process runs, and it imports no framework.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.feed.gathering import Workplace, arrays_in, bytes_for, chunking_of, gather
from feedline.feed.readahead import ReadAhead
from feedline.feed.slab_jobs import SlabJob, cut
from feedline.plan import Segment
from feedline.store import Store

# What a message is, by its first byte. From a process: a slab that was read; or that a pass or its
# start has ended, with the error if there was one. To a process: a pass to begin, that it is to
# end, or a piece of memory that is free again.
SLAB, ENDED, BEGIN, END, FREE = b"s", b"e", b"b", b"x", b"f"


class ReaderSetup(NamedTuple):
    """What a reader needs once.

    Args:
        store: The descriptor of a file with the pickled store.
        file: The descriptor of the shared memory.
        num_bytes: The bytes of a piece of it.
        pieces: The pieces that this reader reads into.
        num_threads: The number of threads that read.
    """

    store: int
    file: int
    num_bytes: int
    pieces: range
    num_threads: int


@dataclass(frozen=True, kw_only=True)
class SlabCut:
    """How batches are cut into slabs that processes read in turn: small ones first.

    Args:
        first: The first batch.
        end: The batch after the last one.
        num_most: The number of batches in a full slab.
        num_processes: The number of processes.

    Examples:
        >>> list(SlabCut(first=3, end=40, num_most=8, num_processes=2))
        [(3, 4), (4, 5), (5, 7), (7, 9), (9, 13), (13, 17), (17, 25), (25, 33), (33, 40)]
    """

    first: int
    end: int
    num_most: int
    num_processes: int

    def __iter__(self) -> Iterator[tuple[int, int]]:
        first, count = self.first, max(1, self.num_most // 8)
        while first < self.end:
            for _ in range(self.num_processes):
                end = min(first + count, self.end)
                if first < end:
                    yield first, end
                first = end
            count = min(2 * count, self.num_most)


class ReaderPass(NamedTuple):
    """What a reader needs for one pass.

    Args:
        segment: What is left of the epoch.
        rank: The rank whose batches these are.
        cut: How the batches are cut into slabs.
        place: Which process this is: it reads every slab whose number has this rest.
    """

    segment: Segment
    rank: int
    cut: SlabCut
    place: int


class ReadSlab(NamedTuple):
    """A slab that has been read.

    Args:
        first: The number of the first batch.
        piece: The piece of memory that it lies in.
        sizes: The number of samples in each batch.
    """

    first: int
    piece: int
    sizes: list[int]

    def packed(self) -> bytes:
        """Return a message that costs the training process little to read."""
        return SLAB + struct.pack(f"={2 + len(self.sizes)}q", self.first, self.piece, *self.sizes)

    @classmethod
    def unpacked(cls, message: bytes) -> ReadSlab:
        """Return what a message says."""
        first, piece, *sizes = struct.unpack_from(f"={len(message) // 8}q", message, 1)
        return cls(first, piece, sizes)


class _EndedError(Exception):
    """The pass was ended by the training process."""


class Reader:
    """Reads the slabs of one pass after another.

    Args:
        setup: What it needs once.
        store: Where the samples are.
        connection: Where it is told about passes and free pieces.
    """

    def __init__(self, setup: ReaderSetup, store: Store, connection: Connection) -> None:
        self._setup = setup
        self._store = store
        self._connection = connection
        self._chunking = chunking_of(store)
        self._workplace = Workplace()
        end = setup.pieces.stop * setup.num_bytes
        memory = np.frombuffer(mmap.mmap(setup.file, end), np.uint8)
        self._memory = memory.reshape(-1, setup.num_bytes)
        self._free: SimpleQueue[int | None] = SimpleQueue()
        self._is_ending = False
        self._thread: Thread | None = None

    def run(self) -> None:
        """Do what the training process asks, until it is gone."""
        while True:
            message = self._connection.recv_bytes()
            kind = message[:1]
            if kind == FREE:
                self._free.put(int(message[1:]))
            elif kind == END:
                self._end()
            elif kind == BEGIN:
                self._end()
                self._begin(pickle.loads(message[1:]))

    def _begin(self, asked: ReaderPass) -> None:
        self._is_ending = False
        self._free = SimpleQueue()
        for piece in self._setup.pieces:
            self._free.put(piece)
        self._thread = Thread(target=self._read_all, args=(asked,), daemon=True)
        self._thread.start()

    def _end(self) -> None:
        if self._thread is None:
            return
        self._wake_all()
        self._thread.join()
        self._thread = None

    def _wake_all(self) -> None:
        """Let whoever waits for a free piece, or begins to read, give up."""
        self._is_ending = True
        for _ in range(self._setup.num_threads + 1):
            self._free.put(None)

    def _read_all(self, asked: ReaderPass) -> None:
        error = ""
        num_threads = self._setup.num_threads
        slabs = ReadAhead(
            self._jobs(asked),
            self._read,
            lambda job: [job],
            num_threads=num_threads,
            num_ahead=num_threads + 1,
        )
        try:
            for first, piece, sizes in slabs:
                self._connection.send_bytes(ReadSlab(first, piece, sizes).packed())
        except _EndedError:
            pass
        except OSError:
            # The training process is gone.
            return
        except Exception as failed:
            error = f"{type(failed).__name__}: {failed}"
        finally:
            # A thread that still reads would write into memory that the next pass uses.
            self._wake_all()
            slabs.close(wait=True)
        self._connection.send_bytes(ENDED + error.encode())

    def _jobs(self, asked: ReaderPass) -> Iterator[SlabJob]:
        for first, end in islice(iter(asked.cut), asked.place, None, asked.cut.num_processes):
            if self._is_ending:
                return
            block = asked.segment.block(asked.rank, first, end)
            yield from cut(block, self._chunking, end - first)

    def _read(self, job: SlabJob) -> tuple[int, int, list[int]]:
        piece = None if self._is_ending else self._free.get()
        if piece is None or self._is_ending:
            raise _EndedError
        columns = self._store.columns
        num_rows = len(job.rows)
        memory: NDArray[np.uint8] = self._memory[piece]
        arrays = arrays_in(memory[: bytes_for(columns, num_rows)], columns, num_rows)
        gather(self._store, job, arrays, self._workplace)
        return job.block.first, piece, np.diff(job.block.bounds).tolist()


def main() -> None:
    """Run a reader; the arguments are the descriptors of its connection and of the memory."""
    # Ctrl-C reaches every process of a terminal; the training process decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(int(sys.argv[1]))
    try:
        setup: ReaderSetup = connection.recv()
        try:
            # By its own position: the other processes have the same file.
            store = os.pread(setup.store, os.fstat(setup.store).st_size, 0)
            reader = Reader(setup, pickle.loads(store), connection)
        except Exception as error:
            connection.send_bytes(ENDED + f"{type(error).__name__}: {error}".encode())
            return
        connection.send_bytes(ENDED)
        reader.run()
    except (EOFError, OSError):
        # The training process is gone. Threads may still read: nobody needs it.
        os._exit(0)
