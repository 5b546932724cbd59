"""Every error that Feedline raises on purpose, and the checks that raise the commonest one.

    FeedlineError
    ├── InvalidValueError (ValueError)     an argument is outside its bounds
    │   ├── TailError                      tail="exact" and the samples do not fit
    │   └── EmptyEpochError                a fresh epoch would have no batch at all
    ├── CursorError (ValueError)           a cursor cannot be used
    │   ├── CursorFormatError              it is damaged, of another version, or not a cursor
    │   └── PlanMismatchError              it belongs to another plan
    ├── DesyncError (RuntimeError)         the ranks of a run do not agree
    ├── NotInitializedError (RuntimeError) a framework that must be initialized first is not
    ├── WorkerError (RuntimeError)         a worker of a loader was killed
    ├── SampleError (RuntimeError)         a sample cannot be decoded or transformed
    ├── StoreError                         data on disk cannot be used
    │   ├── MissingDataError (FileNotFoundError)   a file that should be there is not
    │   ├── DamagedDataError (ValueError)          a file does not hold what it should
    │   ├── UnsafeDataError (ValueError)           a file asks to run code or read elsewhere
    │   ├── RemoteError (RuntimeError)             a server does not give or take an object
    │   └── CacheError (RuntimeError)              a local cache cannot keep a file
    └── PackError (RuntimeError)           data could not be packed

Messages state the value, the bound and the remedy, in that order.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = [
    "CacheError",
    "CursorError",
    "CursorFormatError",
    "DamagedDataError",
    "DesyncError",
    "EmptyEpochError",
    "FeedlineError",
    "InvalidValueError",
    "MissingDataError",
    "NotInitializedError",
    "PackError",
    "PlanMismatchError",
    "RemoteError",
    "SampleError",
    "StoreError",
    "TailError",
    "UnsafeDataError",
    "WorkerError",
    "as_float",
    "check_choice",
    "check_integer",
    "check_positive",
    "check_sequence",
]


_LARGE = 2**31 - 1


class FeedlineError(Exception):
    """The root of the tree: catch it to catch everything Feedline raises on purpose."""


class InvalidValueError(FeedlineError, ValueError):
    """An argument is outside its bounds."""


class TailError(InvalidValueError):
    """With `tail="exact"`, the samples do not fill every batch on every rank."""


class EmptyEpochError(InvalidValueError):
    """A fresh epoch would have no batch at all."""


class CursorError(FeedlineError, ValueError):
    """A cursor cannot be used."""


class CursorFormatError(CursorError):
    """A cursor is damaged, of another version, or not a cursor."""


class _DifferenceError(FeedlineError):
    """An error with the fields that differ; pickling keeps them."""

    def __init__(self, message: str, differences: Mapping[str, Any] | None = None) -> None:
        super().__init__(message, dict(differences or {}))
        self.differences = dict(differences or {})

    def __str__(self) -> str:
        return str(self.args[0])


class PlanMismatchError(_DifferenceError, CursorError):
    """A cursor belongs to another plan.

    `differences` maps each differing field to the cursor's value and the plan's.

    Args:
        message: What differs, and what to do.
        differences: The cursor's value and the plan's, for each field that differs.
    """


class DesyncError(_DifferenceError, RuntimeError):
    """The ranks of a run do not agree about what they are about to do.

    `differences` maps each differing field to the values of all ranks.

    Args:
        message: What the ranks do not agree about, and what to do.
        differences: The values of all ranks, for each field that differs.
    """


class NotInitializedError(FeedlineError, RuntimeError):
    """A framework was named whose processes have not been initialized."""


class WorkerError(FeedlineError, RuntimeError):
    """A worker process of a loader was killed; the state is still at the last delivered batch."""


class SampleError(FeedlineError, RuntimeError):
    """A sample could not be decoded, or `sample_transform` failed; the message names it."""


class StoreError(FeedlineError):
    """Data on disk cannot be used; the message begins with the file."""


class MissingDataError(StoreError, FileNotFoundError):
    """A file that should be there is not."""


class DamagedDataError(StoreError, ValueError):
    """A file is not as expected: it is truncated, changed, or has another shape."""


class UnsafeDataError(StoreError, ValueError):
    """A file asks for something that data must not do: run code, or read outside its folder."""


class RemoteError(StoreError, RuntimeError):
    """A server does not give or take an object: rights, region, or faults that did not pass."""


class CacheError(StoreError, RuntimeError):
    """A local cache cannot keep a file: its disk is full, or all that it keeps is in use."""


class PackError(FeedlineError, RuntimeError):
    """Data could not be packed; what was finished is kept, and packing again resumes from it."""


def check_integer(
    name: str, value: Any, low: int | None, high: int | None = None, *, remedy: str = ""
) -> int:
    """Return `value` as an int in `[low, high]`, or raise an error that names the bound.

    None means no bound on that side.

    Args:
        name: The name of the argument.
        value: What was given.
        low: The least that it may be.
        high: The most that it may be.
        remedy: What to do about a number out of range.

    Examples:
        >>> check_integer("batch_size", 32, 1)
        32
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is not None and (low is None or low <= number) and (high is None or number <= high):
        return number
    # Bounds that only say how large an integer may be are shown where they are exceeded.
    if low is not None and low <= -_LARGE and (number is None or number >= low):
        low = None
    if high is not None and high >= _LARGE and (number is None or number <= high):
        high = None
    if high is not None and high >= _LARGE:
        low = None
    if low is None:
        bound = "" if high is None else f"at most {high}"
    else:
        bound = f"at least {low}" if high is None else f"in [{low}, {high}]"
    if number is None:
        bound = f"of {bound}" if bound.startswith("at") else bound
        shown, bound = f"{value!r:.80}", f"an integer {bound}".rstrip()
    else:
        # Python refuses to write very long integers in decimal.
        shown = f"{number}" if number.bit_length() <= 4096 else f"{number:#x}"[:40] + "…"
    hint = f"; {remedy}" if remedy else ""
    raise InvalidValueError(f"{name}={shown} must be {bound}{hint}")


