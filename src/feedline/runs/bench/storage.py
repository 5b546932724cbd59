"""The files of a store, read front to back: cold, warm, and past the page cache."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import NamedTuple

from feedline.errors import StoreError
from feedline.runs.bench.page_cache import drop_from_cache
from feedline.runs.bench.timing import Done, repeated
from feedline.store import FolderStore, Store, TokenStore
from feedline.store.paths import file_in, files_of
from feedline.store.shards import ShardStore

_PIECE_BYTES = 2**22
_MOST_BYTES = 2**31
_MOST_PIECES = 2**13


class Piece(NamedTuple):
    """A part of a file that is read at once."""

    path: Path
    start: int
    num_bytes: int


def data_files(store: Store, path: Path) -> list[Path]:
    """Return the files that hold a store's samples, without empty ones, in a fixed order.

    Args:
        store: The store.
        path: Where it was opened.
    """
    if isinstance(store, FolderStore):
        names = [store.manifest.file(number).path for number in range(len(store.manifest))]
        chunks = [file_in(store.folder, name, may_be_folder=True) for name in names]
        found = [file for chunk in chunks for file in files_of(chunk)]
    elif isinstance(store, ShardStore):
        found = list(store.shards.files)
    elif isinstance(store, TokenStore):
        found = [store.path]
    else:
        found = files_of(path)
    files = [file for file in found if file.stat().st_size]
    if not files:
        raise StoreError(f"{path}: has 0 files with data and must have at least 1; pack again")
    return files


def files_of_chunks(store: Store, chunks: Iterable[int], files: list[Path]) -> list[Path]:
    """Return those of a store's files that some chunks are in; all, if that is unknown.

    Args:
        store: The store.
        chunks: The chunks.
        files: All files with data.
    """
    if isinstance(store, FolderStore):
        found = {file for chunk in chunks for file in store.files_of_chunk(chunk)}
    elif isinstance(store, ShardStore):
        found = {file for chunk in chunks for file in store.shards.files_of(chunk)}
    else:
        found = set()
    return [file for file in files if file in found] or files


class Storage:
    """Reads files in threads.

    Args:
        files: The files.
        num_threads: The number of threads.
        most_bytes: The bytes of the files to read; of more, some files are read.
    """

    def __init__(
        self, files: Sequence[Path], num_threads: int, most_bytes: int = _MOST_BYTES
    ) -> None:
        self.files = files
        self._num_threads = num_threads
        self._pieces = _pieces_of(files, sum_of_sizes(files), most_bytes)
        self._read: list[Piece] = []

    def cold(self, seconds: float) -> Done | str:
        """Return what is read of files that are not in the page cache, or why none is."""
        done, start = Done(0, 0.0), perf_counter()
        while not done.amount or perf_counter() - start < seconds:
            reason = drop_from_cache(self.files)
            if reason is not None:
                return done if done.amount else reason
            pieces = _Shared(self._pieces)
            done += self._reading(pieces, seconds - (perf_counter() - start))
            self._read = self._pieces[: pieces.num_taken]
        return done

    def warm(self, seconds: float) -> Done:
        """Return what is read again, from the page cache."""
        if not self._read:
            pieces = _Shared(self._pieces)
            self._reading(pieces, seconds)
            self._read = self._pieces[: pieces.num_taken]
        return self._reading(_Shared(self._read, is_endless=True), seconds)

    def direct(self, seconds: float) -> Done | str:
        """Return what is read past the page cache, or why nothing is."""
        flag = getattr(os, "O_DIRECT", None)
        if flag is None:
            return "this system has no direct I/O"
        try:
            return self._reading(_Shared(self._pieces, is_endless=True), seconds, flag)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            return "this file system has no direct I/O"

    def _reading(self, pieces: _Shared, seconds: float, flag: int = 0) -> Done:
        # Mapped, because direct I/O needs memory that begins at a page.
        memories = [mmap.mmap(-1, _PIECE_BYTES) for _ in range(self._num_threads)]

        def read(thread: int) -> int:
            piece = pieces.take()
            return 0 if piece is None else _read(piece, memories[thread], flag)

        try:
            return repeated(read, self._num_threads, seconds)
        finally:
            for memory in memories:
                memory.close()


def sum_of_sizes(files: Iterable[Path]) -> int:
    """Return the bytes of some files."""
    return sum(file.stat().st_size for file in files)


class _Shared:
    """Pieces that threads take one after another."""

    def __init__(self, pieces: Sequence[Piece], *, is_endless: bool = False) -> None:
        self._pieces = pieces
        self._is_endless = is_endless
        self._lock = Lock()
        self.num_taken = 0

    def take(self) -> Piece | None:
        """Return the next piece; None if there is none."""
        with self._lock:
            if self.num_taken >= len(self._pieces) and not self._is_endless:
                return None
            self.num_taken += 1
            return self._pieces[(self.num_taken - 1) % len(self._pieces)]


def _read(piece: Piece, memory: mmap.mmap, flag: int) -> int:
    opener: Callable[[str, int], int] = lambda path, flags: os.open(path, flags | flag)  # noqa: E731
    # Whole pages: the end of a file may be within one.
    num_bytes = min(len(memory), -(-piece.num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
    with open(piece.path, "rb", buffering=0, opener=opener) as file, memoryview(memory) as view:
        file.seek(piece.start)
        with view[:num_bytes] as part:
            found = file.readinto(part) or 0
    if found < piece.num_bytes:
        raise StoreError(
            f"{piece.path}: has fewer bytes than before; wait until nobody writes to it"
        )
    return piece.num_bytes


def _pieces_of(files: Sequence[Path], total: int, most_bytes: int) -> list[Piece]:
    """Return the pieces of all files, or of files spread over the data if there are too many."""
    share = max(total / most_bytes, len(files) / _MOST_PIECES, 1.0)
    step = min(len(files), int(share))
    pieces = (piece for file in files[::step] for piece in _cut(file))
    found, num_bytes = [], 0
    for piece in pieces:
        found.append(piece)
        num_bytes += piece.num_bytes
        if num_bytes >= most_bytes or len(found) >= _MOST_PIECES:
            break
    return found


def _cut(file: Path) -> Iterator[Piece]:
    size = file.stat().st_size
    for start in range(0, size, _PIECE_BYTES):
        yield Piece(file, start, min(_PIECE_BYTES, size - start))
