"""Frozen dataclasses: storing checked fields, descriptions and comparison.

A description is everything that decides an order, as JSON values. Its fingerprint is one short
string, and two descriptions show what differs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import check_integer
from feedline.plan.seeds import describe_seed

_BYTES_AT_ONCE = 2**20


def store(instance: object, **values: Any) -> None:
    """Set fields of a frozen dataclass from within its own `__post_init__`."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def store_integers(instance: object, *names: str, low: int, high: int | None = None) -> None:
    """Check fields of a frozen dataclass, and convert them to integers."""
    for name in names:
        number = check_integer(name, getattr(instance, name), low, high)
        object.__setattr__(instance, name, number)


def described(instance: object, *left_out: str, **more: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON values; `more` adds to them or replaces them."""
    kind: Any = type(instance)
    for name, as_json in _fields_of(kind):
        if name not in left_out and name not in more:
            value = getattr(instance, name)
            more[name] = value if as_json is None else as_json(value)
    return more


@cache
def _fields_of(kind: type) -> list[tuple[str, Callable[[Any], Any] | None]]:
    """Return the name of each field, and what makes it a JSON value unless it is one."""
    converters = {"int": None, "float": None, "str": None, "bool": bool, "Seed": describe_seed}
    return [(field.name, converters.get(str(field.type), _as_json)) for field in fields(kind)]


def _as_json(value: Any) -> Any:
    if isinstance(value, list | tuple):
        holds_plain = not value or isinstance(value[0], int | float)
        return [*value] if holds_plain else list(map(_as_json, value))
    return value.describe() if hasattr(value, "describe") else value


def fingerprint_of(fields: Mapping[str, Any]) -> str:
    """Return the fingerprint of a plan's fields.

    Examples:
        >>> fingerprint_of({"seed": 1}) == fingerprint_of({"seed": 1})
        True
    """
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=16, person=b"feedline.plan.1").hexdigest()


def digest_array(array: NDArray[Any]) -> dict[str, Any]:
    """Return the length and the digest of a list of integers of any dtype."""
    digest = hashlib.blake2b(digest_size=16)
    for first in range(0, len(array), _BYTES_AT_ONCE // 8):
        part = array[first : first + _BYTES_AT_ONCE // 8]
        digest.update(np.ascontiguousarray(part, dtype="<i8").tobytes())
    return {"num_entries": len(array), "digest": digest.hexdigest()}


class Digested(dict[str, Any]):
    """A long list in a description: its length, and the digests of parts of it.

    So the description is short, and two of them still show which part differs. `listed` returns
    the list itself, for comparison with descriptions that hold it.
    """

    def __init__(self, digests: Mapping[str, Any], listed: Callable[[], list[Any]]) -> None:
        super().__init__(digests)
        self.listed = listed

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def in_form_of(fields: Any, saved: Any) -> Any:
    """Return fields in which lists that `saved` holds in full are in full too.

    Examples:
        >>> fields = {"sizes": Digested({"num_entries": 2}, lambda: [4, 5])}
        >>> in_form_of(fields, {"sizes": [4, 6]})
        {'sizes': [4, 5]}
    """
    if isinstance(fields, Digested):
        return fields.listed() if isinstance(saved, list) else fields
    if isinstance(fields, dict) and isinstance(saved, Mapping):
        return {name: in_form_of(value, saved.get(name)) for name, value in fields.items()}
    return fields


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
    pairs = {name: tuple(side.get(name, _absent(name)) for side in (left, right)) for name in names}
    return {name: (was, now) for name, (was, now) in pairs.items() if was != now}


def _absent(name: str) -> Any:
    """Return what stands for a field that is not there; version 1 is not written down."""
    return 1 if name.rpartition(".")[2] == "version" else "(absent)"
