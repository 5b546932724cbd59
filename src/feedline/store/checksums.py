"""Checksums of whole files, and digests of parts of them that are cheap enough for every start."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from feedline.store.paths import file_in

__all__ = ["checksum_files", "digest_parts", "files_of"]

_BYTES_AT_ONCE = 2**20
_WHOLE_BYTES = 2**18
_PART_BYTES = 2**12
_NUM_PARTS = 16


def files_of(path: Path) -> list[Path]:
    """Return the files of a chunk, in a fixed order: itself, or all in its folder.

    A link that leads out of the folder is an error.
    """
    if not path.is_dir():
        return [path]
    names = [file.relative_to(path).as_posix() for file in path.rglob("*") if not file.is_dir()]
    return [file_in(path, name) for name in sorted(names)]


def checksum_files(
    files: Iterable[Path], on_bytes: Callable[[int], None] = lambda _: None
) -> tuple[str, int]:
    """Return the checksum of files, one after another, and the number of their bytes.

    `on_bytes` is told of every part that was read.
    """
    digest = hashlib.blake2b(digest_size=16)
    num_bytes = 0
    buffer = memoryview(bytearray(_BYTES_AT_ONCE))
    for path in files:
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                digest.update(buffer[:count])
                num_bytes += count
                on_bytes(count)
    return f"blake2b:{digest.hexdigest()}", num_bytes


def digest_parts(path: Path) -> str:
    """Return a digest of the size and of evenly spread parts of a file; of a small one, all.

    It tells files of other content apart, not one flipped bit in a large file: that is what
    checksums are for.
    """
    digest = hashlib.blake2b(digest_size=16)
    for file_path in files_of(path):
        digest.update(file_path.relative_to(path).as_posix().encode("utf-8", "surrogateescape"))
        with open(file_path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(size.to_bytes(8, "little"))
            if size <= _WHOLE_BYTES:
                digest.update(file.read(_WHOLE_BYTES))
                continue
            # The last part matters most: a zip file keeps the checksums of all its members there.
            for number in range(_NUM_PARTS + 1):
                offset = (size - _PART_BYTES) * number // _NUM_PARTS
                digest.update(os.pread(file.fileno(), _PART_BYTES, offset))
    return digest.hexdigest()
