"""What is left of an epoch, and how it is dealt: the two protocols that every plan keeps."""

from __future__ import annotations

from typing import Protocol

from feedline.plan.batches import Block, Place


class Remaining(Protocol):
    """What is left of an epoch."""

    @property
    def num_left(self) -> int:
        """The number of positions not consumed yet."""

    def deal(self, world_size: int, batch_size: int) -> Deal:
        """Deal what is left to `world_size` ranks."""


class Deal(Protocol):
    """What is left of an epoch, dealt to the ranks in batches."""

    @property
    def num_batches(self) -> int:
        """The number of batches, equal on every rank."""

    @property
    def num_dropped(self) -> int:
        """The number of positions that no rank gets."""

    @property
    def num_padded(self) -> int:
        """The number of padded entries over all ranks."""

    def block(self, rank: int, start: int, stop: int) -> Block:
        """Return batches `[start, stop)` of `rank`."""

    def num_real(self, start: int, stop: int) -> int:
        """Return how many entries of batches `[start, stop)` of all ranks are not padding."""

    def after(self, num_batches: int) -> Remaining:
        """Return what is left when every rank has consumed `num_batches`."""

    def find(self, index: int) -> list[Place]:
        """Return every place at which `index` is consumed."""
