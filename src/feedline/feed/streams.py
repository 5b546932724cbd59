"""Batches of an iterable dataset, each with the state that the dataset had after it.

A reader is one pass over a copy of the dataset: in this process, or in a worker. Its batches may be
read far ahead; what counts is the state that came with the batch that the loop received.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from feedline.errors import InvalidValueError
from feedline.feed.iterables import has_state

#: What a reader is at: the pickled state of its dataset, or one of these two.
Saved = bytes | None
FRESH: Saved = b""
ENDED: Saved = None


class Snapped(NamedTuple):
    """A batch, which reader it comes from, and what this one is at after it.

    Without a batch it only takes the reader's turn: before its first one, or at its end.
    """

    reader: int
    saved: Saved
    has_batch: bool = False
    batch: Any = None


def snapped_batches(
    dataset: Any,
    *,
    reader: int = 0,
    saved: Saved = FRESH,
    epoch: int = 0,
    batch_size: int | None = 1,
    drop_last: bool = False,
    collate: Callable[[Any], Any],
    waits_a_turn: bool = False,
) -> Iterator[Snapped]:
    """Return the batches of one reader, from where it was on.

    Args:
        dataset: The dataset, which is not used for anything else.
        reader: The number of this reader.
        saved: What it was at.
        epoch: The epoch, which is told to a dataset with `set_epoch`.
        batch_size: The number of samples in a batch; None if the dataset yields batches.
        drop_last: Drop an incomplete last batch.
        collate: Makes a batch of samples.
        waits_a_turn: Whether the reader has had its turn of the round that is going on.

    Examples:
        >>> class Count:
        ...     at = 0
        ...     def __iter__(self):
        ...         while self.at < 5:
        ...             self.at += 1
        ...             yield self.at
        ...     def state_dict(self):
        ...         return {"at": self.at}
        ...     def load_state_dict(self, state):
        ...         self.at = state["at"]
        >>> first, *_ = snapped_batches(Count(), batch_size=2, collate=list)
        >>> rest = snapped_batches(Count(), saved=first.saved, batch_size=2, collate=list)
        >>> first.batch, [item.batch for item in rest if item.has_batch]
        ([1, 2], [[3, 4], [5]])
    """
    # The place is read now; the batches come when they are asked for.
    stream = None if saved is ENDED else _Stream(dataset, saved, epoch)
    return _batches(stream, reader, saved, batch_size, drop_last, collate, waits_a_turn)


def _batches(
    stream: _Stream | None,
    reader: int,
    saved: Saved,
    batch_size: int | None,
    drop_last: bool,
    collate: Callable[[Any], Any],
    waits_a_turn: bool,
) -> Iterator[Snapped]:
    if stream is None:
        return
    if waits_a_turn:
        yield Snapped(reader, saved)
    while True:
        samples = list(islice(stream.samples, batch_size or 1))
        is_full = len(samples) == (batch_size or 1)
        if is_full or (samples and not drop_last):
            # Behind its end a dataset may say that it is at its start again.
            after = stream.save() if is_full else ENDED
            batch = collate(samples[0] if batch_size is None else samples)
            yield Snapped(reader, after, True, batch)
        if not is_full:
            yield Snapped(reader, ENDED)
            return


class _Stream:
    """One pass over a dataset, and its state."""

    def __init__(self, dataset: Any, saved: Saved, epoch: int) -> None:
        state = pickle.loads(saved) if saved else {}
        if callable(getattr(dataset, "set_epoch", None)):
            dataset.set_epoch(epoch)
        if "dataset" in state:
            dataset.load_state_dict(state["dataset"])
        self._dataset = dataset
        self.samples: Any = iter(dataset)
        if "iterator" in state:
            self.samples.load_state_dict(state["iterator"])

    def save(self) -> bytes:
        """Return the state after the latest sample, as it is now."""
        state = {}
        if has_state(self.samples):
            state["iterator"] = self.samples.state_dict()
        if self.samples is not self._dataset and has_state(self._dataset):
            state["dataset"] = self._dataset.state_dict()
        if not state:
            raise InvalidValueError(
                f"dataset={type(self._dataset).__name__} and its iterator have no state; give one "
                "of them state_dict and load_state_dict"
            )
        # Pickled at once: the dataset may change what it returned while the batch is on its way.
        try:
            return pickle.dumps(state, protocol=pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InvalidValueError(
                f"dataset={type(self._dataset).__name__} has a state that cannot be saved "
                f"({error!s:.200}); return dicts, lists, numbers, texts, bytes, arrays and tensors "
                "from its state_dict"
            ) from None
