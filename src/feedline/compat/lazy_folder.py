"""A folder of chunks under the names, strategies and batches of the system that it replaces."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.errors import (
    DamagedDataError,
    InvalidValueError,
    check_choice,
    check_flag,
    check_integer,
)
from feedline.feed import DataPlan, Peers, Reading, chunking_of
from feedline.lazy import lazy
from feedline.plan import FILE_STRATEGIES, FileSharesPlan, Plan, WindowPlan
from feedline.plan.frozen import store
from feedline.store import FolderStore
from feedline.store.columns import Column
from feedline.torch.feed_dataset import FeedDataset, Tensors
from feedline.words import one_line

_logger = logging.getLogger(__name__)

FolderBatch = tuple[Tensors, Tensors, None, None, None]
STRATEGIES = ("balanced", *FILE_STRATEGIES)
_PARTS = ("sequences/", "targets/")


@one_line
@dataclass(frozen=True, kw_only=True)
class FolderConfig:
    """The settings for reading a folder.

    Args:
        batch_size: The number of samples in a batch.
        seq_length: Read only this many last steps of every column; None reads all.
        seed: Any integer or string.
        sampling_strategy: `"balanced"` splits the samples of all files evenly over the ranks.
            `"exact"`, `"oversampling"` and `"undersampling"` give each rank its own files.
        num_workers: The number of workers of the loader; batches do not depend on it.
        project_root: The folder that a relative `data_path` starts from.
        preload: With `"balanced"`, the number of files that are shuffled together. More files mix
            better and are read at a time; one is enough for data that was shuffled when it was
            packed.
        num_threads: The number of threads that read ahead without workers. More help if files are
            decoded (parquet) or storage is slow.
        memory_budget: Bytes that the batches read ahead or in use may take; by default 48 MiB,
            and 32 MiB for each thread after the first.
        verify: Compare each file with its checksum when it is first opened.
    """

    batch_size: int
    seq_length: int | None = None
    seed: int | str = 0
    sampling_strategy: str = "balanced"
    num_workers: int = 0
    project_root: str | os.PathLike[str] = "."
    preload: int = 1
    num_threads: int | str = "auto"
    memory_budget: int | None = None
    verify: bool = False

    def __post_init__(self) -> None:
        store(
            self,
            batch_size=check_integer("batch_size", self.batch_size, 1, 2**31),
            preload=check_integer("preload", self.preload, 1),
        )
        if self.seq_length is not None:
            store(self, seq_length=check_integer("seq_length", self.seq_length, 1))
        check_choice("sampling_strategy", self.sampling_strategy, STRATEGIES)
        _ = self.reading

    @property
    def reading(self) -> Reading:
        """The number of threads that read ahead, and their memory."""
        return Reading(num_threads=self.num_threads, memory_budget=self.memory_budget)

    @property
    def training_spec(self) -> FolderConfig:
        """The training part of a configuration: this object."""
        return self

    @classmethod
    def of(cls, config: Any) -> FolderConfig:
        """Return the settings of an object of this shape, or raise an error that names what is
        missing."""
        if isinstance(config, FolderConfig):
            return config
        spec = _get(config, "training_spec")
        of_spec = ("sampling_strategy", "preload", "num_threads", "memory_budget", "verify")
        return cls(
            batch_size=_get(spec, "batch_size"),
            **{name: _get(config, name) for name in ("project_root", "seq_length", "seed")},
            **{name: getattr(spec, name) for name in of_spec if hasattr(spec, name)},
        )


def _get(holder: Any, name: str) -> Any:
    if not hasattr(holder, name):
        raise InvalidValueError(
            f"config={type(holder).__name__} lacks {name!r}; use FolderConfig, or an object with "
            "project_root, seed, seq_length and training_spec.batch_size, .num_workers and "
            ".sampling_strategy"
        )
    return getattr(holder, name)


class LazyFolderDataset(FeedDataset[FolderBatch]):
    """Batches of a folder of chunks, streamed from mapped files, the same number on every rank.

    Yields `(sequences, targets, None, None, None)`: dicts of tensors with the last `seq_length`
    steps of each column. Pass it to `feedline.torch.DataLoader`, whose state counts what was
    delivered, or to torch's with `batch_size=None`. Batches and their order do not depend on the
    number of workers.

    Batches that are read without workers share memory with those near them, so copy what is kept
    for long.

    Args:
        data_path: The folder with `metadata.json`, relative to the configuration's project root.
        config: A `FolderConfig`, or an object with `project_root`, `seed`, `seq_length` and
            `training_spec.batch_size`, `.num_workers` and `.sampling_strategy`.
        shuffle: Whether files, and the samples in them, are shuffled anew in every epoch.
        num_replicas: The number of ranks; by default that of the process group, else 1.
        rank: The rank of this process; by default that in the process group, else 0.
        process_group: The group of ranks that get different data, if not all.
        peers: The ranks, where no other argument says who they are.
        desync_guard: Compare the ranks before each pass, where they come from a process group.
        desync_timeout: How many seconds the guard waits for the other ranks.

    Raises:
        FileNotFoundError: If `metadata.json` is missing.
        ValueError: If ranks have unequal numbers of samples with `"exact"`, or one has no files.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> from feedline.store import pack
        >>> from feedline.torch import DataLoader, FolderConfig
        >>> folder = tempfile.TemporaryDirectory()
        >>> data = {"sequences/item": np.zeros((100, 8)), "targets/item": np.ones((100, 8))}
        >>> _ = pack(data, f"{folder.name}/data", chunk_samples=30)
        >>> config = FolderConfig(batch_size=32, seq_length=5)
        >>> loader = DataLoader(LazyFolderDataset(f"{folder.name}/data", config))
        >>> [tuple(sequences["item"].shape) for sequences, targets, *_ in loader]
        [(32, 5), (32, 5), (32, 5), (4, 5)]
        >>> folder.cleanup()
    """

    def __init__(
        self,
        data_path: str | os.PathLike[str],
        config: Any,
        shuffle: bool = True,
        num_replicas: int | None = None,
        rank: int | None = None,
        process_group: Any | None = None,
        peers: Peers | str = "auto",
        desync_guard: bool = True,
        desync_timeout: float = 60.0,
    ) -> None:
        settings = FolderConfig.of(config)
        folder, root = Path(data_path), Path(settings.project_root)
        if not folder.is_absolute() and not folder.is_relative_to(root):
            folder = root / folder
        samples = SequencesStore(
            folder, last_steps=settings.seq_length, verify=check_flag("verify", settings.verify)
        )
        plan = _plan_for(samples, settings, check_flag("shuffle", shuffle))
        super().__init__(
            samples,
            DataPlan(plan=plan, store=samples),
            batch_size=settings.batch_size,
            reading=settings.reading,
            prefixes=_PARTS,
            arrange=_as_tuple,
            num_replicas=num_replicas,
            rank=rank,
            process_group=process_group,
            peers=peers,
            desync_guard=desync_guard,
            desync_timeout=desync_timeout,
        )
        self.config = config
        self.shuffle = bool(shuffle)
        self.data_dir = str(folder)
        self.sampling_strategy = settings.sampling_strategy
        self.total_samples = samples.num_samples
        self.batch_files_info = samples.manifest.entries
        # The first question shows what cannot be, such as unequal ranks. No file is open yet.
        _logger.info(
            "%s: %d samples in %d batches for each rank",
            *(self.data_dir, self.target_samples, len(self)),
        )

    @property
    def target_samples(self) -> int:
        """The number of samples of every rank; with `"balanced"` some get one less."""
        return self.batches.plan.target_samples(self.batches.num_replicas)

    @property
    def total_batches(self) -> int:
        """The number of batches in an epoch, equal on every rank, for any number of workers."""
        return -(-self.target_samples // self.batch_size)


class SequifierDatasetFromFolderLazy(LazyFolderDataset):
    """`LazyFolderDataset` under the name that it has elsewhere.

    Args:
        data_path: The folder with `metadata.json`, relative to the configuration's project root.
        config: A `FolderConfig`, or an object of its shape.
        shuffle: Whether files, and the samples in them, are shuffled anew in every epoch.
        num_replicas: The number of ranks; by default that of the process group, else 1.
        rank: The rank of this process; by default that in the process group, else 0.
        process_group: The group of ranks that get different data, if not all.
        peers: The ranks, where no other argument says who they are.
        desync_guard: Compare the ranks before each pass, where they come from a process group.
        desync_timeout: How many seconds the guard waits for the other ranks.
    """

    def _get_target_samples(self) -> int:
        """Return the number of samples of every rank."""
        return self.target_samples

    def _calculate_total_batches(self, target_samples: int) -> int:
        """Return the number of batches for a number of samples."""
        return -(-target_samples // self.batch_size)


def _as_tuple(parts: Sequence[Tensors]) -> FolderBatch:
    return parts[0], parts[1], None, None, None


def _plan_for(samples: FolderStore, settings: FolderConfig, shuffle: bool) -> Plan:
    """Return the plan of a sampling strategy."""
    if settings.sampling_strategy == "balanced":
        return WindowPlan(
            chunks=chunking_of(samples),
            preload=settings.preload,
            shuffle=shuffle,
            tail="even",
            seed=settings.seed,
        )
    return FileSharesPlan(
        sizes=samples.manifest.samples,
        strategy=settings.sampling_strategy,
        shuffle=shuffle,
        seed=settings.seed,
        names=[entry["path"] for entry in samples.manifest.entries],
    )


class SequencesStore(FolderStore):
    """The columns of sequences and targets in a folder, which are found when a file is opened.

    Args:
        folder: The folder with `metadata.json`.
        last_steps: Read only this many last steps of every column that has steps.
        verify: Compare each file with its checksum when it is first opened.
    """

    def __init__(self, folder: Path, *, last_steps: int | None, verify: bool) -> None:
        super().__init__(folder, last_steps=last_steps, verify=verify)
        if self.manifest.columns is not None:
            _ = self.columns

    @lazy
    def columns(self) -> dict[str, Column]:
        """The columns, as recorded, or else as in the first chunk that is not empty."""
        stored = list(self._stored_columns)
        for prefix in _PARTS:
            if not any(name.startswith(prefix) for name in stored):
                raise DamagedDataError(
                    f"{self.folder}: has no column that begins with {prefix!r}, only "
                    f"{', '.join(stored) or 'none'}; pack it with columns named {prefix}…"
                )
        self._selected = tuple(name for name in stored if name.startswith(_PARTS))
        return super().columns
