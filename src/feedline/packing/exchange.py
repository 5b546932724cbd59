"""Two folders change places in one step, so that a path never leads nowhere in between."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_RENAME_SWAP = 2
# Of a system or a file system that cannot do it.
_UNABLE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def exchange(one: Path, other: Path) -> bool:
    """Let two paths on one disk change places; return False if the system cannot do it at once."""
    call = _system_call()
    if call is None:
        return False
    if call(os.fsencode(one), os.fsencode(other)) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNABLE:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


@cache
def _system_call() -> Callable[[bytes, bytes], int] | None:
    if os.name != "posix":
        return None
    library = ctypes.CDLL(None, use_errno=True)
    if hasattr(library, "renameat2"):  # Linux
        call = library.renameat2
        return lambda one, other: int(call(_AT_FDCWD, one, _AT_FDCWD, other, _RENAME_EXCHANGE))
    if hasattr(library, "renamex_np"):  # macOS
        swap = library.renamex_np
        return lambda one, other: int(swap(one, other, _RENAME_SWAP))
    return None
