"""MosaicML Streaming's own writer and dataset."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

# The package imports the datasets that it has ready, which need more than its format does.
for name in ("transformers", "streaming.multimodal", "streaming.text", "streaming.vision"):
    sys.modules[name] = ModuleType(name)
for name, part in (
    ("feature_extraction_utils", "BatchFeature"),
    ("tokenization_utils_base", "BatchEncoding"),
):
    sys.modules[f"transformers.{name}"] = ModuleType(name)
    setattr(sys.modules[f"transformers.{name}"], part, dict)

from format_data import BATCH_SIZE, NUM_ROWS, SHARD_BYTES, row  # noqa: E402
from peer_timing import run  # noqa: E402
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset  # noqa: E402


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
