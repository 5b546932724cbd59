"""How a frozen dataclass stores what it has checked, and describes itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

from feedline.errors import check_integer
from feedline.plan.seeds import describe_seed


def store(instance: object, **values: Any) -> None:
    """Set fields of a frozen dataclass from within its own `__post_init__`."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def store_integers(instance: object, *names: str, low: int, high: int | None = None) -> None:
    """Check fields of a frozen dataclass, and set them to the integers that they stand for."""
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
