"""Folders of chunks in the documented layout, in which every number of a sample tells its id.

`sequences["item"][:, -1]` is the id of a sample, its place in the folder; all else follows from it,
so that a wrong row, a wrong step or a mixed-up column is seen. In a module of its own so that
spawned workers can import what they need.
"""

from __future__ import annotations

import copy
import json
import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.store import FolderStore

STEPS = 6
KINDS = ("pt", "safetensors", "npy")
Arrays = dict[str, NDArray[Any]]


def columns_for(ids: Iterable[int], steps: int = STEPS) -> Arrays:
    """Return what the samples with these ids hold."""
    numbers = np.array(list(ids), dtype=np.int64)
    back = np.arange(steps - 1, -1, -1, dtype=np.int64)
    item = numbers[:, None] + 1_000_000 * back
    return {
        "sequences/item": item,
        "sequences/price": (numbers[:, None] * 0.5 + back).astype(np.float32),
        "targets/item": (item * 3 + 1) % 65521,
    }


def write_folder(
    folder: Path, sizes: Sequence[int], kind: str = "pt", steps: int = STEPS, first_id: int = 0
) -> Path:
    """Write a folder whose files have so many samples."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for number, size in enumerate(sizes):
        name = file_name(number, kind)
        write_chunk(folder / name, columns_for(range(first_id, first_id + size), steps))
        entries.append({"path": name, "samples": size})
        first_id += size
    write_metadata(folder, entries)
    return folder


def file_name(number: int, kind: str = "pt") -> str:
    """Return the name of a chunk."""
    return f"chunk-{number:03}" + ("" if kind == "npy" else f".{kind}")


def write_metadata(folder: Path, entries: list[dict[str, Any]]) -> None:
    """Write `metadata.json` as documented."""
    total = sum(entry["samples"] for entry in entries)
    content = {"total_samples": total, "batch_files": entries}
    (folder / "metadata.json").write_text(json.dumps(content))


def write_chunk(path: Path, columns: dict[str, Any]) -> None:
    """Write one chunk, by the ending of its name."""
    if path.suffix == ".pt":
        parts: dict[str, dict[str, torch.Tensor]] = {"sequences": {}, "targets": {}}
        for name, column in columns.items():
            part, _, short = name.partition("/")
            parts[part][short] = torch.as_tensor(column)
        numbers = torch.arange(len(next(iter(columns.values()))))
        torch.save((parts["sequences"], parts["targets"], numbers // 3, numbers % 3, numbers), path)
    elif path.suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file({name: torch.as_tensor(column) for name, column in columns.items()}, path)
    else:
        for name, column in columns.items():
            file = path / f"{name}.npy"
            file.parent.mkdir(parents=True, exist_ok=True)
            np.save(file, column)


def check_arrays(arrays: Arrays, steps: int = STEPS) -> list[int]:
    """Return the ids of the samples, after checking all that they hold."""
    ids: list[int] = arrays["sequences/item"][:, -1].tolist()
    for name, expected in columns_for(ids).items():
        found = np.asarray(arrays[name])
        np.testing.assert_array_equal(found, expected[:, -steps:], err_msg=name, strict=True)
    return ids


def check_batch(batch: Any, steps: int = STEPS) -> list[int]:
    """Return the ids of a batch of tensors, after checking all that it holds."""
    sequences, targets, *rest = batch
    assert rest == [None, None, None]
    assert list(sequences) == ["item", "price"]
    assert list(targets) == ["item"]
    arrays = {f"sequences/{name}": column.numpy() for name, column in sequences.items()}
    arrays |= {f"targets/{name}": column.numpy() for name, column in targets.items()}
    return check_arrays(arrays, steps)


def check_batches(batches: Iterable[Any], steps: int = STEPS) -> list[list[int]]:
    """Return the ids of each batch, after checking all that they hold."""
    return [check_batch(batch, steps) for batch in batches]


def flat(batches: Iterable[list[int]]) -> list[int]:
    """Return the ids of all batches in one list."""
    return [sample for ids in batches for sample in ids]


def documented_config(**changes: Any) -> SimpleNamespace:
    """Return a configuration of the shape that the document has."""
    values = {
        "project_root": ".",
        "seed": 5,
        "seq_length": STEPS,
        "batch_size": 4,
        "num_workers": 0,
        "sampling_strategy": "balanced",
        **changes,
    }
    spec = {k: values.pop(k) for k in ("batch_size", "num_workers", "sampling_strategy")}
    return SimpleNamespace(**values, training_spec=SimpleNamespace(**spec))


class WatchedStore:
    """A store that counts the slabs in memory, and whose reads can be made to fail."""

    def __init__(self, store: FolderStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._slabs: dict[int, weakref.ref[Any]] = {}
        self.peak_bytes = self.num_reads = 0
        self.failures: dict[int, list[BaseException]] = {}

    num_samples = property(lambda self: self._store.num_samples)
    chunk_sizes = property(lambda self: self._store.chunk_sizes)
    columns = property(lambda self: self._store.columns)
    fingerprint = property(lambda self: self._store.fingerprint)

    def read(self, chunk: int, rows: Any, out: Any = None) -> Any:
        """Read; raise the next failure that is listed for the chunk, the last one for ever."""
        with self._lock:
            self.num_reads += 1
            slab = next(iter(out.values())).base
            if slab.dtype == np.uint8:
                # Anything else is scratch memory of a few rows.
                self._slabs[id(slab)] = weakref.ref(slab)
            alive = [found for ref in self._slabs.values() if (found := ref()) is not None]
            self.peak_bytes = max(self.peak_bytes, sum(found.nbytes for found in alive))
            del alive, slab
            failures = self.failures.get(chunk, [])
            failure = failures[0] if failures else None
            if len(failures) > 1:
                failures.pop(0)
        if failure is not None and failure is not ...:
            raise failure
        return self._store.read(chunk, rows, out=out)

    def describe_row(self, chunk: int, row: int) -> str:
        """Return the file and the row in it."""
        return self._store.describe_row(chunk, row)

    def prefetch(self, chunk: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Let go of open files."""
        self._store.close()


