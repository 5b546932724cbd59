"""How the suites compare values, and how they say what is broken."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from feedline.store import Lists


def fail(what: str) -> NoReturn:
    """Raise an AssertionError."""
    raise AssertionError(what)


def is_equal(one: Any, other: Any) -> bool:
    """Whether two values of a column are equal, bit for bit.

    Examples:
        >>> is_equal(np.array([np.nan]), np.array([np.nan])), is_equal(b"a", b"b")
        (True, False)
    """
    if isinstance(one, Lists) or isinstance(other, Lists):
        return (
            isinstance(one, Lists)
            and isinstance(other, Lists)
            and np.array_equal(one.lengths, other.lengths)
            and is_equal(np.ascontiguousarray(one.values), np.ascontiguousarray(other.values))
        )
    if isinstance(one, np.ndarray | np.generic):
        return (
            isinstance(other, np.ndarray | np.generic)
            and (one.dtype, one.shape) == (other.dtype, other.shape)
            and one.tobytes() == other.tobytes()
        )
    return bool(one == other)
