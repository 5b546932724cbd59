"""Paths from data files are untrusted: they must stay inside their folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from feedline.errors import DamagedDataError, MissingDataError, StoreError, UnsafeDataError

# The kernel reads ahead no more than about this much for one hint.
_HINT_BYTES = 2**20
_NUM_PROBES = 9


def check_relative(owner: Path, relative: object) -> str:
    """Return a path that the file `owner` names, or raise if it could be outside its folder."""
    if (
        not isinstance(relative, str)
        or not relative
        or "\0" in relative
        or "\\" in relative
        or relative.startswith("/")
        or (".." in relative and ".." in PurePosixPath(relative).parts)
        or (":" in relative and os.path.splitdrive(relative)[0])
    ):
        raise UnsafeDataError(
            f"{owner}: path={relative!r:.200} must be a relative path inside the folder, with "
            "forward slashes and without '..'"
        )
    return relative


def file_in(folder: Path, relative: str, *, may_be_folder: bool = False) -> Path:
    """Return the path of a regular file in `folder`, or raise; links must stay inside it."""
    path = folder / check_relative(folder, relative)
    if hasattr(folder, "tree"):
        # Remote files have no links, and whether one is there shows when it is opened.
        return path
    try:
        inside = os.path.realpath(folder)
        real = os.path.realpath(path)
        if os.path.commonpath([inside, real]) != inside:
            raise UnsafeDataError(
                f"{path}: is a link to {real}, outside its folder; copy the file into the folder"
            )
        mode = os.stat(real).st_mode
    except StoreError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise MissingDataError(f"{path}: does not exist; restore it or pack again") from None
    except UnicodeError:
        raise DamagedDataError(
            f"{folder}: path={relative!r:.200} is not a valid file name"
        ) from None
    except OSError as error:
        raise DamagedDataError(f"{path!s:.200}: cannot be accessed ({error.strerror})") from None
    if not (stat.S_ISREG(mode) or (may_be_folder and stat.S_ISDIR(mode))):
        raise UnsafeDataError(f"{path}: must be a regular file")
    return path


def files_of(path: Path) -> list[Path]:
    """Return the files of a chunk, in a fixed order: itself, or all in its folder.

    A link to outside the folder is an error.
    """
    if hasattr(path, "tree"):
        inside: Sequence[str] | None = getattr(path, "inside", None)
        return [path] if inside is None else [path / name for name in sorted(inside)]
    if not path.is_dir():
        return [path]
    names = [file.relative_to(path).as_posix() for file in path.rglob("*") if not file.is_dir()]
    return [file_in(path, name) for name in sorted(names)]


def size_of(path: Path) -> int:
    """Return the bytes of a file; a remote one is not fetched for it."""
    told: tuple[str, int, str] | None = getattr(path, "identity", None)
    return path.stat().st_size if told is None else told[1]


@contextmanager
def announced(paths: Sequence[Path]) -> Iterator[None]:
    """Have remote files fetched in the background; the first is needed no more afterwards."""
    remote: list[Any] = [path for path in paths if hasattr(path, "announce")]
    for path in remote:
        path.announce()
    try:
        yield
    except BaseException:
        for path in remote:
            path.release()
        raise
    if remote:
        remote[0].release()


def stamp_of(path: Path) -> int:
    """Return a number that changes when a chunk is replaced, or only touched; it reads nothing."""
    found = [file.stat() for file in files_of(path)]
    return hash(tuple((s.st_ino, s.st_size, s.st_mtime_ns) for s in found))


def is_cached(descriptor: int, size: int) -> bool:
    """Whether a file seems to be in the page cache: its ends and some places between are."""
    if not hasattr(os, "preadv") or not hasattr(os, "RWF_NOWAIT"):
        return False
    byte = bytearray(1)
    try:
        places = {size * part // (_NUM_PROBES - 1) for part in range(_NUM_PROBES)}
        return all(
            os.preadv(descriptor, [byte], min(place, size - 1), os.RWF_NOWAIT) for place in places
        )
    except OSError:  # it would have to wait, or the file system cannot say
        return False


def will_need(path: Path) -> None:
    """Ask the kernel to read a file, unless it seems to be in the page cache; does not wait."""
    if not hasattr(os, "posix_fadvise"):
        return
    with open(path, "rb", buffering=0) as opened:
        descriptor = opened.fileno()
        size = os.fstat(descriptor).st_size
        if is_cached(descriptor, size):
            return
        for start in range(0, size, _HINT_BYTES):
            os.posix_fadvise(descriptor, start, _HINT_BYTES, os.POSIX_FADV_WILLNEED)
