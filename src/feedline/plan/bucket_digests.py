"""Descriptions of buckets that stay short however many buckets there are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline.plan.frozen import Digested

if TYPE_CHECKING:
    from feedline.plan.bucket_deal import BatchRule
    from feedline.plan.buckets import Bucket

_MOST_LISTED = 128
_NUM_DIGESTS = 64


def describe_buckets(buckets: Sequence[Bucket]) -> list[Any] | Digested:
    """Return some buckets as JSON values: each of a few, or the digests of very many."""

    def listed() -> list[Any]:
        return [bucket.describe() for bucket in buckets]

    if len(buckets) <= _MOST_LISTED:
        return listed()
    return _digested(buckets, _bytes_of_buckets, listed)


def describe_rule(rule: BatchRule) -> dict[str, Any]:
    """Return a rule as JSON values; a long list in it is digested."""
    described = rule.describe()
    for name, value in described.items():
        if isinstance(value, list) and len(value) > _MOST_LISTED:
            described[name] = _digested(value, _bytes_of_numbers, value.copy)
    return described


def _digested(
    entries: Sequence[Any],
    bytes_of: Callable[[Sequence[Any]], Iterable[bytes]],
    listed: Callable[[], list[Any]],
) -> Digested:
    count = len(entries)
    edges = [count * part // _NUM_DIGESTS for part in range(_NUM_DIGESTS + 1)]
    digests: dict[str, Any] = {"num_entries": count}
    for start, stop in pairwise(edges):
        digest = hashlib.blake2b(digest_size=16, person=b"feedline.list.1")
        for part in bytes_of(entries[start:stop]):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        digests[f"[{start}:{stop}]"] = digest.hexdigest()
    return Digested(digests, listed)


def _bytes_of_buckets(buckets: Sequence[Bucket]) -> Iterable[bytes]:
    """Yield bytes that tell any two lists of buckets apart: their keys, and then their members."""
    keys = [repr(bucket.key).encode("utf-8", "surrogatepass") for bucket in buckets]
    yield _integers(map(len, keys))
    yield b"".join(keys)
    members = [bucket.members for bucket in buckets]
    ranges = [own for own in members if isinstance(own, range)]
    lists = [own for own in members if not isinstance(own, range)]
    yield bytes(isinstance(own, range) for own in members)
    for end in ("start", "stop", "step"):
        yield _integers(map(attrgetter(end), ranges))
    yield _integers(map(len, lists))
    for own in lists:
        yield np.ascontiguousarray(own, dtype="<i8").tobytes()


def _integers(numbers: Iterable[int]) -> bytes:
    return np.fromiter(numbers, dtype="<i8").tobytes()


def _bytes_of_numbers(numbers: Sequence[float]) -> Iterable[bytes]:
    """Yield bytes that tell any two lists of numbers apart; integers may be of any size."""
    yield json.dumps(numbers).encode()
