"""A dataset that streams a folder of chunks larger than memory, with exact counts on every rank."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import get_worker_info

from feedline.errors import DamagedDataError, FeedlineError
from feedline.feed import chunking_of, read_slabs
from feedline.store import FolderStore
from feedline.torch.fed_dataset import FedDataset
from feedline.torch.folder_batches import FolderBatches, plan_for
from feedline.torch.folder_config import FolderSettings, settings_of
from feedline.torch.folder_reading import PARTS, FolderBatch, batches_in_slabs, batches_in_worker
from feedline.torch.peers import Peers
from feedline.torch.plan_sampler import Pass
from feedline.torch.regions import Regions, can_share
from feedline.torch.shared_place import SharedPlace

__all__ = ["LazyFolderDataset", "SequifierDatasetFromFolderLazy"]

_logger = logging.getLogger(__name__)


class LazyFolderDataset(FedDataset[FolderBatch]):
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
        super().__init__()
        settings = settings_of(data_path, config)
        self.config = config
        self.shuffle = shuffle
        self.data_dir = str(settings.folder)
        self.batch_size = settings.batch_size
        self.sampling_strategy = settings.strategy
        self.store = _open_store(settings)
        self.total_samples = self.store.num_samples
        self.batch_files_info = self.store.manifest.entries
        self._reading = settings.reading
        self._chunking = chunking_of(self.store)
        self._place = SharedPlace()
        self._num_worker_passes = 0
        self._regions: Regions | None = None
        self.batches: FolderBatches = FolderBatches(
            plan_for(self.store, settings, shuffle),
            seed=settings.seed,
            entry_size=settings.batch_size,
            peers=Peers(num_replicas, rank, process_group),
            desync_guard=desync_guard,
            desync_timeout=desync_timeout,
        )
        _logger.info(
            "%s: %d samples in %d batches for each rank",
            *(self.data_dir, self.target_samples, self.total_batches),
        )

    @property
    def epoch(self) -> int:
        """The epoch that this dataset is in."""
        return self.batches.epoch

    @property
    def target_samples(self) -> int:
        """The number of samples that every rank gets; with `"balanced"` some get one less."""
        return self.batches.num_samples

    @property
    def total_batches(self) -> int:
        """The number of batches of an epoch, equal on every rank, whatever the workers."""
        return -(-self.target_samples // self.batch_size)

    def __len__(self) -> int:
        return len(self.batches)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of `epoch`, in workers too; the present one is not restarted."""
        before = self.epoch
        self.batches.set_epoch(epoch)
        if epoch != before or epoch != self._place.epoch:
            self._place.go_to_epoch(self.epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the training loop is; only the loader knows when there are workers."""
        if self._place.was_in_workers:
            raise FeedlineError(
                "state_dict() of a dataset whose batches were read by workers does not know what "
                "the training loop has received; use feedline.torch.DataLoader and save "
                "loader.state_dict(), or use num_workers=0"
            )
        return self.batches.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next pass go on where a state was saved. An error changes nothing."""
        self.batches.load_state_dict(state_dict)
        self._place.go_to(self.batches.next_segment())

    def announce(self, running: Pass) -> None:
        """Tell workers about a pass that their loader has begun, once the ranks agree on it."""
        self.batches.compare_ranks(running)
        # Known from now on, so that a state can be saved even when a file is lost.
        _ = self.store.fingerprint
        self._place.go_to(running.segment)

    def __iter__(self) -> Iterator[FolderBatch]:
        worker = get_worker_info()
        if worker is None:
            return self._in_process(self.batches.bound_pass)
        self._num_worker_passes += 1
        # The same in all workers of a pass: torch draws a seed for each loader's iterator, and
        # persistent workers count their passes together.
        pass_number = (worker.seed - worker.id + self._num_worker_passes) % (2**62) + 1
        segment = self._place.begin_in_worker(
            self.batches.plan, self.batches.num_replicas, self.batch_size, pass_number, worker.id
        )
        if self._regions is None and can_share():
            # Kept for as long as the worker lives: batches wait in its queue when a pass ends.
            self._regions = Regions()
        numbers = range(segment.num_done + worker.id, segment.num_batches, worker.num_workers)
        return batches_in_worker(
            self.store,
            self._chunking,
            segment,
            self.batches.rank,
            numbers,
            self._regions,
            self._reading.memory_budget,
        )

    def __getstate__(self) -> dict[str, Any]:
        # Worker processes use what their parent resolved; a process group cannot travel.
        return {**self.__dict__, "batches": self.batches.resolved(), "_regions": None}

    def _in_process(self, bound: Pass | None) -> Iterator[FolderBatch]:
        if bound is None and self._place.was_taken:
            self.batches.forget_loaded()
        running = self.batches.take_pass(bound)
        # Workers that are started later begin where this pass did not: at the epoch's start.
        self._place.go_to_epoch(running.segment.epoch)
        slabs = read_slabs(
            self.store,
            self._chunking,
            running.segment,
            self.batches.rank,
            running.start,
            self._reading,
        )
        for first, batches in batches_in_slabs(slabs, self.store.columns):
            running.block_end = first
            for batch in batches:
                running.block_end += 1
                yield batch
            if first == running.start:
                # Known from now on, so that a state can be saved even when a file is lost.
                _ = self.store.fingerprint
            # The slab can be used again when the batch in the loop's hands is dropped.
            del batches


class SequifierDatasetFromFolderLazy(LazyFolderDataset):
    """`LazyFolderDataset` under the name that it has elsewhere."""

    def _get_target_samples(self) -> int:
        """Return the number of samples that every rank gets."""
        return self.target_samples

    def _calculate_total_batches(self, target_samples: int) -> int:
        """Return the number of batches that so many samples give."""
        return -(-target_samples // self.batch_size)


def _open_store(settings: FolderSettings) -> FolderStore:
    store = FolderStore(settings.folder, last_steps=settings.seq_length, verify=settings.verify)
    chosen = [name for name in store.columns if name.startswith(PARTS)]
    for prefix in PARTS:
        if not any(name.startswith(prefix) for name in chosen):
            raise DamagedDataError(
                f"{settings.folder}: has no column that begins with {prefix!r}, only "
                f"{', '.join(store.columns) or 'none'}; pack it with columns of such names"
            )
    return store.select(chosen)
