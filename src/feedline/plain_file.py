"""Files that are opened only if they are plain: a pipe would wait forever, a device never ends."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

from feedline.errors import UnsafeDataError


def open_plain(path: str | os.PathLike[str]) -> BinaryIO:
    """Return a file to read from, or raise unless it is a plain one; a link to one is followed.

    Args:
        path: The file.

    Examples:
        >>> open_plain("/dev/null")
        Traceback (most recent call last):
            ...
        feedline.errors.UnsafeDataError: /dev/null: must be a file, not a folder, a pipe or \
a device
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _BINARY)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnsafeDataError(
                f"{os.fspath(path)}: must be a file, not a folder, a pipe or a device"
            )
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_plain(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the bytes of a plain file, or raise if they are more than `most`.

    Args:
        path: The file.
        most: The most bytes that it may have.
    """
    with open_plain(path) as file:
        # A buffer for `most` would be taken at once, however small the file is.
        size = os.fstat(file.fileno()).st_size
        found = file.read(min(size, most) + 1)
        if size < len(found) <= most:
            found += file.read(most + 1 - len(found))
    if len(found) > most:
        size = max(size, len(found))
        raise UnsafeDataError(f"{os.fspath(path)}: has {size} bytes but must have at most {most}")
    return found


_BINARY = getattr(os, "O_BINARY", 0)
