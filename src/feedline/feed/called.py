"""Calls of the user's own functions in the middle of a pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feedline.errors import InvalidValueError, SampleError


def called(name: str, function: Callable[[Any], Any] | None, value: Any) -> Any:
    """Return what a function makes of a value; its StopIteration is an error, and ends no pass.

    Args:
        name: What the user knows the function as.
        function: The function; None for nothing.
        value: What it is called with.

    Examples:
        >>> called("transform", len, [1, 2])
        2
    """
    try:
        return value if function is None else function(value)
    except StopIteration as error:
        raise stopped(name) from error


def stopped(name: str) -> SampleError:
    """Return the error in place of a StopIteration that would end a pass before its last batch."""
    return SampleError(
        f"{name} raised StopIteration, which would end the pass before its last batch; raise "
        "another error, and give next() a second argument: next(iterator, None)"
    )


def interrupted() -> InvalidValueError:
    """Return the error of an iterator that has lost the batch that it made when it was stopped."""
    return InvalidValueError(
        "this iterator was interrupted while it made a batch, which it would leave out; call "
        "loader.load_state_dict(loader.state_dict()) and begin another, which goes on where the "
        "loop is"
    )
