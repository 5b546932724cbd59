"""MosaicML Streaming's own writer and dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter
from typing import Any

from format_data import BATCH_SIZE, NUM_ROWS, SHARD_BYTES, row
from peer_timing import run
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset


def write(folder: Path) -> None:
    with MDSWriter(out=str(folder), columns={"x": "bytes"}, size_limit=SHARD_BYTES) as out:
        for number in range(NUM_ROWS):
            out.write({"x": row(number)})


def loader(folder: Path, num_workers: int) -> Any:
    dataset = StreamingDataset(local=str(folder), shuffle=True, batch_size=BATCH_SIZE)
    return StreamingDataLoader(
        dataset,
        batch_size=BATCH_SIZE,
        num_workers=num_workers,
        collate_fn=lambda samples: [sample["x"] for sample in samples],
    )


def make(folder: Path, num_workers: int) -> Callable[[], Iterable[Any]]:
    return lambda: loader(folder, num_workers)


def resume(folder: Path, num_workers: int) -> float:
    state = loader(folder, num_workers).dataset.state_dict(NUM_ROWS * 9 // 10, from_beginning=True)
    start = perf_counter()
    resumed = loader(folder, num_workers)
    resumed.load_state_dict(state)
    next(iter(resumed))
    return perf_counter() - start


if __name__ == "__main__":
    run(write, make, resume)
