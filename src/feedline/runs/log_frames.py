"""The frames of a log: a header line, and records that show when they were cut short or altered.

The first line is JSON with a checksum of its own. Each record after it is a length, a checksum of
the length, a checksum of the content, and the content. A file that ends inside of a record was cut
short there, as when its writer was killed; a length that was altered does not look like that,
because its own checksum tells.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

from feedline.errors import DamagedDataError, InvalidValueError, MissingDataError, StoreError

FORMAT = "feedline-log-1"
MAX_CONTENT = 2**28
_MAX_HEADER = 2**20
_PREFIX = struct.Struct("<III")
_LENGTH = struct.Struct("<I")
_START = f'{{"format":"{FORMAT}",'.encode()


def framed(content: bytes) -> bytes:
    """Return a record with this content."""
    size = len(content)
    return _PREFIX.pack(size, crc32(_LENGTH.pack(size)), crc32(content)) + content


def header_line(fields: dict[str, Any]) -> bytes:
    """Return the first line of a log."""
    text = _as_json({"format": FORMAT, **fields})
    line = f'{text[:-1]},"crc32":"{crc32(text.encode()):08x}"}}\n'.encode()
    if len(line) > _MAX_HEADER:
        raise InvalidValueError(
            f"info takes {len(line)} bytes but must fit into {_MAX_HEADER}; leave out what is large"
        )
    return line


def is_log(path: Path) -> bool:
    """Whether a file begins as a log does."""
    with opened(path) as file:
        return file.read(len(_START)) == _START


def read_header(path: Path) -> dict[str, Any]:
    """Return the fields of the first line."""
    with opened(path) as file:
        return _header_of(path, file)


def read_frames(path: Path, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield where each record ends, and its content; a last one that was cut short is left out.

    Args:
        path: The log.
        start: Where a record ends, to begin after it; by default after the header.
        stop: Where to stop; by default at the end of the file.
    """
    with opened(path) as file:
        place = start
        if start:
            file.seek(start)
        else:
            _header_of(path, file)
            place = file.tell()
        end = os.fstat(file.fileno()).st_size
        end = end if stop is None else min(stop, end)
        while end - place >= _PREFIX.size:
            size, size_check, content_check = _PREFIX.unpack(file.read(_PREFIX.size))
            # Before the length is believed: it decides how much is read.
            if crc32(_LENGTH.pack(size)) != size_check or size > MAX_CONTENT:
                raise damaged(path, place, "has a length that was altered")
            if size > end - place - _PREFIX.size:
                return
            content = file.read(size)
            if crc32(content) != content_check:
                raise damaged(path, place, "does not have its checksum")
            place += _PREFIX.size + size
            yield place, content


def damaged(path: Path, place: int, fault: str) -> DamagedDataError:
    """Return the error for a record that is not what was written."""
    return DamagedDataError(
        f"{path}: the record at byte {place} {fault}; restore the file from a copy, or leave out "
        "this log"
    )


def opened(path: Path) -> BinaryIO:
    """Return a file to read from, or raise an error that names it."""
    try:
        return open(path, "rb")
    except FileNotFoundError:
        raise MissingDataError(f"{path}: there is no such log") from None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror or error})") from None


def _header_of(path: Path, file: BinaryIO) -> dict[str, Any]:
    line = file.readline(_MAX_HEADER)
    if not line.startswith(_START):
        raise DamagedDataError(f"{path}: does not begin as a log of feedline; this is another file")
    try:
        fields = json.loads(line) if line.endswith(b"\n") else {}
        check = fields.pop("crc32", None)
        is_whole = check == f"{crc32(_as_json(fields).encode()):08x}"
    except (ValueError, RecursionError):
        is_whole = False
    if not is_whole:
        raise DamagedDataError(
            f"{path}: the header, in line 1, was altered or cut short; restore the file from a "
            "copy, or leave out this log"
        )
    del fields["format"]
    return dict(fields)


def _as_json(fields: dict[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"))
