"""Checksums of whole files, their comparison, and cheap digests."""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from feedline.errors import DamagedDataError, MissingDataError
from feedline.store.manifest import ChunkFile
from feedline.store.paths import files_of
from feedline.words import several

_BYTES_AT_ONCE = 2**20
_WHOLE_BYTES = 2**18
_PART_BYTES = 2**12
_NUM_PARTS = 16


def checksum_files(
    files: Iterable[Path], on_bytes: Callable[[int], None] = lambda _: None
) -> tuple[str, int]:
    """Return the checksum of files, in order, and their number of bytes.

    `on_bytes` is called for every part that was read.
    """
    digest = hashlib.blake2b(digest_size=16)
    num_bytes = 0
    for path in files:
        for piece in _pieces_of(path):
            digest.update(piece)
            num_bytes += len(piece)
            on_bytes(len(piece))
    return f"blake2b:{digest.hexdigest()}", num_bytes


def sums_of_files(files: Iterable[Path]) -> tuple[str, list[tuple[int, str]]]:
    """Return the checksum of files, in order, and the bytes and the CRC-32 of each.

    A CRC-32 takes a fifth of the time, and that of a whole can be made of those of its parts.
    """
    digest = hashlib.blake2b(digest_size=16)
    found = []
    for path in files:
        num_bytes, crc = 0, 0
        for piece in _pieces_of(path):
            digest.update(piece)
            crc = zlib.crc32(piece, crc)
            num_bytes += len(piece)
        found.append((num_bytes, f"{crc:08x}"))
    return f"blake2b:{digest.hexdigest()}", found


def _pieces_of(path: Path) -> Iterator[memoryview]:
    """Yield the bytes of a file; a piece is valid until the next one."""
    buffer = memoryview(bytearray(_BYTES_AT_ONCE))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            yield buffer[:count]


def digest_texts(parts: Iterable[str], size: int = 8) -> str:
    """Return a digest of texts, for fingerprints."""
    digest = hashlib.blake2b(digest_size=size, person=b"feedline.store.1")
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def digest_parts(path: Path) -> str:
    """Return a digest of the size and of evenly spread parts of a file; of a small one, all.

    It detects files with other content, but not one flipped bit in a large file: use checksums for
    that.
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


def check_file(
    path: Path, recorded: ChunkFile, on_bytes: Callable[[int], None] = lambda _: None
) -> bool:
    """Read a whole chunk, and raise unless its bytes match the recorded checksum.

    Without a recorded checksum, those inside a `.pt` file are used. Returns False if there is
    neither, so that only sizes were compared. `on_bytes` is called for every part that was read.
    """
    try:
        files = files_of(path)
        num_bytes = sum(file.stat().st_size for file in files)
        if recorded.num_bytes is not None and num_bytes != recorded.num_bytes:
            raise DamagedDataError(
                f"{path}: has {several(num_bytes, 'byte')} and was written with "
                f"{recorded.num_bytes}; it is truncated or was replaced; restore it or pack again"
            )
        if recorded.checksum is not None:
            checksum, _ = checksum_files(files, on_bytes)
            if checksum != recorded.checksum:
                raise DamagedDataError(
                    f"{path}: its contents have changed since it was written (checksum {checksum}, "
                    f"recorded {recorded.checksum}); restore it or pack again"
                )
        elif path.suffix in (".pt", ".pth"):
            _check_members(path, on_bytes)
        else:
            return False
    except FileNotFoundError:
        raise MissingDataError(f"{path}: does not exist; restore it or pack again") from None
    except OSError as error:
        raise DamagedDataError(f"{path}: cannot be read ({error}); restore it") from None
    return True


def _check_members(path: Path, on_bytes: Callable[[int], None]) -> None:
    """Read every member of a zip file, which checks its CRC-32."""
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
                    raise DamagedDataError(
                        f"{path}: {member.filename!r:.80} is compressed or encrypted, which "
                        "torch.save never writes; restore it or write it again"
                    )
                with archive.open(member) as part:
                    while data := part.read(_BYTES_AT_ONCE):
                        on_bytes(len(data))
    except (zipfile.BadZipFile, RuntimeError, EOFError, ValueError) as error:
        if isinstance(error, DamagedDataError):
            raise
        raise DamagedDataError(
            f"{path}: is truncated or damaged ({error}); restore it or write it again"
        ) from None
