"""A loader of matrices: a chunk sampler decides what to read, and a store reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.errors import (
    CursorFormatError,
    InvalidValueError,
    PlanMismatchError,
    check_choice,
    check_integer,
)
from feedline.feed.adapters import torch_worker
from feedline.feed.foreign_batch import ForeignBatch
from feedline.feed.guard import Guard
from feedline.feed.load_requests import WholeRequests
from feedline.feed.loader import Delivered, Log, PlannedLoader
from feedline.feed.passes import Pass
from feedline.feed.peers import Alone, Peers, as_peers
from feedline.feed.position import Position
from feedline.feed.readahead import ReadAhead
from feedline.feed.waits import TimedReads
from feedline.store.matrix import MatrixStore, rows_of_request
from feedline.words import one_line, shortened, shown

Request = Mapping[str, Any]
Rows = NDArray[np.int64]
#: What was read for a request: the matrix of each batch, and the numbers of its rows.
Loaded = Iterator[tuple[Any, Rows]]
#: Reads requests as far ahead as it likes, and yields what was read in their order. It may call the
#: function that it is given for each of them, and what it returns may have a `close`.
Reader = Callable[[Iterator[Request], Callable[[Request], Loaded]], Iterator[Loaded]]


@one_line
class ChunkBatch(NamedTuple):
    """Rows of a matrix, the values of `obs` that go with them, and their numbers.

    Args:
        X: The rows: an array, or a scipy CSR matrix.
        obs: The values that go with them, by name.
        rows: Their numbers.
    """

    X: Any
    obs: dict[str, NDArray[Any]]
    rows: Rows


class ChunkLoader(PlannedLoader):
    """Batches of a matrix on disk, in the order of a chunk sampler.

    The next request is read and decoded while the batches of this one are used. The state counts
    the batches that were delivered. The loader and its sampler have one position: a state or an
    epoch may be given to either.

    Args:
        store: A matrix, such as `feedline.store.open_anndata` returns.
        sampler: One of `feedline.chunks`, or any whose `sample` yields load requests. It can be
            saved and resumed if `has_position` is true: then it also needs `position_for` and
            `requests`, like `feedline.chunks.PlannedSampler`.
        output: The type of a batch: `"stored"` yields sparse rows as scipy CSR matrices and
            dense ones as arrays, `"numpy"` yields arrays, and a function gets a `ChunkBatch`.
        num_ahead: How many requests are read ahead.
        reader: What reads requests, if not a thread of this process.
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
        >>> sampler = RandomSampler(chunk_size=8, preload_nchunks=4, batch_size=16)
        >>> len(list(ChunkLoader(store, sampler)))
        7
    """

    def __init__(
        self,
        store: MatrixStore,
        sampler: Any,
        *,
        output: str | Callable[[ChunkBatch], Any] = "stored",
        num_ahead: int = 1,
        reader: Reader | None = None,
        log: Log = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        process_group: Any | None = None,
        peers: Peers | str = "auto",
        desync_guard: bool = True,
        desync_timeout: float = 60.0,
    ) -> None:
        if not callable(getattr(sampler, "sample", None)):
            raise InvalidValueError(
                f"sampler={sampler!r:.80} must yield load requests; use one of feedline.chunks"
            )
        super().__init__(None, log=log)
        self.store = store
        self.sampler = sampler
        self._has_position = bool(getattr(sampler, "has_position", False))
        if log is not None:
            self._check_position()
        if not callable(output):
            output = _OUTPUTS[check_choice("output", output, tuple(_OUTPUTS))]
        self._convert = output
        self._reader = reader or partial(_in_thread, check_integer("num_ahead", num_ahead, 0))
        self._guard = Guard(desync_guard, desync_timeout)
        # Who they are is looked up at the first use; what they cannot be is told now.
        ranks: dict[str, Any] = {
            "num_replicas": num_replicas,
            "rank": rank,
            "process_group": process_group,
            "peers": peers,
        }
        as_peers(**ranks)
        self._ranks = {name: given for name, given in ranks.items() if given not in (None, "auto")}
        if getattr(sampler, "peers", None) is not None and self._ranks:
            raise InvalidValueError(
                f"sampler={type(sampler).__name__} already knows the ranks; omit peers, "
                "num_replicas and rank"
            )
        self._peers: Peers | None = None
        self._num_passes = 0
        self._latest: tuple[Pass | None, int, Rows] | None = None

    def __repr__(self) -> str:
        matrix = " × ".join(f"{size:,}" for size in self.store.shape)
        text = f"<{type(self).__name__} of {type(self.store).__name__} {matrix}: "
        if getattr(self.sampler, "peers", None) is None and self._peers is None:
            text += "ranks are found at first use, "
        return shortened(f"{text}{shown(self.sampler, 190 - len(text))}>")

    @property
    def n_obs(self) -> int:
        """The number of rows."""
        return self.store.shape[0]

    @property
    def peers(self) -> Peers:
        """The ranks that share the data."""
        if self._peers is None:
            self._peers = self._find_peers()
        return self._peers

    def _find_peers(self) -> Peers:
        """Return the ranks, or raise if each of several would get all rows."""
        shared: Peers | None = getattr(self.sampler, "peers", None)
        if shared is not None:
            return shared
        found = as_peers(**self._ranks)
        if found.world_size == 1:
            return Alone()
        if not self._has_position and self._ranks:
            return found
        itself = "" if self._has_position else ", or its own where it shares rows out itself"
        raise InvalidValueError(
            f"world_size={found.world_size} must be 1 for sampler={type(self.sampler).__name__}, "
            "which would read all rows on every rank; wrap it in "
            "feedline.chunks.DistributedSampler(sampler, dist_info=...), or pass num_replicas=1 "
            f"and rank=0 if each process should read all rows{itself}"
        )

    @property
    def position(self) -> Position:
        """The position of the training loop in the sampler's plan for these rows."""
        self._check_position()
        # Looked up here, so that ranks that would all read the same are refused at the first use.
        _ = self.peers
        position: Position = self.sampler.position_for(self.n_obs, self.store)
        position.guard = self._guard
        return position

    def _check_position(self) -> None:
        if not self._has_position:
            raise InvalidValueError(
                f"sampler={type(self.sampler).__name__} has no position, so it cannot be saved, "
                "resumed or logged; use one of feedline.chunks"
            )

    @property
    def epoch(self) -> int:
        """The current epoch; it changes when the next pass begins."""
        return super().epoch if self._has_position else int(getattr(self.sampler, "epoch", 0))

    @property
    def batch_size(self) -> int | None:
        """The number of rows of a full batch on one rank; None if batches differ."""
        return int(self.sampler.batch_size)

    def __len__(self) -> int:
        """The number of batches in a whole epoch, with the current ranks and batch size."""
        if self._has_position:
            return super().__len__()
        _ = self.peers
        count = getattr(self.sampler, "n_batches", None) or self.sampler.n_iters
        return int(count(self.n_obs))

    def _load_state(self, state: Mapping[str, Any]) -> None:
        self._check_position()
        if isinstance(state, Mapping) and "sampler" in state:
            # Before loaders shared the position of their samplers, the data stood beside it.
            saved, current = state.get("data"), self.store.fingerprint
            if saved != current:
                raise PlanMismatchError(
                    "the data has changed since the state was saved; restore it, or start a new "
                    "run without the state",
                    {"data": (saved, current)},
                )
            state = state["sampler"]
            if not isinstance(state, Mapping):
                raise CursorFormatError(
                    f"sampler={state!r:.80} must be the state of a sampler; pass what "
                    "state_dict() returned"
                )
        super()._load_state(state)

    @property
    def delivered(self) -> Delivered | None:
        """The record of the latest batch of this pass; None before the first batch."""
        if self._has_position:
            return super().delivered
        if self._latest is None:
            return None
        _, number, rows = self._latest
        return ForeignBatch(number, rows, self.peers, ids=rows)

    def _ids(self, indices: Rows) -> Rows:
        # Rows are counted from the first one of the matrix, and a plan counts from its mask's.
        return indices + (self.sampler.mask.start or 0)

    def _asked(self) -> Rows | None:
        running = self.position.current
        return self._latest[2] if self._latest and self._latest[0] is running else None

    def __iter__(self) -> Iterator[Any]:
        if self._has_position:
            return super().__iter__()
        self._guard.compare(
            self.peers, lambda: {"data": self.store.fingerprint, "num_batches": len(self)}
        )
        self._latest = None
        whole = WholeRequests(self.sampler, self._num_passes)
        self._num_passes += 1
        return self._read(map(whole, self.sampler.sample(self.n_obs)), None)

    def _batches(self, running: Pass) -> Iterator[Any]:
        return self._read(self.sampler.requests(running, self.n_obs), running)

    def _read(self, requests: Iterator[Request], running: Pass | None) -> Iterator[Any]:
        """Yield the batches of requests, and record each that is delivered."""
        number = 0
        loaded = self._reader(requests, self._load)
        try:
            for batches in TimedReads(loaded, self.waits):
                for matrix, rows in batches:
                    obs = {name: values[rows] for name, values in self.store.obs.items()}
                    batch = self._convert(ChunkBatch(matrix, obs, rows))
                    if running is not None:
                        running.deliver()
                    self._latest = running, number, rows
                    number += 1
                    yield batch
                # Released now, so that the memory of these rows can be reused.
                del batches
            if running is not None and torch_worker()[1]:
                # The other workers have delivered theirs.
                running.deliver(running.num_batches - running.num_delivered)
        finally:
            close = getattr(loaded, "close", None)
            if close is not None:
                close()

    def _load(self, request: Request) -> Loaded:
        """Fetch all rows of a request together; each batch is cut out of them later."""
        wanted = request["requests"]
        rows, fetched = rows_of_request(wanted, self.n_obs), self.store.fetch(wanted)
        return ((fetched.take(split), rows[split]) for split in request["splits"])

    def __getstate__(self) -> dict[str, Any]:
        # For another process, which has no part in the pass that is running here.
        return {**self.__dict__, "_latest": None}


def _in_thread(
    num_ahead: int, requests: Iterator[Request], load: Callable[[Request], Loaded]
) -> Iterator[Loaded]:
    """Read some requests ahead in a thread."""
    return ReadAhead(
        requests,
        load,
        lambda request: [request],
        num_threads=1 if num_ahead else 0,
        num_ahead=num_ahead,
    )


def _as_stored(batch: ChunkBatch) -> ChunkBatch:
    return batch


def _as_arrays(batch: ChunkBatch) -> ChunkBatch:
    matrix = batch.X
    return batch._replace(X=matrix.toarray()) if hasattr(matrix, "toarray") else batch


_OUTPUTS = {"stored": _as_stored, "numpy": _as_arrays}
