"""Load requests that worker processes of torch read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from feedline.errors import InvalidValueError
from feedline.feed.chunk_loader import LoadedRequest
from feedline.store.matrix import MatrixStore, rows_of_request
from feedline.store.zarr_store import csr_of_views
from feedline.torch.shield import Shielded, born_shielded

Request = Mapping[str, Any]


class RequestsInWorkers:
    """Reads requests in worker processes, which take turns."""

    def __init__(
        self,
        store: MatrixStore,
        *,
        num_workers: int,
        num_ahead: int,
        persistent_workers: bool,
        context: Any,
    ) -> None:
        self._requests = _Requests()
        self._loader: DataLoader[Any] = DataLoader(
            _Rows(store),
            batch_size=None,
            sampler=self._requests,
            num_workers=num_workers,
            prefetch_factor=num_ahead,
            persistent_workers=persistent_workers,
            multiprocessing_context=context,
            collate_fn=_as_is,
            worker_init_fn=Shielded(),
        )

    def __call__(
        self, requests: Iterator[Request], load: Callable[[Request], LoadedRequest]
    ) -> Iterator[LoadedRequest]:
        self._requests.current = requests
        with born_shielded(self._loader):
            loaded = iter(self._loader)
        for request in loaded:
            if self._loader.persistent_workers and self._requests.current is not requests:
                # Workers that stay serve one pass at a time; these rows belong to the later one.
                raise InvalidValueError(
                    "this pass must not go on, because a later one has begun; with "
                    "persistent_workers=True, use one iterator of a loader at a time"
                )
            yield request


class _Requests:
    """What torch's loader takes for a sampler: the requests of the pass that is beginning."""

    def __init__(self) -> None:
        self.current: Iterator[Request] = iter(())

    def __iter__(self) -> Iterator[Request]:
        return self.current


def _as_is(batch: Any) -> Any:
    return batch


class _Rows(Dataset[LoadedRequest]):
    """What torch's loader takes for a dataset: the rows of a request."""

    def __init__(self, store: MatrixStore) -> None:
        self._store = store

    def __getitem__(self, request: Request) -> LoadedRequest:
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

    def batches(self) -> Iterator[tuple[Any, NDArray[np.int64]]]:
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
