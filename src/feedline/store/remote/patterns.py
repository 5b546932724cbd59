"""URLs with braces, which name several files: `shard-{000..009}.tar`."""

from __future__ import annotations

import re
from itertools import product

from feedline.errors import InvalidValueError
from feedline.words import several

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]{1,18})\.\.([0-9]{1,18})")
_MOST_NAMES = 10**6


def has_braces(text: str) -> bool:
    """Whether a URL names several files."""
    return "{" in text or "}" in text


def expand(pattern: str) -> list[str]:
    """Return the names that a pattern with braces stands for, in order.

    Examples:
        >>> expand("shard-{08..10}.tar")
        ['shard-08.tar', 'shard-09.tar', 'shard-10.tar']
        >>> expand("{a,b}.parquet")
        ['a.parquet', 'b.parquet']
    """
    parts = _BRACES.split(pattern)
    if any(mark in text for text in parts[::2] for mark in "{}"):
        raise _wrong(pattern)
    choices = [_choices(pattern, part) for part in parts[1::2]]
    total = 1
    for of_braces in choices:
        total *= len(of_braces)
    if total > _MOST_NAMES:
        raise InvalidValueError(
            f"url={pattern!r:.200} names {several(total, 'file')} but may name at most "
            f"{_MOST_NAMES}; open fewer, or write larger files"
        )
    names = []
    for chosen in product(*choices):
        texts = [text for pair in zip(parts[::2], chosen, strict=False) for text in pair]
        names.append("".join([*texts, parts[-1]]))
    return names


def _choices(pattern: str, inside: str) -> list[str]:
    found = _RANGE.fullmatch(inside)
    if found is None:
        if "," not in inside:
            raise _wrong(pattern)
        return inside.split(",")
    first, last = int(found[1]), int(found[2])
    if not 0 <= last - first < _MOST_NAMES:
        raise InvalidValueError(
            f"url={pattern!r:.200} has {{{inside}}}, which must ascend and name at most "
            f"{_MOST_NAMES} files"
        )
    return [f"{number:0{len(found[1])}d}" for number in range(first, last + 1)]


def _wrong(pattern: str) -> InvalidValueError:
    return InvalidValueError(
        f"url={pattern!r:.200} has braces, which must be like {{000..009}} or {{a,b}} and stand "
        "after the last slash"
    )
