"""Pack a folder of sequences, stream it in worker processes, stop, and resume with others.

Run it with one process:

    python examples/lazy_folder.py

Chunks are mapped into memory, so what the processes hold does not grow with the folder. The batches
do not depend on the workers, and a checkpoint counts what the loop received, not what they read.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.store import pack, verify
from feedline.torch import DataLoader, FolderConfig, LazyFolderDataset

NUM_SAMPLES, LENGTH = 100_000, 128
MEBIBYTE = 2**20
MAX_GROWTH = 32 * MEBIBYTE  # of memory, for a folder of about 100 MiB
STOP = 150


def write_columns(folder: Path) -> dict[str, Path]:
    """Write sequences, and for each what comes next, as files of numpy; return their paths."""
    columns = {"sequences/item": folder / "sequences.npy", "targets/item": folder / "targets.npy"}
    for shift, path in enumerate(columns.values()):
        file = np.lib.format.open_memmap(path, "w+", np.int32, (NUM_SAMPLES, LENGTH))
        for first in range(0, NUM_SAMPLES, 10_000):
            numbers = np.arange(first, min(first + 10_000, NUM_SAMPLES))
            file[numbers] = numbers[:, None] * 1000 + np.arange(LENGTH) + shift
        file.flush()
    return columns


def make_loader(folder: Path, *, batch_size: int, num_workers: int) -> DataLoader[Any]:
    """Return a loader of the folder."""
    dataset = LazyFolderDataset(folder, FolderConfig(batch_size=batch_size, seed=7))
    return DataLoader(dataset, num_workers=num_workers)


def held_memory() -> int:
    """Return the bytes that this process and its workers hold, beside mapped files (on Linux)."""
    total = 0
    for process in (os.getpid(), *(child.pid for child in multiprocessing.active_children())):
        with suppress(OSError):  # a worker that has ended, or another system
            for line in Path(f"/proc/{process}/status").read_text().splitlines():
                if line.startswith(("RssAnon:", "RssShmem:")):
                    total += int(line.split()[1]) * 1024
    return total


def consume(loader: DataLoader[Any], times_seen: NDArray[np.int64], stop: int | None = None) -> int:
    """Use the batches that are left, or `stop` of them; return by how much memory grew."""
    at_first = most = 0
    for number, (sequences, targets, *_) in enumerate(loader, 1):
        if not torch.equal(targets["item"], sequences["item"] + 1):
            raise SystemExit("sequences and targets do not belong together")
        np.add.at(times_seen, sequences["item"][:, 0].numpy() // 1000, 1)
        if number == 1:
            at_first = most = held_memory()
        elif number % 25 == 0:
            most = max(most, held_memory())
        if number == stop:
            break
    return most - at_first


def main() -> None:
    """Pack, stream, stop, resume, and check."""
    torch.set_num_threads(1)
    times_seen = np.zeros(NUM_SAMPLES, dtype=np.int64)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "data")
        packed = pack(write_columns(Path(name)), folder, chunk_samples=5000, shuffle=True, seed=7)
        size = packed.num_bytes / MEBIBYTE
        print(f"packed {packed.num_samples} samples, {size:.0f} MiB, in {packed.num_chunks} chunks")
        if not verify(folder).ok:
            raise SystemExit("a chunk is not what was packed")

        loader = make_loader(folder, batch_size=256, num_workers=2)
        growth = consume(loader, times_seen, stop=STOP)
        checkpoint = json.dumps(loader.state_dict())
        del loader  # and its workers, which have read further than the loop came
        print(f"2 workers, batches of 256: stopped after {times_seen.sum()} samples")

        loader = make_loader(folder, batch_size=100, num_workers=1)
        loader.load_state_dict(json.loads(checkpoint))
        growth = max(growth, consume(loader, times_seen))
        print(f"1 worker, batches of 100: went on to {times_seen.sum()} samples")

    print(f"memory grew by {growth / MEBIBYTE:.0f} MiB after the first batch")
    if growth > MAX_GROWTH:
        raise SystemExit(f"memory must not grow by more than {MAX_GROWTH // MEBIBYTE} MiB")
    if (times_seen != 1).any():
        raise SystemExit("samples were lost or repeated")
    print(f"all {NUM_SAMPLES} samples were received exactly once")


if __name__ == "__main__":
    main()
