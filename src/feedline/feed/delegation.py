"""Attributes that an object takes from another one that it holds."""

from __future__ import annotations

from operator import attrgetter
from typing import Any


def asked_of(holder: str, name: str, doc: str | None = None, *, can_set: bool = False) -> Any:
    """Return a property that is `name`, a value or a method, of what the attribute `holder` is.

    Examples:
        >>> class Ruler:
        ...     numbers = [3, 1, 2]
        ...     index = asked_of("numbers", "index")
        >>> Ruler().index(2)
        2
    """

    def assign(owner: Any, value: Any) -> None:
        setattr(getattr(owner, holder), name, value)

    return property(attrgetter(f"{holder}.{name}"), assign if can_set else None, doc=doc)
