"""litdata's own writer and loader."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from format_data import BATCH_SIZE, NUM_ROWS, SHARD_BYTES, row
from litdata import StreamingDataLoader, StreamingDataset, optimize
from peer_timing import run


def sample(number: int) -> dict[str, bytes]:
    return {"x": row(number)}


def write(folder: Path) -> None:
    optimize(sample, list(range(NUM_ROWS)), str(folder), chunk_bytes=SHARD_BYTES, num_workers=1)


def collate(samples: list[Any]) -> list[bytes]:
    return [sample["x"] for sample in samples]


def make(folder: Path, num_workers: int) -> Callable[[], Iterable[Any]]:
    def batches() -> Iterable[Any]:
        dataset = StreamingDataset(str(folder), shuffle=True)
        return StreamingDataLoader(
            dataset, batch_size=BATCH_SIZE, num_workers=num_workers, collate_fn=collate
        )

    return batches


if __name__ == "__main__":
    run(write, make)
