"""Batches of matrices on disk as tensors, read by threads or by worker processes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from feedline.chunks import DistributedSampler
from feedline.errors import check_choice, check_integer, check_positive
from feedline.feed import ChunkLoader as PlainLoader
from feedline.store.matrix import MatrixStore
from feedline.torch.chunk_workers import RequestsInWorkers

__all__ = ["ChunkLoader", "ChunkTensors"]

OUTPUTS = ("stored", "dense")


class ChunkTensors(NamedTuple):
    """Rows of a matrix, the values of `obs` that go with them, and their numbers.

    Values of `obs` that are no numbers, such as names, stay numpy arrays.
    """

    X: torch.Tensor
    obs: dict[str, torch.Tensor | NDArray[Any]]
    rows: torch.Tensor


class ChunkLoader:
    """`feedline.feed.ChunkLoader` with tensors, and with worker processes where they help.

    A request goes to a worker whole, and its rows come back in shared memory, where they are cut
    into batches. So neither the batches nor their order depend on the workers, whatever the sampler
    does; and the state counts what the training loop has received.

    Args:
        store: A matrix, such as `feedline.store.open_anndata` returns.
        sampler: One of `feedline.chunks`, or any that yields load requests.
        output: `"stored"` yields sparse rows as sparse CSR tensors and dense ones as dense;
            `"dense"` yields dense tensors.
        num_workers: The number of worker processes; with none, a thread reads ahead.
        num_ahead: How many requests are read ahead, by the thread or by each worker.
        persistent_workers: Whether workers stay from one epoch to the next.
        pin_memory: Whether batches are copied to memory that a GPU reads directly.
        multiprocessing_context: How workers are started, as for torch's DataLoader.
        desync_guard: Compare the ranks before each pass, where those of the sampler come from
            torch.
        desync_timeout: How many seconds the guard waits for the other ranks.

    Examples:
        >>> from feedline.chunks import RandomSampler
        >>> from feedline.store import MemoryMatrix
        >>> store = MemoryMatrix(np.arange(200).reshape(100, 2))
        >>> loader = ChunkLoader(store, RandomSampler(8, 4, 16))
        >>> next(iter(loader)).X.shape
        torch.Size([16, 2])
    """

    def __init__(
        self,
        store: MatrixStore,
        sampler: Any,
        *,
        output: str = "stored",
        num_workers: int = 0,
        num_ahead: int = 1,
        persistent_workers: bool = False,
        pin_memory: bool = False,
        multiprocessing_context: Any = None,
        desync_guard: bool = True,
        desync_timeout: float = 60.0,
    ) -> None:
        self._desync_guard = desync_guard
        self._desync_timeout = check_positive("desync_timeout", desync_timeout)
        self.output = check_choice("output", output, OUTPUTS)
        self.num_workers = check_integer("num_workers", num_workers, 0)
        self.pin_memory = bool(pin_memory)
        reader = None
        if num_workers:
            reader = RequestsInWorkers(
                store,
                num_workers=num_workers,
                num_ahead=check_integer("num_ahead", num_ahead, 1),
                persistent_workers=bool(persistent_workers),
                context=multiprocessing_context,
            )
        self._loader = PlainLoader(store, sampler, num_ahead=num_ahead, reader=reader)

    @property
    def store(self) -> MatrixStore:
        """The matrix."""
        return self._loader.store

    @property
    def sampler(self) -> Any:
        """The sampler."""
        return self._loader.sampler

    @property
    def n_obs(self) -> int:
        """The number of rows."""
        return self._loader.n_obs

    def __len__(self) -> int:
        """The number of batches of a whole epoch."""
        return len(self._loader)

    def num_batches_left(self) -> int:
        """Return how many batches the next pass has."""
        return self._loader.num_batches_left()

    @property
    def tracks_ids(self) -> bool:
        """Whether batches are compared with the plan as they are handed out."""
        return self._loader.tracks_ids

    @tracks_ids.setter
    def tracks_ids(self, wanted: bool) -> None:
        self._loader.tracks_ids = wanted

    def agrees_with_plan(self) -> bool:
        """Return whether the batches of this pass were those of the plan; see `tracks_ids`."""
        return self._loader.agrees_with_plan()

    def latest_ids(self) -> NDArray[np.int64]:
        """Return the numbers of the rows of the batch that was handed out last."""
        return self._loader.latest_ids()

    @property
    def epoch(self) -> int:
        """The epoch that the sampler is in."""
        return self._loader.epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of `epoch`; the epoch that the sampler is in is not restarted."""
        self._loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the training loop is: the batches that it has received."""
        return self._loader.state_dict()

    def state_before(self, num_batches: int) -> dict[str, Any]:
        """Return where the training loop was before the latest batches that it received."""
        return self._loader.state_before(num_batches)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was saved, with any number of workers and of ranks."""
        self._loader.load_state_dict(state)

    def _compare_ranks(self) -> None:
        """Raise on every rank if they would not read parts of the same whole."""
        sampler = self.sampler
        is_shared = isinstance(sampler, DistributedSampler) and sampler.dist_info == "torch"
        if not is_shared or not self._desync_guard:
            return
        record = {
            "store": self.store.fingerprint,
            "sampler": sampler.describe(self.n_obs),
            "state": sampler.state_dict(),
        }
        compare_ranks(dist.group.WORLD, record, timeout=self._desync_timeout)

    def __iter__(self) -> Iterator[ChunkTensors]:
        self._compare_ranks()
        for matrix, obs, rows in self._loader:
            yield self._pinned(
                ChunkTensors(
                    _tensor_of(matrix, self.output),
                    {name: _values(values) for name, values in obs.items()},
                    torch.from_numpy(rows),
                )
            )

    def _pinned(self, batch: ChunkTensors) -> ChunkTensors:
        if not self.pin_memory:
            return batch
        obs = {
            name: values.pin_memory() if isinstance(values, torch.Tensor) else values
            for name, values in batch.obs.items()
        }
        return ChunkTensors(batch.X.pin_memory(), obs, batch.rows.pin_memory())


def _tensor_of(matrix: Any, output: str) -> torch.Tensor:
    if not hasattr(matrix, "indptr"):
        return torch.from_numpy(np.ascontiguousarray(matrix))
    if output == "dense":
        return torch.from_numpy(matrix.toarray())
    edges, columns, values = map(torch.from_numpy, (matrix.indptr, matrix.indices, matrix.data))
    with warnings.catch_warnings():
        # torch says that these tensors are in beta.
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_csr_tensor(
            edges, columns, values, size=matrix.shape, check_invariants=False
        )


def _values(values: NDArray[Any]) -> torch.Tensor | NDArray[Any]:
    return torch.from_numpy(values) if values.dtype.kind in "biuf" else values