def check_sequence(name: str, value: Any) -> tuple[Any, ...]:
    """Return the entries of a list, or raise an error that shows what was given instead.

    Args:
        name: The name of the argument.
        value: What was given.

    Examples:
        >>> check_sequence("sizes", [1, 2])
        (1, 2)
    """
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return tuple(value)
    raise InvalidValueError(f"{name}={value!r:.80} must be a list")


def check_positive(name: str, value: Any, *, remedy: str = "") -> float:
    """Return `value` as a finite float above zero, or raise.

    Args:
        name: The name of the argument.
        value: What was given.
        remedy: What to do about a wrong number.

    Examples:
        >>> check_positive("temperature", 2)
        2.0
    """
    try:
        number = as_float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number <= 0:
        hint = f"; {remedy}" if remedy else ""
        raise InvalidValueError(f"{name}={value!r:.80} must be finite and above 0{hint}")
    return number


def as_float(value: Any) -> float:
    """Return a number as a float, infinite if it is too large; text is not a number.

    Args:
        value: What was given.
    """
    if isinstance(value, str | bytes):
        raise TypeError(f"{value!r:.80} is text, not a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def check_flag(name: str, value: Any) -> bool:
    """Return `value` if it is True or False, or raise: a text such as "no" would count as true.

    Args:
        name: The name of the argument.
        value: What was given.

    Examples:
        >>> check_flag("shuffle", True)
        True
    """
    if value is True or value is False or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise InvalidValueError(f"{name}={value!r:.80} must be True or False")


def check_callable(name: str, value: Any) -> None:
    """Raise unless `value` is a function or None.

    Args:
        name: The name of the argument.
        value: What was given.
    """
    if value is not None and not callable(value):
        raise InvalidValueError(f"{name}={value!r:.80} must be a function")


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return `value` if it is one of `choices`, or raise an error that lists them.

    Args:
        name: The name of the argument.
        value: What was given.
        choices: What may be given.

    Examples:
        >>> check_choice("tail", "drop", ("drop", "pad"))
        'drop'
    """
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise InvalidValueError(f"{name}={value!r} must be one of {listed}")
    return value
