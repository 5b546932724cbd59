"""One small store of every kind that `feedline.open` opens; sample i holds the number i."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import feedline
from feedline.store import Store

__all__ = ["FORMATS", "ids_in", "open_format", "write_formats"]

WINDOW = 3


def _columns(num_samples: int) -> dict[str, Any]:
    return {"x": np.arange(num_samples), "pair": np.arange(2 * num_samples).reshape(-1, 2) / 4}


def _packed(chunk_format: str) -> Callable[[Path, int], None]:
    def write(path: Path, num_samples: int) -> None:
        feedline.pack(_columns(num_samples), path, chunk_samples=13, format=chunk_format)

    return write


def _parquet(path: Path, num_samples: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"x": np.arange(num_samples), "half": np.arange(num_samples) / 2})
    pq.write_table(table, path, row_group_size=13)


def _arrow(path: Path, num_samples: int) -> None:
    import pyarrow as pa

    table = pa.table({"x": np.arange(num_samples)})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=13)


def _pt(path: Path, num_samples: int) -> None:
    import torch

    torch.save({name: torch.from_numpy(a) for name, a in _columns(num_samples).items()}, path)


def _npy(path: Path, num_samples: int) -> None:
    np.save(path, np.arange(num_samples))


def _tokens(path: Path, num_samples: int) -> None:
    np.repeat(np.arange(num_samples, dtype="<u2"), WINDOW).tofile(path)


def _zarr(path: Path, num_samples: int) -> None:
    import zarr

    rows = np.arange(num_samples)[:, None] + np.zeros(4, np.int64)
    zarr.save_array(path, rows)


def _lists(path: Path, num_samples: int) -> None:
    texts = [f"{number}, äöü"[: 1 + number % 7] for number in range(num_samples)]
    rows = [np.full(1 + number % 5, number) for number in range(num_samples)]
    columns = {"words": rows, "text": texts, "bytes": [text.encode() for text in texts]}
    feedline.pack({**columns, **_columns(num_samples)}, path, chunk_samples=13, format="npy")


#: How each is written, under a name that tells its kind.
FORMATS: dict[str, Callable[[Path, int], None]] = {
    "safetensors": _packed("safetensors"),
    "npy-folder": _packed("npy"),
    "lists-folder": _lists,
    "tensors.pt": _pt,
    "table.parquet": _parquet,
    "table.arrow": _arrow,
    "array.npy": _npy,
    "tokens.bin": _tokens,
    "matrix.zarr": _zarr,
}


def write_formats(folder: Path, num_samples: int) -> Path:
    """Write one store of each kind into a folder, if its library is here; opening tells."""
    folder.mkdir(parents=True)
    for name, write in FORMATS.items():
        with suppress(ModuleNotFoundError):
            write(folder / name, num_samples)
    return folder


def open_format(folder: Path, name: str) -> Store:
    """Open one of them."""
    options = {"window": WINDOW} if name == "tokens.bin" else {}
    return feedline.open(folder / name, **options)


def ids_in(batch: Any) -> list[int]:
    """The numbers of the samples that a batch, a dict of arrays or tensors, shows."""
    if "words" in batch:
        # All values of a list, its text and its bytes are those of its number.
        numbers = [{int(value) for value in row} for row in batch["words"]]
        texts = [f"{row}, äöü"[: 1 + row % 7] for (row,) in numbers]
        assert list(batch["text"]) == texts
        assert list(batch["bytes"]) == [text.encode() for text in texts]
        return [row for (row,) in numbers]
    values = next(batch[name] for name in ("x", "data", "tokens", "X") if name in batch)
    return [int(value) for value in values.reshape(len(values), -1)[:, 0]]
