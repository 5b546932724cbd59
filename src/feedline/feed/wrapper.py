"""A loader that holds another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from feedline.feed.loader import Delivered, Loader
from feedline.feed.peers import Peers


class LoaderWrapper:
    """A loader that is another one, except for what a subclass does differently."""

    def __init__(self, loader: Loader[Any]) -> None:
        self.loader = loader

    @property
    def epoch(self) -> int:
        """The epoch that the loader is in; it stays there until the next pass begins."""
        return self.loader.epoch

    @property
    def batch_size(self) -> int | None:
        """The number of samples of a full batch on one rank; None if batches differ."""
        return self.loader.batch_size

    @property
    def peers(self) -> Peers:
        """The ranks that share the data."""
        return self.loader.peers

    @property
    def delivered(self) -> Delivered | None:
        """The record of the latest batch of this pass; None before the first."""
        return self.loader.delivered

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        """The number of batches of a whole epoch under the present sizes."""
        return len(self.loader)

    def num_batches_left(self) -> int:
        """Return how many batches the next pass has."""
        return self.loader.num_batches_left()

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of `epoch`; the epoch that the loader is in is not restarted."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the training loop is."""
        return self.loader.state_dict()

    def state_before(self, num_batches: int) -> dict[str, Any]:
        """Return where the training loop was before the latest batches that it received."""
        return self.loader.state_before(num_batches)

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Go on where a state was saved; an error changes nothing."""
        self.loader.load_state_dict(state_dict)

    def close(self) -> None:
        """Let go of threads, workers and files."""
        self.loader.close()
