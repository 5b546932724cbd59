"""The batches of a run's steps, from a loader."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from feedline.errors import InvalidValueError, PlanMismatchError
from feedline.feed import Delivered, ForeignLoader, IterableLoader, Loader
from feedline.feed.loader import return_to
from feedline.feed.waits import waits_of
from feedline.steps.limits import StepSizes
from feedline.steps.run_state import RunState
from feedline.words import several

_END = object()


class DataWalk:
    """A walk through the epochs of a loader, step by step.

    The loader knows its position; the walk knows which batches are in the current step.

    Args:
        loader: What yields batches.
        sizes: The number of batches in a step; the last step of an epoch may have fewer.
        epoch: The number of the first epoch.
    """

    def __init__(self, loader: Loader[Any] | None, sizes: StepSizes, epoch: int) -> None:
        self.loader = loader
        self.epoch = epoch
        #: Counts what is waited for.
        self.waits = waits_of(loader)
        #: The batches of the step that is out.
        self.group: list[Any] | None = None
        #: Whether these are the last ones of their epoch.
        self.is_last_group = False
        self._sizes = {"dp_size": sizes.dp_size, "local_batch_size": sizes.local_batch_size}
        self._group_size = sizes.num_batches
        # Those that have no length, or may not know it, say whether a batch is the last.
        self._open = loader if isinstance(loader, ForeignLoader | IterableLoader) else None
        if self._open is not None:
            self._open.group_size = self._group_size
        if isinstance(loader, ForeignLoader):
            loader.sizes = dict(self._sizes)
        self._records: list[Delivered | None] = []
        self._batches: Iterator[Any] | None = None
        self._num_batches = 0
        # For those who read a state: the batches of this epoch before this pass.
        self._num_before = 0
        self._leave_pass()

    def _leave_pass(self) -> None:
        self._batches = None
        self._is_begun = self.is_last_group = False
        #: Whether nothing else may move the loader.
        self.is_compared = True
        # Batches of this pass that steps have used, and those delivered that no step has.
        self._num_used = self._num_unused = 0

    def go_to(self, epoch: int) -> None:
        """Move to the start of an epoch; the current epoch is not restarted."""
        if epoch != self.epoch:
            self._begin_epoch(epoch)
            self._send_loader_away()
        if self.loader is not None:
            self.loader.set_epoch(epoch)

    def _begin_epoch(self, epoch: int) -> None:
        self._leave_pass()
        self.epoch, self._num_before = epoch, 0

    def _send_loader_away(self) -> None:
        """Restart the loader's epoch: a loader at the end of an epoch would begin the next one."""
        if self.loader is not None and self.loader.epoch == self.epoch:
            self.loader.set_epoch(self.epoch + 1)

    def begin_pass(self) -> None:
        """Begin at the current position of this epoch."""
        loader = self._place_loader()
        is_open = self._open is not None
        self._num_batches = sys.maxsize if is_open else loader.num_batches_left()
        self._batches = iter(loader)
        self._is_begun = True
        self.epoch = loader.epoch

    def _place_loader(self) -> Loader[Any]:
        """Return the loader at the current position of this epoch."""
        loader = self.loader
        assert loader is not None
        if self._is_begun:
            # By itself the loader would start over.
            return_to(loader, loader.state_before(self._num_unused))
            self._num_before += self._num_used
        elif loader.delivered is not None:
            self._send_loader_away()
        loader.set_epoch(self.epoch)
        self._leave_pass()
        return loader

    def skip_steps(self, num_steps: int, after: int) -> None:
        """Skip the batches of some steps of this epoch, between two steps.

        Args:
            num_steps: The number of steps.
            after: The number of steps that come before these.
        """
        loader: Any = self.loader
        if self._open is not None or not hasattr(loader, "skip_batches"):
            raise InvalidValueError(
                f"dataloader={type(loader).__name__} has no plan, so its batches cannot be "
                "skipped; use one of Feedline's loaders over a store or a map-style dataset"
            )
        self._place_loader()
        num_batches, first = loader.num_batches_left(), after * self._group_size
        num_left = -(-num_batches // self._group_size)
        if after + num_steps > num_left:
            fitting = f"at most {num_left}, because epoch {self.epoch} has that many left"
            raise InvalidValueError(
                f"the next {several(after + num_steps, 'step')} must be {fitting}; skip those of "
                f"epoch {self.epoch + 1} when it has begun"
            )
        # The last step of an epoch may have fewer batches.
        loader.skip_batches(min(num_steps * self._group_size, num_batches - first), first)
        if num_steps == num_left:
            self._begin_epoch(self.epoch + 1)

    @property
    def has_plan(self) -> bool:
        """Whether the loader knows how many batches are left."""
        return self.loader is not None and self._open is None

    def num_steps_left(self) -> int:
        """Return the number of steps of this epoch that are left, between two passes."""
        assert self.loader is not None
        is_behind = self.loader.epoch == self.epoch
        num_batches = self.loader.num_batches_left() if is_behind else len(self.loader)
        return -(-num_batches // self._group_size)

    def take_group(self) -> bool:
        """Take the next group; return False if the epoch has ended."""
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
            self.is_last_group = is_at_end if self._open is None else self._open.is_last
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
        """Put back the current group, which was not used."""
        assert self.group is not None
        self._num_unused = len(self.group)
        self._num_used -= self._num_unused
        self.group = self._batches = None
        self.is_last_group = False

    def leave_group(self) -> None:
        """Finish the current group, and its epoch if it is the last group."""
        self.group = None
        if self.is_last_group:
            self._begin_epoch(self.epoch + 1)

    @property
    def has_diverged(self) -> bool:
        """Whether something else has taken batches from the loader in this pass."""
        latest = None if self.loader is None else self.loader.delivered
        number = 0 if latest is None else latest.number + 1
        return self.is_compared and number != self._num_used

    def num_samples(self, *, everywhere: bool) -> int | None:
        """Return the number of real samples in the current group, or None if unknown."""
        name = "num_real_of_all_ranks" if everywhere else "num_real"
        counts = [getattr(record, name) for record in self._records]
        return None if self.group is None or None in counts else sum(counts)

    def state(self, step: int) -> RunState:
        """Return the state of a run before a step, at the position after the current group."""
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
        """Move to the position in a state; raise if this loader cannot resume there."""
        loader, place = self.loader, state.to_dict()
        if isinstance(loader, ForeignLoader):
            loader.load_state_dict({**place, "loader": state.dataloader})
        elif loader is not None and state.dataloader is not None:
            loader.load_state_dict(state.dataloader)
        elif loader is not None and state.num_batches:
            raise PlanMismatchError(
                f"the state was saved after {several(state.num_batches, 'batch', 'batches')} of a "
                f"loader without a state, and {type(loader).__name__} cannot resume there; use the "
                "same loader, or a state from the end of an epoch",
                {"dataloader": (None, type(loader).__name__)},
            )
        self.group = None
        self._begin_epoch(state.epoch)
        self._num_before = state.num_batches

    def close(self) -> None:
        """End the loader's pass; the position is kept."""
        if isinstance(self.loader, ForeignLoader):
            self.loader.close()
        self._batches = None
