"""The data of `device.py`, and torch's own ways to read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Rows(NamedTuple):
    """One kind of rows: their name, shape and type, and how many lie in how many chunks."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    chunk_rows: int
    num_chunks: int
    batch_size: int

    @property
    def row_bytes(self) -> int:
        """The number of bytes of a row."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


ROWS = (
    Rows("1 KiB", (256,), "float32", 131072, 48, 512),
    Rows("4 KiB", (1024,), "float32", 32768, 48, 512),
    Rows("64 KiB", (16384,), "float32", 2048, 48, 128),
    Rows("images", (3, 224, 224), "uint8", 1024, 42, 256),
)


def write(folder: Path, rows: Rows) -> Path:
    """Write the chunks as `.npy` files, and return their folder."""
    target = folder / rows.name.replace(" ", "")
    target.mkdir(parents=True)
    generator = np.random.default_rng(0)
    block = generator.integers(0, 255, (rows.chunk_rows, *rows.shape), dtype=np.uint8)
    block = block.astype(rows.dtype)
    files = []
    for number in range(rows.num_chunks):
        np.save(target / f"chunk-{number:03}.npy", block)
        files.append({"path": f"chunk-{number:03}.npy", "samples": rows.chunk_rows})
    total = rows.chunk_rows * rows.num_chunks
    (target / "metadata.json").write_text(
        json.dumps({"total_samples": total, "batch_files": files})
    )
    return target


class MapStyle(Dataset[torch.Tensor]):
    """The rows as a map-style dataset over mapped files."""

    def __init__(self, folder: Path, rows: Rows) -> None:
        self._paths = [folder / f"chunk-{number:03}.npy" for number in range(rows.num_chunks)]
        self._chunk_rows = rows.chunk_rows
        self.chunks = [np.load(path, mmap_mode="r") for path in self._paths]

    def __len__(self) -> int:
        return len(self.chunks) * self._chunk_rows

    def __getitem__(self, index: int) -> torch.Tensor:
        chunk, row = divmod(index, self._chunk_rows)
        return torch.from_numpy(np.array(self.chunks[chunk][row]))


class WholeBatches(MapStyle):
    """The same, with a whole batch read at once."""

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        numbers = np.asarray(indices)
        chunks, rows = np.divmod(numbers, self._chunk_rows)
        out = np.empty((len(numbers), *self.chunks[0].shape[1:]), self.chunks[0].dtype)
        for chunk in np.unique(chunks):
            chosen = chunks == chunk
            out[chosen] = self.chunks[chunk][rows[chosen]]
        return torch.from_numpy(out)


def _as_is(batch: Any) -> Any:
    return batch


def torch_loader(folder: Path, rows: Rows, *, is_whole: bool, num_workers: int) -> Any:
    """Return torch's loader over the rows: shuffled, pinned, with workers that stay."""
    data = (WholeBatches if is_whole else MapStyle)(folder, rows)
    return DataLoader(
        data,
        rows.batch_size,
        shuffle=True,
        num_workers=num_workers,
        pin_memory=True,
        persistent_workers=num_workers > 0,
        collate_fn=_as_is if is_whole else None,
        drop_last=True,
    )
