"""A pass over an iterable dataset, which ends on all ranks together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from feedline.errors import DesyncError, FeedlineError, InvalidValueError
from feedline.feed.streams import Snapped

if TYPE_CHECKING:
    from feedline.feed.iterable_loader import IterableLoader

#: What a rank tells the others before each batch.
_HAS_BATCH, _HAS_ENDED, _HAS_FAILED = range(3)


class IterablePass(Iterator[Any]):
    """The batches of a pass; each is recorded when the loop receives it.

    Args:
        loader: The loader, which counts.
        items: What the readers send.
    """

    def __init__(self, loader: IterableLoader, items: Iterator[Snapped]) -> None:
        self._loader = loader
        self._items = items
        # What was read and not yet agreed on: what to tell, and the batch or the error.
        self._read: tuple[int, Snapped | None, Exception | None] | None = None
        # What all ranks have agreed on: a batch, or that there is none.
        self._ahead: Snapped | None = None
        self._has_ended = False
        self._error: Exception | None = None

    def __repr__(self) -> str:
        return f"<IterablePass: {self._loader!r:.160}>"

    def __next__(self) -> Any:
        if not self._loader.is_current(self):
            if self._has_ended:
                raise StopIteration
            raise InvalidValueError(
                "this iterator belongs to an earlier pass, whose batches are no longer counted: "
                "set_epoch, load_state_dict or another iterator has moved the loader since; use "
                "the latest iterator, or one loader for each loop"
            )
        self.look()
        if self._error is not None:
            # Behind an error, the reader that failed has lost its place: nothing may follow.
            raise self._error
        if self._ahead is None:
            raise StopIteration
        item, self._ahead = self._ahead, None
        return self._loader.deliver(item)

    def look(self) -> None:
        """Read the next batch, if that was not done yet, and agree with the other ranks on it."""
        if self._ahead is not None or self._has_ended or self._error is not None:
            return
        if self._read is None:
            self._read = self._next_item()
        told, item, error = self._read
        agreed = self._loader.agreed(told)
        self._read = None
        if agreed == _HAS_FAILED:
            self._error = error or DesyncError(
                "another rank failed to read its next batch; look for its error"
            )
        elif agreed == _HAS_BATCH:
            self._ahead = item
        else:
            try:
                self._loader.end_together(told)
            except FeedlineError as refused:
                self._error = refused
            else:
                self._has_ended = True
            self._drop_items()

    def _next_item(self) -> tuple[int, Snapped | None, Exception | None]:
        try:
            for item in self._items:
                if item.has_batch:
                    return _HAS_BATCH, item, None
                self._loader.note(item)
        except Exception as error:
            return _HAS_FAILED, None, error
        return _HAS_ENDED, None, None

    def _drop_items(self) -> None:
        # Workers of other readers end, whatever they have read ahead.
        self._items = iter(())

    def close(self) -> None:
        """End this pass and its workers, wherever it is; its epoch has not ended by that."""
        self._has_ended, self._ahead = True, None
        self._drop_items()
