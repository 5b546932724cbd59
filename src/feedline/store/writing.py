"""Writing to disk: errors with a remedy, and data that survives a power failure."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from feedline.errors import FeedlineError, PackError
from feedline.store.paths import files_of

_GO_ON = "finished work is kept; free some space or repair the disk, and pack again to resume"


@contextmanager
def reported(path: Path, *, remedy: str = _GO_ON) -> Iterator[None]:
    """Turn a failure of the operating system into an error that names the file and the remedy."""
    try:
        yield
    except FeedlineError:
        # Some are failures of the operating system too, and name the file and the remedy already.
        raise
    except OSError as error:
        raise PackError(
            f"{error.filename or path}: cannot be written ({error.strerror or error}); {remedy}"
        ) from None


@contextmanager
def open_whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing; it appears when all of it is on disk, or not at all."""
    unfinished = path.with_name(path.name + ".new")
    try:
        with open(unfinished, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def sync(paths: Iterable[Path]) -> None:
    """Wait until files, or the lists of files in folders, are on disk."""
    for path in paths:
        if os.name == "nt" and path.is_dir():
            continue  # Windows cannot open folders, and keeps their lists safe by itself.
        descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_chunk(path: Path) -> None:
    """Wait until a chunk, which may be a folder, is on disk."""
    files = files_of(path)
    sync(files)
    if path.is_dir():
        sync({parent for file in files for parent in file.parents if parent.is_relative_to(path)})


def remove(path: Path) -> None:
    """Remove a file or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
