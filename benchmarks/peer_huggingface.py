"""Hugging Face's own dataset, read by whole batches through torch's loader."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from datasets import Dataset, load_from_disk
from format_data import BATCH_SIZE, NUM_ROWS, row
from peer_timing import run
from torch.utils.data import BatchSampler, DataLoader, RandomSampler


def write(folder: Path) -> None:
    def rows() -> Iterable[dict[str, bytes]]:
        for number in range(NUM_ROWS):
            yield {"x": row(number)}

    data = Dataset.from_generator(rows, cache_dir=str(folder.parent / "cache"))
    data.save_to_disk(str(folder), num_shards=8)


def column(batch: Any) -> Any:
    return batch["x"]


def make(folder: Path, num_workers: int) -> Callable[[], Iterable[Any]]:
    data = load_from_disk(str(folder))

    def batches() -> Iterable[Any]:
        order = BatchSampler(RandomSampler(data), BATCH_SIZE, drop_last=False)
        return DataLoader(
            data, batch_size=None, sampler=order, num_workers=num_workers, collate_fn=column
        )

    return batches


if __name__ == "__main__":
    run(write, make)
