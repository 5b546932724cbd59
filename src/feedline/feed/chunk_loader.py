"""A loader of matrices: a chunk sampler says what to read, and a store reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.errors import (
    CursorFormatError,
    InvalidValueError,
    PlanMismatchError,
    check_choice,
    check_integer,
)
from feedline.feed.readahead import ReadAhead
from feedline.store.matrix import FetchedRows, MatrixStore, rows_of_request

__all__ = ["ChunkBatch", "ChunkLoader", "LoadedRequest", "Reader"]

Request = Mapping[str, Any]
OUTPUTS = ("stored", "numpy")


class ChunkBatch(NamedTuple):
    """Rows of a matrix, the values of `obs` that go with them, and their numbers."""

    X: Any
    obs: dict[str, NDArray[Any]]
    rows: NDArray[np.int64]


class LoadedRequest(Protocol):
    """What was read for a request."""

    def batches(self) -> Iterator[tuple[Any, NDArray[np.int64]]]:
        """Yield the matrix of each batch, and the numbers of its rows."""


class Reader(Protocol):
    """Reads requests, as far ahead as it likes."""

    def __call__(
        self, requests: Iterator[Request], load: Callable[[Request], LoadedRequest]
    ) -> Iterator[LoadedRequest]:
        """Yield what was read, in the order of the requests; it may have a `close`."""


class ChunkLoader:
    """Batches of a matrix on disk, in the order of a chunk sampler.

    The next request is read and decoded while the batches of this one are used. The state counts
    the batches that were handed out.

    Args:
        store: A matrix, such as `feedline.store.open_anndata` returns.
        sampler: One of `feedline.chunks`, or any that yields load requests.
        output: `"stored"` yields sparse rows as scipy CSR matrices and dense ones as arrays;
            `"numpy"` yields arrays.
        num_ahead: How many requests are read ahead.
        reader: What reads requests, if not a thread of this process.

    Examples:
        >>> from feedline.chunks import RandomSampler
        >>> from feedline.store import MemoryMatrix
        >>> store = MemoryMatrix(np.arange(200).reshape(100, 2))
        >>> sampler = RandomSampler(chunk_size=8, preload_nchunks=4, batch_size=16)
        >>> len(list(ChunkLoader(store, sampler)))
        7
    """

    def __init__(
        self,
        store: MatrixStore,
        sampler: Any,
        *,
        output: str = "stored",
        num_ahead: int = 1,
        reader: Reader | None = None,
    ) -> None:
        if not callable(getattr(sampler, "sample", None)):
            raise InvalidValueError(
                f"sampler={sampler!r:.80} must yield load requests; use one of feedline.chunks"
            )
        self.store = store
        self.sampler = sampler
        self._convert = _converter(check_choice("output", output, OUTPUTS))
        self._reader = reader or _InThread(check_integer("num_ahead", num_ahead, 0))
        self._num_delivered = 0
        self._latest_rows: NDArray[np.int64] | None = None

    @property
    def n_obs(self) -> int:
        """The number of rows."""
        return self.store.shape[0]

    def __len__(self) -> int:
        """The number of batches of a whole epoch."""
        count = getattr(self.sampler, "n_batches", None) or self.sampler.n_iters
        return int(count(self.n_obs))

    def num_batches_left(self) -> int:
        """Return how many batches the next pass has."""
        return int(self._planned("n_batches_left")(self.n_obs))

    def latest_ids(self) -> NDArray[np.int64]:
        """Return the numbers of the rows of the batch that was handed out last."""
        if self._latest_rows is None:
            raise InvalidValueError(
                "this loader has handed out 0 batches and must have handed out one; ask after it"
            )
        return self._latest_rows

    @property
    def epoch(self) -> int:
        """The epoch that the sampler is in."""
        return int(getattr(self.sampler, "epoch", 0))

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of `epoch`; the epoch that the sampler is in is not restarted."""
        move = self._planned("set_epoch")
        before = self.sampler.epoch
        move(epoch)
        if self.sampler.epoch != before:
            self._num_delivered = 0

    def state_dict(self) -> dict[str, Any]:
        """Return where the consumer is: the batches that were handed out."""
        return self.state_before(0)

    def state_before(self, num_batches: int) -> dict[str, Any]:
        """Return where the consumer was before the latest batches that were handed out."""
        save = self._planned("state_dict")
        num_batches = check_integer("num_batches", num_batches, 0, self._num_delivered)
        return {
            "sampler": save(self._num_delivered - num_batches),
            "data": self.store.fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was saved, on any number of ranks that the sampler allows."""
        if not isinstance(state, Mapping) or not {"sampler", "data"} <= state.keys():
            raise CursorFormatError(
                f"state={state!r:.80} must be a mapping with the keys 'sampler' and 'data'; pass "
                "what state_dict() returned"
            )
        if state["data"] != self.store.fingerprint:
            raise PlanMismatchError(
                "the data has changed since the state was saved; restore it, or start a new run "
                "without the state",
                {"data": (state["data"], self.store.fingerprint)},
            )
        self._planned("load_state_dict")(state["sampler"])
        self._num_delivered = 0

    def _planned(self, name: str) -> Callable[..., Any]:
        found = getattr(self.sampler, name, None)
        if found is None:
            raise InvalidValueError(
                f"sampler={type(self.sampler).__name__} has no {name}, so it cannot be resumed; "
                "use one of feedline.chunks"
            )
        return found  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[ChunkBatch]:
        loaded = self._reader(self._requests(), self._load)
        try:
            for request in loaded:
                for matrix, rows in request.batches():
                    batch = self._batch(matrix, rows)
                    self._num_delivered += 1
                    self._latest_rows = rows
                    yield batch
                # Held any longer, the memory of these rows could not be used again.
                del request
        finally:
            close = getattr(loaded, "close", None)
            if close is not None:
                close()

    def _requests(self) -> Iterator[Request]:
        for number, request in enumerate(self.sampler.sample(self.n_obs)):
            if number == 0:
                # Only now has the sampler begun; until then the state is that of the last pass.
                self._num_delivered = 0
            yield request

    def _load(self, request: Request) -> LoadedRequest:
        wanted = request["requests"]
        rows = rows_of_request(wanted, self.n_obs)
        return _Fetched(self.store.fetch(wanted), rows, list(request["splits"]))

    def _batch(self, matrix: Any, rows: NDArray[np.int64]) -> ChunkBatch:
        obs = {name: values[rows] for name, values in self.store.obs.items()}
        return ChunkBatch(self._convert(matrix), obs, rows)


@dataclass(frozen=True)
class _InThread:
    """Reads some requests ahead in a thread."""

    num_ahead: int

    def __call__(
        self, requests: Iterator[Request], load: Callable[[Request], LoadedRequest]
    ) -> Iterator[LoadedRequest]:
        return ReadAhead(
            requests,
            load,
            lambda request: [request],
            num_threads=1 if self.num_ahead else 0,
            num_ahead=self.num_ahead,
        )


@dataclass(frozen=True)
class _Fetched:
    """Rows that were fetched; each batch is cut out of them when its turn comes."""

    fetched: FetchedRows
    rows: NDArray[np.int64]
    splits: list[NDArray[np.int64]]

    def batches(self) -> Iterator[tuple[Any, NDArray[np.int64]]]:
        for split in self.splits:
            yield self.fetched.take(split), self.rows[split]


def _converter(output: str) -> Callable[[Any], Any]:
    if output == "stored":
        return lambda rows: rows
    return lambda rows: rows.toarray() if hasattr(rows, "toarray") else rows
