"""The bytes of a shard: mapped, or decoded whole if it is compressed."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, StoreError
from feedline.store.mapped import map_file
from feedline.words import bytes_in_words

_BYTES_AT_ONCE = 2**20
# A small file must not ask for any amount of memory. Data compresses less than this.
_MAX_RATIO = 256
_ALWAYS_ALLOWED = 2**26
_AS_HEADERS_SAY = 32 + zlib.MAX_WBITS
_UNSUPPORTED = {
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -d"),
    b"\xfd7zXZ\0": ("xz", "xz -d"),
    b"BZh": ("bzip2", "bzip2 -d"),
}


@dataclass(frozen=True, eq=False)
class Content:
    """The bytes of a shard, and how many of them are in ordinary memory."""

    memory: NDArray[np.uint8]
    num_bytes_held: int = 0


def is_deflated(start: bytes) -> bool:
    """Whether a file that starts so may be compressed by gzip or zlib."""
    is_zlib = len(start) >= 2 and start[0] == 0x78 and int.from_bytes(start[:2], "big") % 31 == 0
    return start.startswith(b"\x1f\x8b\x08") or is_zlib


def refuse_other_compressions(path: Path, start: bytes) -> None:
    """Raise if a file starts like one of a compression that is not read."""
    for magic, (name, command) in _UNSUPPORTED.items():
        if start.startswith(magic):
            raise StoreError(
                f"{path}: is compressed by {name}, and must be plain or compressed by gzip; "
                f"decompress it with `{command}`"
            )


def inflate(path: Path, mapped: NDArray[np.uint8], num_bytes: int | None = None) -> Content:
    """Return the decoded bytes of a gzip or zlib file; `num_bytes` is how many, if known."""
    most = max(_ALWAYS_ALLOWED, _MAX_RATIO * mapped.size)
    if num_bytes is None:
        # Decoded twice, so that no more memory is taken than it needs.
        num_bytes = sum(map(len, _pieces(path, mapped, most)))
    if not 0 <= num_bytes <= most:
        raise _wrong_size(path, num_bytes, mapped)
    memory = np.empty(num_bytes, np.uint8)
    done = 0
    for piece in _pieces(path, mapped, num_bytes):
        memory[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
        done += len(piece)
    if done != num_bytes:
        raise _wrong_size(path, num_bytes, mapped)
    return Content(memory, num_bytes)


def _pieces(path: Path, mapped: NDArray[np.uint8], most: int) -> Iterator[bytes]:
    """Yield the decoded bytes of all members of a file, whose checksums zlib compares."""
    given: Any = mapped.data
    decoder: Any = None
    total = at = 0
    try:
        while at < len(given):
            decoder = zlib.decompressobj(_AS_HEADERS_SAY)
            waiting: Any = b""
            while not decoder.eof and (waiting or at < len(given)):
                if not waiting:
                    waiting = given[at : at + _BYTES_AT_ONCE]
                    at += len(waiting)
                piece = decoder.decompress(waiting, _BYTES_AT_ONCE)
                waiting = decoder.unconsumed_tail
                total += len(piece)
                if total > most:
                    raise DamagedDataError(
                        f"{path}: decodes to more than {bytes_in_words(most)}, which is more than "
                        "data of its size can be; decompress it with `gzip -d` if that is right"
                    )
                yield piece
            at -= len(decoder.unused_data)
            if not np.any(mapped[at : at + _BYTES_AT_ONCE]) and not np.any(mapped[at:]):
                break  # Padding with zeros may follow.
    except zlib.error as error:
        raise DamagedDataError(f"{path}: is damaged ({error}); write it again") from None
    if decoder is None or not decoder.eof:
        raise DamagedDataError(
            f"{path}: its compressed data ends too early; it is truncated; write it again"
        )


def _wrong_size(path: Path, num_bytes: int, mapped: NDArray[np.uint8]) -> DamagedDataError:
    return DamagedDataError(
        f"{path}: should decode to {num_bytes} bytes but its {mapped.size} bytes do not; it has "
        "changed; open the data again"
    )


def map_start(path: Path) -> tuple[NDArray[np.uint8], bytes]:
    """Return the bytes of a file, mapped, and its first 512 or fewer as `bytes`."""
    mapped = map_file(path)
    return mapped, mapped[:512].tobytes()
