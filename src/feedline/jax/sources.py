"""Where a JAX loader's batches come from: a store, or the user's map-style dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp

from feedline.errors import InvalidValueError
from feedline.feed import FedBatch, Feed, Pass, Position
from feedline.feed.called import called
from feedline.feed.map_batches import Readers
from feedline.feed.preparation import Preparation, Prepared
from feedline.feed.skips import Skips
from feedline.store import Store
from feedline.store.columns import Arrays, as_numbers


class Fetched(NamedTuple):
    """A batch in this process's memory.

    Args:
        number: The number of the batch in its pass.
        batch: Its arrays.
        skips: What was skipped in it; None where no sample can be.
    """

    number: int
    batch: Any
    skips: Skips = None


class Source(Protocol):
    """Where batches come from. Fetching them does not move the position."""

    @property
    def position(self) -> Position:
        """The position of the training loop."""

    @property
    def shown(self) -> str:
        """What the batches are read from, for people."""

    def fetch(self, ahead: Pass) -> Iterator[Fetched]:
        """Return the batches of a pass that nobody counts. After an error, the next one follows."""

    def close(self) -> None:
        """Release threads, workers and files."""


class StoreSource:
    """Batches of a store.

    Args:
        feed: Reads the store.
        preparation: What becomes of each sample; None for nothing.
        transform: What becomes of each batch; None for nothing.
    """

    def __init__(
        self,
        feed: Feed,
        preparation: Preparation | None,
        transform: Callable[[Arrays], Any] | None,
    ) -> None:
        if preparation is None and transform is None:
            _check_columns(feed.store)
        self._feed = feed
        self._preparation = preparation
        self._transform = transform

    @property
    def position(self) -> Position:
        """The position of the training loop."""
        return self._feed.position

    @property
    def shown(self) -> str:
        """What the batches are read from, for people."""
        return type(self._feed.store).__name__

    def fetch(self, ahead: Pass) -> Iterator[Fetched]:
        """Return the batches of a pass that nobody counts."""
        if self._preparation is not None:
            return _Made(self._feed.prepare(ahead, self._preparation), self._made)

        def make(batch: FedBatch) -> Fetched:
            made = self._changed(_as_jax_takes(self._feed.store, batch.arrays))
            return Fetched(batch.number - ahead.start, made)

        return self._feed.read(ahead, make)

    def _made(self, number: int, batch: Prepared) -> Fetched:
        assert self._preparation is not None
        made = batch.columns
        if untouched := self._preparation.untouched:
            made |= _as_jax_takes(self._feed.store, {name: made[name] for name in untouched})
        return Fetched(number, self._changed(made), batch.skips)

    def _changed(self, batch: Any) -> Any:
        return called("transform", self._transform, batch)

    def close(self) -> None:
        """Close the store's open files."""
        self._feed.close()


class _Made(Iterator[Fetched]):
    """Batches with their numbers, as `make` makes them; also one that fails has a number."""

    def __init__(self, batches: Iterator[Any], make: Callable[[int, Any], Fetched]) -> None:
        self._batches = batches
        self._make = make
        self._number = -1

    def __next__(self) -> Fetched:
        self._number += 1
        return self._make(self._number, next(self._batches))

    def close(self) -> None:
        """End the threads that read ahead."""
        self._batches.close()  # type: ignore[attr-defined]


class MapSource:
    """Batches of a map-style dataset.

    Args:
        readers: Fetch the batches.
        position: The position of the training loop.
        transform: What becomes of each batch; None for nothing.
    """

    def __init__(
        self, readers: Readers, position: Position, transform: Callable[[Any], Any] | None
    ) -> None:
        self._readers = readers
        self._position = position
        self._transform = transform

    @property
    def position(self) -> Position:
        """The position of the training loop."""
        return self._position

    @property
    def shown(self) -> str:
        """What the batches are read from, for people."""
        return type(self._readers.fetching.dataset).__name__

    def fetch(self, ahead: Pass) -> Iterator[Fetched]:
        """Return the batches of a pass that nobody counts."""
        return _Made(self._readers.batches(ahead), self._made)

    def _made(self, number: int, batch: Any) -> Fetched:
        return Fetched(number, called("transform", self._transform, batch))

    def close(self) -> None:
        """End the workers."""
        self._readers.close()


def _as_jax_takes(store: Store, arrays: Arrays) -> Arrays:
    """Return arrays of a store with bfloat16 as what it is, which JAX has and numpy lacks."""
    columns = store.columns
    is_bfloat = {
        name
        for name in arrays
        if columns[name].type_name == "bfloat16" and name not in _lists(store)
    }
    others = {name: array for name, array in arrays.items() if name not in is_bfloat}
    made = as_numbers(columns, others)
    made |= {name: arrays[name].view(jnp.bfloat16) for name in is_bfloat}
    return {name: made[name] for name in arrays}


def _lists(store: Store) -> set[str]:
    return {name for name, column in store.columns.items() if column.has_lists}


def _check_columns(store: Store) -> None:
    """Raise if a column cannot be on a device as it is."""
    if names := sorted(_lists(store)):
        name, kind = names[0], store.columns[names[0]]
        rest = [other for other in store.columns if other not in names]
        raise InvalidValueError(
            f"column {name!r:.80} is {kind}, and devices hold arrays of one shape only; leave it "
            f"out with feedline.open(..., columns={rest!r:.200}), or make arrays of it with "
            "transform or sample_transform"
        )
