"""Fingerprints: one short string for everything that decides an order, and what differs in two."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BYTES_AT_ONCE = 2**20


def fingerprint_of(fields: Mapping[str, Any]) -> str:
    """Return the fingerprint of a plan's fields.

    Examples:
        >>> fingerprint_of({"seed": 1}) == fingerprint_of({"seed": 1})
        True
    """
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=16, person=b"feedline.plan.1").hexdigest()


def digest_array(array: NDArray[Any]) -> dict[str, Any]:
    """Return the length and the digest of a list of integers, whatever its dtype."""
    digest = hashlib.blake2b(digest_size=16)
    for first in range(0, len(array), _BYTES_AT_ONCE // 8):
        part = array[first : first + _BYTES_AT_ONCE // 8]
        digest.update(np.ascontiguousarray(part, dtype="<i8").tobytes())
    return {"num_entries": len(array), "digest": digest.hexdigest()}


def flatten_fields(fields: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested fields as one level of dotted names, so that each can be compared alone.

    Examples:
        >>> flatten_fields({"order": {"seed": 1, "sizes": [4, 5]}})
        {'order.seed': 1, 'order.sizes[0]': 4, 'order.sizes[1]': 5}
    """
    if isinstance(fields, Mapping):
        inner = [(f"{prefix}.{name}" if prefix else str(name), fields[name]) for name in fields]
    elif isinstance(fields, list):
        inner = [(f"{prefix}[{number}]", value) for number, value in enumerate(fields)]
    else:
        return {prefix: fields}
    flat: dict[str, Any] = {}
    for name, value in inner:
        flat.update(flatten_fields(value, name))
    return flat


def list_differences(
    saved: Mapping[str, Any], current: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Return each field whose value differs, with the saved and the current value."""
    left, right = flatten_fields(saved), flatten_fields(current)
    names = [*left, *(name for name in right if name not in left)]
    absent = "(absent)"
    return {
        name: (left.get(name, absent), right.get(name, absent))
        for name in names
        if left.get(name, absent) != right.get(name, absent)
    }
