"""Attributes that an object has from another one that it holds."""

from __future__ import annotations

from operator import attrgetter
from typing import Any


def asked_of(holder: str, name: str, doc: str | None = None) -> Any:
    """Return a property that is `name` of the object that the attribute `holder` is.

    It may be a value or a method. It can be set where that object allows it.

    Examples:
        >>> class Ruler:
        ...     numbers = [3, 1, 2]
        ...     index = asked_of("numbers", "index")
        >>> Ruler().index(2)
        2
    """

    def assign(owner: Any, value: Any) -> None:
        setattr(getattr(owner, holder), name, value)

    return property(attrgetter(f"{holder}.{name}"), assign, doc=doc)
