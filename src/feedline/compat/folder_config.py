"""What `LazyFolderDataset` is configured with: our dataclass, or any object of that shape."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.errors import InvalidValueError, check_choice, check_integer
from feedline.feed.reading import DEFAULT_BUDGET, DEFAULT_THREADS, Reading
from feedline.plan import FILE_STRATEGIES

STRATEGIES = ("balanced", *FILE_STRATEGIES)
_UNSET = object()


@dataclass(frozen=True, kw_only=True)
class FolderConfig:
    """How a folder is read.

    Args:
        batch_size: The number of samples of a batch.
        seq_length: Only the last so many steps of every column are read; None reads all.
        seed: Any integer or string.
        sampling_strategy: `"balanced"` splits the samples of all files evenly over the ranks.
            `"exact"`, `"oversampling"` and `"undersampling"` give each rank its own files.
        num_workers: The number of workers of the loader; batches do not depend on it.
        project_root: What a relative `data_path` is relative to.
        preload: With `"balanced"`, how many files are shuffled together. More mix better and read
            from more files at a time; one is enough for data that was shuffled when it was packed.
        num_threads: How many threads read ahead where there are no workers. More help where files
            are decoded (parquet) or storage answers slowly.
        memory_budget: How many bytes the batches read ahead or in use may take.
        verify: Compare each file with its checksum when it is first opened.
    """

    batch_size: int
    seq_length: int | None = None
    seed: int | str = 0
    sampling_strategy: str = "balanced"
    num_workers: int = 0
    project_root: str | os.PathLike[str] = "."
    preload: int = 1
    num_threads: int = DEFAULT_THREADS
    memory_budget: int = DEFAULT_BUDGET
    verify: bool = False

    @property
    def training_spec(self) -> FolderConfig:
        """The part of a training configuration that says how batches are made: this object."""
        return self


@dataclass(frozen=True, kw_only=True)
class FolderSettings:
    """A configuration, read and checked."""

    folder: Path
    batch_size: int
    seq_length: int | None
    seed: int | str
    strategy: str
    preload: int
    reading: Reading
    verify: bool


def settings_of(data_path: str | os.PathLike[str], config: Any) -> FolderSettings:
    """Return what a configuration says, or raise an error that names what is missing or wrong."""
    spec = _get(config, "training_spec")
    seq_length = _get(config, "seq_length")
    return FolderSettings(
        folder=_folder(data_path, _get(config, "project_root")),
        batch_size=check_integer("batch_size", _get(spec, "batch_size"), 1, 2**31),
        seq_length=None if seq_length is None else check_integer("seq_length", seq_length, 1),
        seed=_get(config, "seed"),
        strategy=check_choice(
            "sampling_strategy", _get(spec, "sampling_strategy", "balanced"), STRATEGIES
        ),
        preload=check_integer("preload", _get(spec, "preload", 1), 1),
        reading=Reading(
            num_threads=_get(spec, "num_threads", DEFAULT_THREADS),
            memory_budget=_get(spec, "memory_budget", DEFAULT_BUDGET),
        ),
        verify=bool(_get(spec, "verify", False)),
    )


def _get(holder: Any, name: str, default: Any = _UNSET) -> Any:
    value = getattr(holder, name, default)
    if value is _UNSET:
        raise InvalidValueError(
            f"config={type(holder).__name__} lacks {name!r}; use FolderConfig, or an object with "
            "project_root, seed, seq_length and training_spec.batch_size, .num_workers and "
            ".sampling_strategy"
        )
    return value


def _folder(data_path: str | os.PathLike[str], project_root: Any) -> Path:
    """Return the folder: a relative path lies in the project's root, or begins with it."""
    path, root = Path(data_path), Path(project_root)
    if path.is_absolute() or path.is_relative_to(root):
        return path
    return root / path
