"""A loader that holds another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from feedline.feed.delegation import asked_of
from feedline.feed.loader import Loader
from feedline.feed.waits import waits_of
from feedline.words import shortened, shown


class LoaderWrapper:
    """A loader that is another one, except for what a subclass does differently.

    Args:
        loader: The other loader.
    """

    def __init__(self, loader: Loader[Any]) -> None:
        self.loader = loader
        #: Counts what the training loop waits for.
        self.waits = waits_of(loader)

    def __repr__(self) -> str:
        return shortened(f"<{type(self).__name__} around {shown(self.loader, 170)}>")

    epoch = asked_of("loader", "epoch", Loader.epoch.__doc__)
    next_epoch = asked_of("loader", "next_epoch", "The epoch of the next pass.")
    batch_size = asked_of("loader", "batch_size", Loader.batch_size.__doc__)
    peers = asked_of("loader", "peers", Loader.peers.__doc__)
    delivered = asked_of("loader", "delivered", Loader.delivered.__doc__)
    num_batches_left = asked_of("loader", "num_batches_left", Loader.num_batches_left.__doc__)
    set_epoch = asked_of("loader", "set_epoch", Loader.set_epoch.__doc__)
    state_dict = asked_of("loader", "state_dict", Loader.state_dict.__doc__)
    state_before = asked_of("loader", "state_before", Loader.state_before.__doc__)
    load_state_dict = asked_of("loader", "load_state_dict", Loader.load_state_dict.__doc__)
    return_to = asked_of("loader", "return_to", "Go to a state of this run.")
    skip_batches = asked_of("loader", "skip_batches", Loader.skip_batches.__doc__)
    close = asked_of("loader", "close", Loader.close.__doc__)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        """The number of batches in a whole epoch, with the current ranks and batch size."""
        return len(self.loader)
