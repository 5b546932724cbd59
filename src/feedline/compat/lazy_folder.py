"""A folder of chunks under the names, strategies and batches of the system that it comes from."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from feedline.compat.folder_config import FolderSettings, settings_of
from feedline.errors import DamagedDataError
from feedline.feed import chunking_of
from feedline.feed.data_plan import DataPlan
from feedline.plan import FileSharesPlan, Plan, WindowPlan
from feedline.store import FolderStore
from feedline.torch.feed_dataset import FeedDataset
from feedline.torch.feed_reading import Tensors

_logger = logging.getLogger(__name__)

FolderBatch = tuple[Tensors, Tensors, None, None, None]
_PARTS = ("sequences/", "targets/")


class LazyFolderDataset(FeedDataset[FolderBatch]):
    """Batches of a folder of chunks, streamed from mapped files, the same number on every rank.

    Yields `(sequences, targets, None, None, None)`: dicts of tensors with the last `seq_length`
    steps of each column. Give it to `feedline.torch.DataLoader`, whose state counts what was
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
        desync_guard: Compare the ranks before each epoch, where they come from a process group.
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
        *,
        num_replicas: int | None = None,
        rank: int | None = None,
        process_group: Any | None = None,
        desync_guard: bool = True,
        desync_timeout: float = 60.0,
    ) -> None:
        settings = settings_of(data_path, config)
        store = _open_store(settings)
        plan = _plan_for(store, settings, shuffle)
        super().__init__(
            store,
            DataPlan(plan=plan, store=store),
            batch_size=settings.batch_size,
            reading=settings.reading,
            prefixes=_PARTS,
            arrange=_as_tuple,
            num_replicas=num_replicas,
            rank=rank,
            process_group=process_group,
            desync_guard=desync_guard,
            desync_timeout=desync_timeout,
        )
        self.config = config
        self.shuffle = shuffle
        self.data_dir = str(settings.folder)
        self.sampling_strategy = settings.strategy
        self.total_samples = store.num_samples
        self.batch_files_info = store.manifest.entries
        self._plan = plan
        # The first question shows what cannot be, such as unequal ranks.
        _logger.info(
            "%s: %d samples in %d batches for each rank",
            *(self.data_dir, self.target_samples, len(self)),
        )

    @property
    def target_samples(self) -> int:
        """The number of samples that every rank gets; with `"balanced"` some get one less."""
        return self._plan.target_samples(self.batches.num_replicas)

    @property
    def total_batches(self) -> int:
        """The number of batches of an epoch, equal on every rank, whatever the workers."""
        return -(-self.target_samples // self.batch_size)


class SequifierDatasetFromFolderLazy(LazyFolderDataset):
    """`LazyFolderDataset` under the name that it has elsewhere."""

    def _get_target_samples(self) -> int:
        """Return the number of samples that every rank gets."""
        return self.target_samples

    def _calculate_total_batches(self, target_samples: int) -> int:
        """Return the number of batches that so many samples give."""
        return -(-target_samples // self.batch_size)


def _as_tuple(parts: Sequence[Tensors]) -> FolderBatch:
    return parts[0], parts[1], None, None, None


def _plan_for(store: FolderStore, settings: FolderSettings, shuffle: bool) -> Plan:
    """Return the plan that a sampling strategy means."""
    if settings.strategy == "balanced":
        return WindowPlan(
            chunks=chunking_of(store),
            preload=settings.preload,
            shuffle=shuffle,
            tail="even",
            seed=settings.seed,
        )
    return FileSharesPlan(
        sizes=store.manifest.samples,
        strategy=settings.strategy,
        shuffle=shuffle,
        seed=settings.seed,
        names=[entry["path"] for entry in store.manifest.entries],
    )


def _open_store(settings: FolderSettings) -> FolderStore:
    store = FolderStore(settings.folder, last_steps=settings.seq_length, verify=settings.verify)
    chosen = [name for name in store.columns if name.startswith(_PARTS)]
    for prefix in _PARTS:
        if not any(name.startswith(prefix) for name in chosen):
            raise DamagedDataError(
                f"{settings.folder}: has no column that begins with {prefix!r}, only "
                f"{', '.join(store.columns) or 'none'}; pack it with columns of such names"
            )
    return store.select(chosen)