# Ways to collate in workers.


def keep(batch: Any) -> Any:
    """Return the batch as it is."""
    return batch


def change_in_place(batch: Any) -> Any:
    """Write to a tensor."""
    batch[0]["item"] += 1
    return batch


def replace_tensor(batch: Any) -> Any:
    """Put another tensor in the place of one."""
    batch[0]["item"] = batch[0]["item"] + 1
    return batch


def add_tensor(batch: Any) -> Any:
    """Add a tensor."""
    batch[0]["double"] = batch[0]["item"] * 2
    return batch


def leave_out_tensor(batch: Any) -> Any:
    """Take a tensor out, and convert as torch does by default."""
    del batch[0]["price"]
    return torch.utils.data.default_convert(batch)


def copy_after_change(batch: Any) -> Any:
    """Put another tensor in, and return a shallow copy."""
    batch[0]["item"] = batch[0]["item"] + 1
    return copy.copy(batch[0])


def change_deep_copy(batch: Any) -> Any:
    """Change a deep copy, and return both."""
    other = copy.deepcopy(batch[0])
    other["item"] += 1
    return batch[0], other


def last_step(batch: Any) -> torch.Tensor:
    """Return a view of one tensor only."""
    return batch[0]["item"][:, -1]


def rows_of_one_column(batch: Any) -> torch.Tensor:
    """Return some rows of one tensor only."""
    return batch[1]["item"][1:]


def many_times(batch: Any) -> Any:
    """Return more dicts than a region has marks for, over all of its batches."""
    return batch, [copy.copy(batch[0]) for _ in range(34)]


def count_descriptors(batch: Any) -> Any:
    """Return the batch, and how many files its worker has open."""
    return batch, len(os.listdir("/proc/self/fd"))


def with_worker(batch: Any) -> Any:
    """Return the batch, and the process that made it."""
    return batch, os.getpid()
