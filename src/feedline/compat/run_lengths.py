"""The length of a run, under the function names of other step schedulers."""

from __future__ import annotations


def _calculate_max_steps(
    num_epochs: int, epoch_len: int | None, default_max_steps: int = 9223372036854775807
) -> int:
    """Return the number of steps in some epochs; the default if an epoch has no length.

    Args:
        num_epochs: The number of epochs.
        epoch_len: The number of steps of an epoch, if known.
        default_max_steps: What is returned where it is not known.

    Examples:
        >>> _calculate_max_steps(num_epochs=3, epoch_len=10)
        30
    """
    return default_max_steps if epoch_len is None else num_epochs * epoch_len


def _calculate_num_epochs(
    max_steps: int | None, epoch_len: int | None, default_num_epochs: int = 10
) -> int:
    """Return the number of epochs for some steps; the default if either is unknown.

    Args:
        max_steps: The number of steps, if known.
        epoch_len: The number of steps of an epoch, if known.
        default_num_epochs: What is returned where either is not known.

    Examples:
        >>> _calculate_num_epochs(max_steps=25, epoch_len=10)
        3
    """
    if max_steps is None or not epoch_len:
        return default_num_epochs
    return -(-max_steps // epoch_len)
