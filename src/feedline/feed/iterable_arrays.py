"""Batches of an iterable dataset as numpy arrays, read in the loop's own thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from feedline.errors import check_callable, check_flag
from feedline.feed.called import called
from feedline.feed.iterable_loader import IterableLoader
from feedline.feed.iterable_place import Place
from feedline.feed.iterables import fresh_copy
from feedline.feed.peers import Peers
from feedline.feed.stacking import stack_samples
from feedline.feed.streams import Snapped, snapped_batches
from feedline.feed.waits import TimedReads


class IterableArrays(IterableLoader):
    """Batches of an iterable dataset with a state, as numpy arrays; see `docs/iterables.md`.

    `feedline.DataLoader` becomes this for such a dataset. Samples are dicts, tuples, arrays,
    numbers, texts or bytes.

    Args:
        dataset: The dataset, with `state_dict` and `load_state_dict`, or an iterator that has them.
        batch_size: The number of samples in a batch.
        drop_last: Drop an incomplete last batch.
        transform: A function that is called with each batch and returns the batch to deliver.
        tail: What to do when a rank runs out before the others: `"drop"` (the default) ends the
            epoch on all ranks, with a warning; `"exact"` raises an error on all.
        peers: The ranks.
        desync_guard: Compare the ranks before each epoch, and agree on its end.
        desync_timeout: Seconds that the guard waits for the other ranks.

    Examples:
        >>> class Count:
        ...     at = 0
        ...     def __iter__(self):
        ...         while self.at < 5:
        ...             self.at += 1
        ...             yield {"x": self.at}
        ...     def state_dict(self):
        ...         return {"at": self.at}
        ...     def load_state_dict(self, state):
        ...         self.at = state["at"]
        >>> loader = IterableArrays(Count(), batch_size=2)
        >>> next(iter(loader))["x"].tolist()
        [1, 2]
        >>> resumed = IterableArrays(Count(), batch_size=3)
        >>> resumed.load_state_dict(loader.state_dict())
        >>> [batch["x"].tolist() for batch in resumed]
        [[3, 4, 5]]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        *,
        drop_last: bool = False,
        transform: Callable[[Any], Any] | None = None,
        tail: str | None = None,
        peers: Peers | str = "auto",
        desync_guard: bool = True,
        desync_timeout: float = 60.0,
    ) -> None:
        check_callable("transform", transform)
        super().__init__(
            dataset,
            batch_size=1 if batch_size is None else batch_size,
            drop_last=check_flag("drop_last", drop_last),
            num_readers=1,
            tail=tail,
            peers=peers,
            desync_guard=desync_guard,
            desync_timeout=desync_timeout,
        )
        self.transform = transform

    def _items(self, place: Place) -> Iterator[Snapped]:
        items = snapped_batches(
            fresh_copy(self._data),
            saved=place.readers[0],
            epoch=place.epoch,
            batch_size=self.batch_size,
            drop_last=self._drop_last,
            collate=self._make,
        )
        return TimedReads(items, self.waits)

    def _make(self, samples: list[Any]) -> Any:
        batch = stack_samples(samples, range(len(samples)))
        return called("transform", self.transform, batch)
