"""Numbers and values as people read them, in messages, reports and on a prompt."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from itertools import islice
from os import PathLike
from types import MappingProxyType
from typing import Any, TypeVar

Kind = TypeVar("Kind")
_MOST_SIGNS = 200
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_OF_MAPPINGS = (dict.__repr__, MappingProxyType.__repr__, object.__repr__)


def several(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun, in the plural where it should be.

    Examples:
        >>> several(1, "rank"), several(12_000, "sample"), several(2, "batch", "batches")
        ('1 rank', '12,000 samples', '2 batches')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def bytes_in_words(num_bytes: float | None) -> str:
    """Return a number of bytes in the unit that suits it; None is "unknown".

    Examples:
        >>> bytes_in_words(512), bytes_in_words(3 * 2**20)
        ('512 bytes', '3.0 MiB')
    """
    if num_bytes is None:
        return "unknown"
    if num_bytes < 1024:
        return several(int(num_bytes), "byte")
    power = min(6, (int(num_bytes).bit_length() - 1) // 10)
    return f"{num_bytes / 1024**power:,.1f} {'KMGTPE'[power - 1]}iB"


def shown(value: object, most: int = 60) -> str:
    """Return a value in one short line, whatever it is: of a long list, how it begins.

    Examples:
        >>> shown(list(range(1000))), shown("a" * 100, most=20)
        ('[0, 1, 2, … 1,000 in all]', "'aaaaaaaaaaaaaaaaaa…")
    """
    try:
        return shortened(_one_line(value, most), most)
    except Exception:
        # Whoever prints an object to find a fault must not be stopped by another one.
        return f"<{type(value).__name__}>"


def shortened(text: str, most: int = 200) -> str:
    """Return a text on one line; of a long one, how it begins, with its closing bracket.

    Examples:
        >>> shortened("Plan(sizes=[1, 2, 3])", most=12)
        'Plan(sizes…)'
    """
    line = _ADDRESS.sub("", " ".join(text.split()))
    if len(line) <= most:
        return line
    end = line[-1] if line[-1] in ")>" else ""
    return f"{line[: most - 1 - len(end)]}…{end}"


def path_shown(path: object, most: int = 60) -> str:
    """Return a path; of a long one, how it ends.

    Examples:
        >>> path_shown("/data/" + "deep/" * 100 + "cells.zarr", most=16)
        '…/deep/cells.zarr'
    """
    text = str(path)
    return text if len(text) <= most else f"…{text[-most:]}"


def one_line(kind: type[Kind]) -> type[Kind]:
    """Let a dataclass or a named tuple show its fields in one short line, but for empty ones.

    Examples:
        >>> from dataclasses import dataclass
        >>> @one_line
        ... @dataclass
        ... class Sizes:
        ...     sizes: list[int]
        ...     name: str | None = None
        >>> Sizes([1] * 5000)
        Sizes(sizes=[1, 1, 1, … 5,000 in all])
    """
    kind.__repr__ = _fields_in_line  # type: ignore[method-assign]
    return kind


def _fields_in_line(instance: object) -> str:
    kind: Any = type(instance)
    if hasattr(kind, "_fields"):
        names = list(kind._fields)
    else:
        names = [field.name for field in fields(kind) if field.repr]
    values = [(name, getattr(instance, name, None)) for name in names]
    told = [(name, value) for name, value in values if not _is_nothing(value)]
    texts = [f"{name}={shown(value, _MOST_SIGNS)}" for name, value in told]
    for _ in texts:
        over = sum(map(len, texts)) + 2 * len(texts) + len(kind.__name__) - _MOST_SIGNS
        if over <= 0:
            break
        longest = max(range(len(texts)), key=lambda number: len(texts[number]))
        texts[longest] = shortened(texts[longest], max(30, len(texts[longest]) - over))
    return shortened(f"{kind.__name__}({', '.join(texts)})")


def _is_nothing(value: object) -> bool:
    return value is None or (isinstance(value, tuple) and not value)


def _one_line(value: Any, most: int) -> str:
    if hasattr(value, "shape") and hasattr(value, "tolist"):
        if len(value.shape) != 1:
            return f"{value.dtype} of shape {tuple(value.shape)}" if value.shape else str(value)
        return _listed(value[:4].tolist(), len(value), "[]")
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return _listed(list(value[:4]), len(value), "[]" if isinstance(value, list) else "()")
    if isinstance(value, Mapping) and type(value).__repr__ in _OF_MAPPINGS:
        pairs = [f"{shown(key)}: {shown(value[key], 40)}" for key in islice(value, 4)]
        more = f", … {len(value):,} in all" if len(value) > 4 else ""
        return f"{{{', '.join(pairs)}{more}}}"
    if isinstance(value, str | bytes):
        return repr(value[: most + 1])
    if isinstance(value, PathLike):
        return repr(path_shown(value))
    if isinstance(value, float):
        return repr(round(value, 6))
    if hasattr(value, "__qualname__"):
        return str(value.__qualname__)
    return repr(value)


def _listed(first: list[Any], count: int, brackets: str) -> str:
    """Return a list by its first values; of four or fewer, all of them."""
    if count > 4:
        listed = ", ".join(shown(value, 40) for value in first[:3])
        return f"{brackets[0]}{listed}, … {count:,} in all{brackets[1]}"
    end = "," if count == 1 and brackets == "()" else ""
    return f"{brackets[0]}{', '.join(shown(value, 40) for value in first)}{end}{brackets[1]}"
