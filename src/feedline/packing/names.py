"""Names of columns: which are taken from the source, and what they are called in the chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from feedline.errors import InvalidValueError

__all__ = ["Selection", "old_names", "parse_columns", "select"]

Selection = dict[str, str]
"""The name in the source of each column, by its new name."""


def parse_columns(columns: Any) -> Selection | None:
    """Return the wanted columns, or None for all of them.

    Examples:
        >>> parse_columns({"sequences/item": "item"})
        {'sequences/item': 'item'}
    """
    if columns is None:
        return None
    if isinstance(columns, Mapping):
        pairs = list(columns.items())
    elif isinstance(columns, Iterable) and not isinstance(columns, str | bytes):
        names = list(columns)
        pairs = list(zip(names, names, strict=True))
    else:
        raise InvalidValueError(
            f"columns={columns!r:.80} must be a list of names, or a mapping of new names to names "
            "in the source"
        )
    if not pairs:
        raise InvalidValueError("columns is empty and must have at least 1 name; None takes all")
    for new, old in pairs:
        if not isinstance(old, str):
            raise InvalidValueError(f"columns has {old!r:.80}, which must be a string")
        check_name(new)
    selection = dict(pairs)
    if len(selection) != len(pairs):
        twice = next(new for new, _ in pairs if sum(new == other for other, _ in pairs) > 1)
        raise InvalidValueError(f"columns has {twice!r:.80} twice; name each column once")
    _check_overlaps(selection)
    return selection


def select(selection: Selection | None, found: Iterable[str], where: str) -> Selection:
    """Return the columns to take out of those that a source has, or raise."""
    available = list(found)
    if not available:
        raise InvalidValueError(f"{where}: has 0 columns and must have at least 1")
    if selection is None:
        if len(set(available)) != len(available):
            twice = next(name for name in available if available.count(name) > 1)
            raise InvalidValueError(
                f"{where}: has column {twice!r:.80} twice; choose others by columns=[…]"
            )
        for name in available:
            check_name(name)
        _check_overlaps(available)
        return {name: name for name in available}
    for old in selection.values():
        if available.count(old) != 1:
            listed = ", ".join(repr(name) for name in available[:20])
            raise InvalidValueError(
                f"{where}: has {available.count(old)} columns named {old!r:.80} and must have 1; "
                f"it has {listed:.500}"
            )
    return selection


def old_names(selection: Selection) -> list[str]:
    """Return the names in the source, each once; a column may be taken under several names."""
    return list(dict.fromkeys(selection.values()))


def check_name(name: Any) -> str:
    """Return the name of a column if chunks can have it; in some it is the name of a file."""
    parts = name.split("/") if isinstance(name, str) else [""]
    if any(not part or part.startswith(".") or set(part) & set("\\\0:") for part in parts):
        raise InvalidValueError(
            f"column name {name!r:.80} must be like 'item' or 'sequences/item': parts that are not "
            "empty and do not begin with a dot, no backslashes or colons; rename it by "
            "columns={'new name': 'name in the source'}"
        )
    if name == "__metadata__":
        raise InvalidValueError(f"column name {name!r} is reserved; rename it by columns={{…}}")
    return str(name)


def _check_overlaps(names: Iterable[str]) -> None:
    # As files, column "a" is a.npy, which column "a.npy/b" would need to be a folder.
    files = {f"{name}.npy" for name in names}
    for name in names:
        parts = name.split("/")
        if any("/".join(parts[:count]) in files for count in range(1, len(parts))):
            raise InvalidValueError(f"column name {name!r:.80} collides with another; rename it")
