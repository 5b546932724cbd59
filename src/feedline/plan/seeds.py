"""The one function that turns a seed into keys.

Keys come from hashing, never from adding: `seed + epoch` would make epoch 1 of seed 7 equal
epoch 0 of seed 8.
"""

from __future__ import annotations

import hashlib
import operator
from typing import Any, SupportsIndex

from feedline.errors import InvalidValueError, check_integer

Seed = int | str


def derive_key(seed: Seed, purpose: str, epoch: int = 0, *names: SupportsIndex | str) -> int:
    """Return the 128-bit key of one purpose in one epoch, narrowed down by any further names.

    Every argument is hashed with its type and length, so no two different argument lists share an
    encoding: `("a", "bc")` and `("ab", "c")` are different, and so are `1` and `"1"`.

    Args:
        seed: Any integer or string.
        purpose: What the key is for.
        epoch: The number of the epoch.
        *names: Integers or strings that narrow it down, such as the number of a source.

    Examples:
        >>> derive_key(0, "order", 1) != derive_key(1, "order", 0)
        True
    """
    digest = _begun(seed, purpose, epoch)
    for part in names:
        digest.update(_encode(part))
    return int.from_bytes(digest.digest(), "little")


def derive_keys(seed: Seed, purpose: str, epoch: int, count: int) -> list[int]:
    """Return the keys of the names 0, 1, …: of `count` labels, such as buckets or sources.

    Examples:
        >>> derive_keys(0, "source", 3, 5)[4] == derive_key(0, "source", 3, 4)
        True
    """
    begun = _begun(seed, purpose, epoch)
    keys = []
    for name in range(count):
        digest = begun.copy()
        digest.update(_encode(name))
        keys.append(int.from_bytes(digest.digest(), "little"))
    return keys


def _begun(seed: Seed, purpose: str, epoch: int) -> hashlib.blake2b:
    """Return the hash of what all names have in common."""
    digest = hashlib.blake2b(digest_size=16, person=b"feedline.key.1")
    for part in (check_seed(seed), purpose, check_integer("epoch", epoch, 0)):
        digest.update(_encode(part))
    return digest


def check_seed(seed: Any) -> Seed:
    """Return `seed` as a plain int or str, or raise: any integer and any string is a seed."""
    if isinstance(seed, str):
        return str(seed)
    try:
        if isinstance(seed, bool):
            raise TypeError
        return operator.index(seed)
    except TypeError:
        raise InvalidValueError(f"seed={seed!r} must be an integer or a string") from None


def describe_seed(seed: Seed) -> Any:
    """Return a seed as a JSON value; Python refuses to write very long integers in decimal."""
    if isinstance(seed, int) and seed.bit_length() > 4096:
        return {"hex": format(seed, "x")}
    return seed


def _encode(part: SupportsIndex | str) -> bytes:
    if isinstance(part, str):
        tag, body = b"s", part.encode("utf-8", "surrogatepass")
    else:
        # Hexadecimal, because Python refuses to write very long integers in decimal.
        tag, body = b"i", format(check_integer("name", part, None), "x").encode("ascii")
    return tag + len(body).to_bytes(8, "little") + body
