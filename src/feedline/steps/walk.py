"""The batches of a run's steps, taken out of a loader."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from feedline.errors import PlanMismatchError
from feedline.feed import Delivered, ForeignLoader, Loader
from feedline.steps.limits import StepSizes
from feedline.steps.run_state import RunState

_END = object()


class DataWalk:
    """A walk through the epochs of a loader, from the batches of one step to those of the next.

    The loader knows its place; the walk knows which of its batches make the step that is out.

    Args:
        loader: What yields batches.
        sizes: How many batches make a step; the last one of an epoch may have fewer.
        epoch: The number of the first epoch.
    """

    def __init__(self, loader: Loader[Any] | None, sizes: StepSizes, epoch: int) -> None:
        self.loader = loader
        self.epoch = epoch
        #: The batches of the step that is out.
        self.group: list[Any] | None = None
        #: Whether these are the last ones of their epoch.
        self.is_last_group = False
        self._sizes = {"dp_size": sizes.dp_size, "local_batch_size": sizes.local_batch_size}
        self._group_size = sizes.num_batches
        if isinstance(loader, ForeignLoader):
            loader.group_size, loader.sizes = self._group_size, dict(self._sizes)
        self._records: list[Delivered | None] = []
        self._batches: Iterator[Any] | None = None
        self._num_batches = 0
        # For those who read a state: the batches of this epoch before this pass.
        self._num_before = 0
        self._leave_pass()

    def _leave_pass(self) -> None:
        self._batches = None
        self._is_begun = self.is_last_group = False
        #: Whether somebody else must not move the loader.
        self.is_compared = True
        # Batches of this pass that steps have used, and those delivered that no step has.
        self._num_used = self._num_unused = 0

    def go_to(self, epoch: int) -> None:
        """Go to the beginning of an epoch; the one that the walk is in is not restarted."""
        if epoch != self.epoch:
            self._begin_epoch(epoch)
            self._send_loader_away()
        if self.loader is not None:
            self.loader.set_epoch(epoch)

    def _begin_epoch(self, epoch: int) -> None:
        self._leave_pass()
        self.epoch, self._num_before = epoch, 0

    def _send_loader_away(self) -> None:
        """Let the loader begin this epoch anew: if it has ended it, it would go on to the next."""
        if self.loader is not None and self.loader.epoch == self.epoch:
            self.loader.set_epoch(self.epoch + 1)

    def begin_pass(self) -> None:
        """Begin where this epoch was left."""
        loader = self.loader
        assert loader is not None
        if self._is_begun:
            # By itself the loader would start over.
            loader.load_state_dict(loader.state_before(self._num_unused))
            self._num_before += self._num_used
        elif loader.delivered is not None:
            self._send_loader_away()
        loader.set_epoch(self.epoch)
        self._leave_pass()
        # A foreign loader counts them itself, if it can.
        is_foreign = isinstance(loader, ForeignLoader)
        self._num_batches = sys.maxsize if is_foreign else loader.num_batches_left()
        self._batches = iter(loader)
        self._is_begun = True
        self.epoch = loader.epoch

    def take_group(self) -> bool:
        """Take the next group out; return whether there was one, or else the epoch has ended."""
        loader, batches = self.loader, self._batches
        if loader is None or batches is None:
            return False
        group: list[Any] = []
        self._records = records = []
        try:
            for _ in range(min(self._group_size, self._num_batches - self._num_used)):
                batch = next(batches, _END)
                if batch is _END:
                    break
                group.append(batch)
                records.append(loader.delivered)
            is_at_end = self._num_used + len(group) >= self._num_batches
            self.is_last_group = loader.is_last if isinstance(loader, ForeignLoader) else is_at_end
        except BaseException:
            latest = loader.delivered
            self._batches = None
            self._num_unused = 0 if latest is None else latest.number + 1 - self._num_used
            raise
        if not group:
            self._begin_epoch(self.epoch + 1)
            return False
        self.group = group
        self._num_used += len(group)
        return True

    def put_back_group(self) -> None:
        """Put the group that is out back, which nobody has used."""
        assert self.group is not None
        self._num_unused = len(self.group)
        self._num_used -= self._num_unused
        self.group = self._batches = None
        self.is_last_group = False

    def leave_group(self) -> None:
        """Be done with the group that is out, and with its epoch if it is the last one."""
        self.group = None
        if self.is_last_group:
            self._begin_epoch(self.epoch + 1)

    @property
    def has_diverged(self) -> bool:
        """Whether somebody else has taken batches out of the loader in this pass."""
        latest = None if self.loader is None else self.loader.delivered
        number = 0 if latest is None else latest.number + 1
        return self.is_compared and number != self._num_used

    def num_samples(self, *, everywhere: bool) -> int | None:
        """Return the number of real samples of the group that is out, or None if unknown."""
        name = "num_real_of_all_ranks" if everywhere else "num_real"
        counts = [getattr(record, name) for record in self._records]
        return None if self.group is None or None in counts else sum(counts)

    def state(self, step: int) -> RunState:
        """Return the state of a run before a step, at the place after the group that is out."""
        place = None if self.loader is None else self.loader.state_before(self._num_unused)
        sizes: Mapping[str, Any] = self._sizes
        num_batches, data = self._num_before + self._num_used, place
        if isinstance(self.loader, ForeignLoader):
            # It counts them itself, in batches of sizes that it may not know.
            assert place is not None
            num_batches, data = place["num_batches"], place["loader"]
            sizes = {name: place.get(name) for name in sizes}
        return RunState(
            step=step,
            epoch=self.epoch + self.is_last_group,
            num_batches=0 if self.is_last_group else num_batches,
            dataloader=data,
            **sizes,
        )

    def load(self, state: RunState) -> None:
        """Go to the place in a state; raise if this loader cannot go on there."""
        loader, place = self.loader, state.to_dict()
        if isinstance(loader, ForeignLoader):
            loader.load_state_dict({**place, "loader": state.dataloader})
        elif loader is not None and state.dataloader is not None:
            loader.load_state_dict(state.dataloader)
        elif loader is not None and state.num_batches:
            raise PlanMismatchError(
                f"the state was saved after {state.num_batches} batches of a loader without a "
                f"state, and {type(loader).__name__} cannot resume there; use the same loader, or "
                "a state from the end of an epoch",
                {"dataloader": (None, type(loader).__name__)},
            )
        self.group = None
        self._begin_epoch(state.epoch)
        self._num_before = state.num_batches

    def close(self) -> None:
        """Let go of the loader's pass; the place stays as it is."""
        if isinstance(self.loader, ForeignLoader):
            self.loader.close()
        self._batches = None
