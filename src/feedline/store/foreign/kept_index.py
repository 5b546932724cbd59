"""Indexes of shards that have none: built once, and kept in small files.

An index is kept beside its shard, in the folder `.feedline-index`, or else in a cache folder:
`$FEEDLINE_CACHE` or `~/.cache/feedline`. It tells which bytes it was built from. If it does not
fit its shard, or is damaged itself, it counts as missing and is built again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline.store.mapped import open_without_waiting

_FOLDER = ".feedline-index"
_MAGIC = b"feedline index 1"
_DIGEST_BYTES = 16
_MAX_HEADER_BYTES = 2**26
_TYPES = ("uint8", "uint16", "uint32", "uint64", "int64")

_log = logging.getLogger("feedline")


@dataclass(frozen=True, eq=False)
class Index:
    """What is known of one shard: a few values as JSON, and flat arrays of integers."""

    told: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())


def compact(numbers: Any) -> NDArray[Any]:
    """Return integers that are not negative in the smallest type that holds them."""
    array = np.asarray(numbers, np.int64)
    return array.astype(np.min_scalar_type(int(array.max()) if len(array) else 0))


def keep_index(shard: Path, digest: str, index: Index) -> bool:
    """Write an index to where it is found again; False if there is no place for it."""
    arrays = {name: np.ascontiguousarray(array) for name, array in index.arrays.items()}
    payload = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for array in arrays.values():
        payload.update(array.tobytes())
    header = json.dumps(
        {
            "shard": digest,
            "payload": payload.hexdigest(),
            "arrays": [[name, array.dtype.name, len(array)] for name, array in arrays.items()],
            "told": index.told,
        }
    ).encode()
    start = _MAGIC + _digest(header) + len(header).to_bytes(8, "little") + header
    for place in _places(shard):
        unfinished = place.with_name(f"{place.name}.{secrets.token_hex(8)}")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if place.parent.is_symlink():
                continue  # Whoever wrote the data must not choose where we write.
            try:
                with open(unfinished, "xb") as file:
                    file.write(start)
                    for array in arrays.values():
                        file.write(array.astype(array.dtype.newbyteorder("<")).tobytes())
                os.replace(unfinished, place)
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise
            return True
        except OSError:
            continue
    _log.warning(
        "%s: its index cannot be kept beside it or in %s, so it is built whenever the data is "
        "opened; set FEEDLINE_CACHE to a folder that can be written",
        shard,
        _cache_folder(),
    )
    return False


def read_told(shard: Path, digest: str, kind: str) -> dict[str, Any] | None:
    """Return the values of the kept index of a shard with this digest; None if there is none."""
    for place in _places(shard):
        found = _read(place, digest, kind, with_arrays=False)
        if found is not None:
            return dict(found.told)
    return None


def read_index(shard: Path, digest: str, kind: str) -> Index | None:
    """Return the kept index of a shard with this digest; None if there is none."""
    for place in _places(shard):
        found = _read(place, digest, kind, with_arrays=True)
        if found is not None:
            return found
    return None


def _places(shard: Path) -> tuple[Path, ...]:
    """Return where an index may be. No name ends like a shard's: `*.tfrecord*` must not find it."""
    if hasattr(shard, "identity"):
        # Nothing is written beside a remote shard.
        return (_cache_folder() / f"{_digest(str(shard).encode()).hex()}.index",)
    beside = _digest(shard.name.encode("utf-8", "surrogateescape")).hex()
    anywhere = _digest(os.path.realpath(shard).encode("utf-8", "surrogateescape")).hex()
    return shard.parent / _FOLDER / f"{beside}.index", _cache_folder() / f"{anywhere}.index"


def _cache_folder() -> Path:
    given = os.environ.get("FEEDLINE_CACHE")
    return Path(given) if given else Path(os.path.expanduser("~")) / ".cache" / "feedline"


def _read(place: Path, digest: str, kind: str, *, with_arrays: bool) -> Index | None:
    """Return an index; None if it is not there, is of another shard or is damaged."""
    try:
        with open(place, "rb", opener=open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return None
            return _parse(file, status.st_size, digest, kind, with_arrays)
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None


def _parse(file: BinaryIO, size: int, digest: str, kind: str, with_arrays: bool) -> Index | None:
    start = file.read(len(_MAGIC) + _DIGEST_BYTES + 8)
    header_bytes = int.from_bytes(start[-8:], "little")
    if not start.startswith(_MAGIC) or header_bytes > min(size, _MAX_HEADER_BYTES):
        return None
    encoded = file.read(header_bytes)
    if _digest(encoded) != start[len(_MAGIC) : -8]:
        return None
    header = json.loads(encoded)
    told = header["told"]
    if header["shard"] != digest or told["kind"] != kind:
        return None
    if not with_arrays:
        return Index(told, {})
    left = size - len(start) - header_bytes
    payload = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    arrays = {}
    for name, type_name, count in header["arrays"]:
        if type_name not in _TYPES:
            return None
        dtype = np.dtype(type_name).newbyteorder("<")
        if type(count) is not int or not 0 <= count * dtype.itemsize <= left:
            return None
        content = file.read(count * dtype.itemsize)
        left -= len(content)
        payload.update(content)
        arrays[name] = np.frombuffer(content, dtype)
    return Index(told, arrays) if payload.hexdigest() == header["payload"] else None


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
