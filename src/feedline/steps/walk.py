"""Where a run is in its data."""

from __future__ import annotations

from typing import Any

from feedline.errors import PlanMismatchError
from feedline.steps.groups import BatchGroups
from feedline.steps.loaders import has_state, length_of, num_batches_left, set_epoch_of
from feedline.steps.run_state import RunState

__all__ = ["DataWalk"]


class DataWalk:
    """A walk through the epochs of a loader, from one group of batches to the next.

    Args:
        loader: What yields batches.
        epoch: The number of the first epoch.
    """

    def __init__(self, loader: Any, *, epoch: int) -> None:
        self.loader = loader
        self.epoch = epoch
        #: The batches of the step that is out.
        self.group: list[Any] | None = None
        self._groups: BatchGroups | None = None
        self._num_in_epoch = 0
        # Whether these were batches of the size that they have now.
        self._is_count_ours = True

    @property
    def is_last_group(self) -> bool:
        """Whether the group that is out is the last one of its epoch."""
        return self.group is not None and self._groups is not None and self._groups.is_last

    def go_to(self, epoch: int) -> None:
        """Go to the beginning of an epoch; the one that the walk is in is not restarted."""
        if epoch != self.epoch:
            self.epoch = epoch
            self._num_in_epoch = 0
            self._groups = None
            # Away and back: a loader that has ended this epoch would go on to the next one.
            set_epoch_of(self.loader, epoch + 1)
        set_epoch_of(self.loader, epoch)

    def begin_pass(self, *, group_size: int) -> None:
        """Begin where this epoch was left, in a loader of any kind."""
        num_before = self._num_in_epoch
        if self._groups is not None and num_before and has_state(self.loader):
            # The loop was left in mid-epoch; by itself the loader would start over.
            self.loader.load_state_dict(self._groups.loader_state())
        num_batches, num_skipped = num_batches_left(self.loader), 0
        if num_batches is None:
            num_batches = length_of(self.loader)
            if not has_state(self.loader):
                num_skipped = num_before
            elif not self._is_count_ours:
                num_batches = None
            elif num_batches is not None:
                num_batches = max(num_batches - num_before, 0)
        self._groups = BatchGroups(
            self.loader, size=group_size, num_batches=num_batches, num_skipped=num_skipped
        )

    def take_group(self) -> bool:
        """Take the next group out; return whether there was one, or else the epoch has ended."""
        if self._groups is None:
            return False
        group = self._groups.next_group()
        if not group:
            self._end_epoch()
            return False
        self.group = group
        return True

    def use_group(self) -> list[Any]:
        """Return the group that is out; from now on its batches count as used."""
        assert self.group is not None
        self._num_in_epoch += len(self.group)
        return self.group

    def put_back_group(self) -> None:
        """Put the group that is out back, which nobody has used."""
        assert self.group is not None
        assert self._groups is not None
        group, self.group = self.group, None
        self._groups.put_back(group)

    def leave_group(self) -> None:
        """Be done with the group that is out, and with its epoch if it is the last one."""
        is_last = self.is_last_group
        self.group = None
        if is_last:
            self._end_epoch()

    def _end_epoch(self) -> None:
        self.epoch += 1
        self._num_in_epoch = 0
        self._is_count_ours = True
        self._groups = None

    def state_after_group(self, *, step: int, dp_size: int, local_batch_size: int) -> RunState:
        """Return the state of a run at a step, with the walk's place after the group that is out.

        Args:
            step: The number of the step after this group.
            dp_size: The number of ranks.
            local_batch_size: The number of samples of a batch on one of them.
        """
        return RunState(
            step=step,
            epoch=self.epoch + self.is_last_group,
            num_batches=0 if self.is_last_group else self._num_in_epoch,
            dp_size=dp_size,
            local_batch_size=local_batch_size,
            dataloader=self._loader_state(),
        )

    def _loader_state(self) -> dict[str, Any] | None:
        if not has_state(self.loader):
            return None
        if self._groups is not None:
            return self._groups.loader_state()
        state: dict[str, Any] = self.loader.state_dict()
        return state

    def load(self, state: RunState, *, dp_size: int, local_batch_size: int) -> None:
        """Go to the place in a state; raise if this loader cannot go on there.

        Args:
            state: The state of a run.
            dp_size: The number of ranks now.
            local_batch_size: The number of samples of a batch on one of them now.
        """
        is_ours = has_state(self.loader)
        same = (state.dp_size, state.local_batch_size) == (dp_size, local_batch_size)
        if state.num_batches and not same and not is_ours and self.loader is not None:
            raise PlanMismatchError(
                f"the state was saved on dp_size={state.dp_size} ranks with "
                f"local_batch_size={state.local_batch_size}, which is now {dp_size} and "
                f"{local_batch_size}, and this loader cannot go on with others in the middle "
                "of an epoch; use one of Feedline's loaders, or the same sizes",
                {"dp_size": (state.dp_size, dp_size)},
            )
        if is_ours and state.num_batches and state.dataloader is None:
            raise PlanMismatchError(
                f"the state was saved after {state.num_batches} batches of a loader without a "
                f"state, and {type(self.loader).__name__} cannot go on there; use the same "
                "loader, or a state from the end of an epoch",
                {"dataloader": (None, type(self.loader).__name__)},
            )
        if is_ours and state.dataloader is not None:
            self.loader.load_state_dict(state.dataloader)
        self.group = self._groups = None
        self.epoch = state.epoch
        self._num_in_epoch = state.num_batches
        self._is_count_ours = same

    def close(self) -> None:
        """Let go of the loader's pass; the place stays as it is."""
        if self._groups is not None:
            self._groups.close()
