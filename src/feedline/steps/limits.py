"""The length of a run, in steps and epochs."""

from __future__ import annotations

from typing import Any, NamedTuple

from feedline.errors import InvalidValueError, check_integer
from feedline.feed import ForeignLoader, Loader, Peers


class StepSizes(NamedTuple):
    """The samples in a step over all ranks, the samples in a batch on one rank, and the ranks."""

    global_batch_size: int
    local_batch_size: int
    dp_size: int

    @property
    def num_batches(self) -> int:
        """The number of batches of one rank in a step."""
        return self.global_batch_size // (self.local_batch_size * self.dp_size)


class RunLimits(NamedTuple):
    """The steps of an epoch, if they are known, and the steps and epochs after which a run ends."""

    epoch_len: int | None
    max_steps: int
    num_epochs: int


def step_sizes(
    loader: Loader[Any] | None,
    peers: Peers,
    global_batch_size: int | None,
    local_batch_size: int | None,
    dp_size: int | None,
) -> StepSizes:
    """Return the given sizes, checked against the loader, and the others from the loader.

    Examples:
        >>> from feedline.feed import Alone
        >>> step_sizes(None, Alone(), 32, 4, None).num_batches
        8
    """
    dp_size = _num_ranks(loader, peers, dp_size)
    local_batch_size = _batch_size(loader, local_batch_size)
    together = local_batch_size * dp_size
    if global_batch_size is None:
        global_batch_size = together
    if check_integer("global_batch_size", global_batch_size, 1) % together:
        raise InvalidValueError(
            f"global_batch_size={global_batch_size} must be a multiple of local_batch_size * "
            f"dp_size = {local_batch_size} * {dp_size} = {together}; change one of them"
        )
    return StepSizes(global_batch_size, local_batch_size, dp_size)


def _num_ranks(loader: Loader[Any] | None, peers: Peers, given: int | None) -> int:
    size = peers.world_size if loader is None else loader.peers.world_size
    if given is None:
        return size
    given = check_integer("dp_size", given, 1)
    # Only processes are known then, and some may share their data, as in tensor parallelism.
    is_unknown = loader is None or (isinstance(loader, ForeignLoader) and loader.peers is peers)
    if size % given if is_unknown else size != given:
        raise InvalidValueError(
            f"dp_size={given} must be {'a divisor of ' if is_unknown else ''}{size}, the number of "
            f"{'processes' if is_unknown else 'ranks of the loader'}; omit dp_size, or initialize "
            "a process group of that size first"
        )
    return given


def _batch_size(loader: Loader[Any] | None, given: int | None) -> int:
    known = None if loader is None else loader.batch_size
    if given is None and known is None:
        raise InvalidValueError(
            "local_batch_size is required when the loader has no batch size; pass the number of "
            "samples in a batch on one rank"
        )
    size = check_integer("local_batch_size", known if given is None else given, 1)
    if known is not None and size != known:
        raise InvalidValueError(
            f"local_batch_size={size} must be {known}, the loader's batch size; omit "
            "local_batch_size, or change one of them"
        )
    return size


def epoch_length(loader: Loader[Any] | None, sizes: StepSizes) -> int | None:
    """Return the number of steps in an epoch of a loader, or `None` if it has no length."""
    try:
        return None if loader is None else -(-len(loader) // sizes.num_batches)
    except TypeError:
        return None


def run_limits(epoch_len: int | None, num_epochs: int | None, max_steps: int | None) -> RunLimits:
    """Return the number of steps and of epochs after which a run ends.

    Examples:
        >>> run_limits(epoch_len=10, num_epochs=None, max_steps=25)
        RunLimits(epoch_len=10, max_steps=25, num_epochs=3)
    """
    if max_steps is None and epoch_len is None:
        raise InvalidValueError(
            "max_steps is required when the loader has no length; pass the number of steps"
        )
    if epoch_len == 0:
        raise InvalidValueError(
            "dataloader has 0 batches but must have at least 1; use smaller batches or more data"
        )
    if num_epochs is None:
        num_epochs = 10 if max_steps is None or epoch_len is None else -(-max_steps // epoch_len)
    num_epochs = check_integer("num_epochs", num_epochs, 1)
    if max_steps is None:
        assert epoch_len is not None
        max_steps = num_epochs * epoch_len
    return RunLimits(epoch_len, max_steps, num_epochs)


def enough_epochs(
    epoch: int, num_steps: int, steps_left: int, epoch_len: int, *, at_least: int
) -> int:
    """Return the number of epochs that a run needs for `num_steps` more steps.

    Args:
        epoch: The current epoch.
        num_steps: The number of steps to come.
        steps_left: Those that the current epoch has left.
        epoch_len: Those of a whole epoch.
        at_least: The number of epochs that the run has anyway.

    Examples:
        >>> enough_epochs(1, 12, steps_left=5, epoch_len=10, at_least=2)
        3
    """
    more = max(0, num_steps - steps_left)
    return max(at_least, epoch + 1 + -(-more // epoch_len))
