"""How long a run is, from what is given of it."""

from __future__ import annotations

from feedline.errors import InvalidValueError, check_integer

__all__ = ["_calculate_max_steps", "_calculate_num_epochs", "num_batches_of_step", "run_limits"]


def num_batches_of_step(global_batch_size: int, local_batch_size: int, dp_size: int) -> int:
    """Return how many batches of one rank make a step.

    Examples:
        >>> num_batches_of_step(global_batch_size=32, local_batch_size=4, dp_size=2)
        4
    """
    together = local_batch_size * dp_size
    if global_batch_size < together or global_batch_size % together:
        raise InvalidValueError(
            f"global_batch_size={global_batch_size} must be a multiple of local_batch_size * "
            f"dp_size = {local_batch_size} * {dp_size} = {together}; change one of them"
        )
    return global_batch_size // together


def run_limits(
    epoch_len: int | None, num_epochs: int | None, max_steps: int | None
) -> tuple[int, int]:
    """Return the number of steps and of epochs after which a run ends.

    Examples:
        >>> run_limits(epoch_len=10, num_epochs=None, max_steps=25)
        (25, 3)
    """
    if max_steps is None and epoch_len is None:
        raise InvalidValueError(
            "max_steps=None must be given for a dataloader without a length; set max_steps"
        )
    if epoch_len == 0:
        raise InvalidValueError(
            "dataloader has 0 batches but must have at least 1; use smaller batches or more data"
        )
    if num_epochs is None:
        num_epochs = _calculate_num_epochs(max_steps, epoch_len)
    num_epochs = check_integer("num_epochs", num_epochs, 1)
    if max_steps is None:
        max_steps = _calculate_max_steps(num_epochs, epoch_len)
    return max_steps, num_epochs


def _calculate_max_steps(
    num_epochs: int, epoch_len: int | None, default_max_steps: int = 9223372036854775807
) -> int:
    """Return the number of steps in so many epochs; the default if an epoch has no length.

    Examples:
        >>> _calculate_max_steps(num_epochs=3, epoch_len=10)
        30
    """
    return default_max_steps if epoch_len is None else num_epochs * epoch_len


def _calculate_num_epochs(
    max_steps: int | None, epoch_len: int | None, default_num_epochs: int = 10
) -> int:
    """Return how many epochs so many steps take; the default if either is not known.

    Examples:
        >>> _calculate_num_epochs(max_steps=25, epoch_len=10)
        3
    """
    if max_steps is None or not epoch_len:
        return default_num_epochs
    return -(-max_steps // epoch_len)
