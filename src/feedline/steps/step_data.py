"""The data of a clock's steps: how many samples a step has, and steps that are skipped."""

from __future__ import annotations

from feedline.errors import InvalidValueError, check_integer
from feedline.feed.delegation import asked_of
from feedline.steps.limits import RunLimits, StepSizes, enough_epochs
from feedline.steps.run_state import StepCount
from feedline.steps.walk import DataWalk


class StepData:
    """What a `StepScheduler` knows about the data of its steps."""

    _walk: DataWalk
    _count: StepCount
    _sizes: StepSizes
    _limits: RunLimits
    _step_limit: int | None
    _are_epochs_given: bool
    num_epochs: int

    # None of them can be assigned: it would change nothing.
    global_batch_size: int = asked_of("_sizes", "global_batch_size")
    """The number of samples in a step, over all ranks."""
    local_batch_size: int = asked_of("_sizes", "local_batch_size")
    """The number of samples in a batch on one rank."""
    dp_size: int = asked_of("_sizes", "dp_size")
    """The number of ranks that have data of their own."""
    grad_acc_steps: int = asked_of("_sizes", "num_batches")
    """The number of batches of one rank in a step."""
    epoch_len: int | None = asked_of("_limits", "epoch_len")
    """The number of steps in an epoch, or None if the loader has no length."""
    max_steps: int = asked_of("_limits", "max_steps")
    """The number of steps after which the run ends."""

    is_last_batch: bool = asked_of("_walk", "is_last_group")
    """Whether this step is the last of its epoch."""

    @property
    def num_samples(self) -> int | None:
        """The number of samples in this step on this rank, to scale its loss.

        The last step of an epoch may have fewer than the others. Padding does not count if the
        loader marks it. `None` if the number is unknown.
        """
        return self._walk.num_samples(everywhere=False)

    @property
    def num_samples_of_all_ranks(self) -> int | None:
        """The number of samples in this step on all ranks, if the loader has a plan.

        With gradients that are averaged over ranks, `loss.sum() * dp_size` divided by this gives
        every sample the same weight, also in a last step that is not full on all ranks.
        """
        return self._walk.num_samples(everywhere=self.dp_size > 1)

    def skip_steps(self, start: int, stop: int) -> None:
        """Skip the data of steps `[start, stop)`, for example around a loss spike.

        Call it on every rank, after `load_state_dict` and before the loop. The steps are those
        that the run would do next, in the current epoch. Their batches are never delivered, on any
        number of ranks; the step after them gets their numbers, so `step` still counts the steps
        of the optimizer. The state contains the skip.

        Args:
            start: The number of the first step to skip; the next step or a later one.
            stop: The number of the step after the last one to skip.

        Examples:
            >>> from feedline.steps import StepScheduler
            >>> from feedline.torch import DataLoader
            >>> loader = DataLoader(list(range(10)), batch_size=2)
            >>> scheduler = StepScheduler(dataloader=loader, num_epochs=1, preemption_signal=None)
            >>> scheduler.skip_steps(1, 3)
            >>> [(scheduler.step, batches[0].tolist()) for batches in scheduler]
            [(0, [0, 1]), (1, [6, 7]), (2, [8, 9])]
        """
        if self._walk.group is not None:
            raise InvalidValueError(
                f"start={start!r:.80} cannot be skipped during step {self._count.step}; call "
                "skip_steps before the loop, or load a state first"
            )
        step = self._count.step
        start = check_integer("start", start, step, remedy=f"the next step is step {step}")
        stop = check_integer("stop", stop, start + 1)
        self._walk.skip_steps(stop - start, start - step)
        self._allow_epochs()

    def _allow_epochs(self) -> None:
        """Allow as many epochs as `max_steps` needs, if their number was not given."""
        if self._are_epochs_given or self._step_limit is None:
            return
        if not self.epoch_len or not self._walk.has_plan:
            return
        self.num_epochs = enough_epochs(
            self._walk.epoch,
            self._step_limit - self._count.step,
            self._walk.num_steps_left(),
            self.epoch_len,
            at_least=self.num_epochs,
        )
