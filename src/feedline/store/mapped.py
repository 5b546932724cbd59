"""Mapped files: bytes that are read when touched, and arrays over parts of them.

Every offset and shape comes from a file, so it is not trusted: it is checked with Python's
integers, which cannot overflow, before numpy sees it.
"""

from __future__ import annotations

import math
import mmap
import os
import stat
from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, MissingDataError, StoreError, UnsafeDataError
from feedline.words import several

_MAX_AXES = 32
_MAX_NUMBER = 2**62
# Every mapping keeps a file open, and a process may have few of these.
_SHARED: WeakValueDictionary[tuple[Any, ...], NDArray[np.uint8]] = WeakValueDictionary()


def map_file(path: Path) -> NDArray[np.uint8]:
    """Return all bytes of a regular file, mapped and read-only."""
    try:
        with open(path, "rb", buffering=0, opener=open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise UnsafeDataError(f"{path}: must be a regular file")
            if status.st_size == 0:
                return _empty((0,), np.dtype(np.uint8))
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise MissingDataError(f"{path}: does not exist; restore it or pack again") from None
    except IsADirectoryError:
        raise UnsafeDataError(f"{path}: must be a regular file") from None
    except StoreError:
        raise
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: cannot be mapped ({error}); check that it is readable") from None
    return np.frombuffer(mapped, np.uint8)


def map_shared(path: Path) -> NDArray[np.uint8]:
    """Return all bytes of a file that many chunks are read from: open ones share one mapping."""
    try:
        status = os.stat(path)
    except OSError:
        # It is gone or cannot be read, as the following says.
        return map_file(path)
    key = (str(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    found = _SHARED.get(key)
    if found is None:
        found = _SHARED[key] = map_file(path)
    return found


def view(
    bytes_: NDArray[np.uint8],
    *,
    path: Path,
    what: str,
    dtype: np.dtype[Any],
    shape: Sequence[int],
    offset: int,
    strides: Sequence[int] | None = None,
    is_fortran: bool = False,
) -> NDArray[Any]:
    """Return an array over a part of a mapped file, or raise if any of it is outside the file.

    `what` names the array in errors. `offset` and `strides` are in bytes and need not be aligned;
    without strides the array is in C order, or in Fortran's. Strides of 0 repeat values, but one
    entry of the first axis must still fit into the file: otherwise a small file could ask for any
    amount of memory.
    """
    if dtype.hasobject:
        raise UnsafeDataError(f"{path}: {what!r} has dtype {dtype} and must have numbers only")
    shape = _check_numbers(path, what, "shape", shape)
    (offset,) = _check_numbers(path, what, "offset", (offset,))
    if strides is None:
        sizes = shape if is_fortran else shape[::-1]
        counted = tuple(accumulate(sizes[:-1], mul, initial=dtype.itemsize))[: len(shape)]
        strides = counted if is_fortran else counted[::-1]
    else:
        strides = _check_numbers(path, what, "strides", strides)
    if len(strides) != len(shape):
        raise DamagedDataError(
            f"{path}: {what!r} has {several(len(shape), 'axis', 'axes')} but "
            f"{several(len(strides), 'stride')}, and must have equally many; it is damaged; write "
            "this chunk again"
        )
    is_empty = 0 in shape
    steps = zip(shape, strides, strict=True)
    reach = dtype.itemsize + sum((size - 1) * stride for size, stride in steps)
    needed = 0 if is_empty else reach
    if offset + needed > bytes_.size:
        raise DamagedDataError(
            f"{path}: {what!r} needs bytes [{offset}, {offset + needed}) but the file has "
            f"{bytes_.size}; it is truncated or damaged; write this chunk again"
        )
    row_bytes = dtype.itemsize * math.prod(shape[1:])
    if not is_empty and row_bytes > bytes_.size:
        raise DamagedDataError(
            f"{path}: each sample of {what!r} has {several(row_bytes, 'byte')} but the file has "
            f"{bytes_.size}; write this chunk again with values that are not repeated by strides"
        )
    try:
        if is_empty:
            return _empty(shape, dtype)
        return np.ndarray(shape, dtype, buffer=bytes_.data, offset=offset, strides=strides)
    except (ValueError, OverflowError) as error:
        # For example a size of 0 next to sizes whose product numpy cannot count.
        raise DamagedDataError(
            f"{path}: {what!r} has shape {shape!s:.200}, which numpy cannot hold ({error}); write "
            "this chunk again"
        ) from None


def open_without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe, which would wait for its writer forever, does not wait."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    array: NDArray[Any] = np.empty(shape, dtype)
    array.flags.writeable = False
    return array


def _check_numbers(path: Path, what: str, name: str, numbers: Sequence[Any]) -> tuple[int, ...]:
    if len(numbers) > _MAX_AXES:
        raise DamagedDataError(
            f"{path}: {what!r} has {name} with {several(len(numbers), 'axis', 'axes')} and must "
            f"have at most {_MAX_AXES}; write this chunk again"
        )
    for number in numbers:
        if type(number) is not int or not 0 <= number <= _MAX_NUMBER:
            # Python refuses to write very long integers in decimal.
            is_long = type(number) is int and number.bit_length() > 200
            shown = hex(number)[:40] + "…" if is_long else f"{number!r:.80}"
            raise DamagedDataError(
                f"{path}: {what!r} has {name} with {shown}, which must be an integer in [0, "
                "2**62]; it is damaged; write this chunk again"
            )
    return tuple(numbers)
