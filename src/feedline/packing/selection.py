"""The columns to take from a source, and their new names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from feedline.errors import InvalidValueError

Selection = dict[str, str]
"""The name in the source of each column, by its new name."""


def parse_columns(columns: Any) -> Selection | None:
    """Return the selected columns, or None for all.

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
        raise InvalidValueError("columns is empty and must have at least 1 name; use None for all")
    for _, old in pairs:
        if not isinstance(old, str):
            raise InvalidValueError(f"columns contains {old!r:.80}, which must be a string")
    _check_names([new for new, _ in pairs], "columns", "name each column once")
    return dict(pairs)


def select(selection: Selection | None, found: Iterable[str], where: str) -> Selection:
    """Return the columns to take from those of a source, or raise."""
    available = list(found)
    if not available:
        raise InvalidValueError(f"{where}: has 0 columns and must have at least 1")
    if selection is None:
        _check_names(available, f"{where}:", "choose others with columns=[…]")
        return {name: name for name in available}
    expanded: Selection = {}
    for new, old in selection.items():
        inside = [path for path in available if path.startswith(f"{old}/")]
        if old in available or not inside:
            expanded[new] = old
        else:
            # A column of records stands for all columns in it.
            expanded |= {new + path.removeprefix(old): path for path in inside}
    for old in expanded.values():
        if available.count(old) != 1:
            listed = ", ".join(repr(name) for name in available[:20])
            raise InvalidValueError(
                f"{where}: has {available.count(old)} columns named {old!r:.80} and must have 1; "
                f"it has {listed:.500}"
            )
    return expanded


def old_names(selection: Selection) -> list[str]:
    """Return the names in the source, each once; a column may have several new names."""
    return list(dict.fromkeys(selection.values()))


def _check_names(names: list[Any], where: str, remedy: str) -> None:
    """Raise unless these are valid column names; in some formats they are file names."""
    known: set[str] = set()
    for name in names:
        parts = name.split("/") if isinstance(name, str) else [""]
        if any(not part or part.startswith(".") or set(part) & set("\\\0:") for part in parts):
            raise InvalidValueError(
                f"column name {name!r:.80} must be like 'item' or 'sequences/item': parts that are "
                "not empty and do not begin with a dot, no backslashes or colons; rename it with "
                "columns={'new name': 'name in the source'}"
            )
        if name == "__metadata__":
            raise InvalidValueError(
                f"column name {name!r} is reserved; rename it with columns={{…}}"
            )
        if name in known:
            raise InvalidValueError(f"{where} has {name!r:.80} twice; {remedy}")
        known.add(name)
    # As files, column "a" is a.npy, which column "a.npy/b" would need to be a folder.
    for name in names:
        for end in (at for at, letter in enumerate(name) if letter == "/"):
            if name[:end].endswith(".npy") and name[: end - 4] in known:
                raise InvalidValueError(
                    f"column name {name!r:.80} collides with {name[: end - 4]!r:.80}; rename it"
                )
