"""Whether the bytes of a chunk are those that were written."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

from feedline.errors import DamagedDataError, MissingDataError
from feedline.store.checksums import checksum_files, files_of
from feedline.store.manifest import ChunkFile

__all__ = ["check_file"]

_BYTES_AT_ONCE = 2**20


def check_file(
    path: Path, recorded: ChunkFile, on_bytes: Callable[[int], None] = lambda _: None
) -> bool:
    """Read a chunk whole, and raise unless its bytes are those recorded.

    Without a recorded checksum, the ones inside a `.pt` file serve. Returns False where there is
    neither, so that nothing could be compared. `on_bytes` is told of every part that was read.
    """
    try:
        if recorded.checksum is not None:
            _compare(path, recorded, on_bytes)
        elif path.suffix in (".pt", ".pth"):
            _check_members(path, on_bytes)
        else:
            return False
    except FileNotFoundError:
        raise MissingDataError(f"{path}: there is no such file; restore it or pack again") from None
    except OSError as error:
        raise DamagedDataError(f"{path}: cannot be read ({error}); restore it") from None
    return True


def _compare(path: Path, recorded: ChunkFile, on_bytes: Callable[[int], None]) -> None:
    checksum, num_bytes = checksum_files(files_of(path), on_bytes)
    if recorded.num_bytes is not None and num_bytes != recorded.num_bytes:
        raise DamagedDataError(
            f"{path}: has {num_bytes} bytes and was written with {recorded.num_bytes}; it is cut "
            "short or was replaced, restore it or pack again"
        )
    if checksum != recorded.checksum:
        raise DamagedDataError(
            f"{path}: its bytes have changed since it was written (checksum {checksum}, recorded "
            f"{recorded.checksum}); restore it or pack again"
        )


def _check_members(path: Path, on_bytes: Callable[[int], None]) -> None:
    """Read every member of a zip file, which compares it with its CRC-32."""
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
                    raise DamagedDataError(
                        f"{path}: {member.filename!r:.80} is compressed or encrypted; it is damaged"
                    )
                with archive.open(member) as part:
                    while data := part.read(_BYTES_AT_ONCE):
                        on_bytes(len(data))
    except (zipfile.BadZipFile, RuntimeError, EOFError, ValueError) as error:
        if isinstance(error, DamagedDataError):
            raise
        raise DamagedDataError(
            f"{path}: is cut short or damaged ({error}); restore it or write it again"
        ) from None
