"""Batches of matrices on disk as tensors, read by threads or by worker processes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from feedline.errors import InvalidValueError, check_choice, check_integer
from feedline.feed import ChunkBatch, Peers, Recorder
from feedline.feed import ChunkLoader as PlainLoader
from feedline.feed.chunk_loader import Loaded, Request
from feedline.store.matrix import MatrixStore, rows_of_request
from feedline.store.zarr_store import csr_of_views
from feedline.torch.loader_arguments import as_is
from feedline.torch.shield import Shielded, born_shielded
from feedline.torch.worker_errors import worker_errors
from feedline.words import one_line

OUTPUTS = ("stored", "dense")


@one_line
class ChunkTensors(NamedTuple):
    """Rows of a matrix, the values of `obs` that go with them, and their numbers.

    Values of `obs` that are not numbers, such as names, stay numpy arrays.

    Args:
        X: The rows.
        obs: The values that go with them, by name.
        rows: Their numbers.
    """

    X: torch.Tensor
    obs: dict[str, torch.Tensor | NDArray[Any]]
    rows: torch.Tensor


class ChunkLoader(PlainLoader):
    """`feedline.feed.ChunkLoader` with tensors, and with optional worker processes.

    A worker gets a whole request, and its rows come back in shared memory, where they are cut into
    batches. So neither the batches nor their order depend on the workers, with any sampler; and the
    state counts what the training loop has received.

    Args:
        store: A matrix, such as `feedline.store.open_anndata` returns.
        sampler: One of `feedline.chunks`, or any that yields load requests.
        output: `"stored"` yields sparse rows as sparse CSR tensors and dense ones as dense;
            `"dense"` yields dense tensors.
        num_workers: The number of worker processes; with 0, a thread reads ahead.
        num_ahead: The number of requests to read ahead, by the thread or by each worker.
        persistent_workers: Keep the workers from one epoch to the next.
        pin_memory: Copy batches into pinned memory.
        multiprocessing_context: How workers are started, as for torch's DataLoader.
        log: A folder for a log of every batch, for `feedline audit`; or a recorder.
        num_replicas: The number of ranks, where the sampler is not a `DistributedSampler`; 1 if
            each process is meant to read all rows.
        rank: The rank of this process, with `num_replicas`.
        process_group: The group of ranks that get different data, if not all.
        peers: The ranks, where no other argument and no sampler says who they are.
        desync_guard: Compare the ranks before each pass, where those of the sampler can talk.
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
        log: str | os.PathLike[str] | Recorder | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        process_group: Any | None = None,
        peers: Peers | str = "auto",
        desync_guard: bool = True,
        desync_timeout: float = 60.0,
    ) -> None:
        self.output = check_choice("output", output, OUTPUTS)
        self.num_workers = check_integer("num_workers", num_workers, 0)
        self.pin_memory = bool(pin_memory)
        reader = None
        if num_workers:
            reader = _InWorkers(
                store,
                num_workers=num_workers,
                prefetch_factor=check_integer("num_ahead", num_ahead, 1),
                persistent_workers=bool(persistent_workers),
                multiprocessing_context=multiprocessing_context,
            )
        super().__init__(
            store,
            sampler,
            output=_Tensors(self.output, self.pin_memory),
            num_ahead=num_ahead,
            reader=reader,
            log=log,
            num_replicas=num_replicas,
            rank=rank,
            process_group=process_group,
            peers=peers,
            desync_guard=desync_guard,
            desync_timeout=desync_timeout,
        )


@dataclass(frozen=True)
class _Tensors:
    """Makes tensors of a batch."""

    output: str
    pin_memory: bool

    def __call__(self, batch: ChunkBatch) -> ChunkTensors:
        matrix = _tensor_of(batch.X, self.output)
        obs = {name: _values(values) for name, values in batch.obs.items()}
        rows = torch.from_numpy(batch.rows)
        if not self.pin_memory:
            return ChunkTensors(matrix, obs, rows)
        pinned = {
            name: values.pin_memory() if isinstance(values, torch.Tensor) else values
            for name, values in obs.items()
        }
        return ChunkTensors(matrix.pin_memory(), pinned, rows.pin_memory())


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


class _InWorkers:
    """Reads requests in worker processes, which take turns."""

    def __init__(self, store: MatrixStore, **workers: Any) -> None:
        self._requests = _Requests()
        self._loader: DataLoader[Any] = DataLoader(
            _Rows(store),
            batch_size=None,
            sampler=self._requests,
            collate_fn=as_is,
            worker_init_fn=Shielded(),
            **workers,
        )

    def __call__(
        self, requests: Iterator[Request], load: Callable[[Request], Loaded]
    ) -> Iterator[Loaded]:
        self._requests.current = requests
        with born_shielded(self._loader):
            loaded = iter(self._loader)
        while (sent := _next_of(loaded)) is not None:
            if self._loader.persistent_workers and self._requests.current is not requests:
                # Workers that stay serve one pass at a time; these rows belong to the later one.
                raise InvalidValueError(
                    "this pass cannot continue, because a later one has begun; with "
                    "persistent_workers=True, use one iterator of a loader at a time"
                )
            yield sent.batches()


def _next_of(loaded: Iterator[_SentRows]) -> _SentRows | None:
    with worker_errors(loaded):
        return next(loaded, None)


class _Requests:
    """A sampler for torch's loader: the requests of the pass that is beginning."""

    def __init__(self) -> None:
        self.current: Iterator[Request] = iter(())

    def __iter__(self) -> Iterator[Request]:
        return self.current


class _Rows(Dataset[Any]):
    """A dataset for torch's loader: the rows of a request."""

    def __init__(self, store: MatrixStore) -> None:
        self._store = store

    def __getitem__(self, request: Request) -> _SentRows:
        splits = list(request["splits"])
        rows = rows_of_request(request["requests"], self._store.shape[0])
        places = np.concatenate([np.zeros(0, np.int64), *splits])
        matrix = self._store.fetch(request["requests"]).take(places)
        edges = np.cumsum([0, *(len(split) for split in splits)]).tolist()
        is_sparse = hasattr(matrix, "indptr")
        arrays = (matrix.data, matrix.indices, matrix.indptr) if is_sparse else (matrix,)
        # As tensors they come to the other process in shared memory.
        tensors = tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays)
        return _SentRows(tensors, matrix.shape, torch.from_numpy(rows[places]), edges)


@dataclass(frozen=True)
class _SentRows:
    """The rows of a request, batch after batch."""

    tensors: tuple[torch.Tensor, ...]
    shape: tuple[int, ...]
    rows: torch.Tensor
    edges: list[int]

    def batches(self) -> Loaded:
        arrays = [tensor.numpy() for tensor in self.tensors]
        rows = self.rows.numpy()
        for first, end in pairwise(self.edges):
            if len(arrays) == 1:
                yield arrays[0][first:end], rows[first:end]
            else:
                yield self._sparse(arrays, first, end), rows[first:end]

    def _sparse(self, arrays: list[NDArray[Any]], first: int, end: int) -> Any:
        data, indices, indptr = arrays
        values = slice(indptr[first], indptr[end])
        edges = indptr[first : end + 1] - indptr[first]
        return csr_of_views(data[values], indices[values], edges, self.shape[1])
