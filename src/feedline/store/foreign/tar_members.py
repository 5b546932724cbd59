"""The members of a tar file: their names, and where their bytes are.

Written for data that is not trusted. Only plain files are told of. Names are bytes that nobody uses
as paths, so a name such as `../x` does no harm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, StoreError, UnsafeDataError

_BLOCK = 512
_BYTES_BETWEEN_CALLS = 2**22
_EMPTY = bytes(_BLOCK)
# Names are bounded by what systems allow, and pax headers hold little more.
_MAX_EXTENSION_BYTES = 2**20
_OCTAL = re.compile(rb"[0-7]+\Z")
_PLAIN = (b"0", b"\0", b"7")
_EXTENSIONS = (b"L", b"K", b"x", b"X", b"g")
_REFUSED = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a pipe",
    b"S": "a sparse file",
    b"M": "the rest of a file in another volume",
}


class Member(NamedTuple):
    """A plain file in a tar file."""

    name: bytes
    start: int
    num_bytes: int


def is_header(block: bytes) -> bool:
    """Whether a block is the header of a member: its checksum is right."""
    if len(block) != _BLOCK:
        return False
    field = block[148:156]
    found = _number(field)
    # The sum counts its own field as spaces. Some old writers have summed signed bytes.
    unsigned = sum(block) - sum(field) + 8 * 32
    if found is None or found == unsigned:
        return found is not None
    return found == unsigned - 256 * sum(byte > 127 for byte in block[:148] + block[156:])


def members_of(
    path: Path, memory: NDArray[np.uint8], on_bytes: Callable[[int], None] = lambda _: None
) -> Iterator[Member]:
    """Yield the plain files of a tar file, or raise at what cannot be read as one.

    `on_bytes` is called for every part that was passed.
    """
    content = memory.data
    at = told = 0
    given: dict[bytes, bytes] = {}  # what an extension said about the next member
    while True:
        block = content[at : at + _BLOCK].tobytes()
        if block == _EMPTY:
            break
        if len(block) < _BLOCK:
            raise DamagedDataError(
                f"{path}: ends at byte {len(content)} without the empty block that ends a tar "
                "file; it is truncated; write it again"
            )
        if not is_header(block):
            raise DamagedDataError(
                f"{path}: the header at byte {at} has a wrong checksum; the file is damaged or not "
                "a tar file; write it again"
            )
        kind, start = block[156:157], at + _BLOCK
        name = given.get(b"path") or _name(block)
        is_extension = kind in _EXTENSIONS
        size = _size(path, at, block[124:136], None if is_extension else given.get(b"size"))
        is_folder = kind == b"5" or (kind == b"\0" and name.endswith(b"/"))
        end = start if is_folder else start + size
        if end > len(content):
            raise DamagedDataError(
                f"{path}: {shown(name)} needs bytes [{start}, {end}) but there are "
                f"{len(content)}; the file is truncated or damaged; write it again"
            )
        if kind != b"0" or given:
            _refuse(path, kind, name, given)
        if is_extension:
            given = given | _extension(path, at, kind, content[start:end])
        else:
            if not is_folder:
                yield Member(name, start, size)
            given = {}
        at = start + -(-(end - start) // _BLOCK) * _BLOCK
        if at - told >= _BYTES_BETWEEN_CALLS:
            on_bytes(at - told)
            told = at
    on_bytes(at - told)
    if given:
        raise DamagedDataError(
            f"{path}: ends at byte {at} after an extended header without its member; write it again"
        )
    if np.any(memory[at:]):
        raise DamagedDataError(
            f"{path}: has data after its end at byte {at}; two tar files may have been joined; "
            "write it again, for example with `tar --concatenate`"
        )


def shown(name: bytes) -> str:
    """Return the name of a member, for messages."""
    return repr(name[:80].decode("utf-8", "replace"))


def _refuse(path: Path, kind: bytes, name: bytes, given: dict[bytes, bytes]) -> None:
    """Raise unless a member is a plain file, a folder or an extension."""
    if any(keyword.startswith(b"GNU.sparse") for keyword in given):
        kind = b"S"
    if kind in _REFUSED:
        raise UnsafeDataError(
            f"{path}: {shown(name)} is {_REFUSED[kind]} and must be a plain file; write the tar "
            "file again with plain files, for example with `tar --dereference --hard-dereference`"
        )
    if kind not in (*_PLAIN, *_EXTENSIONS, b"5"):
        raise StoreError(
            f"{path}: {shown(name)} is a member of type {kind!r}, which is unknown; write the tar "
            "file again with plain files"
        )


def _name(block: bytes) -> bytes:
    name = block[:100].partition(b"\0")[0]
    if block[257:263] == b"ustar\0":
        prefix = block[345:500].partition(b"\0")[0]
        return prefix + b"/" + name if prefix else name
    return name


def _size(path: Path, at: int, field: bytes, given: bytes | None) -> int:
    if given is None:
        size = _number(field)
    else:
        is_number = given.isdigit() and len(given) < 20
        size = int(given) if is_number else None
    if size is None or size < 0:
        raise DamagedDataError(
            f"{path}: the header at byte {at} has the size {given or field!r:.80}, which is not a "
            "number; the file is damaged; write it again"
        )
    return size


def _number(field: bytes) -> int | None:
    """Return a number in octal digits, or in base 256; None if it is neither."""
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big", signed=field[0] == 0xFF)
    digits = field.partition(b"\0")[0].strip()
    if not digits:
        return 0
    return int(digits, 8) if _OCTAL.match(digits) else None


def _extension(path: Path, at: int, kind: bytes, content: Any) -> dict[bytes, bytes]:
    """Return what a member that extends the next one says about it."""
    if len(content) > _MAX_EXTENSION_BYTES:
        raise DamagedDataError(
            f"{path}: the extended header at byte {at} has {len(content)} bytes and must have at "
            f"most {_MAX_EXTENSION_BYTES}; the file is damaged; write it again"
        )
    if kind == b"K":
        return {}
    if kind == b"L":
        return {b"path": content.tobytes().partition(b"\0")[0]}
    records = _pax_records(path, at, content.tobytes())
    if kind == b"g":
        about_members = sorted({b"path", b"size"} & set(records))
        if about_members:
            raise StoreError(
                f"{path}: the global header at byte {at} sets {about_members[0].decode()} for all "
                "members; write the tar file again without that"
            )
        return {}
    return records


def _pax_records(path: Path, at: int, content: bytes) -> dict[bytes, bytes]:
    """Return the records of a pax header: each is its length, a keyword and a value."""
    records = {}
    place = 0
    while place < len(content) and content[place]:
        digits = content[place : place + 8].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        record = content[place + len(digits) + 1 : place + length]
        keyword, equals, value = record[:-1].partition(b"=")
        if not equals or record[-1:] != b"\n" or place + length > len(content):
            raise DamagedDataError(
                f"{path}: the extended header at byte {at} is damaged; write the file again"
            )
        records[keyword] = value
        place += length
    return records
