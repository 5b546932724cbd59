"""Seals: whether a cached file is as it arrived, told by its time of modification.

A checked file gets a time in the years 1980 to 1997, computed from its key, its content and the
last start of the machine. Whoever writes to the file later changes its time, so that its status
alone tells whether it is as it was checked. A restart may lose what was not on disk yet, so no seal
holds after it: the content is compared once more, and the file gets a new seal.
"""

from __future__ import annotations

import hashlib
import os
import stat
import zlib
from functools import cache
from pathlib import Path
from typing import Any

from feedline.errors import InvalidValueError

_FIRST_SECOND = 315_532_800  # 1980, where the times of all file systems begin.
_NUM_SECONDS = 2**29
_NANOSECONDS = 10**9
_BYTES_AT_ONCE = 2**20


def is_sealed(status: os.stat_result, key: str, digest: str | None) -> bool:
    """Whether a file has been checked since the machine started, and nobody wrote to it since."""
    seconds, rest = divmod(status.st_mtime_ns, _NANOSECONDS)
    if not stat.S_ISREG(status.st_mode) or seconds != _seconds_of(key):
        return False
    return digest is None or rest == _rest_of(key, digest)


def seal(descriptor: int, key: str, digest: str) -> None:
    """Seal a file whose content has this digest."""
    status = os.fstat(descriptor)
    time = _seconds_of(key) * _NANOSECONDS + _rest_of(key, digest)
    os.utime(descriptor, ns=(status.st_atime_ns, time))


def renew_seal(descriptor: int, key: str, digest: str | None) -> bool:
    """Read all of a file whose seal does not hold, and seal it anew if its content is right.

    Without a digest, the content is compared with what the seal of an earlier time tells of it.
    """
    seconds, rest = divmod(os.fstat(descriptor).st_mtime_ns, _NANOSECONDS)
    if digest is None and not 0 <= seconds - _FIRST_SECOND < _NUM_SECONDS:
        return False
    found = digest_of(descriptor, digest)
    is_right = found == digest if digest is not None else _rest_of(key, found) == rest
    if is_right:
        seal(descriptor, key, found)
    return is_right


def digest_of(descriptor: int, like: str | None) -> str:
    """Return the digest of a whole file, of the kind of another one; without one, its CRC-32."""
    name = kind_of(like)
    digest = _Crc32() if like is None else _new_digest(like)
    buffer = memoryview(bytearray(_BYTES_AT_ONCE))
    offset = 0
    while count := _read(descriptor, buffer, offset):
        digest.update(buffer[:count])
        offset += count
    return f"{name}:{digest.hexdigest()}"


def kind_of(digest: str | None) -> str:
    """Return the hash function of a digest, or that of files of which none is known."""
    return "crc32" if digest is None else digest.partition(":")[0]


def _read(descriptor: int, buffer: memoryview, offset: int) -> int:
    """Fill a buffer from a file, but for its end; return the number of bytes."""
    count = 0
    while part := os.preadv(descriptor, [buffer[count:]], offset + count):
        count += part
        if count == len(buffer):
            break
    return count


def check_digest(digest: Any) -> str | None:
    """Return a digest as it is compared, or raise if it is none that can be computed."""
    if digest is None:
        return None
    name, _, value = str(digest).partition(":")
    try:
        size = len(bytes.fromhex(value))
        is_known = len(_new_digest(f"{name}:{value}").hexdigest()) == 2 * size > 0
    except (ValueError, TypeError):
        is_known = False
    if not isinstance(digest, str) or not is_known:
        raise InvalidValueError(
            f"digest={digest!r:.80} must be the name of a hash function, a colon and hexadecimal "
            "digits, such as 'crc32:352441c2'; use a function that hashlib has, or None"
        )
    return f"{name}:{value.lower()}"


class _Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: memoryview) -> None:
        self._value = zlib.crc32(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def _new_digest(like: str) -> Any:
    name, _, value = like.partition(":")
    if name == "crc32":
        return _Crc32()
    if name in ("blake2b", "blake2s"):
        return getattr(hashlib, name)(digest_size=len(value) // 2)
    return hashlib.new(name, usedforsecurity=False)


def _seconds_of(key: str) -> int:
    # Some file systems have steps of two seconds.
    return _FIRST_SECOND + _hash_of(boot_id(), key) % _NUM_SECONDS // 2 * 2


def _rest_of(key: str, digest: str) -> int:
    return _hash_of(digest, key) % _NANOSECONDS


def _hash_of(first: str, second: str) -> int:
    text = f"{first}\0{second}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


@cache
def boot_id() -> str:
    """Return a text that is another one after each start of the machine, where it tells."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
