"""A reader of chunk folders that works as such readers commonly do, to stand beside ours.

It loads a whole chunk, shuffles it by indexing, joins it to what is left of the one before, and
cuts batches off the front. Workers get consecutive parts of the samples.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import IterableDataset, get_worker_info

Columns = dict[str, torch.Tensor]


class PlainFolder(IterableDataset):
    """Batches of a folder of `.pt` chunks on one rank."""

    def __init__(self, folder: Path, batch_size: int, seq_length: int, seed: int = 0) -> None:
        self.folder, self.batch_size, self.seq_length = folder, batch_size, seq_length
        self.seed, self.epoch = seed, 0
        metadata = json.loads((folder / "metadata.json").read_text())
        self.files, self.num_samples = metadata["batch_files"], metadata["total_samples"]

    def __iter__(self) -> Iterator[tuple[Columns, Columns, None, None, None]]:
        worker = get_worker_info()
        number, num_workers = (worker.id, worker.num_workers) if worker else (0, 1)
        first = self.num_samples * number // num_workers
        end = self.num_samples * (number + 1) // num_workers
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        start = 0
        inputs: Columns = {}
        outputs: Columns = {}
        num_held = 0
        for file in torch.randperm(len(self.files), generator=generator).tolist():
            size = self.files[file]["samples"]
            low, high = max(first - start, 0), min(end - start, size)
            start += size
            if low >= high:
                continue
            path = self.folder / self.files[file]["path"]
            sequences, targets, *_ = torch.load(path, map_location="cpu", weights_only=True)
            shuffled = torch.randperm(size, generator=torch.Generator().manual_seed(file))
            rows = shuffled[low:high]
            inputs = self._joined(inputs, sequences, rows)
            outputs = self._joined(outputs, targets, rows)
            num_held += len(rows)
            while num_held >= self.batch_size:
                yield _head(inputs, self.batch_size), _head(outputs, self.batch_size), *[None] * 3
                inputs, outputs = _rest(inputs, self.batch_size), _rest(outputs, self.batch_size)
                num_held -= self.batch_size
        if num_held:
            yield inputs, outputs, None, None, None

    def _joined(self, held: Columns, chunk: Columns, rows: torch.Tensor) -> Columns:
        new = {name: column[rows, -self.seq_length :] for name, column in chunk.items()}
        return {name: torch.cat([held[name], new[name]]) for name in new} if held else new


def _head(columns: Columns, count: int) -> Columns:
    return {name: column[:count] for name, column in columns.items()}


def _rest(columns: Columns, count: int) -> Columns:
    return {name: column[count:] for name, column in columns.items()}
