"""WebDataset's own writer and loader."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import webdataset
from format_data import BATCH_SIZE, NUM_ROWS, SHARD_BYTES, row
from peer_timing import run


def write(folder: Path) -> None:
    with webdataset.ShardWriter(str(folder / "%05d.tar"), maxsize=SHARD_BYTES, verbose=0) as sink:
        for number in range(NUM_ROWS):
            sink.write({"__key__": f"{number:08}", "bin": row(number)})


def make(folder: Path, num_workers: int) -> Callable[[], Iterable[Any]]:
    shards = sorted(str(path) for path in folder.glob("*.tar"))

    def batches() -> Iterable[Any]:
        dataset = (
            webdataset.WebDataset(shards, shardshuffle=len(shards), seed=1)
            .shuffle(1000)
            .to_tuple("bin")
            .batched(BATCH_SIZE, collation_fn=lambda rows: [row[0] for row in rows])
        )
        return webdataset.WebLoader(dataset, batch_size=None, num_workers=num_workers)

    return batches


if __name__ == "__main__":
    run(write, make)
